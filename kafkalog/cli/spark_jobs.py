"""The commands of `kafkalog spark`: what is asked, given to `kafkalog.spark.jobs`, and printed as the namesakes print.

Imported when one of them runs, or its help is asked for.
"""

from __future__ import annotations

from typing import Any

import click

from kafkalog.cli import compact as compaction
from kafkalog.cli import recover as recovery
from kafkalog.cli.app import CLEAN, FINDINGS, IO, Usage, exit_code_of, one_line
from kafkalog.cli.choosing import COMMITTED, isolation
from kafkalog.cli.console import Progress, emit, emit_json, fields, note, parse_settings, size_words
from kafkalog.cli.places import SETTINGS, log_dirs_at, parse_bytes
from kafkalog.cli.spark import cluster, session
from kafkalog.cli.verify import print_report
from kafkalog.toolbox.report import Report

DIRS = click.argument("log_dirs", nargs=-1, required=True, type=click.Path(), metavar="DIR...")
ONLY = click.option("--only", "only", multiple=True, metavar="TOPIC|PARTITION", help="orders, or orders-0; else all.")
YES = click.option("--yes", is_flag=True, help="Do it.  Without it, only tell; the default.")
JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines, and a summary.")
PROGRESS = click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")


def _total(log_dirs: list[str], only: tuple[str, ...]) -> tuple[int, list[str] | None]:
    """Bytes of what is chosen, and its names."""
    from kafkalog.spark.jobs.run import choose

    named = list(only) or None
    return sum(each.bytes for each in choose(log_dirs, named)), named


@click.command("verify")
@DIRS
@ONLY
@click.option("--deep", is_flag=True, help="Decode every record; check sequences, transactions and epochs too.")
@JSON
@PROGRESS
@cluster
def verify(
    log_dirs: tuple[str, ...],
    only: tuple[str, ...],
    deep: bool,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Check every batch, index entry and small file of log directories, or of some topics and partitions.

    As `kafkalog verify`.  Exit 0 when all is well, 1 with findings, 3 where something could not be read.
    """
    roots = log_dirs_at(log_dirs)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.verification import verified

        size, named = _total(roots, only)
        with Progress(size, "verified", force=progress) as bar:
            found = verified(spark, roots, named, deep=deep, progress=bar.advance)
    report, code = Report(), CLEAN
    for each in found:
        report.take(each.report)
        report.partitions += each.partition is not None and each.report.partitions == 0
        if each.error is not None:
            note(f"{each.partition} of {each.log_dir} could not be read: {one_line(each.error)}")
            code = IO
    return max(code, print_report(report, as_json))


@click.command("recover")
@DIRS
@ONLY
@YES
@click.option("--from-start", is_flag=True, help="Distrust everything, not only what lies behind the recovery point.")
@SETTINGS
@JSON
@PROGRESS
@cluster
def recover(
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
    """Recover partitions of log directories as after a crash, from their recovery points on.

    As `kafkalog recover`: without --yes it is only told.  Exit 1 when something was, or would be, cut.
    """
    roots = log_dirs_at(log_dirs)
    given = parse_settings(settings)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.recovery import recovered

        size, named = _total(roots, only)
        with Progress(size, "recovered" if yes else "looked at", force=progress) as bar:
            found = recovered(spark, roots, named, act=yes, config=given, from_start=from_start, progress=bar.advance)
    return recovery.print_all([each.result for each in found], yes, as_json, roots)


@click.command("compact")
@DIRS
@ONLY
@YES
@click.option("--by-shuffle", is_flag=True, help="One partition, its last offsets by a shuffle: for too many keys.")
@SETTINGS
@click.option("--dedupe-buffer-size", metavar="BYTES", help="Memory for keys of a task, 24 bytes each; 96MiB.")
@click.option("--roll", is_flag=True, help="Close active segments first, so that their records count, too.")
@JSON
@PROGRESS
@cluster
def compact(
    log_dirs: tuple[str, ...],
    only: tuple[str, ...],
    yes: bool,
    by_shuffle: bool,
    settings: tuple[str, ...],
    dedupe_buffer_size: str | None,
    roll: bool,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Compact partitions of log directories as a broker's cleaner does.

    As `kafkalog compact`: without --yes it is only told.  Exit 1 where a partition cannot be compacted for damage, 3
    where somebody has a directory.
    """
    roots = log_dirs_at(log_dirs)
    given = parse_settings(settings)
    if "cleanup.policy" in given and not only:
        raise Usage(
            "found -X cleanup.policy for whole directories, expected --only with the topics that it is meant for"
        )
    if by_shuffle and not (yes and len(only) == len(roots) == 1):
        raise Usage("--by-shuffle does one partition: expected one DIR, --only orders-0 and --yes")
    with session(master, conf) as spark:
        from kafkalog.spark.jobs import compaction as jobs
        from kafkalog.spark.jobs.shuffle import compacted_by_shuffle

        buffer = jobs.MAP_BYTES
        if dedupe_buffer_size is not None:
            buffer = parse_bytes(dedupe_buffer_size, "--dedupe-buffer-size")
        size, named = _total(roots, only)
        with Progress(size, "compacted" if yes else "looked at", force=progress) as bar:
            if by_shuffle:
                _, result = compacted_by_shuffle(
                    spark, roots[0], only[0], config=given, rolls=roll, progress=bar.advance
                )
                results, alone = [result], {}
            else:
                found = jobs.compacted(
                    spark, roots, named, act=yes, config=given, map_bytes=buffer, rolls=roll, progress=bar.advance
                )
                left = [each.result for each in found if each.is_left_alone]
                alone = {each.partition: each.held for each in left if each.held is not None}
                results = [each.result for each in found if not each.is_left_alone]
    for partition, why in alone.items():
        note(f"note: {partition} is left alone: {why.text}")
    return compaction.print_all(results, yes, as_json, alone)


@click.command("export")
@DIRS
@click.option("--to", "target", required=True, type=click.Path(), metavar="FOLDER", help="Where the files go.")
@ONLY
@click.option("--codec", default="zstd", show_default=True, help="none, snappy, gzip, lz4 or zstd.")
@click.option("--headers", is_flag=True, help="Also the headers.")
@COMMITTED
@click.option("--skip-damage", is_flag=True, help="Go on in the next segment where records cannot be read.")
@click.option("--range-size", default="128MiB", show_default=True, metavar="BYTES", help="Of a log, for one task.")
@JSON
@PROGRESS
@cluster
def export(
    log_dirs: tuple[str, ...],
    target: str,
    only: tuple[str, ...],
    codec: str,
    headers: bool,
    committed: bool,
    skip_damage: bool,
    range_size: str,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Write what FOLDER does not have yet to Parquet files, topic=orders/hour=2026-11-01-09/orders-0-<offset>.parquet.

    What is there stays, so the same command once an hour writes what was appended since, and one that was cut short
    goes on.  Exit 1 where a range could not be read for damage, 3 for the disk, or while another export is at work.
    """
    roots = log_dirs_at(log_dirs)
    with session(master, conf) as spark:
        from kafkalog.spark.jobs.exporting import export_ranges

        size, named = _total(roots, only)
        with Progress(size, "exported", force=progress) as bar:
            found = export_ranges(
                spark, roots, target, named, codec=codec, headers=headers, isolation=isolation(committed),
                skip_damage=skip_damage, range_bytes=parse_bytes(range_size, "--range-size"), progress=bar.advance,
            )  # fmt: skip
    code = CLEAN
    for each in found:
        where = f"{each.range.partition} [{each.range.start}, {each.range.end})"
        if each.error is not None:
            code = max(code, exit_code_of(each.error))
            note(f"{where}: nothing was written: {one_line(each.error)}")
        for file in each.files:
            if as_json:
                emit_json({"kind": "file", **fields(each.range.partition), **fields(file)})
            else:
                emit(f"{file.path}: {file.records} records, {size_words(file.bytes)}")
    totals = (sum(each.records for each in found), sum(each.bytes for each in found))
    files, failed = sum(len(each.files) for each in found), sum(each.error is not None for each in found)
    if as_json:
        summary = {"files": files, "ranges": len(found), "failed": failed, "records": totals[0], "bytes": totals[1]}
        emit_json({"kind": "summary", **summary})
    else:
        words = f"{totals[0]} records, {size_words(totals[1])} in {files} files"
        emit(f"in all: {words}" + (f"; {failed} of {len(found)} ranges failed" if failed else ""))
    return code


@click.command("import")
@click.argument("source", type=click.Path(), metavar="FOLDER")
@click.argument("log_dir", type=click.Path(), metavar="DIR")
@ONLY
@YES
@SETTINGS
@click.option("--compression", help="Of the batches: none, gzip, snappy, lz4 or zstd.")
@click.option("--resume", is_flag=True, help="Append behind what partitions have already.")
@JSON
@PROGRESS
@cluster
def import_(
    source: str,
    log_dir: str,
    only: tuple[str, ...],
    yes: bool,
    settings: tuple[str, ...],
    compression: str | None,
    resume: bool,
    as_json: bool,
    progress: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """Make partitions of DIR of what `kafkalog spark export` wrote to FOLDER, every record at its offset.

    Without --yes it is only told which, with how many records.  Exit 1 where a partition could not be made.
    """
    from kafkalog.spark.jobs.importing import imported, to_import

    if not yes:
        planned = to_import(source, list(only) or None)
        for partition, written in planned.items():
            records = sum(file.records for file in written)
            if as_json:
                emit_json({"kind": "partition", **fields(partition), "done": False, "records": records})
            else:
                emit(f"{partition}: {records} records in {len(written)} files would come (--yes does it)")
        return CLEAN
    total = sum(file.bytes for written in to_import(source, list(only) or None).values() for file in written)
    with session(master, conf) as spark, Progress(total, "imported", force=progress) as bar:
        found = imported(
            spark, source, log_dir, list(only) or None, config=parse_settings(settings), compression=compression,
            resume=resume, progress=bar.advance,
        )  # fmt: skip
    code = CLEAN
    for each in found:
        code = max(code, CLEAN if each.error is None else max(exit_code_of(each.error), FINDINGS))
        if as_json:
            emit_json(_import_json(each))
        elif each.error is not None:
            emit(f"{each.partition}: was not made: {one_line(each.error)}")
        else:
            emit(f"{each.partition}: {each.records} records, offsets {each.log_start_offset} to {each.end_offset - 1}")
    return code


def _import_json(each: Any) -> dict[str, Any]:
    return {
        "kind": "partition",
        **fields(each.partition),
        "done": each.error is None,
        "records": each.records,
        "logStartOffset": each.log_start_offset,
        "endOffset": each.end_offset,
        "bytes": each.bytes,
        "error": None if each.error is None else one_line(each.error),
    }


BY_NAME = {"compact": compact, "export": export, "import": import_, "recover": recover, "verify": verify}
