"""The state that the handlers of data and transactions share: topics, fetch sessions, waiting fetches, syncs, a pool.

It is made at the first request that needs it, and closed by the server.  The I/O thread owns the sessions and the
waiting fetches.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kafkalog.engine.files.processes import held_over_forks
from kafkalog.server.durable import GroupCommit
from kafkalog.server.hosted import hosted_by
from kafkalog.server.sessions import FetchManager, FetchSessionCache
from kafkalog.server.traffic import Traffic
from kafkalog.server.waiting_fetches import WaitingFetches, Waker

if TYPE_CHECKING:
    from kafkalog.server.broker import Broker

KEY = "data"
_LOCK = threading.RLock()  # guards the creation of a DataPlane
held_over_forks(_LOCK)


class DataPlane:
    """The state of one server's data handlers."""

    def __init__(self, broker: Broker, *, wakes: bool = True) -> None:
        """`wakes` False: nobody looks after the waiting fetches but the caller, in a test."""
        self._broker = broker
        self.hosted = hosted_by(broker)
        self._waker = Waker(broker.clock, broker.later, broker.watch) if wakes else None
        self.waiting = WaitingFetches(broker.clock) if self._waker is None else self._waker.waiting
        settings, coordinators = broker.settings, broker.home.coordinators
        known = coordinators.transactions.settings
        coordinators.use_transaction_settings(
            known._replace(
                transaction_max_timeout_ms=settings["transaction.max.timeout.ms"],
                transactional_id_expiration_ms=settings["transactional.id.expiration.ms"],
            )
        )
        self.verifies: bool = settings["transaction.partition.verification.enable"]
        self.has_two_phases: bool = settings["transaction.two.phase.commit.enable"]
        slots = broker.settings["max.incremental.fetch.session.cache.slots"]
        self.fetches = FetchManager(FetchSessionCache(slots), broker.clock, self.hosted)
        self.fetch_max_bytes: int = broker.settings["fetch.max.bytes"]
        self.traffic = None if broker.metrics is None else Traffic(broker.metrics, self.hosted)
        self.syncs = GroupCommit() if broker.home.syncs else None
        # Held by one thread of the pool at a time, so that only one large batch is decompressed.
        self.heavy = threading.Lock()

    def after_appends(self) -> None:
        """Lets the fetches that wait for this thread's appends end, once the current request is answered."""
        if self.waiting.rung.has_rung:
            self._broker.call_soon(self.waiting.look)
        else:
            self.waiting.rung.speak()

    def close(self) -> None:
        """Ends its threads, after the I/O thread."""
        if self._waker is not None:
            self._waker.close()
        if self.syncs is not None:
            self.syncs.close()


def data_of(broker: Broker) -> DataPlane:
    """Returns the state of the broker's data handlers.  Thread-safe."""
    found: DataPlane | None = broker.state.get(KEY)
    return _made(broker) if found is None else found


def _made(broker: Broker) -> DataPlane:
    with _LOCK:
        found: DataPlane | None = broker.state.get(KEY)
        if found is None:
            found = broker.state[KEY] = DataPlane(broker)
            broker.at_close.append(found.close)
        return found
