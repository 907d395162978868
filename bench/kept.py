"""Results of benchmarks in one form, and the files that keep them: one JSON line for a run, in bench/results/*.jsonl.

A line has the run's name, its time, its commit, the machine, the machine's measured limits, and then rows and curves. A
row is one comparison on one side, with a figure for each repeated window, so that the spread can be shown. Figures have
base units: bytes, records or calls per second, seconds, or bytes. A curve is a list of points.

Each benchmark gets `Results` and adds rows to it; `add_options` and `keep` give it the options `--keep` and `--run`. A
run may have several lines, if its groups ran one after the other. This module draws nothing: `bench.page` writes the
page, and `bench.compare` compares two runs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
QUICK = "quick-"  # how names of short runs begin
KAFKALOG, KAFKA = "kafkalog", "Apache Kafka"
HIGHER, LOWER = "higher", "lower"
BYTES_PER_S, RECORDS_PER_S, CALLS_PER_S, SECONDS, BYTES = "B/s", "records/s", "/s", "s", "B"
UNITS = (BYTES_PER_S, RECORDS_PER_S, CALLS_PER_S, SECONDS, BYTES, "")


class Malformed(Exception):
    """A line of a results file that is not a run."""


@dataclass(frozen=True)
class Row:
    """One comparison on one side.

    `uses` is what a unit of the figure needs from a limit of the machine, by the limit's name: 16,384 bytes of `pwrite`
    for an append of 16 KiB. The limit divided by it is the most that this machine allows.
    """

    group: str
    name: str
    unit: str
    side: str
    values: list[float]
    better: str = HIGHER
    uses: dict[str, float] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        return median(self.values)


@dataclass(frozen=True)
class Curve:
    """A figure that depends on a size: points sorted by size.

    A point is the size and the figure. If the loop had several windows, the figure is their median, and the least and
    the most follow. `uses` is that of a row, for all points.
    """

    group: str
    name: str
    x: str
    unit: str
    side: str
    points: list[list[float]]
    better: str = HIGHER
    uses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One line: the results of one or more groups."""

    run: str
    date: str
    commit: str | None
    dirty: bool
    machine: dict[str, Any]
    limits: dict[str, dict[str, Any]]
    rows: list[Row]
    curves: list[Curve]


class Results:
    """The rows and curves of a benchmark that is running."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._curves: dict[tuple[str, str, str], Curve] = {}

    # More than eight parameters: a row's fields, which all benchmarks give by name.
    def row(
        self,
        group: str,
        name: str,
        unit: str,
        sides: Mapping[str, Iterable[float] | float | None],
        *,
        better: str = HIGHER,
        uses: Mapping[str, float] | None = None,
    ) -> None:
        """Adds the windows of one comparison, by side. A side without figures is omitted."""
        for side, found in sides.items():
            values = [] if found is None else [float(found)] if isinstance(found, int | float) else list(found)
            if values:
                self.rows.append(
                    Row(group, name, unit, side, [short(each) for each in values], better, dict(uses or {}))
                )

    # More than eight parameters: a point's fields, which all benchmarks give by name.
    def point(
        self, group: str, name: str, x: str, unit: str, side: str, at: float, found: float | Sequence[float],
        better: str = HIGHER, uses: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Adds one point of a curve: a figure, or those of several windows."""
        windows = [found] if isinstance(found, int | float) else found
        figures = [windows[0]] if len(windows) == 1 else [median(windows), min(windows), max(windows)]
        new = Curve(group, name, x, unit, side, [], better, dict(uses or {}))
        self._curves.setdefault((group, name, side), new).points.append([at, *map(short, figures)])

    @property
    def curves(self) -> list[Curve]:
        return [replace(curve, points=sorted(curve.points)) for curve in self._curves.values()]


def short(value: float) -> float:
    """Returns a figure with six digits: more would say nothing. ValueError for one that is no number."""
    if not math.isfinite(value):
        raise ValueError(f"found {value}, expected a figure")
    return float(f"{value:.6g}")


# --- writing -----------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `keep` reads."""
    parser.add_argument("--keep", action="store_true", help="append the results to a file in bench/results/")
    parser.add_argument("--run", type=named, help="the run's name, which is its file's name; default: date and commit")


def named(name: str) -> str:
    """Returns the name of a run; argparse.ArgumentTypeError if no file can have it."""
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise argparse.ArgumentTypeError(f"found {name!r}, expected letters, digits, and . _ + -")
    return name


def default_name() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}-{(_commit()[0] or 'unknown')[:8]}"


def keep(options: argparse.Namespace, results: Results, place: Path | None = None) -> None:
    """Appends one line to the file of the run, if `--keep` is given. The machine's limits are measured for it, on the
    disk of `place`."""
    if options.keep and (results.rows or results.curves):
        run = made(options.run, results, place)
        path = append(run)
        print(f"\nkept in {path.relative_to(ROOT)}", flush=True)


def made(name: str | None, results: Results, place: Path | None = None) -> Run:
    """Returns the line of results that were measured here and now."""
    commit, dirty = _commit()
    return Run(
        run=name or default_name(),
        date=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        commit=commit,
        dirty=dirty,
        machine=machine.described(place),
        limits=machine.limits(place),
        rows=results.rows,
        curves=results.curves,
    )


def append(run: Run, folder: Path = RESULTS) -> Path:
    """Appends the line of a run to its file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{run.run}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(line_of(run) + "\n")
    return path


def line_of(run: Run) -> str:
    return json.dumps(asdict(run), separators=(",", ":"))


def _commit() -> tuple[str | None, bool]:
    """Returns the commit of this clone, and whether files that are not results differ from it."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", ".", ":!bench/results", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return None, False
    return commit, bool(changed.strip())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


# --- reading -----------------------------------------------------------------------------------------------


def read(path: Path) -> list[Run]:
    """Returns the runs in a file.

    Raises:
        Malformed: A line is not a run; the message has the file's name and the line's number.
    """
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            runs.append(run_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Malformed(f"{path.name}, line {number}: {type(error).__name__}: {error}") from error
    return runs


def read_all(folder: Path = RESULTS, *, with_quick: bool = False) -> list[Run]:
    """Returns all kept runs, the oldest first. Short runs, whose figures mean little, are left out unless asked for."""
    paths = [path for path in sorted(folder.glob("*.jsonl")) if with_quick or not path.name.startswith(QUICK)]
    return sorted((run for path in paths for run in read(path)), key=lambda run: run.date)


def run_of(line: Any) -> Run:
    """Returns the run of a parsed line, and checks its form."""
    if not isinstance(line, dict):
        raise ValueError("found no object")
    rows = [Row(**each) for each in line["rows"]]
    curves = [Curve(**each) for each in line["curves"]]
    results: list[Row | Curve] = [*rows, *curves]
    for result in results:
        _check(result)
    same: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        _check_figures(row.name, row.values)
        if row.unit != BYTES and not all(row.values):
            raise ValueError(f"{row.name}: a rate or a time is 0")
        if same.setdefault((row.group, row.name), (row.unit, row.better)) != (row.unit, row.better):
            raise ValueError(f"{row.name}: the sides have different units")
    for curve in curves:
        if any(len(point) not in (2, 4) for point in curve.points):
            raise ValueError(f"{curve.name}: a point has two numbers or four")
        _check_figures(curve.name, [each for point in curve.points for each in point])
    for name, limit in line["limits"].items():
        _check_figures(name, limit["values"])
        if limit["unit"] not in UNITS or not all(limit["values"]):
            raise ValueError(f"{name}: a limit has a unit, and is not 0")
    if not isinstance(line["machine"], dict):
        raise ValueError("machine: found no object")
    datetime.strptime(line["date"], "%Y-%m-%dT%H:%M:%SZ")
    return Run(**{**line, "rows": rows, "curves": curves})


def _check(result: Row | Curve) -> None:
    if result.unit not in UNITS:
        raise ValueError(f"{result.name}: unit {result.unit!r} is none of {', '.join(UNITS)}")
    if result.better not in (HIGHER, LOWER):
        raise ValueError(f"{result.name}: better is {result.better!r}, expected higher or lower")
    _check_figures(f"{result.name}, uses", [1.0, *result.uses.values()])
    if not all(result.uses.values()) or (result.uses and result.better == LOWER):
        raise ValueError(f"{result.name}: uses are positive, and belong to a rate")


def _check_figures(name: str, values: Sequence[Any]) -> None:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name}: no figures")
    if not all(isinstance(each, int | float) and math.isfinite(each) and each >= 0 for each in values):
        raise ValueError(f"{name}: a figure is a number that is not negative")


# --- choosing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """All sides of one row, of one run."""

    group: str
    name: str
    sides: dict[str, Row]
    run: Run

    @property
    def any(self) -> Row:
        return next(iter(self.sides.values()))

    @property
    def reference(self) -> Row | None:
        """Kafka's side, or that of the first peer."""
        if KAFKA in self.sides:
            return self.sides[KAFKA]
        return next((row for side, row in self.sides.items() if side != KAFKALOG), None)

    def limit(self) -> tuple[str, float] | None:
        return limit_of(self.any, self.run)


def limit_of(result: Row | Curve, run: Run) -> tuple[str, float] | None:
    """Returns the limit that is reached first, as a figure in the result's unit."""
    found = [
        (name, median(run.limits[name]["values"]) / used) for name, used in result.uses.items() if name in run.limits
    ]
    return min(found, key=lambda each: each[1]) if found else None


def comparisons(runs: Iterable[Run]) -> Iterator[Comparison]:
    """Yields the rows of runs in their order; a run may have the same row again."""
    for run in runs:
        found: dict[tuple[str, str], dict[str, Row]] = {}
        for row in run.rows:
            found.setdefault((row.group, row.name), {})[row.side] = row
        for (group, name), sides in found.items():
            yield Comparison(group, name, sides, run)


def newest_rows(runs: Sequence[Run], group: str) -> list[Comparison]:
    """Returns the rows of a group, each from the newest run that has it.

    A run without the other side, for example without a JVM, replaces no row that has one.
    """
    found: dict[str, Comparison] = {}
    for each in comparisons(runs):
        if each.group != group or KAFKALOG not in each.sides:
            continue
        if each.name not in found or each.reference is not None or found[each.name].reference is None:
            found[each.name] = each
    return list(found.values())


def newest_curves(runs: Sequence[Run], group: str) -> dict[str, tuple[list[Curve], Run]]:
    """Returns the curves of a group by name, each with all sides, from the newest run that has it."""
    found: dict[str, tuple[list[Curve], Run]] = {}
    for run in runs:
        names = {curve.name for curve in run.curves if curve.group == group}
        for name in dict.fromkeys(curve.name for curve in run.curves if curve.name in names):
            found[name] = ([each for each in run.curves if (each.group, each.name) == (group, name)], run)
    return found


# --- showing -----------------------------------------------------------------------------------------------

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def shown(value: float, unit: str) -> str:
    """Returns a figure with three digits and a prefix.

    >>> shown(13_540_000_000, "B/s"), shown(748_650, "/s"), shown(0.00056, "s"), shown(54_525_952, "B")
    ('13.5 GB/s', '749 k/s', '560 us', '52 MiB')
    """
    if unit == SECONDS:
        scale, name = next((each for each in _SMALL if value >= each[0]), _SMALL[-1])
    elif unit == BYTES:
        scale, name = next((each for each in _SIZES if value >= each[0]), _SIZES[-1])
    else:
        scale, prefix = next((each for each in _PREFIXES if value >= each[0]), _PREFIXES[-1])
        name = f"{prefix}{unit}" if unit.startswith(("/", "B")) else f"{prefix} {unit}"
    return f"{digits(value / scale)} {name.strip()}".strip()


def digits(value: float) -> str:
    """Returns three digits, more before the point only.

    >>> digits(9.96), digits(99.96), digits(1234.5), digits(52.0)
    ('9.96', '100', '1,234', '52')
    """
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 9.995 else f"{value:.2f}"
