"""`kafkalog spark import`: creates partitions from an export."""

from __future__ import annotations

from typing import Any

import click

from kafkalog.cli.app import CLEAN, LocalPath, one_line
from kafkalog.cli.console import Progress, counted, emit, emit_json, fields, parse_settings
from kafkalog.cli.places import SETTINGS
from kafkalog.cli.spark import JSON, ONLY, PROGRESS, YES, cluster, code_of_row, session


@click.command("import")
@click.argument("source", type=LocalPath(), metavar="EXPORT_DIR")
@click.argument("log_dir", type=LocalPath(), metavar="DIR")
@click.argument("partitions", nargs=-1)
@ONLY
@YES
@SETTINGS
@click.option("--compression", metavar="CODEC", help="Compression of batches: none, gzip, snappy, lz4 or zstd.")
@click.option("--resume", is_flag=True, help="Append to existing partitions what they do not have yet.")
@JSON
@PROGRESS
@cluster
def command(
    source: str,
    log_dir: str,
    partitions: tuple[str, ...],
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
    """Create partitions in DIR from what `kafkalog spark export` wrote to EXPORT_DIR, with every record at its offset.

    PARTITIONS (topic-0, a topic, or a glob) limits them; the default is all. Without --yes the command only reports the
    partitions and how many records they would get. Exit 1 if a partition could not be created, 3 for an I/O error or if
    another process uses DIR.
    """
    from kafkalog.spark.jobs.importing import imported, to_import

    named = [*partitions, *only] or None
    if not yes:
        code = CLEAN
        for planned in to_import(source, named):
            partition, records = planned.partition, planned.records
            code = max(code, CLEAN if planned.error is None else code_of_row(planned.error))
            if as_json:
                error = None if planned.error is None else one_line(planned.error)
                emit_json({"kind": "partition", **fields(partition), "done": False, "records": records, "error": error})
            elif planned.error is not None:
                emit(f"{partition}: cannot be created: {one_line(planned.error)}")
            else:
                files = counted(len(planned.written), "file")
                emit(f"{partition}: {counted(records, 'record')} in {files} would be imported (--yes does it)")
        return code
    total = sum(planned.bytes for planned in to_import(source, named))
    with session(master, conf) as spark, Progress(total, "imported", force=progress) as bar:
        found = imported(
            spark, source, log_dir, named, config=parse_settings(settings), compression=compression,
            resume=resume, progress=bar.advance,
        )  # fmt: skip
    code = CLEAN
    for each in found:
        code = max(code, CLEAN if each.error is None else code_of_row(each.error))
        if as_json:
            emit_json(_import_json(each))
        elif each.error is not None:
            emit(f"{each.partition}: was not created: {one_line(each.error)}")
        else:
            emit(
                f"{each.partition}: {counted(each.records, 'record')}, offsets {each.log_start_offset} to "
                f"{each.end_offset - 1}"
            )
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
