"""Log lines of what knows a partition by its folder alone: files of segments and checkpoints."""

from __future__ import annotations

import os

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.names import parse_topic_partition_name
from kafkalog.errors import KafkaException


def lines_of_folder(logger: str, partition_dir: str) -> Lines:
    """A logger for lines about a partition's folder; a folder that is no partition's goes by its own name."""
    folder = os.path.abspath(partition_dir)
    partition: object
    try:
        partition = parse_topic_partition_name(folder)
    except KafkaException:
        partition = os.path.basename(folder)
    return Lines(logger, os.path.dirname(folder), partition)
