"""What to read, as the reading commands are asked: partitions, a window of offsets or times, keys and headers.

The options stand here once, for `cat`, `export`, `latest`, `history` and `transactions`; what they mean is in
`kafkalog._face.window` and `kafkalog._face.match`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kafkalog._face.window import Bound, Near, Time, Window
from kafkalog._limits import LONG_MAX
from kafkalog.cli.app import Usage
from kafkalog.cli.console import locate, note, parse_time_ms, some
from kafkalog.cli.remote_places import note_tiered
from kafkalog.engine.format.names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from kafkalog._face.match import Condition
    from kafkalog.engine.format.names import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])

TOPIC = click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic, or topic-0; as PARTITIONS.")
START = click.option("--from", "start", metavar="OFFSET|TIME", help="Records from an offset or a time (ISO, @ms) on.")
COMMITTED = click.option("--committed", is_flag=True, help="Leave out aborted and open transactions (read_committed).")
NOT_THERE = "note: nothing found there; another partitioner, or a producer before the topic grew, puts it elsewhere"
END_HELP = "Records below an offset, or before a time (ISO, @ms)."


class Chosen(NamedTuple):
    """What a command line names: partitions of one log directory, with their folders.  `missing`: how many partitions
    of their topics are known to be somewhere, and are not there."""

    log_dir: str
    folders: dict[TopicPartition, str]
    missing: int


def chosen(path: str, partitions: Sequence[str], topics: Sequence[str], *, skip_hint: str | None = None) -> Chosen:
    """What a command line names; where it names none, all partitions but those of Kafka's own topics.  Partitions that
    are missing are told as by `check_missing`."""
    named = (*partitions, *topics)
    log_dir, folders = locate(path, named)
    if not named:
        folders = {each: folder for each, folder in folders.items() if each.topic not in INTERNAL_TOPICS} or folders
    note_tiered(log_dir, folders)
    return Chosen(log_dir, folders, check_missing(path, log_dir, named, skip_hint))


def check_missing(given: str, log_dir: str, named: Sequence[str], skip_hint: str | None) -> int:
    """Tells of partitions that the topics of a command line have, and that are not there; how many are missing for
    sure.  `given` is the path that was typed: a partition's own folder names that partition.

    IllegalStateException; without a `skip_hint` a note.
    """
    from kafkalog._face.missing import missing_partitions, whole_topics

    if not named and os.path.abspath(given) != os.path.abspath(log_dir):
        named = (os.path.basename(os.path.abspath(given)),)
    count = 0
    for each in missing_partitions([log_dir], whole_topics(named)):
        if each.is_certain and skip_hint is not None:
            raise each.error(skip_hint)
        note(f"missing: {each.text}")
        count += len(each.numbers) if each.is_certain else 0
    return count


def isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def window(start: str | None, end: str | None) -> Window:
    """Of --from and --until; Usage for what is neither an offset nor a time, or a window that is upside down."""
    asked = Window(_bound(start), _bound(end))
    first, behind = asked
    if first is not None and behind is not None and type(first) is type(behind) and first > behind:  # type: ignore[operator]
        raise Usage(f"--from {start} lies behind --until {end}, expected it before")
    return asked


_COMPARISONS = {"=": "equal", "==": "equal", ">": "greater", ">=": "greater_equal", "<": "less", "<=": "less_equal"}
_CONDITION = re.compile(r"\s*(offset|timestamp|time|ts)\s*(==|>=|<=|=|>|<)\s*(.+?)\s*", re.IGNORECASE)


def conditions(text: str | None) -> list[Condition]:
    """Of --where: `offset >= 100 and time < 2026-11-01T09:05`.  Usage for what is none."""
    from kafkalog._face.match import Condition

    found: list[Any] = []
    for part in re.split(r"\s+and\s+|,", text, flags=re.IGNORECASE) if text is not None else ():
        read = _CONDITION.fullmatch(part)
        if read is None:
            example = "'offset >= 100 and time < 2026-11-01T09:05'"
            raise Usage(f"--where {part.strip()!r} is no condition, expected such as {example}")
        column, comparison, value = read[1].lower(), _COMPARISONS[read[2]], read[3].strip("'\"")
        if column == "offset":
            if not re.fullmatch(r"[0-9]{1,19}", value) or int(value) > LONG_MAX:
                raise Usage(f"--where: {value:.40} is no offset, expected 0 to {LONG_MAX}")
            found.append(Condition("offset", comparison, int(value)))  # type: ignore[arg-type]
        else:
            found.append(Condition("timestamp", comparison, parse_time_ms(value)))  # type: ignore[arg-type]
    return found


def pruned(asked: Window, where: Sequence[Condition]) -> Window:
    """The window in which conditions may hold, so that the rest is not read.  An offset that the log has not is no
    mistake in it, as it is in --from."""
    start, end = asked
    for column, comparison, value in where:
        if comparison in ("equal", "greater", "greater_equal") and start is None:
            start = Near(value) if column == "offset" else Time(value)
        if comparison in ("equal", "less", "less_equal") and end is None and column == "offset":
            end = Near(min(value + (comparison != "less"), LONG_MAX))
    return Window(start, end)


def _bound(text: str | None) -> Bound:
    """An integer is an offset, anything else a time."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]+", text):
        offset = int(text) if len(text) < 20 else LONG_MAX + 1
        if offset > LONG_MAX:
            raise Usage(f"{text:.40} is no offset, expected 0 to {LONG_MAX}")
        return offset
    return Time(parse_time_ms(text))


def key(text: str) -> bytes:
    """`text`, or bytes as `hex:00ff` or `base64:AP8=`; `text:hex:` for a key that begins so itself."""
    return _octets(text, "--key")


def header(text: str) -> tuple[str, bytes | None]:
    """`name=value`, the value as that of a key; `name` alone asks for any value."""
    name, equals, value = text.partition("=")
    if not name:
        raise Usage(f"--header {text!r} has no name, expected such as --header trace-id=7, or --header trace-id")
    return name, _octets(value, "--header") if equals else None


def _octets(text: str, option: str) -> bytes:
    way, colon, rest = text.partition(":")
    try:
        if colon and way == "hex":
            return bytes.fromhex(rest)
        if colon and way == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        expected = "pairs of hex digits, such as hex:00ff" if way == "hex" else "base64, such as base64:AP8="
        raise Usage(f"{option} {text!r}: found no {way}, expected {expected} (text:{way}:... is text)") from None
    return (rest if colon and way == "text" else text).encode("utf-8", "surrogateescape")


def narrowed(
    partitions: dict[TopicPartition, str], named: Sequence[str], keys: Sequence[bytes], count: int
) -> tuple[dict[TopicPartition, str], str]:
    """The partitions that keys hash to, where a topic of `count` partitions was named, and what to say of that.  How
    many there are no directory knows: others may lie on another disk.

    A partition that was named itself is looked at whatever the keys say.  Usage where there are more than `count`.
    """
    from kafkalog._native.codec.partitioner import partition_for_key

    kept = dict(partitions)
    said = ""
    wanted = sorted({partition_for_key(each, count) for each in keys})
    for topic in sorted({partition.topic for partition in partitions if partition.topic in named}):
        here = {partition.partition: partition for partition in partitions if partition.topic == topic}
        if max(here) >= count:
            raise Usage(f"--partitions {count}: found {here[max(here)]}, expected at least {max(here) + 1}")
        for number, partition in here.items():
            if number not in wanted and str(partition) not in named:
                del kept[partition]
        said = f"looked only in {some(f'{topic}-{number}' for number in wanted)}, where Kafka's murmur2 puts the key"
        elsewhere = [f"{topic}-{number}" for number in wanted if number not in here]
        note(f"note: {said}" + (f"; {some(elsewhere)} not in this directory" if elsewhere else ""))
    return kept, said
