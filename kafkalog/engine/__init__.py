"""Kafka's storage classes under their Kafka names, for programs that embed them.

Examples are `engine.host.log_manager.LogManager`, `engine.log.unified_log.UnifiedLog` and
`engine.segment.log_segment.LogSegment`.

The engine follows Kafka's versions: a class or a method changes when Kafka's does, without a deprecation period. The
stable API is `kafkalog` itself and the modules next to this package. The layers, lowest first:

    files        the only access to the disk and the clock
    format       what bytes mean
    segment      one log file and the indexes that can be rebuilt from it
    log          one partition
    cleaner      compaction
    host         many partitions on many disks in one process
    coordinator  transactions over partitions, and the offsets of consumer groups
"""

from __future__ import annotations

__all__ = ["cleaner", "coordinator", "files", "format", "host", "log", "segment"]


def __dir__() -> list[str]:
    return __all__
