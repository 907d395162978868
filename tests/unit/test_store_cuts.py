"""A store that is opened over damage: it says what its recovery truncates, or truncates nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.log.damage import Damage
from kafkalog.errors import CorruptIndexException, CorruptRecordException, IllegalArgumentException

BATCH_BYTES, COUNT, DAMAGED = 73, 20, 10


def unclean(root: Path, *, flushed: bool = False) -> None:
    (root / ".kafka_cleanshutdown").unlink()
    if not flushed:
        (root / "recovery-point-offset-checkpoint").unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two partitions of 20 batches of one record, the second one damaged, that were not closed."""
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        for number in range(COUNT):
            topic.partition(0).append(b"v%02d" % number, key=b"k%d" % (number % 3))
            topic.partition(1).append(b"v%02d" % number, key=b"k%d" % (number % 3))
    data = bytearray(log_of(tmp_path).read_bytes())
    data[DAMAGED * BATCH_BYTES + 70] ^= 1
    log_of(tmp_path).write_bytes(data)
    unclean(tmp_path)
    return tmp_path


def log_of(root: Path, partition: str = "orders-1") -> Path:
    (path,) = (root / partition).glob("*.log")
    return path


def logs(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.glob("*/*.log")}


@pytest.mark.parametrize("load", ["all", "on demand"])
def test_a_warning_tells_what_was_cut(root: Path, load: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kafkalog.log"), kafkalog.open(root, load=load) as store:
        assert [it.offset for it in store.topic("orders").partition(1)] == [*range(DAMAGED)]
    [line] = [it.getMessage() for it in caplog.records if "as Kafka does" in it.getMessage()]
    assert (
        f"{log_of(root)} from byte {DAMAGED * BATCH_BYTES} on (730 bytes); up to 10 records, offsets 10 to 19" in line
    )
    assert "a bad CRC" in line
    assert "[partition=orders-1," in line


def test_a_single_log_tells_it_too(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kafkalog.log"), kafkalog.open_log(root, "orders-1") as log:
        assert log.end_offset == DAMAGED
    assert sum("offsets 10 to 19 are lost" in it.getMessage() for it in caplog.records) == 1


def test_zeros_behind_a_log_are_no_loss(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_of(root).write_bytes(log_of(root, "orders-0").read_bytes() + bytes(4096))
    with caplog.at_level(logging.WARNING, "kafkalog.log"), kafkalog.open(root, on_damage="raise") as store:
        assert len(list(store.topic("orders").partition(1))) == COUNT
    assert not any("as Kafka does" in it.getMessage() for it in caplog.records)


def _opened(root: Path, way: str) -> Any:
    if way == "log":
        return kafkalog.open_log(root, "orders-1", on_damage="raise")
    return kafkalog.open(root, on_damage="raise")


@pytest.mark.parametrize("way", ["store", "log"])
@pytest.mark.parametrize("what", ["batches behind", "a byte behind", "flushed", "a start behind", "a segment behind"])
def test_raise_keeps_zeros_where_records_may_be(root: Path, what: str, way: str) -> None:
    """Truncated zeros would hide that a record was there."""
    path = log_of(root)
    whole = log_of(root, "orders-0").read_bytes()
    half = whole[: DAMAGED * BATCH_BYTES]
    if what == "batches behind":  # a page of the file that the disk gave back empty
        path.write_bytes(half + bytes(BATCH_BYTES) + whole[len(half) + BATCH_BYTES :])
    elif what == "a byte behind":
        path.write_bytes(half + bytes(5000) + b"x")
    else:
        path.write_bytes(half + bytes(5000))
    checkpoints = {"flushed": "recovery-point-offset-checkpoint", "a start behind": "log-start-offset-checkpoint"}
    if what in checkpoints:
        (root / checkpoints[what]).write_text("0\n1\norders 1 15\n")
    if what == "a segment behind":
        path.with_name(f"{15:020}.log").write_bytes(bytes(5000))
    before = logs(root)
    for _ in range(2):
        with pytest.raises(CorruptRecordException, match="opening would truncate the log here") as caught:
            _opened(root, way)
        assert (caught.value.path, caught.value.position) == (str(path), len(half))
        assert logs(root) == before
    if "behind" not in what or what == "a segment behind":
        assert "found zeros where records were" in str(caught.value)
        assert "up to 5 records, offsets 10 to 14" in str(caught.value)


def test_zeros_in_two_segments_are_no_loss(root: Path) -> None:
    """A power loss after the roll of a segment: the old one was not trimmed yet."""
    path = log_of(root)
    whole = log_of(root, "orders-0").read_bytes()
    path.write_bytes(whole + bytes(5000))
    path.with_name(f"{COUNT:020}.log").write_bytes(bytes(5000))
    with kafkalog.open(root, on_damage="raise") as store:
        assert store.topic("orders").partition(1).end_offset == COUNT
    assert b"".join(each.read_bytes() for each in sorted(path.parent.glob("*.log"))) == whole


@pytest.mark.parametrize("way", ["store", "log"])
def test_raise_keeps_a_log_that_ends_below_its_start(root: Path, way: str) -> None:
    path = log_of(root)
    path.write_bytes(path.read_bytes()[: DAMAGED * BATCH_BYTES])
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 1 15\n")
    before = logs(root)
    for _ in range(2):
        with pytest.raises(CorruptRecordException, match="begins at offset 15, but it ends at 10"):
            _opened(root, way)
        assert logs(root) == before
    with kafkalog.open(root) as store:
        assert store.topic("orders").partition(1).end_offset == 15


def test_raise_cuts_nothing(root: Path) -> None:
    before = logs(root)
    for _ in range(2):
        with pytest.raises(CorruptRecordException, match="Nothing was truncated") as caught:
            kafkalog.open(root, on_damage="raise")
        assert (caught.value.path, caught.value.position) == (str(log_of(root)), DAMAGED * BATCH_BYTES)
        assert 'on_damage="truncate" truncates as Kafka does' in str(caught.value)
        assert logs(root) == before
    with kafkalog.open(root, read_only=True) as view:
        assert len(list(view.topic("orders").records(on_damage="skip"))) == 2 * COUNT - 1
    with kafkalog.open(root) as store:
        assert store.topic("orders").partition(1).end_offset == DAMAGED


def test_on_demand_it_is_refused_where_it_is_asked_for(root: Path) -> None:
    before = logs(root)
    with kafkalog.open(root, on_damage="raise", load="on demand") as store:
        assert len(list(store.topic("orders").partition(0))) == COUNT
        for _ in range(2):
            with pytest.raises(CorruptRecordException, match="Nothing was truncated"):
                list(store.topic("orders").partition(1))
    assert logs(root) == before


def test_a_function_is_told_and_may_refuse(root: Path) -> None:
    told: list[Damage] = []

    def refuse(damage: Damage) -> None:
        told.append(damage)
        raise ValueError("not today")

    before = logs(root)
    with pytest.raises(ValueError, match="not today"):
        kafkalog.open(root, on_damage=refuse)
    assert logs(root) == before
    with kafkalog.open(root, on_damage=told.append) as store:
        assert store.topic("orders").partition(1).end_offset == DAMAGED
    assert len(told) == 2
    assert told[0] == told[1]
    assert (told[0].new_end, told[0].old_end, told[0].records, told[0].cut_bytes) == (10, 20, 10, 730)


def test_what_was_deleted_stops_no_open(root: Path) -> None:
    (root / "orders-1").rename(root / f"orders-1.{'ab' * 16}-delete")
    with kafkalog.open(root, on_damage="raise") as store:
        assert len(list(store.topic("orders").partition(0))) == COUNT


def test_cursors_are_cut_no_more_than_records(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders").append_many([b"v"] * 5)
        with store.reader("billing", topics=["orders"]) as reader:
            list(reader)
            reader.commit()
    (path,) = [each for each in tmp_path.glob("__consumer_offsets-*/*.log") if each.stat().st_size]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    unclean(tmp_path)
    with pytest.raises(CorruptRecordException, match="__consumer_offsets"):
        kafkalog.open(tmp_path, on_damage="raise")
    assert path.read_bytes() == data


def test_a_log_that_lost_its_end(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders")
        for _ in range(COUNT):
            store.topic("orders").append(b"v")
    path = log_of(tmp_path, "orders-0")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    unclean(tmp_path, flushed=True)
    for _ in range(2):
        with pytest.raises(CorruptRecordException, match="offsets up to 19 were flushed, but the log ends at 10"):
            kafkalog.open(tmp_path, on_damage="raise")
    with kafkalog.open(tmp_path) as store:
        assert store.topic("orders").partition(0).end_offset == COUNT // 2


def test_an_index_of_aborted_transactions_that_was_cut(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", config={"segment.bytes": "1048576"})
        txn = store.transaction("biller")
        txn.begin()
        txn.append("orders", b"v")
        txn.abort()
        topic.append(b"w")
    (path,) = [each for each in (tmp_path / "orders-0").glob("*.txnindex") if each.stat().st_size]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptIndexException, match="the file was truncated"):
        kafkalog.open(tmp_path, on_damage="raise")


@pytest.mark.parametrize("given", ["skip", "truncat", 7, None, b"raise"])
def test_what_is_no_way(tmp_path: Path, given: Any) -> None:
    for read_only in (False, True):
        with pytest.raises(IllegalArgumentException, match="on_damage: found"):
            kafkalog.open(tmp_path / "x", on_damage=given, read_only=read_only)
    assert not (tmp_path / "x").exists()


def test_a_store_that_only_reads_cuts_nothing(root: Path) -> None:
    with pytest.raises(IllegalArgumentException, match="a read-only store writes nothing"):
        kafkalog.open(root, read_only=True, on_damage="raise")


def test_a_second_handle_wants_the_same(root: Path) -> None:
    with (
        kafkalog.open(root),
        pytest.raises(kafkalog.errors.LogDirLockedException, match="on_damage: found str 'raise'"),
    ):
        kafkalog.open(root, on_damage="raise")


@pytest.mark.parametrize("lost", ["first", "all"])
@pytest.mark.parametrize("way", ["store", "log"])
def test_raise_keeps_an_index_whose_log_is_missing(tmp_path: Path, lost: str, way: str) -> None:
    """It is all that tells of the records that were there."""
    with kafkalog.open(tmp_path, config={"internal.segment.bytes": "700"}) as store:
        topic = store.create_topic("orders", 1)
        for number in range(COUNT):
            topic.append(b"v%02d" % number)
    found = sorted((tmp_path / "orders-0").glob("*.log"))
    assert len(found) > 2
    for path in found[:1] if lost == "first" else found:
        path.unlink()
    unclean(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "orders-0").iterdir()}

    def open_it() -> None:
        if way == "store":
            kafkalog.open(tmp_path, on_damage="raise").close()
        else:
            kafkalog.open_log(tmp_path, "orders-0", on_damage="raise").close()

    for _ in range(2):
        with pytest.raises(CorruptRecordException, match=f"an index without its log {found[0].name}") as caught:
            open_it()
        assert str(caught.value.path).startswith(str(found[0])[:-4])
        assert {path: path.read_bytes() for path in (tmp_path / "orders-0").iterdir()} == before
    with kafkalog.open(tmp_path):
        assert not list((tmp_path / "orders-0").glob(f"{found[0].stem}.*index")) or found[0].exists()


def test_raise_opens_a_log_whose_first_segment_was_on_its_way_out(tmp_path: Path) -> None:
    """A crash after the rename of its log leaves its indexes: these show no loss."""
    with kafkalog.open(tmp_path, config={"internal.segment.bytes": "700"}) as store:
        topic = store.create_topic("orders", 1)
        for number in range(COUNT):
            topic.append(b"v%02d" % number)
    first = min((tmp_path / "orders-0").glob("*.log"))
    first.rename(f"{first}.deleted")
    unclean(tmp_path)
    with kafkalog.open(tmp_path, on_damage="raise") as store:
        assert store.topic("orders").partition(0).end_offset == COUNT
    assert not list((tmp_path / "orders-0").glob(f"{first.stem}*index"))
