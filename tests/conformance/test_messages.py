"""Records of internal topics compared with Kafka 4.4.0's generated classes: the same bytes, JSON and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalog.engine.format import metadata_records
from kafkalog.engine.format.coordinator_records import PREFIX
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.messages import Schema, Values
from tests.conformance import kafka_jars, messages
from tests.sampling import LONG

pytestmark = pytest.mark.jvm

CASES = list(messages.every_version())
IDS = [f"{schema.name}-{version}" for _, schema, version in CASES]
MEMBER_PROTOCOL = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
RANDOM = settings(
    max_examples=500 if LONG else 25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with messages.kafka(kafka_driver) as codec:
        yield codec


def framed(frame: str, schema: Schema, version: int, values: Values) -> bytes:
    if frame == "metadata":
        return metadata_records.encode_metadata_record(metadata_records.type_name(schema), values, version)
    body = schema.encode(values, version)
    return {"type": PREFIX.pack(schema.number), "version": PREFIX.pack(version)}.get(frame, b"") + body


@pytest.mark.parametrize(("frame", "schema", "version"), CASES, ids=IDS)
@RANDOM
@given(data=st.data())
def test_the_same_bytes(kafka: messages.Kafka, frame: str, schema: Schema, version: int, data: st.DataObject) -> None:
    values = data.draw(messages.values_of(schema.type, version))
    theirs = kafka.encode(frame, schema, version, values)
    assert framed(frame, schema, version, values).hex() == theirs["bytes"]
    assert messages.json_text(schema, values, version) == theirs["json"]
    body = schema.encode(values, version)
    assert schema.decode(body, version) == (values, len(body))


@pytest.mark.parametrize(("frame", "schema", "version"), CASES, ids=IDS)
@RANDOM
@given(data=st.data())
def test_the_same_refusals(
    kafka: messages.Kafka, frame: str, schema: Schema, version: int, data: st.DataObject
) -> None:
    """Bytes truncated, changed or made up, and too new versions: both read the same, or both report the same."""
    hostile = data.draw(messages.hostile(schema.encode(data.draw(messages.values_of(schema.type, version)), version)))
    if frame == "metadata" or schema.name in MEMBER_PROTOCOL:  # the version of the others is checked first
        version += data.draw(st.just(0) | st.integers(0, 3))
    messages.compare_decoded(kafka, schema, version, hostile)


def test_limits(kafka: messages.Kafka) -> None:
    """Input that Kafka 4.4.0 refuses although the bytes exist."""
    schemas = {schema.name: schema for _, schema, _ in CASES}
    legacy, member = schemas["GroupMetadataValue"], schemas["ConsumerGroupRegularExpressionValue"]
    head = bytes(2) + bytes(4) + b"\xff\xff\xff\xff"
    hostile = [
        (legacy, 0, head + (1_000_001).to_bytes(4, "big") + bytes(1_000_001)),
        (legacy, 0, head + (1 << 30).to_bytes(4, "big")),
        (member, 0, b"\x01" + bytes(16) + b"\x91\x4e" + bytes(20_100)),
        (member, 0, b"\x01" + bytes(16) + b"\xff\xff\xff\xff\x0f"),
        (member, 0, b"\x01" + bytes(16) + b"\x01\x05\xff\xff\xff\xff\x0f"),
        (member, 0, b"\xff\xff\xff\xff\xff\x0f"),
        (member, 0, b"\x80\x80\x80\x80\x08"),
    ]
    for schema, version, data in hostile:
        theirs = kafka.decode(schema, version, data)
        with pytest.raises(MessageException) as refused:
            schema.decode(data, version)
        assert refused.value.kafka_text == theirs["error"]
