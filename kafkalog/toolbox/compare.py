"""Compares the partitions of two log directories: a copy with its source, a backup with its original, two replicas.

If both have a partition, the offsets that both have are compared: from the larger log start offset to the smaller log
end offset, as they were seen first.  That range is split into pieces at offsets where both logs begin a batch.  Pieces
with the same bytes are equal, even in different segments.  Only the others are decoded and compared column by column.
So batch layout, compression, producer ids and leader epochs do not count, unless bytes are to be compared.  Markers of
transactions are no records and count only as bytes.  However, a transaction that one log has aborted and the other has
not is a difference, because read_committed readers see it.  Equal bytes are not checked for damage: `verify` does that.

Only reads, takes no lock, works while others write.  Needs pyarrow if bytes differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkalog._face.chunk_reader import UNREADABLE, ChunkReader
from kafkalog._face.named import is_glob, names_partition
from kafkalog._face.selected import batches_in, selected_range
from kafkalog._face.selection import Selection
from kafkalog._native.codec.batches import BAD_CRC
from kafkalog.engine.files import OS_FILES, Files, local_path
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import CONTROL_FLAG
from kafkalog.engine.format.names import TopicPartition, partition_of
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.loss import Lost, reason
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import (
    BeingWrittenException,
    CorruptRecordException,
    KafkalogError,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.backup_places import named
from kafkalog.toolbox.report import SECOND_LOOK_S
from kafkalog.toolbox.second_look import Wrong
from kafkalog.toolbox.unread import no_file, unread

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog.engine.files import File
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.segment.transaction_index import AbortedTxn

__all__ = [
    "ByteDifference",
    "CompareReport",
    "Compared",
    "Difference",
    "EndedOtherwise",
    "Missing",
    "Span",
    "TopicIds",
    "compare",
]

COMPARED_COLUMNS = ("key", "value", "headers", "timestamp")
CHUNK_BYTES = 1 << 20
PIECE_BYTES = 8 << 20  # about this much is decoded for one differing byte
BATCH_ROWS = 1 << 14
BATCH_BYTES = 16 << 20
LOOKS_MAX = 3

Progress = Callable[[int], None]


class Span(NamedTuple):
    """The offsets of a log: from `start_offset` up to, but not including, `end_offset`."""

    start_offset: int
    end_offset: int


class Missing(NamedTuple):
    """Counts the offsets of the common range that one log lacks and the other has, and names the first.

    The first is None if there are none.
    """

    records: int = 0
    first_offset: int | None = None

    def plus(self, offsets: np.ndarray) -> Missing:
        """Returns the sum with some more, which come after the known ones.

        Args:
            offsets: The offsets, an array in increasing order.

        Returns:
            The sum.
        """
        if not len(offsets):
            return self
        first = int(offsets[0]) if self.first_offset is None else self.first_offset
        return Missing(self.records + len(offsets), first)


NONE_MISSING = Missing()


class Difference(NamedTuple):
    """An offset at which both logs have a record, and the names of the fields that differ.

    The names are of "key", "value", "headers" and "timestamp".
    """

    offset: int
    fields: tuple[str, ...]


class EndedOtherwise(NamedTuple):
    """Counts transactions that one log has aborted and the other has not.

    A read_committed reader of the other log sees their records. `first` is the first offset of the first one; None if
    there are none.
    """

    transactions: int = 0
    first_offset: int | None = None


NONE_ENDED_OTHERWISE = EndedOtherwise()


class TopicIds(NamedTuple):
    """The topic ids in the partition's two directories."""

    here: str
    there: str


class ByteDifference(NamedTuple):
    """The first byte that differs, in the file of each directory."""

    path: str
    position: int
    other_path: str
    other_position: int

    def __str__(self) -> str:
        return f"{self.path} from byte {self.position}, {self.other_path} from byte {self.other_position}"


@dataclass
class Compared:
    """One partition of two directories.

    `here` and `there` are its offsets in the first and in the other directory; None if the directory does not have it,
    or it cannot be read, which `damage` says.
    `differing` counts offsets with different records, from `first_differing` on; `differences` lists the first of them,
    up to the requested number.
    `missing_here` and `missing_there` count records of the common range that only the other directory has.
    `byte_difference` is set only if bytes are compared.
    `ended_otherwise` counts transactions of the common range that one log has aborted and the other has not.  It is
    only computed if all of the range could be read.
    `topic_ids` has both ids if they differ; this does not count as a difference.
    `damage` is what cannot be read.  Offsets from `compared_end` on were not compared then, unless damage is skipped:
    then `lost` lists what was left out."""

    partition: TopicPartition
    here: Span | None = None
    there: Span | None = None
    differing: int = 0
    first_differing: int | None = None
    differences: list[Difference] = field(default_factory=list)
    missing_here: Missing = NONE_MISSING
    missing_there: Missing = NONE_MISSING
    byte_difference: ByteDifference | None = None
    ended_otherwise: EndedOtherwise = NONE_ENDED_OTHERWISE
    topic_ids: TopicIds | None = None
    compared_end: int | None = None
    damage: list[Wrong] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether both directories have the partition, with the same offsets and the same records."""
        return self.here is not None and self.here == self.there and self.is_equal_in_common

    @property
    def is_equal_in_common(self) -> bool:
        """Whether nothing differs in the common offsets, and nothing is damaged.

        True for a partition that only one directory has.
        """
        return not (
            self.differing
            or self.missing_here.records
            or self.missing_there.records
            or self.ended_otherwise.transactions
            or self.byte_difference
            or self.damage
            or self.lost
        )


@dataclass
class CompareReport:
    """The result of `compare`: each partition of either directory.

    `unsettled` has those that could not be compared because they changed during each attempt.
    """

    log_dir: str
    other: str
    partitions: list[Compared] = field(default_factory=list)
    unsettled: list[BeingWrittenException] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether everything in both directories was compared and is equal."""
        return not self.unsettled and all(each.is_equal for each in self.partitions)

    @property
    def different(self) -> list[Compared]:
        """The partitions that are not equal."""
        return [each for each in self.partitions if not each.is_equal]


class Options(NamedTuple):
    """The options of `compare`."""

    check_bytes: bool = False
    skip_damage: bool = False
    differences: int = 0


def compare(
    log_dir: str | os.PathLike[str],
    other: str | os.PathLike[str],
    partitions: Collection[TopicPartition | str] | None = None,
    *,
    check_bytes: bool = False,
    skip_damage: bool = False,
    differences: int = 0,
    files: Files = OS_FILES,
    progress: Progress | None = None,
) -> CompareReport:
    """Compares the partitions of two log directories, record by record.

    Args:
        log_dir: The first log directory.
        other: The other log directory.
        partitions: The partitions to compare: "orders-0", "orders", globs, or pairs such as ("orders", 0); None
            compares all.
        check_bytes: Compares the bytes of both logs, too.
        skip_damage: Continues after damage.
        differences: The number of differing offsets to list for each partition.
        files: The file system; for tests.
        progress: Called with the number of bytes just read.

    Returns:
        A `CompareReport`.  It also has the differences, damage and partitions that cannot be read; none of these is
        raised.

    Raises:
        UnknownTopicOrPartitionException: Neither directory has a named partition.
        IllegalArgumentException: An argument is invalid.
        MissingPackageException: Bytes differ, and pyarrow is not installed.
        OSError: A directory cannot be listed.

    Example:
        >>> from kafkalog.toolbox.backup import backup
        >>> from kafkalog.toolbox.compare import compare
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> _ = backup("shop", "backups/monday")
        >>> report = compare("shop", "backups/monday/log-dir-1")
        >>> report.is_equal, report.partitions[0].here
        (True, Span(start_offset=0, end_offset=2))
    """
    values.function(progress, "progress", "a function of the bytes just read")
    options = Options(
        values.flag(check_bytes, "check_bytes"),
        values.flag(skip_damage, "skip_damage"),
        values.count(differences, "differences", expected="how many offsets of a partition to list"),
    )
    here, there = local_path(log_dir, what="log_dir", files=files), local_path(other, what="other", files=files)
    asked = _asked(partitions)
    known = sorted({*list_partitions(here, files=files), *list_partitions(there, files=files)})
    chosen = _chosen(known, asked, f"{here} or {there}")
    return compare_listed(here, there, chosen, options, files=files, progress=progress)


def compare_listed(
    log_dir: str,
    other: str,
    partitions: Iterable[TopicPartition],
    options: Options,
    *,
    files: Files = OS_FILES,
    progress: Progress | None = None,
) -> CompareReport:
    """Like `compare`, for partitions that were listed before.  Partitions that both have deleted meanwhile are
    skipped."""
    report = CompareReport(log_dir, other)
    for partition in partitions:
        try:
            compared = _settled(report, partition, options, files, progress or _ignore)
        except BeingWrittenException as error:
            report.unsettled.append(error)
            continue
        if compared is not None:
            report.partitions.append(compared)
    return report


def differing(
    partition: TopicPartition, here: PartitionView, there: PartitionView, start_offset: int, end_offset: int
) -> int:
    """Returns how many offsets of [start_offset, end_offset) have different records in the two views.
    Raises CorruptRecordException."""
    found = Compared(partition)
    _Comparison(found, here, there, Options(), _ignore).compare_records(start_offset, end_offset)
    return found.differing


def _ignore(count: int) -> None:
    pass


def _asked(partitions: Collection[TopicPartition | str] | None) -> list[TopicPartition | str] | None:
    """Returns the named partitions, each a pair or a text; None for all.  Raises IllegalArgumentException."""
    if partitions is None:
        return None
    if isinstance(partitions, Iterator):
        partitions = list(partitions)
    named(partitions)  # refuses invalid values
    listed = [partitions] if isinstance(partitions, str | TopicPartition) else partitions
    return [each if isinstance(each, str) else partition_of(each) for each in listed]


def _chosen(known: list[TopicPartition], asked: list[TopicPartition | str] | None, place: str) -> list[TopicPartition]:
    """Returns the named partitions.  A pair names one partition, a text everything that it names for commands."""
    if asked is None:
        return known
    chosen: set[TopicPartition] = set()
    by_name: dict[str, list[TopicPartition]] = {}
    for partition in known:
        for name in {partition.topic, str(partition)}:
            by_name.setdefault(name, []).append(partition)
    there = set(known)
    for each in dict.fromkeys(asked):
        if isinstance(each, TopicPartition):
            hits = [each] if each in there else []
        elif is_glob(each):
            hits = [partition for partition in known if names_partition(each, partition)]
        else:
            hits = by_name.get(each, [])
        if not hits:
            raise UnknownTopicOrPartitionException(f"no topic or partition {str(each)!r} in {place}")
        chosen.update(hits)
    return [partition for partition in known if partition in chosen]


def _settled(
    report: CompareReport, partition: TopicPartition, options: Options, files: Files, progress: Progress
) -> Compared | None:
    """Returns the result of an attempt during which nothing was deleted; None if both deleted the partition
    meanwhile."""
    gone = ""  # the text only: the error's frames would keep files open
    for _ in range(LOOKS_MAX):
        compared = Compared(partition)
        with ExitStack() as stack:
            views: list[PartitionView | None] = []
            for folder in (report.log_dir, report.other):
                try:
                    views.append(stack.enter_context(PartitionView(folder, partition, files=files)))
                except UnknownTopicOrPartitionException:
                    views.append(None)
                    path = os.path.join(folder, str(partition))
                    nowhere = no_file(path, files) if files.is_link(path) else None
                    if nowhere is not None:
                        compared.damage.append(Wrong(path, None, nowhere.what))
                except (*UNREADABLE, OSError) as error:
                    views.append(None)
                    _tell(compared, error, folder)
            here, there = views
            compared.here, compared.there = _span(here), _span(there)
            if compared.damage:
                return compared
            if here is None or there is None:
                return None if here is there else compared
            try:
                compared.topic_ids = _topic_ids(here.directory, there.directory, files)
                _Comparison(compared, here, there, options, progress).run()
                return compared
            except (OffsetOutOfRangeException, UnknownTopicOrPartitionException) as error:
                gone = str(error)  # deleted or truncated meanwhile: the next attempt sees the new state
    raise BeingWrittenException(
        f"{partition} is being written: what was read of it was deleted during each of {LOOKS_MAX} attempts ({gone})",
        hint="a broker or another program has it open: try again, or stop that program first",
    )


def _topic_ids(here: str, there: str, files: Files) -> TopicIds | None:
    """Returns both topic ids if they differ.  `verify` reports ids that cannot be read."""
    with suppress(KafkalogError, OSError):
        ids = topic_id_of(here, files), topic_id_of(there, files)
        if ids[0] is not None and ids[1] is not None and ids[0] != ids[1]:
            return TopicIds(ids[0], ids[1])
    return None


def _span(view: PartitionView | None) -> Span | None:
    return None if view is None else Span(view.log_start_offset, view.log_end_offset)


class _Comparison:
    """The comparison of one partition that both directories have."""

    def __init__(
        self, found: Compared, here: PartitionView, there: PartitionView, options: Options, progress: Progress
    ) -> None:
        self._found = found
        self._here, self._there = here, there
        self._check_bytes, self._skip_damage, self._differences = options
        self._progress = progress

    def run(self) -> None:
        found = self._found
        assert found.here is not None
        assert found.there is not None
        start = max(found.here.start_offset, found.there.start_offset)
        end = min(found.here.end_offset, found.there.end_offset)
        try:
            is_same = True
            for low, high in self._pieces(start, end):
                if not self._has_same_bytes(low, high):
                    self.compare_records(low, high)
                    is_same = False
                found.compared_end = high
            if not (is_same or found.damage or found.lost):
                self._compare_transactions(start, end)
        except (*UNREADABLE, OSError) as error:
            _tell(found, error, self._here.directory)
        for view in (self._here, self._there):
            try:
                view.check_end()
            except (*UNREADABLE, OSError) as error:
                _tell(found, error, view.directory)

        if found.here.end_offset != found.there.end_offset and not found.damage:
            with suppress(FileNotFoundError):  # retention deleted it
                self._look_behind_end(self._here if found.here.end_offset < found.there.end_offset else self._there)

    def _look_behind_end(self, view: PartitionView) -> None:
        """Reports a whole batch with a wrong checksum after the end of the shorter log.  Without checkpoints no reader
        takes it for damage.  It may just be being written, so it is read twice."""
        wrong: Unreadable | None = None
        for look in range(2):
            if look:
                time.sleep(SECOND_LOOK_S)
                view.refresh()
            seen = view.snapshot
            if not seen.segments:
                return
            last, position = seen.segments[-1], seen.end_position
            scan = LogScan(seen.file(last), position, last.size)
            for _ in scan:
                pass
            if scan.stopped != BAD_CRC or (look and (wrong is None or wrong.position != scan.position)):
                return
            what = f"{reason(BAD_CRC)} where offset {seen.log_end_offset} should be"
            wrong = Unreadable(last.path, scan.position, what)
        assert wrong is not None
        _tell(self._found, wrong.error(), view.directory)

    # --- bytes -------------------------------------------------------------------------------------

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the common range in pieces, split where both logs begin a batch."""
        low = start
        for near in _offsets_near(self._here.snapshot, start, end):
            border = _batch_start(self._here.snapshot, near)
            if border is None or not low < border < end:
                continue
            behind = _batch_start(self._there.snapshot, border)
            if behind is not None and behind >= border:
                yield low, border
                low = border
        if low < end:
            yield low, end

    def _has_same_bytes(self, low: int, high: int) -> bool:
        """Returns whether the batches of a piece are the same bytes.  False if they cannot be read: the decoding
        reports it."""
        try:
            here, there = (_Stretch(view.snapshot, low, high) for view in (self._here, self._there))
            if here.left != there.left and not self._check_bytes:
                return False
            while here.left and there.left:
                count = min(CHUNK_BYTES, here.at_once, there.at_once)
                mine, other = here.peek(count), there.peek(count)
                self._progress(2 * count)
                if mine != other:
                    self._tell_bytes(here, there, _equal_bytes(mine, other))
                    return False
                if len(mine) < count:
                    return False  # truncated meanwhile
                here.pass_over(count)
                there.pass_over(count)
            if here.left != there.left:
                self._tell_bytes(here, there, 0)
            return here.left == there.left
        except (KafkalogError, OSError):
            return False

    def _tell_bytes(self, here: _Stretch, there: _Stretch, more: int) -> None:
        if self._check_bytes and self._found.byte_difference is None:
            self._found.byte_difference = ByteDifference(*here.place(more), *there.place(more))

    # --- records -----------------------------------------------------------------------------------

    def compare_records(self, low: int, high: int) -> None:
        found = self._found
        with (
            closing(self._batches(self._here, low, high)) as mine,
            closing(self._batches(self._there, low, high)) as its,
        ):
            here, there = _Rows(mine), _Rows(its)
            while (upto := _least(here.last_offset(), there.last_offset())) is not None:
                self._compare_rows(here.take(upto), there.take(upto))
                found.compared_end = upto + 1

    def _batches(self, view: PartitionView, low: int, high: int) -> Generator[pa.RecordBatch, None, None]:
        def ready() -> PartitionView:
            return view

        asked = Selection(low, high, on_damage=self._found.lost.append if self._skip_damage else "raise")
        last = -1
        place = selected_range(ready, asked)
        columns = ("offset", *COMPARED_COLUMNS)
        try:
            for batch in batches_in(
                ready, asked, place, columns, BATCH_ROWS, batch_bytes=BATCH_BYTES, progress=self._progress
            ):
                rising, last = self._rising(view, batch, last)
                if rising.num_rows:
                    yield rising
        except UNREADABLE as error:
            error.path = error.path or view.directory  # says which of the two directories it is
            raise

    def _rising(self, view: PartitionView, batch: pa.RecordBatch, last: int) -> tuple[pa.RecordBatch, int]:
        """Returns the rows whose offsets increase from `last`, and the last offset.  A row that goes back is damage."""
        offsets = _offsets(batch)
        highest = np.maximum.accumulate(np.concatenate(([last], offsets)))
        rises = offsets > highest[:-1]
        if not rises.all():
            found = int(offsets[~rises][0])
            wrong = _falls_back(view, found, int(highest[:-1][~rises][0]))
            if not self._skip_damage:
                raise wrong
            _tell(self._found, wrong, view.directory)
            batch = batch.filter(_mask(rises))
        return batch, int(highest[-1])

    def _compare_rows(self, mine: pa.RecordBatch | None, its: pa.RecordBatch | None) -> None:
        found = self._found
        offsets, others = _offsets(mine), _offsets(its)
        if not np.array_equal(offsets, others):
            alone = ~np.isin(offsets, others, assume_unique=True)
            other_alone = ~np.isin(others, offsets, assume_unique=True)
            found.missing_there = found.missing_there.plus(offsets[alone])
            found.missing_here = found.missing_here.plus(others[other_alone])
            if mine is None or its is None:
                return
            mine, its = mine.filter(_mask(~alone)), its.filter(_mask(~other_alone))
            offsets = offsets[~alone]
        if mine is None or its is None:
            return
        unequal = {name: _unequal(mine.column(name), its.column(name)) for name in COMPARED_COLUMNS}
        differ = np.logical_or.reduce([*unequal.values()])
        if differ.any():
            for row in np.flatnonzero(differ)[: self._differences - len(found.differences)].tolist():
                names = tuple(name for name, rows in unequal.items() if rows[row])
                found.differences.append(Difference(int(offsets[row]), names))
            found.differing += int(differ.sum())
            if found.first_differing is None:
                found.first_differing = int(offsets[differ][0])

    # --- transactions ------------------------------------------------------------------------------

    def _compare_transactions(self, start: int, end: int) -> None:
        """Finds transactions that one log has aborted and the other has not.  Only transactions that both have ended
        count: those below the last stable offsets of both."""
        end = min(end, self._here.last_stable_offset, self._there.last_stable_offset)
        mine, its = ({txn[:3]: txn for txn in view.aborted} for view in (self._here, self._there))
        doubtful = [
            [
                txn
                for key, txn in one.items()
                if key not in other and txn.last_offset >= start and txn.first_offset < end
            ]
            for one, other in ((mine, its), (its, mine))
        ]
        all_of = [*doubtful[0], *doubtful[1]]
        if not all_of:
            return
        low = max(start, min(txn.first_offset for txn in all_of))
        high = min(end, max(txn.last_offset for txn in all_of) + 1)
        here, there = (_data_batches(view, low, high, self._progress) for view in (self._here, self._there))
        firsts = [
            txn.first_offset
            for aborted, batches, others in ((doubtful[0], here, there), (doubtful[1], there, here))
            for shown in [others.shown()]
            for txn in aborted
            if _is_seen(txn, batches, shown)
        ]
        if firsts:
            self._found.ended_otherwise = EndedOtherwise(len(firsts), min(firsts))


class _DataBatches(NamedTuple):
    """The data batches of a range of offsets, in order: their first and last offsets, their producers, and whether they
    are aborted."""

    first_offsets: np.ndarray
    last_offsets: np.ndarray
    producer_ids: np.ndarray
    is_aborted: np.ndarray

    def shown(self) -> _DataBatches:
        """Returns the batches that read_committed readers see."""
        return _DataBatches(*(column[~self.is_aborted] for column in self))


def _data_batches(view: PartitionView, low: int, high: int, progress: Progress) -> _DataBatches:
    columns: list[tuple[np.ndarray, ...]] = []
    with ChunkReader(view, low, end_offset=high, isolation="read_committed") as reader:
        for chunk in reader:
            progress(len(chunk.data))
            table = chunk.table
            is_data = ((table["attributes"] & CONTROL_FLAG) == 0) & (table["record_count"] > 0)
            aborted = chunk.aborted_rows().astype(np.bool_)
            columns.append(
                (
                    table["base_offset"][is_data].copy(),
                    table["last_offset"][is_data].copy(),
                    table["producer_id"][is_data].copy(),
                    aborted[is_data],
                )
            )
    if not columns:
        none = np.empty(0, np.int64)
        return _DataBatches(none, none, none, none.astype(np.bool_))
    return _DataBatches(*map(np.concatenate, zip(*columns, strict=True)))


def _is_seen(txn: AbortedTxn, batches: _DataBatches, shown: _DataBatches) -> bool:
    """Returns whether the visible batches of the other log have offsets of a transaction that this log has aborted."""
    low, high = np.searchsorted(batches.first_offsets, (txn.first_offset, txn.last_offset + 1))
    of_it = batches.is_aborted[low:high] & (batches.producer_ids[low:high] == txn.producer_id)
    firsts, lasts = batches.first_offsets[low:high][of_it], batches.last_offsets[low:high][of_it]
    place = np.searchsorted(shown.last_offsets, firsts)
    inside = place < len(shown.last_offsets)
    return bool((shown.first_offsets[place[inside]] <= lasts[inside]).any())


def _falls_back(view: PartitionView, offset: int, highest: int) -> CorruptRecordException:
    """Returns the error for a record whose offset does not increase, with the position of its batch."""
    path, position = view.directory, None
    with suppress(KafkalogError, OSError):  # then the directory is named
        place, position = view.snapshot.position_of(offset)
        path = view.snapshot.segments[place].path
    what = f"a record has offset {offset} after offset {highest}; expected increasing offsets"
    return CorruptRecordException(what, path=path, position=position)


def _tell(found: Compared, error: KafkalogError | OSError, folder: str) -> None:
    """Adds damage or an unreadable file to the result; raises any other error."""
    if isinstance(error, OSError):
        finding = unread(error)
        if finding is None:
            raise error
        wrong = Wrong(finding.path, None, finding.what)
    else:
        wrong = Wrong(error.path or folder, error.position, error.message)
    if wrong not in found.damage:
        found.damage.append(wrong)


def _offsets_near(seen: Snapshot, start: int, end: int) -> Iterator[int]:
    """Yields offsets about PIECE_BYTES apart, if all records of a segment have the same size."""
    for place, base in enumerate(seen.bases):
        low = max(base, start)
        high = min(seen.bases[place + 1] if place + 1 < len(seen.bases) else end, end)
        count = max(1, seen.readable_bytes(seen.segments[place]) // PIECE_BYTES)
        if low < high:
            yield from (low + number * (high - low) // count for number in range(count))


def _batch_start(seen: Snapshot, offset: int) -> int | None:
    """Returns where the batch begins that ends at or after an offset; None if that is unknown, as for legacy
    batches."""
    try:
        place, position = seen.position_of(offset)
        header = seen.header_at(place, position) if place < len(seen.segments) else None
    except (KafkalogError, OSError):
        return None
    return None if header is None or header.magic < 2 else header.base_offset


class _Part(NamedTuple):
    file: File
    path: str
    position: int
    end: int


class _Stretch:
    """The bytes of a log's batches from the batch with an offset on, across segments."""

    def __init__(self, seen: Snapshot, low: int, high: int) -> None:
        place, position = seen.position_of(low)
        last, end = seen.end_position_of(high)
        self._parts: list[_Part] = []
        for number in range(place, last + 1):
            segment = seen.segments[number]
            stop = end if number == last else seen.readable_bytes(segment)
            if position < stop:
                self._parts.append(_Part(seen.file(segment), segment.path, position, stop))
            position = 0
        self._last = (seen.segments[last].path, end) if seen.segments else (seen.directory, 0)
        self.left = sum(part.end - part.position for part in self._parts)

    @property
    def at_once(self) -> int:
        """The number of contiguous bytes."""
        return self._parts[0].end - self._parts[0].position

    def peek(self, count: int) -> bytes:
        part = self._parts[0]
        return part.file.pread(count, part.position)

    def pass_over(self, count: int) -> None:
        part = self._parts[0]
        self.left -= count
        if part.position + count == part.end:
            del self._parts[0]
        else:
            self._parts[0] = part._replace(position=part.position + count)

    def place(self, more: int) -> tuple[str, int]:
        """Returns the file and position `more` bytes further on."""
        if not self._parts:
            return self._last
        return self._parts[0].path, self._parts[0].position + more


def _equal_bytes(mine: bytes, its: bytes) -> int:
    """Returns how many leading bytes are equal."""
    least = min(len(mine), len(its))
    wrong = np.flatnonzero(np.frombuffer(mine, np.uint8, least) != np.frombuffer(its, np.uint8, least))
    return int(wrong[0]) if len(wrong) else least


class _Rows:
    """Record batches of one log, which can be taken up to an offset."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = None

    def last_offset(self) -> int | None:
        """Returns the last offset of the rows that can be taken at once; None at the end."""
        if self._batch is None:
            self._batch = next(self._batches, None)
        return None if self._batch is None else self._batch.column("offset")[-1].as_py()

    def take(self, upto: int) -> pa.RecordBatch | None:
        batch = self._batch
        if batch is None:
            return None
        count = int(np.searchsorted(_offsets(batch), upto, side="right"))
        self._batch = batch.slice(count) if count < batch.num_rows else None
        return batch.slice(0, count)


def _least(*offsets: int | None) -> int | None:
    return min((offset for offset in offsets if offset is not None), default=None)


def _offsets(batch: pa.RecordBatch | None) -> np.ndarray:
    return np.empty(0, np.int64) if batch is None else batch.column("offset").to_numpy(zero_copy_only=False)


def _mask(wanted: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.array(wanted)


def _unequal(mine: pa.Array, its: pa.Array) -> np.ndarray:
    """Returns which rows of two columns differ; null only equals null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if mine.equals(its):
        return np.zeros(len(mine), np.bool_)
    if pa.types.is_list(mine.type):  # headers, which Arrow cannot compare row by row
        pairs = zip(mine.to_pylist(), its.to_pylist(), strict=True)
        return np.fromiter((one != other for one, other in pairs), np.bool_, len(mine))
    differ: np.ndarray = pc.fill_null(pc.not_equal(mine, its), pa.scalar(False)).to_numpy(zero_copy_only=False)
    differ |= mine.is_null().to_numpy(zero_copy_only=False) != its.is_null().to_numpy(zero_copy_only=False)
    return differ


def __dir__() -> list[str]:
    return __all__
