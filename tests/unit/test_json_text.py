"""`_native.json_text` against Python's json and base64, over Arrow columns of any shape; broken columns are refused."""

from __future__ import annotations

import base64
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog._native.codec.json_text import json_fields

VALUES = st.lists(
    st.one_of(
        st.none(),
        st.binary(max_size=40),
        st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from(
            [b"", b'"\\/\b\f\n\r\t\x00\x1f\x7f', "\u2028 größe \U0001f600".encode(), b"\xed\xa0\x80", b"\xc0\x80"]
        ),
    ),
    max_size=30,
)


def plain(before: str, name: str, value: bytes | None, in_base64: bool) -> str:
    if value is None:
        return f'{before}"{name}":null'
    try:
        text = None if in_base64 else value.decode()
    except UnicodeDecodeError:
        text = None
    if text is None:
        return f'{before}"{name}_base64":"{base64.b64encode(value).decode()}"'
    return f'{before}"{name}":{json.dumps(text, ensure_ascii=False)}'


@given(values=VALUES, cut=st.integers(0, 5), in_base64=st.booleans())
def test_fields_are_pythons(values: list[bytes | None], cut: int, in_base64: bool) -> None:
    column = pa.array(values, pa.binary()).slice(cut)
    validity, offsets, data = column.buffers()
    places = memoryview(offsets or bytes(4))[4 * column.offset : 4 * (column.offset + len(column) + 1)]
    if not values[cut:]:
        places = memoryview(bytes(4))
    texts, ends = json_fields(
        b",", b"value", b"" if data is None else data, places, validity, column.offset, in_base64=in_base64
    )
    found = [texts[ends[row] : ends[row + 1]].decode() for row in range(len(column))]
    assert found == [plain(",", "value", value, in_base64) for value in values[cut:]]
    assert ends[0] == 0
    assert ends[-1] == len(texts)


def test_many_rows() -> None:
    rng = random.Random(3)
    values = [
        rng.randbytes(rng.randrange(20)) if rng.random() < 0.3 else b"x" * rng.randrange(3000) for _ in range(999)
    ]
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    texts, ends = json_fields(b"", b"k", b"".join(values), offsets)
    assert texts.decode() == "".join(plain("", "k", value, False) for value in values)
    assert len(ends) == 1000


@pytest.mark.parametrize(
    "offsets", [[0, 4], [-1, 2], [2, 1], [0, 3, 2**31 - 1], [-(2**31), 0]], ids=lambda offsets: str(offsets[-1])
)
def test_offsets_outside_of_the_data(offsets: list[int]) -> None:
    with pytest.raises(IndexError, match="outside the column's data"):
        json_fields(b"", b"k", b"abc", np.array(offsets, np.int32))


def test_columns_that_are_none() -> None:
    with pytest.raises(IndexError, match="one more"):
        json_fields(b"", b"k", b"abc", b"")
    with pytest.raises(IndexError, match="fewer bits"):
        json_fields(b"", b"k", b"", bytes(4 * 10), b"\xff")
    with pytest.raises(IndexError, match="fewer bits"):
        json_fields(b"", b"k", b"", bytes(4 * 2), b"\xff", 8)
    with pytest.raises(IndexError, match="one more"):
        json_fields(b"", b"k", b"", bytes(8), None, -1)
    with pytest.raises(TypeError):
        json_fields(b"", b"k", "text", bytes(8))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        json_fields(b"", None, b"", bytes(8))  # type: ignore[arg-type]
