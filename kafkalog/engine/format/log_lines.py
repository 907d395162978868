"""Loggers for code that knows a partition only by its directory: files of segments and checkpoints."""

from __future__ import annotations

import os

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.names import parse_topic_partition_name
from kafkalog.errors import KafkaException


def lines_of_folder(logger: str, partition_dir: str) -> Lines:
    """Returns a logger for lines about a partition's directory; another directory is named by its base name."""
    folder = os.path.abspath(partition_dir)
    partition: object
    try:
        partition = parse_topic_partition_name(folder)
    except KafkaException:
        partition = os.path.basename(folder)
    return Lines(logger, os.path.dirname(folder), partition)
