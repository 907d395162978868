"""Rebuilds the metadata of a bucket's segments from its objects, without a `__remote_log_metadata`.

A segment whose upload is finished has its log and the object that is uploaded last.  Others are ignored: they are being
uploaded or deleted, or a crash left them.  A segment's end and leader epochs come from its objects, which are read
once.  Segments count if the epochs lead to them, as in a store.  A gap between two segments is logged once and skipped.
A segment with a damaged manifest stands for missing offsets, up to the begin of the next segment.  It may hold them, so
a reader that reaches them gets an error.

The history is that of the latest leader's epochs, which are stored with its last segment.  A segment whose epochs
cannot be read counts if no other segment has its offsets.

If a caller needs only names, or no segment's epochs can be read, each segment extends to the begin of the next one.
That may be wrong after a change of leaders; a reader notices a segment that ends early (`RemoteFiles`).  Two segments
may begin at one offset (a repeated upload, or two leaders).  Then the one with the later leader epochs counts, and next
the longer one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, groupby, repeat, takewhile, zip_longest
from typing import TYPE_CHECKING

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.remote.lineage import epochs_of_all, history
from kafkalog.engine.remote.remote_files import tell_gap
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition, missing
from kafkalog.engine.remote.storage import IndexType, tell_once
from kafkalog.errors import (
    CorruptManifestException,
    IllegalArgumentException,
    KafkalogError,
    RemoteResourceNotFoundException,
    RetriableRemoteStorageException,
)

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.remote.storage import FoundSegment, RemoteStorageManager

THREADS = 16
ASKED_MOST = 1000  # segments of a partition above which names are enough
TOGETHER = 16  # segments that a thread queries one after the other


class ObjectSegments:
    """A `RemoteSegments` of a bucket.  `topic_ids` chooses between two topics of the same name.

    `only_listed` means that names and sizes are enough for a partition with more than ASKED_MOST segments.  Their ends
    are then not known.  With manifests, their last times and whether they have aborted transactions are not known
    either.  The size of a log is then an estimate; it is requested when it is needed.
    """

    has_metadata = False

    def __init__(
        self,
        storage: RemoteStorageManager,
        topic_ids: Mapping[str, str] | None = None,
        *,
        only_listed: bool = False,
    ) -> None:
        self._storage = storage
        self.topic_ids = dict(topic_ids or {})
        self._only_listed = only_listed
        self._told_gaps: set[tuple[TopicPartition, int, int]] = set()
        # results of the last listing
        self._said: dict[TopicIdPartition, dict[FoundSegment, RemoteLogSegmentMetadata]] = {}
        self._histories: dict[TopicIdPartition, tuple[FoundSegment, list[EpochEntry]]] = {}

    def check_topic_ids(self) -> None:
        """Checks the given topic ids when a bucket is opened.

        Raises IllegalArgumentException if a topic exists in the bucket, but not with the given id.  Later its last
        segment may expire.
        """
        there = self._storage.partitions() if self.topic_ids else []
        for topic, topic_id in self.topic_ids.items():
            ids = sorted({each.topic_id for each in there if each.topic_partition.topic == topic})
            if ids and topic_id not in ids:
                raise IllegalArgumentException(
                    f"topic_ids: found {topic_id} for {topic!r}, expected an id of this topic in the remote tier: "
                    f"{', '.join(ids)}",
                    hint=f"give one of these: topic_ids={{{topic!r}: ...}}, --topic-id {topic}=...",
                )

    def partitions(self) -> dict[TopicPartition, TopicIdPartition]:
        """Returns the partitions; raises IllegalArgumentException if two topics have one name and `topic_ids` does not
        choose."""
        there = self._storage.partitions()
        return one_of_a_name(there, self.topic_ids, lambda each: bool(self._storage.segments_of(each)))

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        whole = [found for found in self._storage.segments_of(partition) if found.is_whole]
        if self._only_listed and len(whole) > ASKED_MOST and self._ends_with_last(partition, whole):
            chosen = self._chosen(whole)
            packed = self._packed(chosen[0])
            told = [each.listed(packed) for each in chosen]
        else:
            said = self._ask(partition, whole)
            told = self._of_history(said) or [said[each] for each in self._chosen(list(said))]
        return list(self._with_ends(told))

    def _ends_with_last(self, partition: TopicIdPartition, found: Sequence[FoundSegment]) -> bool:
        """Returns whether the segment with the highest base offset belongs to the latest leader and extends furthest.

        It checks a sample of segments: those near the end, and ever fewer before them.
        """
        count, places = len(found), set(range(max(0, len(found) - THREADS), len(found)))
        for step in takewhile(count.__gt__, accumulate(repeat(THREADS), lambda step, _: 2 * step)):
            at = (count - step) // step * step  # the same ones, even if segments are added
            places |= {at, at + 1}
        asked = self._ask(partition, [found[at] for at in sorted(places) if at < count]).values()
        said = [each for each in asked if not each.is_missing]
        return not said or max(map(_rank, said)) == _rank(said[-1])

    def _of_history(self, said: Mapping[FoundSegment, RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments that a store's readers would use.

        A segment with an unknown end extends to the begin of its leader's next one.  A segment without leader epochs
        counts if no other one has its first offset.  Returns nothing if no segment has leader epochs.
        """
        known = {found: each for found, each in said.items() if each.segment_leader_epochs}
        if not known:
            return []
        bases: dict[int, list[int]] = {}  # by the leader epoch in which they begin
        for each in known.values():
            bases.setdefault(each.segment_leader_epochs[0][0], []).append(each.start_offset)
        by_id, ends = {}, []
        for each in known.values():
            by_id[each.remote_log_segment_id] = each
            end = each.end_offset
            if end < each.start_offset:
                of_leader = bases.get(each.segment_leader_epochs[-1][0], [])
                end = min((base for base in of_leader if base > each.start_offset), default=LONG_MAX) - 1
            ends.append(each._replace(end_offset=end))
        epochs = epochs_of_all(ends, self._of_last(max(known, key=lambda found: _rank(known[found]))))
        told = [by_id.get(each.remote_log_segment_id, each) for each in history(ends, epochs)]
        for each in (said[found] for found in self._chosen([found for found in said if found not in known])):
            at = bisect_right(told, each.start_offset, key=_start)
            if not at or told[at - 1].end_offset < each.start_offset != told[at - 1].start_offset:
                told.insert(at, each)
        return told

    def _of_last(self, latest: FoundSegment) -> list[EpochEntry]:
        """Returns the leader epochs of a partition, which are stored with its latest leader's last segment."""
        held = self._histories.get(latest.partition)
        if held is None or held[0] != latest or not held[1]:
            held = self._histories[latest.partition] = latest, self._history(latest)
        return held[1]

    def _with_ends(self, told: Sequence[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
        for each, following in zip_longest(told, told[1:]):
            if following is not None and each.end_offset < each.start_offset:  # unknown
                each = each._replace(end_offset=following.start_offset - 1)
            if following is not None and each.end_offset + 1 < following.start_offset:
                self._tell_gap(each, following.start_offset)
            yield each

    def _tell_gap(self, before: RemoteLogSegmentMetadata, begin: int) -> None:
        """Logs a gap once, because a listing is repeated."""
        gap = before.topic_id_partition.topic_partition, before.end_offset + 1, begin - 1
        if gap not in self._told_gaps:
            self._told_gaps.add(gap)
            tell_gap(*gap)

    def _packed(self, first: FoundSegment) -> float:
        """Estimates how many times as large as its log an object is."""
        if not self._storage.has_manifests:
            return 1.0
        said = self._asked_of(first)
        if said is None or said.is_missing:
            return 1.0
        return first.object_bytes / max(1, said.segment_size_in_bytes) or 1.0

    def _ask(
        self, partition: TopicIdPartition, found: Sequence[FoundSegment]
    ) -> dict[FoundSegment, RemoteLogSegmentMetadata]:
        said = self._said[partition] = self._asked(found, self._said.get(partition, {}))
        return said

    def _asked(
        self, found: Sequence[FoundSegment], known: Mapping[FoundSegment, RemoteLogSegmentMetadata]
    ) -> dict[FoundSegment, RemoteLogSegmentMetadata]:
        """Returns the metadata of each segment from its objects, without segments that were deleted since the listing.

        `known` has earlier results; segments with incomplete ones are queried again.
        """
        known = {each: said for each, said in known.items() if said.segment_leader_epochs and said.end_offset >= 0}
        news = [each for each in found if each not in known]
        rows: Iterable[Iterable[RemoteLogSegmentMetadata | None]] = [self._row(news[:THREADS])]
        if len(news) > THREADS:
            with ThreadPoolExecutor(THREADS, "kafkalog-remote-metadata") as pool:
                rows = list(pool.map(self._row, [news[at : at + TOGETHER] for at in range(0, len(news), TOGETHER)]))
        asked = {**known, **dict(zip(news, chain.from_iterable(rows), strict=True))}
        return {each: said for each in found if (said := asked[each]) is not None}

    def _row(self, found: Iterable[FoundSegment]) -> list[RemoteLogSegmentMetadata | None]:
        return list(map(self._asked_of, found))

    def _asked_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata | None:
        try:
            return self._storage.metadata_of(found)
        except RemoteResourceNotFoundException:
            return None
        except CorruptManifestException as error:
            tell_once(f"segment {found.id} of {found.partition.topic_partition} cannot be read: {error}")
            return missing(found.partition, found.base_offset, -1, segment_id=found.id)

    def _chosen(self, found: Iterable[FoundSegment]) -> list[FoundSegment]:
        """Chooses one segment for each base offset."""
        same = (list(each) for _, each in groupby(found, key=_base))
        return [each[0] if len(each) == 1 else max(each, key=self._rank) for each in same]

    def _rank(self, found: FoundSegment) -> tuple[int, int, str]:
        return max((entry.epoch for entry in self._history(found)), default=-1), found.object_bytes, found.id

    def _history(self, found: FoundSegment) -> list[EpochEntry]:
        """Returns the leader epochs up to a segment's end, which are stored with it; none if they cannot be read."""
        try:
            return self.epochs_of(found)
        except RetriableRemoteStorageException:
            raise
        except KafkalogError as error:
            tell_once(f"the leader epochs of segment {found.id} cannot be read: {error}")
            return []

    def epochs_of(self, found: FoundSegment) -> list[EpochEntry]:
        """Returns the leader epochs up to a segment's end, which are stored with it."""
        data = self._storage.fetch_index(found.listed(), IndexType.LEADER_EPOCH)
        return LeaderEpochCheckpointFile(found.id, create=False).decode(data)


def _base(found: FoundSegment) -> int:
    return found.base_offset


def _start(metadata: RemoteLogSegmentMetadata) -> int:
    return metadata.start_offset


def _rank(metadata: RemoteLogSegmentMetadata) -> tuple[int, int]:
    """Ranks segments: the highest one is that of the latest leader that extends furthest."""
    return max((epoch for epoch, _ in metadata.segment_leader_epochs), default=-1), metadata.end_offset


def one_of_a_name(
    partitions: Iterable[TopicIdPartition], topic_ids: Mapping[str, str], has_any: Callable[[TopicIdPartition], bool]
) -> dict[TopicPartition, TopicIdPartition]:
    """Returns the partitions of one topic for each name: the given id, or else the only one that has anything.

    Raises IllegalArgumentException if two have.
    """
    by_topic: dict[str, dict[str, list[TopicIdPartition]]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic_partition.topic, {}).setdefault(partition.topic_id, []).append(partition)
    found: dict[TopicPartition, TopicIdPartition] = {}
    for topic, by_id in by_topic.items():
        if topic in topic_ids:
            chosen = by_id.get(topic_ids[topic], [])
        else:
            used = list(by_id) if len(by_id) == 1 else [each for each in by_id if any(map(has_any, by_id[each]))]
            if len(used) > 1:
                raise IllegalArgumentException(
                    f"found two topics {topic!r} in the remote tier, with the ids {used[0]} and {used[1]}",
                    hint=f"choose one of them: topic_ids={{{topic!r}: ...}}, --topic-id {topic}=..., or Spark's "
                    f"remote.topicIds={topic}=...",
                )
            chosen = by_id[used[0]] if used else []
        found |= {each.topic_partition: each for each in chosen}
    return found
