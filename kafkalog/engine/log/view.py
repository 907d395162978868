"""PartitionView: reads a partition directory without changing it, without a lock, and without trusting it.

It works while a broker is running. Each `refresh` lists and measures the files once; they are read with pread. The log
ends after the last whole valid batch. Bytes after it are not written yet, unless they are known to be damage: another
valid batch can be proved after them, the directory was closed cleanly, or the partition's recovery point is after them.
Retention may delete files during a read; the directory is then read again. While compaction replaces segments, or after
a crash during that, the view shows the segments that a load would keep.

The state is a `Snapshot`, replaced as a whole. Thread-safe: `refresh` closes nothing that another thread uses.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog._native.codec import batches
from kafkalog._native.state.blocks import Closing
from kafkalog._native.state.walk import walked
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, File, Files, FileStat, local_path
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log import load_cases
from kafkalog.engine.log.checkpoint_lines import CheckpointLines, had_rested
from kafkalog.engine.log.snapshot import SegmentView, Snapshot, SnapshotFiles
from kafkalog.engine.segment.loss import MISFIT, all_zero, reason
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.reader import SEEK_BYTES, Extent, SegmentReader, Unreadable
from kafkalog.engine.segment.resync import next_batch
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.errors import (
    BadBytesError,
    IllegalStateException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files.processes import Life
    from kafkalog.engine.log.source import Ringing
    from kafkalog.engine.log.tier import TierSegment

LOOKS_MAX = 20  # how often a directory is read again if its segments disappear meanwhile
SECOND_LOOK_S = 0.05  # a truncation is checkpointed a moment after it was done
_NOTHING: Mapping[str, FileStat] = {}
T = TypeVar("T")


def _looked_for(error: FileNotFoundError, look: int) -> FileNotFoundError:
    """Returns the error if reading again may help. Raises it for a deleted object the second time.

    Objects are never moved, and the second look has shown what replaced them.
    """
    if look and isinstance(error, RemoteResourceNotFoundException):
        raise error
    return error


class PartitionView(Closing):
    """A read-only view of `log_dir/topic-partition`; a `Source` for readers, and a context manager.

    Raises UnknownTopicOrPartitionException if there is no such directory. `folder` names the directory if it is a
    `-future` copy. `checkpoints` may be shared by all views of a log directory. `log_start_offset` and `log_end_offset`
    are those of the last `refresh()`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        topic_partition: str | TopicPartition,
        *,
        files: Files = OS_FILES,
        folder: str | None = None,
        checkpoints: CheckpointLines | None = None,
    ) -> None:
        self.log_dir = local_path(log_dir, what="log_dir", files=files)
        if isinstance(topic_partition, str):
            topic_partition = names.parse_topic_partition_name(topic_partition)
        self.topic_partition = topic_partition
        self.directory = os.path.join(self.log_dir, folder or str(topic_partition))
        self._files = files
        self._refreshing = threading.RLock()  # reentrant: a signal handler may refresh too
        self._open_files = SnapshotFiles(files, threading.RLock())
        self.life: Life | None = None  # that of the Partition that uses this view
        self._newest = -1  # the largest timestamp of the batches that a look walked over; guarded by _refreshing
        self._searched: tuple[SegmentView, int] | None = None  # no batch after this position
        self._checkpoints = checkpoints or CheckpointLines(self.log_dir, files, only=topic_partition)
        self._closed = False
        self._looked_ms = 0  # when the last look began
        self.snapshot = self._empty(frozenset(), ())  # replaced whole, by the holder of _refreshing
        self.refresh()

    def __enter__(self) -> PartitionView:
        return self

    def close(self) -> None:
        """Closes the files. A reader that holds a file keeps it until it is done."""
        self._closed = True
        self._open_files.keep(())

    def own_view(self) -> PartitionView:
        """Returns another view of the same directory, which the caller closes."""
        self.check_usable()
        return PartitionView(
            self.log_dir, self.topic_partition, files=self._files, folder=os.path.basename(self.directory)
        )

    def rest(self) -> None:
        """Closes files and drops index entries until they are needed again: for one of many views that wait."""
        self._open_files.keep(())
        for segment in self.snapshot.segments:
            segment.forget_entries()

    def tiered(self) -> Sequence[TierSegment]:
        """Returns nothing: the parts of a tier that are read here are among its segments."""
        return ()

    cuts = 0  # constant: `recheck` sees a truncation by another process as a shorter file

    def check_usable(self) -> None:
        """Raises IllegalStateException in a forked child of the process whose Partition uses this view."""
        if self.life is not None and self.life.forked:
            raise self.life.elsewhere(f"the log of {self.topic_partition}")

    # --- contents ----------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[SegmentView, ...]:
        return self.snapshot.segments

    @property
    def log_start_offset(self) -> int:
        return self.snapshot.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.snapshot.log_end_offset

    def refresh(self) -> None:
        """Reads the directory again: segments, their sizes, the log's start and end."""
        self.check_usable()  # a forked child may find the lock held forever
        with self._refreshing:
            for look in range(LOOKS_MAX):
                self._looked_ms = SYSTEM_CLOCK.milliseconds()
                try:
                    self.snapshot = self._look()
                    break
                except FileNotFoundError as error:  # deleted or renamed after the listing
                    gone = _looked_for(error, look)
                except OSError as error:
                    self._raise_unread(error)
            else:
                raise self._restless(gone)
            self._open_files.keep(() if self._closed else self.snapshot.segments)

    recheck = refresh

    def ring_at_change(self, bell: Ringing) -> str:
        return self.directory

    def ring_no_more(self, bell: Ringing) -> None:
        """Does nothing: no bell is ever registered."""

    def has_changed(self) -> bool:
        """Returns whether the directory, or the last segment's file, may have changed since the last look."""
        return self._has_changed_since(self.snapshot)

    def _has_changed_since(self, seen: Snapshot) -> bool:
        try:
            if self._files.stat(self.directory).mtime_ms != seen.mtime_ms:
                return True
            if not had_rested(seen.mtime_ms, self._looked_ms):
                return True  # another change may have the same time
            last = seen.segments[-1] if seen.segments else None
            if last is None:
                return False
            stat = self._files.glance(last.path)
            is_as_long = stat.is_about or stat.size == last.size
            return not is_as_long or stat.mtime_ms != last.mtime_ms
        except OSError:
            return True  # the next look reports the error

    def over(self, ask: Callable[[Snapshot], T]) -> T:
        """Returns `ask(snapshot)`. If files of the snapshot were deleted, uses the next snapshot."""
        self.check_usable()
        if self._closed:
            raise IllegalStateException(
                f"the view of {self.topic_partition} in {self.log_dir} is closed", hint="open it again"
            )
        for look in range(LOOKS_MAX):
            try:
                return ask(self.snapshot)
            except FileNotFoundError as error:
                gone = _looked_for(error, look)
            except OSError as error:
                self._raise_unread(error)
            self.refresh()
        raise self._restless(gone)

    def _raise_unread(self, error: OSError) -> NoReturn:
        if isinstance(error, KafkaStorageException):  # an OSError in Python, with a complete message already
            raise error
        message = f"cannot read {self.topic_partition} in {self.log_dir}"
        raise KafkaStorageException.because_of(error, message) from error

    def _restless(self, error: FileNotFoundError) -> KafkaStorageException:
        raise KafkaStorageException(
            f"{self.topic_partition}: files disappeared during each of {LOOKS_MAX} attempts to read the directory; "
            f"the last one was {error.filename}",
            path=self.directory,
            hint="check whether another process moves or deletes the directory",
        ) from error

    def _empty(self, listed: frozenset[str], segments: tuple[SegmentView, ...]) -> Snapshot:
        return Snapshot(self._files, self._open_files, self.topic_partition, self.directory, listed, segments)

    def _look(self) -> Snapshot:
        seen = self._look_once()
        if seen.unreadable_end is not None and self._checkpoints.forget():
            seen = self._look_once()  # damage must be judged by the current checkpoints
        return seen

    def _look_once(self) -> Snapshot:
        clean = self._checkpoints.was_closed_cleanly()
        # Read before the files are measured: data that was flushed by then is in them, even if a writer is busy.
        flushed = self._checkpoints.line(names.RECOVERY_POINT_CHECKPOINT_FILE, self.topic_partition)
        mtime_ms, listed, known = self._listing()
        seen = self._empty(listed, self._segments(listed, known))
        checkpoint = self._checkpoints.line(names.LOG_START_OFFSET_CHECKPOINT_FILE, self.topic_partition) or 0
        start = max(checkpoint, seen.bases[0]) if seen.bases else checkpoint
        seen.mtime_ms = mtime_ms
        seen.recovery_point = flushed or 0
        seen.log_end_offset = start
        why = batches.OK
        if seen.segments:
            self._newest = -1
            seen.log_end_offset, seen.end_position, why = self._find_end(seen)
            seen.tail_timestamp = self._newest
        seen.log_start_offset = min(start, seen.log_end_offset)
        # Checked twice: a process that starts to write removes the marker first.
        seen.closed_cleanly = clean and self._checkpoints.is_closed_cleanly()
        seen.unreadable_end = self._judge_end(seen, why, flushed, start, clean=seen.closed_cleanly)
        return seen

    def _folder_mtime_ms(self) -> int:
        try:
            stat = self._files.stat(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            stat = None
        if stat is None or not stat.is_dir:
            raise UnknownTopicOrPartitionException(
                f"no partition {self.topic_partition} in {self.log_dir}",
                hint="expected a directory of that name; `kafkalog describe` lists the partitions",
            )
        return stat.mtime_ms

    def _segments(self, listed: frozenset[str], stats: Mapping[str, FileStat] = _NOTHING) -> tuple[SegmentView, ...]:
        """Returns the segments of a listing; `stats` has what is known of the files.

        Raises FileNotFoundError if the listing is too old to find the log's end: files that retention deletes from the
        front may be missing, but none after them.
        """
        known = {segment.path: segment for segment in self.snapshot.segments}
        segments = []
        gone: dict[int, FileNotFoundError] = {}
        for base, name in load_cases.log_files(listed, self._next_offset).items():
            path = os.path.join(self.directory, name)
            try:
                stat = stats.get(name) or self._files.glance(path)
            except FileNotFoundError as error:
                if self._files.is_link(path):
                    what = "a symbolic link without a target; check that its disk is mounted"
                    raise OSError(errno.ENOLINK, what, path) from error
                gone[base] = error
                continue
            if not stat.is_file:
                what = os.strerror(errno.EISDIR) if stat.is_dir else "not a regular file"
                raise OSError(errno.EISDIR if stat.is_dir else errno.EINVAL, what, path)
            old = known.get(path)
            if old is not None and old.is_of(stat):
                segments.append(old)
            else:
                suffix = names.SWAP_FILE_SUFFIX if name.endswith(names.SWAP_FILE_SUFFIX) else ""
                segments.append(SegmentView(self._files, self.directory, base, stat, suffix))
        segments.sort(key=lambda segment: segment.base_offset)
        if gone and (_is_exchanged(listed) or not (segments and max(gone) < segments[0].base_offset)):
            raise gone[max(gone)]
        return tuple(segments)

    def _listing(self) -> tuple[int, frozenset[str], Mapping[str, FileStat]]:
        """Returns the directory's time before the listing, the names in it, and the known stats of its .log files.

        A listing of a directory that changes meanwhile may have a name twice or not at all. While there are names that
        change, two listings must agree.
        """
        looked = self._files.look_into(self.directory, names.LOG_FILE_SUFFIX)
        if looked is not None and not load_cases.transient(looked.names):
            return looked.mtime_ms, frozenset(looked.names), looked.stats
        mtime_ms = self._folder_mtime_ms()
        listed = frozenset(self._files.list_dir(self.directory))
        for _ in range(LOOKS_MAX):
            if not load_cases.transient(listed):
                break
            before, listed = listed, frozenset(self._files.list_dir(self.directory))
            if before == listed:
                break
        return mtime_ms, listed, _NOTHING

    def _next_offset(self, swap: str) -> int:
        """Returns the offset after the last record of a `.swap` file."""
        base = names.segment_base(swap, names.LOG_FILE_SUFFIX + names.SWAP_FILE_SUFFIX)
        assert base is not None
        stat = self._files.stat(os.path.join(self.directory, swap))
        segment = SegmentView(self._files, self.directory, base, stat, names.SWAP_FILE_SUFFIX)
        with self._files.open(segment.path, writable=False) as file:
            return self._walk_to_end(file, segment)[0]

    # --- where the log ends ------------------------------------------------------------------------

    def _find_end(self, seen: Snapshot) -> tuple[int, int, int]:
        """Returns (log end offset, position after the last whole batch, why the bytes after it are not a batch)."""
        last = seen.segments[-1]
        if last.size <= SEEK_BYTES and self._is_short_and_plain(seen, last):
            return seen.log_end_offset, last.size, batches.OK
        file = seen.file(last)
        end, position, why = self._walk_to_end(file, last)
        while position < last.size and not self._known_empty(file, last, position):
            behind = next_batch(file, position + 1, last.size, min_offset=end, base_offset=last.base_offset)
            if behind is None:
                self._searched = (last, position)
                break
            end, again, why = self._walk(file, last, position, end)
            if again == position:  # damage; otherwise the broker has finished it meanwhile
                end, again, why = self._walk(file, last, behind.position, end)
            position = again
        return end, position, why

    def _is_short_and_plain(self, seen: Snapshot, last: SegmentView) -> bool:
        """Checks whether a short last segment has only good batches. The file does not stay open."""
        base, limit = last.base_offset, highest_offset(last.base_offset, None)
        data = self._files.content(last.path, SEEK_BYTES) if limit <= LONG_MAX else None
        found = None if data is None else walked(data, 0, last.size, base, limit)
        if data is None or found is None or found[1] < last.size:
            return False
        seen.log_end_offset, _, self._newest, is_of_transactions = found
        seen.tail_head = data[:RECORD_BATCH_OVERHEAD]
        seen.tail_is_plain = not is_of_transactions
        return True

    def _walk_to_end(self, file: File, segment: SegmentView) -> tuple[int, int, int]:
        """Walks like `_walk`, from the last index entry that the file confirms."""
        base = segment.base_offset
        if segment.size <= SEEK_BYTES:  # walking it is faster than reading its index
            return self._walk(file, segment, 0, base)
        reader = SegmentReader(file, base, highest_offset(base, None), segment.size)
        for start in reader.starts(segment.offset_entries.last_entry()):
            end, position, why = self._walk(file, segment, start, base)
            if position > start or start == 0:
                break
        return end, position, why

    def _walk(self, file: File, segment: SegmentView, start: int, end: int) -> tuple[int, int, int]:
        """Walks whole batches from `start` on.

        Returns the end offset (at least `end`), the position, and the reason of the stop.

        A batch that does not fit hides no later batch that fits. If none follows, a crash tore it, and recovery
        truncates it.
        """
        limit = highest_offset(segment.base_offset, None)
        if segment.size - start <= SEEK_BYTES and max(end, limit) <= LONG_MAX:
            found = walked(file, start, segment.size, end, limit)
            if found is not None:
                end, position, newest, _ = found
                self._newest = max(self._newest, newest)
                return end, position, batches.OK
        scan = LogScan(file, start, segment.size)
        position = start
        for piece in scan:
            table = piece.table
            wrong = misfits(table, end, limit)
            if wrong:
                table = np.delete(table, wrong)
            if len(table):
                end = int(table["last_offset"][-1]) + 1
                self._newest = max(self._newest, int(table["max_timestamp"].max()))
                position = int(table["position"][-1]) + int(table["size"][-1])
        return (end, scan.position, scan.stopped) if position == scan.position else (end, position, MISFIT)

    def _known_empty(self, file: File, segment: SegmentView, position: int) -> bool:
        """Returns whether the tail was searched already.

        The file is then unchanged, or preallocated and zero from here on.
        """
        if self._searched is None:
            return False
        before, start = self._searched
        if before.base_offset != segment.base_offset or start > position or segment.size > before.size:
            return False
        return before is segment or not any(file.pread(min(RECORD_BATCH_OVERHEAD, segment.size - position), position))

    def _judge_end(self, seen: Snapshot, why: int, point: int | None, start: int, *, clean: bool) -> Unreadable | None:
        """Returns what is wrong after the last whole batch; None if it may just not be written yet.

        `point`: the recovery point before the look. `start`: the log start; nothing is missing below it.
        """
        end = seen.log_end_offset
        if not seen.segments:
            return None
        last = seen.segments[-1]
        left = last.size - seen.end_position
        what = f"{reason(why)} where offset {end} should be"
        if point is not None and point > max(end, start):
            if not left:
                what = f"the file ends where offset {end} should be"
            what += f": offsets up to {point - 1} were flushed ({names.RECOVERY_POINT_CHECKPOINT_FILE})"
        elif not (clean and left):
            return None
        elif point is not None and all_zero(seen.file(last), seen.end_position, last.size):
            return None  # preallocated; everything that was flushed exists
        else:
            what += f": the log was closed cleanly ({names.CLEAN_SHUTDOWN_FILE})"
        return Unreadable(last.path, seen.end_position, what)

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """Raises CorruptRecordException if the end that a reader has reached is not the log's end."""
        for look in range(3):
            if look:
                time.sleep(SECOND_LOOK_S)  # another process may be truncating the log
                self.refresh()
            damage = self.over(lambda seen: seen.damage_at_end(isolation))
            if damage is None:
                return
        assert damage is not None
        raise damage.error()

    # --- finding things ----------------------------------------------------------------------------

    def readable_bytes(self, segment: SegmentView) -> int:
        return self.snapshot.readable_bytes(segment)

    def _sure(self, ask: Callable[[Snapshot], T]) -> T:
        """Calls `over`. Tries a second time before unreadable bytes count as damage."""
        try:
            return self.over(ask)
        except BadBytesError:
            time.sleep(SECOND_LOOK_S)  # another process may be replacing or truncating the segment
        self.refresh()
        return self.over(ask)

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        return self._sure(lambda seen: seen.extent(offset, isolation))

    def has(self, extent: Extent) -> bool:
        """Returns the same as Source; if the file changed, reads the directory again."""
        segment = extent.owner
        assert isinstance(segment, SegmentView), extent
        try:
            if self._files.stat(segment.path).inode == segment.inode:
                return True
        except OSError:
            pass  # the refresh reports the error
        self.refresh()
        return False

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._sure(lambda seen: seen.visible_end(isolation))

    def offset_for_time(self, timestamp_ms: int, start: int = 0) -> int | None:
        """Returns the same as Source, for records from `start` on."""
        return self._sure(lambda seen: seen.offset_for_time(timestamp_ms, start))

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end."""
        return self._sure(lambda seen: seen.last_stable_offset)

    @property
    def aborted(self) -> list[AbortedTxn]:
        """Every aborted transaction that the directory knows, by first offset."""
        return self._sure(lambda seen: seen.aborted)

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        return self._sure(lambda seen: seen.aborted_in(first_offset, last_offset))


def _is_exchanged(listed: frozenset[str]) -> bool:
    """Returns whether segments may be being replaced: then a missing file was not deleted by retention."""
    return any(name.endswith((names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX)) for name in listed)
