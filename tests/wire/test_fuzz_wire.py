"""Random sequences from the tables of messages, valid and damaged, to a real broker and to kafkalog.

Strings and numbers come from small pools, so that requests meet what earlier ones made.  A request of bytes that were
changed may be anything; both servers must read it alike.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafkalog.engine.format.message_tables import Field, Type
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import Api, apis
from tests.broker.servers import Servers
from tests.conformance.messages import hostile
from tests.sampling import LONG
from tests.wire.normal import Normal, differences
from tests.wire.permitted import is_permitted
from tests.wire.stories_data import batch
from tests.wire.stories_topics import UNKNOWN_ID, create
from tests.wire.talk import Talk

pytestmark = pytest.mark.broker

COUNT = int(os.environ.get("KAFKALOG_WIRE_FUZZ", "2000" if LONG else "25"))
PATIENCE_SECONDS = 3.0
# Requests that change the server as a whole or wait for others, and those that are for brokers.
LEFT_OUT = {
    *("UpdateFeatures", "UnregisterBroker", "UnregisterController", "AddRaftVoter", "RemoveRaftVoter", "ElectLeaders"),
    *("AlterPartitionReassignments", "DescribeQuorum", "AlterReplicaLogDirs", "DescribeLogDirs", "ApiVersions"),
    *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState"),
    *("ReadShareGroupStateSummary", "WriteTxnMarkers", "AlterConfigs", "IncrementalAlterConfigs", "ListTransactions"),
    *("JoinGroup", "SyncGroup", "GetTelemetrySubscriptions", "PushTelemetry", "DescribeConfigs", "CreateAcls"),
}
TOPICS = ("fuzzed", "fuzzed-2", "unknown", "", "a b", "x" * 250)
TEXTS = ("group", "other", "range", "consumer", "")
NUMBERS = (0, 0, 1, 2, -1, -2, 5, 1000)
FIXED = {
    "timeoutMs": 30000,
    "maxWaitMs": 0,
    "transactionTimeoutMs": 60000,
    "numPartitions": 1,
    "replicationFactor": 1,
    "count": 3,
}


class Asked(NamedTuple):
    """A request: its body is damaged if `body` is not None."""

    api: Api
    version: int
    values: Values
    body: bytes | None


def values_of(of: Type, version: int) -> st.SearchStrategy[Values]:
    fields = [field for field in of.fields if field.in_version(version)]
    return st.fixed_dictionaries({field.name: _field(field, version) for field in fields})


def _field(field: Field, version: int) -> st.SearchStrategy[Any]:
    found = _value(field.name, field.type, version)
    if field.tag is not None and field.type.kind != "struct":
        found = st.just(field.default) | found
    return st.none() | found if field.nullable_in(version) else found


def _value(name: str, of: Type, version: int) -> st.SearchStrategy[Any]:
    if of.element is not None:
        return st.lists(_value(name, of.element, version), max_size=2)
    if name in FIXED:
        return st.just(FIXED[name])
    if of.kind == "struct":
        return values_of(of, version)
    if of.kind == "uuid":
        return st.sampled_from(["A" * 22, UNKNOWN_ID])
    if of.kind in ("string", "string16"):
        return st.sampled_from(TOPICS if "opic" in name or name == "name" else TEXTS)
    simple = {
        "bool": st.booleans(),
        "bytes": st.sampled_from([b"", b"x"]),
        "records": st.sampled_from([batch(), batch(3)]),
        "float64": st.sampled_from([0.0, 1.0, -1.0]),
    }
    return simple.get(of.kind, st.sampled_from(NUMBERS[:-1] if of.kind in ("int8", "int16", "uint16") else NUMBERS))


@st.composite
def requests(draw: st.DrawFn, served: list[Api]) -> Asked:
    api = draw(st.sampled_from(served))
    version = draw(st.integers(api.lowest, api.highest))
    values = draw(values_of(api.request.type, version).filter(_fits))
    body = draw(hostile(api.request.encode(values, version))) if draw(st.integers(0, 3)) == 0 else None
    return Asked(api, version, values, body)


def _fits(values: Values) -> bool:
    return not any(isinstance(value, int) and value < 0 and name == "port" for name, value in values.items())


@pytest.fixture(scope="module")
def served(servers: Servers) -> list[Api]:
    found = []
    for bootstrap in servers:
        with Talk(bootstrap) as talk:
            create(talk, "fuzzed", 2)
            answer = talk.outcome_of(talk.frame("ApiVersions", 0, b""), "ApiVersions", 0)
            assert isinstance(answer, dict)
            found.append({row["apiKey"] for row in answer["apiKeys"]})
    return [apis()[key] for key in sorted(found[0] & found[1]) if apis()[key].name not in LEFT_OUT]


def test_random_sequences(servers: Servers, served: list[Api]) -> None:
    normals = Normal(), Normal()

    @settings(
        max_examples=COUNT,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a sequence that ran cannot be run again on the same servers
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(requests(served), min_size=1, max_size=10))
    def sequence(asked: list[Asked]) -> None:
        outcomes = []
        for bootstrap, normal in zip(servers, normals, strict=True):
            with Talk(bootstrap) as talk:
                talk.patience_seconds = PATIENCE_SECONDS
                for api, version, values, body in asked:
                    talk.ask_bytes(api.name, version, api.request.encode(values, version) if body is None else body)
                outcomes.append([normal.heard(heard) for heard in talk.heard])
        for request, theirs, ours in zip(asked, *outcomes, strict=True):
            for line in differences(theirs[1], ours[1]):
                if not is_permitted(request.api.name, line):
                    shown = request.values if request.body is None else request.body
                    found.setdefault(f"{request.api.name} {line}", f"{theirs[0]} {line}\n    asked {shown!r:.600}")

    found: dict[str, str] = {}
    sequence()
    assert not found, "\n".join(found.values())
