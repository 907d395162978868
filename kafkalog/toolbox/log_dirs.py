"""Describes log directories as kafka-log-dirs describes a running broker's: partitions, sizes, lag of moving copies.

The result is the JSON that org.apache.kafka.tools.LogDirsCommand prints after its two greeting lines, with keys in the
same order.  As in UnifiedLog.size, a partition's size is that of its segments' logs, without indexes and preallocated
bytes.  The offsetLag is 0, with two exceptions: a `-future` copy lags behind its source, and a replica may end before
its high watermark.  Only reads, takes no lock.
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

UNKNOWN_BROKER = -1  # a directory without meta.properties, as kafkalog creates it
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
    """Describes log directories in the format of kafka-log-dirs.

    Args:
        paths: The log directories.
        topics: Topics to include.
        asked: Topics, partitions or globs to include.  If this and `topics` are empty, all are included.
        files: The file system; for tests.
        progress: Called with 1 for each partition.

    Returns:
        A pair: the content of the JSON, and texts about what was wrong with the directories.

    Example:
        >>> from kafkalog.toolbox.log_dirs import log_dirs
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> found, problems = log_dirs(["shop"])
        >>> found["brokers"][0]["logDirs"][0]["partitions"][0]["partition"], problems
        ('orders-0', [])
    """

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
    """Returns the node id in meta.properties, or UNKNOWN_BROKER.  Raises CorruptCheckpointException."""
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
    # read first, because the end may move
    watermark = checkpoints.line(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
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
