"""Layouts and ranges stand once in C and once in Python: here the two are compared."""

from __future__ import annotations

import numpy as np
import pytest

from kafkalog import limits
from kafkalog._native.batches import LAYOUT
from kafkalog.format import batch, index_entries

OF_ALL_MAGICS = ("LOG_OVERHEAD", "MIN_RECORD_OVERHEAD")
FLAGS = ("CODEC_MASK", "TIMESTAMP_TYPE_FLAG", "TRANSACTIONAL_FLAG", "CONTROL_FLAG", "DELETE_HORIZON_FLAG")


def places(code: str) -> list[int]:
    """Where each field of a struct begins, and its end."""
    fields = np.dtype([(f"f{n}", f">{one}") for n, one in enumerate(code.lstrip(">"))])
    return [*(fields.fields[name][1] for name in fields.names), fields.itemsize]  # type: ignore[union-attr, index]


def test_batch_headers() -> None:
    assert places(batch.HEADER.format) == [*LAYOUT["BATCH"], LAYOUT["RECORDS"]]
    for name in (*OF_ALL_MAGICS, *FLAGS):
        assert LAYOUT[name] == getattr(batch, name), name


@pytest.mark.parametrize("kind", ["OFFSET", "TIME"])
def test_index_entries(kind: str) -> None:
    one, many = getattr(index_entries, f"{kind}_ENTRY"), getattr(index_entries, f"{kind}_ENTRIES")
    assert places(one.format) == list(LAYOUT[f"{kind}_ENTRY"])
    assert [many.fields[name][1] for name in many.names] == list(LAYOUT[f"{kind}_ENTRY"][:-1])


def test_transaction_index_entries() -> None:
    assert index_entries.TXN_ENTRY.size == index_entries.TXN_ENTRIES.itemsize == LAYOUT["TXN_ENTRY"]


def test_ranges() -> None:
    assert (LAYOUT["INT_MAX"], LAYOUT["LONG_MAX"]) == (limits.INT_MAX, limits.LONG_MAX)
