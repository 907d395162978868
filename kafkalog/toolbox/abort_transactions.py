"""Ends open transactions offline by aborting them: first a plan, then the act.

A transaction that its coordinator has open (in `__transaction_state` of the same directory) ends by the coordinator's
rules, in all its partitions at once.  The next epoch fences its producer, and the state of the id becomes
CompleteAbort.  A hanging transaction is one that no coordinator knows any more.  It gets an abort marker in the
partition, with the producer's epoch and the last coordinator epoch that the partition knows, as
`kafka-transactions.sh abort` has a broker write it (WriteTxnMarkers).  A transaction whose outcome is decided is never
ended another way.

A plan is made from one reading, without a lock.  `abort` carries it out under the directory's lock, through the engine.
It first checks again that the transaction is still open, and everything is on disk when it returns.
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

NO_COORDINATOR_EPOCH = 0  # Kafka's tool sends this if the partition knows no epoch


class Aimed(NamedTuple):
    """Says which transaction is meant: set exactly one of `transactional_id`, `producer_id` and `start_offset`.

    `producer_epoch` may narrow `producer_id` down. `start_offset` is the transaction's first offset in a partition, and
    needs exactly one partition.
    """

    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    start_offset: int | None = None

    def words(self) -> str:
        """Returns the end of a sentence that names the transaction, such as "of producer id 7".

        Returns:
            The words.
        """
        if self.transactional_id is not None:
            return f"of the transactional id {self.transactional_id!r}"
        if self.producer_id is None:
            return f"that starts at offset {self.start_offset}"
        epoch = "" if self.producer_epoch is None else f" with epoch {self.producer_epoch}"
        return f"of producer id {self.producer_id}{epoch}"


class Abort(NamedTuple):
    """A plan that ends one transaction.

    `open` maps each partition in which the transaction was found open to what is known of it there.  `holder` is the
    transactional id of the producer, if it has one.  The coordinator ends the transaction in all `coordinated`
    partitions together, and the state of the id becomes CompleteAbort.  No coordinator knows of the transaction in the
    partitions `alone`: these get a marker only.  `gone` are partitions whose topic was deleted.  `unread` are
    partitions that could not be read, so that it is unknown whether the transaction is open there."""

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
        """All partitions that get an abort marker."""
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
    """Plans the abort of one open transaction, in those of `partitions` in which it is open.

    Only reads, without a lock, so it also works while a broker is running.

    Args:
        log_dir: The log directory.
        partitions: The partitions to search.
        aimed: Which transaction is meant: an `Aimed` with one of its three fields set.
        files: The file system; for tests.
        clock: The clock from which the age of an open transaction is computed; for tests.

    Returns:
        An `Abort`, the plan for `abort`.

    Raises:
        IllegalArgumentException: `aimed` names no transaction or several.
        TransactionalIdNotFoundException: The transactional id was never used.
        InvalidTxnStateException: No such transaction is open, or it was already committed.
        IllegalStateException: Some of its partitions are not in this directory.
        CorruptRecordException: Damage hides whether the transaction is open.
        SchemaException: A record of `__transaction_state` cannot be decoded.
        KafkaStorageException: A partition cannot be read, and the transaction is open in none of the others.

    Example:
        >>> from kafkalog.toolbox.abort_transactions import Aimed, abort, plan_abort
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> try:
        ...     abort(plan_abort("shop", [kafkalog.TopicPartition("orders", 0)], Aimed(start_offset=38)))
        ... except kafkalog.errors.InvalidTxnStateException as error:
        ...     print("nothing to abort")
        nothing to abort
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
            failed[
                wrong._replace(what=f"{wrong.what}; it is unknown whether the transaction is open in {partition}")
            ] = error
            continue
        if each is not None:
            found[partition] = each
    opened = _meant(found, aimed, producer_id)
    if failed and not opened and holder is None:
        raise next(iter(failed.values()))  # the transaction may be in the partition that failed
    return _planned(log_dir, partitions, aimed, known, holder, found, opened, files)._replace(unread=tuple(failed))


def _look(
    log_dir: str, partition: TopicPartition, producer_id: int | None, files: Files, clock: Clock
) -> PartitionTransactions | None:
    """Returns what is open in a partition, or None if the producer id (None: any) has nothing open there."""
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
            f"aimed has {' and '.join(by) or 'no field set'}; expected one of transactional_id, producer_id and "
            "start_offset",
            hint="set exactly one of these fields of Aimed",
        )
    if aimed.start_offset is not None and len(partitions) != 1:
        raise IllegalArgumentException(
            f"start_offset was given with {len(partitions)} partitions; expected exactly one, the partition of the "
            "transaction"
        )


def _must(known: KnownTransactions, transactional_id: str) -> TransactionOf:
    found = known.by_id.get(transactional_id)
    if found is None:
        raise TransactionalIdNotFoundException(
            f"the transactional id {transactional_id!r} was never used in this directory",
            hint=f"known ids: {', '.join(sorted(known.by_id)[:5])}"
            if known.by_id
            else "the directory has no transactional ids",
        )
    return found


def _meant(
    found: Mapping[TopicPartition, PartitionTransactions], aimed: Aimed, producer_id: int | None
) -> dict[TopicPartition, OpenTransaction]:
    """Returns the partitions in which the transaction is open."""
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
                f"{damage.what}: a transaction that looks open may have ended after this damage",
                path=damage.path,
                position=damage.position,
                hint="`kafkalog recover` truncates the log there; `kafkalog salvage` saves the readable records",
            )
    epochs = {txn.producer_epoch for txn in opened.values()}
    if len(epochs) > 1:
        raise InvalidTxnStateException(
            f"producer id {producer_id} has open transactions with the epochs {sorted(epochs)}",
            hint="choose one with --producer-epoch, or name a partition",
        )
    return opened


def _none_is_open(
    found: Mapping[TopicPartition, PartitionTransactions], aimed: Aimed, partitions: Collection[TopicPartition]
) -> InvalidTxnStateException:
    there = [
        f"{partition}: producer {txn.producer_id} epoch {txn.producer_epoch} from offset {txn.first_offset}"
        for partition, each in found.items()
        for txn in each.open
    ]
    return InvalidTxnStateException(
        f"no transaction {aimed.words()} is open in {_named(partitions)}",
        hint=f"open transactions: {'; '.join(there[:5])}"
        if there
        else "`kafkalog transactions` lists open transactions",
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
            f"the transaction of {name!r} is already committed (PrepareCommit) and cannot be aborted",
            hint="start its broker, or call kafkalog.open with all directories: either writes the missing commit "
            "markers",
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
            f"the transaction of {name!r} is also open in {', '.join(away[:5])}, and {log_dir} does not have "
            f"{'it' if len(away) == 1 else 'them'}; a transaction ends in all of its partitions together",
            hint="its broker, or kafkalog.open with all directories, aborts it after transaction.timeout.ms",
        )
    listed = tuple(each for each in holder.known.partitions if each in here)
    alone = tuple(each for each in opened if each not in listed)
    return Abort(log_dir, metadata.producer_id, metadata.producer_epoch, opened, holder, listed, alone, gone)


def _is_deleted(settings: TopicSettings, topic: str) -> bool:
    """Returns whether the topic certainly no longer exists."""
    cluster = settings.cluster
    if settings.is_of_cluster:
        return cluster is not None and cluster.is_whole and topic not in cluster.topics
    return topic != GROUP_METADATA_TOPIC and settings.partition_count(topic) is None


def other_replicas(
    log_dir: str | os.PathLike[str], partitions: Collection[TopicPartition], files: Files = OS_FILES
) -> list[int] | None:
    """Returns the other nodes of the cluster that have replicas of these partitions.

    Args:
        log_dir: The log directory, which must have the cluster's metadata for an answer.
        partitions: The partitions whose replicas are wanted.
        files: The file system; for tests.

    Returns:
        The sorted node ids, without this node's; None if the directory does not have the information.

    Example:
        >>> from kafkalog.toolbox.abort_transactions import other_replicas
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> print(other_replicas("shop", [kafkalog.TopicPartition("orders", 0)]))  # no cluster's metadata
        None
    """
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
    """Carries out a plan of `plan_abort`.

    Everything is on disk when it returns.

    Args:
        plan: The plan, from `plan_abort`.
        take_over: Allows writing to the directory of a (stopped) Kafka broker.
        files: The file system; for tests.
        clock: The clock for the times of the markers; for tests.

    Returns:
        The new last stable offset of each partition that got a marker.

    Raises:
        IllegalArgumentException: The directory is a Kafka broker's, and `take_over` is False.
        LogDirLockedException: A broker or an open store has the directory.
        InvalidTxnStateException: The transaction ended or changed since the plan was made.
        CorruptRecordException: A log was not closed cleanly and is damaged.

    Example:
        >>> from kafkalog.toolbox.abort_transactions import Abort, abort
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> abort(Abort("shop", 7, 0, {}, None, None))  # a plan without partitions changes nothing
        {}
    """
    check_taken_over([plan.log_dir], files, take_over=take_over)
    hold = hold_directory(plan.log_dir, files, clock)
    try:
        with _Logs(plan.log_dir, files, clock) as logs:
            for partition in plan.partitions:
                logs.log(partition)  # fail before anything is written if one of the logs cannot be opened
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
    """The logs that get markers.  Each is opened at its first use; all are closed together."""

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
            f"the transaction of producer id {txn.producer_id} in {partition} has ended, or a new one has begun",
            hint="make a new plan; `kafkalog transactions` lists open transactions",
        )


def _end_by_coordinator(logs: _Logs, plan: Abort, clock: Clock) -> None:
    holder = plan.holder
    assert holder is not None, plan
    log = logs.state(TopicPartition(TRANSACTION_STATE_TOPIC, holder.number))

    def the_one(number: int, create: bool) -> UnifiedStateLog:
        return log

    coordinator = TransactionCoordinator(
        the_one,
        1,  # this partition has the id, whatever its number
        logs.markers(plan.gone),
        lambda transactional_id, previous: new_producer_id(),
        clock,
        offsets_partition_count=1,
        # Write the version that the existing records have: an older cluster cannot read a newer one.
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
            f"the transactional id {found.transactional_id!r} has changed since the plan was made: its state is now "
            f"{found.state}",
            hint="make a new plan; `kafkalog transactions` lists open transactions",
        )


def __dir__() -> list[str]:
    return __all__
