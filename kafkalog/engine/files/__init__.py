"""Access to the disk and the clock: files, the directory lock, the scheduler, the failure channel.

The engine reaches the operating system only through this package.  `OS_FILES` is the machine's disk; tests replace it
with classes that record or fail operations.  Errors here are plain OSErrors, except LogDirLockedException and the
errors of `local_path`.  The code that knows the log directory turns them into KafkaStorageException.
"""

from __future__ import annotations

from kafkalog.engine.files.api import Buffer, File, FileLock, Files, FileStat, HasFileno, Listing, parent_dir
from kafkalog.engine.files.clock import SYSTEM_CLOCK, Clock, ManualClock, SystemClock
from kafkalog.engine.files.closed import ClosedFile
from kafkalog.engine.files.failure import LogDirFailureChannel, UnsyncedError, is_shortage
from kafkalog.engine.files.local_paths import local_path
from kafkalog.engine.files.mounts import OS_FILES
from kafkalog.engine.files.os_files import OsFile, OsFiles
from kafkalog.engine.files.pool import OpenFiles
from kafkalog.engine.files.scheduler import ManualScheduler, Scheduler, Task, ThreadScheduler

__all__ = [
    "OS_FILES",
    "SYSTEM_CLOCK",
    "Buffer",
    "Clock",
    "ClosedFile",
    "File",
    "FileLock",
    "FileStat",
    "Files",
    "HasFileno",
    "Listing",
    "LogDirFailureChannel",
    "ManualClock",
    "ManualScheduler",
    "OpenFiles",
    "OsFile",
    "OsFiles",
    "Scheduler",
    "SystemClock",
    "Task",
    "ThreadScheduler",
    "UnsyncedError",
    "is_shortage",
    "local_path",
    "parent_dir",
]


def __dir__() -> list[str]:
    return __all__
