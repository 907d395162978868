"""The reprs of stores and topics.

A repr waits for nobody and reads no disk. It shows what is known at the moment, even for an object that is closed, of
another process, or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafkalog import _shown
from kafkalog._native.codec.reading import Record, shown_value
from kafkalog._shown import Shown as Shown
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from kafkalog._face.home import Home


OTHERS_SHOWN = 3  # handles


class Records(_shown.Shelf[Record]):
    """A list of records, as a reader returns it."""

    @staticmethod
    def _show(items: Sequence[Record]) -> str:
        rows = (_shown.record_row(each, shown_value(each)) for each in items)
        return _shown.table(_shown.number(len(items), "record"), _shown.RECORD_COLUMNS, rows)


def state_of(home: Home) -> str:
    """Returns the state of a store in words."""
    if home.life.forked:
        return "closed: of another process"
    if home.life.live:
        return "read-only" if home.read_only else "open"
    others = _shown.or_none(home.others)
    if not others:
        return "closed"
    places = ", ".join(dict.fromkeys(others[:OTHERS_SHOWN])) + ", ..." * (len(others) > OTHERS_SHOWN)
    return f"closed; the directory stays open: {_shown.number(len(others), 'other handle')}, {places}"


def show_store(home: Home) -> str:
    """Returns the repr of a store."""
    names = _shown.or_none(home.known_topics) if home.life.live else None
    topics = "" if names is None else f": {_shown.number(len(names), 'topic')}"
    return f"<Store of {home.place}, {state_of(home)}{topics}>"


def html_of_store(home: Home) -> str:
    """Returns an HTML table of a store's topics, from what is known now."""
    rows = []
    for name in public(home.names()):
        partitions, records = _glance(home, name)
        rows.append([name, partitions, "" if records is None else f"up to {records:,}"])
    return _shown.table(f"{home.place}, {state_of(home)}", ("topic", "partitions", "records"), rows)


def show_topic(home: Home, name: str) -> str:
    """Returns the repr of a topic."""
    found = _shown.or_none(lambda: _glance(home, name)) if home.life.live else None
    if found is None:
        is_gone = home.life.live and name not in (_shown.or_none(home.known_topics) or [name])
        return f"<Topic {name}, {'deleted' if is_gone else state_of(home)}>"
    partitions, records = found
    return f"<Topic {name}: {_shown.number(partitions, 'partition')}{_records(records)}>"


def _records(records: int | None) -> str:
    if records is None:
        return ""
    return f", up to {_shown.number(records, 'record')}" if records else ", no records"


def _glance(home: Home, name: str) -> tuple[int, int | None]:
    """Returns (partitions, the sum of their offset spans, or None if one is not known)."""
    partitions = home.known_partitions(name)
    ends = [home.glance(TopicPartition(name, number)) for number in range(min(partitions, _shown.PARTITIONS_MAX))]
    known = [end - start for start, end in filter(None, ends)]
    return partitions, sum(known) if len(known) == partitions else None


def public(names: Iterable[str]) -> list[str]:
    """Returns the topics that are not internal, sorted."""
    return sorted(name for name in names if name not in INTERNAL_TOPICS)
