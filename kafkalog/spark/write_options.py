"""The options and columns of the sink: names, defaults and errors of Spark's own Kafka sink, plus `path` and what a
directory without a broker needs to be told.

Names are case-insensitive.  What only makes sense with a broker is accepted and ignored, so that a job moves over by
changing `format` and giving `path`.  Everything is checked on the driver, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalog._limits import INT_MAX
from kafkalog.engine.files import local_path
from kafkalog.engine.format import codecs
from kafkalog.errors import IllegalArgumentException, IllegalStateException
from kafkalog.spark.idempotent import AppVersion, parse_app_version
from kafkalog.spark.kafka_options import REFUSED_BY_SINK, refuse_kafka_options
from kafkalog.spark.kept_times import OPTION as KEEP_TIMESTAMPS
from kafkalog.spark.kept_times import check_timestamp
from kafkalog.spark.options import _boolean, _note_unknown, positive, refuse_near
from kafkalog.spark.path_lists import listed_paths

if TYPE_CHECKING:
    from kafkalog._face.opening import Durability

KNOWN = (
    "path",
    "topic",
    "createTopics",
    "numPartitions",
    "stagingPath",
    "durability",
    "takeOver",
    "txnAppId",
    "txnVersion",
    KEEP_TIMESTAMPS,
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.max.block.ms",
)
IGNORED = ("includeHeaders", "checkpointLocation", "queryName")  # of the read side, and Spark's own
# Without one of these rows get somewhere else, or are there twice, and nothing says so.
_DECIDING = ("topic", "numPartitions", "txnAppId", "txnVersion", KEEP_TIMESTAMPS)
COLUMN_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}
MAX_BLOCK_MS = 60_000  # max.block.ms


@dataclass(frozen=True)
class SinkOptions:
    """Checked options.  `topic` wins over a column of that name; `compression` None is as the topic says."""

    paths: tuple[str, ...]
    staging: str
    topic: str | None = None
    creates_topics: bool = False
    new_partitions: int = 1
    compression: str | None = None
    batch_bytes: int | None = None
    durability: Durability = "fsync"
    max_block_ms: int = MAX_BLOCK_MS
    take_over: bool = False
    app: AppVersion | None = None
    keeps_timestamps: bool = False


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """SinkOptions of a batch or a stream; IllegalArgumentException says what was found and what is expected."""
    given = {name.lower(): value for name, value in options.items()}
    refuse_kafka_options(given, REFUSED_BY_SINK)
    refuse_near(
        options, (*KNOWN, *IGNORED), {name: name for name in _DECIDING}, "without it rows are written in another way"
    )
    _note_unknown(options, KNOWN, IGNORED)
    paths = tuple(local_path(part, what="option path") for part in listed_paths(given.get("path", "")))
    if not paths:
        raise IllegalArgumentException(
            "option path is missing",
            hint="expected the log directory, as .save(dir), .start(dir) or .option('path', dir)",
        )
    compression = given.get("kafka.compression.type")
    if compression is not None:
        compression = compression.strip().lower()
        if compression not in codecs.NAMES:
            raise IllegalArgumentException(
                f"option kafka.compression.type is {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
            )
    durability = given.get("durability", "fsync").strip().lower()
    if durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"option durability is {durability!r}", hint="expected os or fsync")
    topic = given.get("topic", "").strip() or None
    return SinkOptions(
        paths=paths,
        staging=local_path(given.get("stagingpath", "").strip(), what="option stagingPath") or paths[0],
        topic=topic,
        creates_topics=_boolean(given, "createTopics", False),
        new_partitions=positive(given, "numPartitions") or 1,
        compression=compression,
        batch_bytes=_bounded(given, "kafka.batch.size"),
        durability="os" if durability == "os" else "fsync",
        max_block_ms=_milliseconds(given, "kafka.max.block.ms", MAX_BLOCK_MS),
        take_over=_boolean(given, "takeOver", False),
        app=parse_app_version(given),
        keeps_timestamps=_boolean(given, KEEP_TIMESTAMPS, False),
    )


def _bounded(given: Mapping[str, str], name: str) -> int | None:
    found = positive(given, name)
    if found is not None and found > INT_MAX:
        raise IllegalArgumentException(f"option {name} is {found}", hint=f"expected bytes, at most {INT_MAX}")
    return found


def _milliseconds(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower(), str(default)).strip()
    if not re.fullmatch(r"\d{1,18}", text):
        raise IllegalArgumentException(f"option {name} is {text[:50]!r}", hint="expected milliseconds")
    return int(text)


def check_columns(schema: Any, options: SinkOptions) -> None:
    """IllegalStateException, in the words of Spark's Kafka sink, for columns that no record is made of.  Others than
    COLUMN_TYPES, and `timestamp` with keepTimestamps, are left out, as there."""
    topic = options.topic
    found = {column.name: column.dataType.simpleString() for column in schema.fields}
    if "headers" in found:  # whose fields' names may be in any case, as there
        found["headers"] = found["headers"].lower()
    if topic is None and "topic" not in found:
        raise IllegalStateException(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in found:
        raise IllegalStateException("Required attribute 'value' not found")
    for name, kinds in COLUMN_TYPES.items():
        if name in found and found[name] not in kinds and not (name == "topic" and topic is not None):
            raise IllegalStateException(
                f"{name} attribute unsupported type {found[name]}. {name} must be a(n) {' or '.join(kinds)}"
            )
    if options.keeps_timestamps:
        check_timestamp(found)
