"""Prints a record for the reading commands: as an object with the names of Python and Arrow, as an object with kcat's
names (`-f kcat`), or as text by kcat's `-f`.

Shared by `cat`, `latest`, `history` and `tail`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kafkalog.cli.console import emit_json, put_bytes
from kafkalog.cli.dump_lines import headers_json
from kafkalog.cli.template import formatter
from kafkalog.records import CREATE_TIME, LOG_APPEND_TIME, Record

TIMESTAMP_TYPE_NAMES = {CREATE_TIME: "create", LOG_APPEND_TIME: "logappend"}
NO_BROKER = -1
KCAT = "kcat"


def as_json(record: Record) -> dict[str, Any]:
    """Returns the fields of a record, with `key_base64` and the like if bytes are not UTF-8."""
    out: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
    }
    put_bytes(out, "key", record.key)
    put_bytes(out, "value", record.value)
    if record.headers:
        out["headers"] = headers_json(record.headers)
    return out


def as_kcat(record: Record) -> dict[str, Any]:
    """Returns the fields of a record under kcat's names."""
    out: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    kind = TIMESTAMP_TYPE_NAMES.get(record.timestamp_type)
    if kind is not None:
        out |= {"tstype": kind, "ts": record.timestamp}
    out["broker"] = NO_BROKER
    if record.headers:
        out["headers"] = headers_json(record.headers)
    put_bytes(out, "key", record.key)
    put_bytes(out, "payload", record.value)
    return out


def printer(template: str, *, json: bool) -> Callable[[Record], None]:
    """Returns a function that prints a record, as JSON or by a template. Raises Usage for an invalid template."""
    if template == KCAT:
        return lambda record: emit_json(as_kcat(record))
    return (lambda record: emit_json(as_json(record))) if json else partial(_print, formatter(template))


def _print(text_of: Callable[[Record], bytes], record: Record) -> None:
    sys.stdout.buffer.write(text_of(record))
