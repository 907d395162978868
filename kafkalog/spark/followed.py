"""Follows the partitions that a stream reads: at each trigger, where each starts and ends, and which were added or
deleted.

A topic that was deleted and created again has another id (`partition.metadata`, if its partitions have one), so offsets
of the old topic say nothing about it.  This is noticed only while the query runs, since no id outlives the process.

Views are kept between looks, and `glances` tells which of them may have changed.  A trigger that finds nothing new
costs one native call with two file lookups a partition.  If `glances` cannot tell, each view is checked.  The files of
views are closed between looks, since there may be more partitions than files that a process may open.  Another process
may write to the directory meanwhile.  Does not depend on pyspark; not thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import BadBytesError, CorruptCheckpointException, UnknownTopicOrPartitionException
from kafkalog.spark.copies import Copies, CopyView
from kafkalog.spark.glances import Glances, lines_at_once, starts_elsewhere
from kafkalog.spark.offsets import Offsets
from kafkalog.spark.options import SourceOptions
from kafkalog.spark.places import files_of
from kafkalog.spark.planning import ask, damaged, find_partitions, warn

log = logging.getLogger("kafkalog.spark")

T = TypeVar("T")


class FollowedPartitions:
    """The partitions that the options choose; `views` are those of the last look."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._checkpoints: dict[str, CheckpointLines] = {}  # one for all partitions of a directory
        self._known: set[TopicPartition] = set()  # partitions that existed at some time
        self._topic_ids: dict[TopicPartition, str] = {}
        self._told: set[str] = set()  # warnings that were logged
        self._remade: set[TopicPartition] = set()  # their topic was recreated
        self._copies = Copies(options, streaming=True)
        self._folder_times: dict[TopicPartition, tuple[str, int]] = {}  # when the topic id of a copy was read
        self._glances = Glances(options.paths)  # not for copies, whose visible end depends on other files
        self._ends: Offsets = {}  # the ends at the last look
        self.views: dict[TopicPartition, PartitionView] = {}

    def look(self, known: Iterable[TopicPartition] = ()) -> Offsets:
        """Returns the end of each partition that exists now, as a reader with the query's isolation level sees it.

        Raises UnknownTopicOrPartitionException if the options name a partition that does not exist.  Partitions that
        the query has read, which are in `known` or were seen before, may all be deleted.  The result is never changed
        later, so the same object means the same offsets.
        """
        self._known.update(known)
        found = self._look_at_changes()
        if found is not None:
            return found
        self._glances.begin()
        views = {}
        ends = {}
        # The rows returned before were below the high watermark, even if no checkpoint says so yet.
        floors = known if isinstance(known, Mapping) else {}
        if self._remade:
            floors = {partition: end for partition, end in floors.items() if partition not in self._remade}
        starts = {path: lines_at_once(path) for path in self._options.paths}
        there = find_partitions(self._options, self._known, self._tell_once, self._copies.brokers)
        copies = self._copies.look(there, self._tell_once, floors, self._topic_ids)
        for partition, (log_dir, *_) in there.items():
            if partition in copies:
                (copy,) = copies[partition]
                view, is_new = self._look_at_copy(copy)
            else:
                view, is_new = self._look_at(partition, log_dir, starts[log_dir])
            views[partition] = view
            try:
                if is_new:
                    self._judge_end(view)
                ends[partition] = view.visible_end(self._options.isolation)
                if partition in copies:
                    ends[partition] = max(ends[partition], min(floors.get(partition, 0), view.log_end_offset))
            finally:
                view.rest()
        self.views = views
        self._known.update(views)
        self._ends = ends
        self._glances.remember(views)
        return ends

    def _look_at_changes(self) -> Offsets | None:
        """Does the work of `look` for the partitions that may have changed; returns None if all must be checked."""
        changed = self._glances.changed(self.views)
        if changed is None:
            return None
        ends = {}
        for partition, is_folder in changed.items():
            view = self.views[partition]
            try:
                view.refresh()
                if is_folder and self._compare_topic(view):
                    return None
                self._judge_end(view)
                ends[partition] = view.visible_end(self._options.isolation)
            except UnknownTopicOrPartitionException:
                return None
            finally:
                view.rest()
        if any(end != self._ends[partition] for partition, end in ends.items()):
            self._ends = {**self._ends, **ends}
        self._glances.remember_again(changed, self.views)
        return self._ends

    def look_again(self, known: Mapping[TopicPartition, int], looks: int, interval_ms: int) -> Offsets:
        """Repeats `look` up to `looks` times while a partition is missing or ends below its known offset.

        Its broker may be recovering from a crash or truncating the log.
        """
        for number in range(1, looks + 1):
            try:
                ends = self.look(known)
            except UnknownTopicOrPartitionException:
                if number == looks:
                    raise
            else:
                less = {each: ends.get(each) for each in known if ends.get(each, -1) < known[each]}
                if not less or number == looks:
                    return ends
                log.warning("Found incorrect offsets in some partitions (%s after %s): looking again", less, known)
            time.sleep(interval_ms / 1000)
        raise AssertionError("there is at least one look")

    def _tell_once(self, text: str) -> None:
        """Logs a warning once: what is missing at one look is usually missing at the next."""
        if text not in self._told:
            self._told.add(text)
            warn(text)

    def refresh(self, partition: TopicPartition) -> PartitionView | None:
        """Returns the partition's refreshed view, or None if the partition no longer exists."""
        view = self.views.get(partition)
        if view is not None:
            seen = view.snapshot.mtime_ms
            try:
                view.refresh()
            except UnknownTopicOrPartitionException:
                return None
            if view.snapshot.mtime_ms != seen:
                self._compare_topic(view)
        return view

    def is_remade(self, partition: TopicPartition) -> bool:
        """Whether the partition's topic was recreated and `take_remade` has not returned it yet."""
        return partition in self._remade

    def take_remade(self) -> set[TopicPartition]:
        """Returns the partitions whose topic was deleted and recreated since the last call."""
        found, self._remade = self._remade, set()
        return found

    def ask(self, partition: TopicPartition, question: Callable[[Snapshot], T]) -> T:
        """Answers a question about a partition from its view of the last look."""
        return ask(self.views[partition], question)

    def _look_at(self, partition: TopicPartition, log_dir: str, starts: CheckpointLines) -> tuple[PartitionView, bool]:
        """Returns the partition's view, and whether it shows something new."""
        view = self.views.get(partition)
        if view is None or view.log_dir != log_dir or isinstance(view, CopyView):  # a CopyView would keep its old limit
            lines = self._checkpoints.setdefault(log_dir, CheckpointLines(log_dir))
            view = PartitionView(log_dir, partition, files=files_of(log_dir), checkpoints=lines)
            self._compare_topic(view)
            return view, True
        # With room after the last batch, a write changes neither the size nor, within one tick of the clock, the time.
        has_room = bool(view.segments) and view.snapshot.end_position < view.segments[-1].size
        if not has_room and not view.has_changed() and not starts_elsewhere(view, starts):
            return view, False
        seen = view.snapshot.mtime_ms
        view.refresh()
        if view.snapshot.mtime_ms != seen:  # another directory has another time
            self._compare_topic(view)
        return view, True

    def _look_at_copy(self, view: CopyView) -> tuple[PartitionView, bool]:
        """Returns the view of the chosen copy, and whether it may show something new."""
        if self._folder_times.get(view.topic_partition) != (view.log_dir, view.snapshot.mtime_ms):
            self._folder_times[view.topic_partition] = view.log_dir, view.snapshot.mtime_ms
            self._compare_topic(view)
        return view, view.snapshot.unreadable_end is not None

    def _compare_topic(self, view: PartitionView) -> bool:
        """Remembers the topic id in a partition's directory; returns whether it is new.

        A new directory has no id for a moment, and some never have one.
        """
        try:
            found = topic_id_of(view.directory, files_of(view.log_dir))
        except (CorruptCheckpointException, OSError):
            return True
        partition = view.topic_partition
        before = self._topic_ids.get(partition)
        if found is None or found == before:
            return found != before
        self._topic_ids[partition] = found
        if before is not None:
            self._remade.add(partition)
        return True

    def _judge_end(self, view: PartitionView) -> None:
        """Raises CorruptRecordException, or logs a warning, if damage hides the log's end: the stream would stall
        there."""
        isolation = self._options.isolation
        if view.over(lambda seen: seen.damage_at_end(isolation)) is not None:
            try:
                view.check_end(isolation)
            except BadBytesError as error:
                damaged(self._options, error)
