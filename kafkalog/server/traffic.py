"""BrokerTopicMetrics: the records and bytes of producers and consumers, by topic and for all topics, by Kafka's names.

Each request marks the meters of a topic once, with the sum of its partitions.  A topic's meters are removed some time
after the topic, because tests make and delete many.  Without a registry nothing is measured.  The I/O thread owns it.
Source: BrokerTopicStats, BrokerTopicMetrics (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.metrics.names import MetricName

if TYPE_CHECKING:
    from kafkalog.metrics.kinds import Meter
    from kafkalog.metrics.registry import MetricsRegistry
    from kafkalog.server.hosted import HostedTopics

KINDS = (
    ("MessagesInPerSec", "messages"),
    ("BytesInPerSec", "bytes"),
    ("BytesOutPerSec", "bytes"),
    ("TotalProduceRequestsPerSec", "requests"),
    ("TotalFetchRequestsPerSec", "requests"),
    ("FailedProduceRequestsPerSec", "requests"),
    ("FailedFetchRequestsPerSec", "requests"),
)
LOOK_EVERY = 64  # so many new topics between two searches for topics that are gone


def _name(name: str, topic: str) -> MetricName:
    return MetricName("kafka.server", "BrokerTopicMetrics", name, (("topic", topic),) if topic else ())


class TopicTraffic:
    """The meters of one topic, or of all topics (`topic` is empty)."""

    __slots__ = ("_all", "_meters", "topic")

    def __init__(self, registry: MetricsRegistry, topic: str, everything: TopicTraffic | None) -> None:
        self.topic = topic
        self._all = everything
        self._meters: tuple[Meter, ...] = tuple(registry.meter(_name(name, topic), kind) for name, kind in KINDS)

    def produced(self, messages: int, size: int, requests: int, failed: int) -> None:
        """Counts the records, bytes and partitions of a produce request."""
        meters = self._meters
        if messages:
            meters[0].mark(messages)
            meters[1].mark(size)
        meters[3].mark(requests)
        if failed:
            meters[5].mark(failed)
        if self._all is not None:
            self._all.produced(messages, size, requests, failed)

    def fetched(self, size: int, requests: int, failed: int) -> None:
        """Counts the bytes and partitions of an answer to a fetch."""
        meters = self._meters
        if size:
            meters[2].mark(size)
        meters[4].mark(requests)
        if failed:
            meters[6].mark(failed)
        if self._all is not None:
            self._all.fetched(size, requests, failed)


class Traffic:
    """The meters of a server."""

    def __init__(self, registry: MetricsRegistry, hosted: HostedTopics) -> None:
        self._registry = registry
        self._hosted = hosted
        self._all = TopicTraffic(registry, "", None)
        self._topics: dict[str, TopicTraffic] = {}
        self._new = 0

    def of(self, topic: str) -> TopicTraffic:
        """Returns the meters of a topic."""
        found = self._topics.get(topic)
        if found is None:
            self._new += 1
            if self._new >= LOOK_EVERY:
                self._forget_gone()
            found = self._topics[topic] = TopicTraffic(self._registry, topic, self._all)
        return found

    def _forget_gone(self) -> None:
        self._new = 0
        for topic in [each for each in self._topics if self._hosted.named(each) is None]:
            del self._topics[topic]
            for name, _ in KINDS:
                self._registry.remove(_name(name, topic))
