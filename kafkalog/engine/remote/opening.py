"""From an address to what reads and writes there: the layout is told, or found out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog.engine.remote import aiven, local_tiered
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.objects import HASTY_ATTEMPTS, Objects
from kafkalog.errors import IllegalArgumentException, RemoteResourceNotFoundException

if TYPE_CHECKING:
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import RemoteStorageManager

LAYOUTS = ("local-tiered", "aiven")


def layout_of(objects: Objects, prefix: str = "") -> str | None:
    """Which layout lies there; None where there is neither."""
    if objects.folders(local_tiered.ROOT):
        return "local-tiered"
    found = next(AivenTieredStorage(objects, prefix=prefix).each_partition(), None)
    return None if found is None else "aiven"


def layout_to_write(objects: Objects, prefix: str, default: str) -> str:
    """`default`, where nothing lies there.

    IllegalArgumentException where other things do: they may be a tier behind another prefix.
    """
    others = _others(objects)
    if others:
        behind = f" behind the prefix {prefix!r}" if prefix else ""
        raise IllegalArgumentException(
            f"found no segments of a remote tier{behind}, but other things ({', '.join(others)})",
            path=objects.url,
            hint="where a tier is to begin here, name its layout ('local-tiered', or 'aiven'); one that is there may "
            "have another prefix (Aiven's key.prefix)",
        )
    return default


def _others(objects: Objects) -> list[str]:
    """Some of what lies there, which is no tier without a prefix."""
    folders = [key for key in objects.folders() if key != local_tiered.ROOT]
    return folders[:3] or [each.key for each in islice(objects.each_within(), 3)]


S = TypeVar("S", bound="RemoteStorageManager")


def hasty(storage: S, attempts: int = HASTY_ATTEMPTS) -> S:
    """The same for who asks first, or is waited for (`Objects.hasty`)."""
    return _with(storage, lambda objects: objects.hasty(attempts))


def until(storage: S, given_up: threading.Event) -> S:
    """The same for who may give up (`Objects.until`)."""
    return _with(storage, lambda objects: objects.until(given_up))


def _with(storage: S, change: Callable[[Objects], Objects]) -> S:
    made = copy.copy(storage)
    if isinstance(made, AivenTieredStorage | LocalTieredStorage):
        made.objects = change(made.objects)
    return made


def check_to_write(storage: RemoteStorageManager) -> None:
    """The first requests of who is going to write: whether the storage answers, and what is there is of our keys.

    RemoteStorageException, IllegalArgumentException.
    """
    storage = hasty(storage)
    if isinstance(storage, AivenTieredStorage):
        storage.check_keys()
    elif isinstance(storage, LocalTieredStorage):
        storage.objects.folders(local_tiered.ROOT)


def layout_with(objects: Objects, known: RemoteLogSegmentMetadata, prefix: str = "") -> str | None:
    """As `layout_of`, by a segment that is known to be there: nothing is listed.  None where it is in neither."""
    segment = known.remote_log_segment_id
    path = aiven.main_path(segment.topic_id_partition, known.start_offset, segment.id)
    keys = {"local-tiered": local_tiered.key_of(known, local_tiered.LOG), "aiven": f"{prefix}{path}.{aiven.MANIFEST}"}
    for layout, key in keys.items():
        with suppress(RemoteResourceNotFoundException):
            objects.get(key, 0, 1)  # of an object that is not there a client asks for the size by a listing
            return layout
    return None


def storage_at(
    objects: Objects, layout: str | None, *, prefix: str = "", settings: Mapping[str, Any] | None = None
) -> RemoteStorageManager:
    """`layout` None: as what lies there.  `prefix` and `settings` are those of AivenTieredStorage.

    IllegalArgumentException for a layout that there is not, or an address with nothing of either below it.
    """
    found = layout or layout_of(objects, prefix)
    if found is None:
        behind = f" behind the prefix {prefix!r}" if prefix else ""
        others = _others(objects)
        there = f", but other things ({', '.join(others)}), which may be its prefix (Aiven's key.prefix)"
        raise IllegalArgumentException(
            f"{objects.url}: found no segments of a remote tier{behind}{there if others else ''}",
            hint="expected objects as LocalTieredStorage or Aiven's plugin names them, behind the prefix that is given",
        )
    if found == "local-tiered":
        return LocalTieredStorage(objects)
    if found == "aiven":
        return AivenTieredStorage(objects, prefix=prefix, **(settings or {}))
    raise IllegalArgumentException(f"layout: found {layout!r}, expected one of {', '.join(LAYOUTS)}")
