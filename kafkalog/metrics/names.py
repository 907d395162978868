"""Names of metrics: group, type, name and tags, and the name of the JMX object that Kafka makes from them.

Knows no metric and no value. Source classes: KafkaMetricsGroup, Sanitizer (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_PLAIN = re.compile(r"[\w\-%. \t]*", re.ASCII)
_ESCAPED = {"\\": "\\\\", '"': '\\"', "*": "\\*", "?": "\\?", "\n": "\\n"}


def _jmx_value(value: str) -> str:
    """Returns a tag's value as in an object name: quoted as by ObjectName.quote unless it is plain."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + "".join(_ESCAPED.get(letter, letter) for letter in value) + '"'


class MetricName(NamedTuple):
    """The name of a metric, as in Kafka.

    Args:
        group: The group, such as `kafka.log`.
        type: The type, such as `Log`.
        name: The name, such as `Size`.
        tags: Pairs of tag and value, in order, such as (("topic", "orders"), ("partition", "0")).

    Example:
        >>> from kafkalog.metrics import MetricName
        >>> MetricName.of("kafka.log", "Log", "Size", {"topic": "orders", "partition": "0"}).object_name
        'kafka.log:type=Log,name=Size,topic=orders,partition=0'
    """

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, group: str, type: str, name: str, tags: Mapping[str, str] | None = None) -> MetricName:
        """Creates a name with tags from a mapping; tags with an empty value are omitted."""
        return cls(group, type, name, tuple((key, value) for key, value in (tags or {}).items() if value))

    @property
    def object_name(self) -> str:
        """The name of the JMX object, such as `kafka.log:type=Log,name=Size,topic=orders,partition=0`."""
        parts = [f"{self.group}:type={self.type}"]
        if self.name:
            parts.append(f"name={self.name}")
        parts.extend(f"{key}={_jmx_value(value)}" for key, value in self.tags)
        return ",".join(parts)
