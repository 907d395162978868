"""Where the answers may differ, each with its reason.

A row is a request's name, a part of the place in its answer as a regular expression, and why.  Everything else that
differs is a fault of kafkalog, or of the sequence.
"""

from __future__ import annotations

import re

# Delegation tokens, elections, reassignments, the quorum, features, brokers' registrations, and Streams' own protocol.
NOT_SERVED = "38|39|40|41|43|45|46|55|57|64|80|81|88|89|93|94"
PERMITTED: tuple[tuple[str, str, str], ...] = (
    ("DescribeConfigs", r"\.documentation$", "kafkalog has no texts about Kafka's settings"),
    ("DescribeLogDirs", r"\.partitions\.\d+$", "kafkalog creates the logs of internal topics at their first use"),
    ("ApiVersions", r"\.finalizedFeaturesEpoch$", "the offset of a metadata log, which kafkalog does not have"),
    ("ApiVersions", rf"\.apiKeys\.({NOT_SERVED})$", "kafkalog is one node, and does not serve these"),
    ("ApiVersions", r"Features\.streams\.version$", "kafkalog does not serve the protocol of Streams' groups"),
)
# Requests that Kafka never answers, although they are well formed: its client waits until it gives up.
NEVER_ANSWERED: tuple[tuple[str, str], ...] = (
    ("Produce", "Kafka fails at a partition without records, and again when it tells that; kafkalog answers the error"),
    ("AddPartitionsToTxn", "Kafka answers after the last transaction, and so never if there is none"),
)


def is_permitted(name: str, line: str) -> bool:
    """`line` is a difference as `normal.differences` writes it: the place, a colon, and both values."""
    if any(row[0] == name for row in NEVER_ANSWERED) and re.match(r":? ?Kafka 'nothing', kafkalog (\{|b')", line):
        return True
    place = line.partition(":")[0]
    return any(row[0] == name and re.search(row[1], place) for row in PERMITTED)
