"""The comparer names what differs: line and field, file, batch and header field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.batch_spec import batch_from_spec
from tests.conformance.compare import (
    compare_results,
    compare_runs,
    compare_trees,
    load_results,
    without_random_parts,
)


def batch(value: str, base_offset: int = 0) -> bytes:
    records = [{"ts": 1000, "key_hex": "6b", "value_hex": value, "offset": base_offset}]
    return batch_from_spec({"base_offset": base_offset, "records": records})


def test_names_line_and_field() -> None:
    want = {"line": 3, "op": "roll", "result": 5, "state": {"leo": 7, "segments": [[0, 1], [5, 2]]}}
    got = {"line": 3, "op": "roll", "result": 5, "state": {"leo": 7, "segments": [[0, 1], [5, 9]]}}
    found = compare_results([want], [got])
    assert found is not None
    assert found.place == "line 3 (roll), field state.segments[1][1]"
    assert "expected 2" in found.detail
    assert "actual   9" in found.detail


def test_leaves_out_what_only_informs() -> None:
    want = {"line": 1, "op": "open", "message": "a", "tasks_run": ["x"], "written": {}, "note": "", "input_hex": "00"}
    assert compare_results([want], [{"line": 1, "op": "open"}]) is None


def test_an_error_comes_before_the_state_and_brings_its_text() -> None:
    want = {"line": 1, "op": "roll", "error": "KafkaException", "message": "why", "state": {"leo": 1}}
    found = compare_results([want], [{"line": 1, "op": "roll", "state": {"leo": 2}}])
    assert found is not None
    assert "field error" in found.place
    assert "why" in found.detail


def test_a_bool_is_no_number() -> None:
    assert compare_results([{"line": 1, "result": True}], [{"line": 1, "result": 1}]) is not None


def test_names_file_batch_and_header_field(tmp_path: Path) -> None:
    for name, second in (("a", batch("76", 1)), ("b", batch("77", 1))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(batch("76") + second)
    found = compare_trees(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert found.place == "file 00000000000000000000.log"
    assert "batch 1 at byte 70 (base offset 1) differs in crc, payload" in found.detail


def test_names_index_entry(tmp_path: Path) -> None:
    for name, position in (("a", 100), ("b", 101)):
        (tmp_path / name).mkdir()
        entries = bytes(8) + (5).to_bytes(4, "big") + position.to_bytes(4, "big")
        (tmp_path / name / "00000000000000000000.index").write_bytes(entries)
    found = compare_trees(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert "entry 1 differs in position" in found.detail


def test_random_parts_and_locks_do_not_count(tmp_path: Path) -> None:
    for name, part in (("a", "0" * 32), ("b", "1" * 32)):
        folder = tmp_path / name / f"foo-0.{part}-delete"
        folder.mkdir(parents=True)
        (folder / "x").write_text("same")
        (tmp_path / name / ".lock").write_text(name)
    assert compare_trees(tmp_path / "a", tmp_path / "b") is None


def test_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").write_text("")
    found = compare_runs([], [], tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert "no such file" in found.detail


def appended(line: int, size: int, *bases: int, recovery_point: int = 0) -> dict[str, Any]:
    state = {"size": size, "segments": [[base, 0] for base in bases], "recovery_point": recovery_point}
    return {"line": line, "op": "append_leader", "append": {"first_offset": line}, "state": state}


def test_snappy_of_another_size_may_move_a_roll() -> None:
    expected = [appended(1, 117, 0), appended(2, 293, 0)]
    moved = [appended(1, 117, 0), appended(2, 301, 0, 2, recovery_point=2)]
    assert compare_runs(expected, moved, uses_snappy=True) is None
    assert compare_runs(expected, moved) is not None
    # Operations before the roll are compared, and so is a roll that no size explains.
    assert compare_runs(expected, [appended(1, 117, 0, recovery_point=1), *moved[1:]], uses_snappy=True) is not None
    same_size = [appended(1, 117, 0), appended(2, 293, 0, 2, recovery_point=2)]
    assert compare_runs(expected, same_size, uses_snappy=True) is not None


def test_results_are_lines_of_json_whatever_their_strings_hold(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text('{"message": "a\u0085b\u2028c"}\n{"line": 2}\n', encoding="utf-8")
    assert load_results(path) == [{"message": "a\u0085b\u2028c"}, {"line": 2}]


def test_folders_with_a_random_part_are_told_apart_by_content() -> None:
    def named(*folders: tuple[str, str]) -> dict[str, str]:
        return without_random_parts({f"d/foo-0.{part * 32}-delete/a": text for part, text in folders}, str)

    assert named(("1", "x"), ("2", "y")) == named(("3", "y"), ("4", "x"))
    assert named(("1", "x"), ("2", "y")) != named(("3", "y"), ("4", "y"))
    assert named(("1", "x")) == {"d/foo-0.<uuid>-delete/a": "x"}


def test_any_error_answers_a_halt() -> None:
    want = {"line": 1, "op": "lm_open", "error": "IllegalStateException", "message": "halt: null"}
    assert compare_results([want], [{"line": 1, "op": "lm_open", "error": "NoLiveLogDirException"}]) is None
    assert compare_results([want], [{"line": 1, "op": "lm_open", "loaded": {}}]) is not None
