"""Copy what can be read of damaged partitions into a new log directory; the source is only read.

Behind damage it goes on at the next batch that can be proved by its CRC.  Offsets are kept, so what was lost is a gap,
as compaction leaves them.  What no CRC covers is judged by the neighbours: a batch whose offsets do not fit between
them, or with an unknown magic, is left out.  Indexes are built for what was copied; topic id, log start and the
topics' settings come along.  Leader epochs that go back are mended (`epoch_order`).
Whoever opens the new directory, Kafka too, finds no clean-shutdown marker and rebuilds epochs and producer state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import numpy as np

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, File, Files, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.host.topic_configs import take_over
from kafkalog.engine.log import load_cases
from kafkalog.engine.segment.loss import VERDICT_TEXT, Lost
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.resync import next_batch, slices_past_damage
from kafkalog.engine.segment.scan import ScanSlice
from kafkalog.errors import (
    BeingWrittenException,
    CorruptCheckpointException,
    IllegalArgumentException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.epoch_order import EpochOrder
from kafkalog.toolbox.losses import Losses, LostRange
from kafkalog.toolbox.reindex import check_indexes, rewrite
from kafkalog.toolbox.report import TOO_LARGE
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests

__all__ = ["Lost", "SalvageReport", "salvage"]


@dataclass
class SalvageReport:
    """What was copied and what was not; `ranges` are the lost records of it, with their times.  `unsettled`: why
    partitions were not: somebody is writing them, or they went away meanwhile."""

    lost: list[Lost] = field(default_factory=list)
    partitions: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    epochs_mended: int = 0  # batches whose leader epoch did not fit between its neighbours'
    unsettled: list[BeingWrittenException | UnknownTopicOrPartitionException] = field(default_factory=list)
    ranges: list[LostRange] = field(default_factory=list)

    def take(self, other: SalvageReport) -> None:
        """Adds what another one says."""
        self.lost += other.lost
        self.ranges += other.ranges
        self.partitions += other.partitions
        self.batches += other.batches
        self.records += other.records
        self.bytes += other.bytes
        self.epochs_mended += other.epochs_mended
        self.unsettled += other.unsettled


def _wrong(report: SalvageReport) -> list[Wrong]:
    return [Wrong(lost.path, lost.position, lost.what) for lost in report.lost]


def salvage(
    source_dir: str | os.PathLike[str],
    target_dir: str | os.PathLike[str],
    partitions: Mapping[TopicPartition, str],
    *,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> SalvageReport:
    """Copy `partitions` (folders by name, of `source_dir`) to `target_dir`, which must be new or empty, and neither in
    the other's folder."""
    values.function(progress, "progress", "a function of the bytes just copied")
    source, target = (local_path(given, files=files) for given in (source_dir, target_dir))
    refuse_one_in_other(source, target)
    if files.exists(target) and (not files.is_dir(target) or files.list_dir(target)):
        raise IllegalArgumentException("found something there, expected a new or empty folder", path=target)
    files.mkdirs(target)
    report = SalvageReport()
    for partition, path in partitions.items():
        copy = os.path.join(target, str(partition))

        def look(source_path: str = path, copy: str = copy) -> SalvageReport:
            if files.exists(copy):
                files.remove_tree(copy)  # what an earlier look left
            here = SalvageReport(partitions=1)
            _Salvage(source_path, copy, files, here, progress).run()
            return here

        try:
            report.take(look_while_it_rests(source, partition, look, _wrong, files=files))
        except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
            if files.exists(copy):
                files.remove_tree(copy)
            report.unsettled.append(error)
    _copy_log_starts(source, target, partitions, files)
    try:
        for topic in {partition.topic for partition in partitions}:
            take_over(source, target, topic, files)  # by the defaults retention might delete what was just saved
    except CorruptCheckpointException as error:
        path = os.path.join(source, names.TOPIC_CONFIGS_FILE)
        what = f"the topics' settings: {error.message}"
        report.lost.append(Lost(path, 0, files.stat(path).size, 0, -1, what))
    files.sync_dir(target)
    return report


def refuse_one_in_other(source: str, target: str) -> None:
    """The source is only read; a copy inside it would be a part of it."""
    places = [os.path.realpath(path) for path in (source, target)]
    above = os.path.commonpath(places)
    if above in places:
        where = "a folder inside" if above == places[0] else "a folder above"
        where = "the folder of" if places[0] == places[1] else where
        raise IllegalArgumentException(f"found {where} the source {source}, expected one beside it", path=target)


def _copy_log_starts(source: str, target: str, partitions: Mapping[TopicPartition, str], files: Files) -> None:
    path = os.path.join(source, names.LOG_START_OFFSET_CHECKPOINT_FILE)
    starts = OffsetCheckpointFile(path, files, create=False).read_or_empty()
    kept = {partition: offset for partition, offset in starts.items() if partition in partitions}
    OffsetCheckpointFile(os.path.join(target, names.LOG_START_OFFSET_CHECKPOINT_FILE), files, create=False).write(kept)
    # Nothing is known to be flushed; without the file an open would tell that it is missing.
    OffsetCheckpointFile(os.path.join(target, names.RECOVERY_POINT_CHECKPOINT_FILE), files, create=False).write({})


class _Salvage:
    """One partition."""

    def __init__(
        self, source: str, target: str, files: Files, report: SalvageReport, progress: Callable[[int], None] | None
    ) -> None:
        self._source = source
        self._target = target
        self._files = files
        self._report = report
        self._progress = progress or (lambda size_bytes: None)
        self._next_offset = 0
        self._epochs = EpochOrder()
        self._losses = Losses(source, files)

    def run(self) -> None:
        files = self._files
        files.mkdirs(self._target)
        listed = files.list_dir(self._source)
        for name in listed:
            self._tell_odd(name)
        segments = sorted(load_cases.log_files(listed, self._next_offset_of).items())
        bases = [base for base, _ in segments]
        for (base, name), following in zip_longest(segments, bases[1:]):
            self._segment(base, following, os.path.join(self._source, name))
        self._report.epochs_mended += self._epochs.mend(files)
        metadata = os.path.join(self._source, names.PARTITION_METADATA_FILE)
        if files.exists(metadata):
            data = read_small(metadata, files, bytes_max=NOTE_BYTES_MAX)
            files.write_atomic(os.path.join(self._target, names.PARTITION_METADATA_FILE), data)
        for segment in check_indexes(self._target, files=files):
            rewrite(segment, files=files)
        files.sync_dir(self._target)

    def _tell_odd(self, name: str) -> None:
        """Kafka reads the file of twenty digits whatever else has the offset in its name, so another (`5.log`) is no
        part of the log: it is told, and left."""
        if name.endswith(names.LOG_FILE_SUFFIX) and names.segment_base(name) is None:
            path = os.path.join(self._source, name)
            what = "a file whose name is no segment's, expected twenty digits: Kafka does not read it"
            size = self._files.stat(path).size if self._files.exists(path) else 0
            self._report.lost.append(Lost(path, 0, size, 0, -1, what))

    def _next_offset_of(self, swap: str) -> int:
        """Of a segment that a crash kept from taking the place of others, the offset behind its last good batch."""
        end = base = names.offset_from_filename(swap)
        with self._files.open(os.path.join(self._source, swap), writable=False) as file:
            size = min(file.size(), SEGMENT_FILE_BYTES_MAX)

            def skip(position: int, _: int) -> int:
                found = next_batch(file, position + 1, size, min_offset=base, base_offset=base)
                return size if found is None else found.position

            for piece in slices_past_damage(file, size, skip):
                end = max(end, int(piece.table["last_offset"].max(initial=base - 1)) + 1)
        return end

    def _segment(self, base: int, following: int | None, path: str) -> None:
        files = self._files
        self._next_offset = max(self._next_offset, base)
        with (
            files.open(path, writable=False) as file,
            files.open(names.log_file(self._target, base), create=True, exclusive=True) as out,
        ):
            size, written = min(file.size(), SEGMENT_FILE_BYTES_MAX), 0
            if file.size() > size:
                self._report.lost.append(
                    Lost(path, size, file.size() - size, 0, -1, f"found {file.size()} bytes, {TOO_LARGE}")
                )
            skip = partial(self._skip, file, path, size, base, following)
            for piece in slices_past_damage(file, size, skip):
                written += self._copy(path, piece, out, written, base, following)
                self._progress(int(piece.table["size"].sum()))
            if written:
                out.sync()
        if not written and following is not None:
            files.unlink(names.log_file(self._target, base))

    def _copy(self, path: str, piece: ScanSlice, out: File, written: int, base: int, following: int | None) -> int:
        """Write the good batches of a slice in as few writes as there are runs; the bytes written."""
        table = piece.table
        limit = highest_offset(base, following)
        good = np.ones(len(table), bool)
        for row in misfits(table, self._next_offset, limit):
            good[row] = False
            entry = table[row]
            what = (
                f"a batch that says it has offsets {int(entry['base_offset'])} to {int(entry['last_offset'])} and "
                f"magic {int(entry['magic'])}, between offsets {self._next_offset} and {limit}"
            )
            self._report.lost.append(Lost(path, int(entry["position"]), int(entry["size"]), 0, -1, what))
            self._report.ranges.append(self._losses.misfit(path, entry))
        kept = table[good]
        if not len(kept):
            return 0
        self._losses.passed(kept)
        self._next_offset = int(kept["last_offset"][-1]) + 1
        self._report.batches += len(kept)
        self._report.records += int(np.where(kept["magic"] >= 2, kept["record_count"], 1).sum())
        done = 0
        breaks = np.flatnonzero(kept["position"][1:] != kept["position"][:-1] + kept["size"][:-1]) + 1
        for run in np.split(kept, breaks):
            start = int(run["position"][0]) - piece.position
            length = int(run["size"].sum())
            out.pwrite(piece.data[start : start + length], written + done)
            self._epochs.add(out.path, run, written + done)
            done += length
        self._report.bytes += done
        return done

    def _skip(self, file: File, path: str, size: int, base: int, following: int | None, position: int, why: int) -> int:
        found = next_batch(file, position + 1, size, min_offset=self._next_offset, base_offset=base)
        end = size if found is None else found.position
        if found is not None:
            last = found.base_offset - 1
        elif following is not None:
            last = following - 1
        else:
            last = self._next_offset - 1
            if why == native.OK or not any(file.pread(min(4096, size - position), position)):
                return end  # a few bytes or zeros behind the end of the log: nothing was there
        what = VERDICT_TEXT.get(why, "bytes that are no batch")
        self._report.lost.append(Lost(path, position, end - position, self._next_offset, last, what))
        self._report.ranges.append(self._losses.damage(file, base, position, end, self._next_offset, found, following))
        self._progress(end - position)
        return end


def __dir__() -> list[str]:
    return __all__
