"""Findings and maps of damage of a survey: equal to verify, recover and salvage, byte by byte."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.opening import open_log
from kafkalog.engine.format import names
from kafkalog.report import damage
from kafkalog.report.damage import Stretch, add_damage, covering
from kafkalog.report.tables import Survey
from kafkalog.toolbox.salvage import salvage
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

Ways = Mapping[str, Mapping[str, list[tuple[str, int, int]]]]
T0 = kafkalog.TopicPartition("t", 0)


def written(data: Path, *, clean: bool = False) -> list[Path]:
    """A log of several segments that a crash left; with a partition that is whole.  Returns its logs."""
    for name in ("t-0", "whole-0"):
        config = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}
        with kafkalog.open_log(data, name, config=config) as log:
            for number in range(60):
                log.append(b"%03d" % number + bytes(200))
    if not clean:
        (data / names.CLEAN_SHUTDOWN_FILE).unlink()
        (data / names.RECOVERY_POINT_CHECKPOINT_FILE).unlink()
    return sorted((data / "t-0").glob("*.log"))


def surveyed(data: Path, *, deep: bool) -> Survey:
    made = Survey([str(data)], time.time_ns() // 1_000_000, deep)
    add_damage(made, str(data))
    return made


def ways_of(made: Survey) -> Ways:
    """Maps each file and way to its stretches.  They cover the file without overlap."""
    found: dict[str, dict[str, list[tuple[str, int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in made.tables["damage"].rows():
        assert row["bytes"] == row["toByte"] - row["fromByte"] > 0
        assert row["size"] == os.stat(row["path"]).st_size
        found[row["path"]][row["way"]].append((row["state"], row["fromByte"], row["toByte"]))
    for path, ways in found.items():
        for stretches in ways.values():
            assert [begin for _, begin, _ in stretches] == [0, *(end for _, _, end in stretches[:-1])]
            assert stretches[-1][2] == os.stat(path).st_size
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def tear(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


def torn(data: Path, logs: list[Path]) -> None:
    tear(logs[-1], 7)


def flipped(data: Path, logs: list[Path]) -> None:
    flip(logs[1], 700)
    flip(logs[1], 1500)
    flip(logs[-1], 100)


def gone(data: Path, logs: list[Path]) -> None:
    logs[1].unlink()


def zeros_inside(data: Path, logs: list[Path]) -> None:
    content = bytearray(logs[0].read_bytes())
    content[1000:2000] = bytes(1000)
    logs[0].write_bytes(content)


def torn_inside(data: Path, logs: list[Path]) -> None:
    tear(logs[0], 300)


def misplaced(data: Path, logs: list[Path]) -> None:
    """A batch whose base offset, which no CRC covers, goes back."""
    content = bytearray(logs[1].read_bytes())
    content[0:8] = (2).to_bytes(8, "big")
    logs[1].write_bytes(content)


def checkpoint(data: Path, logs: list[Path]) -> None:
    (data / names.LOG_START_OFFSET_CHECKPOINT_FILE).write_text("0\n5\nt 0 x\n")


def index(data: Path, logs: list[Path]) -> None:
    path = logs[0].with_suffix(".index")
    path.write_bytes(b"\x11" * 8 + path.read_bytes()[8:])


HARM = (torn, flipped, gone, zeros_inside, torn_inside, misplaced, checkpoint, index)
Harm = Callable[[Path, list[Path]], None]


@pytest.mark.parametrize("harm", HARM)
def test_in_depth_findings_are_those_of_verify(run: Run, tmp_path: Path, harm: Harm) -> None:
    data = tmp_path / "data"
    harm(data, written(data))
    told = [json.loads(line) for line in run("verify", "--deep", "--json", data).lines]
    theirs = [each for each in told if each["kind"] == "finding"]
    made = surveyed(data, deep=True)
    columns = ("path", "position", "length", "what")
    ours = list(made.tables["findings"].rows(columns))
    assert ours == [{name: each[name] for name in columns} for each in theirs]
    assert ours
    for row in made.tables["findings"].rows():
        assert (row["topic"], row["partition"]) == (("t", 0) if "/t-0/" in row["path"] else (None, None))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("harm", HARM)
def test_the_map_is_what_happens(tmp_path: Path, harm: Harm, deep: bool) -> None:
    """The recovery that was previewed is done on a copy, and what salvage saves is compared with its copy."""
    data = tmp_path / "data"
    harm(data, written(data))
    made = surveyed(data, deep=deep)
    if not deep and harm in (flipped, zeros_inside, misplaced, index):
        assert not any(made.tables["findings"].rows())  # inside of a log: only verify sees it
        return
    assert any(made.tables["findings"].rows())
    ways = ways_of(made)
    if harm is not checkpoint:
        _as_recovered(data, tmp_path / "recovered", ways)
        _as_salvaged(data, tmp_path / "salvaged", ways)
    for path, of in ways.items():
        bad = sum(end - begin for state, begin, end in of["now"] if state == "damaged")
        assert bad or any(state == "cut" for state, _, _ in of["recovery"]), path


def _as_recovered(data: Path, copy: Path, ways: Ways) -> None:
    shutil.copytree(data, copy)
    logging.disable()
    try:
        open_log(copy, "t-0", create=False, take_over=True, on_damage="truncate").close()
    finally:
        logging.disable(logging.NOTSET)
    for path in (data / "t-0").glob("*.log"):
        after = copy / "t-0" / path.name
        size = after.stat().st_size if after.exists() else 0
        of = ways.get(str(path), {}).get("recovery")
        kept = path.stat().st_size if of is None else sum(end - begin for state, begin, end in of if state == "kept")
        assert kept == size, path


def _as_salvaged(data: Path, target: Path, ways: Ways) -> None:
    salvage(data, target, kafkalog.list_partitions(data))
    for path in (data / "t-0").glob("*.log"):
        after, before = target / "t-0" / path.name, path.read_bytes()
        of = ways.get(str(path), {}).get("salvage", [("saved", 0, len(before))])
        saved = b"".join(before[begin:end] for state, begin, end in of if state == "saved")
        assert saved == (after.read_bytes() if after.exists() else b""), path


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_directory_has_no_rows(tmp_path: Path, deep: bool) -> None:
    for place, is_clean in ((tmp_path / "clean", True), (tmp_path / "killed", False)):
        written(place, clean=is_clean)
        made = surveyed(place, deep=deep)
        assert not any(made.tables["findings"].rows())
        assert not any(made.tables["damage"].rows())


@pytest.mark.parametrize("scenario", ["recover_torn_tail", "recover_swap", "compact_txn", "txn_interleaved_roll"])
def test_directories_of_real_kafkas(tmp_path: Path, scenario: str) -> None:
    """A glance finds nothing that verify does not find."""
    logs = of_kafka(scenario, tmp_path)
    deep, glance = (
        {(row["path"], row["what"]) for row in surveyed(logs, deep=each).tables["findings"].rows()}
        for each in (True, False)
    )
    assert glance <= deep


def test_a_large_damaged_partition_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    logs = written(data)
    torn(data, logs)
    monkeypatch.setattr(damage, "VERIFIED_BYTES_MAX", 100)
    made = surveyed(data, deep=False)
    assert made.facts["damagedNotVerified"] == 1
    (path,) = [path for path in ways_of(made) if path.endswith(".log")]
    assert path == str(logs[-1])
    assert list(ways_of(made)[path]) == ["now", "salvage"]


def test_findings_are_not_told_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    logs = written(data)
    torn(data, logs)
    made = Survey([str(data)], 0)
    made.tables["findings"].add(topic="t", partition=0, path=str(logs[-1]), what="told before")
    made.tables["findings"].add(path="elsewhere", what="stays")
    add_damage(made, str(data))
    whats = [row["what"] for row in made.tables["findings"].rows()]
    assert "told before" not in whats
    assert "stays" in whats


def test_only_some_partitions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    logs = written(data)
    torn(data, logs)
    checkpoint(data, logs)
    made = Survey([str(data)], 0)
    whole = kafkalog.TopicPartition("whole", 0)
    add_damage(made, str(data), {whole: str(data / "whole-0")}, whole=False)
    assert not any(made.tables["findings"].rows())


@pytest.mark.parametrize("deep", [False, True])
def test_a_log_that_is_no_file(tmp_path: Path, deep: bool) -> None:
    data = tmp_path / "data"
    logs = written(data)
    logs[0].unlink()
    logs[0].mkdir()
    made = surveyed(data, deep=deep)
    assert any("Is a directory" in row["what"] for row in made.tables["findings"].rows())
    assert str(logs[0]) not in ways_of(made)


def test_covering() -> None:
    def cover(*bad: Stretch) -> list[tuple[bool, int, int, int | None]]:
        return [(is_bad, each.begin, each.end, each.records) for is_bad, each in covering(bad, 100)]

    assert cover() == [(False, 0, 100, None)]
    assert cover(Stretch(0, -1, 3)) == [(True, 0, 100, 3)]
    assert cover(Stretch(10, 20, 1), Stretch(10, 20)) == [
        (False, 0, 10, None),
        (True, 10, 20, 1),
        (False, 20, 100, None),
    ]
    assert cover(Stretch(50, 70), Stretch(10, 60, 2)) == [
        (False, 0, 10, None),
        (True, 10, 70, 2),
        (False, 70, 100, None),
    ]
    assert cover(Stretch(10, 20), Stretch(20, 500)) == [
        (False, 0, 10, None),
        (True, 10, 20, None),
        (True, 20, 100, None),
    ]
    assert cover(Stretch(200, 300)) == [(False, 0, 100, None)]


def test_many_stretches_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "STRETCHES_MAX", 3)
    bad = [Stretch(number * 10, number * 10 + 2, 1) for number in range(8)]
    found = [(is_bad, each.begin, each.end, each.records) for is_bad, each in covering(bad, 100)]
    assert found[-2:] == [(True, 20, 72, 6), (False, 72, 100, None)]


def test_a_file_has_one_name_for_what_is_and_what_recovery_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = written(tmp_path / "data")
    tear(logs[-1], 20)
    monkeypatch.chdir(tmp_path)
    made = surveyed(Path("data"), deep=True)
    assert set(made.tables["damage"].columns["path"]) <= {
        str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("*")
    }
    ways = ways_of(made)[f"data/t-0/{logs[-1].name}"]
    assert ways["recovery"][-1][0] == "cut"
    assert ways["now"][-1] == ("damaged", *ways["recovery"][-1][1:])
