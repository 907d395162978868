"""BrokerTopicMetrics: counts the batches and records that appends refuse, under Kafka's names.

Bytes refused for their size count for the topic and for all topics; the whole request counts, not only the batch that
was too large. Invalid records count for all topics only. In Kafka, ReplicaManager marks the other meters (messages and
bytes in and out); kafkalog does not. Source classes: BrokerTopicMetrics, UnifiedLog (4.4.0).
"""

from __future__ import annotations

from typing import Protocol

from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import MetricsRegistry


class MetricsRecorder(Protocol):
    """LogValidator.MetricsRecorder: called for each refused batch or record."""

    def record_invalid_magic(self) -> None: ...
    def record_invalid_offset(self) -> None: ...
    def record_invalid_sequence(self) -> None: ...
    def record_invalid_checksums(self) -> None: ...
    def record_no_key_compacted_topic(self, records: int = 1) -> None: ...


def _name(name: str) -> MetricName:
    return MetricName("kafka.server", "BrokerTopicMetrics", name)


BYTES_REJECTED = _name("BytesRejectedPerSec")
INVALID_MAGIC = _name("InvalidMagicNumberRecordsPerSec")
INVALID_CRC = _name("InvalidMessageCrcRecordsPerSec")
INVALID_OFFSET_OR_SEQUENCE = _name("InvalidOffsetOrSequenceRecordsPerSec")
NO_KEY = _name("NoKeyCompactedTopicRecordsPerSec")


class TopicMetrics:
    """A topic's meters, and those of all topics; a MetricsRecorder. Each partition has one, over one registry."""

    __slots__ = (
        "_bytes_rejected",
        "_invalid_crc",
        "_invalid_magic",
        "_invalid_offset",
        "_no_key",
        "_registry",
        "_topic",
    )

    def __init__(self, registry: MetricsRegistry, topic: str) -> None:
        self._registry = registry
        self._topic = topic
        # The meters of all topics exist from the start, as in a broker; a topic's meter is added with its first
        # refusal.
        self._bytes_rejected = registry.meter(BYTES_REJECTED, "bytes")
        self._invalid_magic = registry.meter(INVALID_MAGIC, "requests")
        self._invalid_crc = registry.meter(INVALID_CRC, "requests")
        self._invalid_offset = registry.meter(INVALID_OFFSET_OR_SEQUENCE, "requests")
        self._no_key = registry.meter(NO_KEY, "requests")

    def record_bytes_rejected(self, size: int) -> None:
        """Counts a refused request of `size` bytes: it, or a batch in it, is too large."""
        of_topic = BYTES_REJECTED._replace(tags=(("topic", self._topic),))
        self._registry.meter(of_topic, "bytes").mark(size)
        self._bytes_rejected.mark(size)

    def record_invalid_magic(self) -> None:
        self._invalid_magic.mark()

    def record_invalid_offset(self) -> None:
        self._invalid_offset.mark()

    def record_invalid_sequence(self) -> None:
        self._invalid_offset.mark()

    def record_invalid_checksums(self) -> None:
        self._invalid_crc.mark()

    def record_no_key_compacted_topic(self, records: int = 1) -> None:
        self._no_key.mark(records)
