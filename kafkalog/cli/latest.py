"""`kafkalog latest`: the last value of each key of partitions, as text, as JSON lines, or in files that others read."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kafkalog import _shown
from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import Progress, emit, log_bytes, note
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
@choosing.filters("last", "committed", until="As it was then, as far as cleaners left it: an offset, or a time.")
@click.option("--uncommitted", is_flag=True, help="Let aborted and open transactions count, too (read_uncommitted).")
@click.option("--tombstones", is_flag=True, help="Also the keys whose last value is null, which are deleted.")
@click.option("-f", "--format", "template", help=f"Text with kcat's %s %k %o ... (see cat).  [default: {LINE}]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a key, as cat prints a record.")
@click.option("--to", "target", metavar="DIR|FILE", type=LocalPath(), help=f"Write files instead: {SUFFIXES}.")
@click.option("--as", "kind", metavar="NAME", help="Of --to DIR: what files, by default parquet.")
@click.option("--codec", metavar="NAME", help="Of --to: compression of parquet and arrow, as export has it.")
@click.option("--headers", is_flag=True, help="Of --to: add the column headers.")
@click.option("--base64", "in_base64", is_flag=True, help="Of --to: keys and values of csv and jsonl in base64.")
@click.option("--force", is_flag=True, help="Of --to: replace files that are there.")
@click.option("--memory", metavar="BYTES", default="512MiB", show_default=True, help="For the map of keys, at most.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
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
    """Print the last value of each key of PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR, by offset.

    What a clean of the whole log would keep, without one: aborted transactions do not count, nor does what lies behind
    an open one.  Records without a key are left out, and so are keys whose last value is null.  Each partition answers
    for itself: where partitions were added to a topic, a key may be in several.

    --from, --until, --key and --key-prefix choose the records that count; --grep, --header and --where choose among the
    last values.

    Reads the log twice, without a lock, beside a running broker.  Takes 27 to 54 bytes of memory a key (while it grows
    80), at most --memory (512MiB: 13 million keys); with more keys it reads the log once more for each share of them.

    At damage it prints the state before it, and stops with exit code 1; files are not written then.  Needs pyarrow.
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
        raise Usage("found --to beside --format or --json, expected one of them: --to writes files")
    skip_hint = "partitions are named as orders-0 orders-2"
    there = choosing.chosen(log_dir, partitions, topics, skip_hint=skip_hint)
    log_dir = there.log_dir
    chosen, said = asked.narrowed(there, (*partitions, *topics))
    beside_lines = target is None and sys.stdout.isatty()  # a bar between them helps nobody
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
    """The format of --to: what is asked for, or what the file's name ends in, or parquet for a folder."""
    found = kind or next((name for name in FORMATS if target.endswith(f".{name}")), None)
    if found is None and not OS_FILES.is_dir(target) and "." in os.path.basename(target):
        raise Usage(f"--to {target}: no format ends so, expected {SUFFIXES}, a folder, or --as")
    return found or "parquet"


def _write(
    log_dir: str,
    partitions: list[TopicPartition],
    target: str,
    files: ExportOptions,
    options: LatestOptions,
    bar: Progress,
) -> int:
    """How many keys were written."""
    from kafkalog.toolbox.latest import export_latest

    report = ExportReport()
    try:
        export_latest(log_dir, partitions, target, files, options, report=report, progress=bar.advance, told=_tell)
    finally:
        for file in report.files:
            emit(f"{file.path}: {file.records} keys, {_shown.size(file.bytes)}")
    return report.records


def _tell(found: Latest) -> None:
    """What is not in it."""
    name = found.source.topic_partition
    if found.keyless:
        note(f"note: {name}: left out, for they have no key: {found.keyless} records")
    if found.open_from is not None:
        note(
            f"note: {name}: nothing from offset {found.open_from} on counts, where a transaction is open; "
            "--uncommitted lets it"
        )
