"""`describe()`: the content of a partition, a topic and a store, found without reading it all.

Uses names, sizes, the ends of indexes and a few batch headers, so it takes a moment even for long logs. The number of
records is the span of offsets, which is too high if compaction or transaction markers left gaps. Small logs are counted
by all their batch headers, up to EXACT_BYTES_MAX in one call, and then the count is exact. Times are those of batches,
markers included, unless the count is exact. The sample is read from places spread over all offsets. If a partition
cannot be read, its description has the problem, and the others are described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, cast

from kafkalog import _shown
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.shown import Records
from kafkalog.engine.format import codecs
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.contents import Contents, Surveyed, all_headers, headers_at_ends
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.log.source import Source
    from kafkalog.records import Record

EXACT_BYTES_MAX = 64 << 20
SAMPLE_ROWS = 10
SAMPLE_CHUNK_BYTES = 64 << 10
_LISTS = "`kafkalog verify` lists the damage"


class Budget:
    """The bytes of logs that may still be read to count exactly."""

    def __init__(self, *, exact: bool) -> None:
        self._left = (1 << 63) if exact else EXACT_BYTES_MAX

    def takes(self, size_bytes: int) -> bool:
        """Returns whether so many bytes may be read, and if so subtracts them."""
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True


class _Sums(_shown.Shown):
    """The part that all three descriptions share."""

    if TYPE_CHECKING:
        records: int
        is_exact: bool
        oldest_timestamp: int | None
        newest_timestamp: int | None
        local_bytes: int
        remote_bytes: int
        sample: list[Record]

    @property
    def bytes(self) -> int:
        """Bytes on the disk and in the remote tier; a segment in both counts twice."""
        return self.local_bytes + self.remote_bytes

    def _facts(self) -> str:
        times = f"{_time(self.oldest_timestamp)} to {_time(self.newest_timestamp)}"
        remote = f", {_shown.size(self.remote_bytes)} remote" if self.remote_bytes else ""
        return f"{_records(self)}, {times}, {_shown.size(self.local_bytes)}{remote}"

    def _sample_html(self) -> str:
        return Records(self.sample)._repr_html_() or "" if self.sample else ""


def _records(of: _Sums) -> str:
    return ("" if of.is_exact else "up to ") + _shown.number(of.records, "record")


def _time(timestamp_ms: int | None) -> str:
    return "-" if timestamp_ms is None else _shown.moment(timestamp_ms)


@dataclass(frozen=True, repr=False)
class PartitionDescription(_Sums):
    """The content of a partition at one moment, as `Partition.describe` returns it.

    Attributes:
        topic: The topic's name.
        partition: The partition's number.
        log_dir: The log directory.
        log_start_offset: The first offset.
        end_offset: The offset after the last record.
        records: The records that a read_uncommitted reader gets: exact if `is_exact`, else an upper bound.
        is_exact: Whether `records` is exact.
        oldest_timestamp: In ms since 1970; None if no record has one.
        newest_timestamp: In ms since 1970; None if no record has one.
        local_bytes: Size of the log on the disk.
        local_segments: Number of segments on the disk.
        remote_bytes: Size of the log in the remote tier.
        remote_segments: Number of segments in the remote tier.
        codecs: The codecs of the batches that were read.
        sample: Records from places spread over all offsets.
        problem: Why the partition could not be described, or None.
        damage: Parts of the log that cannot be read, as far as they were met.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offsets = log.append_many([(b"tea", None, (), 1_772_355_600_000), b"milk"])
        ...     found = log.describe()
        >>> found.topic, found.partition, found.log_start_offset, found.end_offset
        ('orders', 0, 0, 2)
        >>> found.records, found.is_exact, found.oldest_timestamp
        (2, True, 1772355600000)
    """

    topic: str
    partition: int
    log_dir: str = ""
    log_start_offset: int = 0
    end_offset: int = 0
    records: int = 0
    is_exact: bool = False
    oldest_timestamp: int | None = None
    newest_timestamp: int | None = None
    local_bytes: int = 0
    local_segments: int = 0
    remote_bytes: int = 0
    remote_segments: int = 0
    codecs: list[str] = field(default_factory=list)
    sample: list[Record] = field(default_factory=list)
    problem: str | None = None
    damage: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        place = f"{self.topic}-{self.partition}"
        if self.problem is not None:
            return f"<{place}: {self.problem[:200]}>"
        return f"<{place} [{self.log_start_offset}, {self.end_offset}): {self._facts()}{_counted(self.damage)}>"

    def _repr_html_(self) -> str | None:
        return _shown.or_none(
            lambda: _shown.table(f"{self.topic}-{self.partition}", _COLUMNS, [_row(self)]) + self._sample_html()
        )


class _OfParts(_Sums):
    """A description whose values are the sums of its parts."""

    if TYPE_CHECKING:

        @property
        def parts(self) -> Sequence[PartitionDescription | TopicDescription]: ...

    @property
    def records(self) -> int:  # type: ignore[override]
        """The records that a read_uncommitted reader gets: exact if `is_exact`, else an upper bound."""
        return sum(each.records for each in self.parts)

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        """Whether `records` is exact."""
        return all(each.is_exact for each in self.parts)

    @property
    def oldest_timestamp(self) -> int | None:  # type: ignore[override]
        """The oldest timestamp in ms since 1970; None if no record has one."""
        return min((each.oldest_timestamp for each in self.parts if each.oldest_timestamp is not None), default=None)

    @property
    def newest_timestamp(self) -> int | None:  # type: ignore[override]
        """The newest timestamp in ms since 1970; None if no record has one."""
        return max((each.newest_timestamp for each in self.parts if each.newest_timestamp is not None), default=None)

    @property
    def local_bytes(self) -> int:  # type: ignore[override]
        """Size of the logs on the disk, in bytes."""
        return sum(each.local_bytes for each in self.parts)

    @property
    def remote_bytes(self) -> int:  # type: ignore[override]
        """Size of the logs in the remote tier, in bytes."""
        return sum(each.remote_bytes for each in self.parts)

    @property
    def local_segments(self) -> int:
        """Number of segments on the disk."""
        return sum(each.local_segments for each in self.parts)

    @property
    def remote_segments(self) -> int:
        """Number of segments in the remote tier."""
        return sum(each.remote_segments for each in self.parts)

    @property
    def codecs(self) -> list[str]:
        """The codecs of the batches that were read."""
        return sorted({*chain.from_iterable(each.codecs for each in self.parts)})

    @property
    def problems(self) -> list[str]:
        """Why partitions are missing in the sums, and which parts of logs cannot be read, as far as they were met."""
        return list(chain.from_iterable(_problems(each) for each in self.parts))


def _problems(part: PartitionDescription | TopicDescription) -> list[str]:
    if isinstance(part, PartitionDescription):
        found = part.damage if part.problem is None else [part.problem, *part.damage]
        return [f"{part.topic}-{part.partition}: {each}" for each in found]
    return part.problems


def _counted(problems: Sequence[str]) -> str:
    return f", {_shown.number(len(problems), 'problem')}" if problems else ""


@dataclass(frozen=True, repr=False)
class TopicDescription(_OfParts):
    """The content of a topic at one moment, as `Topic.describe` returns it.

    The numbers are sums over its partitions.

    Attributes:
        name: The topic's name.
        partitions: The description of each partition.
        sample: Records from places spread over all offsets.

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     orders = store.create_topic("orders", partitions=2)
        ...     places = orders.append_many([b"tea", b"milk", b"bread"])
        ...     found = orders.describe()
        >>> found.name, found.records, len(found.partitions), found.problems
        ('orders', 3, 2, [])
    """

    name: str
    partitions: list[PartitionDescription]
    sample: list[Record] = field(default_factory=list)

    @property
    def parts(self) -> Sequence[PartitionDescription]:
        """The partitions."""
        return self.partitions

    def __repr__(self) -> str:
        count = _shown.number(len(self.partitions), "partition")
        return f"<{self.name}: {count}, {self._facts()}{_counted(self.problems)}>"

    def _repr_html_(self) -> str | None:
        return _shown.or_none(
            lambda: _shown.table(repr(self)[1:-1], _COLUMNS, map(_row, self.partitions)) + self._sample_html()
        )


@dataclass(frozen=True, repr=False)
class StoreDescription(_OfParts):
    """The content of a store at one moment, as `Store.describe` returns it.

    The numbers are sums over its topics.

    Attributes:
        place: The store's directories.
        topics: The description of each topic.
        sample: Records from places spread over all offsets, if they were requested.

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     place = store.create_topic("orders").append(b"tea")
        ...     place = store.create_topic("payments").append(b"12.50")
        ...     found = store.describe()
        >>> [topic.name for topic in found.topics], found.records
        (['orders', 'payments'], 2)
    """

    place: str
    topics: list[TopicDescription]
    sample: list[Record] = field(default_factory=list)

    @property
    def parts(self) -> Sequence[TopicDescription]:
        """The topics."""
        return self.topics

    def __repr__(self) -> str:
        return f"<{self.place}: {_shown.number(len(self.topics), 'topic')}, {self._facts()}{_counted(self.problems)}>"

    def _repr_html_(self) -> str | None:
        columns = ("topic", "partitions", *_COLUMNS[3:])
        rows = ([each.name, len(each.partitions), *_row_of_sums(each)] for each in self.topics)
        return _shown.or_none(lambda: _shown.table(repr(self)[1:-1], columns, rows) + self._sample_html())


_COLUMNS = ("partition", "start", "end", "records", "oldest", "newest", "local", "remote", "codecs", "")


def _row(part: PartitionDescription) -> list[object]:
    place = f"{part.topic}-{part.partition}"
    return [place, f"{part.log_start_offset:,}", f"{part.end_offset:,}", *_row_of_sums(part)]


def _row_of_sums(part: PartitionDescription | TopicDescription) -> list[object]:
    return [
        ("" if part.is_exact else "\N{LESS-THAN OR EQUAL TO} ") + f"{part.records:,}", _time(part.oldest_timestamp),
        _time(part.newest_timestamp), f"{_shown.size(part.local_bytes)} in {part.local_segments:,}",
        f"{_shown.size(part.remote_bytes)} in {part.remote_segments:,}" if part.remote_segments else "-",
        ", ".join(part.codecs), "; ".join(_problems(part)),
    ]  # fmt: skip


# --- describing ------------------------------------------------------------------------------------------


def describe_partition(source: Source, budget: Budget, sample_rows: int) -> PartitionDescription:
    """Describes one partition. Errors as a read of it."""
    found = _described(source, budget)
    found.sample.extend(_sampled([(source, found)], sample_rows))
    return found


def describe_topic(home: Home, name: str, budget: Budget, sample_rows: int) -> TopicDescription:
    """Describes one topic. UnknownTopicOrPartitionException if it does not exist."""
    sources: list[tuple[Source, PartitionDescription]] = []
    found = TopicDescription(name, [])
    for number in home.numbers(name):
        place = TopicPartition(name, number)
        try:
            source = home.source(place)
            source.recheck()
            sources.append((source, _described(source, budget)))
            found.partitions.append(sources[-1][1])
        except (KafkalogError, OSError) as error:
            home.check_open()
            found.partitions.append(PartitionDescription(*place, problem=" ".join(str(error).split())))
    found.sample.extend(_sampled(sources, sample_rows))
    return found


def html_of_topic(home: Home, name: str, caption: str) -> str:
    """Returns an HTML table of a topic's first partitions."""
    budget = Budget(exact=False)
    rows: list[list[object]] = []
    for number in home.numbers(name):
        if len(rows) > _shown.ROWS_MAX:
            break  # one row too many, which shows that rows are omitted
        try:
            rows.append(_row(_described(home.source(TopicPartition(name, number)), budget)))
        except (KafkalogError, OSError) as error:
            rows.append([f"{name}-{number}", *[""] * 8, _shown.cut(str(error), 200)])
    return _shown.table(caption, _COLUMNS, rows)


def _described(source: Source, budget: Budget) -> PartitionDescription:
    surveyed = cast("Surveyed", source)
    tiered = surveyed.tiered()
    # A store that writes the log has written all of it to the files by now.
    known_end = 0 if isinstance(source, PartitionView) else source.log_end_offset
    seen_start, local, contents, is_whole, damage = surveyed.over(lambda seen: _look(seen, budget, known_end))
    start, end = source.log_start_offset, source.visible_end()
    span = max(end - start, 0)
    is_exact = not damage and (span == 0 or (is_whole and start == seen_start))
    times = [each.largest_timestamp for each in tiered if each.largest_timestamp >= 0]
    times += [each for each in (contents.first_timestamp, contents.last_timestamp) if each >= 0]
    oldest = _oldest(source, start) if tiered else contents.first_timestamp
    return PartitionDescription(
        *source.topic_partition,
        log_dir=source.log_dir,
        log_start_offset=start,
        end_offset=end,
        records=min(contents.records, span) if is_exact else span,
        is_exact=is_exact,
        oldest_timestamp=oldest if oldest >= 0 else min(times, default=None),
        newest_timestamp=max(times, default=None),
        local_bytes=local.bytes,
        local_segments=local.count,
        remote_bytes=local.remote_bytes + sum(each.size_bytes for each in tiered),
        remote_segments=local.remote_count + len(tiered),
        codecs=[codecs.shown_name(each) for each in contents.codec_ids()],
        damage=damage,
    )


@dataclass
class _Segments:
    """Counts and sizes of segments. `remote_...`: of those that are read from a remote tier."""

    count: int = 0
    bytes: int = 0
    remote_count: int = 0
    remote_bytes: int = 0


def _look(seen: Snapshot, budget: Budget, known_end: int) -> tuple[int, _Segments, Contents, bool, list[str]]:
    """Returns (start of the segments, their sums, their content, whether every header was read, unreadable parts)."""
    sums = _Segments()
    for segment in seen.segments:
        if seen.may_overlap(segment):
            sums.remote_count += 1
            sums.remote_bytes += seen.about_bytes(segment)
        else:
            sums.count += 1
            sums.bytes += seen.readable_bytes(segment)
    contents, is_whole = headers_at_ends(seen), False
    end = seen.unreadable_end
    if end is None and seen.segments and seen.log_end_offset < known_end:
        what = f"unreadable bytes where offset {seen.log_end_offset} should be"
        end = Unreadable(seen.segments[-1].path, seen.end_position, what)
    damage = [] if end is None else [f"{end.path}, from byte {end.position} on: {end.what} ({_LISTS})"]
    if not sums.remote_count and budget.takes(sums.bytes):
        contents, unread = all_headers(seen, lambda size_bytes: None)
        is_whole = not unread
        told = None if end is None else end.path
        damage += [
            f"{path}: {size_bytes} bytes are not readable batches ({_LISTS})"
            for path, size_bytes in unread.items()
            if path != told or size_bytes > seen.segments[-1].size - seen.end_position
        ]
    return seen.log_start_offset, sums, contents, is_whole, damage


def _oldest(source: Source, start: int) -> int:
    found = next(_records_at(source, start), None)
    return -1 if found is None else found.timestamp


def _records_at(source: Source, offset: int) -> Iterator[Record]:
    """Yields the first record at or after an offset; nothing if it cannot be read."""
    try:
        with ChunkReader(
            source, offset, chunk_bytes=SAMPLE_CHUNK_BYTES, end_offset=source.visible_end(), out_of_range="earliest"
        ) as reader:
            found = next(iter(reader.records()), None)
    except (KafkalogError, OSError):
        return
    if found is not None:
        yield found


def _sampled(sources: Sequence[tuple[Source, PartitionDescription]], rows: int) -> Iterable[Record]:
    """Returns up to so many records, from places spread evenly over all offsets."""
    total = sum(max(part.end_offset - part.log_start_offset, 0) for _, part in sources)
    wanted = min(rows, total)
    places = [number * (total - 1) // max(wanted - 1, 1) for number in range(wanted)]
    found: dict[tuple[str, int, int], Record] = {}
    before = 0
    for source, part in sources:
        span = max(part.end_offset - part.log_start_offset, 0)
        for place in places:
            if before <= place < before + span:
                for record in _records_at(source, part.log_start_offset + place - before):
                    found[record.topic, record.partition, record.offset] = record
        before += span
    return found.values()
