"""Requests and responses: the APIs, headers, complete values, slices of files and error codes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kafkalog import errors
from kafkalog.engine.format.error_codes import Errors, code_of, exception_name, for_code, is_retriable, message_of
from kafkalog.engine.format.message_tables import parse_table
from kafkalog.engine.format.messages import Message
from kafkalog.engine.format.requests import (
    ApiKeys,
    RequestHeader,
    api,
    apis,
    decode_request_header,
    default_values,
    encode_response_header,
    header_messages,
)
from kafkalog.errors import IllegalArgumentException, InvalidRequestException, UnsupportedVersionException

MESSAGES = [
    *header_messages(),
    *itertools.chain.from_iterable((each.request, each.response) for each in apis().values()),
]


def test_the_apis() -> None:
    names = {name: key for name, key in vars(ApiKeys).items() if name.isupper()}
    assert {key: name.replace("_", "").lower() for name, key in names.items()} == {
        each.key: each.name.lower() for each in apis().values()
    }
    produce = api(ApiKeys.PRODUCE)
    assert (produce.key, produce.name, produce.lowest, produce.highest) == (0, "Produce", 3, 13)
    assert api(ApiKeys.INIT_PRODUCER_ID).highest == 5  # the last version of the message is not stable
    assert api(ApiKeys.INIT_PRODUCER_ID).request.highest == 6
    with pytest.raises(KeyError):
        api(4)


@pytest.mark.parametrize("message", MESSAGES, ids=[message.name for message in MESSAGES])
def test_an_empty_message_has_all_defaults(message: Message) -> None:
    for version in range(message.lowest, message.highest + 1):
        body = message.encode({}, version)
        assert message.decode(body, version) == (default_values(message), len(body))
        assert message.encode(default_values(message), version) == body


def header(**fields: Any) -> bytes:
    values: dict[str, Any] = {
        "requestApiKey": 1,
        "requestApiVersion": 12,
        "correlationId": 7,
        "clientId": "me",
    } | fields
    return header_messages()[0].encode(values, 2 if values["requestApiVersion"] >= 12 else 1)


def test_headers() -> None:
    assert header() == b"\0\1\0\x0c\0\0\0\7\0\2me\0"
    assert decode_request_header(header() + b"body") == RequestHeader(1, 12, 7, "me", 13)
    assert decode_request_header(header(requestApiVersion=11, clientId=None)) == RequestHeader(1, 11, 7, "", 10)
    assert encode_response_header(1, 12, 7) == b"\0\0\0\7\0"
    assert encode_response_header(1, 11, 7) == b"\0\0\0\7"
    assert encode_response_header(18, 4, 7) == b"\0\0\0\7"


@pytest.mark.parametrize("data", [b"", b"\0\1\0", header()[:-1], b"\0\4" + header()[2:], header(requestApiKey=999)])
def test_bytes_that_are_no_header(data: bytes) -> None:
    with pytest.raises(InvalidRequestException, match="Our best guess of the apiKeyId is"):
        decode_request_header(data)


def test_fields_of_other_versions() -> None:
    fetch = api(ApiKeys.FETCH).request
    assert fetch.encode({"maxWaitMs": 5, "rackId": "dropped"}, 4) == fetch.encode({"maxWaitMs": 5}, 4)
    with pytest.raises(UnsupportedVersionException, match="Attempted to write a non-default replicaId at version 15"):
        fetch.encode({"replicaId": 1}, 15)
    assert fetch.encode({"replicaId": -1}, 15) == fetch.encode({}, 15)
    with pytest.raises(UnsupportedVersionException, match="non-default replicaState at version 14"):
        fetch.encode({"replicaState": {"replicaId": 2}}, 14)
    assert fetch.encode({"replicaState": {"replicaId": -1}}, 14) == fetch.encode({}, 14)
    with pytest.raises(IllegalArgumentException, match="has no field rack"):
        fetch.encode({"rack": ""}, 15)
    with pytest.raises(IllegalArgumentException, match="topics: found NoneType, expected a list"):
        api(ApiKeys.METADATA).request.encode({"topics": None}, 0)
    assert api(ApiKeys.METADATA).request.encode({"topics": None}, 1) == b"\xff\xff\xff\xff"


class Slice:
    """A slice of a file, as far as messages know it."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_records_are_not_copied() -> None:
    produce = api(ApiKeys.PRODUCE).request
    partitions = [{"index": 0, "records": b"abc"}, {"index": 1, "records": memoryview(b"de")}, {"index": 2}]
    data = bytearray(b"xx" + produce.encode({"topicData": [{"name": "t", "partitionData": partitions}]}, 9))
    values, end = produce.decode(data, 9, at=2)
    assert end == len(data)
    found = [partition["records"] for partition in values["topicData"][0]["partitionData"]]
    assert found == [b"abc", b"de", None]
    assert isinstance(found[0], memoryview)
    data[data.index(b"abc")] = ord("z")
    assert bytes(found[0]) == b"zbc"


def test_slices_of_files_remain_parts() -> None:
    fetch = api(ApiKeys.FETCH).response
    slices = [Slice(10), Slice(0), Slice(5)]
    partitions = [{"partitionIndex": number, "records": piece} for number, piece in enumerate([*slices, b"tail"])]
    values = {"responses": [{"partitions": partitions}]}
    parts = fetch.encode_parts(values, 16)
    assert [part for part in parts if isinstance(part, Slice)] == [slices[0], slices[2]]
    assert all(isinstance(part, (bytes, Slice)) for part in parts)
    for partition, size in zip(partitions, (10, 0, 5), strict=False):
        partition["records"] = b"#" * size
    assert b"".join(b"#" * part.size if isinstance(part, Slice) else part for part in parts) == fetch.encode(values, 16)
    partitions[0]["records"] = slices[0]
    with pytest.raises(IllegalArgumentException, match="records: found Slice"):
        fetch.encode(values, 16)


def test_marks_of_a_table() -> None:
    (head,) = parse_table(
        "3 Some 0-5 flexible 2+ unstable\n  a int32! 1+ =0x10, b string?2 =null, c bool =true, d string16"
    )
    a, b, c, d = head.fields()
    assert (head.number, head.highest, head.stable, head.flexible_from) == (3, 5, 4, 2)
    assert (a.ignorable, a.first, a.default) == (False, 1, 16)
    assert (b.nullable_in(1), b.nullable_in(2), b.default) == (False, True, None)
    assert (c.default, d.type.kind, d.nullable_in(5)) == (True, "string16", False)


class OwnError(errors.UnknownTopicOrPartitionException):
    """An error of a base class that has a code."""


def test_error_codes() -> None:
    assert code_of(OwnError("x")) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(ValueError()) is Errors.UNKNOWN_SERVER_ERROR
    assert is_retriable(Errors.NOT_COORDINATOR)
    assert not is_retriable(Errors.NONE)
    assert for_code(9999) is Errors.UNKNOWN_SERVER_ERROR
    assert exception_name(Errors.PRODUCER_FENCED) == "ProducerFencedException"
    assert message_of(Errors.UNKNOWN_TOPIC_ID) == "This server does not host this topic ID."
