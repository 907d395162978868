"""The door to the objects of a remote tier: what copies a segment there, fetches a range of it, and deletes it.

`RemoteStorageManager` is Kafka's plugin interface.  What stands behind it here is a layout (`local_tiered`, `aiven`)
over a place where objects lie (`objects`): the layout says which objects a segment is and what their bytes mean, the
place only puts, gets, lists and deletes.  Whoever asks knows a segment's metadata and nothing of either.

Source: org.apache.kafka.server.log.remote.storage.RemoteStorageManager (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from kafkalog.errors import IllegalArgumentException, InvalidTopicException

if TYPE_CHECKING:
    from kafkalog.engine.files import File
    from kafkalog.engine.remote.objects import Object


class IndexType(Enum):
    """The small files that go with a segment's log; the values are our words for them."""

    OFFSET = "offset index"
    TIMESTAMP = "time index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    TRANSACTION = "transaction index"
    LEADER_EPOCH = "leader epoch checkpoint"


class LogSegmentData(NamedTuple):
    """A segment's files on the local disk: paths, and the leader epochs up to the segment's end as a checkpoint file
    has them.  `transaction_index` is None where the segment has no aborted transactions."""

    log_segment: str
    offset_index: str
    time_index: str
    transaction_index: str | None
    producer_snapshot_index: str
    leader_epoch_index: bytes


class FoundSegment(NamedTuple):
    """A segment as a listing shows it.

    `object_bytes`: of the object with its log, compressed and encrypted as it may be; `index_bytes`: of that with its
    offset index.  `is_whole`: its log is there, and the object that comes last in an upload and goes first in a
    deletion.  `lacks`: suffixes of objects that are missing; a whole segment lost them.  `has_txn_index`: None where a
    listing does not say.
    """

    partition: TopicIdPartition
    id: str
    base_offset: int
    object_bytes: int
    index_bytes: int
    is_whole: bool
    folder: str
    suffixes: tuple[str, ...]
    has_txn_index: bool | None = None
    lacks: tuple[str, ...] = ()

    @property
    def objects(self) -> tuple[str, ...]:
        """Their keys."""
        stem = f"{self.folder}/{names.filename_prefix_from_offset(self.base_offset)}-{self.id}"
        return tuple(stem + suffix for suffix in self.suffixes)

    def listed(self, packed: float = 1.0) -> RemoteLogSegmentMetadata:
        """What a name and a size say: not where the segment ends (-1).  An object is about `packed` times as long as
        its log."""
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(self.partition, self.id),
            self.base_offset,
            -1,
            -1,
            -1,
            -1,
            round(self.object_bytes / packed),
            (),
            COPY_SEGMENT_FINISHED,
            is_txn_idx_empty=self.has_txn_index is False,
        )


_STEM = re.compile(r"[0-9]{20}-[a-zA-Z0-9_-]{22}")
_STEM_CHARS, _BASE_CHARS = 43, 20
_log = Lines("kafkalog.remote")


def found_partition(topic: str, number: str, topic_id: str, shown: str) -> TopicIdPartition | None:
    """The partition that the names of a folder say, which is `shown`; None where no partition has these."""
    try:
        names.validate_topic_name(topic)
        checked_topic_id(topic_id)
        if str(int(number)) == number and int(number) <= INT_MAX:
            return TopicIdPartition(topic_id, names.TopicPartition(topic, int(number)))
    except (InvalidTopicException, IllegalArgumentException):
        pass
    tell_once(f"{shown} is passed over: no partition of Kafka has such a name, number and topic id")
    return None


@lru_cache(1000)
def tell_once(what: str) -> None:
    """A warning, of what is found at each listing."""
    _log.warning("%s", what)


def found_segments(
    partition: TopicIdPartition,
    folder: str,
    listed: Iterable[Object],
    suffixes: Sequence[str],
    last: str,
    txn_suffix: str | None = None,
) -> list[FoundSegment]:
    """The segments of a partition's folder, whose objects are named `<base offset>-<segment id><suffix>`; the first
    suffix is the log's, the second that of its offset index, `last` that of the object that makes it whole, and of
    `txn_suffix` there may be none.  Objects may be listed twice; others are passed over."""
    bits = {suffix: 1 << number for number, suffix in enumerate(suffixes)}
    there: dict[str, int] = {}  # by stem, the suffixes' bits: of 100,000 segments a little is much
    log_bytes: dict[str, int] = {}
    index_bytes: dict[str, int] = {}
    at = len(folder) + 1
    for key, size in listed:
        stem, bit = key[at : at + _STEM_CHARS], bits.get(key[at + _STEM_CHARS :])
        if bit is None or (stem not in there and not _is_stem(stem)):
            continue
        there[stem] = there.get(stem, 0) | bit
        if bit == 1:
            log_bytes[stem] = size
        elif bit == 2:
            index_bytes[stem] = size
    sets = {bits_of: tuple(each for each in suffixes if bits[each] & bits_of) for bits_of in set(there.values())}
    needed = [each for each in suffixes if each != txn_suffix]
    lacks = {bits_of: tuple(each for each in needed if not bits[each] & bits_of) for bits_of in sets}
    return [
        FoundSegment(
            partition,
            stem[_BASE_CHARS + 1 :],
            int(stem[:_BASE_CHARS]),
            log_bytes.get(stem, 0),
            index_bytes.get(stem, 0),
            bits_of & 1 == 1 and bits_of & bits[last] != 0,
            folder,
            sets[bits_of],
            None if txn_suffix is None else bool(bits_of & bits[txn_suffix]),
            lacks[bits_of],
        )
        for stem, bits_of in sorted(there.items())
    ]


def _is_stem(text: str) -> bool:
    return _STEM.fullmatch(text) is not None and int(text[:_BASE_CHARS]) <= LONG_MAX


class RemoteStorageManager(Protocol):
    """RemoteStorageManager: thread-safe, also for two calls about one segment.  `layout` is the name by which a user
    asks for it; `has_manifests`: one object of each segment has its metadata.

    Errors: RemoteResourceNotFoundException where an object is missing, RetriableRemoteStorageException where the
    storage does not answer for now, RemoteStorageException for all else; each names the object.
    """

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Uploads all files of a segment; when it returns they are durable.  What is to be kept as custom metadata.
        May be done twice: the second one puts the same objects in the place of the first one's."""

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        """The bytes [start, end) of the segment's log, fewer only where it ends."""

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """A whole index; nothing for a transaction index where the segment's objects say that there is none."""

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Removes all objects of a segment; fine where they are gone."""

    # --- what kafkalog asks beyond Kafka's interface -----------------------------------------------------

    layout: ClassVar[str]
    has_manifests: ClassVar[bool]

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> File | None:
        """The segment's log as a file of this machine, where it is one as it stands: then it is read as local ones
        are.  None where it lies elsewhere, or is compressed or encrypted."""

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        """The bytes of the segment's log: also of metadata that does not know it (-1)."""

    def knows_log_size(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether the metadata does; of what is only listed it may have the object's size instead."""

    def log_parts(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """As `fetch_log_segment`, part by part as they come, for who copies it."""

    def object_bytes(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata | None) -> int | None:
        """How many bytes the object of a whole segment's log must have; None where nobody knows."""

    def log_bytes_in(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata) -> int:
        """How much of its log can be read of a segment whose object has another size: of packed chunks the whole
        ones."""

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        """The name of the object that an index is in, for messages."""

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Reads that begin at a multiple of this and are as long cost least."""

    def is_there(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether a segment that was copied can be found, in one small request.  IllegalArgumentException where it can,
        and was encrypted by keys that are not here."""

    def partitions(self) -> list[TopicIdPartition]:
        """Those that have anything there, in order."""

    def segments_of(self, partition: TopicIdPartition) -> list[FoundSegment]:
        """All that lies there of a partition, whole or not, by base offset."""

    def metadata_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata:
        """What the objects of a whole segment say of it: from its manifest, or else from its last batches and the
        leader epochs beside it.  Without leader epochs, or an end (-1), where they do not say.
        CorruptManifestException."""

    def modified_s(self, key: str) -> float:
        """When an object was put, in seconds since 1970; now, where the storage does not say."""

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Removes objects by key."""

    def close(self) -> None:
        """Lets go of connections."""
