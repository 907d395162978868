"""The Spark source's options about remote tiers, in directories of this machine: which path is one, and the messages
about a wrong path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fsspec")

import kafkalog
from kafkalog.engine.files import mounts
from kafkalog.engine.remote.local_tiered import ROOT
from kafkalog.errors import IllegalArgumentException
from kafkalog.remote import RemoteStorage
from kafkalog.spark import places
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import plan

TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "internal.segment.bytes": "2000"}
RECORDS = 60


@pytest.fixture(autouse=True)
def nothing_mounted() -> Iterator[None]:
    yield
    places._mounted.clear()
    mounts._mounts = []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log directory and its tier."""
    place = tmp_path_factory.mktemp("shop")
    with kafkalog.open(place / "logs", remote=RemoteStorage(place / "tier")) as store:
        topic = store.create_topic("orders", 1, config=TIERED)
        for number in range(RECORDS):
            topic.append(b"v" * 100, key=b"%d" % number)
        store.remote_log_manager.run_once()
        store.manager.cleanup_logs()
    return place


def parsed(**options: object) -> SourceOptions:
    return parse_options({"subscribe": "orders", **{name: str(value) for name, value in options.items()}})


def offsets(options: SourceOptions) -> tuple[int, int]:
    ranges = plan(options)
    return ranges[0].start_offset, ranges[-1].end_offset


def test_a_tier_is_a_path_a_url_or_the_remote_alone(shop: Path) -> None:
    tier = shop / "tier"
    alone = [{"path": tier}, {"path": f"file://{tier}"}, {"remote": tier}, {"remote": f"file://{tier}/"}]
    found = [offsets(parsed(**each)) for each in [*alone, {"path": tier, "remote": tier}]]
    assert found == [found[0]] * 5
    assert found[0][0] == 0 < found[0][1] < RECORDS
    assert offsets(parsed(path=shop / "logs", remote=tier)) == (0, RECORDS)


def test_a_relative_directory_is_a_tier(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = offsets(parsed(path=shop / "tier"))
    monkeypatch.chdir(shop)
    ways = [{"path": "tier"}, {"path": "./tier/"}, {"path": f"{shop}/tier/"}, {"remote": "tier"}, {"remote": "tier/"}]
    for given in [*ways, {"path": "tier", "remote": "tier"}]:
        assert offsets(parsed(**given)) == expected
    for given in ({"path": "logs", "remote": "tier"}, {"path": "logs/", "remote": "tier/"}):
        assert offsets(parsed(**given)) == (0, RECORDS)
    assert parsed(path="logs", remote="tier").paths == ("logs",)


@pytest.mark.parametrize("path", ["s3://bucket/x", "tier"])
def test_path_and_remote_that_are_swapped_are_told(shop: Path, path: str) -> None:
    path = path if "://" in path else str(shop / path)
    with pytest.raises(IllegalArgumentException, match="found a remote tier, expected a log directory") as caught:
        parsed(path=path, remote=shop / "logs")
    assert "path is the log directory and remote its tier" in str(caught.value)


@pytest.mark.parametrize("below", ["", "/orders-0-xyz"])
def test_a_folder_within_a_tier_is_told_with_its_address(shop: Path, below: str) -> None:
    for tier in (shop / "tier", "s3://bucket/x"):
        for options in ({"path": f"{tier}/{ROOT}{below}"}, {"remote": f"{tier}/{ROOT}{below}"}):
            with pytest.raises(IllegalArgumentException, match="found a directory inside a remote tier") as caught:
                parsed(**options)
            assert f"write {tier}, and choose topics" in str(caught.value)


@pytest.mark.parametrize("remote", ["logs", "nothing"])
def test_a_remote_that_is_none_is_told(shop: Path, remote: str) -> None:
    with pytest.raises(IllegalArgumentException, match=f"{shop / remote}: found no segments of a remote tier") as error:
        parsed(path=shop / "logs", remote=shop / remote)
    assert ("the tier is still empty" in str(error.value)) == (remote == "nothing")


def test_what_jobs_read_is_mounted_until_the_last_one_ends(shop: Path) -> None:
    _, found = places.places_of(None, [shop / "logs"], RemoteStorage(shop / "tier"))
    path = str(shop / "logs")
    with places.held(found):
        with places.held(found):
            assert mounts.mounted(path) is not None
        assert mounts.mounted(path) is not None
    assert mounts.mounted(path) is None
    with kafkalog.open(shop / "logs", remote=RemoteStorage(shop / "tier")) as store:
        assert store.topic("orders").partition(0).end_offset == RECORDS
    _, found = places.places_of(None, [shop / "logs"], RemoteStorage(shop / "tier"))
    assert mounts.mounted(path) is not None


def test_hadoops_settings_are_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteStorage, "checked", lambda self, *_: self)
    monkeypatch.setattr(places, "mount", lambda found: None)
    hadoop = {
        "fs.s3a.access.key": "k",
        "fs.s3a.secret.key": "s",
        "fs.s3a.session.token": "t",
        "fs.s3a.endpoint": "minio:9000",
        "fs.s3a.endpoint.region": "eu-1",
    }
    (place,) = parsed(path="s3a://bucket/x/", **hadoop).remote
    expected = {"key": "k", "secret": "s", "token": "t", "endpoint_url": "https://minio:9000"}
    assert (place.path, place.storage.url) == ("s3://bucket/x", "s3://bucket/x")
    assert place.storage._options == expected | {"client_kwargs": {"region_name": "eu-1"}}
    (place,) = parsed(path="s3://bucket/x", **hadoop | {"remote.option.key": "ours"}).remote
    assert place.storage._options["key"] == "ours"  # options count before settings
    anonymous = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    assert parsed(path="s3://bucket/x", **anonymous).remote[0].storage._options == {"anon": True}


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_a_tier_to_which_nothing_was_copied_is_read_with_its_layout(tmp_path: Path, layout: str) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders", 1).append(b"v")
    assert offsets(parsed(path=tmp_path / "logs", remote=tmp_path / "tier", **{"remote.layout": layout})) == (0, 1)
