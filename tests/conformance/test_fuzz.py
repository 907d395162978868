"""A short run of the differential fuzzer; the long one is `python -m tests.conformance.fuzz --count 2000`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.codec import batches as native
from kafkalog.engine.log import ordinary
from tests.conformance import census, kafka_jars, permitted, replay, ways
from tests.conformance.compare import Difference
from tests.conformance.fuzz import Engines, Outcome, fuzz, work_folder
from tests.conformance.fuzz_machine import ScriptMachine, ServedEngines, served, smallest_difference
from tests.conformance.fuzz_managers import ManagerWriter
from tests.conformance.fuzz_scripts import COMPACTION_STEPS, Line, ScriptWriter
from tests.conformance.ways import Ways
from tests.damage import differential
from tests.sampling import FIRST

EXAMPLES = int(os.environ.get("KAFKALOG_FUZZ_EXAMPLES", "20"))
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
@pytest.mark.parametrize(("damage", "seed"), [(False, FIRST), (True, FIRST)], ids=["", "damage"])
def test_random_scripts_agree(damage: bool, seed: int) -> None:
    count = COUNT // 4 if damage else COUNT
    for number, outcome in fuzz(count, seed, damage=damage, stop_after=1):
        pytest.fail(
            f"seed {number}{' --damage' if damage else ''}: {outcome.difference}\n"
            f"shrink it: python -m tests.conformance.fuzz --count 1 --seed {number}{' --damage' if damage else ''}"
        )


@pytest.mark.jvm
@pytest.mark.usefixtures("kafka_driver")
@pytest.mark.parametrize("damage", [False, True])
def test_random_cleans_agree(damage: bool) -> None:
    met = census.Census()
    for number, outcome in fuzz(COUNT // 4 if damage else COUNT, 1, damage=damage, compact=True, census=met):
        assert permitted.name_of(outcome) is not None, (
            f"seed {number} --compact{' --damage' if damage else ''}: {outcome.difference}\n"
            f"shrink it: python -m tests.conformance.fuzz --count 1 --seed {number} --compact"
        )
    if not damage:
        assert met.met.keys() == census.MET.keys(), str(met)


def test_scripts_of_cleans_reach_what_matters() -> None:
    lines = [line for seed in range(200) for line in ScriptWriter.of_seed(seed, compact=True).write()]
    cleans = [line for line in lines if line["op"] == "clean"]
    assert {"buffer_bytes", "io_buffer", "max_io_buffer", "load_factor", "last_clean_offset"} <= set().union(*cleans)
    assert any(line["op"] == "fs_corrupt" for line in lines)
    configs = [line["config"] for line in lines if line["op"] == "open"]
    assert any("min.compaction.lag.ms" in config for config in configs)
    assert any("producer_id_expiration_ms" in line for line in lines if line["op"] == "open")


@pytest.mark.jvm
@pytest.mark.usefixtures("kafka_driver")
@pytest.mark.parametrize("compact", [False, True])
def test_random_managers_agree(compact: bool) -> None:
    flags = "--managers --compact" if compact else "--managers"
    for number, outcome in fuzz(COUNT // 2, FIRST, managers=True, compact=compact):
        assert permitted.name_of(outcome) is not None, (
            f"seed {number} {flags}: {outcome.difference}\n"
            f"shrink it: python -m tests.conformance.fuzz --count 1 --seed {number} {flags}"
        )


def test_manager_scripts_reach_everything() -> None:
    scripts = [ManagerWriter.of_seed(seed).write() for seed in range(100)]
    scripts += [
        ManagerWriter.of_seed(seed).write_damage({"d1/foo-0/00000000000000000000.log": {"size": 99}})
        for seed in range(100)
    ]
    reached = {line["op"] for script in scripts for line in script}
    assert reached >= {
        "lm_open", "lm_get", "lm_checkpoint", "lm_delete", "lm_truncate", "lm_future", "lm_move", "lm_shutdown",
        "lm_crash", "close", "crash", "open", "append_leader", "append_follower", "update_high_watermark", "roll",
        "increment_log_start_offset", "advance_clock", "dump", "fs_write", "fs_copy", "fs_rename", "fs_delete",
        "fs_truncate", "fs_corrupt",
    }  # fmt: skip


def test_scripts_of_managers_with_a_cleaner_reach_what_matters() -> None:
    writers = [ManagerWriter.of_seed(seed, compact=True) for seed in range(100)]
    files = {f"d1/foo-0/{base:020}.log": {"size": 199} for base in (0, 7)}
    lines = [line for writer in writers for line in [*writer.write(), *writer.write_damage(files)]]
    reached = {line["op"] for line in lines}
    assert reached >= {"lm_clean", "lm_move", "lm_truncate", "lm_delete", "lm_future", "lm_crash", "fs_corrupt"}
    cleaners = [line["cleaner"] for line in lines if line["op"] == "lm_open" and "cleaner" in line]
    for name, small in (("load_factor", 0.001), ("io_buffer", 1000)):
        assert {each[name] < small for each in cleaners} == {True, False}
    assert any(str(line.get("file")).endswith("/cleaner-offset-checkpoint") for line in lines)
    assert not any("cleaner" in line for line in ManagerWriter.of_seed(7).write())


@pytest.mark.jvm
@pytest.mark.usefixtures("kafka_driver")
def test_structured_damage_agrees() -> None:
    with work_folder() as work:
        for found in differential.fuzz(Engines(work), DAMAGE_COUNT, FIRST):
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
    found = smallest_difference(OneBug(), 80, steps_max=4)
    assert found is not None
    ops = [line["op"] for line in found.lines]
    assert ops[: ops.index("segments")] == ["open", "roll"]


def test_twisted_batches_are_of_every_kind() -> None:
    headers = [
        native.header_at(bytes.fromhex(batch["raw_hex"]))
        for seed in range(200)
        for line in ScriptWriter.of_seed(seed).write()
        for batch in line.get("batches", ())
        if "raw_hex" in batch
    ]
    assert {header.codec for header in headers} >= {5, 6, 7}
    assert any(header.count != header.last_offset - header.base_offset + 1 for header in headers)
    assert any(header.max_timestamp < -1 for header in headers)


def test_scripts_go_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`replay` takes the way that its list names, and leaves the choice as it was."""
    taken: list[Any] = []

    def run_script(*_: object) -> bool:
        taken.append(ordinary.append)
        return True

    monkeypatch.setattr(replay, "run_script", run_script)
    chosen = Ways.parse("both")
    rows = [(number, way) for number in range(4) for way in chosen.of(number)]
    rows += [(9, way) for way in Ways.parse("short,long").of(9)]
    (tmp_path / "script").touch()
    (tmp_path / "list").write_text(
        "".join(f"{tmp_path / 'script'}\t{tmp_path}\t{tmp_path / str(number)}\t{way}\n" for number, way in rows)
    )
    assert replay.run_many(tmp_path / "list")
    assert taken == [ordinary.short_way, ordinary.long_way] * 3
    assert ordinary.append is ordinary.short_way
    assert Ways.parse("long").of(3) == (ways.LONG,)
    with pytest.raises(ValueError, match="not made of short and long"):
        Ways.parse("sideways")
