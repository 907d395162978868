"""What a bucket alone says of its segments, where no `__remote_log_metadata` does: names, manifests, sizes.

A segment whose upload came to its end has all its objects; another one is passed over, it is being uploaded, deleted,
or was left by a crash.  Where two begin at one offset (an upload was repeated, or two leaders wrote) the one counts
whose leader epochs are the later ones, then the longer one; the leader epochs of each lie beside it.  Where manifests
say the epochs of all, those segments count that the epochs lead to, as in a store.  Names alone do not tell a segment
whose offsets a later leader's has, too: there each goes up to where the next one begins.  Offsets between two segments
that none of them has are told of once, and passed over: manifests say where a segment ends; where names alone are
there, whoever reads on sees it (`RemoteFiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, zip_longest
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.remote.lineage import chain_of
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.remote_files import tell_gap
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.remote.storage import FoundSegment, RemoteStorageManager

THREADS = 16
TOGETHER = 16  # manifests, that a thread reads one after the other
_log = Lines("kafkalog.remote")


class ObjectSegments:
    """A `RemoteSegments` of a bucket.  `topic_ids` says which is meant where the bucket has two topics of a name.

    `only_listed`: of all segments but the first one names and sizes are enough, though they have manifests.  Then it is
    not known which of them have aborted transactions, nor their last times; the size of a log is an estimate, and is
    asked for where it is needed.
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

    def partitions(self) -> dict[TopicPartition, TopicIdPartition]:
        """IllegalArgumentException where the bucket has two topics of a name, and nobody said which is meant."""
        return one_of_a_name(
            self._storage.partitions(), self.topic_ids, lambda each: bool(self._storage.segments_of(each))
        )

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        whole = [found for found in self._storage.segments_of(partition) if found.is_whole]
        chosen = [self._chosen(list(same)) for _, same in groupby(whole, key=_base)]
        return list(self._described(chosen))

    def _described(self, found: list[FoundSegment]) -> Iterator[RemoteLogSegmentMetadata]:
        said = list(self._said(found))
        known = [one for one in said if one is not None and one.segment_leader_epochs]
        if len(known) == len(said):
            told = _of_history(known)
        else:
            pairs = zip(found, said, strict=True)
            told = [_told(each) if one is None else one for each, one in pairs]
        for each, following in zip_longest(told, told[1:]):
            if following is None:
                yield each
                break
            if each.end_offset < each.start_offset:  # unknown
                each = each._replace(end_offset=following.start_offset - 1)
            if each.end_offset + 1 < following.start_offset:
                self._tell_gap(each, following.start_offset)
            yield each

    def _tell_gap(self, before: RemoteLogSegmentMetadata, begin: int) -> None:
        """Once: a listing is repeated."""
        gap = before.topic_id_partition.topic_partition, before.end_offset + 1, begin - 1
        if gap not in self._told_gaps:
            self._told_gaps.add(gap)
            tell_gap(*gap)

    def _said(self, found: list[FoundSegment]) -> Iterable[RemoteLogSegmentMetadata | None]:
        """What manifests say of segments, where there are any and they are read."""
        if not found or (first := self._storage.metadata_of(found[0])) is None:
            return [None] * len(found)
        if self._only_listed:
            packed = found[0].object_bytes / max(1, first.segment_size_in_bytes) or 1.0
            return [first, *(_told(each, packed) for each in found[1:])]
        if len(found) <= THREADS:
            return [first, *map(self._storage.metadata_of, found[1:])]
        with ThreadPoolExecutor(THREADS, "kafkalog-remote-manifests") as pool:
            rows = pool.map(self._said_of, [found[at : at + TOGETHER] for at in range(1, len(found), TOGETHER)])
            return [first, *chain.from_iterable(rows)]

    def _said_of(self, found: list[FoundSegment]) -> list[RemoteLogSegmentMetadata | None]:
        return list(map(self._storage.metadata_of, found))

    def _chosen(self, same: list[FoundSegment]) -> FoundSegment:
        """Of segments that begin at one offset."""
        return same[0] if len(same) == 1 else max(same, key=self._rank)

    def _rank(self, found: FoundSegment) -> tuple[int, int, str]:
        try:
            epochs = self.epochs_of(found)
        except KafkalogError as error:
            _log.warning("the leader epochs of segment %s cannot be read: %s", found.id, error)
            return -1, found.object_bytes, found.id
        return max((entry.epoch for entry in epochs), default=-1), found.object_bytes, found.id

    def epochs_of(self, found: FoundSegment) -> list[EpochEntry]:
        """The leader epochs up to a segment's end, as lie beside it."""
        told = _told(found)
        data = self._storage.fetch_index(told, IndexType.LEADER_EPOCH)
        return LeaderEpochCheckpointFile(found.id, create=False).decode(data)


def _base(found: FoundSegment) -> int:
    return found.base_offset


def one_of_a_name(
    partitions: Iterable[TopicIdPartition], topic_ids: Mapping[str, str], has_any: Callable[[TopicIdPartition], bool]
) -> dict[TopicPartition, TopicIdPartition]:
    """Partitions of one topic of each name: of that with the id that is given, else of the only one that has anything.
    IllegalArgumentException where two have."""
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
                    hint=f"say which is meant: topic_ids={{{topic!r}: ...}}, --topic-id {topic}=...",
                )
            chosen = by_id[used[0]] if used else []
        found |= {each.topic_partition: each for each in chosen}
    return found


def _of_history(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Those that a store's readers would be led to, had they been copied in the order of their ends."""
    cache = RemoteLogMetadataCache()
    cache.take(sorted(segments, key=lambda each: (each.end_offset, -each.start_offset)))
    return chain_of(cache)


def _told(found: FoundSegment, packed: float = 1.0) -> RemoteLogSegmentMetadata:
    """What a name and a size say: not where the segment ends (-1).  An object is about so many times as long as its
    log."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(found.partition, found.id),
        found.base_offset,
        -1,
        -1,
        -1,
        -1,
        round(found.object_bytes / packed),
        (),
        COPY_SEGMENT_FINISHED,
        is_txn_idx_empty=found.has_txn_index is False,
    )
