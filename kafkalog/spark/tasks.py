"""A task's work: reads the range that the driver planned, from the files as they are when the task runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from kafkalog._face.chunk_reader import ChunkReader
from kafkalog.engine.files import File
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.source import Source
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.index_reader import last_position
from kafkalog.engine.segment.order import highest_offset
from kafkalog.engine.segment.reader import Extent
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.errors import (
    BadBytesError,
    CorruptRecordException,
    InvalidRecordException,
    KafkalogError,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    UnknownTopicOrPartitionException,
)
from kafkalog.spark import worker
from kafkalog.spark.changes import COLUMN_TYPES
from kafkalog.spark.filters import ALL, Wanted
from kafkalog.spark.options import SourceOptions
from kafkalog.spark.places import files_of, look_again, mount, remote_files_of
from kafkalog.spark.planning import OVERLAP_HINT, Tell, ask, damaged, gap_text, lost, span, warn
from kafkalog.spark.ranges import OffsetRange, Piece
from kafkalog.spark.replica_column import with_replica, without_replica

if TYPE_CHECKING:
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.spark.remote_pieces import RemotePieces

BATCH_ROWS = 64_000
FILL_ROWS = 32_000  # rows of a record batch if batches of the log are not split
BATCH_BYTES = 8 << 20
LARGE_BATCH_BYTES = 24 << 20  # three such batches use much of a worker's memory
LATEST_MEMORY_BYTES = 96 << 20
CHUNK_BYTES = 4 << 20
PLANS_MAX = 20  # for one task


class RangePartition(InputPartition):  # type: ignore[misc]
    """One task: ranges that are read one after the other."""

    def __init__(self, works: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.works = works

    def __repr__(self) -> str:
        first = self.works[0]
        more = f" and {len(self.works) - 1} more" if len(self.works) > 1 else ""
        return f"{first.topic}-{first.partition}[{first.start_offset}, {first.end_offset}){more}"


class RangeSource(Source):
    """The source for a ChunkReader over the pieces of one range: all bytes of a piece are whole batches.

    If compaction or retention has changed the files since they were planned, the rest is planned again, and offsets
    that no longer exist are reported.
    """

    def __init__(self, work: OffsetRange, options: SourceOptions, tell: Tell) -> None:
        self.topic_partition = TopicPartition(work.topic, work.partition)
        self.work = work
        self._bases = [piece.segment_base for piece in work.pieces]
        self._place = 0  # the piece that was returned last
        self._options = options
        self.tell = tell
        self._is_doubtful = False
        self._planned_again: Piece | None = None
        self._remote: RemotePieces | None = None
        self._gone: RemoteResourceNotFoundException | None = None  # the planned object that no longer exists
        self._plans = 1
        self.is_as_planned = True  # no planned file was deleted or replaced

    cuts = 0  # the driver has decided where the range ends

    @property
    def log_dir(self) -> str:
        return self.work.log_dir

    @property
    def log_start_offset(self) -> int:
        return self.work.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.work.end_offset

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self.work.end_offset

    def check_usable(self) -> None:
        """Does nothing; readers call it before each read."""

    def recheck(self) -> None:
        """Is called if what was read is not valid: plans again, since the files may not be the planned ones."""
        self._is_doubtful = True

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """Does nothing: the driver has checked the log's end."""

    def later_segment(self) -> int | None:
        """Returns the base offset of the next piece; its offsets are above all that come before it."""
        following = self._bases[self._place + 1 : self._place + 2]
        return following[0] if following else None

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        if self._is_doubtful:
            self._plan_anew(offset)
        while True:
            place = max(bisect_right(self._bases, offset) - 1, 0)
            last = len(self.work.pieces) - 1
            if place > last or (place == last and self.work.pieces[last].ends_below(offset)):
                return None
            file = self._file(place)
            if file is not None:
                return self._extent(place, file)
            self._plan_anew(offset)

    def _file(self, place: int) -> File | None:
        """Returns a piece's file; None if it was deleted or replaced."""
        piece = self.work.pieces[place]
        if piece.remote is not None:
            return self._remote_file(place, piece)
        try:
            file = files_of(self.work.log_dir).open(piece.path, writable=False)
        except FileNotFoundError:
            self.is_as_planned = False
            return None
        final = place + 1 == len(self.work.pieces)
        if piece == self._planned_again or piece.is_in(file, self.work.end_offset if final else None):
            return file
        self._planned_again = piece  # the same file once more is what the log has, damaged or not
        self.is_as_planned = False
        return None

    def _remote_file(self, place: int, piece: Piece) -> File | None:
        from kafkalog.spark.remote_pieces import RemotePieces

        files = remote_files_of(piece.path)
        if self._remote is None:
            self._remote = RemotePieces(files.chunks.cache_bytes)
        following = [each for each in self.work.pieces[place + 1 : place + 5] if each.remote is not None]
        try:
            self._check_history(files, piece)
            return self._remote.open(files, piece, following)
        except RemoteResourceNotFoundException as error:
            if piece == self._planned_again:  # it is listed, but does not exist
                raise
            self._planned_again = piece
            self._gone = error
            return None

    def _check_history(self, files: RemoteFiles, piece: Piece) -> None:
        """Reports a listed segment from a history that was discarded."""
        from kafkalog.spark.remote_pieces import is_given_up

        next_base = self.work.end_offset if piece.next_base is None else piece.next_base
        if piece.remote is not None and is_given_up(files, piece.remote, next_base, self.work.history):
            lost(
                self._options,
                f"{self.topic_partition}: segment {piece.remote.remote_log_segment_id.id} from offset "
                f"{piece.segment_base} on has other leader epochs than the last one; {OVERLAP_HINT}",
                self.tell,
            )

    def _used_up(self, piece: Piece, last_offset: int) -> None:
        """Reports a segment that ends before its planned end."""
        from kafkalog.spark.remote_pieces import gap_behind

        files, remote, next_base = remote_files_of(piece.path), piece.remote, piece.next_base
        if remote is None or next_base is None or self._end(piece) < files.storage.log_size(remote):
            return
        if gap_behind(files, remote, last_offset, next_base) and last_offset + 1 < self.work.end_offset:
            end = min(next_base, self.work.end_offset)
            lost(self._options, gap_text(self.topic_partition, last_offset + 1, end, remote), self.tell)

    def explain(self, error: KafkalogError) -> None:
        """Adds a hint to an error.

        Two overlapping segments look like damage in a plan from names, unless one begins with a batch of the other.
        """
        if self.work.history:
            error.hint = "; ".join(filter(None, (error.hint, OVERLAP_HINT)))

    def _last_position(self, piece: Piece) -> int:
        if piece.remote is None:
            return last_position(files_of(self.work.log_dir), piece.index_path)
        from kafkalog.spark.remote_pieces import indexed_position

        return indexed_position(remote_files_of(piece.path), piece.remote)

    @staticmethod
    def _end(piece: Piece) -> int:
        if not piece.is_open:
            return piece.end
        from kafkalog.spark.remote_pieces import end_of

        return end_of(remote_files_of(piece.path).storage, piece)

    def close(self) -> None:
        """Stops fetching ahead."""
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def _extent(self, place: int, file: File) -> Extent:
        self._place = place
        piece = self.work.pieces[place]
        final = place + 1 == len(self.work.pieces)
        next_base = piece.next_base if final and piece.ends_below(self.work.end_offset) else self.later_segment()
        return Extent(
            file,
            piece.segment_base,
            piece.start,
            self._end(piece),
            next_base=next_base,
            may_overlap=piece.remote is not None,
            final=final,
            indexed_position=partial(self._last_position, piece),
            used_up=None if piece.remote is None else partial(self._used_up, piece),
            base_limit=self.work.end_offset - 1,
            limit=highest_offset(piece.segment_base, piece.next_base),
        )

    def _plan_anew(self, offset: int) -> None:
        """Plans the rest, from `offset` on, with the files as they are now."""
        self._is_doubtful = False
        self._plans += 1
        self.close()  # its pieces change
        look_again(self.work.log_dir)
        if self._plans > PLANS_MAX:
            raise KafkaStorageException(
                f"{self.topic_partition}: its files disappeared {PLANS_MAX} times while a task read them",
                path=self.work.log_dir,
                hint="check whether another process moves or deletes the directory",
            )
        try:
            log_dir = self.work.log_dir
            with PartitionView(log_dir, self.topic_partition, files=files_of(log_dir)) as view:
                self.work = ask(view, partial(self._left, offset=offset))
        except CorruptRecordException:
            return  # damage, which is reported as it was found
        except UnknownTopicOrPartitionException:
            lost(
                self._options,
                f"{self.topic_partition} was deleted since the query was planned: nothing is left from offset {offset} "
                f"on{self._object_gone()}",
                self.tell,
            )
            self.work = replace(self.work, pieces=())
        self._gone = None
        self._bases = [piece.segment_base for piece in self.work.pieces]
        self._place = 0

    def _left(self, seen: Snapshot, offset: int) -> OffsetRange:
        start, end = max(offset, seen.log_start_offset), min(self.work.end_offset, seen.log_end_offset)
        if start > offset or end < self.work.end_offset:
            lost(
                self._options,
                f"{self.topic_partition}: offsets [{offset}, {self.work.end_offset}) were planned, now the log has "
                f"[{seen.log_start_offset}, {seen.log_end_offset}){self._object_gone()}",
                self.tell,
            )
        elif self._gone is not None and self._planned_again is not None:
            piece = self._planned_again
            there = seen.bases[max(bisect_right(seen.bases, piece.segment_base) - 1, 0)] if seen.bases else -1
            if there != piece.segment_base:
                behind = next((base for base in seen.bases if base > piece.segment_base), end)
                lost(
                    self._options,
                    f"{self.topic_partition}: offsets [{max(offset, piece.segment_base)}, {min(behind, end)}) were "
                    f"planned but no longer exist{self._object_gone()}",
                    self.tell,
                )
        left = span(seen, start, max(start, end), self._options.isolation)
        work = self.work
        return replace(left, start_offset=work.start_offset, end_offset=work.end_offset, history=work.history)

    def _object_gone(self) -> str:
        return "" if self._gone is None else f": {self._gone}"

    def has(self, extent: Extent) -> bool:
        return True  # the plan has the transactions, as well as the pieces

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        return [txn for txn in self.work.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return None


def read_task(
    works: Sequence[OffsetRange],
    options: SourceOptions,
    columns: Sequence[str],
    wanted: Wanted = ALL,
    tell: Tell = warn,
) -> Iterator[Any]:
    """Yields the record batches of a task's ranges, one range after the other.

    Small batches are joined, since each batch costs Spark as much as a thousand rows.  If there is damage, the records
    before it come first, then the error.
    """
    if len(works) == 1:
        yield from _let_go(read_range(works[0], options, columns, wanted, tell))
        return
    from kafkalog._face import arrow

    gathered = arrow.Gathered(BATCH_ROWS, BATCH_BYTES)
    try:
        for work in works:
            for batch in read_range(work, options, columns, wanted, tell):
                yield from gathered.add(batch)
    except KafkalogError:
        yield from gathered.rest()
        raise
    yield from gathered.rest()


def _let_go(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches, and an empty one after each large one.

    Spark's worker keeps a batch until it has the next.  With the empty one, memory for a third batch of 100 MB is not
    needed while the next is read.
    """
    import pyarrow as pa

    for batch in batches:
        schema = batch.schema if batch.nbytes >= LARGE_BATCH_BYTES else None
        yield batch
        if schema is not None:
            del batch
            yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def read_range(
    work: OffsetRange, options: SourceOptions, columns: Sequence[str], wanted: Wanted = ALL, tell: Tell = warn
) -> Iterator[Any]:
    """Yields the record batches of a range: about FILL_ROWS rows each, or BATCH_BYTES of keys, values and headers.

    `tell` is called with a text for each thing that is skipped: the reason and the offsets.
    """
    worker.settle()
    mount(options.remote, options.paths)  # another query may have changed the mounts
    needed = without_replica(columns)
    with closing(RangeSource(work, options, tell)) as source:
        if work.changes_from is not None:
            yield from _changes(source, options, columns, tell)
            return
        batches = _latest(source, options, needed, tell) if options.latest else _rows(source, options, needed, wanted)
        yield from with_replica(batches, columns, work.log_dir)


def _rows(source: RangeSource, options: SourceOptions, columns: Sequence[str], wanted: Wanted) -> Iterator[Any]:
    """Yields the record batches, and reports what is skipped."""
    from kafkalog._face import arrow

    work, tell = source.work, source.tell
    selection, known = options.question.selection(), arrow.SPARK_COLUMNS
    wanted = options.question.narrowed(wanted, rows=True)
    limits = {
        "timestamp_min": wanted.timestamp_min,
        "timestamp_max": wanted.timestamp_max,
        "wanted_keys": selection.keys,
        "rows_max": FILL_ROWS,
    }
    needed: Sequence[str] = columns
    if selection.match is not None:
        needed = list(dict.fromkeys([*columns, "offset", *selection.match.columns]))
        known = matched_columns()
    with ChunkReader(
        source,
        work.start_offset,
        end_offset=work.end_offset,
        chunk_bytes=CHUNK_BYTES,
        isolation=options.isolation,
    ) as reader:
        behind = work.start_offset  # after the last row
        while True:
            try:
                for last_offset, batch in arrow.placed_batches(
                    reader, needed, BATCH_ROWS, known, batch_bytes=BATCH_BYTES, limits=limits
                ):
                    if selection.match is not None:
                        batch = _as_sparks(selection.match.filtered(batch), columns)
                    if batch.num_rows:
                        yield batch
                    behind, batch = last_offset + 1, None  # not kept while the next one is read
                return
            except (BadBytesError, InvalidRecordException) as error:
                later = source.later_segment()
                source.explain(error)
                damaged(options, error, tell, skipped=(behind, work.end_offset if later is None else later))
            if later is None:
                return
            behind = later
            reader.seek(later)


def matched_columns() -> Mapping[str, tuple[str, Any]]:
    """Returns the columns that a Match reads, and the Spark column that it does not know."""
    from kafkalog._face import arrow

    return {**arrow.PYTHON_COLUMNS, "timestampType": arrow.SPARK_COLUMNS["timestampType"]}


def _as_sparks(batch: Any, columns: Sequence[str]) -> Any:
    """Converts rows with the columns of a Match to rows with Spark's columns."""
    from kafkalog._face import arrow

    if "timestamp" in columns:
        at = batch.schema.get_field_index("timestamp")
        only = {"timestamp": batch.column(at).view("int64"), "offset": batch.column("offset")}
        times = arrow.typed(only, arrow.schema(["timestamp"], arrow.SPARK_COLUMNS), arrow.SPARK_COLUMNS)
        batch = batch.set_column(at, times.schema.field(0), times.column(0))
    return batch.select(list(columns))


def _latest(source: RangeSource, options: SourceOptions, columns: Sequence[str], tell: Tell) -> Iterator[Any]:
    """Yields the last value of each key of a range, by offset; after tolerated damage, the state before it."""
    from kafkalog._face import arrow
    from kafkalog._face.latest import Latest

    selection = options.question.selection().unpruned()
    found = Latest(
        source,
        limits=selection.limits(selection.times),
        isolation=options.isolation,
        memory_bytes=LATEST_MEMORY_BYTES,
    )
    try:
        if selection.match is None:
            yield from found.batches(columns, BATCH_ROWS, arrow.SPARK_COLUMNS, batch_bytes=BATCH_BYTES)
            return
        needed = list(dict.fromkeys([*columns, "offset", *selection.match.columns]))
        for batch in found.batches(needed, BATCH_ROWS, matched_columns(), batch_bytes=BATCH_BYTES):
            batch = _as_sparks(selection.match.filtered(batch), columns)
            if batch.num_rows:
                yield batch
    except (BadBytesError, InvalidRecordException) as error:
        source.explain(error)
        damaged(options, error, tell)


def _changes(source: RangeSource, options: SourceOptions, columns: Sequence[str], tell: Tell) -> Iterator[Any]:
    """Yields the change of each key from `changes_from` on; after damage before it, no old value is known."""
    from kafkalog._face import arrow
    from kafkalog._face.changes import Changes, scratch_folder

    selection = options.question.selection().unpruned()
    assert source.work.changes_from is not None
    try:
        found = Changes(
            source,
            start=source.work.changes_from,
            is_whole=source.work.is_whole,
            limits=selection.limits(selection.times),
            isolation=options.isolation,
            memory_bytes=LATEST_MEMORY_BYTES,
        )
        # A cleaner, or retention, may have removed values before the start.
        found.is_whole = found.is_whole and source.is_as_planned
        if found.failure_before is not None:
            source.explain(found.failure_before)
            damaged(options, found.failure_before, tell)
        needed = [name for name in columns if name not in COLUMN_TYPES]
        known = arrow.SPARK_COLUMNS
        if selection.match is not None:
            needed = list(dict.fromkeys([*needed, "offset", *selection.match.columns]))
            known = matched_columns()
        for batch in found.changes(needed, BATCH_ROWS, known, batch_bytes=BATCH_BYTES, scratch=scratch_folder()):
            if selection.match is not None:
                batch = _as_sparks(selection.match.filtered(batch), columns)
            if batch.num_rows:
                yield batch.select(list(columns))
    except (BadBytesError, InvalidRecordException) as error:
        source.explain(error)
        damaged(options, error, tell)
