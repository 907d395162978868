"""The committer alone: killed by kill -9 at any point, repeated, and never in the directory twice."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files.usage import FileSystem
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
    NoSuchFileException,
)
from kafkalog.spark import committing, room, staging
from kafkalog.spark.committing import commit, look_at_topics
from kafkalog.spark.staging import StagedFile, Stager, WriteId, give_up
from kafkalog.spark.write_options import SinkOptions, parse_sink_options
from kafkalog.store import Store
from kafkalog.transaction import StoreTransaction
from tests.unit.cluster_kit import formatted

pa = pytest.importorskip("pyarrow")

QUERY = "0c9a5b1e-1111-2222-3333-444455556666"
TOPICS = ("a", "b")
ROWS = 2000


@pytest.fixture(params=["a file", "many files"])
def options(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SinkOptions:
    if request.param == "many files":
        monkeypatch.setattr(staging, "FILE_BYTES", 5000)
    with kafkalog.open(tmp_path / "data") as store:
        for topic in TOPICS:
            store.create_topic(topic, 3)
    return SinkOptions((str(tmp_path / "data"),), str(tmp_path / "data"), compression="lz4", batch_bytes=2048)


def rows_of(numbers: range) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": pa.array([TOPICS[number % 2] for number in numbers]),
            "key": pa.array([f"{number % 50}" for number in numbers]),
            "value": pa.array([b"%d" % number for number in numbers]),
        }
    )


def stage(options: SinkOptions, batch_id: int, *tasks: int) -> list[StagedFile]:
    return [file for task in tasks or (0,) for file in stage_task(options, batch_id, task)]


def stage_task(options: SinkOptions, batch_id: int, task: int) -> tuple[StagedFile, ...]:
    first = (2 * batch_id + task) * ROWS
    rows = rows_of(range(first, first + ROWS))
    with Stager(options, look_at_topics(options), WriteId(QUERY, batch_id), task) as stager:
        stager.add(rows)
        return stager.finish()


def found(options: SinkOptions) -> list[int]:
    with (
        kafkalog.open(options.paths[0], read_only=True) as store,
        store.reader(topics=TOPICS, isolation="read_committed") as reader,
    ):
        return sorted(int(record.value) for record in reader)


def test_a_micro_batch_is_committed_once(options: SinkOptions) -> None:
    for batch_id, again in ((0, False), (0, True), (1, False), (1, True)):
        before = found(options)
        commit(options, stage(options, batch_id, 0, 1), WriteId(QUERY, batch_id))
        assert (found(options) == before) == again
    assert found(options) == list(range(4 * ROWS))
    commit(options, stage(options, 0), WriteId("another", 0))
    assert len(found(options)) == 5 * ROWS


def test_an_earlier_micro_batch_is_of_another_time(options: SinkOptions) -> None:
    """Its checkpoint was restored, or an earlier driver is still running: its rows may differ from the first ones."""
    for batch_id in range(2):
        commit(options, stage(options, batch_id), WriteId(QUERY, batch_id))
    before = found(options)
    with pytest.raises(IllegalStateException, match=f"found micro-batch 1 of query {QUERY}"):
        commit(options, stage(options, 0, 1), WriteId(QUERY, 0))
    assert found(options) == before


def test_a_close_that_fails_behind_the_commit_is_no_failed_write(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who hears that nothing was written writes it again."""
    close = Store.close

    def full(store: Store) -> None:
        close(store)
        raise KafkaStorageException("No space left on device")

    staged = stage(options, 0)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "close", full)
        commit(options, staged, WriteId("batch"))
    assert "all rows are committed" in caplog.text
    assert found(options) == list(range(ROWS))


def test_a_task_that_is_at_work_when_its_write_is_given_up(options: SinkOptions) -> None:
    write = WriteId("a" * 32)
    rows = pa.record_batch({"topic": ["a"], "key": ["k"], "value": pa.array([b"v"])})
    with Stager(options, look_at_topics(options), write, 0) as early:
        early.add(rows)
        early.finish()
    with Stager(options, look_at_topics(options), write, 1) as late:
        late.add(rows)
        give_up(options.staging, write)
        with pytest.raises(IllegalStateException, match="was abandoned"):
            late.finish()
    left = [name for name in os.listdir(options.staging) if name.startswith(".kafkalog_staged")]
    assert left == [f"{write.file_prefix}given-up"]


def test_records_keep_their_order_and_their_bytes(options: SinkOptions) -> None:
    commit(options, stage(options, 0), WriteId(QUERY, 0))
    with kafkalog.open(options.paths[0], read_only=True) as store, store.reader(topics=["a"]) as reader:
        by_partition: dict[int, list[int]] = {}
        for record in reader:
            assert record.key == b"%d" % (int(record.value) % 50)
            by_partition.setdefault(record.partition, []).append(int(record.value))
    assert len(by_partition) == 3
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_what_is_staged_is_looked_at(options: SinkOptions, damage: str) -> None:
    commit(options, stage(options, 0), WriteId(QUERY, 0))
    staged = stage(options, 1, 0, 1)
    path = Path(staged[-1].path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(NoSuchFileException if damage == "gone" else CorruptRecordException):
        commit(options, staged, WriteId(QUERY, 1))
    assert found(options) == list(range(ROWS))
    commit(options, stage(options, 1, 0, 1), WriteId(QUERY, 1))
    assert found(options) == list(range(ROWS)) + list(range(2 * ROWS, 4 * ROWS))


def test_files_go_as_they_are_read(options: SinkOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a write needs its own size on the disk, and not twice that."""
    append, left = StoreTransaction.append_batches, []

    def counting(*given: Any) -> range:
        left.append(len(staged_files(options)))
        return append(*given)

    monkeypatch.setattr(StoreTransaction, "append_batches", counting)
    files = stage(options, 0, 0, 1)
    commit(options, files, WriteId(QUERY, 0))
    assert left == sorted(left, reverse=True)
    assert left[0] >= len(files) - 1
    assert left[-1] <= 1  # another thread removes it
    assert found(options) == list(range(2 * ROWS))


def test_batches_that_somebody_signed_are_refused(options: SinkOptions) -> None:
    staged = stage(options, 0)[0]
    data = Path(staged.path).read_bytes()
    with kafkalog.open(options.paths[0]) as store:
        with store.transaction("signer") as txn:
            assert len(txn.append_batches("a", data, 1)) == sum(run.record_count for run in staged.runs)
        [segment] = Path(options.paths[0], "a-1").glob("*.log")
        with store.transaction("again") as txn, pytest.raises(IllegalArgumentException, match="another producer"):
            txn.append_batches("a", segment.read_bytes(), 1)
        with store.transaction("again") as txn, pytest.raises(IllegalArgumentException, match="no batch"):
            txn.append_batches("a", b"", 1)


def staged_files(options: SinkOptions) -> set[str]:
    return {name for name in os.listdir(options.staging) if name.startswith(".kafkalog_staged")}


def test_a_disk_without_room_is_seen_before_anything_is_appended(
    options: SinkOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(options, 0, 0, 1)
    size = sum(run.size_bytes for each in staged for run in each.runs)
    largest = max(sum(run.size_bytes for run in each.runs) for each in staged)
    free: dict[str, int | None] = {}

    def about(path: str) -> FileSystem:
        return FileSystem(list(free).index(path), free[path])

    monkeypatch.setattr(room, "file_system", about)
    monkeypatch.setattr(room, "PARTITION_BYTES", 0)
    data = options.paths[0]
    free[data] = largest + size // 50 + room.SPARE_BYTES  # enough: each file goes as it is read
    commit(options, staged, WriteId(QUERY, 0))
    before = everything(options)
    assert before == list(range(2 * ROWS))

    elsewhere = replace(options, staging=str(tmp_path))  # another file system: nothing comes back where the logs are
    free[elsewhere.staging] = 0
    free[data] = size + room.SPARE_BYTES - 1
    staged = stage(options, 1, 0, 1)
    with pytest.raises(KafkaStorageException, match=rf"found {free[data]} bytes free, expected room for") as caught:
        commit(elsewhere, staged, WriteId(QUERY, 1))
    assert caught.value.errno == errno.ENOSPC
    assert not staged_files(options)
    assert everything(options) == before
    free[data] = None
    commit(options, stage(options, 1, 0, 1), WriteId(QUERY, 1))
    assert found(options) == everything(options) == list(range(4 * ROWS))


def everything(options: SinkOptions) -> list[int]:
    with kafkalog.open(options.paths[0], read_only=True) as store, store.reader(topics=TOPICS) as reader:
        return sorted(int(record.value) for record in reader)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("left out: this machine does not allow mounting a small tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)


def test_a_disk_that_fills_up_meanwhile_gets_the_staged_files_back(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, staging_folder = str(small_disk / "data"), str(tmp_path / "staged")
    with kafkalog.open(data) as store:
        for topic in TOPICS:
            store.create_topic(topic)
    options = SinkOptions((data,), staging_folder)
    monkeypatch.setattr(staging, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr(staging, "RUN_BYTES", 1 << 20)
    rows = pa.record_batch(
        {"topic": ["a", "b"] * 5000, "key": ["k"] * 10_000, "value": pa.array([b"%01000d" % n for n in range(10_000)])}
    )
    with Stager(options, look_at_topics(options), WriteId(QUERY), 0) as stager:
        stager.add(rows)
        staged = stager.finish()
    assert len(staged) > 3
    monkeypatch.setattr(committing, "check_room", lambda *given: None)  # another process uses the space after the check
    with pytest.raises(KafkaStorageException) as caught:
        commit(options, staged, WriteId(QUERY))
    assert not staged_files(options)
    assert found(options) == []
    left = re.search(r"at least (\d+) records that this write has appended to a-0, b-0 are aborted", str(caught.value))
    assert left is not None
    assert int(left[1]) > 0
    assert "isolation='read_committed'" in str(caught.value)
    assert int(left[1]) <= len(everything(options)) < 10_000


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("batch_id", [None, 0])
def test_of_two_attempts_of_a_task_one_is_committed(options: SinkOptions, batch_id: int | None, winner: int) -> None:
    """As with speculation: both stage side by side and finish, and a third is killed halfway; Spark hands the committer
    the message of one."""
    write = WriteId(QUERY, batch_id)
    topics = look_at_topics(options)
    attempts = [Stager(options, topics, write, 0) for _ in range(3)]
    for first in (0, ROWS // 2):
        for attempt in attempts:
            attempt.add(rows_of(range(first, first + ROWS // 2)))
    attempts[2]._encode_held()  # its file exists, unfinished
    staged = [attempt.finish() for attempt in attempts[:2]]
    with Stager(options, topics, write, 1) as other:
        other.add(rows_of(range(ROWS, 2 * ROWS)))
        beside = other.finish()
    finished = {os.path.basename(each.path) for each in (*staged[0], *staged[1], *beside)}
    assert len(finished) == len(staged[0]) + len(staged[1]) + len(beside)
    assert finished < staged_files(options)
    commit(options, [*staged[winner], *beside], write)
    assert found(options) == list(range(2 * ROWS))
    assert staged_files(options) == set()
    if batch_id is not None:  # the driver comes again, with the other one's message
        commit(options, [*staged[1 - winner], *beside], write)
        assert found(options) == list(range(2 * ROWS))


# Imports once, then forks a committer for each job that comes in: its id, and its end.
COMMITTERS = """
import os, pickle, sys
from kafkalog.spark import staging
from kafkalog.spark.committing import commit
while True:
    job = pickle.load(sys.stdin.buffer)
    child = os.fork()
    if not child:
        commit(*job)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_killed_while_it_commits(options: SinkOptions) -> None:
    """Twenty times at a random moment, and each time done again: by the same task's files, or new ones."""
    random_ = random.Random(5)
    ends = []
    with subprocess.Popen([sys.executable, "-c", COMMITTERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for batch_id in range(20):
            write = WriteId(QUERY, batch_id)
            staged = stage(options, batch_id, 0, 1)
            nursery.stdin.write(pickle.dumps((options, staged, write)))
            nursery.stdin.flush()
            committer = int(nursery.stdout.readline())
            time.sleep(random_.uniform(0, 0.12))
            with contextlib.suppress(ProcessLookupError):  # it was quicker
                os.kill(committer, signal.SIGKILL)
            ends.append(int(nursery.stdout.readline()))
            before, after = list(range(2 * batch_id * ROWS)), list(range(2 * (batch_id + 1) * ROWS))
            # Between two markers of a decision a reader sees some partitions before the others.
            assert set(before) <= set(found(options)) <= set(after)
            if random_.random() < 0.5:
                kafkalog.open(options.paths[0]).close()
                assert found(options) in (before, after)
            if not all(os.path.exists(each.path) for each in staged) or random_.random() < 0.5:
                staged = stage(options, batch_id, 0, 1)
            commit(options, staged, write)
            assert found(options) == after
        nursery.kill()
    assert -signal.SIGKILL in ends
    assert not [name for name in os.listdir(options.staging) if name.startswith(".kafkalog_staged")]


def test_a_brokers_directory_is_written_to_if_it_is_asked_for(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("a")
    formatted(tmp_path)
    given = {"path": str(tmp_path), "topic": "a"}
    with pytest.raises(IllegalArgumentException, match="option takeOver"):
        look_at_topics(parse_sink_options(given))
    asked = parse_sink_options({**given, "takeOver": "true"})
    assert look_at_topics(asked)["a"].partitions == 1
    with committing._opened(asked) as store:
        assert store.topics() == ["a"]
