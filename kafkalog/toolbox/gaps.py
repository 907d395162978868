"""What a partition's folder lacks between its segments: offsets that no segment has, and what says that they are lost.

An index that is left without its log, or that names bytes behind the log's end, says so of any topic.  Nothing else
tells a missing file from what compaction leaves, so of a topic that may have been compacted such a gap alone is no
loss.  `verify`, `backup`, `recover` and `salvage` ask here, that all count the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
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
from kafkalog.toolbox.report import SECOND_LOOK_S

if TYPE_CHECKING:
    from kafkalog.engine.files import Files
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.toolbox.report import Finding

COMPACTED_TOPICS = (names.GROUP_METADATA_TOPIC, names.TRANSACTION_STATE_TOPIC)
POLICY = "cleanup.policy"
TIERED = "remote.storage.enable"
NOT_COMPACTED = (
    "and the topic is not compacted: a segment's files are missing, if no compaction of former times and no salvage "
    "left the gap (a backup or a replica may have them)"
)
NOT_TRIMMED = "and whoever moves the log start, by retention or delete-records, cuts them there: files are missing"
WITHOUT_LOG = (
    "an index without its .log file: the records of its segment are missing, unless a cleaner took them (a backup or a "
    "replica may have them; an open deletes the index)"
)

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
]


class Gap(NamedTuple):
    """Offsets in front of a segment that no segment has.  `why`: how an index says that records were there, or None."""

    first_offset: int
    last_offset: int
    why: str | None = None

    def __str__(self) -> str:
        told = "" if self.why is None else f": {self.why}"
        return f"offsets {self.first_offset} to {self.last_offset} are in no segment{told}"

    @property
    def told(self) -> str:
        """What a finding says of it."""
        return f"{self}, {NOT_COMPACTED}" if self.why is None else str(self)


class Gaps:
    """Asked segment by segment, in their order.  `alone`: base offsets of segments with an index and no log;
    `log_start`: nothing below it is missed; `began`: where the log began, as `began_below` tells it."""

    def __init__(
        self, directory: str, alone: Collection[int], files: Files, log_start: int = 0, began: int | None = None
    ) -> None:
        self._began = began
        self._directory = directory
        self._alone = sorted(alone)
        self._files = files
        self._start = log_start

    def in_front_of(self, base: int, before: int | None, next_offset: int, told_up_to: int) -> Gap | None:
        """The gap between the segment `before`, whose batches end at `next_offset`, and the one at `base`; None where
        there is none.  `told_up_to`: what is missing below it was told.  Of the first segment (`before` is None) only
        what an index or `began` names is missed: retention takes what lies in front of it."""
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
            return Gap(first, base - 1, f"the file {named} is missing (an index of it is left)")
        if before is not None and self._is_cut_short(before, base, next_offset):
            named = names.log_file("", before)
            return Gap(first, base - 1, f"the file {named} is shorter than its index says")
        if before is None:
            return Gap(first, base - 1, f"leader epochs begin at offset {self._began}, {NOT_TRIMMED}")
        return Gap(first, base - 1)

    def _is_cut_short(self, base: int, following: int, next_offset: int) -> bool:
        """Whether the index of a segment names bytes behind its log's end, for offsets that are not there."""
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
    """Where a log began by its leader epochs, if that is below its first segment.  Kafka cuts them at the log start in
    the background, when it has renamed the segments to be deleted: while there are such nothing is certain.  Ask only
    of a topic that is not compacted and not tiered."""
    path = LeaderEpochCheckpointFile.new_file(directory)
    try:
        listed = files.list_dir(directory)
        bases = names.offsets_in(listed)
        is_uncertain = any(name.endswith(names.DELETED_FILE_SUFFIX) for name in listed)
        if is_uncertain or not bases or names.LEADER_EPOCH_CHECKPOINT_FILE not in listed:
            return None
        epochs = LeaderEpochCheckpointFile(path, files, create=False).read()
    except (KafkalogError, OSError) as error:  # told by who checks them
        if is_shortage(error):
            raise
        return None
    first = min((each.start_offset for each in epochs), default=bases[0])
    return first if 0 <= first < bases[0] else None


def is_of_gap_alone(finding: Finding) -> bool:
    """Whether a finding tells offsets of which nothing is left in the directory, so that nobody can fill them from
    there."""
    return finding.what.endswith((NOT_COMPACTED, NOT_TRIMMED))


def began_below(directory: str, files: Files) -> int | None:
    """As `_begin_by_epochs`, of the folder as it is now; what seems wrong is looked at twice."""
    found = None
    for _ in range(2):
        if found is not None:
            time.sleep(SECOND_LOOK_S)
        found = _begin_by_epochs(directory, files)
        if found is None:
            return None
    return found


def end_of_segment(directory: str, base: int, files: Files) -> int | None:
    """The offset behind a segment's last batch, found from the last entry of its index on; None where damage stands in
    front of the end, or nothing can be read."""
    path = names.log_file(directory, base)
    try:
        with files.open(path, writable=False) as file:
            size = min(file.size(), SEGMENT_FILE_BYTES_MAX)
            entries = index_reader.offset_entries(files, names.offset_index_file(directory, base), base, size)
            starts = [entries.last_entry()[1]] if len(entries) else []
            for start in [*starts, 0]:  # an index may lie
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


def index_names_alone(listed: Collection[str]) -> set[str]:
    """The names of index files whose segment has no .log among them."""
    known = set(names.offsets_in(listed))
    return {
        name
        for name in listed
        if names.is_index_file(name) and names.segment_base(name, os.path.splitext(name)[1]) not in known
    }


def indexes_alone(listed: Collection[str], bases: Iterable[int]) -> list[int]:
    """The base offsets of segments that have an index among the names, and no log: none of `bases`, and none that is
    being deleted."""
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
    """Those whose settings ask for compaction, and those that a cleaner was at; `if_unknown`: also those of which
    nobody knows the settings."""
    cleaned = OffsetCheckpointFile(os.path.join(root, names.CLEANER_OFFSET_CHECKPOINT_FILE), files, create=False)
    found = set(cleaned.read_or_empty())
    settings = TopicSettings(root, files=files)
    for partition in partitions:
        topic = partition.topic
        try:
            is_compacted = topic in COMPACTED_TOPICS or settings.of(topic).compact
            if is_compacted or (if_unknown and not settings.is_known(topic, POLICY)):
                found.add(partition)
        except (KafkalogError, OSError):  # told by who reads them
            found.add(partition)
    return found


def may_begin_later(root: str, partitions: Collection[TopicPartition], files: Files) -> set[TopicPartition]:
    """Those whose epochs may begin in front of their first segment: what may be compacted, and what may have earlier
    segments in a remote tier."""
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
