"""The partitions that a stream reads, looked at at each trigger: where each starts and ends now, which came and went.

A topic that was deleted and made again has another id (`partition.metadata`, where its partitions have one): offsets
that were read of the old one say nothing of it.  That is noticed while the query runs; ids outlive no process.

Views are kept between looks, and `glances` tells which of them may have changed since: a trigger which finds nothing
new costs one native call that asks two questions a partition.  Where that cannot tell, each view is asked itself.  The
views' files are let go, since there may be more partitions than a process may open files.  The directory may be another
process's, which writes.  Knows nothing of pyspark; not thread-safe.
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
    """Those that the options choose; `views` are of the last look."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._checkpoints: dict[str, CheckpointLines] = {}  # one for all partitions of a directory
        self._known: set[TopicPartition] = set()  # they were there once
        self._topic_ids: dict[TopicPartition, str] = {}
        self._told: set[str] = set()
        self._remade: set[TopicPartition] = set()
        self._copies = Copies(options, streaming=True)
        self._folder_times: dict[TopicPartition, tuple[str, int]] = {}  # of copies, when their topic id was read
        self._glances = Glances(options.paths)  # which copies are not asked: their ends are not their own
        self._ends: Offsets = {}  # of the last look
        self.views: dict[TopicPartition, PartitionView] = {}

    def look(self, known: Iterable[TopicPartition] = ()) -> Offsets:
        """The end of each partition that there is now, as far as a reader of the query's isolation sees.

        UnknownTopicOrPartitionException for what the options name and is not there; but of what the query read, which
        is `known` or was seen, all may be gone.  Nobody changes what comes back: the same object says the same.
        """
        self._known.update(known)
        found = self._look_at_changes()
        if found is not None:
            return found
        self._glances.begin()
        views = {}
        ends = {}
        # What was handed out before lay below the high watermark, also where no checkpoint says so yet.
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
        """As `look`, of the partitions that may have changed; None where all must be looked at."""
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
        """As `look`, up to `looks` times while a partition is gone, or ends below what is known of it: a crash or a
        truncation may be being repaired."""
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
        """What is missing at one look is mostly missing at the next."""
        if text not in self._told:
            self._told.add(text)
            warn(text)

    def refresh(self, partition: TopicPartition) -> PartitionView | None:
        """The partition's view as of now; None when it is gone."""
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
        """Whether its topic was deleted and made again, and `take_remade` has not told yet."""
        return partition in self._remade

    def take_remade(self) -> set[TopicPartition]:
        """Those whose topic was deleted and made again since the last call."""
        found, self._remade = self._remade, set()
        return found

    def ask(self, partition: TopicPartition, question: Callable[[Snapshot], T]) -> T:
        """A partition's answer, by its view of the last look."""
        return ask(self.views[partition], question)

    def _look_at(self, partition: TopicPartition, log_dir: str, starts: CheckpointLines) -> tuple[PartitionView, bool]:
        """The partition's view, and whether it shows something new."""
        view = self.views.get(partition)
        if view is None or view.log_dir != log_dir or isinstance(view, CopyView):  # which would end where it did
            lines = self._checkpoints.setdefault(log_dir, CheckpointLines(log_dir))
            view = PartitionView(log_dir, partition, files=files_of(log_dir), checkpoints=lines)
            self._compare_topic(view)
            return view, True
        # Where there is room behind the last batch a write changes no size, nor a time within a tick of the clock.
        has_room = bool(view.segments) and view.snapshot.end_position < view.segments[-1].size
        if not has_room and not view.has_changed() and not starts_elsewhere(view, starts):
            return view, False
        seen = view.snapshot.mtime_ms
        view.refresh()
        if view.snapshot.mtime_ms != seen:  # as it is when the folder is another
            self._compare_topic(view)
        return view, True

    def _look_at_copy(self, view: CopyView) -> tuple[PartitionView, bool]:
        """The view of the copy that was chosen, and whether it may show something new."""
        if self._folder_times.get(view.topic_partition) != (view.log_dir, view.snapshot.mtime_ms):
            self._folder_times[view.topic_partition] = view.log_dir, view.snapshot.mtime_ms
            self._compare_topic(view)
        return view, view.snapshot.unreadable_end is not None

    def _compare_topic(self, view: PartitionView) -> bool:
        """Take note of the topic id in a partition's folder; whether it is new.  A folder has none for a moment, or
        ever."""
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
        """CorruptRecordException, or a warning, where the end that is seen is not the log's: the stream would stall."""
        isolation = self._options.isolation
        if view.over(lambda seen: seen.damage_at_end(isolation)) is not None:
            try:
                view.check_end(isolation)
            except BadBytesError as error:
                damaged(self._options, error)
