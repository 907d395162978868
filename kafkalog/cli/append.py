"""`kafkalog append`: appends records from stdin to a partition, through the same engine as the Python API."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from kafkalog._face.opening import open_log
from kafkalog._face.rows import Row
from kafkalog._face.times import milliseconds_of
from kafkalog.cli.app import CLEAN, LocalPath, Usage
from kafkalog.cli.console import counted, emit, emit_json, note, select_partitions
from kafkalog.cli.places import SETTINGS, TAKE_OVER, topic_settings
from kafkalog.engine.format import codecs, names
from kafkalog.engine.format.values import milliseconds, shown, text
from kafkalog.errors import (
    IllegalArgumentException,
    RecordTooLargeException,
    RequestError,
    UnknownTopicOrPartitionException,
)
from kafkalog.partition import Partition
from kafkalog.records import Header

BATCH_RECORDS = 10_000
VALUES = ("value", "value_base64", "payload", "payload_base64")  # kcat's names are accepted too
TIMES = ("timestamp", "ts")
FIELDS = (
    *VALUES, "key", "key_base64", *TIMES, "headers",
    "topic", "partition", "offset", "timestamp_type", "leader_epoch", "tstype", "broker",
)  # fmt: skip
HEADER_FIELDS = ("key", "value", "value_base64")
JSON_NAMES = {
    list: "an array",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


@click.command("append", short_help="Append records from standard input to a partition.")
@click.argument("log_dir", type=LocalPath())
@click.argument("partition")
@click.option("--create", is_flag=True, help="Create the directory and the partition if they do not exist.")
@click.option("--compression", metavar="CODEC", help="Compression of batches: none, gzip, snappy, lz4 or zstd.")
@SETTINGS
@TAKE_OVER
@click.option("-K", "--key-separator", metavar="TEXT", help="Split each line into key and value at TEXT.")
@click.option("--fsync", is_flag=True, help="Flush each batch to disk.")
@click.option(
    "--json", "as_json", is_flag=True, help="Read JSON lines as `cat --json` prints them; print the result as JSON."
)
def command(
    log_dir: str,
    partition: str,
    create: bool,
    compression: str | None,
    settings: tuple[str, ...],
    take_over: bool,
    key_separator: str | None,
    fsync: bool,
    as_json: bool,
) -> int:
    """Append each line of standard input as a record to PARTITION (topic-0) of LOG_DIR.

    The command needs the directory for itself: it fails with exit code 3 while a broker is running. A directory that
    belongs to a Kafka cluster (it has meta.properties) also needs --take-over. A damaged log that was not closed
    cleanly accepts no records: first truncate it with `kafkalog recover`, or copy what is readable with `kafkalog
    salvage`.

    With --json each line is an object. It has either value (text, null, or any JSON, which is stored as its text) or
    value_base64. These fields are optional: key or key_base64; timestamp (milliseconds or ISO text; -1 or null mean
    now); headers (a list of objects with key, and value or value_base64). Other fields that `cat` and `export` print
    are ignored. kcat's names (payload, payload_base64, ts, tstype, broker) are accepted too.

    If a line has an unknown field, no value or the same field twice, the command stops with exit code 2. It says how
    many records before this line were appended.
    """
    if compression is not None and compression not in codecs.NAMES:
        raise Usage(f"unknown codec {compression!r}, expected one of {', '.join(codecs.NAMES)}")
    if key_separator == "":
        raise Usage("--key-separator is empty, expected the text between key and value")
    if not create:
        try:
            select_partitions(log_dir, (partition,))
        except UnknownTopicOrPartitionException as error:
            error.hint = f"{error.hint}; --create creates it"
            raise
    known, topic = topic_settings(log_dir, settings), names.partition_of(partition).topic
    config = known.of(topic)
    if known.cluster is not None and known.cluster.is_whole and known.cluster_topic(topic) is None:
        note(
            f"note: the cluster has no topic {topic} with this id: a broker abandons its directories at its next start"
        )
    lines = sys.stdin.buffer
    rows = _json_rows(lines) if as_json else _text_rows(lines, key_separator)
    with open_log(
        log_dir,
        partition,
        config=config,
        create=create,
        compression=compression,
        durability="fsync" if fsync else "os",
        on_damage="raise",
        take_over=take_over,
    ) as log:
        first = log.end_offset
        try:
            for records in _batched(rows):
                _append(log, records)
        except BaseException as error:
            if isinstance(error, RecordTooLargeException):
                error.hint = "-X max.message.bytes=... raises the limit"
            _tell_appended(first, log.end_offset)
            raise
        end = log.end_offset
    if as_json:
        offsets = (
            {"firstOffset": first, "lastOffset": end - 1} if end > first else {"firstOffset": -1, "lastOffset": -1}
        )
        topic, number = log.topic_partition
        emit_json({"kind": "appended", "topic": topic, "partition": number, "records": end - first, **offsets})
    elif end > first:
        emit(f"{partition}: {_appended(first, end)}")
    else:
        note("nothing on stdin, nothing appended")
    return CLEAN


def _append(log: Partition, records: list[Row]) -> None:
    """Appends the records; if one is refused, appends those before it and raises the error."""
    try:
        log.append_many(records)
    except RequestError:
        if len(records) == 1:
            raise
        middle = len(records) // 2
        _append(log, records[:middle])
        _append(log, records[middle:])


def _tell_appended(first: int, end: int) -> None:
    """Says after an error how many records were appended, so that the caller knows where to continue."""
    if end > first:
        note(f"kafkalog: appended before it: {_appended(first, end)}")
    else:
        note("kafkalog: nothing was appended")


def _appended(first: int, end: int) -> str:
    where = f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
    return f"{counted(end - first, 'record')} at {where}"


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields rows by the thousands. If a line is refused, yields the rows before it and then raises."""
    batch: list[Row] = []
    try:
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH_RECORDS:
                yield batch
                batch = []
    except Usage:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _text_rows(lines: Iterable[bytes], separator: str | None) -> Iterator[Row]:
    wanted = None if separator is None else separator.encode()
    for line in lines:
        value = line.removesuffix(b"\n")
        if wanted is None:
            yield (value, None, (), None)
        else:
            key, found, rest = value.partition(wanted)
            yield (rest, key, (), None) if found else (value, None, (), None)


def _json_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _json_row(line)
        except (Usage, IllegalArgumentException) as error:
            raise Usage(f"line {number} of stdin: {error}") from None


def _json_row(line: bytes) -> Row:
    entry = _fields(_parsed(line), FIELDS, "")
    given = [name for name in VALUES if name in entry]
    if len(given) != 1:
        found = " and ".join(given) if given else ", ".join(entry) or "no field"
        raise Usage(f"found {found}, expected one of {', '.join(VALUES)} (null for a tombstone)")
    if "key" in entry and "key_base64" in entry:
        raise Usage("found key and key_base64, expected one of them")
    headers = entry.get("headers")
    if not isinstance(headers, list | None):
        raise Usage(f"headers: found {shown(headers)}, expected a list of objects with key and value")
    told = [name for name in TIMES if name in entry]
    if len(told) > 1:
        raise Usage(f"found {' and '.join(told)}, expected one of them")
    name = told[0] if told else TIMES[0]
    timestamp = entry.get(name)
    if isinstance(timestamp, str) and not isinstance(timestamp, _Number):
        timestamp = milliseconds_of(timestamp, name)
    if isinstance(timestamp, _Number):
        if not timestamp.lstrip("-").isdigit() or len(timestamp) > 100:
            raise Usage(f"{name} is {timestamp:.100}, expected milliseconds")
        timestamp = int(timestamp)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | None):
        raise Usage(f"{name} is {timestamp!r}, expected milliseconds, or ISO text")
    if timestamp is not None and milliseconds(timestamp, name, low=-1) == -1:
        timestamp = None  # `cat` prints -1 for a record without a timestamp
    return (
        _octets(entry, given[0]),
        _octets(entry, "key_base64" if "key_base64" in entry else "key"),
        tuple(_header(header) for header in headers or ()),
        timestamp,
    )


def _parsed(line: bytes) -> Any:
    try:
        content = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Usage(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}), expected JSON in UTF-8") from None
    try:
        return json.loads(
            content, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_Number, parse_int=_whole
        )
    except RecursionError:
        raise Usage("not readable as JSON: nested too deeply") from None
    except ValueError as error:
        raise Usage(f"not JSON: {error}") from None


class _Number(str):
    """A number as it was written. It is not converted, for a float or int may not be exact."""


def _whole(digits: str) -> int | _Number:
    return int(digits) if len(digits) < 20 and digits != "-0" else _Number(digits)


def _as_text(content: Any) -> str:
    """Returns JSON on one line without blanks, with numbers as they were written."""
    if isinstance(content, _Number):
        return str(content)
    if isinstance(content, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_as_text(entry)}" for name, entry in content.items()) + "}"
    if isinstance(content, list):
        return "[" + ",".join(map(_as_text, content)) + "]"
    return json.dumps(content)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return entry


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _json_name(entry: Any) -> str:
    return "a number" if isinstance(entry, _Number) else JSON_NAMES[type(entry)]


def _fields(entry: Any, known: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise Usage(f"{where}found {_json_name(entry)}, expected an object with {', '.join(known)}")
    for name in entry:
        if name not in known:
            raise Usage(f"{where}unknown field {name!r}, expected {', '.join(known)}")
    return entry


def _header(entry: Any) -> Header:
    entry = _fields(entry, HEADER_FIELDS, "headers: ")
    if not isinstance(entry.get("key"), str) or isinstance(entry["key"], _Number):
        raise Usage(f"headers: key is {entry.get('key')!r}, expected text")
    given = [name for name in HEADER_FIELDS[1:] if name in entry]
    if len(given) != 1:
        raise Usage(
            f"headers: {entry['key']!r} has {' and '.join(given) or 'no value'}, expected value or value_base64"
        )
    return text(entry["key"], "headers: key"), _octets(entry, given[0])


def _octets(entry: dict[str, Any], name: str) -> bytes | None:
    content: Any = entry.get(name)
    if name.endswith("_base64"):
        try:
            return base64.b64decode(content, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Usage(f"{name} is not base64") from None
    if content is None:
        return None
    if isinstance(content, str) and not isinstance(content, _Number):
        return text(content, name).encode()
    return text(_as_text(content), name).encode()
