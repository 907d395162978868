"""A wrong remote tier is refused when it is opened: its layout, its address, its topics' ids."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face import remote_tier
from kafkalog.engine.remote.directory_segments import DirectoryMetadata
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.opening import layout_with
from kafkalog.errors import (
    ConfigException,
    IllegalArgumentException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, SETTINGS, places, tiered, values

__all__ = ["places", "run"]


def test_a_layout_that_lies_not_there(places: tuple[Path, Path]) -> None:
    store, tier = places
    wrong = kafkalog.RemoteStorage(tier, layout="aiven")
    with pytest.raises(IllegalArgumentException, match="but a tier in the layout 'local-tiered'"):
        kafkalog.open(wrong, read_only=True)
    with pytest.raises(
        IllegalArgumentException, match="found none of the segments that the metadata says were copied there"
    ):
        kafkalog.open(store, remote=wrong, read_only=True)


def test_the_tier_of_another_store(places: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other tier"
    tiered(tmp_path / "other", other)
    with pytest.raises(
        IllegalArgumentException, match="found none of the segments that the metadata says were copied there"
    ):
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


def test_the_tier_is_below_the_address(tmp_path: Path) -> None:
    above, tier = tmp_path / "above", tmp_path / "above" / "tier"
    tiered(tmp_path / "store", tier)
    with pytest.raises(IllegalArgumentException, match=f"a tier below it, {re.escape(str(tier))}"):
        kafkalog.open(kafkalog.RemoteStorage(above), read_only=True)
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(IllegalArgumentException, match=f"a tier, {re.escape(str(tier))}"):
        kafkalog.open(tmp_path / "store", remote=above)


def test_an_id_that_no_topic_of_the_tier_has(places: tuple[Path, Path]) -> None:
    unknown = kafkalog.RemoteStorage(places[1], topic_ids={"orders": "AAAAAAAAAAAAAAAAAAAAAQ"})
    [folder] = (places[1] / "kafka-tiered-storage").glob("orders-0-*")
    topic_id = folder.name.removeprefix("orders-0-")
    with pytest.raises(IllegalArgumentException, match=f"expected an id of this topic in the remote tier: {topic_id}"):
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
    with pytest.raises(IllegalArgumentException, match="but only 'aiven' has this setting"):
        kafkalog.RemoteStorage(tmp_path, layout="local-tiered", **setting)


def test_a_scheme_that_nobody_has() -> None:
    with pytest.raises(IllegalArgumentException, match="no storage client supports the scheme 's4'"):
        kafkalog.open("s4://bucket/prefix", read_only=True)


def test_a_refused_open_leaves_a_clean_directory_clean(places: tuple[Path, Path], tmp_path: Path) -> None:
    tiered(tmp_path / "other", tmp_path / "other tier")
    clean = places[0] / ".kafka_cleanshutdown"
    assert clean.exists()
    for remote in (None, tmp_path / "other tier"):
        with pytest.raises(IllegalArgumentException):
            kafkalog.open(places[0], remote=remote)
        assert clean.exists()
    with kafkalog.open(places[0], remote=places[1]) as store:
        assert next(iter(store.topic("orders").partition(0))).offset == 0


@pytest.mark.parametrize("topic", ["oranges", "peaches"])
def test_a_missing_object_is_one_whatever_its_name(tmp_path: Path, topic: str) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="aiven")
    tiered(tmp_path / "store", tier, topic=topic)
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", read_only=True) as both:
        assert next(iter(both.topic(topic).partition(0))).offset == 0


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_the_layout_is_found_by_an_object_that_is_empty(tmp_path: Path, layout: str) -> None:
    tiered(tmp_path / "store", kafkalog.RemoteStorage(tmp_path / "tier", layout=layout))
    suffix = ".log" if layout == "local-tiered" else ".rsm-manifest"
    min((tmp_path / "tier").rglob(f"*{suffix}"), key=lambda path: path.name).write_bytes(b"")
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", read_only=True) as both:
        assert both.topics() == ["orders"]


def test_a_topic_that_is_lost_keeps_no_other_away(tmp_path: Path) -> None:
    """However many partitions it had."""
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        for name, partitions in (("lost", 20), ("orders", 1)):
            topic = store.create_topic(name, partitions, config=SETTINGS)
            for number in range(partitions):
                topic.append_many([(values(each), None) for each in range(40)], partition=number)
                topic.append_many([(values(each), None) for each in range(40)], partition=number)
        assert store.remote_log_manager.run_once() > 20
    for folder in (tmp_path / "tier" / "kafka-tiered-storage").glob("lost-*"):
        shutil.rmtree(folder)
    for options in ({"read_only": True}, {}):
        with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", **options) as store:
            assert next(iter(store.topic("orders").partition(0))).offset == 0


def test_a_copy_of_the_directory_whose_segments_have_expired(places: tuple[Path, Path], tmp_path: Path) -> None:
    """The place has newer ones of the same partition: it is no other one."""
    copy = tmp_path / "copy"
    shutil.copytree(places[0], copy)
    with kafkalog.open(places[0], remote=places[1], maintenance=False) as store:
        orders = store.topic("orders").partition(0)
        for number in range(30):
            orders.append(values(number))
        assert store.remote_log_manager.run_once()
        known = sorted(places[1].rglob("*.log"))
        store.topic("orders").delete_records(int(known[-1].name[:20]), 0)
        store.remote_log_manager.run_once()
        assert places[1].rglob("*.log")
    with kafkalog.open(copy, remote=places[1], read_only=True) as both:
        assert both.topics() == ["orders"]


def test_a_tier_whose_segments_have_all_expired_is_its_stores(tmp_path: Path) -> None:
    (tmp_path / "tier" / "reports").mkdir(parents=True)
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    tiered(tmp_path / "store", tier)
    with kafkalog.open(tmp_path / "store", remote=tier, maintenance=False) as store:
        store.topic("orders").delete_records(RECORDS + 30, 0)
        store.remote_log_manager.run_once()
    shutil.rmtree(tmp_path / "tier" / "kafka-tiered-storage", ignore_errors=True)
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier") as store:
        assert store.topic("orders").partition(0).log_start_offset == RECORDS + 30


def test_a_second_layout_in_one_place(tmp_path: Path, places: tuple[Path, Path]) -> None:
    other = kafkalog.RemoteStorage(places[1], layout="aiven")
    with pytest.raises(IllegalArgumentException, match="but a tier in the layout 'local-tiered'"):
        kafkalog.open(tmp_path / "new", remote=other)


def test_an_address_above_files(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / "README").write_text("of others")
    with pytest.raises(IllegalArgumentException, match="found no segments of a remote tier, but other things"):
        kafkalog.open(kafkalog.RemoteStorage(tmp_path / "tier"), read_only=True)
    with pytest.raises(IllegalArgumentException, match="found no segments of a remote tier, but other things"):
        kafkalog.open(tmp_path / "store", remote=tmp_path / "tier")


def test_folders_of_spark_are_no_tier(run: Run, tmp_path: Path) -> None:
    for name in ("05", "10"):  # names of a topic with an id, and of a partition
        (tmp_path / "blockmgr-0b45d94f-a24e-45bc-98b9-d1eb824fe04e" / name).mkdir(parents=True)
    for path, said in ((tmp_path, "found no partitions"), (tmp_path / "no disk", "no disk: not found")):
        result = run("describe", path)
        assert result.code == 2
        assert said in result.err
        assert "blockmgr" not in result.err


def test_commands_on_a_tier_of_another_layout(run: Run, places: tuple[Path, Path]) -> None:
    for command in ("list", "orphans", "verify"):
        result = run("tier", command, str(places[1]), "--layout", "aiven")
        assert (result.code, result.out) == (2, "")
        assert "no remote tier" in result.err or "a tier in the layout 'local-tiered'" in result.err


def test_the_layout_is_found_by_who_may_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a missing object S3 answers such a client that access is forbidden."""
    tiered(tmp_path / "store", kafkalog.RemoteStorage(tmp_path / "tier", layout="aiven"))
    known = next(DirectoryMetadata([str(tmp_path / "store")]).copied())
    objects = Objects.at(str(tmp_path / "tier"))
    real = Objects.get

    def get(self: Objects, key: str, *place: int) -> bytes:
        try:
            return real(self, key, *place)
        except RemoteResourceNotFoundException:
            raise RemoteStorageException("forbidden") from PermissionError("403")

    monkeypatch.setattr(Objects, "get", get)
    assert layout_with(objects, known) == "aiven"
    with pytest.raises(RemoteStorageException, match="forbidden"):
        layout_with(objects, known, "another prefix/")


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_an_object_that_is_gone_has_an_error_of_its_own(tmp_path: Path, layout: str) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    tiered(tmp_path / "store", tier, settings={"local.retention.bytes": "3000"})
    with kafkalog.open(tmp_path / "store", remote=tier) as store:
        assert store.topic("orders").partition(0).delete_old_segments() > 2
    with kafkalog.open(tmp_path / "store", remote=tier, read_only=True) as both:
        partition = both.topic("orders").partition(0)
        gone = sorted((tmp_path / "tier").rglob("*.log"))[1]
        gone.unlink()
        for read in (lambda: list(partition), lambda: list(partition.records(12)), partition.read_arrow):
            with pytest.raises(RemoteResourceNotFoundException, match=gone.name):
                read()


def test_spark_on_the_directory_alone_warns(places: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    options = pytest.importorskip("kafkalog.spark.options")
    options.parse_options({"path": str(places[0]), "subscribe": "orders"})
    [line] = [record.getMessage() for record in caplog.records if record.name == "kafkalog.spark"]
    assert line.startswith(f"{places[0]}: its topics continue in a remote tier")
    caplog.clear()
    options.parse_options({"path": str(places[0]), "remote": str(places[1]), "subscribe": "orders"})
    assert not caplog.records


def test_spark_takes_the_id_of_a_topic(places: tuple[Path, Path]) -> None:
    options = pytest.importorskip("kafkalog.spark.options")
    given = {"path": str(places[1]), "subscribe": "orders"}
    [folder] = (places[1] / "kafka-tiered-storage").glob("orders-0-*")
    topic_id = folder.name.removeprefix("orders-0-")
    options.parse_options({**given, "remote.topicIds": f"orders={topic_id}"})
    with pytest.raises(IllegalArgumentException, match=f"expected an id of this topic in the remote tier: {topic_id}"):
        options.parse_options({**given, "remote.topicIds": "orders=AAAAAAAAAAAAAAAAAAAAAQ"})
    with pytest.raises(IllegalArgumentException, match=r"remote\.topicIds: found 'orders', expected topic=id"):
        options.parse_options({**given, "remote.topicIds": "orders"})
