"""Moves a partition from one log directory to another, offline, so that a crash at any step loses nothing.

This is Kafka's way of moving, without a broker.  A copy grows in `topic-0.<id>-future`.  Once it is complete, compared
and on disk, and its lines are in the target's checkpoints, it gets the partition's name.  Then the source becomes
`topic-0.<id>-delete`, loses its lines, and is removed.  Both directories are held meanwhile as by open logs: locked,
and without their clean-shutdown markers.  So a broker that starts on half a copy does not trust it: it recovers what
is there and finishes the move itself, or renames the copy to a stray.  For a moment both directories have the
partition.  A broker refuses to start in that state; if neither had it, the broker would begin an empty log.

`<id>` is always the same for a partition.  So an interrupted move is found again, and the same call finishes it: files
that exist already are compared, not copied.  If both directories have the partition, the source is only removed if
every byte is the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum

from kafkalog import _shown
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, File, Files, ManualScheduler
from kafkalog.engine.files.usage import free_bytes
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import MetaProperties, read_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory as directories
from kafkalog.engine.host.directory import Lease
from kafkalog.engine.host.log_dirs import listing
from kafkalog.engine.host.topic_configs import stored_overrides
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    InvalidTopicException,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.space import copy_of

__all__ = ["Move", "Step", "carry_out", "plan_move"]

COPY_BYTES = 1 << 20
Progress = Callable[[int], None]


class Step(Enum):
    """The step at which a move begins."""

    COPY = "copy"  # only the source has the partition; a copy may have begun
    COMPARE = "compare"  # both have it: interrupted before the source was renamed, or two different logs
    CLEAN_UP = "clean up"  # the target has it, and the source is being deleted
    DONE = "done"


@dataclass(frozen=True)
class Move:
    """A planned move.

    `size` is the bytes of the source's files; `copied` the bytes that exist already.  `needed` is what the rest of the
    copy takes on the target's disk, where preallocated space stays a hole.  `source_settings` and `target_settings` are
    the topic's overrides stored next to the data; None if there are none."""

    partition: TopicPartition
    source_dir: str
    target_dir: str
    step: Step
    size: int
    copied: int
    free: int
    source_settings: Mapping[str, str] | None = None
    target_settings: Mapping[str, str] | None = None
    needed: int = 0

    @property
    def settings(self) -> Mapping[str, str]:
        """The overrides that apply after the move: the target's if it has or had some, else the source's."""
        return (self.source_settings if self.target_settings is None else self.target_settings) or {}

    @property
    def source(self) -> str:
        """The partition's directory in the source."""
        return os.path.join(self.source_dir, str(self.partition))

    @property
    def target(self) -> str:
        """The partition's directory in the target."""
        return os.path.join(self.target_dir, str(self.partition))

    @property
    def future(self) -> str:
        """The directory of the growing copy."""
        name = names.log_future_dir_name(self.partition, unique_id=_move_id(self.partition))
        return os.path.join(self.target_dir, name)

    @property
    def outgoing(self) -> str:
        """The directory of the source while it is deleted."""
        name = names.log_delete_dir_name(self.partition, unique_id=_move_id(self.partition))
        return os.path.join(self.source_dir, name)


def _move_id(partition: TopicPartition) -> str:
    return hashlib.sha256(f"kafkalog move {partition}".encode()).hexdigest()[:32]


def plan_move(source_dir: str, partition: TopicPartition, target_dir: str, *, files: Files = OS_FILES) -> Move:
    """Plans a move; changes nothing.

    Args:
        source_dir: The log directory that has the partition.
        partition: The partition.
        target_dir: The log directory that gets it.
        files: The file system; for tests.

    Returns:
        A `Move` for `carry_out`.

    Raises:
        UnknownTopicOrPartitionException: Neither directory has the partition.
        IllegalArgumentException: Both directories are the same, they belong to different nodes or clusters, the target
            is too small or no log directory, or a broker is moving the partition.
        InvalidTopicException: The topic's name is too long for a copy's directory, or the partition is a controller's
            log.
        CorruptCheckpointException: A checkpoint of either directory, or its topics' settings, cannot be read.  Without
            the log start, deleted records would come back; without retention.ms, records could be deleted.

    Example:
        >>> from kafkalog.toolbox.move import plan_move
        >>> with kafkalog.open(["disk1", "disk2"]) as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> orders = kafkalog.TopicPartition("orders", 0)
        >>> homes = ["disk1", "disk2"] if orders in kafkalog.list_partitions("disk1") else ["disk2", "disk1"]
        >>> plan_move(homes[0], orders, homes[1]).step
        <Step.COPY: 'copy'>
    """
    if partition.topic == names.CLUSTER_METADATA_TOPIC:
        raise InvalidTopicException(
            f"{partition} is the log of a cluster's controllers, which cannot be moved",
            hint="metadata.log.dir of server.properties says where it is",
        )
    for path in (source_dir, target_dir):
        listing(path, files)
        for name in names.OFFSET_CHECKPOINT_FILES:
            checkpoint = OffsetCheckpointFile(os.path.join(path, name), files, create=False)
            if files.exists(checkpoint.path):
                checkpoint.read()
    if os.path.realpath(source_dir) == os.path.realpath(target_dir):
        raise IllegalArgumentException("it is the source directory; expected another directory", path=target_dir)
    _check_same_node(source_dir, target_dir, files)
    _refuse_kafkas_own(partition, (source_dir, target_dir), files)
    plain = Move(partition, source_dir, target_dir, Step.DONE, 0, 0, free_bytes(target_dir))
    at_source, at_target = files.is_dir(plain.source), files.is_dir(plain.target)
    leaving = files.is_dir(plain.outgoing)
    if not at_source and not at_target:
        raise UnknownTopicOrPartitionException(
            f"no partition {partition} in {source_dir}",
            hint=f"{plain.outgoing} was its directory"
            if leaving
            else "`kafkalog topics` lists the topics of a directory",
        )
    if at_source and at_target:
        step = Step.COMPARE
    elif at_source:
        step = Step.COPY
    else:
        step = Step.CLEAN_UP if leaving or _has_lines(source_dir, partition, files) else Step.DONE
    size = _bytes_in(plain.source, files) if at_source else 0
    copied = _bytes_in(plain.future, files) if step is Step.COPY and files.is_dir(plain.future) else 0
    if step is Step.COPY:
        names.validate_dir_name(os.path.basename(plain.future))
    needed = _room_for(plain, files) if step is Step.COPY else 0
    if needed > plain.free:
        raise IllegalArgumentException(
            f"{_shown.size(plain.free)} are free; the copy needs {_shown.size(needed)}",
            path=target_dir,
            hint="`kafkalog retain --target-free` frees space",
        )
    ours, theirs = (stored_overrides(each, partition.topic, files) for each in (source_dir, target_dir))
    return Move(partition, source_dir, target_dir, step, size, copied, plain.free, ours, theirs, needed)


def _check_same_node(source_dir: str, target_dir: str, files: Files) -> None:
    source, target = (_meta(path, files) for path in (source_dir, target_dir))
    if source is None or target is None:
        return
    for what, ours, theirs in (
        ("cluster.id", source.cluster_id, target.cluster_id),
        ("node.id", source.node_id, target.node_id),
    ):
        if ours != theirs:
            raise IllegalArgumentException(
                f"{names.META_PROPERTIES_FILE} has {what}={theirs}; expected {ours} as in {source_dir}",
                path=target_dir,
                hint="a partition can only move between the log.dirs of one broker",
            )


def _refuse_kafkas_own(partition: TopicPartition, log_dirs: tuple[str, str], files: Files) -> None:
    """Raises IllegalArgumentException if a broker has begun to move the partition: then a `-future` copy of it exists
    that is not ours."""
    for log_dir in log_dirs:
        for path, of in folders_of(log_dir, files).future.items():
            if of == partition and f".{_move_id(partition)}-" not in os.path.basename(path):
                raise IllegalArgumentException(
                    f"this is a broker's copy of {partition}; expected that no broker is moving it",
                    path=path,
                    hint="let the broker finish, or remove that directory while the broker is stopped",
                )


def _meta(log_dir: str, files: Files) -> MetaProperties | None:
    try:
        return read_meta_properties(os.path.join(log_dir, names.META_PROPERTIES_FILE), files)
    except FileNotFoundError:
        return None


def _bytes_in(folder: str, files: Files) -> int:
    return sum(files.stat(os.path.join(folder, name)).size for name in files.list_files(folder))


def _room_for(move: Move, files: Files) -> int:
    """Returns the bytes that are still to be written; an existing part of a file is not written again."""
    needed = 0
    for name in files.list_files(move.source):
        needed += copy_of(files.stat(os.path.join(move.source, name)))
        with suppress(FileNotFoundError):
            needed -= copy_of(files.stat(os.path.join(move.future, name)))
    return needed


def carry_out(move: Move, *, files: Files = OS_FILES, progress: Progress | None = None) -> None:
    """Carries out, or finishes, a planned move.

    After an error it can be called again.

    Args:
        move: The plan, from `plan_move`.
        files: The file system; for tests.
        progress: Called with the number of bytes just copied or compared.

    Raises:
        LogDirLockedException: A broker has one of the directories.
        IllegalArgumentException: The partition is open in this process.
        CorruptRecordException: Both directories have the partition, and the two differ.
        KafkaStorageException: The disk returns other bytes than were written.
        OSError: The disk fails.

    Example:
        >>> from kafkalog.toolbox.move import carry_out, plan_move
        >>> with kafkalog.open(["disk1", "disk2"]) as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> orders = kafkalog.TopicPartition("orders", 0)
        >>> homes = ["disk1", "disk2"] if orders in kafkalog.list_partitions("disk1") else ["disk2", "disk1"]
        >>> carry_out(plan_move(homes[0], orders, homes[1]))
        >>> orders in kafkalog.list_partitions(homes[1]), orders in kafkalog.list_partitions(homes[0])
        (True, False)
    """
    if move.step is Step.DONE:
        return
    tell = progress or (lambda size_bytes: None)
    source_changed = target_changed = False
    with ExitStack() as stack:
        source, target = (_hold(stack, path, move.partition, files) for path in (move.source_dir, move.target_dir))
        stack.callback(lambda: target.leave(clean=not target_changed and target.clean))
        stack.callback(lambda: source.leave(clean=not source_changed and source.clean))
        clean = target.clean
        if move.step is Step.COPY:
            target_changed = True
            _drop_lines(target)  # an old recovery point would make half a copy trusted
            _copy_all(move, files, tell)
            clean = source.clean  # copying does not make a log clean that was not closed cleanly
        elif move.step is Step.COMPARE:
            _compare_all(move, files, tell)
        source_changed = target_changed = True
        target.take_topic_config(move.source_dir)  # before the default settings could delete anything there
        if move.step is not Step.CLEAN_UP:
            _take_lines(move, target, files)
            if move.step is Step.COPY:
                files.rename(move.future, move.target)
                files.sync_dir(move.target_dir)
            files.remove_tree(move.outgoing)  # left by an earlier move, after which the partition came back
            files.rename(move.source, move.outgoing)
            files.sync_dir(move.source_dir)
        _drop_lines(source)
        files.remove_tree(move.outgoing)
        files.sync_dir(move.source_dir)
        target.leave(clean=clean)
        source.leave(clean=True)


def _hold(stack: ExitStack, log_dir: str, partition: TopicPartition, files: Files) -> Lease:
    scheduler = ManualScheduler(SYSTEM_CLOCK)
    lease = directories.enter(log_dir, partition, files, SYSTEM_CLOCK, scheduler, create=False)
    stack.callback(lease.leave, clean=False)  # does nothing once the lease was left
    return lease


# --- files -------------------------------------------------------------------------------------------------


def _copy_all(move: Move, files: Files, progress: Progress) -> None:
    """Copies the source's files to the `-future` directory: complete, compared, on disk, and no others."""
    files.mkdirs(move.future)
    files.sync_dir(move.target_dir)
    inside = files.listing(move.source)
    if inside.others:
        raise KafkaStorageException(
            f"the directory has {', '.join(inside.others)}; expected only files",
            path=move.source,
            hint="move these elsewhere first",
        )
    for name in files.list_files(move.future):
        if name not in inside.files:
            files.unlink(os.path.join(move.future, name))
    for name in inside.files:
        _copy(os.path.join(move.source, name), os.path.join(move.future, name), files, progress)
    files.sync_dir(move.future)


def _copy(source: str, target: str, files: Files, progress: Progress) -> None:
    with files.open(source, writable=False) as old, files.open(target, create=True) as new:
        size = old.size()
        if new.size() != size or _digest(new, size) != _digest(old, size):
            new.truncate(0)
            position = 0
            while position < size:
                data = old.pread(min(COPY_BYTES, size - position), position)
                if not data:
                    break
                if written := data.rstrip(b"\0"):  # preallocated space stays a hole
                    new.pwrite(written, position)
                position += len(data)
            new.truncate(size)
            new.sync()
            if _digest(new, size) != _digest(old, size):
                raise KafkaStorageException(
                    f"the copy of {source} reads back as different bytes", path=target, hint="is the disk failing?"
                )
        files.set_mtime_ms(target, files.stat(source).mtime_ms)  # retention uses it if the records have no timestamps
        new.sync()
    progress(size)


def _digest(file: File, size: int) -> tuple[int, int]:
    """Returns how many bytes there are, up to `size`, and their CRC-32C."""
    position = digest = 0
    while position < size and (data := file.pread(min(COPY_BYTES, size - position), position)):
        digest = crc32c(data, digest)
        position += len(data)
    return position, digest


def _compare_all(move: Move, files: Files, progress: Progress) -> None:
    # A crash may leave a half-written checkpoint.  Nothing reads it, and it is removed with its directory.
    source, target = (
        {name for name in files.list_files(path) if not (name.endswith(".tmp") and names.is_partitions_file(name))}
        for path in (move.source, move.target)
    )
    different = sorted(source ^ target)
    for name in sorted(source & target):
        with (
            files.open(os.path.join(move.source, name), writable=False) as old,
            files.open(os.path.join(move.target, name), writable=False) as new,
        ):
            size = old.size()
            if new.size() != size or _digest(old, size) != _digest(new, size):
                different.append(name)
            progress(size)
    if different:
        raise CorruptRecordException(
            f"{move.partition} is in both directories, and these files differ: {', '.join(different[:3])}"
            + (f" and {len(different) - 3} more" if len(different) > 3 else ""),
            path=move.target,
            hint="`kafkalog describe` and `kafkalog verify` show which one is right; rename or remove the directory "
            "of the other",
        )


# --- lines -------------------------------------------------------------------------------------------------


def _take_lines(move: Move, target: Lease, files: Files) -> None:
    """Copies the source's lines to the target's checkpoints; removes a line that the source does not have."""
    lines = CheckpointLines(move.source_dir, files)
    for name in names.OFFSET_CHECKPOINT_FILES:
        target.set_line(name, lines.line(name, move.partition))


def _drop_lines(lease: Lease) -> None:
    for name in names.OFFSET_CHECKPOINT_FILES:
        lease.set_line(name, None)


def _has_lines(log_dir: str, partition: TopicPartition, files: Files) -> bool:
    lines = CheckpointLines(log_dir, files)
    return any(lines.line(name, partition) is not None for name in names.OFFSET_CHECKPOINT_FILES)


def __dir__() -> list[str]:
    return __all__
