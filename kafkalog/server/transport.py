"""The sockets of a server: one I/O thread over epoll (kqueue elsewhere), with non-blocking sockets.

    transport = Transport(settings, apis, now_ms=clock.milliseconds)
    transport.listeners.append(listener); transport.start_listening(); transport.start(); ...; transport.close(2000)

The thread reads into one buffer that all connections share, or straight into the buffer of a large request.  Answers
leave by `sendmsg` with many parts, and slices of files by `sendfile`; with TLS both are copied.  A partial write waits
for the socket, so a slow client blocks nobody, and holds at most one answer.  A connection whose request is being
handled is not read further than what one read brought.  While the requests' memory is used up, only requests of a few
KiB are read.

`bench/serve_transport.py` measures it beside asyncio with the same connection and handlers, as processor time of an
answer.  A small request took 15 us, as on asyncio.  If sixteen are pipelined, one took 6 us, against 5.  1 MiB from a
file took 177 us, against 193.  The asyncio variant has no limits, faults, throttling or slow clients, and must copy
files.  So this one is kept: it costs the same, and leaves files in the kernel.

`call_soon` (and what is built on it) is for other threads: it wakes the thread through a socket pair.  Timers are part
of the poll's timeout.  The file is long because a socket's reads, requests, writes and end are one state, which is best
read in one place.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import heapq
import itertools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import KafkalogError
from kafkalog.server.connection import Connection, part_size
from kafkalog.server.dispatcher import CloseConnection, Dispatcher, Result
from kafkalog.server.error_answers import error_response
from kafkalog.server.listener import ConnectionQuotas, Listener
from kafkalog.server.poller import READ, WRITE, new_poller
from kafkalog.server.request import ConnectionInfo, Pending, ProtocolError, Request
from kafkalog.server.request_memory import RequestMemory
from kafkalog.server.security.quotas import THROTTLE

if TYPE_CHECKING:
    from kafkalog.server.api import Apis
    from kafkalog.server.request_metrics import RequestMetrics
    from kafkalog.server.settings import ServerSettings

RECEIVE_BYTES = 256 << 10  # the most that one read puts into the shared buffer
READS_MAX = 16  # reads from one connection before others have their turn
REQUESTS_MAX = 16  # and requests
PARTS_MAX = 64  # parts that one sendmsg takes
FILE_BYTES_MAX = 4 << 20  # bytes from files in one turn of a connection
COPY_BYTES = 256 << 10  # bytes of a file that are copied at once for TLS
ACCEPTS_MAX = 64  # connections that a listener accepts before others have their turn
ACCEPT_AGAIN_MS = 500  # after the process ran out of file descriptors
SMALL_BYTES = 4096  # that a connection may still begin to send while the memory of requests is used up
STALLED_MS = 10_000  # after which a request that came in part is given up, if others wait for its memory
_GONE = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ETIMEDOUT, errno.ECONNABORTED)
_LINES = Lines("kafkalog.server")


class Link:
    """A connection and its socket."""

    __slots__ = (
        "active_ns",
        "begun_ns",
        "connection",
        "events",
        "fd",
        "file_at",
        "is_closed",
        "is_handshaking",
        "is_muted",
        "is_paused",
        "is_scheduled",
        "is_tls",
        "listener",
        "sock",
        "tls_wants",
    )

    def __init__(self, sock: socket.socket, connection: Connection, listener: Listener) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.connection = connection
        self.listener = listener
        self.events = 0  # that the selector waits for; 0 if it does not know the socket
        self.file_at = 0  # how much of the first part, a slice of a file, was sent
        self.is_closed = False
        self.is_muted = False  # throttled, or about to be closed
        self.is_paused = False  # waits for memory
        self.is_scheduled = False  # to go on soon: TLS holds bytes of it, or many requests came at once
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self.is_handshaking = self.is_tls
        self.tls_wants = 0  # the events that TLS waits for, whatever the connection wants
        self.active_ns = self.begun_ns = 0


class Transport:
    """The I/O thread and its sockets."""

    def __init__(self, settings: ServerSettings, apis: Apis, *, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._apis = apis
        self._now_ms = now_ms
        self.dispatcher: Dispatcher | None = None
        self._poller = new_poller()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._request_bytes_max: int = settings["socket.request.max.bytes"]
        self._idle_ns = settings["connections.max.idle.ms"] * 1_000_000
        self.memory = RequestMemory(settings["queued.max.request.bytes"])
        self.quotas = ConnectionQuotas(settings)
        # How long a new connection of an address must wait, before it is closed; 0 to accept it.
        self.accept_ms: Callable[[str], int] = lambda host: 0
        self.listeners: list[Listener] = []
        self.links: set[Link] = set()
        self._paused: set[Link] = set()
        self._looks_for_stalled = False  # whether a timer does, soon
        self._soon: collections.deque[Callable[[], object]] = collections.deque()
        self._timers: list[tuple[int, int, Callable[[], object]]] = []  # due in monotonic ns
        self._count = itertools.count()
        self._waker, self._wakes = socket.socketpair()
        for each in (self._waker, self._wakes):
            each.setblocking(False)
        self._poller.register(self._wakes.fileno(), READ, self._woken)
        self._thread: threading.Thread | None = None
        self._is_sleeping = False
        self._is_stopping = False
        self._has_ended = threading.Event()
        self._told_of_files = 0.0
        self._is_debug = False  # whether each request is logged
        self.metrics: RequestMetrics | None = None
        self.requests = 0  # handled so far

    # --- from any thread -------------------------------------------------------------------------------

    def call_soon(self, run: Callable[[], object]) -> None:
        """Runs a function on the I/O thread, soon.  From any thread."""
        self._soon.append(run)
        if self._is_sleeping and threading.current_thread() is not self._thread:
            with contextlib.suppress(BlockingIOError, OSError):  # full: it wakes anyway; closed: nobody is there
                self._waker.send(b"\0")

    def later_from_anywhere(self, delay_ms: int, run: Callable[[], object]) -> None:
        """Runs a function on the I/O thread after a delay.  From any thread."""
        if self.is_own_thread:
            self.later(delay_ms, run)
        else:
            self.call_soon(partial(self.later, delay_ms, run))

    def watch(self, fd: int, run: Callable[[], object]) -> None:
        """Runs a function on the I/O thread whenever a file descriptor can be read.  From any thread."""
        self.call_soon(partial(self._poller.register, fd, READ, run))

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self.links)

    @property
    def memory_used(self) -> int:
        """The bytes of requests that are being received or handled."""
        return self.memory.used

    @property
    def memory_limit(self) -> int:
        """The most of them; -1 for no limit."""
        return self.memory.limit

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the I/O thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="kafkalog-server", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread's end.  Returns whether it has ended."""
        return self._has_ended.wait(timeout_s)

    # --- the loop --------------------------------------------------------------------------------------

    def later(self, delay_ms: int, run: Callable[[], object]) -> None:
        """Runs a function on the I/O thread after a delay.  From the I/O thread, or before it starts."""
        heapq.heappush(self._timers, (time.monotonic_ns() + delay_ms * 1_000_000, next(self._count), run))

    def _run(self) -> None:
        if self._idle_ns >= 0:
            self._look_for_idle()
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException:
            _LINES.exception("The I/O thread of the server ended")
        finally:
            self._end()

    def _turn(self) -> None:
        timeout_s: float | None = None
        if self._timers:
            timeout_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
        self._is_sleeping = True
        if self._soon:  # set first, then looked at: a later `call_soon` wakes
            timeout_s = 0.0
        try:
            ready = self._poller.poll(timeout_s)
        finally:
            self._is_sleeping = False
        self._is_debug = _LINES.isEnabledFor(logging.DEBUG)
        for data, events in ready:
            if data.__class__ is Link:
                self._ready(data, events)
            elif data is not None:  # an earlier event has closed it
                self._guarded(data)
        if self._soon:
            self._run_soon()
        if self._timers:
            self._run_timers()
        if self._paused:
            self._resume_paused()

    def _run_soon(self) -> None:
        soon = self._soon
        for _ in range(len(soon)):
            self._guarded(soon.popleft())

    def _run_timers(self) -> None:
        now_ns = time.monotonic_ns()
        while self._timers and self._timers[0][0] <= now_ns:
            self._guarded(heapq.heappop(self._timers)[2])

    def _guarded(self, run: Callable[[], object]) -> None:
        try:
            run()
        except Exception:
            _LINES.exception("Error on the I/O thread of the server")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._wakes.recv(4096)) == 4096:
                pass

    # --- listeners -------------------------------------------------------------------------------------

    def start_listening(self) -> None:
        """Accepts connections of `listeners` from the start of the thread on."""
        for each in self.listeners:
            self._accept_again(each)

    def _stop_accepting(self, listener: Listener) -> None:
        if listener.is_accepting:
            self._poller.unregister(listener.sock.fileno())
            listener.is_accepting = False

    def _accept_again(self, listener: Listener) -> None:
        if not listener.is_accepting and not listener.is_closed and not self._is_stopping:
            self._poller.register(listener.sock.fileno(), READ, partial(self._accept, listener))
            listener.is_accepting = True

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_MAX):
            wait_ms = self.quotas.wait_ms(listener.endpoint.listener)
            if wait_ms:
                self._stop_accepting(listener)
                self.later(wait_ms, partial(self._accept_again, listener))
                return
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._not_accepted(listener, error)
                return
            self._admit(listener, sock, address)

    def _not_accepted(self, listener: Listener, error: OSError) -> None:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            return  # the client has gone before it was accepted
        if time.monotonic() >= self._told_of_files:
            self._told_of_files = time.monotonic() + 60
            _LINES.error(
                "no further connection can be accepted (%s): %d are open, and the limit of file descriptors is %s; "
                "raise it with `ulimit -n`",
                os.strerror(error.errno or 0), len(self.links), _files_limit(),
            )  # fmt: skip
        self._stop_accepting(listener)
        self.later(ACCEPT_AGAIN_MS, partial(self._accept_again, listener))

    def _admit(self, listener: Listener, sock: socket.socket, address: tuple[str, int]) -> None:
        host, port = address[:2]
        if not self.quotas.admits(host):
            _LINES.info("Rejected connection from %s, address already has the configured maximum.", host)
            sock.close()
            return
        throttle_ms = self.accept_ms(host)
        if throttle_ms:
            self.later(throttle_ms, sock.close)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if listener.send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, listener.send_buffer_bytes)
            info = ConnectionInfo(host, port, listener.endpoint.listener, listener.endpoint.security_protocol)
            info.local_address = sock.getsockname()[:2]
            if listener.tls is not None:
                sock = listener.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            return
        self.quotas.add(listener.endpoint.listener, host)
        authenticator = listener.new_authenticator(info) if listener.new_authenticator is not None else None
        connection = Connection(
            info,
            self._apis,
            request_bytes_max=self._request_bytes_max,
            memory=self.memory,
            authenticator=authenticator,
        )
        link = Link(sock, connection, listener)
        link.active_ns = time.monotonic_ns()
        self.links.add(link)
        self._want(link)

    # --- events ----------------------------------------------------------------------------------------

    def _want(self, link: Link) -> None:
        """Tells the selector what the link waits for."""
        if link.is_closed:
            return
        connection = link.connection
        events = link.tls_wants
        if link.is_handshaking:
            events = events or READ
        else:
            if connection.wants_bytes and not link.is_muted and not link.is_paused:
                events |= READ
            if connection.to_send:
                events |= WRITE
        if events & READ and link.is_tls and not link.is_handshaking and not link.is_scheduled:
            assert isinstance(link.sock, ssl.SSLSocket)
            if link.sock.pending():  # TLS holds bytes that no event of the socket tells of
                self._schedule(link)
        if events == link.events:
            return
        if not events:
            self._poller.unregister(link.fd)
        elif link.events:
            self._poller.modify(link.fd, events)
        else:
            self._poller.register(link.fd, events, link)
        link.events = events

    def _schedule(self, link: Link) -> None:
        """Lets a link go on without an event of its socket, after others."""
        link.is_scheduled = True
        self._soon.append(partial(self._go_on, link))

    def _go_on(self, link: Link) -> None:
        link.is_scheduled = False
        self._ready(link, READ)

    def _ready(self, link: Link, events: int) -> None:
        if link.is_closed:
            return
        link.active_ns = time.monotonic_ns()
        try:
            if link.is_handshaking and not self._shake_hands(link):
                return
            link.tls_wants = 0
            if events & WRITE or link.is_tls:
                self._flush(link)
            if not link.is_closed and (events & READ or link.is_tls) and not link.is_muted:
                self._read(link)
            self._advance(link)
        except ProtocolError as error:
            self._refused(link, error)
        except OSError as error:
            self._failed(link, error)
        except Exception:
            _LINES.exception("Closing %s because of error", link.connection)
            self._close(link)

    def _shake_hands(self, link: Link) -> bool:
        assert isinstance(link.sock, ssl.SSLSocket)
        try:
            link.sock.do_handshake()
        except ssl.SSLWantReadError:
            link.tls_wants = READ
        except ssl.SSLWantWriteError:
            link.tls_wants = WRITE
        else:
            link.is_handshaking, link.tls_wants = False, 0
            if link.listener.tls_done is not None:
                link.listener.tls_done(link.connection.info, link.sock)
            return True
        self._want(link)
        return False

    def _read(self, link: Link) -> None:
        connection, memory = link.connection, self.memory
        for _ in range(READS_MAX):
            if not connection.wants_bytes:
                return
            room: memoryview | None = None
            if memory.is_short and not memory.admits(link, connection.growth, has_part=connection.has_part):
                if connection.has_part:
                    link.is_paused = True
                    self._paused.add(link)
                    return
                target = self._buffer[:SMALL_BYTES]
            else:
                room = connection.room()
                target = self._buffer if room is None else room
            size = len(target)
            try:
                count = link.sock.recv_into(target)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                link.tls_wants = WRITE
                return
            except ssl.SSLEOFError:
                count = 0
            finally:
                if room is not None:
                    room.release()
            if not count:
                connection.is_ended = True
                return
            if room is None:
                connection.receive(self._buffer[:count])
            else:
                connection.filled(count)
            if memory.holder is link and not connection.has_part:
                memory.leave(link)
            if count < size and not link.is_tls:
                return

    def _advance(self, link: Link) -> None:
        """Handles the requests that have come, and sends the answers."""
        connection, now_ms, count = link.connection, self._now_ms(), 0
        while not link.is_closed:
            request = None if link.is_muted or count == REQUESTS_MAX else connection.next_request(now_ms)
            if request is not None:
                self._handle(link, request)
                count += 1
                continue
            if connection.to_send and not link.tls_wants & WRITE and not self._flush(link):
                break
            if link.is_muted or connection.in_flight is not None or not connection.has_frames:
                break
            if count == REQUESTS_MAX:
                if not link.is_scheduled:
                    self._schedule(link)
                break
        if link.is_closed:
            return
        if not connection.to_send:
            if connection.failure is not None:
                self._fail_authentication(link, connection.failure)
            elif connection.is_ended and connection.in_flight is None and not connection.has_frames:
                self._close(link)
                return
        self._want(link)

    # --- requests --------------------------------------------------------------------------------------

    def _handle(self, link: Link, request: Request) -> None:
        self.requests += 1
        dispatcher = self.dispatcher
        assert dispatcher is not None
        entry = self._apis.entries[request.api_key]
        if self._is_debug or self.metrics is not None:
            link.begun_ns = time.perf_counter_ns()
        if dispatcher.is_simple(request, entry):
            result = dispatcher.call(request, entry)
            if result.__class__ is not Pending:
                self._answer(link, request, result)  # type: ignore[arg-type]
                return
            assert isinstance(result, Pending)
            link.connection.waits_for(result)
            result.deliver_to(partial(self._take, link, request))
            return
        link.connection.waits_for(dispatcher.handle(request, entry, partial(self._take, link, request)))

    def _take(self, link: Link, request: Request, result: Result) -> None:
        """Takes an answer that does not come from the handler itself.  From any thread."""
        self.call_soon(partial(self._delivered, link, request, result))

    def _delivered(self, link: Link, request: Request, result: Result) -> None:
        if link.is_closed or link.connection.in_flight is not request:
            return
        link.active_ns = time.monotonic_ns()
        try:
            self._answer(link, request, result)
            self._advance(link)
        except ProtocolError as error:
            self._refused(link, error)
        except OSError as error:
            self._failed(link, error)

    def _answer(self, link: Link, request: Request, result: Result) -> None:
        connection = link.connection
        if isinstance(result, BaseException):
            if isinstance(result, CloseConnection):
                self._close(link)
                return
            assert self.dispatcher is not None
            result = self.dispatcher.answer_of(request, result)
        unsent = connection.unsent_bytes
        try:
            connection.answer(request, result)
        except Exception:
            _LINES.exception("%s: the answer to %r cannot be written", connection, request)
            try:
                connection.answer(request, error_response(request, Errors.UNKNOWN_SERVER_ERROR))
            except Exception:
                self._close(link)
                return
        state = connection.info.state
        if request.throttle_ms or (state and THROTTLE in state):
            self._throttle(link, max(request.throttle_ms, state.pop(THROTTLE, 0)))
        if self.metrics is not None:
            name = self._apis.entries[request.api_key].name
            self.metrics.answered(name, request, time.perf_counter_ns() - link.begun_ns)
        if self._is_debug:
            _LINES.debug(
                "%s, client %s: %s v%d, correlation %d: %d bytes in, %d bytes out, %.3f ms",
                connection, request.client_id or "-", self._apis.entries[request.api_key].name, request.api_version,
                request.correlation_id, request.size, connection.unsent_bytes - unsent,
                (time.perf_counter_ns() - link.begun_ns) / 1e6,
            )  # fmt: skip

    def _throttle(self, link: Link, throttle_ms: int) -> None:
        if throttle_ms > 0:
            link.is_muted = True
            self.later(throttle_ms, partial(self._unmute, link))

    def _unmute(self, link: Link) -> None:
        link.is_muted = False
        if not link.is_closed:
            self._ready(link, READ)

    # --- sending ---------------------------------------------------------------------------------------

    def _flush(self, link: Link) -> bool:
        """Sends what it can.  Returns whether everything was sent."""
        connection, parts = link.connection, link.connection.to_send
        budget = FILE_BYTES_MAX
        try:
            while parts:
                first = parts[0]
                if isinstance(first, (bytes, bytearray, memoryview)):
                    connection.sent(self._send_bytes(link))
                    continue
                if budget <= 0:
                    return False  # others have their turn first; the selector says at once that it can go on
                sent = self._send_file(link, min(budget, first.size - link.file_at))
                budget -= sent
                link.file_at += sent
                connection.sent(sent)
                if link.file_at == first.size:
                    parts.popleft()
                    link.file_at = 0
        except (BlockingIOError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLWantReadError:
            link.tls_wants = READ
            return False
        return True

    def _send_bytes(self, link: Link) -> int:
        """Sends the first parts, which are bytes.  Returns how many bytes left."""
        parts = link.connection.to_send
        if link.is_tls or len(parts) == 1:
            sent = link.sock.send(parts[0])  # type: ignore[arg-type]
        else:
            some = list(itertools.takewhile(_is_bytes, itertools.islice(parts, PARTS_MAX)))
            more = _MSG_MORE if len(some) < len(parts) else 0
            sent = link.sock.sendmsg(some, (), more)  # type: ignore[arg-type]
        left = sent
        while left or (parts and _is_bytes(parts[0]) and not len(parts[0])):  # type: ignore[arg-type]
            first = parts[0]
            size = part_size(first)
            if left < size:
                parts[0] = memoryview(first)[left:]  # type: ignore[arg-type]
                break
            parts.popleft()
            left -= size
        return sent

    def _send_file(self, link: Link, count: int) -> int:
        part = link.connection.to_send[0]
        assert not isinstance(part, (bytes, bytearray, memoryview))
        if not link.is_tls:
            return part.send_to(link.sock, link.file_at, count)
        data = part_bytes(part, link.file_at, min(count, COPY_BYTES))
        return link.sock.send(data)

    # --- the end of a connection -----------------------------------------------------------------------

    def _refused(self, link: Link, error: ProtocolError) -> None:
        level = 20 if error.is_quiet else 30
        _LINES.log(level, "%s is closed: %s", link.connection, error)
        self._close(link)

    def _failed(self, link: Link, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            _LINES.info("%s is closed: TLS failed: %s", link.connection, error)
        elif isinstance(error, KafkalogError):
            _LINES.warning("%s is closed: an answer could not be read from its file: %s", link.connection, error)
        elif error.errno not in _GONE:
            _LINES.warning("%s is closed: %s", link.connection, error)
        self._close(link)

    def _fail_authentication(self, link: Link, failure: str) -> None:
        if link.is_muted:
            return
        _LINES.info("%s failed authentication: %s", link.connection, failure)
        link.is_muted = True
        delay_ms = self._settings["connection.failed.authentication.delay.ms"]
        self.later(delay_ms, partial(self._refuse, link))

    def _refuse(self, link: Link) -> None:
        """Answers a client that failed to authenticate, after the delay that makes guessing slow."""
        if link.is_closed:
            return
        link.connection.refuse()
        try:
            self._flush(link)
        except OSError as error:
            self._failed(link, error)
        self._close(link)

    def _close(self, link: Link) -> None:
        if link.is_closed:
            return
        link.is_closed = True
        connection = link.connection
        if link.events:
            self._poller.unregister(link.fd)
            link.events = 0
        self.links.discard(link)
        self._paused.discard(link)
        with contextlib.suppress(OSError):
            link.sock.close()
        self.quotas.remove(connection.info.listener, connection.info.host)
        callbacks = connection.info.closed()
        if connection.pending is not None:
            callbacks += connection.pending.abandon()
            connection.pending = None
        connection.close()
        self.memory.leave(link)
        for each in callbacks:
            self._guarded(each)
        for listener in self.listeners:
            if not listener.is_accepting and self.quotas.was_full:
                self._accept_again(listener)

    def _resume_paused(self) -> None:
        memory = self.memory
        for link in list(self._paused):
            if not memory.admits(link, link.connection.growth, has_part=link.connection.has_part):
                continue
            self._paused.discard(link)
            link.is_paused = False
            self._ready(link, READ)
        if self._paused and not self._looks_for_stalled:
            self._looks_for_stalled = True
            self.later(min(1000, STALLED_MS), self._close_stalled)

    def _close_stalled(self) -> None:
        """Closes the connections that keep others waiting for memory, and send nothing of their own requests."""
        self._looks_for_stalled = False
        oldest_ns = time.monotonic_ns() - STALLED_MS * 1_000_000
        for link in list(self.links) if self._paused else ():
            if link.connection.has_part and not link.is_paused and link.active_ns < oldest_ns:
                _LINES.warning(
                    "%s is closed: %d connections wait for the memory of requests (queued.max.request.bytes), and it "
                    "sent nothing of its request for %d s",
                    link.connection, len(self._paused), STALLED_MS // 1000,
                )  # fmt: skip
                self._close(link)

    def _look_for_idle(self) -> None:
        now_ns = time.monotonic_ns()
        oldest_ns = now_ns - self._idle_ns
        for link in list(self.links):
            if link.active_ns < oldest_ns:
                _LINES.debug("%s is closed: it was idle for connections.max.idle.ms", link.connection)
                self._close(link)
        self.later(min(max(self._idle_ns // 10_000_000, 10), 30_000), self._look_for_idle)

    # --- the end ---------------------------------------------------------------------------------------

    def close(self, grace_ms: int) -> None:
        """Stops accepting, answers what is in flight for up to `grace_ms`, and ends the thread.  Not on it."""
        if self._thread is None:
            self._end()
            return
        self.call_soon(partial(self._begin_close, time.monotonic_ns() + grace_ms * 1_000_000))
        self._has_ended.wait()

    def _begin_close(self, until_ns: int) -> None:
        for listener in self.listeners:
            self._stop_accepting(listener)
            listener.close()
        for link in list(self.links):
            link.connection.is_ended = True  # nothing more is read; what has come whole is not begun either
            link.connection.forget_frames()
        self._go_on_closing(until_ns)

    def _go_on_closing(self, until_ns: int) -> None:
        for link in list(self.links):
            connection = link.connection
            waits = connection.pending is not None and connection.pending.is_waiting
            if (connection.in_flight is None or waits) and not connection.to_send:
                self._close(link)
            elif not link.is_closed:
                self._want(link)
        if not self.links or time.monotonic_ns() >= until_ns:
            self._is_stopping = True
        else:
            self.later(5, partial(self._go_on_closing, until_ns))

    def _end(self) -> None:
        for link in list(self.links):
            self._close(link)
        self.release()
        self._has_ended.set()

    def release(self) -> None:
        """Closes every socket as it is: at the end, and in the child of a fork."""
        for listener in self.listeners:
            listener.close()
        for link in self.links:
            with contextlib.suppress(OSError):
                link.sock.close()
        with contextlib.suppress(OSError):
            self._poller.close()
        for each in (self._waker, self._wakes):
            each.close()


_MSG_MORE = getattr(socket, "MSG_MORE", 0)


def _is_bytes(part: object) -> bool:
    return isinstance(part, (bytes, bytearray, memoryview))


def part_bytes(part: object, at: int, count: int) -> bytes:
    """Returns bytes of a slice of a file."""
    file = getattr(part, "file", None)
    if file is None:
        return bytes(part.to_bytes()[at : at + count])  # type: ignore[attr-defined]
    found: bytes = file.pread(count, part.position + at)  # type: ignore[attr-defined]
    if not found:
        raise part.truncated(at)  # type: ignore[attr-defined]
    return found


def _files_limit() -> str:
    try:
        import resource
    except ImportError:
        return "unknown"
    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
