"""The one door to the disk and the clock: files, the directory lock, the scheduler, the failure channel.

`OS_FILES` is the machine's disk; tests put recording and failing twins in its place.  Errors here are plain OSErrors
(LogDirLockedException, and `local_path`'s, apart); who knows the log directory gives them their meaning.
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
