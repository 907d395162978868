"""A real broker's internal topics, dumped by kafkalog and by kafka-dump-log: both must print the same lines.

Its groups (classic, consumer, share), its transactions and its metadata log come from real clients.  The tool is
Kafka's newest released one, 4.3.1; `NEWER_FIELDS` lists the fields of 4.4.0 that it does not know.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format import group_records, transaction_records
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.group_records import CommittedOffset, GroupMetadata, OffsetKey
from kafkalog.engine.format.transaction_records import TransactionState
from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conformance.test_dump_log import ours, theirs
from tests.conformance.test_dump_log import tool as tool
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

TOPIC = "input"
# Tagged fields that the tool does not know, as in JSON.
NEWER_FIELDS = re.compile(r',"(?:storedDescriptionTopologyEpoch|failedDescriptionTopologyEpoch)":-?\d+')
OFFSETS, TRANSACTIONS, SHARES = "__consumer_offsets-0", "__transaction_state-0", "__share_group_state-0"
WAIT_SECONDS_MAX = 60


def until(what: str) -> Iterator[None]:
    """Go round until the caller breaks off; fails after a time."""
    end = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < end:
        yield
    raise AssertionError(f"{what} took longer than {WAIT_SECONDS_MAX} s")


def groups(bootstrap: str) -> None:
    """A group of each protocol reads, commits and goes; one more is deleted."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    for group, protocol, topics in (
        ("classic", "classic", [TOPIC]),
        ("deleted", "classic", [TOPIC]),
        ("modern", "consumer", [TOPIC]),
        ("expression", "consumer", ["^inp.*"]),
    ):
        config = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, **clients.QUIET}
        consumer = confluent_kafka.Consumer(
            config | {"auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": f"{group}-é\x1f"}
        )
        consumer.subscribe(topics)
        for _ in until(group):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                break
        consumer.commit(asynchronous=False)
        consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap, **clients.QUIET})
    for future in admin.delete_consumer_groups(["deleted"]).values():
        future.result(WAIT_SECONDS_MAX)


def shares(bootstrap: str) -> None:
    """A share group takes some records, and gives one back."""
    import confluent_kafka

    config = {"bootstrap.servers": bootstrap, "group.id": "share", "share.acknowledgement.mode": "explicit"}
    consumer = confluent_kafka.ShareConsumer(config | clients.QUIET)
    consumer.subscribe([TOPIC])
    producer = clients.ConfluentProducer(bootstrap)
    for number, _ in enumerate(until("the share group")):
        producer.send(TOPIC, 0, clients.rows(500 + number, 3))
        taken = [message for message in consumer.poll(1.0) if message.error() is None]
        for at, message in enumerate(taken):
            kinds = confluent_kafka.AcknowledgeType
            consumer.acknowledge(message, kinds.ACCEPT if at % 2 else kinds.RELEASE)
        if taken:
            consumer.commit_sync(WAIT_SECONDS_MAX)
            if number > 2:
                break
    consumer.close()


def transactions(bootstrap: str) -> None:
    """Committed and aborted ones, one with a group's offsets, one that stays open."""
    import confluent_kafka

    for name in ("first", "second"):
        producer = clients.ConfluentProducer(bootstrap, transactional_id=name)
        for number in range(3):
            producer.begin()
            producer.send(TOPIC, number % 2, clients.rows(number, 3))
            producer.abort() if number == 1 else producer.commit()
    config = {"bootstrap.servers": bootstrap, "transactional.id": "offsets", **clients.QUIET}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(WAIT_SECONDS_MAX)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "in-a-transaction"})
    for ended in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        place = confluent_kafka.TopicPartition(TOPIC, 1, 5, "what I did")
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), WAIT_SECONDS_MAX)
        ended(WAIT_SECONDS_MAX)
    consumer.close()
    held = clients.ConfluentProducer(bootstrap, transactional_id="held")
    held.begin()
    held.send(TOPIC, 0, clients.rows(9, 1))


def settings(bootstrap: str) -> None:
    """Records of other kinds for the metadata log."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap, **clients.QUIET})
    entry = ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
    asked = admin.incremental_alter_configs([ConfigResource("topic", TOPIC, incremental_configs=[entry])])
    user = UserScramCredentialUpsertion("who", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    for future in (*asked.values(), *admin.alter_user_scram_credentials([user]).values()):
        future.result(WAIT_SECONDS_MAX)
    clients.create_topics(bootstrap, {"gone": (3, {})})
    for future in admin.delete_topics(["gone"]).values():
        future.result(WAIT_SECONDS_MAX)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directories of a broker that has done all that, and has stopped."""
    need_broker()
    place = tmp_path_factory.mktemp("internal")
    with kraft.broker(place) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {})})
        producer = clients.ConfluentProducer(node.bootstrap)
        for partition in range(2):
            producer.send(TOPIC, partition, clients.rows(partition, 20))
        settings(node.bootstrap)
        groups(node.bootstrap)
        transactions(node.bootstrap)
        shares(node.bootstrap)
        assert node.stop() == 143
    yield place
    shutil.rmtree(place, ignore_errors=True)


def log_files(folder: Path) -> list[str]:
    found = sorted(map(str, [*folder.glob("*.log"), *folder.glob("*.checkpoint")]))
    assert found
    return found


def dumped(option: str, folder: Path) -> list[str]:
    return ours(option, "--files", ",".join(log_files(folder)))[0]


CASES = [
    ("--offsets-decoder", f"logs/{OFFSETS}"),
    ("--transaction-log-decoder", f"logs/{TRANSACTIONS}"),
    ("--share-group-state-decoder", f"logs/{SHARES}"),
    ("--cluster-metadata-decoder", "metadata/__cluster_metadata-0"),
]


@pytest.mark.parametrize("more", [[], ["--skip-record-metadata"]], ids=["whole", "contents"])
@pytest.mark.parametrize(("option", "folder"), CASES, ids=[option for option, _ in CASES])
def test_the_same_lines(tool: kafka_jars.Driver, place: Path, option: str, folder: str, more: list[str]) -> None:
    args = [option, *more, "--files", ",".join(log_files(place / folder))]
    (our_out, our_err), (their_out, their_err) = ours(*args), theirs(tool, *args)
    assert [NEWER_FIELDS.sub("", line) for line in our_out] == their_out
    assert sorted(our_err) == sorted(their_err)


def test_the_broker_wrote_what_this_is_about(place: Path) -> None:
    """Nothing undecodable, and records of most types."""
    kinds = Counter[str]()
    for option, folder in CASES:
        lines = dumped(option, place / folder)
        assert not [line for line in lines if "skipping." in line]
        name = "payload" if "metadata" in option else "key"
        for line in lines:
            found = re.search(rf' {name}: \{{"type":"(\w+)"', line)
            if found:
                kinds[f"{option.split('-')[2]} {found[1]}"] += 1
    assert {f"offsets {number}" for number in (1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16)} <= kinds.keys()
    assert {"transaction 0", "share 0", "cluster TOPIC_RECORD", "cluster USER_SCRAM_CREDENTIAL_RECORD"} <= kinds.keys()
    assert {"cluster REMOVE_TOPIC_RECORD", "cluster PARTITION_CHANGE_RECORD"} <= kinds.keys()


def test_records_are_encoded_as_the_broker_wrote_them(place: Path) -> None:
    """Decoded and encoded again each record is the same, through the faces with names and types too."""
    offsets: dict[OffsetKey, CommittedOffset | None] = {}
    classic = 0
    with kafkalog.open_log(place / "logs", OFFSETS, read_only=True) as log:
        for record in log.records():
            key, value = group_records.decode_group_record(record.key, record.value)
            if isinstance(key, OffsetKey):
                assert value is None or isinstance(value, CommittedOffset)
                assert group_records.encode_offset_commit(key, value) == (record.key, record.value)
                offsets[key] = value
            elif isinstance(key, group_records.GroupKey):
                assert value is None or isinstance(value, GroupMetadata)
                assert group_records.encode_group_metadata(key, value) == (record.key, record.value)
                for member in value.members if value is not None else ():
                    classic += 1
                    said = group_records.decode_subscription(member.subscription)
                    assert said.topics == (TOPIC,)
                    assert group_records.decode_assignment(member.assignment).partitions == {TOPIC: (0, 1)}
            else:
                assert group_record_set().encode(key) == (record.key, record.value)
    assert classic
    assert {value for key, value in offsets.items() if key.group == "deleted"} == {None}
    kept = offsets[OffsetKey("in-a-transaction", TOPIC, 1)]
    assert kept is not None
    assert (kept.offset, kept.metadata.rstrip("\0")) == (5, "what I did")  # librdkafka sends its string's end too
    states: dict[str, list[TransactionState]] = {}
    with kafkalog.open_log(place / "logs", TRANSACTIONS, read_only=True) as log:
        for record in log.records():
            name, state = transaction_records.decode_transaction(record.key, record.value)
            assert state is not None
            assert transaction_records.encode_transaction(name, state) == (record.key, record.value)
            states.setdefault(name, []).append(state.state)
    assert states["held"][-1] is TransactionState.ONGOING
    assert states["offsets"][-1] is TransactionState.COMPLETE_ABORT
    assert TransactionState.PREPARE_COMMIT in states["first"]


def test_json_of_the_metadata_log(place: Path) -> None:
    files = ",".join(log_files(place / "metadata/__cluster_metadata-0"))
    records = [json.loads(line) for line in ours("--cluster-metadata-decoder", "--json", "--files", files)[0]]
    topics = {
        each["payload"]["data"]["name"] for each in records if each.get("payload", {}).get("type") == "TOPIC_RECORD"
    }
    assert {TOPIC, "__consumer_offsets", "__transaction_state", "__share_group_state"} <= topics
