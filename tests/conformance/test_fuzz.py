"""A short run of the differential fuzzer; the long one is `python -m tests.conformance.fuzz --count 2000`."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.conformance import kafka_jars
from tests.conformance.compare import Difference
from tests.conformance.fuzz import Engines, Outcome, fuzz, work_folder
from tests.conformance.fuzz_machine import ScriptMachine, ServedEngines, served, smallest_difference
from tests.conformance.fuzz_scripts import COMPACTION_STEPS, Line, ScriptWriter
from tests.damage import differential

EXAMPLES = int(os.environ.get("KAFKALOG_FUZZ_EXAMPLES", "40"))
COUNT = int(os.environ.get("KAFKALOG_FUZZ_COUNT", "40"))
DAMAGE_COUNT = COUNT // 2


def test_a_seed_gives_one_script() -> None:
    assert json.dumps(ScriptWriter.of_seed(7).write()) == json.dumps(ScriptWriter.of_seed(7).write())
    assert ScriptWriter.of_seed(7).write() != ScriptWriter.of_seed(8).write()


def test_scripts_are_of_the_promised_size_and_reach_everything() -> None:
    scripts = [ScriptWriter.of_seed(seed).write() for seed in range(200)]
    assert all(len(script) >= 20 for script in scripts)
    reached = {line["op"] for script in scripts for line in script}
    assert reached >= {
        "open", "close", "crash", "append_leader", "append_follower", "append_end_txn_marker", "read", "roll", "flush",
        "update_high_watermark", "maybe_increment_high_watermark", "truncate_to", "truncate_fully_and_start_at",
        "increment_log_start_offset", "delete_old_segments", "offset_for_timestamp", "end_offset_for_epoch",
        "epoch_cache", "assign_epoch", "assign_topic_id", "update_config", "segments", "producers",
        "take_producer_snapshot", "remove_expired_producers", "tick", "advance_clock", "dump", "rename_dir",
        "delete_log",
    }  # fmt: skip


def test_hypothesis_has_every_step() -> None:
    assert [name for name in (*COMPACTION_STEPS, "damage") if not hasattr(ScriptMachine, name)] == []


@pytest.mark.jvm
@pytest.mark.usefixtures("kafka_driver")
@pytest.mark.parametrize(("damage", "seed"), [(False, 1), (True, 1)])
def test_random_scripts_agree(damage: bool, seed: int) -> None:
    count = COUNT // 4 if damage else COUNT
    for number, outcome in fuzz(count, seed, damage=damage, stop_after=1):
        pytest.fail(
            f"seed {number}{' --damage' if damage else ''}: {outcome.difference}\n"
            f"shrink it: python -m tests.conformance.fuzz --count 1 --seed {number}{' --damage' if damage else ''}"
        )


@pytest.mark.jvm
@pytest.mark.usefixtures("kafka_driver")
def test_structured_damage_agrees() -> None:
    with work_folder() as work:
        for found in differential.fuzz(Engines(work), DAMAGE_COUNT, 1):
            assert found.named is not None, (
                f"seed {found.seed}, {'; '.join(found.notes)}: {found.outcome.difference}\n"
                f"shrink it: python -m tests.damage.differential --count 1 --seed {found.seed} --shrink"
            )


@pytest.mark.jvm
def test_scripts_written_by_hypothesis_agree(kafka_driver: kafka_jars.Driver) -> None:
    with served(kafka_driver) as engines:
        found = smallest_difference(engines, EXAMPLES, steps_max=30)
    assert found is None, f"{found.difference}\n" + "\n".join(map(json.dumps, found.lines))
    assert engines.scripts >= EXAMPLES
    assert engines.operations >= 20 * EXAMPLES


class OneBug(ServedEngines):
    """No engines at all: a script with a roll in it counts as different."""

    def __init__(self) -> None:
        self.scripts = 0

    def run_kafka(self, lines: list[Line]) -> list[dict[str, Any]]:
        return [{}]

    def run(self, lines: list[Line]) -> Outcome:
        self.scripts += 1
        different = any(line["op"] == "roll" for line in lines)
        return Outcome(lines, Difference("a roll", "") if different else None, [])


def test_hypothesis_shrinks_to_the_operations_that_matter() -> None:
    found = smallest_difference(OneBug(), 20, steps_max=4)
    assert found is not None
    ops = [line["op"] for line in found.lines]
    assert ops[: ops.index("segments")] == ["open", "roll"]
