"""The questions of the live page: from the parameters of an address to an answer as JSON.

Knows the records, the place of one record in its file, and the survey; knows no sockets.  Everything here reads only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog._face.selected import records_in, selected_range
from kafkalog._face.selection import Selection
from kafkalog._face.times import milliseconds_of
from kafkalog._face.typed import EXPECTED, octets_of, place_of
from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.errors import IllegalArgumentException, OffsetOutOfRangeException
from kafkalog.ui import anatomy
from kafkalog.ui.pages import (
    ALONE,
    LISTED,
    ROWS_MAX,
    Row,
    Shown,
    Way,
    page_after,
    page_before,
    page_new,
    record_row,
)
from kafkalog.ui.schemas import TEXT_MAX as DECODED_MAX

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.records import Record
    from kafkalog.ui.pages import Batch
    from kafkalog.ui.schemas import Schemas
    from kafkalog.ui.views import Views

ROWS = 50
TEXT_MAX = 64 << 10  # characters of one parameter
EXACT_MAX = (1 << 53) - 1
VALUES_MAX = 100  # how often one parameter may be given


class Live(Protocol):
    """The state from which answers are made."""

    views: Views
    schemas: Schemas


class Question(NamedTuple):
    """The records that an address asks for."""

    topic: str
    partitions: Sequence[TopicPartition]
    selection: Selection
    rows: int
    skips_damage: bool


def text_of(params: QueryParams, name: str) -> str | None:
    """Returns a parameter, or None if it is missing or empty."""
    return params.get(name, "")[:TEXT_MAX] or None


def number_of(params: QueryParams, name: str, *, high: int = LONG_MAX) -> int | None:
    """Returns a parameter as a whole number, or None if it is missing.  Raises IllegalArgumentException for others."""
    text = text_of(params, name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > high:
        raise IllegalArgumentException(f"{name}: found {text!r:.60}, expected a whole number, 0 to {high}")
    return int(text)


def flag_of(params: QueryParams, name: str) -> bool:
    """Returns whether a parameter is set."""
    return params.get(name, "") not in ("", "0", "false")


def offsets_of(params: QueryParams, name: str) -> dict[int, int]:
    """Returns a parameter such as "0:120,1:7" as offsets by partition."""
    text = text_of(params, name)
    if text is None:
        return {}
    if not re.fullmatch(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*", text):
        raise IllegalArgumentException(f"{name}: found {text!r:.60}, expected such as 0:120,1:7")
    return {int(number): int(offset) for number, _, offset in (part.partition(":") for part in text.split(","))}


def octets(text: str, what: str) -> bytes:
    """Returns the bytes of typed text.  Raises IllegalArgumentException if it is not what its prefix says."""
    try:
        return octets_of(text)
    except ValueError as error:
        way = str(error)
        raise IllegalArgumentException(
            f"{what}: {text!r:.60} is not {way}", hint=f"expected {EXPECTED[way]}; text:{way}:... stands for text"
        ) from None


def header(text: str) -> tuple[str, bytes | None]:
    """Returns the name and the value of "name" or "name=value"."""
    name, equals, value = text.partition("=")
    if not name:
        raise IllegalArgumentException(
            f"header: {text!r:.60} has no name", hint="expected such as trace-id=7, or trace-id"
        )
    return name, octets(value, "header") if equals else None


def several(params: QueryParams, name: str) -> list[str]:
    """Returns the values of a parameter that may be given more than once, without empty ones."""
    return [text[:TEXT_MAX] for text in params.getlist(name)[:VALUES_MAX] if text]


def selection_of(params: QueryParams, *, on_damage: Any = "raise") -> Selection:
    """Returns the selection that an address asks for, in the words of the commands' options."""
    prefix, start, end = text_of(params, "key-prefix"), text_of(params, "from"), text_of(params, "until")
    for what, text in (("from", start), ("until", end)):  # an error names the field of the page
        if text is not None and isinstance(place_of(text), str):
            milliseconds_of(text, what)
    return Selection(
        None if start is None else place_of(start),
        None if end is None else place_of(end),
        key=[octets(text, "key") for text in several(params, "key")] or None,
        key_prefix=None if prefix is None else octets(prefix, "key-prefix"),
        headers=[header(text) for text in several(params, "header")],
        grep=several(params, "grep"),
        where=text_of(params, "where"),
        isolation="read_committed" if flag_of(params, "committed") else "read_uncommitted",
        on_damage=on_damage,
    )


def question_of(views: Views, params: QueryParams) -> Question:
    """Returns the question of an address.

    Raises KafkalogError if it makes no sense, or names a topic that does not exist.
    """
    topic = text_of(params, "topic")
    if topic is None:
        raise IllegalArgumentException("found no topic, expected one", hint="topic=orders")
    number = number_of(params, "partition", high=INT_MAX)
    count = number_of(params, "count", high=ROWS_MAX)
    return Question(
        topic,
        views.of_topic(topic, number),
        selection_of(params),
        count or ROWS,
        flag_of(params, "skip-damage"),
    )


def records(asked_of: Live, params: QueryParams) -> dict[str, Any]:
    """Returns a page of records: `last=1` or `before=0:120` for the newest, `new=0:120` for what was appended since,
    otherwise from the start, or from `at=0:120` on."""
    views = asked_of.views
    asked = question_of(views, params)
    way = Way(asked.skips_damage, partial(shown, asked_of.schemas, LISTED, DECODED_MAX))
    more = {"count": asked.rows}
    if flag_of(params, "last") or text_of(params, "before"):
        found = page_before(views, asked.partitions, asked.selection, way, ends=offsets_of(params, "before"), **more)
    elif text_of(params, "new"):
        found = page_new(views, asked.partitions, asked.selection, way, starts=offsets_of(params, "new"), **more)
    else:
        found = page_after(views, asked.partitions, asked.selection, way, starts=offsets_of(params, "at"), **more)
    return {"topic": asked.topic, "partitions": len(asked.partitions), **found}


def shown(schemas: Schemas, much: Shown, text_max: int, record: Record, batch: Batch | None) -> Row:
    """Returns the row of a record, with its key and its value decoded if a schema is for them."""
    row = record_row(record, batch, much)
    if schemas:
        for name, data in (("key", record.key), ("value", record.value)):
            decoded = schemas.decoded(record.topic, data, is_key=name == "key", most=text_max)
            if decoded is not None:
                row[f"{name}Decoded"] = decoded
    return row


def one_record(views: Views, params: QueryParams) -> Record:
    """Returns the record that an address names.  Raises OffsetOutOfRangeException if it does not exist any more."""
    partition, offset = partition_of(views, params), number_of(params, "offset")
    if offset is None:
        raise IllegalArgumentException("found no offset, expected one")
    with views.lent(partition) as view:
        selection = Selection(offset, offset + 1)
        place = selected_range(lambda: view, selection)
        with closing(records_in(lambda: view, selection, place)) as found:  # type: ignore[type-var]
            for record in found:
                # Copied: a record refers to bytes that its reader reuses.
                return record._replace(key=record.key, value=record.value, headers=tuple(record.headers))
    raise OffsetOutOfRangeException(f"{partition} has no record at offset {offset}: compaction may have removed it")


def record(asked_of: Live, params: QueryParams) -> dict[str, Any]:
    """Returns one record with much more of its value than a list shows."""
    return shown(asked_of.schemas, ALONE, 8 << 20, one_record(asked_of.views, params), None)


def octets_asked(views: Views, params: QueryParams) -> bytes:
    """Returns the key, the value or a header of a record, all of it: `of` is "key", "value", or a header's number."""
    found, of = one_record(views, params), text_of(params, "of") or "value"
    if of in ("key", "value"):
        return getattr(found, of) or b""
    number = number_of(params, "of", high=INT_MAX)
    if number is None or number >= len(found.headers):
        raise IllegalArgumentException(f"found of={of!r:.40}, expected key, value, or the number of a header")
    return found.headers[number][1] or b""


def place(views: Views, params: QueryParams) -> dict[str, Any]:
    """Returns the place of a record in its file, field by field."""
    with views.lent(partition_of(views, params)) as view:
        return {
            "partition": str(view.topic_partition),
            **anatomy.place(
                view, offset=number_of(params, "offset"), segment=text_of(params, "segment"),
                position=number_of(params, "position"), index=number_of(params, "index"),
            ),
        }  # fmt: skip


def partition_of(views: Views, params: QueryParams) -> TopicPartition:
    """Returns the partition that an address names."""
    topic, number = text_of(params, "topic"), number_of(params, "partition", high=INT_MAX)
    if topic is None or number is None:
        raise IllegalArgumentException("found no topic or no partition, expected both")
    return views.of_topic(topic, number)[0]


def topics(views: Views) -> dict[str, Any]:
    """Returns the topics and the numbers of their partitions."""
    found: dict[str, list[int]] = {}
    for partition in views.partitions():
        found.setdefault(partition.topic, []).append(partition.partition)
    return {"logDirs": views.log_dirs, "topics": {topic: sorted(found[topic]) for topic in sorted(found)}}


def as_json(answer: Mapping[str, Any]) -> bytes:
    """Returns an answer as JSON in ASCII: whole numbers that JavaScript cannot hold as text, and escaped what is not
    Unicode."""
    return json.dumps(_exact(answer), separators=(",", ":"), allow_nan=False).encode("ascii")


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    is_large = isinstance(value, int) and not -EXACT_MAX <= value <= EXACT_MAX
    return str(value) if is_large else value
