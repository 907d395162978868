"""A long listing of a bucket: S3's page by page, and restarted after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from kafkalog.engine.files import OsFiles
from kafkalog.engine.remote.objects import PAGE_OBJECTS, Object, Objects, Retries
from kafkalog.engine.remote.storage import found_segments
from kafkalog.errors import RetriableRemoteStorageException
from tests.object_doubles import PARTITION


class Pages(fsspec.asyn.AsyncFileSystem):  # type: ignore[misc]
    """As s3fs lists: `count` objects, and an error each time before the object of a number in `breaks`."""

    protocol = "s3"
    cachable = False

    def __init__(self, count: int, breaks: list[int]) -> None:
        super().__init__()
        self.count, self.breaks = count, breaks
        self.most = 0  # objects that a listing went on beyond what was taken of it

    @staticmethod
    def split_path(path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    async def _iterdir(self, bucket: str, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        yield {"name": f"{bucket}/{prefix}below", "type": "directory", "size": 0}
        for number in range(self.count):
            await asyncio.sleep(0)
            if number in self.breaks:
                self.breaks.remove(number)
                raise ConnectionResetError("by peer")
            self.most = number
            yield {"name": f"{bucket}/{prefix}{number:06d}", "type": "file", "size": number}


def objects(fs: Pages) -> Objects:
    return Objects(fs, "bucket", url="s3://bucket", retries=Retries(3, 0.0, 0.0))


def test_a_long_listing_is_taken_page_by_page() -> None:
    fs = Pages(3 * PAGE_OBJECTS + 7, [])
    listed = objects(fs).each_within("f")
    assert next(listed) == ("f/000000", 0)
    assert fs.most < 2 * PAGE_OBJECTS
    assert len(list(listed)) == fs.count - 1


class CountingFiles(OsFiles):
    def __init__(self) -> None:
        self.asked = 0

    def size_of(self, path: str) -> int:
        self.asked += 1
        return super().size_of(path)


def test_a_long_directory_is_looked_at_page_by_page(tmp_path: Path) -> None:
    sizes = {f"{number:04}": number % 3 for number in range(2 * PAGE_OBJECTS + 7)}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "left.kafkalog_upload").touch()
    files = CountingFiles()
    local = Objects.at(str(tmp_path), files=files)
    next(local.each_within())
    assert files.asked == PAGE_OBJECTS
    assert local.within() == [Object(name, size) for name, size in sizes.items()]


@pytest.mark.parametrize("breaks", [[0], [5], [PAGE_OBJECTS], [2 * PAGE_OBJECTS + 1, PAGE_OBJECTS + 1]])
def test_a_listing_that_fails_in_the_middle_lacks_nothing(breaks: list[int]) -> None:
    fs = Pages(3 * PAGE_OBJECTS + 7, breaks)
    found = objects(fs).within("f")
    assert [each.size for each in found] == list(range(fs.count))
    assert not breaks


def test_a_listing_that_goes_on_failing_is_no_short_listing() -> None:
    fs = Pages(2 * PAGE_OBJECTS, [PAGE_OBJECTS + 1] * 3)
    with pytest.raises(RetriableRemoteStorageException, match="by peer"):
        list(objects(fs).each_within("f"))


def test_an_object_that_is_listed_twice_is_one() -> None:
    folder, stem = "f", f"{7:020d}-{'i' * 22}"
    listed = [Object(f"{folder}/{stem}{suffix}", size) for suffix, size in ((".log", 5), (".log", 5), (".other", 1))]
    (found,) = found_segments(PARTITION, folder, listed, (".log", ".index"), ".log")
    assert (found.base_offset, found.id, found.object_bytes, found.is_whole) == (7, "i" * 22, 5, True)
    assert (found.objects, found.lacks) == ((f"{folder}/{stem}.log",), (".index",))
