"""Which log directories are offline, and why.

Mirrors org.apache.kafka.storage.internals.log.LogDirFailureChannel.  Whoever holds directories makes one and hands it
to the logs in them.  A directory that failed stays so; of each, the first failure counts.  Kafka's handler waits at the
channel's queue in a thread of its own; here `listen` names what is called, once a directory, by the thread that failed.
That thread may hold a partition's lock: the listener only has something done later.

A shortage is no failure: a full disk, a quota, a process without a free descriptor.  It passes, and nothing is wrong
with the directory.  Kafka takes it offline all the same; a channel that `outlives_shortages` has the call refused.
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
    """A sync that failed: what was written before may be lost, and no later sync tells of it again."""


def is_shortage(error: BaseException) -> bool:
    """Whether it is for want of space or of descriptors, which passes.  A sync that failed is none, whatever it says:
    bytes that counted as written are gone."""
    if isinstance(error, UnsyncedError):
        return False
    if isinstance(error, KafkaStorageException):  # made of a shortage, by who outlives none
        return isinstance(error, DiskFull)
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE or error.errno in _NO_DESCRIPTOR
    return isinstance(error, TooManyOpenFilesException)


class LogDirFailureChannel:
    """Thread-safe.  `outlives_shortages`: a call that meets one is refused, and no directory goes offline for it."""

    def __init__(self, *, outlives_shortages: bool = False) -> None:
        self.outlives_shortages = outlives_shortages
        self._lock = threading.RLock()
        self._offline: dict[str, BaseException | None] = {}  # guarded by _lock
        self._listener: Callable[[str], object] | None = None
        self.any_offline = False  # set after the directory is in _offline: a quick first question

    def has_offline_log_dir(self, log_dir: str) -> bool:
        """Whether the directory failed."""
        return log_dir in self._offline

    def cause(self, log_dir: str) -> BaseException | None:
        """The error that took the directory offline, where it is known."""
        return self._offline.get(log_dir)

    @property
    def offline_log_dirs(self) -> list[str]:
        """Those that failed, in this order."""
        with self._lock:
            return list(self._offline)

    def listen(self, listener: Callable[[str], object]) -> None:
        """Have `listener` called with each directory that fails from now on; it must neither raise nor wait."""
        self._listener = listener

    def maybe_add_offline_log_dir(
        self, log_dir: str, message: str, cause: BaseException | None = None, *, topic_partition: object = None
    ) -> None:
        """Take a directory offline; its first failure is its cause.  `topic_partition`: whose failure it was."""
        with self._lock:
            new = log_dir not in self._offline
            self._offline.setdefault(log_dir, cause)
            self.any_offline = True
        Lines("kafkalog.files", log_dir, topic_partition).error("%s", message, exc_info=cause)
        if new and self._listener is not None:
            self._listener(log_dir)

    def passes(self, error: BaseException) -> bool:
        """Whether the directory outlives this error: a shortage, for who outlives those."""
        return self.outlives_shortages and is_shortage(error)

    def failed(
        self, log_dir: str, message: str, error: OSError, *, topic_partition: object = None
    ) -> KafkaStorageException | TooManyOpenFilesException:
        """What to raise for an error of the disk's in a directory, which is offline from now on; `message` says what
        failed.  DiskFull or TooManyOpenFilesException, and the directory goes on, for what `passes`."""
        if not self.passes(error):
            self.maybe_add_offline_log_dir(log_dir, message, error, topic_partition=topic_partition)
            return KafkaStorageException.because_of(error, message)
        return refused(log_dir, message, error)

    def give_up(self, log_dir: str, message: str, error: OSError) -> None:
        """`failed` for who goes on without the directory; what `passes` is raised."""
        raised = self.failed(log_dir, message, error)
        if self.passes(error):
            raise raised from error


def refused(log_dir: str, message: str, error: OSError) -> DiskFull | TooManyOpenFilesException:
    """What to raise for a shortage."""
    if isinstance(error, DiskFull):
        return error
    if error.errno in _NO_DESCRIPTOR:
        path = error.filename if isinstance(error.filename, str) else None
        return TooManyOpenFilesException(f"{message}: {error.strerror}", path=path, hint=OPEN_FILES_HINT)
    full = DiskFull.because_of(error, message)
    full.log_dir = log_dir
    full.hint = f"free space in {log_dir}: reads go on, and the next write tries again"
    return full


@contextlib.contextmanager
def full_at_open(what: str) -> Iterator[None]:
    """Around the opening of `what`: a disk that is full is told with what can be done then."""
    try:
        yield
    except DiskFull as error:
        error.hint = (
            f"{what} is not open: to be opened for writing it needs a little room in {error.log_dir}, and more if it "
            "was not closed cleanly; read_only=True opens it as it is"
        )
        raise


@contextlib.contextmanager
def full_at_change(what: str) -> Iterator[None]:
    """The same, around a change of a topic that begins with a small file; `what` says how the topic is then."""
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
    """The same, around its close."""
    try:
        yield
    except DiskFull as error:
        error.hint = (
            f"{what} is closed, but not cleanly: what was appended is there, and safe from a power loss as far as it "
            f"was flushed; {opens} recovers it, which needs a little room in {error.log_dir}; read_only=True needs none"
        )
        raise
