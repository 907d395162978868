"""Partitions of a tier brought back to a directory: parallel pieces, all synced, and nothing half done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog import RemoteStorage
from kafkalog.engine.files import File, OsFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.chunks import RemoteFile
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
from kafkalog.errors import KafkaStorageException, RetriableRemoteStorageException
from kafkalog.toolbox import tiering
from tests.file_doubles import RecordingFiles
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import tiered

__all__ = ["run"]

ORDERS = TopicPartition("orders", 0)


def tier_of(tmp_path: Path, kind: str) -> RemoteStorage:
    """A tier whose logs have several chunks each."""
    url = f"memory://{tmp_path.name}/tier" if kind == "bucket" else str(tmp_path / "tier")
    place = RemoteStorage(url, layout="aiven", chunk_bytes=300)
    tiered(tmp_path / "store", place)
    return place


def restored(place: RemoteStorage, target: Path) -> RecordingFiles:
    target.mkdir()
    files = RecordingFiles(str(target))
    report = tiering.restore(place.read_only_files(), str(target), [ORDERS], files=files)
    logs = list((target / "orders-0").glob("*.log"))
    assert report.segments == len(logs) > 1
    assert report.bytes == sum(path.stat().st_size for path in (target / "orders-0").iterdir())
    return files


@pytest.mark.parametrize("kind", ["bucket", "folder"])
def test_all_is_synced_before_the_folder_has_its_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "COPY_BYTES", 700)  # two chunks
    files = restored(tier_of(tmp_path, kind), tmp_path / "target")
    for path in (tmp_path / "target" / "orders-0").glob("*.log"):
        assert path.read_bytes() == (tmp_path / "store" / "orders-0" / path.name).read_bytes()
        kinds = [op.kind for op in files.ops if op.path.endswith(path.name)]
        assert kinds == ["create", *["write"] * (len(kinds) - 2), "sync"]
    (folder, name) = [op for op in files.ops if op.kind in ("sync_dir", "rename")][-3:-1]
    assert (folder.kind, folder.path, name.target) == ("sync_dir", name.path, "orders-0")
    written = {op.path for op in files.ops if op.kind == "write"}
    assert {op.path for op in files.ops[: files.ops.index(name)] if op.kind == "sync"} == written


def test_pieces_of_a_log_are_fetched_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "COPY_BYTES", 700)
    ranges: list[tuple[int, int, int]] = []
    together, parts = threading.Barrier(tiering.THREADS, timeout=10), AivenTieredStorage.log_parts

    def noted(storage: AivenTieredStorage, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        ranges.append((metadata.start_offset, start, end))
        if len(ranges) <= tiering.THREADS:
            together.wait()
        return parts(storage, metadata, start, end)

    monkeypatch.setattr(AivenTieredStorage, "log_parts", noted)
    restored(tier_of(tmp_path, "bucket"), tmp_path / "target")
    assert not together.broken
    for path in (tmp_path / "target" / "orders-0").glob("*.log"):
        size = path.stat().st_size
        pieces = sorted((begin, end) for base, begin, end in ranges if base == int(path.stem))
        assert pieces == [(begin, min(begin + 600, size)) for begin in range(0, size, 600)]


def test_a_piece_that_fails_leaves_no_partition_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "COPY_BYTES", 700)
    place, target = tier_of(tmp_path, "bucket"), tmp_path / "target"
    asked: list[int] = []
    opened: list[RemoteFile] = []
    begin = RemoteFile.__init__

    def refused(storage: object, metadata: object, start: int, end: int) -> Iterator[bytes]:
        asked.append(start)
        if len(asked) > 2:
            raise RetriableRemoteStorageException("away for now")
        yield bytes(end - start)

    def noted(file: RemoteFile, *how: Any) -> None:
        opened.append(file)
        begin(file, *how)

    with monkeypatch.context() as patch:
        patch.setattr(AivenTieredStorage, "log_parts", refused)
        patch.setattr(RemoteFile, "__init__", noted)
        with pytest.raises(RetriableRemoteStorageException, match="away for now"):
            restored(place, target)
    assert len(asked) > 2
    assert [file.closed for file in opened] == [True] * len(opened) != []
    assert not (target / "orders-0").exists()
    tiering.restore(place.read_only_files(), str(target), [ORDERS])
    assert [path.name for path in target.iterdir()] == ["orders-0"]


def test_a_local_object_that_became_shorter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tier_of(tmp_path, "folder")
    files = place.read_only_files()
    open_local = files.storage.open_local
    monkeypatch.setattr(OsFile, "copy_from", File.copy_from)  # as where the system has no call for it

    def cut(metadata):  # type: ignore[no-untyped-def]
        file = open_local(metadata)
        monkeypatch.setattr(type(file), "pread", lambda file, n, position: b"x" * min(n, max(0, 500 - position)))
        return file

    monkeypatch.setattr(files.storage, "open_local", cut)
    with pytest.raises(KafkaStorageException, match="the file has 500 bytes, expected") as caught:
        tiering.restore(files, str(tmp_path / "target"), [ORDERS])
    assert str(caught.value.path).endswith(".log")
    assert not (tmp_path / "target" / "orders-0").exists()


@pytest.mark.parametrize("variant", ["zstd", "encrypted"])
@pytest.mark.parametrize("chunk", [0, 3, -1])
def test_a_chunk_that_is_damaged_stops_its_segment_alone(
    run: Run, tmp_path: Path, variant: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "COPY_BYTES", 700)
    keys = [str(Path(__file__).parents[1] / f"golden/tiered/aiven/{name}.pem") for name in ("public", "private")]
    more = {"encryption": {"k": tuple(keys)}} if variant == "encrypted" else {"compression": True}
    place = RemoteStorage(f"memory://{tmp_path.name}/tier", layout="aiven", chunk_bytes=300, **more)
    for topic in ("orders", "others"):
        tiered(tmp_path / topic, place, topic=topic)
    storage = place.manager()
    assert isinstance(storage, AivenTieredStorage)
    full = next(each for each in storage.partitions() if each.topic_partition == ORDERS)
    found = storage.segments_of(full)[1]
    starts = storage.manifest(found.listed()).chunks.starts
    (key,) = [key for key in found.objects if key.endswith(".log")]
    data = bytearray(storage.objects.get(key))
    data[starts[chunk]] ^= 0x55  # in a nonce, or at the start of a compressed frame
    storage.objects.put(key, lambda: [bytes(data)])
    options = ["--key-pair", f"k:{':'.join(keys)}"] if variant == "encrypted" else []
    target = tmp_path / "target"
    result = run("tier", "restore", place.url, str(target), "--yes", *options)
    assert result.code == 1, result.err
    name, left = f"{found.base_offset:020d}.log", range(len(starts))[chunk] * 300
    size = (tmp_path / "orders" / "orders-0" / name).stat().st_size
    begin = f"{target}/orders-0/{name}: {f'bytes {left} to {size}'}: "
    (told,) = [line for line in result.lines if line.startswith(begin) and f"{key}, byte {starts[chunk]}" in line]
    assert "the log before it is restored" in told
    assert sorted(path.name for path in target.iterdir()) == ["orders-0", "others-0"]
    for path in target.rglob("*.log"):
        whole = (tmp_path / path.parent.name[:-2] / path.parent.name / path.name).read_bytes()
        assert path.read_bytes() == (whole[:left] if path.match(f"orders-0/{name}") else whole)


def test_what_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Iterator[bytes]:
        raise RetriableRemoteStorageException("away for now")

    place, target = tier_of(tmp_path, "bucket"), tmp_path / "target"
    monkeypatch.setattr(AivenTieredStorage, "log_parts", refused)
    with pytest.raises(RetriableRemoteStorageException, match="away for now"):
        restored(place, target)
    assert list(target.iterdir()) == []
