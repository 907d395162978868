"""A child of a fork is refused by its parent's objects, one class after the other; the parent continues."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import (
    IllegalStateException,
)
from kafkalog.metrics import MetricsRegistry
from tests.unit.coordinator_kit import Disk, Store
from tests.unit.test_files_lock import path
from tests.unit.test_log_manager import House, contents, fill, house, numbered
from tests.unit.test_log_metrics import shown
from tests.unit.test_metrics import COUNT, SIZE, Owner, size
from tests.unit.test_store_reader import filled, store, values, wanted
from tests.unit.test_transaction_coordinator import ID, begun

__all__ = ["house", "path", "store"]


def test_a_forked_child_does_not_keep_it(path: str) -> None:
    held = OS_FILES.lock(path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    held.release()
    OS_FILES.lock(path).release()
    os.close(writer)
    os.waitpid(child, 0)


def test_a_manager_refuses_a_child_that_touches_nothing(house: House) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0"), 3)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                manager.get_log("t-0")
            except IllegalStateException as error:
                code = 0 if "was opened by process" in str(error) else 2
            try:
                manager.shutdown()
            except BaseException:
                code = 3
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        fill(manager.get_or_create_log("t-0"), 3)
    with house.open() as manager:
        log = manager.get_log("t-0")
        assert log is not None
        assert contents(log) == numbered(0, 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nobody forks here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_shows_nothing_of_its_parent(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    with kafkalog.open_log(tmp_path / "a", "t-0", metrics=registry) as log:
        log.append(b"v")
        child = os.fork()
        if child == 0:
            nothing = registry.snapshot() == []
            with kafkalog.open_log(tmp_path / "b", "t-0", metrics=registry):
                own = shown(registry).get("LogEndOffset,topic=t,partition=0") == 0
            os._exit(0 if nothing and own and shown(registry) == {} else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert shown(registry)["LogEndOffset,topic=t,partition=0"] == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_childs_registry_begins_anew() -> None:
    registry, owner = MetricsRegistry(), Owner(1)
    registry.show(owner, size)
    registry.meter(COUNT, "requests").mark()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with registry._lock:
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    child = os.fork()
    if child == 0:  # the lock that another thread held at the fork is nobody's here
        mine = Owner(2)
        empty = registry.snapshot() == []
        registry.show(mine, size)
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if registry.snapshot() == [] else 1)
        _, status = os.waitpid(grandchild, 0)
        os._exit(0 if empty and status == 0 and registry.snapshot() == [(SIZE, 2)] else 1)
    leave.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    assert [name for name, _ in registry.snapshot()] == [SIZE, COUNT]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_a_forked_child_has_a_map_of_its_own() -> None:
    table = SkimpyOffsetMap(2400)
    table.put(b"a", 3)
    child = os.fork()
    if child == 0:
        table.put(b"a", 1000)
        os._exit(table.get(b"a") != 1000)
    assert os.waitpid(child, 0)[1] == 0
    assert table.get(b"a") == 3


def test_a_reader_refuses_a_child(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader("c", topics=["t"])
    walk = reader.records()
    next(walk)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            calls: tuple[Callable[[], object], ...] = (
                lambda: next(walk), reader.poll, reader.commit, lambda: next(reader.batches()), reader.lag,
                reader.read_arrow, reader.arrow_reader, reader.rewind,
            )  # fmt: skip
            for call in calls:
                with pytest.raises(IllegalStateException, match="forked"):
                    call()
            reader.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert values(walk) == wanted(0, 1, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_coordinator_refuses_a_child(tmp_path: Path) -> None:
    store = Store(Disk())
    holder = begun(store)
    pid = os.fork()
    if pid == 0:
        try:
            store.coordinator.end_transaction(ID, holder, commit=True)
        except IllegalStateException as error:
            (tmp_path / "said").write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert "forked from it" in (tmp_path / "said").read_text()
    store.coordinator.end_transaction(ID, holder, commit=True)
