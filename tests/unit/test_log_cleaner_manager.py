"""LogCleanerManager: every state and its transitions, the choice of the next log to clean, the checkpoints' bytes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalog.engine.cleaner import log_cleaner_manager
from kafkalog.engine.cleaner.log_cleaner_manager import PreCleanStats
from kafkalog.engine.cleaner.states import Claim, Pause
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.errors import IllegalStateException, LogCleaningAbortedException
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.cleaning_kit import Yard, fill, partition, raising
from tests.unit.log_kit import NOW_MS

T = TopicPartition("t", 0)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.close()


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def claimed(yard: Yard) -> Claim:
    claim = yard.manager.states.claim(T)
    assert claim is not None
    return claim


def shown(yard: Yard, of: TopicPartition = T) -> str:
    return str(yard.manager.cleaning_state(of))


# --- states --------------------------------------------------------------------------------------------


def test_pauses_are_counted(yard: Yard) -> None:
    manager = yard.manager
    assert manager.cleaning_state(T) is None
    manager.abort_and_pause_cleaning(T)
    assert shown(yard) == "LogCleaningPaused(1)"
    manager.abort_and_pause_cleaning(T)
    with manager.pause(T) as pause:
        pause.begin()
        assert shown(yard) == "LogCleaningPaused(3)"
    manager.resume_cleaning([T])
    assert shown(yard) == "LogCleaningPaused(1)"
    assert manager.states.claim(T) is None
    manager.resume_cleaning([T])
    assert manager.cleaning_state(T) is None


def test_what_is_not_paused_is_not_resumed(yard: Yard) -> None:
    with pytest.raises(IllegalStateException) as none:
        yard.manager.resume_cleaning([T])
    assert none.value.message == "Compaction for partition t-0 cannot be resumed since it is not paused."
    claim = claimed(yard)
    with pytest.raises(IllegalStateException) as in_progress:
        yard.manager.resume_cleaning([T])
    assert in_progress.value.message == (
        "Compaction for partition t-0 cannot be resumed since it is in LogCleaningInProgress state."
    )
    yard.manager.done_deleting([claim])
    with yard.manager.pause(T) as pause:
        pause.begin()
        with pytest.raises(IllegalStateException, match="it is not paused"):  # not by what would be resumed
            yard.manager.resume_cleaning([T])
        assert shown(yard) == "LogCleaningPaused(1)"


def test_who_pauses_waits_for_whoever_cleans(yard: Yard) -> None:
    manager, claims, begun = yard.manager, [], threading.Event()

    def clean() -> None:
        claims.append(claimed(yard))
        begun.set()
        while not manager.states.is_aborted(T):
            manager.states.wait(T)  # does not wait for itself
        with pytest.raises(LogCleaningAbortedException):
            manager.check_cleaning_aborted(T)
        manager.done_cleaning(claims.pop(), yard.dirs[0], 7)

    thread = in_a_thread(clean)
    assert begun.wait(10)
    manager.abort_and_pause_cleaning(T)
    assert shown(yard) == "LogCleaningPaused(1)"
    thread.join(10)
    assert yard.checkpoint() == ""  # an aborted pass is not noted
    manager.resume_cleaning([T])
    assert manager.cleaning_state(T) is None


def test_aborted_is_left_to_the_first_who_waits(yard: Yard) -> None:
    """Kafka's call refuses; a Pause waits as well."""
    manager = yard.manager
    claim, waiters = claimed(yard), []
    for _ in range(2):
        pause = manager.pause(T)
        waiters.append((pause, in_a_thread(pause.begin)))
    while shown(yard) != "LogCleaningAborted":
        pass
    with pytest.raises(LogCleaningAbortedException):
        manager.check_cleaning_aborted(T)
    with pytest.raises(IllegalStateException) as aborted:
        in_another(lambda: manager.abort_and_pause_cleaning(T))
    assert aborted.value.message == (
        "Compaction for partition t-0 cannot be aborted and paused since it is in LogCleaningAborted state."
    )
    with pytest.raises(IllegalStateException) as resumed:
        manager.resume_cleaning([T])
    assert resumed.value.message == (
        "Compaction for partition t-0 cannot be resumed since it is in LogCleaningAborted state."
    )
    assert all(thread.is_alive() for _, thread in waiters)
    manager.done_deleting([claim])
    for _, thread in waiters:
        thread.join(10)
    assert shown(yard) == "LogCleaningPaused(2)"
    waiters[0][0].close()
    waiters[0][0].close()
    assert shown(yard) == "LogCleaningPaused(1)"


def in_another(work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    in_a_thread(run).join(10)
    if errors:
        raise errors[0]


def test_done_is_refused_to_who_has_no_claim(yard: Yard) -> None:
    manager = yard.manager
    claim = claimed(yard)
    manager.done_deleting([claim])
    with pytest.raises(IllegalStateException) as gone:
        manager.done_cleaning(claim, yard.dirs[0], 5)
    assert gone.value.message == "State for partition t-0 should exist."
    with pytest.raises(IllegalStateException, match="State for partition t-0 should exist"):
        manager.done_deleting([claim])
    manager.abort_and_pause_cleaning(T)
    with pytest.raises(IllegalStateException) as paused:
        manager.done_deleting([claim])
    assert paused.value.message == "In-progress partition t-0 cannot be in LogCleaningPaused(1) state."
    with pytest.raises(IllegalStateException, match=r"cannot be in LogCleaningPaused\(1\) state"):
        manager.done_cleaning(claim, yard.dirs[0], 5)
    assert yard.checkpoint() == ""


def test_nobody_cleans_what_another_cleans(yard: Yard) -> None:
    claim = claimed(yard)
    assert yard.manager.states.claim(T) is None
    del claim  # as a thread that died
    assert yard.manager.cleaning_state(T) is None
    again = claimed(yard)
    assert shown(yard) == "LogCleaningInProgress"
    yard.manager.done_deleting([again])


def test_a_pause_that_is_forgotten_is_over(yard: Yard) -> None:
    def interrupted(pause: Pause) -> None:
        pause.begin()

    interrupted(yard.manager.pause(T))
    assert yard.manager.cleaning_state(T) is None


def test_a_thread_does_not_wait_for_itself(yard: Yard) -> None:
    claim = claimed(yard)
    with yard.manager.pause(T) as pause:
        pause.begin()
        assert shown(yard) == "LogCleaningAborted"
    assert shown(yard) == "LogCleaningInProgress"
    yard.manager.done_deleting([claim])


def test_an_interrupt_takes_the_pause_back(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = yard.manager
    claim = claimed(yard)
    monkeypatch.setattr(manager.states, "wait", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        manager.abort_and_pause_cleaning(T)
    assert shown(yard) == "LogCleaningInProgress"
    with pytest.raises(KeyboardInterrupt):
        manager.abort_cleaning(T)
    assert shown(yard) == "LogCleaningInProgress"
    manager.done_deleting([claim])
    assert manager.cleaning_state(T) is None


# --- who is next ---------------------------------------------------------------------------------------


def test_the_filthiest_is_first(yard: Yard) -> None:
    for name, number, clean in (("a-0", 0, 40), ("b-0", 1, 20), ("c-0", 0, 55)):
        log = yard.filled(name, number, min_cleanable_dirty_ratio="0")
        yard.manager.update_checkpoints(log.parent_dir, add=(partition(name), clean))
    stats = PreCleanStats()
    order = []
    claims = []
    while (grabbed := yard.manager.grab_filthiest_compacted_log(stats)) is not None:
        order.append((str(grabbed.claim.partition), grabbed.to_clean.first_dirty_offset))
        claims.append(grabbed.claim)
        assert shown(yard, grabbed.claim.partition) == "LogCleaningInProgress"
    assert order == [("b-0", 20), ("a-0", 40), ("c-0", 55)]
    assert stats.cleanable_partitions == 0  # from the last check
    assert yard.manager.time_of_last_run_ms == NOW_MS


def test_of_equals_the_first_of_the_map(yard: Yard) -> None:
    names = [f"t{number}-0" for number in range(12)]
    for name in names:
        yard.filled(name, records=20)
    order = []
    claims = []
    while (grabbed := yard.manager.grab_filthiest_compacted_log()) is not None:
        order.append(str(grabbed.claim.partition))
        claims.append(grabbed.claim)
    assert order == [str(log.topic_partition) for log in yard.registry.current_logs()]
    assert order != names


def test_what_is_not_dirty_enough_waits(yard: Yard) -> None:
    log = yard.filled("t-0", min_cleanable_dirty_ratio="0.9")
    yard.manager.update_checkpoints(log.parent_dir, add=(T, 20))
    assert yard.manager.grab_filthiest_compacted_log() is None
    assert 0.5 < yard.manager.dirtiest_log_cleanable_ratio < 0.9
    assert yard.manager.cleaning_state(T) is None


def test_what_has_waited_too_long_is_due(yard: Yard) -> None:
    log = yard.filled("t-0", min_cleanable_dirty_ratio="0.99", max_compaction_lag_ms="5000")
    yard.manager.update_checkpoints(log.parent_dir, add=(T, 20))
    assert yard.manager.grab_filthiest_compacted_log() is None
    yard.clock.advance(6000)
    stats = PreCleanStats()
    grabbed = yard.manager.grab_filthiest_compacted_log(stats)
    assert grabbed is not None
    assert grabbed.to_clean.need_compaction_now
    assert (stats.delayed_partitions, stats.cleanable_partitions) == (1, 1)
    assert 0 < stats.max_compaction_delay_ms <= 1000


@pytest.mark.parametrize("state", ["paused", "claimed", "uncleanable", "not compacted", "closed", "offline", "empty"])
def test_what_is_not_for_now_is_passed_over(yard: Yard, state: str) -> None:
    log = yard.log("t-0") if state == "empty" else yard.filled("t-0")
    manager = yard.manager
    kept: list[object] = []
    if state == "paused":
        manager.abort_and_pause_cleaning(T)
    elif state == "claimed":
        kept.append(claimed(yard))
    elif state == "uncleanable":
        manager.mark_partition_uncleanable(log, ValueError("bad"))
    elif state == "not compacted":
        yard.log("t-0", cleanup_policy="delete")
    elif state == "closed":
        log.close()
    elif state == "offline":
        yard.channel.maybe_add_offline_log_dir(yard.dirs[0], "as a test")
    assert manager.grab_filthiest_compacted_log() is None
    other = yard.filled("u-0", 1)
    grabbed = manager.grab_filthiest_compacted_log()
    assert grabbed is not None
    assert grabbed.to_clean.log is other


def test_a_log_that_cannot_be_looked_at_is_marked(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    yard.filled("t-0")
    other = yard.filled("u-0")
    look = log_cleaner_manager.cleanable_offsets

    def fail(log: object, *rest: object) -> object:
        if log is other:
            raise ValueError("no such thing")
        return look(log, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(log_cleaner_manager, "cleanable_offsets", fail)
    grabbed = yard.manager.grab_filthiest_compacted_log()
    assert grabbed is not None
    assert grabbed.claim.partition == T
    (why,) = yard.manager.uncleanable_partitions()
    assert why.partition == partition("u-0")
    assert why.error == "LogCleaningException"
    assert why.reason == "Failed to calculate log cleaning stats for partition u-0: no such thing"
    assert "[partition=u-0, dir=" in caplog.text


def test_checkpoints_beside_their_log_are_mended_at_once(yard: Yard) -> None:
    yard.filled("t-0", min_cleanable_dirty_ratio="1")
    ahead = yard.filled("u-0", min_cleanable_dirty_ratio="1")
    ahead.truncate_fully_and_start_at(9)
    yard.write_checkpoint("0\n2\nt 0 1000\nu 0 5\n")
    assert yard.manager.grab_filthiest_compacted_log() is None  # and is not worth a pass
    assert sorted(yard.lines()) == ["t 0 0", "u 0 9"]
    assert yard.manager.cleaning_state(T) is None


def test_each_file_is_read_once_a_grab(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many logs exist; only that of the chosen one is read again.  So is each segment's
    first batch, ever."""
    for number in range(6):
        yard.filled(f"t-{number}", number % 2).close()
        yard.log(f"t-{number}", number % 2, min_cleanable_dirty_ratio="1.0")  # that knows nothing of its segments yet
    read: list[str] = []
    segments: list[str] = []
    checkpoint, first_batch = OffsetCheckpointFile.read, FileRecords.first_batch

    def counted(self: OffsetCheckpointFile) -> dict[TopicPartition, int]:
        read.append(self.path)
        return checkpoint(self)

    def looked(self: FileRecords, position: int = 0) -> object:
        segments.append(self.path)
        return first_batch(self, position)

    monkeypatch.setattr(OffsetCheckpointFile, "read", counted)
    monkeypatch.setattr(FileRecords, "first_batch", looked)
    assert yard.manager.grab_filthiest_compacted_log() is None
    assert len(read) == len(set(read)) == 2
    assert segments
    read.clear()
    segments.clear()
    assert yard.manager.grab_filthiest_compacted_log() is None
    assert len(read) == len(set(read)) == 2
    assert segments == []
    yard.filled("u-0")
    read.clear()
    assert yard.manager.grab_filthiest_compacted_log() is not None
    assert len(read) == 3
    read.clear()
    for log in yard.registry.current_logs():
        yard.manager.mark_partition_uncleanable(log, ValueError("a bug"))
    yard.manager.uncleanable_bytes(yard.dirs[0])
    assert len(read) == 1


def test_non_compacted_logs_are_paused_for_retention(yard: Yard) -> None:
    yard.filled("t-0")
    kept = yard.filled("a-0", cleanup_policy="delete")
    busy = yard.filled("b-0", cleanup_policy="delete")
    with yard.manager.pause(busy.topic_partition) as pause:
        pause.begin()
        found = yard.manager.pause_cleaning_for_non_compacted_partitions()
        assert [log for log, _ in found] == [kept]
        assert shown(yard, kept.topic_partition) == "LogCleaningPaused(1)"
        assert yard.manager.pause_cleaning_for_non_compacted_partitions() == []
    for _, each in found:
        each.close()
    assert yard.manager.cleaning_state(kept.topic_partition) is None


def test_deletable_logs_are_the_compacted_ones(yard: Yard) -> None:
    log = yard.filled("t-0", cleanup_policy="compact,delete")
    yard.filled("a-0", cleanup_policy="delete")
    bad = yard.filled("b-0")
    yard.manager.mark_partition_uncleanable(bad, ValueError("bad"))
    (found,) = yard.manager.deletable_logs()
    assert found[0] is log
    assert shown(yard) == "LogCleaningInProgress"
    yard.manager.done_deleting([found[1]])
    assert yard.manager.cleaning_state(T) is None


# --- checkpoints ---------------------------------------------------------------------------------------


def test_a_pass_is_noted(yard: Yard) -> None:
    log = yard.filled("t-0")
    grabbed = yard.manager.grab_filthiest_compacted_log()
    assert grabbed is not None
    yard.manager.done_cleaning(grabbed.claim, log.parent_dir, 42)
    assert yard.checkpoint() == "0\n1\nt 0 42\n"
    assert yard.manager.all_cleaner_checkpoints() == {T: 42}
    assert yard.manager.cleaning_state(T) is None


def test_lines_of_nobody_go_at_the_next_write(yard: Yard) -> None:
    yard.log("t-0")
    yard.log("u-3")
    yard.write_checkpoint("0\n3\ngone 0 5\nu 3 7\nt 0 6\n")
    yard.manager.update_checkpoints(yard.dirs[0], add=(T, 9))
    assert sorted(yard.lines()) == ["t 0 9", "u 3 7"]
    yard.manager.update_checkpoints(yard.dirs[0], remove=T)
    assert yard.checkpoint() == "0\n1\nu 3 7\n"
    yard.manager.update_checkpoints(yard.dirs[0])
    assert yard.checkpoint() == "0\n1\nu 3 7\n"


def test_a_line_is_written_only_where_the_log_lies(yard: Yard) -> None:
    """A pass that ends when its log has moved must not leave a line in the old directory: a broker reads both, and dies
    of it."""
    yard.log("t-0", 1)
    yard.manager.update_checkpoints(yard.dirs[0], add=(T, 9))
    assert yard.lines(0) == []
    yard.write_checkpoint("0\n1\nt 0 3\n", 0)
    yard.write_checkpoint("0\n1\nt 0 8\n", 1)
    assert yard.manager.all_cleaner_checkpoints() == {T: 8}


@pytest.mark.parametrize(("checkpointed", "offset", "left"), [(50, 20, 20), (50, 50, 50), (50, 60, 50)])
def test_a_truncation_lowers_the_line(yard: Yard, checkpointed: int, offset: int, left: int) -> None:
    yard.log("t-0")
    yard.log("u-0", cleanup_policy="delete")
    yard.write_checkpoint(f"0\n2\nt 0 {checkpointed}\nu 0 {checkpointed}\n")
    for name in ("t-0", "u-0", "nobody-0"):
        yard.manager.maybe_truncate_checkpoint(yard.dirs[0], partition(name), offset)
    assert sorted(yard.lines()) == [f"t 0 {left}", f"u 0 {checkpointed}"]


def test_a_move_takes_line_and_mark_along(yard: Yard) -> None:
    log = yard.log("t-0", 0)
    yard.log("u-0", 0)
    yard.manager.mark_partition_uncleanable(log, ValueError("bad"))
    yard.write_checkpoint("0\n2\nt 0 5\nu 0 6\n")
    moved = yard.log("t-0", 1)
    for _ in range(2):
        yard.manager.alter_checkpoint_dir(T, *yard.dirs)
        assert (yard.lines(0), yard.lines(1)) == (["u 0 6"], ["t 0 5"])
    (why,) = yard.manager.uncleanable_partitions(yard.dirs[1])
    assert why.reason == "bad"
    assert yard.manager.uncleanable_partitions(yard.dirs[0]) == []
    yard.manager.maintain_uncleanable_partitions()
    assert yard.manager.uncleanable_partitions() == [why]
    fill(moved, 60)
    assert yard.manager.grab_filthiest_compacted_log() is None


def test_a_file_that_cannot_be_read_counts_for_nothing(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.filled("t-0")
    yard.write_checkpoint("0\n7\nt 0 5\n")
    assert yard.manager.all_cleaner_checkpoints() == {}
    assert yard.manager.all_cleaner_checkpoints() == {}
    assert caplog.text.count("compacted logs are cleaned from their start") == 1
    grabbed = yard.manager.grab_filthiest_compacted_log()
    assert grabbed is not None
    assert grabbed.to_clean.first_dirty_offset == 0
    yard.manager.done_cleaning(grabbed.claim, yard.dirs[0], 30)
    assert yard.checkpoint() == "0\n1\nt 0 30\n"
    assert yard.channel.offline_log_dirs == []


def test_a_disk_that_fails_takes_its_directory_offline(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    yard = Yard(tmp_path, files)
    yard.log("t-0")
    files.fault = Fault(0, errno.EIO, paths=lambda path: "d1/cleaner-offset-checkpoint" in path)
    yard.manager.update_checkpoints(yard.dirs[0], add=(T, 9))
    assert yard.channel.offline_log_dirs == [yard.dirs[0]]
    yard.manager.handle_log_dir_failure(yard.dirs[0])
    assert yard.manager.all_cleaner_checkpoints() == {}
    yard.manager.update_checkpoints(yard.dirs[0], add=(T, 9))
    yard.log("u-0", 1)
    yard.manager.update_checkpoints(yard.dirs[1], add=(partition("u-0"), 9))
    assert yard.lines(1) == ["u 0 9"]
    yard.close()


def test_nothing_is_written_once_the_lock_is_given_back(yard: Yard) -> None:
    yard.log("t-0")
    yard.directories.unlock()
    yard.manager.update_checkpoints(yard.dirs[0], add=(T, 9))
    assert yard.checkpoint() == ""


def test_a_file_of_many(yard: Yard) -> None:
    """Their order is compared with Kafka's in tests/conformance."""
    names = [f"t{number % 7}-{number}" for number in range(40)]
    for name in names:
        yard.log(name)
    for number, name in enumerate(names):
        yard.manager.update_checkpoints(yard.dirs[0], add=(partition(name), number))
    wanted = OffsetCheckpointFile(yard.dirs[0] + "/wanted")
    wanted.write({partition(name): number for number, name in enumerate(names)})
    assert sorted(yard.lines()) == sorted(Path(wanted.path).read_text().splitlines()[2:])
    assert yard.manager.all_cleaner_checkpoints() == wanted.read()


# --- uncleanable partitions ------------------------------------------------------------------------------


def test_marks_go_with_their_log(yard: Yard) -> None:
    log = yard.filled("t-0")
    error = ValueError("bad")
    why = yard.manager.mark_partition_uncleanable(log, error)
    assert (why.partition, why.log_dir, why.reason, why.since_ms) == (T, yard.dirs[0], "bad", NOW_MS)
    assert str(why) == f"t-0 of {yard.dirs[0]}: ValueError: bad"
    assert yard.manager.uncleanable_bytes(yard.dirs[0]) > 0
    assert yard.manager.uncleanable_bytes(yard.dirs[1]) == 0
    yard.manager.maintain_uncleanable_partitions()
    assert len(yard.manager.uncleanable_partitions()) == 1
    yard.registry.remove(log)
    again = yard.filled("t-0", 1)
    grabbed = yard.manager.grab_filthiest_compacted_log()
    assert grabbed is not None
    assert grabbed.to_clean.log is again
    yard.manager.maintain_uncleanable_partitions()
    assert yard.manager.uncleanable_partitions() == []
