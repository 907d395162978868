"""The command line `kafkalog`: inspects, checks and repairs Kafka log directories.

It is the only package that reads argv or the environment, and the only one that needs `kafkalog[cli]` (click and rich).
Data goes to stdout; notes and progress go to stderr. Exit codes are 0 clean, 1 findings, 2 usage, 3 locked or I/O, 4
being written, 141 closed pipe. Each command is a module that is imported when the command runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import Command


def main() -> None:
    """Runs the `kafkalog` command and exits; it does not return."""
    try:
        _main()
    except KeyboardInterrupt:  # during imports or at exit; otherwise `_invoke` reports it
        with contextlib.suppress(OSError, ValueError):
            print("kafkalog: interrupted", file=sys.stderr)
        sys.exit(130)


def _main() -> None:
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(f"kafkalog: the command line needs {' and '.join(missing)}: pip install 'kafkalog[cli]'", file=sys.stderr)
        sys.exit(2)
    from kafkalog.cli.shell import VARIABLE

    if VARIABLE in os.environ:
        from kafkalog.cli.completing import answer

        sys.exit(answer(_command_line))
    from kafkalog.cli.app import run

    run()


def _command_line() -> Command:
    from kafkalog.cli.app import cli

    return cli
