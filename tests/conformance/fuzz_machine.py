"""Differential fuzzing with hypothesis as the writer: a state machine whose rules are the steps of `fuzz_scripts`.

    python -m tests.conformance.fuzz_machine --examples 1000 --seed 1 --save DIR

An example is a script: each rule adds its operations.  When hypothesis has no more steps, both engines run the whole
script and are compared (Kafka in a JVM that stays, kafkalog in this process, so that an example costs milliseconds).
Every decision is drawn, so hypothesis can remove operations, batches, records and fields from a script that differs
until it is minimal.  The result is printed, and saved below `--save` as a scenario.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.conformance import kafka_jars, permitted, replay
from tests.conformance.choosing import HypothesisChooser
from tests.conformance.compare import compare_runs, load_results
from tests.conformance.fuzz import Outcome, save, work_folder, write_script
from tests.conformance.fuzz_scripts import (
    COMPACTION_STEPS,
    Line,
    ScriptWriter,
    broker_may_compress_with_snappy,
    with_built_batches,
)
from tests.conformance.ways import WAYS_HELP, Ways

STEPS_MAX = 50
# A step that is taken often is several rules, as hypothesis takes each rule as often as another.
WEIGHT_OF_A_RULE = 5


class ServedEngines:
    """Both engines, ready: a script at a time, each in new directories."""

    def __init__(self, work: Path, kafka: kafka_jars.Served, ways: Ways | None = None) -> None:
        self.work = work
        self.ways = (ways or Ways()).all  # each script goes them all: a script that is shrunk must not change its way
        self.kafka = kafka
        self.scripts = 0
        self.operations = 0

    def run_kafka(self, lines: list[Line]) -> list[dict[str, Any]]:
        """Result lines; the files are in `work/kafka` until the next script."""
        folder = self.work / "kafka"
        shutil.rmtree(folder, ignore_errors=True)
        write_script(self.work / "kafka.script", lines)
        self.kafka.run(self.work / "kafka.script", folder, self.work / "kafka.out")
        return load_results(self.work / "kafka.out")

    def run(self, lines: list[Line]) -> Outcome:
        self.scripts += 1
        self.operations += len(lines)
        expected = self.run_kafka(lines)
        ours = self.work / "kafkalog"
        write_script(self.work / "kafkalog.script", with_built_batches(lines, expected))
        for way in self.ways:
            shutil.rmtree(ours, ignore_errors=True)
            replay.run_row(self.work / "kafkalog.script", ours, self.work / "kafkalog.out", way)
            actual = load_results(self.work / "kafkalog.out")
            difference = compare_runs(
                expected, actual, self.work / "kafka", ours, uses_snappy=broker_may_compress_with_snappy(lines)
            )
            outcome = Outcome(lines, difference, expected, actual, way)
            if difference is not None:
                break
        return outcome


@st.composite
def begun(draw: st.DrawFn) -> tuple[ScriptWriter, list[Line]]:
    """A writer whose script has its first line, and how the script will end."""
    machine = cast(ScriptMachine, draw(st.runner()))
    writer = ScriptWriter(HypothesisChooser(draw), compact=machine.compact)
    writer.finish()
    ending, writer.lines = writer.lines, []
    writer.open(clean=True)
    return writer, ending


@st.composite
def step(draw: st.DrawFn, name: str) -> list[Line]:
    """Lets the machine's writer take one step; the lines that it added."""
    machine = cast(ScriptMachine, draw(st.runner()))
    writer = machine.writer
    writer.choose = HypothesisChooser(draw)
    before = len(writer.lines)
    if name == "damage":
        writer.add("dump")
        result = machine.engines.run_kafka(writer.lines)[-1]
        # An open that failed leaves nothing to dump, and nothing to damage.
        if files := result.get("files"):
            writer.damage(files)
    else:
        getattr(writer, name)()
    return writer.lines[before:]


class ScriptMachine(RuleBasedStateMachine):
    """One example: a script in the making, run at its end."""

    engines: ServedEngines  # shared by the run
    compact = False  # with cleaner passes
    latest_difference: Outcome | None = None  # hypothesis ends with the smallest one

    writer: ScriptWriter
    ending: list[Line]

    @initialize(begun=begun())
    def begin(self, begun: tuple[ScriptWriter, list[Line]]) -> None:
        self.writer, self.ending = begun

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        self.writer.look()
        lines = [*self.writer.lines, *self.ending]
        outcome = self.engines.run(lines)
        if outcome.difference is not None and permitted.name_of(outcome) is None:
            type(self).latest_difference = outcome
            raise AssertionError(str(outcome.difference))


def _add_rules() -> None:
    for name, weight in (COMPACTION_STEPS | {"damage": 1}).items():
        for number in range(max(1, round(weight / WEIGHT_OF_A_RULE))):

            def take(self: ScriptMachine, lines: list[Line]) -> None:
                """The strategy has taken the step already."""

            take.__name__ = name if number == 0 else f"{name}_{number}"
            taken = rule(lines=step(name))(take)
            if name.startswith("clean"):
                taken = precondition(lambda self: self.compact)(taken)
            setattr(ScriptMachine, take.__name__, taken)


_add_rules()


@contextmanager
def served(driver: kafka_jars.Driver | None = None, ways: Ways | None = None) -> Iterator[ServedEngines]:
    with work_folder() as work, (driver or kafka_jars.driver()).serve() as kafka, replay.quiet():
        yield ServedEngines(work, kafka, ways)


def smallest_difference(
    engines: ServedEngines,
    examples: int,
    *,
    seed: int | None = None,
    compact: bool = False,
    steps_max: int = STEPS_MAX,
) -> Outcome | None:
    """The smallest script that differs, or None.  Without a seed every run takes the same examples."""

    class Run(ScriptMachine):
        """Keeps what this run found."""

    Run.engines = engines
    Run.compact = compact
    machine = Run if seed is None else hypothesis.seed(seed)(Run)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps_max,
        derandomize=seed is None,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except AssertionError:
        if Run.latest_difference is None:
            raise
    return Run.latest_difference


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="scripts (default 200)")
    parser.add_argument("--seed", type=int, help="other examples for another seed (default: the same every time)")
    parser.add_argument("--compact", action="store_true", help="cleaner passes over compacted topics too")
    parser.add_argument("--save", type=Path, help="save the smallest script that differs below this folder")
    parser.add_argument("--ways", type=Ways.parse, default=Ways(), help=WAYS_HELP)
    args = parser.parse_args(argv)
    began = time.monotonic()
    with served(ways=args.ways) as engines:
        found = smallest_difference(engines, args.examples, seed=args.seed, compact=args.compact)
    if found is not None:
        print(f"--- shrunk to {len(found.lines)} lines (--ways {found.way}): {found.difference}")
        for line in found.lines:
            print(f"    {json.dumps(line)[:400]}")
        if args.save is not None:
            digest = hashlib.sha256(json.dumps(found.lines).encode()).hexdigest()[:8]
            print(f"    saved in {save(found, f'fuzz_{digest}', args.save)}")
    print(
        f"{engines.scripts} scripts of {engines.operations} operations by hypothesis, seed {args.seed}: "
        f"{'one kind differs' if found else '0 differ'}; {time.monotonic() - began:.0f} s"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
