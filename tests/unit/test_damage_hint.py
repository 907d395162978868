"""Errors at damage say that `on_damage` continues after it, in every Python function that accepts it.

Commands say it in their own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.damage_hint import SKIP_HINT
from kafkalog.errors import CorruptIndexException, CorruptRecordException, RecordDeserializationException
from kafkalog.store import Store
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

pa = pytest.importorskip("pyarrow")

BATCH_BYTES, COUNT, DAMAGED = 73, 20, 10


@pytest.fixture(params=["a bad CRC", "a body that is none"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """20 batches of a record each, of which one is damaged."""
    with kafkalog.open(tmp_path) as made:
        partition = made.create_topic("orders").partition(0)
        for number in range(COUNT):
            partition.append(b"v%02d" % number, key=b"k%d" % (number % 3))
    (path,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(path.read_bytes())
    at = DAMAGED * BATCH_BYTES
    data[at + 70] ^= 1
    if request.param != "a bad CRC":
        data[at + 61] ^= 0x40  # the record's length; the checksum agrees
        data[at + 17 : at + 21] = kafkalog._native.codec.crc32c.crc32c(data[at + 21 : at + BATCH_BYTES]).to_bytes(4)
    path.write_bytes(data)
    with kafkalog.open(tmp_path, read_only=True) as view:
        yield view


DOORS: dict[str, Callable[[Store], object]] = {
    "records": lambda store: list(store.records()),
    "records of a partition": lambda store: list(store.topic("orders").partition(0).records(key=b"k1", headers={})),
    "the last records": lambda store: list(store.records(last=COUNT)),
    "read_arrow": lambda store: store.topic("orders").read_arrow(),
    "arrow_batches": lambda store: list(store.arrow_batches(values="text")),
    "arrow_reader": lambda store: store.arrow_reader().read_all(),
    "latest": lambda store: store.latest().read_all(),
    "a reader": lambda store: list(store.reader(topics=["orders"])),
    "a reader's table": lambda store: store.reader(topics=["orders"]).read_arrow(),
    "polls": lambda store: [(reader := store.reader(topics=["orders"])), reader.poll(), reader.poll()],
}


@pytest.mark.parametrize("door", DOORS)
def test_the_error_says_how_to_read_on(store: Store, door: str) -> None:
    with pytest.raises(kafkalog.errors.KafkalogError) as caught:
        DOORS[door](store)
    text = str(caught.value)
    assert text.count(SKIP_HINT) == 1, text
    assert "kafkalog verify" in text
    assert f"at byte {DAMAGED * BATCH_BYTES}" in text
    assert len(list(store.records(on_damage="skip"))) == COUNT - 1


def test_a_reader_that_meets_it_again_says_it_once(store: Store) -> None:
    reader = store.reader(topics=["orders"])
    for _ in range(2):
        with pytest.raises(kafkalog.errors.KafkalogError) as caught:
            list(reader)
        assert str(caught.value).count(SKIP_HINT) == 1


def test_a_command_says_its_own_option_alone(store: Store, run: Run) -> None:
    found = run("cat", str(store._home.place), "orders-0")
    assert found.code != 0
    assert "--skip-damage" in found.err
    assert "on_damage" not in found.err


@pytest.mark.parametrize(
    "error",
    [
        CorruptIndexException("a bad entry", path="x/0.txnindex", position=34),
        RecordDeserializationException("value: no JSON"),
        CorruptRecordException("nowhere"),
    ],
)
def test_what_no_skip_passes_says_nothing_of_it(error: Any) -> None:
    from kafkalog._face.damage_hint import helped

    assert "on_damage" not in str(helped(error))


@pytest.mark.parametrize("start", ["1970-01-02", "2021-01-01T00:00Z"])
def test_a_search_for_a_time_over_damage(tmp_path: Path, start: str) -> None:
    """The first batch is damaged, at which a search begins."""
    with kafkalog.open(tmp_path) as made:
        partition = made.create_topic("orders").partition(0)
        for number in range(COUNT):
            partition.append(b"v%02d" % number, key=b"k", timestamp=1_600_000_000_000 + number)
    (path,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with kafkalog.open(tmp_path, read_only=True) as view:
        topic, rest = view.topic("orders"), list(range(1, COUNT)) if start < "2000" else []
        doors: list[Callable[..., Any]] = [
            lambda **asked: [it.offset for it in topic.records(start, **asked)],
            lambda **asked: topic.read_arrow(start, **asked)["offset"].to_pylist(),
            lambda **asked: [it.offset for it in view.reader(topics=["orders"], start=start, **asked)],
            lambda **asked: topic.latest(start=start, **asked).read_all()["offset"].to_pylist() and rest,
        ]
        for number, door in enumerate(doors):
            assert door(on_damage="skip") == rest, number
            if start < "2000":
                with pytest.raises(CorruptRecordException) as caught:
                    door()
                assert str(caught.value).count(SKIP_HINT) == 1, number
