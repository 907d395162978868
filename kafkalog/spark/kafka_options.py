"""Options that Spark's Kafka source and sink refuse, and those that it tells that it ignores: the same here.

A job that moves over has none of them.  One that is new must not take `kafka.auto.offset.reset` for the place where it
starts, nor miss a limit that a batch read has not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkalog.errors import IllegalArgumentException

log = logging.getLogger("kafkalog.spark")

# Option -> what to do instead.
REFUSED_BY_SOURCE = {
    "kafka.auto.offset.reset": "the option startingOffsets is earliest or latest; a stream goes on from its checkpoint",
    "kafka.key.deserializer": "keys are bytes: decode them with functions of DataFrames",
    "kafka.value.deserializer": "values are bytes: decode them with functions of DataFrames",
    "kafka.enable.auto.commit": "a stream's offsets are in its checkpoint",
    "kafka.interceptor.classes": "there is no consumer: change rows with functions of DataFrames",
}
REFUSED_BY_SINK = {
    "kafka.key.serializer": "keys are bytes or text: encode them with functions of DataFrames",
    "kafka.value.serializer": "values are bytes or text: encode them with functions of DataFrames",
}
OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")


def refuse_kafka_options(given: Mapping[str, str], refused: Mapping[str, str]) -> None:
    """IllegalArgumentException for an option (names in lower case) that Spark's connector has not either."""
    for name, hint in refused.items():
        if name in given:
            raise IllegalArgumentException(f"Kafka option '{name.removeprefix('kafka.')}' is not supported", hint=hint)


def note_stream_options(options: Mapping[str, str]) -> None:
    """Tells what limits streams alone, as Spark's source does."""
    given = {name.lower() for name in options}
    for name in OF_STREAMS:
        if name.lower() in given:
            log.warning("%s option ignored in batch queries", name)
