"""Names of files and directories: offsets, suffixes, topic-partition.

Mirrors LogFileUtils and the naming part of LocalLog (org.apache.kafka.storage.internals.log).  This module handles text
only; it opens no file.  The offset in a file name is the part before the first dot.  The last dash separates topic and
partition.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog.engine.format.java_text import parse_int, parse_long
from kafkalog.errors import IllegalArgumentException, InvalidTopicException, KafkaException, NumberFormatException

LOG_FILE_SUFFIX = ".log"
INDEX_FILE_SUFFIX = ".index"
TIME_INDEX_FILE_SUFFIX = ".timeindex"
TXN_INDEX_FILE_SUFFIX = ".txnindex"
INDEX_FILE_SUFFIXES = (INDEX_FILE_SUFFIX, TIME_INDEX_FILE_SUFFIX, TXN_INDEX_FILE_SUFFIX)
PRODUCER_SNAPSHOT_FILE_SUFFIX = ".snapshot"
DELETED_FILE_SUFFIX = ".deleted"
CLEANED_FILE_SUFFIX = ".cleaned"
SWAP_FILE_SUFFIX = ".swap"
DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
RECOVERY_POINT_CHECKPOINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT_FILE = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT_FILE = "cleaner-offset-checkpoint"
# The offset checkpoints of a log directory.
OFFSET_CHECKPOINT_FILES = (
    RECOVERY_POINT_CHECKPOINT_FILE,
    LOG_START_OFFSET_CHECKPOINT_FILE,
    HIGH_WATERMARK_CHECKPOINT_FILE,
    CLEANER_OFFSET_CHECKPOINT_FILE,
)
LEADER_EPOCH_CHECKPOINT_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
TOPIC_CONFIGS_FILE = ".kafkalog_topics"  # kafkalog's file; a broker ignores it
CLUSTER_ID_FILE = ".kafkalog_cluster"  # kafkalog's file, too: the id of the cluster that its server says it is
SERVER_STATE_FILE = ".kafkalog_server"  # likewise: the ACLs, credentials, quotas and settings of its server
PRODUCER_IDS_FILE = ".kafkalog_producer_ids"  # likewise: the first producer id that no client was given
# The files that a server keeps next to the data.  The last one holds secrets.
SERVER_FILES = (CLUSTER_ID_FILE, PRODUCER_IDS_FILE, SERVER_STATE_FILE)
MOVE_FILE_SUFFIX = ".kafkalog_move"  # kafkalog's file, too: topic-0.kafkalog_move exists while a move is being finished
# Files of a log directory outside of the partitions' directories, both Kafka's and kafkalog's.
LOG_DIR_FILES = frozenset(
    {
        *OFFSET_CHECKPOINT_FILES,
        LOCK_FILE,
        META_PROPERTIES_FILE,
        CLEAN_SHUTDOWN_FILE,
        TOPIC_CONFIGS_FILE,
        *SERVER_FILES,
    }
)
# Files that Spark's executors leave in a log directory for the committer.  Brokers and stores ignore them.
STAGED_FILE_PREFIX = ".kafkalog_staged."
REMOTE_LOG_INDEX_CACHE_DIR = "remote-log-index-cache"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
CLUSTER_METADATA_DIR = f"{CLUSTER_METADATA_TOPIC}-0"
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
INTERNAL_TOPICS = frozenset(
    {
        GROUP_METADATA_TOPIC,
        TRANSACTION_STATE_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        CLUSTER_METADATA_TOPIC,
        REMOTE_LOG_METADATA_TOPIC,
    }
)

MAX_DIR_NAME_LENGTH = 255
MAX_TOPIC_NAME_LENGTH = 249

_SUFFIXED_DIR = {
    suffix: re.compile(rf"(\S+)-(\S+)\.(\S+){suffix}", re.ASCII)
    for suffix in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX)
}
_LOG_FILE = re.compile(r"00[0-9]{18}\.log")
_SEGMENT_FILE = re.compile(r"\.(log|index|timeindex|txnindex|snapshot)(\.|$)")
_PARTITION_FILES = frozenset({LEADER_EPOCH_CHECKPOINT_FILE, PARTITION_METADATA_FILE, "quorum-state"})
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """The name of a partition: a topic and a partition number.

    It is a named tuple: it compares and sorts like the tuple `(topic, partition)`, and can be a dictionary key.
    `str()` returns the name of the partition's directory.

    Args:
        topic: The topic's name.
        partition: The partition's number, from 0 on.

    Example:
        >>> from kafkalog import TopicPartition
        >>> orders = TopicPartition("orders", 0)
        >>> str(orders)
        'orders-0'
        >>> orders.topic, orders.partition
        ('orders', 0)
        >>> orders == ("orders", 0)
        True
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# --- files of a segment -----------------------------------------------------------------------------


def filename_prefix_from_offset(offset: int) -> str:
    """Returns the offset with at least twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}" if offset >= 0 else f"-{-offset:020d}"


def segment_stem(directory: str, offset: int) -> str:
    """Returns the path of a segment's files without their suffixes."""
    if directory.endswith(os.sep) or not directory:
        return directory + filename_prefix_from_offset(offset)
    return f"{directory}{os.sep}{filename_prefix_from_offset(offset)}"


def log_file(directory: str, offset: int, suffix: str = "") -> str:
    """Returns the path of a segment's records."""
    return os.path.join(directory, filename_prefix_from_offset(offset) + LOG_FILE_SUFFIX + suffix)


def offset_index_file(directory: str, offset: int, suffix: str = "") -> str:
    """Returns the path of a segment's offset index."""
    return os.path.join(directory, filename_prefix_from_offset(offset) + INDEX_FILE_SUFFIX + suffix)


def time_index_file(directory: str, offset: int, suffix: str = "") -> str:
    """Returns the path of a segment's time index."""
    return os.path.join(directory, filename_prefix_from_offset(offset) + TIME_INDEX_FILE_SUFFIX + suffix)


def transaction_index_file(directory: str, offset: int, suffix: str = "") -> str:
    """Returns the path of a segment's index of aborted transactions."""
    return os.path.join(directory, filename_prefix_from_offset(offset) + TXN_INDEX_FILE_SUFFIX + suffix)


def segment_files(directory: str, offset: int) -> tuple[str, str, str, str]:
    """Returns the paths of a segment's files: records, then the indexes of offsets, times and aborted transactions."""
    return (
        log_file(directory, offset),
        offset_index_file(directory, offset),
        time_index_file(directory, offset),
        transaction_index_file(directory, offset),
    )


def producer_snapshot_file(directory: str, offset: int, suffix: str = "") -> str:
    """Returns the path of the producer snapshot that covers everything below `offset`."""
    return os.path.join(directory, filename_prefix_from_offset(offset) + PRODUCER_SNAPSHOT_FILE_SUFFIX + suffix)


def offset_from_filename(name: str) -> int:
    """Returns the number before the first dot of a file's name; ignores the directories of a path.

    Raises NumberFormatException if there is no number.  Code that walks a directory then treats the file as foreign.
    """
    if name[:2] == "00" and name[20:21] == "." and name[:20].isdecimal() and name.isascii() and "/" not in name:
        return int(name[:20])  # nearly every name; 18 digits are always in range
    name = os.path.basename(name)
    digits, dot, _ = name.partition(".")
    if not dot:
        raise NumberFormatException(f'No offset in the file name "{name}": there is no dot.')
    return parse_long(digits)


def log_stems(file_names: Iterable[str]) -> set[str]:
    """Returns the offsets, as text of twenty digits, of the .log files that have the names that Kafka writes.

    It omits names that Kafka reads but does not write (`7.log`), and offsets of nineteen digits.
    """
    return {name[:20] for name in file_names if len(name) == 24 and _LOG_FILE.match(name)}


def segment_base(name: str, suffix: str = LOG_FILE_SUFFIX) -> int | None:
    """Returns the offset in the name of a segment's .log file, or of another file with `suffix` (a producer snapshot).

    Returns None unless the name is exactly one that Kafka writes.
    """
    if not name.endswith(suffix):
        return None
    digits = name[: -len(suffix)]
    if len(digits) == 20 and digits[:2] == "00" and digits.isascii() and digits.isdecimal():
        return int(digits)  # nearly every name; 18 digits are always in range
    try:
        base = offset_from_filename(name)
    except NumberFormatException:
        return None
    return base if base >= 0 and name == filename_prefix_from_offset(base) + suffix else None


def offsets_in(file_names: Iterable[str], suffix: str = LOG_FILE_SUFFIX) -> list[int]:
    """Returns the sorted offsets of the files with that suffix in a listing, as `segment_base` parses them."""
    return sorted(base for name in file_names if (base := segment_base(name, suffix)) is not None)


def is_partitions_file(name: str) -> bool:
    """Returns whether Kafka or kafkalog gives files in a partition's directory such a name.

    This includes files that are being written or are about to be deleted.
    """
    if name.removesuffix(".tmp") in _PARTITION_FILES:
        return True
    stem, dot, suffix = name.partition(".")
    return len(stem) >= 20 and stem.isdecimal() and stem.isascii() and bool(_SEGMENT_FILE.match(dot + suffix))


def is_log_file(name: str) -> bool:
    """Returns whether the name is that of a segment's records, without a transient suffix."""
    return name.endswith(LOG_FILE_SUFFIX)


def is_index_file(name: str) -> bool:
    """Returns whether the name is that of one of the three indexes."""
    return name.endswith(INDEX_FILE_SUFFIXES)


def replace_suffix(path: str, old: str, new: str) -> str:
    """Returns the path with its last suffix replaced (Utils.replaceSuffix)."""
    if not path.endswith(old):
        raise IllegalArgumentException(f"Expected string to end with '{old}' but string is '{path}'")
    return path[: len(path) - len(old)] + new


# --- directories of a partition ---------------------------------------------------------------------


def has_remote_metadata(folders: Iterable[str]) -> bool:
    """Returns whether one of the directories `folders` holds events of remote segments."""
    return any(name.startswith(f"{REMOTE_LOG_METADATA_TOPIC}-") for name in folders)


def log_dir_name(topic_partition: TopicPartition) -> str:
    """Returns `topic-0`."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def log_delete_dir_name(topic_partition: TopicPartition, *, unique_id: str | None = None) -> str:
    """Returns `topic-0.<32 hex>-delete`; the topic is shortened so that the name has at most 255 characters."""
    return _capped(topic_partition, DELETE_DIR_SUFFIX, unique_id)


def log_stray_dir_name(topic_partition: TopicPartition, *, unique_id: str | None = None) -> str:
    """Returns `topic-0.<32 hex>-stray`; the topic is shortened so that the name has at most 255 characters."""
    return _capped(topic_partition, STRAY_DIR_SUFFIX, unique_id)


def log_future_dir_name(topic_partition: TopicPartition, *, unique_id: str | None = None) -> str:
    """Returns `topic-0.<32 hex>-future`; the topic is not shortened, because the directory is renamed back later."""
    return f"{log_dir_name(topic_partition)}.{unique_id or uuid.uuid4().hex}{FUTURE_DIR_SUFFIX}"


def _capped(topic_partition: TopicPartition, suffix: str, unique_id: str | None) -> str:
    tail = f"-{topic_partition.partition}.{unique_id or uuid.uuid4().hex}{suffix}"
    return topic_partition.topic[: MAX_DIR_NAME_LENGTH - len(tail)] + tail


def is_delete_dir(name: str) -> bool:
    return name.endswith(DELETE_DIR_SUFFIX)


def is_future_dir(name: str) -> bool:
    return name.endswith(FUTURE_DIR_SUFFIX)


def is_stray_dir(name: str) -> bool:
    return name.endswith(STRAY_DIR_SUFFIX)


def parse_topic_partition_name(directory: str) -> TopicPartition:
    """Returns the partition of a directory, also for its `-delete`, `-future` or `-stray` name.

    Raises KafkaException if the name has another form (LocalLog.parseTopicPartitionName).
    """
    topic, dash, partition = directory.rpartition("-")
    if len(partition) < 10 and partition.isdecimal() and os.sep == "/":  # nearly every name
        topic = topic.rpartition("/")[2]
        if topic:
            return TopicPartition(topic, int(partition))
    name = os.path.basename(os.path.normpath(directory))
    stem = name
    for suffix, pattern in _SUFFIXED_DIR.items():
        if name.endswith(suffix):
            if not pattern.fullmatch(name):
                raise _not_a_partition(directory, name)
            stem = name[: name.rindex(".")]
            break
    topic, dash, partition = stem.rpartition("-")
    if not dash or not topic or not partition:
        raise _not_a_partition(directory, name)
    try:
        return TopicPartition(topic, parse_int(partition))
    except NumberFormatException:
        raise _not_a_partition(directory, name) from None


def partition_of(name: str | TopicPartition) -> TopicPartition:
    """Returns the partition that a caller names, as `topic-0` or as a pair.  Raises InvalidTopicException."""
    given = name
    if isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str) and isinstance(name[1], int):
        name = f"{name[0]}-{name[1]}" if name[1] >= 0 else ""
    if isinstance(name, str):
        try:
            partition = parse_topic_partition_name(name)
        except KafkaException:
            pass
        else:
            if str(partition) == name and partition.partition >= 0:
                return partition
    raise InvalidTopicException(
        f"{given!r} is not the name of a partition", hint="expected topic-0: topic, dash, number"
    )


def _not_a_partition(directory: str, name: str) -> KafkaException:
    return KafkaException(
        f"Found directory {os.path.abspath(directory)}, '{name}' is not in the form of topic-partition or "
        "topic-partition.uniqueId-delete (if marked for deletion).\n"
        "Kafka's log directories (and children) should only contain Kafka topic data."
    )


def validate_topic_name(topic: str) -> None:
    """Raises InvalidTopicException if Kafka does not allow the name (org.apache.kafka.common.internals.Topic)."""
    if not topic:
        reason = "the empty string is not allowed"
    elif topic in (".", ".."):
        reason = f"'{topic}' is not allowed"
    elif len(topic) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{topic}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _LEGAL_TOPIC.fullmatch(topic):
        reason = f"'{topic}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise InvalidTopicException(f"Topic name is invalid: {reason}")


def validate_dir_name(name: str) -> None:
    """Raises InvalidTopicException if file systems do not allow a directory of this name.

    A topic of a legal length may be too long with a large partition number.  It may also be too long for the `-future`
    directory of a move, which Kafka does not shorten.
    """
    if len(name) > MAX_DIR_NAME_LENGTH:
        raise InvalidTopicException(
            f"the directory name {name} has {len(name)} characters, expected at most {MAX_DIR_NAME_LENGTH}",
            hint="use a shorter topic name",
        )
