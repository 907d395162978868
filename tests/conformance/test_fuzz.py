"""A short run of the differential fuzzer; the long one is `python -m tests.conformance.fuzz --count 2000`."""

from __future__ import annotations

import json
import os

import pytest

from tests.conformance.fuzz import fuzz
from tests.conformance.fuzz_scripts import ScriptWriter

COUNT = int(os.environ.get("KAFKALOG_FUZZ_COUNT", "40"))


def test_a_seed_gives_one_script() -> None:
    assert json.dumps(ScriptWriter(7).write()) == json.dumps(ScriptWriter(7).write())
    assert ScriptWriter(7).write() != ScriptWriter(8).write()


def test_scripts_are_of_the_promised_size_and_reach_everything() -> None:
    scripts = [ScriptWriter(seed).write() for seed in range(200)]
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
