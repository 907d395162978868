"""A log directory that this process holds: its lock, its clean-shutdown marker, its checkpoints, its id.

All access to these files goes through this class.  A LogManager holds several.  This class knows nothing of the
manager, or of logs.  Disk errors are reported to the failure channel.
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

# The consequence if a checkpoint cannot be read.
_MEANING = {
    names.RECOVERY_POINT_CHECKPOINT_FILE: "all records count as not flushed",
    names.LOG_START_OFFSET_CHECKPOINT_FILE: "records that were deleted may come back",
    names.HIGH_WATERMARK_CHECKPOINT_FILE: "a broker's readers wait for its replicas again",
    names.CLEANER_OFFSET_CHECKPOINT_FILE: "compacted logs are cleaned from their start",
}


class HeldDirectory:
    """A directory; not held until `lock`.  The caller makes sure that only one thread at a time writes a file."""

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
        """Acquires `.lock`.  LogDirLockedException if a broker or another process has it; OSError."""
        self._lock = self.files.lock(os.path.join(self.path, names.LOCK_FILE))

    @property
    def is_locked(self) -> bool:
        """Whether this process has the lock."""
        return self._lock is not None

    def unlock(self) -> None:
        """Releases `.lock` and removes it.  May be called again."""
        if self._lock is not None:
            try:
                self._lock.release()
            except OSError:  # a file that nobody has locked does no harm
                Lines(LOGGER, self.path).warning("%s was unlocked, but not removed", self._lock.path, exc_info=True)
        self._lock = None

    def share(self, token: bytes) -> None:
        """Admits guests (other processes) that know the token.  OSError."""
        assert self._lock is not None
        self._lock.share(token)

    def take_back(self) -> bool:
        """Holds the directory alone again; returns False while guests are active.  OSError."""
        return self._lock is None or self._lock.take_back()

    # --- the id --------------------------------------------------------------------------------------

    def directory_id(self) -> str | None:
        """Returns the id in meta.properties (a Uuid of 22 characters); None if there is no such file or no id in it.

        Raises CorruptCheckpointException, OSError.
        """
        try:
            return read_meta_properties(os.path.join(self.path, names.META_PROPERTIES_FILE), self.files).directory_id
        except FileNotFoundError:
            return None

    # --- checkpoints ---------------------------------------------------------------------------------

    def make_checkpoints(self) -> None:
        """Creates the checkpoints of recovery points and log starts, empty, if they are missing.  OSError."""
        self.make(self.recovery_points)
        self.make(self.log_starts)

    def make(self, checkpoint: OffsetCheckpointFile) -> None:
        """Creates an empty file if there is none, as Kafka's constructor does.  OSError."""
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
        """Returns the lines of a checkpoint.  A missing file is created, empty.

        A file that cannot be read counts as empty, as in Kafka at start.  A warning then names the consequence.  There
        is no warning if the directory is new, or if the file is blank and not one of `emptied`: a process that was
        killed soon after its start has written no lines.  Raises OSError if the file cannot be created.
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
            self.write(checkpoint, {})  # Kafka creates an empty one, which looks the same as a lost one
        except (KafkalogError, OSError) as error:
            problem = str(error)
        if problem is not None:
            meaning = _MEANING[os.path.basename(checkpoint.path)]
            Lines(LOGGER, self.path).warning("%s; %s", problem, meaning)
        return lines

    def line(self, name: str, partition: TopicPartition) -> int | None:
        """Returns a partition's line of the checkpoint `name`; None if there is none.

        Raises CorruptCheckpointException.  If the disk fails, raises KafkaStorageException, and the directory is
        offline.
        """
        return self.lines(name).get(partition)

    def lines(self, name: str) -> dict[TopicPartition, int]:
        """Returns all lines of the checkpoint `name`; none if there is no such file.  Raises as `line`."""
        checkpoint = self._checkpoint(name)
        try:
            return checkpoint.read() if self.files.exists(checkpoint.path) else {}
        except OSError as error:
            if isinstance(error, KafkalogError):
                raise
            message = f"Error while reading checkpoint file {checkpoint.path}"
            raise self.failure_channel.failed(self.path, message, error) from error

    def write(self, checkpoint: OffsetCheckpointFile, lines: Mapping[TopicPartition, int]) -> None:
        """Replaces a checkpoint.

        If the disk fails, raises KafkaStorageException, and the directory is offline.  A shortage raises DiskFull or
        TooManyOpenFilesException, and the directory stays online.
        A partition whose name the format cannot hold gets no line, and a warning says so once.  Kafka writes such a
        line, and at the next start no partition of the directory has one.
        """
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
            "%s has no line for the directory %r, whose name it cannot hold; consequence at the next start: %s",
            checkpoint.path,
            str(partition),
            meaning,
        )
