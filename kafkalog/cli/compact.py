"""`kafkalog compact`: does offline what a broker's log cleaner would do; without --yes only reports it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import click

from kafkalog import _shown
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.cli.app import BEING_WRITTEN, CLEAN, FINDINGS, IO, LocalPath, Usage, exit_code_of, one_line, worse
from kafkalog.cli.console import Progress, counted, emit, emit_json, fields, log_bytes, note
from kafkalog.cli.places import (
    CONFIG,
    SETTINGS,
    note_left_alone,
    parse_bytes,
    partitions_at,
    setting_fields,
    setting_words,
    topic_settings,
)
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.to_clean import Bound
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import BeingWrittenException, DiskError, UnknownTopicOrPartitionException
from kafkalog.partition import DEDUPE_BUFFER_BYTES_MIN
from kafkalog.toolbox.compact import Compacted, PassOptions, compact, left_alone, watermarks_are_blank
from kafkalog.toolbox.compaction_state import Reason

COUNTS = ("superseded", "tombstones", "without_key", "aborted", "markers")
DECIDING = (
    "cleanup.policy",
    "min.compaction.lag.ms",
    "delete.retention.ms",
)  # settings that decide which records are removed
WORDS = ("superseded", "tombstones", "without a key", "aborted", "transaction markers")
WAYS_OUT = {
    Bound.TRANSACTION.value: " (`kafkalog transactions` shows it)",
    Bound.LAG.value: " (-X min.compaction.lag.ms=0 shows what a pass would gain without this rule)",
}


@click.command("compact", short_help="Compact partitions offline, as a broker's log cleaner does.")
@click.argument("place", metavar="DIR|TOPIC|PARTITION", type=LocalPath())
@click.argument("partitions", nargs=-1)
@SETTINGS
@CONFIG
@click.option(
    "--dedupe-buffer-size", metavar="BYTES", help="Memory for the map of keys, 24 bytes each.  [default: 128MiB]"
)
@click.option("--roll", is_flag=True, help="Close active segments first, so that their records are compacted too.")
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(
    place: str,
    partitions: tuple[str, ...],
    settings: tuple[str, ...],
    broker_file: str | None,
    dedupe_buffer_size: str | None,
    roll: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Compact a log directory (DIR), a topic in it (DIR/orders) or a partition (DIR/orders-0), as a broker's log
    cleaner does.

    The last record of each key is kept. A tombstone is kept for delete.retention.ms after the first pass that kept it.
    Records without a key are removed. Three kinds of records are not touched: those in the active segment, those that
    are not yet committed or replicated everywhere, and those younger than min.compaction.lag.ms. A broker's cleaner
    continues from where this command ended.

    A topic is compacted if its cleanup.policy says so. The policy is stored next to the data or in the cluster's
    metadata; -X cleanup.policy=compact sets it for the topics that you name. min.cleanable.dirty.ratio counts only if
    -X gives it.

    Without --yes nothing changes. The command compacts a temporary copy of what would change (the last pass writes
    nothing), reports the result and deletes the copy. A later run may remove more, and its sizes may differ by a few
    bytes: a compressed batch stores the time of the pass as its delete horizon. The expected time is estimated from the
    speed of this run. If another program changes the files meanwhile, the command tries again, and then gives up
    (exit 4).

    With --yes removed records cannot be restored, and the directory must not be in use (exit 3). If damage prevents the
    compaction of a partition, also damage to the high watermark checkpoint, the command names it, continues with the
    others and exits with 1.
    """
    act = yes and not dry_run
    log_dir, chosen, named = partitions_at(place, partitions)
    known = topic_settings(log_dir, settings, broker_file)
    if "cleanup.policy" in known.given and not named:
        raise Usage(
            "found -X cleanup.policy for a whole directory, expected the names of topics or partitions "
            f"(kafkalog compact {place} orders ...): other topics would lose their records without keys"
        )
    cleaner = CleanerConfig() if known.broker is None else CleanerConfig.from_props(known.broker)
    if dedupe_buffer_size is not None:
        size = parse_bytes(dedupe_buffer_size, "--dedupe-buffer-size")
        if size < DEDUPE_BUFFER_BYTES_MIN:
            raise Usage(f"--dedupe-buffer-size: found {size} bytes, expected at least {DEDUPE_BUFFER_BYTES_MIN}")
        cleaner = replace(cleaner, dedupe_buffer_size=size)
    how = PassOptions(replace(cleaner, num_threads=1), roll)
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
    alone = left_alone(log_dir, chosen, known, policy_is_said=broker_file is not None and named)
    wanted = {partition: path for partition, path in chosen.items() if partition not in alone}
    if not wanted and named:
        raise Usage("; ".join(sorted({f"{partition.topic}: {why.text}" for partition, why in alone.items()})))
    note_left_alone({partition: why.text for partition, why in alone.items()})
    if any(watermarks_are_blank(log_dir, partition) for partition in [*wanted][:1]):
        note(f"note: {names.HIGH_WATERMARK_CHECKPOINT_FILE} is an empty file: every record counts as replicated")
    with Progress(2 * log_bytes(wanted.values()), "compacted" if act else "read", force=progress) as bar:
        results = compact(log_dir, wanted, known, how, act=act, progress=bar.advance)
        return print_all(results, act, as_json, alone, known)


def print_all(
    results: Iterable[Compacted],
    act: bool,
    as_json: bool,
    alone: dict[TopicPartition, Reason] | None = None,
    known: TopicSettings | None = None,
) -> int:
    """Prints each partition as it arrives, and a summary; returns the exit code. `alone` has the partitions that are
    not compacted and why. `known` has the settings of the others."""
    code, total, alone = CLEAN, _Total(), dict(alone or {})
    for result in results:
        if isinstance(result.error, UnknownTopicOrPartitionException):
            note(f"note: {one_line(result.error)}")
            continue
        if result.error is not None:
            here = exit_code_of(result.error)
            code = worse(code, here if here in (IO, BEING_WRITTEN) else FINDINGS)
        total.add(result)
        if as_json:
            settings = {} if known is None else setting_fields(known, result.partition.topic, DECIDING)
            emit_json(_json(result, act) | settings)
        else:
            _print(result, act)
            if known is not None and result.stats is not None and result.stats.passes:
                emit(f"  {setting_words(known, result.partition.topic, DECIDING)}")
    _sum_up(total, alone, act, as_json)
    return code


class _Total:
    def __init__(self) -> None:
        self.partitions = self.uncleanable = self.for_disk = self.records = self.before = self.gained = 0
        self.expected_s = self.elapsed_s = 0.0

    def add(self, result: Compacted) -> None:
        self.uncleanable += result.error is not None
        self.for_disk += isinstance(result.error, DiskError | BeingWrittenException)
        if result.stats is not None:
            self.partitions += result.stats.passes > 0
            self.records += result.stats.records
            self.before += result.stats.bytes_before
            self.gained += result.stats.bytes_gained
            self.expected_s += result.expected_s
            self.elapsed_s += result.stats.elapsed_s


def _json(result: Compacted, act: bool) -> dict[str, Any]:
    stats, error = result.stats, result.error
    out: dict[str, Any] = {
        "kind": "partition",
        "topic": result.partition.topic,
        "partition": result.partition.partition,
        "done": act and stats is not None and stats.passes > 0,
        "error": None if error is None else one_line(error),
        "path": None if error is None else getattr(error, "path", None),
        "position": None if error is None else getattr(error, "position", None),
        "held": None if result.held is None else fields(result.held),
    }
    if stats is not None:
        out |= {
            "passes": stats.passes,
            "firstDirtyOffset": stats.first_dirty_offset,
            "endOffset": stats.end_offset,
            "bytesBefore": stats.bytes_before,
            "bytesAfter": stats.bytes_after,
            "gained": stats.bytes_gained,
            "records": stats.records,
            "superseded": stats.superseded,
            "tombstones": stats.tombstones,
            "withoutKey": stats.without_key,
            "aborted": stats.aborted,
            "markers": stats.markers,
            "batches": stats.batches,
            "segments": stats.segments,
            "elapsedMs": round(stats.elapsed_s * 1000),
            "expectedMs": None if act else round(result.expected_s * 1000),
        }
    return out


def _print(result: Compacted, act: bool) -> None:
    stats = result.stats
    if result.error is not None:
        emit(f"{result.partition}: cannot be compacted: {one_line(result.error)}")
        return
    assert stats is not None
    if not stats.passes:
        emit(f"{result.partition}: nothing to compact: all records before offset {stats.end_offset} are compacted")
    else:
        counts = ", ".join(
            f"{getattr(stats, name)} {word}" for name, word in zip(COUNTS, WORDS, strict=True) if getattr(stats, name)
        )
        emit(
            f"{result.partition}: {counted(stats.records, 'record')}{f' ({counts})' if counts else ''} "
            f"{'removed' if act else 'would be removed (--yes does it)'}; {counted(stats.batches, 'batch')} in "
            f"{counted(stats.segments, 'segment')} {'remain' if act else 'would remain'}; "
            f"{_shown.size(stats.bytes_before)} -> {_shown.size(stats.bytes_after)}, {_gain(stats.bytes_gained)}"
        )
        took = _seconds(stats.elapsed_s) if act else f"about {_seconds(result.expected_s)}"
        passes = "1 pass" if stats.passes == 1 else f"{stats.passes} passes"
        emit(f"  {passes} over offsets {stats.first_dirty_offset} to {stats.end_offset - 1}, {took}")
    if result.held is not None:
        emit(f"  the rest is kept: {result.held.text}{WAYS_OUT.get(result.held.what, '')}")


def _gain(size_bytes: int) -> str:
    return f"{_shown.size(size_bytes)} gained" if size_bytes >= 0 else f"{_shown.size(-size_bytes)} more than before"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _sum_up(total: _Total, alone: dict[TopicPartition, Reason], act: bool, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "done": act,
                "partitions": total.partitions,
                "uncleanable": total.uncleanable,
                "records": total.records,
                "bytesBefore": total.before,
                "gained": total.gained,
                "elapsedMs": round(total.elapsed_s * 1000),
                "expectedMs": None if act else round(total.expected_s * 1000),
                "skipped": {str(partition): why.text for partition, why in alone.items()},
            }
        )
        return
    time = _seconds(total.elapsed_s) if act else f"about {_seconds(total.expected_s)} at the speed of this run"
    emit(
        f"in all: {counted(total.records, 'record')} of {counted(total.partitions, 'partition')}, "
        f"{_shown.size(total.before)}, {_gain(total.gained)}, {time}"
    )
    damaged = total.uncleanable - total.for_disk
    if damaged:
        emit(f"not compacted because of damage: {counted(damaged, 'partition')}; `kafkalog verify` shows it")
    if total.for_disk:
        emit(
            "not compacted because of a disk error or another program that is writing: "
            f"{counted(total.for_disk, 'partition')}"
        )
