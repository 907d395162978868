"""Who is inside a transaction of which transactional id of a store, and with what he writes.

One transaction of an id is open at a time.  Who begins another one fences the first, as Kafka does: the coordinator
aborts what that one left open, and gives out the next epoch.  What an end leaves (producer id and epoch) is kept for
the next transaction of the id, so that one after the other costs no `init_producer_id`.  It is not kept where an end
was cut short, or failed: the next one takes the id over, which ends whatever was left.  An id of which nothing is kept,
and that nobody is inside of, is not held on to.

An id's `lock` is held over such a change, and taken before the coordinator's.  Holds no transaction alive: one that
nobody holds any more is aborted by `end_left`.  Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from kafkalog.engine.coordinator.state_log import refuse_reentry
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionDescription
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.errors import IllegalStateException, InvalidPidMappingException, KafkalogError

# Producer ids of transactions: above all that a broker hands out, whose holders may still be there, and below those of
# `Partition.writer`, which are made of a name.
FIRST_STORE_PRODUCER_ID = 1 << 61
STORE_PRODUCER_IDS = range(FIRST_STORE_PRODUCER_ID, 1 << 62)


class IdUser(Protocol):
    """What is asked of a transaction (`kafkalog.transaction.StoreTransaction`)."""

    @property
    def active(self) -> bool:
        """Whether somebody will still end it."""

    def is_inside(self) -> bool:
        """Whether this thread is in the middle of one of its calls."""


class _Id:
    """A transactional id.  Everything is guarded by `lock`; `inside` is also looked at without."""

    __slots__ = ("inside", "is_gone", "is_ours", "is_unsure", "kept", "lock", "name", "timeout_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.inside: weakref.ref[IdUser] | None = None
        self.kept: ProducerIdAndEpoch | None = None  # for the next one
        self.timeout_ms = -1  # that the coordinator knows
        self.is_ours = False  # this store has taken it over, or has begun to: nobody else goes on with what is open
        self.is_unsure = False  # in the middle of a take-over, or one was cut short
        self.is_gone = False  # it was let go of, for good: the next user makes another one of its name

    def user(self) -> IdUser | None:
        """Who is inside."""
        found = self.inside
        return None if found is None else found()


class TransactionalIds:
    """Of a store that may be written."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._ids: dict[str, _Id] = {}

    def enter(self, name: str, user: IdUser, timeout_ms: int) -> None:
        """`user` begins a transaction; whoever is inside is fenced.  Errors as `init_producer_id`."""
        while True:
            one = self._ids.get(name) or self._ids.setdefault(name, _Id(name))
            refuse_reentry(one.lock, f"the transactional id {name!r}")
            with one.lock:
                if not one.is_gone:
                    self._enter(one, user, timeout_ms)
                    return
                self._drop_unused(one)  # where that was cut short

    def _enter(self, one: _Id, user: IdUser, timeout_ms: int) -> None:
        before = one.user()
        if before is not None and before.active:
            one.kept = self._taken_over(one, timeout_ms)
        one.inside = weakref.ref(user)

    def holder(self, name: str, user: IdUser, timeout_ms: int) -> ProducerIdAndEpoch | None:
        """With what `user`, who is inside, writes; None where somebody else is by now.  Errors as `enter`."""
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
        """Whether nobody has begun another transaction of the id since."""
        one = self._ids.get(name)
        return one is not None and one.user() is user

    def leave(self, name: str, user: IdUser, kept: ProducerIdAndEpoch | None) -> None:
        """`user` has ended his transaction; `kept` is with what the next one goes on, None where he never had it, or
        where that is not known."""
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
        """With its lock held.  Who waits for that finds that it is gone."""
        if one.kept is None and one.user() is None:
            one.is_gone = True  # first: nobody may come into one that is not to be found
            if self._ids.get(one.name) is one:
                del self._ids[one.name]

    def is_ours(self, transaction: TransactionDescription) -> bool:
        """Whether nobody but this store can go on with it, even where the producer id is one that a broker gave out."""
        if transaction.producer_id in STORE_PRODUCER_IDS:
            return True
        one = self._ids.get(transaction.transactional_id)
        return one is not None and one.is_ours

    def end_left(self) -> None:
        """Aborts transactions that nobody is inside of: what an end that failed, or an owner who went, left open."""
        failed: KafkalogError | None = None
        for each in self._coordinator.list_transactions(states=("Ongoing",)):
            if not self.is_ours(each):
                continue  # a broker's client's
            try:
                self._end_left(each.transactional_id)
            except InvalidPidMappingException:
                pass  # it was forgotten meanwhile
            except KafkalogError as error:
                failed = failed or error
        for one in list(self._ids.values()):
            if one.kept is None and one.user() is None:  # who was inside has gone without a word
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
        """Ids that the coordinator has forgotten."""
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

    def check_outside(self) -> None:
        """IllegalStateException in a thread that is in the middle of a transaction's call: a signal's handler, or a
        finalizer, that closes what it interrupts."""
        for one in list(self._ids.values()):
            user = one.user()
            if user is not None and user.is_inside():
                raise IllegalStateException(
                    f"the transaction of {one.name!r} is just being changed by this thread",
                    hint="do not close the store in a signal's handler or a finalizer",
                )
