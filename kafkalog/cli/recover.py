"""`kafkalog recover`: recovers logs as an open after a crash does; without --yes only reports it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

import click

from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, exit_code_of, one_line, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    locate,
    log_bytes,
    note,
    some,
    tell_findings,
)
from kafkalog.cli.loss_table import note_next_of, print_losses
from kafkalog.cli.places import SETTINGS, topic_settings, without_metadata
from kafkalog.cli.tables import utc_option
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import BeingWrittenException, UnknownTopicOrPartitionException
from kafkalog.toolbox.gaps import is_of_gap_alone
from kafkalog.toolbox.losses import LostRange
from kafkalog.toolbox.recovery import Recovered, not_recovered, recover
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.words import command as command_text


@click.command("recover", short_help="Recover partitions after a crash, or report what that would do.")
@click.argument("log_dir", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--from-start", is_flag=True, help="Check each log from its start, not from the recovery point.")
@SETTINGS
@utc_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: partitions, topics that lose records, a summary."
)
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    from_start: bool,
    settings: tuple[str, ...],
    as_json: bool,
    progress: bool,
) -> int:
    """Recover PARTITIONS (default: all) of LOG_DIR as after a crash, from their recovery points on.

    As in Kafka, the log is truncated at the first damage, and everything after it is lost; `kafkalog salvage` keeps
    more. Indexes, leader epochs and producer state are rebuilt.

    Without --yes nothing changes: the command recovers a temporary copy of what would change, reports the result and
    deletes the copy.

    For each partition the command shows the old end (as far as batches can still be found), the new end, and an upper
    bound for the lost records. A table shows the loss of each topic and the times of the lost records, taken from
    headers and time indexes after the damage. Segments that were missing before are counted too, as in `kafkalog
    verify`; the only trace of them may be an index without its log, which a recovery deletes.

    Exit 1 if something is missing, was or would be truncated, or cannot be read. A partition that cannot be read is
    reported and not truncated. Topic settings or recovery points that cannot be read are reported and count as empty;
    --yes then needs --from-start, if it is the recovery points (else exit 3).

    If another program is writing, the command checks again what seems damaged. If each check finds something else, it
    reports that the partition is being written (exit 4).
    """
    log_dir, found = locate(log_dir, partitions)
    chosen = without_metadata(found)
    act = yes and not dry_run
    config = topic_settings(log_dir, settings).given
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
    with Progress(log_bytes(chosen.values()), "recovered" if act else "checked", force=progress) as bar:
        results = recover(log_dir, chosen, act=act, config=config, from_start=from_start, progress=bar.advance)
        return print_all(results, act, as_json, [log_dir], log_dir)


def print_all(
    results: Iterable[Recovered], act: bool, as_json: bool, log_dirs: Sequence[str], place: str | None = None
) -> int:
    """Prints each partition as it arrives, the loss of each topic, and a summary; returns the exit code. If `place` is
    given, it is the only directory, and the command that helps next is suggested."""
    code = CLEAN
    lost: list[LostRange] = []
    gaps: set[str] = set()  # gaps that `salvage` cannot fill
    waits = []  # partitions that --yes would change
    unopened: list[TopicPartition] = []
    unindexed: list[TopicPartition] = []  # with nothing wrong but an index that cannot be read
    unread = 0  # partitions with segments before the recovery point
    total = {"partitions": 0, "lostRecords": 0, "lostBytes": 0, "missingRecords": 0}
    beside: list[Finding] = []
    for result in results:
        new = [each for each in result.beside if each not in beside]
        beside += new
        tell_findings(new, as_json=as_json)
        if not act and isinstance(result.error, UnknownTopicOrPartitionException):
            note(f"note: {one_line(result.error)}")
            continue
        if as_json:
            emit_json(_json(result, act))
        else:
            _print(result, act)
        lost += result.lost if result.error is None else ()
        gaps |= {finding.path for finding in result.missing if is_of_gap_alone(finding)}
        changes = result.added or result.removed or result.changed
        waits += [result.partition] if changes and not act and result.error is None else []
        unread += result.error is None and result.unread_below is not None
        total["partitions"] += 1
        total["lostRecords"] += result.lost_records
        total["lostBytes"] += result.lost_bytes
        total["missingRecords"] += result.missing_records
        if result.error is not None:
            cure = ""
            if _has_unread_index(result):
                unindexed.append(result.partition)
                reindex = command_text("reindex", place or "LOG_DIR", "--yes", result.partition)
                cure = f": the log is not affected, and {reindex} creates the index again"
            elif not isinstance(result.error, BeingWrittenException):
                unopened.append(result.partition)
            note(f"kafkalog: {result.partition}: {result.unread or one_line(result.error)}{cure}")
            code = worse(code, exit_code_of(result.error) if result.unread is None else FINDINGS)
        if result.lost_bytes or result.lost_end is not None or result.missing:
            code = worse(code, FINDINGS)
    code = worse(code, FINDINGS if beside else CLEAN)
    left = {log_dir: not_recovered(log_dir) for log_dir in log_dirs}
    if as_json:
        print_losses(lost, as_json=True)
        emit_json(
            {"kind": "summary", "done": act, **total, "notRecovered": [path for each in left.values() for path in each]}
        )
    else:
        for log_dir, paths in left.items():
            if paths:
                note(
                    f"note: this command does not open {some(map(os.path.basename, paths))}; the next start of the "
                    f"broker or store recovers them, and until then {log_dir} does not count as closed cleanly"
                )
        print_losses(lost)
        if unread:
            verify = command_text(*(["verify"] if len(log_dirs) == 1 else ["spark", "verify"]), "--deep", *log_dirs)
            note(
                f"note: segments before the recovery point were not checked in {counted(unread, 'partition')}: "
                f"{verify} finds damage there, and --from-start recovers from the log start on"
            )
        emit(
            f"in all: {counted(total['partitions'], 'partition')}, {_lost(total['lostRecords'], total['lostBytes'])} "
            f"{'lost' if act else 'would be lost'}"
            + (
                f" (up to {total['missingRecords']} of these records were missing before)"
                * (total["missingRecords"] > 0)
            )
        )
        if place is not None and unindexed:
            note_next_of("reindex", place, unindexed, "--yes")
        damaged = {*unopened, *({each.partition for each in lost if each.path not in gaps} if not act else ())}
        if place is not None and damaged:
            note_next_of("salvage", place, damaged, "NEW_DIR")
        elif place is not None and waits:
            note_next_of("recover", place, waits, "--yes")
    return code


def _has_unread_index(result: Recovered) -> bool:
    """Returns whether a partition cannot be opened because an offset or time index cannot be read."""
    suffixes = (names.INDEX_FILE_SUFFIX, names.TIME_INDEX_FILE_SUFFIX)
    return result.unread is not None and result.unread.path.endswith(suffixes)


def _lost(records: int, size_bytes: int) -> str:
    return f"{'up to ' if records else ''}{counted(records, 'record')} and {counted(size_bytes, 'byte')}"


def _json(result: Recovered, act: bool) -> dict[str, Any]:
    return {
        "kind": "partition",
        "topic": result.partition.topic,
        "partition": result.partition.partition,
        "done": act,
        "recoveryPoint": result.recovery_point,
        "error": None if result.error is None else str(result.unread or one_line(result.error)),
        "logStartOffset": result.log_start_offset,
        "oldEndOffset": result.old_end_offset,
        "endOffset": result.end_offset,
        "lostRecords": result.lost_records,
        "lostBytes": result.lost_bytes,
        "missingRecords": result.missing_records,
        "lostEnd": None if result.lost_end is None else str(result.lost_end),
        "missing": list(map(str, result.missing)),
        "cuts": [fields(cut) for cut in result.cuts],
        "dropped": [{"path": path, "bytes": size} for path, size in result.dropped.items()],
        "added": result.added,
        "removed": result.removed,
        "changed": result.changed,
    }


def _print(result: Recovered, act: bool) -> None:
    if result.error is not None:
        had = "was not" if act else "would not be"
        is_written = isinstance(result.error, BeingWrittenException)
        changed = ", but was changed before that" if act and (result.added or result.removed or result.changed) else ""
        emit(f"{result.partition}: {'is being written' if is_written else f'{had} opened{changed}'}")
    else:
        done = "recovered" if act else "would be recovered (--yes does it)"
        emit(
            f"{result.partition}: {done} from offset {result.recovery_point} on; the log starts at "
            f"{result.log_start_offset} and ends at {result.end_offset}"
        )
    if result.lost_bytes and result.error is None:
        emit(
            f"  old end {result.old_end_offset}, new end {result.end_offset}: "
            f"{_lost(result.lost_records, result.lost_bytes)} {'lost' if act else 'would be lost'}"
        )
    for finding in result.missing:
        emit(f"  {finding}")
    if result.lost_end is not None:
        emit(f"  {result.lost_end}")
    for cut in result.cuts:
        emit(
            f"  {'truncated' if act else 'would truncate'} {counted(cut.length, 'byte')} from byte {cut.position} "
            f"of {cut.path} on: {cut.why}"
        )
    for path, size in result.dropped.items():
        emit(f"  {'deleted' if act else 'would delete'} {path} ({counted(size, 'byte')})")
    listed = (("new", result.added), ("removed", result.removed), ("changed", result.changed))
    for what, files in listed:
        if files:
            emit(f"  {what}: {', '.join(files)}")
