"""Sequences about topics, their settings, the cluster and log directories."""

from __future__ import annotations

from collections.abc import Callable

from kafkalog.engine.format.messages import Values
from tests.wire.talk import Talk

UNKNOWN_ID = "AAECAwQFBgcICQoLDA0ODw"
BAD_NAMES = ("", ".", "..", "a b", "x" * 250, "größe")


def create(talk: Talk, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
    """Creates a topic, waits until it can be used, and returns its id; nothing of it is heard."""
    before = len(talk.heard)
    rows: list[Values] = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    topic = {"name": name, "numPartitions": partitions, "replicationFactor": 1, "configs": rows}
    talk.ask("CreateTopics", 7, {"topics": [topic], "timeoutMs": 30000})
    asked = {"topics": [{"name": name}], "allowAutoTopicCreation": False}
    answer = talk.wait("Metadata", asked, lambda found: _is_led(found, partitions))
    rows = [{"partitionIndex": index, "timestamp": -1} for index in range(partitions)]
    logs = {"replicaId": -1, "topics": [{"name": name, "partitions": rows}]}
    talk.wait("ListOffsets", logs, _has_logs, version=7)
    del talk.heard[before:]
    topic_id: str = answer["topics"][0]["topicId"]
    return topic_id


def _is_led(found: Values, partitions: int) -> bool:
    led = [row["leaderId"] >= 0 for topic in found["topics"] for row in topic["partitions"]]
    return len(led) == partitions and all(led)


def _has_logs(found: Values) -> bool:
    return not any(row["errorCode"] for topic in found["topics"] for row in topic["partitions"])


def create_topics(talk: Talk) -> None:
    for version in range(2, 8):
        rows = [
            {"name": f"made-{version}", "numPartitions": 2, "replicationFactor": 1},
            {
                "name": f"settings-{version}",
                "numPartitions": 1,
                "replicationFactor": 1,
                "configs": [{"name": "retention.ms", "value": "1000"}, {"name": "cleanup.policy", "value": "compact"}],
            },
            {"name": f"placed-{version}", "numPartitions": -1, "replicationFactor": -1,
             "assignments": [{"partitionIndex": 0, "brokerIds": [1]}, {"partitionIndex": 1, "brokerIds": [1]}]},
            {"name": f"far-{version}", "numPartitions": -1, "replicationFactor": -1,
             "assignments": [{"partitionIndex": 0, "brokerIds": [7]}]},
            {"name": f"gap-{version}", "numPartitions": -1, "replicationFactor": -1,
             "assignments": [{"partitionIndex": 1, "brokerIds": [1]}]},
            {"name": f"both-{version}", "numPartitions": 3, "replicationFactor": 1,
             "assignments": [{"partitionIndex": 0, "brokerIds": [1]}]},
            {"name": f"none-{version}", "numPartitions": 0, "replicationFactor": 1},
            {"name": f"wide-{version}", "numPartitions": 1, "replicationFactor": 3},
            {"name": f"zero-{version}", "numPartitions": 1, "replicationFactor": 0},
            {"name": f"bad-{version}", "numPartitions": 1, "replicationFactor": 1,
             "configs": [{"name": "retention.ms", "value": "soon"}]},
            {"name": f"odd-{version}", "numPartitions": 1, "replicationFactor": 1,
             "configs": [{"name": "no.such.setting", "value": "1"}]},
            {"name": f"null-{version}", "numPartitions": 1, "replicationFactor": 1,
             "configs": [{"name": "retention.ms", "value": None}]},
            *({"name": bad, "numPartitions": 1, "replicationFactor": 1} for bad in BAD_NAMES),
        ]  # fmt: skip
        for only in (True, False):
            talk.ask("CreateTopics", version, {"topics": rows, "timeoutMs": 30000, "validateOnly": only})
        twice = {"name": f"twice-{version}", "numPartitions": 1, "replicationFactor": 1}
        talk.ask("CreateTopics", version, {"topics": [rows[0], twice, twice], "timeoutMs": 30000})
    for version in (4, 7):
        rows = [{"name": f"defaults-{version}", "numPartitions": -1, "replicationFactor": -1}]
        talk.ask("CreateTopics", version, {"topics": rows, "timeoutMs": 30000})
    talk.ask("CreateTopics", 7, {"topics": [], "timeoutMs": 0})
    dots = [{"name": name, "numPartitions": 1, "replicationFactor": 1} for name in ("dot.ted_x", "dot_ted.x")]
    talk.ask("CreateTopics", 7, {"topics": dots[:1], "timeoutMs": 30000})
    talk.ask("CreateTopics", 7, {"topics": dots[1:], "timeoutMs": 30000})
    inner = {"name": "__consumer_offsets", "numPartitions": 1, "replicationFactor": 1}
    talk.ask("CreateTopics", 7, {"topics": [inner], "timeoutMs": 30000, "validateOnly": True})


def without_time(talk: Talk) -> None:
    create(talk, "stays")
    new = {"name": "late", "numPartitions": 1, "replicationFactor": 1}
    for time_ms in (0, -1, -(2**31)):
        for version in (2, 7):
            for topics in ([new], [new, new], [new, new | {"name": "a b"}], []):
                talk.ask("CreateTopics", version, {"topics": topics, "timeoutMs": time_ms})
        talk.ask("DeleteTopics", 5, {"topicNames": ["stays", "unknown"], "timeoutMs": time_ms})
        talk.ask("DeleteTopics", 6, {"topics": [{"name": "stays"}, {"name": "stays"}], "timeoutMs": time_ms})
        talk.ask("DeleteTopics", 6, {"topics": [{"topicId": UNKNOWN_ID, "name": None}], "timeoutMs": time_ms})
        for version in range(4):
            rows = [{"name": "stays", "count": 2}, {"name": "unknown", "count": 2}]
            talk.ask("CreatePartitions", version, {"topics": rows, "timeoutMs": time_ms})
            talk.ask("CreatePartitions", version, {"topics": [], "timeoutMs": time_ms})


def too_many(talk: Talk) -> None:
    create(talk, "wide")
    for version in (2, 7):
        rows = [{"name": name, "numPartitions": 5001, "replicationFactor": 1} for name in ("huge", "huger")]
        talk.ask("CreateTopics", version, {"topics": rows, "timeoutMs": 30000})
    for version in range(4):
        rows = [{"name": "wide", "count": 10_002}, {"name": "unknown", "count": 3}]
        talk.ask("CreatePartitions", version, {"topics": rows, "timeoutMs": 30000})


def metadata(talk: Talk) -> None:
    topic_id = create(talk, "seen", 3)
    rows = [{"name": "seen"}, {"name": "unseen"}, {"name": "a b"}]
    operations = {"includeTopicAuthorizedOperations": True, "includeClusterAuthorizedOperations": True}
    talk.each("Metadata", {"topics": rows, "allowAutoTopicCreation": False} | operations)
    talk.each("Metadata", {"topics": [{"name": "seen"}], "allowAutoTopicCreation": True})
    talk.each("Metadata", {"topics": [], "allowAutoTopicCreation": False})
    for version in range(10, 14):
        ids = [{"topicId": topic_id, "name": None}, {"topicId": UNKNOWN_ID, "name": None}]
        talk.ask("Metadata", version, {"topics": ids})
        talk.ask("Metadata", version, {"topics": [{"topicId": topic_id, "name": "seen"}]})
        talk.ask("Metadata", version, {"topics": [{"name": None}]})
    for limit, cursor in (
        (2000, None),
        (1, None),
        (1, {"topicName": "seen", "partitionIndex": 1}),
        (0, None),
        (-1, None),
    ):
        named = {"topics": [{"name": "seen"}, {"name": "unseen"}], "responsePartitionLimit": limit, "cursor": cursor}
        talk.ask("DescribeTopicPartitions", 0, named)
    talk.ask("DescribeTopicPartitions", 0, {"topics": [{"name": "seen"}, {"name": "seen"}, {"name": "a b"}]})
    for name in BAD_NAMES:
        talk.ask("DescribeTopicPartitions", 0, {"topics": [{"name": name}]})
        talk.ask("DescribeTopicPartitions", 0, {"topics": [{"name": name}, {"name": "seen"}]})
        talk.each("Metadata", {"topics": [{"name": name}], "allowAutoTopicCreation": True})
    late = {"topicName": "zzz", "partitionIndex": 0}
    talk.ask("DescribeTopicPartitions", 0, {"topics": [{"name": "seen"}], "cursor": late})
    talk.ask(
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": "seen"}], "cursor": {"topicName": "seen", "partitionIndex": -1}},
    )


def partitions(talk: Talk) -> None:
    create(talk, "growing", 1)
    for version in range(4):
        rows = [
            {"name": "growing", "count": 2 + version},
            {"name": "unknown", "count": 3},
        ]
        talk.ask("CreatePartitions", version, {"topics": rows, "timeoutMs": 30000, "validateOnly": True})
        talk.ask("CreatePartitions", version, {"topics": rows, "timeoutMs": 30000, "validateOnly": False})
        for count in (0, -1, 1, 2 + version):
            talk.ask("CreatePartitions", version, {"topics": [{"name": "growing", "count": count}], "timeoutMs": 30000})
        placed = {"name": "growing", "count": 12, "assignments": [{"brokerIds": [1]}]}
        far = {"name": "growing", "count": 3 + version, "assignments": [{"brokerIds": [9]}]}
        talk.ask("CreatePartitions", version, {"topics": [placed], "timeoutMs": 30000})
        talk.ask("CreatePartitions", version, {"topics": [far], "timeoutMs": 30000})
        talk.ask("CreatePartitions", version, {"topics": [rows[0], rows[0]], "timeoutMs": 30000})
    talk.wait("Metadata", {"topics": [{"name": "growing"}]}, lambda found: _is_led(found, 5))


def delete_topics(talk: Talk) -> None:
    for version in range(1, 6):
        create(talk, f"gone-{version}")
        talk.ask("DeleteTopics", version, {"topicNames": [f"gone-{version}", "unknown"], "timeoutMs": 30000})
        talk.ask("DeleteTopics", version, {"topicNames": [f"gone-{version}"], "timeoutMs": 30000})
        talk.ask("DeleteTopics", version, {"topicNames": ["twice", "twice"], "timeoutMs": 30000})
        talk.ask("DeleteTopics", version, {"topicNames": [], "timeoutMs": 30000})
    topic_id = create(talk, "gone-6")
    for rows in (
        [{"name": "gone-6", "topicId": topic_id}],
        [{"name": None, "topicId": UNKNOWN_ID}],
        [{"name": None, "topicId": "A" * 22}],
        [{"name": None, "topicId": topic_id}, {"name": "gone-6"}],
        [{"name": None, "topicId": topic_id}],
        [{"name": None, "topicId": topic_id}],
        [{"name": "unknown"}, {"name": "unknown"}],
    ):
        talk.ask("DeleteTopics", 6, {"topics": rows, "timeoutMs": 30000})


def _has(name: str, value: str) -> Callable[[Values], bool]:
    """Whether an answer of DescribeConfigs says that a setting has a value."""
    return lambda answer: any((row["name"], row["value"]) == (name, value) for row in answer["results"][0]["configs"])


def configs(talk: Talk) -> None:
    create(talk, "set", 1, {"retention.ms": "5000"})
    names = ["retention.ms", "cleanup.policy", "max.message.bytes", "no.such.setting"]
    resources = [
        {"resourceType": 2, "resourceName": "set", "configurationKeys": names},
        {"resourceType": 2, "resourceName": "unknown", "configurationKeys": None},
        {"resourceType": 2, "resourceName": "a b", "configurationKeys": None},
        {"resourceType": 4, "resourceName": "1", "configurationKeys": ["num.partitions", "log.retention.ms"]},
        {"resourceType": 4, "resourceName": "2", "configurationKeys": None},
        {"resourceType": 4, "resourceName": "x", "configurationKeys": None},
        {"resourceType": 77, "resourceName": "set", "configurationKeys": None},
    ]
    for each in resources:
        talk.each("DescribeConfigs", {"resources": [each], "includeSynonyms": True, "includeDocumentation": False})
    whole = {"resources": [{"resourceType": 2, "resourceName": "set", "configurationKeys": None}]}
    talk.each("DescribeConfigs", whole)
    talk.ask("DescribeConfigs", 4, whole | {"includeSynonyms": True, "includeDocumentation": True})
    for version in (0, 1):
        for rows in (
            [("retention.ms", 0, "9000")],
            [("retention.ms", 1, None)],
            [("cleanup.policy", 2, "compact")],
            [("cleanup.policy", 3, "delete")],
            [("retention.ms", 0, "soon")],
            [("retention.ms", 2, "1")],
            [("no.such", 0, "1")],
            [("retention.ms", 0, None)],
            [("retention.ms", 9, "1")],
            [("retention.ms", 0, "1"), ("retention.ms", 0, "2")],
        ):
            changes = [{"name": name, "configOperation": how, "value": value} for name, how, value in rows]
            asked = {"resourceType": 2, "resourceName": "set", "configs": changes}
            talk.ask("IncrementalAlterConfigs", version, {"resources": [asked], "validateOnly": True})
            talk.ask("IncrementalAlterConfigs", version, {"resources": [asked]})
        unknown = {"resourceType": 2, "resourceName": "unknown", "configs": changes[:1]}
        talk.ask("IncrementalAlterConfigs", version, {"resources": [unknown]})
        talk.ask("IncrementalAlterConfigs", version, {"resources": [unknown, unknown]})
    talk.wait("DescribeConfigs", whole, _has("cleanup.policy", "compact"))  # a broker learns of it a moment later
    talk.each("DescribeConfigs", whole)
    for version in range(3):
        changes = [{"name": "retention.ms", "value": "7000"}]
        set_ = {"resourceType": 2, "resourceName": "set", "configs": changes}
        unknown = {"resourceType": 2, "resourceName": "unknown", "configs": changes}
        bad = {"resourceType": 2, "resourceName": "set", "configs": [{"name": "retention.ms", "value": "soon"}]}
        for resource in (set_, unknown, bad):
            talk.ask("AlterConfigs", version, {"resources": [resource], "validateOnly": True})
            talk.ask("AlterConfigs", version, {"resources": [resource]})
    talk.wait("DescribeConfigs", whole, _has("retention.ms", "7000"))
    wrong = [{"name": "retention.ms", "configOperation": 9, "value": "1"}]
    right = [{"name": "retention.ms", "configOperation": 0, "value": "8000"}]
    for kind, name in ((2, "set"), (2, "unknown"), (4, "1"), (4, ""), (8, "1"), (16, "s"), (32, "g")):
        one = {"resourceType": kind, "resourceName": name, "configs": wrong}
        talk.ask("IncrementalAlterConfigs", 1, {"resources": [one]})
        other = {"resourceType": 2, "resourceName": "set", "configs": right}
        if (kind, name) != (2, "set"):
            talk.ask("IncrementalAlterConfigs", 1, {"resources": [one, other], "validateOnly": True})
    for kind, name in ((8, ""), (8, "2"), (8, "x"), (4, "2"), (4, "x"), (16, ""), (32, ""), (99, "1"), (2, "")):
        one = {"resourceType": kind, "resourceName": name, "configurationKeys": None}
        talk.each("DescribeConfigs", {"resources": [one]})
        talk.each("DescribeConfigs", {"resources": [one, resources[0]]})
        named = {"resourceType": kind, "resourceName": name, "configs": right}
        talk.ask("IncrementalAlterConfigs", 1, {"resources": [named]})
    for types in ([], [2], [4], [16], [99]):
        talk.ask("ListConfigResources", 1, {"resourceTypes": types})
    talk.ask("ListConfigResources", 0, {})


def cluster(talk: Talk) -> None:
    named = {"clientSoftwareName": "wire", "clientSoftwareVersion": "1.0"}
    talk.each("ApiVersions", named)
    for name in ("", "a b", "ok-name", "-bad", "x" * 300):
        talk.ask("ApiVersions", 3, {"clientSoftwareName": name, "clientSoftwareVersion": "1.0"})
    talk.each("DescribeCluster", {"includeClusterAuthorizedOperations": True, "endpointType": 1})
    talk.ask("DescribeCluster", 2, {"includeFencedBrokers": True})
    talk.ask("DescribeCluster", 1, {"endpointType": 2})
    talk.ask("DescribeCluster", 1, {"endpointType": 3})
    for kind in (0, 1):
        talk.wait("FindCoordinator", {"keyType": kind, "coordinatorKeys": ["g"]},
                  lambda found: found["coordinators"][0]["errorCode"] == 0)  # fmt: skip
    for kind in (0, 1, 2, 9):
        talk.each("FindCoordinator", {"key": "g", "keyType": kind, "coordinatorKeys": ["g", "h", ""]})


def _has_both(found: Values) -> bool:
    return [len(row["partitions"]) for row in found["results"][0]["topics"]] == [2]


def log_dirs(talk: Talk) -> None:
    create(talk, "on-disk", 2)
    both = {"topics": [{"topic": "on-disk", "partitions": [0, 1]}]}
    talk.wait("DescribeLogDirs", both, _has_both)
    for topics in ([{"topic": "on-disk", "partitions": [0, 1, 7]}], [{"topic": "unknown", "partitions": [0]}], []):
        talk.each("DescribeLogDirs", {"topics": topics})
    for path in ("/no/such/dir", "relative", ""):
        rows = [
            {"path": path, "topics": [{"name": "on-disk", "partitions": [0]}, {"name": "unknown", "partitions": [0]}]}
        ]
        talk.each("AlterReplicaLogDirs", {"dirs": rows})


STORIES = {
    story.__name__: story
    for story in (
        *(create_topics, without_time, too_many, metadata, partitions, delete_topics, configs, cluster, log_dirs),
    )
}
