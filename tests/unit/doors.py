"""The two ways to open a partition for writing, for tests that run the same with each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog.engine.format.names import partition_of

DOORS = ("open_log", "a store")


@contextlib.contextmanager
def open_door(
    door: str, root: Path, name: str, *, config: Mapping[str, str] | None = None, **options: Any
) -> Iterator[kafkalog.Partition]:
    if door == "open_log":
        with kafkalog.open_log(root, name, config=config, **options) as log:
            yield log
        return
    topic, number = partition_of(name)
    with kafkalog.open(root, maintenance=False, **options) as store:
        yield store.create_topic(topic, number + 1, config=config, exist_ok=True).partition(number)
