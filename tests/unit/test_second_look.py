"""Commands next to a writer: a passing change is no damage, a lasting one is, and a file that never rests is named."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import BEING_WRITTEN, CLEAN, FINDINGS, IO, worse
from kafkalog.engine.files import Files, FileStat
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import BeingWrittenException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.toolbox.checkpoint_table import checkpoint_table
from kafkalog.toolbox.open_transactions import look_for_transactions
from kafkalog.toolbox.recovery import recover
from kafkalog.toolbox.reindex import find_wrong_indexes
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.second_look import LOOKS_MAX, Wrong, look_while_it_rests
from kafkalog.toolbox.topics import topics
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

T0 = TopicPartition("t", 0)
CONFIG = {"internal.segment.bytes": "600", "index.interval.bytes": "0"}
BAD_SIZE_AT = 8 + 3  # the last byte of the first batch's size

pytestmark = pytest.mark.usefixtures("no_rest")


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.second_look.REST_S", 0.0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[BAD_SIZE_AT] ^= 0x60
    path.write_bytes(data)


def damaged(root: Path) -> Path:
    """A log that was not closed, with damage in its second segment; that segment's .log."""
    with kafkalog.open_log(root, T0, config=CONFIG) as log:
        for _ in range(20):
            log.append_many([b"x" * 50] * 2)
    (root / ".kafka_cleanshutdown").unlink()
    (root / "recovery-point-offset-checkpoint").unlink()
    path = sorted((root / "t-0").glob("*.log"))[1]
    flip(path)
    return path


class Beside(UnsyncedFiles):
    """Does something when the n-th file is opened, or, with `every`, at each n-th."""

    def __init__(self, number: int = -1, do: Callable[[], object] = lambda: None, *, every: bool = False) -> None:
        super().__init__()
        self.number, self.do, self.every, self.opened = number, do, every, 0
        self.last_log = 0  # the number of the last one that is a log's

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        self.opened += 1
        if path.endswith(".log") and not create:
            self.last_log = self.opened
        if self.opened == self.number or (self.every and self.opened % self.number == 0):
            self.do()
        return super().open(path, writable=writable, create=create, exclusive=exclusive)


def _wrong_indexes(root: Path, files: Files) -> list[object]:
    found = find_wrong_indexes(str(root), T0, files=files)
    return [each.log_path for each in found if each.findings or each.right is None]


def _transactions(root: Path, files: Files) -> list[object]:
    return [*look_for_transactions(str(root), T0, 0, files=files).damage]


def _salvage(root: Path, files: Files) -> list[object]:
    target = root.parent / "rescued"
    shutil.rmtree(target, ignore_errors=True)
    report = salvage(root, target, {T0: str(root / "t-0")}, files=files)
    for error in report.unsettled:
        assert not (target / "t-0").exists()
        raise error
    return [*report.lost]


def _topics(root: Path, files: Files) -> list[object]:
    found = topics([str(root)], exact=True, files=files)
    for error in found.unsettled:
        raise error
    return [*found.findings]


DOORS: dict[str, Callable[[Path, Files], list[object]]] = {
    "reindex": _wrong_indexes,
    "transactions": _transactions,
    "salvage": _salvage,
    "topics": _topics,
}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Callable[[Path, Files], list[object]]:
    return DOORS[request.param]


def test_damage_that_stays_is_told(tmp_path: Path, door: Callable[[Path, Files], list[object]]) -> None:
    """Reported at once, if nobody writes; next to a writer, when two reads agree."""
    root = tmp_path / "logs"
    path = damaged(root)
    files = Beside()
    assert door(root, files)
    last = max((root / "t-0").glob("*.log"))
    more = path.read_bytes()[:5]

    def append() -> None:
        with last.open("ab") as file:
            file.write(more)

    assert door(root, Beside(files.last_log, append, every=True))


def test_damage_that_passes_is_none(tmp_path: Path, door: Callable[[Path, Files], list[object]]) -> None:
    """The file is exchanged when the look that saw it opens its last one."""
    root = tmp_path / "logs"
    path = damaged(root)
    files = Beside()
    assert door(root, files)
    files = Beside(files.last_log, lambda: flip(path))
    assert door(root, files) == []
    assert files.opened > files.number


def test_who_never_rests_is_named(tmp_path: Path, door: Callable[[Path, Files], list[object]]) -> None:
    root = tmp_path / "logs"
    path = damaged(root)
    files = Beside()
    assert door(root, files)
    before = path.read_bytes()
    sizes = itertools.count(1)
    files = Beside(files.last_log, lambda: path.write_bytes(before + bytes(next(sizes))), every=True)
    with pytest.raises(BeingWrittenException, match=r"t-0 is being written: .* during each of \d+ attempts.*try again"):
        door(root, files)
    assert files.opened >= files.number * LOOKS_MAX


def test_a_partition_that_goes_is_no_damage(tmp_path: Path, door: Callable[[Path, Files], list[object]]) -> None:
    root = tmp_path / "logs"
    damaged(root)
    with pytest.raises(UnknownTopicOrPartitionException, match="t-0 was deleted or moved while it was read"):
        door(root, Beside(2, lambda: shutil.rmtree(root / "t-0", ignore_errors=True)))


def test_a_full_disk_is_told_at_once(tmp_path: Path) -> None:
    """A writer to the source is not the reason."""
    root = tmp_path / "logs"
    damaged(root)

    class Full(UnsyncedFiles):
        tries = 0

        def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
            if create:
                self.tries += 1
                (root / "t-0" / "leader-epoch-checkpoint").write_text(str(self.tries))
                raise OSError(28, "No space left on device", path)
            return super().open(path, writable=writable, create=create, exclusive=exclusive)

    files = Full()
    with pytest.raises(OSError, match="No space left on device"):
        salvage(root, tmp_path / "rescued", {T0: str(root / "t-0")}, files=files)
    assert files.tries == 1


# --- recover, which looks at an overlay -------------------------------------------------------------------


def recovered(
    root: Path, at: int, do: Callable[[], object], *, every: bool = False
) -> tuple[int, KafkalogError | None]:
    """Bytes that would be lost, and why it cannot be told; `do` comes with the n-th read of a log."""
    reads = itertools.count(1)

    def progress(size_bytes: int) -> None:
        number = next(reads)
        if number == at or (every and number % at == 0):
            do()

    (result,) = recover(root, [T0], act=False, progress=progress)
    return result.lost_bytes, result.error


def test_recover_tells_damage_that_stays(tmp_path: Path) -> None:
    damaged(tmp_path)
    lost, error = recovered(tmp_path, -1, lambda: None)
    assert lost > 0
    assert error is None


def test_recover_tells_of_no_damage_that_passes(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    assert recovered(tmp_path, 2, lambda: flip(path)) == (0, None)  # the second segment has just been read


def test_recover_names_who_never_rests(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    before, sizes = path.read_bytes(), itertools.count(1)
    _, error = recovered(tmp_path, 1, lambda: path.write_bytes(before + bytes(next(sizes))), every=True)
    assert isinstance(error, BeingWrittenException)


def test_recover_passes_over_a_partition_that_goes(tmp_path: Path) -> None:
    damaged(tmp_path)
    _, error = recovered(tmp_path, 1, lambda: shutil.rmtree(tmp_path / "t-0", ignore_errors=True))
    assert isinstance(error, UnknownTopicOrPartitionException)


# --- the command line -------------------------------------------------------------------------------------

COMMANDS = {
    "recover": [],
    "reindex": [],
    "transactions": [],
    "topics": ["--exact"],
    "salvage": ["TARGET"],
}


@pytest.fixture
def never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look meets other files."""
    numbers = itertools.count()

    def seen(log_dir: str, partition: TopicPartition, files: Files) -> dict[str, FileStat]:
        folder = Path(log_dir, str(partition))
        return {str(path): FileStat(next(numbers), 0, True, False) for path in folder.iterdir()}

    monkeypatch.setattr("kafkalog.toolbox.second_look._seen", seen)


@pytest.mark.usefixtures("never_rests")
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_being_written_has_an_exit_code(tmp_path: Path, run: Run, command: str, as_json: bool) -> None:
    root = tmp_path / "logs"
    damaged(root)
    options = [str(tmp_path / "rescued") if each == "TARGET" else each for each in COMMANDS[command]]
    result = run(command, str(root), *options, *(["--json"] if as_json else []))
    assert result.code == BEING_WRITTEN == 4
    assert "t-0 is being written" in result.err
    if as_json:
        assert not [each for each in map(json.loads, result.lines) if each["kind"] in ("finding", "lost", "segment")]


def test_an_exit_code_of_findings_counts_more() -> None:
    assert worse(BEING_WRITTEN, FINDINGS) == worse(FINDINGS, BEING_WRITTEN) == FINDINGS
    assert worse(CLEAN, BEING_WRITTEN) == BEING_WRITTEN
    assert worse(IO, BEING_WRITTEN) == IO


def test_a_line_whose_topic_is_just_deleted_is_no_finding(tmp_path: Path) -> None:
    """The directory is deleted first, then the line."""
    for name in ("t-0", "u-0"):
        with kafkalog.open_log(tmp_path, name) as log:
            log.append(b"x")
    points = tmp_path / "recovery-point-offset-checkpoint"

    class Deleting(UnsyncedFiles):
        def read_bytes(self, path: str) -> bytes:
            data = super().read_bytes(path)
            if path == str(points) and (tmp_path / "u-0").exists():
                shutil.rmtree(tmp_path / "u-0")
                points.write_text("0\n1\nt 0 1\n")
            return data

    table = checkpoint_table(str(tmp_path), files=Deleting())
    assert [row.partition for row in table.rows] == [T0]
    assert table.findings == []
    points.write_text("0\n2\nt 0 1\nu 0 1\n")
    assert "has no directory, but a line in" in checkpoint_table(str(tmp_path)).findings[0]


def test_a_look_that_costs_little_asks_for_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("kafkalog.toolbox.second_look._seen", lambda *about: asked.append(about) or {})
    partition = TopicPartition("t", 0)
    (tmp_path / "t-0").mkdir()

    def look() -> str:
        return "well"

    assert look_while_it_rests(str(tmp_path), partition, look, lambda found: (), costs_little=True) == "well"
    assert not asked
    wrong = [Wrong("", None, "x")]
    assert look_while_it_rests(str(tmp_path), partition, look, lambda found: wrong, costs_little=True) == "well"
    assert len(asked) == 2, "what seems wrong is looked at again, between two questions for the files"
