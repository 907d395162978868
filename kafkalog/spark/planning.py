"""Plans a read on the driver: turns options into ranges of bytes, each for one task.

Partitions are found by the names of their directories, offsets by indexes and batch headers; a record is decoded only
to find an offset by time.  Ranges are split at index entries, by bytes, so that one huge partition uses the whole
cluster; what remains is split by offset.  A task gets files, positions and offsets, and needs nothing else from the
directory.
"""

from __future__ import annotations

import gc
import heapq
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.file_records import base_offset_of
from kafkalog.engine.segment.reader import header_at
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    UnknownTopicOrPartitionException,
)
from kafkalog.spark.changes import known_below
from kafkalog.spark.filters import ALL, Wanted
from kafkalog.spark.java_patterns import java_pattern
from kafkalog.spark.options import EARLIEST, LATEST, Bound, SourceOptions
from kafkalog.spark.places import files_of, mount, remote_files_of, segment_of
from kafkalog.spark.ranges import OffsetRange, Piece

if TYPE_CHECKING:
    from kafkalog._face.replicas import Brokers
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.spark.plan_report import PlanReport

log = logging.getLogger("kafkalog.spark")

T = TypeVar("T")
Tell = Callable[[str], None]  # called with a text for each thing that is skipped
DATA_LOSS_HINT = "set the source option failOnDataLoss to false to read what still exists"
OVERLAP_HINT = (
    "after a change of leaders, the names of segments do not say enough: set option remote.manifests=true, or read "
    "with the directory that has the metadata (path and remote)"
)
NONE = "none (if the keys of a remote tier have a prefix, set option remote.prefix)"
GAP_HINT = "`kafkalog tier list` shows where each segment is; in a compacted topic these offsets may never have existed"
DAMAGE_HINT = "set the source option failOnDataLoss to false to continue at the next segment"


def find_partitions(
    options: SourceOptions,
    known: Collection[TopicPartition] = (),
    tell: Tell | None = None,
    brokers: Brokers | None = None,
) -> dict[TopicPartition, tuple[str, ...]]:
    """Returns the partitions that the options choose, sorted, and the log directories with a copy of each.

    The directories are in the order of `path`.  Raises UnknownTopicOrPartitionException if a named topic or partition
    does not exist; those in `known` may have been deleted.  Raises IllegalStateException if a topic's partitions are
    missing; with failOnDataLoss=false it logs a warning instead.
    """
    from kafkalog._face.replicas import Brokers
    from kafkalog.spark.copies import present, still_there  # tasks do not need these imports

    found: dict[TopicPartition, tuple[str, ...]] = {}
    brokers = brokers or Brokers(options.paths, files_of)
    nodes = None
    there = present(options, tell or warn)
    for log_dir in there:
        files = files_of(log_dir)
        if not files.is_dir(log_dir):
            raise UnknownTopicOrPartitionException(
                "found a file, expected a log directory" if files.exists(log_dir) else "no such log directory",
                path=log_dir,
                hint="expected the directory that contains topic-0, topic-1 ...",
            )
        for partition in list_partitions(log_dir, files=files):
            found[partition] = (*found.get(partition, ()), log_dir)
            if len(found[partition]) > 1:
                nodes = nodes or brokers.nodes()
                found[partition] = still_there(partition, found[partition], nodes)
                if not found[partition]:
                    del found[partition]
    where = ", ".join(there)
    wants: Callable[[str], bool]
    if options.assign is not None:
        missing = [str(each) for each in options.assign if each not in found and each not in known]
        if missing:
            raise UnknownTopicOrPartitionException(
                f"no partition {', '.join(missing)} in {where}",
                hint=f"it has {', '.join(map(str, sorted(found, key=_kafkas_own_last)[:10])) or NONE}",
            )
        wants = _none
        chosen = set(options.assign)
    elif options.subscribe is not None:
        topics = {partition.topic for partition in found}
        gone = {partition.topic for partition in known}
        absent = [topic for topic in options.subscribe if topic not in topics and topic not in gone]
        if absent:
            raise UnknownTopicOrPartitionException(
                f"no topic {', '.join(absent)} in {where}", hint=f"it has {', '.join(sorted(topics)[:10]) or NONE}"
            )
        wants = options.subscribe.__contains__
        chosen = {partition for partition in found if wants(partition.topic)}
    else:
        assert options.pattern is not None
        pattern = java_pattern(options.pattern)
        # Like a consumer with exclude.internal.topics; topics that are named are read all the same.
        hidden = names.INTERNAL_TOPICS if options.excludes_internal else frozenset()

        def wants(topic: str) -> bool:
            return topic not in hidden and pattern.finds(topic)

        chosen = {each for each in found if wants(each.topic)}
        if not chosen and not known:
            topics_there = ", ".join(sorted({each.topic for each in found} - hidden)[:10]) or NONE
            (tell or log.warning)(
                f"option subscribePattern {pattern.text!r} matches no topic in {where}; it has {topics_there}"
            )
    if wants is not _none:
        _judge_missing(options, wants, known, tell or warn, (brokers, there, found))
    return {partition: log_dirs for partition, log_dirs in sorted(found.items()) if partition in chosen}


def _kafkas_own_last(partition: TopicPartition) -> tuple[bool, TopicPartition]:
    return partition.topic in names.INTERNAL_TOPICS, partition


def _none(topic: str) -> bool:
    return False


def _judge_missing(
    options: SourceOptions,
    wants: Callable[[str], bool],
    known: Collection[TopicPartition],
    tell: Tell,
    seen: tuple[Brokers, Sequence[str], Mapping[TopicPartition, Sequence[str]]],
) -> None:
    """Reports partitions that the topics have but that are in none of the paths; others report those in `known`."""
    from kafkalog._face.missing import missing_partitions
    from kafkalog.spark.copies import cluster_of

    brokers, there, found = seen
    cluster, node_id = cluster_of(brokers, found) if len(there) > 1 else (None, None)
    for each in missing_partitions(there, wants, files=files_of(there[0]), cluster=cluster, node_id=node_id):
        if known and set(each.partitions) <= set(known):
            continue
        if each.is_certain and options.fail_on_data_loss:
            raise each.error(f"list the partitions with option assign, or {DATA_LOSS_HINT}")
        tell(each.text)


def plan(options: SourceOptions, wanted: Wanted = ALL, report: PlanReport | None = None) -> list[OffsetRange]:
    """Plans a batch read; returns ranges by topic, partition and offset, with few records that are not wanted.

    `report` counts what exists.
    """
    mount(options.remote, options.paths)  # another query may have changed the mounts
    with _without_garbage(bool(options.remote)):
        return _plan(options, wanted, report)


@contextmanager
def _without_garbage(is_long: bool) -> Iterator[None]:
    """Turns the garbage collector off: a long listing makes a million objects that stay, and checking them takes a
    third of the time."""
    is_long = is_long and gc.isenabled()
    if is_long:
        gc.disable()
    try:
        yield
    finally:
        if is_long:
            gc.enable()


def _plan(options: SourceOptions, wanted: Wanted, report: PlanReport | None) -> list[OffsetRange]:
    from kafkalog.spark.copies import Copies

    wanted = options.question.narrowed(wanted, rows=not options.latest)
    copies = Copies(options)
    partitions = find_partitions(options, brokers=copies.brokers)
    check_complete("startingOffsets", options.start, partitions)
    check_complete("endingOffsets", options.end, partitions)
    if report is not None:
        report.choose(partitions)
    planned: list[OffsetRange] = []
    views: dict[TopicPartition, PartitionView] = {}  # one snapshot of a partition serves all of its ranges
    lines = {path: CheckpointLines(path, files_of(path), keeps_ms=KEEPS_MS) for path, *_ in partitions.values()}
    there = {partition: log_dirs for partition, log_dirs in partitions.items() if wanted.has(partition)}
    chosen = copies.look(there, warn)
    for partition, (log_dir, *_) in there.items():
        seen: Sequence[PartitionView] = chosen.get(partition, ())
        for view in seen or [PartitionView(log_dir, partition, files=files_of(log_dir), checkpoints=lines[log_dir])]:
            planned += ask(view, partial(_plan_one, options=options, wanted=wanted))
            if report is not None:
                report.see(view.snapshot)
            if options.min_partitions is not None:
                views[partition] = view
    if options.min_partitions is None or options.latest:
        return planned
    return split_further(planned, views, options)


def ask(view: PartitionView, question: Callable[[Snapshot], T]) -> T:
    """Answers a question about a snapshot; repeats it on a fresh one if it finds damage.

    A cleaner may have replaced a file that was measured before.
    """
    try:
        try:
            return view.over(question)
        except CorruptRecordException:
            view.refresh()
            return view.over(question)
    finally:
        view.rest()  # there may be more partitions than files that a process may open


def _plan_one(seen: Snapshot, options: SourceOptions, wanted: Wanted) -> list[OffsetRange]:
    """Returns the ranges of one partition."""
    start, end = _narrowed(seen, *_resolve(seen, options), options, wanted)
    if options.changes:
        return _changed(seen, start, end, options)
    return ranges_of(seen, start, end, options)


def _changed(seen: Snapshot, start: int, end: int, options: SourceOptions) -> list[OffsetRange]:
    """Returns the one range, from the log start offset, of a partition whose changes in [start, end) are wanted."""
    if start >= end:
        return []
    known = known_below(seen, start)
    if known.cleaned > end:
        warn(
            f"{seen.topic_partition} is compacted up to offset {known.cleaned}: a key with a record from the ending "
            f"offset {end} to there may have lost its earlier records, and is then missing from the changes"
        )
    made = ranges_of(seen, min(seen.log_start_offset, start), end, options)
    return [replace(each, changes_from=start, is_whole=known.is_whole) for each in made]


def warn(text: str) -> None:
    """Logs a warning on the driver or an executor: how the data source reports what it skips."""
    log.warning("Some data may have been lost. %s", text)


def ranges_of(seen: Snapshot, start: int, end: int, options: SourceOptions, tell: Tell = warn) -> list[OffsetRange]:
    """Returns the ranges of [start, end) of one partition.

    If damage keeps offsets from being found, the ranges are whole segments: the tasks that read them report the damage.
    """
    made: list[OffsetRange] = []
    for begin, stop in _there(seen, start, end, options, tell):
        try:
            _check_start(seen, begin, stop, options, tell)
            found = (
                [span(seen, begin, stop, options.isolation)] if options.latest else _by_size(seen, begin, stop, options)
            )
            made += list(found)
        except CorruptRecordException as error:
            damaged(options, error, tell)
            made += _by_segment(seen, begin, stop, options)
    if options.latest and len(made) > 1:  # the last value of a key is that of the whole partition
        pieces = tuple(piece for each in made for piece in each.pieces)
        made = [_range(seen, made[0].start_offset, made[-1].end_offset, pieces, options.isolation)]
    return _with_history(seen, made)


def _there(seen: Snapshot, start: int, end: int, options: SourceOptions, tell: Tell) -> Iterator[tuple[int, int]]:
    """Yields the parts of [start, end) without offsets that are known to be missing, and reports those."""
    for segment, behind in zip(seen.segments, [*seen.bases[1:], end], strict=False):
        remote = segment_of(segment.path, check=False)
        if remote is None or not remote.is_missing:
            continue
        last = min(remote.end_offset, behind - 1, end - 1)
        if last < start or remote.start_offset >= end:
            continue
        if options.fail_on_data_loss or remote.custom_metadata is not None:
            segment_of(segment.path)  # raises the error
        tell(f"{seen.topic_partition}: no tier has the offsets {max(start, remote.start_offset)} to {last}")
        if start < remote.start_offset:
            yield start, remote.start_offset
        start = last + 1
    if start < end:
        yield start, end


def _with_history(seen: Snapshot, ranges: list[OffsetRange]) -> list[OffsetRange]:
    listed = [each for made in ranges for each in made.pieces if each.remote and not each.remote.segment_leader_epochs]
    if not listed:
        return ranges
    from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED
    from kafkalog.spark.remote_pieces import history_of

    there = (segment_of(each.path, check=False) for each in reversed(seen.segments))
    last = next(each for each in there if each is not None and each.state is COPY_SEGMENT_FINISHED)
    history = history_of(remote_files_of(seen.directory), last)
    return [replace(each, history=history) for each in ranges]


def _check_start(seen: Snapshot, start: int, end: int, options: SourceOptions, tell: Tell) -> None:
    """Reports a start offset that no remote segment has although their names say so; tasks notice later gaps."""
    place = bisect_right(seen.bases, start) - 1
    if not 0 <= place < len(seen.segments) - 1 or start == seen.bases[place]:
        return
    remote, behind = segment_of(seen.segments[place].path), seen.bases[place + 1]
    if remote is not None and seen.position_of(start)[0] != place:
        from kafkalog.spark.remote_pieces import gap_behind

        if gap_behind(remote_files_of(seen.segments[place].path), remote, start - 1, behind):
            lost(options, gap_text(seen.topic_partition, start, min(behind, end), remote), tell)


def gap_text(partition: TopicPartition, start: int, end: int, remote: RemoteLogSegmentMetadata) -> str:
    """Describes offsets [start, end) that a remote segment should have but does not."""
    segment, hint = remote.remote_log_segment_id.id, GAP_HINT if remote.segment_leader_epochs else OVERLAP_HINT
    return f"{partition}: neither segment {segment} from offset {remote.start_offset} on nor another segment has " \
        f"offsets {start} to {end - 1}; {hint}"  # fmt: skip


def _narrowed(seen: Snapshot, start: int, end: int, options: SourceOptions, wanted: Wanted) -> tuple[int, int]:
    """Narrows [start, end) to the wanted records, as far as offsets and time tell."""
    start, end = max(start, wanted.offset_min), min(end, wanted.offset_max + 1)
    if start < end and wanted.timestamp_min > 0:
        try:
            found = seen.offset_for_time(wanted.timestamp_min)
        except CorruptRecordException:  # the read itself reports the damage
            return start, end
        start = end if found is None else max(start, found)
    return start, end


def damaged(
    options: SourceOptions, error: KafkalogError, tell: Tell = warn, skipped: tuple[int, int] | None = None
) -> None:
    """Raises damage that was found; with failOnDataLoss=false it reports what is skipped.

    `skipped`: the offsets [start, end) that the damage hides, if they are known.
    """
    if options.fail_on_data_loss:
        error.hint = f"{error.hint}; {DAMAGE_HINT}" if error.hint else DAMAGE_HINT
        raise error
    start, end = skipped or (0, 0)
    tell(f"offsets {start} to {end - 1}: {error}" if start < end else str(error))


def check_complete(name: str, bound: Bound, partitions: Collection[TopicPartition]) -> None:
    given = bound.offsets if bound.offsets is not None else bound.timestamps_ms
    if given is None:
        return
    name = name if bound.offsets is not None else f"{name}ByTimestamp"
    missing = [str(tp) for tp in partitions if tp not in given and (tp.topic, None) not in given]
    extra = [
        topic if number is None else f"{topic}-{number}"
        for topic, number in given
        if not any(tp.topic == topic and number in (None, tp.partition) for tp in partitions)
    ]
    if missing or extra:
        raise IllegalArgumentException(
            f"If {name} contains specific values, you must specify all TopicPartitions: "
            f"missing {', '.join(missing) or 'none'}, not assigned {', '.join(extra) or 'none'}",
            hint="use -1 for latest, -2 for earliest",
        )


def _resolve(view: Snapshot, options: SourceOptions) -> tuple[int, int]:
    """Returns the offsets [start, end) to read from one partition, after comparing them with the log."""
    from kafkalog.spark.copies import end_text

    latest = view.visible_end(options.isolation)
    start = offset_of(view, options.start, latest, starting=True, options=options)
    end = offset_of(view, options.end, latest, starting=False, options=options)
    if latest > end < start:
        _judge_order(view, start, end, options)
    if start < view.log_start_offset or start > view.log_end_offset:
        lost(
            options,
            f"{view.topic_partition}: starting offset {start} does not exist; the log has offsets "
            f"[{view.log_start_offset}, {view.log_end_offset}){end_text(view)}",
        )
        start = min(max(start, view.log_start_offset), view.log_end_offset)
    if end > view.log_end_offset:
        text = (
            f"{view.topic_partition}: ending offset {end} is after the log's end {view.log_end_offset}{end_text(view)}"
        )
        lost(options, text)
    if end >= latest and not _explicit(options.end, view.topic_partition):
        damage = view.damage_at_end(options.isolation)
        if damage is not None:
            damaged(options, damage.error())
    end = min(end, latest)
    return start, end


def _judge_order(view: Snapshot, start: int, end: int, options: SourceOptions) -> None:
    """Raises IllegalArgumentException for a start after the given end, or reports that records up to the end are
    deleted."""
    topic, partition = view.topic_partition
    if end < view.log_start_offset:
        lost(
            options, f"{topic}-{partition}: ending offset {end} is before the log start offset {view.log_start_offset}"
        )
        return
    raise IllegalArgumentException(
        f"The resolved start offset {start} is greater than the resolved end offset {end} for topic {topic} "
        f"partition {partition}.",
        hint="give a start before the end; a time is compared by the offset that it resolves to",
    )


def _explicit(bound: Bound, partition: TopicPartition) -> bool:
    """Whether an offset was given, not the end of the log."""
    return bound.offsets is not None and _of(bound.offsets, partition) >= 0


def lost(options: SourceOptions, text: str, tell: Tell = warn) -> None:
    """Raises an error about records that no longer exist; with failOnDataLoss=false it reports them."""
    if options.fail_on_data_loss:
        raise IllegalStateException(f"Some data may have been lost. {text}", hint=DATA_LOSS_HINT) from None
    tell(text)


def offset_of(view: Snapshot, bound: Bound, latest: int, *, starting: bool, options: SourceOptions) -> int:
    partition = view.topic_partition
    timestamp: int | None
    if bound.word is not None:
        offset = bound.word
    elif bound.offsets is not None:
        offset = _of(bound.offsets, partition)
    else:
        timestamp = bound.timestamp_ms if bound.timestamps_ms is None else _of(bound.timestamps_ms, partition)
        assert timestamp is not None
        found = view.offset_for_time(timestamp)
        if found is not None:
            return found
        if starting and not options.latest_when_no_offset_matches:
            raise IllegalArgumentException(
                f"No offset matched from request of topic-partition {partition} and timestamp {timestamp}.",
                hint="set startingOffsetsByTimestampStrategy to latest to read nothing from such partitions",
            )
        return latest
    if offset == EARLIEST:
        return view.log_start_offset
    return latest if offset == LATEST else offset


def _of(values: dict[tuple[str, int | None], int], partition: TopicPartition) -> int:
    value = values.get(partition)
    return values[(partition.topic, None)] if value is None else value


def bytes_between(seen: Snapshot, start: int, end: int) -> int:
    """Returns the bytes of the batches that hold the offsets [start, end)."""
    place, position = seen.position_of(start)
    last_place, last_end = seen.end_position_of(end)
    between = sum(seen.readable_bytes(segment) for segment in seen.segments[place:last_place])
    return max(between + last_end - position, 0)


# --- splitting --------------------------------------------------------------------------------------------


def _by_size(view: Snapshot, start: int, end: int, options: SourceOptions) -> Iterator[OffsetRange]:
    begin = start
    for cut in [*_cuts(view, start, end, options.max_bytes_per_partition), end]:
        if options.max_records_per_partition is None:
            made = span(view, begin, cut, options.isolation)
            if made.pieces:
                yield made
        else:
            yield from _by_offsets(view, begin, cut, options.max_records_per_partition, options.isolation)
        begin = cut


def _by_offsets(view: Snapshot, start: int, end: int, step: int, isolation: str) -> Iterator[OffsetRange]:
    """Yields ranges of at most `step` offsets, and none for offsets without records, which compaction leaves."""
    while start < end:
        place, position = view.position_of(start)
        if place == len(view.segments):
            return
        header = view.reader(place).header_at(position)
        if header is not None and header.last_offset >= start + step:
            start = max(start, base_offset_of(view.file(view.segments[place]), header, position))
            if start >= end:
                return
        made = span(view, start, min(start + step, end), isolation)
        if made.pieces:
            yield made
        start += step


def _cuts(view: Snapshot, start: int, end: int, target_bytes: int) -> Iterator[int]:
    """Yields the offsets at which about `target_bytes` are full, each the first of a batch in an index."""
    first_place, position = view.position_of(start)
    filled = -position
    for place in range(first_place, len(view.segments)):
        segment = view.segments[place]
        if segment.base_offset >= end:
            return
        if filled >= target_bytes and segment.base_offset > start:
            yield segment.base_offset
            filled = 0
        size = view.about_bytes(segment)
        if filled + size < target_bytes:  # its index is not even opened: there may be 100,000 of them
            filled, position = filled + size, 0
            continue
        size, entries = view.readable_bytes(segment), segment.offset_entries
        while (entry := entries.at_or_behind(max(target_bytes - filled, position + 1))) is not None:
            last_offset, position = entry
            offset = view.first_offset_at(place, position, last_offset)
            if offset is None:
                break  # the index contradicts the log: do not split this segment
            if offset >= min([end, *view.bases[place + 1 : place + 2]]):
                break  # the next segment has this offset, too
            if start < offset:
                yield offset
                filled = -position
        filled += size
        position = 0


def span(view: Snapshot, start: int, end: int, isolation: str) -> OffsetRange:
    """Returns the range [start, end) with the bytes that hold it."""
    pieces = []
    place, position = view.position_of(start)
    last_place, last_end = view.end_position_of(end)
    for number in range(place, min(last_place + 1, len(view.segments))):
        segment = view.segments[number]
        stop = last_end if number == last_place else view.about_bytes(segment)
        if position < stop or (number < last_place and _was_emptied(view, number)):
            is_open = number != last_place and segment.is_about
            pieces.append(_piece(view, number, position, stop, is_open))
        position = 0
    return _range(view, start, end, tuple(pieces), isolation)


def _was_emptied(seen: Snapshot, number: int) -> bool:
    """Whether an empty file had bytes, as its index says; the task that reads it reports that."""
    is_closed = number + 1 < len(seen.segments)
    segment = seen.segments[number]
    return is_closed and not seen.readable_bytes(segment) and segment.indexed_position() >= 0


def _piece(seen: Snapshot, number: int, start: int, end: int, is_open: bool = False) -> Piece:
    segment = seen.segments[number]
    next_base = seen.bases[number + 1] if number + 1 < len(seen.segments) else None
    remote = segment_of(segment.path)
    # A remote segment never changes.
    first = header_at(seen.file(segment), start) if start and remote is None else None
    first_field = -1 if first is None else first.base_offset
    return Piece(segment.path, segment.base_offset, start, end, first_field, next_base, remote, is_open)


def _range(seen: Snapshot, start: int, end: int, pieces: tuple[Piece, ...], isolation: str) -> OffsetRange:
    aborted = tuple(seen.aborted_in(start, end - 1)) if isolation == "read_committed" else ()
    topic, partition = seen.topic_partition
    return OffsetRange(topic, partition, os.path.dirname(seen.directory), start, end, pieces, aborted)


def _by_segment(seen: Snapshot, start: int, end: int, options: SourceOptions) -> Iterator[OffsetRange]:
    """Yields whole segments, for a partition in which damage keeps offsets from being found."""
    for place, segment in enumerate(seen.segments):
        first = max(start, segment.base_offset)
        last = end if place + 1 == len(seen.segments) else min(end, seen.bases[place + 1])
        size = seen.readable_bytes(segment)
        if first < last and (size or _was_emptied(seen, place)):
            yield _range(seen, first, last, (_piece(seen, place, 0, size),), options.isolation)


def _halves(seen: Snapshot, whole: OffsetRange, middle: int, isolation: str) -> list[OffsetRange]:
    halves = span(seen, whole.start_offset, middle, isolation), span(seen, middle, whole.end_offset, isolation)
    return [replace(each, history=whole.history) for each in halves]


def split_further(
    planned: list[OffsetRange], views: Mapping[TopicPartition, PartitionView], options: SourceOptions
) -> list[OffsetRange]:
    """Halves the largest ranges by offset until there are `minPartitions`."""
    assert options.min_partitions is not None
    heap = [(-made.size, number, made) for number, made in enumerate(planned)]
    heapq.heapify(heap)
    done: list[OffsetRange] = []
    number = len(heap)
    while heap and len(heap) + len(done) < options.min_partitions:
        _, _, largest = heapq.heappop(heap)
        middle = (largest.start_offset + largest.end_offset) // 2
        if middle <= largest.start_offset:
            done.append(largest)
            continue
        view = views[TopicPartition(largest.topic, largest.partition)]
        try:
            halves = ask(view, partial(_halves, whole=largest, middle=middle, isolation=options.isolation))
        except CorruptRecordException:
            done.append(largest)  # the task that reads it reports the damage
            continue
        for half in halves:
            number += 1
            if half.pieces:
                heapq.heappush(heap, (-half.size, number, half))
    ranges = done + [made for _, _, made in heap]
    return sorted(ranges, key=lambda made: (made.topic, made.partition, made.start_offset))
