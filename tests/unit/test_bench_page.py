"""bench: kept results become the page of the benchmarks and its pictures, and two runs can be compared."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench import compare, kept, machine, page, page_pictures, spark, spark_table
from bench.kept import BYTES, BYTES_PER_S, CALLS_PER_S, KAFKA, KAFKALOG, LOWER, SECONDS, Results, Run

ROOT = Path(__file__).parents[2]
LIMITS = {"pwrite": {"unit": "B/s", "values": [4e9, 5e9, 6e9]}, "fdatasync": {"unit": "/s", "values": [4000.0]}}
ROW = {"group": "g", "name": "n", "unit": "/s", "side": "s", "values": [1.0]}
TEMPLATE = """# How fast

<!-- results engine -->
by hand, engine
<!-- end -->

<!-- results threads -->
by hand, threads
<!-- end -->

<!-- results spark -->
by hand, Spark
<!-- end -->

<!-- machines -->
none
<!-- end -->
"""


def run(name: str = "first", date: str = "2026-01-01T00:00:00Z", append: float = 100_000, **changed: object) -> Run:
    results = Results()
    both = {KAFKALOG: [append * 0.9, append, append * 1.1], KAFKA: [40_000, 50_000, 60_000]}
    results.row("engine", "append", CALLS_PER_S, both, uses={"pwrite": 16_384})
    results.row("engine", "append <one>", CALLS_PER_S, {KAFKALOG: [70_000, 71_000], KAFKA: [80_000, 90_000]})
    results.row("engine", "decode", BYTES_PER_S, {KAFKALOG: [8e9], KAFKA: None, "aiokafka": [1e9]})
    results.row("memory", "peak", BYTES, {KAFKALOG: 50 << 20}, better=LOWER)
    results.row("service", "wait", SECONDS, {KAFKALOG: [0.001, 0.002], KAFKA: [0.004, 0.006]}, better=LOWER)
    for count in (8, 1, 2):
        for side, rate in ((KAFKALOG, 1e9), (KAFKA, 2e8)):
            windows = [rate * count * share for share in (0.9, 1, 1.1)]
            results.point("threads", "scan", "threads", BYTES_PER_S, side, count, windows, uses={"pwrite": 1})
    made = Run(name, date, "0123456789abcdef", False, {"cpu": "Test", "cores": 2}, LIMITS, results.rows, results.curves)
    return dataclasses.replace(made, **changed)  # type: ignore[arg-type]


# --- files -------------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    later = run("first", "2026-01-02T00:00:00Z")
    path = kept.append(run(), tmp_path)
    assert kept.append(later, tmp_path) == path == tmp_path / "first.jsonl"
    assert kept.read(path) == [run(), later]
    assert run().curves[0].points == [[1, 1e9, 9e8, 1.1e9], [2, 2e9, 1.8e9, 2.2e9], [8, 8e9, 7.2e9, 8.8e9]]


def test_all_runs_are_ordered_by_date_and_short_ones_left_out(tmp_path: Path) -> None:
    old, new = run("b"), run("a", "2026-03-01T00:00:00Z")
    for each in (new, old, run("quick-c", "2026-04-01T00:00:00Z")):
        kept.append(each, tmp_path)
    assert [each.run for each in kept.read_all(tmp_path)] == ["b", "a"]
    assert [each.run for each in kept.read_all(tmp_path, with_quick=True)] == ["b", "a", "quick-c"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rows", None, "TypeError"),
        ("rows", [{"group": "engine"}], "missing"),
        ("rows", [{"group": "g", "name": "n", "unit": "furlongs", "side": "s", "values": [1.0]}], "furlongs"),
        ("rows", [{"group": "g", "name": "n", "unit": "/s", "side": "s", "values": []}], "no figures"),
        ("rows", [{"group": "g", "name": "n", "unit": "/s", "side": "s", "values": ["1"]}], "not negative"),
        ("rows", [{"group": "g", "name": "n", "unit": "/s", "side": "s", "values": [-1.0]}], "not negative"),
        ("rows", [{"group": "g", "name": "n", "unit": "/s", "side": "s", "values": [1], "better": "x"}], "higher or"),
        ("curves", [{"group": "g", "name": "n", "x": "x", "unit": "/s", "side": "s", "points": [[1]]}], "two numbers"),
        ("limits", {"pwrite": {"unit": "/s", "values": [float("nan")]}}, "not negative"),
        ("date", "yesterday", "yesterday"),
        ("machines", 1, "machines"),
        ("machine", [], "machine: found no object"),
        ("limits", {"pwrite": {"values": [1.0]}}, "unit"),
        ("limits", {"pwrite": {"unit": "/s", "values": [0.0]}}, "is not 0"),
        ("rows", [{**ROW, "values": [0.0]}], "is 0"),
        ("rows", [ROW, {**ROW, "side": "t", "unit": "B/s"}], "different units"),
        ("rows", [ROW, {**ROW, "side": "t", "better": "lower"}], "different units"),
        ("rows", [{**ROW, "uses": {"pwrite": 0}}], "uses are positive"),
        ("rows", [{**ROW, "uses": {"pwrite": "x"}}], "not negative"),
        ("rows", [{**ROW, "better": "lower", "uses": {"pwrite": 1}}], "belong to a rate"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, key: str, value: object, words: str) -> None:
    line = json.loads(kept.line_of(run()))
    path = tmp_path / "x.jsonl"
    path.write_text(kept.line_of(run()) + "\n" + json.dumps({**line, key: value}) + "\n")
    with pytest.raises(kept.Malformed, match=rf"x\.jsonl, line 2: .*{words}"):
        kept.read(path)


@pytest.mark.parametrize("line", ["{", "[]", "3", "", "\udcff"])
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(kept.Malformed, match=r"x\.jsonl, line 1"):
        kept.read(path)


def test_the_line_of_a_run_names_commit_machine_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMORY_BYTES", 4 << 20)
    monkeypatch.setattr(machine, "WINDOW_S", 0.005)
    found = kept.made("here", Results())
    assert found.run == "here"
    assert found.commit is None or re.fullmatch(r"[0-9a-f]{40}", found.commit)
    assert {"cpu", "cores", "kernel", "python", "jdk", "filesystem", "mitigations"} <= set(found.machine)
    names = {"memory copy", "CRC from cache", "CRC from memory", "pread", "pwrite", "fdatasync"}
    assert set(found.limits) == names
    assert all(min(limit["values"]) > 0 and len(limit["values"]) == 5 for limit in found.limits.values())
    assert kept.run_of(json.loads(kept.line_of(found))) == found


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x y", "-x", ".x"])
def test_a_name_that_no_file_has_is_refused_before_the_benchmark_runs(name: str) -> None:
    parser = argparse.ArgumentParser()
    kept.add_options(parser)
    assert parser.parse_args(["--run=2026-01-01_a.b+c"]).run == "2026-01-01_a.b+c"
    with pytest.raises(SystemExit):
        parser.parse_args([f"--run={name}"])


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_refused_when_it_is_measured(figure: float) -> None:
    with pytest.raises(ValueError, match="expected a figure"):
        Results().row("g", "n", CALLS_PER_S, {KAFKALOG: [1.0, figure]})
    with pytest.raises(ValueError, match="expected a figure"):
        Results().point("g", "n", "x", CALLS_PER_S, KAFKALOG, 1, figure)


def test_without_git_a_run_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*words: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(kept, "_git", no_git)
    assert kept.default_name().endswith("-unknown")


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_has_a_picture_and_a_table_for_each_group_with_results() -> None:
    text, pictures = page.page_and_pictures([run()], TEMPLATE)
    assert set(pictures) == {"bench-engine.svg", "bench-threads-curve.svg"}
    for name in pictures:
        assert f"](pictures/{name})" in text
    assert "by hand, Spark" in text
    assert "by hand, engine" not in text
    assert "<!-- results" not in text
    append = "| append | 100 k/s | 50 k/s | 2.00x | 1.50x to 2.75x | 305 k/s, pwrite |"
    assert append in text
    assert "| decode | 8.00 GB/s | 1.00 GB/s | 8.00x | 8.00x to 8.00x |" in text
    slower = text.partition("Rows that are slower:")[2].partition("Other comparisons")[0]
    assert slower.strip() == "- append &lt;one>"
    assert "| scan, kafkalog | 1.00 GB/s | 2.00 GB/s | 8.00 GB/s |" in text
    assert "| pwrite | 5.00 GB/s |" in text
    assert "Measured in the run `first`." in text


def test_a_name_that_was_used_on_two_machines_has_two_columns() -> None:
    results = Results()
    results.row("engine", "append", CALLS_PER_S, {KAFKALOG: [200_000], KAFKA: [50_000]})
    other = run(date="2026-02-01T00:00:00Z", rows=results.rows, curves=[], machine={"cpu": "Other", "cores": 8})
    text, _ = page.page_and_pictures([run(), other], TEMPLATE)
    assert "| processor | Other, 8 cores | Test, 2 cores |" in text


@pytest.mark.parametrize("peers", [("x",), ("x", "y"), ("x", "y", "z")])
def test_many_peers_of_one_row_leave_the_table_of_kafka_alone(peers: tuple[str, ...]) -> None:
    """The picture of the README takes the ratios from the fourth column."""
    results = Results()
    for number in range(3):
        results.row("engine", f"row {number}", CALLS_PER_S, {KAFKALOG: [2000 + number], KAFKA: [1000]})
    results.row("engine", "row x", CALLS_PER_S, {KAFKALOG: [2000], **dict.fromkeys(peers, 500.0)})
    text, _ = page.page_and_pictures([run(rows=results.rows)], TEMPLATE)
    assert "| row 0 | 2.00 k/s | 1.00 k/s | 2.00x |" in text
    for peer in peers:
        assert f"| row x | 2.00 k/s | {'500 /s' if len(peers) == 1 else f'{peer}: 500 /s'} | 4.00x |" in text


def test_rows_with_the_same_peers_have_a_column_for_each() -> None:
    results = Results()
    for number in range(3):
        sides = {KAFKALOG: [2000.0], "LMDB": [1000.0], "SQLite": [500.0] if number else None}
        results.row("engine", f"row {number}", CALLS_PER_S, sides)
    text, _ = page.page_and_pictures([run(rows=results.rows)], TEMPLATE)
    assert "| | kafkalog | LMDB | SQLite | ratio to LMDB | least to most |" in text
    assert "| row 0 | 2.00 k/s | 1.00 k/s |  | 2.00x | 2.00x to 2.00x |" in text
    assert "| row 1 | 2.00 k/s | 1.00 k/s | 500 /s | 2.00x | 2.00x to 2.00x |" in text


def test_less_is_better_for_times() -> None:
    wait = next(row for row in kept.newest_rows([run()], "service"))
    assert wait.reference is not None
    least, middle, most = page.ratio(wait.sides[KAFKALOG], wait.reference)
    assert (round(least, 3), round(middle, 3), round(most, 3)) == (2, 3.333, 6)


def test_each_row_comes_from_the_newest_run_that_has_it() -> None:
    results = Results()
    results.row("engine", "append", CALLS_PER_S, {KAFKALOG: [200_000], KAFKA: [50_000]})
    newer = run("second", "2026-02-01T00:00:00Z", rows=results.rows, curves=[])
    text, _ = page.page_and_pictures([run(), newer], TEMPLATE)
    assert "| append | 200 k/s | 50 k/s | 4.00x |" in text
    assert "| append &lt;one> |" in text
    assert "Measured in the runs `second`, `first`." in text
    assert "| | `second` | `first` |" in text


def test_pictures_are_the_same_each_time_and_can_be_read() -> None:
    first, again = (page.page_and_pictures([run()], TEMPLATE)[1] for _ in range(2))
    assert first == again
    for name, svg in first.items():
        root = ElementTree.fromstring(svg)
        title, about = (root.find(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc"))
        assert root.get("role") == "img"
        assert title is not None
        assert title.text
        assert about is not None
        assert about.text
        assert (name == "bench-threads-curve.svg") == ("dashed: pwrite, 5.00 GB/s" in svg)
        words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {KAFKALOG, KAFKA} <= set(words), name
        assert "prefers-color-scheme: dark" in svg
        assert page_pictures.version_of(svg)
        assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", svg)
    assert "append <one>" in [each.text for each in ElementTree.fromstring(first["bench-engine.svg"]).iter()]


def test_each_group_has_a_title_a_job_and_a_place_on_the_page() -> None:
    groups = [group for job in page.JOBS for group in job.groups]
    assert len(groups) == len(set(groups))
    assert set(groups) == set(page.TITLES)
    assert {name for name, _ in page.BLOCK.findall(page.TEMPLATE.read_text(encoding="utf-8"))} == set(groups)


def test_the_page_in_the_tree_is_what_the_kept_results_give() -> None:
    assert page.differences(kept.read_all()) == [], "run: python -m bench.page"


def test_the_table_of_the_readme_has_six_rows() -> None:
    assert len(page.README_ROWS) == 6
    results = Results()
    for name in page.README_ROWS:
        group = "cleaner" if name.startswith("a pass") else "engine"
        results.row(group, name, CALLS_PER_S, {KAFKALOG: [20_000], KAFKA: [10_000]})
    lines = page.readme_table([run(rows=results.rows)]).splitlines()
    assert lines[:2] == ["| Row | kafkalog | Apache Kafka | ratio |", "|---|---|---|---|"]
    assert [line.partition(" | ")[2] for line in lines[2:]] == ["20 k/s | 10 k/s | 2.00x |"] * 6


def test_a_run_of_one_side_replaces_no_comparison() -> None:
    results = Results()
    results.row("engine", "append", CALLS_PER_S, {KAFKALOG: [200_000]})
    results.row("engine", "decode", BYTES_PER_S, {KAFKA: [5e9]})
    results.row("engine", "new", CALLS_PER_S, {KAFKA: [5]})
    newer = run("second", "2026-02-01T00:00:00Z", rows=results.rows, curves=[])
    text, _ = page.page_and_pictures([run(), newer], TEMPLATE)
    assert "| append | 100 k/s | 50 k/s | 2.00x |" in text
    assert "second" not in text
    assert "| append | 200 k/s | 200 k/s to" not in text
    assert "| append | 200 k/s | one run |" in page.page_and_pictures([newer], TEMPLATE)[0]


def test_sides_of_spark_have_their_names_and_all_their_warm_runs() -> None:
    results = Results()
    spark.add(results, "spark-reads", "count(*), lz4", 1000, {"kafkalog": [9.0, 2.0, 4.0], "connector": [10.0]})
    found = {row.side: row.values for row in results.rows}
    assert found == {KAFKALOG: [500, 250], spark.CONNECTOR: [100]}


def test_sparks_first_run_is_a_warm_up() -> None:
    results = Results()
    seconds = {"count(*)": [9.0, 2.0, 4.0], "write, lz4": [8.0]}
    spark_table.add(results, {"kafkalog": seconds, "connector": seconds}, 1000, "16 KiB")
    found = {(row.name, row.side): row.values for row in results.rows}
    assert found["count(*), 16 KiB", KAFKALOG] == [500, 250]
    assert found["write, lz4", "Spark's Kafka connector"] == [125]


# --- two runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("append", "words", "code"),
    [(100_000, "same", 0), (110_000, "same", 0), (60_000, "slower", 1), (200_000, "faster", 0)],
)
def test_a_change_counts_beyond_the_spread_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    append: float,
    words: str,
    code: int,
) -> None:
    monkeypatch.setattr(
        compare.kept, "read_all", lambda folder: [run(), run("second", append=append, commit="fedcba98")]
    )
    assert compare.main(["first", "fedc", "--json"]) == code
    found = {(each["name"], each["side"]): each for each in json.loads(capsys.readouterr().out)}
    assert found["append", KAFKALOG]["verdict"] == words
    assert {each["verdict"] for place, each in found.items() if place != ("append", KAFKALOG)} == {"same"}
    assert found["scan, 8 threads", KAFKALOG]["before"] == [8e9, 7.2e9, 8.8e9]


def test_a_table_shows_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(kept.append(each, tmp_path)) for each in (run(), run("second", append=50_000))]
    assert compare.main(files) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == (
        "| engine | append | kafkalog | 100 k/s (90 k/s to 110 k/s) | 50 k/s (45 k/s to 55 k/s) | 0.50 | slower |"
    )
    assert "15 rows, 14 of them the same within their spread" in lines
    assert compare.main([*files, "--threshold", "0.6"]) == 0


def test_rows_of_one_run_only_are_named() -> None:
    one, other = run(), run(rows=[dataclasses.replace(row, name=f"{row.name}!") for row in run().rows])
    found = compare.alone([one], [other])
    assert found[0] == "only in A: engine, append, kafkalog"
    assert "only in B: engine, append!, kafkalog" in found
    assert compare.alone([one], [one]) == []


def test_kafkas_side_is_shown_and_not_judged() -> None:
    rows = [dataclasses.replace(row, values=[1.0]) if row.side == KAFKA else row for row in run().rows]
    found = compare.compared([run()], [run(rows=rows)])
    assert {each["verdict"] for each in found if each["side"] == KAFKALOG} == {"same"}
    assert any(each["verdict"] == "slower" for each in found)


@pytest.mark.parametrize(("after", "words"), [(80, "same"), (60, "slower"), (140, "faster")])
def test_a_figure_without_spread_needs_a_large_change(after: float, words: str) -> None:
    one, other = (kept.Row("g", "n", CALLS_PER_S, KAFKALOG, [float(value)]) for value in (100, after))
    assert compare.verdict(one, other, 0.05) == words


def test_names_that_are_no_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError, match="nothing, or"):
        compare.chosen("nothing, or", tmp_path)
    with pytest.raises(SystemExit):
        compare.main(["no-such-run", "no-such-run"])
    assert "no file, run or commit is named no-such-run" in capsys.readouterr().err
