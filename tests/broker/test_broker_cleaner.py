"""A real broker's cleaner and kafkalog's on the same data, with the same settings and at the same time: the same files.

    life 1   clients write into topics that are not compacted yet, with transactions, tombstones and idempotent
             producers, by every codec; groups commit; SIGTERM; a copy of the directory
    life 2   the topics are made compact, and the broker's cleaner comes by
    between  LogManager does the same to the copy, topic by topic, at the very millisecond of the broker's pass (which a
             delete horizon tells); the copy takes the broker's place in half of the partitions
    life 3   the broker serves what both have cleaned; clients write more; SIGTERM; a copy
    life 4   the broker goes on cleaning; LogManager does in the copy

Files are compared byte for byte, and the times of segments that were cleaned.  Left out is leader-epoch-checkpoint: a
broker that starts writes the epoch in which it leads.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kafkalog import Record
from kafkalog._native.codec import batches as native
from kafkalog.config import BrokerLogConfig
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import parse_properties
from kafkalog.engine.format.names import TOPIC_CONFIGS_FILE, TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from tests.broker import clients, kraft, story
from tests.broker.clients import ConfluentProducer, Row, Seen
from tests.broker.story import ISOLATIONS, ROLLS, Look
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

CHECKPOINT = "cleaner-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
DAY_MS = 86_400_000
# A map of 87 keys, buffers that a batch of a few KiB does not fit into.
CLEANER = {"log.cleaner.io.buffer.load.factor": "0.0005", "log.cleaner.io.buffer.size": "8192"}
WRITTEN = {"cleanup.policy": "delete", "retention.bytes": "-1", **ROLLS}
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.index.bytes": "4800",  # several of the small segments become one
    "file.delete.delay.ms": "0",
    "delete.retention.ms": str(DAY_MS),
}
AT_ONCE = COMPACT | {"delete.retention.ms": "1"}  # tombstones go with the next pass
BOTH = COMPACT | {"cleanup.policy": "compact,delete"}
FEW_BYTES = BOTH | {"retention.bytes": "1"}  # all but the active segment
CODECS = ("none", "gzip", "lz4", "zstd")
OFFSETS = "__consumer_offsets"
# Each topic's content after compaction.
TOPICS: dict[str, dict[str, str]] = {
    **{codec: AT_ONCE if number % 2 else COMPACT for number, codec in enumerate(CODECS)},
    "txns": COMPACT,
    "short-txns": AT_ONCE,
    "producers": AT_ONCE,
    "stamped": COMPACT,
    "wide": COMPACT,  # more keys than a map takes, and nothing that hangs on the time of a pass
    "both": BOTH,
    OFFSETS: COMPACT,
}
GIVEN = {
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"},
    OFFSETS: {"segment.ms": "30"},  # its first segment was created with other settings, and is larger
}
PARTITIONS = [TopicPartition(topic, 0) for topic in TOPICS]
READ = [each for each in PARTITIONS if each.topic != OFFSETS]
GROUPS = ("first", "second")
FROM_HERE = [each for number, each in enumerate(PARTITIONS) if number % 2 == 0]  # ours, in the broker's directory
PASS = re.compile(r"cleaned log (\S+) \(dirty section = \[(\d+), (\d+)\]\)")


def written(topic: str) -> dict[str, str]:
    """Its settings while clients write."""
    return WRITTEN | GIVEN.get(topic, {})


# --- what clients do -------------------------------------------------------------------------------------------


def keyed(seed: int, count: int, *, keys: int = 0, tombstones: bool = True, now: bool = False) -> list[Row]:
    """Rows of `clients.rows`, nearly all with one of so many keys; later rounds leave some keys alone."""
    keys = keys or (30 if seed < 2000 else 20)
    made = clients.rows(seed, count, value_bytes_max=400)
    for number, row in enumerate(made):
        key = b"key-%d" % ((seed * 5 + number * 3) % keys)
        value = row.value if tombstones or row.value is not None else b"some"
        time_ms = int(time.time() * 1000) if now else row.timestamp
        made[number] = row._replace(key=key if number % 11 else row.key, value=value, timestamp=time_ms)
    return made


def clients_write(node: kraft.Broker, seed: int) -> None:
    at = node.bootstrap
    senders = {codec: ConfluentProducer(at, codec) for codec in CODECS}
    own = [ConfluentProducer(at, codec) for codec in ("lz4", "none", "zstd")]
    for turn in range(65):
        for codec, sender in senders.items():
            sender.send(codec, 0, keyed(seed + turn, 2 + turn % 7))
        senders["lz4"].send("stamped", 0, keyed(seed + turn, 3))
        senders["zstd" if turn % 2 else "none"].send("both", 0, keyed(seed + turn, 4))
        senders["gzip"].send("wide", 0, keyed(seed + turn, 9, keys=300, tombstones=False))
        # One has its last word early, and keeps the header of its last batch.
        own[turn % 2 if turn > 10 else 2].send("producers", 0, keyed(seed + turn, 3, now=True))
    one = ConfluentProducer(at, "lz4", transactional_id="one")
    two = ConfluentProducer(at, "none", transactional_id="two")
    for turn in range(24):
        one.begin()
        two.begin()
        for topic in ("txns", "short-txns"):
            one.send(topic, 0, keyed(seed + turn, 4))
            two.send(topic, 0, keyed(seed + 100 + turn, 2))
            senders["none"].send(topic, 0, keyed(seed + 200 + turn, 2))
        (one.abort if turn % 3 == 0 else one.commit)()
        (two.abort if turn % 4 == 1 else two.commit)()
    story.settle(one)
    story.settle(two)


def groups_commit(node: kraft.Broker, start: int, count: int) -> None:
    """Two groups commit over and over, one of them in transactions as well."""
    import confluent_kafka

    config = {"bootstrap.servers": node.bootstrap, **clients.QUIET}
    consumers = {group: confluent_kafka.Consumer(config | {"group.id": group}) for group in GROUPS}
    producer = confluent_kafka.Producer(config | {"transactional.id": "offsets"})
    producer.init_transactions(clients.SECONDS_MAX)
    for number in range(start, start + count):
        for group, consumer in consumers.items():
            place = confluent_kafka.TopicPartition("none", 0, number, f"{group} at {number}")
            consumer.commit(offsets=[place], asynchronous=False)
            if number % 4 == 0:
                producer.begin_transaction()
                place = confluent_kafka.TopicPartition("lz4", 0, number)
                producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), clients.SECONDS_MAX)
                end = producer.abort_transaction if number % 8 == 0 else producer.commit_transaction
                end(clients.SECONDS_MAX)
    for consumer in consumers.values():
        consumer.close()


def committed(node: kraft.Broker) -> dict[str, list[tuple[str, int, str | None]]]:
    """The groups' committed offsets, as the broker reports them."""
    import confluent_kafka

    found = {}
    for group in GROUPS:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": group, **clients.QUIET}
        )  # fmt: skip
        places = [confluent_kafka.TopicPartition(topic, 0) for topic in ("none", "lz4")]
        told = consumer.committed(places, clients.SECONDS_MAX)
        found[group] = [(each.topic, each.offset, each.metadata) for each in told]
        consumer.close()
    return found


def alter(node: kraft.Broker, topics: Mapping[str, Mapping[str, str]]) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    asked = [
        ConfigResource(
            "topic",
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
            ],
        )
        for topic, config in topics.items()
    ]
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **clients.QUIET})
    for future in admin.incremental_alter_configs(asked).values():
        future.result(clients.SECONDS_MAX)


# --- what cleaners do ------------------------------------------------------------------------------------------


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def until(what: str) -> Iterator[None]:
    """Go round until the caller breaks off; fails after a time."""
    end = time.monotonic() + clients.SECONDS_MAX
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    raise AssertionError(f"{what} took longer than {clients.SECONDS_MAX} s")


def wait_for_cleaner(log_dir: Path, partitions: Iterable[TopicPartition]) -> None:
    """Waits until it has come to the active segment of each, and the files of old segments are deleted."""
    wanted = {f"{each.topic} {each.partition} {bases(log_dir / str(each))[-1]}" for each in partitions}
    for _ in until("the cleaner"):
        path = log_dir / CHECKPOINT
        lines = path.read_text().splitlines() if path.exists() else []
        if wanted <= set(lines) and not list(log_dir.glob("*/*.deleted")):
            break


def broker_cleans(node: kraft.Broker) -> None:
    alter(node, TOPICS)
    wait_for_cleaner(node.log_dir, PARTITIONS)
    before = bases(node.log_dir / "both-0")
    alter(node, {"both": FEW_BYTES})
    for _ in until("the broker's retention"):
        if bases(node.log_dir / "both-0")[0] > before[0] and not list(node.log_dir.glob("*/*.deleted")):
            break


def horizons(folder: Path) -> list[int]:
    found = []
    for path in sorted(folder.glob("*.log")):
        headers, _, _ = native.headers(path.read_bytes())
        found += [each.delete_horizon_ms for each in headers if each.delete_horizon_ms is not None]
    return found


def times_of_passes(log_dir: Path, since_ms: int) -> dict[str, int]:
    """When the broker cleaned each topic that has got a delete horizon since then."""
    times: dict[str, int] = {}
    for topic, config in TOPICS.items():
        retention_ms = int(config["delete.retention.ms"])
        set_now = {each - retention_ms for each in horizons(log_dir / f"{topic}-0")}
        found = [each for each in set_now if each >= since_ms]
        assert len(found) <= 1, f"{topic} was cleaned at {found}"
        if found:
            times[topic] = found[0]
    return times


def kafkalog_cleans(node: kraft.Broker, log_dir: Path, told: Round, since_ms: int) -> None:
    """With the broker's own settings, each topic when the broker came to it: in that order, and at that time."""
    broker = BrokerLogConfig.from_props(parse_properties(node.properties.read_bytes()))
    settings = ManagerSettings.from_broker(broker)
    settings = settings._replace(cleaner=replace(settings.cleaner, backoff_ms=20))  # the same, sooner
    clock = ManualClock(since_ms)
    scheduler = ManualScheduler(clock)
    with LogManager([log_dir], settings, clock=clock, scheduler=scheduler, take_over=True) as manager:
        for partition in map(names.partition_of, dict.fromkeys(name for name, _, _ in told.passes)):
            clock.advance_to(told.times.get(partition.topic, clock.now_ms))
            manager.set_topic_config(partition.topic, written(partition.topic) | TOPICS[partition.topic])
            log, cleaner = manager.get_log(partition), manager.cleaner
            assert log is not None
            assert cleaner is not None
            assert cleaner.await_cleaned(partition, log.active_segment.base_offset), manager.uncleanable_partitions
        manager.set_topic_config("both", written("both") | FEW_BYTES)
        both = manager.get_log(TopicPartition("both", 0))
        assert both is not None
        before = both.log_start_offset
        for _ in until("kafkalog's retention"):
            if both.log_start_offset > before:
                break
        clock.advance(1)
        scheduler.tick()
    (log_dir / TOPIC_CONFIGS_FILE).unlink()


# --- what is compared ------------------------------------------------------------------------------------------


Files = dict[str, tuple[bytes, int]]


def files(log_dir: Path) -> Files:
    """Content and time (ms) by name; the time only of what Kafka gives one: files of a segment that was cleaned."""
    found = {CHECKPOINT: ((log_dir / CHECKPOINT).read_bytes(), 0)}
    for each in PARTITIONS:
        folder = log_dir / str(each)
        active = bases(folder)[-1]
        for path in sorted(folder.iterdir()):
            is_old = path.suffix in (".log", ".index", ".timeindex") and int(path.stem) < active
            if path.name != EPOCHS:
                time_ms = path.stat().st_mtime_ns // 1_000_000 if is_old else 0
                found[f"{each}/{path.name}"] = path.read_bytes(), time_ms
    return found


Latest = dict[tuple[str, bytes], tuple[int, bytes | None]]


def latest(seen: Mapping[TopicPartition, Seen] | Mapping[TopicPartition, list[Record]]) -> Latest:
    """Offset and value of each key's last record; tombstones count as no key."""
    state: Latest = {}
    for partition, of in seen.items():
        for record in of.records if isinstance(of, Seen) else of:
            if record.key is not None and partition.topic != "both":
                state[partition.topic, record.key] = record.offset, record.value
    return {key: found for key, found in state.items() if found[1] is not None}


@dataclass
class Round:
    """One round: the records that clients wrote, both cleaners' results, and the records read afterwards."""

    before: dict[str, dict[TopicPartition, Seen]] = field(default_factory=dict)
    after: dict[str, dict[TopicPartition, Seen]] = field(default_factory=dict)
    theirs: Files = field(default_factory=dict)
    ours: Files = field(default_factory=dict)
    sources: Files = field(default_factory=dict)
    looks: dict[TopicPartition, Look] = field(default_factory=dict)
    groups: tuple[object, object] = (None, None)
    passes: list[tuple[str, int, int]] = field(default_factory=list)  # the broker's: log, from, to
    times: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


@dataclass
class Story:
    first: Round = field(default_factory=Round)
    second: Round = field(default_factory=Round)
    served_again: dict[str, dict[TopicPartition, Seen]] = field(default_factory=dict)
    groups_again: object = None


def cleaned_by_both(node: kraft.Broker, copy: Path, told: Round) -> None:
    """The broker has stopped after it was written to; `copy` is where kafkalog cleans."""
    since_ms = int(time.time() * 1000)
    shutil.copytree(node.log_dir, copy)
    (copy / CHECKPOINT).touch()
    told.sources = files(copy)
    node.start()
    broker_cleans(node)
    told.after = story.serve(node, READ)
    told.groups = told.groups[0], committed(node)
    # (A broker does not start with indexes that have become smaller than what is in them.)
    alter(node, {topic: written(topic) for topic in TOPICS})
    node.stop()
    log = node.log_text()
    told.passes = [(name, int(start), int(end)) for name, start, end in PASS.findall(log)]
    told.complaints = node.complaints([str(each) for each in PARTITIONS])
    told.times = times_of_passes(node.log_dir, since_ms)
    kafkalog_cleans(node, copy, told, since_ms)
    told.theirs, told.ours = files(node.log_dir), files(copy)
    told.looks = story.look_on(copy, READ)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    need_broker()
    place = tmp_path_factory.mktemp("cleaners")
    told = Story()
    with kraft.broker(place / "node") as node:
        node.properties.write_text(node.properties.read_text() + "".join(f"{k}={v}\n" for k, v in CLEANER.items()))
        node.start()
        made = {topic: (1, written(topic)) for topic in TOPICS if topic != OFFSETS}
        clients.create_topics(node.bootstrap, made | {"fence": (1, {})})
        groups_commit(node, 0, 1)  # makes the topic of the groups
        alter(node, {OFFSETS: written(OFFSETS)})
        clients_write(node, 1000)
        groups_commit(node, 1, 30)
        told.first.before = story.serve(node, READ)
        told.first.groups = committed(node), None
        node.stop()
        cleaned_by_both(node, place / "first", told.first)

        for each in FROM_HERE:
            shutil.rmtree(node.log_dir / str(each))
            shutil.copytree(place / "first" / str(each), node.log_dir / str(each))
        shutil.copy2(place / "first" / CHECKPOINT, node.log_dir / CHECKPOINT)
        node.start()
        told.served_again = story.serve(node, READ)
        told.groups_again = committed(node)
        clients_write(node, 2000)
        groups_commit(node, 50, 30)
        told.second.before = story.serve(node, READ)
        told.second.groups = committed(node), None
        node.stop()
        cleaned_by_both(node, place / "second", told.second)
    yield told
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=["first", "second"])
def part(told: Story, request: pytest.FixtureRequest) -> Round:
    found = getattr(told, request.param)
    assert isinstance(found, Round)
    return found


# --- the same files --------------------------------------------------------------------------------------------


def test_files_are_equal(part: Round) -> None:
    """Segments, indexes, aborted transactions, producer snapshots, the checkpoint, and the times of old segments."""
    assert sorted(part.ours) == sorted(part.theirs)
    assert [name for name, found in part.ours.items() if found[0] != part.theirs[name][0]] == []
    assert [name for name, found in part.ours.items() if found[1] != part.theirs[name][1]] == []


def test_there_was_something_to_clean(part: Round) -> None:
    def records(of: Files, topic: str) -> int:
        parts = [data for name, (data, _) in of.items() if name.startswith(f"{topic}-0/") and name.endswith(".log")]
        return sum(header.count for data in parts for header in native.headers(data)[0])

    def segments(of: Files, topic: str) -> int:
        return sum(name.startswith(f"{topic}-0/") and name.endswith(".log") for name in of)

    for topic in TOPICS:
        assert records(part.ours, topic) < records(part.sources, topic), topic
        assert segments(part.sources, topic) >= 3, topic
        assert segments(part.ours, topic) < segments(part.sources, topic), topic
    assert len([each for each in part.passes if each[0] == "wide-0"]) > 1  # a map took not all of it
    assert len(part.times) >= 4
    assert part.complaints == []


# --- going on where the other stopped --------------------------------------------------------------------------


def test_the_second_pass_begins_where_the_first_ended(told: Story) -> None:
    """The second pass also drops records to which the first pass of either cleaner gave a delete horizon."""
    ends = dict(line.rsplit(b" ", 2)[::2] for line in told.first.ours[CHECKPOINT][0].splitlines()[2:])
    begun = {name: start for name, start, _ in reversed(told.second.passes)}
    assert begun == {f"{topic.decode()}-0": int(end) for topic, end in ends.items()}
    assert min(begun.values()) > 0
    assert told.first.times.keys() >= {"gzip", "zstd", "short-txns", "txns"}


def test_tombstones_of_the_first_pass_go_with_the_second(told: Story) -> None:
    """Either cleaner honours the other's delete horizon. Tombstones whose horizon is a day later stay."""

    def tombstones(part: Round, topic: str) -> set[int]:
        found = part.looks[TopicPartition(topic, 0)].records["read_uncommitted"]
        return {record.offset for record in found if record.value is None}

    for topic in (*CODECS, "txns", "short-txns"):
        segments = [name for name in told.first.sources if name.startswith(f"{topic}-0/") and name.endswith(".log")]
        active = int(Path(max(segments)).stem)
        had = {offset for offset in tombstones(told.first, topic) if offset < active}
        assert had, topic
        kept = had & tombstones(told.second, topic)
        assert not kept or TOPICS[topic] is COMPACT, topic
        assert kept or topic not in ("none", "lz4"), topic


# --- what clients see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_clients_read_the_same_latest_state(part: Round, isolation: str) -> None:
    if isolation == "read_committed":
        assert latest(part.after[isolation]) == latest(part.before[isolation])
        assert len(latest(part.after[isolation])) > 200
    for each in READ:
        seen = part.after[isolation][each]
        assert part.looks[each].records[isolation] == seen.records, each
        assert seen.end == part.before[isolation][each].end
        records = part.before[isolation][each].records
        assert [record for record in records if record in seen.records] == seen.records, each
        assert len(seen.records) < len(records), each


def test_the_broker_serves_what_kafkalog_has_cleaned(told: Story) -> None:
    assert told.served_again == told.first.after


def test_what_retention_deleted_is_gone(part: Round) -> None:
    """`compact,delete`: the cleaner's thread deletes old segments as well."""
    both = TopicPartition("both", 0)
    start = part.after["read_committed"][both].start
    assert start > part.before["read_committed"][both].start
    assert part.looks[both].start == start


def test_groups_are_still_there(told: Story) -> None:
    before, after = told.first.groups
    assert before == after == told.groups_again
    before, after = told.second.groups
    assert before == after
    assert before == {group: [("none", 79, f"{group} at 79"), ("lz4", 76, None)] for group in GROUPS}
