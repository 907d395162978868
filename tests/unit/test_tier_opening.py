"""A store is opened with its tier, and no other: wrong places, layouts, keys and addresses are refused first.

Nothing may be copied or deleted before that.  Objects that others delete meanwhile are copied again.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import RemoteStorage
from kafkalog.engine.remote.objects import Objects
from kafkalog.errors import (
    IllegalArgumentException,
    OffsetOutOfRangeException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, places, tiered

__all__ = ["places", "run"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Two key pairs by their ids, as files."""
    rsa = pytest.importorskip("Crypto.PublicKey.RSA")
    pytest.importorskip("cryptography")
    folder, pairs = tmp_path_factory.mktemp("keys"), {}
    for name in ("one", "two"):
        key = rsa.generate(1536)
        (folder / f"{name}.pub").write_bytes(key.public_key().export_key())
        (folder / f"{name}.pem").write_bytes(key.export_key(pkcs=8))
        pairs[name] = (str(folder / f"{name}.pub"), str(folder / f"{name}.pem"))
    return pairs


def snapshot(*places: Path) -> dict[str, bytes]:
    """The segments of a store and the objects of a tier."""
    found = (path for place in places for path in place.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if path.suffix == ".log" or "tier" in path.parts}


# --- the place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", ["all", "on demand"])
@pytest.mark.parametrize(
    ("url", "options"),
    [("teir", {}), ("tier", {"layout": "aiven"}), ("tier", {"layout": "aiven", "prefix": "x/"})],
)
def test_another_tier_is_refused(places: tuple[Path, Path], url: str, options: Any, load: Any) -> None:
    before = snapshot(*places)
    wrong = RemoteStorage(places[0].parent / url, **options)
    with pytest.raises(
        IllegalArgumentException, match="found none of the segments that the metadata says were copied"
    ) as told:
        kafkalog.open(places[0], remote=wrong, load=load)
    assert wrong.url in str(told.value)
    assert "of orders-0 from offset" in str(told.value)
    assert snapshot(*places) == before
    with kafkalog.open(places[0], remote=places[1]) as store:
        assert store.topic("orders").partition(0).log_start_offset == 0


@pytest.mark.parametrize("options", [{}, {"layout": "aiven", "prefix": "x/"}, {"compression": True}])
@pytest.mark.parametrize("was_full", [False, True])
def test_an_empty_tier_is_read_with_its_directory(tmp_path: Path, run: Run, options: Any, was_full: bool) -> None:
    """Nothing was copied there yet, or all of it was deleted."""
    tier = RemoteStorage(tmp_path / "tier", **options)
    if was_full:
        tiered(tmp_path / "store", tier)
    with kafkalog.open(tmp_path / "store", remote=tier, maintenance=False) as store:
        if was_full:
            store.delete_topic("orders")
        topic = store.create_topic("orders", 1, config={"remote.storage.enable": "true"})
        topic.append(b"value")
        with kafkalog.open(tmp_path / "store", remote=tier, read_only=True) as both:
            assert [record.value for record in both.topic("orders").partition(0)] == [b"value"]
    assert not [path for path in (tmp_path / "tier").rglob("*") if path.is_file()]
    if not options:
        for command in ("verify", "topics", "tier list", "tier orphans"):
            assert run(*command.split(), tmp_path / "store", "--remote", tier.url).code == 0


def test_an_empty_place_is_no_tier_of_others(places: tuple[Path, Path], tmp_path: Path) -> None:
    """The directory's objects are missing there, or it has none there."""
    with kafkalog.open(tmp_path / "plain") as store:
        store.create_topic("orders", 1)
    for directory in (places[0], tmp_path / "plain"):
        with pytest.raises(IllegalArgumentException, match="teir: found no segments of a remote tier"):
            kafkalog.open(directory, remote=tmp_path / "teir", read_only=True)


def test_a_bucket_that_is_not_there_is_no_empty_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier") as store:
        store.create_topic("orders", 1, config={"remote.storage.enable": "true"})

    def asked(*args: object, **how: object) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(Objects, "_asked", asked)
    with pytest.raises(RemoteStorageException, match="the bucket 'nowhere' does not exist"):
        kafkalog.open(tmp_path / "store", remote="memory://nowhere/tier", read_only=True)


def test_a_lost_object_does_not_stop_the_store(places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    log = max(places[1].rglob("*.log"))
    log.unlink()
    with caplog.at_level(logging.WARNING, "kafkalog.remote"), kafkalog.open(places[0], remote=places[1]):
        pass
    lost = [
        each.getMessage() for each in caplog.records if "but the metadata says it was copied there" in each.getMessage()
    ]
    assert len(lost) == 1
    assert log.name[21:-4] in lost[0]


class Away:
    """A storage whose requests fail while `is_away`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = True
        real = Objects._asked

        def asked(objects: Objects, request: str, *args: Any, **how: Any) -> Any:
            if self.is_away:
                raise ConnectionResetError("away")
            return real(objects, request, *args, **how)

        monkeypatch.setattr(Objects, "_asked", asked)


def test_a_storage_that_does_not_answer_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new store gets an error; one that has tiered before continues, and the place is checked before anything happens
    there."""
    url = f"memory://{tmp_path.name}/tier"
    tiered(tmp_path / "store", url)
    away = Away(monkeypatch)
    with pytest.raises(RetriableRemoteStorageException, match="tried 2 times"):
        kafkalog.open(tmp_path / "new", remote=RemoteStorage(url, layout="local-tiered"))
    wrong = RemoteStorage(f"memory://{tmp_path.name}/teir", layout="local-tiered")
    for place, copies in ((wrong, False), (RemoteStorage(url, layout="local-tiered"), True)):
        away.is_away = True
        with kafkalog.open(tmp_path / "store", remote=place, maintenance=False) as store:
            store.topic("orders").append(b"meanwhile")
            assert store.remote_log_manager.run_once() == 0
            away.is_away = False
            assert (store.remote_log_manager.run_once() > 0) == copies


def test_threads_wait_for_the_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    url = f"memory://{tmp_path.name}/tier"
    tiered(tmp_path / "store", url)
    away = Away(monkeypatch)
    wrong = RemoteStorage(f"memory://{tmp_path.name}/teir", layout="local-tiered")
    tiering = kafkalog.RemoteLogManagerConfig(task_interval_ms=10, copier_threads=2)
    with kafkalog.open(tmp_path / "store", remote=wrong, tiering=tiering) as store:
        away.is_away = False
        until = time.monotonic() + 20
        while (
            caplog.text.count("deleting there are paused: ") < 3
            or "found none of the segments that the metadata says" not in caplog.text
        ):
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(IllegalArgumentException, match="found none of the segments that the metadata says"):
            store.remote_log_manager.check_place()
    assert not wrong.manager().partitions()


@pytest.mark.parametrize(("store", "tier"), [("a", "a"), ("a", "a/tier"), ("tier/a", "tier"), ("a", "link")])
def test_a_tier_and_a_directory_lie_apart(tmp_path: Path, store: str, tier: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(IllegalArgumentException, match="one inside the other"):
        kafkalog.open(tmp_path / store, remote=tmp_path / tier)
    kafkalog.open(tmp_path / "a", remote=tmp_path / "a-tier").close()


# --- the layout, and keys -------------------------------------------------------------------------------------


def test_a_tier_does_not_begin_beside_other_things(tmp_path: Path) -> None:
    aivens = RemoteStorage(tmp_path / "tier", layout="aiven", prefix="cluster-1/")
    tiered(tmp_path / "store", aivens)
    for prefix in ("", "cluster-2/"):
        with pytest.raises(IllegalArgumentException, match=r"but other things \(cluster-1\).*prefix"):
            kafkalog.open(tmp_path / "other", remote=RemoteStorage(aivens.url, prefix=prefix))
    kafkalog.open(tmp_path / "store", remote=RemoteStorage(aivens.url, prefix="cluster-1/")).close()
    for layout, prefix in (("local-tiered", ""), ("aiven", "cluster-2/")):
        named = RemoteStorage(aivens.url, layout=layout, prefix=prefix)
        kafkalog.open(tmp_path / "other", remote=named).close()


def test_nothing_plain_goes_into_an_encrypted_tier(tmp_path: Path, keys: dict[str, tuple[str, str]]) -> None:
    one = RemoteStorage(tmp_path / "tier", layout="aiven", encryption={"one": keys["one"]})
    tiered(tmp_path / "store", one)
    other = {"one": keys["two"]}
    both: Any = {"encryption": keys, "encryption_key": "two"}
    for directory in ("store", "other"):
        for layout in (None, "aiven"):
            for said, given in (("no keys were given", None), ("by other keys", other)):
                with pytest.raises(IllegalArgumentException, match=f"the tier is encrypted.*{said}"):
                    kafkalog.open(tmp_path / directory, remote=RemoteStorage(one.url, layout=layout, encryption=given))
        kafkalog.open(tmp_path / directory, remote=RemoteStorage(one.url, **both)).close()


def test_a_damaged_manifest_does_not_stop_the_store(tmp_path: Path) -> None:
    place = RemoteStorage(tmp_path / "tier", layout="aiven")
    tiered(tmp_path / "store", place)
    for manifest in (tmp_path / "tier").rglob("*.rsm-manifest"):
        manifest.write_bytes(b"[")
    kafkalog.open(tmp_path / "store", remote=place).close()


# --- the address ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKHUSH:HUSH@bucket/p",
        "s3://AK:HU/SH@bucket/p",
        "sftp://me:HUSH@host/p",
        "s3://:HUSH@bucket",
        "S3A://a:HUSH@b",
    ],
)
def test_a_password_in_an_address_is_refused(url: str) -> None:
    with pytest.raises(IllegalArgumentException, match="a user and a password") as told:
        RemoteStorage(url)
    assert "HUSH" not in f"{told.value!r} {told.value}"
    assert "HU/SH" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["abfs://container@account.dfs.core.windows.net/p", "hdfs://me@host:8020/p@x", "hdfs://host:8020/a:b@c",
            "s3://bucket/a:b@c", "sftp://[::1]:22/x@y"],
)  # fmt: skip
def test_other_addresses_with_an_at(url: str) -> None:
    assert RemoteStorage(url).url == url


# --- uploads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_an_upload_whose_log_was_deleted_meanwhile(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program that takes a half upload for an abandoned one."""
    real, deleted = Objects._checked_put, []

    def checked(place: Objects, key: str, path: str, count: int) -> int:
        size = real(place, key, path, count)
        if not deleted and key.endswith((".snapshot", ".rsm-manifest")):
            deleted.append(key.rpartition(".")[0] + ".log")
            place.delete(deleted)
        return size

    monkeypatch.setattr(Objects, "_checked_put", checked)
    place = RemoteStorage(tmp_path / "tier", layout=layout)
    assert tiered(tmp_path / "store", place) == 0
    assert len(deleted) == 1
    with kafkalog.open(tmp_path / "store", remote=place, maintenance=False) as store:
        assert store.remote_log_manager.run_once() > 0
        before = [record.value for record in store.topic("orders").partition(0)]
        store.topic("orders").partition(0).delete_old_segments()
        assert [record.value for record in store.topic("orders").partition(0)] == before


# --- without the tier -----------------------------------------------------------------------------------------


def without_tier(store: Path) -> tuple[int, int]:
    """A store's directory whose disk has lost the copied part; (the log's start, and the local part)."""
    with kafkalog.open(store, remote=store.parent / "tier", maintenance=False) as opened:
        partition = opened.topic("orders").partition(0)
        partition.delete_old_segments()
        partition.delete_records(3)
        return 3, partition.engine.local_log_start_offset


def test_one_log_of_a_tiered_topic(places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """It is written to as ever; the tier's part is neither forgotten, nor treated as readable or removable."""
    start, local = without_tier(places[0])
    with kafkalog.open_log(places[0], "orders-0", config={"retention.bytes": "1", "local.retention.bytes": "1"}) as log:
        assert "was opened without it: offsets from 3 to" in caplog.text
        assert (log.log_start_offset, log.delete_old_segments()) == (start, 0)
        with pytest.raises(OffsetOutOfRangeException, match=f"offset {local - 1} is in the remote tier"):
            next(iter(log.records(local - 1)))
        assert next(iter(log.records(local))).offset == local
        with pytest.raises(IllegalArgumentException, match="would also delete records there"):
            log.truncate(local + 1)
        end = log.append(b"more") + 1
    check_whole(places, start, end)


@pytest.mark.parametrize("clean", [True, False])
def test_managers_and_commands_leave_a_tiered_log_as_it_is(run: Run, places: tuple[Path, Path], clean: bool) -> None:
    start, _ = without_tier(places[0])
    before = sorted(path.name for path in places[0].glob("orders-0/*.log"))
    for do in (
        lambda: kafkalog.LogManager([places[0]]).__enter__().__exit__(None, None, None),
        lambda: run("recover", str(places[0]), "--yes"),
        lambda: run("retain", str(places[0]), "--target-free", str(1 << 60), "--yes"),
        lambda: run("retain", str(places[0] / "orders-0"), "-X", "retention.bytes=1", "--yes"),
        lambda: kafkalog.open_log(places[0], "other-0").close(),
    ):
        if not clean:
            (places[0] / ".kafka_cleanshutdown").unlink(missing_ok=True)
        do()
        assert sorted(path.name for path in places[0].glob("orders-0/*.log")) == before
    with pytest.raises(IllegalArgumentException, match="no remote tier was given"):
        kafkalog.open(places[0])
    check_whole(places, start, RECORDS + 30)


def check_whole(places: tuple[Path, Path], start: int, end: int) -> None:
    with kafkalog.open(places[0], remote=places[1], maintenance=False) as store:
        partition = store.topic("orders").partition(0)
        assert partition.log_start_offset == start
        assert [record.offset for record in partition] == list(range(start, end))
