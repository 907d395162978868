"""What kafka-log-dirs tells of a running broker, told of directories: partitions, sizes, lag of copies that move.

The same JSON as org.apache.kafka.tools.LogDirsCommand prints behind its two lines of greeting, keys in its order.  A
partition's size is that of its segments' logs, without indexes and preallocated bytes, as UnifiedLog.size; offsetLag is
0 but for a `-future` copy, which lags behind its source, and for a replica whose end lies below its high watermark.
Reads only, takes no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kafkalog._face.named import names_of_partition
from kafkalog._native.codec.java_hash import hash_map_order, topic_partition_hash
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.meta_properties import read_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import refuse_partition_folder
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.folders import folders_of

__all__ = ["log_dirs"]

UNKNOWN_BROKER = -1  # a directory without meta.properties, as kafkalog makes it
STORAGE_ERROR = "org.apache.kafka.common.errors.KafkaStorageException"
UNKNOWN_LAG = -1


def log_dirs(
    paths: Sequence[str],
    topics: Collection[str] = (),
    asked: Collection[str] = (),
    *,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The JSON of these directories, and what was wrong with them.  Where `topics`, or by `asked` topics, partitions or
    globs, are named, it is of these only.  `progress` is called with 1 for each partition."""

    def takes(partition: TopicPartition) -> bool:
        return not (topics or asked) or partition.topic in topics or bool(names_of_partition(asked, partition))

    problems: list[str] = []
    brokers: dict[int, list[dict[str, Any]]] = {}
    ends: dict[TopicPartition, int] = {}
    for path in paths:
        broker, entry = _describe(path, takes, files, ends, problems, progress or (lambda count: None))
        brokers.setdefault(broker, []).append(entry)
    for entries in brokers.values():
        for entry in entries:
            for each in entry["partitions"]:
                end, partition = each.pop("end"), each.pop("of")
                if each["isFuture"]:
                    each["offsetLag"] = ends[partition] - end if partition in ends else UNKNOWN_LAG
    return (
        {
            "brokers": [{"broker": broker, "logDirs": entries} for broker, entries in sorted(brokers.items())],
            "version": 1,
        },
        problems,
    )


def broker_of(log_dir: str, files: Files = OS_FILES) -> int:
    """The node id in meta.properties, UNKNOWN_BROKER where there is none.  CorruptCheckpointException."""
    try:
        node = read_meta_properties(os.path.join(log_dir, names.META_PROPERTIES_FILE), files).node_id
    except FileNotFoundError:
        return UNKNOWN_BROKER
    return UNKNOWN_BROKER if node is None else node


def _describe(
    path: str,
    takes: Callable[[TopicPartition], bool],
    files: Files,
    ends: dict[TopicPartition, int],
    problems: list[str],
    progress: Callable[[int], None],
) -> tuple[int, dict[str, Any]]:
    shown = path if files.owns(path) else os.path.abspath(path)
    broker = UNKNOWN_BROKER
    entry: dict[str, Any] = {"partitions": [], "error": None, "logDir": shown}
    try:
        refuse_partition_folder(files.list_dir(path), path)
        broker = broker_of(path, files)
        found = folders_of(path, files)
        checkpoints = CheckpointLines(path, files, keeps_ms=KEEPS_MS)
        chosen = [(partition, at, False) for partition, at in found.partitions.items()]
        chosen += [(partition, at, True) for at, partition in found.future.items()]
        rows: dict[TopicPartition, list[dict[str, Any]]] = {}
        for partition, at, is_future in chosen:
            progress(1)
            if not takes(partition) and not is_future:
                continue
            row = _partition(path, partition, at, is_future, files, checkpoints)
            if not is_future:
                ends[partition] = row["end"]
            if takes(partition):
                rows.setdefault(partition, []).append(row)
        entry["partitions"] = [row for each in hash_map_order(rows, topic_partition_hash) for row in rows[each]]
    except (KafkalogError, OSError) as error:
        problems.append(f"{path}: {' '.join(str(error).split())}")
        entry["error"] = STORAGE_ERROR
    return broker, entry


def _partition(
    log_dir: str, partition: TopicPartition, folder: str, is_future: bool, files: Files, checkpoints: CheckpointLines
) -> dict[str, Any]:
    watermark = checkpoints.line(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)  # first: the end moves on
    name = os.path.basename(folder)
    with PartitionView(log_dir, partition, files=files, folder=name, checkpoints=checkpoints) as view:
        size = sum(view.readable_bytes(segment) for segment in view.segments)
        end = view.log_end_offset
    lag = 0 if watermark is None else max(watermark - end, 0)
    return {
        "partition": str(partition),
        "size": size,
        "offsetLag": lag,
        "isFuture": is_future,
        "end": end,
        "of": partition,
    }


def __dir__() -> list[str]:
    return __all__
