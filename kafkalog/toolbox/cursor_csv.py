"""Reads and writes the CSV of Kafka's `kafka-consumer-groups --export` and `--from-file`.

The lines have no header.  They are `topic,partition,offset` if one group is named, else `group,topic,partition,offset`.
Values are quoted as Jackson's writer does by default, so that the lines are byte for byte Kafka's.
Source: CsvUtils, GroupOffsetsResetter.parseResetPlan (4.4.0).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import NoReturn

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException

QUOTED_FROM = 25  # characters: longer values are always quoted
FIRST_PLAIN = "-"  # values with a character that sorts before it (space, comma, quote) are quoted


def line(group: str | None, partition: TopicPartition, offset: int) -> str:
    """Returns one line without its end; `group` is None if only one group is named."""
    words = [partition.topic] if group is None else [group, partition.topic]
    return ",".join([*map(_quoted, words), str(partition.partition), str(offset)])


def _quoted(word: str) -> str:
    if len(word) < QUOTED_FROM and all(each >= FIRST_PLAIN for each in word):
        return word
    doubled = word.replace('"', '""')
    return f'"{doubled}"'


def read_plans(text: str, groups: Sequence[str], path: str) -> dict[str, dict[TopicPartition, int]]:
    """Returns the offsets of a file, by group.  If the lines name no group, they belong to the only one in `groups`.

    Raises IllegalArgumentException for an invalid line, or one of another kind than the first, with `path` and its
    number."""
    found: dict[str, dict[TopicPartition, int]] = {}
    wide = 0
    reader = csv.reader(text.splitlines())
    for row in _rows(reader, path):
        number = reader.line_num
        if not row:
            continue
        wide = wide or len(row)
        if len(row) != wide or wide not in (3, 4):
            _refuse(path, number, f"it has {len(row)} values; expected {_expected(wide)}")
        if wide == 3 and len(groups) != 1:
            _refuse(
                path,
                number,
                "it names no group; expected group,topic,partition,offset unless exactly one --group is given",
            )
        group = row[0] if wide == 4 else groups[0]
        topic, partition, offset = row[-3:]
        place = TopicPartition(topic, _whole(partition, INT_MAX, path, number))
        offsets = found.setdefault(group, {})
        if place in offsets:
            _refuse(path, number, f"{place} of group {group!r} occurs twice; expected it once")
        offsets[place] = _whole(offset, LONG_MAX, path, number)
    if not found:
        raise IllegalArgumentException("the file has no lines; expected topic,partition,offset", path=path)
    return found


def _rows(reader: Iterable[list[str]], path: str) -> Iterable[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise IllegalArgumentException(f"the file is not CSV: {error}", path=path) from error


def _expected(wide: int) -> str:
    forms = {3: "topic,partition,offset", 4: "group,topic,partition,offset"}
    return f"{forms[wide]}, as in the first line" if wide in forms else f"{forms[3]} or {forms[4]}"


def _whole(text: str, most: int, path: str, number: int) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        _refuse(path, number, f"the value is {text[:40]!r}; expected a whole number from 0 to {most}")
    return int(text)


def _refuse(path: str, number: int, what: str) -> NoReturn:
    raise IllegalArgumentException(f"line {number}: {what}", path=path)
