"""Creates a storage from an address: the layout is given, or detected from the objects."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog.engine.remote import aiven, local_tiered
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.objects import HASTY_ATTEMPTS, Objects
from kafkalog.errors import (
    IllegalArgumentException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)

if TYPE_CHECKING:
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
    from kafkalog.engine.remote.storage import RemoteStorageManager

LAYOUTS = (LocalTieredStorage.layout, AivenTieredStorage.layout)
ASKED_FOR = 16  # partitions that are checked when a tier is opened
SHOWN = 3


def layout_of(objects: Objects, prefix: str = "", *, is_sure: bool = True) -> str | None:
    """Returns the layout of the objects there; None if it is neither.

    Folders may be named like a tier's by chance, as those of Spark's block manager are. Unless the caller `is_sure`
    that the place is a tier, one of them must have a segment.
    """
    storages = (LocalTieredStorage(objects), AivenTieredStorage(objects, prefix=prefix))
    return next((each.layout for each in storages if _has_some(each, is_sure=is_sure)), None)


def _has_some(storage: LocalTieredStorage | AivenTieredStorage, *, is_sure: bool = True) -> bool:
    if isinstance(storage, LocalTieredStorage):
        return bool(storage.objects.folders(local_tiered.ROOT))
    return any(is_sure or storage.has_segments(each) for each in storage.each_partition(warns=False))


def check_layout(storage: RemoteStorageManager, prefix: str = "") -> None:
    """Raises IllegalArgumentException if the place has a tier in another layout than the named one."""
    storage = hasty(storage)
    if not isinstance(storage, AivenTieredStorage | LocalTieredStorage) or _has_some(storage):
        return
    objects, layout = storage.objects, storage.layout
    found = layout_of(objects, prefix)
    if found is None:  # nothing was copied yet, or retention deleted everything
        return
    behind = f" below the prefix {prefix!r}" if prefix else ""
    raise IllegalArgumentException(
        f"layout: found no segments{behind} in the layout {layout!r}, but a tier in the layout {found!r}",
        path=objects.url,
        hint=f"use the layout {found!r}, or omit it",
    )


def lost_in(
    storage: RemoteStorageManager, copied: Iterable[RemoteLogSegmentMetadata], place: str
) -> list[RemoteLogSegmentMetadata]:
    """Checks the last copied segments of some partitions; returns those that do not exist.

    Raises IllegalArgumentException if none of them exists, and the place has nothing of any of the partitions, since it
    must be another place.  Raises RemoteStorageException.
    """
    last = {each.topic_id_partition: each for each in copied}
    asked = [last[each] for each in _some_of(last)]
    if not asked:
        return []
    storage = hasty(storage)
    with ThreadPoolExecutor(ASKED_FOR, "kafkalog-remote-check") as pool:
        there = list(pool.map(storage.is_there, asked))
    if not any(there) and not any(each in last for each in storage.partitions()):
        partition, segment_id = asked[0].topic_id_partition.topic_partition, asked[0].remote_log_segment_id.id
        raise IllegalArgumentException(
            f"found none of the segments that the metadata says were copied there, such as {segment_id} of {partition} "
            f"from offset {asked[0].start_offset} on",
            path=place,
            hint="check the address, its prefix and the layout: nothing was copied or deleted",
        )
    return [each for each, is_there in zip(asked, there, strict=True) if not is_there]


def _some_of(partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Chooses partitions: one of each topic before a second one of any."""
    numbers: Counter[str] = Counter()
    order = []
    for each in partitions:
        order.append((numbers[each.topic_id], each))
        numbers[each.topic_id] += 1
    return [each for _, each in sorted(order, key=itemgetter(0))][:ASKED_FOR]


def check_others(objects: Objects, prefix: str) -> None:
    """Raises IllegalArgumentException if there are other things than a tier: they may be one with another prefix."""
    others = _others(objects)
    if others:
        behind = f" below the prefix {prefix!r}" if prefix else ""
        below = _below(objects, others)
        seen = ", ".join(others) if below is None else f"a tier, {below}"
        raise IllegalArgumentException(
            f"found no segments of a remote tier{behind}, but other things ({seen})",
            path=objects.url,
            hint=(f"give that address: {below}; " if below is not None else "")
            + "to begin a new tier here, name its layout ('local-tiered' or 'aiven'); an existing one may "
            "have another prefix (Aiven's key.prefix)",
        )


def _others(objects: Objects) -> list[str]:
    """Returns some of the keys that do not belong to a tier without a prefix."""
    folders = [key for key in objects.folders() if key != local_tiered.ROOT]
    return folders[:SHOWN] or [each.key for each in islice(objects.each_within(), SHOWN)]


def _below(objects: Objects, others: Iterable[str]) -> str | None:
    """Returns the address of a tier in LocalTieredStorage's layout in one of these directories."""
    for each in others:
        with suppress(RemoteStorageException):  # it is a file
            if objects.folders(f"{each}/{local_tiered.ROOT}"):
                return objects.shown(each)
    return None


def _nothing(objects: Objects, prefix: str) -> IllegalArgumentException:
    behind = f" below the prefix {prefix!r}" if prefix else ""
    others = _others(objects)
    below = _below(objects, others)
    there, hint = (
        "",
        "expected objects as LocalTieredStorage or Aiven's plugin names them, below the given prefix",
    )
    if below is not None:
        there, hint = f", but a tier below it, {below}", f"give that address: {below}"
    elif others:
        there = f", but other things ({', '.join(others)}), which may be its prefix (Aiven's key.prefix)"
    return IllegalArgumentException(f"{objects.url}: found no segments of a remote tier{behind}{there}", hint=hint)


S = TypeVar("S", bound="RemoteStorageManager")


def hasty(storage: S, attempts: int = HASTY_ATTEMPTS) -> S:
    """Returns a copy for a check at the start, or a caller that somebody waits for (`Objects.hasty`)."""
    return _with(storage, lambda objects: objects.hasty(attempts))


def until(storage: S, given_up: threading.Event) -> S:
    """Returns a copy for a caller that may give up (`Objects.until`)."""
    return _with(storage, lambda objects: objects.until(given_up))


def _with(storage: S, change: Callable[[Objects], Objects]) -> S:
    made = copy.copy(storage)
    if isinstance(made, AivenTieredStorage | LocalTieredStorage):
        made.objects = change(made.objects)
    return made


def check_to_write(storage: RemoteStorageManager) -> None:
    """Sends the first requests before writing: checks that the storage answers, and that the given keys encrypted the
    tier.

    Raises RemoteStorageException and IllegalArgumentException.
    """
    storage = hasty(storage)
    if isinstance(storage, AivenTieredStorage):
        storage.check_keys()
    elif isinstance(storage, LocalTieredStorage):
        storage.objects.folders(local_tiered.ROOT)


def layout_with(objects: Objects, known: RemoteLogSegmentMetadata, prefix: str = "") -> str | None:
    """Detects the layout like `layout_of`, but from a segment that should exist, without a listing; None if it is in
    neither."""
    segment = known.remote_log_segment_id
    path = aiven.main_path(segment.topic_id_partition, known.start_offset, segment.id)
    keys = {"local-tiered": local_tiered.key_of(known, local_tiered.LOG), "aiven": f"{prefix}{path}.{aiven.MANIFEST}"}
    refusal: RemoteStorageException | None = None
    for layout, key in keys.items():
        try:
            objects.get(key, 0, 1)  # for the whole of a missing object, a client requests the size by a listing
        except RemoteResourceNotFoundException:
            continue
        except RetriableRemoteStorageException:
            raise
        except RemoteStorageException as error:
            # without the right to list, a missing object is reported as forbidden
            if isinstance(error.__cause__, PermissionError):
                refusal = refusal or error
                continue
        return layout  # also for an empty object
    if refusal is not None:
        raise refusal
    return None


def storage_at(
    objects: Objects, layout: str | None, *, prefix: str = "", settings: Mapping[str, Any] | None = None
) -> RemoteStorageManager:
    """Returns the storage at an address; `layout` None detects it.  `prefix` and `settings` are AivenTieredStorage's.

    Raises IllegalArgumentException for an unknown layout, or an address without objects of either layout.
    """
    found = layout or layout_of(objects, prefix)
    if found is None:
        raise _nothing(objects, prefix)
    if found == "local-tiered":
        return LocalTieredStorage(objects)
    if found == "aiven":
        return AivenTieredStorage(objects, prefix=prefix, **(settings or {}))
    raise IllegalArgumentException(f"layout: found {layout!r}, expected one of {', '.join(LAYOUTS)}")
