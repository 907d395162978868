"""What a metric is called: group, type, name and tags, and the JMX object that Kafka makes of them.

Knows no metric and no value.  Source classes: KafkaMetricsGroup, Sanitizer (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_PLAIN = re.compile(r"[\w\-%. \t]*", re.ASCII)
_ESCAPED = {"\\": "\\\\", '"': '\\"', "*": "\\*", "?": "\\?", "\n": "\\n"}


def _jmx_value(value: str) -> str:
    """A tag's value as it stands in an object's name: quoted as ObjectName.quote does where it is not plain."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + "".join(_ESCAPED.get(letter, letter) for letter in value) + '"'


class MetricName(NamedTuple):
    """`kafka.log`, `Log`, `Size`, (("topic", "orders"), ("partition", "0")); tags keep their order."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, group: str, type: str, name: str, tags: Mapping[str, str] | None = None) -> MetricName:
        """With tags as a mapping; those without a value are left out."""
        return cls(group, type, name, tuple((key, value) for key, value in (tags or {}).items() if value))

    @property
    def object_name(self) -> str:
        """The JMX object: `kafka.log:type=Log,name=Size,topic=orders,partition=0`."""
        parts = [f"{self.group}:type={self.type}"]
        if self.name:
            parts.append(f"name={self.name}")
        parts.extend(f"{key}={_jmx_value(value)}" for key, value in self.tags)
        return ",".join(parts)
