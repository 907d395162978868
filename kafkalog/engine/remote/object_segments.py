"""What a bucket alone says of its segments, where no `__remote_log_metadata` does: names, manifests, sizes.

A segment whose upload came to its end has all its objects; another one is passed over, it is being uploaded, deleted,
or was left by a crash.  Each goes up to where the next one begins.  Where two begin at one offset (an upload was
repeated, or two leaders wrote) the one counts whose leader epochs are the later ones, then the longer one; the leader
epochs of each lie beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
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
_log = Lines("kafkalog.remote")


class ObjectSegments:
    """A `RemoteSegments` of a bucket.  `topic_ids` says which is meant where the bucket has two topics of a name."""

    def __init__(self, storage: RemoteStorageManager, topic_ids: Mapping[str, str] | None = None) -> None:
        self._storage = storage
        self._topic_ids = dict(topic_ids or {})

    def partitions(self) -> dict[TopicPartition, TopicIdPartition]:
        """IllegalArgumentException where the bucket has two topics of a name, and nobody said which is meant."""
        found: dict[TopicPartition, TopicIdPartition] = {}
        ids: dict[str, str] = {}
        for partition in self._storage.partitions():
            topic = partition.topic_partition.topic
            wanted = self._topic_ids.get(topic)
            if wanted is not None and partition.topic_id != wanted:
                continue
            known = ids.setdefault(topic, partition.topic_id)
            if known != partition.topic_id:
                raise IllegalArgumentException(
                    f"found two topics {topic!r} in the remote tier, with the ids {known} and {partition.topic_id}",
                    hint=f"say which is meant: topic_ids={{{topic!r}: ...}}",
                )
            found[partition.topic_partition] = partition
        return found

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        whole = [found for found in self._storage.segments_of(partition) if found.is_whole]
        chosen = [self._chosen(list(same)) for _, same in groupby(whole, key=_base)]
        return list(self._described(chosen))

    def _described(self, found: list[FoundSegment]) -> Iterator[RemoteLogSegmentMetadata]:
        if not found:
            return
        first = self._storage.metadata_of(found[0])
        said: list[RemoteLogSegmentMetadata | None] = [first]
        if first is None or len(found) <= THREADS:
            said += map(self._storage.metadata_of, found[1:])
        else:
            with ThreadPoolExecutor(THREADS, "kafkalog-remote-manifests") as pool:
                said += pool.map(self._storage.metadata_of, found[1:])
        for each, one, following in zip(found, said, [*found[1:], None], strict=True):
            told = _told(each, following) if one is None else one
            # Two leaders that wrote at once overlap: a segment ends in front of the next one.
            if following is not None and not 0 <= told.end_offset < following.base_offset:
                told = told._replace(end_offset=following.base_offset - 1)
            yield told

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
        told = _told(found, None)
        data = self._storage.fetch_index(told, IndexType.LEADER_EPOCH)
        return LeaderEpochCheckpointFile(found.id, create=False).decode(data)


def _base(found: FoundSegment) -> int:
    return found.base_offset


def _told(found: FoundSegment, following: FoundSegment | None) -> RemoteLogSegmentMetadata:
    """What names and sizes say: of the last segment they do not say where it ends (-1)."""
    end = -1 if following is None else following.base_offset - 1
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(found.partition, found.id),
        found.base_offset,
        end,
        -1,
        -1,
        -1,
        found.object_bytes,
        (),
        COPY_SEGMENT_FINISHED,
        is_txn_idx_empty=not found.has_txn_index,
    )
