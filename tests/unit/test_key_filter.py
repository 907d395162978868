"""The wanted keys are chosen by size, by one comparison, by the table; also columns whose rows are all the same."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from kafkalog._face.arrow import repeated
from kafkalog._native.codec.keys import KeyFilter


def test_one_key_several_and_a_prefix_agree_with_python() -> None:
    rng = random.Random(28)
    pool: list[bytes] = [rng.randbytes(size) for size in (0, 1, 2, 3, 7, 8, 62, 63, 64, 65, 127, 300) for _ in range(3)]
    pool += [key[:-1] + bytes([key[-1] ^ 1]) for key in pool if key]
    pool += [b"customer-7", b"customer-8", b"customer-77", b"customer-"]
    for count in (0, 1, 2, 3, 9, 40):
        for prefix in (None, b"", b"customer-", b"customer-7", rng.choice(pool)[:2]):
            wanted = rng.sample(pool, count)
            found = KeyFilter([*wanted, None], prefix)
            for key in pool:
                assert (key in found) == (key in wanted and key.startswith(prefix or b"")), (key, wanted, prefix)
            assert (None in found) == (prefix is None)


def test_a_key_given_twice_is_one() -> None:
    found = KeyFilter([b"a", b"a"])
    assert b"a" in found
    assert b"b" not in found
    assert b"" not in found
    assert None not in found


def test_of_no_keys_none_is_wanted() -> None:
    found = KeyFilter([])
    assert all(key not in found for key in (b"", b"a", bytes(64), None))


@pytest.mark.parametrize("topic", ["a", "orders", "x" * 249])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_columns_of_equal_rows(topic: str, rows: int) -> None:
    found = repeated(topic, 7, rows, {"topic", "partition", "offset"})
    for column in found.values():
        column.validate(full=True)
    assert found["topic"].equals(pa.array([topic] * rows, pa.string()))
    assert found["partition"].equals(pa.array([7] * rows, pa.int32()))
    assert repeated(topic, 7, rows, {"offset"}) == {}
