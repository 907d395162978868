"""Log lines that name their partition and log directory, if they have them.

Both are in the text, before the message, and are fields of the record (`topic_partition`, `log_dir`; None if a line is
about neither), for handlers that format records as data.  The loggers are `kafkalog.log`, `kafkalog.segment`,
`kafkalog.format`, `kafkalog.files`, `kafkalog.metrics`, `kafkalog.cleaner`, `kafkalog.manager`, `kafkalog.coordinator`,
`kafkalog.remote`, `kafkalog.topics`, `kafkalog.server` and `kafkalog.authorizer`, of the standard library.  No handler
is set here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


# Logger.manager's lock must not be interrupted: it is acquired here, and not when a partition is created.
NAMES = (
    "log", "segment", "format", "files", "metrics", "cleaner", "manager", "coordinator", "remote", "topics", "server",
    "authorizer",
)  # fmt: skip
_LOGGERS = {name: logging.getLogger(name) for name in (f"kafkalog.{each}" for each in NAMES)}


class Lines(_Adapter):
    """A logger whose lines are about one partition, one log directory, or neither."""

    def __init__(self, logger: str, log_dir: str | None = None, topic_partition: object = None) -> None:
        partition = None if topic_partition is None else str(topic_partition)
        super().__init__(_LOGGERS[logger], {"topic_partition": partition, "log_dir": log_dir})
        where = {"partition": partition, "dir": log_dir}
        self._known = {key: value for key, value in where.items() if value is not None}
        self._prefix = f"[{', '.join(f'{key}=%s' for key in self._known)}] " if self._known else ""

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Logs `msg` formatted with `args`, also if there are none.

        An error of the disk or of a request (`exc_info`) is appended as text.  Its traceback shows where in this
        package it occurred, which helps only to find a bug here: it is logged if the logger's level is DEBUG.
        """
        if self.isEnabledFor(level):
            error = kwargs.get("exc_info")
            error = sys.exc_info()[1] if error is True else error
            if isinstance(error, (OSError, KafkalogError)):
                if not self.isEnabledFor(logging.DEBUG):
                    kwargs["exc_info"] = None
                told = str(error) or type(error).__name__
                if told not in (msg % args if args else msg):
                    msg, args = f"{msg}: %s", (*args, told)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            super().log(level, f"{self._prefix}{msg}", *self._known.values(), *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs
