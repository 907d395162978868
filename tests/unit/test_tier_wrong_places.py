"""A remote tier that was given wrongly is refused when it is opened: its layout, its address, its topics' ids."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face import remote_tier
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.errors import ConfigException, IllegalArgumentException, RetriableRemoteStorageException
from tests.unit.tier_kit import tiered


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    tiered(tmp_path / "store", tmp_path / "above" / "tier", settings={"local.retention.bytes": "3000"})
    return tmp_path / "store", tmp_path / "above" / "tier"


def test_a_layout_that_lies_not_there(places: tuple[Path, Path]) -> None:
    store, tier = places
    wrong = kafkalog.RemoteStorage(tier, layout="aiven")
    with pytest.raises(IllegalArgumentException, match="but a tier in that of 'local-tiered'"):
        kafkalog.open(wrong, read_only=True)
    with pytest.raises(IllegalArgumentException, match="found nothing of what the metadata says was copied there"):
        kafkalog.open(store, remote=wrong, read_only=True)


def test_the_tier_of_another_store(places: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other tier"
    tiered(tmp_path / "other", other)
    with pytest.raises(IllegalArgumentException, match="found nothing of what the metadata says was copied there"):
        kafkalog.open(places[0], remote=other, read_only=True)
    with kafkalog.open(places[0], remote=places[1], read_only=True) as view:
        assert next(iter(view.topic("orders").partition(0))).offset == 0


def test_a_place_that_did_not_answer_is_not_asked_again(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RetriableRemoteStorageException("no answer")

    monkeypatch.setattr(remote_tier, "check_to_write", refuse)
    asked = []
    monkeypatch.setattr(LocalTieredStorage, "is_there", lambda _, metadata: asked.append(metadata) is None)
    with kafkalog.open(places[0], remote=places[1], maintenance=False) as store:
        assert not asked
        store.remote_log_manager.run_once()
        assert asked


def test_the_tier_is_below_the_address(places: tuple[Path, Path]) -> None:
    above = places[1].parent
    with pytest.raises(IllegalArgumentException, match=f"a tier below it, {re.escape(str(places[1]))}"):
        kafkalog.open(kafkalog.RemoteStorage(above), read_only=True)
    shutil.rmtree(places[0])
    with pytest.raises(IllegalArgumentException, match=f"a tier, {re.escape(str(places[1]))}"):
        kafkalog.open(places[0], remote=above)


def test_an_id_that_no_topic_of_the_tier_has(places: tuple[Path, Path]) -> None:
    unknown = kafkalog.RemoteStorage(places[1], topic_ids={"orders": "AAAAAAAAAAAAAAAAAAAAAQ"})
    [folder] = (places[1] / "kafka-tiered-storage").glob("orders-0-*")
    topic_id = folder.name.removeprefix("orders-0-")
    with pytest.raises(IllegalArgumentException, match=f"expected an id that it has in the remote tier: {topic_id}"):
        kafkalog.open(unknown, read_only=True)


def test_a_topic_of_a_given_id_may_expire_while_it_is_read(places: tuple[Path, Path], tmp_path: Path) -> None:
    tier = places[1]
    [folder] = (tier / "kafka-tiered-storage").glob("orders-0-*")
    tiered(tmp_path / "other", tier)
    given = kafkalog.RemoteStorage(tier, topic_ids={"orders": folder.name.removeprefix("orders-0-")})
    with kafkalog.open(given, read_only=True) as view:
        assert view.topics() == ["orders"]
        shutil.rmtree(folder)
        view._home._files.look_again()
        assert view.topics() == []
        tiered(tmp_path / "third", tier, topic="dates")
        view._home._files.look_again()
        assert view.topics() == ["dates"]


def test_a_tiered_topic_of_a_store_without_a_tier(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store, pytest.raises(ConfigException, match="disabled in the broker") as caught:
        store.create_topic("orders", 1, config={"remote.storage.enable": "true"})
    assert "open the store with its remote tier" in str(caught.value)


@pytest.mark.parametrize("setting", [{"compression": True}, {"prefix": "a/"}])
def test_settings_of_another_layout(tmp_path: Path, setting: dict[str, object]) -> None:
    with pytest.raises(IllegalArgumentException, match="expected it for 'aiven' alone"):
        kafkalog.RemoteStorage(tmp_path, layout="local-tiered", **setting)


def test_a_scheme_that_nobody_has() -> None:
    with pytest.raises(IllegalArgumentException, match="no storage client has the scheme 's4'"):
        kafkalog.open("s4://bucket/prefix", read_only=True)
