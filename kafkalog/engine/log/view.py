"""A partition directory seen without touching it: no lock, no write, no trust in what a crash may have left.

Works beside a running broker: files are listed and measured once per `refresh`, read with pread, and the log ends
after the last whole valid batch that is seen.  What lies behind it is not written yet, unless another valid batch can
be proved behind it, or the directory was closed cleanly, or the partition's recovery point lies behind it: then it is
damage.  Retention may delete what we look at: then the directory is looked at anew.  While a compaction's segments take
the place of others, or after a crash in the middle of that, those are shown that a load would leave.

What was seen is a `Snapshot`, replaced whole.  Thread-safe: `refresh` closes nothing under another thread.
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

LOOKS_MAX = 20  # at a directory whose segments go while we look
SECOND_LOOK_S = 0.05  # a truncation is checkpointed a moment after it was done
_NOTHING: Mapping[str, FileStat] = {}
T = TypeVar("T")


def _looked_for(error: FileNotFoundError, look: int) -> FileNotFoundError:
    """What one more look may find.  Raises it for an object that is gone: nobody moves those, and the second look has
    shown what came in their place."""
    if look and isinstance(error, RemoteResourceNotFoundException):
        raise error
    return error


class PartitionView(Closing):
    """A read-only look at `log_dir/topic-partition`, a `Source` of readers; a context manager.

    UnknownTopicOrPartitionException when there is no such folder; `folder` names it where it is not the partition's
    own, but a `-future` copy.  `checkpoints` are one for all views of a directory.  `log_start_offset` and
    `log_end_offset` are those of the last `refresh()`.
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
        self._refreshing = threading.RLock()  # a signal handler may look as well
        self._open_files = SnapshotFiles(files, threading.RLock())
        self.life: Life | None = None  # of the Partition that looks through it
        self._newest = -1  # the largest timestamp of the batches that a look walked over; by _refreshing
        self._searched: tuple[SegmentView, int] | None = None  # no batch from there to its end; by _refreshing
        self._checkpoints = checkpoints or CheckpointLines(self.log_dir, files, only=topic_partition)
        self._closed = False
        self._looked_ms = 0  # when the last look began
        self.snapshot = self._empty(frozenset(), ())  # replaced whole, by the holder of _refreshing
        self.refresh()

    def __enter__(self) -> PartitionView:
        return self

    def close(self) -> None:
        """Let go of the files; readers that hold one keep it until they are done with it."""
        self._closed = True
        self._open_files.keep(())

    def own_view(self) -> PartitionView:
        """Another one of the same folder, for whoever closes it."""
        self.check_usable()
        return PartitionView(
            self.log_dir, self.topic_partition, files=self._files, folder=os.path.basename(self.directory)
        )

    def rest(self) -> None:
        """Let go of files and index entries until they are asked for again: for one of many views that wait."""
        self._open_files.keep(())
        for segment in self.snapshot.segments:
            segment.forget_entries()

    def tiered(self) -> Sequence[TierSegment]:
        """None: what of a tier is read here is among its segments."""
        return ()

    cuts = 0  # what another process cuts shows as a file that ends earlier: `recheck` looks again

    def check_usable(self) -> None:
        """IllegalStateException in a forked child of the process whose Partition looks through this view."""
        if self.life is not None and self.life.forked:
            raise self.life.elsewhere(f"the log of {self.topic_partition}")

    # --- what there is -----------------------------------------------------------------------------

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
        """Look at the directory again: segments, their sizes, the log's start and end."""
        self.check_usable()  # the lock may be held for ever in a forked child
        with self._refreshing:
            for look in range(LOOKS_MAX):
                self._looked_ms = SYSTEM_CLOCK.milliseconds()
                try:
                    self.snapshot = self._look()
                    break
                except FileNotFoundError as error:  # deleted or renamed since it was listed
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
        """It never was to ring."""

    def has_changed(self) -> bool:
        """Whether the last segment's file may be another than at the last look, or the directory may: two questions."""
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
            return True  # a look says what is wrong

    def over(self, ask: Callable[[Snapshot], T]) -> T:
        """The answer of a snapshot; where files that it names have gone, that of the next one."""
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
        if isinstance(error, KafkaStorageException):  # an OSError for Python, which says what is wrong already
            raise error
        message = f"cannot read {self.topic_partition} in {self.log_dir}"
        raise KafkaStorageException.because_of(error, message) from error

    def _restless(self, error: FileNotFoundError) -> KafkaStorageException:
        raise KafkaStorageException(
            f"{self.topic_partition}: files went away at each of {LOOKS_MAX} looks, the last one was {error.filename}",
            path=self.directory,
            hint="is somebody moving or deleting the directory?",
        ) from error

    def _empty(self, listed: frozenset[str], segments: tuple[SegmentView, ...]) -> Snapshot:
        return Snapshot(self._files, self._open_files, self.topic_partition, self.directory, listed, segments)

    def _look(self) -> Snapshot:
        seen = self._look_once()
        if seen.unreadable_end is not None and self._checkpoints.forget():
            seen = self._look_once()  # what is called damage goes by checkpoints of now
        return seen

    def _look_once(self) -> Snapshot:
        clean = self._checkpoints.was_closed_cleanly()
        # Before the files are measured: what was flushed by then is in them, however busy their writer is.
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
        # Asked twice: who starts to write removes the marker first.
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
                hint="expected a folder of that name; list them with `kafkalog describe`",
            )
        return stat.mtime_ms

    def _segments(self, listed: frozenset[str], stats: Mapping[str, FileStat] = _NOTHING) -> tuple[SegmentView, ...]:
        """Those of a listing, and of what it knows of files.  FileNotFoundError where it has become too old to tell
        where the log ends: what retention takes from the front meanwhile may be missing, nothing behind it."""
        known = {segment.path: segment for segment in self.snapshot.segments}
        segments = []
        gone: dict[int, FileNotFoundError] = {}
        for base, name in load_cases.log_files(listed, self._next_offset).items():
            path = os.path.join(self.directory, name)
            try:
                stat = stats.get(name) or self._files.glance(path)
            except FileNotFoundError as error:
                if self._files.is_link(path):
                    what = "a symbolic link that leads nowhere, is its disk mounted?"
                    raise OSError(errno.ENOLINK, what, path) from error
                gone[base] = error
                continue
            if not stat.is_file:
                what = os.strerror(errno.EISDIR) if stat.is_dir else "no regular file"
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
        """The folder's time before it was listed, the names in it, and what is known of its .log files.  A folder that
        is changed meanwhile may have a name in a listing twice or not at all: while there are names that change two
        listings must agree."""
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
        """The offset behind the last record of a `.swap`."""
        base = names.segment_base(swap, names.LOG_FILE_SUFFIX + names.SWAP_FILE_SUFFIX)
        assert base is not None
        stat = self._files.stat(os.path.join(self.directory, swap))
        segment = SegmentView(self._files, self.directory, base, stat, names.SWAP_FILE_SUFFIX)
        with self._files.open(segment.path, writable=False) as file:
            return self._walk_to_end(file, segment)[0]

    # --- where the log ends ------------------------------------------------------------------------

    def _find_end(self, seen: Snapshot) -> tuple[int, int, int]:
        """(log end offset, position behind the last whole batch, why the bytes behind it are no batch)."""
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
            if again == position:  # damage; else the broker finished it meanwhile
                end, again, why = self._walk(file, last, behind.position, end)
            position = again
        return end, position, why

    def _is_short_and_plain(self, seen: Snapshot, last: SegmentView) -> bool:
        """Whether a short last segment is all good batches: looked at without a file that stays open."""
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
        """As `_walk`, from the last index entry on that the file confirms."""
        base = segment.base_offset
        if segment.size <= SEEK_BYTES:  # walked sooner than its index is read
            return self._walk(file, segment, 0, base)
        reader = SegmentReader(file, base, highest_offset(base, None), segment.size)
        for start in reader.starts(segment.offset_entries.last_entry()):
            end, position, why = self._walk(file, segment, start, base)
            if position > start or start == 0:
                break
        return end, position, why

    def _walk(self, file: File, segment: SegmentView, start: int, end: int) -> tuple[int, int, int]:
        """Whole batches from `start` on: the offset behind those that fit (at least `end`), where they stop, why.

        One that does not fit hides none behind it that does; behind all that do, it is what a crash tore, and recovery
        cuts.
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
        """Whether the tail was searched already: the file is as it was, or preallocated and zero from here on."""
        if self._searched is None:
            return False
        before, start = self._searched
        if before.base_offset != segment.base_offset or start > position or segment.size > before.size:
            return False
        return before is segment or not any(file.pread(min(RECORD_BATCH_OVERHEAD, segment.size - position), position))

    def _judge_end(self, seen: Snapshot, why: int, point: int | None, start: int, *, clean: bool) -> Unreadable | None:
        """What is wrong behind the last whole batch; None where it may just not be written yet.  `point`: the recovery
        point before the look; `start`: the log start, below which nothing is missed."""
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
            return None  # preallocated; all that was flushed is there
        else:
            what += f": the log was closed cleanly ({names.CLEAN_SHUTDOWN_FILE})"
        return Unreadable(last.path, seen.end_position, what)

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """CorruptRecordException when the end that a reader of that isolation has reached is not the log's end."""
        for look in range(3):
            if look:
                time.sleep(SECOND_LOOK_S)  # somebody may be cutting the log right now
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
        """As `over`; what cannot be read is looked at a second time before it is called damage."""
        try:
            return self.over(ask)
        except BadBytesError:
            time.sleep(SECOND_LOOK_S)  # somebody may be replacing or cutting the segment right now
        self.refresh()
        return self.over(ask)

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        return self._sure(lambda seen: seen.extent(offset, isolation))

    def has(self, extent: Extent) -> bool:
        """As Source; looks at the directory again where it has not."""
        segment = extent.owner
        assert isinstance(segment, SegmentView), extent
        try:
            if self._files.stat(segment.path).inode == segment.inode:
                return True
        except OSError:
            pass  # a look says what is wrong
        self.refresh()
        return False

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._sure(lambda seen: seen.visible_end(isolation))

    def offset_for_time(self, timestamp_ms: int, start: int = 0) -> int | None:
        """As Source, of records from `start` on."""
        return self._sure(lambda seen: seen.offset_for_time(timestamp_ms, start))

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end."""
        return self._sure(lambda seen: seen.last_stable_offset)

    @property
    def aborted(self) -> list[AbortedTxn]:
        """Every aborted transaction that the directory knows of, by first offset."""
        return self._sure(lambda seen: seen.aborted)

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        return self._sure(lambda seen: seen.aborted_in(first_offset, last_offset))


def _is_exchanged(listed: frozenset[str]) -> bool:
    """Whether segments may have been taking the place of others since: what went is no retention's, then."""
    return any(name.endswith((names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX)) for name in listed)
