"""A full disk, or no free descriptor, in the middle of a change of topics or of a move.

A refused step has not happened, a finished one stays, and nothing of either comes back later.  `FaultyFiles` refuse one
step; then there is space, or a descriptor, again.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.snapshots import write_snapshot
from kafkalog.engine.host.leftovers import Leftovers
from kafkalog.errors import DiskFull, KafkaStorageException, TooManyOpenFilesException
from kafkalog.store import Store
from kafkalog.toolbox.reindex import check_indexes, rewrite
from tests.file_doubles import Failed, Fault, FaultyFiles, UnsyncedFiles

SHORTAGES = (DiskFull, TooManyOpenFilesException)


class NoDescriptor(FaultyFiles):
    """As FaultyFiles.  A directory's sync needs a descriptor, too: then the error is a plain one of the system."""

    def _refuse(self, kind: str, path: str) -> None:
        if kind == "sync_dir" and self.fault is not None and self.fault.error == errno.EMFILE:
            self.failed.append(Failed(kind, path))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        super()._refuse(kind, path)


def once(files: FaultyFiles, error: int, kind: str, paths: Callable[[str], bool]) -> None:
    """The next such step is refused, one time."""
    files.count = 0
    files.fault = Fault(0, error, sticky=False, kinds={kind}, paths=paths)


def values(store: Store, topic: str) -> list[bytes]:
    with store.reader(topics=[topic], start="earliest") as reader:
        return [bytes(record.value or b"") for record in reader.poll(10_000)]


# --- small files ----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_synced_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory's descriptor is opened first: a refusal for lack of one has written nothing."""
    path, opened = str(tmp_path / "file"), os.open
    OS_FILES.write_atomic(path, b"before")

    def refuse(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        return opened(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            OS_FILES.write_atomic(path, b"after")
    assert os.listdir(tmp_path) == ["file"]
    assert Path(path).read_bytes() == b"before"


def test_a_view_sees_a_line_that_was_added(tmp_path: Path) -> None:
    """A change of settings does not change the directory's time once the file is large."""
    with kafkalog.open(tmp_path, maintenance=False) as store:
        for number in range(150):
            store.create_topic(f"t{number}", config={"retention.ms": "1000000", "segment.ms": "1000000"})
        then = time.time() - 3600
        os.utime(tmp_path, (then, then))  # it has not changed lately
        with kafkalog.open(tmp_path, read_only=True) as view:
            assert view.describe_topic("t5").overrides["retention.ms"] == "1000000"
            store.alter_topic("t5", {"retention.ms": "777"})
            assert os.stat(tmp_path).st_mtime == pytest.approx(then)  # else this test is about nothing
            assert view.describe_topic("t5").overrides["retention.ms"] == "777"


# --- topics ---------------------------------------------------------------------------------------------------------


def test_what_was_taken_back_at_last_is_not_taken_back_again(tmp_path: Path) -> None:
    """Its undoing succeeds at the last try, in the next creation of that name: that topic stays."""

    class Thrice(FaultyFiles):
        left = 0

        def _is_due(self, kind: str, path: str) -> bool:
            if self.left and kind == "create":
                self.left -= 1
                return True
            return super()._is_due(kind, path)

    files = Thrice(UnsyncedFiles())
    with kafkalog.open(tmp_path, files=files, maintenance=False) as store:
        store.create_topic("other")
        files.fault = Fault(files.count, errno.ENOSPC, paths=lambda path: "/t-0" in path or bool(files.failed))
        with pytest.raises(DiskFull):
            store.create_topic("t")
        files.fault, files.left = Fault(1 << 60, errno.ENOSPC), 3
        topic = store.create_topic("t")
        assert files.left == 0
        files.fault = None
        topic.append(b"value")
        store.create_topic("unrelated")
        assert values(store, "t") == [b"value"]
    with kafkalog.open(tmp_path) as store:
        assert store.topics() == ["other", "t", "unrelated"]
        assert values(store, "t") == [b"value"]


@pytest.mark.parametrize("change", ["create", "add"])
@pytest.mark.parametrize("ends", ["closed", "again"])
def test_a_folder_that_cannot_be_removed_is_no_topic(tmp_path: Path, change: str, ends: str) -> None:
    """A log cannot be opened, and the listing for the removal of its directory finds no descriptor either."""
    files = NoDescriptor(UnsyncedFiles())
    with kafkalog.open(tmp_path, files=files, maintenance=False) as store:
        store.create_topic("c")
        folder = str(tmp_path / ("t-0" if change == "create" else "c-1"))
        files.count = 0
        files.fault = Fault(0, errno.EMFILE, paths=lambda path: path.startswith(folder) and os.path.isdir(folder))
        doing = (store.create_topic, "t") if change == "create" else (store.add_partitions, "c")
        with pytest.raises(TooManyOpenFilesException):
            doing[0](doing[1], 3)
        assert files.failed
        assert os.path.isdir(folder)  # for now
        files.fault = None
        assert store.manager.failure_channel.offline_log_dirs == []
        if ends == "again":
            store.create_topic("t", 2)
            assert store.add_partitions("c", 2).partitions == 2
    made = {"c": 2, "t": 2} if ends == "again" else {"c": 1}
    with kafkalog.open(tmp_path) as store:
        assert {name: store.describe_topic(name).partitions for name in store.topics()} == made


def test_a_passing_want_of_descriptors_takes_no_directory_offline(tmp_path: Path) -> None:
    """As many as a creation needs, and fewer, are free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        refused = 0
        for spare in range(8):
            held: list[int] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                for _ in range(spare):
                    os.close(held.pop())
            try:
                store.create_topic(f"u{spare}", 2)
            except TooManyOpenFilesException:
                refused += 1
            finally:
                for each in held:
                    os.close(each)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert topic.append(b"%d" % spare).offset == spare
        assert 0 < refused < 8
        assert store.manager.failure_channel.offline_log_dirs == []
        assert len(store.topics()) == 1 + 8 - refused
    with kafkalog.open(tmp_path) as store:
        assert len(store.topics()) == 1 + 8 - refused


# --- moves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE], ids=["space", "descriptor"])
@pytest.mark.parametrize("then", ["back", "deleted", "made again", "closed"])
def test_a_move_whose_last_step_is_refused_has_been_made(tmp_path: Path, error: int, then: str) -> None:
    disks = [str(tmp_path / disk) for disk in ("a", "b")]
    files = NoDescriptor(UnsyncedFiles())
    with kafkalog.open(disks, files=files, maintenance=False) as store:
        topic = store.create_topic("t")
        expected = [b"%d" % number for number in range(10)]
        topic.append_many(expected)
        log = store.manager.get_log("t-0")
        assert log is not None
        here = log.parent_dir
        there = next(each for each in disks if each != here)

        def is_last(path: str) -> bool:
            current = store.manager.get_log("t-0")
            assert current is not None
            return path == (here if error == errno.EMFILE else f"{here}/t-0") and current.parent_dir == there

        once(files, error, "sync_dir" if error == errno.EMFILE else "rename", is_last)
        assert store.manager.move("t-0", there).parent_dir == there
        assert len(files.failed) == 1
        files.fault = None
        topic.append(b"after")
        expected.append(b"after")
        if then == "back":
            assert store.manager.move("t-0", here).parent_dir == here
            topic.append(b"back")
            expected.append(b"back")
        elif then != "closed":
            store.delete_topic("t")
            expected = []
            if then == "made again":
                store.create_topic("t").append(b"new")
                expected = [b"new"]
        assert store.manager.failure_channel.offline_log_dirs == []
    with kafkalog.open(disks) as store:
        assert store.topics() == ([] if then == "deleted" else ["t"])
        if then != "deleted":
            assert values(store, "t") == expected


@pytest.mark.parametrize("ends", ["killed", "closed"])
def test_a_move_that_finds_no_space_says_so(tmp_path: Path, ends: str) -> None:
    disks = [str(tmp_path / disk) for disk in ("a", "b")]
    files = FaultyFiles(UnsyncedFiles())
    store = kafkalog.open(disks, files=files, maintenance=False)
    store.create_topic("t").append(b"value")
    log = store.manager.get_log("t-0")
    assert log is not None
    here, there = log.parent_dir, next(each for each in disks if each != log.parent_dir)
    once(files, errno.ENOSPC, "rename", lambda path: "log-start-offset-checkpoint" in path and path.startswith(there))
    with pytest.raises(SHORTAGES):
        store.manager.move("t-0", there)
    files.fault = None
    assert store.manager.get_log("t-0").parent_dir == here  # type: ignore[union-attr]
    assert values(store, "t") == [b"value"]
    if ends == "closed":
        store.close()
    else:
        store._home.abandon()
    with kafkalog.open(disks) as store:
        assert values(store, "t") == [b"value"]


def test_what_lies_on_a_failed_disk_holds_up_nothing() -> None:
    """Its directory is left to the next start: the topic, the background and the shutdown continue."""
    left, tried = Leftovers(), []

    def tidy() -> None:
        tried.append(1)
        raise (DiskFull if len(tried) == 1 else KafkaStorageException)("no")

    left.add(TopicPartition("t", 0), tidy)
    left.settle("other")
    left.settle_if_possible()
    assert (len(tried), bool(left)) == (1, True)
    left.settle("t")
    assert (len(tried), bool(left)) == (2, False)


# --- tools ----------------------------------------------------------------------------------------------------------


def test_indexes_are_all_replaced_or_none(tmp_path: Path) -> None:
    """One of a segment's indexes without the others is a finding of `verify`; none at all is not, in the last one."""
    with kafkalog.open_log(tmp_path, "t-0", config={"index.interval.bytes": "0"}) as log:
        for number in range(20):
            log.append(b"%d" % number)
    folder = tmp_path / "t-0"
    indexes = [folder / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex")]
    counting = FaultyFiles(UnsyncedFiles())
    (segment,) = check_indexes(str(folder), files=counting)
    rewrite(segment, files=counting)
    refused = []
    for at in range(counting.count):
        for path in indexes:
            path.unlink(missing_ok=True)
        assert kafkalog.verify(tmp_path).ok
        files = FaultyFiles(UnsyncedFiles(), Fault(at, errno.ENOSPC, sticky=False))
        (segment,) = check_indexes(str(folder), files=files)
        try:
            rewrite(segment, files=files)
        except OSError:
            refused.append(files.failed[0].path)
            assert [path for path in indexes if path.exists()] == []
            assert [name for name in os.listdir(folder) if name.endswith(".tmp")] == []
        assert kafkalog.verify(tmp_path).ok
    assert set(refused) == {f"{path}.tmp" for path in indexes}


def test_a_snapshot_that_finds_no_space_leaves_no_file(tmp_path: Path) -> None:
    """Otherwise `verify` would name half a snapshot forever, and nothing repairs it."""
    path = str(tmp_path / f"{5:020d}.snapshot")
    for kind in ("create", "write"):
        files = FaultyFiles(UnsyncedFiles(), Fault(0, errno.ENOSPC, kinds={kind}))
        with pytest.raises(OSError, match="No space left"):
            write_snapshot(path, [], files)
        assert os.listdir(tmp_path) == []
