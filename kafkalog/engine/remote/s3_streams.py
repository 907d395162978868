"""Streams bytes to and from S3 through an s3fs file system.

s3fs itself holds a file's parts, and what it gets, in memory completely, which also takes longer.  Errors are those of
the file system, and only its client retries.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalog.engine.files import File

PUT_BYTES = 64 << 20  # in one request

SideBySide = Callable[[Sequence[Callable[[], str]]], list[str]]


class Body(io.RawIOBase):
    """Bytes of a local file as the body of a request, which may be read more than once."""

    def __init__(self, file: File, begin: int, size: int) -> None:
        self._file, self._begin, self._size = file, begin, size
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = self._file.pread(left if size is None or size < 0 else min(size, left), self._begin + self._at)
        self._at += len(data)
        return data


def put(fs: Any, path: str, file: File, size: int) -> None:
    """Puts a file by one request."""
    bucket, key, _ = fs.split_path(path)
    fs.call_s3("put_object", Bucket=bucket, Key=key, Body=Body(file, 0, size))


def put_in_parts(fs: Any, path: str, file: File, size: int, side_by_side: SideBySide) -> None:
    """Puts a file in parts of PUT_BYTES, some in parallel; if one fails, no object is created."""
    bucket, key, _ = fs.split_path(path)
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = fs.call_s3("create_multipart_upload", **where)["UploadId"]

    def put_part(number: int) -> str:
        begin = (number - 1) * PUT_BYTES
        body = Body(file, begin, min(PUT_BYTES, size - begin))
        tag: str = fs.call_s3("upload_part", **where, PartNumber=number, Body=body)["ETag"]
        return tag

    try:
        numbers = range(1, -(-size // PUT_BYTES) + 1)
        tags = side_by_side([partial(put_part, number) for number in numbers])
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in zip(numbers, tags, strict=True)]
        fs.call_s3("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
    except BaseException:
        with suppress(Exception):  # uploaded parts are garbage until the storage removes them
            fs.call_s3("abort_multipart_upload", **where)
        raise


class Stream:
    """The bytes [start, end) of an object, from one request; `size` is how many there are."""

    def __init__(self, fs: Any, path: str, start: int, end: int, timeout_s: float) -> None:
        from fsspec.asyn import sync

        bucket, key, _ = fs.split_path(path)
        self._loop = fs.loop
        self._sync = partial(sync, fs.loop, timeout=timeout_s)
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
        answer = self._sync(fs._call_s3, "get_object", **asked)
        self.size, self._body = int(answer["ContentLength"]), answer["Body"]

    def read(self, count: int) -> bytes:
        """Returns the next `count` bytes, fewer at the end."""
        data: bytes = self._sync(self._read, count)
        return data

    async def _read(self, count: int) -> bytes:
        parts = []
        while count > 0 and (part := await self._body.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._body.close)
