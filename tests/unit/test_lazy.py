"""Iterators of records describe themselves, and name the asynchronous call that a coroutine uses in their place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import kafkalog


def test_a_repr_says_what_it_is(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("one").append(b"1")
        store.create_topic("many", 2).append(b"2")
        for walk in (store.topic("one").records(), store.topic("many").records(), store.records()):
            assert repr(walk) == "<iterator of records: `for`, `list()`, `next()`>"
            assert [len(next(walk).value or b"")] == [1]
            list(walk)
            assert repr(walk) == "<ended iterator of records: `for`, `list()`, `next()`>"
            assert list(walk) == []
        reader = store.reader(topics=["one"])
        assert repr(reader.follow(0)) == "<iterator of records: `for`, `async for`, `next()`>"


def test_records_of_several_partitions_are_closed(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        many = store.create_topic("many", 2)
        many.append_many([b"1", b"2"])
        records: Any = many.records()
        assert next(records).value == b"1"
        records.close()
        assert list(records) == []


def test_a_coroutine_is_told_what_to_write(tmp_path: Path) -> None:
    async def read(records: Any) -> None:
        async for _ in records:
            pass

    async def write(transaction: Any) -> None:
        async with transaction:
            pass

    with kafkalog.open(tmp_path) as store:
        for topic in (store.create_topic("one"), store.create_topic("many", 2)):
            with pytest.raises(TypeError, match=r"`for`.* `async for record in store\.reader\(topics="):
                asyncio.run(read(topic.records()))
        with pytest.raises(TypeError, match=r"one thread: .* `await asyncio\.to_thread\(work\)`"):
            asyncio.run(write(store.transaction("t")))
        assert store.transactions() == []
