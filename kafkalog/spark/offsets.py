"""Offsets of many partitions: their JSON in checkpoints (`{"t":{"0":23}}`), and how far a query is behind.

An offset is that of the next record to read, as in Spark's Kafka source, so its checkpoints can be continued.  This
module does not depend on pyspark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException

Offsets = dict[TopicPartition, int]
Nested = dict[str, dict[str, int]]
CONVERSIONS = 3  # a batch's start, its end, and the latest offsets


def nested(offsets: Mapping[TopicPartition, int]) -> Nested:
    """Returns the object of the JSON, sorted by topic and partition, so that equal offsets have equal text."""
    found: Nested = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def flat(given: Any) -> Offsets:
    """Returns the offsets in such an object; raises IllegalArgumentException for anything else."""
    expected = f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {json.dumps(given)}'
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in given.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise IllegalArgumentException(
            expected, hint="the checkpoint may be of another source: use a new checkpointLocation"
        ) from None


class Conversions:
    """Caches the last results of `nested` and `flat`: idle triggers convert the same offsets, perhaps 10,000,
    repeatedly.

        conversions.flat(json.loads(text)) is conversions.flat(json.loads(text))

    Equal offsets are the same object, and nobody changes it.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Offsets, Nested]] = []

    def nested(self, offsets: Offsets) -> Nested:
        for known, text in self._kept:
            if known is offsets or known == offsets:
                return text
        return self._keep(offsets, nested(offsets))[1]

    def flat(self, given: Any) -> Offsets:
        for known, text in self._kept:
            if text == given:
                return known
        # The text is kept as `nested` writes it, so that both directions find it.
        offsets = flat(given)
        return self._keep(offsets, nested(offsets))[0]

    def _keep(self, offsets: Offsets, text: Nested) -> tuple[Offsets, Nested]:
        self._kept = [(offsets, text), *self._kept[: CONVERSIONS - 1]]
        return self._kept[0]


def shown(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def behind_latest(source: Any, path: str | Sequence[str] | None = None) -> dict[str, str]:
    """Computes how far a streaming query is behind, with the metrics of Spark's Kafka source.

    The metrics are minOffsetsBehindLatest, maxOffsetsBehindLatest and avgOffsetsBehindLatest, over partitions.

    Args:
        source: A source of a StreamingQueryProgress (an element of its `sources`, or of `lastProgress["sources"]`).
        path: The log directory, or a list of them, for the metric bytesBehindLatest: the bytes on disk of the batches
            that are not read yet, found in the indexes.

    Returns:
        The metrics by name, as text; empty if the source has no endOffset or no latestOffset.

    Raises:
        IllegalArgumentException: `path` is the address of a remote tier.

    Example:
        Read the metrics of a running query:

            behind_latest(query.lastProgress["sources"][0], "/disk1/kafka-logs")
    """
    read, latest = (_of_progress(source, name) for name in ("endOffset", "latestOffset"))
    if not read or not latest:
        return {}
    behind = {partition: offset - read.get(partition, 0) for partition, offset in latest.items()}
    found = {
        "minOffsetsBehindLatest": str(min(behind.values())),
        "maxOffsetsBehindLatest": str(max(behind.values())),
        "avgOffsetsBehindLatest": str(sum(behind.values()) / len(behind)),
    }
    if path is not None:
        waiting = {each: (read.get(each, 0), latest[each]) for each, count in behind.items() if count > 0}
        found["bytesBehindLatest"] = str(_bytes_between(waiting, [path] if isinstance(path, str) else path))
    return found


def _bytes_between(ranges: Mapping[TopicPartition, tuple[int, int]], log_dirs: Iterable[str]) -> int:
    """Returns the bytes of the batches that hold these offsets [start, end)."""
    # Imported here, since streams need offsets but no plan.
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.spark.places import files_of
    from kafkalog.spark.planning import ask, bytes_between

    found: dict[TopicPartition, int] = {}
    for log_dir in log_dirs:
        files = files_of(log_dir)
        for partition, (start, end) in ranges.items():
            if files.is_dir(os.path.join(log_dir, str(partition))):
                with PartitionView(log_dir, partition, files=files) as view:
                    waiting = ask(view, partial(bytes_between, start=start, end=end))
                found[partition] = max(found.get(partition, 0), waiting)  # only one broker's copy counts
    return sum(found.values())


def _of_progress(source: Any, name: str) -> Offsets:
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    if isinstance(value, str):
        value = json.loads(value)
    return flat(value) if value else {}
