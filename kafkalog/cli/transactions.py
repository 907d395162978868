"""`kafkalog transactions`: what is open, what hangs, and what read_committed readers wait for."""

from __future__ import annotations

import re
import time

import click

from kafkalog.cli import choosing
from kafkalog.cli.app import CLEAN, FINDINGS, Usage, worse
from kafkalog.cli.console import Progress, emit, emit_json, fields, log_bytes, note, paint, tell_unsettled, time_words
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.errors import BeingWrittenException, UnknownTopicOrPartitionException
from kafkalog.toolbox.open_transactions import OpenTransaction, PartitionTransactions, look_for_transactions

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.command("transactions", short_help="Show open and hanging transactions.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@click.option(
    "--hanging-after",
    "limit",
    metavar="DURATION",
    default="15m",
    show_default=True,
    help="How long one may be open, such as 900000ms, 15m, 1h: the brokers' transaction.max.timeout.ms.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a partition, open transactions within.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    limit: str,
    as_json: bool,
    progress: bool,
) -> int:
    """Show the transactions of PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR.

    Of each partition how many transactions its markers commit and abort, and what is open: producer id and epoch,
    first offset, since when.  The first that is open holds the last stable offset back: read_committed readers see
    nothing behind it.  One that is open for longer than --hanging-after hangs: exit 1.

    Reads all batches but no record, without a lock, beside a running broker; what seems damaged is looked at again, and
    a partition in which each look finds other damage is being written (exit 4).
    """
    limit_ms = _duration_ms(limit)
    log_dir, chosen, _ = choosing.chosen(log_dir, partitions, topics)
    code = CLEAN
    now_ms = time.time_ns() // 1_000_000
    with Progress(log_bytes(chosen.values()), "looked at", force=progress) as bar:
        for partition in chosen:
            try:
                found = look_for_transactions(
                    log_dir, partition, now_ms, hanging_after_ms=limit_ms, progress=bar.advance
                )
            except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
                code = worse(code, tell_unsettled(error))
                continue
            _tell(found, as_json)
            for damage in found.damage:
                place = f"{damage.path}: {damage.what} at byte {damage.position}"
                note(f"kafkalog: {place}: what looks open may have ended behind it, where no marker was seen")
            if found.hanging or found.damage:
                code = worse(code, FINDINGS)
    return code


def _duration_ms(text: str) -> int:
    asked = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text)
    if asked is None:
        raise Usage(f"--hanging-after {text!r} is no duration, expected such as 900000ms, 90s, 15m, 1h or 2d")
    return int(asked[1]) * UNITS_MS[asked[2]]


def _tell(found: PartitionTransactions, as_json: bool) -> None:
    topic, partition = found.partition
    if as_json:
        emit_json(
            {
                "kind": "partition",
                "topic": topic,
                "partition": partition,
                "logStartOffset": found.log_start_offset,
                "logEndOffset": found.log_end_offset,
                "lastStableOffset": found.last_stable_offset,
                "committed": found.committed,
                "aborted": found.aborted,
                "hanging": found.hanging,
                "heldBackBy": found.open[0].producer_id if found.open else None,
                "open": [fields(txn) for txn in found.open],
                "damage": [fields(damage) for damage in found.damage],
            }
        )
        return
    behind = found.log_end_offset - found.last_stable_offset
    stable = f"last stable offset {found.last_stable_offset}"
    stable += f", {behind} offsets before the end" if behind else ", the end"
    emit(
        f"{found.partition}: {found.committed} committed, {found.aborted} aborted, {len(found.open)} open, "
        f"{found.hanging} hanging; {stable}"
    )
    for number, txn in enumerate(found.open):
        emit(f"  {_line(txn)}{', holds the last stable offset back' if number == 0 else ''}")


def _line(txn: OpenTransaction) -> str:
    since = txn.start_timestamp if txn.start_timestamp >= 0 else txn.last_timestamp
    known = "since" if txn.start_timestamp >= 0 else "since before"
    state = paint("hanging", "red") if txn.hanging else "open"
    return (
        f"{state}: producer {txn.producer_id} epoch {txn.producer_epoch}, from offset {txn.first_offset} on, "
        f"{txn.records} records, {known} {time_words(since)} ({txn.age_ms // 1000} s), last write "
        f"{time_words(txn.last_timestamp)}"
    )
