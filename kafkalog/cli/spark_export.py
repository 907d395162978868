"""`kafkalog spark export`: writes records to Parquet files by topic and hour."""

from __future__ import annotations

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, one_line
from kafkalog.cli.choosing import COMMITTED, isolation
from kafkalog.cli.console import Progress, counted, emit, emit_json, fields, note
from kafkalog.cli.places import parse_bytes
from kafkalog.cli.remote_places import both_tiers, storages_of
from kafkalog.cli.spark import JSON, ONLY, PROGRESS, READ_DIRS, cluster, code_of_row, roots_and_names, session, total_of


@click.command("export")
@READ_DIRS
@click.option(
    "--to", "target", required=True, type=LocalPath(), metavar="EXPORT_DIR", help="The directory for the files."
)
@ONLY
@click.option(
    "--codec", metavar="NAME", default="snappy", show_default=True, help="Compression: none, snappy, gzip, lz4 or zstd."
)
@click.option("--headers", is_flag=True, help="Add the column headers.")
@COMMITTED
@click.option(
    "--skip-damage",
    is_flag=True,
    help="Continue in the next segment after damage, and report what was left out (exit 1).",
)
@click.option("--range-size", default="128MiB", show_default=True, metavar="BYTES", help="Bytes of a log for one task.")
@click.option(
    "--format",
    "table",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="delta also makes EXPORT_DIR a Delta table (needs the package deltalake).",
)
@JSON
@PROGRESS
@both_tiers
@cluster
def command(
    log_dirs: tuple[str, ...],
    target: str,
    only: tuple[str, ...],
    codec: str,
    headers: bool,
    committed: bool,
    skip_damage: bool,
    range_size: str,
    table: str,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Write new records to Parquet files in EXPORT_DIR.

    A file is named such as topic=orders/hour=2026-11-01-09/orders-0-<offset>.parquet.

    The log directories are only read. Existing files are kept: run the command once an hour, and each run writes what
    was appended since. A run after an interrupted one continues it. Kafka's internal topics are exported only if they
    are named.

    Exit 1 if something was left out because of damage or could not be exported, 3 for an I/O error or while another
    export to EXPORT_DIR is running.
    """
    roots, only = roots_and_names(log_dirs, only)
    places, remote = storages_of(roots)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.exporting import UNKNOWN, export_ranges
        from kafkalog.spark.jobs.lake_tables import Tables

        size, named = total_of(roots, only, internal=False)
        with Progress(size, "exported", force=progress) as bar:
            found = export_ranges(
                spark, places, target, named, codec=codec, headers=headers, isolation=isolation(committed),
                skip_damage=skip_damage, range_bytes=parse_bytes(range_size, "--range-size"), progress=bar.advance,
                remote=remote, tables=Tables(table),
            )  # fmt: skip
    code = CLEAN
    for each in found:
        where = f"{each.range.partition}"
        if each.range.start != UNKNOWN:
            where += f" [{each.range.start}, {each.range.end})"
        if each.error is not None:
            code = max(code, code_of_row(each.error))
            note(f"{where}: nothing was written: {one_line(each.error)}")
        for text in each.skipped:
            code = max(code, FINDINGS)
            if as_json:
                emit_json({"kind": "skipped", **fields(each.range.partition), "what": text})
            else:
                note(f"{each.range.partition}: left out: {text}")
        for file in each.files:
            if as_json:
                emit_json({"kind": "file", **fields(each.range.partition), **fields(file)})
            else:
                emit(f"{file.path}: {counted(file.records, 'record')}, {_shown.size(file.bytes)}")
    totals = (sum(each.records for each in found), sum(each.bytes for each in found))
    files, failed = sum(len(each.files) for each in found), sum(each.error is not None for each in found)
    skipped = sum(len(each.skipped) for each in found)
    if as_json:
        summary = {"files": files, "ranges": len(found), "failed": failed, "skipped": skipped}
        emit_json({"kind": "summary", **summary, "records": totals[0], "bytes": totals[1]})
    else:
        words = f"{counted(totals[0], 'record')}, {_shown.size(totals[1])} in {counted(files, 'file')}"
        words += f"; {failed} of {counted(len(found), 'range')} failed" if failed else ""
        emit(f"in all: {words}" + (f"; {counted(skipped, 'range')} left out" if skipped else ""))
    return code
