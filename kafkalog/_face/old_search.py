"""The search of the previous release, over a `Selection`. `kafkalog.toolbox.search` has it with a
DeprecationWarning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kafkalog._face.selection import Selection, walk_selected
from kafkalog._face.times import ALL_TIMES, Times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog._face.chunk_reader import ChunkReader
    from kafkalog._face.match import Condition
    from kafkalog.records import Record

_SIGNS = {"equal": "=", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}


class Match(Selection):
    """Keys, patterns, headers and conditions that a record must match. Empty arguments match every record."""

    def __init__(
        self,
        keys: Sequence[bytes | None] = (),
        patterns: Sequence[str] = (),
        headers: Sequence[tuple[str, bytes | None]] = (),
        conditions: Sequence[Condition] = (),
    ) -> None:
        where = " and ".join(map(_text, conditions)) or None
        super().__init__(key=list(keys) or None, grep=patterns, headers=headers, where=where)


def _text(condition: Condition) -> str:
    value: int | str = condition.value if isinstance(condition.value, int) else str(condition.value)
    if condition.column == "timestamp" and isinstance(value, int):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
        value = moment.isoformat(timespec="milliseconds")
    return f"{condition.column} {_SIGNS[condition.comparison]} {value}"


def matching(reader: ChunkReader, match: Match, times: Times = ALL_TIMES) -> Iterator[Record]:
    """Yields the matching records in a time window, from the reader's offset to its end."""
    return walk_selected(reader.batches_of_records(), match, times)
