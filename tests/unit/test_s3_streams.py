"""Bytes streamed to and from S3: moto's server, in a separate process."""

from __future__ import annotations

import base64
import os
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

from bench.remote import s3_server
from kafkalog.engine.remote import objects as objects_module
from kafkalog.engine.remote import s3_streams
from kafkalog.engine.remote.objects import PART_BYTES, READ_BYTES, Objects, Retries
from kafkalog.errors import (
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)

MIB = 1 << 20
LEAST_PART = 5 * MIB  # for S3
SIZE = 2 * LEAST_PART + 12_345
ONCE = Retries(1)


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_server() as made:
        yield made


@pytest.fixture
def place(options: dict[str, Any], tmp_path: Path) -> Objects:
    return Objects.at(f"s3://bucket/{tmp_path.name}", options, retries=ONCE)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "log"
    path.write_bytes(os.urandom(SIZE))
    return path


def asked(place: Objects, request: str, key: str, **how: Any) -> Any:
    bucket, path, _ = place.fs.split_path(place.path(key))
    return place.fs.call_s3(request, Bucket=bucket, Key=path, **how)


def test_a_file_is_put_with_its_checksum_and_comes_back_in_parts(place: Objects, source: Path) -> None:
    data = source.read_bytes()
    assert place.put_file("a", str(source)) == SIZE > PART_BYTES
    assert (
        asked(place, "head_object", "a", ChecksumMode="ENABLED")["ChecksumCRC32"]
        == base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    )
    for start, end in ((0, SIZE), (0, 1), (SIZE - 1, SIZE), (12_345, 3 * MIB), (7, 7), (8, 7)):
        parts = list(place.each_part("a", start, end))
        assert b"".join(parts) == data[start:end]
        assert all(0 < len(part) <= READ_BYTES for part in parts)


def test_a_large_file_is_put_in_parts(place: Objects, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_streams, "PUT_BYTES", LEAST_PART)
    assert place.put_file("a", str(source)) == SIZE
    assert place.get("a") == source.read_bytes()
    assert asked(place, "head_object", "a")["ETag"].endswith('-3"')


def test_a_part_that_fails_leaves_nothing(place: Objects, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_streams, "PUT_BYTES", LEAST_PART)
    call = place.fs.call_s3

    def refused(request: str, **how: Any) -> Any:
        if how.get("PartNumber") == 2:
            raise ConnectionResetError("in the middle")
        return call(request, **how)

    monkeypatch.setattr(place.fs, "call_s3", refused)
    with pytest.raises(RetriableRemoteStorageException, match="in the middle"):
        place.put_file("a", str(source))
    assert place.within() == []
    assert not call("list_multipart_uploads", Bucket="bucket").get("Uploads")


def test_bytes_that_break_off_are_asked_for_from_there_on(
    place: Objects, options: dict[str, Any], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put_file("a", str(source))
    place = Objects.at(place.url, options, retries=Retries(2, 0.0, 0.0))
    begins: list[int] = []
    begin, read = s3_streams.Stream.__init__, s3_streams.Stream.read

    def noted(stream: s3_streams.Stream, fs: Any, path: str, start: int, *how: Any) -> None:
        begins.append(start)
        begin(stream, fs, path, start, *how)

    def broken(stream: s3_streams.Stream, count: int) -> bytes:
        data = read(stream, count)
        if len(begins) < 3 and begins[-1] < len(got) - MIB:
            raise ConnectionResetError("in the middle")
        return data

    got = bytearray()
    monkeypatch.setattr(s3_streams.Stream, "__init__", noted)
    monkeypatch.setattr(s3_streams.Stream, "read", broken)
    for part in place.each_part("a", 5, SIZE):
        got += part
    assert got == source.read_bytes()[5:]
    assert begins == [5, 5 + 2 * MIB, 5 + 4 * MIB]


@pytest.mark.parametrize(
    ("key", "start", "error", "said"),
    [
        ("a", 0, RemoteStorageException, "the object has 10 bytes, expected at least 12"),
        ("a", 12, RemoteStorageException, "the object has 10 bytes, expected at least 24"),
        ("none", 0, RemoteResourceNotFoundException, "the object does not exist"),
    ],
)
def test_bytes_that_are_not_there(
    place: Objects, key: str, start: int, error: type[RemoteStorageException], said: str
) -> None:
    place.put("a", lambda: [b"0123456789"])
    with pytest.raises(error, match=said) as caught:
        list(place.each_part(key, start, start + 12))
    assert caught.value.path == place.shown(key)


def test_a_body_is_sent_again_from_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own second try."""
    monkeypatch.setattr(objects_module, "PART_BYTES", 100)
    (tmp_path / "log").write_bytes(bytes(range(250)))
    bodies: list[bytes] = []

    class Hiccup(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if len(bodies) == 1 else 200)
            self.send_header("ETag", '"tag"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "250")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hiccup) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
            place = Objects.at("s3://bucket/tier", options, retries=Retries(2, 0.0, 0.0), timeout_s=5)
            assert place.put_file("a", str(tmp_path / "log")) == 250
        finally:
            server.shutdown()
            thread.join()
    assert bodies == [bytes(range(250))] * 2


@pytest.mark.parametrize("put_bytes", [s3_streams.PUT_BYTES, LEAST_PART])
def test_little_of_a_file_is_in_memory(
    place: Objects, source: Path, put_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_streams, "PUT_BYTES", put_bytes)
    place.put_file("first", str(source))  # this imports the client
    tracemalloc.start()
    try:
        place.put_file("a", str(source))
        assert sum(map(len, place.each_part("a", 0, SIZE))) == SIZE
        assert tracemalloc.get_traced_memory()[1] < 6 * MIB
    finally:
        tracemalloc.stop()
