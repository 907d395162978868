"""Crash states of the commands that change directories: retain, delete-records, compact, move.

After any crash the log opens, has no gap, and has lost no record that was to stay. Steps reported as done are done. The
same call, made again, ends with the result that it would have had.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.topic_configs import StoredTopicConfigs, stored_overrides
from kafkalog.toolbox import abort_transactions, compact, delete_records, known_transactions, move, recovery, retain
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction
from tests.crash import harness
from tests.crash.harness import CrashState
from tests.crash.partition import NOW_MS
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG
from tests.unit.full_kit import FullFiles

T0, U0, V0 = TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("v", 0)
SMALL = {
    "internal.segment.bytes": "700",
    "index.interval.bytes": "150",
    "message.timestamp.before.max.ms": str(1 << 60),
}
SETTINGS = {"retention.ms": "-1"}
DAY_MS = 86_400_000
Found = dict[int, bytes | None]


def fill(root: str, partition: TopicPartition, count: int = 24) -> None:
    """Some segments, one a few days; a transaction; a log start inside the first segment."""
    with kafkalog.open_log(root, partition, config=SMALL, files=UnsyncedFiles()) as log:
        for number in range(count):
            log.append(b"%d" % number * 30, timestamp=NOW_MS + number * DAY_MS)
        with client_transaction(log, "x") as txn:
            txn.append(b"committed", timestamp=NOW_MS + count * DAY_MS)
        log.delete_records(3)


def records(root: str, partition: TopicPartition) -> tuple[int, Found]:
    """The log start, and the records that a writable open (which recovers) finds."""
    with kafkalog.open_log(root, partition, config=SMALL, files=UnsyncedFiles(), create=False) as log:
        return log.log_start_offset, {record.offset: record.value for record in log}


def marked(recording: RecordingFiles, state: CrashState, label: str) -> bool:
    return any(op.kind == "mark" and op.path == label for op in recording.ops[: state.op_count])


def test_retain(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        disk = str(root / "disk")
        for partition in (T0, U0):
            fill(disk, partition)
        before = {partition: records(disk, partition) for partition in (T0, U0)}
        recording = RecordingFiles(str(root), UnsyncedFiles())
        settings = TopicSettings(disk, SMALL | {"retention.ms": str(10 * DAY_MS)})
        folders = {partition: f"{disk}/{partition}" for partition in (T0, U0)}
        plan = retain.plan_by_rules(disk, folders, settings, NOW_MS + 24 * DAY_MS)
        assert len(plan.choices) == 2
        assert all(len(choice.going) == 2 for choice in plan.choices)
        gained = retain.carry_out(plan, settings, files=recording, done=lambda choice: recording.mark("deleted"))
        assert gained == plan.allocated > 0
        recording.mark("done")
        after = {partition: records(disk, partition) for partition in (T0, U0)}
        starts = {choice.partition: choice.new_start for choice in plan.choices}
        assert {partition: start for partition, (start, _) in after.items()} == starts

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        for partition in (T0, U0):
            start, found = records(at, partition)
            assert before[partition][0] <= start <= starts[partition]
            assert found == {offset: value for offset, value in before[partition][1].items() if offset >= start}
            if marked(recording, state, "done"):
                assert start == starts[partition]
        assert verify(at, deep=True).ok

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"retain: {states} states")


def test_retain_on_a_full_disk(tmp_path: Path) -> None:
    """The first segment goes before the log can be opened."""
    with harness.fast_dir() as root:
        disk = str(root / "disk")
        fill(disk, T0)
        os.unlink(os.path.join(disk, names.CLEAN_SHUTDOWN_FILE))
        shutil.copytree(disk, root / "looked")
        before = records(str(root / "looked"), T0)
        recording = RecordingFiles(str(root), UnsyncedFiles())
        files = FullFiles(1, inner=recording)
        settings = TopicSettings(disk, SMALL | {"retention.ms": str(10 * DAY_MS)})
        plan = retain.plan_by_rules(disk, {T0: f"{disk}/{T0}"}, settings, NOW_MS + 24 * DAY_MS)
        (choice,) = plan.choices
        assert len(choice.going) == 2
        assert retain.carry_out(plan, settings, files=files) == plan.allocated
        assert files.failed
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        start, found = records(at, T0)
        assert before[0] <= start <= choice.new_start
        assert found == {offset: value for offset, value in before[1].items() if offset >= start}
        if marked(recording, state, "done"):
            assert start == choice.new_start
        assert verify(at, deep=True).ok

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"retain on a full disk: {states} states")


def test_delete_records(tmp_path: Path) -> None:
    config = LogConfig.from_props(None, SMALL)
    with harness.fast_dir() as root:
        disk = str(root / "disk")
        fill(disk, T0)
        before = records(disk, T0)
        recording = RecordingFiles(str(root), UnsyncedFiles())
        plan = delete_records.plan_deletion(disk, T0, config, offset=14)
        assert plan.segments
        assert delete_records.delete_records(disk, plan, config, files=recording) == 14
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        start, found = records(at, T0)
        assert start in (before[0], 14)
        assert found == {offset: value for offset, value in before[1].items() if offset >= start}
        if marked(recording, state, "done"):
            assert start == 14

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"delete-records: {states} states")


def test_abort_of_a_hanging_transaction(tmp_path: Path) -> None:
    """Each state has it open or aborted, and all of its records; a reported abort is done."""
    with harness.fast_dir() as root:
        disk = str(root / "disk")
        with kafkalog.open_log(disk, T0, config=SMALL, files=UnsyncedFiles()) as log:
            log.append(b"before", timestamp=NOW_MS)
            txn = client_transaction(log, "x")
            txn.begin()
            txn.append(b"open", timestamp=NOW_MS)
            log.append(b"behind", timestamp=NOW_MS)
        recording = RecordingFiles(str(root), UnsyncedFiles())
        plan = abort_transactions.plan_abort(disk, [T0], abort_transactions.Aimed(start_offset=1))
        assert abort_transactions.abort(plan, files=recording) == {T0: 4}
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        with kafkalog.open_log(at, T0, config=SMALL, files=UnsyncedFiles(), create=False, abort_left_open=False) as log:
            assert [record.value for record in log.records()] == [b"before", b"open", b"behind"]
            committed = [record.value for record in log.records(isolation="read_committed")]
            is_open = log.last_stable_offset == 1
        assert committed == ([b"before"] if is_open else [b"before", b"behind"])
        if marked(recording, state, "done"):
            assert not is_open
        assert verify(at, deep=True).ok

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"abort: {states} states")


def test_abort_by_the_coordinator(tmp_path: Path) -> None:
    """Each state has the transaction open, or decided, in both partitions; the same call ends with the same result."""
    names = ("t-0", "u-0")
    with harness.fast_dir() as root:
        whole = str(root / "whole")
        with kafkalog.open(whole, files=UnsyncedFiles()) as store:
            for topic in ("t", "u"):
                store.create_topic(topic)
            txn = store.transaction("job")
            txn.begin()
            for topic in ("t", "u"):
                txn.append(topic, b"open", partition=0)
                store.topic(topic).partition(0).append(b"behind")
            shutil.copytree(whole, root / "disk")
            txn.abort()
        disk = str(root / "disk")
        recording = RecordingFiles(str(root), UnsyncedFiles())
        aimed = abort_transactions.Aimed(transactional_id="job")
        plan = abort_transactions.plan_abort(disk, [T0, U0], aimed)
        abort_transactions.abort(plan, files=recording)
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        for result in recovery.recover(at, list(list_partitions(at)), act=True):  # until then a torn tail is damage
            assert result.error is None
        found = known_transactions.KnownTransactions(at).by_id["job"].state
        assert found in ("Ongoing", "PrepareAbort", "CompleteAbort")
        if marked(recording, state, "done"):
            assert found == "CompleteAbort"
        if found != "CompleteAbort":
            again = abort_transactions.plan_abort(at, [T0, U0], aimed)
            abort_transactions.abort(again, files=UnsyncedFiles())
        assert known_transactions.KnownTransactions(at).by_id["job"].state == "CompleteAbort"
        for name in names:
            with kafkalog.open_log(at, name, read_only=True) as log:
                assert [record.value for record in log.records(isolation="read_committed")] == [b"behind"]
                assert log.last_stable_offset == log.end_offset

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"abort by the coordinator: {states} states")


def test_compact(tmp_path: Path) -> None:
    """Each state has the last value of each key, and no foreign one; a repeated call ends with the same result."""
    compacted = {**SMALL, "cleanup.policy": "compact"}
    wanted = {}
    with harness.fast_dir() as root:
        disk = str(root / "disk")
        for partition in (T0, U0):
            with kafkalog.open_log(disk, partition, config=compacted, files=UnsyncedFiles()) as log:
                for number in range(40):
                    log.append(b"%d" % number * 20, key=b"k%d" % (number % 3), timestamp=NOW_MS + number)
        fill_checkpoint = OffsetCheckpointFile(f"{disk}/cleaner-offset-checkpoint", OS_FILES, create=False)
        kafkalog.open_log(disk, V0, config=compacted, files=UnsyncedFiles()).close()
        fill_checkpoint.write({V0: 7})  # for a partition that is not compacted
        before = {partition: records(disk, partition)[1] for partition in (T0, U0)}
        recording = RecordingFiles(str(root), UnsyncedFiles())
        settings = TopicSettings(disk, compacted)
        folders = {partition: f"{disk}/{partition}" for partition in (T0, U0)}
        how = compact.PassOptions(CleanerConfig(1, 24 * 3))  # two passes
        for result in compact.compact(disk, folders, settings, how, act=True, files=recording):
            assert result.error is None
            assert result.stats is not None
            assert result.stats.passes > 1
            wanted[result.partition] = result.stats.end_offset
            recording.mark(f"{result.partition} done")
        after = {partition: records(disk, partition)[1] for partition in (T0, U0)}
        assert len(after[T0]) < len(before[T0]) / 2
        assert fill_checkpoint.read() == {V0: 7, **wanted}

    def latest(found: Found) -> dict[int, bytes | None]:
        return {offset % 3: found[offset] for offset in sorted(found)}

    def check(place: str, state: CrashState) -> None:
        at = os.path.join(place, "disk")
        lines = OffsetCheckpointFile(f"{at}/cleaner-offset-checkpoint", OS_FILES, create=False).read_or_empty()
        assert lines[V0] == 7
        for partition in (T0, U0):
            _, found = records(at, partition)
            assert found.items() <= before[partition].items()
            assert found.keys() >= after[partition].keys()
            assert latest(found) == latest(before[partition])
            if marked(recording, state, f"{partition} done"):
                assert found == after[partition]
                assert lines[partition] == wanted[partition]
        for result in compact.compact(at, folders, settings, how, act=True, files=UnsyncedFiles()):
            assert result.error is None
        assert {partition: records(at, partition)[1] for partition in (T0, U0)} == after
        assert verify(at, deep=True).ok

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"compact: {states} states")


def test_move(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        here, there = str(root / "here"), str(root / "there")
        fill(here, T0)
        fill(here, U0, 6)
        fill(there, V0, 6)
        before = {T0: records(here, T0), U0: records(here, U0), V0: records(there, V0)}
        StoredTopicConfigs([here], OS_FILES, lambda *failed: None).set("t", SETTINGS)
        recording = RecordingFiles(str(root), UnsyncedFiles())
        plan = move.plan_move(here, T0, there, files=recording)
        assert plan.step is move.Step.COPY
        move.carry_out(plan, files=recording)
        recording.mark("done")
        assert move.plan_move(here, T0, there).step is move.Step.DONE
        assert records(there, T0) == before[T0]

    def check(place: str, state: CrashState) -> None:
        here, there = os.path.join(place, "here"), os.path.join(place, "there")
        homes = [at for at in (here, there) if os.path.isdir(os.path.join(at, "t-0"))]
        assert homes
        if marked(recording, state, "done"):
            assert homes == [there]
        unfinished = [name for name in os.listdir(there) if name.endswith("-future")]
        assert not (unfinished and os.path.exists(os.path.join(there, ".kafka_cleanshutdown")))
        for number, at in enumerate(homes):  # another process that opens it instead of continuing finds every record
            other = os.path.join(place, f"copy-{number}")
            shutil.copytree(at, other)
            assert stored_overrides(other, "t", OS_FILES) == SETTINGS
            assert records(other, T0) == before[T0]
        files = UnsyncedFiles()
        move.carry_out(move.plan_move(here, T0, there, files=files), files=files)
        assert [name for name in os.listdir(here) if name.startswith("t-0")] == []
        assert [name for name in os.listdir(there) if name.startswith("t-0")] == ["t-0"]
        for at, partition in ((there, T0), (there, V0), (here, U0)):
            assert records(at, partition) == before[partition]
        assert stored_overrides(there, "t", OS_FILES) == SETTINGS
        assert verify(there, deep=True).ok
        assert verify(here, deep=True).ok

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096
    )
    print(f"move: {states} states")
