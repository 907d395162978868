"""Sequences about groups of both protocols, their offsets, share groups and what is secured."""

from __future__ import annotations

from functools import partial
from typing import Any

from kafkalog.engine.format.messages import Values
from tests.wire.client import BY_NAME
from tests.wire.stories_data import at_version, batch, to_produce
from tests.wire.stories_topics import UNKNOWN_ID, create
from tests.wire.talk import Talk, fitting

SUBSCRIPTION = b"\0\0\0\0\0\1\0\5owned\0\0\0\0"


def ready_groups(talk: Talk) -> None:
    before = len(talk.heard)
    asked = {"keyType": 0, "coordinatorKeys": ["any"]}
    talk.wait("FindCoordinator", asked, lambda found: found["coordinators"][0]["errorCode"] == 0)
    talk.wait("ListGroups", {}, lambda found: found["errorCode"] == 0)
    talk.wait("DescribeGroups", {"groups": ["any"]}, lambda found: found["groups"][0]["errorCode"] not in (14, 15, 16))
    del talk.heard[before:]


def join_values(group: str, member: str = "", **rest: Any) -> Values:
    return {
        "groupId": group,
        "sessionTimeoutMs": 30000,
        "rebalanceTimeoutMs": 30000,
        "memberId": member,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    } | rest


def ask_fitting(talk: Talk, name: str, version: int, values: Values) -> Values:
    return talk.ask(name, version, fitting(BY_NAME[name].request.type, values, version))


def classic(talk: Talk) -> None:
    ready_groups(talk)
    for version in range(10):
        group = f"classic-{version}"
        values = join_values(group)
        first = ask_fitting(talk, "JoinGroup", version, values)
        if first["errorCode"] == 79:  # MEMBER_ID_REQUIRED
            values["memberId"] = first["memberId"]
            first = ask_fitting(talk, "JoinGroup", version, values)
        member, generation = first["memberId"], first["generationId"]
        sync_version = min(version, 5)
        sync = {"groupId": group, "generationId": generation, "memberId": member, "protocolType": "consumer",
                "protocolName": "range", "assignments": [{"memberId": member, "assignment": b"mine"}]}  # fmt: skip
        ask_fitting(talk, "SyncGroup", sync_version, sync | {"generationId": generation + 1})
        ask_fitting(talk, "SyncGroup", sync_version, sync | {"memberId": "nobody"})
        if sync_version == 5:
            ask_fitting(talk, "SyncGroup", 5, sync | {"protocolName": "other"})
            ask_fitting(talk, "SyncGroup", 5, sync | {"protocolType": "other"})
        ask_fitting(talk, "SyncGroup", sync_version, sync)
        ask_fitting(talk, "SyncGroup", sync_version, sync)
        beat = {"groupId": group, "generationId": generation, "memberId": member}
        talk.each("Heartbeat", beat)
        talk.each("Heartbeat", beat | {"generationId": generation + 5})
        talk.each("Heartbeat", beat | {"memberId": "nobody"})
        talk.each("DescribeGroups", {"groups": [group, "unknown", ""], "includeAuthorizedOperations": True})
        talk.each("ListGroups", {"statesFilter": ["Stable"], "typesFilter": ["classic"]})
        row = {"partitionIndex": 0, "committedOffset": 4, "committedMetadata": "m", "committedLeaderEpoch": 0}
        commit = {"groupId": group, "generationIdOrMemberEpoch": generation, "memberId": member,
                  "topics": [{"name": "any", "partitions": [row]}]}  # fmt: skip
        create_once(talk, "any")
        for own in (commit, commit | {"memberId": "nobody"}, commit | {"generationIdOrMemberEpoch": generation + 1}):
            for each in (2, 5, 9):
                ask_fitting(talk, "OffsetCommit", each, own)
        talk.each("DeleteGroups", {"groupsNames": [group, "unknown", ""]})
        leave: Values = {
            "groupId": group,
            "memberId": member,
            "members": [{"memberId": member}, {"memberId": "nobody"}],
        }
        ask_fitting(talk, "LeaveGroup", min(version, 5), leave)
        ask_fitting(talk, "LeaveGroup", min(version, 5), leave)
        talk.ask("DescribeGroups", 5, {"groups": [group]})
        talk.ask("DeleteGroups", 2, {"groupsNames": [group]})
        talk.ask("DescribeGroups", 6, {"groups": [group]})
    talk.each("JoinGroup", join_values(""))
    talk.each("JoinGroup", join_values("bad", sessionTimeoutMs=1))
    talk.each("JoinGroup", join_values("bad", sessionTimeoutMs=10_000_000))
    talk.each("JoinGroup", join_values("bad", "nobody"))
    talk.each("JoinGroup", join_values("bad", protocolType=""))
    talk.each("JoinGroup", join_values("bad", protocols=[]))
    for name in ("Heartbeat", "SyncGroup", "LeaveGroup"):
        talk.each(
            name, {"groupId": "unknown", "memberId": "nobody", "generationId": 1, "members": [{"memberId": "nobody"}]}
        )
        talk.each(name, {"groupId": "", "memberId": "nobody", "generationId": 1, "members": [{"memberId": "nobody"}]})
    talk.each("ListGroups", {"statesFilter": ["Nonsense"]})


def create_once(talk: Talk, name: str) -> None:
    before = len(talk.heard)
    answer = talk.ask("Metadata", 12, {"topics": [{"name": name}], "allowAutoTopicCreation": False})
    del talk.heard[before:]
    if answer["topics"][0]["errorCode"]:
        create(talk, name)


def static(talk: Talk) -> None:
    ready_groups(talk)
    for version in range(5, 10):
        group = f"static-{version}"
        values = join_values(group, groupInstanceId="one")
        first = ask_fitting(talk, "JoinGroup", version, values)
        sync = {
            "groupId": group,
            "generationId": first["generationId"],
            "memberId": first["memberId"],
            "groupInstanceId": "one",
            "protocolType": "consumer",
            "protocolName": "range",
            "assignments": [{"memberId": first["memberId"], "assignment": b"a"}],
        }
        ask_fitting(talk, "SyncGroup", min(version, 5), sync)
        second = ask_fitting(talk, "JoinGroup", version, values)
        old = {"groupId": group, "generationId": first["generationId"], "groupInstanceId": "one"}
        ask_fitting(talk, "Heartbeat", 4, old | {"memberId": first["memberId"]})
        ask_fitting(talk, "Heartbeat", 4, old | {"memberId": second["memberId"]})
        ask_fitting(talk, "Heartbeat", 4, old | {"memberId": second["memberId"], "groupInstanceId": "two"})
        ask_fitting(talk, "JoinGroup", version, values | {"memberId": first["memberId"]})
        rows = [{"memberId": "", "groupInstanceId": "one"}, {"memberId": "", "groupInstanceId": "two"}]
        talk.ask("LeaveGroup", 5, {"groupId": group, "members": rows})
        talk.ask("DescribeGroups", 6, {"groups": [group]})


def group_offsets(talk: Talk) -> None:
    ready_groups(talk)
    topic_id = create(talk, "tracked", 2)
    rows = [
        {"partitionIndex": i, "committedOffset": 10 + i, "committedMetadata": "m" * i, "committedLeaderEpoch": 0}
        for i in (0, 1, 9)
    ]
    for version in range(2, 11):
        topics = [{"name": "tracked", "partitions": rows}, {"name": "unknown", "partitions": rows[:1]}]
        if version >= 10:
            topics = [{"topicId": topic_id, "partitions": rows}, {"topicId": UNKNOWN_ID, "partitions": rows[:1]}]
        free = {"groupId": "free", "generationIdOrMemberEpoch": -1, "memberId": "", "topics": topics}
        talk.ask("OffsetCommit", version, free)
        talk.ask("OffsetCommit", version, free | {"groupId": ""})
        talk.ask("OffsetCommit", version, free | {"generationIdOrMemberEpoch": 3})
        talk.ask("OffsetCommit", version, free | {"memberId": "nobody"})
        long = [{**topics[0], "partitions": [rows[0] | {"committedMetadata": "x" * 5000}]}]
        talk.ask("OffsetCommit", version, free | {"topics": long})
    for version in range(1, 8):
        asked: Values = {"groupId": "free", "topics": [{"name": "tracked", "partitionIndexes": [0, 1, 9]},
                                               {"name": "unknown", "partitionIndexes": [0]}]}  # fmt: skip
        talk.ask("OffsetFetch", version, asked)
        talk.ask("OffsetFetch", version, asked | {"groupId": "nobody"})
        if version >= 2:
            talk.ask("OffsetFetch", version, {"groupId": "free", "topics": None})
    for version in range(8, 11):
        by = {"topicId": topic_id} if version >= 10 else {"name": "tracked"}
        unknown = {"topicId": UNKNOWN_ID} if version >= 10 else {"name": "unknown"}
        some = [{**by, "partitionIndexes": [0, 1, 9]}, {**unknown, "partitionIndexes": [0]}]
        groups: list[Values] = [
            {"groupId": "free", "topics": some},
            {"groupId": "nobody", "topics": some},
            {"groupId": "free", "topics": None},
        ]
        for each in groups:
            talk.ask("OffsetFetch", version, {"groups": [each], "requireStable": True})
        if version >= 9:
            epochs = groups[0] | {"memberId": "nobody", "memberEpoch": 3}
            talk.ask("OffsetFetch", version, {"groups": [epochs]})
        talk.ask("OffsetFetch", version, {"groups": groups[:2]})
        talk.ask("OffsetFetch", version, {"groups": []})
    rows = [{"partitionIndex": 0}, {"partitionIndex": 9}]
    for group in ("free", "nobody", ""):
        topics = [{"name": "tracked", "partitions": rows}, {"name": "unknown", "partitions": rows[:1]}]
        talk.ask("OffsetDelete", 0, {"groupId": group, "topics": topics})
    talk.ask("OffsetFetch", 7, {"groupId": "free", "topics": None})


def _is_past(epoch: int, found: Values) -> bool:
    is_past: bool = found["memberEpoch"] > epoch
    return is_past


def consumer_groups(talk: Talk) -> None:
    ready_groups(talk)
    topic_id = create(talk, "shared-out", 3)
    assert topic_id
    for version in (0, 1):
        group = f"modern-{version}"
        member = "AAAAAAAAAAAAAAAAAAAAAg"
        join: Values = {"groupId": group, "memberId": member, "memberEpoch": 0, "rebalanceTimeoutMs": 30000,
                "subscribedTopicNames": ["shared-out"], "topicPartitions": []}  # fmt: skip
        if version == 0:
            talk.ask("ConsumerGroupHeartbeat", 0, join | {"memberId": ""})
        first = talk.ask("ConsumerGroupHeartbeat", version, join)
        keep = {"groupId": group, "memberId": member, "memberEpoch": first["memberEpoch"]}
        owned = (first["assignment"] or {"topicPartitions": []})["topicPartitions"]
        talk.ask("ConsumerGroupHeartbeat", version, keep)
        talk.ask("ConsumerGroupHeartbeat", version, keep | {"topicPartitions": owned})
        talk.ask("ConsumerGroupDescribe", version if version < 2 else 1, {"groupIds": [group, "unknown", ""]})
        wrong: list[Values] = [
            {"memberEpoch": 7},
            {"memberId": "AAAAAAAAAAAAAAAAAAAAAw"},
            {"memberId": ""},
            {"memberEpoch": -5},
            {"groupId": ""},
            {"serverAssignor": "none-such"},
            {"instanceId": ""},
            {"rackId": ""},
            {"rebalanceTimeoutMs": 0},
        ]
        for bad in wrong:
            talk.ask("ConsumerGroupHeartbeat", version, keep | bad)
            talk.ask("ConsumerGroupHeartbeat", version, join | bad)
        wrong = [{"rebalanceTimeoutMs": -1}, {"topicPartitions": None}, {"subscribedTopicNames": None}]
        for bad in wrong:
            talk.ask("ConsumerGroupHeartbeat", version, join | {"memberId": "AAAAAAAAAAAAAAAAAAAABA"} | bad)
        if version:
            for regex in ("shared.*", "(", ""):
                named = {
                    "memberId": "AAAAAAAAAAAAAAAAAAAABQ",
                    "subscribedTopicRegex": regex,
                    "subscribedTopicNames": None,
                }
                by_regex = {"groupId": "by-regex"} | named
                told = talk.ask("ConsumerGroupHeartbeat", 1, join | by_regex)
                epoch: int = told["memberEpoch"]
                if regex == "shared.*":  # its topics are looked up later
                    beat = {"groupId": "by-regex", "memberId": named["memberId"], "memberEpoch": epoch}
                    talk.wait("ConsumerGroupHeartbeat", beat, partial(_is_past, epoch))
        row = {"partitionIndex": 0, "committedOffset": 3}
        for whose, epoch in ((None, -1), (None, 0), (None, 5), ("nobody", 1), (member, 99), (member, -1)):
            of: Values = {"groupId": group, "memberId": whose, "memberEpoch": epoch, "topics": None}
            talk.ask("OffsetFetch", 9, {"groups": [of], "requireStable": True})
        commit = {"groupId": group, "memberId": member, "generationIdOrMemberEpoch": first["memberEpoch"],
                  "topics": [{"name": "shared-out", "partitions": [row]}]}  # fmt: skip
        talk.ask("OffsetCommit", 9, commit)
        talk.ask("OffsetCommit", 8, commit)
        talk.ask("OffsetCommit", 9, commit | {"generationIdOrMemberEpoch": 9})
        talk.ask("OffsetCommit", 9, commit | {"memberId": "nobody"})
        talk.ask("JoinGroup", 9, join_values(group))
        talk.ask("DescribeGroups", 6, {"groups": [group]})
        talk.each("ListGroups", {"typesFilter": ["consumer"]})
        talk.ask("DeleteGroups", 2, {"groupsNames": [group]})
        talk.ask("ConsumerGroupHeartbeat", version, {"groupId": group, "memberId": member, "memberEpoch": -1})
        talk.ask("ConsumerGroupDescribe", 1, {"groupIds": [group]})
        talk.ask("DeleteGroups", 2, {"groupsNames": [group]})


def share_groups(talk: Talk) -> None:
    ready_groups(talk)
    topic_id = create(talk, "queue", 1)
    member = "AAAAAAAAAAAAAAAAAAAAAg"
    join = {"groupId": "workers", "memberId": member, "memberEpoch": 0, "subscribedTopicNames": ["queue"]}
    first = talk.ask("ShareGroupHeartbeat", 1, join)
    keep = {"groupId": "workers", "memberId": member, "memberEpoch": first.get("memberEpoch", 0)}
    talk.wait("ShareGroupHeartbeat", keep, lambda found: bool((found.get("assignment") or {}).get("topicPartitions")))
    for bad in ({"memberEpoch": 9}, {"memberId": "nobody"}, {"memberId": ""}, {"groupId": ""}, {"memberEpoch": -3}):
        talk.ask("ShareGroupHeartbeat", 1, keep | bad)
    talk.ask("ShareGroupDescribe", 1, {"groupIds": ["workers", "unknown", ""]})
    row: Values = {"partitionIndex": 0}
    for version in (1, 2):
        asked: Values = {
            "groupId": "workers",
            "memberId": f"{member[:-1]}{version}",
            "maxWaitMs": 0,
            "minBytes": 1,
            "maxBytes": 1 << 20,
            "maxRecords": 10,
            "batchSize": 10,
            "topics": [{"topicId": topic_id, "partitions": [row]}],
        }
        # A group begins at the end of a partition, which is known once it was fetched.
        talk.wait(
            "ShareFetch", asked | {"shareSessionEpoch": 0}, lambda found: bool(found["responses"]), version=version
        )
        talk.ask("Produce", 13, at_version(to_produce("queue", topic_id, {0: batch(3)}), 13))
        talk.wait("ShareFetch", asked | {"shareSessionEpoch": 0}, _has_records, version=version)
        talk.ask("ShareFetch", version, asked | {"shareSessionEpoch": 1, "topics": []})
        talk.ask("ShareFetch", version, asked | {"shareSessionEpoch": 7, "topics": []})
        first_offset = 3 * (version - 1)
        done = [{"firstOffset": first_offset, "lastOffset": first_offset + 2, "acknowledgeTypes": [1]}]
        acks = [{"topicId": topic_id, "partitions": [{"partitionIndex": 0, "acknowledgementBatches": done}]}]
        acknowledge = {"groupId": "workers", "memberId": asked["memberId"], "topics": acks}
        talk.ask("ShareAcknowledge", version, acknowledge | {"shareSessionEpoch": 2})
        talk.ask("ShareAcknowledge", version, acknowledge | {"shareSessionEpoch": 3})
        talk.ask("ShareAcknowledge", version, acknowledge | {"shareSessionEpoch": 9})
        talk.ask("ShareFetch", version, asked | {"shareSessionEpoch": -1, "topics": []})
    # Kafka's answer for a partition that does not exist is the same, after 27 seconds of asking itself again.
    groups = [
        {"groupId": "workers", "topics": [{"topicName": "queue", "partitions": [0]}]},
        {"groupId": "unknown", "topics": None},
    ]
    talk.each("DescribeShareGroupOffsets", {"groups": groups})
    talk.ask("DeleteGroups", 2, {"groupsNames": ["workers"]})
    change = {
        "groupId": "workers",
        "topics": [{"topicName": "queue", "partitions": [{"partitionIndex": 0, "startOffset": 1}]}],
    }
    twice = [{"topicName": "unknown", "partitions": [{"partitionIndex": each, "startOffset": 1}]} for each in (0, 0, 2)]
    talk.ask("AlterShareGroupOffsets", 0, {"groupId": "workers", "topics": twice})
    talk.ask("AlterShareGroupOffsets", 0, change)
    talk.ask("ShareGroupHeartbeat", 1, keep | {"memberEpoch": -1})
    talk.ask("AlterShareGroupOffsets", 0, change)
    talk.each("DescribeShareGroupOffsets", {"groups": groups})
    talk.ask(
        "DeleteShareGroupOffsets",
        0,
        {"groupId": "workers", "topics": [{"topicName": "queue"}, {"topicName": "unknown"}]},
    )
    talk.ask("DeleteGroups", 2, {"groupsNames": ["workers"]})


def _has_records(found: Values) -> bool:
    return any(row["records"] for topic in found.get("responses", []) for row in topic["partitions"])


def secured(talk: Talk) -> None:
    """Asks a listener without authentication, and a broker without an authorizer."""
    talk.each("SaslHandshake", {"mechanism": "PLAIN"})
    talk.each("SaslAuthenticate", {"authBytes": b"x"})
    wanted = {"resourceTypeFilter": 1, "patternTypeFilter": 1, "operation": 1, "permissionType": 1}
    talk.each("DescribeAcls", wanted)
    acl = {"resourceType": 2, "resourceName": "t", "resourcePatternType": 3, "principal": "User:a", "host": "*",
           "operation": 3, "permissionType": 3}  # fmt: skip
    talk.each("CreateAcls", {"creations": [acl]})
    talk.each("DeleteAcls", {"filters": [wanted]})
    talk.ask("DescribeUserScramCredentials", 0, {"users": None})
    talk.ask("DescribeUserScramCredentials", 0, {"users": [{"name": "nobody"}, {"name": "nobody"}]})
    row = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"salt", "saltedPassword": b"p" * 32}
    talk.ask("AlterUserScramCredentials", 0, {"upsertions": [row, row | {"name": ""}, row | {"iterations": 1}]})
    talk.ask("AlterUserScramCredentials", 0, {"upsertions": [row]})
    alice = {"users": [{"name": "alice"}]}
    talk.wait("DescribeUserScramCredentials", alice, lambda found: not found["results"][0]["errorCode"])
    talk.ask(
        "AlterUserScramCredentials",
        0,
        {"deletions": [{"name": "alice", "mechanism": 1}, {"name": "bob", "mechanism": 1}]},
    )
    entity = [{"entityType": "client-id", "entityName": "wire-quota"}]
    for key, value in (("producer_byte_rate", 1e9), ("nonsense", 1.0), ("producer_byte_rate", -1.0)):
        ops = [{"key": key, "value": value, "remove": False}]
        talk.each("AlterClientQuotas", {"entries": [{"entity": entity, "ops": ops}], "validateOnly": False})
    part = [{"entityType": "client-id", "matchType": 0, "match": "wire-quota"}]
    asked = {"components": part, "strict": True}  # a broker learns later what its controller has
    talk.wait("DescribeClientQuotas", asked, lambda found: bool(found["entries"]))
    talk.each("DescribeClientQuotas", {"components": part, "strict": True})
    gone = [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]
    talk.each("AlterClientQuotas", {"entries": [{"entity": entity, "ops": gone}]})
    talk.wait("DescribeClientQuotas", asked, lambda found: not found["entries"])
    talk.each("DescribeClientQuotas", {"components": part})


STORIES = {story.__name__: story for story in (classic, static, group_offsets, consumer_groups, share_groups, secured)}
