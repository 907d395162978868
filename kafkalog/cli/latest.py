"""`kafkalog latest`: prints the last value of each key as text or JSON lines, or writes it to files."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kafkalog import _shown
from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import Progress, counted, emit, log_bytes, note
from kafkalog.cli.places import parse_bytes
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.log.view import PartitionView
from kafkalog.toolbox.export import FORMATS, ExportOptions, ExportReport

if TYPE_CHECKING:
    from kafkalog._face.latest import Latest
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.toolbox.latest import LatestOptions

SUFFIXES = ", ".join(f".{name}" for name in FORMATS)
LINE = "%k\\t%s\\n"


@click.command("latest", short_help="Print the last value of each key.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.filters("last", "committed", until="The state before this offset or time, as far as cleaners have kept it.")
@click.option("--uncommitted", is_flag=True, help="Include aborted and open transactions (read_uncommitted).")
@click.option("--tombstones", is_flag=True, help="Include deleted keys, whose last value is null.")
@click.option("-f", "--format", "template", help=f"Text with kcat's fields: %s %k %o ... (see cat).  [default: {LINE}]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: records as cat prints them.")
@click.option("--to", "target", metavar="DIR|FILE", type=LocalPath(), help=f"Write files instead: {SUFFIXES}.")
@click.option(
    "--as", "kind", metavar="NAME", help="With --to: the format.  [default: from the suffix of FILE, or parquet]"
)
@click.option("--codec", metavar="NAME", help="With --to: compression of parquet and arrow, as in export.")
@click.option("--headers", is_flag=True, help="With --to: add the column headers.")
@click.option(
    "--base64", "in_base64", is_flag=True, help="With --to: write all keys and values of csv and jsonl in base64."
)
@click.option("--force", is_flag=True, help="With --to: replace existing files.")
@click.option("--memory", metavar="BYTES", default="512MiB", show_default=True, help="Limit for the map of keys.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    asked: choosing.Asked,
    uncommitted: bool,
    tombstones: bool,
    template: str | None,
    as_json: bool,
    target: str | None,
    kind: str | None,
    codec: str | None,
    headers: bool,
    in_base64: bool,
    force: bool,
    memory: str,
    progress: bool,
) -> int:
    """Print the last value of each key of PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR, in the order of
    offsets.

    This is what a compaction of the whole log would keep, but nothing is compacted. LOG_DIR is only read; no lock is
    taken, and a broker may be running. With --to the values are written to files.

    Aborted transactions, and everything after an open one, are ignored, unless --uncommitted is given. Records without
    a key and deleted keys are left out. Each partition is read separately: if partitions were added to a topic, a key
    may be in several.

    --from, --until, --key and --key-prefix select the records that count. --grep, --header and --where select among the
    last values.

    The log is read twice. A key needs 27 to 54 bytes of memory (80 while the map grows), at most --memory: 512MiB is
    enough for 13 million keys. With more keys the log is read once more for each share of them.

    At damage the command prints the state before it, writes no files, and stops with exit code 1. Needs pyarrow.
    """
    from kafkalog.toolbox.latest import LatestOptions

    need_pyarrow()
    asked.selection.isolation = "read_uncommitted" if uncommitted else "read_committed"
    options = LatestOptions(
        selection=asked.selection,
        tombstones=tombstones,
        memory_bytes=parse_bytes(memory, "--memory"),
    )
    if target is None:
        if kind is not None or codec is not None or headers or in_base64 or force:
            raise Usage("found --as, --codec, --headers, --base64 or --force without --to, expected --to with them")
        show = record_lines.printer(template or LINE, json=as_json)
    elif template is not None or as_json:
        raise Usage("found --to with --format or --json, expected one of them: --to writes files")
    skip_hint = "to use only some partitions name them: orders-0 orders-2"
    there = choosing.chosen(log_dir, partitions, topics, skip_hint=skip_hint)
    log_dir = there.log_dir
    chosen, said = asked.narrowed(there, (*partitions, *topics))
    beside_lines = target is None and sys.stdout.isatty()  # a bar between the lines would be in the way
    with Progress(0 if beside_lines else 2 * log_bytes(chosen.values()), "read", force=progress) as bar:
        if target is not None:
            files = ExportOptions(_kind(target, kind), codec, headers=headers, in_base64=in_base64, force=force)
            count = _write(log_dir, list(chosen), target, files, options, bar)
        else:
            from kafkalog.toolbox.latest import latest, latest_records

            count = 0
            for partition in chosen:
                with PartitionView(log_dir, partition) as view:
                    found = latest(view, options, progress=bar.advance)
                    _tell(found)
                    for record in latest_records(found, options):
                        show(record)
                        count += 1
    choosing.tell_lost(asked.lost)
    if said and not count:
        note(choosing.NOT_THERE)
    return FINDINGS if asked.lost else CLEAN


def _kind(target: str, kind: str | None) -> str:
    """Returns the format of --to: the one requested, that of the file's suffix, or parquet for a directory."""
    found = kind or next((name for name in FORMATS if target.endswith(f".{name}")), None)
    if found is None and not OS_FILES.is_dir(target) and "." in os.path.basename(target):
        raise Usage(f"--to {target}: unknown suffix, expected {SUFFIXES}, a directory, or --as")
    return found or "parquet"


def _write(
    log_dir: str,
    partitions: list[TopicPartition],
    target: str,
    files: ExportOptions,
    options: LatestOptions,
    bar: Progress,
) -> int:
    """Writes the files and returns how many keys were written."""
    from kafkalog.toolbox.latest import export_latest

    report = ExportReport()
    try:
        export_latest(log_dir, partitions, target, files, options, report=report, progress=bar.advance, told=_tell)
    finally:
        for file in report.files:
            emit(f"{file.path}: {counted(file.records, 'key')}, {_shown.size(file.bytes)}")
    return report.records


def _tell(found: Latest) -> None:
    """Reports the records that were left out."""
    name = found.source.topic_partition
    if found.keyless:
        note(f"note: {name}: left out {counted(found.keyless, 'record')} without a key")
    if found.open_from is not None:
        note(
            f"note: {name}: left out everything from offset {found.open_from} on, where a transaction is open; "
            "--uncommitted includes it"
        )
