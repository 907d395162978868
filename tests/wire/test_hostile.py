"""Frames that are no requests: both servers answer, hang up, or wait, alike."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import Api, apis, header_messages
from tests.broker.servers import Servers
from tests.wire.client import BY_NAME
from tests.wire.normal import Normal, differences
from tests.wire.permitted import is_permitted
from tests.wire.stories_data import ready_coordinator
from tests.wire.stories_groups import ready_groups
from tests.wire.stories_topics import create
from tests.wire.talk import NOTHING, Talk, fitting

pytestmark = pytest.mark.broker

PATIENCE_SECONDS = 1.5
# A body for each API that says more than the defaults.
BODIES: dict[str, Values] = {
    "Produce": {"topicData": [{"name": "hostile", "partitionData": [{"index": 0, "records": b"12345"}]}]},
    "Fetch": {"topics": [{"topic": "hostile", "partitions": [{"partition": 0}]}]},
    "ListOffsets": {"topics": [{"name": "hostile", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]},
    "Metadata": {"topics": [{"name": "hostile"}], "allowAutoTopicCreation": False},
    "OffsetCommit": {"groupId": "g", "topics": [{"name": "hostile", "partitions": [{"partitionIndex": 0}]}]},
    "OffsetFetch": {"groupId": "g", "topics": [{"name": "hostile", "partitionIndexes": [0]}]},
    "FindCoordinator": {"key": "g", "coordinatorKeys": ["g"]},
    "JoinGroup": {"groupId": "g", "memberId": "nobody", "protocols": [{"name": "range", "metadata": b"123"}]},
    "Heartbeat": {"groupId": "g", "memberId": "nobody"},
    "SyncGroup": {"groupId": "g", "memberId": "nobody", "assignments": [{"memberId": "a", "assignment": b"b"}]},
    "DescribeGroups": {"groups": ["g", "h"]},
    "CreateTopics": {
        "topics": [{"name": "a b", "configs": [{"name": "retention.ms", "value": "1"}]}],
        "timeoutMs": 30000,
    },
    "DeleteTopics": {"topicNames": ["unknown"], "topics": [{"name": "unknown"}], "timeoutMs": 30000},
    "InitProducerId": {"transactionalId": "t", "transactionTimeoutMs": 60000},
    "ApiVersions": {"clientSoftwareName": "wire", "clientSoftwareVersion": "1"},
}
COUNTS = (
    b"\x7f\xff\xff\xff",
    b"\x00\x0f\x42\x41",
    b"\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\x0f",
)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def header(key: int, version: int, *, number: int = 7, flexible: bool = False) -> bytes:
    values = {"requestApiKey": key, "requestApiVersion": version, "correlationId": number, "clientId": "wire"}
    return header_messages()[0].encode(values, 2 if flexible else 1)


def body_of(api: Api, version: int) -> bytes:
    return api.request.encode(fitting(api.request.type, BODIES.get(api.name, {}), version), version)


def outcome(bootstrap: str, data: bytes) -> bytes | str:
    with Talk(bootstrap) as talk:
        talk.patience_seconds = PATIENCE_SECONDS
        return talk.send(data)


def assert_alike(servers: Servers, cases: Iterator[tuple[str, bytes]]) -> None:
    found: dict[str, str] = {}  # each difference of an API once
    for what, data in cases:
        theirs, ours = (outcome(server, data) for server in servers)
        if isinstance(theirs, str) or isinstance(ours, str):
            lines = [] if theirs == ours else [f"Kafka {theirs!r:.100}, kafkalog {ours!r:.100}"]
            lines = [line for line in lines if not is_permitted(what.partition(" ")[0], line)]
        elif theirs[:4] != ours[:4]:
            lines = [f"Kafka answers {theirs[:4]!r}, kafkalog {ours[:4]!r}"]
        else:
            lines = different_answers(data, theirs, ours)
        for line in lines:
            found.setdefault(f"{what.partition(' ')[0]} {line}", f"{what}: {line}")
    assert not found, "\n".join(found.values())


def different_answers(data: bytes, theirs: bytes, ours: bytes) -> list[str]:
    key, version = struct.unpack_from(">hh", data, 4)
    api = apis()[key]
    if key == 18 and not api.lowest <= version <= api.highest:
        version = 0
    at = 4 + api.response_header_version(version)
    normal = [Normal().struct(api.response.decode(answer, version, at=at)[0]) for answer in (theirs, ours)]
    if key == 18:
        normal = [{"errorCode": values["errorCode"]} for values in normal]
    return [line for line in differences(normal[0], normal[1]) if not is_permitted(api.name, line)]


@pytest.fixture(scope="module")
def served(servers: Servers) -> list[Api]:
    """The APIs that both serve, of listeners without authentication."""
    found = []
    for bootstrap in servers:
        with Talk(bootstrap) as talk:
            create(talk, "hostile")
            ready_coordinator(talk)
            ready_groups(talk)
            answer = talk.outcome_of(talk.frame("ApiVersions", 0, b""), "ApiVersions", 0)
            assert isinstance(answer, dict)
            found.append({row["apiKey"] for row in answer["apiKeys"]})
    return [apis()[key] for key in sorted(found[0] & found[1])]


def test_sizes(servers: Servers) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for size in (-1, -(2**31), 0, 1, 7, 104_857_601, 2**31 - 1):
            yield f"size {size}", struct.pack(">i", size) + b"\0" * 16
        yield "a partial size", b"\0\0"
        yield "a partial frame", framed(header(18, 0))[:-1]
        yield "text", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)

    assert_alike(servers, cases())


def test_unknown_keys(servers: Servers) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for key in (-1, -32768, 4, 5, 6, 7, 52, 53, 58, 62, 70, 82, 95, 999, 32767):
            for version in (0, 1, 99):
                yield f"key {key} version {version}", framed(header(key, version) + bytes(8))
                yield f"key {key} version {version}, flexible", framed(header(key, version, flexible=True) + bytes(8))

    assert_alike(servers, cases())


def test_unknown_versions(servers: Servers, served: list[Api]) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for api in served:
            for version in {-1, -32768, api.lowest - 1, api.highest + 1, api.highest + 9, 32767}:
                flexible = version >= api.flexible_from
                yield f"{api.name} {version}", framed(header(api.key, version, flexible=flexible) + bytes(12))

    assert_alike(servers, cases())


def test_headers(servers: Servers) -> None:
    good = header(3, 12, flexible=True) + body_of(BY_NAME["Metadata"], 12)

    def cases() -> Iterator[tuple[str, bytes]]:
        for end in range(18):
            yield f"a header of {end} bytes", framed(good[:end])
        head = struct.pack(">hhi", 3, 12, 7)
        rest = b"\0" + body_of(BY_NAME["Metadata"], 12)
        for size in (-1, -2, -32768, 0, 500, 32767):
            yield f"a client id of {size} bytes", framed(head + struct.pack(">h", size) + rest)
        yield "no UTF-8", framed(head + b"\0\2\xff\xfe" + rest)
        for tags in (b"\1\0\0", b"\1\5\1x", b"\2\1\0\1\0", b"\1\0\x7f", b"\xff\xff\xff\xff\x0f", b"\x80\x80"):
            yield f"tags {tags!r}", framed(head + b"\0\1a" + tags + body_of(BY_NAME["Metadata"], 12))

    assert_alike(servers, cases())


def test_truncated_bodies(servers: Servers, served: list[Api]) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for api in served:
            for version in {api.lowest, api.flexible_from, api.highest}:
                if api.lowest <= version <= api.highest:
                    body = body_of(api, version)
                    head = header(api.key, version, flexible=version >= api.flexible_from)
                    for end in {0, 1, len(body) // 2, len(body) - 1} - {len(body)}:
                        if end >= 0:
                            yield f"{api.name} {version} cut at {end} of {len(body)}", framed(head + body[:end])

    assert_alike(servers, cases())


def test_more_bytes_than_the_request(servers: Servers, served: list[Api]) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for api in served:
            if api.name in ("JoinGroup", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"):
                continue  # makes ids
            for version in {api.lowest, api.highest}:
                head = header(api.key, version, flexible=version >= api.flexible_from)
                yield f"{api.name} {version}", framed(head + body_of(api, version) + b"\0more")

    assert_alike(servers, cases())


def test_counts_and_sizes_inside(servers: Servers, served: list[Api]) -> None:
    def cases() -> Iterator[tuple[str, bytes]]:
        for api in served:
            for version in {api.lowest, api.highest}:
                body = body_of(api, version)
                head = header(api.key, version, flexible=version >= api.flexible_from)
                for at in sorted({0, 1, 2, 4, len(body) // 3, len(body) // 2, len(body) - 5}):
                    if 0 <= at < len(body):
                        for count in COUNTS:
                            hostile = body[:at] + count + body[at + len(count) :]
                            yield f"{api.name} {version}: {count!r} at {at}", framed(head + hostile)

    assert_alike(servers, cases())


def test_requests_in_a_row(servers: Servers) -> None:
    """Several requests at once are answered in their order, also if they come byte by byte."""
    requests = b"".join(framed(header(18, 0, number=number)) for number in range(5))
    for bootstrap in servers:
        for step in (len(requests), 1, 7):
            with Talk(bootstrap) as talk:
                for at in range(0, len(requests), step):
                    talk.deliver(requests[at : at + step])
                answers = [talk.send(b"") for _ in range(5)]
                numbers = [struct.unpack_from(">i", answer)[0] for answer in answers if isinstance(answer, bytes)]
                assert numbers == list(range(5)), (bootstrap, step)
                talk.patience_seconds = 0.2
                assert talk.send(b"") == NOTHING
