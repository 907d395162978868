"""One connection without its socket: bytes in, requests out; answers in, parts of bytes and of files out.

    connection.receive(data)
    while request := connection.next_request():
        connection.answer(request, handler(broker, request))
    parts = connection.to_send

A frame is four bytes of size and the request.  The size is checked before anything is allocated, and a buffer grows
with what arrives, never by what is claimed.  As in Kafka, one request of a connection is handled at a time.  While it
is in flight, or while its answer has not left, the next one waits, so answers have the order of the requests.

`ProtocolError` ends the connection: an unknown key or version, a body that cannot be decoded, a size out of range.  Its
text names what was wrong; the owner logs it with the client and closes the socket.  Kafka does the same, and answers
none of these.  ApiVersions alone is answered whatever its version is, because a client uses it to learn the versions.

Not thread-safe: the I/O thread owns it.  Source: NetworkReceive, KafkaChannel, Processor, RequestHeader (4.4.0).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalog.server.request import ConnectionInfo, Encoded, Pending, ProtocolError, Request, Values
from kafkalog.server.request_memory import RequestMemory

if TYPE_CHECKING:
    from kafkalog.server.request import Part

_SIZE = struct.Struct(">i")
SIZE_BYTES = _SIZE.size
FIRST_BYTES = 4096  # a buffer for a frame that came in part begins with these
GROWTH_BYTES_MAX = 4 << 20  # the most that a buffer grows at once
JOINED_BYTES_MAX = 4096  # a shorter first part is copied behind the size
_NO_BYTES = memoryview(b"")
UNSENT_BYTES_MAX = 64 << 10  # with more than this unsent, the next request waits


class Codec(Protocol):
    """Reads requests and writes answers: `Apis`."""

    def read(self, frame: memoryview, info: ConnectionInfo) -> Request: ...

    def write(self, request: Request, result: Values | Encoded) -> list[Part]: ...


class Step(NamedTuple):
    """An authenticator's reaction to a frame: the frame to send back, or None; and why it failed, or None."""

    answer: Sequence[Part] | None
    failure: str | None = None


class Authenticator(Protocol):
    """Takes the frames of a connection until it is complete, and again when a client authenticates anew.

    `handle` sets `info.principal` when it completes.  `wants` is asked after that for each request with the key
    SaslHandshake or SaslAuthenticate.  `expires_ms` is when the connection must have authenticated again; 0 for never.
    No frame may be larger than `receive_bytes_max` before it is complete.
    """

    expires_ms: int
    receive_bytes_max: int

    @property
    def is_complete(self) -> bool: ...

    def handle(self, frame: memoryview, info: ConnectionInfo, now_ms: int) -> Step: ...

    def wants(self, api_key: int) -> bool: ...


class Connection:
    """The state of a connection.

    `to_send` has what the owner sends, in order; the owner removes what was sent and calls `sent`.  `in_flight` is the
    request that is being handled, or None.
    """

    __slots__ = (
        "_apis",
        "_behind",
        "_buffer",
        "_claimed",
        "_filled",
        "_frame_bytes",
        "_frame_bytes_max",
        "_frames",
        "_refusal",
        "_request_bytes_max",
        "authenticator",
        "failure",
        "in_flight",
        "info",
        "is_ended",
        "memory",
        "pending",
        "queued_bytes",
        "to_send",
        "unsent_bytes",
    )

    def __init__(
        self,
        info: ConnectionInfo,
        apis: Codec,
        *,
        request_bytes_max: int,
        memory: RequestMemory | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.info = info
        self.memory = memory or RequestMemory(-1)
        self.authenticator = authenticator
        self.in_flight: Request | None = None
        self.pending: Pending | None = None  # the answer of the request in flight
        self.failure: str | None = None  # why the authentication failed; `refuse` answers, and the connection ends
        self._refusal: Sequence[Part] | None = None
        self.is_ended = False  # the client sends no more
        self.to_send: deque[Part] = deque()
        self.unsent_bytes = 0
        self.queued_bytes = 0  # bytes of whole frames that wait
        self._apis = apis
        self._request_bytes_max = request_bytes_max
        self._frame_bytes_max = request_bytes_max if authenticator is None else authenticator.receive_bytes_max
        self._frames: deque[memoryview] = deque()
        self._frame_bytes = 0  # bytes of the frame in flight
        self._behind = b""  # bytes behind a frame of the login, which are looked at after it
        # A frame that came in part: its buffer, with the four bytes of size first, and how much of it is filled.
        self._buffer: bytearray | None = None
        self._filled = 0
        self._claimed = 0  # its size with these four bytes; 0 if they are not complete

    # --- bytes in --------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is being handled, sent or received."""
        return self.in_flight is None and not self._frames and not self.to_send and self._buffer is None

    @property
    def wants_bytes(self) -> bool:
        """Whether its socket should be read: Kafka mutes a connection while a request of it is handled."""
        return not self._frames and not self.is_ended and self.failure is None

    @property
    def has_part(self) -> bool:
        """Whether a frame came in part."""
        return self._buffer is not None

    @property
    def has_frames(self) -> bool:
        """Whether whole frames wait."""
        return bool(self._frames)

    def forget_frames(self) -> None:
        """Drops the frames that wait, because the server closes."""
        self._frames.clear()
        self.memory.give(self.queued_bytes)
        self.queued_bytes = 0

    def _check_size(self, size: int) -> None:
        if size < 0 or size > self._frame_bytes_max:
            is_known = self._frame_bytes_max == self._request_bytes_max
            setting = "socket.request.max.bytes" if is_known else "sasl.server.max.receive.size"
            limit = f"the limit is {self._frame_bytes_max} ({setting})"
            looks = ""
            head = size.to_bytes(4, "big", signed=True)
            if head in (b"GET ", b"POST", b"HEAD", b"PUT "):
                looks = "; it looks like HTTP"
            elif head[:2] == b"\x16\x03":
                looks = "; it looks like TLS on a listener without TLS"
            raise ProtocolError(f"Invalid receive (size = {size}): {limit}{looks}", is_quiet=bool(looks))

    def receive(self, data: memoryview) -> None:
        """Takes bytes from the socket.  They are copied.  ProtocolError if a size is out of range."""
        at, end = 0, len(data)
        if self._buffer is not None:
            at = self._fill(data)
        while end - at >= SIZE_BYTES:
            if self._frames and self._frame_bytes_max != self._request_bytes_max:  # the login may allow larger ones
                self._behind = data[at:].tobytes()
                self.memory.take(len(self._behind))
                return
            (size,) = _SIZE.unpack_from(data, at)
            if size < 0 or size > self._frame_bytes_max:
                self._check_size(size)
            behind = at + SIZE_BYTES + size
            if behind > end:
                break
            self._add(memoryview(data[at + SIZE_BYTES : behind].tobytes()))
            at = behind
        if at < end:
            self._begin(data[at:])

    def _add(self, frame: memoryview) -> None:
        self._frames.append(frame)
        self.queued_bytes += len(frame)
        self.memory.take(len(frame))

    def _begin(self, rest: memoryview) -> None:
        """Keeps the first bytes of a frame."""
        capacity = max(FIRST_BYTES, len(rest))
        if len(rest) >= SIZE_BYTES:
            self._claimed = SIZE_BYTES + int.from_bytes(rest[:SIZE_BYTES], "big")
            capacity = min(self._claimed, max(capacity, 2 * len(rest)))
        else:
            self._claimed = 0
        self._buffer = bytearray(capacity)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        self.memory.take(capacity)

    def _fill(self, data: memoryview) -> int:
        """Completes the frame that came in part.  Returns how many bytes it took."""
        assert self._buffer is not None
        taken = 0
        if not self._claimed:
            taken = min(SIZE_BYTES - self._filled, len(data))
            self._buffer[self._filled : self._filled + taken] = data[:taken]
            self.filled(taken)
        while self._buffer is not None and taken < len(data):
            room = self._room()
            count = min(len(room), len(data) - taken)
            room[:count] = data[taken : taken + count]
            room.release()
            taken += count
            self.filled(count)
        return taken

    def _room(self) -> memoryview:
        """Returns the free bytes of the buffer, which grows if it is full."""
        buffer = self._buffer
        assert buffer is not None
        if self._filled == len(buffer):
            grown = self.growth
            buffer += bytes(grown)
            self.memory.take(grown)
        return memoryview(buffer)[self._filled :]

    @property
    def growth(self) -> int:
        """How many bytes the buffer of the frame that came in part grows by next; 0 if it has room."""
        buffer = self._buffer
        if buffer is None or not self._claimed or self._filled < len(buffer):
            return 0
        return min(self._claimed - len(buffer), len(buffer), GROWTH_BYTES_MAX)

    def room(self) -> memoryview | None:
        """Returns where the next bytes of a large frame belong, so that the socket is read without a copy; the caller
        releases it and calls `filled`.  None if no such frame is coming."""
        if self._buffer is None or self._claimed < 2 * FIRST_BYTES:
            return None
        return self._room()

    def filled(self, count: int) -> None:
        """Says that `count` bytes were put into the room.  ProtocolError as `receive`."""
        buffer = self._buffer
        assert buffer is not None
        self._filled += count
        if not self._claimed:
            if self._filled < SIZE_BYTES:
                return
            size = int.from_bytes(buffer[:SIZE_BYTES], "big", signed=True)
            self._check_size(size)
            self._claimed = SIZE_BYTES + size
            if self._claimed < len(buffer):
                self.memory.give(len(buffer) - self._claimed)
                del buffer[self._claimed :]
        if self._filled == self._claimed:
            self.memory.give(len(buffer))
            self._buffer, self._filled, self._claimed = None, 0, 0
            self._add(memoryview(buffer)[SIZE_BYTES:])

    # --- requests out ----------------------------------------------------------------------------------

    def next_request(self, now_ms: int = 0) -> Request | None:
        """Returns the next request, which is in flight from then on; None if there is none or one is in flight.

        ProtocolError if the connection must end.
        """
        while self.in_flight is None and self._frames and self.failure is None:
            if self.unsent_bytes > UNSENT_BYTES_MAX:
                return None
            frame = self._frames.popleft()
            self._frame_bytes = len(frame)
            self.queued_bytes -= len(frame)
            authenticator = self.authenticator
            if authenticator is not None and self._is_for(authenticator, frame, now_ms):
                self._authenticate(authenticator, frame, now_ms)
                continue
            request = self._apis.read(frame, self.info)
            request.received_ms = now_ms
            self.in_flight = request
            return request
        return None

    def _is_for(self, authenticator: Authenticator, frame: memoryview, now_ms: int) -> bool:
        if not authenticator.is_complete:
            return True
        if len(frame) >= 2 and authenticator.wants(int.from_bytes(frame[:2], "big", signed=True)):
            return True
        if authenticator.expires_ms and now_ms >= authenticator.expires_ms:
            raise ProtocolError("the session has expired, and the client has not authenticated again", is_quiet=True)
        return False

    def _authenticate(self, authenticator: Authenticator, frame: memoryview, now_ms: int) -> None:
        step = authenticator.handle(frame, self.info, now_ms)
        self._done()
        self._frame_bytes_max = (
            self._request_bytes_max if authenticator.is_complete else authenticator.receive_bytes_max
        )
        self.failure = step.failure
        if step.failure is None and self._behind:
            behind, self._behind = self._behind, b""
            self.memory.give(len(behind))
            self.receive(memoryview(behind))
        if step.failure is not None:
            self._refusal = step.answer
        elif step.answer is not None:
            self._queue(step.answer)

    def refuse(self) -> None:
        """Sends the answer to a client that failed to authenticate, which waits for the owner's delay."""
        if self._refusal is not None:
            self._queue(self._refusal)
            self._refusal = None

    def _done(self) -> None:
        self.memory.give(self._frame_bytes)
        self._frame_bytes = 0

    # --- answers in ------------------------------------------------------------------------------------

    def waits_for(self, pending: Pending | None) -> None:
        """Says what the answer of the request in flight waits for, if that is known yet.

        A request that waits for others, perhaps for long, is not kept as bytes."""
        self.pending = pending
        if pending is not None and pending.is_waiting and self.in_flight is not None:
            self.in_flight.data = _NO_BYTES
            self._done()

    def answer(self, request: Request, result: Values | Encoded | None) -> None:
        """Takes the answer of the request in flight; None if the client wants none.

        An error of the encoding leaves the request in flight, so that another answer may be given."""
        assert request is self.in_flight, (request, self.in_flight)
        if result is not None:
            self._queue(self._apis.write(request, result))
        self.in_flight = self.pending = None
        self._done()

    def _queue(self, parts: Sequence[Part]) -> None:
        first = parts[0]
        if len(parts) == 1 and isinstance(first, bytes):
            size = len(first)
            self.to_send.append(size.to_bytes(SIZE_BYTES, "big") + first)
        else:
            size = sum(map(part_size, parts))
            head = size.to_bytes(SIZE_BYTES, "big")
            if isinstance(first, bytes) and len(first) < JOINED_BYTES_MAX:
                self.to_send.append(head + first)
                self.to_send.extend(parts[1:])
            else:
                self.to_send.append(head)
                self.to_send.extend(parts)
        self.unsent_bytes += SIZE_BYTES + size

    def sent(self, count: int) -> None:
        """Says that `count` bytes of `to_send` were sent."""
        self.unsent_bytes -= count
        assert self.unsent_bytes >= 0, self

    def close(self) -> None:
        """Releases its memory, and ends the answer that is being waited for.  The caller calls what `info.closed()`
        and `pending.abandon()` return."""
        self._frames.clear()
        self.to_send.clear()
        held = self.queued_bytes + self._frame_bytes + len(self._behind) + (len(self._buffer) if self._buffer else 0)
        self.memory.give(held)
        self.queued_bytes = self._frame_bytes = self.unsent_bytes = 0
        self._buffer, self._behind, self.is_ended = None, b"", True

    def __repr__(self) -> str:
        return f"<{self.info.listener} connection of {self.info.host}:{self.info.port}>"


def part_size(part: Part) -> int:
    """Returns the bytes of a part."""
    return len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
