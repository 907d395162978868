"""The options and columns of the sink: those of Spark's Kafka sink, plus `path` and a few for a directory without a
broker.

Names are case-insensitive.  An option that only makes sense with a broker is accepted and ignored, so a job moves over
with another `format` and a `path`.  Everything is checked on the driver, before anything is written.
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
    "content",
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
IGNORED = ("includeHeaders", "checkpointLocation", "queryName")  # options of reads, and of Spark
# Options that decide where rows go.  If one is misspelled, rows are written elsewhere or twice, and nothing says so.
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
    """Checked options.  `topic` wins over a column of that name; `compression` None uses the topic's setting."""

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
    """Parses the options of a batch or a stream; raises IllegalArgumentException that says what is expected."""
    given = {name.lower(): value for name, value in options.items()}
    refuse_kafka_options(given, REFUSED_BY_SINK)
    refuse_near(
        options,
        (*KNOWN, *IGNORED),
        {name: name for name in _DECIDING},
        "if it were ignored, rows would be written in another way",
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
        raise IllegalArgumentException(
            f"option {name} is {text[:50]!r}", hint="expected a whole number of milliseconds"
        )
    return int(text)


def check_columns(schema: Any, options: SinkOptions) -> None:
    """Raises IllegalStateException, with the messages of Spark's Kafka sink, for columns that cannot make records.

    As in that sink, columns other than COLUMN_TYPES, and `timestamp` with keepTimestamps, are ignored.
    """
    topic = options.topic
    found = {column.name: column.dataType.simpleString() for column in schema.fields}
    if "headers" in found:  # its fields' names may be in any case, as in Spark's sink
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
