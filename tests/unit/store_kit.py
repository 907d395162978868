"""Shared by tests of a store's transactions: the records that a reader of committed records sees, and the cursors."""

from __future__ import annotations

import bisect
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.names import TopicPartition, partition_of
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles

NOW_MS = 1_700_000_000_000


def home_of(store: Store) -> StoreHome:
    assert isinstance(store._home, StoreHome)
    return store._home


def log_of(store: Store, partition: str) -> Any:
    log = store.manager.get_log(partition)
    assert log is not None, partition
    return log


def committed(store: Store, partition: str) -> list[bytes]:
    """The records that a reader of committed records sees."""
    log = store.manager.get_log(partition)
    if log is None:
        return []
    stable = log.last_stable_offset
    aborted: dict[int, list[tuple[int, int]]] = {}
    for each in log.collect_aborted_transactions(log.log_start_offset, stable):
        aborted.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    seen = []
    for one in UnifiedStateLog(log, syncs=False).read():
        stretches = aborted.get(one.producer_id, [])
        at = bisect.bisect_right(stretches, (one.base_offset, 1 << 62))  # after the last one that begins before it
        gone = at > 0 and one.base_offset <= stretches[at - 1][1]
        if one.base_offset < stable and not gone:
            seen += [bytes(record.value or b"") for record in one.records]
    return seen


def settled(store: Store, *partitions: str) -> bool:
    """Whether no transaction is open in these partitions."""
    logs = [log_of(store, each) for each in partitions]
    return all(log.last_stable_offset == log.log_end_offset for log in logs)


def ends(store: Store, *partitions: str) -> list[int]:
    return [log_of(store, each).log_end_offset for each in partitions]


def cursor(store: Store, name: str) -> Mapping[TopicPartition, int]:
    """The committed offsets of a cursor."""
    found = home_of(store).offsets(name, create=False)
    return {} if found is None else {each: value.offset for each, value in found.fetch_all(name).items()}


def position(store: Store, name: str, partition: str) -> int | None:
    return cursor(store, name).get(partition_of(partition))


def state_of(store: Store, transactional_id: str) -> str:
    return home_of(store).coordinators.transactions.describe(transactional_id).state


def records_of_states(store: Store) -> int:
    """How many records `__transaction_state` has."""
    logs = store.manager.logs_by_topic("__transaction_state")
    return sum(log.log_end_offset for log in logs)


def as_killed(path: Path, into: Path) -> Path:
    """A copy of the directory as it is now."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(path, into, ignore=shutil.ignore_patterns(".lock"))
    return into


def open_store(path: str | os.PathLike[str], **options: Any) -> Store:
    """Opens a store whose clock does not advance."""
    return kafkalog.open(path, **{"clock": ManualClock(NOW_MS), "maintenance": False, **options})


def fill_three_segments(root: Path) -> None:
    """Three partitions of a topic orders, each of three segments of twenty records of 1 KiB, not synced."""
    config = {"internal.segment.bytes": "22000", "index.interval.bytes": "4000"}
    with open_store(root, files=UnsyncedFiles()) as store:
        orders = store.create_topic("orders", 3, config=config)
        for number in range(180):
            orders.append(b"%04d" % number * 256, partition=number % 3, timestamp=NOW_MS + number)
