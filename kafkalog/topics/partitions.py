"""Which partitions a log directory has, by the names of its folders.  Takes no lock, opens no partition."""

from __future__ import annotations

import os

from kafkalog.errors import NoSuchFileException
from kafkalog.files import OS_FILES, Files
from kafkalog.format import names
from kafkalog.format.names import TopicPartition
from kafkalog.topics.directory import EXPECTED_DIR, refuse_file, refuse_partition_folder


def list_partitions(log_dir: str | os.PathLike[str], *, files: Files = OS_FILES) -> dict[TopicPartition, str]:
    """The partitions of a log directory and their folders, sorted; strays, `-delete` and `-future` ones left out.

    NoSuchFileException (a FileNotFoundError) when there is no such folder; IllegalArgumentException when it is a file,
    or a partition's own folder.
    """
    root = os.fsdecode(log_dir)
    refuse_file(root, files)
    if not files.is_dir(root):
        raise NoSuchFileException("no such log directory", path=root, hint=EXPECTED_DIR)
    listed = files.list_dir(root)
    refuse_partition_folder(listed, root)
    found = {}
    for name in listed:
        if name.endswith((names.DELETE_DIR_SUFFIX, names.FUTURE_DIR_SUFFIX, names.STRAY_DIR_SUFFIX)):
            continue
        path = os.path.join(root, name)
        topic, dash, number = name.rpartition("-")
        if dash and topic and number.isascii() and number.isdigit() and files.is_dir(path):
            found[TopicPartition(topic, int(number))] = path
    return dict(sorted(found.items()))
