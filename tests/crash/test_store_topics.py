"""A store's topics over two directories, through crashes, failing disks, and kill -9: each change of one has
happened or it has not, with all its partitions, its id and its settings everywhere (see `stored.Story`)."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.java_text import new_uuid as new_topic_id
from kafkalog.engine.host import topic_configs
from kafkalog.errors import KafkaStorageException
from tests.crash import harness
from tests.crash.harness import CrashState
from tests.crash.stored import DISKS, FAST, Shelf, State, Story, as_settings, check_start, tried
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles, UnsyncedFiles
from tests.sampling import LONG, share

SAMPLE = None if LONG else 40
STEP = 1 if LONG else 15
KILLS = 60 if LONG else 4
Workload = Callable[[Shelf], None]


def topics_come_and_go(shelf: Shelf) -> None:
    shelf.open()
    shelf.create("t", 3, retention_ms="-1")
    shelf.append("t", 0, 1, 2)
    shelf.delete("t")
    shelf.create("t", 2)
    shelf.append("t", 1)
    shelf.create("u", 1)
    shelf.delete("u")
    shelf.close()
    shelf.open()
    shelf.create("u", 2)
    shelf.delete("t")


def topics_change(shelf: Shelf) -> None:
    shelf.open()
    shelf.create("t", 1, flush_ms="1000000000", retention_ms="-1")
    shelf.append("t", 0)
    shelf.add("t", 4)
    shelf.append("t", 3, 2)
    shelf.alter("t", flush_ms=None, max_message_bytes="5000")
    shelf.add("t", 6)
    shelf.alter("t", retention_ms=None, max_message_bytes=None)
    shelf.append("t", 5)
    shelf.close()


WORKLOADS = (topics_come_and_go, topics_change)


def story_of(recording: RecordingFiles, count: int) -> Story:
    story = Story()
    for op in recording.ops[:count]:
        if op.kind == "mark":
            story.told(op.path, op.value)
    return story


@pytest.fixture(params=[topic_configs.WHOLE_BYTES, 0], ids=["whole", "lines"], autouse=True)
def whole_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of `.kafkalog_topics` as a small store has them, and as lines behind the rest."""
    monkeypatch.setattr(topic_configs, "WHOLE_BYTES", request.param)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_after_every_crash_each_topic_is_whole_or_not_there(workload: Workload, tmp_path: Path) -> None:
    with harness.fast_dir() as base:
        root = base / "shelf"
        root.mkdir()
        recording = RecordingFiles(str(root), UnsyncedFiles())
        shelf = Shelf(root, recording)
        try:
            workload(shelf)
        finally:
            shelf.die()
        root.rename(base / "left")

        def check(place: str, state: CrashState) -> None:
            check_start(place, story_of(recording, state.op_count), process_only=state.process_only)

        states = harness.check_crashes(
            recording, check, sample=SAMPLE, keep=tmp_path / "state", at=str(root), torn_step=4096, shuffles=1
        )
        print(f"{workload.__name__}: {states} states")


# --- failing disks -------------------------------------------------------------------------------------


def life_of_topics(shelf: Shelf) -> list[tuple[str, BaseException | None]]:
    """Steps that may fail, each tried again once; those that failed both times."""
    failed: list[tuple[str, BaseException | None]] = []

    def do(topic: str, step: Callable[[], None]) -> None:
        for _ in range(2):
            error = tried(step)
            if error is None:
                return
            assert isinstance(error, KafkaStorageException), error
            shelf.story.states.setdefault(topic, [None])
        failed.append((topic, error))

    do("t", lambda: again(shelf, "t", 3))
    do("u", lambda: again(shelf, "u", 2))
    if "t" in shelf.store:
        do("t", lambda: more(shelf, "t", 6))
        do("t", lambda: shelf.alter("t", retention_ms="-1"))
    if "u" in shelf.store:
        do("u", lambda: gone(shelf, "u"))
    if "u" not in shelf.store:
        do("u", lambda: again(shelf, "u", 2))
    do("t", lambda: written(shelf, "t"))
    return failed


def again(shelf: Shelf, topic: str, partitions: int) -> None:
    assert topic not in shelf.store, "a creation that failed left something to be seen"
    shelf.create(topic, partitions)


def more(shelf: Shelf, topic: str, partitions: int) -> None:
    assert shelf.state(topic).partitions == 3
    shelf.add(topic, partitions)


def written(shelf: Shelf, topic: str) -> None:
    """Appends to the topic in a directory that is online."""
    for log_dir in shelf.store.manager.failure_channel.offline_log_dirs:
        shelf.store.manager.handle_log_dir_failure(log_dir)  # as its thread does in a moment
    where = shelf.store.topic(topic).append(shelf.state(topic).topic_id.encode())
    assert where.offset >= 0


def gone(shelf: Shelf, topic: str) -> None:
    if topic in shelf.store:  # otherwise the decision was written, and only its directories are left
        shelf.delete(topic)
    shelf.story.states[topic] = [None]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_disk_fails_at_any_step(bad: int) -> None:
    """The other directory continues: a failed step is tried again and works. With the disk back, all is as promised."""

    def run(root: Path, at: int) -> int:
        files = FaultyFiles(UnsyncedFiles())
        shelf = Shelf(root, files)
        shelf.open()
        disk = shelf.dirs[bad] + os.sep
        files.count = 0
        files.fault = Fault(at, errno.EIO, True, None, lambda path: (path + os.sep).startswith(disk))
        try:
            failed = life_of_topics(shelf)
            assert not failed, failed
            if files.failed:
                shelf.store.manager.handle_log_dir_failure(shelf.dirs[bad])
            count = files.count
            error_at_close = tried(shelf.close)
            assert error_at_close is None or files.failed
        finally:
            shelf.die()
        assert not any(os.path.exists(os.path.join(each, ".lock")) for each in shelf.dirs)
        check_start(root, shelf.story, process_only=False)
        return count

    with harness.fast_dir() as base:
        total = run(base / "count", 1 << 60)
        numbers = share(range(total), STEP)
        for at in numbers:
            try:
                run(base / str(at), at)
            except BaseException as failure:
                failure.add_note(f"disk {bad}, at {at} of {total}")
                raise
        print(f"{len(numbers)} of {total} faults")


def test_all_disks_fail() -> None:
    """The error says so, the topic does not exist, and a later start finds it whole or not at all."""
    with harness.fast_dir() as base:
        for at in share(range(40), STEP):
            files = FaultyFiles(UnsyncedFiles())
            shelf = Shelf(base / str(at), files)
            shelf.open()
            files.count, files.fault = 0, Fault(at)
            try:
                error = tried(lambda shelf=shelf: shelf.create("t", 4))  # type: ignore[misc]
                assert (error is not None) == bool(files.failed) or error is None
                if error is not None:
                    assert "disk" in str(error)
            finally:
                shelf.die()
            check_start(base / str(at), shelf.story, process_only=False)


# --- killed processes ----------------------------------------------------------------------------------

PROGRAM = "import sys; from tests.crash.test_store_topics import main; main(sys.argv[1], int(sys.argv[2]))"


def main(root: str, seed: int) -> None:
    """Creates, changes and deletes topics forever; prints a line before and after each step."""
    shelf = Shelf(root, FAST)
    store = shelf.open()
    rng = random.Random(seed)

    def mark(label: str, value: tuple[object, ...]) -> None:
        os.write(1, f"{label} {value!r}\n".encode())

    shelf.mark = mark  # type: ignore[method-assign]
    while True:
        topic = rng.choice("abc")
        if topic not in store:
            shelf.create(topic, rng.randint(1, 4), **({"retention_ms": "-1"} if rng.random() < 0.5 else {}))
            continue
        partitions = shelf.state(topic).partitions
        action = rng.random()
        if action < 0.2:
            shelf.delete(topic)
        elif action < 0.4:
            shelf.add(topic, partitions + rng.randint(1, 3))
        elif action < 0.6:
            shelf.alter(topic, flush_ms=str(rng.randint(1 << 30, 1 << 31)))
        else:
            shelf.append(topic, rng.randrange(partitions))


def test_killed_at_any_moment() -> None:
    with harness.fast_dir() as root:
        for seed in range(KILLS):
            story = Story()
            lines = harness.run_and_kill(PROGRAM, [str(root), str(seed)], after_lines=20 + 13 * (seed % 9))
            for line in lines:
                label, _, value = line.partition(" ")
                story.told(label, eval(value, {"State": State}))
            check_start(root, story)  # and takes them away


def test_the_programs_words_can_be_read() -> None:
    state = State(3, new_topic_id(), as_settings({"retention.ms": "-1"}))
    assert eval(repr(state), {"State": State}) == state
    assert DISKS == 2
    assert sys.executable
    assert kafkalog.open is not None
