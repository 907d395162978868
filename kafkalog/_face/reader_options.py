"""The checked arguments of a store's reader. They are checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from kafkalog._face.selection import selection_of
from kafkalog.engine.format import names, values
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from kafkalog._face.selection import Filters, Place
    from kafkalog.engine.format.names import TopicPartition

T = TypeVar("T")
# All three forms are listed: a Mapping's key type is invariant.
Offsets: TypeAlias = "Mapping[str, int] | Mapping[TopicPartition, int] | Mapping[str | TopicPartition, int]"

READ_AHEAD_BYTES = 64 << 20  # approximately, all partitions of a reader together
CHUNK_BYTES_MIN = 64 << 10
STARTS = ("earliest", "latest", "error")
ASSIGNORS = ("uniform", "range")
MAX_POLL_INTERVAL_MS = 300_000  # max.poll.interval.ms


class GroupOptions(NamedTuple):
    """Further arguments of `Store.reader`, for a reader that is a member of a group."""

    assignor: str | None
    max_poll_interval_ms: int
    on_assign: Callable[[Any, list[TopicPartition]], object] | None
    on_revoke: Callable[[Any, list[TopicPartition]], object] | None
    pattern: str | None = None
    group_instance_id: str | None = None


# More than eight parameters: those of `Store.reader`.
def group_options(
    group: object,
    assignor: str | None,
    max_poll_interval_ms: int | None,
    on_assign: object,
    on_revoke: object,
    pattern: str | None = None,
    group_instance_id: str | None = None,
) -> GroupOptions | None:
    """Returns the checked arguments of a member; None for a reader that is none."""
    given = {
        "pattern": pattern,
        "group_instance_id": group_instance_id,
        "assignor": assignor,
        "max_poll_interval_ms": max_poll_interval_ms,
        "on_assign": on_assign,
        "on_revoke": on_revoke,
    }
    if isinstance(group, str):
        hint = "the first argument, the cursor, is Kafka's group.id"
        raise IllegalArgumentException(f"group: found {values.shown(group)}, expected True or False", hint=hint)
    if not values.flag(group, "group"):
        for name, value in given.items():
            if value is not None:
                raise IllegalArgumentException(
                    f"{name}: found {values.shown(value)}, but the reader is no member", hint="pass group=True"
                )
        return None
    if assignor is not None and assignor not in ASSIGNORS:
        raise IllegalArgumentException(
            f"assignor: found {values.shown(assignor)}, expected one of {', '.join(ASSIGNORS)}"
        )
    for name in ("pattern", "group_instance_id"):
        if given[name] is not None and not values.text(given[name], name):
            raise IllegalArgumentException(f"{name}: found an empty text")
    for name in ("on_assign", "on_revoke"):
        if given[name] is not None and not callable(given[name]):
            raise IllegalArgumentException(f"{name}: found {values.shown(given[name])}, expected a function")
    interval_ms = MAX_POLL_INTERVAL_MS if max_poll_interval_ms is None else max_poll_interval_ms
    interval_ms = values.whole(interval_ms, "max_poll_interval_ms", low=1, expected="milliseconds")
    return GroupOptions(
        assignor,
        interval_ms,
        given["on_assign"],  # type: ignore[arg-type]
        given["on_revoke"],  # type: ignore[arg-type]
        pattern,
        group_instance_id,
    )


class ReaderOptions:
    """The arguments of `Store.reader`, which describes them. Errors as there."""

    # More than eight parameters: those of `Store.reader`.
    def __init__(
        self,
        cursor: str | None,
        topics: Iterable[str] | None,
        partitions: Iterable[str | TopicPartition] | None,
        *,
        start: Place,
        end: Place | None,
        start_offsets: Offsets | None,
        chunk_bytes: int | None,
        shared: bool,
        filters: Filters,
        group: GroupOptions | None = None,
    ) -> None:
        if cursor is not None and not values.text(cursor, "cursor"):
            raise IllegalArgumentException("cursor: found an empty name", hint="None reads without a cursor")
        if topics is not None and partitions is not None:
            raise IllegalArgumentException("found both topics and partitions", hint="omit one of them")
        is_word = isinstance(start, str) and not start[:1].isdigit() and not start.startswith("@")
        if is_word and start not in STARTS:
            raise IllegalArgumentException(
                f"start {start!r} is none of {', '.join(STARTS)}, and no offset or time",
                hint="such as 1200, 2026-11-21T09:00:00Z, or a datetime",
            )
        selection = selection_of(None if is_word else start, end, filters)
        self.cursor = cursor
        self.topics = None if topics is None else _listed(topics, "topics", lambda each: values.text(each, "topics"))
        self.partitions = None if partitions is None else _listed(partitions, "partitions", names.partition_of)
        for what, given in (("topics", self.topics), ("partitions", self.partitions)):
            if given is not None and not given:
                raise IllegalArgumentException(f"{what}: found none, expected at least one")
        self.start_offsets = offsets_of({} if start_offsets is None else start_offsets, "start_offsets")
        self.group = group
        self.shared = values.flag(shared, "shared") or group is not None
        if group is not None:
            _check_group(self)
        self.start = start if isinstance(start, str) and is_word else "earliest"
        self.selection = selection
        self.isolation = selection.isolation
        self.committed = selection.isolation == "read_committed"
        self.times = selection.times
        self.start_offset, self.end_offset = selection.offsets
        self.chunk_bytes = None if chunk_bytes is None else values.whole(chunk_bytes, "chunk_bytes", low=1)

    def chunk_bytes_of(self, partitions: int, most: int) -> int:
        """Returns the chunk size in bytes for a reader with so many partitions."""
        if self.chunk_bytes is not None:
            return self.chunk_bytes
        return max(CHUNK_BYTES_MIN, min(most, READ_AHEAD_BYTES // max(partitions, 1)))


def _check_group(options: ReaderOptions) -> None:
    if options.cursor is None:
        raise IllegalArgumentException("cursor: found None, expected the name of the group", hint="the first argument")
    assert options.group is not None
    if options.partitions is not None:
        raise IllegalArgumentException("partitions: the group divides them", hint="pass topics= or pattern=")
    if options.topics is None and options.group.pattern is None:
        raise IllegalArgumentException(
            "topics: found None, expected the topics that the group reads", hint="or pass pattern="
        )
    if options.topics is not None and options.group.pattern is not None:
        raise IllegalArgumentException("found both topics and pattern", hint="omit one of them")
    if options.start_offsets:
        raise IllegalArgumentException(
            "start_offsets: each partition begins at the group's committed offset",
            hint="pass start=, or commit the offsets with a reader without group=True before",
        )


def offsets_of(given: Offsets, what: str) -> dict[TopicPartition, int]:
    """Returns a caller's offsets by partition, checked."""
    if not isinstance(given, Mapping):
        raise IllegalArgumentException(f"{what}: found {values.shown(given)}, expected offsets by partition")
    return {names.partition_of(each): values.offset(offset, what, low=0) for each, offset in given.items()}


def _listed(given: Iterable[object], what: str, checked: Callable[[Any], T]) -> list[T]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise IllegalArgumentException(f"{what}: found {values.shown(given)}, expected a list of names")
    return list(dict.fromkeys(checked(each) for each in given))
