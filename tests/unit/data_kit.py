"""A server's data handlers over a store in a directory, without a socket: requests go through their bytes both ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.format.requests import api
from kafkalog.server.broker import Broker
from kafkalog.server.data_plane import KEY, DataPlane
from kafkalog.server.handlers import fetch, partitions, produce, transactions
from kafkalog.server.request import ConnectionInfo, Encoded, Pending, Request
from kafkalog.server.settings import ServerSettings

HANDLERS = {**produce.HANDLERS, **fetch.HANDLERS, **partitions.HANDLERS, **transactions.HANDLERS}
NOW_MS = 1_700_000_000_000
PRODUCE, FETCH = 0, 1


def batch(*values: bytes, timestamp: int = NOW_MS, **options: Any) -> bytes:
    """A batch of a client; `options` are those of MemoryRecordsBuilder."""
    return build_batch([(timestamp, b"k", value, ()) for value in values], **options)


class Node:
    """A broker over a store with a clock that the test moves."""

    def __init__(self, store: kafkalog.Store, clock: ManualClock, settings: dict[str, object]) -> None:
        self.store = store
        self.clock = clock
        home = store._own()
        assert isinstance(home, StoreHome)
        self.broker = Broker(home, ServerSettings.from_props(settings))
        self.data = self.broker.state[KEY] = DataPlane(self.broker, wakes=False)
        self.connection = ConnectionInfo()
        self.is_in_pool = False  # how requests are handled

    def topic(self, name: str = "orders", partitions: int = 1, **config: str) -> str:
        """Makes a topic and returns its id."""
        made = self.store.create_topic(
            name, partitions, config={key.replace("_", "."): value for key, value in config.items()}
        )
        assert made.info.topic_id is not None
        return made.info.topic_id

    def begin(self, key: int, version: int | None = None, client_id: str = "test", **body: Any) -> Any:
        """Returns the result of the handler: values, a Pending, or None."""
        known = api(key)
        version = known.highest if version is None else version
        values, size = known.request.decode(known.request.encode(body, version), version)
        request = Request(key, version, client_id=client_id, body=values, connection=self.connection)
        request.size = size
        request.is_in_pool = self.is_in_pool
        result = HANDLERS[key](self.broker, request)
        self.data.waiting.look()
        return result

    def told(self, key: int, version: int, result: Any) -> Any:
        """An answer as a client decodes it; the records are bytes."""
        known = api(key)
        if isinstance(result, Pending):
            assert result.is_ended, "not answered yet"
            result = result._values
        if isinstance(result, BaseException):
            raise result
        parts = result.parts if isinstance(result, Encoded) else known.response.encode_parts(result, version)
        data = b"".join(
            bytes(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.to_bytes() for part in parts
        )
        return known.response.decode(data, version)[0]

    def ask(self, key: int, version: int | None = None, **body: Any) -> Any:
        """The answer to a request."""
        version = api(key).highest if version is None else version
        return self.told(key, version, self.begin(key, version, **body))

    def produce(
        self, *batches: bytes | None, topic: str = "orders", version: int = 12, acks: int = -1, **body: Any
    ) -> Any:
        """Appends a batch to each of the first partitions.  Returns the partitions' answers."""
        data = [{"index": index, "records": each} for index, each in enumerate(batches)]
        topics = [{"name": topic, "topicId": topic, "partitionData": data}]
        found = self.ask(PRODUCE, version, acks=acks, timeoutMs=1000, topicData=topics, **body)
        return found["responses"][0]["partitionResponses"]

    def tick(self, ms: int) -> None:
        """Moves the clock, and ends the fetches whose time is over."""
        self.clock.advance(ms)
        self.data.waiting.expire()


@contextmanager
def node(path: Path, opened: dict[str, Any] | None = None, **settings: object) -> Iterator[Node]:
    """`opened`: options of `kafkalog.open`."""
    clock = ManualClock(NOW_MS)
    props = {key.replace("_", "."): value for key, value in settings.items()}
    with kafkalog.open(path, clock=clock, maintenance=False, **(opened or {})) as store:
        yield Node(store, clock, props)


def fetched(partition: int, offset: int, max_bytes: int = 1 << 20, **more: Any) -> dict[str, Any]:
    return {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": max_bytes, **more}
