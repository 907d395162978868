"""`python -m bench.compare A B`: what changed between two kept runs.

A and B are names of runs, the first characters of a commit, or files of results. Both may have several lines. A row is
"slower" or "faster" if its medians differ by more than the threshold and its repeated windows do not overlap; otherwise
it is "same". A figure of one window has no spread, and needs a change of 30 %. Only kafkalog's side is judged. The
other sides are shown, because a machine that has become slower shows in them, too. The exit code is 1 if a row is
slower.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import kept
from bench.kept import HIGHER, KAFKALOG, Row, Run, shown

THRESHOLD = 0.05
ONE_WINDOW_THRESHOLD = 0.3  # without a spread: single runs differ by this much on a machine with other load


def chosen(name: str, folder: Path = kept.RESULTS) -> list[Run]:
    """Returns the lines of a file, of a run, or of the runs of a commit; the oldest first.

    Raises:
        LookupError: Nothing has this name.
    """
    if Path(name).is_file():
        return kept.read(Path(name))
    runs = kept.read_all(folder)
    found = [run for run in runs if run.run == name]
    found = found or [run for run in runs if len(name) >= 4 and run.commit is not None and run.commit.startswith(name)]
    if not found:
        names = ", ".join(dict.fromkeys(run.run for run in runs)) or "none"
        raise LookupError(f"no file, run or commit is named {name}; kept runs: {names}")
    return found


def rows_of(runs: Sequence[Run]) -> dict[tuple[str, str, str], Row]:
    """Returns the newest row for each group, name and side. A point of a curve is a row, too."""
    found: dict[tuple[str, str, str], Row] = {}
    for run in runs:
        for row in run.rows:
            found[row.group, row.name, row.side] = row
        for curve in run.curves:
            for at, middle, *spread in curve.points:
                name = f"{curve.name}, {at:,.0f} {curve.x}"
                found[curve.group, name, curve.side] = Row(
                    curve.group, name, curve.unit, curve.side, [middle, *spread], curve.better
                )
    return found


def verdict(before: Row, after: Row, threshold: float) -> str:
    """Returns "faster", "slower" or "same"."""
    change = times(before, after)
    if min(len(before.values), len(after.values)) == 1:
        threshold = max(threshold, ONE_WINDOW_THRESHOLD)
    apart = min(after.values) > max(before.values) or max(after.values) < min(before.values)
    if not apart or abs(change - 1) <= threshold:
        return "same"
    return "faster" if change > 1 else "slower"


def times(before: Row, after: Row) -> float:
    """Returns how many times better the second row is, by medians."""
    one, other = max(median(before.values), 1e-12), max(median(after.values), 1e-12)
    return other / one if before.better == HIGHER else one / other


def compared(before: Sequence[Run], after: Sequence[Run], threshold: float = THRESHOLD) -> list[dict[str, Any]]:
    """Returns an object for each row that both have."""
    old, new = rows_of(before), rows_of(after)
    return [
        {
            "group": group, "name": name, "side": side, "unit": row.unit, "better": row.better,
            "before": row.values, "after": new[group, name, side].values,
            "times": round(times(row, new[group, name, side]), 4),
            "verdict": verdict(row, new[group, name, side], threshold),
        }
        for (group, name, side), row in old.items()
        if (group, name, side) in new
    ]  # fmt: skip


def alone(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Returns the rows that only one of both has, in words."""
    old, new = rows_of(before), rows_of(after)
    return [
        f"only in {which}: {group}, {name}, {side}"
        for which, one, other in (("A", old, new), ("B", new, old))
        for group, name, side in one
        if (group, name, side) not in other
    ]


def told(found: Sequence[dict[str, Any]], *, all_rows: bool) -> str:
    """Returns a table: what changed, or all rows."""
    lines = ["| group | row | side | before | after | times better | verdict |", "|---|---|---|---|---|---|---|"]
    for each in found:
        if all_rows or each["verdict"] != "same":
            before, after = (_range(each[when], each["unit"]) for when in ("before", "after"))
            words = [each["group"], each["name"], each["side"], before, after, f"{each['times']:.2f}", each["verdict"]]
            lines.append(f"| {' | '.join(words)} |")
    same = sum(each["verdict"] == "same" for each in found)
    return "\n".join([*lines, "", f"{len(found)} rows, {same} of them the same within their spread"])


def _range(values: Sequence[float], unit: str) -> str:
    middle = shown(median(values), unit)
    return middle if len(values) == 1 else f"{middle} ({shown(min(values), unit)} to {shown(max(values), unit)})"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", metavar="A", help="a run, a commit or a file")
    parser.add_argument("after", metavar="B", help="a run, a commit or a file")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="a smaller change is none; default: 0.05")
    parser.add_argument("--all", action="store_true", help="show rows that did not change, too")
    parser.add_argument("--json", action="store_true", help="print all rows as JSON")
    given = parser.parse_args(words)
    try:
        before, after = chosen(given.before), chosen(given.after)
    except (LookupError, kept.Malformed) as error:
        parser.error(str(error))
    found = compared(before, after, given.threshold)
    if not found:
        parser.error(f"{given.before} and {given.after} have no row in common")
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join([told(found, all_rows=given.all), *alone(before, after)]))
    return 1 if any(each["verdict"] == "slower" and each["side"] == KAFKALOG for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
