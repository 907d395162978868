"""Backups next to a real broker, whose clients write in transactions and commit offsets in them.

Their epochs stay from one transaction to the next (librdkafka).  Each backup is restored and opened by kafkalog, and
the last one by a broker, too: each transaction is in both partitions, with its offset, or in none.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.verify import verify
from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.sampling import LONG

pytestmark = pytest.mark.broker

IDS = ("one", "two")
BACKUPS = 20 if LONG else 4
OUT = (TopicPartition("out", 0), TopicPartition("out", 1))


def transact(bootstrap: str, name: str, ends: threading.Event, failed: list[BaseException]) -> None:
    """Numbers, each in both partitions and as the group's offset; every seventh is given up."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as Place

    try:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        group = Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{name}"})
        number = 0
        while not ends.is_set():
            number += 1
            producer.begin_transaction()
            for each in OUT:
                producer.produce(each.topic, b"%s %d" % (name.encode(), number), partition=each.partition)
            producer.send_offsets_to_transaction([Place("in", 0, number)], group.consumer_group_metadata(), 30)
            producer.abort_transaction(30) if number % 7 == 0 else producer.commit_transaction(30)
        group.close()
    except BaseException as error:
        failed.append(error)


def judge(values: dict[TopicPartition, list[bytes]], cursors: dict[str, int]) -> int:
    """How many transactions there are."""
    first, second = (values[each] for each in OUT)
    assert sorted(first) == sorted(second)
    for name in IDS:
        numbers = [int(value.split()[1]) for value in first if value.startswith(name.encode())]
        assert numbers == [number for number in range(1, max(numbers) + 1) if number % 7]
        assert cursors[f"group-{name}"] == numbers[-1]
    return len(first)


def test_beside_a_broker(tmp_path: Path) -> None:
    need_broker()
    ends, failed = threading.Event(), list[BaseException]()
    place = tmp_path / "node"
    with kraft.broker(place, shares_metadata=True) as node:
        node.start()
        settings = {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}
        clients.create_topics(node.bootstrap, {"in": (1, settings), "out": (2, settings)})
        writers = [threading.Thread(target=transact, args=(node.bootstrap, name, ends, failed)) for name in IDS]
        for writer in writers:
            writer.start()
        try:
            for number in range(BACKUPS):
                ends.wait(2)
                saved, copy = tmp_path / "saved" / str(number), tmp_path / "copy"
                report = backup(node.log_dir, saved, base=tmp_path / "saved" if number else None)
                assert not report.findings, report.findings[:3]
                checked = verify(saved / "log-dir-1", deep=True)
                assert checked.ok, checked.findings[:3]
                restore(saved, copy)
                with kafkalog.open(copy, take_over=True, maintenance=False) as store:
                    for name in IDS:  # a client's open transaction waits for it, or the timeout
                        with store.transaction(name) as txn:
                            txn.append("in", b"")
                    values = {}
                    for each in OUT:
                        log = store.manager.get_log(each)
                        assert log is not None
                        assert log.last_stable_offset == log.log_end_offset
                        with store.reader(partitions=[each], isolation="read_committed") as reader:
                            values[each] = [record.value or b"" for record in reader]
                    cursors = {
                        f"group-{name}": store.committed(f"group-{name}")[TopicPartition("in", 0)].offset
                        for name in IDS
                    }
                    assert judge(values, cursors) > 0
                shutil.rmtree(copy)
        finally:
            ends.set()
            for writer in writers:
                writer.join(60)
        assert failed == []
        node.stop()
        shutil.rmtree(node.log_dir)
        restore(saved, node.log_dir)
        node.start()
        for name in IDS:
            clients.ConfluentProducer(node.bootstrap, transactional_id=name)
        seen = clients.consume(node.bootstrap, OUT, "read_committed")
        assert judge({each: [record.value or b"" for record in seen[each].records] for each in OUT}, cursors) > 0
