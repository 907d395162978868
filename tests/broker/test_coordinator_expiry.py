"""The broker's expiry, and kafkalog's from the same state at the same time: both must write the same records.

Transactional ids expire after a second. Offsets and groups expire after a minute, the least that a broker accepts, so
only a long run waits for it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafkalog._native.codec.batches import header_at
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.records import records
from kafkalog.engine.format.transaction_records import decode_transaction
from tests.broker import clients, kraft
from tests.broker.test_group_offsets import TOPIC, Story, consumer
from tests.conftest import need_broker
from tests.sampling import LONG
from tests.unit.coordinator_kit import Disk, MemoryLog, Store, producer_id_for
from tests.wire.client import ERRORS, Client

pytestmark = pytest.mark.broker

EXPIRATION_MS, RETENTION_MS = 1_000, 60_000
SETTINGS = {
    "transactional.id.expiration.ms": str(EXPIRATION_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "200",
}
WAIT_SECONDS_MAX = 120


def batches_of(logs: Path, name: str) -> list[bytes]:
    data = (logs / name / f"{0:020}.log").read_bytes()
    return [data[each.position : each.position + each.size] for each in MemoryRecords(data).batches()]


def rows_of(batch: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(each.key, each.value) for each in records(batch, header_at(batch))]


def before_the_first_tombstone(logs: Path, name: str) -> tuple[MemoryLog, list[bytes]]:
    """A log of what the broker wrote first, and what it wrote from then on."""
    found = batches_of(logs, name)
    first = next(at for at, batch in enumerate(found) if any(value is None for _, value in rows_of(batch)))
    log = Disk().log(name)
    log.batches += found[:first]
    return log, found[first:]


def wait_for(what: str, over: object) -> None:
    until = time.monotonic() + WAIT_SECONDS_MAX
    while not over():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.1)


def test_what_is_forgotten(tmp_path: Path) -> None:
    need_broker()
    with kraft.broker(tmp_path, settings=SETTINGS) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {})})
        producer = clients.ConfluentProducer(node.bootstrap)
        for partition in range(2):
            producer.send(TOPIC, partition, clients.rows(partition, 20))
        with Client(node.bootstrap) as wired:
            for kind, key in ((0, "group"), (1, "one")):
                wired.ask("FindCoordinator", 4, {"keyType": kind, "coordinatorKeys": [key]})
            story = Story(node.bootstrap, wired, "A" * 22)
            story.commit("simple", {0: 3})
            for group, protocol in (("classic", "classic"), ("modern", "consumer")):
                consumer(node.bootstrap, group, protocol).close()
            story.begin("unused", "simple")
            story.end("unused", story.begin("unused", "simple"), commit=False)
            wait_for("the id", lambda: described(wired, "unused") == ERRORS["TransactionalIdNotFoundException"])
            if LONG:
                wait_for("the offsets", lambda: not all_of(node.log_dir).list_groups())
        assert node.stop() == 143
    check_ids(node.log_dir)
    if LONG:
        check_offsets(node.log_dir)


def described(wired: Client, name: str) -> int:
    [found] = wired.ask("DescribeTransactions", 0, {"transactionalIds": [name]})["transactionStates"]
    return int(found["errorCode"])


def all_of(logs: Path) -> GroupOffsets:
    log = Disk().log("__consumer_offsets-0")
    log.batches += batches_of(logs, log.name)
    return GroupOffsets(log, ManualClock(1))


def check_ids(logs: Path) -> None:
    log, [theirs] = before_the_first_tombstone(logs, "__transaction_state-0")
    metadata = decode_transaction(*rows_of(log.batches[-1])[0])[1]
    assert metadata is not None
    clock = ManualClock(metadata.last_update_timestamp + EXPIRATION_MS - 1)
    coordinator = TransactionCoordinator(
        lambda number, create: log, 1, Store(log.disk), producer_id_for, clock, offsets_partition_count=1,
        settings=TransactionSettings(transactional_id_expiration_ms=EXPIRATION_MS),
    )  # fmt: skip
    coordinator.load([0])
    assert coordinator.remove_expired() == []
    clock.advance_to(header_at(theirs).max_timestamp)
    assert coordinator.remove_expired() == ["unused"]
    ours = log.batches[-1]
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]  # the leader epoch between them comes from the log


def check_offsets(logs: Path) -> None:
    """The broker's order within a group is that of a hash map, and it checked more than once."""
    log, theirs = before_the_first_tombstone(logs, "__consumer_offsets-0")
    wanted = [row for batch in theirs for row in rows_of(batch)]
    leaving = [row for row in wanted if row[0] is not None and row[0][:2] in (b"\0\5", b"\0\7", b"\0\x08")]
    assert leaving  # the consumer group member's tombstone comes first
    everything = Disk().log("__consumer_offsets-0")
    for batch in [*log.batches, *theirs]:
        offsets = GroupOffsets(everything, ManualClock(header_at(batch).max_timestamp), GroupSettings(RETENTION_MS))
        rows = rows_of(batch)
        expires = not header_at(batch).is_control and rows[0][1] is None and rows[0] not in leaving
        if expires:
            count = len(everything.batches)
            offsets.expire()
            ours = [row for each in everything.batches[count:] for row in rows_of(each)]
            assert sorted(map(repr, ours)) == sorted(map(repr, rows))
            del everything.batches[count:]
        everything.batches.append(batch)
    assert all_of(logs).list_groups() == []
