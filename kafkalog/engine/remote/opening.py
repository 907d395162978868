"""From an address to what reads and writes there: the layout is told, or found out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog.engine.remote import aiven, local_tiered
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.objects import HASTY_ATTEMPTS, Objects
from kafkalog.errors import (
    IllegalArgumentException,
    RemoteResourceNotFoundException,
    RetriableRemoteStorageException,
)

if TYPE_CHECKING:
    from kafkalog.engine.remote.directory_segments import DirectoryMetadata
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
    from kafkalog.engine.remote.storage import RemoteStorageManager

LAYOUTS = (LocalTieredStorage.layout, AivenTieredStorage.layout)
ASKED_FOR = 16  # segments, of a place that is opened
SHOWN = 3


def layout_of(objects: Objects, prefix: str = "") -> str | None:
    """Which layout lies there; None where there is neither."""
    storages = (LocalTieredStorage(objects), AivenTieredStorage(objects, prefix=prefix))
    return next((each.layout for each in storages if _has_some(each)), None)


def _has_some(storage: LocalTieredStorage | AivenTieredStorage) -> bool:
    if isinstance(storage, LocalTieredStorage):
        return bool(storage.objects.folders(local_tiered.ROOT))
    return next(storage.each_partition(), None) is not None


def check_layout(storage: RemoteStorageManager, prefix: str = "") -> None:
    """IllegalArgumentException where nothing lies there in the layout that was named."""
    storage = hasty(storage)
    if not isinstance(storage, AivenTieredStorage | LocalTieredStorage) or _has_some(storage):
        return
    objects, layout = storage.objects, storage.layout
    found = layout_of(objects, prefix)
    if found is None:
        raise _nothing(objects, prefix, f" in the layout {layout!r}")
    behind = f" behind the prefix {prefix!r}" if prefix else ""
    raise IllegalArgumentException(
        f"layout: found no segments{behind} in the layout {layout!r}, but a tier in that of {found!r}",
        path=objects.url,
        hint=f"name the layout {found!r}, or none",
    )


def check_copied(storage: RemoteStorageManager, metadata: DirectoryMetadata, place: str) -> None:
    """IllegalArgumentException where nothing is there of what the metadata says was copied; it asks until something is.
    One that does not answer is believed."""
    segments: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for each in metadata.copied():
        segments.setdefault(each.topic_id_partition, []).append(each)
    last = [each[-1] for each in segments.values()][:ASKED_FOR]
    others = [each for of in segments.values() for each in of[:-1]][:ASKED_FOR]
    storage = hasty(storage)
    with suppress(RetriableRemoteStorageException):
        if last and not any(map(storage.is_there, [*last, *others])):
            raise nothing_copied(place, last[0])


def shown_segment(metadata: RemoteLogSegmentMetadata) -> str:
    partition, segment_id = metadata.topic_id_partition.topic_partition, metadata.remote_log_segment_id.id
    return f"segment {segment_id} of {partition} from offset {metadata.start_offset} on"


def nothing_copied(place: str, segment: RemoteLogSegmentMetadata) -> IllegalArgumentException:
    return IllegalArgumentException(
        f"found nothing of what the metadata says was copied there, such as {shown_segment(segment)}",
        path=place,
        hint="check the address, its prefix and the layout: nothing was copied or deleted",
    )


def layout_to_write(objects: Objects, prefix: str, default: str) -> str:
    """`default`, where nothing lies there.

    IllegalArgumentException where other things do: they may be a tier behind another prefix.
    """
    others = _others(objects)
    if others:
        behind = f" behind the prefix {prefix!r}" if prefix else ""
        below = _below(objects, others)
        seen = ", ".join(others) if below is None else f"a tier, {below}"
        raise IllegalArgumentException(
            f"found no segments of a remote tier{behind}, but other things ({seen})",
            path=objects.url,
            hint="where a tier is to begin here, name its layout ('local-tiered', or 'aiven'); one that is there may "
            "have another prefix (Aiven's key.prefix)",
        )
    return default


def _others(objects: Objects) -> list[str]:
    """Some of what lies there, which is no tier without a prefix."""
    folders = [key for key in objects.folders() if key != local_tiered.ROOT]
    return folders[:SHOWN] or [each.key for each in islice(objects.each_within(), SHOWN)]


def _below(objects: Objects, others: Iterable[str]) -> str | None:
    """The address of a tier in LocalTieredStorage's layout that lies in one of these."""
    found = (each for each in others if objects.folders(f"{each}/{local_tiered.ROOT}"))
    return next((objects.shown(each) for each in found), None)


def _nothing(objects: Objects, prefix: str, named: str = "") -> IllegalArgumentException:
    behind = f" behind the prefix {prefix!r}" if prefix else ""
    others = _others(objects)
    below = _below(objects, others)
    there, hint = (
        "",
        "expected objects as LocalTieredStorage or Aiven's plugin names them, behind the prefix that is given",
    )
    if below is not None:
        there, hint = f", but a tier below it, {below}", f"give that address: {below}"
    elif others:
        there = f", but other things ({', '.join(others)}), which may be its prefix (Aiven's key.prefix)"
    return IllegalArgumentException(
        f"{objects.url}: found no segments of a remote tier{named}{behind}{there}", hint=hint
    )


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
        raise _nothing(objects, prefix)
    if found == "local-tiered":
        return LocalTieredStorage(objects)
    if found == "aiven":
        return AivenTieredStorage(objects, prefix=prefix, **(settings or {}))
    raise IllegalArgumentException(f"layout: found {layout!r}, expected one of {', '.join(LAYOUTS)}")
