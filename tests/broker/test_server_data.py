"""The data and transaction requests against Apache Kafka: the same requests to both servers, and the answers compared.

Each step sends one request, in every version, to a real broker and to a served store.  Ids that each server chooses
(topics, producers, sessions) get names in the order of their appearance.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.format.codecs import GZIP, ZSTD
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys, api
from tests.broker import kraft
from tests.conftest import need_broker
from tests.sampling import LONG, SEED
from tests.wire.client import Client

pytestmark = pytest.mark.broker

NOW_MS = 1_700_000_000_000
PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS = 0, 1, 2, 19
DELETE_RECORDS, INIT, EPOCHS, ADD_PARTITIONS, ADD_OFFSETS = 21, 22, 23, 24, 25
END, MARKERS, COMMIT_OFFSETS, PRODUCERS, DESCRIBE, LIST = 26, 27, 28, 61, 65, 66
PARTITIONS = {f"{each}.num.partitions": "50" for each in ("offsets.topic", "transaction.state.log")}
SEEDS, STEPS = (40, 40) if LONG else (4, 25)
CHOSEN = {"topicId": "topic", "producerId": "producer", "sessionId": "session"}


class Peer(Client):
    """One server, and the connection to it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.topics: dict[str, str] = {}

    def ask(self, api: int | str, version: int, values: Mapping[str, Any] | None = None, **more: Any) -> Any:
        return plain(super().ask(api, version, values, **more))

    def create(self, name: str, partitions: int = 2, **config: str) -> None:
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        asked = {"name": name, "numPartitions": partitions, "replicationFactor": 1, "configs": configs}
        found = self.ask(CREATE_TOPICS, 7, topics=[asked], timeoutMs=30_000)["topics"][0]
        assert found["errorCode"] == 0, found
        self.topics[name] = found["topicId"]
        ends = [{"partitionIndex": each, "timestamp": -1} for each in range(partitions)]
        topics = [{"name": name, "partitions": ends}]
        self.wait(lambda: self.ask(LIST_OFFSETS, 7, replicaId=-1, topics=topics)["topics"])

    def wait(self, ask: Callable[[], Any]) -> None:
        """Asks until there is no error: a broker learns of a new topic a little later."""
        until = time.monotonic() + 30
        while has_error(ask()):
            assert time.monotonic() < until
            time.sleep(0.02)

    def named(self, name: str) -> dict[str, str]:
        return {"name": name, "topic": name, "topicId": self.topics.get(name, "B" * 21 + "A")}


def plain(value: Any) -> Any:
    """Answers hold views of the frame."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def comparable(value: Any, seen: dict[tuple[str, Any], str], key: str = "") -> Any:
    """The value with names for what a server chooses, and lists of topics and partitions in order."""
    if isinstance(value, dict):
        return {name: comparable(each, seen, name) for name, each in value.items() if name != "throttleTimeMs"}
    if isinstance(value, list):
        rows = [comparable(each, seen, key) for each in value]
        order = ("name", "topic", "transactionalId", "partitionIndex", "index", "partition", "producerId")
        return (
            sorted(rows, key=lambda row: [str(row.get(name, "")).zfill(8) for name in order])
            if (rows and isinstance(rows[0], dict) and key not in ("recordErrors",))
            else rows
        )
    if key == "records" and value:
        fields = ("base_offset", "last_offset", "attributes", "base_sequence", "producer_epoch", "leader_epoch", "size")
        batches = MemoryRecords(value).batches()
        return [[getattr(each, name) for name in fields] for each in batches], len(value)
    if key == "lastTimestamp" and value > NOW_MS + 1_000_000_000:
        return "now"
    if isinstance(value, str) and key.endswith("essage"):
        return re.sub(r"\d{13}", "TIME", value)
    if key in CHOSEN and value not in (-1, "A" * 22) and (key, value) != ("sessionId", 0):
        return seen.setdefault((CHOSEN[key], value), f"{CHOSEN[key]} {len(seen)}")
    return value


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two answers differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [each for name in names for each in differences(ours.get(name), theirs.get(name), f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for row in range(len(ours)) for each in differences(ours[row], theirs[row], f"{path}[{row}]")]
    return [] if ours == theirs else [f"{path}: ours {ours!r:.300}, Kafka's {theirs!r:.300}"]


def has_error(value: Any) -> bool:
    if isinstance(value, dict):
        return any(bool(each) if name == "errorCode" else has_error(each) for name, each in value.items())
    return isinstance(value, list) and any(map(has_error, value))


def is_concurrent(value: Any) -> bool:
    """Whether a broker says that the last transaction is still ending."""
    if isinstance(value, dict):
        return any(
            each == Errors.CONCURRENT_TRANSACTIONS if name.endswith("rrorCode") else is_concurrent(each)
            for name, each in value.items()
        )
    return isinstance(value, list) and any(map(is_concurrent, value))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    need_broker()
    place: Path = tmp_path_factory.mktemp("servers")
    with kraft.broker(place / "kafka", settings=PARTITIONS) as broker, kafkalog.open(place / "store") as store:
        broker.start()
        with store.serve("127.0.0.1:0") as server:
            peers = [Peer(broker.bootstrap), Peer(server.bootstrap_servers)]
            for peer, kind in itertools.product(peers, (0, 1)):  # the first request creates the coordinators' topics
                peer.wait(partial(peer.ask, 10, 4, keyType=kind, coordinatorKeys=["x"]))
            for peer in peers:
                peer.wait(partial(peer.ask, INIT, 5, transactionalId="first", transactionTimeoutMs=1000))
            yield peers
            for each in peers:
                each.close()


class Same:
    """Sends requests to both, and compares the answers."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers
        self.seen: list[dict[tuple[str, Any], str]] = [{}, {}]

    def ask(self, key: int, version: int, make: Any, retries: int = 0) -> list[Any]:
        answers = []
        for peer in self.peers:
            for _ in range(retries + 1):
                answer = peer.ask(key, version, **make(peer))
                if not is_concurrent(answer):
                    break
                time.sleep(0.02)
            answers.append(answer)
        theirs, ours = (comparable(answer, seen) for answer, seen in zip(answers, self.seen, strict=True))
        assert not differences(ours, theirs), (api(key).name, version)
        return answers


def versions(key: int) -> range:
    return range(api(key).lowest, api(key).highest + 1)


def batch(*values: bytes, timestamp: int = NOW_MS, **options: Any) -> bytes:
    return build_batch([(timestamp, b"k", value, ()) for value in values], **options)


_topics = itertools.count()


@pytest.fixture
def same(both: list[Peer]) -> Same:
    return Same(both)


@pytest.fixture
def topic(both: list[Peer]) -> str:
    name = f"topic-{next(_topics)}"
    for each in both:
        each.create(name)
    return name


def produce(same: Same, topic: str, *batches: bytes, version: int = 12, acks: int = -1, **more: Any) -> None:
    data = [{"index": index, "records": each} for index, each in enumerate(batches)]

    def make(peer: Peer) -> Any:
        return {"acks": acks, "timeoutMs": 5000, "topicData": [peer.named(topic) | {"partitionData": data}]} | more

    same.ask(PRODUCE, version, lambda peer: only(PRODUCE, make(peer)))


def only(key: int, body: Any) -> Any:
    """Leaves the fields out that a topic of this request does not have."""
    field = {PRODUCE: "name", FETCH: "topic"}[key]
    lists = {PRODUCE: "topicData", FETCH: "topics"}[key]
    body[lists] = [
        {name: value for name, value in topic.items() if name not in {"name", "topic"} - {field}}
        for topic in body[lists]
    ]
    return body


# --- Produce ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(PRODUCE))
def test_produce(same: Same, topic: str, version: int) -> None:
    one = batch(b"a", b"b")
    corrupt = bytearray(one)
    corrupt[-1] ^= 1
    produce(same, topic, one, one, one, version=version)
    for records in (
        bytes(corrupt), b"", one + one, one[:40], batch(b"z", codec=ZSTD), batch(b"g", codec=GZIP),
        batch(b"x" * 1_100_000), b"\0" * 100, one[:16] + b"\1" + one[17:], one[:8] + b"\0\0\0\1" + one[12:],
    ):  # fmt: skip
        produce(same, topic, records, version=version)
    produce(same, topic, one, version=version, acks=7)
    produce(same, topic, one, version=version, acks=1)
    produce(same, "missing", one, version=version)


def test_produce_to_topics_with_rules(same: Same) -> None:
    for peer in same.peers:
        peer.create("stamped", message_timestamp_type="LogAppendTime")
        peer.create("dated", message_timestamp_before_max_ms="1000")
        peer.create("compacted", cleanup_policy="compact")
        peer.create("small", max_message_bytes="200")
    produce(same, "dated", batch(b"a", b"b"))
    produce(same, "small", batch(b"x" * 300))
    produce(same, "compacted", build_batch([(NOW_MS, None, b"v", ()), (NOW_MS, b"k", b"v", ())]))
    produce(same, "compacted", build_batch([(NOW_MS, None, b"v", ())]), version=7)


def test_idempotent_producers(same: Same, topic: str) -> None:
    def of(epoch: int, sequence: int, *values: bytes) -> bytes:
        return batch(*values, producer_id=77, producer_epoch=epoch, base_sequence=sequence)

    for records in (of(0, 0, b"a"), of(0, 1, b"b", b"c"), of(0, 1, b"b", b"c"), of(0, 9, b"d"), of(1, 5, b"e"),
                    of(1, 0, b"e"), of(0, 3, b"f"), of(1, 1, b"g"), of(1, 0, b"e")):  # fmt: skip
        produce(same, topic, records)


def send(same: Same, *topics: Any, version: int = 12, **more: Any) -> None:
    """Sends (topic, partitions) as they are."""

    def make(peer: Peer) -> Any:
        data = [peer.named(name) | {"partitionData": list(partitions)} for name, partitions in topics]
        return only(PRODUCE, {"acks": -1, "timeoutMs": 5000, "topicData": data} | more)

    same.ask(PRODUCE, version, make)


@pytest.mark.parametrize("version", [8, 12, 13])
def test_odd_produce_requests(same: Same, topic: str, version: int) -> None:
    one = {"index": 0, "records": batch(b"a")}
    send(same, version=version)
    send(same, (topic, []), version=version)
    send(same, (topic, [one, one]), version=version)
    send(same, (topic, [one, {"index": -1, "records": batch(b"a")}]), version=version)
    send(same, (topic, [one]), version=version, transactionalId="unused")
    send(same, (topic, [one]), version=version, timeoutMs=-1)
    send(same, (topic, [one]), version=version, acks=-2)
    loose = batch(b"t", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    send(same, (topic, [{"index": 0, "records": loose}]), version=version)
    other = batch(b"t", producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    both = [{"index": 0, "records": loose}, {"index": 1, "records": other}]
    send(same, (topic, both), version=version, transactionalId="unknown")
    send(same, (topic, both[:1]), version=version, transactionalId="unknown")
    send(same, (topic, both[:1]), version=version, transactionalId="")
    control = bytearray(loose)
    control[22] |= 0x20
    control[17:21] = crc32c(bytes(control[21:])).to_bytes(4, "big")
    send(same, (topic, [{"index": 0, "records": bytes(control)}]), version=version, transactionalId="unknown")
    for name in ("__consumer_offsets", "__transaction_state"):
        if version < 13:
            send(same, (name, [one]), version=version)
    fetch(same, topic, at(0, 0), at(1, 0), version=12)


# --- Fetch -----------------------------------------------------------------------------------------------


def fetch(same: Same, topic: str, *partitions: Any, version: int, **more: Any) -> list[Any]:
    fields = {"maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "isolationLevel": 0, "sessionEpoch": -1} | more
    return same.ask(
        FETCH,
        version,
        lambda peer: only(FETCH, fields | {"topics": [peer.named(topic) | {"partitions": list(partitions)}]}),
    )


def at(partition: int, offset: int, max_bytes: int = 1 << 20, **more: Any) -> Any:
    return {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": max_bytes} | more


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch(same: Same, topic: str, version: int) -> None:
    for records in (batch(b"a", b"b"), batch(b"c", codec=GZIP), batch(b"d" * 500)):
        produce(same, topic, records, records)
    fetch(same, topic, at(0, 0), at(1, 1), version=version)
    fetch(same, topic, at(0, 0, 1), at(1, 0, 1), version=version)
    fetch(same, topic, at(0, 0, 100), at(1, 0, 1000), version=version, maxBytes=150)
    fetch(same, topic, at(0, 4), at(1, 3), version=version, isolationLevel=1)
    for partition in (at(0, 5), at(0, -1), at(9, 0), at(0, 4)):
        fetch(same, topic, partition, version=version)
    if version >= 9:
        for epoch in (0, 1):
            fetch(same, topic, at(0, 0, currentLeaderEpoch=epoch), version=version)
    if version >= 12:
        for epoch in (0, 3):
            fetch(same, topic, at(0, 1, lastFetchedEpoch=epoch), version=version)
    fetch(same, "missing", at(0, 0), version=version)


@pytest.mark.parametrize("version", [4, 12, 17])
def test_odd_fetch_requests(same: Same, topic: str, version: int) -> None:
    produce(same, topic, batch(b"a"), batch(b"b"))
    fetch(same, topic, version=version)
    fetch(same, topic, at(0, 0), at(0, 1), version=version)
    fetch(same, topic, at(0, 0), at(-1, 0), version=version)
    for limit in (0, -1):
        fetch(same, topic, at(0, 0, limit), at(1, 0, limit), version=version)
        fetch(same, topic, at(0, 0), at(1, 0), version=version, maxBytes=limit)
        fetch(same, topic, at(0, 0), at(1, 0), version=version, minBytes=limit, maxWaitMs=100)
        fetch(same, topic, at(0, 1), at(1, 1), version=version, minBytes=limit, maxWaitMs=100)
    fetch(same, topic, at(0, 1), version=version, minBytes=1, maxWaitMs=100)
    fetch(same, topic, at(0, 0), version=version, minBytes=1000, maxWaitMs=100)
    fetch(same, topic, at(0, 0), version=version, isolationLevel=1)
    fetch(same, topic, at(0, 2**62), version=version)
    replica = {"replicaState": {"replicaId": 2, "replicaEpoch": -1}} if version >= 15 else {"replicaId": 2}
    fetch(same, topic, at(0, 0), version=version, **replica)
    debugging = {"replicaState": {"replicaId": -2, "replicaEpoch": -1}} if version >= 15 else {"replicaId": -2}
    fetch(same, topic, at(0, 0), version=version, **debugging)
    if version >= 9:
        fetch(same, topic, at(0, 0, currentLeaderEpoch=0), version=version, **replica)


def test_fetch_of_zstd_by_an_old_client(same: Same) -> None:
    for peer in same.peers:
        peer.create("zstd", compression_type="zstd")
    produce(same, "zstd", batch(b"a"))
    for version in (9, 10):
        fetch(same, "zstd", at(0, 0), version=version)


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_fetch_sessions(same: Same, topic: str, version: int) -> None:
    produce(same, topic, batch(b"a"), batch(b"b"))
    sessions = [each["sessionId"] for each in fetch(same, topic, at(0, 0), at(1, 0), version=version, sessionEpoch=0)]
    by_peer = dict(zip(map(id, same.peers), sessions, strict=True))

    def more(epoch: int, *partitions: Any, forgotten: Any = (), shift: int = 0) -> None:
        def make(peer: Peer) -> Any:
            named = {key: value for key, value in peer.named(topic).items() if key != "name"}
            return {
                "maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "isolationLevel": 0,
                "sessionId": by_peer[id(peer)] + shift, "sessionEpoch": epoch,
                "topics": [named | {"partitions": list(partitions)}] if partitions else [],
                "forgottenTopicsData": [named | {"partitions": list(forgotten)}] if forgotten else [],
            }  # fmt: skip

        same.ask(FETCH, version, make)

    more(1)
    more(2, at(0, 1), at(1, 1))
    more(3)
    produce(same, topic, batch(b"c"))
    more(4)
    produce(same, topic, batch(b"c"), batch(b"d"))
    more(5, at(0, 2))
    more(7)  # out of order
    more(6, forgotten=[0])
    more(7, at(0, 0))
    more(8, shift=1)
    more(8, at(0, 1), forgotten=[0, 1])


# --- offsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
def test_list_offsets(same: Same, topic: str, version: int) -> None:
    def find(*timestamps: int, **more: Any) -> None:
        partitions = [{"partitionIndex": 0, "timestamp": each} | more for each in timestamps]
        for partition in partitions:
            topics = [{"name": topic, "partitions": [partition]}]
            body = {"replicaId": -1, "isolationLevel": 0, "topics": topics}
            same.ask(LIST_OFFSETS, version, lambda peer, body=body: body)

    find(-1, -2, -3, -4, -5, -6, -7, 0, NOW_MS)
    for ms in (0, 20, 10):
        produce(same, topic, batch(b"a", timestamp=NOW_MS + ms))
    find(-1, -2, -3, -4, -5, -6, NOW_MS, NOW_MS + 5, NOW_MS + 15, NOW_MS + 99)
    if version >= 4:
        find(-1, currentLeaderEpoch=0)
        find(-1, -2, currentLeaderEpoch=1)
    twice = [{"partitionIndex": each, "timestamp": -1} for each in (0, 1, 1, 5)]
    topics = [{"name": topic, "partitions": twice}, {"name": "missing", "partitions": twice[:1]}]
    same.ask(LIST_OFFSETS, version, lambda peer: {"replicaId": -1, "isolationLevel": 0, "topics": topics})


@pytest.mark.parametrize("version", versions(EPOCHS))
def test_ends_of_epochs(same: Same, topic: str, version: int) -> None:
    def find(epoch: int, current: int = -1, number: int = 0) -> None:
        partition = {"partition": number, "currentLeaderEpoch": current, "leaderEpoch": epoch}
        same.ask(EPOCHS, version, lambda peer: {"topics": [{"topic": topic, "partitions": [partition]}]})

    for _ in range(2):
        for epoch in (-1, 0, 1):
            find(epoch)
        find(0, 0)
        find(0, 1)
        find(0, number=7)
        produce(same, topic, batch(b"a"))


@pytest.mark.parametrize("version", versions(DELETE_RECORDS))
def test_delete_records(same: Same, topic: str, version: int) -> None:
    for _ in range(3):
        produce(same, topic, batch(b"a"))
    for offset in (1, 0, -1, 4, -2):
        partitions = [{"partitionIndex": 0, "offset": offset}]
        topics = [{"name": name, "partitions": partitions} for name in (topic, "missing")]
        body = {"topics": topics, "timeoutMs": 5000}
        same.ask(DELETE_RECORDS, version, lambda peer, body=body: body)
    fetch(same, topic, at(0, 0), version=12)
    fetch(same, topic, at(0, 3), version=12)


# --- transactions ----------------------------------------------------------------------------------------


class Transactional:
    """A transactional id on both servers, with the producer of each."""

    def __init__(self, same: Same, name: str, version: int = 5) -> None:
        self.same = same
        self.name = name
        self.version = version
        self.holders: dict[int, tuple[int, int]] = {}
        self.init()

    def init(self, version: int | None = None, **more: Any) -> list[Any]:
        version = self.version if version is None else version
        body = {"transactionalId": self.name, "transactionTimeoutMs": 60_000} | more
        answers = self.same.ask(INIT, version, lambda peer: body, retries=50)
        for peer, answer in zip(self.same.peers, answers, strict=True):
            if answer["errorCode"] == 0:
                self.holders[id(peer)] = (answer["producerId"], answer["producerEpoch"])
        return answers

    def fields(self, peer: Peer, shift: int = 0) -> dict[str, Any]:
        producer_id, epoch = self.holders[id(peer)]
        return {"transactionalId": self.name, "producerId": producer_id, "producerEpoch": epoch + shift}

    def again(self, shift: int, peer: Peer) -> dict[str, Any]:
        return self.fields(peer, shift) | {"transactionTimeoutMs": 60_000}

    def send(self, topic: str, sequence: int = 0, version: int = 12, shift: int = 0) -> None:
        def make(peer: Peer) -> Any:
            producer_id, epoch = self.holders[id(peer)]
            records = batch(
                b"t",
                producer_id=producer_id,
                producer_epoch=max(epoch + shift, 0),
                base_sequence=sequence,
                is_transactional=True,
            )
            data = [{"index": 0, "records": records}]
            topics = [peer.named(topic) | {"partitionData": data}]
            return only(PRODUCE, {"transactionalId": self.name, "acks": -1, "timeoutMs": 5000, "topicData": topics})

        self.same.ask(PRODUCE, version, make, retries=100)

    def add(self, *topics: str, version: int = 3, shift: int = 0) -> None:
        def make(peer: Peer) -> Any:
            named = [{"name": each, "partitions": [0]} for each in topics]
            fields = self.fields(peer, shift)
            return {f"v3AndBelow{key[0].upper()}{key[1:]}": value for key, value in fields.items()} | {
                "v3AndBelowTopics": named
            }

        self.same.ask(ADD_PARTITIONS, version, make, retries=100)

    def end(self, *, commit: bool, version: int = 5, shift: int = 0) -> None:
        answers = self.same.ask(
            END, version, lambda peer: self.fields(peer, shift) | {"committed": commit}, retries=100
        )
        for peer, answer in zip(self.same.peers, answers, strict=True):
            if version >= 5 and answer["errorCode"] == 0:
                self.holders[id(peer)] = (answer["producerId"], answer["producerEpoch"])

    def describe(self) -> None:
        until = time.monotonic() + 30  # a broker writes the markers after its answer
        while time.monotonic() < until:
            peer = self.same.peers[0]
            state = peer.ask(DESCRIBE, 0, transactionalIds=[self.name])["transactionStates"][0]["transactionState"]
            if not state.startswith("Prepare"):
                break
            time.sleep(0.01)
        answers = [each.ask(DESCRIBE, 0, transactionalIds=[self.name, "nobody"]) for each in self.same.peers]
        for answer in answers:
            for row in answer["transactionStates"]:
                row["transactionStartTimeMs"] = min(row["transactionStartTimeMs"], 0)
        theirs, ours = (comparable(each, seen) for each, seen in zip(answers, self.same.seen, strict=True))
        assert not differences(ours, theirs)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(same: Same, version: int) -> None:
    body = {"transactionTimeoutMs": 60_000}
    same.ask(INIT, version, lambda peer: body | {"transactionalId": None})
    for transactional_id, timeout in (("", 60_000), ("x", 0), ("x", -1), ("x", 900_001)):
        made = {"transactionalId": transactional_id, "transactionTimeoutMs": timeout}
        same.ask(INIT, version, lambda peer, made=made: made)
    tx = Transactional(same, f"init-{version}", version)
    tx.init()
    if version >= 3:
        for producer_id, epoch in ((-1, 0), (5, -1), (123456, 0)):
            tx.init(producerId=producer_id, producerEpoch=epoch)
        for shift in (0, 0, 5):
            same.ask(INIT, version, partial(tx.again, shift), retries=50)
    tx.describe()


def test_transactions_of_new_clients(same: Same, topic: str) -> None:
    tx = Transactional(same, "new-client")
    tx.end(commit=True)
    tx.end(commit=False)
    tx.describe()
    tx.send(topic)
    tx.send(topic, 1)
    tx.describe()
    fetch(same, topic, at(0, 0), version=12, isolationLevel=1)
    tx.end(commit=True)
    tx.describe()
    tx.end(commit=True, shift=-1)
    tx.end(commit=False, shift=-1)
    tx.end(commit=True, shift=3)
    tx.send(topic, 0, shift=-1)
    tx.send(topic, 5)
    tx.send(topic, 0)
    tx.end(commit=False)
    tx.describe()
    tx.init()  # takes over at rest
    tx.send(topic)
    tx.init()  # aborts first
    tx.describe()
    tx.send("missing")


@pytest.mark.parametrize("version", range(4))
def test_transactions_of_old_clients(same: Same, topic: str, version: int) -> None:
    tx = Transactional(same, f"old-client-{version}", 2)
    tx.end(commit=True, version=version)
    for produce_version in (10, 11):
        tx.send(topic, version=produce_version)
    tx.add(topic, version=version)
    tx.add(topic, "missing", version=version)
    tx.add("__consumer_offsets", version=version)
    tx.add(topic, version=version, shift=1)
    tx.send(topic, version=10)
    tx.send(topic, 1, version=11)
    tx.describe()
    tx.end(commit=True, version=version)
    tx.end(commit=True, version=version)
    tx.end(commit=False, version=version)
    tx.end(commit=True, version=version, shift=1)
    tx.describe()
    tx.send(topic, 2, version=10)
    tx.add(topic, version=version)
    tx.send(topic, 2, version=10)
    tx.end(commit=False, version=version)
    tx.describe()
    tx.init(2)
    fetch(same, topic, at(0, 0), version=12, isolationLevel=1)


@pytest.mark.parametrize("version", versions(COMMIT_OFFSETS))
def test_offsets_of_transactions(same: Same, topic: str, version: int) -> None:
    tx = Transactional(same, f"offsets-{version}")
    group = f"group-{version}"

    def commit(*names: str, shift: int = 0, **more: Any) -> None:
        def make(peer: Peer) -> Any:
            row = {"partitionIndex": 0, "committedOffset": 3, "committedMetadata": ""}
            bad = {"partitionIndex": 9, "committedOffset": 3, "committedMetadata": ""}
            topics = [{"partitions": [row, bad]} | peer.named(name) for name in names]
            for each in topics:
                del each["topic"]
            return tx.fields(peer, shift) | {"groupId": group, "topics": topics} | more

        same.ask(COMMIT_OFFSETS, version, make, retries=100)

    commit(topic)
    commit("missing")
    commit(topic, "missing", shift=2)
    same.ask(ADD_OFFSETS, min(version, 4), lambda peer: tx.fields(peer) | {"groupId": group}, retries=100)
    same.ask(ADD_OFFSETS, min(version, 4), lambda peer: tx.fields(peer, 2) | {"groupId": group}, retries=100)
    commit(topic)
    if version >= 3:
        commit(topic, memberId="nobody", generationIdOrMemberEpoch=4)
    tx.describe()
    tx.end(commit=True)
    tx.describe()


def test_lists_of_transactions(same: Same, topic: str) -> None:
    tx = Transactional(same, "listed-1")
    Transactional(same, "listed-2")
    tx.send(topic)
    for filters in (
        {"transactionalIdPattern": "listed-.*"},
        {"transactionalIdPattern": "listed-1", "stateFilters": ["Ongoing", "Odd"]},
        {"transactionalIdPattern": "nobody"}, {"transactionalIdPattern": "listed-.*", "durationFilter": 100_000},
        {"transactionalIdPattern": "("},
    ):  # fmt: skip
        same.ask(LIST, 2, lambda peer, filters=filters: {"stateFilters": [], "producerIdFilters": []} | filters)
    tx.end(commit=True)


def test_producers_and_markers(same: Same, topic: str) -> None:
    tx = Transactional(same, "described")
    tx.send(topic)

    def describe() -> None:
        topics = [{"name": name, "partitionIndexes": [0, 9]} for name in (topic, "missing", "bad/name")]
        answers = [peer.ask(PRODUCERS, 0, topics=topics) for peer in same.peers]
        theirs, ours = (comparable(each, seen) for each, seen in zip(answers, same.seen, strict=True))
        assert not differences(ours, theirs)

    describe()
    tx.end(commit=True, version=4)
    tx.describe()
    describe()
    hanging = batch(b"h", producer_id=4242, producer_epoch=3, base_sequence=0, is_transactional=True)
    produce(same, topic, hanging, version=12, transactionalId="nobody")
    for version in versions(MARKERS):
        for epoch, name in ((3, topic), (3, "missing"), (2, topic)):
            marker = {
                "producerId": 4242, "producerEpoch": epoch, "transactionResult": False, "coordinatorEpoch": 7,
                "topics": [{"name": name, "partitionIndexes": [0]}],
            }  # fmt: skip
            if version >= 2:
                marker["transactionVersion"] = 1
            same.ask(MARKERS, version, lambda peer, marker=marker: {"markers": [marker]})
    assert ApiKeys.WRITE_TXN_MARKERS == MARKERS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_transactions(same: Same, topic: str, seed: int) -> None:
    choice = random.Random(f"{SEED} {seed}")
    tx = Transactional(same, f"random-{seed}")
    sequences = 0
    done = []

    def produce_to_it() -> None:
        nonlocal sequences
        if choice.random() < 0.3:
            sequences = choice.randrange(3)
        tx.send(topic, sequences, choice.choice((9, 10, 11, 12)), choice.choice((0, 0, 0, -1, 1)))
        sequences += 1

    def end_it() -> None:
        nonlocal sequences
        tx.end(commit=choice.random() < 0.5, version=choice.choice((1, 4, 5, 5)), shift=choice.choice((0, 0, 0, -1, 1)))
        sequences = 0

    def begin_again() -> None:
        nonlocal sequences
        tx.init(choice.choice((0, 3, 5)))
        sequences = 0

    def read_it() -> None:
        tx.describe()  # the markers are written
        fetch(same, topic, at(0, 0), version=12, isolationLevel=1)

    steps: list[Callable[[], None]] = [
        produce_to_it,
        produce_to_it,
        end_it,
        begin_again,
        lambda: tx.add(topic, version=choice.randrange(4), shift=choice.choice((0, 0, 0, -1, 1))),
        tx.describe,
        read_it,
    ]
    for _ in range(STEPS):
        step = choice.choice(steps)
        done.append(step)
        step()
        if choice.random() < 0.5:
            tx.describe()


def row_of(offsets: dict[tuple[str, int], int], size: int, name: str, number: int) -> Any:
    return at(number, offsets[name, number], size)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_sessions(both: list[Peer], seed: int) -> None:
    """Partitions that are named, forgotten, written and cut, in one session; the order of the answers counts."""
    choice = random.Random(f"{SEED} {seed}")
    same, names = Same(both), [f"session-{seed}-{number}" for number in range(2)]
    for peer in both:
        for name in names:
            peer.create(name, 3)
    version = choice.choice((7, 12, 13, 18))
    offsets = {(name, number): 0 for name in names for number in range(3)}
    sessions, epoch = [0, 0], 0

    def some() -> list[tuple[str, int]]:
        return [each for each in offsets if choice.random() < 0.4]

    def grouped(peer: Peer, places: list[tuple[str, int]], row: Callable[[str, int], Any]) -> list[Any]:
        field = "topicId" if version >= 13 else "topic"
        return [
            {field: peer.named(name)[field], "partitions": [row(*each) for each in places if each[0] == name]}
            for name in names
            if any(each[0] == name for each in places)
        ]

    for _ in range(STEPS):
        for name, number in some():
            records = batch(*[b"x" * choice.randrange(1, 300)] * choice.randrange(1, 4))
            data = [{"index": number, "records": records}]
            send(same, (name, data))
        if choice.random() < 0.2:
            name, number = choice.choice(list(offsets))
            partitions = [{"partitionIndex": number, "offset": -1}]
            body = {"topics": [{"name": name, "partitions": partitions}], "timeoutMs": 5000}
            same.ask(DELETE_RECORDS, 2, lambda peer, body=body: body)
        asked = list(offsets) if epoch == 0 else some()
        forgotten = some() if choice.random() < 0.2 and epoch else []
        limits = {"maxBytes": choice.choice((200, 1000, 1 << 20)), "minBytes": 1, "maxWaitMs": 0, "isolationLevel": 0}
        size = choice.choice((1, 400, 1 << 20))
        answers = []
        for index, peer in enumerate(both):
            topics = grouped(peer, asked, partial(row_of, offsets, size))
            gone = grouped(peer, forgotten, lambda name, number: number)
            fields = {
                "sessionId": sessions[index],
                "sessionEpoch": epoch,
                "topics": topics,
                "forgottenTopicsData": gone,
            }
            answer = peer.ask(FETCH, version, **limits, **fields)
            sessions[index] = answer["sessionId"]
            ids = {topic_id: name for name, topic_id in peer.topics.items()}
            answers.append(
                [
                    (ids.get(topic["topicId"], topic["topic"]), each["partitionIndex"], each["errorCode"],
                     each["highWatermark"], each["logStartOffset"], len(each["records"] or b""))
                    for topic in answer["responses"] for each in topic["partitions"]
                ]
            )  # fmt: skip
        assert answers[0] == answers[1]
        assert bool(sessions[0]) == bool(sessions[1])
        epoch = epoch + 1 if sessions[0] else 0
        for name, number, _, high_watermark, start, _ in answers[0]:
            offsets[name, number] = choice.choice((high_watermark, max(start, 0), high_watermark + 1))
