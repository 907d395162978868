"""Rows that bring their records' times: option keepTimestamps of the sink, for a replay that keeps them.

The column `timestamp` becomes the records' timestamps, in whole milliseconds (a part of one is cut off); null is the
time of the write.  What a log says of a time is Kafka's: message.timestamp.type=LogAppendTime writes its own, and
message.timestamp.before.max.ms and after.max.ms refuse.  The log decides as it appends; tasks ask the same rules
before they stage a row, so that nothing was appended, and the row can be named.
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
NO_TIMESTAMP = -1  # of a record that has none, in a log and in what is read of it
MS_US = 1000
KEY_SHOWN = 100  # characters of a key in a message


def check_timestamp(columns: Mapping[str, str]) -> None:
    """IllegalStateException if the columns, types by name, have no times to keep."""
    kind = columns.get(COLUMN)
    if kind is None:
        raise IllegalStateException(
            f"Required attribute '{COLUMN}' not found", hint=f"option {OPTION} takes the records' times from it"
        )
    if kind != "timestamp":
        why = ", and this column has no time zone" if kind == "timestamp_ntz" else ""
        raise IllegalStateException(
            f"{COLUMN} attribute unsupported type {kind}. {COLUMN} must be a(n) timestamp",
            hint=f"a record's time is a moment{why}: cast it to timestamp",
        )


def kept_times(rows: Any, topic: str, rules: TopicRules, now_ms: int) -> Any:
    """The times of rows of a topic, an Arrow table, as milliseconds since 1970 with nulls.  -1 stands for no timestamp,
    as in a read.  IllegalArgumentException for another time before 1970, InvalidTimestampException for one that the
    topic does not take."""
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
            hint=f"without option {OPTION} records get the time of the write",
        )
    bounds = TimeRules(now_ms, rules.before_max_ms, rules.after_max_ms)
    for time_us in (least, most) if rules.create_time else ():
        time = time_us // MS_US
        if now_ms - time > bounds.before_max_ms or time - now_ms > bounds.after_max_ms:
            raise InvalidTimestampException(
                f"found {_row_of(rows, column, time_us, topic)}: {out_of_range(0, time, 0, bounds).hint}",
                hint="topic settings of that name say how old or new records may be; with "
                "message.timestamp.type=LogAppendTime they get the time of the write",
            )
    return pc.divide(column, MS_US)


def _row_of(rows: Any, times: Any, time_us: int, topic: str) -> str:
    """A row that has this time, whatever the calendars of Python and the session's time zone make of it."""
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
    """Adds to a log's refusal of records which log it is."""
    try:
        yield
    except RecordValidationException as error:
        error.message = f"{topic}-{partition}: {error.message}"
        raise
