"""The remote tier in Azure's and in Google's storage: their clients, and emulators of the services."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.remote import clients
from kafkalog.engine.remote import objects as objects_module
from kafkalog.engine.remote.objects import PART_BYTES, Objects, Retries
from kafkalog.errors import (
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.clouds.emulators import KEY, Cloud, azure, google
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

# aiohttp's about a part that is bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
GOLDEN = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
LARGE = 2 * PART_BYTES + 12345
ONCE = Retries(1)


@pytest.fixture(scope="module", params=[azure, google], ids=["azure", "google"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with request.param() as started:
        yield started


@pytest.fixture
def base() -> str:
    return f"bucket/{uuid.uuid4()}"


@pytest.fixture
def place(cloud: Cloud, base: str) -> Objects:
    return Objects.at(cloud.url(base), cloud.options, retries=ONCE)


# --- objects ------------------------------------------------------------------------------------------------


def test_objects_are_put_got_listed_and_deleted(place: Objects) -> None:
    assert (place.within(), place.folders(), place.within("none")) == ([], [], [])
    place.put("a/b=1.log", lambda: [b"01234", b"56789"])
    place.put("a/50%20.log", lambda: [b"x"])
    place.put("ab/c", lambda: [b"beside"])
    assert place.within("a") == [("a/50%20.log", 1), ("a/b=1.log", 10)]
    assert place.folders() == ["a", "ab"]
    assert (place.get("a/b=1.log"), place.get("a/b=1.log", 2, 5)) == (b"0123456789", b"234")
    assert (place.get("a/b=1.log", 5), place.size("a/b=1.log")) == (b"56789", 10)
    assert abs(place.modified_s("a/b=1.log") - time.time()) < 60
    place.put("a/b=1.log", lambda: [b"new"])
    assert place.get("a/b=1.log") == b"new"
    place.delete(["a/b=1.log", "a/50%20.log", "none"], folders=1)
    assert (place.within("a"), place.folders()) == ([], ["ab"])


@pytest.mark.parametrize(("start", "end"), [(5, 99), (10, 12), (20, 30)])
def test_bytes_behind_the_end_are_an_error(place: Objects, start: int, end: int) -> None:
    place.put("a", lambda: [b"0123456789"])
    with pytest.raises(RemoteStorageException, match=f"the object has 10 bytes, expected at least {end}") as caught:
        place.get("a", start, end)
    assert not isinstance(caught.value, RetriableRemoteStorageException)


def test_an_object_may_be_empty(place: Objects, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    place.put("a", list)
    place.put_file("b", str(tmp_path / "empty"))
    assert [(key, size, place.get(key)) for key, size in place.within()] == [("a", 0, b""), ("b", 0, b"")]


@pytest.mark.parametrize("ask", [lambda at: at.get("a"), lambda at: at.get("a", 0, 3), lambda at: at.size("a")])
def test_an_object_that_is_not_there(place: Objects, ask: Callable[[Objects], Any]) -> None:
    with pytest.raises(RemoteResourceNotFoundException, match="a: the object does not exist"):
        ask(place)


def test_large_objects_go_in_parts(place: Objects, tmp_path: Path) -> None:
    data = os.urandom(LARGE)
    (tmp_path / "file").write_bytes(data)
    place.put_file("file", str(tmp_path / "file"))
    place.put("parts", lambda: [data[at : at + 1_000_000] for at in range(0, LARGE, 1_000_000)])
    assert place.get("file") == place.get("parts") == data
    assert place.get("file", PART_BYTES - 3, PART_BYTES + 3) == data[PART_BYTES - 3 : PART_BYTES + 3]


def test_an_upload_that_fails_leaves_the_object_before(place: Objects) -> None:
    def half() -> Iterator[bytes]:
        yield bytes(2 * PART_BYTES)
        raise OSError("the disk")

    place.put("before", lambda: [b"whole"])
    for key in ("before", "new"):
        with pytest.raises(RetriableRemoteStorageException, match="the disk"):
            place.put(key, half)
    assert (place.within(), place.get("before")) == ([("before", 5)], b"whole")


def test_long_listings_come_page_by_page(place: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PAGE_OBJECTS", 3)
    keys = [f"many/{number:02d}" for number in range(10)]
    place.side_by_side([lambda key=key: place.put(key, lambda: [b"x"]) for key in keys])  # type: ignore[misc]
    place.put("many/below/x", lambda: [b"x"])
    assert [key for key, _ in place.within("many")] == keys
    assert (place.folders("many"), place.folders()) == (["many/below"], ["many"])


# --- what goes wrong ----------------------------------------------------------------------------------------

FINAL: dict[str, Callable[[Objects, str], Any]] = {
    "list": lambda at, _: at.within(),
    "folders": lambda at, _: at.folders(),
    "put": lambda at, _: at.put("a", lambda: [b"x"]),
    "put large": lambda at, _: at.put("a", lambda: [bytes(LARGE)]),
    "put_file": lambda at, file: at.put_file("a", file),
}


@pytest.mark.parametrize("request_name", FINAL)
def test_a_bucket_that_is_not_there(cloud: Cloud, request_name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    place = Objects.at(cloud.url("nobucket/tier"), cloud.options)
    with pytest.raises(RemoteStorageException, match="the bucket 'nobucket' does not exist") as raised:
        FINAL[request_name](place, str(tmp_path / "file"))
    assert not isinstance(raised.value, RetriableRemoteStorageException)


@pytest.mark.parametrize("key", [KEY.replace("Eby8", "Abc8"), "no base64"])
@pytest.mark.parametrize("request_name", FINAL)
def test_a_key_that_is_refused(cloud: Cloud, request_name: str, key: str, tmp_path: Path) -> None:
    if cloud.scheme != "abfs":
        pytest.skip("the emulator of Google's storage asks for no rights")
    (tmp_path / "file").write_bytes(b"x")
    options = {"connection_string": cloud.options["connection_string"].replace(KEY, key)}
    with pytest.raises(RemoteStorageException, match=r"cannot .* the object") as raised:
        FINAL[request_name](Objects.at(cloud.url("bucket/tier"), options), str(tmp_path / "file"))
    assert not isinstance(raised.value, RetriableRemoteStorageException)
    assert key not in str(raised.value)


def test_where_nobody_listens(cloud: Cloud) -> None:
    options = {name: re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", value) for name, value in cloud.options.items()}
    began = time.monotonic()
    with pytest.raises(RetriableRemoteStorageException, match=r"Cannot connect to host 127\.0\.0\.1:9 "):
        Objects.at(cloud.url("bucket/tier"), options, retries=ONCE).within()
    assert time.monotonic() - began < 8


SILENT: dict[str, Callable[[Objects, str], Any]] = {
    **FINAL,
    "get": lambda at, _: at.get("a", 0, 3),
    "size": lambda at, _: at.size("a"),
    "delete": lambda at, _: at.delete(["a"]),
}


@pytest.mark.parametrize("request_name", SILENT)
def test_a_storage_that_does_not_answer(
    cloud: Cloud, base: str, request_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(LARGE))
    place = Objects.at(cloud.url(base), cloud.options, retries=ONCE, timeout_s=0.5)
    place.put("first", lambda: [b"x"])  # with a connection that is open from now on
    monkeypatch.setattr(clients, "SLOWEST_BYTES_PER_S", 1 << 30)
    began = time.monotonic()
    with cloud.stopped(), pytest.raises(RetriableRemoteStorageException, match=r"no answer in 0\.5 s"):
        SILENT[request_name](place, str(tmp_path / "file"))
    assert time.monotonic() - began < 8


# --- a store's tier -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_a_store_tiers_and_is_read_back(cloud: Cloud, base: str, layout: str, tmp_path: Path, run: Run) -> None:
    """A segment of 17 MiB, which is uploaded in parts, and short ones."""
    how: dict[str, Any] = {"layout": layout}
    words = ["--layout", layout]
    for name, value in cloud.options.items():
        words += ["--remote-option", f"{name}={value}"]
    if layout == "aiven":
        pairs = {"key1": (str(GOLDEN / "public.pem"), str(GOLDEN / "private.pem"))}
        how |= {"prefix": "cluster/", "chunk_bytes": 3 << 20, "compression": True, "encryption": pairs}
        words += ["--prefix", "cluster/", "--key-pair", ":".join(["key1", *pairs["key1"]])]
    url, root = cloud.url(base), tmp_path / "shop"
    tier = kafkalog.RemoteStorage(url, options=cloud.options, **how)
    settings = {"remote.storage.enable": "true", "segment.bytes": str(17 << 20), "local.retention.bytes": "1"}
    values = [os.urandom(900_000) for _ in range(22)] + [b"last"]
    with kafkalog.open(root, remote=tier, maintenance=False) as store:
        orders = store.create_topic("orders", 1, config=settings)
        small = store.create_topic("small", 1, config={**settings, "internal.segment.bytes": "2000"})
        for value in values:
            orders.append(value)
        for number in range(60):
            small.append(b"%d" % number + bytes(100))
        assert store.remote_log_manager.run_once() > 3
        partition = orders.partition(0)
        assert partition.delete_old_segments() == 1
        assert [record.value for record in partition] == values
    assert cloud.keys(base)

    with kafkalog.open(tier, read_only=True) as bucket:
        alone = bucket.topic("orders").partition(0)
        assert [record.value for record in alone] == values[: alone.end_offset]
        assert alone.end_offset == 19
    with kafkalog.open(root, remote=tier, read_only=True) as both:
        assert [record.value for record in both.topic("orders").partition(0)] == values

    listed = [json.loads(line) for line in run("tier", "list", url, *words, "--json").lines]
    assert {row["topic"] for row in listed} == {"orders", "small"}
    assert run("tier", "verify", str(root), "--remote", url, *words, "--deep").code == 0
    assert run("tier", "orphans", str(root), "--remote", url, *words).code == 0
    assert run("tier", "restore", url, str(tmp_path / "restored"), "orders", "--yes", *words).code == 0
    with kafkalog.open(tmp_path / "restored", read_only=True) as restored:
        assert [record.value for record in restored.topic("orders").partition(0)] == values[:19]

    with kafkalog.open(root, remote=tier, maintenance=False) as store:
        store.delete_topic("orders")
        store.remote_log_manager.run_once()
        assert not [key for key in cloud.keys(base) if "orders" in key]
        assert [key for key in cloud.keys(base) if "small" in key]
