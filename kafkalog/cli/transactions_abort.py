"""`kafkalog transactions abort`: aborts an open transaction offline, or prints the command of Kafka's tools for it."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

import click

from kafkalog._limits import LONG_MAX, SHORT_MAX
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Number, Usage
from kafkalog.cli.console import counted, emit, emit_json, locate, note, some, tell_findings
from kafkalog.cli.places import TAKE_OVER, without_metadata
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import is_of_cluster
from kafkalog.errors import LogDirLockedException

if TYPE_CHECKING:
    from kafkalog.toolbox.abort_transactions import Abort, Aimed
    from kafkalog.toolbox.known_transactions import TransactionOf

KAFKAS_TOOL = "kafka-transactions.sh --bootstrap-server HOST:9092"


@click.command(
    "abort",
    short_help="Abort an open transaction offline.",
    epilog="\b\nFor example:\n  kafkalog transactions abort /var/kafka-logs orders-0 --start-offset 38",
)
@click.argument("log_dir", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--transactional-id", metavar="ID", help="Abort the transaction of this transactional id.")
@click.option("--producer-id", type=Number(0, LONG_MAX), metavar="N", help="Abort the transaction of this producer id.")
@click.option(
    "--producer-epoch", type=Number(0, SHORT_MAX), metavar="E", help="With --producer-id: only if it has this epoch."
)
@click.option(
    "--start-offset",
    type=Number(0, LONG_MAX, instead="`kafkalog transactions` shows the first offset of each open transaction"),
    metavar="OFFSET",
    help="Abort the transaction that begins at this offset of one partition.",
)
@TAKE_OVER
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions.")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    transactional_id: str | None,
    producer_id: int | None,
    producer_epoch: int | None,
    start_offset: int | None,
    take_over: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Abort an open transaction of LOG_DIR, without a broker, so that read_committed readers can continue.

    The records that it wrote to PARTITIONS (topic-0, a topic, or a glob; default: wherever it is open) count as
    aborted. Select it by --transactional-id, by --producer-id, or by --start-offset and its partition, as `kafkalog
    transactions` shows them.

    Without --yes the command only reports what it would do, and a broker may be running. With --yes it writes the abort
    marker, which cannot be undone; the directory must not be in use (exit 3).

    If the coordinator has the transaction open (__transaction_state of the same directory), it ends in all of its
    partitions.  Its producer is fenced, and the state of the transactional id becomes CompleteAbort, as if the
    coordinator had ended it. Otherwise only the abort marker is written, as by kafka-transactions.sh.

    The directory of a Kafka broker needs --take-over. Other replicas of the partition do not get the marker, and a
    broker that follows one of them truncates it again. On a running cluster use Kafka's tool instead, which ends the
    transaction on all replicas; the command is printed.

    A partition that cannot be read is reported and left out (exit 1).
    """
    from kafkalog.toolbox.abort_transactions import abort, plan_abort  # a large import that --help does not need

    act = yes and not dry_run
    aimed = _aimed(transactional_id, producer_id, producer_epoch, start_offset)
    log_dir, found = locate(log_dir, partitions)
    chosen = without_metadata(found)
    if start_offset is not None and len(chosen) != 1:
        raise Usage(f"--start-offset: found {some(map(str, chosen))}, expected the one partition of the transaction")
    plan = plan_abort(log_dir, chosen, aimed)
    is_brokers = is_of_cluster(log_dir, OS_FILES)
    if is_brokers:
        _note_risk(plan)
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
    stable = None
    if act:
        try:
            stable = abort(plan, take_over=take_over)
        except LogDirLockedException as error:
            if is_brokers:
                error.hint = f"{error.hint}; on the running broker use the command above"
            raise
    _tell_abort(plan, stable, as_json, "--take-over --yes" if is_brokers and not take_over else "--yes")
    tell_findings(plan.unread, as_json=as_json)
    return FINDINGS if plan.unread else CLEAN


def _aimed(
    transactional_id: str | None, producer_id: int | None, producer_epoch: int | None, start_offset: int | None
) -> Aimed:
    from kafkalog.toolbox.abort_transactions import Aimed

    given = {"--transactional-id": transactional_id, "--producer-id": producer_id, "--start-offset": start_offset}
    found = [option for option, value in given.items() if value is not None]
    if len(found) != 1:
        raise Usage(
            f"found {' and '.join(found) or 'none'}, expected one of {', '.join(given)} (`kafkalog transactions` shows "
            "the open transactions)"
        )
    if producer_epoch is not None and producer_id is None:
        raise Usage("--producer-epoch: expected --producer-id with it")
    return Aimed(transactional_id, producer_id, producer_epoch, start_offset)


def _note_risk(plan: Abort) -> None:
    from kafkalog.toolbox.abort_transactions import other_replicas

    others = other_replicas(plan.log_dir, plan.partitions)
    if others == []:
        risk = "its cluster's metadata has no other replica"
    else:
        nodes = "" if others is None else f" (nodes {', '.join(map(str, others))})"
        risk = f"other replicas{nodes} do not get this marker, and a broker that follows one of them truncates it again"
    note(f"note: {plan.log_dir} is a Kafka broker's: {risk}")
    holder = plan.holder if plan.coordinated is not None else None
    for partition in plan.partitions[:1] if holder else plan.alone:
        txn = plan.open.get(partition)
        note(f"on the running cluster: {kafkas_command(partition, -1 if txn is None else txn.first_offset, holder)}")


def _tell_abort(plan: Abort, stable: dict[TopicPartition, int] | None, as_json: bool, does_it: str) -> None:
    is_done = stable is not None
    holder = plan.holder
    if as_json:
        for partition in plan.partitions:
            txn = plan.open.get(partition)
            emit_json(
                {
                    "kind": "abort",
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "transactionalId": None if holder is None else holder.transactional_id,
                    "coordinated": partition not in plan.alone,
                    "producerId": plan.producer_id,
                    "producerEpoch": plan.producer_epoch,
                    "firstOffset": None if txn is None else txn.first_offset,
                    "records": None if txn is None else txn.records,
                    "done": is_done,
                    "lastStableOffset": None if stable is None else stable[partition],
                }
            )
        return
    for partition in plan.partitions:
        txn = plan.open.get(partition)
        what = "" if txn is None else f", {counted(txn.records, 'record')} from offset {txn.first_offset} on"
        doing = "aborted" if is_done else f"would be aborted ({does_it} does it)"
        then = "" if stable is None else f"; the last stable offset is {stable[partition]}"
        emit(f"{partition}: producer {plan.producer_id} epoch {plan.producer_epoch}{what}: {doing}{then}")
    if plan.coordinated is not None and holder is not None:
        becomes = "has become" if is_done else "would become"
        emit(f"transactional id {holder.transactional_id!r}: {holder.state} {becomes} CompleteAbort")
    for partition in plan.gone:
        note(f"note: {partition} is left out: its topic was deleted")


def kafkas_command(partition: TopicPartition, start_offset: int, holder: TransactionOf | None) -> str:
    """Returns the command of Kafka's tools. A transaction that a coordinator has open must be ended by it, in all
    partitions."""
    if holder is not None:
        return f"{KAFKAS_TOOL} forceTerminateTransaction --transactionalId {shlex.quote(holder.transactional_id)}"
    topic, number = partition
    return f"{KAFKAS_TOOL} abort --topic {topic} --partition {number} --start-offset {start_offset}"
