"""The layout of Aiven's tiered-storage-for-apache-kafka: three objects a segment, in chunks, optionally compressed and
encrypted.

    <prefix><topic>-<topic id>/<partition>/<base offset>-<segment id>.log            all chunks, concatenated
                                                         ....indexes        all indexes, concatenated
                                                         ....rsm-manifest   JSON: all positions, and the data key

A chunk is a fixed number of bytes of the log (the last chunk holds the rest).  Each chunk is compressed separately
with zstd and then encrypted, so reading a range needs only the chunks that it touches.  Indexes are encrypted but
never compressed; an index of no bytes does not exist.  The manifest is uploaded last and deleted first: a segment that
has its manifest and its log is whole.  The manifest's chunk index has either one size for all chunks but the last
("fixed") or all sizes, packed ("variable": `encode_sizes`).

Custom metadata may hold the key and the prefix of the objects, if the plugin is configured to write it.  The facts come
from the plugin's classes SegmentManifestV1, ChunkSizesBinaryCodec and SegmentCustomMetadataField (version 1 of the
manifest).
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import zstandard

from kafkalog._limits import LONG_MAX
from kafkalog._native.codec.batches import header_at
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names, values
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.message_reader import Reader
from kafkalog.engine.format.message_writer import put_uvarint
from kafkalog.engine.remote.aiven_chunks import ChunkIndex, encode_sizes, number_in
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    epochs_of,
)
from kafkalog.engine.remote.storage import FoundSegment, IndexType, LogSegmentData, found_partition, found_segments
from kafkalog.errors import (
    CorruptManifestException,
    CorruptRecordException,
    IllegalArgumentException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    SchemaException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files import File
    from kafkalog.engine.remote.aiven_keys import KeyRing, SegmentKey

T = TypeVar("T")

LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"
CHUNK_BYTES = 4 << 20
CHUNK_BYTES_MAX = 1 << 30
# limit of a packed chunk, which is held in memory; larger if the settings have larger chunks
READ_BYTES_MAX = 256 << 20
MANIFESTS_KEPT = 1_000
_TOPIC = re.compile(r"([a-zA-Z0-9._-]+)-([a-zA-Z0-9_-]{22})")
_NUMBER = re.compile(r"[0-9]{1,10}")
_SUFFIXES = (f".{LOG}", f".{INDEXES}", f".{MANIFEST}")
_ORDER = (
    (IndexType.OFFSET, "offset"),
    (IndexType.TIMESTAMP, "timestamp"),
    (IndexType.PRODUCER_SNAPSHOT, "producerSnapshot"),
    (IndexType.LEADER_EPOCH, "leaderEpoch"),
    (IndexType.TRANSACTION, "transaction"),
)


def _manifest_key(found: FoundSegment) -> str:
    return next(key for key in found.objects if key.endswith(MANIFEST))


def main_path(partition: TopicIdPartition, base_offset: int, segment_id: str) -> str:
    """Returns a segment's key, without prefix and suffix."""
    topic, number = partition.topic_partition
    return f"{topic}-{partition.topic_id}/{number}/{names.filename_prefix_from_offset(base_offset)}-{segment_id}"


def _epoch(epoch: str, start: Any) -> tuple[int, int]:
    number = int(epoch)
    return number_in({"epoch": number}, "epoch"), number_in({epoch: start}, epoch, 0, LONG_MAX)


class Manifest(NamedTuple):
    """The content of `.rsm-manifest`; `positions` holds (first byte, bytes) of each index in `.indexes`."""

    chunks: ChunkIndex
    positions: dict[IndexType, tuple[int, int]]
    compression: bool
    key: SegmentKey | None
    metadata: dict[str, Any] | None

    @property
    def is_packed(self) -> bool:
        """Whether the object's bytes differ from those of the log."""
        return self.compression or self.key is not None


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raises KafkaStorageException if reading a local file in its block fails."""
    try:
        yield
    except OSError as error:
        raise KafkaStorageException.because_of(error, f"cannot read {path}") from error


def check_settings(chunk_bytes: int, compression: bool | str, custom_metadata: Sequence[str]) -> None:
    """Raises IllegalArgumentException for invalid settings of the plugin."""
    values.count(chunk_bytes, "chunk_bytes", low=1, high=CHUNK_BYTES_MAX, expected="bytes")
    if not isinstance(compression, bool) and compression != "heuristic":
        found = values.shown(compression)
        raise IllegalArgumentException(f"compression: found {found}, expected True, False or 'heuristic'")
    is_listed = isinstance(custom_metadata, Collection) and not isinstance(custom_metadata, str)
    if not is_listed or any(name not in _FIELDS for name in custom_metadata):
        found = values.shown(custom_metadata)
        raise IllegalArgumentException(f"custom_metadata: found {found}, expected some of {', '.join(_FIELDS)}")


class AivenTieredStorage:
    """A RemoteStorageManager.

    `prefix` is the plugin's `key.prefix`.  `compression` "heuristic" compresses segments that are not compressed
    already (`compression.heuristic.enabled`).  `keys` encrypts, and decrypts what they encrypted.
    """

    layout: ClassVar[str] = "aiven"
    has_manifests: ClassVar[bool] = True

    def __init__(
        self,
        objects: Objects,
        *,
        prefix: str = "",
        chunk_bytes: int = CHUNK_BYTES,
        compression: bool | str = False,
        keys: KeyRing | None = None,
        custom_metadata: Sequence[str] = (),
        files: Files = OS_FILES,
    ) -> None:
        check_settings(chunk_bytes, compression, custom_metadata)
        self.objects = objects
        self._prefix = prefix
        self._chunk_bytes = chunk_bytes
        self._compression = compression
        self._keys = keys
        self._custom_metadata = custom_metadata
        self._files = files
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        # If set, a chunk that cannot be unpacked is reported to this function, and its bytes are replaced by bytes that
        # are not batches, so that a reader can continue after the damage.
        self.tell_damage: Callable[[RemoteStorageException], object] | None = None

    def _key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        """Returns an object's key.

        The prefix and key in custom metadata override the configured prefix, except for the manifest: the plugin, too,
        looks for that at its configured prefix.
        """
        segment = metadata.remote_log_segment_id
        prefix, path = self._prefix, main_path(segment.topic_id_partition, metadata.start_offset, segment.id)
        if suffix != MANIFEST and metadata.custom_metadata:
            try:
                fields = decode_custom_metadata(metadata.custom_metadata)
            except CorruptRecordException as error:
                shown = self.objects.shown(f"{prefix}{path}.{suffix}")
                raise RemoteStorageException(error.message, path=shown) from error
            prefix, path = fields.get("OBJECT_PREFIX", prefix), fields.get("OBJECT_KEY", path)
        return f"{prefix}{path}.{suffix}"

    # --- writing -----------------------------------------------------------------------------------------

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        compresses = self._compresses(data.log_segment)
        key = None if self._keys is None else self._keys.new_key()
        sizes: list[int] = []
        own = metadata._replace(custom_metadata=None)
        log_key = self._key(own, LOG)
        if compresses or key is not None:

            def parts() -> Iterator[bytes]:
                sizes.clear()
                for part in self.objects.parts_of(data.log_segment, metadata.segment_size_in_bytes, self._chunk_bytes):
                    done = zstandard.ZstdCompressor().compress(part) if compresses else part
                    done = done if key is None else key.encrypt(done)
                    sizes.append(len(done))
                    yield done

            log_bytes = self.objects.put(log_key, parts, syncs_name=False)
        else:
            log_bytes = self.objects.put_file(
                log_key, data.log_segment, metadata.segment_size_in_bytes, syncs_name=False
            )
            whole, rest = divmod(log_bytes, self._chunk_bytes)
            sizes = [self._chunk_bytes] * whole + ([rest] if rest or not whole else [])
        indexes = self._indexes(data, key)
        packed = b"".join(indexes.values())
        # in a directory, this put syncs both names
        index_bytes = self.objects.put(self._key(own, INDEXES), lambda: [packed])
        manifest = self._manifest_json(metadata, sizes, indexes, compresses, key)
        manifest_key = self._key(own, MANIFEST)
        manifest_bytes = self.objects.put(manifest_key, lambda: [manifest])
        self.objects.check_put(log_key, log_bytes)
        with self._lock:
            self._manifests.pop(manifest_key, None)  # it belongs to an earlier upload with another data key
        fields: dict[str, Any] = {
            "REMOTE_SIZE": log_bytes + index_bytes + manifest_bytes,
            "OBJECT_PREFIX": self._prefix,
            "OBJECT_KEY": log_key[len(self._prefix) : -len(LOG) - 1],
        }
        wanted = {name: fields[name] for name in _FIELDS if name in self._custom_metadata}
        return encode_custom_metadata(wanted) if wanted else None

    def _compresses(self, path: str) -> bool:
        if self._compression != "heuristic":
            return bool(self._compression)
        with _reading(path), self._files.open(path, writable=False) as file:
            head = file.pread(RECORD_BATCH_OVERHEAD, 0)
        return len(head) == RECORD_BATCH_OVERHEAD and header_at(head).codec == 0

    def _indexes(self, data: LogSegmentData, key: SegmentKey | None) -> dict[IndexType, bytes]:
        def read(path: str) -> bytes:
            with _reading(path):
                return self._files.read_bytes(path)

        found = {
            IndexType.OFFSET: read(data.offset_index),
            IndexType.TIMESTAMP: read(data.time_index),
            IndexType.PRODUCER_SNAPSHOT: read(data.producer_snapshot_index),
            IndexType.LEADER_EPOCH: data.leader_epoch_index,
        }
        if data.transaction_index is not None:
            found[IndexType.TRANSACTION] = read(data.transaction_index)
        return {kind: key.encrypt(part) if key is not None and part else part for kind, part in found.items()}

    def _manifest_json(
        self,
        metadata: RemoteLogSegmentMetadata,
        sizes: list[int],
        indexes: dict[IndexType, bytes],
        compresses: bool,
        key: SegmentKey | None,
    ) -> bytes:
        chunk_index: dict[str, Any] = {
            "type": "variable" if compresses else "fixed",
            "originalChunkSize": self._chunk_bytes,
            "originalFileSize": metadata.segment_size_in_bytes,
        }
        if compresses:
            packed = zstandard.ZstdCompressor().compress(encode_sizes(sizes))
            chunk_index["transformedChunks"] = base64.b64encode(packed).decode()
        else:
            whole = self._chunk_bytes if key is None else self._chunk_bytes + key.overhead_bytes
            chunk_index |= {"transformedChunkSize": whole, "finalTransformedChunkSize": sizes[-1] if sizes else 0}
        positions: dict[str, Any] = {}
        at = 0
        for kind, name in _ORDER:
            if kind in indexes:
                positions[name] = {"position": at, "size": len(indexes[kind])}
                at += len(indexes[kind])
            else:
                positions[name] = None
        partition = metadata.topic_id_partition
        topic, number = partition.topic_partition
        manifest: dict[str, Any] = {
            "version": "1", "chunkIndex": chunk_index, "segmentIndexes": positions, "compression": compresses,
        }  # fmt: skip
        if key is not None:
            manifest["encryption"] = key.to_json()
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": partition.topic_id,
                    "topicPartition": {"topic": topic, "partition": number},
                },
                "id": metadata.remote_log_segment_id.id,
            },
            "startOffset": metadata.start_offset,
            "endOffset": metadata.end_offset,
            "maxTimestampMs": metadata.max_timestamp_ms,
            "brokerId": metadata.broker_id,
            "eventTimestampMs": metadata.event_timestamp_ms,
            "segmentLeaderEpochs": {str(epoch): offset for epoch, offset in metadata.segment_leader_epochs},
        }
        return json.dumps(manifest, separators=(",", ":")).encode()

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        # first the manifest, which makes the segment whole
        keys = [self._key(metadata, suffix) for suffix in (MANIFEST, INDEXES, LOG)]
        with self._lock:
            self._manifests.pop(keys[0], None)
        self.delete_objects(keys)

    # --- reading -----------------------------------------------------------------------------------------

    def manifest(self, metadata: RemoteLogSegmentMetadata) -> Manifest:
        """Returns a segment's manifest.

        Raises CorruptManifestException if it does not have this layout, RemoteStorageException if its keys were not
        given.
        """
        return self._manifest_at(self._key(metadata, MANIFEST))

    def _manifest_at(self, key: str) -> Manifest:
        with self._lock:
            found = self._manifests.get(key)
            if found is not None:
                self._manifests.move_to_end(key)
                return found
        found = self._parsed(key, self.objects.get(key), self._manifest_of)
        with self._lock:
            self._manifests[key] = found
            while len(self._manifests) > MANIFESTS_KEPT:
                self._manifests.popitem(last=False)
        return found

    def object_bytes(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata | None = None) -> int:
        """Returns the size of the log's object from the manifest, which needs no keys."""
        key = _manifest_key(found)
        with self._lock:
            manifest = self._manifests.get(key)
        chunks = self._parsed(key, self.objects.get(key), self._chunks_of) if manifest is None else manifest.chunks
        return chunks.object_bytes

    def log_bytes_in(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata) -> int:
        manifest = self._manifest_at(_manifest_key(found))
        chunks, size = manifest.chunks, found.object_bytes
        return chunks.log_bytes_in(size) if manifest.is_packed else min(size, chunks.log_bytes)

    def _parsed(self, key: str, data: bytes, of: Callable[[dict[str, Any], str], T]) -> T:
        try:
            return of(json.loads(data), key)
        except RemoteStorageException:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zstandard.ZstdError) as error:
            raise CorruptManifestException(
                f"this is not a manifest of version 1: {type(error).__name__} {error}", path=self.objects.shown(key)
            ) from error

    def _chunks_of(self, values: dict[str, Any], key: str) -> ChunkIndex:
        if values["version"] != "1":
            raise CorruptManifestException(
                f"the manifest has version {values['version']!r}; expected '1'", path=self.objects.shown(key)
            )
        return ChunkIndex.of(values["chunkIndex"])

    def _manifest_of(self, values: dict[str, Any], key: str) -> Manifest:
        chunks = self._chunks_of(values, key)
        compression = values["compression"]
        if not isinstance(compression, bool):
            raise ValueError(f"compression: found {compression!r:.40}, expected true or false")
        positions = {}
        for kind, name in _ORDER:
            place = values["segmentIndexes"].get(name)
            if place is not None or kind is not IndexType.TRANSACTION:
                positions[kind] = number_in(place, "position"), number_in(place, "size")
        encryption = values.get("encryption")
        data_key = None
        if encryption is not None:
            if self._keys is None:
                raise RemoteStorageException(
                    "the segment is encrypted, but no keys were given", path=self.objects.shown(key),
                    hint="pass encryption={id: (public.pem, private.pem)}, or --key-pair on the command line",
                )  # fmt: skip
            data_key = self._keys.key_of(encryption, self.objects.shown(key))
        return Manifest(chunks, positions, compression, data_key, values.get("remoteLogSegmentMetadata"))

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        manifest = self.manifest(metadata)
        chunks, key = manifest.chunks, self._key(metadata, LOG)
        end = min(end, chunks.log_bytes)
        if end <= start:
            return b""
        if not manifest.is_packed:
            return self.objects.get(key, start, end)
        begin, stop = self._packed_range(manifest, key, start, end)
        return b"".join(self._unpacked(manifest, key, start, end, iter([self.objects.get(key, begin, stop)])))

    def log_parts(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        manifest = self.manifest(metadata)
        key, end = self._key(metadata, LOG), min(end, manifest.chunks.log_bytes)
        if not manifest.is_packed:
            yield from self.objects.each_part(key, start, end)
        elif start < end:
            coming = self.objects.each_part(key, *self._packed_range(manifest, key, start, end))
            yield from self._unpacked(manifest, key, start, end, coming)

    def _packed_range(self, manifest: Manifest, key: str, start: int, end: int) -> tuple[int, int]:
        """Returns the range of the object that holds the chunks with the bytes [start, end) of the log."""
        chunks = manifest.chunks
        first, last = start // chunks.chunk_bytes, (end - 1) // chunks.chunk_bytes
        begin, largest = chunks.starts[first], max(map(chunks.chunk_size, {first, last}))
        if largest > max(READ_BYTES_MAX, self._chunk_bytes):  # a few packed bytes may expand to any size
            hint = f"RemoteStorage(chunk_bytes={largest}) reads it anyway and needs that much memory for each chunk"
            raise RemoteStorageException(
                f"the manifest declares a chunk of {largest} bytes; expected at most {READ_BYTES_MAX}",
                path=self.objects.shown(key), position=begin, hint=hint if largest <= CHUNK_BYTES_MAX else None,
            )  # fmt: skip
        return begin, chunks.end(last)

    def _unpacked(self, manifest: Manifest, key: str, start: int, end: int, coming: Iterator[bytes]) -> Iterator[bytes]:
        """Yields the bytes [start, end) of the log, chunk by chunk, from the object's bytes in `coming`."""
        chunks = manifest.chunks
        held = next(coming, b"")
        for number in range(start // chunks.chunk_bytes, (end - 1) // chunks.chunk_bytes + 1):
            size, parts = chunks.end(number) - chunks.starts[number], [held]
            there = len(held)
            while there < size:
                parts.append(next(coming))
                there += len(parts[-1])
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            piece, held = data[:size], data[size:]
            begin = number * chunks.chunk_bytes
            try:
                plain = self._plain(piece, manifest, chunks.chunk_size(number), key, number)
            except RemoteStorageException as error:
                if self.tell_damage is None:
                    raise
                self.tell_damage(error)
                plain = b"\xff" * chunks.chunk_size(number)
            yield plain[max(0, start - begin) : end - begin]

    def _plain(self, piece: bytes, manifest: Manifest, size: int, key: str, number: int) -> bytes:
        """Returns a chunk's bytes in the log; raises RemoteStorageException if they are not what was uploaded."""
        shown = self.objects.shown(key)
        if manifest.key is not None:
            piece = manifest.key.decrypt(piece, shown, manifest.chunks.starts[number])
        if manifest.compression:
            try:
                if zstandard.frame_content_size(piece) != size:
                    raise zstandard.ZstdError(f"content of {zstandard.frame_content_size(piece)} bytes")
                piece = zstandard.ZstdDecompressor().decompress(piece, max_output_size=size)
            except zstandard.ZstdError as error:
                raise RemoteStorageException(
                    f"chunk {number} cannot be decompressed to {size} bytes: {error}",
                    path=shown, position=manifest.chunks.starts[number],
                ) from error  # fmt: skip
        if len(piece) != size:
            raise RemoteStorageException(
                f"chunk {number} has {len(piece)} bytes; expected {size}",
                path=shown, position=manifest.chunks.starts[number],
            )  # fmt: skip
        return piece

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        manifest, key = self.manifest(metadata), self._key(metadata, INDEXES)
        position, size = manifest.positions.get(index_type, (0, 0))
        if not size:
            return b""
        data = self.objects.get(key, position, position + size)
        return data if manifest.key is None else manifest.key.decrypt(data, self.objects.shown(key), position)

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        return self.objects.shown(self._key(metadata, INDEXES))

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> File | None:
        manifest = self.manifest(metadata)
        if manifest.is_packed:
            return None
        return self.objects.open_local(self._key(metadata, LOG))

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        if self.knows_log_size(metadata):
            return metadata.segment_size_in_bytes
        return self.manifest(metadata).chunks.log_bytes

    def knows_log_size(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Returns whether `metadata` has the size of the log.

        A listing does not: chunks may be compressed and encrypted.  Metadata from a listing has no leader epochs
        either.
        """
        is_listed = not metadata.segment_leader_epochs and metadata.state is COPY_SEGMENT_FINISHED
        return metadata.segment_size_in_bytes >= 0 and not is_listed

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        manifest = self.manifest(metadata)
        size = manifest.chunks.chunk_bytes
        return size if manifest.is_packed else min(size, CHUNK_BYTES)

    # --- whether this is the right place ------------------------------------------------------------------

    def is_there(self, metadata: RemoteLogSegmentMetadata) -> bool:
        key = self._key(metadata, MANIFEST)
        try:
            self._check_keys(key)
        except RemoteResourceNotFoundException:
            return False
        return True

    def check_keys(self) -> None:
        """Checks the keys against one manifest of the tier.

        Raises IllegalArgumentException if the tier is encrypted, and not by the given keys.  New segments would then be
        plain, or others could not read them.
        """
        for partition in self.each_partition():
            for each in self.objects.each_within(self._folder_of(partition)):
                if each.key.endswith(f".{MANIFEST}"):
                    with suppress(RemoteResourceNotFoundException):  # it was deleted meanwhile
                        self._check_keys(each.key)
                    return

    def _check_keys(self, key: str) -> None:
        data, encryption = self.objects.get(key), None
        with suppress(ValueError, KeyError, TypeError):  # it is damaged; a reader gets an error for it
            encryption = json.loads(data)["encryption"]
        if encryption is None:
            return
        shown = self.objects.shown(key)
        if self._keys is None:
            raise IllegalArgumentException(
                "the tier is encrypted, but no keys were given", path=shown,
                hint="pass encryption={id: (public.pem, private.pem)}, or --key-pair on the command line",
            )  # fmt: skip
        try:
            self._keys.key_of(encryption, shown)
        except RemoteStorageException as error:
            raise IllegalArgumentException(
                f"the tier is encrypted by other keys than the given ones: {error.message}", path=shown,
                hint="also give the key pairs that wrapped its data keys",
            ) from error  # fmt: skip

    # --- listing -----------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicIdPartition]:
        return sorted(self.each_partition(), key=lambda each: (each.topic_partition, each.topic_id))

    def each_partition(self, *, warns: bool = True) -> Iterator[TopicIdPartition]:
        """Yields the partitions unsorted, with one listing a topic.

        With `warns`, logs a warning for each directory that looks like a partition's and cannot be one.
        """
        base, _, _ = self._prefix.rpartition("/")
        for folder in self.objects.folders(base):
            match = _TOPIC.fullmatch(folder[len(self._prefix) :]) if folder.startswith(self._prefix) else None
            if match is not None:
                topic, topic_id = match.groups()
                for inner in self.objects.folders(folder):
                    number = inner.rpartition("/")[2]
                    if _NUMBER.fullmatch(number):
                        shown = self.objects.shown(inner) if warns else None
                        partition = found_partition(topic, number, topic_id, shown)
                        if partition is not None:
                            yield partition

    def _folder_of(self, partition: TopicIdPartition) -> str:
        topic, number = partition.topic_partition
        return f"{self._prefix}{topic}-{partition.topic_id}/{number}"

    def segments_of(self, partition: TopicIdPartition) -> list[FoundSegment]:
        folder = self._folder_of(partition)
        return found_segments(partition, folder, self.objects.each_within(folder), _SUFFIXES, _SUFFIXES[-1])

    def has_segments(self, partition: TopicIdPartition) -> bool:
        """Returns whether there is an object of a segment, without listing them all."""
        folder = self._folder_of(partition)
        objects = self.objects.each_within(folder)
        return any(found_segments(partition, folder, (each,), _SUFFIXES, _SUFFIXES[-1]) for each in objects)

    def metadata_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata:
        segment_id = RemoteLogSegmentId(found.partition, found.id)
        asked = RemoteLogSegmentMetadata(segment_id, found.base_offset, found.base_offset, -1, -1, -1, -1, ())
        manifest = self.manifest(asked)
        log_bytes = manifest.chunks.log_bytes
        said = manifest.metadata
        if said is None:  # the plugin may omit the metadata; the segment then ends before the next one
            return asked._replace(end_offset=-1, segment_size_in_bytes=log_bytes, state=COPY_SEGMENT_FINISHED)
        try:
            return RemoteLogSegmentMetadata(
                segment_id,
                number_in(said, "startOffset", found.base_offset, found.base_offset),
                number_in(said, "endOffset", found.base_offset, LONG_MAX),
                number_in(said, "maxTimestampMs", -1, LONG_MAX),
                number_in(said, "brokerId", -1),
                number_in(said, "eventTimestampMs", -1, LONG_MAX),
                log_bytes,
                epochs_of(_epoch(epoch, start) for epoch, start in said["segmentLeaderEpochs"].items()),
                COPY_SEGMENT_FINISHED,
                is_txn_idx_empty=IndexType.TRANSACTION not in manifest.positions,
            ).checked()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            key = self._key(asked, MANIFEST)
            raise CorruptManifestException(
                f"its metadata does not describe a segment: {type(error).__name__} {error}",
                path=self.objects.shown(key),
            ) from error

    def modified_s(self, key: str) -> float:
        return self.objects.modified_s(key)

    def delete_objects(self, keys: Iterable[str]) -> None:
        self.objects.delete(keys, folders=2)

    def close(self) -> None:
        self.objects.close()


# --- custom metadata --------------------------------------------------------------------------------------

_FIELDS = ("REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY")  # indexed by tag


def encode_custom_metadata(fields: dict[str, Any]) -> bytes:
    """Encodes tagged fields, as a struct of Kafka's protocol that has no other fields."""
    out = bytearray()
    put_uvarint(out, len(fields))
    for tag, name in enumerate(_FIELDS):
        if name in fields:
            part = bytearray()
            value = fields[name]
            if isinstance(value, int):
                put_uvarint(part, value << 1)  # a zigzag varlong of a number that is not negative
            else:
                text = value.encode()
                put_uvarint(part, len(text) + 1)
                part += text
            put_uvarint(out, tag)
            put_uvarint(out, len(part))
            out += part
    return bytes(out)


def decode_custom_metadata(data: bytes) -> dict[str, Any]:
    """Returns the known fields by name; raises CorruptRecordException for bytes that do not parse."""
    fields: dict[str, Any] = {}
    try:
        read = Reader(data, 0)
        for _ in range(read.uvarint("number of fields")):
            tag, size = read.uvarint("tag"), read.uvarint("size")
            inner = Reader(read.take(size, f"field {tag}"), 0)
            if tag == 0:
                value, shift = 0, 0
                for byte in inner.data:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                fields["REMOTE_SIZE"] = (value >> 1) ^ -(value & 1)
            elif tag < len(_FIELDS):
                fields[_FIELDS[tag]] = inner.take(inner.uvarint("length") - 1, _FIELDS[tag]).decode()
    except (ValueError, SchemaException) as error:
        raise CorruptRecordException(f"custom metadata of {len(data)} bytes does not parse: {error}") from error
    return fields


__all__ = [
    "AivenTieredStorage",
    "decode_custom_metadata",
    "encode_custom_metadata",
    "main_path",
]
