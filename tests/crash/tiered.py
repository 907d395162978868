"""A store with a remote tier that crashes or fails: its objects, a driver, its promises, and the oracle.

`Bucket` is an object store in memory, as fsspec shows one: each request takes effect whole or not at all, is told to a
recording, and can be made to fail.  `Driver` works on a store as a service does (appends, transactions, copy passes,
retention in both tiers, a topic's deletion) and marks in the recording what it promised.  `Story` reads the marks up to
a crash and judges what a restart shows:

- every acknowledged record is read from one tier or the other, once and in order, unless remote retention had begun to
  delete it or its topic was being deleted.  Aborted and unwritten records are never read;
- after a pass (`settle`) each object belongs to a segment that the metadata says was copied, and each such segment has
  all of its objects.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import kafkalog
from kafkalog.engine.files import OS_FILES, Files, ManualClock
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.objects import Objects, Retries
from kafkalog.engine.remote.remote_log_manager import RemoteLogManagerConfig
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED
from kafkalog.engine.remote.storage import RemoteStorageManager
from kafkalog.remote import RemoteStorage
from kafkalog.store import Store
from kafkalog.toolbox import tiering
from tests.disk_model import Op
from tests.file_doubles import RecordingFiles, UnsyncedFiles

NOW_MS = 1_700_000_000_000
URL = "test://tier"
BUCKET = "bucket"  # the label of a mark: an object was put, or removed
ATTEMPT, DONE, ABORTED, EXPIRE, DELETE, DELETED = "attempt", "done", "aborted", "expire", "delete", "deleted"
SETTINGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "700",
    "segment.index.bytes": "480",
    "index.interval.bytes": "100",
    "local.retention.bytes": "1",
    "local.retention.ms": "-1",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "file.delete.delay.ms": "0",
}


# --- an object store in memory --------------------------------------------------------------------------------


class Bucket:
    """The part of an fsspec file system that `Objects` uses.  `fault(kind, key, data)` is asked at every request: it
    raises, or answers what is read instead."""

    protocol = "test"
    root_marker = ""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.tell: Callable[[str, object], None] = lambda label, value: None
        self.fault: Callable[[str, str, bytes], bytes] | None = None
        self.after: Callable[[str, str], None] | None = None  # asked once a request has taken effect
        self.requests: list[tuple[str, str]] = []

    def _request(self, kind: str, key: str, data: bytes = b"") -> bytes:
        self.requests.append((kind, key))
        return data if self.fault is None else self.fault(kind, key, data)

    def _set(self, key: str, data: bytes | None) -> None:
        if data is None:
            del self.objects[key]
        else:
            self.objects[key] = data
        self.tell(BUCKET, (key, data))
        if self.after is not None:
            self.after("rm" if data is None else "put", key)

    def open(self, path: str, mode: str, **options: Any) -> _Upload:
        assert mode == "wb"
        return _Upload(self, path)

    def put_file(self, source: str, path: str, **options: Any) -> None:
        with open(source, "rb") as file:
            data = file.read()
        self.commit(path, data)

    def commit(self, path: str, data: bytes) -> None:
        self._set(path, self._request("put", path, data))

    def rm_file(self, path: str) -> None:
        self._request("rm", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        self._set(path, None)

    def info(self, path: str) -> dict[str, Any]:
        self._request("info", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file", "mtime": NOW_MS / 1000}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path not in self.objects:
            self._request("get", path)
            raise FileNotFoundError(path)
        return self._request("get", path, self.objects[path][start:end])

    def ls(self, folder: str, *, detail: bool) -> list[dict[str, Any]]:
        self._request("ls", folder)
        prefix = folder.rstrip("/") + "/"
        found: dict[str, dict[str, Any]] = {}
        for key, data in self.objects.items():
            if key.startswith(prefix):
                name, _, below = key[len(prefix) :].partition("/")
                kind = "directory" if below else "file"
                found[name] = {"name": prefix + name, "size": 0 if below else len(data), "type": kind}
        if not found:
            raise FileNotFoundError(folder)
        return list(found.values())


class _Upload:
    """One that becomes an object when it is closed."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self._bucket, self._path, self._parts = bucket, path, bytearray()
        self.closed = False

    def write(self, part: bytes) -> None:
        self._parts += part

    def close(self) -> None:
        if not self.closed:
            self._bucket.commit(self._path, bytes(self._parts))
            self.closed = True

    def discard(self) -> None:
        self._parts.clear()


class BucketTier(RemoteStorage):
    """A tier whose objects lie in a `Bucket`."""

    def __init__(self, bucket: Bucket, layout: str = "local-tiered", attempts: int = 1) -> None:
        super().__init__(URL, layout=layout, attempts=attempts)
        self.bucket = bucket

    def manager(
        self, *, must_exist: bool = False, may_have_others: bool = False, files: Files = OS_FILES
    ) -> RemoteStorageManager:
        retries = Retries(self._attempts, first_pause_s=0.0001, longest_pause_s=0.001)
        objects = Objects(self.bucket, "tier", url=URL, retries=retries)
        if self.layout == "aiven":
            return AivenTieredStorage(objects, chunk_bytes=256, files=files)
        return LocalTieredStorage(objects)


class FolderTier(RemoteStorage):
    """A tier in a directory, whose files are changed through `files`."""

    def __init__(self, place: str, files: Files, layout: str = "local-tiered") -> None:
        super().__init__(place, layout=layout)
        self.files = files

    def manager(
        self, *, must_exist: bool = False, may_have_others: bool = False, files: Files = OS_FILES
    ) -> RemoteStorageManager:
        return super().manager(must_exist=must_exist, may_have_others=may_have_others, files=self.files)


def bucket_at(recording: RecordingFiles, op_count: int) -> Bucket:
    """The objects as they were after so many steps."""
    return Bucket(objects_after(recording.ops[:op_count]))


def objects_after(ops: Iterable[Op], objects: dict[str, bytes] | None = None) -> dict[str, bytes]:
    found = dict(objects or {})
    for op in ops:
        if op.kind == "mark" and op.path == BUCKET:
            key, data = op.value  # type: ignore[misc]
            if data is None:
                found.pop(key, None)
            else:
                found[key] = data
    return found


# --- the store ------------------------------------------------------------------------------------------------


def open_tiered(place: str | Sequence[str], tier: RemoteStorage, files: Files | None = None, **options: Any) -> Store:
    given = {"clock": ManualClock(NOW_MS), "maintenance": False, "durability": "fsync", **options}
    return kafkalog.open(
        place, remote=tier, tiering=RemoteLogManagerConfig(copier_threads=1), files=files or UnsyncedFiles(), **given
    )


def die(store: Store) -> None:
    """As a crash: closes everything, writes nothing."""
    store._home.abandon()  # type: ignore[union-attr]


def values_of(store: Store, topic: str) -> list[int]:
    """The records that a reader of committed records sees, as the numbers in their values."""
    partition = store.topic(topic).partition(0)
    return [int(each.value.split(b".")[0]) for each in partition.records(isolation="read_committed")]


def retain_locally(store: Store, topic: str) -> int:
    return sum(log.delete_old_segments() for log in store.manager.logs_by_topic(topic))


class Driver:
    """Does the work of a service; marks every promise."""

    def __init__(self, store: Store, mark: Callable[[str, object], None]) -> None:
        self.store = store
        self.mark = mark
        self.number = 0

    def _next(self, count: int) -> list[int]:
        self.number += count
        return list(range(self.number - count, self.number))

    def create(self, topic: str) -> None:
        self.store.create_topic(topic, config=SETTINGS)

    def append(self, topic: str, batches: int, count: int = 2) -> None:
        for _ in range(batches):
            numbers = self._next(count)
            self.mark(ATTEMPT, (topic, numbers))
            self.store.topic(topic).append_many([_value(each) for each in numbers], partition=0)
            self.mark(DONE, (topic, numbers))

    def commit(self, topic: str, count: int = 3) -> None:
        numbers = self._next(count)
        self.mark(ATTEMPT, (topic, numbers))
        with self.store.transaction("tx") as txn:
            for each in numbers:
                txn.append(topic, _value(each))
        self.mark(DONE, (topic, numbers))

    def abort(self, topic: str, count: int = 3) -> None:
        numbers = self._next(count)
        self.mark(ABORTED, (topic, numbers))
        with contextlib.suppress(ZeroDivisionError), self.store.transaction("tx") as txn:
            for each in numbers:
                txn.append(topic, _value(each))
            raise ZeroDivisionError

    def write(self, topic: str, batches: int = 4) -> None:
        self.append(topic, batches)
        self.abort(topic)
        self.commit(topic)
        self.append(topic, batches)

    def copy(self) -> int:
        return self.store.remote_log_manager.run_once()

    def expire(self, topic: str, keep_bytes: int) -> None:
        """Retention in the remote tier: the mark says which numbers it may take, once that is known."""
        may_go: list[int] = []
        self.mark(EXPIRE, (topic, may_go))
        before = values_of(self.store, topic)
        may_go += before  # until it is known
        self.store.alter_topic(topic, {"retention.bytes": str(keep_bytes)})
        self.copy()
        left = values_of(self.store, topic)
        may_go[:] = [each for each in before if each not in left]
        self.store.alter_topic(topic, {"retention.bytes": "-1"})  # otherwise it would continue with each append

    def move(self, topic: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """To the next directory; `meanwhile` happens after each piece but the last ones."""
        manager, partition = self.store.manager, TopicPartition(topic, 0)
        log = manager.get_log(partition)
        assert log is not None
        places = manager.live_log_dirs
        manager.move(partition, places[places.index(log.parent_dir) - 1], lambda _: meanwhile())

    def leave(self, topic: str) -> None:
        """The topic leaves the tier, with what the tier alone has."""
        partition = self.store.topic(topic).partition(0)
        local = partition.engine.local_log_start_offset
        self.mark(EXPIRE, (topic, [int(each.value.split(b".")[0]) for each in partition if each.offset < local]))
        self.store.alter_topic(topic, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})

    def delete(self, topic: str) -> None:
        self.mark(DELETE, topic)
        self.store.delete_topic(topic)
        self.mark(DELETED, topic)


def _value(number: int) -> bytes:
    return b"%d" % number + b"." * 90


# --- what may be there ----------------------------------------------------------------------------------------


@dataclass
class Story:
    """The promises about each topic made up to a point."""

    attempted: dict[str, list[int]] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    may_go: dict[str, set[int]] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, ops: Iterable[Op]) -> Story:
        made = cls()
        for op in ops:
            if op.kind == "mark":
                made.told(op.path, op.value)
        return made

    def told(self, label: str, value: Any) -> None:
        if label in (ATTEMPT, DONE):
            topic, numbers = value
            (self.attempted if label == ATTEMPT else self.done).setdefault(topic, []).extend(numbers)
        elif label == EXPIRE:
            topic, numbers = value
            self.may_go.setdefault(topic, set()).update(numbers)
        elif label == DELETE:
            self.deleting.add(value)
        elif label == DELETED:
            self.deleted.add(value)

    def judge(self, store: Store) -> None:
        for topic in {*self.attempted, *self.deleting}:
            if topic not in store:
                assert topic in self.deleting or not self.done.get(topic), f"{topic} is gone"
                continue
            assert topic not in self.deleted, f"{topic} is back"
            self.judge_values(topic, values_of(store, topic))
            log = store.manager.get_log(TopicPartition(topic, 0))
            assert log is not None
            assert log.log_start_offset <= log.local_log_start_offset <= log.log_end_offset

    def judge_values(self, topic: str, found: list[int]) -> None:
        assert found == sorted(set(found)), f"{topic}: not once, or not in order: {found}"
        unknown = set(found) - set(self.attempted.get(topic, ()))
        assert not unknown, f"{topic}: nobody wrote {sorted(unknown)}"
        lost = [each for each in self.done.get(topic, ()) if each not in set(found)]
        wrong = [each for each in lost if each not in self.may_go.get(topic, set())]
        assert not wrong, f"{topic}: lost {wrong}; found {found}"
        assert not lost or not found or max(lost) < found[0], f"{topic}: a hole: lost {lost}; found {found}"


def settle(store: Store) -> None:
    """Runs the passes that follow once nothing fails."""
    for _ in range(2):
        store.remote_log_manager.run_once()


def check_agrees(store: Store) -> None:
    """Each object is of a segment that was copied, each such segment is whole."""
    manager = store.remote_log_manager
    assert check_objects(manager.storage, manager.metadata) is None
    known = {each: manager.metadata.list_remote_log_segments(each) for each in manager.metadata.partitions()}
    logs = {(log.topic_id, log.topic_partition): log for log in store.manager.all_logs() if not log.is_future}
    for partition, segments in known.items():
        assert manager.metadata.deletion_of(partition) is None, partition
        log = logs.get((partition.topic_id, partition.topic_partition))
        assert log is not None or not segments, (partition, segments)
        if log is not None and segments:
            assert max(each.end_offset for each in segments) == log.highest_offset_in_remote_storage, partition


def check_objects(storage: Any, metadata: Any) -> None:
    found: dict[str, set[str]] = {}
    for full in storage.partitions():
        for each in storage.segments_of(full):
            assert not each.lacks, f"{full} {each.base_offset} {each.id}: {each.objects}"
            found.setdefault(str(full), set()).add(each.id)
    known: dict[str, set[str]] = {}
    for full in metadata.partitions():
        for each in metadata.list_remote_log_segments(full):
            assert each.state is COPY_SEGMENT_FINISHED, each
            known.setdefault(str(full), set()).add(each.remote_log_segment_id.id)
    assert found == known, f"objects {found}, metadata {known}"
    assert not tiering.orphans(storage, metadata)


def temporaries(folder: str) -> list[str]:
    return [name for _, _, files in os.walk(folder) for name in files if name.endswith(".kafkalog_upload")]


def judge_passes(store: Store, story: Story) -> None:
    """Checks; runs a pass and local retention, and checks after each."""
    story.judge(store)
    settle(store)
    story.judge(store)
    check_agrees(store)
    for topic in store.topics():
        retain_locally(store, topic)
    story.judge(store)


def check_start(
    place: str | Sequence[str],
    tier: RemoteStorage,
    story: Story,
    files: Files | None = None,
    *,
    leaves: bool = False,
    moves: bool = False,
) -> None:
    """Starts on what a crash left, and judges; has a pass made, and local retention, and judges; and again.  `leaves`:
    the store is let go of as by a crash, and no more.  `moves`: its partitions move before that."""
    store = open_tiered(place, tier, files)
    try:
        judge_passes(store, story)
        if leaves:
            return
        for topic in store.topics():
            if moves:
                Driver(store, story.told).move(topic)
                story.judge(store)
            store.topic(topic).append(b"999999", partition=0)
            assert values_of(store, topic)[-1] == 999999
    finally:
        die(store)
    with open_tiered(place, tier) as store:
        for topic in store.topics():
            assert values_of(store, topic)[-1] == 999999
        settle(store)
        check_agrees(store)


@contextlib.contextmanager
def opened(place: str | Sequence[str], tier: RemoteStorage, files: Files) -> Iterator[Store]:
    """A store that is closed if all went well."""
    store = open_tiered(place, tier, files)
    try:
        yield store
        store.close()
    finally:
        die(store)
