"""Open transactions ended offline, by an abort: planned first, then done.

A transaction that its coordinator has open (`__transaction_state` of the same directory) is ended by the coordinator's
rules, in all its partitions: its holder is fenced by the next epoch, and the id's state becomes CompleteAbort.  A
hanging one, of which no coordinator knows any more, gets an abort marker in the partition, with the producer's own
epoch and the last coordinator epoch that the partition knows, as `kafka-transactions.sh abort` has a broker write it
(WriteTxnMarkers).  A transaction that was decided is never ended another way.

A plan is made from one look, without a lock.  It is carried out under the directory's lock, through the engine, looks
again at what it ends, and is on the disk when it returns.
Source: TransactionsCommand, AbortTransactionHandler, TransactionCoordinator (4.4.0).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.coordinators import new_producer_id
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import LogMarkers, UnifiedStateLog
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.engine.coordinator.transaction_metadata import (
    COMPLETE_ABORT,
    PREPARE_COMMIT,
    STATE_NAMES,
    TransactionVersion,
)
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, local_path
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.engine.host.log_dirs import check_taken_over, list_partitions
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidTxnStateException,
    TransactionalIdNotFoundException,
)
from kafkalog.toolbox.known_transactions import UNDER_WAY, KnownTransactions, TransactionOf
from kafkalog.toolbox.open_transactions import OpenTransaction, PartitionTransactions, look_for_transactions
from kafkalog.toolbox.recovery import hold_directory, open_undamaged
from kafkalog.toolbox.unread import unread

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.toolbox.report import Finding

__all__ = ["Abort", "Aimed", "abort", "other_replicas", "plan_abort"]

NO_COORDINATOR_EPOCH = 0  # what Kafka's tool sends where the partition knows none


class Aimed(NamedTuple):
    """Which transaction is meant: by the transactional id, the producer id (and its epoch), or, in one partition, the
    first offset.  One of the three."""

    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    start_offset: int | None = None

    def words(self) -> str:
        """What is meant, as a sentence goes on: "of producer id 7"."""
        if self.transactional_id is not None:
            return f"of the transactional id {self.transactional_id!r}"
        if self.producer_id is None:
            return f"from offset {self.start_offset} on"
        epoch = "" if self.producer_epoch is None else f" with epoch {self.producer_epoch}"
        return f"of producer id {self.producer_id}{epoch}"


class Abort(NamedTuple):
    """What ends one transaction.

    `open`: what is known of it by partition, where it was looked at.  `holder`: the transactional id of the producer,
    where one has it.  In `coordinated` its coordinator ends it, together, and its state becomes CompleteAbort; in
    `alone`, where no coordinator knows of it, a marker is all.  `gone`: partitions whose topic is deleted.  `unread`:
    partitions that could not be read; whether it is open there is not known.
    """

    log_dir: str
    producer_id: int
    producer_epoch: int
    open: Mapping[TopicPartition, OpenTransaction]
    holder: TransactionOf | None
    coordinated: tuple[TopicPartition, ...] | None
    alone: tuple[TopicPartition, ...] = ()
    gone: tuple[TopicPartition, ...] = ()
    unread: tuple[Finding, ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All that get a marker."""
        return (*(self.coordinated or ()), *self.alone)


# --- the plan ---------------------------------------------------------------------------------------------


def plan_abort(
    log_dir: str | os.PathLike[str],
    partitions: Collection[TopicPartition],
    aimed: Aimed,
    *,
    files: Files = OS_FILES,
    clock: Clock = SYSTEM_CLOCK,
) -> Abort:
    """What would end the transaction that is meant, in those of `partitions` where it is open.

        plan = plan_abort("kafka-logs", [TopicPartition("orders", 0)], Aimed(start_offset=38))
        abort(plan)

    Reads alone, without a lock, beside a running broker too.  `clock` says how old what is open is.
    IllegalArgumentException for an aim that names none or several; TransactionalIdNotFoundException for an id that
    nobody used; InvalidTxnStateException where no such transaction is open, or it was decided that it commits;
    IllegalStateException where partitions of it are not in the directory; CorruptRecordException where damage hides
    whether it is open; SchemaException where `__transaction_state` cannot be understood; KafkaStorageException where a
    partition cannot be read, and the transaction is open in none of the others.
    """
    log_dir = local_path(log_dir, what="log_dir", files=files)
    _check_aim(aimed, partitions)
    known = KnownTransactions(log_dir, files=files, clock=clock)
    if known.problems:
        raise known.problems[0]
    holder, producer_id = None, aimed.producer_id
    if aimed.transactional_id is not None:
        holder = _must(known, aimed.transactional_id)
        producer_id = holder.known.metadata.producer_id
    found: dict[TopicPartition, PartitionTransactions] = {}
    failed: dict[Finding, OSError] = {}
    for partition in partitions:
        try:
            each = _look(log_dir, partition, producer_id, files, clock)
        except OSError as error:
            wrong = unread(error, os.path.join(log_dir, str(partition)))
            if wrong is None:
                raise
            failed[wrong._replace(what=f"{wrong.what}: whether it is open in {partition} is not known")] = error
            continue
        if each is not None:
            found[partition] = each
    opened = _meant(found, aimed, producer_id)
    if failed and not opened and holder is None:
        raise next(iter(failed.values()))  # it may be there
    return _planned(log_dir, partitions, aimed, known, holder, found, opened, files)._replace(unread=tuple(failed))


def _look(
    log_dir: str, partition: TopicPartition, producer_id: int | None, files: Files, clock: Clock
) -> PartitionTransactions | None:
    """What is open in a partition, where that may be of the producer id (None: of any)."""
    with PartitionView(log_dir, partition, files=files) as view:
        begun = view.snapshot.transactions.open
        if not (producer_id in begun if producer_id is not None else begun):
            return None
        view.check_end()
    return look_for_transactions(log_dir, partition, clock.milliseconds(), files=files)


def _planned(
    log_dir: str,
    partitions: Collection[TopicPartition],
    aimed: Aimed,
    known: KnownTransactions,
    holder: TransactionOf | None,
    found: Mapping[TopicPartition, PartitionTransactions],
    opened: dict[TopicPartition, OpenTransaction],
    files: Files,
) -> Abort:
    if opened:
        first = next(iter(opened.values()))
        holder = known.of_producer(first.producer_id)
        if holder is None or not any(holder.is_in(each, txn) for each, txn in opened.items()):
            return Abort(log_dir, first.producer_id, first.producer_epoch, opened, holder, None, tuple(opened))
    elif holder is None:
        raise _none_is_open(found, aimed, partitions)
    elif holder.known.metadata.state in UNDER_WAY and not set(holder.known.partitions).intersection(partitions):
        raise _is_open_elsewhere(holder, partitions)
    return _by_coordinator(log_dir, holder, opened, files)


def _check_aim(aimed: Aimed, partitions: Collection[TopicPartition]) -> None:
    by = [name for name in ("transactional_id", "producer_id", "start_offset") if getattr(aimed, name) is not None]
    if len(by) != 1:
        raise IllegalArgumentException(
            f"found {' and '.join(by) or 'nothing'}, expected one of transactional_id, producer_id and start_offset",
            hint="Aimed says which transaction is meant",
        )
    if aimed.start_offset is not None and len(partitions) != 1:
        raise IllegalArgumentException(
            f"start_offset: found {len(partitions)} partitions, expected the one that the transaction is in"
        )


def _must(known: KnownTransactions, transactional_id: str) -> TransactionOf:
    found = known.by_id.get(transactional_id)
    if found is None:
        raise TransactionalIdNotFoundException(
            f"nobody has used the transactional id {transactional_id!r} in this directory",
            hint=f"it knows {', '.join(sorted(known.by_id)[:5])}" if known.by_id else "it knows none",
        )
    return found


def _meant(
    found: Mapping[TopicPartition, PartitionTransactions], aimed: Aimed, producer_id: int | None
) -> dict[TopicPartition, OpenTransaction]:
    """Where it is open."""
    opened = {
        partition: txn
        for partition, each in found.items()
        for txn in each.open
        if (txn.producer_id == producer_id if producer_id is not None else txn.first_offset == aimed.start_offset)
        and aimed.producer_epoch in (None, txn.producer_epoch)
    }
    for partition in opened:
        for damage in found[partition].damage:
            raise CorruptRecordException(
                f"{damage.what}: what looks open may have ended behind it",
                path=damage.path,
                position=damage.position,
                hint="`kafkalog recover` cuts the log there, `kafkalog salvage` saves what can be read",
            )
    epochs = {txn.producer_epoch for txn in opened.values()}
    if len(epochs) > 1:
        raise InvalidTxnStateException(
            f"producer id {producer_id} has open transactions of the epochs {sorted(epochs)}",
            hint="--producer-epoch, or a partition, says which one is meant",
        )
    return opened


def _none_is_open(
    found: Mapping[TopicPartition, PartitionTransactions], aimed: Aimed, partitions: Collection[TopicPartition]
) -> InvalidTxnStateException:
    there = [
        f"{partition}: producer {txn.producer_id} epoch {txn.producer_epoch} from offset {txn.first_offset} on"
        for partition, each in found.items()
        for txn in each.open
    ]
    return InvalidTxnStateException(
        f"no transaction {aimed.words()} is open in {_named(partitions)}",
        hint=f"open are {'; '.join(there[:5])}" if there else "`kafkalog transactions` shows what is open",
    )


def _is_open_elsewhere(holder: TransactionOf, partitions: Collection[TopicPartition]) -> InvalidTxnStateException:
    return InvalidTxnStateException(
        f"the transaction of the transactional id {holder.transactional_id!r} is not open in {_named(partitions)}",
        hint=f"its state is {holder.state}, and it is in {_named(holder.known.partitions) or 'no partition'}",
    )


def _named(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, list(partitions)[:5])) + (" ..." if len(partitions) > 5 else "")


def _by_coordinator(
    log_dir: str, holder: TransactionOf, opened: Mapping[TopicPartition, OpenTransaction], files: Files
) -> Abort:
    metadata, name = holder.known.metadata, holder.transactional_id
    if metadata.state is PREPARE_COMMIT:
        raise InvalidTxnStateException(
            f"the transaction of {name!r} was committed (PrepareCommit): it cannot be aborted",
            hint="a start of its broker, or kafkalog.open with all directories, writes what markers it lacks",
        )
    if metadata.state not in UNDER_WAY:
        raise InvalidTxnStateException(
            f"no transaction of the transactional id {name!r} is open: its state is {holder.state}"
        )
    here = list_partitions(log_dir, files=files)
    settings = TopicSettings(log_dir, files=files)
    missing = [each for each in holder.known.partitions if each not in here]
    gone = tuple(each for each in missing if _is_deleted(settings, each.topic))
    away = [str(each) for each in missing if each not in gone]
    if away:
        raise IllegalStateException(
            f"the transaction of {name!r} is open in {', '.join(away[:5])}, too, and {log_dir} has not got "
            f"{'it' if len(away) == 1 else 'them'}: it ends in all of its partitions together",
            hint="its broker aborts it after transaction.timeout.ms; so does kafkalog.open with all directories",
        )
    listed = tuple(each for each in holder.known.partitions if each in here)
    alone = tuple(each for each in opened if each not in listed)
    return Abort(log_dir, metadata.producer_id, metadata.producer_epoch, opened, holder, listed, alone, gone)


def _is_deleted(settings: TopicSettings, topic: str) -> bool:
    """Whether nobody has the topic any more, for sure."""
    cluster = settings.cluster
    if settings.is_of_cluster:
        return cluster is not None and cluster.is_whole and topic not in cluster.topics
    return topic != GROUP_METADATA_TOPIC and settings.partition_count(topic) is None


def other_replicas(
    log_dir: str | os.PathLike[str], partitions: Collection[TopicPartition], files: Files = OS_FILES
) -> list[int] | None:
    """The other nodes that have these partitions of a cluster; None where the directory does not tell."""
    cluster = TopicSettings(local_path(log_dir, what="log_dir", files=files), files=files).cluster
    if cluster is None or not cluster.is_whole:
        return None
    nodes: set[int] = set()
    for each in partitions:
        topic = cluster.topics.get(each.topic)
        if topic is None or each.partition not in topic.replicas:
            return None
        nodes.update(topic.replicas[each.partition])
    return sorted(nodes - ({cluster.node_id} if cluster.node_id is not None else set()))


# --- doing it ---------------------------------------------------------------------------------------------


def abort(
    plan: Abort, *, take_over: bool = False, files: Files = OS_FILES, clock: Clock = SYSTEM_CLOCK
) -> dict[TopicPartition, int]:
    """Does what is planned; the last stable offset of each partition then.  All of it is on the disk.

    IllegalArgumentException for the directory of a Kafka broker without `take_over`; LogDirLockedException beside a
    broker or an open store; InvalidTxnStateException where the transaction ended, or went on, meanwhile;
    CorruptRecordException where a log was not closed cleanly and is damaged.
    """
    check_taken_over([plan.log_dir], files, take_over=take_over)
    hold = hold_directory(plan.log_dir, files, clock)
    try:
        with _Logs(plan.log_dir, files, clock) as logs:
            for partition in plan.partitions:
                logs.log(partition)  # one that cannot be written is told before anything is
            for partition, txn in plan.open.items():
                _check_still_open(logs.log(partition), partition, txn)
            if plan.coordinated is not None:
                _end_by_coordinator(logs, plan, clock)
            markers = logs.markers()
            for partition in plan.alone:
                txn = plan.open[partition]
                kind = ControlRecordType.ABORT
                marker = TransactionMarker(txn.producer_id, txn.producer_epoch, kind, NO_COORDINATOR_EPOCH, 0)
                markers.write(partition, marker)
            markers.flush(plan.alone)
            return {partition: logs.log(partition).last_stable_offset for partition in plan.partitions}
    finally:
        hold.leave(clean=True)


class _Logs:
    """The logs that an end is written to, each opened when it is first asked for; closed together."""

    def __init__(self, log_dir: str, files: Files, clock: Clock) -> None:
        self._log_dir, self._files, self._clock = log_dir, files, clock
        self._settings = TopicSettings(log_dir, files=files)
        self._stack = contextlib.ExitStack()
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._offsets: dict[TopicPartition, GroupOffsets] = {}

    def __enter__(self) -> _Logs:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def log(self, partition: TopicPartition) -> UnifiedLog:
        if partition not in self._logs:
            config = self._settings.of(partition.topic)
            opened = open_undamaged(self._log_dir, partition, config, self._files, self._clock)
            self._stack.enter_context(opened)
            assert opened.engine is not None
            self._logs[partition] = opened.engine
        return self._logs[partition]

    def state(self, partition: TopicPartition) -> UnifiedStateLog:
        return UnifiedStateLog(self.log(partition), syncs=True)

    def markers(self, gone: Collection[TopicPartition] = ()) -> LogMarkers:
        return LogMarkers(
            lambda partition: None if partition in gone else self.log(partition),
            self._offsets_of,
            self._clock,
            syncs=True,
        )

    def _offsets_of(self, partition: TopicPartition) -> GroupOffsets | None:
        if partition.topic != GROUP_METADATA_TOPIC:
            return None
        if partition not in self._offsets:
            self._offsets[partition] = GroupOffsets(self.state(partition), self._clock)
        return self._offsets[partition]


def _check_still_open(log: UnifiedLog, partition: TopicPartition, txn: OpenTransaction) -> None:
    entry = log.producer_state_manager.last_entry(txn.producer_id)
    now = None if entry is None else (entry.producer_epoch, entry.current_txn_first_offset)
    if now != (txn.producer_epoch, txn.first_offset):
        raise InvalidTxnStateException(
            f"the transaction of producer id {txn.producer_id} in {partition} has ended, or another one has begun",
            hint="look again: `kafkalog transactions` shows what is open",
        )


def _end_by_coordinator(logs: _Logs, plan: Abort, clock: Clock) -> None:
    holder = plan.holder
    assert holder is not None, plan
    log = logs.state(TopicPartition(TRANSACTION_STATE_TOPIC, holder.number))

    def the_one(number: int, create: bool) -> UnifiedStateLog:
        return log

    coordinator = TransactionCoordinator(
        the_one,
        1,  # it is the partition that has the id, whatever its number
        logs.markers(plan.gone),
        new_producer_id,
        clock,
        offsets_partition_count=1,
        # The version of the records that are there: an older cluster understands no newer one.
        settings=TransactionSettings(TransactionVersion(holder.known.metadata.client_transaction_version)),
    )
    name = holder.transactional_id
    _check_unchanged(coordinator, plan, holder)
    coordinator.abort(name)
    if coordinator.describe(name).state != STATE_NAMES[COMPLETE_ABORT]:
        raise IllegalStateException(f"the state of {name!r} is {coordinator.describe(name).state} after the abort")


def _check_unchanged(coordinator: TransactionCoordinator, plan: Abort, holder: TransactionOf) -> None:
    found = coordinator.describe(holder.transactional_id)
    if (found.producer_id, found.producer_epoch, found.state) != (plan.producer_id, plan.producer_epoch, holder.state):
        raise InvalidTxnStateException(
            f"the transactional id {found.transactional_id!r} has gone on: its state is {found.state}",
            hint="look again: `kafkalog transactions` shows what is open",
        )


def __dir__() -> list[str]:
    return __all__
