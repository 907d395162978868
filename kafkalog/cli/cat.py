"""`kafkalog cat`: the records of a partition as text or JSON lines."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from kafkalog.cli.app import CLEAN, Usage
from kafkalog.cli.console import emit_json, locate, parse_time_ms, put_bytes, some
from kafkalog.cli.dump_lines import headers_json
from kafkalog.log.view import PartitionView
from kafkalog.topics.records import Record

TIMESTAMP_TYPE_NAMES = {-1: None, 0: "create", 1: "append"}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
FOLLOW_EVERY_S = 0.2


@click.command("cat", short_help="Print records as text or JSON lines.")
@click.argument("log_dir", type=click.Path())
@click.argument("partitions", nargs=-1)
@click.option("--from", "start", metavar="OFFSET|TIME", help="First record: an offset, ISO time or @ms.")
@click.option("--to", "end", metavar="OFFSET|TIME", help="Where to stop (exclusive).")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="At most so many records of each partition.")
@click.option("--committed", is_flag=True, help="Leave out aborted and open transactions (read_committed).")
@click.option("-f", "--format", "template", default="%s\\n", show_default=True, help="Text with kcat's %s %k %o ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record; bytes that are not UTF-8 as base64.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until interrupted (one partition).")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    start: str | None,
    end: str | None,
    limit: int | None,
    committed: bool,
    template: str,
    as_json: bool,
    follow: bool,
) -> int:
    """Print the records of PARTITIONS (topic-0, or a topic for all of its partitions) of LOG_DIR.

    A directory with one partition needs no name.

    Format: %s value, %S its size, %k key, %K its size, %o offset, %T timestamp in ms, %t topic, %p partition, %h
    headers; \\n and \\t as in C.  Works beside a running broker.
    """
    log_dir, chosen = locate(log_dir, partitions)
    if not partitions and len(chosen) > 1:
        raise Usage(f"{log_dir} has {some(map(str, chosen))}: name the partitions to print, or a topic")
    if follow and len(chosen) > 1:
        raise Usage(f"--follow takes one partition, found {len(chosen)}")
    isolation = "read_committed" if committed else "read_uncommitted"
    show = _json if as_json else _formatter(template)
    for partition in chosen:
        with PartitionView(log_dir, partition) as view:
            for record in _records(view, start, end, limit, isolation, follow):
                show(record)
    return CLEAN


def _records(
    view: PartitionView, start: str | None, end: str | None, limit: int | None, isolation: str, follow: bool
) -> Iterator[Record]:
    from kafkalog.topics.reader import ChunkReader

    begin = view.log_start_offset if start is None else _offset(view, start)
    stop = None if end is None else _offset(view, end)
    if start is not None and not _is_offset(start):
        begin = max(begin, view.log_start_offset)
    reader = ChunkReader(view, begin, isolation=isolation, end_offset=stop)
    left = limit
    while True:
        for record in reader.records():
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield record
        if not follow or (stop is not None and reader.offset >= stop):
            return
        sys.stdout.flush()
        time.sleep(FOLLOW_EVERY_S)
        view.refresh()


def _is_offset(text: str) -> bool:
    return re.fullmatch(r"\d+", text) is not None


def _offset(view: PartitionView, text: str) -> int:
    """An integer is an offset, anything else a time: the first record at or after it."""
    if _is_offset(text):
        return int(text)
    found = view.offset_for_time(parse_time_ms(text))
    return view.log_end_offset if found is None else found


def _json(record: Record) -> None:
    out: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": TIMESTAMP_TYPE_NAMES.get(record.timestamp_type),
        "ts": record.timestamp,
    }
    if record.headers:
        out["headers"] = headers_json(record.headers)
    put_bytes(out, "key", record.key)
    put_bytes(out, "payload", record.value)
    emit_json(out)


def _formatter(template: str) -> Callable[[Record], None]:
    """A printer for a kcat-style template; Usage for a letter that it does not know."""
    fields: dict[str, Callable[[Record], bytes]] = {
        "s": lambda record: record.value or b"",
        "S": lambda record: str(record.serialized_value_size).encode(),
        "k": lambda record: record.key or b"",
        "K": lambda record: str(record.serialized_key_size).encode(),
        "o": lambda record: str(record.offset).encode(),
        "T": lambda record: str(record.timestamp).encode(),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: str(record.partition).encode(),
        "h": lambda record: b",".join(
            name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
        ),
        "%": lambda record: b"%",
    }
    parts: list[bytes | Callable[[Record], bytes]] = []
    for letter, escape, text in re.findall(r"%(.)|\\(.)|([^%\\]+|[%\\]$)", template, re.DOTALL):
        if letter:
            if letter not in fields:
                raise Usage(f"unknown %{letter} in --format, expected one of {' '.join('%' + name for name in fields)}")
            parts.append(fields[letter])
        else:
            parts.append(text.encode() if text else ESCAPES.get(escape, "\\" + escape).encode())
    out = sys.stdout.buffer

    def show(record: Record) -> None:
        out.write(b"".join(part if isinstance(part, bytes) else part(record) for part in parts))

    return show
