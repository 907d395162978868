"""A full disk heals: a write is refused with DiskFull, reads continue, and when there is space the write works.

Every change that a store and a Partition make of their files meets ENOSPC or EDQUOT once, then there is space again.
Kafka's LogManager goes offline.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import UnsyncedError
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import DiskFull, KafkaStorageException
from kafkalog.store import Store
from tests.conformance.kafkas_manager import KafkasManager
from tests.disk_model import Op
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles, _TwinFile
from tests.sampling import LONG
from tests.unit.log_kit import batch

SMALL = {"internal.segment.bytes": "300", "segment.index.bytes": "160", "file.delete.delay.ms": "0"}
SAMPLE = 1 << 20 if LONG else 12  # places of each case
Values = dict[str, list[bytes]]


class Life:
    """Steps that may meet a full disk, each compared with what was asked for: `values` is what readers find, by
    topic."""

    def __init__(self, root: Path, files: FaultyFiles) -> None:
        self.root = root
        self.files = files
        self.at = 1 << 60  # from which change on there is no space, once it is open
        self.values: Values = {}
        self.refused: list[str] = []

    def found(self, name: str) -> list[bytes]:
        raise NotImplementedError

    def live(self) -> None:
        raise NotImplementedError

    def reopen(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self.files.count = 0
        if self.files.fault is not None:
            self.files.fault.at = self.at

    def check(self) -> None:
        assert {name: self.found(name) for name in self.values} == self.values

    def do(self, step: Callable[[], object], after: Values | None = None) -> None:
        """Does it, and once more if there was no space; `after`: the records that readers find from then on."""
        before = dict(self.values)
        error = self.refusal(step)
        if error is not None:
            assert error.log_dir == str(self.root)
            assert str(self.root) in str(error)
            assert pickle.loads(pickle.dumps(error)).log_dir == error.log_dir
            for name, values in before.items():  # reads continue while it is full
                found, wanted = self.found(name), (after or before)[name]
                assert found in (values, wanted) or (found[: len(wanted)], values[: len(found)]) == (wanted, found)
            self.files.fault = None
            assert self.refusal(step) is None
        self.values.update(after or {})
        self.check()

    def refusal(self, step: Callable[[], object]) -> DiskFull | None:
        try:
            step()
        except DiskFull as error:
            self.refused.append(str(error))
            return error
        return None


class StoreLife(Life):
    store: Store

    def found(self, name: str) -> list[bytes]:
        with self.store.reader(topics=[name], start="earliest", isolation="read_committed") as reader:
            return [bytes(record.value or b"") for record in reader.poll()]

    def add(self, value: bytes, step: Callable[[], object]) -> None:
        self.do(step, {"t": [*self.values["t"], value]})

    def append(self, number: int) -> None:
        value = b"%03d" % number + b"x" * 90
        self.add(value, lambda: self.store.topic("t").append(value))

    def live(self) -> None:
        self.store = kafkalog.open(self.root, files=self.files, maintenance=False)
        with contextlib.closing(self.store):
            self.begin()
            self.do(self.create_topic)
            self.values["t"] = []
            for number in range(5):
                self.append(number)
            with self.store.producer(linger_ms=0) as producer:
                self.add(b"sent", lambda: producer.send("t", b"sent").result())
            transaction = self.store.transaction("job")
            self.do(transaction.begin)
            self.do(lambda: transaction.append("t", b"in it"))
            self.add(b"in it", transaction.commit)
            self.do(transaction.begin)
            self.do(lambda: transaction.append("t", b"not in it"))
            self.do(transaction.abort)
            with self.store.reader("cursor", topics=["t"], start="earliest", isolation="read_committed") as reader:
                assert len(reader.poll()) == len(self.values["t"])
                self.do(reader.commit)
            assert len(self.store.committed("cursor")) == 1
            self.do(lambda: self.store.alter_topic("t", {"retention.ms": "1000000000"}))
            assert self.store.describe_topic("t").overrides["retention.ms"] == "1000000000"
            self.do(lambda: self.store.topic("t").delete_records(3, 0), {"t": self.values["t"][3:]})
            log = self.store.manager.get_log("t-0")
            assert log is not None
            self.do(log.roll)
            self.do(self.store.manager.cleanup_logs)
            self.do(self.store.manager.checkpoint_recovery_points)
            self.append(6)
            self.do(lambda: self.store.create_topic("u", 2))
            self.do(lambda: self.store.add_partitions("u", 3))
            assert self.store.describe_topic("u").partitions == 3
            self.do(lambda: self.store.delete_topic("u"))
            self.append(7)
            assert self.store.manager.failure_channel.offline_log_dirs == []
            self.files.fault = None

    def create_topic(self) -> None:
        assert "t" not in self.store.topics()
        self.store.create_topic("t", config={**SMALL, "retention.ms": "-1"})

    def reopen(self) -> None:
        with contextlib.closing(kafkalog.open(self.root, maintenance=False)) as self.store:
            self.check()
            assert [topic for topic in self.store.topics() if not topic.startswith("__")] == ["t"]
            self.append(8)


class LogLife(Life):
    def found(self, name: str) -> list[bytes]:
        return [bytes(record.value or b"") for record in self.log.records(isolation="read_committed")]

    def append(self, value: bytes, key: bytes) -> None:
        self.do(lambda: self.log.append(value, key=key), {"t": [*self.values["t"], value]})

    def live(self) -> None:
        config = {**SMALL, "cleanup.policy": "compact,delete", "retention.ms": "-1"}
        self.log = kafkalog.open_log(self.root, "t-0", config=config, files=self.files)
        with contextlib.closing(self.log):
            self.begin()
            self.values["t"] = []
            for number in range(6):
                self.append(b"%d" % number + b"y" * 80, b"key")
            self.do(self.log.flush)
            before = self.values["t"]
            if self.refusal(lambda: self.log.compact(roll=True)) is not None:
                assert self.found("t")[-1:] == before[-1:]
                left = [name for name in os.listdir(self.root / "t-0") if name.endswith(".cleaned")]
                assert not left or self.files.failed[0].kind == "rename"  # the exchange continues then
                self.files.fault = None
                self.log.compact(roll=True)
            self.values["t"] = before[-1:]
            self.check()
            self.append(b"new", b"other")
            for number in range(4):
                self.append(b"%d" % number + b"z" * 80, b"%d" % number)
            end = self.log.end_offset
            self.do(lambda: self.log.truncate(end - 3), {"t": self.values["t"][:-3]})
            self.append(b"last", b"fifth")
            self.do(lambda: self.log.delete_records(end - 3), {"t": self.values["t"][-1:]})
            self.do(self.log.delete_old_segments)
            self.append(b"end", b"sixth")
            self.files.fault = None

    def reopen(self) -> None:
        with contextlib.closing(kafkalog.open_log(self.root, "t-0", config=SMALL)) as self.log:
            self.check()
            self.append(b"after", b"key")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [StoreLife, LogLife])
@pytest.mark.parametrize(
    ("error", "kinds"),
    [(errno.ENOSPC, None), (errno.EDQUOT, None), (errno.ENOSPC, {"rename"}), (errno.ENOSPC, {"create", "mkdir"})],
    ids=["space", "quota", "rename", "inodes"],
)
def test_a_full_disk_refuses_a_write_and_heals(
    kind: type[Life], error: int, kinds: set[str] | None, tmp_path: Path
) -> None:
    counting = FaultyFiles(UnsyncedFiles(), Fault(1 << 60, error, kinds=kinds))
    kind(tmp_path / "whole", counting).live()
    refused = 0
    for at in range(0, counting.count, max(1, counting.count // SAMPLE)):
        files = FaultyFiles(UnsyncedFiles(), Fault(1 << 60, error, kinds=kinds))
        life = kind(tmp_path / str(at), files)
        life.at = at
        try:
            life.live()
            refused += len(life.refused)
            life.reopen()
        except BaseException as failure:
            failure.add_note(f"no space at {at} of {counting.count}, {files.failed[:2]}, refused {life.refused}")
            raise
    assert refused


# --- what is none, and whose way it is not ------------------------------------------------------------------------


def test_a_sync_that_finds_no_space_is_a_failed_disk(tmp_path: Path) -> None:
    """Earlier writes may be lost, and no later sync would report it."""
    files = FaultyFiles(UnsyncedFiles())
    with contextlib.suppress(KafkaStorageException), kafkalog.open_log(tmp_path, "t-0", files=files) as log:
        log.append(b"1")
        files.fault = Fault(files.count, errno.ENOSPC, kinds={"sync"}, sticky=False)
        with pytest.raises(KafkaStorageException) as caught:
            log.flush()
        assert isinstance(caught.value.__cause__, UnsyncedError)
        assert not isinstance(caught.value, DiskFull)
        with pytest.raises(KafkaStorageException, match="offline"):
            log.append(b"2")


def test_half_an_append_that_cannot_be_cut_off_is_a_failed_disk(tmp_path: Path) -> None:
    class Stubborn(FaultyFiles):
        def change(self, op: Op, do: Callable[[], object], file: _TwinFile | None = None) -> None:
            if op.kind == "truncate" and self.failed:
                raise OSError(errno.EIO, os.strerror(errno.EIO), op.path)
            super().change(op, do, file)

    files = Stubborn(UnsyncedFiles())
    with contextlib.suppress(KafkaStorageException), kafkalog.open_log(tmp_path, "t-0", files=files) as log:
        log.append(b"1")
        files.fault = Fault(files.count, errno.ENOSPC, kinds={"write"}, sticky=False)
        with pytest.raises(KafkaStorageException, match="cut off") as caught:
            log.append(b"2")
        assert not isinstance(caught.value, DiskFull)
        with pytest.raises(KafkaStorageException, match="offline"):
            log.append(b"3")
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert [record.value for record in log.records()] == [b"1"]


@pytest.mark.parametrize("kind", [KafkasManager, LogManager])
def test_kafkas_own_class_goes_offline(kind: type[LogManager], tmp_path: Path) -> None:
    files = FaultyFiles(UnsyncedFiles())
    with contextlib.suppress(KafkaStorageException), kind([tmp_path], files=files) as manager:
        log = manager.get_or_create_log("t-0")
        log.append_as_leader(batch(), 0)
        files.fault = Fault(files.count, errno.ENOSPC, kinds={"write"}, sticky=False)
        with pytest.raises(KafkaStorageException) as caught:
            log.append_as_leader(batch(), 0)
        assert isinstance(caught.value, DiskFull) is (kind is LogManager)
        assert manager.failure_channel.has_offline_log_dir(str(tmp_path)) is (kind is KafkasManager)
        if kind is LogManager:
            assert log.append_as_leader(batch(), 0).first_offset == 2


@pytest.mark.parametrize("name", ["recovery-point-offset", "replication-offset", "log-start-offset"])
def test_no_marker_stands_over_a_checkpoint_that_found_no_space(tmp_path: Path, name: str) -> None:
    """It says that the checkpoints are right; without it the next start looks for itself."""
    marker = tmp_path / ".kafka_cleanshutdown"
    files = FaultyFiles(UnsyncedFiles())
    store = kafkalog.open(tmp_path, files=files, maintenance=False)
    topic = store.create_topic("t")
    for value in (b"1", b"2"):
        topic.append(value)
    topic.delete_records(1, 0)
    files.fault = Fault(0, errno.ENOSPC, paths=lambda path: os.path.basename(path).startswith(name))
    with contextlib.suppress(DiskFull):
        store.close()
    assert files.failed
    assert not marker.exists()
    with kafkalog.open(tmp_path) as store, store.reader(topics=["t"], start="earliest") as reader:
        assert [record.value for record in reader.poll()] == [b"2"]
    assert marker.exists()


def test_a_topic_goes_to_the_directory_that_has_space(tmp_path: Path) -> None:
    files = FaultyFiles(UnsyncedFiles())
    disks = [str(tmp_path / "full"), str(tmp_path / "free")]
    with kafkalog.open(disks, files=files, maintenance=False) as store:
        files.fault = Fault(0, errno.ENOSPC, paths=lambda path: path.startswith(disks[0]))
        store.create_topic("t", 2)
        assert {log.parent_dir for log in store.manager.logs_by_topic("t")} == {disks[1]}
        store.topic("t").append(b"value")
        files.fault = None
        store.alter_topic("t", {"retention.ms": "5"})
    settings = [(tmp_path / disk / ".kafkalog_topics").read_bytes() for disk in disks]
    assert settings[0] == settings[1]
