"""RequestMetrics: requests, errors and times by the kind of request, connections and memory, under Kafka's names.

Meters are marked by the I/O thread; the gauges are read when somebody asks.  Without a registry nothing is measured.
Source: RequestMetrics, SocketServer (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kafkalog.metrics.kinds import Meter, Timer
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge, MetricsRegistry

if TYPE_CHECKING:
    from kafkalog.server.request import Request


class Measured(Protocol):
    """The part of a transport that the gauges read."""

    @property
    def connection_count(self) -> int: ...

    @property
    def memory_used(self) -> int: ...

    @property
    def memory_limit(self) -> int: ...


CONNECTIONS = MetricName("kafka.server", "socket-server-metrics", "connection-count")
MEMORY_USED = MetricName("kafka.network", "SocketServer", "MemoryPoolUsed")
MEMORY_AVAILABLE = MetricName("kafka.network", "SocketServer", "MemoryPoolAvailable")


def _name(name: str, *tags: tuple[str, str]) -> MetricName:
    return MetricName("kafka.network", "RequestMetrics", name, tags)


class RequestMetrics:
    """The meters of one server."""

    def __init__(self, registry: MetricsRegistry, measured: Measured) -> None:
        self._registry = registry
        self._requests: dict[tuple[int, int], Meter] = {}
        self._times: dict[int, Timer] = {}
        self._measured = measured
        registry.show(self, _gauges)

    def answered(self, name: str, request: Request, took_ns: int) -> None:
        """Counts a request whose answer is ready, and the time since it came."""
        key = request.api_key, request.api_version
        meter = self._requests.get(key)
        if meter is None:
            tags = ("request", name), ("version", str(request.api_version))
            meter = self._requests[key] = self._registry.meter(_name("RequestsPerSec", *tags), "requests")
        meter.mark(1)
        timer = self._times.get(request.api_key)
        if timer is None:
            timer = self._times[request.api_key] = self._registry.timer(_name("TotalTimeMs", ("request", name)))
        timer.update(took_ns)

    def close(self) -> None:
        """Hides the gauges."""
        self._registry.hide(self)


def _gauges(metrics: RequestMetrics) -> list[Gauge]:
    return [
        Gauge(CONNECTIONS, lambda owner: owner._measured.connection_count, summed=True),
        Gauge(MEMORY_USED, lambda owner: owner._measured.memory_used, summed=True),
        Gauge(MEMORY_AVAILABLE, lambda owner: max(owner._measured.memory_limit - owner._measured.memory_used, 0)),
    ]
