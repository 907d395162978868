"""Option keepTimestamps of the sink: rows bring the timestamps of their records, so a replay keeps them.

The column `timestamp` becomes the records' timestamps, rounded down to whole milliseconds; null means the time of the
write.  Kafka's topic settings apply: message.timestamp.type=LogAppendTime replaces the times, and
message.timestamp.before.max.ms and after.max.ms refuse them.  The log checks this as it appends.  Tasks check the same
rules before they stage a row, so that nothing is appended and the error can name the row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kafkalog.engine.log.types import TopicRules
from kafkalog.engine.log.validation_errors import TimeRules, out_of_range
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTimestampException,
    RecordValidationException,
)

OPTION = "keepTimestamps"
COLUMN = "timestamp"
NO_TIMESTAMP = -1  # a record without a timestamp, in a log and in rows that were read from it
MS_US = 1000
KEY_SHOWN = 100  # characters of a key in a message


def check_timestamp(columns: Mapping[str, str]) -> None:
    """Raises IllegalStateException if the columns (types by name) have no times to keep."""
    kind = columns.get(COLUMN)
    if kind is None:
        raise IllegalStateException(
            f"Required attribute '{COLUMN}' not found",
            hint=f"option {OPTION} needs this column with the records' times",
        )
    if kind != "timestamp":
        why = ", and this column has no time zone" if kind == "timestamp_ntz" else ""
        raise IllegalStateException(
            f"{COLUMN} attribute unsupported type {kind}. {COLUMN} must be a(n) timestamp",
            hint=f"a record's time is a moment{why}: cast the column to timestamp",
        )


def kept_times(rows: Any, topic: str, rules: TopicRules, now_ms: int) -> Any:
    """Returns the times of a topic's rows (an Arrow table) as milliseconds since 1970, with nulls.

    -1 means no timestamp, as in a read.  Raises IllegalArgumentException for another time before 1970, and
    InvalidTimestampException for a time that the topic does not accept.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows.column(COLUMN).combine_chunks().cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    least, most = pc.min_max(pc.filter(column, pc.not_equal(column, NO_TIMESTAMP * MS_US))).as_py().values()
    if least is None:
        return pc.divide(column, MS_US)
    if least < 0:
        raise IllegalArgumentException(
            f"Invalid timestamp: {least // MS_US}. Timestamp should always be non-negative or null: "
            f"found {_row_of(rows, column, least, topic)}",
            hint=f"leave option {OPTION} out to give records the time of the write",
        )
    bounds = TimeRules(now_ms, rules.before_max_ms, rules.after_max_ms)
    for time_us in (least, most) if rules.create_time else ():
        time = time_us // MS_US
        if now_ms - time > bounds.before_max_ms or time - now_ms > bounds.after_max_ms:
            raise InvalidTimestampException(
                f"found {_row_of(rows, column, time_us, topic)}: {out_of_range(0, time, 0, bounds).hint}",
                hint="these two topic settings say how old or new records may be; with "
                "message.timestamp.type=LogAppendTime records get the time of the write",
            )
    return pc.divide(column, MS_US)


def _row_of(rows: Any, times: Any, time_us: int, topic: str) -> str:
    """Describes a row with this time, which may be out of the range of Python's calendar."""
    import numpy as np
    import pyarrow.compute as pc

    row = pc.index(times, time_us).as_py()
    key = repr(rows.column("key")[row].as_py()) if "key" in rows.column_names else None
    if key is not None and len(key) > KEY_SHOWN:
        key = f"{key[:KEY_SHOWN]}... of {len(key)} characters"
    moment = str(np.datetime64(max(time_us, 1 - (1 << 63)), "us")).replace("T", " ")
    return f"a row of topic {topic!r} with the key {key} and the timestamp {moment} UTC"


@contextlib.contextmanager
def naming_the_partition(topic: str, partition: int) -> Iterator[None]:
    """Adds the partition to a log's refusal of records."""
    try:
        yield
    except RecordValidationException as error:
        error.message = f"{topic}-{partition}: {error.message}"
        raise
