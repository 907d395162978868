"""A store under asyncio: appends and waits of coroutines, cancellation, a close meanwhile, several loops.

No loop may wait for a disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import (
    BufferExhaustedException,
    IllegalArgumentException,
    IllegalStateException,
    LogReadOnlyException,
    RecordTooLargeException,
    UnknownTopicOrPartitionException,
)
from tests.file_doubles import UnsyncedFiles

FAST = UnsyncedFiles()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path / "data", files=FAST) as store:
        store.create_topic("t", 2)
        yield store


def values(store: kafkalog.Store, *partitions: int) -> list[bytes | None]:
    return [each.value for number in partitions or (0, 1) for each in store.topic("t").partition(number)]


def stopped(monkeypatch: pytest.MonkeyPatch, store: kafkalog.Store) -> threading.Event:
    """From now on the disk is slow: the senders' work waits for the event."""
    goes_on = threading.Event()
    home: Any = store._home
    partition = home.partition

    def slow(place: Any) -> Any:
        if threading.current_thread().name.startswith("kafkalog"):
            assert goes_on.wait(30)
        return partition(place)

    monkeypatch.setattr(home, "partition", slow)
    return goes_on


class Ticks:
    """How long a loop was blocked at most."""

    async def __aenter__(self) -> Ticks:
        self.longest_s, self._task = 0.0, asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.monotonic() - before)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


# --- what is appended ------------------------------------------------------------------------------------


def test_append_async(store: kafkalog.Store) -> None:
    async def main() -> None:
        topic = store.topic("t")
        first = await topic.append_async(b"1", key=b"k", headers=[("h", b"x")], timestamp=77)
        assert first == ("t", topic.append(b"2", key=b"k").partition, 0)
        [record] = [each for each in topic.partition(first.partition) if each.value == b"1"]
        assert (record.key, record.headers, record.timestamp) == (b"k", (("h", b"x"),), 77)
        many = await asyncio.gather(*(topic.append_async(b"%d" % n, partition=1) for n in range(100)))
        offsets = [each.offset for each in many]
        assert offsets == sorted(offsets)  # in the order of the calls
        together = await topic.append_many_async([(b"a", b"k"), (b"b", b"k")])
        assert {each: len(offsets) for each, offsets in together.items()} == {first.partition: 2}
        assert sum(map(len, (await topic.append_many_async(iter([b"x", b"y"]), partition=0)).values())) == 2
        assert await topic.append_many_async([]) == {}

    asyncio.run(main())
    assert len(values(store)) == 106
    assert sum(thread.name == "kafkalog-producer" for thread in threading.enumerate()) == 1


def test_errors_are_those_of_append(store: kafkalog.Store, tmp_path: Path) -> None:
    async def main() -> None:
        topic = store.topic("t")
        for wrong in (5, "text", [b"x"]):
            with pytest.raises(IllegalArgumentException):
                await topic.append_async(wrong)  # type: ignore[arg-type]
        for unlisted in (5, "text", b"bytes", [5]):
            with pytest.raises(IllegalArgumentException):
                await topic.append_many_async(unlisted)  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException):
            await topic.append_async(b"x", key=5)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartitionException, match="no partition 9"):
            await topic.append_async(b"x", partition=9)
        with pytest.raises(RecordTooLargeException):
            await topic.append_async(b"x" * 2_000_000)
        with pytest.raises(RecordTooLargeException):
            await topic.append_many_async([b"x" * 2_000_000])
        gone = store.create_topic("gone")
        store.delete_topic("gone")
        for call in (gone.append_async(b"x"), gone.append_many_async([b"x"])):
            with pytest.raises(UnknownTopicOrPartitionException):
                await call
        with kafkalog.open(tmp_path / "data", read_only=True) as look:
            there = look.topic("t")
            for call in (there.append_async(b"x"), there.append_many_async([b"x"])):
                with pytest.raises(LogReadOnlyException):
                    await call

    asyncio.run(main())
    assert values(store) == []


def test_futures_are_awaited(store: kafkalog.Store) -> None:
    async def main() -> None:
        async with store.producer(linger_ms=5) as producer:
            futures = [producer.send("t", b"%d" % n, partition=0) for n in range(50)]
            assert [(await each).offset for each in futures] == list(range(50))
            assert (await futures[0]).offset == 0  # again
            assert (await producer.send_async("t", b"x", partition=1)) == ("t", 1, 0)
            both = await asyncio.gather(producer.send("t", b"y", partition=1), producer.send("t", b"z", partition=1))
            assert [each.offset for each in both] == [1, 2]
            with pytest.raises(RecordTooLargeException):
                await producer.send("t", b"x" * 2_000_000)
        assert producer.closed

    asyncio.run(main())


# --- cancelled -------------------------------------------------------------------------------------------


def test_a_cancelled_append_is_there_once(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task returns at once, the loop continues, and the record is still appended."""
    goes_on = stopped(monkeypatch, store)

    async def main() -> None:
        topic = store.topic("t")
        tasks = [asyncio.create_task(topic.append_async(b"%d" % n, partition=0)) for n in range(10)]
        await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        assert all(isinstance(each, asyncio.CancelledError) for each in
                   await asyncio.gather(*tasks[::2], return_exceptions=True))  # fmt: skip
        assert not any(each.done() for each in tasks[1::2])
        goes_on.set()
        assert [each.offset for each in await asyncio.gather(*tasks[1::2])] == [1, 3, 5, 7, 9]
        goes_on.clear()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(topic.append_async(b"late", partition=0), 0.05)
        goes_on.set()

    asyncio.run(main())
    store.close()
    with kafkalog.open(store._home.place, files=FAST) as again:
        assert values(again) == [b"%d" % n for n in range(10)] + [b"late"]


def test_a_cancelled_append_many_is_cancelled_when_it_has_ended(
    store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = stopped(monkeypatch, store)

    async def main() -> None:
        task = asyncio.create_task(store.topic("t").append_many_async([b"1", b"2"], partition=0))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert values(store) == [b"1", b"2"]

    asyncio.run(main())


def test_who_is_cancelled_while_he_waits_for_room_has_sent_nothing(
    store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = stopped(monkeypatch, store)

    async def main() -> None:
        producer = store.producer(buffer_bytes=1000, max_block_ms=100)
        fits = producer.send("t", b"x" * 500, partition=0)
        async with Ticks() as ticks:
            waits = asyncio.create_task(producer.send_async("t", b"y" * 600, partition=0))
            await asyncio.sleep(0.03)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            with pytest.raises(BufferExhaustedException, match="within the configured max blocking time 100 ms"):
                await producer.send_async("t", b"z" * 600, partition=0)
            with pytest.raises(RecordTooLargeException):
                await producer.send_async("t", b"x" * 2000)
            later = asyncio.create_task(producer.send_async("t", b"w" * 600, partition=0))
            await asyncio.sleep(0.02)
            goes_on.set()
            assert (await later).offset == 1
        assert (await fits).offset == 0
        assert ticks.longest_s < 0.09
        await producer.__aexit__(None, None, None)

    asyncio.run(main())
    assert [value[:1] for value in values(store) if value] == [b"x", b"w"]


# --- closed meanwhile, loops -----------------------------------------------------------------------------


def test_closed_meanwhile(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records sent before the close are appended, later ones get an error, and the close does not block the loop."""
    goes_on = stopped(monkeypatch, store)

    async def main() -> None:
        topic = store.topic("t")
        tasks = [asyncio.create_task(topic.append_async(b"%d" % n, partition=0)) for n in range(5)]
        await asyncio.sleep(0.02)
        async with Ticks() as ticks:
            closing = asyncio.create_task(store.__aexit__(None, None, None))
            await asyncio.sleep(0.1)
            assert not closing.done()
            closing.cancel()  # it is cancelled when the store is closed
            await asyncio.sleep(0.02)
            assert not closing.done()
            goes_on.set()
            assert [each.offset for each in await asyncio.gather(*tasks)] == [0, 1, 2, 3, 4]
            with pytest.raises(asyncio.CancelledError):
                await closing
        assert ticks.longest_s < 0.09
        assert store.closed
        for call in (topic.append_async(b"x"), topic.append_many_async([b"x"])):
            with pytest.raises(IllegalStateException, match="closed"):
                await call

    asyncio.run(main())


def test_async_with(tmp_path: Path) -> None:
    async def main() -> None:
        async with kafkalog.open(tmp_path, files=FAST) as store:
            topic = store.create_topic("t")
            await topic.append_async(b"x")
            async with store.reader("c", topics=["t"]) as reader:
                assert [each.value async for each in reader] == [b"x"]
                assert await reader.commit_async() == {("t", 0): 1}
            assert reader.closed
            with pytest.raises(ZeroDivisionError):
                async with store.producer() as producer:
                    _ = 1 / 0
            assert producer.closed
        assert store.closed
        async with kafkalog.open_log(tmp_path, "t-0", files=FAST) as log:
            assert log.end_offset == 1
        assert log.closed

    asyncio.run(main())


def test_several_loops(store: kafkalog.Store) -> None:
    """One after the other, and at once in separate threads; a loop that ends early delays nobody."""
    topic = store.topic("t")

    async def work(number: int) -> None:
        await asyncio.gather(*(topic.append_async(b"%d" % number) for _ in range(20)))

    async def leaves() -> None:
        asyncio.create_task(topic.append_async(b"left"))  # noqa: RUF006 (nobody waits for it)
        await asyncio.sleep(0)

    asyncio.run(work(1))
    asyncio.run(leaves())
    threads = [threading.Thread(target=lambda number=number: asyncio.run(work(number))) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    asyncio.run(work(5))
    found = values(store)
    assert len(found) == 121
    assert found.count(b"left") == 1


def test_a_store_that_is_dropped_goes(tmp_path: Path) -> None:
    """The sender for coroutines keeps no store alive."""
    store = kafkalog.open(tmp_path, files=FAST)
    asyncio.run(store.create_topic("t").append_async(b"x"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del store
        until = time.monotonic() + 10
        while not told and time.monotonic() < until:
            time.sleep(0.01)
    [warning] = told
    assert "was dropped without being closed" in str(warning.message)
    assert warning.category is ResourceWarning
    with kafkalog.open(tmp_path, files=FAST) as again:
        assert again.topic("t").partition(0).end_offset == 1
