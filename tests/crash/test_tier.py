"""Crash states of a store with a remote tier, and requests that its object store refuses.

The local disk loses what power loss may take at every step; each request of the object store is atomic, or, in a
folder, is done by the same disk.  At any moment records can be read from one tier or the other. After a pass the
objects are exactly those in the metadata.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import moves as host_moves
from kafkalog.errors import KafkalogError, OffsetOutOfRangeException
from kafkalog.store import Store
from kafkalog.toolbox import tiering
from tests.crash import harness
from tests.crash.harness import CrashState, check_crashes
from tests.crash.tiered import (
    Bucket,
    BucketTier,
    Driver,
    FolderTier,
    Story,
    bucket_at,
    check_agrees,
    check_start,
    die,
    objects_after,
    open_tiered,
    opened,
    retain_locally,
    settle,
    temporaries,
    values_of,
)
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG, sampled

SAMPLE = None if LONG else 20
REQUESTS = None if LONG else 3
# To tell states that look alike costs more than a sample of them all.
KINDS: dict[str, Any] = {"shuffles": 1, "torn_step": 4096, "dedupe": LONG}
STARTS, AGAIN = (150, 40) if LONG else (4, 5)
FAST = UnsyncedFiles()


def work(driver: Driver) -> None:
    """Two topics, one of which is deleted."""
    driver.create("kept")
    driver.create("gone")
    driver.write("kept")
    driver.append("gone", 6)
    driver.copy()
    retain_locally(driver.store, "kept")
    driver.write("kept")
    driver.copy()
    driver.expire("kept", 2000)
    driver.append("kept", 3)
    driver.delete("gone")
    driver.copy()
    retain_locally(driver.store, "kept")


def in_a_bucket(done: Callable[[Driver], object], tmp_path: Path) -> None:
    """The crashes of what is done with an object store whose requests take effect one by one, before or after each step
    of the disk."""
    with harness.fast_dir() as root:
        os.mkdir(root / "disk")
        recording = RecordingFiles(str(root), FAST)
        bucket = Bucket()
        bucket.tell = recording.mark
        with opened(str(root / "disk"), BucketTier(bucket), recording) as store:
            done(Driver(store, recording.mark))

        def check(place: str, state: CrashState) -> None:
            story = Story.of(recording.ops[: state.op_count])
            check_start(f"{place}/disk", BucketTier(bucket_at(recording, state.op_count)), story)

        count = check_crashes(recording, check, sample=SAMPLE, keep=tmp_path / "kept", **KINDS)
    print(f"{len(recording.ops)} steps, {count} states")


def test_bucket_crashes(tmp_path: Path) -> None:
    in_a_bucket(work, tmp_path)


def moves(driver: Driver) -> None:
    """A partition moves, whole and with its end alone, while it is written, copied, and deleted in both tiers."""
    driver.create("kept")
    driver.write("kept")
    driver.copy()
    driver.move("kept")
    driver.append("kept", 3)
    driver.copy()
    retain_locally(driver.store, "kept")

    def retain() -> None:
        retain_locally(driver.store, "kept")
        driver.write("kept")

    steps: list[Callable[[], object]] = [lambda: driver.append("kept", 8), driver.copy, retain]
    steps.append(lambda: driver.expire("kept", 3500))
    driver.write("kept")
    driver.move("kept", lambda: steps and steps.pop(0)())
    assert not steps
    driver.copy()
    driver.move("kept")
    driver.append("kept", 3)
    driver.copy()
    retain_locally(driver.store, "kept")


def test_crashes_in_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directories: the one that has the partition after a crash continues with its tier, and moves it."""
    monkeypatch.setattr(host_moves, "SWITCH_BYTES", 0)
    with harness.fast_dir() as base:
        root, disks = base / "house", ["disk0", "disk1"]
        for disk in disks:
            os.makedirs(root / disk)
        recording = RecordingFiles(str(root), FAST)
        bucket = Bucket()
        bucket.tell = recording.mark
        with opened([str(root / disk) for disk in disks], BucketTier(bucket), recording) as store:
            moves(Driver(store, recording.mark))
        root.rename(base / "left")

        def check(place: str, state: CrashState) -> None:
            story = Story.of(recording.ops[: state.op_count])
            tier = BucketTier(bucket_at(recording, state.op_count))
            check_start([f"{place}/{disk}" for disk in disks], tier, story, moves=True)

        sample = None if SAMPLE is None else 3 * SAMPLE
        count = check_crashes(recording, check, sample=sample, keep=tmp_path / "kept", at=str(root), **KINDS)
    print(f"{len(recording.ops)} steps, {count} states")


def leaves(driver: Driver) -> None:
    """A topic leaves the tier, comes back, and leaves it again."""
    driver.create("kept")
    for _ in range(2):
        driver.append("kept", 8)
        driver.copy()
        retain_locally(driver.store, "kept")
        driver.append("kept", 5)
        driver.leave("kept")
        driver.append("kept", 3)
        driver.store.alter_topic("kept", {"remote.storage.enable": "true"})
        retain_locally(driver.store, "kept")
    driver.copy()
    retain_locally(driver.store, "kept")


def test_crashes_while_a_topic_leaves_the_tier(tmp_path: Path) -> None:
    """Records that only the disk has stay readable, whichever events exist, and no object is orphaned."""
    in_a_bucket(leaves, tmp_path)


def test_crashes_of_the_start_after_a_crash() -> None:
    """A killed process leaves unsynced writes; the next process copies and deletes by them, then the power fails."""
    counts = []
    with harness.fast_dir() as root:
        os.mkdir(root / "disk")
        recording = RecordingFiles(str(root), FAST)
        bucket = Bucket()
        bucket.tell = recording.mark
        with opened(str(root / "disk"), BucketTier(bucket), recording) as store:
            work(Driver(store, recording.mark))

        def check(place: str, state: CrashState) -> None:
            story = Story.of(recording.ops[: state.op_count])
            left = bucket_at(recording, state.op_count)
            before = dict(left.objects)
            again = RecordingFiles(place, FAST)
            left.tell = again.mark
            check_start(f"{place}/disk", BucketTier(left), story, again, leaves=True)

            def check_again(place: str, state: CrashState) -> None:
                objects = objects_after(again.ops[: state.op_count], before)
                check_start(f"{place}/disk", BucketTier(Bucket(objects)), story)

            counts.append(check_crashes(again, check_again, sample=AGAIN, **{**KINDS, "dedupe": False}))

        check_crashes(recording, check, sample=STARTS, kinds=("kill",), dedupe=False)
    print(f"{len(counts)} starts, {sum(counts)} states")


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_folder_crashes(tmp_path: Path, layout: str) -> None:
    """A directory as the tier, on the same disk: power loss may lose its unsynced objects, too."""
    with harness.fast_dir() as root:
        os.mkdir(root / "disk")
        recording = RecordingFiles(str(root), FAST)
        tier = FolderTier(str(root / "bucket"), recording, layout)
        with opened(str(root / "disk"), tier, recording) as store:
            work(Driver(store, recording.mark))

        def check(place: str, state: CrashState) -> None:
            story = Story.of(recording.ops[: state.op_count])
            check_start(f"{place}/disk", FolderTier(f"{place}/bucket", FAST, layout), story)
            assert not temporaries(f"{place}/bucket")

        count = check_crashes(recording, check, sample=SAMPLE, keep=tmp_path / "kept", **KINDS)
    print(f"{layout}: {len(recording.ops)} steps, {count} states")


def test_power_loss_in_local_retention_after_a_kill() -> None:
    """The start after a kill writes producer snapshots, and they are durable before a segment is deleted.

    The disk may then begin with any segment. A transaction of an earlier one is aborted after the end of the tier.
    """
    with harness.fast_dir() as root:
        os.mkdir(root / "disk")
        tier, story = BucketTier(Bucket()), Story()
        killed = open_tiered(str(root / "disk"), tier)
        driver = Driver(killed, story.told)
        driver.create("kept")
        with contextlib.suppress(ZeroDivisionError), killed.transaction("tx") as txn:
            txn.append("kept", b"-1.")  # no reader may see it
            driver.append("kept", 10)
            raise ZeroDivisionError
        die(killed)
        recording = RecordingFiles(str(root), FAST)
        store = open_tiered(str(root / "disk"), tier, recording)
        store.remote_log_manager.run_once()
        before = len(recording.ops)
        assert retain_locally(store, "kept") > 2
        die(store)
        for place in at_renames(recording, before, root):
            check_start(f"{place}/disk", BucketTier(Bucket(tier.bucket.objects)), story, leaves=True)


def at_renames(recording: RecordingFiles, before: int, root: Path) -> Iterator[str]:
    """The states that power loss leaves at each rename since a step: all new names, but only the synced contents."""
    for count in [at for at, op in enumerate(recording.ops) if at >= before and op.kind == "rename"]:
        disk = recording.replay(count)
        for change in disk.pending_names:
            change.apply()
        disk.materialise_durable(str(root / f"{count}"))
        yield str(root / f"{count}")


def test_power_loss_in_retention_of_what_was_not_copied() -> None:
    """Copying was switched off, so retention deletes the only copy: the log starts after it, although the tier has
    earlier records."""
    with harness.fast_dir() as root:
        os.mkdir(root / "disk")
        recording, tier, story = RecordingFiles(str(root), FAST), BucketTier(Bucket()), Story()
        store = open_tiered(str(root / "disk"), tier, recording)
        driver = Driver(store, story.told)
        driver.create("kept")
        driver.append("kept", 4)
        driver.copy()
        retain_locally(store, "kept")
        limits = dict.fromkeys(("retention.bytes", "local.retention.bytes"), "600")
        store.alter_topic("kept", {"remote.log.copy.disable": "true", "local.retention.ms": "-1", **limits})
        driver.append("kept", 8)
        before = len(recording.ops)
        assert retain_locally(store, "kept") > 2
        story.told("expire", ("kept", list(range(values_of(store, "kept")[0]))))
        die(store)
        for place in at_renames(recording, before, root):
            check_start(f"{place}/disk", BucketTier(Bucket(tier.bucket.objects)), story, leaves=True)


def test_log_start_after_a_crash_in_remote_retention() -> None:
    """The log starts where the tier does, though neither the checkpoint nor the leader epochs' file on the disk has
    heard of it."""
    with harness.fast_dir() as root:
        disk, bucket, left = root / "disk", Bucket(), list[tuple[Path, dict[str, bytes]]]()
        epochs, starts = Path("kept-0", "leader-epoch-checkpoint"), set()
        disk.mkdir()
        with opened(str(disk), BucketTier(bucket), FAST) as store:
            driver = Driver(store, lambda label, value: None)
            driver.create("kept")
            driver.append("kept", 8)
            driver.copy()
            retain_locally(store, "kept")
        known = (disk / epochs).read_bytes()
        store = driver.store = open_tiered(str(disk), BucketTier(bucket))

        def after(kind: str, key: str) -> None:
            if kind == "rm":
                left.append((root / f"{len(left)}", dict(bucket.objects)))
                shutil.copytree(disk, left[-1][0])

        bucket.after = after
        driver.expire("kept", 1)
        die(store)
        assert "kept 0 0" in (disk / "log-start-offset-checkpoint").read_text()
        for place, objects in left:
            (place / epochs).write_bytes(known)
            store = open_tiered(str(place), BucketTier(Bucket(objects)))
            partition = store.topic("kept").partition(0)
            start = partition.log_start_offset
            assert values_of(store, "kept") == list(range(start, 16))
            with pytest.raises(OffsetOutOfRangeException):
                next(partition.records(start - 1))
            die(store)
            starts.add(start)
        assert starts == {4, 8, 12}


# --- requests that go wrong ------------------------------------------------------------------------------------


def refuse(error: type[OSError]) -> Callable[[bytes, str], bytes]:
    def spoil(data: bytes, key: str) -> bytes:
        raise error(f"refused {key}")

    return spoil


def short(data: bytes, key: str) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes, key: str) -> bytes:
    at = len(data) * 2 // 3
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] if data else data


def slow(data: bytes, key: str) -> bytes:
    time.sleep(0.002)
    return data


FAULTS: dict[str, Callable[[bytes, str], bytes]] = {
    "connection": refuse(ConnectionError),
    "time": refuse(TimeoutError),
    "permission": refuse(PermissionError),
    "short": short,
    "flipped": flipped,
    "slow": slow,
}


class Trouble:
    """Spoils one request, or all from it on, of those whose answers it can spoil; `after`: the request was done, and
    only its answer was lost."""

    def __init__(self, bucket: Bucket, kind: str, at: int, *, sticky: bool = False, after: bool = False) -> None:
        self.bucket, self.kind, self.at, self.sticky = bucket, kind, at, sticky
        self.count = 0
        self.keys: list[str] = []  # the objects that it hit
        self.is_hint = False  # the request only helps: a search for records, or a read of them
        if after:
            bucket.after = lambda kind, key: self.due(key) and FAULTS[self.kind](b"", key) and None
        else:
            bucket.fault = self.spoil

    def due(self, key: str) -> bool:
        number, self.count = self.count, self.count + 1
        is_due = number == self.at or (self.sticky and number > self.at)
        if is_due:
            self.keys.append(key)
        return is_due

    def spoil(self, kind: str, key: str, data: bytes) -> bytes:
        if kind != "get" and self.kind in ("short", "flipped"):
            return data
        is_first, is_due = not self.keys, self.due(key)
        if is_first and is_due:
            is_ahead = threading.current_thread().name.startswith("kafkalog-remote-reader")
            self.is_hint = kind == "get" and (is_ahead or not key.endswith((".log", ".rsm-manifest")))
        return FAULTS[self.kind](data, key) if is_due else data

    def end(self) -> None:
        self.bucket.fault = self.bucket.after = None


class Troubled:
    """The work of a store whose object store fails somewhere: errors are noted, and the work continues."""

    def __init__(self, root: Path, trouble: Callable[[Bucket], Trouble], layout: str) -> None:
        self.root = root
        self.story = Story()
        self.refused: list[str] = []
        self.bucket = Bucket()
        self.tier = BucketTier(self.bucket, layout)
        with open_tiered(str(root / "disk"), self.tier) as store:
            driver = Driver(store, self.story.told)
            driver.create("kept")
            driver.create("gone")
            self.trouble = trouble(self.bucket)
            driver.write("kept")
            driver.append("gone", 4)
            self.do(driver.copy)
            retain_locally(store, "kept")
            retain_locally(store, "gone")
            self.read(store, "kept")
            self.do(lambda: self.restore("restored"))
            driver.append("kept", 4)
            self.do(driver.copy)
            self.expire(driver)
            self.do(lambda: driver.delete("gone"))
            self.do(driver.copy)
            self.do(lambda: tiering.orphans(store.remote_log_manager.storage, store.remote_log_manager.metadata))
            self.read(store, "kept")
            self.trouble.end()
            settle(store)
            self.story.judge(store)
            check_agrees(store)
        with open_tiered(str(root / "disk"), self.tier) as store:
            self.story.judge(store)
            settle(store)
            retain_locally(store, "kept")
            self.story.judge(store)
            check_agrees(store)

    def do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkalogError as error:
            self.refused.append(str(error))

    def read(self, store: Store, topic: str) -> None:
        """All of it or an error, and never anything else."""
        try:
            found = values_of(store, topic)
        except KafkalogError as error:
            self.refused.append(str(error))
        else:
            self.story.judge_values(topic, found)

    def expire(self, driver: Driver) -> None:
        self.story.told("expire", ("kept", self.story.done["kept"][:13]))
        self.do(lambda: driver.store.alter_topic("kept", {"retention.bytes": "1800"}))
        self.do(driver.copy)

    def restore(self, name: str) -> None:
        place = self.root / name
        tiering.restore(self.tier.read_only_files(), str(place), [TopicPartition("gone", 0)])


def run_with(trouble: Callable[[Bucket], Trouble], layout: str, caplog: pytest.LogCaptureFixture) -> Troubled:
    caplog.clear()
    with harness.fast_dir() as root:
        return Troubled(root, trouble, layout)


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
@pytest.mark.parametrize("kind", FAULTS)
def test_each_request_may_fail(kind: str, layout: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkalog.remote")
    whole = run_with(lambda bucket: Trouble(bucket, kind, 1 << 30), layout, caplog)
    assert not whole.refused
    total = whole.trouble.count
    chosen, hits = sampled(range(total), REQUESTS), 0
    for at in chosen:
        for sticky in (False, True) if LONG else (at % 2 == 0,):
            try:
                run = run_with(lambda bucket: Trouble(bucket, kind, at, sticky=sticky), layout, caplog)  # noqa: B023
                said = "\n".join([*run.refused, *caplog.messages])
                keys = run.trouble.keys
                hits += bool(keys)  # read-ahead differs from run to run
                if kind in ("connection", "time", "permission") and keys and not run.trouble.is_hint:
                    # The objects of a segment are uploaded concurrently: the error names the first one that is refused.
                    assert any(key.removeprefix("tier/") in said for key in keys), (keys[:5], said)
            except BaseException as error:
                error.add_note(f"{kind} at request {at} of {total}, sticky: {sticky}, {layout}")
                raise
    assert hits
    print(f"{kind}, {layout}: {len(chosen)} of {total} requests, {hits} runs")


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_answers_are_lost(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    """Uploads and deletions are done, but their answers are lost."""
    whole = run_with(lambda bucket: Trouble(bucket, "connection", 1 << 30, after=True), layout, caplog)
    total = whole.trouble.count
    chosen = sampled(range(total), REQUESTS)
    for at in chosen:
        run_with(lambda bucket: Trouble(bucket, "connection", at, after=True), layout, caplog)  # noqa: B023
    print(f"{layout}: {len(chosen)} of {total} answers")
