"""The storage of objects: retries, whole objects or none, timeouts and rates, and clear errors."""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kafkalog.engine.files import OS_FILES, OsFile
from kafkalog.engine.remote import objects as objects_module
from kafkalog.engine.remote.objects import Object, Objects, RateLimit, Retries
from kafkalog.errors import (
    IllegalArgumentException,
    KafkaStorageException,
    MissingPackageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.file_doubles import Fault, FaultyFiles
from tests.object_doubles import AT_ONCE, FaultyObjects, SilentObjects

TEN = b"0123456789"


@pytest.fixture(params=["file", "file root", "memory", "memory root", "double"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """An empty place of each kind.  "memory root" is all of memory: a listing names a directory."""
    if request.param == "double":
        return FaultyObjects().objects()
    url = {
        "file": str(tmp_path / "tier"),
        "file root": f"file://{tmp_path}/tier/",
        "memory": f"memory://{uuid.uuid4()}/tier",
        "memory root": "memory://",
    }[request.param]
    return Objects.at(url, retries=AT_ONCE)


@pytest.fixture
def folder() -> str:
    return f"f{uuid.uuid4()}"


# --- every kind of place ------------------------------------------------------------------------------------


def test_what_is_put_is_got_whole_and_in_ranges(place: Objects, folder: str) -> None:
    key = f"{folder}/a/b.log"
    assert place.put(key, lambda: [b"0123", memoryview(b"45"), bytearray(b"6789")]) == 10
    assert place.get(key) == TEN
    assert place.size(key) == 10
    for start, end in itertools.combinations(range(11), 2):
        assert place.get(key, start, end) == TEN[start:end]
    assert place.get(key, 4) == TEN[4:]
    assert place.get(key, 4, 4) == place.get(key, 7, 2) == b""


def test_an_object_takes_the_place_of_the_one_before(place: Objects, folder: str) -> None:
    place.put(f"{folder}/a", lambda: [TEN])
    place.put(f"{folder}/a", lambda: [b"new"])
    assert place.get(f"{folder}/a") == b"new"
    assert place.within(folder) == [Object(f"{folder}/a", 3)]


def test_an_object_may_be_empty(place: Objects, folder: str) -> None:
    assert place.put(f"{folder}/a", list) == 0
    assert place.get(f"{folder}/a") == b""
    assert place.size(f"{folder}/a") == 0


def test_a_listing_has_objects_and_folders_by_key(place: Objects, folder: str) -> None:
    for key in ("b/2", "b/1", "a/x/deep", "top", "a.log"):
        place.put(f"{folder}/{key}", lambda key=key: [key.encode()])
    assert place.within(folder) == [Object(f"{folder}/a.log", 5), Object(f"{folder}/top", 3)]
    assert place.folders(folder) == [f"{folder}/a", f"{folder}/b"]
    assert [each.key for each in place.within(f"{folder}/b")] == [f"{folder}/b/1", f"{folder}/b/2"]
    assert place.folders(f"{folder}/b") == place.within(f"{folder}/a") == []
    assert folder in place.folders()  # keys of a listing are keys: also below a root
    assert all(place.get(each.key) == each.key[len(folder) + 1 :].encode() for each in place.within(folder))


def test_a_folder_that_is_not_there_is_empty(place: Objects, folder: str) -> None:
    assert place.within(f"{folder}/none") == place.folders(f"{folder}/none") == place.left_behind(folder) == []


def test_what_is_missing_is_named(place: Objects, folder: str) -> None:
    key = f"{folder}/none.log"
    requests: list[Callable[[], object]] = [
        lambda: place.get(key),
        lambda: place.get(key, 2, 5),
        lambda: place.size(key),
        lambda: place.modified_s(key),
    ]
    for request in requests:
        with pytest.raises(RemoteResourceNotFoundException) as caught:
            request()
        assert caught.value.path == f"{place.url}/{key}"
        assert isinstance(caught.value, FileNotFoundError)


def test_deleting_twice_is_fine(place: Objects, folder: str) -> None:
    for name in "ab":
        place.put(f"{folder}/{name}", lambda: [TEN])
    place.delete([f"{folder}/a", f"{folder}/never", f"{folder}/a"])
    assert place.within(folder) == [Object(f"{folder}/b", 10)]


def test_a_local_file_is_put(place: Objects, folder: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(TEN * 1000)
    assert place.put_file(f"{folder}/a", str(source)) == 10_000
    assert place.put_file(f"{folder}/b", str(source), 10_000) == 10_000
    assert place.get(f"{folder}/a") == place.get(f"{folder}/b") == TEN * 1000


@pytest.mark.parametrize("copied", [0, 3, 10])
def test_what_the_system_does_not_copy_is_read(tmp_path: Path, copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place, copy_from = Objects.at(str(tmp_path / "tier")), OsFile.copy_from
    monkeypatch.setattr(OsFile, "copy_from", lambda file, source, size: copy_from(file, source, min(size, copied)))
    (tmp_path / "source").write_bytes(TEN)
    reads: list[int] = []
    pread = OsFile.pread
    monkeypatch.setattr(OsFile, "pread", lambda file, n, position: reads.append(n) or pread(file, n, position))
    assert place.put_file("a", str(tmp_path / "source")) == 10
    assert reads == [10 - copied] * (copied < 10)
    assert (tmp_path / "tier" / "a").read_bytes() == TEN


def test_another_local_file_than_was_meant_is_not_put(place: Objects, folder: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(TEN)
    for size in (9, 11):
        with pytest.raises(KafkaStorageException, match=f"the file has 10 bytes, expected {size}") as caught:
            place.put_file(f"{folder}/a", str(source), size)
        assert caught.value.path == str(source)
    with pytest.raises(KafkaStorageException, match="cannot read") as caught:
        place.put_file(f"{folder}/a", str(tmp_path / "none"))
    assert caught.value.errno == errno.ENOENT
    assert place.within(folder) == []


def test_when_an_object_was_put(place: Objects, folder: str) -> None:
    before = time.time()
    place.put(f"{folder}/a", lambda: [TEN])
    assert before - 2 <= place.modified_s(f"{folder}/a") <= time.time() + 2


def test_only_a_local_object_opens_as_a_file(place: Objects, folder: str) -> None:
    place.put(f"{folder}/a", lambda: [TEN])
    file = place.open_local(f"{folder}/a")
    assert (file is not None) == place.is_local
    if file is not None:
        with file:
            assert file.pread(4, 3) == TEN[3:7]
        with pytest.raises(RemoteResourceNotFoundException, match="none"):
            place.open_local(f"{folder}/none")


def test_threads_get_their_own_ranges(place: Objects, folder: str) -> None:
    data = bytes(range(256)) * 40
    place.put(f"{folder}/a", lambda: [data])
    wrong: list[int] = []

    def read(at: int) -> None:
        for start in range(at, len(data) - 50, 97):
            if place.get(f"{folder}/a", start, start + 50) != data[start : start + 50]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_parts_of_a_file(tmp_path: Path) -> None:
    place = FaultyObjects().objects()
    source = tmp_path / "source"
    source.write_bytes(TEN)
    assert list(place.parts_of(str(source), 10, 4)) == [b"0123", b"4567", b"89"]
    assert list(place.parts_of(str(source), 8, 4)) == [b"0123", b"4567"]
    assert list(place.parts_of(str(source), 0, 4)) == []
    with pytest.raises(KafkaStorageException, match="the file has 10 bytes, expected 13"):
        list(place.parts_of(str(source), 13, 4))


# --- an address ---------------------------------------------------------------------------------------------


def test_colons_in_a_name_are_of_the_name(tmp_path: Path) -> None:
    """fsspec itself takes them for several addresses, one in the other."""
    for name in ("a::b", "a::c", "memory::x"):
        for address in (str(tmp_path / name), f"file://{tmp_path}/{name}"):
            assert Objects.at(address).root == str(tmp_path / name)


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(IllegalArgumentException, match="nosuch://bucket"):
        Objects.at("nosuch://bucket")


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b", "s3"), ("gs://b", "gcs"), ("abfs://b", "azure"), ("hdfs://b", "remote")]
)
def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, url: str, extra: str) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("no such client")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingPackageException) as caught:
        Objects.at(url, {"secret": "hidden"})
    assert f"kafkalog[{extra}]" in str(caught.value)
    assert "hidden" not in str(caught.value)


# --- tried again --------------------------------------------------------------------------------------------


@pytest.fixture
def fs() -> FaultyObjects:
    return FaultyObjects()


REQUESTS: dict[str, Callable[[Objects], object]] = {
    "cat_file": lambda place: place.get("a", 0, 10),
    "info": lambda place: place.size("a"),
    "ls": lambda place: place.within(),
    "rm_file": lambda place: place.delete(["a"]),
    "open": lambda place: place.put("a", lambda: [TEN]),
    "upload": lambda place: place.put("a", lambda: [TEN]),
    "commit": lambda place: place.put("a", lambda: [TEN]),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), TimeoutError(), OSError(5, "busy"), RuntimeError("?")]
)
def test_what_fails_for_now_is_tried_again(fs: FaultyObjects, request_name: str, error: Exception) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.asked.clear()
    fs.fail(request_name, error, times=3)
    REQUESTS[request_name](place)
    assert fs.asked.count(request_name) == 4
    left = [] if request_name == "rm_file" else [Object("a", 10)]
    assert place.within() == left


@pytest.mark.parametrize("request_name", REQUESTS)
def test_what_fails_too_often_is_given_up(fs: FaultyObjects, request_name: str) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.asked.clear()
    fs.fail(request_name, ConnectionResetError("by peer"), times=99)
    said = r"tried 4 times in \d+\.\d s: ConnectionResetError: by peer"
    with pytest.raises(RetriableRemoteStorageException, match=said) as caught:
        REQUESTS[request_name](place)
    assert fs.asked.count(request_name) == 4
    assert str(caught.value.path).startswith("faulty://tier")
    assert isinstance(caught.value.__cause__, ConnectionResetError)


class HttpError(Exception):
    """As adlfs and gcsfs have them."""

    status_code = 403


def _wrapped(error: Exception) -> Exception:
    """As adlfs has what fails in a part of an upload."""
    wrapping = RuntimeError("Failed to upload block")
    wrapping.__cause__ = error
    return wrapping


FINAL = [
    PermissionError("no right"), ValueError("bad name"), NotImplementedError("no"),
    HttpError("no right"), OSError("Forbidden: b/bucket/o"),
]  # fmt: skip


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("error", FINAL)
def test_what_is_final_is_not_tried_again(fs: FaultyObjects, request_name: str, error: Exception) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.asked.clear()
    fs.fail(request_name, error, times=99)
    with pytest.raises(RemoteStorageException, match=str(error)) as caught:
        REQUESTS[request_name](place)
    assert not isinstance(caught.value, RetriableRemoteStorageException)
    assert fs.asked.count(request_name) == 1


def test_the_error_behind_that_of_a_part_counts(fs: FaultyObjects) -> None:
    fs.fail("upload", _wrapped(HttpError("no right")))
    with pytest.raises(RemoteStorageException, match="HttpError: no right") as caught:
        fs.objects().put("a", lambda: [TEN])
    assert not isinstance(caught.value, RetriableRemoteStorageException)
    fs.fail("upload", _wrapped(OSError("The specified container does not exist")))
    with pytest.raises(RemoteStorageException, match=r"the bucket .* does not exist"):
        fs.objects().put("a", lambda: [TEN])


def test_an_interrupt_is_not_swallowed(fs: FaultyObjects) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.fail("cat_file", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        place.get("a")
    assert fs.asked.count("cat_file") == 1


def test_each_new_try_is_told(fs: FaultyObjects, caplog: pytest.LogCaptureFixture) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.fail("cat_file", ConnectionResetError("by peer"), times=2)
    with caplog.at_level(logging.WARNING, "kafkalog.remote"):
        place.get("a")
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [line.partition(", it is")[0] for line in said] == [
        f"get of faulty://tier/a failed (attempt {n} of 4)" for n in (1, 2)
    ]
    assert all("tried again in 0.0 s: ConnectionResetError: by peer" in line for line in said)


class ParamValidationError(Exception):
    """botocore has one of this name."""


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (TypeError("got an unexpected keyword argument 'secrt'"), "secrt"),
        (TypeError("got an unexpected keyword argument 'nope'"), "client_kwargs.nope"),
        (ParamValidationError('Unknown parameter in input: "secrt"'), "secrt"),
        (ValueError("Invalid endpoint: 127.0.0.1:9"), "endpoint_url"),
    ],
)
def test_an_option_that_the_client_refuses(fs: FaultyObjects, error: Exception, option: str) -> None:
    options = {"secrt": "hidden", "client_kwargs": {"nope": "hidden"}, "endpoint_url": "127.0.0.1:9"}
    place = fs.objects(options=options)
    place.put("a", lambda: [TEN])
    fs.fail("ls", error, times=99)
    with pytest.raises(IllegalArgumentException, match=f"refuses the option {option}: "):
        place.within()
    assert fs.asked.count("ls") == 1


@pytest.mark.parametrize("error", [ConnectionResetError, TypeError, PermissionError, NotImplementedError])
def test_errors_show_no_secrets(fs: FaultyObjects, caplog: pytest.LogCaptureFixture, error: type[Exception]) -> None:
    place = fs.objects(options={"secret": "hush/hush", "nested": {"token": "t0ken"}, "endpoint_url": "http://here"})
    place.put("a", lambda: [TEN])
    fs.fail("ls", error("hush/hush t0ken http://me:pass@here/x is at http://here"), times=99)
    with caplog.at_level(logging.DEBUG), pytest.raises((RemoteStorageException, IllegalArgumentException)) as caught:
        place.within()
    said = f"{caught.value} {caught.value.__cause__} {caplog.text}"
    assert "*** *** http://***@here/x is at http://here" in said
    assert not any(secret in said for secret in ("hush", "t0ken", "me:pass"))


def test_a_bucket_that_is_not_there(fs: FaultyObjects) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    for request_name, do in REQUESTS.items():
        if request_name == "rm_file":
            continue  # a missing object is no error when it is deleted
        fs.fail(request_name, FileNotFoundError("The specified bucket does not exist"))
        with pytest.raises(RemoteStorageException, match=r"the bucket '.*' does not exist.*create it") as caught:
            do(place)
        assert not isinstance(caught.value, (RemoteResourceNotFoundException, RetriableRemoteStorageException))


def test_who_asks_first_is_soon_told() -> None:
    place = Objects.at("memory://a", retries=Retries(6), timeout_s=60.0)
    assert (place.hasty().retries.attempts, place.hasty().timeout_s) == (2, 7.0)
    assert (place.retries.attempts, place.timeout_s) == (6, 60.0)
    less = Objects.at("memory://a", retries=Retries(1), timeout_s=1.0).hasty()
    assert (less.retries.attempts, less.timeout_s) == (1, 1.0)


def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch, fs: FaultyObjects) -> None:
    slept: list[float] = []
    never = threading.Event()
    monkeypatch.setattr(never, "wait", slept.append)
    place = fs.objects(retries=Retries(attempts=8, first_pause_s=0.1, longest_pause_s=1.0)).until(never)
    place.put("a", lambda: [TEN])
    fs.fail("cat_file", ConnectionResetError(), times=99)
    with pytest.raises(RetriableRemoteStorageException, match="tried 8 times"):
        place.get("a")
    longest = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert len(slept) == len(longest)
    assert all(most / 2 <= pause <= most for pause, most in zip(slept, longest, strict=True))


def test_pauses_differ() -> None:
    assert len({Retries().pause_s(1) for _ in range(20)}) > 10


def test_a_storage_may_be_away_for_long() -> None:
    assert 5.0 <= Retries().pause_s(1_000_000) <= 10.0


# --- what comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoiled", [b"", TEN[:9], TEN + b"x"])
def test_a_body_of_another_length_is_asked_for_again(fs: FaultyObjects, spoiled: bytes) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN * 3])
    fs.spoil("cat_file", lambda _: spoiled, times=2)
    assert place.get("a", 10, 20) == TEN
    assert fs.asked.count("cat_file") == 3
    fs.spoil("cat_file", lambda _: spoiled, times=99)
    with pytest.raises(
        RetriableRemoteStorageException, match=f"the storage returned {len(spoiled)} bytes from byte 10 on, expected 10"
    ):
        place.get("a", 10, 20)


def test_an_object_that_ends_early_is_named(fs: FaultyObjects) -> None:
    place = fs.objects()
    place.put("a/b", lambda: [TEN])
    for read in (lambda: place.get("a/b", 6, 20), lambda: list(place.each_part("a/b", 6, 20))):
        before = fs.asked.count("cat_file")
        with pytest.raises(RemoteStorageException, match="the object has 10 bytes, expected at least 20") as caught:
            read()
        assert not isinstance(caught.value, RetriableRemoteStorageException)
        assert caught.value.path == "faulty://tier/a/b"
        assert "restore the one that was copied" in str(caught.value)
        assert fs.asked.count("cat_file") == before + 1
    fs.spoil("cat_file", lambda data: data[:-1], times=2)
    assert place.get("a/b", 6, 10) == TEN[6:]
    fs.spoil("cat_file", lambda data: data[:-1], times=99)
    with pytest.raises(
        RetriableRemoteStorageException, match="the storage returned 3 bytes from byte 6 on, expected 4"
    ):
        place.get("a/b", 6, 10)


def test_what_was_put_with_another_length_is_put_again(fs: FaultyObjects) -> None:
    place = fs.objects()
    fs.spoil("commit", lambda data: data[:-1], times=2)
    assert place.put("a", lambda: [TEN]) == 10
    assert fs.asked.count("commit") == 3
    assert place.get("a") == TEN
    fs.spoil("commit", lambda data: data[:-1], times=99)
    with pytest.raises(RetriableRemoteStorageException, match="the object has 9 bytes after it was put, expected 10"):
        place.put("a", lambda: [TEN])


def test_a_file_that_arrived_short_is_put_again(fs: FaultyObjects, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(TEN)
    fs.spoil("info", lambda found: found | {"size": 3})
    fs.fail("put_file", ConnectionResetError("in the middle"))
    assert fs.objects().put_file("a", str(tmp_path / "source")) == 10
    assert fs.asked.count("put_file") == 3
    assert fs.objects().get("a") == TEN


# --- whole or not at all ------------------------------------------------------------------------------------


def test_parts_are_made_anew_for_each_try(fs: FaultyObjects) -> None:
    place, made = fs.objects(), itertools.count()

    def parts() -> Iterator[bytes]:
        number = next(made)
        yield b"try %d" % number
        if number < 2:
            raise ConnectionResetError("in the middle")

    assert place.put("a", parts) == 5
    assert place.get("a") == b"try 2"
    assert fs.asked.count("discard") == 2


@pytest.mark.parametrize("step", ["upload", "commit"])
def test_an_upload_that_fails_leaves_the_object_before(fs: FaultyObjects, step: str) -> None:
    place = fs.objects()
    place.put("a", lambda: [TEN])
    fs.fail(step, ConnectionResetError(), times=99)
    with pytest.raises(RetriableRemoteStorageException):
        place.put("a", lambda: [b"x" * 100])
    gc.collect()  # an abandoned upload does not continue when it is collected
    assert place.get("a") == TEN
    assert fs.asked.count("discard") == 4


def test_an_upload_that_was_given_up_asks_for_nothing_more(fs: FaultyObjects) -> None:
    def parts() -> Iterator[bytes]:
        yield TEN
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.objects().put("a", parts)
    gc.collect()
    assert not list(fs.uploads)
    assert fs.asked == ["open", "discard"]


def test_an_upload_that_is_done_is_let_go(fs: FaultyObjects) -> None:
    for _ in range(3):
        fs.objects().put("a", lambda: [TEN])
    gc.collect()
    assert not list(fs.uploads)


def test_an_error_of_the_parts_is_the_callers(fs: FaultyObjects, tmp_path: Path) -> None:
    place = fs.objects()
    source = tmp_path / "source"
    source.write_bytes(TEN)
    with pytest.raises(KafkaStorageException, match="the file has 10 bytes, expected 20"):
        place.put("a", lambda: place.parts_of(str(source), 20))
    assert fs.asked.count("open") == 1
    assert place.within() == []


def test_large_objects_go_in_parts(fs: FaultyObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PART_BYTES", 1000)
    assert fs.objects().put("a", lambda: (b"%09d," % n for n in range(1000))) == 10_000
    assert fs.asked.count("upload") >= 5
    assert fs.objects().get("a", 9990, 10_000) == b"000000999,"


def test_puts_are_done_side_by_side(fs: FaultyObjects) -> None:
    together, ended = threading.Barrier(objects_module.SIDE_BY_SIDE, timeout=10), []

    def put(number: int) -> int:
        together.wait()
        if number == 1:
            raise RetriableRemoteStorageException("refused")
        time.sleep(0.01)
        ended.append(number)
        return number

    puts = [lambda number=number: put(number) for number in range(objects_module.SIDE_BY_SIDE)]
    with pytest.raises(RetriableRemoteStorageException, match="refused"):
        fs.objects().side_by_side(puts)
    assert sorted(ended) == [0, 2, 3]
    ended.clear()
    puts[1] = puts[0]
    assert fs.objects().side_by_side(puts) == [0, 0, 2, 3]


def test_large_files_are_put_one_at_a_time(fs: FaultyObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has some parts in memory."""
    monkeypatch.setattr(objects_module, "PART_BYTES", 100)
    small_ones, at_work, most, given = threading.Barrier(2, timeout=10), 0, 0, []
    monkeypatch.setattr(objects_module, "_give_back", lambda: given.append(at_work))

    def put_file(source: str, path: str, **how: Any) -> None:
        nonlocal at_work, most
        if source.endswith("small"):
            small_ones.wait()
        else:
            at_work += 1
            most = max(most, at_work)
            time.sleep(0.01)
            at_work -= 1
        fs.inner.put_file(source, path)

    monkeypatch.setattr(fs, "put_file", put_file)
    (tmp_path / "small").write_bytes(bytes(100))
    (tmp_path / "large").write_bytes(bytes(101))
    place = fs.objects()
    names = ["large", "small", "large", "small"]
    puts = [lambda n=n, name=name: place.put_file(f"{n}", str(tmp_path / name)) for n, name in enumerate(names)]
    assert place.side_by_side(puts) == [101, 100, 101, 100]
    assert (most, given) == (1, [0, 0])


def test_a_large_file_that_waits_for_its_turn_is_given_up(
    fs: FaultyObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "PART_BYTES", 100)
    large, place, puts = tmp_path / "large", fs.objects(), list[str]()
    large.write_bytes(bytes(101))
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[int]] = []

        def put_file(source: str, path: str, **how: Any) -> None:
            puts.append(path)
            waiting.append(pool.submit(place.put_file, "second", str(large)))
            place.close()
            fs.inner.put_file(source, path)

        monkeypatch.setattr(fs, "put_file", put_file)
        assert place.put_file("first", str(large)) == 101
        with pytest.raises(RetriableRemoteStorageException, match="given up while it waited for another one"):
            waiting[0].result(20)
    assert len(puts) == 1


def test_puts_to_a_folder_come_in_their_order(tmp_path: Path) -> None:
    threads: list[tuple[int, threading.Thread]] = []

    def put(number: int) -> int:
        threads.append((number, threading.current_thread()))
        return number

    puts = [lambda number=number: put(number) for number in range(9)]
    assert Objects.at(str(tmp_path)).side_by_side(puts) == list(range(9))
    assert threads == [(number, threading.current_thread()) for number in range(9)]


LOCAL_STEPS = ["create", "write", "sync", "rename", "sync_dir"]


@pytest.mark.parametrize("step", LOCAL_STEPS)
def test_a_local_put_that_fails_leaves_the_object_before(tmp_path: Path, step: str) -> None:
    files = FaultyFiles(OS_FILES)
    place = Objects.at(str(tmp_path), files=files, retries=AT_ONCE)
    place.put("f/a", lambda: [TEN])
    files.fault = Fault(0, errno.ENOSPC if step == "write" else errno.EIO, kinds={step})
    files.count = 0
    with pytest.raises(RetriableRemoteStorageException, match="tried 4 times"):
        place.put("f/a", lambda: [b"x" * 100])
    files.fault = None
    assert place.get("f/a") == (b"x" * 100 if step == "sync_dir" else TEN)
    assert os.listdir(tmp_path / "f") == ["a"]


@pytest.mark.parametrize("step", LOCAL_STEPS)
def test_a_local_put_is_tried_again(tmp_path: Path, step: str) -> None:
    files = FaultyFiles(OS_FILES, Fault(0, kinds={step}, sticky=False))
    place = Objects.at(str(tmp_path), files=files, retries=AT_ONCE)
    place.put("a", lambda: [TEN])
    assert len(files.failed) == 1
    assert place.get("a") == TEN


def test_what_a_killed_upload_left_is_no_object(tmp_path: Path) -> None:
    place = Objects.at(str(tmp_path))
    place.put("f/a", lambda: [TEN])
    left = tmp_path / "f" / "b.123-456.kafkalog_upload"
    left.write_bytes(b"half")
    assert place.within("f") == [Object("f/a", 10)]
    assert place.left_behind("f") == [Object(f"f/{left.name}", 4)]
    place.delete(each.key for each in place.left_behind("f"))
    assert not left.exists()


# --- time and rate ------------------------------------------------------------------------------------------


SILENT: dict[str, Callable[[Objects], object]] = {
    "cat_file": lambda place: place.get("a", 0, 10),
    "info": lambda place: place.size("a"),
    "ls": lambda place: place.within(),
    "rm_file": lambda place: place.delete(["a"]),
}


@pytest.mark.parametrize("request_name", SILENT)
def test_a_request_without_an_answer_counts_as_failed(request_name: str) -> None:
    fs = SilentObjects()
    fs.inner.pipe_file(f"{fs.root}/a", TEN)
    fs.silent = 2
    began = time.monotonic()
    SILENT[request_name](fs.objects(timeout_s=0.05))
    assert 0.1 <= time.monotonic() - began < 5
    assert fs.asked.count(request_name) == 3


def test_a_storage_that_never_answers_is_given_up() -> None:
    fs = SilentObjects()
    fs.silent = 99
    with pytest.raises(RetriableRemoteStorageException, match=r"tried 4 times in .* s: .*Timeout"):
        fs.objects(timeout_s=0.02).get("a")


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that takes connections, and neither reads nor answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("request_name", ["info", "open", "put_file"])
def test_a_server_that_takes_connections_and_never_answers(deaf: str, request_name: str, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    options = {"key": "k", "secret": "s", "endpoint_url": deaf}
    place = Objects.at("s3://bucket/tier", options, retries=Retries(1), timeout_s=0.3)
    (tmp_path / "source").write_bytes(TEN)
    requests = {**REQUESTS, "put_file": lambda place: place.put_file("a", str(tmp_path / "source"))}
    began = time.monotonic()
    with pytest.raises(RetriableRemoteStorageException, match=r"tried 1 times in .*: no answer in 0.3 s"):
        requests[request_name](place)
    assert time.monotonic() - began < 5


def test_an_endpoint_where_nobody_listens() -> None:
    pytest.importorskip("s3fs")
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    began = time.monotonic()
    with pytest.raises(RetriableRemoteStorageException, match=endpoint):
        Objects.at("s3://bucket/tier", options).hasty().within()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_is_more_than_nothing(rate: float) -> None:
    with pytest.raises(IllegalArgumentException, match="bytes a second"):
        RateLimit(rate)


class Sleeper(threading.Event):
    """A clock that advances when somebody sleeps, without a real sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        self.slept += timeout
        return self.is_set()


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Sleeper:
    made = Sleeper()
    monkeypatch.setattr(objects_module, "time", made)
    return made


def test_bytes_wait_for_those_before(sleeper: Sleeper) -> None:
    limit = RateLimit(100)
    limit.take(50, sleeper)
    assert sleeper.slept == 0
    limit.take(10, sleeper)
    assert sleeper.slept == pytest.approx(0.5)
    limit.take(10, sleeper)
    assert sleeper.slept == pytest.approx(0.6)
    sleeper.now += 60  # unused allowance is not saved up
    limit.take(1000, sleeper)
    limit.take(1, sleeper)
    assert sleeper.slept == pytest.approx(10.6)


def test_without_a_rate_nobody_waits(sleeper: Sleeper) -> None:
    limit = RateLimit(None)
    for _ in range(5):
        limit.take(1 << 40, sleeper)
    assert sleeper.slept == 0


@pytest.mark.parametrize("kind", ["file", "double"])
def test_uploads_keep_to_their_rate(kind: str, sleeper: Sleeper, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(objects_module, "PART_BYTES", 1000)
    settings: dict[str, Any] = {"upload_bytes_per_s": 1000.0}
    place = Objects.at(str(tmp_path / "t"), **settings) if kind == "file" else FaultyObjects().objects(**settings)
    place = place.until(sleeper)
    place.put("a", lambda: [bytes(1000)] * 5)
    assert sleeper.slept == pytest.approx(4)
    (tmp_path / "source").write_bytes(bytes(3000))
    monkeypatch.setattr(Objects.parts_of, "__defaults__", (1000, 0))
    place.put_file("b", str(tmp_path / "source"))
    assert sleeper.slept == pytest.approx(7)  # the last part's second has not gone by
    place.get("a")
    assert sleeper.slept == pytest.approx(7)


def test_a_limited_file_waits_in_the_callers_thread(fs: FaultyObjects, tmp_path: Path) -> None:
    """A client's `put_file` runs in the one thread that serves all its requests: nothing may sleep there."""
    (tmp_path / "source").write_bytes(TEN)
    fs.objects(upload_bytes_per_s=1e9).put_file("a", str(tmp_path / "source"))
    assert "put_file" not in fs.asked
    fs.objects().put_file("a", str(tmp_path / "source"))
    assert "put_file" in fs.asked


def test_downloads_keep_to_their_rate(fs: FaultyObjects, sleeper: Sleeper) -> None:
    place = fs.objects(download_bytes_per_s=100.0).until(sleeper)
    place.put("a", lambda: [bytes(1000)])
    assert sleeper.slept == 0
    for _ in range(4):
        place.get("a", 0, 50)
    assert sleeper.slept == pytest.approx(1.5)


# --- given up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "double"])
def test_who_waits_for_the_limit_may_be_given_up(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"upload_bytes_per_s": 100.0}
    place = Objects.at(str(tmp_path / "t"), **settings) if kind == "file" else FaultyObjects().objects(**settings)
    given_up = threading.Event()
    threading.Timer(0.05, given_up.set).start()
    began = time.monotonic()
    with pytest.raises(RetriableRemoteStorageException, match=r"tried 1 times .* the limit of 100 bytes a second"):
        place.until(given_up).put("a", lambda: [bytes(100)] * 90)
    assert time.monotonic() - began < 5
    assert place.within() == place.left_behind() == []
    place.put("b", lambda: [bytes(10)])  # the bytes that never went are not waited for
    assert time.monotonic() - began < 5


def test_closing_ends_pauses(fs: FaultyObjects) -> None:
    place = fs.objects(retries=Retries(attempts=9, first_pause_s=60.0, longest_pause_s=60.0))
    place.put("a", lambda: [TEN])
    fs.fail("cat_file", ConnectionResetError(), times=99)
    threading.Timer(0.05, place.close).start()
    with pytest.raises(RetriableRemoteStorageException, match="tried 1 times"):
        place.hasty().get("a")
