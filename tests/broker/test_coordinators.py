"""Both coordinators compared with a real broker: the same requests, the same answers, and the same bytes in its topics.

Random requests (valid ones, stale epochs, other producer ids, repeated ends) go one by one to a broker of each
transaction version and to kafkalog's coordinators. Then the broker is stopped. Every batch of `__transaction_state` and
`__consumer_offsets` and every marker is compared, except for its times.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.codec.batches import header_at
from kafkalog.engine.coordinator.state_log import records_batch
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.batch import NO_PRODUCER, MemoryRecords
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.engine.format.records import records
from kafkalog.engine.format.transaction_records import decode_transaction, encode_transaction
from kafkalog.errors import KafkalogError
from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.sampling import LONG, SEED
from tests.unit.coordinator_kit import Disk, Store
from tests.wire.client import ERRORS, Client

pytestmark = pytest.mark.broker

TOPICS = ("alpha", "beta", "a-topic-with-a-longer-name")
PARTITION_COUNT = 9
IDS = ("one", "two", "three")
STEPS = 2000 if LONG else 180
WAIT_SECONDS_MAX = 60
TIMEOUT_MS = 150
OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)


OFTEN = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}


class Beside:
    """A broker, asked on the wire, and kafkalog's coordinators, asked the same."""

    def __init__(self, node: kraft.Broker, wired: Client, version: int) -> None:
        self.wire = wired
        self.version = TransactionVersion(version)
        self.disk = Disk()
        self.store = Store(self.disk, version=self.version, partition_count=1, offsets_partition_count=1)
        self.store.coordinator._producer_id_for = lambda name, previous: self.next_producer_id
        self.next_producer_id = -1
        self.holders: dict[str, ProducerIdAndEpoch] = {}
        self.answers: list[str] = []

    # --- the broker ------------------------------------------------------------------------------

    def ask(self, name: str, version: int, **values: Any) -> Values:
        """Asked until the broker has ended what it is just ending, or has loaded."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            answer = self.wire.ask(name, version, values)
            busy = (ERRORS[each] for each in ("ConcurrentTransactionsException", "NotCoordinatorException",
                                                   "CoordinatorNotAvailableException"))  # fmt: skip
            if error_of(answer) not in {*busy, 14}:
                return answer
            assert time.monotonic() < until, answer
            time.sleep(0.005)

    def described(self, transactional_id: str) -> Values:
        """How the broker describes an id, once nothing of it is ending."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            [found] = self.wire.ask("DescribeTransactions", 0, {"transactionalIds": [transactional_id]})[
                "transactionStates"
            ]
            if not found["transactionState"].startswith("Prepare"):
                return dict(found)
            assert time.monotonic() < until, found
            time.sleep(0.005)

    # --- both ------------------------------------------------------------------------------------

    def init(self, name: str, timeout_ms: int, expected: ProducerIdAndEpoch | None) -> None:
        said = expected or ProducerIdAndEpoch(-1, -1)
        answer = self.ask(
            "InitProducerId", 5, transactionalId=name, transactionTimeoutMs=timeout_ms,
            producerId=said.producer_id, producerEpoch=said.epoch,
        )  # fmt: skip
        self.next_producer_id = answer["producerId"]
        holder = self.compared(
            answer["errorCode"], lambda: self.store.coordinator.init_producer_id(name, timeout_ms, expected)
        )
        if holder is not None:
            assert holder == (answer["producerId"], answer["producerEpoch"])
            self.holders[name] = holder
        self.check_described(name)

    def add(self, name: str, holder: ProducerIdAndEpoch, partitions: list[TopicPartition], *, old: bool) -> None:
        topics = [
            {"name": topic, "partitions": [each.partition for each in partitions if each.topic == topic]}
            for topic in dict.fromkeys(each.topic for each in partitions)
        ]
        if old:
            answer = self.ask(
                "AddPartitionsToTxn", 3, v3AndBelowTransactionalId=name, v3AndBelowProducerId=holder.producer_id,
                v3AndBelowProducerEpoch=holder.epoch, v3AndBelowTopics=topics,
            )  # fmt: skip
        else:
            one = {"transactionalId": name, "producerId": holder.producer_id, "producerEpoch": holder.epoch,
                   "verifyOnly": False, "topics": topics}  # fmt: skip
            answer = self.ask("AddPartitionsToTxn", 5, transactions=[one])
        # The broker takes the request's partitions from a set.
        order = {each: at for at, each in enumerate(self.broker_order(name, partitions))}
        partitions = sorted(partitions, key=lambda each: order.get(each, 0))
        version = TransactionVersion.TV_0 if old else TransactionVersion.TV_2
        self.compared(
            error_of(answer), lambda: self.store.coordinator.add_partitions(name, holder, partitions, version)
        )
        self.check_described(name)

    def broker_order(self, name: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        found = self.described(name)["topics"]
        return [TopicPartition(each["topic"], number) for each in found for number in each["partitions"]]

    def end(self, name: str, holder: ProducerIdAndEpoch, *, commit: bool, old: bool) -> None:
        answer = self.ask(
            "EndTxn", 4 if old else 5, transactionalId=name, producerId=holder.producer_id,
            producerEpoch=holder.epoch, committed=commit,
        )  # fmt: skip
        self.next_producer_id = answer.get("producerId", -1)
        version = TransactionVersion.TV_0 if old else TransactionVersion.TV_2
        # Asked again because it was ending: an answer that it has ended already.
        found = self.compared(
            answer["errorCode"],
            lambda: self.store.coordinator.end_transaction(name, holder, commit=commit, client_version=version),
        )
        state = self.described(name)
        if found is not None:
            assert found == (state["producerId"], state["producerEpoch"])
            if not old and self.version.supports_epoch_bump:
                assert found == (answer["producerId"], answer["producerEpoch"])
            self.holders[name] = found
        self.check_described(name)

    def compared(self, code: int, ours: Any) -> Any:
        names = {number: name for name, number in ERRORS.items()}
        theirs = names.get(code, str(code)) if code else ""
        self.answers.append(theirs)
        self.store.clock.advance(3)
        found, our_error = None, ""
        try:
            found = ours()
        except KafkalogError as error:
            our_error = type(error).__name__
        assert our_error == theirs
        return found

    def check_described(self, name: str) -> None:
        theirs = self.described(name)
        if theirs["errorCode"]:
            return
        ours = self.store.coordinator.describe(name)
        places = [TopicPartition(each["topic"], number) for each in theirs["topics"] for number in each["partitions"]]
        assert (ours.state, ours.producer_id, ours.producer_epoch, ours.timeout_ms, sorted(ours.partitions)) == (
            theirs["transactionState"], theirs["producerId"], theirs["producerEpoch"],
            theirs["transactionTimeoutMs"], sorted(places),
        )  # fmt: skip

    def time_out(self, name: str, *, old: bool) -> None:
        """A transaction that takes too long: the broker aborts it, and fences its holder."""
        self.init(name, TIMEOUT_MS, None)
        self.add(name, self.holders[name], [TopicPartition(TOPICS[0], 0)], old=old)
        until = time.monotonic() + WAIT_SECONDS_MAX
        while self.described(name)["transactionState"] == "Ongoing":
            assert time.monotonic() < until, name
            time.sleep(0.02)
        self.store.clock.advance(TIMEOUT_MS + 1)
        assert self.store.coordinator.abort_timed_out() == [name]
        self.check_described(name)
        self.answers.append("timed out")
        self.init(name, 60_000, None)


def error_of(answer: Values) -> int:
    """The first error of an answer, at any level."""
    if answer.get("errorCode"):
        return int(answer["errorCode"])
    for value in answer.values():
        for each in value if isinstance(value, list) else ():
            found = each.get("partitionErrorCode", 0) if isinstance(each, dict) else 0
            found = found or (error_of(each) if isinstance(each, dict) else 0)
            if found:
                return int(found)
    return 0


def play(beside: Beside, draw: random.Random) -> None:
    """Requests as clients make them, and as they should not."""
    for _ in range(STEPS):
        name = draw.choice(IDS)
        holder = beside.holders.get(name)
        if holder is None or draw.random() < 0.12:
            expected = None
            if holder is not None and draw.random() < 0.5:
                expected = stale(holder, draw)
            beside.init(name, draw.choice((60_000, 59_000, 0, 900_001)) if draw.random() < 0.5 else 60_000, expected)
            continue
        if draw.random() < 0.04:
            beside.time_out(name, old=beside.version < 2 or draw.random() < 0.5)
            continue
        said = stale(holder, draw)
        old = beside.version < 2 or draw.random() < 0.25
        if draw.random() < 0.55:
            count = draw.choice((1, 1, 2, 5, 14))
            places = {TopicPartition(draw.choice(TOPICS), draw.randrange(PARTITION_COUNT)) for _ in range(count)}
            beside.add(name, said, sorted(places), old=old)
        else:
            commit = draw.random() < 0.6
            beside.end(name, said, commit=commit, old=old)
            if draw.random() < 0.3:  # the answer was lost: once more, perhaps the other way
                beside.end(name, said, commit=commit is (draw.random() < 0.7), old=old)


def stale(holder: ProducerIdAndEpoch, draw: random.Random) -> ProducerIdAndEpoch:
    chance = draw.random()
    if chance < 0.08:
        return holder._replace(epoch=max(holder.epoch - 1, 0))
    if chance < 0.12:
        return holder._replace(epoch=holder.epoch + 1)
    if chance < 0.15:
        return holder._replace(producer_id=holder.producer_id + 1)
    return holder


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["TV0", "TV1", "TV2"])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Beside, Path]]:
    """After the play: the broker has stopped."""
    need_broker()
    place = tmp_path_factory.mktemp("coordinators")
    features = {"transaction.version": request.param}
    with kraft.broker(place, features=features, settings=OFTEN) as node:
        node.start()
        clients.create_topics(node.bootstrap, {name: (PARTITION_COUNT, {}) for name in TOPICS})
        with Client(node.bootstrap) as wired:
            for kind, key in ((0, "group"), (1, "one")):
                wired.ask("FindCoordinator", 4, {"keyType": kind, "coordinatorKeys": [key]})
            two = Beside(node, wired, request.param)
            print(f"seed {SEED}")
            play(two, random.Random(request.param + SEED))
            assert node.stop() == 143
    yield two, place / "logs"
    shutil.rmtree(place, ignore_errors=True)


def batches_of(logs: Path, name: str) -> list[bytes]:
    data = (logs / name / f"{0:020}.log").read_bytes()
    found = MemoryRecords(data).batches()
    return [data[each.position : each.position + each.size] for each in found]


def test_the_play_is_about_something(beside: tuple[Beside, Path]) -> None:
    two, _ = beside
    wanted = {"", "ProducerFencedException", "InvalidPidMappingException", "InvalidTxnStateException"}
    assert wanted | {"InvalidTxnTimeoutException", "timed out"} <= set(two.answers)
    assert two.answers.count("") > STEPS / 2


def test_transaction_state_is_the_same_bytes(beside: tuple[Beside, Path]) -> None:
    two, logs = beside
    theirs, ours = batches_of(logs, "__transaction_state-0"), two.disk.log("__transaction_state-0").batches
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        their_head, our_head = header_at(their), header_at(our)
        [their_record], [our_record] = records(their, their_head), records(our, our_head)
        name, wanted = decode_transaction(their_record.key, their_record.value)
        _, found = decode_transaction(our_record.key, our_record.value)
        assert wanted is not None
        assert found is not None
        assert (wanted.start_timestamp == -1) == (found.start_timestamp == -1), (wanted, found)
        timed = found._replace(
            last_update_timestamp=wanted.last_update_timestamp, start_timestamp=wanted.start_timestamp
        )
        row = encode_transaction(name, timed, version=two.version.value_version)
        made = records_batch([row], their_record.timestamp, NO_PRODUCER)
        # Base offset and leader epoch are the log's; the CRC does not cover them.
        assert made[8:12] + made[16:] == their[8:12] + their[16:], (wanted, timed)
        assert our_head.base_offset == their_head.base_offset


def test_markers_are_the_same_bytes(beside: tuple[Beside, Path]) -> None:
    """Each partition has the same ends, in the order in which its transactions ended."""
    two, logs = beside
    count = 0
    for partition, data in two.disk.data.items():
        ours = [(kind, producer_id, epoch) for kind, producer_id, epoch, _ in data.rows]
        found = []
        for batch in batches_of(logs, str(partition)):
            header = header_at(batch)
            [record] = records(batch, header)
            kind = {b"\0\0\0\0": "ABORT", b"\0\0\0\1": "COMMIT"}[bytes(record.key or b"")]
            found.append((kind, header.producer_id, header.producer_epoch))
            count += 1
        assert found == ours, partition
    assert count > 20
