import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

from typing_extensions import disjoint_base

from kafkalog._native.codec.collected import Collected
from kafkalog._native.codec.partitioner import StickyPartition
from kafkalog._native.state.blocks import Closing

@disjoint_base
class Answered:
    collected: Collected
    outcomes: Any
    @property
    def topic_partition(self) -> Any: ...
    def __init__(self, topic_partition: tuple[str, int], kind: type[tuple[Any, ...]]) -> None: ...
    def found(self, number: int) -> Any: ...

@disjoint_base
class Numbered:
    @property
    def _batch(self) -> Any: ...
    @property
    def _number(self) -> int: ...
    def result(self, timeout: float | None = None) -> Any: ...
    def _awaited(self, timeout: float | None) -> Any: ...
    def _show(self) -> None: ...

@final
class Known:
    def __init__(self, present: Any, sticky: StickyPartition) -> None: ...

@disjoint_base
class Intake:
    topics: dict[str, Any]
    closing: bool
    buffered_bytes: int
    _waiting: dict[Any, deque[Any]]
    _sleeping: bool
    _is_idle: bool
    @property
    def _lock(self) -> threading.RLock: ...
    @property
    def _wake(self) -> queue.SimpleQueue[None]: ...
    def set_up(
        self,
        home: Any,
        make_batch: Callable[[Any, Any, float], Answered],
        future_kind: type[Numbered],
        wake: queue.SimpleQueue[None],
        *,
        buffer_bytes: int,
        grown_bytes: int,
        batch_bytes: int,
        record_overhead: int,
    ) -> None: ...
    def put(self, place: Any, row: tuple[Any, ...], size: int) -> Any: ...
    def refusal(self) -> BaseException: ...

@disjoint_base
class Sends(Closing):
    _it: Any
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Any] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Any: ...
    def _send(self, topic: Any, value: Any, key: Any, headers: Any, timestamp: Any, partition: Any) -> Any: ...

@final
class Awaited:
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: object) -> None: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...
