"""Options that Spark's Kafka source and sink refuse or ignore with a warning; kafkalog treats them in the same way.

A job that worked with Spark's Kafka source has none of the refused ones.  In a new job, `kafka.auto.offset.reset` must
not pass for the starting position, and a limit that batch reads do not have must not be ignored silently.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkalog.errors import IllegalArgumentException

log = logging.getLogger("kafkalog.spark")

# Option -> what to do instead.
REFUSED_BY_SOURCE = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest; a stream continues from its checkpoint",
    "kafka.key.deserializer": "keys are bytes: decode them with DataFrame functions",
    "kafka.value.deserializer": "values are bytes: decode them with DataFrame functions",
    "kafka.enable.auto.commit": "leave it out: a stream keeps its offsets in its checkpoint",
    "kafka.interceptor.classes": "there is no consumer: change rows with DataFrame functions",
}
REFUSED_BY_SINK = {
    "kafka.key.serializer": "keys are bytes or text: encode them with DataFrame functions",
    "kafka.value.serializer": "values are bytes or text: encode them with DataFrame functions",
}
OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")


def refuse_kafka_options(given: Mapping[str, str], refused: Mapping[str, str]) -> None:
    """Raises IllegalArgumentException for an option that Spark's connector refuses too; names are in lower case."""
    for name, hint in refused.items():
        if name in given:
            raise IllegalArgumentException(f"Kafka option '{name.removeprefix('kafka.')}' is not supported", hint=hint)


def note_stream_options(options: Mapping[str, str]) -> None:
    """Logs a warning for options that only limit streams, as Spark's source does."""
    given = {name.lower() for name in options}
    for name in OF_STREAMS:
        if name.lower() in given:
            log.warning("%s option ignored in batch queries", name)
