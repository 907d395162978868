"""The interface to the objects of a remote tier: copies a segment there, fetches a range of it, and deletes it.

`RemoteStorageManager` is Kafka's plugin interface.  An implementation is a layout (`local_tiered`, `aiven`) over a
place that holds objects (`objects`).  The layout knows which objects a segment has and the meaning of their bytes.  The
place only puts, gets, lists and deletes.  Callers know only a segment's metadata.

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
    """The small files that belong to a segment's log; messages use the values."""

    OFFSET = "offset index"
    TIMESTAMP = "time index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    TRANSACTION = "transaction index"
    LEADER_EPOCH = "leader epoch checkpoint"


class LogSegmentData(NamedTuple):
    """A segment's files on the local disk.

    All fields are paths, except for `leader_epoch_index`: the leader epochs up to the segment's end, as the content of
    a checkpoint file.  `transaction_index` is None if the segment has no aborted transactions.
    """

    log_segment: str
    offset_index: str
    time_index: str
    transaction_index: str | None
    producer_snapshot_index: str
    leader_epoch_index: bytes


class FoundSegment(NamedTuple):
    """A segment as a listing shows it.

    `object_bytes` is the size of the object with its log, which may be compressed and encrypted; `index_bytes` that of
    its offset index.  `is_whole` is whether it has its log and the object that is uploaded last and deleted first.
    `lacks` holds suffixes of missing objects, which a whole segment has lost.  `has_txn_index` is None if a listing
    does not tell.
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
        """The keys of its objects."""
        stem = f"{self.folder}/{names.filename_prefix_from_offset(self.base_offset)}-{self.id}"
        return tuple(stem + suffix for suffix in self.suffixes)

    def listed(self, packed: float = 1.0) -> RemoteLogSegmentMetadata:
        """Returns the metadata that a name and a size tell; the end of the segment is unknown (-1).

        An object is about `packed` times as large as its log.
        """
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


def found_partition(topic: str, number: str, topic_id: str, shown: str | None) -> TopicIdPartition | None:
    """Returns the partition that the names of the directory `shown` describe; None if no partition can have them.

    Logs a warning then, unless `shown` is None.
    """
    try:
        names.validate_topic_name(topic)
        checked_topic_id(topic_id)
        if str(int(number)) == number and int(number) <= INT_MAX:
            return TopicIdPartition(topic_id, names.TopicPartition(topic, int(number)))
    except (InvalidTopicException, IllegalArgumentException):
        pass
    if shown is not None:
        tell_once(f"{shown} is ignored: a partition of Kafka cannot have this name, number and topic id")
    return None


@lru_cache(1000)
def tell_once(what: str) -> None:
    """Logs a warning once, about something that each listing finds again."""
    _log.warning("%s", what)


def found_segments(
    partition: TopicIdPartition,
    folder: str,
    listed: Iterable[Object],
    suffixes: Sequence[str],
    last: str,
    txn_suffix: str | None = None,
) -> list[FoundSegment]:
    """Returns the segments in a partition's directory, whose objects are named `<base offset>-<segment id><suffix>`.

    The first suffix is that of the log, the second that of its offset index.  `last` is the suffix of the object that
    makes a segment whole, and `txn_suffix` that of an optional one.  Objects may be listed twice; unknown names are
    ignored.
    """
    bits = {suffix: 1 << number for number, suffix in enumerate(suffixes)}
    there: dict[str, int] = {}  # bits of the suffixes by stem, to save memory with 100,000 segments
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
    """RemoteStorageManager.  Thread-safe, also for two calls about one segment.

    `layout` is the name that users give; `has_manifests` is whether one object of each segment has its metadata.

    Each error names the object.  A missing object raises RemoteResourceNotFoundException.  A storage that does not
    answer for now raises RetriableRemoteStorageException, and anything else RemoteStorageException.
    """

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Uploads all files of a segment, which are durable when it returns; returns custom metadata to store.

        It may be called twice: the second call replaces the objects of the first.
        """

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of the segment's log; fewer only at its end."""

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """Returns a whole index; no bytes for a transaction index that, by the segment's objects, does not exist."""

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Deletes all objects of a segment; it is not an error if they do not exist."""

    # --- kafkalog's additions to Kafka's interface ---------------------------------------------------------

    layout: ClassVar[str]
    has_manifests: ClassVar[bool]

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> File | None:
        """Opens the segment's log as a file of this machine, if it is an unchanged one, to read it like local segments.

        Returns None if it is elsewhere, or is compressed or encrypted.
        """

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Returns the size of the segment's log, even if the metadata does not contain it (-1)."""

    def knows_log_size(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Returns whether the metadata contains the log's size; from a listing, it may contain the object's size
        instead."""

    def log_parts(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes of `fetch_log_segment` in parts as they arrive, for a caller that copies them."""

    def object_bytes(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata | None) -> int | None:
        """Returns the size that the object of a whole segment's log must have; None if it is not known."""

    def log_bytes_in(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata) -> int:
        """Returns how many bytes of its log can be read if the object has another size: with packed chunks, the whole
        ones."""

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        """Returns the name of the object that holds an index, for messages."""

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Returns the unit of the cheapest reads: they begin at a multiple of it and have this length."""

    def is_there(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Returns whether a copied segment exists, by one small request.

        Raises IllegalArgumentException if it exists, but other keys than the given ones encrypted it.
        """

    def partitions(self) -> list[TopicIdPartition]:
        """Returns the partitions that have anything there, in order."""

    def segments_of(self, partition: TopicIdPartition) -> list[FoundSegment]:
        """Returns all segments of a partition, whole or not, by base offset."""

    def metadata_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata:
        """Returns the metadata of a whole segment from its objects.

        It comes from the manifest, or else from the last batches and the stored leader epochs.  Leader epochs are empty
        and the end is -1 if the objects do not tell them.  Raises CorruptManifestException.
        """

    def modified_s(self, key: str) -> float:
        """Returns when an object was put, in seconds since 1970; the current time if the storage does not say."""

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Deletes objects by key."""

    def close(self) -> None:
        """Closes connections."""
