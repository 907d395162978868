"""One log directory through three runs of a broker, with kafkalog writing in it between them.

    run 1    topics are created; Kafka's clients write plain, idempotent and transactional records; the cleaner runs;
             kafkalog reads; SIGKILL with a transaction open
    between  kafkalog recovers copies; in place it appends to its own topics and to one that Kafka wrote, and is killed
             once, with a transaction of its own open and a torn batch at the end
    run 2    an unclean start: the broker serves everything, clients append more, kafkalog follows; SIGTERM
    between  kafkalog appends again, deletes records; a broker that starts meanwhile is refused
    run 3    a clean start: the broker serves everything again

Each phase is a function that returns its observations; the assertions are in test_broker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog import Record
from kafkalog.engine.format.names import TopicPartition
from tests.broker.clients import SECONDS_MAX, ConfluentProducer, PythonProducer, Seen, consume, rows
from tests.broker.kraft import Broker

ROOT = Path(__file__).parents[2]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = ("read_uncommitted", "read_committed")

# An offset index of 30 entries, one a batch: segments roll after about 20 batches, without megabytes.
ROLLS = {"segment.index.bytes": "240", "index.interval.bytes": "1", "segment.bytes": "1048576"}
STAMPED = {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **ROLLS}
TOPICS: dict[str, tuple[int, Mapping[str, str]]] = {
    "plain": (len(CODECS), {}),  # one codec a partition
    "mixed": (1, ROLLS),  # all codecs, confluent-kafka and kafka-python
    "txns": (2, ROLLS),  # interleaved transactions over two partitions
    "open": (1, ROLLS),  # a transaction that SIGKILL leaves open, others after it
    "stamped": (1, STAMPED),
    "fence": (1, {}),
    "mine": (len(CODECS), ROLLS),  # kafkalog writes it first
    "mine-txns": (1, ROLLS),
    "mine-stamped": (1, STAMPED),
    "mine-killed": (1, ROLLS),  # kafkalog is killed while it writes
    "compacted": (1, COMPACTED),
}
BY_KAFKA = ("plain", "mixed", "txns", "open", "stamped")
BY_KAFKALOG = ("mine", "mine-txns", "mine-stamped", "mine-killed")
OPEN = TopicPartition("open", 0)
MIXED = TopicPartition("mixed", 0)
MINE_TXNS = TopicPartition("mine-txns", 0)
MINE_KILLED = TopicPartition("mine-killed", 0)
COMPACTED_PARTITION = TopicPartition("compacted", 0)
TRANSACTION_STATE = TopicPartition("__transaction_state", 0)

# Appends until it is killed, in a transaction whose beginning it has announced.
WRITER = """
import sys, kafkalog
from tests.broker.story import ROLLS, plain, rows
with kafkalog.open_log(sys.argv[1], sys.argv[2], config=ROLLS, create=False, compression="zstd", take_over=True) as log:
    with log.transaction("before") as transaction:
        transaction.append_many(plain(rows(1, 5)))
    killed = log.transaction("killed")
    killed.begin()
    turn = 0
    while True:
        log.append_many(plain(rows(turn, 4)))
        offset = killed.append_many(plain(rows(turn, 3)))[-1]
        print(offset, flush=True)
        turn += 1
"""


def partitions(topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(TOPICS[topic][0])]


@dataclass
class Look:
    """The state of one partition as kafkalog's reader sees it."""

    records: dict[str, list[Record]]
    arrow: dict[str, list[Record]]
    start: int
    end: int
    stable: int


@dataclass
class Phase:
    """The state of the same log as clients and as kafkalog saw it."""

    served: dict[str, dict[TopicPartition, Seen]] = field(default_factory=dict)  # by isolation
    looks: dict[TopicPartition, Look] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    topic_ids: dict[str, bytes] = field(default_factory=dict)


def look(log: kafkalog.Partition) -> Look:
    return Look(
        {isolation: list(log.records(isolation=isolation)) for isolation in ISOLATIONS},
        {isolation: arrow_records(log, isolation) for isolation in ISOLATIONS},
        log.log_start_offset,
        log.end_offset,
        log.last_stable_offset,
    )


def arrow_records(log: kafkalog.Partition, isolation: str) -> list[Record]:
    """The Arrow table as Records again."""
    import pyarrow as pa

    names = ("topic", "partition", "leader_epoch", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
    table = log.read_arrow(columns=names, isolation=isolation)
    columns = {name: table.column(name) for name in names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    lists: dict[str, list[Any]] = {name: column.to_pylist() for name, column in columns.items()}
    lists["headers"] = [
        () if headers is None else tuple((header["key"], header["value"]) for header in headers)
        for headers in lists["headers"]
    ]
    return [Record(*row) for row in zip(*lists.values(), strict=True)]


def look_on(log_dir: Path, which: Iterable[TopicPartition]) -> dict[TopicPartition, Look]:
    """Read-only looks."""
    looks = {}
    for each in which:
        with kafkalog.open_log(log_dir, each, read_only=True) as log:
            looks[each] = look(log)
    return looks


def serve(broker: Broker, which: list[TopicPartition]) -> dict[str, dict[TopicPartition, Seen]]:
    return {isolation: consume(broker.bootstrap, which, isolation) for isolation in ISOLATIONS}


def folder_names(broker: Broker) -> list[str]:
    return sorted(path.name for path in broker.log_dir.iterdir() if path.is_dir())


def topic_ids(broker: Broker) -> dict[str, bytes]:
    names = {str(each) for each in partitions(TOPICS)}
    return {name: (broker.log_dir / name / "partition.metadata").read_bytes() for name in sorted(names)}


def files(folder: Path) -> dict[str, bytes]:
    """Segments, indexes and snapshots of a partition."""
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in kinds}


# --- life 1 --------------------------------------------------------------------------------------------------


def kafka_writes(broker: Broker) -> ConfluentProducer:
    """Everything that clients write in the first run; returns the producer whose transaction stays open."""
    at = broker.bootstrap
    for number, codec in enumerate(CODECS):
        producer = ConfluentProducer(at, codec)
        producer.send("plain", number, rows(number, 200))
        for part in range(6):
            producer.send("mixed", 0, rows(10 * number + part, 3 + 5 * part))
        producer.send("stamped", 0, rows(20 + number, 20))
    for packing in (None, "gzip", "lz4", "zstd"):
        python = PythonProducer(at, packing)
        try:
            for part in range(3):
                python.send("mixed", 0, rows(70 + part, 10))
        finally:
            python.close()
    return _transactions(at)


def _transactions(at: str) -> ConfluentProducer:
    plain = ConfluentProducer(at, "gzip")
    one = ConfluentProducer(at, "lz4", transactional_id="one")
    two = ConfluentProducer(at, "zstd", transactional_id="two")
    python = PythonProducer(at, "gzip", transactional_id="python")
    try:
        for turn in range(6):
            one.begin()
            two.begin()
            for part in range(3):
                one.send("txns", part % 2, rows(100 + turn, 4))
                two.send("txns", 0, rows(200 + turn, 3))
                plain.send("txns", 0, rows(300 + turn, 2))
            (one.abort if turn % 2 else one.commit)()
            plain.send("txns", 1, rows(400 + turn, 3))
            (two.abort if turn % 3 == 0 else two.commit)()
        for end in (python.commit, python.abort, python.commit):
            python.begin()
            python.send("txns", 1, rows(500, 5))
            end()
        for topic in ("txns", "open"):
            one.begin()
            one.send(topic, 0, rows(600, 5))
            one.commit()
        held = ConfluentProducer(at, "snappy", transactional_id="held")
        held.begin()
        held.send("open", 0, rows(700, 6))
        for turn in range(12):  # the segment rolls with the transaction open
            one.begin()
            one.send("open", 0, rows(800 + turn, 3))
            (one.abort if turn % 2 else one.commit)()
            plain.send("open", 0, rows(900 + turn, 2))
        held.send("open", 0, rows(701, 2))
        for producer in (one, two, python):
            settle(producer)
    finally:
        python.close()
    return held


def kafka_compacts(broker: Broker) -> None:
    """Keyed records, aborted transactions and tombstones, and then the broker's cleaner."""
    one = ConfluentProducer(broker.bootstrap, "lz4", transactional_id="one")
    for turn in range(60):
        keyed = [row._replace(key=row.key or b"key-none") for row in rows(1500 + turn, 6)]
        one.begin()
        one.send("compacted", 0, keyed)
        (one.abort if turn % 4 == 1 else one.commit)()
    settle(one)
    segments = sorted((broker.log_dir / str(COMPACTED_PARTITION)).glob("*.log"))
    checkpoint = broker.log_dir / "cleaner-offset-checkpoint"
    wanted = f"compacted 0 {int(segments[-1].stem)}\n"
    until = time.monotonic() + SECONDS_MAX
    while not checkpoint.exists() or wanted not in checkpoint.read_text():
        assert time.monotonic() < until, f"the cleaner has not come to {wanted}"
        time.sleep(0.1)


def settle(producer: ConfluentProducer | PythonProducer) -> None:
    """Wait until the markers of the last transaction are written: no other can begin before."""
    producer.begin()
    producer.send("fence", 0, rows(0, 1))
    producer.abort()


# --- between lives -------------------------------------------------------------------------------------------


def recover_copy(broker: Broker, copy: Path, which: Iterable[TopicPartition]) -> dict[TopicPartition, Look]:
    """A writable open, which recovers, of each partition in a copy of the log directory."""
    shutil.copytree(broker.log_dir, copy)
    looks = {}
    for each in which:
        with kafkalog.open_log(copy, each, config=TOPICS[each.topic][1], create=False, take_over=True) as log:
            looks[each] = look(log)
    return looks


def kafkalog_writes(broker: Broker, turn: int) -> None:
    """kafkalog appends in place, in every way that it has."""
    root = broker.log_dir
    for number, codec in enumerate(CODECS):
        with kafkalog.open_log(
            root, TopicPartition("mine", number), config=ROLLS, create=False, compression=codec, take_over=True
        ) as log:
            for part in range(30):
                log.append_many(plain(rows(1000 * turn + part, 1 + part % 7)))
            writer = log.writer("import")
            for part in range(10):
                writer.append_many(fresh(rows(2000 * turn + part, 5)))
                writer.append_many(fresh(rows(2000 * turn + part, 5)), sequence=writer.next_sequence - 5)  # a retry
    with kafkalog.open_log(root, MINE_TXNS, config=ROLLS, create=False, compression="lz4", take_over=True) as log:
        own_transactions(log, turn)
    with kafkalog.open_log(
        root, TopicPartition("mine-stamped", 0), config=STAMPED, create=False, take_over=True
    ) as log:
        log.append_many(plain(rows(4000 + turn, 50)))


def own_transactions(log: kafkalog.Partition, turn: int) -> None:
    for part in range(8):
        seed = 3000 * turn + 10 * part
        one, two = log.transaction("one"), log.transaction("two")
        one.begin()
        two.begin()
        one.append_many(plain(rows(seed, 3)))
        two.append_many(plain(rows(seed + 1, 2)))
        log.append_many(plain(rows(seed + 2, 2)))
        two.append_many(plain(rows(seed + 3, 2)))
        (one.abort if part % 2 else one.commit)()
        one.begin()
        one.append_many(plain(rows(seed + 4, 3)))
        (two.abort if part % 3 == 0 else two.commit)()
        one.commit()


def kafkalog_writes_more(log: kafkalog.Partition) -> None:
    log.append_many(plain(rows(6000, 20)))
    writer = log.writer("import")
    again = writer.append_many(fresh(rows(2009, 5)), sequence=writer.next_sequence - 5)
    assert len(again) == 0  # the log knew them, through a broker's run
    writer.append_many(fresh(rows(6001, 30)))


def killed_while_writing(broker: Broker) -> list[int]:
    """Offsets that a writing process had been told of before SIGKILL; then the last batch is torn."""
    command = [sys.executable, "-c", WRITER, str(broker.log_dir), str(MINE_KILLED)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(30)]
    writer.kill()
    rest, _ = writer.communicate()
    told += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    newest = max((broker.log_dir / str(MINE_KILLED)).glob("*.log"))
    if newest.stat().st_size == 0:  # killed in a roll: as if that had not begun
        for path in newest.parent.glob(f"{newest.stem}.*"):
            path.unlink()
        newest = max(newest.parent.glob("*.log"))
    os.truncate(newest, newest.stat().st_size - 7)
    return told


class Tail(threading.Thread):
    """Follows a partition read-only while others write to it."""

    def __init__(self, log_dir: Path, which: TopicPartition, isolation: str) -> None:
        super().__init__(daemon=True)
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self._args = (log_dir, which, isolation)
        self._last_look = threading.Event()
        self.start()

    def run(self) -> None:
        log_dir, which, isolation = self._args
        try:
            with kafkalog.open_log(log_dir, which, read_only=True) as log:
                reader = log.reader(isolation=isolation)
                last = False
                while not last:
                    last = self._last_look.wait(0.02)
                    log.refresh()
                    self.records += reader.records()
        except BaseException as error:
            self.error = error

    def finish(self) -> list[Record]:
        """Everything up to now."""
        self._last_look.set()
        self.join(SECONDS_MAX)
        if self.error is not None:
            raise self.error
        return self.records


def plain(made: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in made]


def fresh(made: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Without timestamps, that is now: a broker forgets a producer whose newest record is a day old."""
    return [tuple(row)[:3] for row in made]


# --- life 2 --------------------------------------------------------------------------------------------------


def kafka_writes_on(broker: Broker) -> None:
    """Clients append after kafkalog, to its topics and to those that Kafka began."""
    at = broker.bootstrap
    plain_producer = ConfluentProducer(at, "zstd")
    one = ConfluentProducer(at, "lz4", transactional_id="one")
    for number in range(len(CODECS)):
        for part in range(3):
            plain_producer.send("mine", number, rows(5000 + part, 8))
    for turn in range(12):
        one.begin()
        one.send("mine-txns", 0, rows(5100 + turn, 3))
        one.send("mixed", 0, rows(5200 + turn, 3))
        plain_producer.send("mine-txns", 0, rows(5300 + turn, 2))
        (one.abort if turn % 2 else one.commit)()
    plain_producer.send("mine-stamped", 0, rows(5400, 30))
    # The same transactional id again: the transaction that SIGKILL left open is aborted.
    held = ConfluentProducer(at, "none", transactional_id="held")
    held.begin()
    held.send("open", 0, rows(5500, 4))
    held.commit()
    settle(one)
    settle(held)
