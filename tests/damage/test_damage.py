"""Damaged and hostile directories in the default suite: a few seeds, every hostile case, and all former findings."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog import open_log
from kafkalog.errors import CorruptRecordException
from tests.damage import directories, fuzz, hostile, mutations, probes
from tests.fuzz import native_target
from tests.sampling import FIRST

CORPUS = Path(__file__).with_name("corpus")
SEEDS = 30
LONG = {"zstd_bomb_below_the_limit"}  # more than a million records, printed several times
MEMORY_BYTES = 2 << 30


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A limit on what the process may take beyond what it has."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_nothing_to_complain_about_without_damage(tmp_path: Path) -> None:
    for clean in (True, False):
        damage = mutations.Damage(directories.good_tree(clean=clean))
        damage.spans[""] = []  # checks everything
        root = tmp_path / str(clean)
        root.mkdir()
        assert probes.probe(damage, str(root), clean=clean) == []


def test_seeds() -> None:
    done, complaints = fuzz.fuzz(FIRST, count=SEEDS)
    assert done == SEEDS
    assert complaints == []


@pytest.mark.parametrize("name", sorted(set(hostile.CASES) - LONG))
def test_hostile(name: str, tmp_path: Path, little_memory: None) -> None:
    root = tmp_path / "logs"
    directories.write_tree(directories.good_tree(clean=True), str(root))
    hostile.CASES[name](root)
    complaints = probes.Complaints()
    probes.probe_folder(str(root), complaints)
    for folder in root.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o755)  # for who cleans up
    assert complaints.found == []


def read_case(path: Path) -> directories.Tree:
    tree = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, _, data = text.rpartition(":")
            digits, _, times = data.strip().partition("*")
            tree[name] = bytes.fromhex(digits) * int(times or 1)
    return tree


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.txt")), ids=lambda path: path.stem)
def test_corpus(path: Path, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    directories.write_tree(read_case(path), str(root))
    complaints = probes.Complaints()
    probes.probe_folder(str(root), complaints)
    assert complaints.found == []


@pytest.mark.parametrize(
    "name",
    [
        "base_offset_far_away",
        "batch_from_before_at_the_end",
        "length_of_a_gigabyte",
        "torn_middle_segment",
    ],
)
def test_reading_says_what_it_cannot_read(name: str, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    directories.write_tree(read_case(CORPUS / f"{name}.txt"), str(root))
    read: list[int] = []
    with open_log(root, "t-0", read_only=True) as log, pytest.raises(CorruptRecordException) as error:
        read.extend(record.offset for record in log.records())
    assert error.value.path is not None
    assert error.value.position is not None
    assert read == list(range(len(read)))  # the records before it come first
    with open_log(root, "t-0", read_only=True) as log:
        assert [record.offset for record in log.records(4, 6)] == [4, 5]  # and the records after it exist


@pytest.mark.parametrize("path", sorted((CORPUS / "native").glob("*.hex")), ids=lambda path: path.stem)
def test_native_corpus(path: Path) -> None:
    assert native_target.run_files([str(path)]) > 0


def test_native_inputs() -> None:
    assert native_target.mutation_loop(0, 7, count=3000) == 3000
