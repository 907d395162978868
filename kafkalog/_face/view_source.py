"""A reader's view of a partition in a store that only reads, in the directory where another process has it now.

A Source over successive views: if the partition's directory no longer exists, a move may have put it elsewhere, and the
view there is used. A topic of the same name that was created again is another one and is not read. Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import UnknownTopicOrPartitionException

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.log.source import Ringing
    from kafkalog.engine.log.tier import TierSegment
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn

LOOKS_MAX = 4
LOOK_AGAIN_S = 0.03  # between the two renames of a move, the partition is in no directory
T = TypeVar("T")


class TopicView(PartitionView):
    """A view of one topic's partition. If another topic of the same name has replaced it, the view raises an error and
    shows none of its records.

    `topic_id` is the directory's id. While the directory has none, it is the id that the store knows: the directory
    gets it with the first records. None if nobody knows it.
    """

    topic_id: str | None = None
    has_id = False  # whether the directory had one

    def _look(self) -> Snapshot:
        seen = super()._look()
        found = topic_id_of(self.directory, self._files)  # after the look: if this id is ours, so is what it saw
        if not self._is_ours(found):
            raise UnknownTopicOrPartitionException(
                f"{self.topic_partition} was deleted, and there is another topic of that name now"
            )
        if found is not None:
            self.topic_id, self.has_id = found, True
        return seen

    def _is_ours(self, found: str | None) -> bool:
        """Returns whether a directory with the id `found` may be our topic's."""
        return not self.has_id if found is None else self.topic_id in {None, found}

    def is_there(self) -> bool:
        """Returns whether its directory exists and is its topic's."""
        if not self._files.is_dir(self.directory):
            return False
        return self.topic_id is None or self._is_ours(topic_id_of(self.directory, self._files))


class Views(Protocol):
    """The part of a store that a source uses."""

    def view(self, partition: TopicPartition) -> TopicView:
        """Returns the partition's view, in the directory where it is now."""


class ViewSource:
    """Created by the store's `source` for the current view."""

    def __init__(self, views: Views, view: TopicView) -> None:
        self.topic_partition = view.topic_partition
        self._views = views
        self._view = view  # replaced by the view of another directory after a move

    def _over(self, ask: Callable[[TopicView], T]) -> T:
        """Returns the answer of the current view."""
        while True:
            view = self._view
            try:
                return ask(view)
            except UnknownTopicOrPartitionException:
                if self._view is view and not self._has_moved(view):
                    raise

    def _has_moved(self, view: TopicView) -> bool:
        """Returns whether the partition is in another directory, from which it is read from now on."""
        for look in range(LOOKS_MAX):
            if look:
                time.sleep(LOOK_AGAIN_S)
            try:
                found = self._views.view(self.topic_partition)
            except UnknownTopicOrPartitionException:
                continue
            if found is not view:
                if view.topic_id is not None and found.topic_id != view.topic_id:
                    return False
                self._view = found
                return True
        return False

    @property
    def log_dir(self) -> str:
        return self._view.log_dir

    @property
    def log_start_offset(self) -> int:
        return self._view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._view.log_end_offset

    cuts = 0  # as in a view

    def over(self, ask: Callable[[Snapshot], T]) -> T:
        return self._over(lambda view: view.over(ask))

    def tiered(self) -> Sequence[TierSegment]:
        return self._view.tiered()

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._over(lambda view: view.visible_end(isolation))

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        return self._over(lambda view: view.extent(offset, isolation))

    def has(self, extent: Extent) -> bool:
        return self._over(lambda view: view.has(extent))

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        return self._over(lambda view: view.aborted_in(first_offset, last_offset))

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._over(lambda view: view.offset_for_time(timestamp_ms))

    def own_view(self) -> PartitionView:
        return self._over(lambda view: view.own_view())

    def check_usable(self) -> None:
        self._view.check_usable()

    def recheck(self) -> None:
        self._over(lambda view: view.recheck())

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        self._over(lambda view: view.check_end(isolation))

    def ring_at_change(self, bell: Ringing) -> str:
        return self._view.ring_at_change(bell)

    def ring_no_more(self, bell: Ringing) -> None:
        """Does nothing: the bell never rings for another process's log."""

    def has_changed(self) -> bool:
        return self._view.has_changed()
