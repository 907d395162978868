"""The public API of one log: open_log, appends, reads, writers, transactions, the directory's lock and checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.writer import producer_id_of
from kafkalog.engine.files import ManualClock
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    LogReadOnlyException,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
    UnknownTopicOrPartitionException,
    UnsupportedCompressionTypeException,
)
from tests.unit.doors import DOORS, open_door

NOW_MS = 1_700_000_000_000


def values(log: kafkalog.Partition, **options: str) -> list[bytes | None]:
    return [record.value for record in log.records(**options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("door", DOORS)
def test_append_and_read_back(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "topic-3", clock=ManualClock(NOW_MS)) as log:
        assert log.append(b"v", key=b"k", headers=[("h", b"x"), ("h", None)], timestamp=NOW_MS - 5) == 0
        assert log.append_many([b"a", None, (b"b", b"key"), (b"c", None, [("z", b"")], NOW_MS - 1)]) == range(1, 5)
        assert log.append_columns([b"d", b"e"], keys=[None, b"k"], timestamps=[NOW_MS, NOW_MS]) == range(5, 7)
        assert (log.log_start_offset, log.end_offset, log.high_watermark) == (0, 7, 7)
        first, *rest = log
        assert first == ("topic", 3, 0, 0, NOW_MS - 5, 0, b"k", b"v", (("h", b"x"), ("h", None)))
        assert (first.serialized_key_size, first.serialized_value_size, first.serialized_header_size) == (1, 1, 3)
        assert first.checksum is None
        assert [record.offset for record in rest] == [1, 2, 3, 4, 5, 6]
        assert rest[1].value is None
        assert (rest[1].serialized_value_size, rest[1].serialized_header_size) == (-1, -1)
        assert rest[0].timestamp == NOW_MS
        assert [record.offset for record in log.records(2, 4)] == [2, 3]
        assert log.offset_for_time(NOW_MS) == 1
        assert log.offset_for_time(NOW_MS + 1) is None
        assert log.append_many([(b"f", None, None, None)] * 6) == range(7, 13)
        assert log.append_many([(b"f", None, None), [b"no tuple"]][:1]) == range(13, 14)
        log.append_many(log.records(0, 2))
        assert values(log)[-2:] == [b"v", b"a"]


def test_confluent_style() -> None:
    record = kafkalog.Record("t", 1, -1, 5, 77, 1, None, b"v", [("h", b"x")])
    message = kafkalog.to_confluent(record)
    assert (message.topic(), message.partition(), message.offset()) == ("t", 1, 5)
    assert (message.key(), message.value(), message.timestamp()) == (None, b"v", (2, 77))
    assert (message.headers(), message.error(), message.leader_epoch(), len(message)) == ([("h", b"x")], None, None, 1)
    assert kafkalog.to_confluent(record._replace(timestamp=-1, timestamp_type=-1)).timestamp() == (0, 0)


def test_columns_in_and_out(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with kafkalog.open_log(tmp_path, "t-0", clock=ManualClock(NOW_MS)) as log:
        headers = [[("a", b"1"), ("b", None)], [], [("c", b"")]]
        assert log.append_columns([b"x", None, b"z"], keys=[None, b"k", b""], headers=headers) == range(3)
        log.append_columns(pa.array([b"y", None]), keys=pa.array(["text", "key"]), timestamps=[1, 2])
        table = log.read_arrow(columns=["offset", "key", "value", "headers", "timestamp", "topic", "leader_epoch"])
        assert table.column("value").to_pylist() == [b"x", None, b"z", b"y", None]
        assert table.column("key").to_pylist() == [None, b"k", b"", b"text", b"key"]
        assert table.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_MS] * 3 + [1, 2]
        assert table.column("headers").to_pylist()[:3] == [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
            None,
            [{"key": "c", "value": b""}],
        ]
        assert table.column("topic").to_pylist() == ["t"] * 5
        assert table.column("leader_epoch").to_pylist() == [0] * 5
        assert log.read_arrow(1, 4, columns=["offset"]).to_pydict() == {"offset": [1, 2, 3]}
        assert [batch.num_rows for batch in log.arrow_batches(batch_rows=2)] == [1, 2, 2]
        assert pa.RecordBatchReader.from_stream(log).read_all().num_rows == 5
        with pytest.raises(IllegalArgumentException, match="unknown column"):
            log.read_arrow(columns=["nope"])
        with pytest.raises(IllegalArgumentException, match="start 4 is after end 1"):
            log.read_arrow(4, 1)
        with pytest.raises(IllegalArgumentException, match="start 4 is after end 1"):
            log.records(4, 1)
        assert log.read_arrow(1, 1).num_rows == 0
        with pytest.raises(IllegalArgumentException, match="keys has 1"):
            log.append_columns([b"1", b"2"], keys=[b"1"])
        with pytest.raises(IllegalArgumentException):
            log.append_columns(["text"])
        assert log.append_columns([]) == range(5, 5)
    with kafkalog.open_log(tmp_path, "t-1", config={"max.message.bytes": "500"}) as log:
        assert log.append_columns([b"x" * 99] * 20) == range(20)
        assert values(log) == [b"x" * 99] * 20


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(door: str, tmp_path: Path, codec: str) -> None:
    with open_door(door, tmp_path, "t-0", compression=codec) as log:
        log.append_many([b"same" * 50] * 20)
        assert values(log) == [b"same" * 50] * 20
        assert (log.engine is not None and log.engine.size < 1000) == (codec != "none")


@pytest.mark.parametrize("door", DOORS)
def test_large_appends_become_several_batches(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0", config={"max.message.bytes": "1000"}) as log:
        assert log.append_many(b"x" * 300 for _ in range(10)) == range(10)
        assert values(log) == [b"x" * 300] * 10


def test_a_clean_close_leaves_what_a_broker_leaves(tmp_path: Path) -> None:
    root = str(tmp_path / "logs")
    with kafkalog.open_log(root, "a-0") as log:
        log.append(b"1")
        assert not os.path.exists(f"{root}/.kafka_cleanshutdown")
        with kafkalog.open_log(root, "b-0") as other:
            other.append_many([b"1", b"2"])
        assert not os.path.exists(f"{root}/.kafka_cleanshutdown")  # a-0 is still open
    assert Path(root, ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    lines = Path(root, "recovery-point-offset-checkpoint").read_text().splitlines()
    assert lines[:2] == ["0", "2"]
    assert sorted(lines[2:]) == ["a 0 1", "b 0 2"]
    assert not os.path.exists(f"{root}/.lock")
    with kafkalog.open_log(root, "a-0") as log:
        assert values(log) == [b"1"]


def test_the_marker_speaks_for_the_whole_directory(tmp_path: Path) -> None:
    for name in ("a-0", "b-0"):
        with kafkalog.open_log(tmp_path, name) as log:
            log.append(b"1")
    marker = tmp_path / ".kafka_cleanshutdown"
    marker.unlink()  # as after a broker's crash: nothing is known of b-0
    kafkalog.open_log(tmp_path, "a-0").close()
    assert not marker.exists()
    with kafkalog.open_log(tmp_path, "a-0"), kafkalog.open_log(tmp_path, "b-0"):
        pass
    assert marker.exists()


def test_delete_records_survives_a_crash(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for number in range(5):
            log.append(b"%d" % number)
        assert log.delete_records(3) == 3
        assert Path(tmp_path, "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"
        assert values(log) == [b"3", b"4"]
        with pytest.raises(OffsetOutOfRangeException):
            next(log.records(2))
        log.truncate(4)
        assert values(log) == [b"3"]
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert (log.log_start_offset, values(log)) == (3, [b"3"])


def test_read_only_sees_what_a_writer_appends(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log, kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        before = sorted(os.listdir(tmp_path))
        assert values(view) == []
        log.append_many([b"1", b"2"])
        assert values(view) == [b"1", b"2"]
        assert view.end_offset == 2
        with pytest.raises(LogReadOnlyException):
            view.append(b"3")
        assert sorted(os.listdir(tmp_path)) == before


def test_read_only_ends_before_a_torn_batch(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"1")
        log.append(b"2")
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data + bytes(5000))  # preallocated: every flushed record exists
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        assert values(view) == [b"1", b"2"]
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for cut in range(len(data) // 2 + 1, len(data)):
        path.write_bytes(data[:cut])
        with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
            assert (values(view), view.end_offset) == ([b"1"], 1)
    path.write_bytes(data + bytes(5000))  # preallocated
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        assert values(view) == [b"1", b"2"]


def test_what_open_log_refuses(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionException):
        kafkalog.open_log(tmp_path / "none", "t-0", create=False)
    with pytest.raises(UnknownTopicOrPartitionException):
        kafkalog.open_log(tmp_path / "none", "t-0", read_only=True)
    with pytest.raises(UnknownTopicOrPartitionException):
        kafkalog.open_log(tmp_path, "t-0", create=False)
    for name in ("t", "t-", "-1", "t-x", "a b-0", "x" * 250 + "-0"):
        with pytest.raises(InvalidTopicException):
            kafkalog.open_log(tmp_path, name)
    with pytest.raises(UnsupportedCompressionTypeException):
        kafkalog.open_log(tmp_path, "t-0", compression="brotli")
    with pytest.raises(IllegalArgumentException):
        kafkalog.open_log(tmp_path, "t-0", durability="maybe")  # type: ignore[arg-type]
    log = kafkalog.open_log(tmp_path, "t-0")
    with pytest.raises(IllegalArgumentException, match="expected bytes"):
        log.append("text")  # type: ignore[arg-type]
    log.close()
    log.close()
    with pytest.raises(IllegalStateException):
        log.append(b"1")
    with pytest.raises(IllegalStateException):
        next(iter(log))
    with pytest.raises(IllegalArgumentException, match="partition's own files"):
        kafkalog.open_log(tmp_path / "t-0", "t-0")


def test_a_writer_appends_once(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        writer = log.writer("import")
        assert writer.append_many([b"0", b"1", b"2"], sequence=0) == range(3)
        assert writer.append_many([b"0", b"1", b"2", b"3"], sequence=0) == range(3, 4)
        assert writer.append(b"3", sequence=3) is None
        with pytest.raises(OutOfOrderSequenceException):
            writer.append(b"5", sequence=5)
    with kafkalog.open_log(tmp_path, "t-0") as log:  # the state is in the log
        writer = log.writer("import")
        assert writer.next_sequence == 4
        assert writer.append(b"3", sequence=3) is None
        assert writer.append(b"4", sequence=4) == 4
        assert log.writer("another").next_sequence == 0
        assert values(log) == [b"0", b"1", b"2", b"3", b"4"]


def test_producer_ids_are_stable_and_above_those_of_brokers() -> None:
    assert producer_id_of("import") == producer_id_of("import") != producer_id_of("export")
    assert producer_id_of("import") >> 62 == 1


def test_a_store_that_its_open_made_says_so(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop", maintenance=False) as store:
        store.create_topic("orders")
    (tmp_path / "shopp").write_bytes(b"a file")
    with kafkalog.open(tmp_path / "shoppp", maintenance=False) as store:
        for ask in (store.topic, lambda name: list(store.records(partitions=[f"{name}-0"]))):
            with pytest.raises(
                UnknownTopicOrPartitionException, match=r"no topic 'orders' in .*: this open created"
            ) as told:
                ask("orders")
            assert f"did you mean the directory {str(tmp_path / 'shop')!r}? read_only=True" in str(told.value)
        store.create_topic("clicks")
        with pytest.raises(UnknownTopicOrPartitionException, match="no topic 'orders'") as told:
            store.topic("orders")
        assert "this open created" not in str(told.value)
    with kafkalog.open(tmp_path / "elsewhere", maintenance=False) as store:
        with pytest.raises(UnknownTopicOrPartitionException, match="this open created") as told:
            store.topic("orders")
        assert "folder" not in str(told.value)
    with kafkalog.open(tmp_path / "elsewhere", maintenance=False) as store:
        with pytest.raises(UnknownTopicOrPartitionException) as told:
            store.topic("orders")
        assert "this open created" not in str(told.value)
