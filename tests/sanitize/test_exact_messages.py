"""Messages in blocks of exactly their size: truncated anywhere, damaged anywhere.

The asserts are few on purpose (tests/unit and tests/conformance have them); under AddressSanitizer each read is one.
"""

from __future__ import annotations

import random

import pytest

from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.messages import Message
from tests.fuzz.native_seeds import blind, message_values, protocol_messages, varint_change
from tests.sanitize.exact import exact


def written(rng: random.Random, message: Message, version: int) -> bytes:
    return message.encode(message_values(rng, message.type, version), version)


def read(message: Message, version: int, data: bytes) -> bool:
    """Whether these bytes are a message."""
    try:
        message.decode(exact(data), version)
    except MessageException:
        return False
    return True


def test_messages_cut_at_every_byte() -> None:
    rng = random.Random(5)
    for message in protocol_messages():
        for version in {message.lowest, message.highest}:
            data = written(rng, message, version)
            assert read(message, version, data)
            assert not any(read(message, version, data[:end]) for end in range(len(data)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages(seed: int) -> None:
    rng = random.Random(seed)
    for message in protocol_messages():
        for _ in range(20):
            version = rng.randint(message.lowest, message.highest)
            data = bytearray(written(rng, message, version))
            for _ in range(rng.choice((1, 2, 5))):
                data = varint_change(rng, data) if rng.random() < 0.6 else blind(rng, data)
            read(message, version, bytes(data))


def test_texts_and_values_of_every_length() -> None:
    (message,) = (each for each in protocol_messages() if each.name == "DescribeGroupsResponse")
    for length in [*range(130), 255, 256, 257, 511, 512, 513, 32767]:
        member = {"memberId": "x" * length, "clientId": "é" * (length // 2), "memberMetadata": b"y" * length}
        data = message.encode({"groups": [{"groupId": "g" * length, "members": [member] * 2}]}, message.highest)
        values, end = message.decode(exact(data), message.highest)
        assert end == len(data)
        assert message.encode(values, message.highest) == data
