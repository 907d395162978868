"""The base of a store: a read-only one refuses operations that need the locks, with their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException, LogReadOnlyException
from tests.unit.tier_kit import tiered

WRITING = {
    "check_writable": (),
    "partition": (TopicPartition("orders", 0),),
    "create_topic": ("new", 1, None, None),
    "add_partitions": ("orders", 2),
    "alter_topic": ("orders", {}),
    "delete_topic": ("orders",),
}
PARTS = ("manager", "catalog", "coordinators", "producers")


def test_a_store_that_only_reads_refuses_what_needs_the_locks(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders")
    with kafkalog.open(tmp_path, read_only=True) as view:
        home = view._home
        for name, given in WRITING.items():
            with pytest.raises(LogReadOnlyException, match="is open read-only"):
                getattr(home, name)(*given)
        for name in PARTS:
            with pytest.raises(LogReadOnlyException, match="is open read-only"):
                getattr(home, name)
        assert home.names() == ["orders"]
        with pytest.raises(LogReadOnlyException, match="read_only=False"):
            view.topic("orders").partition(0).append(b"")
    for name, given in WRITING.items():
        with pytest.raises(IllegalStateException, match="closed"):
            getattr(home, name)(*given)
    for name in PARTS:
        with pytest.raises(IllegalStateException, match="closed"):
            getattr(home, name)


def test_a_bucket_says_who_writes_to_it(tmp_path: Path) -> None:
    tiered(tmp_path / "store", tmp_path / "tier")
    with kafkalog.open(tmp_path / "tier", read_only=True) as bucket:
        for write in (lambda: bucket.topic("orders").partition(0).append(b""), lambda: bucket.create_topic("new")):
            with pytest.raises(LogReadOnlyException, match="can only be read: open a store with remote= to write"):
                write()
