"""Kafka's own classes by their names, for programs that embed them: `engine.host.log_manager.LogManager`,
`engine.log.unified_log.UnifiedLog`, `engine.segment.log_segment.LogSegment` and what they stand on.

It follows Kafka's versions: a class or a method changes when Kafka's does, without a deprecation of its own.  What
stays as it is from release to release is `kafkalog` itself and the modules beside this folder.  Floors, lowest first:

    files        the one door to the disk and the clock
    format       what bytes mean
    segment      one log file and the indexes that can be rebuilt from it
    log          one partition
    cleaner      compaction
    host         many partitions on many disks in one process
    coordinator  transactions over partitions, and the offsets of groups
"""

from __future__ import annotations

__all__ = ["cleaner", "coordinator", "files", "format", "host", "log", "segment"]


def __dir__() -> list[str]:
    return __all__
