"""A log belongs to the process that opened it: in a forked child every use is refused, and nothing is touched."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import topic_settings
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.cluster_metadata import ClusterMetadata
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OS_FILES, ThreadScheduler, processes
from kafkalog.errors import IllegalStateException, LogDirLockedException

Tree = dict[str, bytes]


def tree(root: Path) -> Tree:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def in_child(act: Callable[[], object]) -> None:
    """Run `act` in a forked child, whose failure is ours; it ends as a script does, finalizers and all."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(60)
        try:
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "see the child's traceback"


def refused(use: Callable[[], object]) -> None:
    with pytest.raises(IllegalStateException, match=rf"was opened by process {os.getppid()}, and this is process"):
        use()


def uses(log: kafkalog.Partition) -> list[Callable[[], object]]:
    return [
        lambda: list(log),
        lambda: next(log.records()),
        lambda: log.reader(),
        lambda: log.high_watermark,
        lambda: log.last_stable_offset,
        lambda: log.log_start_offset,
        lambda: log.end_offset,
        lambda: log.offset_for_time(0),
    ]


def writes(log: kafkalog.Partition) -> list[Callable[[], object]]:
    return [
        lambda: log.append(b"child"),
        lambda: log.append_many([b"child"]),
        lambda: log.append_columns([b"child"]),
        lambda: log.append_batches(b""),
        lambda: log.flush(),
        lambda: log.writer("w"),
        lambda: log.transaction("t"),
        lambda: log.delete_records(1),
        lambda: log.delete_old_segments(),
        lambda: log.truncate(0),
    ]


def test_the_child_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0") as log, kafkalog.open_log(root, "t-0", read_only=True) as look:
        log.append_many([b"1", b"2"])
        writer = log.writer("w")
        writer.append(b"3")
        batch = bytes(next(iter(log.reader(chunk_bytes=1))).data)
        reader, records = log.reader(), log.records()
        next(records)
        txn = log.transaction("job")
        txn.begin()
        txn.append(b"4")
        before = tree(root)

        def child() -> None:
            assert log.is_forked_copy
            assert log.closed
            for use in [*uses(log), *uses(look), *writes(log)]:
                refused(use)
            for use in (
                lambda: reader.read_chunk(),
                lambda: writer.next_sequence,
                lambda: writer.append(b"child"),
                lambda: txn.append(b"child"),
                lambda: txn.commit(),
                lambda: txn.abort(),
                lambda: log.transaction("other"),
            ):
                refused(use)
            engine = log.engine
            assert engine is not None
            for use in (
                lambda: engine.flush(True),
                lambda: engine.append_as_leader(batch, 0),
                lambda: engine.truncate_to(0),
            ):
                with pytest.raises(IllegalStateException, match=f"was opened by process {os.getppid()}"):
                    use()
            with log, look:
                pass
            log.close()
            look.close()
            log.appends.__del__()
            assert tree(root) == before

        in_child(child)
        assert tree(root) == before
        assert (root / ".lock").exists()
        txn.commit()
        log.append(b"5")
        assert [record.value for record in log] == [b"1", b"2", b"3", b"4", b"5"]
    assert (root / ".kafka_cleanshutdown").exists()


def test_a_transaction_block_that_the_child_leaves(tmp_path: Path) -> None:
    """The exception that ends the child's block propagates; the transaction belongs to the parent."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("job") as txn:
            txn.append(b"1")

            def leave() -> None:
                assert txn.__exit__(SystemExit, SystemExit(), None) is None  # type: ignore[func-returns-value]
                refused(lambda: txn.__exit__(None, None, None))

            in_child(leave)
        assert [record.value for record in log.records(isolation="read_committed")] == [b"1"]


def test_the_child_may_open_others_and_is_locked_out_here(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with kafkalog.open_log(ours, "t-0") as log:
        log.append(b"1")

        def child() -> None:
            with pytest.raises(LogDirLockedException, match=f"process {os.getppid()} .* holds it"):
                kafkalog.open_log(ours, "u-0")
            with kafkalog.open_log(ours, "t-0", read_only=True) as look:
                assert [record.value for record in look] == [b"1"]
            with kafkalog.open_log(theirs, "t-0") as own:
                own.append(b"child")

        in_child(child)
        with kafkalog.open_log(theirs, "t-0") as found:
            assert [record.value for record in found] == [b"child"]
        assert log.append(b"2") == 1


def test_a_child_that_lives_on_does_not_keep_the_directory(tmp_path: Path) -> None:
    log = kafkalog.open_log(tmp_path, "t-0")
    reader, writer = os.pipe()
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.write(said, b"!")
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    assert os.read(ready, 1) == b"!"
    # As if we were killed: nothing is unlocked by name, only our descriptor goes.
    lock = log.appends.lease.directory.held._lock  # type: ignore[union-attr]
    lock._file.close()  # type: ignore[union-attr]
    OS_FILES.lock(str(tmp_path / ".lock")).release(remove=False)
    log.close()
    for fd in (writer, ready, said):
        os.close(fd)
    os.waitpid(pid, 0)


def test_locks_that_other_threads_held_at_the_fork(tmp_path: Path) -> None:
    """The child has no such threads: it must not wait for them."""
    log = kafkalog.open_log(tmp_path, "t-0")
    named = log.writer("w")
    assert log.appends is not None
    lease = log.appends.lease
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        directory = lease.directory
        with lease.closing, directory.guard, named._guard:
            assert isinstance(directory.scheduler, ThreadScheduler)
            with directory.scheduler._lock:
                held.set()
                go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)

    def child() -> None:
        refused(lambda: log.append(b"x"))
        refused(lambda: named.append(b"x"))
        refused(lease.checkpoint)
        log.close()
        lease.leave(clean=True)
        lease.give_up()
        assert isinstance(lease.directory.scheduler, ThreadScheduler)
        lease.directory.scheduler.shutdown()
        with kafkalog.open_log(tmp_path / "other", "t-0") as own:
            own.append(b"1")

    in_child(child)
    go.set()
    thread.join()
    log.close()


def test_forks_beside_threads_that_open_and_close(tmp_path: Path) -> None:
    """The child can open a directory at any moment of the threads' work, and the threads continue."""
    stop = threading.Event()
    failures: list[BaseException] = []
    assert kafkalog.open_log  # its module is imported now: Python's import locks do not survive a fork

    def work(number: int) -> None:
        try:
            while not stop.is_set():
                with kafkalog.open_log(tmp_path / "shared", f"t-{number}") as log:
                    log.append(b"x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(20):

            def child(turn: int = turn) -> None:
                with kafkalog.open_log(tmp_path / f"child-{turn}", "t-0") as own:
                    own.append(b"1")

            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_fork_while_another_thread_reads_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """functools.cached_property of Python 3.11 has a lock, for which the child then waited forever."""
    inside, go = threading.Event(), threading.Event()
    read = topic_settings.read_cluster_metadata

    def slow(*args: Any, **kwargs: Any) -> ClusterMetadata | None:
        if threading.current_thread() is thread:
            inside.set()
            go.wait(60)
        return read(*args, **kwargs)

    monkeypatch.setattr(topic_settings, "read_cluster_metadata", slow)
    thread = threading.Thread(target=lambda: TopicSettings(str(tmp_path)).cluster)
    thread.start()
    assert inside.wait(60)

    def child() -> None:
        signal.alarm(10)
        assert TopicSettings(str(tmp_path)).cluster is None

    in_child(child)
    go.set()
    thread.join()


def _work(log: kafkalog.Partition, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        log.append(b"child")
    except IllegalStateException as error:
        answers.put(str(error))
    log.close()


def test_multiprocessing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"1")
        workers = [context.Process(target=_work, args=(log, answers)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            assert "open it in this process" in answers.get()
            worker.join()
            assert worker.exitcode == 0
        assert log.append(b"2") == 1


def test_a_reader_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for number in range(50):
            log.append(b"%d" % number * 50)
        for source in (log, kafkalog.open_log(tmp_path, "t-0", read_only=True)):
            reader = source.reader(chunk_bytes=200)
            assert reader.read_chunk() is not None

            def child(reader: ChunkReader = reader) -> None:
                refused(reader.read_chunk)
                reader.close()

            in_child(child)
            assert sum(len(chunk.headers) for chunk in reader) == 49
            if source is not log:
                source.close()


def test_what_fails_to_be_disowned_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def disown(self) -> None:
            raise OSError("broken")

    broken = processes.belongs_here(Broken())
    told = processes.Life()

    def child() -> None:
        assert "was not released in the child of a fork" in caplog.text
        assert told.forked

    in_child(child)
    assert not told.forked
    processes._OBJECTS.discard(broken)


def test_what_is_half_read_ends_at_the_fork(tmp_path: Path) -> None:
    """Records that were read but not yet returned at the fork do not appear in the child."""
    with kafkalog.open_log(tmp_path, "t-0") as log, kafkalog.open_log(tmp_path, "t-0", read_only=True) as look:
        log.append_many([(b"a", b"%d" % number) for number in range(10)])
        log.append_many([(b"b", b"b%d" % number) for number in range(10)])
        begun: list[Iterator[object]] = []
        for one in (log, look):
            begun += [iter(one), one.records(1), one.reader().records(), one.reader().data_batches()]
            begun.append(one.arrow_batches(batch_rows=3))
            begun.append(one.latest(batch_rows=3))
        for each in begun:
            next(each)

        def child() -> None:
            for each in begun:
                refused(lambda each=each: next(each))  # type: ignore[misc]

        in_child(child)
        for each in begun:
            assert list(each)
