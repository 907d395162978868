"""Sequences about records: produce, fetch, offsets, idempotent and transactional producers."""

from __future__ import annotations

from typing import Any

from kafkalog.engine.format.messages import Values
from tests.reference.legacy import build_batch
from tests.wire.stories_topics import UNKNOWN_ID, create
from tests.wire.talk import TIMEOUT_SECONDS, Talk

TIME = 1_700_000_000_000


def batch(count: int = 1, **options: Any) -> bytes:
    return build_batch([(TIME + i, b"k%d" % i, b"v" * 10, [("h", b"1")]) for i in range(count)], **options)


def to_produce(topic: str, topic_id: str, partitions: dict[int, bytes | None], **rest: Any) -> Values:
    rows = [{"index": index, "records": records} for index, records in partitions.items()]
    return {
        "acks": -1,
        "timeoutMs": 30000,
        "topicData": [{"name": topic, "topicId": topic_id, "partitionData": rows}],
    } | rest


def at_version(values: Values, version: int) -> Values:
    """Topics by name or by id, as the version of Produce and Fetch wants."""
    by_id = version >= 13
    drop = {"name", "topic"} if by_id else {"topicId"}
    rows = {
        name: [{key: each for key, each in row.items() if key not in drop} for row in values[name]]
        for name in ("topicData", "topics", "forgottenTopicsData")
        if name in values
    }
    return values | rows


def produce(talk: Talk) -> None:
    topic_id = create(talk, "produced", 2)
    for version in range(3, 14):
        for acks in (-1, 1):
            talk.ask(
                "Produce",
                version,
                at_version(to_produce("produced", topic_id, {0: batch(2), 1: batch()}, acks=acks), version),
            )
        talk.tell("Produce", version, at_version(to_produce("produced", topic_id, {0: batch()}, acks=0), version))
        for acks in (2, -2):
            talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {0: batch()}, acks=acks), version))
        talk.ask("Produce", version, at_version(to_produce("unknown", UNKNOWN_ID, {0: batch()}), version))
        talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {9: batch(), 0: batch()}), version))
        broken = bytearray(batch())
        broken[-1] ^= 1
        for records in (bytes(broken), batch()[:-1], batch()[:30], batch() + b"\0" * 5):
            talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {0: records}), version))
        talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {0: batch() + batch()}), version))
    talk.patience_seconds = 3
    for version in (3, 9, 13):
        for nothing in (None, b""):
            talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {0: nothing}), version))
        old = build_batch([(TIME, b"k", b"v", [])], magic=1)
        talk.ask("Produce", version, at_version(to_produce("produced", topic_id, {0: old}), version))
        for codec in (1, 2, 3, 4):
            packed = to_produce("produced", topic_id, {0: batch(20, codec=codec)})
            talk.ask("Produce", version, at_version(packed, version))
    talk.patience_seconds = TIMEOUT_SECONDS
    for version in (3, 9, 13):
        for acks in (-1, 1, 2):  # a topic twice, and a partition twice: the last one counts
            sent = [to_produce("produced", topic_id, {0: batch(2), 1: batch()})["topicData"],
                    to_produce("unknown", UNKNOWN_ID, {0: batch()})["topicData"],
                    to_produce("produced", topic_id, {9: batch(), 0: batch(4)})["topicData"],
                    to_produce("unknown", UNKNOWN_ID, {1: batch()})["topicData"]]  # fmt: skip
            twice = {"acks": acks, "timeoutMs": 30000, "topicData": [row for rows in sent for row in rows]}
            talk.ask("Produce", version, at_version(twice, version))
    talk.ask("Produce", 9, {"acks": -1, "timeoutMs": 1, "topicData": []})
    create(talk, "kept", 1, {"cleanup.policy": "compact"})
    keyless = build_batch([(TIME, None, b"v", [])])
    talk.ask("Produce", 9, at_version(to_produce("kept", "", {0: keyless}), 9))
    create(talk, "narrow", 1, {"max.message.bytes": "100"})
    talk.ask("Produce", 9, at_version(to_produce("narrow", "", {0: batch(10)}), 9))
    create(talk, "dated", 1, {"message.timestamp.before.max.ms": "1000"})
    talk.ask("Produce", 9, at_version(to_produce("dated", "", {0: batch(2)}), 9))
    create(talk, "stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    talk.ask("Produce", 9, at_version(to_produce("stamped", "", {0: batch(2)}), 9))


def fetch_values(topic: str, topic_id: str, offsets: dict[int, int], **rest: Any) -> Values:
    rows = [
        {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": 1 << 20}
        for partition, offset in offsets.items()
    ]
    return {"maxWaitMs": 0, "minBytes": 1, "topics": [{"topic": topic, "topicId": topic_id, "partitions": rows}]} | rest


def fetch(talk: Talk) -> None:
    topic_id = create(talk, "fetched", 2)
    for _ in range(3):
        talk.ask("Produce", 9, at_version(to_produce("fetched", topic_id, {0: batch(5)}), 9))
    for version in range(4, 19):
        for offsets in ({0: 0, 1: 0}, {0: 7}, {0: 15}, {0: 16}, {0: -1}, {5: 0}):
            talk.ask("Fetch", version, at_version(fetch_values("fetched", topic_id, offsets), version))
        talk.ask("Fetch", version, at_version(fetch_values("unknown", UNKNOWN_ID, {0: 0}), version))
        small = fetch_values("fetched", topic_id, {0: 0})
        small["topics"][0]["partitions"][0]["partitionMaxBytes"] = 1
        talk.ask("Fetch", version, at_version(small, version))
        talk.ask("Fetch", version, at_version(fetch_values("fetched", topic_id, {0: 0}, maxBytes=1), version))
        talk.ask("Fetch", version, at_version(fetch_values("fetched", topic_id, {0: 0}, isolationLevel=1), version))
        talk.ask("Fetch", version, at_version(fetch_values("fetched", topic_id, {0: 15}, maxWaitMs=20), version))
    for version in (9, 12, 15, 18):
        for epoch in (0, 1, 5):
            epochs = fetch_values("fetched", topic_id, {0: 0})
            epochs["topics"][0]["partitions"][0]["currentLeaderEpoch"] = epoch
            talk.ask("Fetch", version, at_version(epochs, version))
            if version >= 12:
                epochs["topics"][0]["partitions"][0] |= {"currentLeaderEpoch": -1, "lastFetchedEpoch": epoch}
                talk.ask("Fetch", version, at_version(epochs, version))


def fetch_sessions(talk: Talk) -> None:
    topic_id = create(talk, "session", 2)
    for version in (7, 11, 12, 13, 17, 18):
        first = talk.ask(
            "Fetch", version, at_version(fetch_values("session", topic_id, {0: 0, 1: 0}, sessionEpoch=0), version)
        )
        session = first.get("sessionId", 0)
        again: Values = {"maxWaitMs": 0, "minBytes": 0, "topics": [], "sessionId": session, "sessionEpoch": 1}
        talk.ask("Fetch", version, again)
        talk.ask("Produce", 9, at_version(to_produce("session", topic_id, {1: batch()}), 9))
        talk.ask("Fetch", version, again | {"sessionEpoch": 2})
        gone = [{"topic": "session", "topicId": topic_id, "partitions": [1]}]
        talk.ask("Fetch", version, at_version(again | {"sessionEpoch": 3, "forgottenTopicsData": gone}, version))
        talk.ask("Fetch", version, again | {"sessionEpoch": 3})
        talk.ask("Fetch", version, again | {"sessionEpoch": 4, "sessionId": 12345})
        talk.ask(
            "Fetch",
            version,
            at_version(fetch_values("session", topic_id, {0: 0}, sessionEpoch=-1, sessionId=session), version),
        )
        talk.ask("Fetch", version, again | {"sessionEpoch": 4})
        begun = talk.ask(
            "Fetch", version, at_version(fetch_values("session", topic_id, {0: 0, 1: 0}, sessionEpoch=0), version)
        )
        level = {"isolationLevel": 2, "sessionId": begun.get("sessionId", 0)}  # no such level
        for epoch in (9, 1, 2):
            talk.ask("Fetch", version, again | level | {"sessionEpoch": epoch})
        talk.ask("Fetch", version, again | level | {"sessionEpoch": 3, "isolationLevel": 0})
        for epoch in (0, -1) if version >= 13 else ():
            nameless = fetch_values("", "A" * 22, {0: 0}, sessionEpoch=epoch)
            talk.ask("Fetch", version, at_version(nameless, version))


def fetch_by_unknown_ids(talk: Talk) -> None:
    """Ids that no topic has, the id of zeros among them, in every order, with and without a session."""
    known = create(talk, "by-id")
    rows = {
        "zeros": ("A" * 22, [0]),
        "zeros twice": ("A" * 22, [0, 1]),
        "unknown": (UNKNOWN_ID, [0, 1]),
        "known": (known, [0]),
        "no partition": (known, [7]),
    }
    orders: tuple[tuple[str, ...], ...] = (
        *(("zeros",), ("zeros twice",), ("zeros", "zeros"), ("zeros", "unknown"), ("unknown", "zeros")),
        *(("zeros", "known"), ("known", "zeros"), ("known", "zeros", "unknown"), ("known", "unknown", "zeros")),
        *(("no partition", "zeros"), ("no partition", "unknown", "known"), ("zeros", "no partition")),
    )
    for version in (13, 15, 18):
        for order in orders:
            asked = [
                {
                    "topicId": rows[name][0],
                    "partitions": [{"partition": number, "fetchOffset": 0} for number in rows[name][1]],
                }
                for name in order
            ]
            for session in (0, -1):
                values = fetch_values("", known, {}) | {"topics": asked, "sessionEpoch": session}
                talk.ask("Fetch", version, values)
            begun = talk.ask(
                "Fetch", version, at_version(fetch_values("by-id", known, {0: 0}, sessionEpoch=0), version)
            )
            again = values | {"sessionId": begun.get("sessionId", 0), "sessionEpoch": 1}
            talk.ask("Fetch", version, again)
            talk.ask("Fetch", version, again | {"sessionEpoch": 2, "topics": []})
            gone = [{"topicId": row["topicId"], "partitions": [0, 1]} for row in asked]
            talk.ask("Fetch", version, again | {"sessionEpoch": 3, "topics": [], "forgottenTopicsData": gone})


def offsets(talk: Talk) -> None:
    topic_id = create(talk, "offsets", 2)
    for i in range(3):
        records = build_batch([(TIME + 100 * i + j, b"k", b"v", []) for j in range(4)])
        talk.ask("Produce", 9, at_version(to_produce("offsets", topic_id, {0: records}), 9))
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, TIME + 101, TIME + 10_000):
        rows: list[Values] = [{"partitionIndex": index, "timestamp": timestamp} for index in (0, 1, 9)]
        topics = [{"name": "offsets", "partitions": rows}, {"name": "unknown", "partitions": rows[:1]}]
        for isolation in (0, 1):
            talk.each("ListOffsets", {"replicaId": -1, "isolationLevel": isolation, "topics": topics})
    epochs = {"partitionIndex": 0, "timestamp": -1, "currentLeaderEpoch": 3}
    twice = {"name": "offsets", "partitions": [{"partitionIndex": 0, "timestamp": -1}] * 2}
    for asked in ({"name": "offsets", "partitions": [epochs]}, twice):
        talk.each("ListOffsets", {"replicaId": -1, "topics": [asked]})
    for epoch, current in ((0, -1), (0, 0), (1, -1), (5, 0), (-1, -1), (0, 4)):
        row = {"partition": 0, "currentLeaderEpoch": current, "leaderEpoch": epoch}
        topics = [{"topic": "offsets", "partitions": [row]}, {"topic": "unknown", "partitions": [row]}]
        talk.each("OffsetForLeaderEpoch", {"replicaId": -1, "topics": topics})
    for offset in (5, 2, 12, 13, -1, 3):
        rows = [{"partitionIndex": 0, "offset": offset}, {"partitionIndex": 9, "offset": 0}]
        topics = [{"name": "offsets", "partitions": rows}, {"name": "unknown", "partitions": rows[:1]}]
        talk.each("DeleteRecords", {"topics": topics, "timeoutMs": 1000})
    rows = [{"partitionIndex": 0, "timestamp": -2}]
    talk.each("ListOffsets", {"replicaId": -1, "topics": [{"name": "offsets", "partitions": rows}]})
    talk.ask("Fetch", 12, at_version(fetch_values("offsets", topic_id, {0: 0}), 12))


def no_partitions(talk: Talk) -> None:
    topic_id = create(talk, "bare")
    none: Values = {"name": "bare", "partitions": []}
    some = {"name": "unknown", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}
    for topics in ([none], [none, some]):
        talk.each("ListOffsets", {"replicaId": -1, "topics": topics})
        for level in (2, -1):
            talk.ask("ListOffsets", 11, {"replicaId": -1, "isolationLevel": level, "topics": topics})
    some = {"name": "unknown", "partitions": [{"partitionIndex": 0, "offset": 0}]}
    for topics in ([none], [none, some]):
        talk.each("DeleteRecords", {"topics": topics, "timeoutMs": 1000})
    rows = [{"topic": "bare", "topicId": topic_id, "partitions": []}]
    talk.each("OffsetForLeaderEpoch", {"replicaId": -1, "topics": rows})
    for version in (3, 9, 13):
        for acks in (-1, 2):
            for records in ({}, {0: None}):
                sent = to_produce("unknown", UNKNOWN_ID, dict(records), acks=acks)
                talk.ask("Produce", version, at_version(sent, version))
    for version in range(4, 19):
        talk.ask("Fetch", version, at_version({"maxWaitMs": 0, "topics": rows}, version))
        wrong = fetch_values("bare", topic_id, {0: 0}, isolationLevel=2)
        talk.ask("Fetch", version, at_version(wrong, version))
    topics = [{"name": "bare", "partitions": []}, {"name": "", "partitions": []}]
    old = {"v3AndBelowTransactionalId": "bare", "v3AndBelowProducerId": 1, "v3AndBelowProducerEpoch": 0}
    for version in range(4):
        talk.ask("AddPartitionsToTxn", version, old | {"v3AndBelowTopics": topics})
    for verifies in (True, False):
        one = {"transactionalId": "bare", "producerId": 1, "producerEpoch": 0, "verifyOnly": verifies}
        for version in (4, 5):
            talk.ask("AddPartitionsToTxn", version, {"transactions": [one | {"topics": topics}]})
            talk.ask("AddPartitionsToTxn", version, {"transactions": [one | {"transactionalId": "", "topics": topics}]})


def markers(talk: Talk) -> None:
    """WriteTxnMarkers in all its versions: over open transactions, none, and producers that nobody knows."""
    ready_coordinator(talk)
    topic_id = create(talk, "marked", 2)
    talk.each("WriteTxnMarkers", {"markers": []})
    begun = talk.ask("InitProducerId", 4, {"transactionalId": "marked", "transactionTimeoutMs": 60000})
    own = {"producerId": begun["producerId"], "producerEpoch": begun["producerEpoch"]}
    add: Values = {"v3AndBelowTransactionalId": "marked", "v3AndBelowProducerId": own["producerId"],
                   "v3AndBelowProducerEpoch": own["producerEpoch"],
                   "v3AndBelowTopics": [{"name": "marked", "partitions": [0, 1]}]}  # fmt: skip
    talk.wait("AddPartitionsToTxn", add, _added, version=3)
    both = [{"name": "marked", "partitionIndexes": [0, 1]}]
    some = [
        {"name": "marked", "partitionIndexes": [1, 9, -1]},
        {"name": "unknown", "partitionIndexes": [0]},
        {"name": "", "partitionIndexes": [0]},
        {"name": "marked", "partitionIndexes": []},
    ]
    sequence = 0
    for version in (1, 2):
        for transaction_version in (0, 1, 2, 3, -1) if version == 2 else (0,):
            marker: Values = {**own, "transactionResult": True, "coordinatorEpoch": 0, "topics": both}
            if version == 2:
                marker["transactionVersion"] = transaction_version
            records = batch(2, is_transactional=True, base_sequence=sequence, producer_id=own["producerId"],
                            producer_epoch=own["producerEpoch"])  # fmt: skip
            sent = to_produce("marked", topic_id, {0: records, 1: records}, transactionalId="marked")
            sequence += 2
            talk.wait("Produce", at_version(sent, 11), _produced, version=11)
            changes: tuple[Values, ...] = (
                *({"topics": some, "transactionResult": False}, {"producerEpoch": -1}, {"coordinatorEpoch": -1}),
                *({}, {"transactionResult": False}, {"coordinatorEpoch": 3}, {"coordinatorEpoch": 2}, {"topics": []}),
                *({"producerId": 77_000}, {"producerId": -1}, {"coordinatorEpoch": 3, "topics": both[:1]}),
            )
            for change in changes:
                talk.ask("WriteTxnMarkers", version, {"markers": [marker | change]})
            internal = [{"name": "__consumer_offsets", "partitionIndexes": [0, 99]}]
            twice = [marker | {"topics": internal}, marker | {"coordinatorEpoch": 3}, marker | {"topics": some}]
            talk.ask("WriteTxnMarkers", version, {"markers": twice})
            for isolation in (0, 1):
                asked = fetch_values("marked", topic_id, {0: 0, 1: 0}, isolationLevel=isolation)
                talk.ask("Fetch", 12, at_version(asked, 12))
            talk.ask("DescribeProducers", 0, {"topics": [{"name": "marked", "partitionIndexes": [0, 1]}]})
    newer = {**own, "producerEpoch": own["producerEpoch"] + 1, "transactionResult": True, "coordinatorEpoch": 3}
    for version in (1, 2):  # an epoch that only a coordinator may know of, and then an older one
        talk.ask("WriteTxnMarkers", version, {"markers": [newer | {"topics": both}]})
        talk.ask("WriteTxnMarkers", version, {"markers": [newer | own | {"topics": both}]})
    talk.ask("DescribeProducers", 0, {"topics": [{"name": "marked", "partitionIndexes": [0, 1]}]})


def internal_topics(talk: Talk) -> None:
    ready_coordinator(talk)
    rows = [{"name": name} for name in ("__consumer_offsets", "__transaction_state", "__share_group_state")]
    talk.wait("Metadata", {"topics": rows}, lambda found: all(each["partitions"] for each in found["topics"]))
    talk.ask("DescribeTopicPartitions", 0, {"topics": rows})
    keys = ["cleanup.policy", "compression.type", "min.insync.replicas", "retention.ms", "segment.bytes"]
    wanted = [
        {"resourceType": 2, "resourceName": row["name"], "configurationKeys": [*keys, "unclean.leader.election.enable"]}
        for row in rows
    ]
    talk.ask("DescribeConfigs", 4, {"resources": wanted, "includeSynonyms": True})


def ready_coordinator(talk: Talk) -> None:
    before = len(talk.heard)
    for kind in (0, 1):
        asked = {"keyType": kind, "coordinatorKeys": ["any"]}
        talk.wait("FindCoordinator", asked, lambda found: found["coordinators"][0]["errorCode"] == 0)
    share = {"keyType": 2, "coordinatorKeys": [f"any:{UNKNOWN_ID}:0"]}  # its topic is made at the first use
    talk.wait("FindCoordinator", share, lambda found: found["coordinators"][0]["errorCode"] == 0)
    talk.wait(
        "InitProducerId", {"transactionalId": "first", "transactionTimeoutMs": 60000}, lambda a: a["errorCode"] == 0
    )
    talk.wait("ListTransactions", {}, lambda found: found["errorCode"] == 0)
    del talk.heard[before:]


def idempotent(talk: Talk) -> None:
    ready_coordinator(talk)
    topic_id = create(talk, "sequenced", 1)
    for version in range(6):
        talk.ask("InitProducerId", version, {"transactionalId": None, "transactionTimeoutMs": 1})
    mine = talk.ask("InitProducerId", 5, {"transactionalId": None, "transactionTimeoutMs": 1})
    producer: dict[str, Any] = {"producer_id": mine["producerId"], "producer_epoch": 0}

    def send(sequence: int, count: int = 2, **options: Any) -> None:
        records = batch(count, **(producer | {"base_sequence": sequence} | options))
        talk.ask("Produce", 11, at_version(to_produce("sequenced", topic_id, {0: records}), 11))

    send(5)
    send(0)
    send(0)
    send(2)
    send(9)
    send(2)
    send(0, 3)
    for sequence in range(4, 14, 2):
        send(sequence)
    send(0)
    send(0, producer_epoch=1)
    send(14, producer_epoch=0)
    send(3, producer_epoch=2)
    send(0, producer_epoch=2)
    rows = [{"name": "sequenced", "partitionIndexes": [0, 4]}, {"name": "unknown", "partitionIndexes": [0]}]
    talk.ask("DescribeProducers", 0, {"topics": rows})
    records = batch(1, is_transactional=True, base_sequence=0, producer_id=mine["producerId"], producer_epoch=2)
    talk.ask("Produce", 11, at_version(to_produce("sequenced", topic_id, {0: records}), 11))
    talk.ask("Produce", 11, at_version(to_produce("sequenced", topic_id, {0: records}, transactionalId="other"), 11))


def transactions(talk: Talk) -> None:
    ready_coordinator(talk)
    topic_id = create(talk, "moved", 2)
    talk.each("InitProducerId", {"transactionalId": "", "transactionTimeoutMs": 1000})
    for timeout in (0, -1, 2**31 - 1):
        talk.ask("InitProducerId", 4, {"transactionalId": "t", "transactionTimeoutMs": timeout})
    for version in range(6):
        talk.ask("InitProducerId", version, {"transactionalId": "again", "transactionTimeoutMs": 60000})
    for modern in (False, True):
        name = f"txn-{modern}"
        begun = talk.ask("InitProducerId", 5, {"transactionalId": name, "transactionTimeoutMs": 60000})
        own = {"producerId": begun["producerId"], "producerEpoch": begun["producerEpoch"]}
        sequence = 0
        for committed in (True, False, True):
            if not modern:
                topics = [{"name": "moved", "partitions": [0, 1]}, {"name": "unknown", "partitions": [0]}]
                add = {"v3AndBelowTransactionalId": name, "v3AndBelowProducerId": own["producerId"],
                       "v3AndBelowProducerEpoch": own["producerEpoch"]}  # fmt: skip
                talk.ask("AddPartitionsToTxn", 3, add | {"v3AndBelowTopics": topics})
                talk.wait("AddPartitionsToTxn", add | {"v3AndBelowTopics": topics[:1]}, _added, version=3)
                offsets_in = {"transactionalId": name, "groupId": "of-txn", **own}
                talk.ask("AddOffsetsToTxn", 3, offsets_in)
            records = batch(2, is_transactional=True, base_sequence=sequence, producer_id=own["producerId"],
                            producer_epoch=own["producerEpoch"])  # fmt: skip
            version = 12 if modern else 11
            sent = to_produce("moved", topic_id, {0: records, 1: records}, transactionalId=name)
            talk.wait("Produce", at_version(sent, version), _produced, version=version)
            row = {"partitionIndex": 0, "committedOffset": 7, "committedMetadata": "m"}
            commit = {
                "transactionalId": name,
                "groupId": "of-txn",
                **own,
                "topics": [{"name": "moved", "partitions": [row]}],
            }
            talk.wait("TxnOffsetCommit", commit, _committed, version=5 if modern else 4)
            sequence += 2
            talk.ask("DescribeTransactions", 0, {"transactionalIds": [name, "unknown"]})
            for isolation in (0, 1):
                talk.ask("Fetch", 12, at_version(fetch_values("moved", topic_id, {0: 0}, isolationLevel=isolation), 12))
            open_ = [{"partitionIndex": 0, "timestamp": -1}]
            talk.ask("ListOffsets", 7, {"isolationLevel": 1, "topics": [{"name": "moved", "partitions": open_}]})
            talk.ask("DescribeProducers", 0, {"topics": [{"name": "moved", "partitionIndexes": [0]}]})
            ended = talk.wait(
                "EndTxn", {"transactionalId": name, "committed": committed, **own}, _ended, version=5 if modern else 4
            )
            if modern:
                own = {"producerId": ended["producerId"], "producerEpoch": ended["producerEpoch"]}
                sequence = 0
            done = {"isolationLevel": 1, "topics": [{"name": "moved", "partitions": open_}]}
            before = len(talk.heard)
            talk.wait("DescribeTransactions", {"transactionalIds": [name]}, _complete)
            del talk.heard[before:]
            talk.ask("ListOffsets", 7, done)
            talk.ask("Fetch", 12, at_version(fetch_values("moved", topic_id, {0: 0}, isolationLevel=1), 12))
            talk.ask("DescribeTransactions", 0, {"transactionalIds": [name]})
        talk.ask("EndTxn", 4, {"transactionalId": name, "committed": True, **own})
        talk.ask("EndTxn", 4, {"transactionalId": name, "committed": False, **own})
        talk.ask("EndTxn", 4, {"transactionalId": name, "committed": True, **own, "producerEpoch": 0})
        talk.ask("EndTxn", 4, {"transactionalId": name, "committed": True, **own, "producerId": 99})
        talk.ask("EndTxn", 4, {"transactionalId": "unknown", "committed": True, **own})
    talk.each("ListTransactions", {"stateFilters": ["CompleteCommit", "Nonsense"], "durationFilter": -1})
    talk.each("ListTransactions", {"stateFilters": [], "durationFilter": 1000000})
    talk.ask("ListTransactions", 2, {"transactionalIdPattern": "txn-.*"})
    talk.ask("ListTransactions", 2, {"transactionalIdPattern": "("})
    for version in (4, 5):
        topics = [{"name": "moved", "partitions": [0]}]
        for only in (True, False):
            row = {"transactionalId": "txn-True", **own, "verifyOnly": only, "topics": topics}
            other = {
                "transactionalId": "unknown",
                "producerId": 5,
                "producerEpoch": 0,
                "topics": topics,
                "verifyOnly": only,
            }
            talk.ask("AddPartitionsToTxn", version, {"transactions": [row]})
            talk.ask("AddPartitionsToTxn", version, {"transactions": [other, row]})
    talk.each("AddOffsetsToTxn", {"transactionalId": "unknown", "groupId": "g", "producerId": 1, "producerEpoch": 0})
    talk.each("AddOffsetsToTxn", {"transactionalId": "", "groupId": "g", "producerId": 1, "producerEpoch": 0})


def _added(answer: Values) -> bool:
    rows = answer["resultsByTopicV3AndBelow"]
    return all(row["partitionErrorCode"] != 51 for topic in rows for row in topic["resultsByPartition"])


def _produced(answer: Values) -> bool:
    return all(
        row["errorCode"] not in (14, 16, 51) for topic in answer["responses"] for row in topic["partitionResponses"]
    )


def _committed(answer: Values) -> bool:
    return all(row["errorCode"] not in (14, 16, 51) for topic in answer["topics"] for row in topic["partitions"])


def _ended(answer: Values) -> bool:
    return answer["errorCode"] not in (14, 16, 51)


def _complete(answer: Values) -> bool:
    return all(row["transactionState"] in ("CompleteCommit", "CompleteAbort") for row in answer["transactionStates"])


STORIES = {
    story.__name__: story
    for story in (
        produce,
        fetch,
        fetch_sessions,
        fetch_by_unknown_ids,
        offsets,
        no_partitions,
        idempotent,
        transactions,
        markers,
        internal_topics,
    )
}
