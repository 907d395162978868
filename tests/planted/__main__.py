"""Plants one fault after the other into a copy of the tree, and reports whether the tests of `make quick` find it.

    python -m tests.planted [--only NUMBER ...] [pytest's flags]     # `make planted`

The tests near a fault run first, then all.  The exit code is 1 if more than two
faults are missed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setuptools.command.build import build
from setuptools.dist import Distribution

from tests.planted.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
MISSED_MAX = 2
QUICK = ["tests/unit", "tests/golden", "tests/property", "tests/conformance/test_scenarios.py"]
FLAGS = ["-n", "2", "--dist", "worksteal", "-q", "-x", "--tb=line", "-m", "not slow"]


def copied(into: Path) -> None:
    """The tree, and its modules as an earlier build would have left them, so that only what changes is compiled."""
    for part in ("kafkalog", "tests", "bench", "docs", "build/cython"):
        shutil.copytree(ROOT / part, into / part, ignore=shutil.ignore_patterns("__pycache__", "target"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, into)
    command = build(Distribution({"ext_modules": [None]}))
    command.ensure_finalized()
    for module in (into / "kafkalog").rglob("*.so"):
        place = into / command.build_lib / module.relative_to(into)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(module, place)


def run(place: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *argv], cwd=place, env=environment, capture_output=True, text=True)


def found_by(place: Path, fault: Fault, flags: list[str]) -> str | None:
    """The first test that fails, None if none does."""
    file = place / "kafkalog" / fault.file
    text = file.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} has {fault.right!r} {text.count(fault.right)} times"
    file.write_text(text.replace(fault.right, fault.wrong))
    if file.suffix == ".pyx":
        built = run(place, "setup.py", "-q", "build_ext", "--inplace")
        assert built.returncode == 0, built.stderr
    for chosen in ([f"tests/unit/test_{name}.py" for name in fault.near.split()], QUICK):
        done = run(place, "-m", "pytest", *FLAGS, *chosen, *flags)
        assert done.returncode in (0, 1, 2), done.stdout + done.stderr
        if done.returncode:
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return failed[1] if failed else done.stdout[-300:]
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these faults, from 1")
    options, flags = parser.parse_known_args()
    missed = 0
    for number, fault in enumerate(FAULTS, 1):
        if options.only and number not in options.only:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="planted") as name:
            copied(Path(name))
            test = found_by(Path(name), fault, flags)
        missed += test is None
        told = f"found by {test}" if test else "MISSED"
        print(f"{number:2} {fault.file}: {fault.rule}: {told}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{missed} missed")
    return missed > MISSED_MAX


if __name__ == "__main__":
    sys.exit(main())
