"""A connection without its socket: frames in any pieces, limits, the order of answers, and what ends it."""

from __future__ import annotations

import random
import struct
from typing import cast

import pytest

from kafkalog.engine.format.requests import ApiKeys
from kafkalog.server.connection import UNSENT_BYTES_MAX, Connection, Step
from kafkalog.server.request import ConnectionInfo, Encoded, FilePart, KafkaPrincipal, ProtocolError
from kafkalog.server.request_memory import RequestMemory
from tests.unit.server_kit import SOFTWARE, connection, sent_by
from tests.wire.client import decoded, frame

VERSIONS = ApiKeys.API_VERSIONS
ASK = frame(VERSIONS, 4, SOFTWARE)
NOTHING = {"errorCode": 0, "apiKeys": []}


def feed(given: Connection, data: bytes) -> None:
    given.receive(memoryview(data))


# --- frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 30, 10_000])
def test_frames_in_any_pieces(piece: int) -> None:
    given, data = connection(), b"".join(frame(VERSIONS, 4, SOFTWARE, correlation_id=n) for n in range(5))
    found = []
    for at in range(0, len(data), piece):
        feed(given, data[at : at + piece])
        while (request := given.next_request()) is not None:
            found.append(request.correlation_id)
            assert request.body["clientSoftwareName"] == "test"
            given.answer(request, NOTHING)
    assert found == [0, 1, 2, 3, 4]
    answers = sent_by(given)
    size = len(answers) // 5
    assert [decoded(VERSIONS, 4, answers[n * size + 4 : (n + 1) * size])[0] for n in range(5)] == found
    assert given.memory.used == 0
    assert given.is_idle


def test_a_large_frame_goes_straight_into_its_buffer() -> None:
    body = bytes(300_000)
    given = connection()
    data = frame(ApiKeys.METADATA, 1, body=body)
    feed(given, data[:10_000])
    at, allocated = 10_000, []
    while (room := given.room()) is not None:
        count = min(len(room), len(data) - at, 40_000)
        room[:count] = data[at : at + count]
        room.release()
        at += count
        given.filled(count)
        allocated.append(given.memory.used)
    assert at == len(data)
    assert given.has_frames
    assert max(allocated) < 2 * len(data)


def test_a_buffer_grows_with_what_arrives() -> None:
    given = connection(request_bytes_max=100 << 20)
    feed(given, struct.pack(">i", 100 << 20) + b"x")
    assert given.memory.used <= 4096
    for _ in range(16):
        feed(given, bytes(1000))
    assert given.memory.used <= 2 * 16_005 + 4096


def test_empty_and_tiny_pieces_of_the_size() -> None:
    given = connection()
    for byte in ASK:
        feed(given, b"")
        feed(given, bytes([byte]))
    assert given.next_request() is not None


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"\xff\xff\xff\xff", "size = -1"),
        (struct.pack(">i", (1 << 20) + 1), "socket.request.max.bytes"),
        (b"GET / HTTP/1.1\r\n", "looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "looks like TLS"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100])
def test_sizes_out_of_range(head: bytes, says: str, piece: int) -> None:
    given = connection()
    with pytest.raises(ProtocolError, match=says):  # noqa: PT012 (any piece may be the one)
        for at in range(0, len(head), piece):
            feed(given, head[at : at + piece])
    assert given.memory.used <= 4096


def test_the_largest_frame_is_accepted() -> None:
    given = connection(request_bytes_max=len(ASK) - 4)
    feed(given, ASK)
    assert given.next_request() is not None


# --- the order of answers --------------------------------------------------------------------------------


def test_one_request_at_a_time() -> None:
    given = connection()
    feed(given, frame(VERSIONS, 4, SOFTWARE, correlation_id=1) + frame(VERSIONS, 4, SOFTWARE, correlation_id=2))
    first = given.next_request()
    assert first is not None
    assert given.next_request() is None
    assert not given.wants_bytes
    given.answer(first, NOTHING)
    second = given.next_request()
    assert second is not None
    assert second.correlation_id == 2
    assert given.wants_bytes


def test_no_answer_is_wanted() -> None:
    given = connection()
    feed(given, ASK)
    request = given.next_request()
    assert request is not None
    given.answer(request, None)
    assert not given.to_send
    assert given.is_idle


def test_unsent_answers_hold_back_the_next_request() -> None:
    given = connection()
    feed(given, ASK + ASK)
    request = given.next_request()
    assert request is not None
    given.answer(request, Encoded([bytes(UNSENT_BYTES_MAX)]))
    assert given.next_request() is None
    sent_by(given)
    assert given.next_request() is not None


def test_parts_of_files_stay_parts() -> None:
    class Slice:
        size = 1000

    given, part = connection(), cast("FilePart", Slice())
    feed(given, ASK)
    request = given.next_request()
    assert request is not None
    given.answer(request, Encoded([b"head", part, b"tail"]))
    first, second, third = given.to_send
    assert second is part
    assert third == b"tail"
    assert int.from_bytes(first[:4], "big") == 4 + 4 + 1000 + 4  # type: ignore[index]
    assert given.unsent_bytes == 4 + 4 + 4 + 1000 + 4


# --- what is no request ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (frame(999, 0, body=b""), "999"),
        (frame(4, 0, body=b""), "4"),  # LeaderAndIsr of old brokers
        (frame(ApiKeys.METADATA, 99, body=b""), "unsupported version 99.*supported are 0 to 13"),
        (frame(ApiKeys.METADATA, -1, body=b""), "unsupported version -1"),
        (frame(ApiKeys.ADD_RAFT_VOTER, 0, body=b""), "disabled api with key 80"),
        (frame(ApiKeys.METADATA, 12, body=b"\x7f"), "Metadata, apiVersion: 12, clientId: wire: at byte"),
        (b"\0\0\0\x01\0", "Error parsing request header"),
        (b"\0\0\0\0", "Error parsing request header"),
        (struct.pack(">ihhih", 10, 3, 1, 1, 500), "Error parsing request header"),
        (struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe", "Error parsing request header|Metadata"),
    ],
)
def test_what_ends_a_connection(data: bytes, says: str) -> None:
    given = connection()
    feed(given, data)
    with pytest.raises(ProtocolError, match=says):
        given.next_request()


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_of_any_version_is_a_request(version: int) -> None:
    given = connection()
    feed(given, frame(VERSIONS, version, body=b"\x01\x01\x00"))
    request = given.next_request()
    assert request is not None
    assert (request.api_version, request.unsupported_version) == (0, version)
    given.answer(request, {"errorCode": 35, "apiKeys": []})
    assert decoded(VERSIONS, 0, sent_by(given)[4:]) == (1, {**decoded(VERSIONS, 0, b"\0\0\0\1\0\x23\0\0\0\0")[1]})


@pytest.mark.parametrize("client_id", [None, "", "é", "x" * 300])
def test_client_ids(client_id: str | None) -> None:
    given = connection()
    feed(given, frame(VERSIONS, 4, SOFTWARE, client_id=client_id) + frame(VERSIONS, 0, {}, client_id=client_id))
    for _ in range(2):
        request = given.next_request()
        assert request is not None
        assert request.client_id == (client_id or "")
        given.answer(request, NOTHING)


def test_bytes_after_the_body_are_ignored() -> None:
    given = connection()
    feed(given, frame(VERSIONS, 0, body=b"more"))
    assert given.next_request() is not None


def test_tagged_fields_in_the_header() -> None:
    head = struct.pack(">hhih", VERSIONS, 4, 8, 1) + b"c" + b"\x01\x05\x02ab" + b"\x05test\x041.0\x00"
    given = connection()
    feed(given, struct.pack(">i", len(head)) + head)
    request = given.next_request()
    assert request is not None
    assert (request.correlation_id, request.body["clientSoftwareName"]) == (8, "test")


# --- authentication --------------------------------------------------------------------------------------


class Password:
    """Lets a client in whose first frame ends with "secret"."""

    def __init__(self) -> None:
        self.is_complete = False
        self.expires_ms = 0
        self.receive_bytes_max = 100

    def handle(self, given: memoryview, info: ConnectionInfo, now_ms: int) -> Step:
        if not bytes(given).endswith(b"secret"):
            return Step([b"no"], "wrong password")
        self.is_complete = True
        info.principal = KafkaPrincipal("User", "alice")
        return Step([b"yes"])

    def wants(self, api_key: int) -> bool:
        return api_key == ApiKeys.SASL_HANDSHAKE


def authenticated() -> tuple[Connection, Password]:
    password = Password()
    given = connection(authenticator=password)
    feed(given, b"\0\0\0\x06secret" + ASK)
    return given, password


def test_frames_go_to_the_authenticator_first() -> None:
    given, _ = authenticated()
    request = given.next_request()
    assert request is not None
    assert str(request.principal) == "User:alice"
    assert sent_by(given) == b"\0\0\0\x03yes"


def test_a_failed_authentication_handles_nothing_more() -> None:
    given = connection(authenticator=Password())
    feed(given, b"\0\0\0\x05wrong" + ASK)
    assert given.next_request() is None
    assert (sent_by(given), given.failure) == (b"", "wrong password")
    assert not given.wants_bytes
    given.refuse()
    assert sent_by(given) == b"\0\0\0\x02no"


def test_frames_are_small_before_the_client_is_known() -> None:
    given = connection(authenticator=Password())
    with pytest.raises(ProtocolError, match=r"sasl\.server\.max\.receive\.size"):
        feed(given, struct.pack(">i", 101))
    given, _ = authenticated()
    assert given.next_request() is not None
    feed(given, struct.pack(">i", 101))


@pytest.mark.parametrize("step", [1, 7, 300])
def test_a_large_request_right_behind_the_login(step: int) -> None:
    given = connection(authenticator=Password())
    large = frame(VERSIONS, 0, body=bytes(200))
    data = b"\0\0\0\x06secret" + large + ASK
    for at in range(0, len(data), step):
        feed(given, data[at : at + step])
        if given.has_frames and given.in_flight is None:
            request = given.next_request()
            if request is not None:
                break
    assert request is not None
    assert str(request.principal) == "User:alice"
    feed(given, data[at + step :])
    given.answer(request, NOTHING)
    assert given.next_request() is not None
    given.close()
    assert given.memory.used == 0


def test_authenticating_again_and_too_late() -> None:
    given, password = authenticated()
    request = given.next_request()
    assert request is not None
    given.answer(request, NOTHING)
    sent_by(given)
    feed(given, b"\0\0\0\x08\0\x11secret")
    assert given.next_request() is None
    assert sent_by(given) == b"\0\0\0\x03yes"
    password.expires_ms = 100
    feed(given, ASK)
    with pytest.raises(ProtocolError, match="expired"):
        given.next_request(now_ms=100)


# --- memory ----------------------------------------------------------------------------------------------


def test_one_connection_goes_on_while_memory_is_used_up() -> None:
    memory = RequestMemory(10_000)
    first, second, third = (connection(memory=memory) for _ in range(3))
    feed(first, struct.pack(">i", 50_000) + bytes(6_000))
    feed(second, struct.pack(">i", 50_000) + bytes(6_000))
    assert memory.used > memory.limit
    assert memory.admits(first, first.growth, has_part=first.has_part)
    assert not memory.admits(second, second.growth, has_part=second.has_part)
    assert not memory.admits(third, third.growth, has_part=third.has_part)
    first.close()
    assert memory.leave(first)
    assert memory.admits(second, 0, has_part=True)
    second.close()
    assert memory.used == 0


def test_no_limit() -> None:
    memory = RequestMemory(-1)
    memory.take(1 << 40)
    assert memory.admits("anybody", 1 << 20, has_part=False)


@pytest.mark.parametrize("at", range(0, len(ASK) * 2, 7))
def test_a_close_releases_all_memory(at: int) -> None:
    given = connection()
    feed(given, (ASK + ASK)[:at])
    given.next_request()
    given.close()
    assert given.memory.used == 0


def test_garbage_ends_the_connection_or_waits() -> None:
    random_bytes = random.Random(5)
    for _ in range(300):
        given = connection(request_bytes_max=2000)
        data = bytearray(ASK * 3)
        for _ in range(random_bytes.randrange(1, 6)):
            data[random_bytes.randrange(len(data))] = random_bytes.randrange(256)
        try:
            for at in range(0, len(data), 50):
                feed(given, bytes(data[at : at + 50]))
                while (request := given.next_request()) is not None:
                    given.answer(request, NOTHING)
        except ProtocolError:
            pass
        given.close()
        assert given.memory.used == 0
