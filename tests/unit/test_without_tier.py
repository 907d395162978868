"""A log that continues in a remote tier, opened without the tier and with settings that do not mention it.

Nothing of it is deleted or truncated, here or by the next open with the tier.  Nothing is appended below the end of the
tier.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format import names
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.checkpoints import CleanShutdownFile
from kafkalog.engine.host import log_contexts
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException, IllegalStateException, KafkaStorageException
from kafkalog.partition import Partition
from kafkalog.toolbox.recovery import recover
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, tiered

__all__ = ["run"]

ORDERS = kafkalog.TopicPartition("orders", 0)
ALL = RECORDS + 30
UNTIERED = {"remote.storage.enable": "false", "retention.bytes": "1", "local.retention.bytes": "1"}
REFUSED = "a remote tier, which is not open"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(a store's directory, its tier): the copied segments are deleted from the disk, and nothing says that they were
    copied."""
    store, tier = tmp_path / "store", tmp_path / "tier"
    tiered(store, tier, settings={"local.retention.bytes": "3000"})
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        opened.topic("orders").partition(0).delete_old_segments()
        opened.topic("orders").partition(0).delete_records(20)
    (store / names.TOPIC_CONFIGS_FILE).rename(tmp_path / names.TOPIC_CONFIGS_FILE)
    return store, tier


def check_all_is_there(places: tuple[Path, Path], *more_dirs: Path) -> None:
    kept = places[0].parent / names.TOPIC_CONFIGS_FILE
    if kept.exists():
        kept.rename(places[0] / names.TOPIC_CONFIGS_FILE)
    settings = {"remote.storage.enable": "true"}
    dirs = [places[0], *more_dirs]
    with kafkalog.open(dirs, remote=places[1], maintenance=False, config=settings) as store:
        store.remote_log_manager.run_once()
        assert [record.offset for record in store.topic("orders").partition(0)] == list(range(20, ALL))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_retention_deletes_nothing(places: tuple[Path, Path], policy: str, caplog: pytest.LogCaptureFixture) -> None:
    with kafkalog.open_log(places[0], "orders-0", config=UNTIERED | {"cleanup.policy": policy}) as log:
        assert log.delete_old_segments() == 0
    assert "a part was copied to a remote tier" in caplog.text
    check_all_is_there(places)


def test_a_managers_retention_deletes_nothing(places: tuple[Path, Path]) -> None:
    with kafkalog.LogManager([places[0]]) as manager:
        manager.cleanup_logs()  # the records are of 1970
        manager.set_topic_config("orders", UNTIERED)
        manager.cleanup_logs()
        assert manager.get_log("orders-0").log_start_offset > 20  # type: ignore[union-attr]
    check_all_is_there(places)


@pytest.mark.parametrize(
    "do",
    [
        lambda log: log.truncate(ALL - 1),
        lambda log: log.delete_records(ALL - 1),
        lambda log: log.compact(),
        lambda log: log.engine.truncate_to(ALL - 1),
        lambda log: log.engine.truncate_fully_and_start_at(200),
        lambda log: log.engine.maybe_increment_log_start_offset(ALL - 1),
    ],
)
def test_a_log_is_not_cut(places: tuple[Path, Path], do: Callable[[Partition], object]) -> None:
    settings = UNTIERED | {"cleanup.policy": "compact,delete"}
    with (
        kafkalog.open_log(places[0], "orders-0", config=settings) as log,
        pytest.raises(IllegalArgumentException, match=REFUSED),
    ):
        do(log)
    check_all_is_there(places)


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize(
    "do",
    [
        lambda manager, log: log.truncate_to(ALL - 1),
        lambda manager, log: log.truncate_fully_and_start_at(200),
        lambda manager, log: log.maybe_increment_log_start_offset(ALL - 1),
        lambda manager, log: manager.truncate_to({ORDERS: ALL - 1}),
        lambda manager, log: manager.truncate_fully_and_start_at(ORDERS, 200),
    ],
)
def test_a_managers_log_is_not_cut(
    places: tuple[Path, Path], do: Callable[[kafkalog.LogManager, UnifiedLog], object], says_so: bool
) -> None:
    if says_so:
        (places[0].parent / names.TOPIC_CONFIGS_FILE).rename(places[0] / names.TOPIC_CONFIGS_FILE)
    with kafkalog.LogManager([places[0]]) as manager:
        log = manager.get_log("orders-0")
        assert log is not None
        assert log.remote_log_enabled == says_so
        with pytest.raises(IllegalArgumentException, match=REFUSED):
            do(manager, log)
    check_all_is_there(places)


def test_a_log_whose_settings_do_not_say_so_is_not_moved(places: tuple[Path, Path], tmp_path: Path) -> None:
    """Its copy would begin with what is on the disk."""
    with (
        kafkalog.LogManager([places[0], tmp_path / "other"]) as manager,
        pytest.raises(IllegalArgumentException, match=REFUSED),
    ):
        manager.move("orders-0", tmp_path / "other")
    check_all_is_there(places, tmp_path / "other")


def test_a_log_whose_settings_say_so_is_moved(places: tuple[Path, Path], tmp_path: Path) -> None:
    (places[0].parent / names.TOPIC_CONFIGS_FILE).rename(places[0] / names.TOPIC_CONFIGS_FILE)
    with kafkalog.LogManager([places[0], tmp_path / "other"]) as manager:
        manager.move("orders-0", tmp_path / "other")
    check_all_is_there(places, tmp_path / "other")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("retain {}/orders-0 -X retention.bytes=1 -X remote.storage.enable=false --yes", 0, "is skipped: it is tiered"),
        ("retain {} --target-free 100TiB --yes", 1, "orders-0 is skipped: it is tiered"),
        ("delete-records {}/orders-0 --before 85 --yes", 2, "orders-0 is tiered"),
        (
            "checkpoint set {}/log-start-offset-checkpoint orders-0 85 --yes",
            2,
            "the tier deletes there too",
        ),
        ("compact {}/orders-0 -X cleanup.policy=compact --yes", 2, "a part of it was copied to a remote tier"),
    ],
)
def test_commands_leave_it_alone(places: tuple[Path, Path], run: Run, line: str, code: int, said: str) -> None:
    result = run(*line.format(places[0]).split())
    assert result.code == code
    assert said in result.out + result.err
    check_all_is_there(places)


def test_events_that_cannot_be_read_may_speak_of_it(places: tuple[Path, Path]) -> None:
    """Nothing is deleted; records are taken, as in a store."""
    (path,) = places[0].glob("__remote_log_metadata-*/*.log")
    data = bytearray(path.read_bytes())
    data[-3] ^= 255
    path.write_bytes(data)
    with kafkalog.open_log(places[0], "orders-0", config=UNTIERED) as log:
        assert log.delete_old_segments() == 0
        with pytest.raises(IllegalArgumentException, match=REFUSED):
            log.truncate(ALL - 1)
        assert log.append(b"new") == ALL


def test_another_topic_of_the_directory(places: tuple[Path, Path]) -> None:
    settings = UNTIERED | {"internal.segment.bytes": "300", "file.delete.delay.ms": "0"}
    with kafkalog.open_log(places[0], "plain-0", config=settings) as log:
        for _ in range(20):
            log.append(b"." * 100)
        assert log.delete_old_segments() > 0
        log.truncate(log.end_offset - 1)
        assert log.delete_records(log.end_offset) == log.end_offset


def test_a_topic_that_was_made_anew(places: tuple[Path, Path]) -> None:
    shutil.rmtree(places[0] / "orders-0")
    with kafkalog.open_log(places[0], "orders-0", config=UNTIERED) as log:
        assert [log.append(b"new"), log.append(b"new")] == [0, 1]
        log.truncate(1)
        assert log.delete_records(1) == 1


def test_a_directory_without_metadata_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_contexts.importlib, "import_module", None)
    with kafkalog.open_log(tmp_path, "orders-0", config=UNTIERED) as log:
        log.append(b"1")
        log.append(b"2")
        log.delete_old_segments()
        log.truncate(log.end_offset)


# --- a disk that has lost its end ------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, Path, int]:
    """(a store's directory, its tier, the last offset that was copied): the disk has all, with damage in what was
    copied, and was not closed cleanly."""
    store, tier = tmp_path / "store", tmp_path / "tier"
    tiered(store, tier)
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        copied = opened.topic("orders").partition(0).engine.highest_offset_in_remote_storage
    path = sorted((store / "orders-0").glob("*.log"))[3]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    CleanShutdownFile(str(store)).delete()
    (store / names.RECOVERY_POINT_CHECKPOINT_FILE).write_text("0\n1\norders 0 0\n")
    return store, tier, copied


def by_open_log(root: Path) -> None:
    with kafkalog.open_log(root, "orders-0", config=UNTIERED) as log:
        log.append_many([(b"new", None)] * 40)


def by_rows(root: Path) -> None:
    with kafkalog.open_log(root, "orders-0") as log:
        for _ in range(40):
            log.append(b"new")


def by_manager(root: Path) -> None:
    builder = MemoryRecordsBuilder()
    builder.append(1, None, b"new")
    with kafkalog.LogManager([root]) as manager:
        log = manager.get_log("orders-0")
        assert log is not None
        log.append_as_leader(builder.build(), 0)


@pytest.mark.parametrize("append", [by_open_log, by_rows, by_manager])
def test_new_records_hide_nothing(damaged: tuple[Path, Path, int], append: Callable[[Path], None]) -> None:
    store, tier, copied = damaged
    (found,) = recover(store, [ORDERS], act=True)
    assert 0 < found.end_offset <= copied
    said = f"the log ends at offset {found.end_offset}.*has (it|records) up to {copied}.*tier restore"
    with pytest.raises(IllegalStateException, match=said):
        append(store)
    with pytest.raises(KafkaStorageException, match=said):
        kafkalog.open(store, remote=tier, maintenance=False)


def test_a_restored_partition_takes_the_place_of_one_that_lost_its_end(
    damaged: tuple[Path, Path, int], run: Run, tmp_path: Path
) -> None:
    store, tier, copied = damaged
    for _ in recover(store, [ORDERS], act=True):
        pass
    assert run("tier", "restore", str(store), str(tmp_path / "new"), "--remote", str(tier), "--yes").code == 0
    shutil.rmtree(store / "orders-0")
    (tmp_path / "new" / "orders-0").rename(store / "orders-0")
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        partition = opened.topic("orders").partition(0)
        assert partition.append(b"new") == copied + 1
        opened.remote_log_manager.run_once()
        assert [record.offset for record in partition] == list(range(copied + 2))


def test_a_log_that_lost_nothing_takes_records(places: tuple[Path, Path]) -> None:
    with kafkalog.open_log(places[0], "orders-0", config=UNTIERED) as log:
        assert [log.append(b"new"), log.append(b"new")] == [ALL, ALL + 1]
        assert log.engine.local_log.ordinary_rules is not None
