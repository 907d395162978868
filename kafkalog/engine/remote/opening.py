"""From an address to what reads and writes there: the layout is told, or found out."""

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
ASKED_FOR = 16  # partitions, of a place that is opened
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
    """IllegalArgumentException where a tier lies there, and in another layout than the one that was named."""
    storage = hasty(storage)
    if not isinstance(storage, AivenTieredStorage | LocalTieredStorage) or _has_some(storage):
        return
    objects, layout = storage.objects, storage.layout
    found = layout_of(objects, prefix)
    if found is None:  # nothing was copied yet, or retention took all
        return
    behind = f" behind the prefix {prefix!r}" if prefix else ""
    raise IllegalArgumentException(
        f"layout: found no segments{behind} in the layout {layout!r}, but a tier in that of {found!r}",
        path=objects.url,
        hint=f"name the layout {found!r}, or none",
    )


def lost_in(
    storage: RemoteStorageManager, copied: Iterable[RemoteLogSegmentMetadata], place: str
) -> list[RemoteLogSegmentMetadata]:
    """Asks for the last segment of some partitions that the metadata says were copied: those that are not there.

    IllegalArgumentException where none of them is, and the place has nothing of any of the partitions: it is another
    one.  RemoteStorageException.
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
            f"found nothing of what the metadata says was copied there, such as segment {segment_id} of {partition} "
            f"from offset {asked[0].start_offset} on",
            path=place,
            hint="check the address, its prefix and the layout: nothing was copied or deleted",
        )
    return [each for each, is_there in zip(asked, there, strict=True) if not is_there]


def _some_of(partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Of each topic one before a second one of any."""
    numbers: Counter[str] = Counter()
    order = []
    for each in partitions:
        order.append((numbers[each.topic_id], each))
        numbers[each.topic_id] += 1
    return [each for _, each in sorted(order, key=itemgetter(0))][:ASKED_FOR]


def check_others(objects: Objects, prefix: str) -> None:
    """IllegalArgumentException where other things than a tier lie there: they may be one behind another prefix."""
    others = _others(objects)
    if others:
        behind = f" behind the prefix {prefix!r}" if prefix else ""
        below = _below(objects, others)
        seen = ", ".join(others) if below is None else f"a tier, {below}"
        raise IllegalArgumentException(
            f"found no segments of a remote tier{behind}, but other things ({seen})",
            path=objects.url,
            hint=(f"give that address: {below}; " if below is not None else "")
            + "where a tier is to begin here, name its layout ('local-tiered', or 'aiven'); one that is there may "
            "have another prefix (Aiven's key.prefix)",
        )


def _others(objects: Objects) -> list[str]:
    """Some of what lies there, which is no tier without a prefix."""
    folders = [key for key in objects.folders() if key != local_tiered.ROOT]
    return folders[:SHOWN] or [each.key for each in islice(objects.each_within(), SHOWN)]


def _below(objects: Objects, others: Iterable[str]) -> str | None:
    """The address of a tier in LocalTieredStorage's layout that lies in one of these."""
    for each in others:
        with suppress(RemoteStorageException):  # it is a file
            if objects.folders(f"{each}/{local_tiered.ROOT}"):
                return objects.shown(each)
    return None


def _nothing(objects: Objects, prefix: str) -> IllegalArgumentException:
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
    return IllegalArgumentException(f"{objects.url}: found no segments of a remote tier{behind}{there}", hint=hint)


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
    refusal: RemoteStorageException | None = None
    for layout, key in keys.items():
        try:
            objects.get(key, 0, 1)  # of an object that is not there a client asks for the size by a listing
        except RemoteResourceNotFoundException:
            continue
        except RetriableRemoteStorageException:
            raise
        except RemoteStorageException as error:
            if isinstance(error.__cause__, PermissionError):  # who may not list is told so of what is not there
                refusal = refusal or error
                continue
        return layout  # also of an empty object
    if refusal is not None:
        raise refusal
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
