"""What speaks for a whole log directory: its clean-shutdown marker, its topics' settings, the names of its folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import LogManager
from kafkalog.cli.app import invoke
from kafkalog.format.checkpoints import CleanShutdownFile

HEX = "0123456789abcdef" * 2


def fill(root: Path, name: str, count: int = 10, **options: Any) -> None:
    with kafkalog.open_log(root, name, **options) as log:
        for number in range(count):
            log.append(b"%d" % number * 100)


def content(root: Path, name: str) -> list[bytes | None]:
    with kafkalog.open_log(root, name, read_only=True) as log:
        return [record.value for record in log]


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = invoke([str(each) for each in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


# --- the clean-shutdown marker -----------------------------------------------------------------------------------


def torn_copy(tmp_path: Path) -> tuple[Path, Path]:
    """A partition in one directory, in the other an unfinished copy of which a power loss left the first batch."""
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, "t-0")
    manager = LogManager([old, new])
    manager.startup()
    copy = manager.get_or_create_log("t-0", is_future=True, is_new=True, log_dir=new)
    source = manager.get_log("t-0")
    assert source is not None
    copy.append_as_follower(source.read(0, 1 << 20).records.to_bytes(), 0)
    manager.abandon()
    (log,) = new.glob("*-future/*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    log.write_bytes(data)
    return old, new


@pytest.mark.parametrize("how", ["open_log", "recover"])
def test_a_copy_that_nobody_recovered_is_not_believed(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = torn_copy(tmp_path)
    fill(new, "u-0", 1)
    if how == "recover":
        code, out, err = run(capsys, "recover", new, "--yes", "--json")
        (name,) = [path.name for path in new.glob("*-future")]
        assert (code, json.loads(out.splitlines()[-1])["notRecovered"]) == (0, [str(new / name)])
        code, out, err = run(capsys, "recover", new, "--yes")
        assert code == 0
        assert name in err
    assert not CleanShutdownFile(str(new)).exists()
    with LogManager([old, new]) as manager:
        copy = manager.get_log("t-0", is_future=True)
        assert copy is not None
        assert 0 < copy.log_end_offset < 10  # what was torn is gone
        manager.move("t-0", new)
    assert content(new, "t-0") == [b"%d" % number * 100 for number in range(10)]


@pytest.mark.parametrize("suffix", ["future", "delete", "stray"])
def test_the_marker_speaks_for_folders_in_transit_too(suffix: str, tmp_path: Path) -> None:
    fill(tmp_path, "t-0")
    (tmp_path / "u-0").mkdir()
    (tmp_path / "u-0").rename(tmp_path / f"u-0.{HEX}-{suffix}")
    fill(tmp_path, "t-0")
    assert CleanShutdownFile(str(tmp_path)).exists()  # it was clean before, with that folder
    CleanShutdownFile(str(tmp_path)).delete()
    fill(tmp_path, "t-0")
    assert not CleanShutdownFile(str(tmp_path)).exists()


def test_a_brokers_metadata_log_needs_no_marker(tmp_path: Path) -> None:
    """No start of LogManager loads it: Kafka's controller recovers it at each of its starts."""
    (tmp_path / "__cluster_metadata-0").mkdir()
    fill(tmp_path, "t-0")
    assert CleanShutdownFile(str(tmp_path)).exists()
