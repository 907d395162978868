"""`kafkalog export`: writes records of partitions to Parquet, Arrow, CSV or JSON lines."""

from __future__ import annotations

import contextlib
import os

import click

from kafkalog import _shown
from kafkalog.cli import choosing
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import Progress, counted, emit, emit_json, fields, log_bytes, note, tell_findings
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.export import FORMATS, ExportedFile, ExportOptions, ExportReport, export

SUFFIXES = tuple(f".{name}" for name in FORMATS)


@click.command("export", short_help="Write records to Parquet, Arrow, CSV or JSON files.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option(
    "--to", "target", metavar="DIR|FILE", required=True, type=LocalPath(), help="The file or directory to write."
)
@click.option(
    "--format", "kind", metavar="NAME", help=f"{', '.join(FORMATS)}.  [default: from the suffix of FILE, or parquet]"
)
@click.option("--codec", metavar="NAME", help="Compression of parquet (none, snappy, gzip, lz4, zstd) and arrow.")
@choosing.TOPIC
@choosing.filters()
@click.option("--headers", is_flag=True, help="Add the column headers.")
@click.option("--base64", "in_base64", is_flag=True, help="Write all keys and values of csv and jsonl in base64.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: files, lost ranges and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    target: str,
    kind: str | None,
    codec: str | None,
    topics: tuple[str, ...],
    asked: choosing.Asked,
    headers: bool,
    in_base64: bool,
    force: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Write the records of PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR to Parquet, Arrow, CSV or JSON
    files.

    If --to is a FILE that ends in .parquet, .arrow, .csv or .jsonl, all records go into it. If it is a DIR, each
    partition gets a file, such as orders-0.parquet. A file appears when it is complete.

    LOG_DIR is only read; no lock is taken, and a broker may be running.

    The columns are those of Python's read_arrow: topic, partition, offset, timestamp, timestamp_type, key, value, and
    with --headers also headers.

    At damage the command stops with exit code 1 and writes no file. With --skip-damage it continues after the damage;
    it then also reports partitions that cannot be read (no permission, a disk that fails) and continues. Needs pyarrow.
    """
    if kind is None:
        kind = next((name for name in FORMATS if target.endswith(f".{name}")), None)
        if kind is None and not OS_FILES.is_dir(target) and "." in os.path.basename(target):
            raise Usage(f"--to {target}: unknown suffix, expected {', '.join(SUFFIXES)}, a directory, or --format")
    options = ExportOptions(
        format=kind or "parquet",
        codec=codec,
        selection=asked.selection,
        last=asked.last,
        headers=headers,
        in_base64=in_base64,
        force=force,
    )
    skip_hint = None if asked.skips_damage else "--skip-damage continues without them"
    found = choosing.chosen(log_dir, partitions, topics, skip_hint=skip_hint)
    log_dir, missing = found.log_dir, found.missing
    chosen, said = asked.narrowed(found, (*partitions, *topics))
    report = ExportReport()
    try:
        with Progress(log_bytes(chosen.values()), "exported", force=progress) as bar:
            export(log_dir, list(chosen), target, options, report=report, progress=bar.advance)
    finally:
        for file in report.files:
            _tell(file, as_json)
        choosing.tell_lost(asked.lost, as_json=as_json)
        tell_findings(report.unread, as_json=as_json)
    if asked.selection.isolation == choosing.isolation(True):
        for partition in chosen:
            with contextlib.suppress(KafkalogError, OSError), PartitionView(log_dir, partition) as view:
                choosing.note_open(view, asked.selection)
    if not report.records:
        asked.note_nothing()
    if said and not report.records:
        note(choosing.NOT_THERE)
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "files": len(report.files),
                "partitions": len(chosen),
                "records": report.records,
                "bytes": report.bytes,
                "lost": len(asked.lost),
            }
        )
    else:
        emit(
            f"in all: {counted(len(chosen), 'partition')}, {counted(report.records, 'record')}, "
            f"{_shown.size(report.bytes)} in {counted(len(report.files), 'file')}; "
            f"{counted(len(asked.lost), 'range')} lost"
        )
    return FINDINGS if asked.lost or report.unread or missing else CLEAN


def _tell(file: ExportedFile, as_json: bool) -> None:
    if as_json:
        emit_json({"kind": "file", **fields(file)})
    else:
        emit(f"{file.path}: {counted(file.records, 'record')}, {_shown.size(file.bytes)}")
