"""What tests of cursors share: a store's home, and offsets committed there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafkalog.coordinator.group_offsets import GroupOffsets
from kafkalog.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.format.group_records import CommittedOffset
from kafkalog.format.names import TopicPartition
from kafkalog.topics.store import store_settings
from kafkalog.topics.store_home import StoreHome


@contextlib.contextmanager
def store_home(*roots: Path, clock: Clock = SYSTEM_CLOCK, files: Files = OS_FILES) -> Iterator[StoreHome]:
    """A writable store without maintenance, as `kafkalog.open` makes it."""
    home = StoreHome(
        [str(root) for root in roots],
        store_settings(None, None, False),
        durability="os",
        compression=None,
        clock=clock,
        files=files,
        metrics=None,
    )
    home.start()
    try:
        yield home
    finally:
        home.close()


def offsets_of(home: StoreHome, group: str) -> GroupOffsets:
    found = home.offsets(group, create=True)
    assert found is not None
    return found


def commit(
    home: StoreHome,
    group: str,
    at: Mapping[TopicPartition, int | CommittedOffset],
    holder: ProducerIdAndEpoch | None = None,
) -> None:
    rows = {each: value if isinstance(value, CommittedOffset) else CommittedOffset(value) for each, value in at.items()}
    offsets_of(home, group).commit(group, rows, holder)
