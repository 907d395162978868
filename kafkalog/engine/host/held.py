"""A log directory that this process holds: its lock, its clean-shutdown marker, its checkpoints, its id.

The one place of what is done to these files, for a LogManager, which holds several.  Knows nothing of it, or of logs.
What fails on the disk is told to the failure channel.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from kafkalog.engine.files import FileLock, Files, LogDirFailureChannel
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import NO_ENTRIES, CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import read_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError

LOGGER = "kafkalog.manager"

# What it means that a checkpoint cannot be read.
_MEANING = {
    names.RECOVERY_POINT_CHECKPOINT_FILE: "all records count as not flushed",
    names.LOG_START_OFFSET_CHECKPOINT_FILE: "records that were deleted may come back",
    names.HIGH_WATERMARK_CHECKPOINT_FILE: "a broker's readers wait for its replicas anew",
    names.CLEANER_OFFSET_CHECKPOINT_FILE: "compacted logs are cleaned from their start",
}


class HeldDirectory:
    """Nobody's until `lock`; the caller sees to it that one thread at a time writes a file."""

    def __init__(self, path: str, files: Files, failure_channel: LogDirFailureChannel) -> None:
        self.path = path
        self.files = files
        self.failure_channel = failure_channel
        self.marker = CleanShutdownFile(path, files)
        self.recovery_points = self._checkpoint(names.RECOVERY_POINT_CHECKPOINT_FILE)
        self.log_starts = self._checkpoint(names.LOG_START_OFFSET_CHECKPOINT_FILE)
        self.high_watermarks = self._checkpoint(names.HIGH_WATERMARK_CHECKPOINT_FILE)
        self.cleaner_offsets = self._checkpoint(names.CLEANER_OFFSET_CHECKPOINT_FILE)
        self._lock: FileLock | None = None
        self._told: set[tuple[str, TopicPartition]] = set()
        self._made: set[str] = set()  # checkpoints that were missing

    def _checkpoint(self, name: str) -> OffsetCheckpointFile:
        return OffsetCheckpointFile(os.path.join(self.path, name), self.files, create=False)

    # --- the lock ------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Takes `.lock`.  LogDirLockedException when a broker or another process has it; OSError."""
        self._lock = self.files.lock(os.path.join(self.path, names.LOCK_FILE))

    @property
    def is_locked(self) -> bool:
        """Whether it is ours."""
        return self._lock is not None

    def unlock(self) -> None:
        """Gives `.lock` up and removes it; may be done again."""
        if self._lock is not None:
            try:
                self._lock.release()
            except OSError:  # a file that nobody has locked does no harm
                Lines(LOGGER, self.path).warning("%s was unlocked, but not removed", self._lock.path, exc_info=True)
        self._lock = None

    def share(self, token: bytes) -> None:
        """Let guests who know the token work in it.  OSError."""
        assert self._lock is not None
        self._lock.share(token)

    def take_back(self) -> bool:
        """Hold it alone again; False while guests are at work.  OSError."""
        return self._lock is None or self._lock.take_back()

    # --- its id --------------------------------------------------------------------------------------

    def directory_id(self) -> str | None:
        """The id in meta.properties (a Uuid of 22 characters); None where there is no such file, or no id in it.

        CorruptCheckpointException, OSError.
        """
        try:
            return read_meta_properties(os.path.join(self.path, names.META_PROPERTIES_FILE), self.files).directory_id
        except FileNotFoundError:
            return None

    # --- checkpoints ---------------------------------------------------------------------------------

    def make_checkpoints(self) -> None:
        """Makes those of recovery points and log starts, empty, where they are missing.  OSError."""
        self.make(self.recovery_points)
        self.make(self.log_starts)

    def make(self, checkpoint: OffsetCheckpointFile) -> None:
        """An empty file where there is none, as Kafka's constructor leaves it.  OSError."""
        if not self.files.exists(checkpoint.path):
            self.files.create(checkpoint.path)
            self._made.add(checkpoint.path)

    def read(
        self,
        checkpoint: OffsetCheckpointFile,
        *,
        is_new: bool = False,
        emptied: Collection[str] = (),
    ) -> dict[TopicPartition, int]:
        """What a checkpoint says.  One that is missing is made, empty; what cannot be read counts for nothing, as in
        Kafka at start, and a warning says what that means unless the directory is new, or the file is blank and not
        one of `emptied`: a process that was killed when it was young has written none.  OSError where it is not made.
        """
        lines: dict[TopicPartition, int] = {}
        problem: str | None = None
        path = checkpoint.path
        try:
            lines = checkpoint.read()
            if path in emptied:
                problem = f"{path}: found {'no such file' if path in self._made else NO_ENTRIES}"
        except FileNotFoundError:
            problem = None if is_new else f"{path}: found no such file"
            self.write(checkpoint, {})  # Kafka makes an empty one, which cannot be told from a lost one
        except (KafkalogError, OSError) as error:
            problem = str(error)
        if problem is not None:
            meaning = _MEANING[os.path.basename(checkpoint.path)]
            Lines(LOGGER, self.path).warning("%s; %s", problem, meaning)
        return lines

    def line(self, name: str, partition: TopicPartition) -> int | None:
        """A partition's line of the checkpoint of that name; None without one.

        CorruptCheckpointException; KafkaStorageException, and the directory is offline, where the disk refuses.
        """
        return self.lines(name).get(partition)

    def lines(self, name: str) -> dict[TopicPartition, int]:
        """Those of the checkpoint of that name; none where there is no such file.  Errors as `line`."""
        checkpoint = self._checkpoint(name)
        try:
            return checkpoint.read() if self.files.exists(checkpoint.path) else {}
        except OSError as error:
            if isinstance(error, KafkalogError):
                raise
            message = f"Error while reading checkpoint file {checkpoint.path}"
            raise self.failure_channel.failed(self.path, message, error) from error

    def write(self, checkpoint: OffsetCheckpointFile, lines: Mapping[TopicPartition, int]) -> None:
        """Replaces a checkpoint; KafkaStorageException, and the directory is offline, where the disk refuses, but for a
        shortage (DiskFull, TooManyOpenFilesException).

        A folder's name that the format cannot hold has no line, which a warning says once: Kafka writes one, and at the
        next start no partition of the directory has any."""
        odd = [partition for partition in lines if not checkpoint.can_hold(partition)]
        if odd:
            lines = {partition: offset for partition, offset in lines.items() if partition not in odd}
            for partition in odd:
                self._tell_odd(checkpoint, partition)
        try:
            checkpoint.write(lines)
        except KafkalogError:
            raise
        except OSError as error:
            message = f"Error while writing to checkpoint file {checkpoint.path}"
            raise self.failure_channel.failed(self.path, message, error) from error

    def _tell_odd(self, checkpoint: OffsetCheckpointFile, partition: TopicPartition) -> None:
        if (checkpoint.path, partition) in self._told:
            return
        self._told.add((checkpoint.path, partition))
        meaning = _MEANING[os.path.basename(checkpoint.path)]
        Lines(LOGGER, self.path).warning(
            "%s has no line for the folder %r, whose name it cannot hold; at the next start, for it: %s",
            checkpoint.path,
            str(partition),
            meaning,
        )
