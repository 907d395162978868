"""`kafkalog transactions`: shows open and hanging transactions and what they hold back; `abort` ends one offline."""

from __future__ import annotations

import re
import shlex
import time
from typing import TYPE_CHECKING

import click

from kafkalog.cli import choosing
from kafkalog.cli.app import CLEAN, FINDINGS, Usage, one_line, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    log_bytes,
    note,
    paint,
    tell_findings,
    tell_unsettled,
    time_words,
)
from kafkalog.cli.groups import DefaultGroup
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.cli.transactions_abort import command as abort
from kafkalog.cli.transactions_abort import kafkas_command
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import is_of_cluster
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.errors import BeingWrittenException, UnknownTopicOrPartitionException
from kafkalog.toolbox.open_transactions import OpenTransaction, PartitionTransactions, look_for_transactions
from kafkalog.toolbox.unread import unread
from kafkalog.toolbox.words import span

if TYPE_CHECKING:
    from kafkalog.toolbox.known_transactions import KnownTransactions, TransactionOf
    from kafkalog.toolbox.report import Finding

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Transactions(DefaultGroup):
    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] LOG_DIR [PARTITIONS]... | abort LOG_DIR [PARTITIONS]...")


@click.group("transactions", cls=_Transactions, short_help="Show open and hanging transactions; end one offline.")
def command() -> None:
    """Show the transactions of PARTITIONS (topic-0, a topic, or a glob; default: all) of LOG_DIR.

    The command changes nothing, takes no lock, and works while a broker is running. It reads all batches, but not their
    records. `kafkalog transactions abort` ends a transaction offline.

    Open transactions are shown first, hanging ones before the others. Each has its transactional id and the
    coordinator's state (both from __transaction_state in the same directory), producer id and epoch, first offset,
    start time, and what it holds back. For a hanging one the command that ends it is shown. Then for each partition
    follow the numbers of committed and aborted transactions.

    The first open transaction holds back the last stable offset: read_committed readers see nothing after it. A
    transaction hangs if it is open for longer than --hanging-after (exit 1).

    Damage is checked again; if each check finds other damage, the partition is being written (exit 4). A partition that
    cannot be read (no permission, a disk that fails) is reported, and the others are shown (exit 1).
    """


@command.command("show", short_help="Show open and hanging transactions.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@click.option(
    "--hanging-after",
    "limit",
    metavar="DURATION",
    default="15m",
    show_default=True,
    help="How long one may be open, such as 900000ms, 15m or 1h; use the brokers' transaction.max.timeout.ms.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions, each with its open transactions.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@both_tiers
def show(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    limit: str,
    as_json: bool,
    progress: bool,
) -> int:
    """Does the same as `kafkalog transactions LOG_DIR [PARTITIONS]...`."""
    limit_ms = _duration_ms(limit)
    log_dir, chosen, _ = choosing.chosen(log_dir, partitions, topics)
    code = CLEAN
    now_ms = time.time_ns() // 1_000_000
    results: list[PartitionTransactions] = []
    unreadable: list[Finding] = []
    holders = _Holders(log_dir)
    checkpoints = CheckpointLines(log_dir, keeps_ms=KEEPS_MS)
    sizes = {partition: log_bytes((folder,)) for partition, folder in chosen.items()}
    with Progress(sum(sizes.values()), "read", force=progress) as bar:
        for partition, folder in chosen.items():
            try:
                found = look_for_transactions(
                    log_dir, partition, now_ms, hanging_after_ms=limit_ms, checkpoints=checkpoints,
                    log_bytes=sizes[partition], progress=bar.advance,
                )  # fmt: skip
            except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
                code = worse(code, tell_unsettled(error))
                continue
            except OSError as error:
                wrong = unread(error, folder)
                if wrong is None:
                    raise
                unreadable.append(wrong._replace(what=f"{wrong.what}: what is open in {partition} is not known"))
                code = worse(code, FINDINGS)
                continue
            if as_json:
                _tell_json(found, holders)
            else:
                results.append(found)
            for damage in found.damage:
                place = f"{damage.path}: {damage.what} at byte {damage.position}"
                note(f"kafkalog: {place}: a transaction that looks open may have ended after it, in the unread part")
            if found.hanging or found.damage:
                code = worse(code, FINDINGS)
    _tell(results, holders)
    tell_findings(unreadable, as_json=as_json)
    return code


def _duration_ms(text: str) -> int:
    asked = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text)
    if asked is None:
        raise Usage(f"--hanging-after {text!r} is not a duration; expected such as 900000ms, 90s, 15m, 1h or 2d")
    return int(asked[1]) * UNITS_MS[asked[2]]


class _Holders:
    """The owners of producer ids, from `__transaction_state`, which is read when it is needed."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.is_brokers = mounted(log_dir) is None and is_of_cluster(log_dir, OS_FILES)
        self._known: KnownTransactions | None = None

    def of(self, partition: TopicPartition, txn: OpenTransaction) -> tuple[TransactionOf | None, bool]:
        """Returns (the owner, whether its coordinator has this transaction open)."""
        if self._known is None:
            from kafkalog.toolbox.known_transactions import KnownTransactions  # a large import that is rarely needed

            self._known = KnownTransactions(self.log_dir)
            for error in self._known.problems:
                note(f"kafkalog: {one_line(error)}: transactional ids of this partition are not known")
        found = self._known.of_producer(txn.producer_id)
        return found, found is not None and found.is_in(partition, txn)


def _tell_json(found: PartitionTransactions, holders: _Holders) -> None:
    topic, partition = found.partition
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
            "open": [_json(found.partition, txn, holders) for txn in found.open],
            "damage": [fields(damage) for damage in found.damage],
        }
    )


def _json(partition: TopicPartition, txn: OpenTransaction, holders: _Holders) -> dict[str, object]:
    holder, is_its = holders.of(partition, txn)
    return {
        **fields(txn),
        "transactionalId": None if holder is None else holder.transactional_id,
        "coordinatorState": None if holder is None else holder.state,
        "coordinated": is_its,
    }


def _tell(results: list[PartitionTransactions], holders: _Holders) -> None:
    begun = [(found, txn) for found in results for txn in found.open]
    begun.sort(key=lambda each: (not each[1].hanging, -each[1].age_ms))
    ended_by = [_how_to_end(found.partition, txn, holders) if txn.hanging else [] for found, txn in begun]
    last = {tuple(lines): place for place, lines in enumerate(ended_by)}
    for place, (found, txn) in enumerate(begun):
        _tell_open(found, txn, holders)
        # One command ends a transaction in all of its partitions: print it after the last of them.
        if last[tuple(ended_by[place])] == place:
            for line in ended_by[place]:
                emit(line)
    for found in results:
        behind = found.log_end_offset - found.last_stable_offset
        stable = f"last stable offset {found.last_stable_offset}"
        stable += f", {counted(behind, 'offset')} before the end" if behind else ", the end"
        emit(
            f"{found.partition}: {found.committed} committed, {found.aborted} aborted, {len(found.open)} open, "
            f"{found.hanging} hanging; {stable}"
        )


def _tell_open(found: PartitionTransactions, txn: OpenTransaction, holders: _Holders) -> None:
    partition, (holder, is_its) = found.partition, holders.of(found.partition, txn)
    since = txn.start_timestamp if txn.start_timestamp >= 0 else txn.last_timestamp
    known = "since" if txn.start_timestamp >= 0 else "since before"
    state = paint("hanging", "red") if txn.hanging else "open"
    emit(
        f"{partition}: {state} for {span(txn.age_ms)}: {_whose(holder, is_its)}producer {txn.producer_id} epoch "
        f"{txn.producer_epoch}, {counted(txn.records, 'record')} from offset {txn.first_offset} on, {known} "
        f"{time_words(since)}, last write {time_words(txn.last_timestamp)}"
    )
    others = counted(max(0, txn.held_records - txn.records), "record")
    held = f"its {counted(txn.records, 'record')} and {others} of others"
    if txn is found.open[0]:
        emit(f"  read_committed readers do not get {held}, for {span(txn.age_ms)}")
    else:
        emit(f"  read_committed readers would not get {held}, if the earlier transactions ended")


def _how_to_end(partition: TopicPartition, txn: OpenTransaction, holders: _Holders) -> list[str]:
    """Returns the commands that end a transaction. If its coordinator has it open, they use the transactional id, which
    ends it in all partitions."""
    holder, is_its = holders.of(partition, txn)
    take_over = " --take-over" if holders.is_brokers else ""
    if holder is not None and is_its:
        words = [holders.log_dir, "--transactional-id", holder.transactional_id]
    else:
        words = [holders.log_dir, str(partition), "--start-offset", str(txn.first_offset)]
    lines = [f"  to end it: kafkalog transactions abort {shlex.join(words)}{take_over}"]
    if holders.is_brokers:
        lines.append(
            f"  while the broker runs: {kafkas_command(partition, txn.first_offset, holder if is_its else None)}"
        )
    return lines


def _whose(holder: TransactionOf | None, is_its: bool) -> str:
    if holder is None:
        return ""
    says = holder.state if is_its else f"not open at its coordinator: {holder.state}"
    return f"transactional id {holder.transactional_id!r} ({says}), "


command.add_command(abort)
