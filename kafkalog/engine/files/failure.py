"""Records which log directories are offline, and why.

Mirrors org.apache.kafka.storage.internals.log.LogDirFailureChannel.  The owner of directories creates one and passes it
to the logs in them.  A directory that failed stays offline, and its first failure counts.  Kafka's handler waits at the
channel's queue in a thread.  Here `listen` sets a function that the failing thread calls once a directory.  That thread
may hold a partition's lock, so the listener must only schedule its work.

A shortage is no failure: a full disk, a quota, a process without a free descriptor.  It passes, and the directory is
all right.  Kafka still takes the directory offline; with `outlives_shortages` only the call is refused.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator

from kafkalog.engine.files.lines import Lines
from kafkalog.errors import OPEN_FILES_HINT, DiskFull, KafkaStorageException, TooManyOpenFilesException

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class UnsyncedError(OSError):
    """A sync failed: bytes written before may be lost, and no later sync will report it again."""


def is_shortage(error: BaseException) -> bool:
    """Returns whether an error is a lack of space or of descriptors, which passes.

    A sync that failed is no shortage, whatever its errno: bytes that counted as written may be lost.

    Args:
        error: An OSError, or an error that kafkalog raised for one.

    Example:
        >>> import errno
        >>> from kafkalog.engine.files import is_shortage
        >>> is_shortage(OSError(errno.ENOSPC, "no space")), is_shortage(OSError(errno.EIO, "broken"))
        (True, False)
    """
    if isinstance(error, UnsyncedError):
        return False
    if isinstance(error, KafkaStorageException):  # if it stands for a shortage, it is a DiskFull
        return isinstance(error, DiskFull)
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE or error.errno in _NO_DESCRIPTOR
    return isinstance(error, TooManyOpenFilesException)


class LogDirFailureChannel:
    """The log directories that are offline.  Thread-safe.

    Args:
        outlives_shortages: A call that meets a shortage is refused, and the directory stays online.

    Example:
        >>> import logging
        >>> from kafkalog.engine.files import LogDirFailureChannel
        >>> logging.disable()
        >>> channel = LogDirFailureChannel()
        >>> channel.maybe_add_offline_log_dir("/disk1", "cannot write")
        >>> channel.offline_log_dirs
        ['/disk1']
        >>> logging.disable(logging.NOTSET)
    """

    def __init__(self, *, outlives_shortages: bool = False) -> None:
        self.outlives_shortages = outlives_shortages
        self._lock = threading.RLock()
        self._offline: dict[str, BaseException | None] = {}  # guarded by _lock
        self._listener: Callable[[str], object] | None = None
        self.any_offline = False  # set after the directory is in _offline: a quick first check

    def has_offline_log_dir(self, log_dir: str) -> bool:
        """Returns whether the directory is offline."""
        return log_dir in self._offline

    def cause(self, log_dir: str) -> BaseException | None:
        """Returns the error that took the directory offline, if it is known."""
        return self._offline.get(log_dir)

    @property
    def offline_log_dirs(self) -> list[str]:
        """The offline directories, in the order in which they failed."""
        with self._lock:
            return list(self._offline)

    def listen(self, listener: Callable[[str], object]) -> None:
        """Sets the function that is called with each directory that fails from now on.

        Args:
            listener: The function.  It must neither raise nor wait.
        """
        self._listener = listener

    def maybe_add_offline_log_dir(
        self, log_dir: str, message: str, cause: BaseException | None = None, *, topic_partition: object = None
    ) -> None:
        """Takes a directory offline, and logs the error.  The first failure is the directory's cause.

        Args:
            log_dir: The directory.
            message: The text of the log line.
            cause: The error.
            topic_partition: The partition in which the error occurred.
        """
        with self._lock:
            new = log_dir not in self._offline
            self._offline.setdefault(log_dir, cause)
            self.any_offline = True
        Lines("kafkalog.files", log_dir, topic_partition).error("%s", message, exc_info=cause)
        if new and self._listener is not None:
            self._listener(log_dir)

    def passes(self, error: BaseException) -> bool:
        """Returns whether the directory stays online after this error: a shortage, with `outlives_shortages`."""
        return self.outlives_shortages and is_shortage(error)

    def failed(
        self, log_dir: str, message: str, error: OSError, *, topic_partition: object = None
    ) -> KafkaStorageException | TooManyOpenFilesException:
        """Takes a directory offline, unless the error `passes`, and returns the error to raise.

        Args:
            log_dir: The directory.
            message: Names the operation that failed.
            error: The error of the disk.
            topic_partition: The partition in which the error occurred.

        Returns:
            A KafkaStorageException.  If the error `passes`, DiskFull or TooManyOpenFilesException.
        """
        if not self.passes(error):
            self.maybe_add_offline_log_dir(log_dir, message, error, topic_partition=topic_partition)
            return KafkaStorageException.because_of(error, message)
        return refused(log_dir, message, error)

    def give_up(self, log_dir: str, message: str, error: OSError) -> None:
        """Takes a directory offline for a caller that continues without it; raises an error that `passes`."""
        raised = self.failed(log_dir, message, error)
        if self.passes(error):
            raise raised from error


def refused(log_dir: str, message: str, error: OSError) -> DiskFull | TooManyOpenFilesException:
    """Returns the error to raise for a shortage."""
    if isinstance(error, DiskFull):
        return error
    if error.errno in _NO_DESCRIPTOR:
        path = error.filename if isinstance(error.filename, str) else None
        return TooManyOpenFilesException(f"{message}: {error.strerror}", path=path, hint=OPEN_FILES_HINT)
    full = DiskFull.because_of(error, message)
    full.log_dir = log_dir
    full.hint = f"free space in {log_dir}: reads continue, and the next write tries again"
    return full


@contextlib.contextmanager
def full_at_open(what: str) -> Iterator[None]:
    """Adds a hint to a DiskFull during the opening of `what`."""
    try:
        yield
    except DiskFull as error:
        error.hint = (
            f"{what} is not open: opening it for writing needs a little room in {error.log_dir}, and more if it was "
            "not closed cleanly; read_only=True opens it and changes nothing"
        )
        raise


@contextlib.contextmanager
def full_at_change(what: str) -> Iterator[None]:
    """Adds a hint to a DiskFull during a change of a topic that begins with a small file.

    `what` describes the state of the topic after the error.
    """
    try:
        yield
    except DiskFull as error:
        error.hint = (
            f"{what}: a small file is written first, and {error.log_dir} has no room for it; a partition's "
            "delete_records(OFFSET) and delete_old_segments() need hardly any, and their files go after "
            f"file.delete.delay.ms; once the store is closed, kafkalog retain {error.log_dir} --target-free BYTES --yes"
        )
        raise


@contextlib.contextmanager
def full_at_close(what: str, opens: str) -> Iterator[None]:
    """Adds a hint to a DiskFull during a close.  `opens` names the call that opens `what` again."""
    try:
        yield
    except DiskFull as error:
        error.hint = (
            f"{what} is closed, but not cleanly: the appended records exist, and those that were flushed survive a "
            f"power loss; {opens} recovers it, which needs a little room in {error.log_dir}; read_only=True needs none"
        )
        raise
