"""The state that the operations of one replayed script share: fields, work directory, clock, scheduler and handles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException
from kafkalog.metrics import MetricsRegistry


class ScriptError(Exception):
    """The script itself is wrong, or its batches are not what it says: the run stops here."""


class Op:
    """One line of a script.  A field that is null counts as not given, but for `"field" in op.fields`."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self.name: str = fields["op"]
        self.handle: str = fields.get("log", "main")

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None:
            raise ScriptError(f"operation {self.name} needs the field {name}")
        return value

    def get(self, name: str, otherwise: Any = None) -> Any:
        value = self.fields.get(name)
        return otherwise if value is None else value


@dataclass
class OpenLog:
    """A handle: an open log, and where the previous cleaner pass over it ended."""

    log: UnifiedLog
    last_clean_offset: int | None = None


@dataclass
class Session:
    """One script's world."""

    work_dir: Path
    tracebacks: bool = False
    manual_scheduler: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    logs: dict[str, OpenLog] = field(default_factory=dict)
    manager: LogManager | None = None
    cleaner_thread: tuple[LogCleaner, CleanerThread] | None = None  # the manager's cleaner

    def __post_init__(self) -> None:
        self.work_dir = self.work_dir.absolute()
        self.scheduler = ManualScheduler(self.clock)
        self.metrics = MetricsRegistry(self.clock)

    def path(self, relative: str) -> Path:
        return Path(os.path.normpath(self.work_dir / relative))

    def find(self, handle: str) -> OpenLog | None:
        return self.logs.get(handle)

    def handle(self, op: Op) -> OpenLog:
        found = self.logs.get(op.handle)
        if found is None:
            raise IllegalStateException("no open log")
        return found

    def put(self, handle: str, log: UnifiedLog) -> None:
        before = self.logs.get(handle)
        if before is None or before.log is not log:
            self.logs[handle] = OpenLog(log)

    def forget_handle(self, op: Op) -> None:
        del self.logs[op.handle]

    def forget(self, log: UnifiedLog) -> None:
        for name in [name for name, found in self.logs.items() if found.log is log]:
            del self.logs[name]

    def drop_handles(self) -> None:
        """As a crash: closes files, flushes and trims nothing."""
        self.scheduler.clear()
        if self.manager is not None:
            self.manager.abandon()
            self.manager = None
        for found in self.logs.values():
            found.log.close_quietly()
        self.logs.clear()
