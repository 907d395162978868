"""The rules for intended differences match them, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import permitted
from tests.conformance.compare import Difference
from tests.conformance.fuzz import Outcome
from tests.conformance.fuzz_scripts import Line

FULL = "Attempt to append to a full time index (size = 1)."
INDEX = "00000000000000000000.index"
NONSENSE = "Found record size -5 smaller than minimum record overhead (14) in file 0.log."
Result = dict[str, Any]


def named(lines: list[Line], difference: Difference, kafka: list[Result], ours: list[Result]) -> str | None:
    def numbered(results: list[Result]) -> list[Result]:
        """A result for each line; those that are given are of the last ones."""
        first = len(lines) - len(results)
        plain = [{"op": line["op"]} for line in lines[:first]]
        return [{"line": number, **result} for number, result in enumerate(plain + results, 1)]

    return permitted.name_of(Outcome(lines, difference, numbered(kafka), numbered(ours)))


def refused(op: str, error: str, message: str) -> Result:
    return {"op": op, "error": error, "message": message}


@pytest.mark.parametrize(("op", "place"), [("open", INDEX), ("lm_open", f"d1/bar-0/{INDEX}")])
def test_an_unfinished_index(op: str, place: str) -> None:
    lines: list[Line] = [{"op": "fs_delete", "file": INDEX}, {"op": op}, {"op": "dump"}]
    said = refused(op, "IllegalArgumentException", FULL)
    missing = Difference(f"line 3 (dump), field files.{place}", "expected {}\n  actual   (missing)")
    built = {"op": "dump", "files": {f"{place}.cleaned": {}}}
    kafka = [said, {"op": "dump", "files": {place: {}}}]
    assert named(lines, missing, kafka, [said, built]) == "unfinished index"
    assert named(lines, missing, kafka, [said, {"op": "dump", "files": {}}]) is None
    assert named(lines, missing, [{"op": op}, kafka[1]], [said, built]) is None
    other = Difference(f"line 3 (dump), field files.{place}.sha256", "expected 1\n  actual   2")
    assert named(lines, other, kafka, [said, built]) is None

    again: list[Line] = [*lines[:2], {"op": op}]
    for expected in ("(missing)", "CorruptRecordException"):
        detail = (
            f"expected {expected}\n  actual   IllegalArgumentException\n  actual said: IllegalArgumentException: {FULL}"
        )
        refuses = Difference(f"line 3 ({op}), field error", detail)
        assert named(again, refuses, [said, {"op": op}], [said, said]) == "unfinished index"
        assert named(again, refuses, [{"op": op}, {"op": op}], [{"op": op}, said]) is None


def test_entries_that_were_cut_off() -> None:
    lines: list[Line] = [
        {"op": "open"}, {"op": "truncate_to", "offset": 4}, {"op": "close", "broker_style": False}, {"op": "open"},
    ]  # fmt: skip
    trimmed: list[Line] = [*lines[:2], {"op": "close", "broker_style": True}, lines[3]]
    later: list[Line] = [lines[0], lines[2], lines[1], lines[3]]
    bad = [refused("open", "CorruptRecordException", NONSENSE)]
    full = [refused("open", "IllegalArgumentException", FULL)]
    opened = [{"op": "open"}]

    def difference(actual: str, said: str = "") -> Difference:
        detail = (
            f"expected CorruptRecordException\n  actual   {actual}\n  expected said: CorruptRecordException: {NONSENSE}"
        )
        return Difference("line 4 (open), field error", detail + said)

    heals = difference("(missing)")
    refuses = difference("IllegalArgumentException", f"\n  actual said: IllegalArgumentException: {FULL}")
    differs = difference("IllegalArgumentException", "\n  actual said: IllegalArgumentException: another")
    assert named(lines, heals, bad, opened) == "entries that were cut off"
    assert named(lines, refuses, bad, full) == "entries that were cut off"
    assert named(lines, differs, bad, full) is None
    assert named(trimmed, heals, bad, opened) is None
    assert named(later, heals, bad, opened) is None

    empty = Difference("line 4 (open), field state.leo", "expected 0\n  actual   4")
    for leo, name in ((0, "entries that were cut off"), (3, None)):
        assert named(lines, empty, [{"op": "open", "state": {"leo": leo, "segments": [[0, 99]]}}], opened) == name


def test_entries_that_were_cut_off_before_a_crash() -> None:
    lines: list[Line] = [
        {"op": "open"}, {"op": "truncate_to", "offset": 4}, {"op": "crash"}, {"op": "open"}, {"op": "open"},
    ]  # fmt: skip
    full = refused("open", "IllegalArgumentException", FULL)
    state = {"leo": 9, "lso": 5, "first_unstable": None, "producers": 0, "segments": [[0, 100]]}
    known = {**state, "first_unstable": 2, "lso": 2, "producers": 1}
    difference = Difference("line 5 (open), field state.first_unstable", "expected null\n  actual   2")

    def name(lines: list[Line], expected: Result = state, found: Result = known, before: Result = full) -> str | None:
        return named(
            lines, difference, [before, {"op": "open", "state": expected}], [before, {"op": "open", "state": found}]
        )

    assert name(lines) == "entries that were cut off"
    assert name(lines, found={**known, "leo": 8}) is None
    assert name(lines, expected={**state, "producers": 1}) is None
    assert name(lines, found={**known, "producers": 0}) is None
    assert name(lines, before={"op": "open"}) is None
    assert name(lines, before=refused("open", "KafkaStorageException", "another")) is None
    assert name([lines[0], {"op": "roll"}, *lines[2:]]) is None
    assert name([lines[0], lines[1], {"op": "close", "broker_style": True}, *lines[3:]]) is None
    assert name([lines[0], lines[2], lines[1], *lines[3:]]) is None
    assert name([lines[0], {**lines[1], "log": "other"}, *lines[2:]]) is None
    assert name([*lines[:4], {"op": "open", "clean_shutdown": False}]) is None


def test_a_torn_base_offset_of_a_manager() -> None:
    log = "d1/Db-1/00000000000000000000.log"
    lines: list[Line] = [
        {"op": "fs_corrupt", "file": log, "offset": 0, "xor_hex": "80"},
        {"op": "lm_open"},
        {"op": "dump"},
    ]
    other = [refused("lm_open", "IllegalArgumentException", FULL), {"op": "dump"}]
    cut = Difference("line 3 (dump), field files.Db-1/00000000000000000000.log.size", "expected 358\n  actual   0")
    assert named(lines, cut, other, other) == "torn base offset"
    assert named(lines, Difference(cut.place.replace("Db-1", "Db-11"), cut.detail), other, other) is None
    assert named([{**lines[0], "offset": 99}, *lines[1:]], cut, other, other) is None
    assert named(lines, cut, [{"op": "lm_open"}, other[1]], [{"op": "lm_open"}, other[1]]) is None
    overflow = refused(
        "lm_open", "IllegalArgumentException", "Split operation is only permitted for segments with overflow"
    )
    detail = f"expected IllegalArgumentException\n  actual   (missing)\n  expected said: {overflow['message']}"
    at_open = Difference("line 2 (lm_open), field error", detail)
    assert named(lines[:2], at_open, [overflow], [{"op": "lm_open"}]) == "torn base offset"


def test_what_a_file_in_the_way_leaves() -> None:
    lines: list[Line] = [
        {"op": "fs_write", "file": "d1/a-9"},
        {"op": "lm_move", "topic_partition": "a-9"},
        {"op": "dump"},
    ]
    stopped = {
        **refused("lm_move", "KafkaStorageException", "Error"),
        "cause": "NotADirectoryError(20, 'Not a directory')",
    }
    left = Difference("line 3 (dump), field files.a-9", "expected (missing)\n  actual   {}")
    kafka = [refused("lm_move", "KafkaStorageException", "offline"), {"op": "dump"}]
    assert named(lines, left, kafka, [stopped, {"op": "dump"}]) == "file in the way"
    assert named(lines, left, kafka, kafka) is None
    assert named(lines, Difference("line 3 (dump), field files.a-91", left.detail), kafka, [stopped, kafka[1]]) is None


def test_what_cleaners_make_of_checkpoints() -> None:
    lines: list[Line] = [{"op": "fs_rename"}, {"op": "lm_delete"}, {"op": "lm_clean"}]
    twice = refused("lm_clean", "IllegalStateException", "Duplicate key a-0 (attempted merging values 0 and 9)")
    said = f"\n  expected said: IllegalStateException: {twice['message']}"
    dies = Difference("line 3 (lm_clean), field error", f"expected IllegalStateException\n  actual   (missing){said}")
    assert named(lines, dies, [twice], [{"op": "lm_clean"}]) == "two checkpoints"
    other = dies.detail.replace("Duplicate key", "No key")
    assert named(lines, Difference(dies.place, other), [twice], [{"op": "lm_clean"}]) is None

    offline = [{**refused("lm_delete", "KafkaStorageException", f"d1 {permitted.ALREADY_OFFLINE}."), "line": 2}]
    place = "line 3 (dump), field files.d1/cleaner-offset-checkpoint"
    for field in ("", ".sha256"):
        left = Difference(f"{place}{field}", "expected 1\n  actual   2")
        assert named(lines[1:], left, offline, offline) == "deleted while offline"
        assert named(lines[1:], left, offline, [{**offline[0], "message": ""}]) is None
    assert named(lines[1:], Difference("line 3 (dump), field files.d1/a-0/x.log", ""), offline, offline) is None

    moved: list[Line] = [{"op": "fs_rename", "from": "d1/a-0", "to": "gone/1"}, {"op": "lm_clean"}, {"op": "dump"}]
    for where in (place, "line 2 (lm_clean), field passes[0].bytes_read"):
        elsewhere = Difference(where, "expected 1\n  actual   2")
        assert named(moved, elsewhere, [], []) == "line of another directory"
        assert named([{**moved[0], "from": "d1/.lock"}, *moved[1:]], elsewhere, [], []) is None
    assert named(moved, Difference("line 2 (lm_clean), field uncleanable.d1", ""), [], []) is None


def test_half_an_entry_below_its_segment() -> None:
    lines: list[Line] = [
        {"op": "roll", "expected_next_offset": 28},
        {"op": "append_follower", "batches": [{"records": [{"offset": 26}]}]},
        {"op": "append_follower", "batches": []},
    ]
    said = "expected said: IllegalStateException: 1 entries but file position in index is 20"
    stumbles = Difference("line 3 (append_follower), field error", f"expected IllegalStateException\n  {said}")
    assert named(lines, stumbles, [], []) == "below its segment"
    assert named(lines[1:], stumbles, [], []) is None
    assert named(lines, Difference(stumbles.place, stumbles.detail.replace("position", "size")), [], []) is None
