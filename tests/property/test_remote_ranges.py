"""Ranges of the remote tier: each requested range equals the slice of the log, in every layout and any order."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.engine.remote.aiven import (
    AivenTieredStorage,
    decode_custom_metadata,
    encode_custom_metadata,
    main_path,
)
from kafkalog.engine.remote.aiven_chunks import decode_sizes, encode_sizes
from kafkalog.engine.remote.aiven_keys import KeyRing
from kafkalog.engine.remote.chunks import Chunks, RemoteFile
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import CorruptRecordException, RemoteStorageException
from tests.object_doubles import PARTITION, FaultyObjects, LogStorage, segment, segment_id
from tests.unit.remote_kit import copied, write_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
LOG = (GOLDEN / "segment" / "log").read_bytes()
KEYS = KeyRing.read({"key1": (str(GOLDEN / "public.pem"), str(GOLDEN / "private.pem"))}, "key1")

place = st.integers(0, 700) | st.sampled_from([99, 100, 101])


@given(st.integers(1, 600), st.integers(1, 250), st.booleans(), st.booleans(), st.lists(st.tuples(place, place)))
@settings(deadline=None, max_examples=40)
def test_aiven_ranges_are_slices(
    tmp_path_factory: pytest.TempPathFactory, size: int, chunk: int, compresses: bool, encrypts: bool, asked: Any
) -> None:
    data = write_segment(tmp_path_factory.getbasetemp() / "segment", size)
    log = Path(data.log_segment).read_bytes()
    keys = KEYS if encrypts else None
    at = AivenTieredStorage(FaultyObjects().objects(), chunk_bytes=chunk, compression=compresses, keys=keys)
    at.copy_log_segment_data(copied(size), data)
    for start, end in [(0, size), *asked]:
        assert at.fetch_log_segment(copied(size), start, end) == log[start:end]


@given(
    st.integers(1, 900),
    st.integers(1, 300),
    st.sampled_from([0, 200, 1000, 1 << 20]),
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 1000), st.integers(0, 500)), max_size=12),
)
@settings(deadline=None, max_examples=60)
def test_files_in_chunks_are_slices(size: int, chunk: int, cache_bytes: int, reads: list[tuple[int, int, int]]) -> None:
    """Two handles of one file, read in any order, from any cache."""
    storage = LogStorage(LOG[:size], chunk)
    chunks = Chunks(cache_bytes, threads=2)
    files = [RemoteFile(chunks, storage, segment(), "log") for _ in range(2)]  # type: ignore[arg-type]
    for which, position, count in reads:
        assert files[which].pread(count, position) == LOG[:size][position : position + count]
    chunks.close()
    assert all(start % chunk == 0 and end == min(start + chunk, size) for start, end in storage.fetched)


@given(st.lists(st.integers(0, (1 << 31) - 1) | st.integers(0, 300)))
def test_sizes_round_trip(sizes: list[int]) -> None:
    assert decode_sizes(encode_sizes(sizes)) == sizes


@given(st.binary(max_size=60) | st.tuples(st.integers(-3, 9), st.binary(max_size=60)).map(lambda of: _counted(*of)))
def test_garbage_is_no_list_of_sizes(data: bytes) -> None:
    try:
        sizes = decode_sizes(data)
    except ValueError:
        return
    assert len(sizes) == int.from_bytes(data[:4], "big", signed=True)


def _counted(count: int, rest: bytes) -> bytes:
    return count.to_bytes(4, "big", signed=True) + rest


names = st.text(string.printable + "äß€", max_size=200)


@given(
    st.fixed_dictionaries(
        {}, optional={"REMOTE_SIZE": st.integers(0, (1 << 62) - 1), "OBJECT_PREFIX": names, "OBJECT_KEY": names}
    )
)
def test_custom_metadata_round_trips(fields: dict[str, Any]) -> None:
    assert decode_custom_metadata(encode_custom_metadata(fields)) == fields


@given(st.binary(max_size=40))
def test_garbage_is_no_custom_metadata(data: bytes) -> None:
    try:
        fields = decode_custom_metadata(data)
    except CorruptRecordException:
        return
    assert set(fields) <= {"REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY"}


leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just([]) | st.just({})


def _paths(value: Any, at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = [] if not isinstance(value, dict) else [_paths(each, (*at, name)) for name, each in value.items()]
    return [at, *(path for paths in inner for path in paths)]


@pytest.mark.parametrize("variant", ["plain", "both"])
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_changed_manifest_is_read_or_refused(variant: str, data: st.DataObject) -> None:
    """Raises no other error, and returns no wrong bytes of objects with checksums."""
    fs = FaultyObjects()
    objects = fs.objects()
    known = copied(len(LOG))
    known = known._replace(remote_log_segment_id=known.remote_log_segment_id._replace(id=segment_id(1)))
    (recorded,) = (GOLDEN / variant).rglob("*.rsm-manifest")
    stem = main_path(PARTITION, 0, segment_id(1))
    manifest = json.loads(recorded.read_bytes())
    *inside, last = data.draw(st.sampled_from(_paths(manifest)[1:]))
    target = manifest
    for name in inside:
        target = target[name]
    target[last] = data.draw(leaf)
    for suffix in ("log", "indexes"):
        objects.put(f"{stem}.{suffix}", lambda suffix=suffix: [recorded.with_suffix(f".{suffix}").read_bytes()])
    text = json.dumps(manifest).encode()
    objects.put(f"{stem}.rsm-manifest", lambda: [text])
    at = AivenTieredStorage(objects, keys=KEYS)
    (found,) = at.segments_of(PARTITION)
    for read in (
        lambda: at.fetch_log_segment(known, 4000, 12_000),
        lambda: at.fetch_index(known, IndexType.TIMESTAMP),
        lambda: at.metadata_of(found),
    ):
        got: object = None
        refused = ""
        try:
            got = read()
        except RemoteStorageException as error:
            refused = str(error.path)
        if refused:
            assert refused.startswith(f"faulty://tier/{stem}.")
        else:
            if variant == "both" and isinstance(got, bytes) and len(got) == 8000:
                assert got == LOG[4000:12_000]
