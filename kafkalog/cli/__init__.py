"""The toolbox `kafkalog`: looks into, checks and mends Kafka log directories.

The only part that reads argv or the environment.  Data goes to stdout, notes and progress to stderr; exit codes are
0 clean, 1 findings, 2 usage, 3 locked or I/O, 141 closed pipe.  Commands live in modules of their own that are
imported when they run.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the `kafkalog` command; does not return."""
    from kafkalog.cli.app import run

    run()
