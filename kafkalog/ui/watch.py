"""The survey of a live page: made in a thread while somebody watches, and again when the directories have changed.

It is made no more often than its cost allows: after one that took t seconds, the next begins at the earliest REST * t
seconds later.  An error is kept as words until a later survey succeeds, so the page recovers by itself.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import LOG_FILE_SUFFIX
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.errors import KafkalogError

EVERY_S = 2.0
REST = 10
WATCHED_S = 15.0  # how long after a request somebody counts as watching


class Seen(NamedTuple):
    """The last survey as JSON with its tag, and the last error in words; each None before the first one."""

    tag: str | None
    survey: bytes | None
    error: str | None
    took_s: float


class Watch:
    """Keeps the survey current.  `make` returns a survey as JSON; it runs in one thread at a time."""

    def __init__(self, log_dirs: Sequence[str], make: Callable[[], bytes], files: Files = OS_FILES) -> None:
        self._log_dirs = log_dirs
        self._make = make
        self._files = files
        self._wake = threading.Condition()
        self._seen = Seen(None, None, None, 0.0)  # replaced whole; guarded by _wake
        self._asked = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def latest(self) -> Seen:
        """Returns the last survey, and lets the thread work for some more seconds."""
        with self._wake:
            self._asked = time.monotonic()
            if self._thread is None and not self._closed:
                # A daemon: the process ends at once, also in the middle of a survey, which only reads.
                self._thread = threading.Thread(target=self._work, name="kafkalog-survey", daemon=True)
                self._thread.start()
            self._wake.notify_all()
            return self._seen

    def first(self, seconds: float) -> Seen:
        """Returns the same, after waiting up to so many seconds for the first survey or error."""
        until = time.monotonic() + seconds
        self.latest()
        with self._wake:
            while self._seen.survey is None and self._seen.error is None:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(left)
            return self._seen

    def close(self) -> None:
        """Ends the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _work(self) -> None:
        known: str | None = None
        while self._is_watched():
            began = time.monotonic()
            try:
                found = self._fingerprint()
                if found != known or self._seen.error is not None:
                    made = self._make()
                    tag = hashlib.sha256(made).hexdigest()[:32]
                    self._tell(Seen(f'"{tag}"', made, None, time.monotonic() - began))
                    known = found
            except (KafkalogError, OSError) as error:
                known = None
                self._tell(self._seen._replace(error=_words(error)))
            except Exception as error:  # a defect must not end the updates
                known = None
                self._tell(self._seen._replace(error=f"{type(error).__name__}: {error}"))
            finally:
                took = time.monotonic() - began
            self._rest(max(EVERY_S, REST * took))

    def _tell(self, seen: Seen) -> None:
        with self._wake:
            self._seen = seen
            self._wake.notify_all()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._wake:
            while not self._closed and (left := until - time.monotonic()) > 0:
                self._wake.wait(left)

    def _is_watched(self) -> bool:
        with self._wake:
            if self._closed or time.monotonic() - self._asked > WATCHED_S:
                self._thread = None
                return False
            return True

    def _fingerprint(self) -> str:
        """Returns what changes whenever the directories do: times of directories, and sizes and times of logs."""
        found = hashlib.sha256()
        for log_dir in self._log_dirs:
            found.update(f"{log_dir}\0{self._files.stat(log_dir).mtime_ms}\0".encode("utf-8", "surrogateescape"))
            for partition, folder in list_partitions(log_dir, files=self._files).items():
                looked = self._files.look_into(folder, LOG_FILE_SUFFIX)
                if looked is not None:
                    stats = [(name, stat.size, stat.mtime_ms) for name, stat in sorted(looked.stats.items())]
                    found.update(repr((str(partition), looked.mtime_ms, stats)).encode())
                    continue
                with suppress(FileNotFoundError):
                    found.update(repr((str(partition), self._files.stat(folder).mtime_ms)).encode())
        return found.hexdigest()


def _words(error: KafkalogError | OSError) -> str:
    if not isinstance(error, KafkalogError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())
