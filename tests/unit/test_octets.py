"""The entry point for buffers: any C-contiguous one is its bytes, anything else is refused with its type."""

from __future__ import annotations

import array
import mmap
from typing import Any

import numpy as np
import pytest

from kafkalog._native.codec.octets import bytes_of
from kafkalog.engine.format.octets import frozen, octets
from kafkalog.errors import IllegalArgumentException

ITEMS = np.arange(12, dtype=np.int32)
CONTENT = ITEMS.tobytes()


class OwnBytes(bytes):
    def __len__(self) -> int:
        return 3


def mapped() -> mmap.mmap:
    mapping = mmap.mmap(-1, len(CONTENT))
    mapping[:] = CONTENT
    return mapping


@pytest.mark.parametrize(
    "data",
    [
        CONTENT,
        bytearray(CONTENT),
        OwnBytes(CONTENT),
        memoryview(CONTENT).cast("I"),
        memoryview(CONTENT).cast("B", (6, 8)),
        memoryview(b"?" + CONTENT)[1:],
        array.array("i", ITEMS.tolist()),
        ITEMS.reshape(3, 4),
        ITEMS.astype(">i4").byteswap().view(">i4"),
        ITEMS.view([("a", "<i2"), ("b", "<i2")]),
        ITEMS.view("M8[s]"),
        mapped(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_any_contiguous_buffer_is_its_bytes(data: Any) -> None:
    view = octets(data, "data")
    assert len(view) == len(CONTENT)
    assert bytes(view) == CONTENT
    assert bytes(view[5:9]) == CONTENT[5:9]
    if not isinstance(view, bytes):
        assert (view.format, view.ndim, view.readonly) == ("B", 1, True)


@pytest.mark.parametrize("data", [b"", bytearray(), np.empty((0, 3)), np.empty((3, 0), ">i8")])
def test_nothing_is_no_bytes(data: Any) -> None:
    assert len(octets(data, "data")) == 0


def test_it_is_not_copied_and_stays_while_it_is_held() -> None:
    data = bytearray(CONTENT)
    view = octets(data, "data")
    data[0] ^= 0xFF
    assert view[0] == data[0]
    with pytest.raises(BufferError):
        data.clear()
    del view
    data.clear()
    assert octets(CONTENT, "data") is CONTENT


@pytest.mark.parametrize("data", ["text", None, 5, 1.5, [1], object()], ids=lambda data: type(data).__name__)
def test_what_is_no_buffer_is_refused_by_name(data: Any) -> None:
    with pytest.raises(IllegalArgumentException, match=f"a batch: found {type(data).__name__}, expected bytes"):
        octets(data, "a batch")
    with pytest.raises(TypeError, match="bytes-like object is required"):
        bytes_of(data)


def closed_mapping() -> mmap.mmap:
    mapping = mmap.mmap(-1, 1)
    mapping.close()
    return mapping


@pytest.mark.parametrize(
    "data",
    [
        memoryview(CONTENT)[::2],
        memoryview(CONTENT)[::-1],
        ITEMS[::2],
        ITEMS.reshape(3, 4).T,
        ITEMS.reshape(3, 4)[:, 1:],
        closed_mapping(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_does_not_lie_in_one_piece_is_refused_by_name(data: Any) -> None:
    with pytest.raises(IllegalArgumentException, match=r"a batch: found a .* expected a C-contiguous buffer"):
        octets(data, "a batch")
    with pytest.raises(TypeError, match="expected a C-contiguous buffer"):
        bytes_of(data)


def test_frozen_bytes_stay_as_they_are() -> None:
    changing = bytearray(CONTENT)
    kept = [frozen(data, "data") for data in (changing, memoryview(changing)[4:8], memoryview(changing).toreadonly())]
    changing[:] = bytes(len(CONTENT))
    assert [bytes(data) for data in kept] == [CONTENT, CONTENT[4:8], CONTENT]
    view = memoryview(CONTENT)[4:8]
    assert frozen(view, "data") is view
    assert frozen(CONTENT, "data") is CONTENT
