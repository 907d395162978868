"""A partition that is crashed: a driver, its promises at each step, and the oracle for what was recovered.

`Driver` works on one UnifiedLog as a one-partition manager would (checkpoints, clean marker, tasks by hand).  For each
operation it records the log before and after it.  `Oracle` takes a crash state of the recording and says what a
reopened log may hold:

- If the process died: exactly the log, or for the operation in progress anything between before and after.
- If power was lost: at least the flushed records and at most the appended ones, as prefixes.  A truncation or retention
  has happened or not (but a finished truncation has happened).  Records that were once recovered and served remain.

This file alone computes every index, the epochs, the producers and the aborted transactions of the recovered log from
its batches, and compares them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kafkalog._native.codec import batches as native
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import Files, LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import records as decode_records
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.types import AppendOrigin, FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.log_segment import LogSegment
from tests.crash.harness import CrashState, check_crashes
from tests.file_doubles import RecordingFiles, UnsyncedFiles

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SMALL = {
    "internal.segment.bytes": "900",
    "index.interval.bytes": "100",
    "segment.index.bytes": "480",
    "file.delete.delay.ms": "60000",
    "max.message.bytes": "900",
}
COUNTED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class Batch(NamedTuple):
    """All of a batch that matters here."""

    first: int
    last: int
    epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    transactional: bool
    control: int | None  # 0 abort, 1 commit
    max_timestamp: int
    records: tuple[tuple[bytes | None, bytes | None], ...]


def parse(data: bytes, *, first: int | None = None, epoch: int | None = None) -> list[Batch]:
    """The batches of some bytes, as they are or with offsets from `first` on and an epoch, as a leader gives them."""
    found, _, reached = native.headers(data)
    assert reached == len(data), (reached, len(data))
    batches = []
    for header in found:
        records = decode_records(data, header, at=header.position)
        content = tuple((record.key, record.value) for record in records)
        base = header.base_offset if first is None else first
        last = base + header.last_offset - header.base_offset
        control = int.from_bytes(content[0][0][2:4], "big") if header.is_control and content[0][0] else None
        batches.append(
            Batch(
                base,
                last,
                header.leader_epoch if epoch is None else epoch,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.is_transactional,
                control,
                header.max_timestamp,
                content,
            )
        )
        first = None if first is None else last + 1
    return batches


def content_of(segments: Iterable[LogSegment]) -> list[Batch]:
    """The batches in the segments' .log files."""
    return [batch for segment in segments for batch in parse(segment.log.read(0, segment.size))]


class Host:
    """A log directory with one partition; the checkpoints are read at an open and written as a manager would."""

    def __init__(self, root: str, files: Files, overrides: dict[str, str] | None = None) -> None:
        self.root = root
        self.files = files
        self.config = LogConfig.from_props(None, {**SMALL, **(overrides or {})})
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.channel = LogDirFailureChannel()
        self.log: UnifiedLog | None = None
        self.marker = CleanShutdownFile(root, files)

    @property
    def dir(self) -> str:
        return os.path.join(self.root, str(PARTITION))

    def _checkpoint(self, name: str) -> OffsetCheckpointFile:
        return OffsetCheckpointFile(os.path.join(self.root, name), self.files)

    def open(self) -> UnifiedLog:
        clean = self.marker.exists()
        self.marker.delete()
        points = self._checkpoint("recovery-point-offset-checkpoint").read()
        starts = self._checkpoint("log-start-offset-checkpoint").read()
        recovery_point = points.get(PARTITION, 0)
        producers = ProducerSettings(ProducerStateManagerConfig(1 << 60, False), expiration_check_interval_ms=1 << 60)
        context = PartitionContext(
            self.dir, self.config, producers, self.scheduler, self.clock, self.channel, files=self.files
        )
        context.has_one_replica = True
        self.log = log = UnifiedLog.create(context, starts.get(PARTITION, 0), recovery_point, clean, TOPIC_ID)
        if log.recovery_point < recovery_point:
            self.checkpoint()  # before anything is appended above it
        log.update_high_watermark(log.log_end_offset)
        return log

    def checkpoint(self) -> None:
        assert self.log is not None
        log = self.log
        first_base = log.log_segments()[0].base_offset
        starts = {PARTITION: log.log_start_offset} if log.log_start_offset > first_base else {}
        # In this order: raising the log start lifts the recovery point over what was never flushed.
        self._checkpoint("log-start-offset-checkpoint").write(starts)
        self._checkpoint("recovery-point-offset-checkpoint").write({PARTITION: log.recovery_point})

    def close(self) -> None:
        """A broker's clean shutdown."""
        assert self.log is not None
        self.log.prepare_active_segment_for_close()
        self.log.flush(True)
        self.log.close()
        self.checkpoint()
        self.marker.write()

    def die(self) -> None:
        """Ends the process: handles close, nothing is written, tasks are lost."""
        if self.log is not None:
            self.log.local_log.segments.close_quietly()
        self.scheduler.clear()


@dataclass(slots=True)
class Step:
    """One operation in the recording: it spans operations [begin, end) and made `after` of `before`."""

    name: str
    kind: str  # append cut_end cut_start restart other
    begin: int
    before: list[Batch]
    end: int = -1
    after: list[Batch] | None = None
    flushed: int = -1  # batches below this offset are safe from power loss once this is done
    log_start: int = 0  # afterwards; records below may exist or not


class Driver:
    """Makes operations on a Host and writes them down as Steps."""

    # Put around the recording by tests of failing disks; they find the driver of a workload that failed in `latest`.
    wrap: ClassVar[Callable[[Files], Files]] = staticmethod(lambda files: files)
    latest: ClassVar[Driver | None] = None

    def __init__(self, root: str, overrides: dict[str, str] | None = None, *, prepare: bool = False) -> None:
        os.makedirs(root, exist_ok=True)
        self.recording = RecordingFiles(root, UnsyncedFiles())
        self.host = Host(root, Driver.wrap(self.recording), overrides)
        Driver.latest = self
        self.overrides = overrides
        self.steps: list[Step] = []
        self.content: list[Batch] = []
        self.sequences: dict[int, int] = {}
        self.number = 0
        self.start = 0  # crash states begin after so many steps
        if not prepare:
            with self.step("create", "other"):
                self.host.open()

    @property
    def log(self) -> UnifiedLog:
        assert self.host.log is not None
        return self.host.log

    def step(self, name: str, kind: str) -> _Stepping:
        return _Stepping(self, Step(name, kind, len(self.recording.ops), list(self.content)))

    # --- appends -------------------------------------------------------------------------------------------

    def payload(self, size: int) -> bytes:
        self.number += 1
        return (b"%06d." % self.number) * (size // 7 + 1)

    def batch(
        self,
        count: int = 2,
        *,
        size: int = 40,
        codec: int = 0,
        offset: int = 0,
        epoch: int = -1,
        producer: tuple[int, int] | None = None,
        transactional: bool = False,
    ) -> bytes:
        producer_id, producer_epoch = producer or (-1, -1)
        sequence = -1
        if producer is not None:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + count
        builder = MemoryRecordsBuilder(
            codec=codec,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            is_transactional=transactional,
            partition_leader_epoch=epoch,
        )
        for number in range(count):
            builder.append(self.host.clock.now_ms + number, b"k%d" % number, self.payload(size))
        return bytes(builder.build())

    def lead(self, data: bytes, epoch: int = 0) -> None:
        """An append as a leader."""
        with self.step("lead", "append") as step:
            end = self.log.log_end_offset
            step.after = self.content + parse(data, first=end, epoch=epoch)
            self.log.append_as_leader(data, epoch)
            self.log.update_high_watermark(self.log.log_end_offset)

    def follow(self, data: bytes, epoch: int) -> None:
        with self.step("follow", "append") as step:
            step.after = self.content + parse(data)
            self.log.append_as_follower(data, epoch)
            self.log.update_high_watermark(self.log.log_end_offset)

    def end_txn(self, producer: tuple[int, int], *, commit: bool, epoch: int = 0) -> None:
        marker = EndTransactionMarker(ControlRecordType.COMMIT if commit else ControlRecordType.ABORT, 0)
        data = end_txn_marker_batch(0, self.host.clock.now_ms, -1, *producer, marker)
        with self.step("marker", "append") as step:
            step.after = self.content + parse(data, first=self.log.log_end_offset, epoch=epoch)
            self.log.append_as_leader(data, epoch, AppendOrigin.COORDINATOR, transaction_version=0)
            self.log.update_high_watermark(self.log.log_end_offset)

    # --- everything else -----------------------------------------------------------------------------------

    def flush(self, force: bool = False) -> None:
        with self.step("flush", "other") as step:
            step.flushed = self.log.log_end_offset
            self.log.flush(force)

    def tick(self, advance_ms: int = 0) -> None:
        """Background work: the flush after a roll, delayed deletions, epochs."""
        with self.step("tick", "other"):
            if advance_ms:
                self.host.clock.advance(advance_ms)
            self.host.scheduler.tick()
            for _, error in self.host.scheduler.errors:
                raise error

    def roll(self) -> None:
        with self.step("roll", "other"):
            self.log.roll()

    def checkpoint(self) -> None:
        with self.step("checkpoint", "other"):
            self.host.checkpoint()

    def truncate_to(self, offset: int) -> None:
        with self.step("truncate", "cut_end") as step:
            step.after = [batch for batch in self.content if batch.last < offset]
            self.log.truncate_to(offset)
        self.checkpoint()

    def truncate_fully(self, offset: int) -> None:
        with self.step("truncate fully", "restart") as step:
            step.after = []
            self.log.truncate_fully_and_start_at(offset)
        self.checkpoint()

    def raise_log_start(self, offset: int) -> None:
        with self.step("log start", "other"):
            self.log.maybe_increment_log_start_offset(offset)
        self.checkpoint()

    def retain(self) -> None:
        with self.step("retention", "cut_start") as step:
            self.log.delete_old_segments()
            first = self.log.log_segments()[0].base_offset
            step.after = [batch for batch in self.content if batch.first >= first]

    def snapshot(self) -> None:
        with self.step("snapshot", "other"):
            self.log.take_producer_snapshot()

    def close(self) -> None:
        with self.step("close", "other") as step:
            step.flushed = self.log.log_end_offset
            self.host.close()
            self.host.scheduler.clear()

    def reopen(self, *, die: bool = False) -> None:
        """Opens again. Records that an open shows are served, so they are promised as if they were flushed."""
        if die:
            self.host.die()
        with self.step("reopen", "other") as step:
            self.host.open()
            step.flushed = self.log.log_end_offset
        found, start = content_of(self.log.log_segments()), self.log.log_start_offset
        assert [one for one in found if one.last >= start] == [one for one in self.content if one.last >= start]
        # If a truncation within a batch puts the end below the log start, a load drops all records, as Kafka's does.
        self.content = found


class _Stepping:
    def __init__(self, driver: Driver, step: Step) -> None:
        self.driver = driver
        self.made = step

    def __enter__(self) -> Step:
        self.driver.recording.mark("begin", self.made.name)
        self.driver.steps.append(self.made)
        return self.made

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        step = self.made
        if kind is not None:
            return  # it never ended
        if step.after is None:
            step.after = list(step.before)
        if self.driver.host.log is not None:
            step.log_start = self.driver.log.log_start_offset
        self.driver.recording.mark("end", step.name)
        step.end = len(self.driver.recording.ops)
        self.driver.content = list(step.after)


# --- what may be there ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Allowed:
    """The log may be any run `span[a:b]` with a in [least_start, most_start] and b in [least_end, len(span)].

    `or_empty`: it may also be empty (a restart of the partition in progress).  `holes`: where power was lost, whole
    segments above `flushed` may lack their end although a later one is there, as with Kafka.
    """

    span: list[Batch]
    start_most: int
    end_least: int
    or_empty: bool = False
    holes: bool = False

    def check(self, found: Sequence[Batch], bases: Sequence[int]) -> int:
        """Raises unless `found` is allowed; the number of holes."""
        if not found and (self.or_empty or self.end_least <= self.start_most or not self.span):
            return 0
        span = self.span
        if not found:
            raise AssertionError(f"nothing was recovered; at least {_brief(span[self.start_most : self.end_least])}")
        place = {batch: at for at, batch in enumerate(span)}
        unknown = [batch for batch in found if batch not in place]
        assert not unknown, f"never appended, or deleted: {_brief(unknown)}; allowed were {_brief(span)}"
        places = [place[batch] for batch in found]
        holes = 0
        for before, after in itertools.pairwise(places):
            if after == before + 1:
                continue
            gap = f"between {_brief([span[before]])} and {_brief([span[after]])}"
            assert after > before, f"out of order {gap}"
            assert self.holes, f"a hole {gap}"
            assert before + 1 >= self.end_least, f"a hole in what was flushed {gap}"
            assert span[after].first in bases, f"a hole within a segment {gap}"
            holes += 1
        if self.holes and places[0] > self.start_most and self.end_least <= self.start_most:
            assert span[places[0]].first in bases, "a log that begins within a segment"
            holes += 1
        elif not (self.or_empty and self.end_least <= self.start_most):
            assert places[0] <= self.start_most, f"lost: {_brief(span[self.start_most : places[0]])}"
        assert places[-1] + 1 >= self.end_least, f"lost: {_brief(span[places[-1] + 1 : self.end_least])}"
        return holes


def _brief(batches: Sequence[Batch]) -> str:
    return "[" + ", ".join(f"{batch.first}-{batch.last}e{batch.epoch}" for batch in batches) + "]"


class Oracle:
    """The states that a driver's recording allows after each crash."""

    def __init__(self, driver: Driver) -> None:
        self.steps = driver.steps
        self.overrides = driver.overrides
        self.holes = 0

    def allowed(self, state: CrashState) -> Allowed:
        done = [step for step in self.steps if 0 <= step.end <= state.op_count]
        running = next((step for step in self.steps if step.begin < state.op_count and step not in done), None)
        log_start = max([step.log_start for step in [*done[-1:], *([running] if running else [])]], default=0)
        if state.process_only:
            content = done[-1].after if done else []
            assert content is not None
            return _between(content, running, content[-1].last + 1 if content else 0, log_start)
        span: list[Batch] = []  # batches that may exist, deleted beginnings too
        start_most = flushed = 0
        for step in done:
            assert step.after is not None
            match step.kind:
                case "append":
                    span = span + step.after[len(step.before) :]
                case "cut_end":
                    end = step.after[-1].last + 1 if step.after else 0
                    span = [batch for batch in span if batch.last < end]
                case "cut_start":
                    start_most += len(step.before) - len(step.after)
                case "restart":
                    span, start_most = [], 0
            if step.flushed >= 0:
                flushed = step.flushed
                span, start_most = span[start_most:], 0  # a flush makes deletions durable as well
            if step.kind in ("cut_end", "restart"):
                flushed = min(flushed, span[-1].last + 1 if span else 0)
        allowed = _between(span, running, flushed, log_start, start_most)
        allowed.holes = state.kind == "shuffled"
        return allowed

    def check_interrupted(self, place: str, state: CrashState, *, sample: int) -> int:
        """Record the recovery of the state in `place` and crash it at its own steps; the number of states.

        However often it dies, a process finds what the undisturbed recovery found; power loss may take back no record
        that must be there and, once the open is through, none that it found.
        """
        allowed = self.allowed(state)
        recording = RecordingFiles(place, UnsyncedFiles())
        whole = Reopened(place, self.overrides, files=recording)

        def check(again: str, interrupted: CrashState) -> None:
            found = Reopened(again, self.overrides)
            found.check()
            if interrupted.process_only or interrupted.op_count >= whole.served_at:
                assert found.content == whole.content, differing(whole.files, found.files)
                assert (found.end, found.log_start) == (whole.end, whole.log_start)
            else:
                allowed.check(found.content, found.bases)

        return check_crashes(recording, check, sample=sample, shuffles=1, torn_step=4096)

    def check(self, place: str, state: CrashState) -> None:
        """Reopen the state in `place` and hold everything against it; reopen it again."""
        allowed = self.allowed(state)
        first = Reopened(place, self.overrides)
        self.holes += allowed.check(first.content, first.bases)
        first.check()
        first.same_as(Reopened(place, self.overrides))


def _between(span: list[Batch], running: Step | None, flushed: int, log_start: int, start_most: int = 0) -> Allowed:
    """The states that are allowed while `running` is in progress on `span`."""
    end_least = sum(batch.last < flushed for batch in span)
    allowed = Allowed(span, max(start_most, sum(batch.last < log_start for batch in span)), end_least)
    if running is not None and running.after is None and running.kind == "cut_start":
        allowed.start_most = len(span)  # how far it would have gone is not known
    if running is None or running.after is None:
        return allowed
    after = running.after
    match running.kind:
        case "append":
            allowed.span = span + after[len(running.before) :]
        case "cut_end":
            end = after[-1].last + 1 if after else 0
            allowed.end_least = min(end_least, sum(batch.last < end for batch in span))
        case "cut_start":
            allowed.start_most = max(allowed.start_most, start_most + len(running.before) - len(after))
        case "restart":
            allowed.end_least, allowed.start_most, allowed.or_empty = 0, len(span), True
    return allowed


def differing(one: dict[str, bytes], other: dict[str, bytes], without: str | None = None) -> str:
    """Which files differ, and how.  Preallocated bytes are logically empty; an open after a crash truncates them."""
    names = []
    for name in sorted(one.keys() | other.keys()):
        data, others = one.get(name), other.get(name)
        preallocated = name.endswith(".log") and data is not None and others is not None and not any(data + others)
        if data != others and not preallocated and not (without and name.endswith(without)):
            names.append(name)
    return ", ".join(f"{name}: {len(one.get(name, b''))} -> {len(other.get(name, b''))} bytes" for name in names)


# --- what was recovered --------------------------------------------------------------------------------------


class Reopened:
    """A directory after a crash, opened as a manager would and released as a crash would."""

    def __init__(
        self, place: str, overrides: dict[str, str] | None = None, *, files: Files | None = None, keep: bool = False
    ) -> None:
        self.host = host = Host(place, files or UnsyncedFiles(), overrides)
        os.makedirs(place, exist_ok=True)
        self.clean = host.marker.exists()
        log = host.open()
        if isinstance(files, RecordingFiles):
            self.served_at = len(files.ops)
        host.scheduler.tick()
        assert not host.scheduler.errors, host.scheduler.errors
        self.log = log
        segments = log.log_segments()
        # Segments wholly below the log start may hold anything: nobody reads them, and retention deletes them.
        while len(segments) > 1 and segments[1].base_offset <= log.log_start_offset:
            del segments[0]
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.content = content_of(segments)
        self.indexes = [
            (segment.base_offset, segment.offset_index.all_entries(), segment.time_index.all_entries(),
             segment.txn_index.all_aborted_txns(), segment.size)
            for segment in segments
        ]  # fmt: skip
        self.log_start = log.log_start_offset
        self.end = log.log_end_offset
        self.epochs = log.epoch_entries
        self.producers = log.active_producers
        self.reads = [log.read(batch.first, 1, FetchIsolation.LOG_END, True) for batch in self.content[::3]
                      if batch.first >= log.log_start_offset]  # fmt: skip
        self.read_offsets = [found.records.batches()[0].base_offset for found in self.reads]
        if not keep:
            host.die()
        self.files = read_tree(host.dir)

    def same_as(self, again: Reopened) -> None:
        """Opening twice gives the same."""
        assert again.content == self.content
        assert (again.bases, again.log_start, again.end) == (self.bases, self.log_start, self.end)
        again.check()
        if self.clean:
            return  # now without the marker: indexes and snapshots are rebuilt, with entries at other places
        assert again.indexes == self.indexes
        # An empty log forgets its epochs and producers with the second open, as in Kafka.
        empty = not any(batch.last >= self.log_start for batch in self.content)
        assert empty or again.epochs == self.epochs
        # Producers whose records are all deleted, or below the log start, may be gone as well, or be back, from
        # snapshots too: whether they are replayed depends on which snapshots are left.
        there = {batch.producer_id for batch in self.content if batch.last >= self.log_start}
        gone = (self.producers.keys() | again.producers.keys()) - there
        without = ".snapshot" if gone else None
        assert empty or not (changed := differing(self.files, again.files, without)), changed

    def check(self) -> None:
        """Indexes, epochs, producers and transactions are those of the batches."""
        content = self.content
        assert all(one.last < other.first for one, other in itertools.pairwise(content))
        assert self.end >= (content[-1].last + 1 if content else self.log_start)
        assert self.end in (content[-1].last + 1 if content else self.end, self.bases[-1])
        assert self.log_start <= self.end
        assert self.read_offsets == [batch.first for batch in content[::3] if batch.first >= self.log_start]
        self._check_indexes()
        self._check_epochs()
        self._check_producers()

    def _check_indexes(self) -> None:
        aborted = aborted_of(self.content)
        for number, (base, offsets, times, transactions, size) in enumerate(self.indexes):
            last = number + 1 == len(self.indexes)
            segment = self.segments[number]
            place = f"segment {base}"
            batches = [
                batch
                for batch in self.content
                if base <= batch.first and (last or batch.first < self.bases[number + 1])
            ]
            positions = positions_of(self.files.get(os.path.basename(segment.log.path), b"")[:size])
            assert [entry.offset for entry in offsets] == sorted({entry.offset for entry in offsets}), place
            for entry in offsets:
                assert positions.get(entry.offset) == entry.position, (place, entry, positions)
            largest: dict[int, int] = {}
            top = -1
            for batch in batches:
                top = max(top, batch.max_timestamp)
                largest[batch.last] = top
            assert [entry.timestamp for entry in times] == sorted({entry.timestamp for entry in times}), place
            for stamp in times:
                assert largest.get(stamp.offset) == stamp.timestamp, (place, stamp, largest)
            expected = [txn for txn in aborted if any(batch.first == txn[2] for batch in batches)]
            known = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in transactions]
            # A transaction that began below the first segment shows only its end.
            lowest = max(self.bases[0], self.log_start)
            expected = [txn for txn in expected if txn[1] >= lowest]
            assert [txn for txn in known if txn[1] >= lowest] == expected, (place, known, expected)

    def _check_epochs(self) -> None:
        entries = self.epochs
        assert entries == sorted(entries)
        limit = max(self.end - 1, self.log_start)  # an empty log keeps its last epoch, as beginning at its start
        assert all(entry.start_offset <= limit for entry in entries), (entries, self.end)
        for batch in self.content:
            if batch.epoch < 0 or batch.last < self.log_start:
                continue
            epoch = self.log.leader_epoch_cache.epoch_for_offset(max(batch.first, self.log_start))
            assert epoch == batch.epoch, (batch, entries)

    def _check_producers(self) -> None:
        expected: dict[int, tuple[int, int, int | None]] = {}
        for batch in self.content:
            if batch.producer_id < 0 or batch.last < self.log_start:
                continue
            epoch, sequence, open_at = expected.get(batch.producer_id, (-1, -1, None))
            if batch.control is not None:
                # An end under a later epoch, which fences, makes the producer restart its sequences.
                left = sequence if batch.producer_epoch == epoch else -1
                expected[batch.producer_id] = (batch.producer_epoch, left, None)
                continue
            if batch.transactional and open_at is None:
                open_at = batch.first
            expected[batch.producer_id] = (batch.producer_epoch, batch.last_sequence, open_at)
        for producer_id, (epoch, sequence, open_at) in expected.items():
            entry = self.producers.get(producer_id)
            assert entry is not None, f"producer {producer_id} is forgotten"
            found_at = entry.current_txn_first_offset
            if found_at is not None and found_at < self.log_start:
                found_at = open_at
            assert entry.producer_epoch == epoch, producer_id
            assert sequence in (-1, entry.last_seq), (producer_id, sequence, entry.last_seq)
            assert found_at == open_at, (producer_id, found_at, open_at)
        latest = max([batch.last for batch in self.content], default=self.end)
        for entry in self.producers.values():
            assert entry.last_data_offset <= max(latest, self.end - 1), "a producer from the future"


def positions_of(data: bytes) -> dict[int, int]:
    """Last offset -> position of each batch."""
    return {header.last_offset: header.position for header in native.headers(data)[0]}


def aborted_of(content: Sequence[Batch]) -> list[tuple[int, int, int]]:
    """(producer, first offset, marker's offset) of the aborted transactions that begin in `content`."""
    begun: dict[int, int] = {}
    aborted = []
    for batch in content:
        if batch.control is not None:
            first = begun.pop(batch.producer_id, None)
            if first is not None and batch.control == 0:
                aborted.append((batch.producer_id, first, batch.first))
        elif batch.transactional:
            begun.setdefault(batch.producer_id, batch.first)
    return aborted


def read_tree(folder: str) -> dict[str, bytes]:
    """The files that a second open must leave as the first did."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".deleted"):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
    return found
