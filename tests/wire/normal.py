"""Answers without what differs from one server to the next: ids, times and places.

Ids become "<kind 1>", "<kind 2>" in the order in which a server first used them, so that the same id in two answers
remains the same.  Times near now become "<now>".  Rows of a list are sorted by their names, since their order is a
matter of hashing.
"""

from __future__ import annotations

import re
import struct
import time
from typing import Any

from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.messages import Values
from tests.wire.talk import Heard

# Fields that hold an id which a server chooses.
IDS = {
    "topicId": "topic",
    "producerId": "producer",
    "sessionId": "session",
    "clusterId": "cluster",
    "directoryId": "directory",
}
FIXED = {"", ZERO_UUID, "A" * 21 + "B", 0, -1, None}
PLACES = {"port", "logDir", "totalBytes", "usableBytes"}
TIMES = re.compile(r"(timestamp|.*timestamp|.*TimeMs|.*TimestampMs|lastTimestamp|throttleTimeMs)", re.IGNORECASE)
WORDS = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}|\b[A-Za-z0-9_-]{22}\b(?!-)|\b\d{13}\b")
BATCH = struct.Struct(">qiiBIHiqqqhii")  # the header of a batch of records
NEAR_MS = 3_600_000
# The fields that name the rows of a list.
NAMES = (
    *("transactionalId", "resourceName", "name", "key", "topic", "topicName", "configName", "apiKey", "groupId"),
    *("partitionIndex", "partition", "index", "user", "topicId"),
)


class Normal:
    """Normalizes one server's answers."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Any], str] = {}

    def heard(self, heard: Heard) -> tuple[str, Any]:
        outcome = heard.outcome
        return f"{heard.name} v{heard.version}", outcome if isinstance(outcome, str) else self.struct(outcome)

    def struct(self, values: Values) -> Values:
        return {name: self._value(name, value) for name, value in values.items()}

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self.struct(value)
        if isinstance(value, list):
            if not value or not isinstance(value[0], dict):
                return [self._value(name, each) for each in value]
            if any(each in value[0] for each in NAMES):
                return [self.struct(each) for each in sorted(value, key=self._named_key)]
            return sorted(map(self.struct, value), key=_row_key)  # members, whose ids differ
        if isinstance(value, memoryview):
            return self._records(bytes(value))
        if name in IDS and value not in FIXED:
            return self._id(IDS[name], value)
        if name in PLACES and value not in FIXED:
            return f"<{name}>"
        if isinstance(value, int) and TIMES.fullmatch(name) and _is_now(value):
            return "<now>"
        if isinstance(value, str):
            return WORDS.sub(lambda found: self._word(found[0]), value)
        return value

    def _named_key(self, row: Values) -> str:
        """As `_row_key`; a topic id counts by its number, and last if it is new."""
        topic_id = row.get("topicId")
        if topic_id in FIXED:
            return _row_key(row)
        number = self._ids.get(("topic", topic_id), "~")
        return _row_key(row | {"topicId": number}) + repr(row | {"topicId": number})

    def _word(self, word: str) -> str:
        if word in FIXED:
            return word
        if word.isdecimal():
            return "<now>" if _is_now(int(word)) else word
        return self._id("id", word)

    def _records(self, data: bytes) -> list[Any]:
        """The batches: their headers without the checksum, and their bytes."""
        found: list[Any] = []
        at = 0
        while len(data) - at >= BATCH.size and data[at + 16] == 2:
            first, size, *fields = BATCH.unpack_from(data, at)
            epoch, magic, _, attributes, last, begin_ms, end_ms, producer, *rest = fields
            times = ["<now>" if _is_now(time_ms) else time_ms for time_ms in (begin_ms, end_ms)]
            payload = data[at + BATCH.size : at + 12 + size]
            if attributes & 0x20:  # a marker's coordinator epoch, which counts the coordinator's lives
                payload = payload[:8]
            named = self._id("producer", producer)
            found.append([first, size, epoch, magic, attributes, last, *times, named, *rest, payload])
            at += 12 + size
        return [*found, data[at:]]

    def _id(self, kind: str, value: Any) -> str:
        if value == -1:
            return "-1"
        count = sum(known == kind for known, _ in self._ids)
        return self._ids.setdefault((kind, value), f"<{kind} {count + 1}>")


def _is_now(time_ms: int) -> bool:
    return abs(time_ms - time.time() * 1000) < NEAR_MS


def _row_key(row: Any) -> str:
    if not isinstance(row, dict):
        return repr(row)
    named = [row[name] for name in (*NAMES, "producerId", "memberId") if name in row]
    return repr([f"{value:020}" if isinstance(value, int) else value for value in named] or row)


def _by_name(rows: list[Any]) -> dict[str, Any] | None:
    """The rows by what names them, or None if that is not unique."""
    found = {_shown_key(row): row for row in rows if isinstance(row, dict)}
    return found if len(found) == len(rows) else None


def _shown_key(row: Values) -> str:
    named = [str(row[name]) for name in NAMES if name in row]
    return "-".join(named)


def differences(theirs: Any, ours: Any, place: str = "") -> list[str]:
    """Where two normalized answers differ: "place: Kafka has this, kafkalog has that"."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for name in {**theirs, **ours}:
            found += differences(theirs.get(name, "<absent>"), ours.get(name, "<absent>"), f"{place}.{name}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        both = _by_name(theirs), _by_name(ours)
        if len(theirs) != len(ours) and both[0] is not None and both[1] is not None:
            return differences(*both, place)
        if len(theirs) == len(ours):
            rows = zip(theirs, ours, strict=True)
            return [line for number, pair in enumerate(rows) for line in differences(*pair, f"{place}[{number}]")]
        return [f"{place}: Kafka has {len(theirs)} rows {theirs!r:.300}, kafkalog {len(ours)} {ours!r:.300}"]
    if theirs == ours and type(theirs) is type(ours):
        return []
    return [f"{place}: Kafka {theirs!r:.200}, kafkalog {ours!r:.200}"]
