"""A schema that was inferred decodes what it was inferred from, and says of it what Python's json says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.json_columns import row, same

pa = pytest.importorskip("pyarrow")

from kafkalog._face import json_schema  # noqa: E402
from kafkalog._face.value_columns import decoding  # noqa: E402

NAMES = ["a", "b", "id", "größe", "", "a.b", "l[]", 'q"\\']
MAKERS = [
    lambda rng: rng.randrange(-5, 5),
    lambda rng: rng.choice([2**63 - 1, -(2**63), 2**63, 10**30]),
    lambda rng: rng.random() * 10 ** rng.randrange(-20, 20),
    lambda rng: rng.choice(["", "x", "2026-03-01", "2026-03-01T12:30:05.123456789Z", "\U0001f600\n"]),
    lambda rng: rng.random() < 0.5,
    lambda rng: None,
]


def value(rng: random.Random, depth: int, kinds: list[int]) -> Any:
    kind = rng.choice(kinds)
    if kind < len(MAKERS) or not depth:
        return MAKERS[kind % len(MAKERS)](rng)
    if kind % 2:
        return [value(rng, depth - 1, kinds) for _ in range(rng.randrange(4))]
    return document(rng, depth - 1, kinds)


def document(rng: random.Random, depth: int, kinds: list[int]) -> dict[str, Any]:
    # A name mostly has values of one kind.
    return {
        name: value(rng, depth, [kinds[len(name) % len(kinds)], *kinds[: rng.randrange(2)]])
        for name in rng.sample(NAMES, rng.randrange(5))
    }


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64))
def test_a_sample_decodes_by_its_schema(seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.sample(range(len(MAKERS) + 4), 4)
    documents = [document(rng, 3, kinds) if rng.random() < 0.9 else None for _ in range(rng.randrange(1, 9))]
    values = [
        None if each is None else json.dumps(each, ensure_ascii=rng.random() < 0.5).encode() for each in documents
    ]
    column = pa.array(values, pa.binary())
    made = decoding("json").infer(column)
    batch = made.apply(pa.record_batch({"value": column, "row": pa.array(range(len(values)))}))
    batch.validate(full=True)
    fields = json_schema.spec(made.schema)
    assert {name for each in documents if each for name in each} == set(made.schema.names)
    got = batch.drop_columns("row").to_pylist()
    for found, given_value in zip(got, values, strict=True):
        wanted = row(given_value, fields, null_errors=False)
        assert same(found, wanted), (given_value, found, wanted)
