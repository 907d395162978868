"""Which partition of a topic a record goes to, as Kafka's producer has it.

With a key: murmur2 of it, so that all records of a key are in one partition, the same as any client of Kafka chooses;
more partitions make other choices.  Without one: the sticky partition, which is one for `STICKY_BYTES` of records and
then another one at random, so that batches are full (`partitioner.adaptive` has nothing to adapt to here).
Source: BuiltInPartitioner, Utils.toPositive (kafka-clients 4.4.0).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kafkalog._native.murmur2 import murmur2

STICKY_BYTES = 16_384  # batch.size


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a record with that key, of a topic with so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartition:
    """Of one topic, for records without a key.  Of several threads that ask at once some may stay longer; each gets a
    partition."""

    def __init__(self, choose: Callable[[Sequence[int]], int] = random.choice) -> None:
        self._choose = choose
        self._present = -1
        self._bytes = 0

    def take(self, size: int, partitions: Sequence[int]) -> int:
        """The partition of `size` bytes of records, one of `partitions`, which are those that are available."""
        present = self._present
        if self._bytes >= STICKY_BYTES or present not in partitions:
            present = self._present = self._choose(partitions)
            self._bytes = 0
        self._bytes += size
        return present
