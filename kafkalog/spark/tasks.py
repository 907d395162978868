"""A task's work: the range that the driver planned, read from the files as they are when it runs."""

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
FILL_ROWS = 32_000  # where a batch of the log is never cut in two
BATCH_BYTES = 8 << 20
LARGE_BATCH_BYTES = 24 << 20  # three of these are much of what a worker may take
LATEST_MEMORY_BYTES = 96 << 20
CHUNK_BYTES = 4 << 20
PLANS_MAX = 20  # of one task


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
    """What ChunkReader needs of a partition, over the pieces of one range: all bytes of a piece are whole batches.

    Where compaction or retention has changed the files since they were planned, what is left is planned anew; what is
    gone by then is told.
    """

    def __init__(self, work: OffsetRange, options: SourceOptions, tell: Tell) -> None:
        self.topic_partition = TopicPartition(work.topic, work.partition)
        self.work = work
        self._bases = [piece.segment_base for piece in work.pieces]
        self._place = 0  # of the piece that was handed out last
        self._options = options
        self.tell = tell
        self._is_doubtful = False
        self._planned_again: Piece | None = None
        self._remote: RemotePieces | None = None
        self._gone: RemoteResourceNotFoundException | None = None  # the object that was planned
        self._plans = 1
        self.is_as_planned = True  # no file that was planned has gone, or is another

    cuts = 0  # the driver has said where the range ends

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
        """Asked by readers before each read."""

    def recheck(self) -> None:
        """What was read makes no sense: are these the files that were planned?"""
        self._is_doubtful = True

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """The driver has judged the log's end."""

    def later_segment(self) -> int | None:
        """Where the piece after the present one begins; its offsets are above all that come before it."""
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
        """A piece's file; None where that is gone, or has something else there now."""
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
        self._planned_again = piece  # the same once more is what the log has, sound or not
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
            if piece == self._planned_again:  # it is listed, and is not there
                raise
            self._planned_again = piece
            self._gone = error
            return None

    def _check_history(self, files: RemoteFiles, piece: Piece) -> None:
        """Tells of a segment that is listed, and of a history that was given up."""
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
        """Tells of a segment that ends before what was planned of it."""
        from kafkalog.spark.remote_pieces import gap_behind

        files, remote, next_base = remote_files_of(piece.path), piece.remote, piece.next_base
        if remote is None or next_base is None or self._end(piece) < files.storage.log_size(remote):
            return
        if gap_behind(files, remote, last_offset, next_base) and last_offset + 1 < self.work.end_offset:
            end = min(next_base, self.work.end_offset)
            lost(self._options, gap_text(self.topic_partition, last_offset + 1, end, remote), self.tell)

    def explain(self, error: KafkalogError) -> None:
        """Two segments that overlap, none of which begins with a batch of the other one, look like damage where names
        alone were planned from."""
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
        """Ends what is fetched ahead."""
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
        """Take the files as they are now, for what is left from `offset` on."""
        self._is_doubtful = False
        self._plans += 1
        self.close()  # its pieces are others from now on
        look_again(self.work.log_dir)
        if self._plans > PLANS_MAX:
            raise KafkaStorageException(
                f"{self.topic_partition}: its files went away {PLANS_MAX} times while a task read them",
                path=self.work.log_dir,
                hint="is somebody moving or deleting the directory?",
            )
        try:
            log_dir = self.work.log_dir
            with PartitionView(log_dir, self.topic_partition, files=files_of(log_dir)) as view:
                self.work = ask(view, partial(self._left, offset=offset))
        except CorruptRecordException:
            return  # damage, which is to be told as it was met
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
                    f"planned, and are gone{self._object_gone()}",
                    self.tell,
                )
        left = span(seen, start, max(start, end), self._options.isolation)
        work = self.work
        return replace(left, start_offset=work.start_offset, end_offset=work.end_offset, history=work.history)

    def _object_gone(self) -> str:
        return "" if self._gone is None else f": {self._gone}"

    def has(self, extent: Extent) -> bool:
        return True  # the transactions are of the plan, as the stretches

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
    """The record batches of a task's ranges, one range after the other; what is small is joined, for each batch costs
    Spark about as much as a thousand rows.  At damage the records before it come first, then the error."""
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
    """The batches, and behind each large one an empty one: Spark's worker keeps a batch until it has the next, and
    memory for a third one of 100 MB is not needed while that is read."""
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
    """The record batches of a range: about FILL_ROWS rows each, or BATCH_BYTES of keys, values and headers.

    `tell` is called with what is passed over, as it is met: why, and between which offsets.
    """
    worker.settle()
    mount(options.remote, options.paths)  # another query may have come between
    needed = without_replica(columns)
    with closing(RangeSource(work, options, tell)) as source:
        if work.changes_from is not None:
            yield from _changes(source, options, columns, tell)
            return
        batches = _latest(source, options, needed, tell) if options.latest else _rows(source, options, needed, wanted)
        yield from with_replica(batches, columns, work.log_dir)


def _rows(source: RangeSource, options: SourceOptions, columns: Sequence[str], wanted: Wanted) -> Iterator[Any]:
    """The record batches, with what is passed over told as it is met."""
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
        behind = work.start_offset  # the last row
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
    """Columns as a Match looks at them, and those of Spark that it does not know."""
    from kafkalog._face import arrow

    return {**arrow.PYTHON_COLUMNS, "timestampType": arrow.SPARK_COLUMNS["timestampType"]}


def _as_sparks(batch: Any, columns: Sequence[str]) -> Any:
    """Rows of such columns as those of Spark's."""
    from kafkalog._face import arrow

    if "timestamp" in columns:
        at = batch.schema.get_field_index("timestamp")
        only = {"timestamp": batch.column(at).view("int64"), "offset": batch.column("offset")}
        times = arrow.typed(only, arrow.schema(["timestamp"], arrow.SPARK_COLUMNS), arrow.SPARK_COLUMNS)
        batch = batch.set_column(at, times.schema.field(0), times.column(0))
    return batch.select(list(columns))


def _latest(source: RangeSource, options: SourceOptions, columns: Sequence[str], tell: Tell) -> Iterator[Any]:
    """The last value of each key of a range, by offset; at damage, where that is let pass, the state before it."""
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
    """What became of each key behind `changes_from`; damage as in `_latest`, and below that no value is known."""
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
        # A cleaner, or retention, may have taken values before the start.
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
