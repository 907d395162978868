"""Aiven's layout, both directions, compared with the output of its own classes; also damaged and hostile objects.

The objects below `tests/golden/tiered/aiven` were recorded by the plugin's own classes: KafkaRemoteStorageManager of
tiered-storage-for-apache-kafka 1.2.0-SNAPSHOT (commit 8fb1581, 4 May 2026), compiled unchanged with Kafka's 3.8 storage
API.  The settings were FileSystemStorage, `chunk.size=5000`, `key.prefix=pre/` and all custom metadata fields.

The plugin copied `segment/*` (a log of kafkalog's with two transactions, one aborted; the transaction index is made up)
four times: plain, with `compression.enabled`, with `encryption.enabled`, and with both.  The key pair `key1` next to it
was created for this.  `facts.json` has the metadata that the plugin got, and the custom metadata that each copy
returned.
"""

from __future__ import annotations

import base64
import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote import aiven
from kafkalog.engine.remote.aiven import (
    CHUNK_BYTES,
    AivenTieredStorage,
    decode_custom_metadata,
    encode_custom_metadata,
    main_path,
)
from kafkalog.engine.remote.aiven_chunks import decode_sizes, encode_sizes
from kafkalog.engine.remote.aiven_keys import KeyRing
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.segment import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
)
from tests.object_doubles import AT_ONCE, PARTITION, FaultyObjects
from tests.unit.remote_kit import LOCAL_NAMES, copied, data_of, write_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
FACTS = json.loads((GOLDEN / "facts.json").read_text())
SIZE = FACTS["size"]
LOG = (GOLDEN / "segment" / "log").read_bytes()
VARIANTS = ("plain", "zstd", "encrypted", "both")
KEYS = KeyRing.read({"key1": (str(GOLDEN / "public.pem"), str(GOLDEN / "private.pem"))}, "key1")
FIELDS = ("REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY")
RECORDED = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(PARTITION, FACTS["segment_id"]),
    0,
    FACTS["end_offset"],
    FACTS["max_timestamp_ms"],
    7,
    1_234_567_890_123,
    SIZE,
    ((0, 0), (2, 40)),
)
PATH = "pre/" + main_path(PARTITION, 0, FACTS["segment_id"])


def storage(root: Path | Objects, variant: str, **more: Any) -> AivenTieredStorage:
    objects = Objects.at(str(root), retries=AT_ONCE) if isinstance(root, Path) else root
    settings: dict[str, Any] = {
        "prefix": "pre/",
        "chunk_bytes": 5000,
        "compression": variant in ("zstd", "both"),
        "keys": KEYS if variant in ("encrypted", "both") else None,
        "custom_metadata": FIELDS,
    }
    return AivenTieredStorage(objects, **(settings | more))


@pytest.fixture
def bucket(tmp_path: Path) -> Callable[[str], Path]:
    """A recorded variant, to be damaged."""

    def made(variant: str) -> Path:
        shutil.copytree(GOLDEN / variant, tmp_path / variant)
        return tmp_path / variant

    return made


def edges(size: int, chunk: int) -> list[int]:
    """Around each border of a chunk."""
    around = {at + by for at in range(0, size + chunk, chunk) for by in (-1, 0, 1)} | {1, size // 2, size - 1, size}
    return sorted(at for at in around if 0 <= at <= size)


# --- what the plugin wrote is read --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_log_is_read_in_every_range(variant: str) -> None:
    read = storage(GOLDEN / variant, variant).fetch_log_segment
    places = edges(SIZE, 5000)
    for start in places:
        for end in places:
            assert read(RECORDED, start, end) == LOG[start:end], (start, end)
    assert read(RECORDED, 14_000, SIZE + 1000) == LOG[14_000:]
    assert read(RECORDED, SIZE, SIZE + 1) == read(RECORDED, SIZE + 5, SIZE + 9) == b""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("index_type", IndexType)
def test_indexes_are_read(variant: str, index_type: IndexType) -> None:
    expected = (GOLDEN / "segment" / LOCAL_NAMES[index_type]).read_bytes()
    assert storage(GOLDEN / variant, variant).fetch_index(RECORDED, index_type) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_custom_metadata_says_where_objects_lie(variant: str) -> None:
    custom = bytes.fromhex(FACTS["custom"][variant])
    folder = GOLDEN / variant / "pre" / f"orders-{FACTS['topic_id']}" / "0"
    size = sum(path.stat().st_size for path in folder.iterdir())
    fields = {"REMOTE_SIZE": size, "OBJECT_PREFIX": "pre/", "OBJECT_KEY": PATH[len("pre/") :]}
    assert decode_custom_metadata(custom) == fields
    assert encode_custom_metadata(fields) == custom


def test_custom_metadata_counts_before_the_prefix(bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    for suffix in ("log", "indexes"):
        (root / "elsewhere").mkdir(exist_ok=True)
        (root / f"{PATH}.{suffix}").rename(root / "elsewhere" / f"moved.{suffix}")
    custom = encode_custom_metadata({"OBJECT_PREFIX": "elsewhere/", "OBJECT_KEY": "moved"})
    moved = RECORDED._replace(custom_metadata=custom)
    at = storage(root, "plain")
    assert at.fetch_log_segment(moved, 10, 6000) == LOG[10:6000]
    assert at.fetch_index(moved, IndexType.LEADER_EPOCH) == b"0\n2\n0 0\n2 40\n"
    at.delete_log_segment_data(moved)
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bucket_alone_says_what_it_holds(variant: str) -> None:
    at = storage(GOLDEN / variant, variant)
    assert at.partitions() == [PARTITION]
    (found,) = at.segments_of(PARTITION)
    assert (found.id, found.base_offset, found.is_whole) == (FACTS["segment_id"], 0, True)
    assert found.object_bytes == (GOLDEN / variant / f"{PATH}.log").stat().st_size
    assert sorted(found.objects) == [f"{PATH}.{suffix}" for suffix in ("indexes", "log", "rsm-manifest")]
    told = at.metadata_of(found)
    assert told is not None
    assert told._replace(state=RECORDED.state) == RECORDED
    assert told.state.name == "COPY_SEGMENT_FINISHED"


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_a_plain_log_is_a_local_file(variant: str) -> None:
    file = storage(GOLDEN / variant, variant).open_local(RECORDED)
    assert (file is not None) == (variant == "plain")
    if file is not None:
        with file:
            assert file.pread(100, 4990) == LOG[4990:5090]


def test_sizes_of_a_log_and_its_chunks() -> None:
    at = storage(GOLDEN / "both", "both", chunk_bytes=77)  # the manifest's counts
    assert at.chunk_bytes(RECORDED) == 5000
    assert at.log_size(RECORDED) == SIZE
    assert at.log_size(RECORDED._replace(segment_size_in_bytes=-1)) == SIZE


# --- what is written ----------------------------------------------------------------------------------------


def test_a_plain_segment_is_written_byte_for_byte(tmp_path: Path) -> None:
    custom = storage(tmp_path, "plain").copy_log_segment_data(RECORDED, data_of(GOLDEN / "segment"))
    assert custom == bytes.fromhex(FACTS["custom"]["plain"])
    ours = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    root = GOLDEN / "plain"
    assert ours == {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def shape(value: Any) -> Any:
    """A manifest without what differs from upload to upload."""
    if isinstance(value, dict):
        hidden = ("transformedChunks", "dataKey", "aad")
        return {name: type(each) if name in hidden else shape(each) for name, each in value.items()}
    return value


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_manifest_has_the_plugins_fields_in_its_order(variant: str, tmp_path: Path) -> None:
    storage(tmp_path, variant).copy_log_segment_data(RECORDED, data_of(GOLDEN / "segment"))
    ours, theirs = (json.loads((root / f"{PATH}.rsm-manifest").read_bytes()) for root in (tmp_path, GOLDEN / variant))
    assert json.dumps(shape(ours), default=str) == json.dumps(shape(theirs), default=str)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [1, 99, 100, 101, 950])
def test_what_is_written_is_read(variant: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_segment(tmp_path / "segment", size)
    log = Path(data.log_segment).read_bytes()
    at = storage(tmp_path / "tier", variant, chunk_bytes=100)
    at.copy_log_segment_data(copied(size), data)
    reader = storage(tmp_path / "tier", variant, chunk_bytes=7)
    monkeypatch.setattr("kafkalog.engine.remote.objects.GET_BYTES", 70)
    for start in edges(size, 100):
        for end in edges(size, 100):
            assert reader.fetch_log_segment(copied(size), start, end) == log[start:end]
            assert b"".join(reader.log_parts(copied(size), start, end)) == log[start:end]
    for index_type, name in LOCAL_NAMES.items():
        assert at.fetch_index(copied(size), index_type) == (tmp_path / "segment" / name).read_bytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_segment_without_transactions_or_index_entries(variant: str, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment", txn_index=False)
    (tmp_path / "segment" / "index").write_bytes(b"")
    at = storage(tmp_path / "tier", variant)
    at.copy_log_segment_data(copied(1000), data)
    assert at.fetch_index(copied(1000), IndexType.OFFSET) == b""
    assert at.fetch_index(copied(1000), IndexType.TRANSACTION) == b""
    told = at.metadata_of(at.segments_of(PARTITION)[0])
    assert told is not None
    assert told.is_txn_idx_empty


@pytest.mark.parametrize("variant", ["zstd", "encrypted", "both"])
def test_an_upload_that_breaks_off_begins_anew(variant: str, tmp_path: Path) -> None:
    fs = FaultyObjects()
    fs.fail("commit", ConnectionResetError("in the middle"), times=2, of=".log")
    at = storage(fs.objects(), variant, chunk_bytes=100)
    data = write_segment(tmp_path / "segment")
    at.copy_log_segment_data(copied(1000), data)
    assert fs.asked.count("commit") == 5
    assert at.fetch_log_segment(copied(1000), 0, 1000) == Path(data.log_segment).read_bytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_copied_twice_the_second_counts(variant: str, tmp_path: Path) -> None:
    at = storage(tmp_path / "tier", variant, chunk_bytes=100)
    data = write_segment(tmp_path / "segment")
    for _ in range(2):
        at.copy_log_segment_data(copied(1000), data)
        assert at.fetch_log_segment(copied(1000), 0, 1000) == Path(data.log_segment).read_bytes()
    assert len(at.segments_of(PARTITION)) == 1


@pytest.mark.parametrize("variant", ["plain", "both"])
@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_copy_that_fails_is_not_whole(variant: str, suffix: str, tmp_path: Path) -> None:
    fs = FaultyObjects()
    data = write_segment(tmp_path / "segment")
    at = storage(fs.objects(), variant)
    for step in ("put_file", "commit"):
        fs.fail(step, ConnectionResetError(), times=99, of=suffix)
    with pytest.raises(RemoteStorageException, match=suffix):
        at.copy_log_segment_data(copied(1000), data)
    assert not any(found.is_whole for found in at.segments_of(PARTITION))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["log", "index", "timeindex", "txnindex", "snapshot"])
def test_a_local_file_that_is_missing_is_named(variant: str, name: str, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment")
    (tmp_path / "segment" / name).unlink()
    with pytest.raises(KafkaStorageException, match=f"/segment/{name}"):
        storage(tmp_path / "tier", variant).copy_log_segment_data(copied(1000), data)
    with pytest.raises(KafkaStorageException, match=f"/segment/{name}"):
        storage(tmp_path / "tier", "plain", compression="heuristic").copy_log_segment_data(copied(1000), data)


@pytest.mark.parametrize(("source", "compresses"), [("golden", True), ("noise", False), ("tiny", False)])
def test_the_heuristic_compresses_what_is_not_compressed(source: str, compresses: bool, tmp_path: Path) -> None:
    data = data_of(GOLDEN / "segment") if source == "golden" else write_segment(tmp_path / "s", 60)
    size = SIZE if source == "golden" else 60
    if source == "noise":
        size = SIZE
        head = bytearray(LOG)
        head[22] |= 4  # the attributes of the first batch say zstd
        Path(data.log_segment).write_bytes(head)
    at = storage(tmp_path / "tier", "plain", compression="heuristic")
    at.copy_log_segment_data(copied(size), data)
    assert at.manifest(copied(size)).compression is compresses
    assert at.fetch_log_segment(copied(size), 0, size) == Path(data.log_segment).read_bytes()


def test_deleting_takes_the_manifest_first_and_may_be_repeated(tmp_path: Path) -> None:
    fs = FaultyObjects()
    at = storage(fs.objects(), "both")
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    at.fetch_log_segment(copied(1000), 0, 10)
    fs.fail("rm_file", PermissionError("no right"), of=".log")
    with pytest.raises(RemoteStorageException, match="no right"):
        at.delete_log_segment_data(copied(1000))
    (left,) = at.segments_of(PARTITION)
    assert [key.rpartition(".")[2] for key in left.objects] == ["log"]
    with pytest.raises(RemoteResourceNotFoundException):
        at.fetch_log_segment(copied(1000), 0, 10)  # also of a manifest that was read before
    for _ in range(2):
        at.delete_log_segment_data(copied(1000))
    assert at.segments_of(PARTITION) == []


@pytest.mark.parametrize(
    "settings",
    [{"compression": "zstd"}, {"chunk_bytes": 0}, {"chunk_bytes": (1 << 30) + 1}, {"custom_metadata": ("SIZE",)}],
)
def test_settings_that_there_are_not(settings: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentException, match=next(iter(settings))):
        storage(GOLDEN, "plain", **settings)


# --- what lies there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "pre/", "a/b/", "pre-", "a/pre-"])
def test_partitions_below_each_kind_of_prefix(prefix: str, tmp_path: Path) -> None:
    at = storage(tmp_path / "tier", "plain", prefix=prefix)
    data = write_segment(tmp_path / "segment")
    named = [TopicIdPartition("B" * 22, TopicPartition("b-1", 3)), PARTITION]
    for each in named:
        metadata = copied(1000)
        segment = RemoteLogSegmentId(each, metadata.remote_log_segment_id.id)
        at.copy_log_segment_data(metadata._replace(remote_log_segment_id=segment), data)
    assert at.partitions() == named
    assert all(len(at.segments_of(each)) == 1 for each in named)


def test_what_is_none_of_the_layout_is_passed_over(tmp_path: Path) -> None:
    at = storage(tmp_path, "plain")
    topic = f"pre/orders-{FACTS['topic_id']}"
    ok = f"{'0' * 20}-{FACTS['segment_id']}"
    for key in (
        f"{topic}/²/x", f"{topic}/-1/x", f"{topic}/12345678901/x", "pre/orders/0/x", "pre/short-AAAA/0/x",
        f"{topic}/0/notes.txt", f"{topic}/0/{ok}.LOG", f"{topic}/0/{ok[1:]}.log", f"{topic}/0/{ok}",
        f"{topic}/0/{'9' * 20}-{FACTS['segment_id']}.log", f"{topic}/0/{'٣' * 20}-{FACTS['segment_id']}.log",
        f"other/{ok}.log", f"{topic}/0/deeper/{ok}.log",
    ):  # fmt: skip
        at.objects.put(key, lambda: [b"x"])
    assert at.partitions() == [PARTITION]
    assert at.segments_of(PARTITION) == []


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_segments_that_are_not_whole_are_listed_as_such(bucket: Callable[[str], Path], suffix: str) -> None:
    root = bucket("plain")
    (root / f"{PATH}{suffix}").unlink()
    (found,) = storage(root, "plain").segments_of(PARTITION)
    assert (found.is_whole, found.lacks) == (suffix == ".indexes", (suffix,))
    assert len(found.objects) == 2


# --- damage -------------------------------------------------------------------------------------------------


def everything(at: AivenTieredStorage, metadata: RemoteLogSegmentMetadata = RECORDED) -> list[bytes]:
    return [at.fetch_log_segment(metadata, 0, SIZE), *(at.fetch_index(metadata, kind) for kind in IndexType)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_missing_object_is_named(variant: str, suffix: str, bucket: Callable[[str], Path]) -> None:
    root = bucket(variant)
    (root / f"{PATH}.{suffix}").unlink()
    with pytest.raises(RemoteResourceNotFoundException) as caught:
        everything(storage(root, variant))
    assert caught.value.path == f"{root}/{PATH}.{suffix}"


@pytest.mark.parametrize("variant", ["zstd", "encrypted", "both"])
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_damaged_chunk_is_named_and_the_others_are_read(
    variant: str, chunk: int, bucket: Callable[[str], Path]
) -> None:
    root = bucket(variant)
    at = storage(root, variant)
    chunks = at.manifest(RECORDED).chunks
    path = root / f"{PATH}.log"
    data = bytearray(path.read_bytes())
    data[chunks.starts[chunk]] ^= 0x40  # the nonce's, or the frame's, first byte
    path.write_bytes(data)
    for number in range(3):
        start, end = number * 5000, min(number * 5000 + 5000, SIZE)
        if number != chunk:
            assert at.fetch_log_segment(RECORDED, start, end) == LOG[start:end]
    with pytest.raises(RemoteStorageException) as caught:
        at.fetch_log_segment(RECORDED, 0, SIZE)
    assert caught.value.path == f"{root}/{PATH}.log"
    assert caught.value.position == chunks.starts[chunk]


@pytest.mark.parametrize("variant", ["encrypted", "both"])
def test_no_flipped_byte_of_an_encrypted_segment_is_believed(variant: str, bucket: Callable[[str], Path]) -> None:
    root = bucket(variant)
    for suffix in ("log", "indexes"):
        path = root / f"{PATH}.{suffix}"
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(RemoteStorageException, match=suffix):
                everything(storage(root, variant))
        path.write_bytes(whole)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_a_cut_object_is_named(variant: str, suffix: str, bucket: Callable[[str], Path]) -> None:
    root = bucket(variant)
    path = root / f"{PATH}.{suffix}"
    whole = path.read_bytes()
    for size in (0, 1, 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RemoteStorageException) as caught:
            everything(storage(root, variant))
        assert caught.value.path == f"{root}/{PATH}.{suffix}"


def test_chunks_that_hold_another_count_of_bytes(bucket: Callable[[str], Path]) -> None:
    root = bucket("zstd")
    at = storage(root, "zstd")
    chunks = at.manifest(RECORDED).chunks
    path = root / f"{PATH}.log"
    other = zstandard.ZstdCompressor().compress(b"x" * 10)
    path.write_bytes(other.ljust(chunks.starts[1], b"\0") + path.read_bytes()[chunks.starts[1] :])
    with pytest.raises(RemoteStorageException, match="chunk 0 cannot be decompressed to 5000 bytes"):
        at.fetch_log_segment(RECORDED, 0, 10)


# --- manifests ----------------------------------------------------------------------------------------------


def refused(root: Path, variant: str) -> RemoteStorageException:
    """The error that a manifest makes."""
    with pytest.raises(RemoteStorageException) as caught:
        everything(storage(root, variant))
    assert caught.value.path == f"{root}/{PATH}.rsm-manifest"
    return caught.value


@contextmanager
def bounded_memory(bytes_max: int) -> Iterator[None]:
    """The work within takes no more than so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("variant", ["plain", "both"])
def test_a_manifest_cut_anywhere(variant: str, bucket: Callable[[str], Path]) -> None:
    root = bucket(variant)
    path = root / f"{PATH}.rsm-manifest"
    whole = path.read_bytes()
    for size in range(0, len(whole), 23):
        path.write_bytes(whole[:size])
        refused(root, variant)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe\xfd", b"null", b"[]", b"7", b'"1"', b"{}", b"[" * 200_000, b'{"a":' * 100_000,
        b'{"version":"2"}', b'{"version":1}', b'{"version":"1"}', b'{"version":"1","chunkIndex":' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: data[:24].decode("latin-1"),
)  # fmt: skip
def test_a_manifest_that_is_none(data: bytes, bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    (root / f"{PATH}.rsm-manifest").write_bytes(data)
    refused(root, "plain")


WRONG: list[Any] = [None, True, -1, 1.5, 1 << 31, 10**30, float("inf"), float("nan"), "7", [], {}, "²"]
NUMBERS = [
    ("chunkIndex", "originalChunkSize"),
    ("chunkIndex", "originalFileSize"),
    ("chunkIndex", "transformedChunkSize"),
    ("chunkIndex", "finalTransformedChunkSize"),
    *(("segmentIndexes", name, part) for name in ("offset", "transaction") for part in ("position", "size")),
]


def changed(root: Path, place: tuple[str, ...], value: Any) -> None:
    path = root / f"{PATH}.rsm-manifest"
    manifest = json.loads(path.read_bytes())
    inner = manifest
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: place[-1])
def test_a_number_that_is_none(place: tuple[str, ...], bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    for value in WRONG:
        changed(root, place, value)
        with bounded_memory(1 << 20):
            assert place[-1] in str(refused(root, "plain"))


PLACES = [
    ("chunkIndex",), ("chunkIndex", "type"), ("segmentIndexes",), ("segmentIndexes", "offset"), ("compression",),
    ("segmentIndexes", "transaction"),
]  # fmt: skip
PLACES_OF_BOTH = [*PLACES, ("chunkIndex", "transformedChunks"), ("encryption", "dataKey"), ("encryption", "aad")]


@pytest.mark.parametrize(
    ("variant", "place"),
    [*(("plain", place) for place in PLACES), *(("both", place) for place in PLACES_OF_BOTH)],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_a_value_of_another_type(variant: str, place: tuple[str, ...], bucket: Callable[[str], Path]) -> None:
    root = bucket(variant)
    for value in (None, 7, "te", [], [1], {}, 1.5):
        if (place[-1], value) != ("transaction", None):
            changed(root, place, value)
            refused(root, variant)


def test_flags_that_do_not_go_with_the_bytes(bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    changed(root, ("compression",), True)
    with pytest.raises(RemoteStorageException, match=r"chunk 0 cannot be decompressed") as caught:
        everything(storage(root, "plain"))
    assert caught.value.path == f"{root}/{PATH}.log"
    root = bucket("zstd")
    changed(root, ("compression",), False)
    with pytest.raises(RemoteStorageException, match=f"{PATH}.log"):
        everything(storage(root, "zstd"))


def test_encryption_that_is_none(bucket: Callable[[str], Path]) -> None:
    root = bucket("both")
    for value in (7, "text", [], {}, True):
        changed(root, ("encryption",), value)
        refused(root, "both")
    changed(root, ("encryption",), None)  # then chunks are no frames
    with pytest.raises(RemoteStorageException, match="cannot be decompressed"):
        everything(storage(root, "both"))


def test_encrypted_segments_want_their_keys() -> None:
    with pytest.raises(RemoteStorageException, match="no keys were given") as caught:
        everything(storage(GOLDEN / "both", "both", keys=None))
    assert caught.value.path == f"{GOLDEN}/both/{PATH}.rsm-manifest"
    pair = (GOLDEN / "public.pem").read_bytes(), (GOLDEN / "private.pem").read_bytes()
    with pytest.raises(RemoteStorageException, match="key pair 'key1', which was not given"):
        everything(storage(GOLDEN / "both", "both", keys=KeyRing({"key2": pair}, "key2")))


def test_a_log_of_many_chunks_costs_nothing(bucket: Callable[[str], Path]) -> None:
    """Numbers alone make no work: two thousand million chunks of one byte."""
    root = bucket("plain")
    for name, value in {"originalChunkSize": 1, "originalFileSize": (1 << 31) - 1, "transformedChunkSize": 1}.items():
        changed(root, ("chunkIndex", name), value)
    changed(root, ("chunkIndex", "finalTransformedChunkSize"), 1)
    with bounded_memory(1 << 20):
        assert storage(root, "plain").fetch_log_segment(RECORDED, 4990, 5010) == LOG[4990:5010]


def test_a_chunk_that_would_fill_the_memory(bucket: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of zstd are as many zeros as one likes."""
    monkeypatch.setattr(aiven, "READ_BYTES_MAX", 16 << 20)
    root, size = bucket("zstd"), (16 << 20) + 1
    bomb = zstandard.ZstdCompressor().compress(bytes(size))
    (root / f"{PATH}.log").write_bytes(bomb)
    chunks = {
        "originalChunkSize": size,
        "originalFileSize": size,
        "transformedChunks": packed(encode_sizes([len(bomb)])),
    }
    for name, value in chunks.items():
        changed(root, ("chunkIndex", name), value)
    metadata = RECORDED._replace(segment_size_in_bytes=size)
    with bounded_memory(4 << 20), pytest.raises(RemoteStorageException, match=f"a chunk of {size} bytes") as caught:
        storage(root, "zstd").fetch_log_segment(metadata, 5, 6)
    assert caught.value.path == f"{root}/{PATH}.log"
    assert caught.value.hint is not None
    assert f"chunk_bytes={size}" in caught.value.hint
    assert storage(root, "zstd", chunk_bytes=size).fetch_log_segment(metadata, 5, 6) == b"\0"


def test_a_plain_log_is_asked_for_in_small_parts(bucket: Callable[[str], Path]) -> None:
    """Any range of a plain log can be requested, whatever its chunks."""
    root = bucket("plain")
    for name in ("originalChunkSize", "transformedChunkSize", "originalFileSize", "finalTransformedChunkSize"):
        changed(root, ("chunkIndex", name), 1 << 30)
    assert storage(root, "plain").chunk_bytes(RECORDED) == CHUNK_BYTES
    assert storage(root, "plain").fetch_log_segment(RECORDED, 5, 60) == LOG[5:60]


def packed(data: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


@pytest.mark.parametrize(
    "chunks",
    [
        "", "!", "AAAA", packed(b""), packed(b"\0\0"), packed(encode_sizes([])), packed(encode_sizes([5])),
        packed(encode_sizes([500, 500])), packed(encode_sizes([500] * 4)), packed(encode_sizes([500, 500, 100_000])),
        packed(encode_sizes([500, 100_000, 5])), packed(encode_sizes([500, 500, 500])[:-1]),
        packed(b"\0\0\0\3" + b"\xff" * 4 + b"\1" + b"\0" * 6), packed(b"\0\0\0\3" + b"\0" * 4 + b"\5" + b"\0" * 14),
        packed(b"\xff\xff\xff\xff" + b"\0" * 20), packed(b"\x7f\xff\xff\xff" + b"\0" * 20),
        packed(bytes(10 << 20)), packed(bytes((10 << 20) + 1)), packed(b"\0\0\0\3" + bytes(100 << 20)),
    ],
    ids=lambda chunks: chunks[:20],
)  # fmt: skip
def test_a_chunk_index_that_is_none(chunks: str, bucket: Callable[[str], Path]) -> None:
    root = bucket("zstd")
    changed(root, ("chunkIndex", "transformedChunks"), chunks)
    with bounded_memory(12 << 20):
        refused(root, "zstd")


def test_a_fixed_index_with_chunks_that_cannot_be(bucket: Callable[[str], Path]) -> None:
    root = bucket("encrypted")
    for name, value in (("transformedChunkSize", 0), ("transformedChunkSize", 1 << 30)):
        changed(root, ("chunkIndex", name), value)
        refused(root, "encrypted")


@pytest.mark.parametrize(
    "name", ["startOffset", "endOffset", "maxTimestampMs", "brokerId", "eventTimestampMs", "segmentLeaderEpochs"]
)
def test_metadata_in_a_manifest_that_are_none(name: str, bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    for value in (None, True, -5, 1.5, 1 << 63, "7", [], float("inf")):
        changed(root, ("remoteLogSegmentMetadata", name), value)
        at = storage(root, "plain")
        with pytest.raises(RemoteStorageException) as caught:
            at.metadata_of(at.segments_of(PARTITION)[0])
        assert caught.value.path == f"{root}/{PATH}.rsm-manifest"


@pytest.mark.parametrize("value", [{}, [], 7, "text", {"startOffset": 0}], ids=repr)
def test_metadata_in_a_manifest_of_another_type(value: Any, bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    changed(root, ("remoteLogSegmentMetadata",), value)
    at = storage(root, "plain")
    with pytest.raises(RemoteStorageException, match="rsm-manifest"):
        at.metadata_of(at.segments_of(PARTITION)[0])


@pytest.mark.parametrize("epochs", [{"x": 0}, {"0": "y"}, {"-1": 0}, {"0": -1}, {"0": 1 << 63}, {"0": 1.5}], ids=repr)
def test_leader_epochs_in_a_manifest_that_are_none(epochs: Any, bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    changed(root, ("remoteLogSegmentMetadata", "segmentLeaderEpochs"), epochs)
    at = storage(root, "plain")
    with pytest.raises(RemoteStorageException, match="rsm-manifest"):
        at.metadata_of(at.segments_of(PARTITION)[0])


def test_a_manifest_of_another_segment_is_refused(bucket: Callable[[str], Path]) -> None:
    root = bucket("plain")
    changed(root, ("remoteLogSegmentMetadata", "startOffset"), 5)
    at = storage(root, "plain")
    with pytest.raises(RemoteStorageException, match="startOffset"):
        at.metadata_of(at.segments_of(PARTITION)[0])


# --- sizes and custom metadata ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[], [7], [1, 2], [5, 5, 5], [256, 0, 9], [0, 65_536, 1], [1 << 24, 1, (1 << 31) - 1]]
)
def test_sizes_are_packed_and_back(sizes: list[int]) -> None:
    assert decode_sizes(encode_sizes(sizes)) == sizes


def test_sizes_take_the_bytes_that_the_widest_needs() -> None:
    assert encode_sizes([1000, 1001, 1255, 7]).hex() == "00000004000003e8010001ff00000007"
    assert encode_sizes([1000, 1256, 7]).hex() == "00000003000003e8020000010000000007"


def test_custom_metadata_cut_anywhere_is_corrupt() -> None:
    whole = bytes.fromhex(FACTS["custom"]["plain"])
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordException):
            decode_custom_metadata(whole[:size])


@pytest.mark.parametrize("text", ["ff" * 6, "0101", "010101ff", "01010100", "0101020580", "020102c3", "0101030280ff"])
def test_custom_metadata_that_are_none(text: str) -> None:
    with pytest.raises(CorruptRecordException):
        decode_custom_metadata(bytes.fromhex(text))
    with pytest.raises(RemoteStorageException, match="custom metadata") as caught:
        storage(GOLDEN / "plain", "plain").fetch_log_segment(
            RECORDED._replace(custom_metadata=bytes.fromhex(text)), 0, 10
        )
    assert caught.value.path == f"{GOLDEN}/plain/{PATH}.log"


def test_fields_of_later_versions_are_passed_over() -> None:
    assert decode_custom_metadata(bytes.fromhex("020002c8310503aabbcc")) == {"REMOTE_SIZE": 3172}
    assert decode_custom_metadata(b"\0") == {}
