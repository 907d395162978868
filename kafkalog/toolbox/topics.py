"""The topics of one or several log directories: partitions, offsets, bytes, times, codecs, ids, and what is odd.

Exact from names, checkpoints and the last segment: partitions, segments, bytes, offsets.  From a few batch headers and
the ends of time indexes, so estimates: times and codecs; records are the span of offsets, which compaction and markers
make too many.  `exact` reads all batch headers: what a reader from the log start on is given, aborted records too.
Reads only, takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kafkalog.errors import KafkalogError
from kafkalog.files import OS_FILES, Files
from kafkalog.format import codecs, names
from kafkalog.format.names import TopicPartition
from kafkalog.format.partition_metadata import topic_id_of
from kafkalog.log.checkpoint_lines import CheckpointLines
from kafkalog.log.view import PartitionView
from kafkalog.toolbox.folders import Folders, another_name, folders_of
from kafkalog.toolbox.segment_facts import Contents, all_headers, headers_at_ends


@dataclass
class TopicRow:
    """One topic over all directories."""

    topic: str
    partitions: list[int] = field(default_factory=list)
    log_dirs: list[str] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0  # of .log files
    offsets: int = 0  # log end minus log start, of all partitions together
    contents: Contents = field(default_factory=Contents)
    topic_ids: list[str] = field(default_factory=list)

    @property
    def internal(self) -> bool:
        return self.topic in names.INTERNAL_TOPICS

    @property
    def codec_names(self) -> list[str]:
        known = codecs.NAMES
        return [known[codec] if codec < len(known) else f"unknown({codec})" for codec in self.contents.codec_ids()]


@dataclass
class Topics:
    """`findings` are what keeps a broker from starting, or a partition from being read; `notes` are remarks."""

    rows: dict[str, TopicRow] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def topics(
    log_dirs: Sequence[str],
    *,
    exact: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Topics:
    """What is in `log_dirs`.  `progress` is called with the bytes of logs just passed.  OSError of a directory."""
    result = Topics()
    homes: dict[TopicPartition, str] = {}
    for log_dir in log_dirs:
        found = folders_of(log_dir, files)
        _tell_odd(found, result)
        checkpoints = CheckpointLines(log_dir, files)
        for partition, path in found.partitions.items():
            if partition in homes:
                result.findings.append(
                    f"{path}: {partition} is in {homes[partition]} too; a broker does not start over two: `kafkalog "
                    "describe` shows which is complete, `kafkalog move` finishes a move"
                )
            homes.setdefault(partition, log_dir)
            row = result.rows.setdefault(partition.topic, TopicRow(partition.topic))
            try:
                row.partitions.append(partition.partition)
                if log_dir not in row.log_dirs:
                    row.log_dirs.append(log_dir)
                with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
                    unread = _look(row, view, exact, progress or (lambda size_bytes: None))
                if unread:
                    result.findings.append(
                        f"{path}: {unread} bytes are no batches that can be read (`kafkalog verify` says which)"
                    )
                topic_id = topic_id_of(path, files)
                if topic_id is not None and topic_id not in row.topic_ids:
                    row.topic_ids.append(topic_id)
            except KafkalogError as error:
                result.findings.append(f"{path}: {' '.join(str(error).split())}")
    for row in result.rows.values():
        row.partitions.sort()
        if len(row.topic_ids) > 1:
            result.findings.append(
                f"{row.topic}: its partitions have the topic ids {', '.join(row.topic_ids)}: some are of a topic that "
                "was deleted, and made anew"
            )
    result.rows = dict(sorted(result.rows.items()))
    return result


def _tell_odd(found: Folders, result: Topics) -> None:
    for path in found.foreign_folders:
        partition = found.other_names.get(path)
        result.findings.append(
            f"{path}: a folder that is no partition's: a broker does not start with it; move it elsewhere"
            if partition is None
            else another_name(path, partition)
        )
    result.notes += [f"{path}: a file that is not Kafka's" for path in found.foreign_files]
    result.notes += [f"{path}: a deleted partition, which a broker removes when it runs" for path in found.deleted]
    result.notes += [f"{path}: a copy of {tp} that was moving here" for path, tp in found.future.items()]
    result.notes += [
        f"{path}: a stray: the cluster gave this replica away; a broker leaves it" for path in found.strays
    ]
    if found.metadata is not None:
        result.notes.append(f"{found.metadata}: the controller's log, no topic")


def _look(row: TopicRow, view: PartitionView, exact: bool, progress: Callable[[int], None]) -> int:
    """One partition's part of the row; answers how many bytes are no batches, where all were looked at."""
    unread = 0
    if exact:
        contents, unread = view.over(lambda seen: all_headers(seen, progress))
    else:
        contents = view.over(headers_at_ends)
    row.contents.add(contents)
    row.segments += len(view.segments)
    row.bytes += sum(segment.size for segment in view.segments)
    row.offsets += view.log_end_offset - view.log_start_offset
    return unread
