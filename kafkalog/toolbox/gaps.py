"""Finds gaps between the segments of a partition: offsets that no segment has, and evidence that they are lost.

An index without its log, or one that names bytes after the log's end, is evidence for any topic.  Nothing else tells a
missing file from what compaction leaves.  So for a topic that may have been compacted, a gap alone is no loss.
`verify`, `backup`, `recover` and `salvage` use this module, so that all count the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.topic_settings import TopicSettings
from kafkalog._limits import INT_MAX, SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile, OffsetCheckpointFile
from kafkalog.engine.segment import index_reader
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.losses import Losses, LostRange
from kafkalog.toolbox.report import SECOND_LOOK_S, Finding

if TYPE_CHECKING:
    from kafkalog.engine.files import Files
    from kafkalog.engine.format.names import TopicPartition

COMPACTED_TOPICS = (names.GROUP_METADATA_TOPIC, names.TRANSACTION_STATE_TOPIC)
POLICY = "cleanup.policy"
TIERED = "remote.storage.enable"
NOT_COMPACTED = (
    "and the topic is not compacted: a segment's files are missing, unless an earlier compaction or a salvage "
    "left the gap (a backup or a replica may have them)"
)
NOT_TRIMMED = "and retention and delete-records move that start along with the log start: files are missing"
WITHOUT_LOG = (
    "an index without its .log file: the records of its segment are missing, unless a cleaner removed them (a backup "
    "or a replica may have them; opening the log deletes the index)"
)
FORGETS = "; a recovery deletes that index, and with it the evidence of the loss"

__all__ = [
    "Gap",
    "Gaps",
    "began_below",
    "end_of_segment",
    "indexes_alone",
    "is_of_gap_alone",
    "index_names_alone",
    "may_be_compacted",
    "may_begin_later",
    "missing_segments",
]


class Gap(NamedTuple):
    """Offsets before a segment that no segment has.  `why` is how an index shows that records were there, or None."""

    first_offset: int
    last_offset: int
    why: str | None = None

    def __str__(self) -> str:
        told = "" if self.why is None else f": {self.why}"
        return f"offsets {self.first_offset} to {self.last_offset} are in no segment{told}"

    @property
    def told(self) -> str:
        """The text of the finding."""
        return f"{self}, {NOT_COMPACTED}" if self.why is None else str(self)


class Gaps:
    """Finds gaps, segment by segment in order.  `alone` are base offsets of segments with an index and no log.  Nothing
    before `log_start` is missed.  `began` is where the log began, as `began_below` returns it."""

    def __init__(
        self, directory: str, alone: Collection[int], files: Files, log_start: int = 0, began: int | None = None
    ) -> None:
        self._began = began
        self._directory = directory
        self._alone = sorted(alone)
        self._files = files
        self._start = log_start

    def in_front_of(self, base: int, before: int | None, next_offset: int, told_up_to: int) -> Gap | None:
        """Returns the gap between the segment `before`, whose batches end at `next_offset`, and the one at `base`, or
        None.

        Missing offsets below `told_up_to` were reported already.  Before the first segment (`before` is None) only
        offsets are missed that an index or `began` names, because retention deletes what was there."""
        first = max(next_offset, told_up_to)
        alone = [each for each in self._alone if first <= each < base]
        if before is None:
            known = [*alone[:1], *([] if self._began is None else [self._began])]
            if not known:
                return None
            first = min(known)
        first = max(first, self._start)
        if first >= base:
            return None
        if alone:
            named = names.log_file("", alone[0])
            return Gap(first, base - 1, f"the file {named} is missing (its index still exists)")
        if before is not None and self._is_cut_short(before, base, next_offset):
            named = names.log_file("", before)
            return Gap(first, base - 1, f"the file {named} is shorter than its index says")
        if before is None:
            return Gap(first, base - 1, f"leader epochs begin at offset {self._began}, {NOT_TRIMMED}")
        return Gap(first, base - 1)

    def _is_cut_short(self, base: int, following: int, next_offset: int) -> bool:
        """Returns whether the index of a segment names bytes after its log's end, for offsets that are missing."""
        try:
            size = self._files.stat(names.log_file(self._directory, base)).size
            path = names.offset_index_file(self._directory, base)
            entries = index_reader.offset_entries(self._files, path, base, INT_MAX)
        except (KafkalogError, OSError) as error:
            if is_shortage(error):
                raise
            return False
        if not len(entries):
            return False
        offset, position = entries.last_entry()
        return position >= size and next_offset <= offset < following


def _begin_by_epochs(directory: str, files: Files) -> int | None:
    """Returns where a log began by its leader epochs, if that is before its first segment, else None.

    Kafka truncates epochs at the log start in the background, after it has renamed the segments to be deleted; while
    such segments exist nothing is certain.  Use only for a topic that is neither compacted nor tiered."""
    path = LeaderEpochCheckpointFile.new_file(directory)
    try:
        listed = files.list_dir(directory)
        bases = names.offsets_in(listed)
        is_uncertain = any(name.endswith(names.DELETED_FILE_SUFFIX) for name in listed)
        if is_uncertain or not bases or names.LEADER_EPOCH_CHECKPOINT_FILE not in listed:
            return None
        epochs = LeaderEpochCheckpointFile(path, files, create=False).read()
    except (KafkalogError, OSError) as error:  # the check of epochs reports it
        if is_shortage(error):
            raise
        return None
    first = min((each.start_offset for each in epochs), default=bases[0])
    return first if 0 <= first < bases[0] else None


def is_of_gap_alone(finding: Finding) -> bool:
    """Returns whether a finding is about offsets of which nothing is left in the directory, so that they cannot be
    filled from there."""
    return finding.what.endswith((NOT_COMPACTED, NOT_TRIMMED))


def began_below(directory: str, files: Files) -> int | None:
    """Like `_begin_by_epochs`, but reads twice if something seems wrong."""
    found = None
    for _ in range(2):
        if found is not None:
            time.sleep(SECOND_LOOK_S)
        found = _begin_by_epochs(directory, files)
        if found is None:
            return None
    return found


def end_of_segment(directory: str, base: int, files: Files) -> int | None:
    """Returns the offset after a segment's last batch, searched from the last entry of its index.  Returns None if
    damage comes before the end, or nothing can be read."""
    path = names.log_file(directory, base)
    try:
        with files.open(path, writable=False) as file:
            size = min(file.size(), SEGMENT_FILE_BYTES_MAX)
            entries = index_reader.offset_entries(files, names.offset_index_file(directory, base), base, size)
            starts = [entries.last_entry()[1]] if len(entries) else []
            for start in [*starts, 0]:  # an index may be wrong
                end = base
                scan = LogScan(file, start, size)
                for piece in scan:
                    end = max(end, int(piece.table["last_offset"].max()) + 1)
                if scan.stopped == native.OK:
                    return end
    except (KafkalogError, OSError) as error:
        if is_shortage(error):
            raise
    return None


def missing_segments(
    folder: str,
    listed: Collection[str],
    files: Files,
    log_start: int,
    began: int | None,
    *,
    tells: bool,
    ends: Mapping[int, int | None] | None = None,
) -> list[tuple[Finding, LostRange, int]]:
    """Returns what is missing in a partition's directory with these names, and the first offset of each gap.  With
    `tells`, a gap between two segments is a loss even if no index names it.

    It reads only the ends of segments; `ends` has them if the caller did.  An open deletes indexes without a log, so
    call it before."""
    bases = names.offsets_in(listed)
    alone = indexes_alone(listed, bases)
    losses = Losses(folder, files)
    gaps = Gaps(folder, alone, files, log_start, began)
    found: list[tuple[Finding, LostRange, int]] = []
    before, end = None, 0
    for base in bases:
        gap = gaps.in_front_of(base, before, end, 0)
        if gap is not None and (gap.why is not None or tells):
            path = names.log_file(folder, base)
            is_forgotten = any(gap.first_offset <= each < base for each in alone)
            finding = Finding(path, 0, 0, gap.told + (FORGETS if is_forgotten else ""))
            found.append((finding, losses.segment(path, gap.first_offset, base), gap.first_offset))
        following = bases[bases.index(base) + 1] if base != bases[-1] else None
        known = end_of_segment(folder, base, files) if ends is None else ends[base]
        end = max(end, base, known if known is not None else following or 0)  # damage is reported where it is truncated
        before = base
    behind = [base for base in alone if base >= max(end, log_start)]
    if behind:
        path, first = names.log_file(folder, behind[0]), max(end, log_start)
        finding = Finding(path, 0, 0, f"the file is missing (its index still exists){FORGETS}")
        found.append((finding, losses.segment(path, first, None), first))
    return found


def index_names_alone(listed: Collection[str]) -> set[str]:
    """Returns the names of index files whose segment has no .log among them."""
    known = set(names.offsets_in(listed))
    return {
        name
        for name in listed
        if names.is_index_file(name) and names.segment_base(name, os.path.splitext(name)[1]) not in known
    }


def indexes_alone(listed: Collection[str], bases: Iterable[int]) -> list[int]:
    """Returns the base offsets of segments that have an index among the names and no log, except `bases` and those that
    are being deleted."""
    found = {
        base
        for name in listed
        if names.is_index_file(name) and (base := names.segment_base(name, os.path.splitext(name)[1])) is not None
    }
    on_their_way_out = names.offsets_in(listed, names.LOG_FILE_SUFFIX + names.DELETED_FILE_SUFFIX)
    return sorted(found.difference(bases, on_their_way_out))


def may_be_compacted(
    root: str, partitions: Iterable[TopicPartition], files: Files, *, if_unknown: bool
) -> set[TopicPartition]:
    """Returns the partitions whose settings request compaction, and those that a cleaner has processed.  With
    `if_unknown`, also those with unknown settings."""
    cleaned = OffsetCheckpointFile(os.path.join(root, names.CLEANER_OFFSET_CHECKPOINT_FILE), files, create=False)
    found = set(cleaned.read_or_empty())
    settings = TopicSettings(root, files=files)
    for partition in partitions:
        topic = partition.topic
        try:
            is_compacted = topic in COMPACTED_TOPICS or settings.of(topic).compact
            if is_compacted or (if_unknown and not settings.is_known(topic, POLICY)):
                found.add(partition)
        except (KafkalogError, OSError):  # reading the settings reports it
            found.add(partition)
    return found


def may_begin_later(root: str, partitions: Collection[TopicPartition], files: Files) -> set[TopicPartition]:
    """Returns the partitions whose epochs may begin before their first segment: those that may be compacted, and those
    that may have earlier segments in a remote tier."""
    settings = TopicSettings(root, files=files)
    found = may_be_compacted(root, partitions, files, if_unknown=True)
    for partition in partitions:
        try:
            if settings.of(partition.topic).remote_storage_enable or not settings.is_known(partition.topic, TIERED):
                found.add(partition)
        except (KafkalogError, OSError):
            found.add(partition)
    return found


def __dir__() -> list[str]:
    return __all__
