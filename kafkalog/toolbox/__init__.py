"""Checks and repairs log directories: the functions that the command line and Spark jobs call."""

from __future__ import annotations

__all__ = [
    "abort_transactions",
    "backup",
    "checkpoint_table",
    "compact",
    "compare",
    "cursor_changes",
    "cursors",
    "delete_records",
    "disk_usage",
    "explain",
    "export",
    "export_log",
    "history",
    "import_hours",
    "latest",
    "log_dirs",
    "move",
    "recovery",
    "reindex",
    "restore",
    "retain",
    "salvage",
    "tiering",
    "topics",
    "transactions",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
