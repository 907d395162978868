"""The partitions that a stream reads, looked at at each trigger: where each starts and ends now, which came and went.

Views are kept between looks, so that a trigger which finds nothing new costs a listing and two questions a partition;
their files are let go, since there may be more partitions than a process may open files.  The directory may be another
process's, which writes.  Knows nothing of pyspark; not thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from kafkalog.errors import BadBytesError, UnknownTopicOrPartitionException
from kafkalog.format.names import TopicPartition
from kafkalog.log.checkpoint_lines import CheckpointLines
from kafkalog.log.snapshot import Snapshot
from kafkalog.log.view import PartitionView
from kafkalog.spark.offsets import Offsets
from kafkalog.spark.options import SourceOptions
from kafkalog.spark.places import files_of
from kafkalog.spark.planning import ask, damaged, find_partitions

log = logging.getLogger("kafkalog.spark")

T = TypeVar("T")


class FollowedPartitions:
    """Those that the options choose; `views` are of the last look."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._checkpoints: dict[str, CheckpointLines] = {}  # one for all partitions of a directory
        self.views: dict[TopicPartition, PartitionView] = {}

    def look(self) -> Offsets:
        """The end of each partition that there is now, as far as a reader of the query's isolation sees."""
        views = {}
        ends = {}
        for partition, log_dir in find_partitions(self._options).items():
            view, is_new = self._look_at(partition, log_dir)
            views[partition] = view
            try:
                if is_new:
                    self._judge_end(view)
                ends[partition] = view.visible_end(self._options.isolation)
            finally:
                view.rest()
        self.views = views
        return ends

    def look_again(self, known: Mapping[TopicPartition, int], looks: int, interval_ms: int) -> Offsets:
        """As `look`, up to `looks` times while a partition's end lies below what is known of it, or one is just going:
        a crash or a truncation may be being repaired."""
        for number in range(1, looks + 1):
            try:
                ends = self.look()
            except UnknownTopicOrPartitionException:
                if number == looks:
                    raise
            else:
                less = {each: end for each, end in ends.items() if end < known.get(each, 0)}
                if not less or number == looks:
                    return ends
                log.warning("Found incorrect offsets in some partitions (%s after %s): looking again", less, known)
            time.sleep(interval_ms / 1000)
        raise AssertionError("there is at least one look")

    def refresh(self, partition: TopicPartition) -> PartitionView | None:
        """The partition's view as of now; None when it is gone."""
        view = self.views.get(partition)
        if view is not None:
            try:
                view.refresh()
            except UnknownTopicOrPartitionException:
                return None
        return view

    def ask(self, partition: TopicPartition, question: Callable[[Snapshot], T]) -> T:
        """A partition's answer, by its view of the last look."""
        return ask(self.views[partition], question)

    def _look_at(self, partition: TopicPartition, log_dir: str) -> tuple[PartitionView, bool]:
        """The partition's view, and whether it shows something new."""
        view = self.views.get(partition)
        if view is None or view.log_dir != log_dir:
            lines = self._checkpoints.setdefault(log_dir, CheckpointLines(log_dir))
            return PartitionView(log_dir, partition, files=files_of(log_dir), checkpoints=lines), True
        # Where there is room behind the last batch a write changes no size, nor a time within a tick of the clock.
        has_room = bool(view.segments) and view.snapshot.end_position < view.segments[-1].size
        if not has_room and not view.has_changed():
            return view, False
        view.refresh()
        return view, True

    def _judge_end(self, view: PartitionView) -> None:
        """CorruptRecordException, or a warning, where the end that is seen is not the log's: the stream would stall."""
        isolation = self._options.isolation
        if view.over(lambda seen: seen.damage_at_end(isolation)) is not None:
            try:
                view.check_end(isolation)
            except BadBytesError as error:
                damaged(self._options, error)
