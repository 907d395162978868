"""The duration of each test file, in tests/durations.json: pytest begins with the longest files.

python -m tests.durations build/tests.xml ...     # writes it again, from pytest's --junitxml (`make durations`)
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "durations.json"
LEAST_SECONDS = 1  # shorter files come in any order

_seconds: dict[str, int] = json.loads(KEPT.read_text()) if KEPT.exists() else {}


def seconds_of(path: Path) -> int:
    """The duration of a test file; 0 for short ones and new ones."""
    return _seconds.get(path.relative_to(ROOT).as_posix(), 0) if path.is_relative_to(ROOT) else 0


def main(reports: list[str]) -> None:
    sums: Counter[str] = Counter()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            sums[case.attrib["classname"].replace(".", "/") + ".py"] += float(case.attrib["time"])  # type: ignore[assignment]
    long = {name: round(seconds) for name, seconds in sums.most_common() if seconds >= LEAST_SECONDS}
    KEPT.write_text(json.dumps(long, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
