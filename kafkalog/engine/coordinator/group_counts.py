"""The keys of `GroupOffsets.counts`: the names of Kafka's counts without `-count` (see `group_metrics`)."""

from __future__ import annotations

OFFSET_COMMIT = "offset-commit"
OFFSET_EXPIRATION = "offset-expiration"
OFFSET_DELETION = "offset-deletion"
CLASSIC_REBALANCE = "group-completed-rebalance"
CONSUMER_REBALANCE = "consumer-group-rebalance"
SHARE_REBALANCE = "share-group-rebalance"
COUNTS = (
    OFFSET_COMMIT,
    OFFSET_EXPIRATION,
    OFFSET_DELETION,
    CLASSIC_REBALANCE,
    CONSUMER_REBALANCE,
    SHARE_REBALANCE,
)
