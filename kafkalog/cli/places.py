"""From what was typed to directories, partitions, offsets and settings, for the commands that work on many partitions.

Each common mistake gets one line that says what was found and what to type instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkalog import _shown
from kafkalog._face.named import say_which
from kafkalog._face.topic_settings import TopicSettings, broker_properties
from kafkalog.cli.app import LocalPath, Usage
from kafkalog.cli.console import (
    is_name,
    named_partitions,
    no_partitions,
    not_a_directory,
    note,
    parse_settings,
    parse_time_ms,
    part_of,
    select_partitions,
    some,
    split_place,
)
from kafkalog.cli.remote_places import ReadPath
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.names import CLUSTER_METADATA_TOPIC, TopicPartition
from kafkalog.engine.host.log_dirs import (
    is_foreign_partition,
    list_partitions,
    partition_of_folder,
    partitions_in,
    refuse_foreign_partition,
    refuse_partition_folder,
)
from kafkalog.errors import BadBytesError, DiskError, KafkalogError
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.words import span

if TYPE_CHECKING:
    from kafkalog.toolbox.segment_facts import SegmentFacts

F = TypeVar("F", bound=Callable[..., Any])

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)
_POWERS = " KMGTP"
SPAN_MS_MAX = 100 * 365 * 86_400_000  # more means "forever", which no number of days explains

SETTINGS = click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic setting that overrides the topic's own.  Repeatable.",
)


class BrokerFile(LocalPath):
    """The path of a server.properties."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "=" in str(value) and not OS_FILES.exists(value):
            raise Usage(
                f"--config: found {value}, expected a server.properties file; to give a topic setting write -X {value}"
            )
        return super().convert(value, param, ctx)


CONFIG = click.option(
    "--config",
    "broker_file",
    type=BrokerFile(),
    metavar="FILE",
    help="The broker's server.properties: its defaults, and the place of the cluster's metadata.",
)


TAKE_OVER = click.option(
    "--take-over", is_flag=True, help="Write to a Kafka cluster's directory in place of its broker."
)


def without_metadata(chosen: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
    """Returns the partitions without the log of a cluster's controllers, which only these may write; prints a note."""
    left = {partition: path for partition, path in chosen.items() if partition.topic != CLUSTER_METADATA_TOPIC}
    for partition in chosen.keys() - left.keys():
        note(f"note: {partition} is skipped: it is the log of a cluster's controllers")
    return left


def note_left_alone(why: Mapping[TopicPartition, str]) -> None:
    """Prints one line for all partitions with the same reason: __consumer_offsets alone has fifty."""
    by_reason: dict[str, list[str]] = {}
    for partition, reason in why.items():
        by_reason.setdefault(reason, []).append(str(partition))
    for reason, partitions in by_reason.items():
        note(f"note: {some(partitions)} {'is' if len(partitions) == 1 else 'are'} skipped: {reason}")


def note_freed(partition: TopicPartition, segment: SegmentFacts) -> None:
    """Reports a segment that was deleted before its log was opened, because the disk is full."""
    note(
        f"note: the disk is full: {os.path.basename(segment.path)} of {partition} ({_shown.size(segment.file_bytes)}), "
        "which was to be deleted, was deleted first, to make room"
    )


def note_unread(log_dir: str, starts: Mapping[TopicPartition, int]) -> None:
    """Names the groups that have not read everything before the new log starts in `starts`."""
    if not starts:
        return
    from kafkalog.toolbox.cursors import CursorLook  # a large import that is rarely needed

    with contextlib.suppress(KafkalogError, OSError):  # `kafkalog cursors` reports these errors
        for name, group in CursorLook([log_dir]).groups.items():
            behind = [
                f"{partition} (at {committed.offset})"
                for partition, committed in group.committed.items()
                if committed.offset < starts.get(partition, 0)
            ]
            if behind:
                note(f"note: group {name!r} has not read all of what is deleted: {some(behind)}")


def log_dirs_at(paths: Sequence[str], *, is_target: bool = False, is_checked: bool = True) -> list[str]:
    """Returns the log directories that were named, each once; an empty directory counts as one. Raises Usage for
    anything else. With `is_target` any directory is accepted. With `is_checked` False the caller checks that a
    directory with content is a log directory."""
    found: dict[str, str] = {}
    for path in paths:
        if not OS_FILES.exists(path):
            hint = " (if this is the value of log.dirs, name each directory separately)" if "," in path else ""
            if is_target and not hint:
                hint = f" (an empty directory is enough: mkdir {shlex.quote(path)})"
            raise not_a_directory(path, hint)
        if not OS_FILES.is_dir(path):
            raise Usage(f"{path}: found a file, expected a Kafka log directory (the directory that holds topic-0 ...)")
        listed = OS_FILES.list_dir(path)
        refuse_partition_folder(listed, path)
        if is_checked and not is_target and listed and not _is_log_dir(path, listed):
            raise no_partitions(path)
        found.setdefault(os.path.abspath(path), path)
    return list(found.values())


def _is_log_dir(path: str, listed: Sequence[str]) -> bool:
    """Returns whether a broker or a store has used a directory: it has a file of theirs, or a partition, also one that
    is being moved or deleted."""
    if "://" in path or not names.LOG_DIR_FILES.isdisjoint(listed):
        return True
    found = folders_of(path)
    return bool(found.partitions or found.moving or found.other_names or found.metadata)


class PlaceOrName(ReadPath):
    """A directory to read, or the name of something in the directories before it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_name(os.fsdecode(value)) else super().convert(value, param, ctx)


def _places_and_names(kind: click.Path) -> Callable[[F], F]:
    return click.argument("log_dirs", nargs=-1, required=True, type=kind, metavar="LOG_DIRS... [PARTITIONS]...")


PLACES_AND_NAMES = _places_and_names(PlaceOrName())
LOCAL_PLACES_AND_NAMES = _places_and_names(LocalPath())  # for commands without remote tiers


def places_and_names(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns (directories, names) for a command line with several log directories, followed by topics, partitions and
    globs. As for `locate`, a directory may be a part of a log directory. Without names everything is meant.

    Raises Usage if whole directories and parts are mixed.
    """
    places, asked = [words[0], *(word for word in words[1:] if not is_name(word))], [*filter(is_name, words[1:])]
    parts = {place: part for place in places if (part := part_of(place)) is not None}
    if parts and (asked or len(parts) < len(places)):
        place, (folder, name) = next(iter(parts.items()))
        raise Usage(
            f"{place}: found {name} of {folder} next to other directories or names, expected the directories first, "
            f"then the names: {folder} {name}"
        )
    found = [parts[place][0] if place in parts else place for place in places]
    return list(dict.fromkeys(found)), tuple(asked or (name for _, name in parts.values()))


def check_names(log_dirs: Sequence[str], asked: Sequence[str]) -> None:
    """Raises UnknownTopicOrPartitionException for a name that matches nothing in any of the directories."""
    if not asked:
        return
    with contextlib.suppress(OSError, BadBytesError, DiskError):  # the code that reads it reports the error
        known = {partition: log_dir for log_dir in log_dirs for partition in list_partitions(log_dir)}
        named_partitions(known, tuple(asked), ", ".join(log_dirs))


def partition_at(path: str) -> tuple[str, TopicPartition]:
    """Returns (log directory, partition) for the directory of a partition. Raises Usage for anything else."""
    folder, name = _split(path)
    if not OS_FILES.is_dir(path):
        if OS_FILES.exists(path):
            raise Usage(f"{path}: found a file, expected a partition's directory, such as {folder}")
        if OS_FILES.is_dir(folder):
            hits = select_partitions(folder, (name,))  # raises an error that lists what exists
            example = os.path.join(folder, str(next(iter(hits))))
            raise Usage(f"{path}: found a topic with {some(map(str, hits))}, expected one partition, such as {example}")
        raise Usage(f"{path}: not found, expected a partition's directory, such as /var/kafka-logs/orders-0")
    partition = partition_of_folder(folder, name, OS_FILES)
    if partition is not None:
        refuse_foreign_partition(path, OS_FILES)
        return folder, partition
    inside = partitions_in(path, OS_FILES.list_dir(path), OS_FILES)
    if inside:
        example = os.path.join(path, str(next(iter(inside))))
        raise Usage(
            f"{path}: found a log directory with {some(map(str, inside))}, expected one partition's directory, such as "
            f"{example}"
        )
    raise Usage(f"{path}: found a directory with another name, expected that of a partition, such as orders-0")


def partitions_at(path: str, wanted: tuple[str, ...]) -> tuple[str, dict[TopicPartition, str], bool]:
    """Returns (log directory, partitions, whether they were named) for DIR, DIR/orders-0, or DIR/orders for a whole
    topic.

    A glob (`orders-*`) names what it matches, except `*`, which is the same as no name.
    """
    if wanted:
        return path, select_partitions(path, wanted), say_which(wanted)
    folder, name = _split(path)
    if OS_FILES.is_dir(folder):
        if partition_of_folder(folder, name, OS_FILES) is not None and not is_foreign_partition(path, OS_FILES):
            return folder, select_partitions(folder, (name,)), True
        if not OS_FILES.exists(path):
            known = partitions_in(folder, OS_FILES.list_dir(folder), OS_FILES)
            if known:  # raises an error that lists what exists
                return folder, select_partitions(folder, (name,)), say_which((name,))
    return path, select_partitions(path), False


def _split(path: str) -> tuple[str, str]:
    folder, name = split_place(path)
    if name in ("", os.curdir, os.pardir):
        folder, name = os.path.split(os.path.abspath(path))
    return folder or os.curdir, name


def parse_bytes(text: str, what: str) -> int:
    """Parses a size such as "10GiB", "500M" or "1073741824"; units are powers of 1024. Raises Usage for others."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise Usage(
            f"{what}: {text!r} is not a size; expected bytes, or a number with KiB, MiB, GiB or TiB, such as 10GiB"
        )
    number, unit, _ = found.groups()
    return int(float(number) * 1024 ** _POWERS.index(unit.upper() or " "))


def parse_offset_or_time(text: str) -> tuple[int | None, int | None]:
    """Returns (offset, None) or (None, milliseconds). Raises Usage for anything else."""
    if re.fullmatch(r"\d+", text):
        return int(text), None
    if re.fullmatch(r"-\d+", text):
        raise Usage(
            f"{text} is not an offset; expected 0 or more, a time such as 2026-11-21T09:00:00Z, or @milliseconds"
        )
    return None, parse_time_ms(text)


def topic_settings(
    log_dirs: str | Sequence[str],
    texts: Iterable[str] = (),
    broker_file: str | None = None,
    fallback: Mapping[str, str] | None = None,
) -> TopicSettings:
    """Returns the settings of directories' topics. The first of these that has a value is used: `-X key=value`, the
    topic's own settings, the defaults of the cluster and of `--config`, `fallback`, Kafka's defaults.

    Raises Usage or ConfigException for an invalid setting.
    """
    broker = None if broker_file is None else broker_properties(broker_file, "--config")
    return TopicSettings(log_dirs, parse_settings(texts), fallback, broker=broker)


SHOWN = ("cleanup.policy", "retention.ms", "retention.bytes")  # the settings that decide what a topic keeps


def setting_words(known: TopicSettings, topic: str, keys: Iterable[str]) -> str:
    """Returns settings of a topic in one line, each with its source; milliseconds also in words."""
    found = known.described(topic, keys)
    return ", ".join(
        f"{key}={setting_value(value)} ({_span_words(key, value)}{source})" for key, (value, source) in found.items()
    )


def _span_words(key: str, value: object) -> str:
    if not key.endswith(".ms") or not isinstance(value, int) or not 1000 <= value <= SPAN_MS_MAX:
        return ""
    return f"{span(value)}, "


def setting_fields(known: TopicSettings, topic: str, keys: Iterable[str]) -> dict[str, dict[str, object]]:
    """Returns the same for --json: the fields `config` and `sources`."""
    found = known.described(topic, keys)
    return {
        "config": {key: setting_value(value) for key, (value, _) in found.items()},
        "sources": {key: source.value for key, (_, source) in found.items()},
    }


def setting_value(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value
