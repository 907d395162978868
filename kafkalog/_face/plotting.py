"""`plot()` of a partition, a topic and a store: checks the arguments, and asks the report for the pictures.

The pictures and their numbers are those of `kafkalog.report`, which is above this layer.  It is imported by its name at
the first call, so that a plain import of kafkalog loads no plotting library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kafkalog.engine.files import Files
from kafkalog.engine.format import values
from kafkalog.engine.format.needs import need_altair, need_vl_convert

Place = tuple[Sequence[str], Files]  # log directories, and the file system that has them


def plotted(
    place: Callable[[], Place],
    name: object,
    *,
    deep: object,
    topic: str | None = None,
    partition: int | None = None,
) -> Any:
    """Returns the altair chart of a partition, a topic or, without both, of everything in the directories.

    `place` raises if the object cannot be used.  IllegalArgumentException, MissingPackageException.
    """
    name = None if name is None else values.text(name, "name")
    deep = values.flag(deep, "deep")
    log_dirs, files = place()
    need_altair()
    need_vl_convert()
    above = importlib.import_module("kafkalog.report.plots")  # an upper layer has it
    return above.plot(log_dirs, name, topic=topic, partition=partition, deep=deep, files=files)
