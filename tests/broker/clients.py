"""Real clients: the records that they produce, and the `kafkalog.Record`s that they read, to compare with the reader's.

confluent-kafka (librdkafka) writes and reads; kafka-python writes too, because its batches look different.  They are
imported when used, so that this module can be imported without them.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalog import Record
from kafkalog.engine.format.names import TopicPartition

SECONDS_MAX = 60
START_MS = 1_700_000_000_000
HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (),
    (("trace", b"abc"),),
    (("again", b""), ("again", None), ("umlaut-\u00e4", b"\x00\xff")),
)
QUIET = {"log_level": 2}  # a killed broker is no news


class Row(NamedTuple):
    """One record that a producer is told to send."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def rows(seed: int, count: int, *, value_bytes_max: int = 300) -> list[Row]:
    """Records of every shape, the same for the same seed: nulls, empty bytes, headers, times out of order."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        value: bytes | None = b"%d/%d " % (seed, number) * draw.randrange(1, 1 + value_bytes_max // 8)
        shape = draw.randrange(12)
        if shape < 2:
            value = (None, b"")[shape]
        key = (None, b"", b"key-%d" % (number % 5))[min(draw.randrange(6), 2)]
        made.append(Row(value, key, HEADERS[number % 3], START_MS + seed * 1000 + draw.randrange(1000)))
    return made


# --- topics --------------------------------------------------------------------------------------------------


def create_topics(bootstrap: str, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Topics by name: how many partitions, and their settings.  Returns when clients can find all of them."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    asked = [NewTopic(name, count, 1, config=dict(config)) for name, (count, config) in topics.items()]
    for future in admin.create_topics(asked).values():
        future.result(SECONDS_MAX)
    until = time.monotonic() + SECONDS_MAX
    while True:
        known = admin.list_topics(timeout=SECONDS_MAX).topics
        ready = {name for name, topic in known.items() if all(p.leader >= 0 for p in topic.partitions.values())}
        if set(topics) <= ready:
            return
        assert time.monotonic() < until, f"topics without a leader: {set(topics) - ready}"
        time.sleep(0.05)


# --- producers -----------------------------------------------------------------------------------------------


class ConfluentProducer:
    """A confluent-kafka producer whose batches end where `send` ends; transactional when it has an id."""

    def __init__(self, bootstrap: str, codec: str = "none", *, transactional_id: str | None = None, **more: Any):
        from confluent_kafka import Producer

        config = {"bootstrap.servers": bootstrap, "compression.codec": codec, "linger.ms": 1000, **QUIET}
        config |= {"enable.idempotence": True, **more}
        if transactional_id is not None:
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": 900_000}
        self._producer = Producer(config)
        if transactional_id is not None:
            self._producer.init_transactions(SECONDS_MAX)

    def send(self, topic: str, partition: int, rows: Iterable[Row]) -> None:
        errors = []
        for row in rows:
            self._producer.produce(
                topic,
                row.value,
                row.key,
                partition,
                timestamp=row.timestamp,
                headers=list(row.headers) or None,
                on_delivery=lambda error, _: errors.append(error) if error is not None else None,
            )
        left = self._producer.flush(SECONDS_MAX)
        assert (left, errors) == (0, []), (left, errors)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS_MAX)


def _kafka_python() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, of importlib
        import kafka  # type: ignore[import-untyped,unused-ignore]
    return kafka


class PythonProducer:
    """The same with kafka-python."""

    def __init__(self, bootstrap: str, codec: str | None = None, *, transactional_id: str | None = None) -> None:
        config: dict[str, Any] = {"bootstrap_servers": bootstrap, "compression_type": codec, "linger_ms": 200}
        if transactional_id is not None:
            config |= {"transactional_id": transactional_id, "transaction_timeout_ms": 900_000}
        self._producer = _kafka_python().KafkaProducer(**config)
        if transactional_id is not None:
            self._producer.init_transactions()

    def send(self, topic: str, partition: int, rows: Iterable[Row]) -> None:
        sent = []
        for row in rows:
            headers = [(name, value or b"") for name, value in row.headers]  # it takes no null in a header
            key = row.key if row.key or row.value is not None else b"k"  # nor a record without key and value
            sent.append(
                self._producer.send(
                    topic, row.value, key=key, partition=partition, timestamp_ms=row.timestamp, headers=headers
                )
            )
        self._producer.flush(SECONDS_MAX)
        for future in sent:
            future.get(SECONDS_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(SECONDS_MAX)


# --- consumers -----------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The records that a consumer read from a partition, and the start and end (exclusive) that its broker reports."""

    records: list[Record]
    start: int
    end: int


def consume(bootstrap: str, partitions: Sequence[TopicPartition], isolation: str) -> dict[TopicPartition, Seen]:
    """Everything in these partitions as confluent-kafka's consumer sees it now."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
    from confluent_kafka import TopicPartition as Place

    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    config |= {"isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error", **QUIET}
    # A broker answers a connection's requests in order: a long poll would hold up the questions for offsets below.
    consumer = Consumer(config | {"fetch.wait.max.ms": 10})
    found: dict[TopicPartition, list[Record]] = {each: [] for each in partitions}
    waiting = set(partitions)
    try:
        consumer.assign([Place(each.topic, each.partition, OFFSET_BEGINNING) for each in partitions])
        until = time.monotonic() + SECONDS_MAX
        while waiting:
            assert time.monotonic() < until, f"no end of {waiting}"
            for message in consumer.consume(1000, 0.2):
                place = TopicPartition(str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    found[place].append(as_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(place)
                else:
                    raise AssertionError(f"{place}: {error}")
        seen = {}
        for each in partitions:
            start, end = consumer.get_watermark_offsets(Place(each.topic, each.partition), SECONDS_MAX)
            seen[each] = Seen(found[each], start, end)
        return seen
    finally:
        consumer.close()


def offsets_for_times(bootstrap: str, partition: TopicPartition, times_ms: Sequence[int]) -> list[int]:
    """The offset that the broker names for each time; -1 for none."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", **QUIET})
    try:
        return [
            consumer.offsets_for_times([Place(partition.topic, partition.partition, each)], SECONDS_MAX)[0].offset
            for each in times_ms
        ]
    finally:
        consumer.close()


def consume_with_python(bootstrap: str, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Record]]:
    """Everything below these offsets as kafka-python's consumer sees it, read_committed."""
    kafka = _kafka_python()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        group_id=None,
        fetch_max_wait_ms=10,
        auto_offset_reset="none",
    )
    found: dict[TopicPartition, list[Record]] = {each: [] for each in ends}
    try:
        places = {each: kafka.TopicPartition(*each) for each in ends}
        consumer.assign(list(places.values()))
        consumer.seek_to_beginning()
        until = time.monotonic() + SECONDS_MAX
        while any(consumer.position(places[each]) < end for each, end in ends.items()):
            assert time.monotonic() < until, "kafka-python does not come to the end"
            for place, records in consumer.poll(200).items():
                found[TopicPartition(*place)] += [as_record_of_python(record) for record in records]
        return found
    finally:
        consumer.close()


def as_record_of_python(record: Any) -> Record:
    fields = {name: getattr(record, name) for name in Record._fields}
    return Record(**fields | {"headers": tuple(record.headers)})


def as_record(message: Any) -> Record:
    """A confluent-kafka Message as a Record."""
    kind, timestamp = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        message.topic(),
        message.partition(),
        -1 if epoch is None else epoch,
        message.offset(),
        timestamp,
        kind - 1,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
