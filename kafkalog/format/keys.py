"""From a record's key to the partition that Kafka's own producers put it into.

Only as true as the number of partitions is: who writes with another partitioner, or wrote when the topic had fewer
partitions, put keys elsewhere.  Knows no directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog._native.murmur2 import murmur2
from kafkalog.limits import INT_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer


def partition_for_key(key: Buffer, partitions: int) -> int:
    """Kafka's BuiltInPartitioner.partitionForKey: of a topic with so many partitions (at least one)."""
    return (murmur2(key) & INT_MAX) % partitions
