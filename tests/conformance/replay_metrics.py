"""kafkalog's registry in the form in which the driver shows Kafka's (`MetricsOp.java`)."""

from __future__ import annotations

from typing import Any

from kafkalog.metrics import MeterValue, TimerValue
from tests.conformance.replay_session import Op, Session

TYPES = "Log LogFlushStats BrokerTopicMetrics"


def _metrics(session: Session, op: Op, result: dict[str, Any]) -> None:
    """Gauges by their value, meters and timers by their count; zero counts are left out, unless `all`."""
    types = op.get("types", TYPES).split()
    found: dict[str, int | float] = {}
    for name, value in session.metrics.snapshot():
        topic = dict(name.tags).get("topic")
        if name.group == "kafkalog" or name.type not in types or topic not in (None, op.get("topic")):
            continue
        counted = isinstance(value, (MeterValue, TimerValue))
        shown = value.count if isinstance(value, (MeterValue, TimerValue)) else value
        if shown or not counted or op.get("all", False):
            found[name.object_name] = shown
    result["result"] = dict(sorted(found.items()))


OPERATIONS = {"metrics": _metrics}
