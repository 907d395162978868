"""Decides which remote segments belong to a log's own history: its leader epochs choose between those that hold an
offset.

After an unclean leader election, the remote tier may have segments of an abandoned history.  Source: the static
functions of RemoteLogManager (4.4.0).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, Epochs, RemoteLogSegmentMetadata, missing


def filtered_epochs(epochs: Sequence[tuple[int, int]]) -> Epochs:
    """buildFilteredLeaderEpochMap: drops epochs that wrote nothing; of epochs that begin at one offset it keeps the
    last."""
    return tuple(
        entry for entry, following in itertools.zip_longest(epochs, epochs[1:])
        if following is None or following[1] != entry[1]
    )  # fmt: skip


def is_within_leader_epochs(metadata: RemoteLogSegmentMetadata, log_end_offset: int, epochs: Epochs) -> bool:
    """isRemoteSegmentWithinLeaderEpochs: whether a segment belongs to the history of these (filtered) epochs."""
    segment = filtered_epochs(metadata.segment_leader_epochs)
    if not epochs or not segment:
        return False
    last = segment[-1][0]
    if not epochs[0][0] <= last <= epochs[-1][0]:
        return False
    first = next((epoch for epoch, _ in segment if epoch >= epochs[0][0]), None)
    if first is None:
        return False
    starts = dict(epochs)
    order = [epoch for epoch, _ in epochs]
    for place, (epoch, offset) in enumerate(segment):
        if epoch < first:
            continue
        if epoch not in starts:
            return False
        at = order.index(epoch)
        if epoch == first and at > 0 and offset < starts[epoch]:
            return False
        following = epochs[at + 1] if at + 1 < len(epochs) else None
        if epoch == last:
            if following is not None and metadata.end_offset > following[1] - 1:
                return False
        elif following != segment[place + 1]:
            return False
    return metadata.end_offset < log_end_offset


def history(
    segments: Iterable[RemoteLogSegmentMetadata], epochs: Sequence[EpochEntry], start: int = 0, end: int = LONG_MAX
) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments that hold the offsets [start, end) of a log with these leader epochs, by base offset.

    They are those that a broker would find if they had been copied in the order of their ends, and contained only this
    history.

    If a segment continues with an abandoned history and a gap follows its valid part, a `missing` placeholder follows
    it.  So nobody reads the abandoned records in place of the missing ones.
    """
    whole, parts = {}, []
    for each in segments:
        if each.state is COPY_SEGMENT_FINISHED and (part := part_of(each, epochs)) is not None:
            whole[each.remote_log_segment_id] = each
            parts.append(part)
    cache = RemoteLogMetadataCache()
    cache.take(sorted(parts, key=lambda each: (each.end_offset, -each.start_offset)))
    found = []
    for part, following in itertools.pairwise([*_chain(cache, epochs, start, end), None]):
        assert part is not None
        found.append(whole[part.remote_log_segment_id])
        behind = min(end, found[-1].end_offset + 1) if following is None else following.start_offset
        if part.end_offset + 1 < behind and part.end_offset < found[-1].end_offset:
            found.append(missing(part.topic_id_partition, part.end_offset + 1, behind - 1))
    return found


def _chain(
    cache: RemoteLogMetadataCache, epochs: Sequence[EpochEntry], start: int, end: int
) -> list[RemoteLogSegmentMetadata]:
    """Chains segments: if two overlap, as those of two leaders do, the later one counts from its begin, as in Kafka.

    At a gap in the remote tier it continues after the gap, with the next segment of the epoch or with the next epoch.
    """
    chained: list[RemoteLogSegmentMetadata] = []
    begins = [each.start_offset for each in epochs]
    starts: dict[int, list[int]] = {}  # start offsets of segments by epoch; needed only at a gap
    offset = start
    while offset < end:
        at = bisect_right(begins, offset) - 1
        behind = begins[at + 1 : at + 2]
        found = None if at < 0 else cache.remote_log_segment_metadata(epochs[at].epoch, offset)
        if found is not None:
            while chained and chained[-1].start_offset >= found.start_offset:
                chained.pop()
            chained.append(found)
            offset = min([found.highest_offset_of(epochs[at].epoch) + 1, *behind])
            continue
        if at >= 0:
            epoch = epochs[at].epoch
            if epoch not in starts:
                listed = cache.list_remote_log_segments(epoch)
                starts[epoch] = sorted(dict(each.segment_leader_epochs)[epoch] for each in listed)
            later = range(bisect_right(starts[epoch], offset), len(starts[epoch]))
            there = (
                starts[epoch][n]
                for n in later
                if cache.remote_log_segment_metadata(epoch, starts[epoch][n]) is not None
            )
            behind += itertools.islice(there, 1)
        if not behind:
            break
        offset = min(behind)
    return chained


def epochs_of_all(segments: Iterable[RemoteLogSegmentMetadata], latest: Sequence[EpochEntry] = ()) -> list[EpochEntry]:
    """Returns a partition's leader epochs, as its segments record them.

    The epochs in `latest`, stored with the latest leader's last segment, have priority.  Other segments supply the
    epochs before those, if they are not deleted yet.  An epoch that begins after a later one was abandoned completely.
    """
    starts: dict[int, int] = {}
    for each in segments:
        if each.state is COPY_SEGMENT_FINISHED:
            for epoch, start in each.segment_leader_epochs:
                if not latest or epoch <= latest[0].epoch:
                    starts[epoch] = min(start, starts.get(epoch, start))
    for epoch, start in latest:
        starts[epoch] = min(start, starts.get(epoch, start))
    found: list[EpochEntry] = []
    for epoch, start in sorted(starts.items(), reverse=True):
        if not found or start < found[-1].start_offset:
            found.append(EpochEntry(epoch, start))
    return found[::-1]


def part_of(metadata: RemoteLogSegmentMetadata, epochs: Sequence[EpochEntry]) -> RemoteLogSegmentMetadata | None:
    """Returns a segment as if it ended where its leader epochs leave `epochs`; None if they differ at its begin.

    A log whose start has moved does not know epochs before its first one, nor where that began.
    """
    starts = dict(epochs)
    behind = {epoch: following.start_offset for (epoch, _), following in itertools.pairwise(epochs)}
    first = epochs[0].epoch if epochs else -1
    end = -1
    for epoch, start in filtered_epochs(metadata.segment_leader_epochs):
        if epoch < first:
            continue
        begin = starts.get(epoch, LONG_MAX)
        if (begin > start and epoch != first) or (begin < start != metadata.start_offset):
            break
        last = metadata.highest_offset_of(epoch)
        end = min(last, behind.get(epoch, LONG_MAX) - 1)
        if end < last:
            break
    if end < metadata.start_offset:
        return None
    own = tuple(entry for entry in metadata.segment_leader_epochs if entry[1] <= end)
    return metadata._replace(end_offset=end, segment_leader_epochs=own)
