"""Runs the handler of a request and hands on its answer, whichever thread has it and whenever it comes.

    dispatcher.handle(request, entry, deliver)

`deliver(result)` is called once, on any thread: with values, encoded parts, None for no answer, or an error.  An
error of this package that leaves a handler becomes the answer that Kafka gives (`error_answers`).  Any other is a bug
here: it is logged with the request, and the client gets UNKNOWN_SERVER_ERROR.  Handlers of blocking keys run in a pool,
whose queue is bounded by `queued.max.requests`.  Knows no socket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import KafkalogError
from kafkalog.server.broker import Broker, Fault
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import Encoded, Pending, Request, Values

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from kafkalog.server.api import Entry

Result = Values | Encoded | BaseException | None
Deliver = Callable[[Result], None]
_LINES = Lines("kafkalog.server")


class CloseConnection(Exception):
    """A result that ends the connection without an answer."""


class Dispatcher:
    """Runs handlers for one server."""

    def __init__(self, broker: Broker, *, later: Callable[[int, Callable[[], object]], None]) -> None:
        """`later(delay_ms, run)` runs a function on the I/O thread."""
        self._broker = broker
        self._later = later
        self._pool: ThreadPoolExecutor | None = None  # guarded by _making
        self._making = threading.Lock()
        self._slots = threading.Semaphore(broker.settings["queued.max.requests"])
        self.running = 0  # in the pool; changed on the I/O thread
        self.is_closed = False

    def is_simple(self, request: Request, entry: Entry) -> bool:
        """Whether `call` may be used: the handler is quick, no fault is ordered, and no quota measures its time."""
        broker = self._broker
        return not entry.blocks(request) and broker.fault_for is None and not broker.quotas.measures_time

    def call(self, request: Request, entry: Entry) -> Result | Pending:
        """Calls a handler and returns what it returned or raised."""
        try:
            return entry.handler(self._broker, request)
        except Exception as error:
            return error

    def handle(self, request: Request, entry: Entry, deliver: Deliver) -> Pending | None:
        """Handles a request.  Returns what the answer waits for, if that is known yet; `deliver` may be called before
        this returns."""
        broker = self._broker
        if broker.fault_for is not None:
            fault = broker.fault_for(request)
            if fault is not None:
                return self._handle_faulty(fault, request, entry, deliver)
        return self._run(request, entry, deliver)

    def _handle_faulty(self, fault: Fault, request: Request, entry: Entry, deliver: Deliver) -> Pending | None:
        if fault.closes:
            deliver(CloseConnection("a fault was ordered"))
            return None
        if fault.error is not None:
            answer = error_response(request, Errors[fault.error])
            self._after(fault.delay_ms, lambda: deliver(answer))
            return None
        self._after(fault.delay_ms, partial(self._run, request, entry, deliver))
        return None

    def _after(self, delay_ms: int, run: Callable[[], object]) -> None:
        if delay_ms > 0:
            self._later(delay_ms, run)
        else:
            run()

    def _run(self, request: Request, entry: Entry, deliver: Deliver) -> Pending | None:
        if entry.blocks(request):
            self._submit(request, entry, deliver)
            return None
        result = self._called(request, entry)
        if isinstance(result, Pending):
            result.deliver_to(deliver)
            return result
        deliver(result)
        return None

    def _called(self, request: Request, entry: Entry) -> Result | Pending:
        quotas = self._broker.quotas
        measures = quotas.measures_time
        begun_ns = time.perf_counter_ns() if measures else 0
        try:
            result = entry.handler(self._broker, request)
        except Exception as error:
            return error
        if measures and not isinstance(result, Pending):
            throttle_ms = quotas.request_time(request, time.perf_counter_ns() - begun_ns)
            if throttle_ms:
                request.throttle_ms = max(request.throttle_ms, throttle_ms)
                if isinstance(result, dict) and entry.has_throttle:
                    result["throttleTimeMs"] = max(result.get("throttleTimeMs", 0), throttle_ms)
        return result

    def answer_of(self, request: Request, error: BaseException) -> Values | None:
        """Returns the answer for an error that left a handler, and logs it if it is a bug."""
        if not isinstance(error, KafkalogError):
            _LINES.error("Error while handling %r of %r", request, request.connection, exc_info=error)
        return error_response(request, error)

    # --- the pool --------------------------------------------------------------------------------------

    def submit(self, run: Callable[[], object]) -> None:
        """Runs a function in the pool, soon.  From any thread."""
        self._threads().submit(_guarded, run)

    def _threads(self) -> ThreadPoolExecutor:
        with self._making:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                threads = self._broker.settings["num.io.threads"]
                self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kafkalog-request-handler")
            return self._pool

    def _submit(self, request: Request, entry: Entry, deliver: Deliver) -> None:
        if not self._slots.acquire(blocking=False):  # Kafka's network thread waits; here the request does
            self._later(1, partial(self._submit, request, entry, deliver))
            return
        self._threads().submit(self._run_in_pool, request, entry, deliver)

    def _run_in_pool(self, request: Request, entry: Entry, deliver: Deliver) -> None:
        request.is_in_pool = True
        try:
            result = self._called(request, entry)
        finally:
            self._slots.release()
        if isinstance(result, Pending):
            result.deliver_to(deliver)
        else:
            deliver(result)

    def close(self) -> None:
        """Waits for the handlers in the pool.  Not on the I/O thread."""
        self.is_closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _guarded(run: Callable[[], object]) -> None:
    try:
        run()
    except Exception:
        _LINES.exception("Error in the server's pool")
