"""Requests and responses compared with Kafka 4.4.0's definitions and generated classes, in every version."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalog.engine.format import error_codes
from kafkalog.engine.format.messages import Message, Values
from kafkalog.errors import IllegalArgumentException, UnsupportedVersionException
from tests.conformance import kafka_jars, message_definitions, messages
from tests.sampling import LONG

pytestmark = pytest.mark.jvm

MESSAGES = messages.protocol_messages()
RANDOM = settings(
    max_examples=300 if LONG else 12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
every_message = pytest.mark.parametrize("message", MESSAGES, ids=[message.name for message in MESSAGES])


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with messages.kafka(kafka_driver) as codec:
        yield codec


def test_the_tables_are_those_of_the_jar(kafka_driver: kafka_jars.Driver) -> None:
    known = message_definitions.definitions(message_definitions.clients_jar(kafka_driver.classpath))
    for area, table in message_definitions.tables(known).items():
        ours = importlib.import_module(f"{message_definitions.PACKAGE}.request_tables_{area}").TABLE
        assert table == ours, f"python -m {message_definitions.__name__} writes the tables of {area} anew"


def test_error_codes(kafka: messages.Kafka) -> None:
    theirs = kafka.ask([{"errors": True}])[0]["errors"]
    names = ("name", "code", "exception", "retriable", "message")
    assert [
        (code.name, code.value, error_codes.exception_name(code), error_codes.is_retriable(code), text)
        for code in error_codes.Errors
        for text in [error_codes.message_of(code)]
    ] == [tuple(row[name] for name in names) for row in theirs]


@every_message
@RANDOM
@given(data=st.data())
def test_the_same_bytes(kafka: messages.Kafka, message: Message, data: st.DataObject) -> None:
    """Every version of the same values, in both directions."""
    drawn = data.draw(messages.values_of(message.type, None))
    for version in range(message.lowest, message.highest + 1):
        values = messages.of_version(message.type, drawn, version)
        theirs = kafka.encode("none", message, version, values)
        body = message.encode(values, version)
        assert body.hex() == theirs["bytes"]
        assert messages.json_text(message, values, version) == theirs["json"]
        assert message.decode(body, version) == (messages.completed(message.type, values), len(body))


@every_message
@RANDOM
@given(data=st.data())
def test_values_of_another_version(kafka: messages.Kafka, message: Message, data: st.DataObject) -> None:
    """Fields that a version lacks are dropped or refused, and those that it adds have their defaults."""
    known = data.draw(st.integers(message.lowest, message.highest))
    values = data.draw(messages.values_of(message.type, known))
    for version in range(message.lowest, message.highest + 1):
        theirs = kafka.encode("none", message, version, values, given=known)
        for each in (values, messages.completed(message.type, values)):
            ours = encoded(message, version, each)
            if isinstance(ours, UnsupportedVersionException):
                assert "Attempted to write a non-default" in theirs["error"]
                assert "Attempted to write a non-default" in ours.message
            elif isinstance(ours, IllegalArgumentException):
                assert "NoneType" in ours.message
                assert theirs["error"] is None  # Kafka's NullPointerException
            else:
                assert ours.hex() == theirs["bytes"]


def encoded(message: Message, version: int, values: Values) -> Any:
    """The bytes, or the error."""
    try:
        return message.encode(values, version)
    except (UnsupportedVersionException, IllegalArgumentException) as error:
        return error


@every_message
@RANDOM
@given(data=st.data())
def test_the_same_refusals(kafka: messages.Kafka, message: Message, data: st.DataObject) -> None:
    version = data.draw(st.integers(message.lowest, message.highest))
    good = message.encode(data.draw(messages.values_of(message.type, version)), version)
    messages.compare_decoded(kafka, message, version, data.draw(messages.hostile(good)))
