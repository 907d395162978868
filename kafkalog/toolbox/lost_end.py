"""Finds a lost end of a log: its recovery point says that offsets were flushed, and they are missing.

Then files are missing or were truncated.  Nothing else shows it: the rest is a whole log that ends earlier, and an open
rewrites the recovery point.  `verify`, `backup`, `recover` and `salvage` use this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.log import damage
from kafkalog.toolbox.losses import LostRange
from kafkalog.toolbox.report import SECOND_LOOK_S, Finding

if TYPE_CHECKING:
    from kafkalog.engine.files import Files
    from kafkalog.engine.format.names import TopicPartition

__all__ = ["LostEnd", "RecoveryPoints", "lost_end"]


class LostEnd(NamedTuple):
    """Offsets that were flushed and are missing, after the last segment's log (or in a directory without one)."""

    path: str
    first_offset: int
    last_offset: int
    what: str

    @property
    def finding(self) -> Finding:
        return Finding(self.path, 0, 0, self.what)

    def range_of(self, partition: TopicPartition) -> LostRange:
        """Returns what is lost; the times of its records are unknown."""
        return LostRange(partition, self.path, 0, -1, self.last_offset + 1 - self.first_offset, -1, -1)


def lost_end(folder: str, bases: Sequence[int], flushed: int, end: int, log_start: int = 0) -> LostEnd | None:
    """Returns the lost end of a partition, or None.

    Its segments begin at `bases`, its log ends at `end`, and the offsets below `flushed` were flushed.  Offsets below
    `log_start` are not missed."""
    first = max(end, log_start)
    if flushed <= first:
        return None
    path = names.log_file(folder, max(bases)) if bases else folder
    return LostEnd(path, first, flushed - 1, damage.lost_end(flushed, end))


class RecoveryPoints:
    """The recovery points of a log directory.  They are read before its logs: everything that was flushed by then is in
    the logs, however busy their writer is."""

    def __init__(self, root: str, files: Files) -> None:
        self._checkpoint = OffsetCheckpointFile(
            os.path.join(root, names.RECOVERY_POINT_CHECKPOINT_FILE), files, create=False
        )
        self._files = files
        self._points = self._checkpoint.read_or_empty()

    def lost_end(
        self, partition: TopicPartition, folder: str, bases: Sequence[int], end: int, log_start: int = 0
    ) -> LostEnd | None:
        """Like `lost_end`, for a log that was read just now.  Another process may have truncated or replaced it, so the
        end only counts as lost if the recovery point stays, and no other segments appear."""
        found = lost_end(folder, bases, self._points.get(partition, 0), end, log_start)
        if found is None:
            return None
        before = self._seen(folder)
        time.sleep(SECOND_LOOK_S)  # a truncation is checkpointed a moment after it happened
        found = lost_end(folder, bases, self._checkpoint.read_or_empty().get(partition, 0), end, log_start)
        after = self._seen(folder)
        return found if before == after and after is not None and names.offsets_in(after) == sorted(bases) else None

    def _seen(self, folder: str) -> dict[str, int] | None:
        """Returns the sizes of the logs in a directory; None if the directory no longer exists."""
        try:
            listed = self._files.list_dir(folder)
        except FileNotFoundError:
            return None
        seen = {}
        for name in listed:
            if names.segment_base(name) is not None:
                seen[name] = -1
                with suppress(FileNotFoundError):
                    seen[name] = self._files.stat(os.path.join(folder, name)).size
        return seen


def __dir__() -> list[str]:
    return __all__
