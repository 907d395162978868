"""`kafkalog spark verify`: checks directories for damage on executors."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN, IO, one_line
from kafkalog.cli.console import Progress, note
from kafkalog.cli.remote_places import both_tiers, storages_of
from kafkalog.cli.spark import JSON, ONLY, PROGRESS, READ_DIRS, cluster, roots_and_names, session, total_of
from kafkalog.cli.verify import print_report
from kafkalog.toolbox.report import Report


@click.command("verify")
@READ_DIRS
@ONLY
@click.option("--deep", is_flag=True, help="Also decode every record; check sequences, transactions and epochs.")
@JSON
@PROGRESS
@both_tiers
@cluster
def command(
    log_dirs: tuple[str, ...],
    only: tuple[str, ...],
    deep: bool,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Check every batch, index entry and small file of log directories for damage, as `kafkalog verify` does.

    The command changes nothing. Exit 1 with findings (a file that cannot be read is one), 3 for other errors.
    """
    roots, only = roots_and_names(log_dirs, only)
    places, remote = storages_of(roots)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.verification import verified

        size, named = total_of(roots, only)
        with Progress(size, "verified", force=progress) as bar:
            found = verified(spark, places, named, deep=deep, progress=bar.advance, remote=remote)
    report, code = Report(), CLEAN
    for each in found:
        report.take(each.report)
        report.partitions += each.partition is not None and each.report.partitions == 0
        if each.error is not None:
            note(f"{each.partition} of {each.log_dir} could not be read: {one_line(each.error)}")
            code = IO
    return max(code, print_report(report, as_json))
