"""Packs ranges into tasks on the driver, so that 10,000 small partitions need a few tasks and not 10,000.

Neighbouring ranges are packed by bytes, as Spark's file sources pack files: each range costs its size plus
`OPEN_BYTES`, and a task takes ranges up to `TASK_BYTES`.  There are at least as many tasks as the cluster has cores, if
that is known, and as `minPartitions` requests.  A larger range is a task of its own; the planner has already split it.
The order of ranges does not change.  This module does not depend on pyspark and opens no file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from kafkalog.spark.options import SourceOptions
from kafkalog.spark.ranges import OffsetRange

OPEN_BYTES = 64 << 10  # cost of a range in addition to its bytes: a local one takes about 0.1 ms to open
REMOTE_OPEN_BYTES = 4 << 20  # an object costs a request of about 50 ms, as with Spark's file sources
TASK_BYTES = 16 << 20
TASKS_LEAST = 32  # if the number of cores is unknown: a task costs some milliseconds


def pack(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[tuple[OffsetRange, ...]]:
    """Returns the ranges of each task, in the given order.

    A task has at most `maxBytesPerPartition` bytes and `maxRecordsPerPartition` offsets, unless a single range has
    more.  There are at least `minPartitions` tasks, if there are as many ranges.

        [RangePartition(works) for works in pack(plan(options), options)]
    """
    costs = _sums(_cost(each) for each in ranges)
    bytes_ = _sums(each.size for each in ranges)
    offsets = _sums(each.end_offset - each.start_offset for each in ranges)
    bytes_most, records_most = options.max_bytes_per_partition, options.max_records_per_partition

    def stop(start: int, target: int) -> int:
        """Returns the position after the last range of a task that begins with the range `start`."""
        found = min(_fitting(costs, start, target), _fitting(bytes_, start, bytes_most))
        if records_most is not None:
            found = min(found, _fitting(offsets, start, records_most))
        return max(found, start + 1)

    least = min(tasks_least(options), len(ranges))
    cuts = _cuts(len(ranges), stop, TASK_BYTES)
    if len(cuts) < least:
        cuts = _cuts(len(ranges), stop, _largest_target(len(ranges), stop, least))
    return [tuple(ranges[begin:end]) for begin, end in zip([0, *cuts], cuts, strict=False)]


def tasks_least(options: SourceOptions) -> int:
    """Returns the least number of tasks, if there are as many ranges."""
    known = options.parallelism
    return max(options.min_partitions or 0, max(os.cpu_count() or 1, TASKS_LEAST) if known is None else known)


def _cost(work: OffsetRange) -> int:
    is_remote = any(piece.remote is not None for piece in work.pieces)
    return work.size + (REMOTE_OPEN_BYTES if is_remote else OPEN_BYTES)


def _sums(values: Iterable[int]) -> list[int]:
    return list(accumulate(values, initial=0))


def _fitting(sums: list[int], start: int, most: int) -> int:
    """Returns the position after the last value such that the values from `start` to it sum to at most `most`."""
    return bisect_right(sums, sums[start] + most) - 1


def _cuts(count: int, stop: Callable[[int, int], int], target: int) -> list[int]:
    """Returns the position at which each task ends."""
    found, start = [], 0
    while start < count:
        start = stop(start, target)
        found.append(start)
    return found


def _largest_target(count: int, stop: Callable[[int, int], int], least: int) -> int:
    """Returns the largest cost of a task with which there are `least` tasks.  A larger cost means fewer tasks."""
    low, high = 0, TASK_BYTES  # with 0 each range is a task of its own
    while high - low > 1:
        middle = (low + high) // 2
        if len(_cuts(count, stop, middle)) >= least:
            low = middle
        else:
            high = middle
    return low
