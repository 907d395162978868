"""Yields every value of a key that is still in a partition, and the state of each.

Before the last stable offset it is known which transactions were aborted; no read_committed reader sees what comes
after it yet.  Each partition of a topic is read separately.  Only reads, without a lock, so it works while a broker is
running.  Needs pyarrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kafkalog._face.chunk_reader import Chunk, ChunkReader
from kafkalog._face.past_damage import read_past
from kafkalog._face.selection import Selection, Tell, checked_selection, checked_window, walk_selected
from kafkalog._face.window import Window, found_in
from kafkalog._renamed import takes_old, warn
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.records import Record

__all__ = ["Entry", "history"]

LATEST = "latest"
SUPERSEDED = "superseded"  # a later value counts; the next compaction may remove it
ABORTED = "aborted"  # its transaction was aborted
PENDING = "pending"  # its own transaction, or an earlier one, is open: it counts once that has ended
R = TypeVar("R", bound=ChunkReader)


class Entry(NamedTuple):
    """One value of a key; `state` is LATEST, SUPERSEDED, ABORTED or PENDING."""

    record: Record
    state: str

    @property
    def tombstone(self) -> bool:
        """Whether the value deletes the key."""
        return self.record.value is None


def _of_window(window: Window) -> Selection:
    return Selection().within(window)


def _in_asked(old: dict[str, Any], named: dict[str, Any]) -> None:
    named["asked"] = _of_window(checked_window(old["window"], "asked"))


@takes_old(_in_asked, window="asked=Selection(start, end)")
def history(
    view: PartitionView, key: bytes, asked: Selection | Window | None = None, *, lenient: bool = False
) -> Iterator[Entry]:
    """Yields the values of a key in a partition, by offset.

    LATEST is the last value in the window that is neither aborted nor pending.  If damage is not skipped, the values
    before it come first, the last one as LATEST, and then the error.

    Args:
        view: The partition: a `kafkalog.engine.log.view.PartitionView`.
        key: The key.
        asked: The window to read; None reads everything.  Its isolation level is ignored, its `match` is applied after
            the states are known.  If it skips damage, reading continues after it.
        lenient: Moves a start offset that the log does not have to the next one that it has.

    Yields:
        An `Entry` for each value.

    Raises:
        IllegalArgumentException: `view` is no PartitionView.
        CorruptRecordException: The log is damaged.

    Example:
        >>> from kafkalog.engine.log.view import PartitionView
        >>> from kafkalog.toolbox.history import history
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("prices").append_many([(b"1", b"apple"), (b"2", b"apple")])
        >>> with PartitionView("shop", kafkalog.TopicPartition("prices", 0)) as view:
        ...     [(entry.record.value, entry.state) for entry in history(view, b"apple")]
        [(b'1', 'superseded'), (b'2', 'latest')]
    """
    if not hasattr(view, "visible_end"):
        raise IllegalArgumentException(
            f"view is {shown(view)}; expected a kafkalog.engine.log.view.PartitionView",
            hint="PartitionView(log_dir, TopicPartition(topic, number)) creates one; for an open Partition use "
            "partition.records(key=...), or partition.latest(key=...) for the last value",
        )
    if isinstance(asked, Window):  # as in an earlier release
        warn("history(view, key, window)", "history(view, key, Selection(start, end))", depth=2)
        asked = _of_window(asked)
    asked = checked_selection(asked, "asked")
    found = _history(view, Selection(key=[key]), asked, lenient)
    if asked.match is None:
        return found
    return (entry for entry in found if asked.match.accepts(entry.record))


def _history(view: PartitionView, wanted: Selection, asked: Selection, lenient: bool) -> Iterator[Entry]:
    # Conditions choose among the values, and do not change which one is the last.
    start, end, times = found_in(view, asked.unpruned().window, lenient=lenient)
    stable = view.visible_end("read_committed")
    undecided: list[Entry] = []  # the last value that counts, and aborted ones after it

    def decided(reader: _Marking) -> Iterator[Entry]:
        nonlocal undecided
        for record in walk_selected(reader.batches_of_records(), wanted, times):
            if reader.is_aborted(record.offset):
                undecided.append(Entry(record, ABORTED))
                continue
            yield from _superseded(undecided)
            undecided = [Entry(record, LATEST)]

    def pending(reader: ChunkReader) -> Iterator[Entry]:
        for record in walk_selected(reader.batches_of_records(), wanted, times):
            yield Entry(record, PENDING)

    def marking(source: Source) -> _Marking:
        return _Marking(source, start, stable if end is None else min(end, stable))

    def plain(source: Source) -> ChunkReader:
        return ChunkReader(source, max(start, stable), end_offset=end)

    try:
        yield from _read(view, asked.tell, marking, decided)
    except KafkalogError:
        yield from undecided
        raise
    yield from undecided
    yield from _read(view, asked.tell, plain, pending)


def _read(
    view: PartitionView,
    tell: Tell | None,
    make: Callable[[Source], R],
    read: Callable[[R], Iterator[Entry]],
) -> Iterator[Entry]:
    if tell is not None:
        return read_past(view, tell, make, read)
    return read(make(view))


def _superseded(entries: list[Entry]) -> Iterator[Entry]:
    for entry in entries:
        yield entry._replace(state=SUPERSEDED) if entry.state == LATEST else entry


class _Marking(ChunkReader):
    """Reads up to the last stable offset, including aborted batches; tells whether an offset was aborted."""

    def __init__(self, source: Source, start: int, end: int) -> None:
        super().__init__(source, start, end_offset=end, isolation="read_committed")
        self._aborted: deque[tuple[int, int]] = deque()  # first and last offset of batches

    def read_chunk(self) -> Chunk | None:
        chunk = super().read_chunk()
        if chunk is not None and chunk.aborted:
            rows = chunk.table[chunk.aborted_rows() == 1]
            self._aborted.extend(zip(rows["base_offset"].tolist(), rows["last_offset"].tolist(), strict=True))
            chunk.aborted = ()
        return chunk

    def is_aborted(self, offset: int) -> bool:
        """Returns whether an offset was aborted; call it with ascending offsets."""
        while self._aborted and self._aborted[0][1] < offset:
            self._aborted.popleft()
        return bool(self._aborted) and self._aborted[0][0] <= offset


def __dir__() -> list[str]:
    return __all__
