"""Differential fuzzing: random scripts on Apache Kafka and on kafkalog, compared line by line and byte by byte.

    python -m tests.conformance.fuzz --count 2000 --seed 1            # the long run
    python -m tests.conformance.fuzz --count 500 --damage             # crash, damage to files, reopen
    python -m tests.conformance.fuzz --count 1 --seed 4711 --keep DIR # one script again; its runs stay in DIR
    python -m tests.conformance.fuzz --count 1000 --managers          # log managers: many partitions and directories
    python -m tests.conformance.fuzz --count 2000 --ways both         # half of them without the short choice of appends
    python -m tests.conformance.fuzz --count 3000 --compact           # with cleaner passes; counts what they met
    python -m tests.conformance.fuzz --count 1000 --managers --compact  # managers with a cleaner

A script that differs is shrunk (lines are dropped while the difference remains) and saved below `--save`; exit 1.
With damage some differences are on purpose: `permitted` knows them, and they are counted.
The same operations written by hypothesis, which shrinks choice by choice: `fuzz_machine`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.conformance import kafka_jars, permitted
from tests.conformance.census import Census
from tests.conformance.compare import NOT_COMPARED, Difference, compare_runs, load_results
from tests.conformance.fuzz_managers import ManagerWriter
from tests.conformance.fuzz_scripts import Line, ScriptWriter, broker_may_compress_with_snappy, with_built_batches
from tests.conformance.ways import SHORT, WAYS_HELP, Ways

REPLAY = Path(__file__).with_name("replay.py")
SAVE_DIR = Path(__file__).with_name("scenarios")
RUN_SECONDS_MAX = 900


@dataclass
class Outcome:
    """One script on both engines."""

    lines: list[Line]
    difference: Difference | None
    kafka_results: list[dict[str, Any]]
    results: list[dict[str, Any]] = field(default_factory=list)  # kafkalog's
    way: str = SHORT  # the first that differs


class Engines:
    """Runs scripts on both engines, many in one process each, in directories below `work`."""

    def __init__(self, work: Path, ways: Ways | None = None) -> None:
        self.work = work
        self.ways = ways or Ways()
        self.driver = kafka_jars.driver()
        self.runs = 0
        self.census = Census()

    def run(self, scripts: Sequence[list[Line]]) -> list[Outcome]:
        root = self.work / f"run{self.runs}"
        self.runs += 1
        kafka = self.run_kafka(scripts, root / "kafka")
        ours = [with_built_batches(lines, results) for lines, results in zip(scripts, kafka, strict=True)]
        for way in self.ways.all:
            chosen = {number: lines for number, lines in enumerate(ours) if way in self.ways.of(number)}
            self._run(chosen, root / f"kafkalog-{way}", [sys.executable, str(REPLAY)], way)
        return [
            self._outcome(root, number, lines, expected)
            for number, (lines, expected) in enumerate(zip(scripts, kafka, strict=True))
        ]

    def _outcome(self, root: Path, number: int, lines: list[Line], expected: list[dict[str, Any]]) -> Outcome:
        """The outcome of the first mode that differs from Kafka, or of the last one; Kafka's result is the same in both
        modes."""
        for way in self.ways.of(number):
            out = root / f"kafkalog-{way}" / f"{number}.out"
            actual = load_results(out) if out.exists() else []
            if out.exists():
                difference = compare_runs(
                    expected,
                    actual,
                    root / "kafka" / f"{number}.work",
                    root / f"kafkalog-{way}" / f"{number}.work",
                    uses_snappy=broker_may_compress_with_snappy(lines),
                )
            else:
                said = (root / f"kafkalog-{way}" / "stderr").read_text()[-2000:]
                difference = Difference("the process", f"kafkalog died, or never came to this script:\n{said}")
            outcome = Outcome(lines, difference, expected, actual, way)
            if difference is not None:
                break
        self.census.add(outcome.results)
        return outcome

    def run_kafka(self, scripts: Sequence[list[Line]], root: Path) -> list[list[dict[str, Any]]]:
        self._run(dict(enumerate(scripts)), root, self.driver.command())
        return [load_results(root / f"{number}.out") for number in range(len(scripts))]

    def forget(self) -> None:
        """Removes the directories of the latest run."""
        shutil.rmtree(self.work / f"run{self.runs - 1}", ignore_errors=True)

    @staticmethod
    def _run(scripts: Mapping[int, list[Line]], root: Path, command: list[str], *way: str) -> None:
        root.mkdir(parents=True)
        rows = []
        for number, lines in scripts.items():
            script = root / f"{number}.script"
            write_script(script, lines)
            columns = (str(script), str(root / f"{number}.work"), str(root / f"{number}.out"), *way)
            rows.append("\t".join(columns) + "\n")
        listfile = root / "list"
        listfile.write_text("".join(rows))
        with (root / "stderr").open("w") as stderr:
            subprocess.run([*command, "--many", str(listfile)], stderr=stderr, timeout=RUN_SECONDS_MAX, check=False)


def write_script(path: Path, lines: Sequence[Line]) -> None:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


# --- scripts of a seed --------------------------------------------------------------------------------


def scripts_of(
    engines: Engines, seeds: Sequence[int], *, damage: bool = False, compact: bool = False, managers: bool = False
) -> list[list[Line]]:
    """The scripts of these seeds.  Damage needs to know the files, so real Kafka runs a first part before it."""
    if managers:
        return _manager_scripts(engines, seeds, compact=compact)
    writers = [ScriptWriter.of_seed(seed, compact=compact) for seed in seeds]
    scripts = [writer.write(closed=not damage) for writer in writers]
    if not damage:
        return scripts
    results = engines.run_kafka(scripts, engines.work / f"first{engines.runs}")
    shutil.rmtree(engines.work / f"first{engines.runs}", ignore_errors=True)
    return [
        writer.write_damage(found[-1]["files"]) if found and "files" in found[-1] else writer.lines
        for writer, found in zip(writers, results, strict=True)
    ]


def _manager_scripts(engines: Engines, seeds: Sequence[int], *, compact: bool) -> list[list[Line]]:
    writers = [ManagerWriter.of_seed(seed, compact=compact) for seed in seeds]
    for writer in writers:
        writer.write()
    going_on = [writer for writer in writers if writer.rounds]
    while going_on:
        work = engines.work / f"first{engines.runs}"
        results = engines.run_kafka([writer.lines for writer in going_on], work)
        shutil.rmtree(work, ignore_errors=True)
        for writer, found in zip(going_on, results, strict=True):
            writer.write_damage(found[-1].get("files", {}))
        going_on = [writer for writer in going_on if writer.rounds]
    return [writer.lines for writer in writers]


# --- shrinking ----------------------------------------------------------------------------------------


def signature(difference: Difference) -> str:
    """The parts that make two differences the same one: the operation or file kind and the field, not the numbers."""
    first_line = difference.detail.splitlines()[0]
    words = first_line if difference.place.startswith("file") else ""
    return re.sub(r"\d+", "N", f"{difference.place} {words.split(' differs')[-1][:40]}")


def shrink(engines: Engines, outcome: Outcome, *, rounds_max: int = 40) -> Outcome:
    """Drops lines while the same difference remains, the way it was found."""
    assert outcome.difference is not None
    engines.ways = Ways((outcome.way,))
    wanted = signature(outcome.difference)
    best = outcome
    # Lines after the differing line have no part in it (a difference in files has no line).
    at_line = re.match(r"line (\d+) ", outcome.difference.place)
    if at_line is not None:
        best = replace(outcome, lines=outcome.lines[: int(at_line[1])])
    chunk = max(1, len(best.lines) // 2)
    for _ in range(rounds_max):
        candidates = [best.lines[:start] + best.lines[start + chunk :] for start in range(0, len(best.lines), chunk)]
        candidates = [lines for lines in candidates if lines]
        tried = engines.run(candidates)
        engines.forget()
        # From the end: operations after the difference go first.
        kept = [t for t in reversed(tried) if t.difference is not None and signature(t.difference) == wanted]
        if kept:
            best = min(kept, key=lambda found: len(found.lines))
            chunk = min(chunk, max(1, len(best.lines) // 2))
        elif chunk > 1:
            chunk //= 2
        else:
            break
    return best


def save(outcome: Outcome, name: str, save_dir: Path) -> Path:
    """As a scenario: script and what real Kafka answered."""
    folder = save_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    write_script(folder / "script.jsonl", with_built_batches(outcome.lines, outcome.kafka_results))
    with (folder / "expected.jsonl").open("w") as file:
        for result in outcome.kafka_results:
            kept = {k: v for k, v in result.items() if k == "message" or k not in NOT_COMPARED}
            file.write(json.dumps(kept, separators=(",", ":")) + "\n")
    return folder


# --- the run ------------------------------------------------------------------------------------------


@contextmanager
def work_folder(keep: Path | None = None) -> Iterator[Path]:
    """Memory-backed where there is such a place: scripts sync a lot."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kafkalog-fuzz-", dir=base) as folder:
        yield Path(folder)


def fuzz(
    count: int,
    seed: int,
    *,
    damage: bool = False,
    compact: bool = False,
    managers: bool = False,
    batch: int = 100,
    keep: Path | None = None,
    stop_after: int = 10**9,
    ways: Ways | None = None,
    census: Census | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Yields (seed, outcome) of every script that differs, before it is shrunk.  `census` counts what passes meet."""
    found = 0
    with work_folder(keep) as work:
        engines = Engines(work, ways)
        engines.census = census or engines.census
        for start in range(seed, seed + count, batch):
            seeds = range(start, min(start + batch, seed + count))
            scripts = scripts_of(engines, seeds, damage=damage, compact=compact, managers=managers)
            for number, outcome in zip(seeds, engines.run(scripts), strict=True):
                if outcome.difference is not None:
                    yield number, outcome
                    found += 1
            if keep is None:
                engines.forget()
            if found >= stop_after:
                return


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="scripts (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first script (default 1); the next add one")
    parser.add_argument("--damage", action="store_true", help="crash, damage files and reopen")
    parser.add_argument("--compact", action="store_true", help="cleaner passes over compacted topics too")
    parser.add_argument("--managers", action="store_true", help="log managers instead of single partitions")
    parser.add_argument("--batch", type=int, default=100, help="scripts a process (default 100)")
    parser.add_argument("--keep", type=Path, help="run in this folder and leave everything there")
    parser.add_argument("--save", type=Path, help="save shrunk scripts below this folder")
    parser.add_argument("--max-shown", type=int, default=10, help="differences to show (default 10)")
    parser.add_argument("--stop-after", type=int, default=10**9, help="end when so many differ")
    parser.add_argument("--ways", type=Ways.parse, default=Ways(), help=WAYS_HELP)
    parser.add_argument("--no-shrink", action="store_true", help="show the difference only")
    args = parser.parse_args(argv)
    began = time.monotonic()
    different: dict[str, int] = {}
    named: Counter[str] = Counter()
    census = Census()
    for seed, outcome in fuzz(
        args.count,
        args.seed,
        damage=args.damage,
        compact=args.compact,
        managers=args.managers,
        batch=args.batch,
        keep=args.keep,
        stop_after=args.stop_after,
        ways=args.ways,
        census=census,
    ):
        assert outcome.difference is not None
        name = permitted.name_of(outcome)
        if name is not None:
            named[name] += 1
            continue
        kind = signature(outcome.difference)
        different[kind] = different.get(kind, 0) + 1
        if different[kind] > 1 or len(different) > args.max_shown:
            continue
        print(f"--- seed {seed} (--ways {outcome.way}): {outcome.difference}", flush=True)
        if args.no_shrink:
            continue
        with work_folder() as work:
            small = shrink(Engines(work), outcome)
        print(f"--- seed {seed}, shrunk to {len(small.lines)} lines: {small.difference}")
        for line in small.lines:
            print(f"    {json.dumps(line)[:400]}")
        if args.save is not None:
            print(f"    saved in {save(small, f'fuzz_{seed}', args.save)}")
    for kind, number in sorted(different.items(), key=lambda item: -item[1]):
        print(f"{number:5}  {kind}")
    for name, number in named.most_common():
        print(f"{number:5}  on purpose: {name}. {permitted.NAMED[name].reason}")
    if args.compact:
        print(census)
    total = sum(different.values())
    print(f"{args.count} scripts from seed {args.seed}: {total} differ; {time.monotonic() - began:.0f} s")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
