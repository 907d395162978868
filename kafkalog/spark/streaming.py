"""The stream: `spark.readStream.format("kafkalog")`, with the offsets, limits and errors of Spark's Kafka source.

One reader runs next to the driver for the lifetime of the query and decides where each micro-batch ends.  Others, on
executors, only read ranges, as batch reads do.  Spark's checkpoint has everything that must outlive a process.  The
first batch of a query is therefore empty: it stores the initial offsets, for which Spark gives a Python source no other
place.  A query that is started again after a crash in that batch must not begin elsewhere ("latest" has changed).

Needs PySpark 4.2: earlier versions do not tell a source where a batch starts when they request its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.spark.column_types import promised
from kafkalog.spark.followed import FollowedPartitions
from kafkalog.spark.json_values import JsonValues, parsed
from kafkalog.spark.offsets import Conversions, Nested, Offsets, shown
from kafkalog.spark.options import LATEST, SourceOptions
from kafkalog.spark.packing import pack
from kafkalog.spark.plainly import plainly
from kafkalog.spark.plan_report import PlanReport
from kafkalog.spark.planning import ask, check_complete, lost, offset_of, ranges_of, split_further
from kafkalog.spark.ranges import OffsetRange
from kafkalog.spark.tasks import RangePartition, read_task
from kafkalog.spark.triggers import TriggerOptions, limited_by_bytes, limited_by_offsets, waiting
from kafkalog.spark.worker import AnswersAtOnce


class KafkalogStreamReader(AnswersAtOnce, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's reader of a stream.  `read` runs on executors, everything else in one process next to the driver."""

    def __init__(
        self,
        options: SourceOptions,
        triggers: TriggerOptions,
        columns: tuple[str, ...],
        values: JsonValues | None = None,
    ) -> None:
        self.options = options
        self.triggers = triggers
        self.columns = columns
        self.values = values
        self.not_null: frozenset[str] = frozenset()
        self._partitions = FollowedPartitions(options)
        self._conversions = Conversions()
        self._initial: Offsets | None = None
        self._initial_is_kept = False  # in the checkpoint, or about to be
        self._latest: Offsets | None = None
        self._is_available_now = False
        self._all_available: Offsets | None = None  # the end of a query with Trigger.AvailableNow
        self._last_trigger_ms = 0.0

    # --- how far a batch goes -----------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> Nested:  # noqa: N802
        """Returns where a new query starts; Spark requests it more than once for the first batch."""
        if self._initial is None:
            self._initial = self._starting_offsets()
        return self._conversions.nested(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns any limit but ReadAllAvailable, which stands for Trigger.Once: the options have limits that no
        ReadLimit has."""
        return ReadMaxRows(self.triggers.max_offsets or LONG_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True

    @plainly
    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:  # noqa: N802
        """Returns the end of the batch that starts at `start`."""
        begin = self._conversions.flat(start)
        self._latest = self._without_lost(begin, self._ends(begin))
        if begin == self._initial and not self._initial_is_kept:
            self._initial_is_kept = True
            if not isinstance(limit, ReadAllAvailable) or self.options.start.word == LATEST:
                return start
        return self._conversions.nested(
            self._latest if isinstance(limit, ReadAllAvailable) else self._limited(begin, self._latest)
        )

    def reportLatestOffset(self) -> Nested | None:  # noqa: N802
        return self._conversions.nested(self._latest) if self._latest else None

    def _ends(self, begin: Offsets) -> Offsets:
        if self._all_available is not None:
            return self._all_available
        ends = self._partitions.look_again(begin, self.triggers.looks, self.triggers.look_interval_ms)
        if self._is_available_now:
            self._all_available = ends
        return ends

    def _without_lost(self, begin: Offsets, ends: Offsets) -> Offsets:
        """Returns the ends for a batch.

        Raises IllegalStateException if the query must not continue.  Later it would be too late, since Spark stores the
        end of a batch and plans exactly that batch at each start.  A partition whose topic was recreated is left out
        once, like a deleted one; after that it is a new partition.
        """
        remade = self._partitions.take_remade() & set(begin)
        if remade:
            lost(self.options, f"Topics of partitions {shown(remade)} have been deleted and created again.")
            ends = {partition: end for partition, end in ends.items() if partition not in remade}
            if self._all_available is not None:
                self._all_available = ends
        if self.options.fail_on_data_loss:
            self._check_deleted(begin, ends)
            for partition, end in ends.items():
                self._check_shorter(partition, begin.get(partition, 0), end)
        return ends

    def _check_deleted(self, begin: Offsets, until: Offsets) -> None:
        deleted = set(begin) - set(until)
        if deleted:
            lost(self.options, f"Partitions {shown(deleted)} have been deleted.{self._not_chosen(deleted)}")

    def _not_chosen(self, deleted: Iterable[TopicPartition]) -> str:
        """Explains partitions in a checkpoint that was written with other options."""
        named = self.options.subscribe
        others = [each for each in deleted if named is not None and each.topic not in named]
        if not others:
            return ""
        return (
            f" The checkpoint has {shown(others)}, but subscribe does not name their topic: it may be of another query."
        )

    def _check_shorter(self, partition: TopicPartition, start: int, end: int) -> None:
        if end < start:
            lost(self.options, f"Partition {partition} offset was changed from {start} to {end}.")

    def _limited(self, begin: Offsets, latest: Offsets) -> Offsets:
        triggers = self.triggers
        # With AvailableNow, a batch that waits for more records would end the query before everything is read.
        if triggers.min_offsets is not None and not self._is_available_now:
            now_ms = time.time() * 1000
            is_late = now_ms - self._last_trigger_ms >= triggers.max_delay_ms
            if not is_late and waiting(begin, latest) < triggers.min_offsets:
                return begin
            self._last_trigger_ms = now_ms
        if triggers.max_offsets is None and triggers.max_bytes is None:
            return latest
        begin = begin | self._first_offsets(set(latest) - set(begin))
        latest = {partition: end for partition, end in latest.items() if partition in begin}
        end = latest
        if triggers.max_offsets is not None:
            end = limited_by_offsets(triggers.max_offsets, begin, end)
        if triggers.max_bytes is not None:
            end = limited_by_bytes(triggers.max_bytes, begin, end, self._partitions.ask)
        return end

    def _starting_offsets(self) -> Offsets:
        ends = self._partitions.look()
        views = self._partitions.views
        check_complete("startingOffsets", self.options.start, {each: view.log_dir for each, view in views.items()})

        def start(seen: Snapshot) -> int:
            end = ends[seen.topic_partition]
            return offset_of(seen, self.options.start, end, starting=True, options=self.options)

        return {partition: ask(view, start) for partition, view in views.items()}

    def _first_offsets(self, partitions: set[TopicPartition]) -> Offsets:
        """Returns the first offsets of the partitions that exist."""
        views = {partition: self._partitions.refresh(partition) for partition in partitions}
        return {partition: view.log_start_offset for partition, view in views.items() if view is not None}

    # --- reading a batch ----------------------------------------------------------------------------

    @plainly
    def partitions(self, start: Nested, end: Nested) -> Sequence[RangePartition]:
        """Returns the tasks for [start, end).

        Raises IllegalStateException if a part of it no longer exists; with failOnDataLoss=false it logs a warning
        instead.
        """
        if start == end:
            return []  # Spark asks at each start of a query, too
        begin, until = self._conversions.flat(start), self._conversions.flat(end)
        if not self._partitions.views:
            self._partitions.look({**begin, **until})
        if begin == self._initial and not self._initial_is_kept:
            # This is the first batch again, after a crash.  It ended where it began (except with Trigger.Once), and
            # what we take for the initial offsets is now at or after these.
            self._initial_is_kept = True
            begin = {each: min(offset, until[each]) for each, offset in begin.items() if each in until}
        begin |= self._begin_of_new(set(until) - set(begin))
        self._check_deleted(begin, until)
        planned: list[OffsetRange] = []
        report = PlanReport(self.options.paths)
        report.choose(set(begin) & set(until))
        for partition in sorted(set(begin) & set(until)):
            planned += self._plan_one(partition, begin[partition], until[partition], report)
        if self.options.min_partitions is not None:
            planned = split_further(planned, self._partitions.views, self.options)
        tasks = pack(planned, self.options)
        report.tell(tasks)
        return [RangePartition(works) for works in tasks]

    def _begin_of_new(self, partitions: set[TopicPartition]) -> Offsets:
        """Returns the first offsets of new partitions, which are read from their first record; it should be offset
        0."""
        found = self._first_offsets(partitions)
        if partitions - set(found):
            missing = shown(partitions - set(found))
            lost(self.options, f"Cannot find initial offsets for partitions {missing}. They may have been deleted.")
        for partition, offset in found.items():
            if offset:
                lost(self.options, f"Added partition {partition} starts from {offset} instead of 0.")
        return found

    def _plan_one(self, partition: TopicPartition, start: int, end: int, report: PlanReport) -> list[OffsetRange]:
        self._check_shorter(partition, start, end)
        if end <= start:
            return []
        view = self._partitions.refresh(partition)  # sees what retention or deleteRecords removed since the last look
        if view is None:
            lost(self.options, f"Partitions {partition} have been deleted.")
            return []
        if self._partitions.is_remade(partition):
            lost(self.options, f"Topics of partitions {partition} have been deleted and created again.")
            return []
        report.see(view.snapshot)
        return ask(view, partial(self._ranges, start=start, end=end))

    def _ranges(self, seen: Snapshot, start: int, end: int) -> list[OffsetRange]:
        name = seen.topic_partition
        if start < seen.log_start_offset:
            lost(self.options, f"Starting offset for {name} was {start} but the log starts at {seen.log_start_offset}.")
        if end > seen.log_end_offset:
            lost(self.options, f"Partition {name} offset was changed from {end} to {seen.log_end_offset}.")
        start, end = max(start, seen.log_start_offset), min(end, seen.log_end_offset)
        return ranges_of(seen, start, end, self.options)

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields Arrow record batches of one task."""
        works = getattr(partition, "works", ())
        return promised(parsed(read_task(works, self.options, self.columns), self.values), self.not_null)
