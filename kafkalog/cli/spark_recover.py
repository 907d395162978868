"""`kafkalog spark recover`: does on executors what an open after a crash does."""

from __future__ import annotations

import click

from kafkalog.cli import recover as recovery
from kafkalog.cli.console import Progress, parse_settings
from kafkalog.cli.places import SETTINGS
from kafkalog.cli.spark import DIRS, JSON, ONLY, PROGRESS, YES, cluster, roots_and_names, session, total_of


@click.command("recover")
@DIRS
@ONLY
@YES
@click.option("--from-start", is_flag=True, help="Check each log from its start, not from the recovery point.")
@SETTINGS
@JSON
@PROGRESS
@cluster
def command(
    log_dirs: tuple[str, ...],
    only: tuple[str, ...],
    yes: bool,
    from_start: bool,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Recover partitions of log directories as after a crash, from their recovery points on, as `kafkalog recover`
    does.

    Without --yes the command only reports the result. Exit 1 if something was, or would be, truncated.
    """
    roots, only = roots_and_names(log_dirs, only)
    given = parse_settings(settings)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.recovery import recovered

        size, named = total_of(roots, only)
        with Progress(size, "recovered" if yes else "checked", force=progress) as bar:
            found = recovered(spark, roots, named, act=yes, config=given, from_start=from_start, progress=bar.advance)
    return recovery.print_all([each.result for each in found], yes, as_json, roots)
