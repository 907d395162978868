"""Chooses which segments become one: neighbours whose bytes and index entries together fit into a segment.

The sizes are those before the cleaning.  So many small segments become few, and a segment that shrinks with every pass
is merged in the end.  Mirrors Cleaner.groupSegmentsBySize (4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalog._limits import INT_MAX
from kafkalog.engine.segment.log_segment import LogSegment


def group_segments_by_size(
    segments: Sequence[LogSegment], segment_bytes_max: int, index_bytes_max: int, first_uncleanable_offset: int
) -> list[list[LogSegment]]:
    """Returns the segments in order, in groups.  A group's offsets fit into 31 bits above its first base offset."""
    groups: list[list[LogSegment]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable_offset
        if (
            groups
            and log_bytes + segment.size <= segment_bytes_max
            and offset_index_bytes + segment.offset_index.size_in_bytes <= index_bytes_max
            and time_index_bytes + segment.time_index.size_in_bytes <= index_bytes_max
            and (segment.size == 0 or following - 1 - groups[-1][0].base_offset <= INT_MAX)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log_bytes = offset_index_bytes = time_index_bytes = 0
        log_bytes += segment.size
        offset_index_bytes += segment.offset_index.size_in_bytes
        time_index_bytes += segment.time_index.size_in_bytes
    return groups
