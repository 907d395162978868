"""`kafkalog append`: records from stdin to a partition, through the engine that a broker's log has."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from kafkalog.cli.app import CLEAN, Usage
from kafkalog.cli.console import emit, emit_json, note, parse_settings, select_partitions
from kafkalog.config import LogConfig
from kafkalog.errors import UnknownTopicOrPartitionException
from kafkalog.format import codecs
from kafkalog.topics.appending import Row
from kafkalog.topics.log import open_log

BATCH_RECORDS = 10_000


@click.command("append", short_help="Append records from stdin.")
@click.argument("log_dir", type=click.Path())
@click.argument("partition")
@click.option("--create", is_flag=True, help="Make the directory and the partition where they are missing.")
@click.option("--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
@click.option("-X", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="Topic setting.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Split each line into key and value at TEXT.")
@click.option("--fsync", is_flag=True, help="Flush each batch to the disk.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON as `cat --json` prints; the result too.")
def command(
    log_dir: str,
    partition: str,
    create: bool,
    compression: str | None,
    settings: tuple[str, ...],
    key_separator: str | None,
    fsync: bool,
    as_json: bool,
) -> int:
    """Append each line of stdin as a record to PARTITION (topic-0) of LOG_DIR.

    Needs the directory for itself: a running broker refuses it (exit 3).
    """
    if compression is not None and compression not in codecs.NAMES:
        raise Usage(f"unknown codec {compression!r}, expected one of {', '.join(codecs.NAMES)}")
    config = parse_settings(settings)
    if not create:
        try:
            select_partitions(log_dir, (partition,))
        except UnknownTopicOrPartitionException as error:
            error.hint = f"{error.hint}; --create makes it"
            raise
    LogConfig.validate(config)
    lines = sys.stdin.buffer
    first = last = -1
    with open_log(
        log_dir,
        partition,
        config=config,
        create=create,
        compression=compression,
        durability="fsync" if fsync else "os",
    ) as log:
        for records in _batched(_json_rows(lines) if as_json else _text_rows(lines, key_separator)):
            offsets = log.append_many(records)
            first = offsets[0] if first < 0 else first
            last = offsets[-1]
    count = last - first + 1 if first >= 0 else 0
    if as_json:
        emit_json({"partition": partition, "records": count, "firstOffset": first, "lastOffset": last})
    elif count:
        emit(f"{partition}: {count} records at offsets {first} to {last}")
    else:
        note("nothing on stdin, nothing appended")
    return CLEAN


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH_RECORDS:
            yield batch
            batch = []
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
            entry = json.loads(line)
        except ValueError as error:
            raise Usage(f"line {number} of stdin is no JSON: {error}") from None
        if not isinstance(entry, dict):
            raise Usage(f"line {number} of stdin is a JSON {type(entry).__name__}, expected an object")
        headers = [(str(header["key"]), _octets(header, "value", number)) for header in entry.get("headers") or ()]
        timestamp = entry.get("ts")
        if timestamp is not None and not isinstance(timestamp, int):
            raise Usage(f"line {number} of stdin: ts is {timestamp!r}, expected milliseconds")
        if timestamp is not None and timestamp < 0:
            timestamp = None
        name = "payload" if "payload" in entry or "payload_base64" in entry else "value"
        yield (_octets(entry, name, number), _octets(entry, "key", number), headers, timestamp)


def _octets(entry: dict[str, Any], name: str, number: int) -> bytes | None:
    encoded = entry.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Usage(f"line {number} of stdin: {name}_base64 is no base64") from None
    text = entry.get(name)
    if text is None:
        return None
    return text.encode() if isinstance(text, str) else json.dumps(text, separators=(",", ":")).encode()
