"""Reading by chunks of S bytes, out-of-range policies, and the framing on a real socket."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face import chunk_reader as wire
from kafkalog._face.chunk_reader import ChunkReader, MessageSetSend, MultiMessageSetSend
from kafkalog._native.codec import batches as native
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    OffsetOutOfRangeException,
    RecordBatchTooLargeException,
    SchemaException,
)

START_MS = 1_700_000_000_000
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}


def fill(root: Path, count: int = 40, sizes: tuple[int, ...] = (10, 90, 400)) -> list[bytes]:
    """Batches of one record each, of several sizes, over several segments."""
    contents = [b"%03d" % n + b"x" * sizes[n % len(sizes)] for n in range(count)]
    with kafkalog.open_log(root, "t-0", config=SMALL) as log:
        for n, content in enumerate(contents):
            log.append(content, timestamp=START_MS + n)
        assert log.engine is not None
        assert log.engine.number_of_segments > 3
    return contents


@pytest.mark.parametrize("chunk_bytes", [1, 61, 80, 173, 500, 1000, 1 << 20])
@pytest.mark.parametrize("read_only", [True, False])
def test_every_chunk_size_gives_the_same_records(tmp_path: Path, chunk_bytes: int, read_only: bool) -> None:
    contents = fill(tmp_path)
    with kafkalog.open_log(tmp_path, "t-0", read_only=read_only, config=None if read_only else SMALL) as log:
        for start in (0, 7, 39, 40):
            with log.reader(start, chunk_bytes=chunk_bytes) as reader:
                assert [record.value for record in reader.records()] == contents[start:]
                assert reader.offset == 40


def test_a_cut_batch_is_kept_not_read_again(tmp_path: Path) -> None:
    fill(tmp_path, 40, (100,))
    total = sum(path.stat().st_size for path in (tmp_path / "t-0").glob("*.log"))
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        read_bytes = 0
        reader = log.reader(chunk_bytes=250)
        locate = log._readable().extent

        def counting(offset: int, isolation: str = "read_uncommitted") -> object:
            extent = locate(offset, isolation)
            if extent is not None:
                read = extent.read_into

                def count(buffers: object, behind: bytes, position: int, size: int) -> memoryview:
                    nonlocal read_bytes
                    data = read(buffers, behind, position, size)  # type: ignore[arg-type]
                    read_bytes += len(data) - len(behind)
                    return data

                return _Counted(extent, count)
            return None

        reader.source = _Source(log._readable(), counting)
        assert sum(1 for _ in reader.records()) == 40
        assert read_bytes == total


@pytest.mark.parametrize("chunk_bytes", [100, 250, 1000])
@pytest.mark.parametrize("held", [0, 1, 2, 5, 1000])
def test_chunks_that_are_held_stay_what_they_are(tmp_path: Path, chunk_bytes: int, held: int) -> None:
    """A buffer is reused only if nobody holds a view of it."""
    fill(tmp_path, 60, (100,))
    contents = b"".join(path.read_bytes() for path in sorted((tmp_path / "t-0").glob("*.log")))
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        found = b""
        kept: list[tuple[bytes, memoryview]] = []
        for chunk in log.reader(chunk_bytes=chunk_bytes):
            found += chunk.data
            kept = [*kept[len(kept) + 1 - held :], (bytes(chunk.data), chunk.data)] if held else []
            assert all(copy == data for copy, data in kept)
            assert chunk.data.readonly
        assert found == contents


class _Counted:
    def __init__(self, extent: object, read: Callable[..., memoryview]) -> None:
        self._extent = extent
        self.read_into = read

    def __getattr__(self, name: str) -> object:
        return getattr(self._extent, name)


class _Source:
    def __init__(self, source: object, extent: object) -> None:
        self._source = source
        self.extent = extent

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)


def test_a_batch_beyond_the_maximum_is_a_clear_error(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"x" * 5000)
        with (
            log.reader(chunk_bytes=100, max_chunk_bytes=4000) as reader,
            pytest.raises(RecordBatchTooLargeException, match="increase max_chunk_bytes"),
        ):
            reader.read_chunk()
        with log.reader(chunk_bytes=100, max_chunk_bytes=8000) as reader:
            chunk = reader.read_chunk()
            assert chunk is not None
            assert len(chunk.data) > 5000
            assert reader.reads == 7  # 100, 200 ... 6400
        with pytest.raises(IllegalArgumentException):
            log.reader(chunk_bytes=0)


def test_out_of_range(tmp_path: Path) -> None:
    contents = fill(tmp_path)
    with kafkalog.open_log(tmp_path, "t-0", config=SMALL) as log:
        log.delete_records(10)
        for offset in (3, 41):
            with pytest.raises(OffsetOutOfRangeException):
                log.reader(offset).read_chunk()
            assert [r.value for r in log.reader(offset, out_of_range="earliest").records()] == contents[10:]
            assert list(log.reader(offset, out_of_range="latest").records()) == []
            assert [r.value for r in log.reader(offset, out_of_range=START_MS + 20).records()] == contents[20:]
        with pytest.raises(IllegalArgumentException):
            log.reader(0, out_of_range="somewhere")


def test_a_reader_goes_on_when_the_log_has_grown(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log, kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        log.append(b"1")
        readers = [log.reader(), view.reader()]
        assert [[r.value for r in reader.records()] for reader in readers] == [[b"1"], [b"1"]]
        log.append(b"2")
        view.refresh()
        assert [[r.value for r in reader.records()] for reader in readers] == [[b"2"], [b"2"]]


def test_damage_is_named_by_file_and_position(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "200"}) as log:
        log.append(b"first" * 9)
        log.append(b"second" * 20)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        with pytest.raises(CorruptRecordException, match=r"00\.log at byte 0: .*bad CRC"):
            list(log)
        assert len(list(log.reader(check_crcs=False).records())) == 2


def exchange(send: Callable[[socket.socket], int]) -> bytes:
    """The bytes that arrive on the other side of a real connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        parts: list[bytes] = []

        def receive() -> None:
            connection, _ = server.accept()
            with connection:
                while part := connection.recv(65536):
                    parts.append(part)

        thread = threading.Thread(target=receive)
        thread.start()
        with socket.create_connection(server.getsockname()) as sock:
            sent = send(sock)
        thread.join()
    data = b"".join(parts)
    assert sent == len(data)
    return data


@pytest.mark.parametrize("read_only", [True, False])
def test_a_fetch_result_on_a_socket(tmp_path: Path, read_only: bool) -> None:
    fill(tmp_path, 5, (1000,))
    path = tmp_path / "t-0" / "00000000000000000000.log"
    first = path.read_bytes()
    with kafkalog.open_log(tmp_path, "t-0", read_only=read_only, config=None if read_only else SMALL) as log:
        data = exchange(lambda sock: log.send_to(sock, 0))
        assert data == struct.pack(">ih", len(first) + 2, wire.NONE) + first
        small = exchange(lambda sock: log.send_to(sock, 0, 10))  # at least one batch
        assert native.headers(small[6:])[0][0].last_offset == 0
        assert exchange(lambda sock: log.send_to(sock, 99)) == struct.pack(">ih", 2, wire.OFFSET_OUT_OF_RANGE)
        assert exchange(lambda sock: log.send_to(sock, 5)) == struct.pack(">ih", 2, wire.NONE)


def test_fetch_results_of_several_partitions(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "a-0") as a, kafkalog.open_log(tmp_path, "b-0") as b:
        a.append(b"1")
        b.append(b"2")
        sources = [a._readable(), b._readable()]
        data = exchange(lambda sock: MultiMessageSetSend([MessageSetSend(s, 0) for s in sources]).send_to(sock))
        total, code = struct.unpack_from(">ih", data)
        assert (total, code) == (len(data) - 4, 0)
        left, right = socket.socketpair()
        with left, right:
            left.sendall(data)
            code, results = wire.receive_multi_message_set(right)
        assert code == 0
        bodies = [(tmp_path / name / "00000000000000000000.log").read_bytes() for name in ("a-0", "b-0")]
        assert results == [(0, bodies[0]), (0, bodies[1])]


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", struct.pack(">ih", 1, 0), struct.pack(">ih", 1 << 30, 0), b"\0\0\0\x09\0\0ab"]
)
def test_what_is_no_fetch_result(data: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        left.close()
        with pytest.raises(SchemaException):
            wire.receive_message_set(right)


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    fill(tmp_path)
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc")
    before = len(os.listdir("/proc/self/fd"))
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert len(list(log)) == 40
        ChunkReader(log._readable()).close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- a second thread that reads ahead ----------------------------------------------------------------------


def with_ahead(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> list[int]:
    """Everything from 100 bytes on is read ahead; the sizes of what a second thread gave."""
    given: list[int] = []

    monkeypatch.setattr(wire, "AHEAD_LEAST_BYTES", 100)
    monkeypatch.setattr(wire, "AHEAD_SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(wire, "processors", lambda: 64)
    ahead = ChunkReader._read_ahead

    def told(self: ChunkReader, extent: object) -> memoryview | None:
        data = ahead(self, extent)  # type: ignore[arg-type]
        if data is not None:
            given.append(len(data))
        return data

    monkeypatch.setattr(ChunkReader, "_read_ahead", told)
    return given


@pytest.mark.parametrize("slice_bytes", [70, 100, 173, 480, 1 << 20])
def test_reading_ahead_gives_the_same_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    fill(tmp_path)
    given = with_ahead(monkeypatch, slice_bytes)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        for start in (0, 7, 39, 40):
            both = []
            for reads_ahead in (False, True):
                with log.reader(start, reads_ahead=reads_ahead, chunk_bytes=500) as reader:
                    chunks = [(chunk.path, chunk.file_position, bytes(chunk.data)) for chunk in reader]
                    assert reader.offset == 40
                found: dict[str, tuple[int, bytes]] = {}
                for path, position, data in chunks:
                    begin, before = found.get(path, (position, b""))
                    assert position == begin + len(before)
                    found[path] = begin, before + data
                both.append(found)
            assert both[0] == both[1]
    assert given, "nobody read ahead"


def test_reading_ahead_names_the_same_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    log_file = sorted((tmp_path / "t-0").glob("*.log"))[1]
    data = bytearray(log_file.read_bytes())
    data[len(data) // 2] ^= 1
    log_file.write_bytes(data)
    given = with_ahead(monkeypatch, 480)
    said = []
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        for reads_ahead in (False, True):
            with log.reader(reads_ahead=reads_ahead) as reader:
                found: list[int] = []
                offsets = (found.extend(header.base_offset for header in chunk.headers) for chunk in reader)
                with pytest.raises(CorruptRecordException) as error:
                    list(offsets)
                said.append((found, str(error.value)))
    assert said[0] == said[1]
    assert given


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_nothing_is_read_from_before_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_ahead: bool) -> None:
    contents = fill(tmp_path)
    given = with_ahead(monkeypatch, 480)
    with (
        kafkalog.open_log(tmp_path, "t-0", config=SMALL) as log,
        log.reader(reads_ahead=reads_ahead, chunk_bytes=480) as reader,
    ):
        reader.read_chunk()
        kept = reader.offset + 1
        log.truncate(kept)
        log.append_many([b"new"] * 3)
        assert [record.value for record in reader.records()] == [contents[kept - 1], *[b"new"] * 3]
    assert bool(given) is reads_ahead


def test_arrow_of_a_log_that_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    contents = fill(tmp_path)
    given = with_ahead(monkeypatch, 480)
    with kafkalog.open_log(tmp_path, "t-0", config=SMALL) as log:
        table = log.read_arrow()
        assert table.column("value").to_pylist() == contents
        assert table.column("offset").to_pylist() == list(range(40))
    assert given
