"""The one door to the disk and the clock: files, the directory lock, the scheduler, the failure channel.

`OS_FILES` is the machine's disk; tests put recording and failing twins in its place.  Errors here are plain OSErrors
(LogDirLockedException, and `local_path`'s, apart); who knows the log directory gives them their meaning.
"""

from __future__ import annotations

from kafkalog.files.api import Buffer, File, FileLock, Files, FileStat, HasFileno, Listing, parent_dir
from kafkalog.files.clock import SYSTEM_CLOCK, Clock, ManualClock, SystemClock
from kafkalog.files.closed import ClosedFile
from kafkalog.files.failure import LogDirFailureChannel, UnsyncedError, is_shortage
from kafkalog.files.local_paths import local_path
from kafkalog.files.os_files import OS_FILES, OsFile, OsFiles
from kafkalog.files.pool import OpenFiles
from kafkalog.files.scheduler import ManualScheduler, Scheduler, Task, ThreadScheduler

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
