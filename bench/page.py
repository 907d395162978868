"""`python -m bench.page [GROUP...]`: writes docs/benchmarks.md and its pictures from kept results.

`bench/page.md` is the page without figures: the words that explain each group, and a block for each group. A block is
replaced by a picture and a table, if a kept run has results of the group. Each row comes from the newest run that has
it. Without one the block keeps what is written in it: figures of earlier machines, kept by hand.

    python -m bench.page                      # write the page from what is kept
    python -m bench.page --run                # run all benchmarks first, and keep their results (hours)
    python -m bench.page --run --quick engine # a short run of one group, to try the way; its figures mean little
    python -m bench.page --check              # fail if the page is not what the kept results give
    python -m bench.page --readme             # print the table of six rows for README.md
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import kept, page_pictures
from bench.kept import HIGHER, KAFKA, KAFKALOG, ROOT, Comparison, Curve, Row, Run, digits, shown

TEMPLATE = Path(__file__).parent / "page.md"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"
NOTE = "<!-- Written by `make bench-page` from bench/page.md and bench/results/. Change these, not this file. -->\n"
BLOCK = re.compile(r"<!-- results ([\w -]+?) -->\n(.*?)<!-- end -->", re.DOTALL)
MACHINES = re.compile(r"<!-- machines -->\n(.*?)<!-- end -->", re.DOTALL)
CONNECTOR_PYTHON = ROOT / ".venv-connector" / "bin" / "python"


@dataclass(frozen=True)
class Job:
    """A command that measures groups, and how it is shortened by `--quick`. `connector` names a Python environment."""

    groups: tuple[str, ...]
    command: str
    quick: str
    connector: bool = False


JOBS = (
    Job(("engine", "manager", "memory"), "bench --keep", "--warmup 0.2 --seconds 0.2"),
    Job(("cleaner",), "bench.cleaner --keep", "--rounds 1 map none"),
    Job(("partitions", "segments", "keys", "record size", "threads"), "bench --curves --keep",
        "--largest 100 --keys 1000000 --warmup 0.2 --seconds 0.2"),
    Job(("embedded",), "bench embedded --keep", "LMDB SQLite"),
    Job(("service",), "bench service --keep", ""),
    Job(("server",), "bench.server --keep", "--quick --turns 1"),
    Job(("queues",), "bench queues --keep", "10"),
    Job(("store",), "bench scale --keep", ""),
    Job(("remote",), "bench remote --keep", "folder"),
    Job(("asking",), "bench.asking", "--records 200000 --partitions 20 --turns 1"),
    Job(("json",), "bench.json_columns --keep", "--lines 20000"),
    Job(("commands",), "bench.many_partitions", "200 --turns 1"),
    Job(("planning",), "bench.spark_plan --keep", "--segments 100 --segments 1000"),
    Job(("bucket", "spark-remote"), "bench.spark_remote --keep", "--segments 1000", connector=True),
    Job(("spark",), "bench.spark_table --keep", "--records 100000 --turns 2", connector=True),
    Job(("spark-reads",), "bench.spark --keep", "--records 100000 --turns 2 --codec lz4", connector=True),
    Job(("spark-writes",), "bench.spark_write --keep", "--records 100000 --turns 1", connector=True),
    Job(("spark-streams",), "bench.spark_stream --keep", "--records 100000 --turns 2", connector=True),
    Job(("spark-jobs",), "bench.spark_jobs --keep", "--mib 48"),
)  # fmt: skip
TITLES = {
    "engine": "Loops of the storage engine, relative to Apache Kafka",
    "manager": "Starts and shutdowns of 1,000 partitions, relative to Apache Kafka",
    "memory": "Peak memory, and the time of the shortest command",
    "cleaner": "Compaction, relative to Apache Kafka",
    "embedded": "An embedded log, relative to LMDB",
    "service": "A store, relative to a broker on the same machine",
    "server": "kafkalog serve, relative to a broker",
    "queues": "A queue of eight workers, relative to the first peer",
    "spark": "The Spark source, relative to Spark's Kafka connector",
    "spark-reads": "Jobs of one Spark application, relative to Spark's Kafka connector",
    "spark-writes": "Batch writes of one Spark application, relative to Spark's Kafka connector",
    "spark-streams": "Streams of one Spark application, relative to Spark's Kafka connector",
    "spark-jobs": "Reads, writes and jobs of a large directory",
    "asking": "Reads as Arrow and for one key, relative to the first peer",
    "json": "JSON values as columns, relative to pyarrow in one thread",
    "remote": "A remote tier, relative to its storage client or the line",
    "commands": "Commands on 10,000 partitions",
    "partitions": "Starts of a log manager with more and more partitions",
    "segments": "Starts of a log manager with more and more segments",
    "keys": "Compaction of more and more keys",
    "record size": "Decoding and appending records of more and more bytes",
    "threads": "Scans and appends of more and more threads",
    "store": "A store with more and more topics and partitions",
    "planning": "Plans of Spark reads over more and more segments",
    "bucket": "Plans of Spark reads over a bucket of more and more segments",
    "spark-remote": "A count over both tiers",
}
README_ROWS = {
    "scan with CRC, 16 KiB batches": "scan and check 16 KiB batches",
    "open 1,000 segments after a crash": "open 1,000 segments after a crash",
    "decode, uncompressed": "decode uncompressed records",
    "leader append, 16 KiB": "append 16 KiB batches",
    "leader append, one record": "append one record",
    "a pass, uncompressed": "compact, uncompressed",
}


# --- the page ----------------------------------------------------------------------------------------------


def page_and_pictures(runs: Sequence[Run], template: str) -> tuple[str, dict[str, str]]:
    """Returns the text of the page, and the text of each picture by the name of its file."""
    pictures: dict[str, str] = {}
    used: dict[str, Run] = {}  # by name, commit and machine: the same name may have been used on another machine

    def block(found: re.Match[str]) -> str:
        group, by_hand = found[1], found[2]
        rows = kept.newest_rows(runs, group)
        curves = kept.newest_curves(runs, group)
        if not rows and not curves:
            return by_hand.rstrip()
        for run in [row.run for row in rows] + [run for _, run in curves.values()]:
            used[json.dumps([run.run, run.commit, {**run.machine, "load": 0}])] = run
        parts: list[str] = []
        if rows:
            parts += _rows_part(group, rows, pictures)
        if curves:
            limits = {name: limit for name, (of, run) in curves.items() if (limit := kept.limit_of(of[0], run))}
            parts += _curves_part(group, [curve for of, _ in curves.values() for curve in of], limits, pictures)
        names = list(dict.fromkeys([row.run.run for row in rows] + [run.run for _, run in curves.values()]))
        parts.append(
            f"Measured in {'the run' if len(names) == 1 else 'the runs'} {', '.join(f'`{name}`' for name in names)}."
        )
        return "\n\n".join(parts)

    text = BLOCK.sub(block, template)
    known = list(used.values())
    text = MACHINES.sub(lambda found: _machines(known) if known else found[1].rstrip(), text)
    title, _, rest = text.partition("\n")
    rest = re.sub(r"\n{3,}", "\n\n", rest).rstrip()
    return f"{title}\n{NOTE}{rest}\n", pictures


def _picture(name: str, group: str, svg: str, pictures: dict[str, str]) -> str:
    pictures[name] = svg
    return f"![{TITLES.get(group, group)}](pictures/{name})"


def _slug(group: str) -> str:
    return group.replace(" ", "-")


def _rows_part(group: str, rows: list[Comparison], pictures: dict[str, str]) -> Iterator[str]:
    alone = [row for row in rows if row.reference is None]
    compared = [row for row in rows if row.reference is not None]
    if compared:
        svg = page_pictures.rows_picture(TITLES.get(group, group), compared)
        yield _picture(f"bench-{_slug(group)}.svg", group, svg, pictures)
        same = len({row.reference.side for row in compared if row.reference}) == 1
        if same and median(len(row.sides) for row in compared) > 2:
            yield from (_wide_table(compared), _slower(compared))
        else:
            yield from _tables(compared)
    if alone:
        yield _alone_table(alone)


def _tables(rows: list[Comparison]) -> Iterator[str]:
    """Yields the table of the rows' references, and a table of their other peers."""
    with_kafka = [row for row in rows if KAFKA in row.sides]
    main = with_kafka or rows
    lines = [(row, row.reference) for row in main if row.reference]
    others = [(row, peer) for row in rows for peer in row.sides.values()
              if peer.side != KAFKALOG and (row not in main or peer is not row.reference)]  # fmt: skip
    yield _ratio_table(lines)
    yield _slower(main)
    if others:
        yield "Other comparisons:"
        yield _ratio_table(others)


def _slower(rows: list[Comparison]) -> str:
    """Names the rows that kafkalog loses, and those that its repeated runs leave open."""
    slower, open_ones = [], []
    for row in rows:
        if row.reference is None:
            continue
        least, _, most = ratio(row.sides[KAFKALOG], row.reference)
        if most < 1:
            slower.append(row.name)
        elif least < 1 < most:
            open_ones.append(row.name)
    found = []
    for title, names in (
        ("Rows that are slower:", slower),
        ("Rows whose repeated runs reach both sides of 1:", open_ones),
    ):
        if names:
            found.append("\n".join([f"{title}\n", *(f"- {_words(name)}" for name in names)]))
    return "\n\n".join(found) if found else "No row is slower."


def ratio(ours: Row, theirs: Row) -> tuple[float, float, float]:
    """Returns how many times better the first row is: the least that the windows allow, by medians, and the most."""

    def times(one: float, other: float) -> float:
        return one / max(other, 1e-12) if ours.better == HIGHER else other / max(one, 1e-12)

    best, worst = (max, min) if ours.better == HIGHER else (min, max)
    return (
        times(worst(ours.values), best(theirs.values)),
        times(ours.middle, theirs.middle),
        times(best(ours.values), worst(theirs.values)),
    )


def _ratio_table(lines: list[tuple[Comparison, Row]]) -> str:
    peers = list(dict.fromkeys(peer.side for _, peer in lines))
    limits = [row.limit() for row, _ in lines]
    head = ["", KAFKALOG, peers[0] if len(peers) == 1 else "compared with", "ratio", "least to most"]
    rows = [head + (["limit of the machine"] if any(limits) else [])]
    for (row, peer), limit in zip(lines, limits, strict=True):
        ours = row.sides[KAFKALOG]
        least, middle, most = ratio(ours, peer)
        beside = shown(peer.middle, peer.unit) if len(peers) == 1 else f"{peer.side}: {shown(peer.middle, peer.unit)}"
        cells = [row.name, shown(ours.middle, ours.unit), beside, f"{middle:.2f}x", f"{least:.2f}x to {most:.2f}x"]
        if any(limits):
            cells.append("" if limit is None else f"{shown(limit[1], ours.unit)}, {limit[0]}")
        rows.append(cells)
    return _table(rows)


def _wide_table(rows: list[Comparison]) -> str:
    """Returns a table with a column for each side, for rows that have several peers."""
    sides = list(dict.fromkeys(side for row in rows for side in row.sides))
    reference = next(row.reference.side for row in rows if row.reference)
    lines = [["", *sides, f"ratio to {reference}", "least to most"]]
    for row in rows:
        cells = [shown(row.sides[side].middle, row.any.unit) if side in row.sides else "" for side in sides]
        least, middle, most = ratio(row.sides[KAFKALOG], row.sides[reference]) if reference in row.sides else (0, 0, 0)
        spread = [f"{middle:.2f}x", f"{least:.2f}x to {most:.2f}x"] if middle else ["", ""]
        lines.append([row.name, *cells, *spread])
    return _table(lines)


def _alone_table(rows: list[Comparison]) -> str:
    lines = [["", KAFKALOG, "least to most"]]
    for row in rows:
        values, unit = row.any.values, row.any.unit
        spread = f"{shown(min(values), unit)} to {shown(max(values), unit)}" if len(values) > 1 else "one run"
        lines.append([row.name, shown(row.any.middle, unit), spread])
    return _table(lines)


def _curves_part(
    group: str, curves: list[Curve], limits: dict[str, tuple[str, float]], pictures: dict[str, str]
) -> Iterator[str]:
    svg = page_pictures.curves_picture(TITLES.get(group, group), curves, limits)
    yield _picture(f"bench-{_slug(group)}-curve.svg", group, svg, pictures)
    for x in dict.fromkeys(curve.x for curve in curves):
        of = [curve for curve in curves if curve.x == x]
        marks = sorted({at for curve in of for at, *_ in curve.points})
        lines = [[x, *(f"{at:,.0f}" for at in marks)]]
        for curve in of:
            points = {at: middle for at, middle, *_ in curve.points}
            cells = [shown(points[at], curve.unit) if at in points else "" for at in marks]
            lines.append([f"{curve.name}, {curve.side}", *cells])
        yield _table(lines)


def _machines(runs: list[Run]) -> str:
    facts: list[tuple[str, Callable[[Run], str]]] = [
        ("date", lambda run: run.date[:10]),
        ("commit", lambda run: (run.commit or "unknown")[:8] + (", changed" if run.dirty else "")),
        ("processor", lambda run: f"{run.machine.get('cpu')}, {run.machine.get('cores')} cores"),
        ("system", lambda run: f"{run.machine.get('system')} {run.machine.get('kernel')}"),
        ("Python", lambda run: str(run.machine.get("python"))),
        ("JDK", lambda run: str(run.machine.get("jdk") or "none")),
        ("file system", lambda run: str(run.machine.get("filesystem") or "unknown")),
        ("mitigations", lambda run: ", ".join(run.machine.get("mitigations") or {}) or "none"),
    ]
    lines = [["", *(f"`{run.run}`" for run in runs)]]
    lines += [[name, *(tell(run) for run in runs)] for name, tell in facts]
    for name in dict.fromkeys(name for run in runs for name in run.limits):
        found = [run.limits.get(name) for run in runs]
        lines.append([name, *(shown(median(each["values"]), each["unit"]) if each else "" for each in found)])
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    rows = ["| " + " | ".join(map(_words, cells)) + " |" for cells in lines]
    return "\n".join([rows[0].replace("|  |", "| |", 1), "|" + "---|" * len(lines[0]), *rows[1:]])


def _words(text: str) -> str:
    """Returns a name as words of a table: it has no markup of its own but code."""
    return " ".join(text.replace("|", "/").replace("&", "&amp;").replace("<", "&lt;").split())


def readme_table(runs: Sequence[Run]) -> str:
    """Returns the table of README.md: six rows, from the newest runs that have them."""
    found = {row.name: row for group in ("engine", "cleaner") for row in kept.newest_rows(runs, group)}
    lines = [["Row", KAFKALOG, KAFKA, "ratio"]]
    for name, words in README_ROWS.items():
        row = found.get(name)
        if row is not None and KAFKA in row.sides:
            ours, theirs = row.sides[KAFKALOG], row.sides[KAFKA]
            figures = [shown(each.middle, each.unit) for each in (ours, theirs)]
            lines.append([words, *figures, f"{digits(ratio(ours, theirs)[1])}x"])
    return _table(lines)


# --- writing and checking ----------------------------------------------------------------------------------


def differences(runs: Sequence[Run]) -> list[str]:
    """Returns what differs between the tree and what the kept results give. A picture that another version of
    altair or vl-convert drew is only asked to exist."""
    text, pictures = page_and_pictures(runs, TEMPLATE.read_text(encoding="utf-8"))
    found = [] if PAGE.read_text(encoding="utf-8") == text else [str(PAGE.relative_to(ROOT))]
    for name, svg in pictures.items():
        path = PICTURES / name
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        same_version = page_pictures.version_of(there) == page_pictures.version_of(svg)
        if not there or (same_version and there != svg):
            found.append(str(path.relative_to(ROOT)))
    return found + [str(path.relative_to(ROOT)) for path in PICTURES.glob("bench-*.svg") if path.name not in pictures]


def write(runs: Sequence[Run]) -> None:
    """Writes the page and its pictures, and removes pictures that it no longer has."""
    text, pictures = page_and_pictures(runs, TEMPLATE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    for path in PICTURES.glob("bench-*.svg"):
        if path.name not in pictures:
            path.unlink()
    for name, svg in pictures.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")


def run_jobs(groups: Sequence[str], name: str, *, quick: bool) -> list[str]:
    """Runs the commands of groups one after the other, and returns those that failed."""
    failed = []
    for job in JOBS:
        if groups and not set(groups) & set(job.groups):
            continue
        python = str(CONNECTOR_PYTHON) if job.connector else sys.executable
        if job.connector and not CONNECTOR_PYTHON.exists():
            print(f"SKIPPED: {', '.join(job.groups)}: `make bench-spark-table` makes the environment", flush=True)
            continue
        words = [python, "-m", *shlex.split(job.command), *(shlex.split(job.quick) if quick else []), "--run", name]
        print(f"\n$ {shlex.join(words)}", flush=True)
        begin = time.monotonic()
        code = subprocess.run(words, cwd=ROOT, check=False).returncode
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
        if code:
            failed.append(", ".join(job.groups))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [group for job in JOBS for group in job.groups]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"groups to run: {', '.join(every)}; default: all")
    parser.add_argument("--run", action="store_true", help="run the benchmarks first, and keep their results")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="with --run: short runs, to try the way; other pages do not use their results",
    )
    parser.add_argument("--name", type=kept.named, help="the name of the run; default: date and commit")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    parser.add_argument("--readme", action="store_true", help="print the table of README.md")
    given = parser.parse_args()
    if not set(given.groups) <= set(every):
        parser.error(f"found {', '.join(set(given.groups) - set(every))}, expected some of {', '.join(every)}")
    failed = []
    if given.run:
        name = given.name or kept.default_name()
        failed = run_jobs(given.groups, f"{kept.QUICK}{name}" if given.quick else name, quick=given.quick)
    try:
        runs = kept.read_all(with_quick=given.quick)
    except kept.Malformed as error:
        raise SystemExit(str(error)) from None
    if given.readme:
        print(readme_table(runs))
        return 0
    if given.check:
        found = differences(runs)
        print(
            "\n".join(f"{name} is not what the kept results give; run: make bench-page" for name in found)
            or "up to date"
        )
        return 1 if found else 0
    write(runs)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    if failed:
        print(f"FAILED: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
