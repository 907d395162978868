"""The transactional ids of a store: which transaction uses each id, and the producer id and epoch that it writes with.

One transaction of an id is open at a time. A second one fences the first, as in Kafka: the coordinator aborts the open
transaction and assigns the next epoch. The producer id and epoch of an ended transaction are kept for the next one of
the id, so that consecutive transactions need no `init_producer_id`. They are not kept if an end was interrupted or
failed. Then the next transaction takes the id over, which ends whatever was left. An id without kept values and without
a transaction is removed.

An id's `lock` is held over such a change, and taken before the coordinator's. Keeps no transaction alive: `end_left`
aborts a transaction that nobody holds any more. Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from kafkalog.engine.coordinator.state_log import refuse_reentry
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionDescription
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.errors import IllegalStateException, InvalidPidMappingException, KafkalogError

# Producer ids of transactions: above all ids of a broker, whose producers may still run, and below those of
# `Partition.writer`, which are made of a name.
FIRST_STORE_PRODUCER_ID = 1 << 61
STORE_PRODUCER_IDS = range(FIRST_STORE_PRODUCER_ID, 1 << 62)


class IdUser(Protocol):
    """The part of a transaction that is used here (`kafkalog.transaction.StoreTransaction`)."""

    @property
    def active(self) -> bool:
        """Whether a caller will still end it."""

    def is_inside(self) -> bool:
        """Returns whether this thread is inside one of its calls."""


class _Id:
    """A transactional id. Everything is guarded by `lock`; `inside` is also read without it."""

    __slots__ = ("inside", "is_gone", "is_ours", "is_unsure", "kept", "lock", "name", "timeout_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.inside: weakref.ref[IdUser] | None = None
        self.kept: ProducerIdAndEpoch | None = None  # for the next transaction
        self.timeout_ms = -1  # the coordinator's
        self.is_ours = False  # this store has taken it over, or begun to: nobody else continues an open transaction
        self.is_unsure = False  # a take-over is running, or was interrupted
        self.is_gone = False  # removed for good: the next user creates another object for the name

    def user(self) -> IdUser | None:
        """Returns the transaction that uses the id, or None."""
        found = self.inside
        return None if found is None else found()


class TransactionalIds:
    """The transactional ids of a store that may be written."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._ids: dict[str, _Id] = {}

    def enter(self, name: str, user: IdUser, timeout_ms: int) -> None:
        """Begins a transaction of `user`, and fences the one that uses the id. Errors as `init_producer_id`."""
        while True:
            one = self._ids.get(name) or self._ids.setdefault(name, _Id(name))
            refuse_reentry(one.lock, f"the transactional id {name!r}")
            with one.lock:
                if not one.is_gone:
                    self._enter(one, user, timeout_ms)
                    return
                self._drop_unused(one)  # if the removal was interrupted

    def _enter(self, one: _Id, user: IdUser, timeout_ms: int) -> None:
        before = one.user()
        if before is not None and before.active:
            one.kept = self._taken_over(one, timeout_ms)
        one.inside = weakref.ref(user)

    def holder(self, name: str, user: IdUser, timeout_ms: int) -> ProducerIdAndEpoch | None:
        """Returns the producer id and epoch of `user`, which uses the id; None if another transaction uses it by now.
        Errors as `enter`."""
        one = self._ids.get(name)
        if one is None:
            return None
        refuse_reentry(one.lock, f"the transactional id {name!r}")
        with one.lock:
            if one.user() is not user:
                return None
            kept, one.kept = one.kept, None
            if kept is not None and one.timeout_ms == timeout_ms:
                return kept
            return self._taken_over(one, timeout_ms)

    def _taken_over(self, one: _Id, timeout_ms: int) -> ProducerIdAndEpoch:
        one.kept, one.is_ours, one.is_unsure = None, True, True
        taken = self._coordinator.init_producer_id(one.name, timeout_ms)
        one.timeout_ms, one.is_unsure = timeout_ms, False
        return taken

    def is_inside(self, name: str, user: IdUser) -> bool:
        """Returns whether `user` still uses the id."""
        one = self._ids.get(name)
        return one is not None and one.user() is user

    def leave(self, name: str, user: IdUser, kept: ProducerIdAndEpoch | None) -> None:
        """Ends the use of an id by `user`. `kept` is for the next transaction; None if `user` never had a producer id,
        or if the state is not known."""
        one = self._ids.get(name)
        if one is None:
            return
        refuse_reentry(one.lock, f"the transactional id {name!r}")
        with one.lock:
            if one.user() is user:
                if kept is not None and not one.is_unsure:
                    one.kept = kept
                one.inside = None
                self._drop_unused(one)

    def _drop_unused(self, one: _Id) -> None:
        """Removes an unused id, with its lock held. A thread that waits for the lock then sees that it was removed."""
        if one.kept is None and one.user() is None:
            one.is_gone = True  # first: nobody may use an object that is not in the table
            if self._ids.get(one.name) is one:
                del self._ids[one.name]

    def is_ours(self, transaction: TransactionDescription) -> bool:
        """Returns whether only this store can continue a transaction, even under a broker's producer id."""
        if transaction.producer_id in STORE_PRODUCER_IDS:
            return True
        one = self._ids.get(transaction.transactional_id)
        return one is not None and one.is_ours

    def end_left(self) -> None:
        """Aborts open transactions that nobody uses: their end failed, or their owner was dropped."""
        failed: KafkalogError | None = None
        for each in self._coordinator.list_transactions(states=("Ongoing",)):
            if not self.is_ours(each):
                continue  # a broker's client has it
            try:
                self._end_left(each.transactional_id)
            except InvalidPidMappingException:
                pass  # forgotten meanwhile
            except KafkalogError as error:
                failed = failed or error
        for one in list(self._ids.values()):
            if one.kept is None and one.user() is None:  # its transaction was dropped without a close
                with one.lock:
                    self._drop_unused(one)
        if failed is not None:
            raise failed

    def _end_left(self, name: str) -> None:
        one = self._ids.get(name) or self._ids.setdefault(name, _Id(name))
        refuse_reentry(one.lock, f"the transactional id {name!r}")
        with one.lock:
            user = one.user()
            if not one.is_gone and (user is None or not user.active):
                self._coordinator.abort(name)

    def forget(self, names: list[str]) -> None:
        """Forgets ids that the coordinator has forgotten."""
        for name in names:
            one = self._ids.get(name)
            if one is not None:
                self._forget(one)

    def _forget(self, one: _Id) -> None:
        with one.lock:
            one.kept = None
            user = one.user()
            if user is None or not user.active:
                one.inside = None
                self._drop_unused(one)

    def hand_over(self, name: str) -> None:
        """Gives an id to a client of the protocol, which is about to take it over: the store no longer ends its
        transactions."""
        one = self._ids.get(name)
        if one is None:
            return
        refuse_reentry(one.lock, f"the transactional id {name!r}")
        with one.lock:
            one.kept, one.inside, one.is_ours = None, None, False
            self._drop_unused(one)

    def check_outside(self) -> None:
        """Raises IllegalStateException in a signal handler or finalizer that interrupts a call of a transaction in this
        thread."""
        for one in list(self._ids.values()):
            user = one.user()
            if user is not None and user.is_inside():
                raise IllegalStateException(
                    f"this thread is changing the transaction of {one.name!r}",
                    hint="do not close the store in a signal handler or a finalizer",
                )
