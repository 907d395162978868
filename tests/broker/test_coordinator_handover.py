"""A directory goes from a broker to kafkalog's coordinators, to the broker and back: each continues where the other
was.

kafkalog ends a transaction, leaves one decided and one open, and uses up a producer's epochs. The broker finishes,
aborts and continues; then kafkalog continues with the broker's state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.coordinator.state_log import TransactionMarker, records_batch
from kafkalog.engine.coordinator.transaction_metadata import EPOCH_EXHAUSTED, Known, ProducerIdAndEpoch
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, TransactionState, encode_transaction
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkaStorageException, ProducerFencedException
from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.unit.coordinator_kit import Disk, Store, producer_id_for
from tests.unit.coordinator_logs import LogStore
from tests.wire.client import Client

pytestmark = pytest.mark.broker

A, B = TopicPartition("alpha", 0), TopicPartition("beta", 1)
OFFSETS = TopicPartition("__consumer_offsets", 0)
NEVER_MS = 900_000


# Ids whose epochs are at their end, or nearly: the next holder gets the same from a broker and from kafkalog.
WORN: dict[str, tuple[TransactionState, int, bool]] = {  # state, epoch, whether the holder gives its producer id
    "0 worn, at rest": (TransactionState.COMPLETE_COMMIT, EPOCH_EXHAUSTED, False),
    "1 worn, his": (TransactionState.COMPLETE_ABORT, EPOCH_EXHAUSTED, True),
    "2 worn, open": (TransactionState.ONGOING, EPOCH_EXHAUSTED, False),
    "3 nearly, open": (TransactionState.ONGOING, EPOCH_EXHAUSTED - 1, False),
    "4 nearly, at rest": (TransactionState.EMPTY, EPOCH_EXHAUSTED - 1, False),
    "5 beyond, open": (TransactionState.ONGOING, EPOCH_EXHAUSTED + 1, False),
}


def worn(name: str, now_ms: int) -> TransactionMetadata:
    state, epoch, _ = WORN[name]
    partitions = {TransactionState.ONGOING: {A.topic: (0,)}, TransactionState.EMPTY: None}.get(state, {})
    producer_id = producer_id_for(name, -1)
    return TransactionMetadata(
        producer_id, epoch, NEVER_MS, state, partitions, now_ms, now_ms, producer_id, client_transaction_version=2
    )


class OpenedStore(LogStore):
    """Over logs that `open_log` opens, with the directory's lock and its checkpoints."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(root, partition_count=1)
        self.stack = stack
        self.clock.now_ms = int(time.time() * 1000)

    def log(self, partition: TopicPartition) -> UnifiedLog:
        if partition not in self.logs:
            opened = self.stack.enter_context(
                kafkalog.open_log(self.root, str(partition), clock=self.clock, take_over=True)
            )
            assert opened.engine is not None
            self.logs[partition] = opened.engine
        return self.logs[partition]


@contextlib.contextmanager
def opened(root: Path) -> Iterator[OpenedStore]:
    with contextlib.ExitStack() as stack:
        yield OpenedStore(root, stack)


def turn(store: LogStore, name: str, holder: ProducerIdAndEpoch, *, offset: int = -1) -> None:
    """All of a transaction but its end."""
    store.coordinator.add_partitions(name, holder, [A, B])
    for each in (A, B):
        store.write(each, holder, name.encode())
    if offset >= 0:
        place = store.coordinator.add_offsets(name, holder, f"group of {name}")
        store.offsets(place).commit(f"group of {name}", {A: CommittedOffset(offset)}, holder)


def leave_decided(store: LogStore, name: str) -> None:
    """A commit whose second marker fails."""
    holder = store.coordinator.init_producer_id(name, NEVER_MS)
    turn(store, name, holder, offset=11)
    write = store.markers.write

    def fail(partition: TopicPartition, marker: TransactionMarker) -> None:
        if partition == B:
            raise KafkaStorageException("the disk failed")
        write(partition, marker)

    store.markers.write = fail  # type: ignore[method-assign]
    with pytest.raises(KafkaStorageException):
        store.coordinator.end_transaction(name, holder, commit=True)
    store.markers.write = write  # type: ignore[method-assign]
    assert store.coordinator.describe(name).state == "PrepareCommit"


def our_part(root: Path) -> dict[str, ProducerIdAndEpoch]:
    with opened(root) as store:
        store.coordinator.load([0])
        done = store.coordinator.init_producer_id("done", NEVER_MS)
        turn(store, "done", done, offset=7)
        done = store.coordinator.end_transaction("done", done, commit=True)
        aborted = store.coordinator.init_producer_id("aborted", NEVER_MS)
        turn(store, "aborted", aborted, offset=9)
        store.coordinator.end_transaction("aborted", aborted, commit=False)
        leave_decided(store, "decided")
        left = store.coordinator.init_producer_id("left open", NEVER_MS)
        turn(store, "left open", left, offset=13)
        tired = store.coordinator.init_producer_id("tired", NEVER_MS)
        partition = store.coordinator._partitions[0]
        entry = partition.entry("tired")
        assert entry is not None
        assert entry.known is not None
        last_but_one = entry.known.metadata._replace(producer_epoch=EPOCH_EXHAUSTED - 1)
        partition.put(entry, entry.known._replace(metadata=last_but_one))
        for name in WORN:
            new = partition.entry(name, create=True)
            assert new is not None
            partition.put(new, Known(worn(name, store.clock.milliseconds())))
        return {"done": done, "left open": left, "tired": tired}


def ask(wired: Client, name: str, version: int, **values: object) -> Values:
    until = time.monotonic() + 60
    while True:
        answer = wired.ask(name, version, values)
        if answer["errorCode"] not in (14, 15, 16, 51):
            return answer
        assert time.monotonic() < until, answer
        time.sleep(0.02)


def state_of(wired: Client, name: str) -> str:
    until = time.monotonic() + 60
    while True:
        [found] = wired.ask("DescribeTransactions", 0, {"transactionalIds": [name]})["transactionStates"]
        if found["errorCode"] == 0 and not found["transactionState"].startswith("Prepare"):
            return str(found["transactionState"])
        assert time.monotonic() < until, found
        time.sleep(0.02)


def init(wired: Client, name: str) -> ProducerIdAndEpoch:
    answer = ask(
        wired, "InitProducerId", 5, transactionalId=name, transactionTimeoutMs=60_000, producerId=-1, producerEpoch=-1
    )
    assert answer["errorCode"] == 0
    return ProducerIdAndEpoch(answer["producerId"], answer["producerEpoch"])


def group_offset(bootstrap: str, group: str) -> int:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, **clients.QUIET})
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found = [each.offset for each in future.result(60).topic_partitions or () if each.topic == A.topic]
    return int(found[0]) if found else -1


def values(node: kraft.Broker) -> list[list[bytes | None]]:
    seen = clients.consume(node.bootstrap, [A, B], "read_committed")
    return [[record.value for record in seen[each].records] for each in (A, B)]


def test_each_goes_on_where_the_other_was(tmp_path: Path) -> None:
    need_broker()
    with kraft.broker(tmp_path) as node:
        node.start()
        clients.create_topics(node.bootstrap, {each.topic: (2, {}) for each in (A, B)})
        with Client(node.bootstrap) as wired:
            for kind, key in ((0, "group"), (1, "one")):
                wired.ask("FindCoordinator", 4, {"keyType": kind, "coordinatorKeys": [key]})
            init(wired, "broker's")  # makes __transaction_state
        clients.create_topics(node.bootstrap, {"unrelated": (1, {})})
        assert node.stop() == 143
        held = our_part(node.log_dir)
        node.start()
        with Client(node.bootstrap) as wired:
            the_brokers_part(node, wired, held)
        assert node.stop() == 143
        our_second_part(node.log_dir, held)


def the_brokers_part(node: kraft.Broker, wired: Client, held: dict[str, ProducerIdAndEpoch]) -> None:
    names = ("done", "aborted", "decided", "left open", "tired")
    assert [state_of(wired, each) for each in names] == [
        "CompleteCommit", "CompleteAbort", "CompleteCommit", "Ongoing", "Empty",
    ]  # fmt: skip
    assert values(node) == [[b"done", b"decided"], [b"done", b"decided"]]
    groups = [group_offset(node.bootstrap, f"group of {each}") for each in names]
    assert groups == [7, -1, 11, -1, -1]
    # Somebody takes over what is open: aborted, and its producer fenced, in the broker too.
    left = held["left open"]
    assert init(wired, "left open") == left._replace(epoch=left.epoch + 2)
    assert group_offset(node.bootstrap, "group of left open") == -1
    # The last epoch: the end returns another producer id.
    tired = init(wired, "tired")
    assert tired == held["tired"]._replace(epoch=EPOCH_EXHAUSTED)
    topics = [{"name": A.topic, "partitions": [0]}]
    one = {"transactionalId": "tired", "producerId": tired.producer_id, "producerEpoch": tired.epoch,
           "verifyOnly": False, "topics": topics}  # fmt: skip
    assert ask(wired, "AddPartitionsToTxn", 5, transactions=[one])["errorCode"] == 0
    ended = ask(
        wired, "EndTxn", 5, transactionalId="tired", producerId=tired.producer_id, producerEpoch=tired.epoch,
        committed=True,
    )  # fmt: skip
    assert (ended["errorCode"], ended["producerEpoch"]) == (0, 0)
    assert ended["producerId"] not in (-1, tired.producer_id)
    assert state_of(wired, "tired") == "CompleteCommit"
    held["tired"] = ProducerIdAndEpoch(ended["producerId"], 0)
    take_over_worn(wired)
    # A client continues under the id, and leaves a transaction open.
    for commit in (True, False):
        producer = clients.ConfluentProducer(node.bootstrap, transactional_id="done")
        producer.begin()
        producer.send(A.topic, A.partition, [clients.Row(b"broker's", None, (), clients.START_MS)])
        if commit:
            producer.commit()
    assert state_of(wired, "done") == "Ongoing"


def take_over_worn(wired: Client) -> None:
    for name, (_, epoch, says) in WORN.items():
        expected = ProducerIdAndEpoch(producer_id_for(name, -1), epoch) if says else None
        said = expected or ProducerIdAndEpoch(-1, -1)
        answer = ask(
            wired, "InitProducerId", 5, transactionalId=name, transactionTimeoutMs=60_000,
            producerId=said.producer_id, producerEpoch=said.epoch,
        )  # fmt: skip
        assert answer["errorCode"] == 0, (name, answer)
        disk = Disk()
        row = encode_transaction(name, worn(name, 1))
        disk.log("__transaction_state-0").append(records_batch([row], 1, NO_PRODUCER))
        ours = Store(disk, partition_count=1)
        ours.coordinator._producer_id_for = lambda name, previous: answer["producerId"]  # noqa: B023
        taken = ours.coordinator.init_producer_id(name, 60_000, expected)
        assert taken == (answer["producerId"], answer["producerEpoch"]), name


def our_second_part(root: Path, held: dict[str, ProducerIdAndEpoch]) -> None:
    with opened(root) as store:
        store.coordinator.load([0])
        assert store.coordinator.finish_prepared() == []
        states = {each.transactional_id: each for each in store.coordinator.list_transactions()}
        assert {name: each.state for name, each in states.items()} == {
            "done": "Ongoing", "aborted": "CompleteAbort", "decided": "CompleteCommit", "left open": "Empty",
            "tired": "CompleteCommit", "broker's": "Empty", **dict.fromkeys(WORN, "Empty"),
        }  # fmt: skip
        tired = states["tired"]
        assert (tired.producer_id, tired.producer_epoch) == held["tired"]
        with pytest.raises(ProducerFencedException):
            store.coordinator.add_partitions("done", held["done"], [A])
        assert store.log(A).last_stable_offset < store.log(A).log_end_offset
        mine = store.coordinator.init_producer_id("done", NEVER_MS)
        assert store.log(A).last_stable_offset == store.log(A).log_end_offset
        turn(store, "done", mine, offset=21)
        store.coordinator.end_transaction("done", mine, commit=True)
        assert store.committed(A) == [b"done", b"decided", b"broker's", b"done"]
        assert store.committed(B) == [b"done", b"decided", b"done"]
        found = store.offsets(OFFSETS).fetch("group of done", A)
        assert found is not None
        assert found.offset == 21
