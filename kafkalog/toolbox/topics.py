"""Lists the topics of log directories: partitions, offsets, bytes, times, codecs, ids, and irregularities.

Partitions, segments, bytes and offsets are exact; they come from names, checkpoints and the last segment.  Times and
codecs are estimates from a few batch headers and the ends of time indexes.  The number of records is estimated by the
range of offsets, which compaction and markers make too large.  `exact` reads all batch headers, and counts what a
reader gets from the log start on, including aborted records.  Only reads, takes no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import codecs, names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.contents import Contents, all_headers, headers_at_ends
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import BeingWrittenException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.toolbox.folders import Folders, another_name, folders_of, named_folders
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests
from kafkalog.toolbox.words import counted

__all__ = ["TopicRow", "Topics", "topics"]


@dataclass
class TopicRow:
    """One topic over all directories."""

    topic: str
    partitions: list[int] = field(default_factory=list)
    log_dirs: list[str] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0  # in .log files
    offsets: int = 0  # log end minus log start, over all partitions
    contents: Contents = field(default_factory=Contents)
    topic_ids: list[str] = field(default_factory=list)

    def take(self, part: _Part) -> None:
        """Adds one partition.

        Args:
            part: The partition.
        """
        self.contents.add(part.contents)
        self.segments += part.segments
        self.bytes += part.bytes
        self.offsets += part.offsets
        if part.topic_id is not None and part.topic_id not in self.topic_ids:
            self.topic_ids.append(part.topic_id)

    @property
    def internal(self) -> bool:
        """Whether it is one of Kafka's internal topics."""
        return self.topic in names.INTERNAL_TOPICS

    @property
    def codec_names(self) -> list[str]:
        """The names of the codecs of its batches."""
        return [codecs.shown_name(codec) for codec in self.contents.codec_ids()]


@dataclass
class Topics:
    """The result of `topics`.

    `findings` are what keeps a broker from starting, or a partition from being read; `notes` are remarks.  `unsettled`
    are the reasons why partitions could not be read: they are being written, or were deleted meanwhile."""

    rows: dict[str, TopicRow] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unsettled: list[BeingWrittenException | UnknownTopicOrPartitionException] = field(default_factory=list)
    # partitions' directories, by log directory
    partitions: dict[str, dict[TopicPartition, str]] = field(default_factory=dict)

    def folders(self, log_dir: str) -> dict[TopicPartition, str]:
        """Returns the partitions' directories in one of the log directories.

        Args:
            log_dir: The log directory.

        Returns:
            The directories by partition.
        """
        return self.partitions.get(log_dir, {})


def topics(
    log_dirs: Sequence[str],
    asked: Collection[str] = (),
    *,
    exact: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Topics:
    """Lists the topics in log directories.

    Args:
        log_dirs: The log directories.
        asked: Topics, partitions or globs to list; empty lists everything.
        exact: Reads all batch headers.
        files: The file system; for tests.
        progress: Called with the number of log bytes just passed if `exact`, else with 1 for each partition.

    Returns:
        A `Topics`.

    Raises:
        OSError: A directory cannot be listed.

    Example:
        >>> from kafkalog.toolbox.topics import topics
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders", partitions=2).append_many([b"one", b"two"])
        >>> row = topics(["shop"]).rows["orders"]
        >>> row.partitions, row.offsets
        ([0, 1], 2)
    """
    result = Topics()
    homes: dict[TopicPartition, str] = {}
    for log_dir in log_dirs:
        found = named_folders(folders_of(log_dir, files), asked)
        result.partitions[log_dir] = found.partitions
        _tell_odd(found, result)
        checkpoints = CheckpointLines(log_dir, files, keeps_ms=KEEPS_MS)
        for partition, path in found.partitions.items():
            row = result.rows.setdefault(partition.topic, TopicRow(partition.topic))
            if progress is not None and not exact:
                progress(1)
            part = None
            try:
                part = _look_at(log_dir, partition, path, exact, files, checkpoints, progress)
            except UnknownTopicOrPartitionException as error:
                result.unsettled.append(error)
                continue
            except BeingWrittenException as error:
                result.unsettled.append(error)
            except KafkalogError as error:
                result.findings.append(f"{path}: {' '.join(str(error).split())}")
            if partition in homes and files.is_dir(homes[partition]):  # a move may have ended meanwhile
                result.findings.append(
                    f"{path}: {partition} is also in {os.path.dirname(homes[partition])}; a broker does not start with "
                    "both: `kafkalog describe` shows which is complete, `kafkalog move` finishes a move"
                )
            homes.setdefault(partition, path)
            row.partitions.append(partition.partition)
            if log_dir not in row.log_dirs:
                row.log_dirs.append(log_dir)
            if part is None:
                continue
            row.take(part)
            unread = sum(part.unread.values())
            if unread:
                result.findings.append(
                    f"{path}: {counted(unread, 'byte')} cannot be read as batches (`kafkalog verify` shows which)"
                )
    result.rows = {topic: row for topic, row in result.rows.items() if row.partitions}
    for row in result.rows.values():
        row.partitions.sort()
        if len(row.topic_ids) > 1:
            here = [path for partition, path in homes.items() if partition.topic == row.topic]
            row.topic_ids = _topic_ids(here, files)  # the topic may have been recreated meanwhile
        if len(row.topic_ids) > 1:
            result.findings.append(
                f"{row.topic}: its partitions have the topic ids {', '.join(row.topic_ids)}: some are of a topic that "
                "was deleted and recreated"
            )
    result.rows = dict(sorted(result.rows.items()))
    return result


def _tell_odd(found: Folders, result: Topics) -> None:
    for path in found.foreign_folders:
        partition = found.other_names.get(path)
        result.findings.append(
            f"{path}: the directory is not a partition's: a broker does not start with it; move it elsewhere"
            if partition is None
            else another_name(path, partition)
        )
    result.notes += [f"{path}: the file is not Kafka's" for path in found.foreign_files]
    result.notes += [f"{path}: a deleted partition, which a running broker removes" for path in found.deleted]
    result.notes += [f"{path}: a copy of {tp} that was being moved here" for path, tp in found.future.items()]
    result.notes += [
        f"{path}: a stray: the cluster no longer assigns this replica to the broker; brokers ignore it"
        for path in found.strays
    ]
    if found.metadata is not None:
        result.notes.append(f"{found.metadata}: the log of the cluster's controllers, not a topic")


class _Part(NamedTuple):
    """The numbers that one partition adds to its topic's row; `unread` maps paths to bytes that are no batches."""

    contents: Contents
    segments: int
    bytes: int
    offsets: int
    topic_id: str | None
    unread: dict[str, int]


def _look_at(
    log_dir: str,
    partition: TopicPartition,
    path: str,
    exact: bool,
    files: Files,
    checkpoints: CheckpointLines,
    progress: Callable[[int], None] | None,
) -> _Part:
    """Reads one partition.  Raises the errors of a view, and of `look_while_it_rests`."""

    def look() -> _Part:
        with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
            unread: dict[str, int] = {}
            if exact:
                contents, unread = view.over(lambda seen: all_headers(seen, progress or (lambda size_bytes: None)))
            else:
                contents = view.over(headers_at_ends)
            return _Part(
                contents,
                len(view.segments),
                sum(segment.size for segment in view.segments),
                view.log_end_offset - view.log_start_offset,
                topic_id_of(path, files),
                unread,
            )

    return look_while_it_rests(log_dir, partition, look, _wrong, costs_little=not exact, files=files)


def _wrong(part: _Part) -> list[Wrong]:
    return [
        Wrong(path, None, f"{counted(size_bytes, 'byte')} cannot be read as batches")
        for path, size_bytes in part.unread.items()
    ]


def _topic_ids(folders: Iterable[str], files: Files) -> list[str]:
    found: list[str] = []
    for folder in folders:
        with suppress(KafkalogError, OSError):
            topic_id = topic_id_of(folder, files)
            if topic_id is not None and topic_id not in found:
                found.append(topic_id)
    return found


def __dir__() -> list[str]:
    return __all__
