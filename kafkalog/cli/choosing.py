"""The options that select records: partitions, a window of offsets or times, keys and headers.

They are defined once, for `cat`, `export`, `latest`, `history`, `tail` and `transactions`. `kafkalog._face.window` and
`kafkalog._face.match` define their meaning.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kafkalog._face.times import SECONDS
from kafkalog._face.typed import EXPECTED, octets_of
from kafkalog._face.window import MILLISECONDS, Time, day_of
from kafkalog._limits import LONG_MAX
from kafkalog._renamed import GONE_WITH
from kafkalog.cli.app import Number, Usage, one_line
from kafkalog.cli.console import emit_json, fields, locate, note, parse_time_ms, some
from kafkalog.cli.remote_places import note_tiered
from kafkalog.engine.format.names import INTERNAL_TOPICS
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    BadBytesError,
    CorruptCheckpointException,
    InvalidRecordException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
    RemoteStorageException,
)

if TYPE_CHECKING:
    from kafkalog._face.missing import Missing
    from kafkalog._face.selection import Selection
    from kafkalog._face.window import Window
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.segment.loss import Lost

F = TypeVar("F", bound=Callable[..., Any])

TOPIC = click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="A topic or partition, as in PARTITIONS.  Repeatable."
)
START = click.option(
    "--from", "start", metavar="OFFSET|TIME", help="Only records from this offset or time (ISO 8601, UTC; or @ms) on."
)
COMMITTED = click.option("--committed", is_flag=True, help="Skip aborted and open transactions (read_committed).")
NOT_THERE = (
    "note: nothing found there; another partitioner, or a producer before the topic got more partitions, puts the key "
    "into another partition"
)
END_HELP = "Only records before this offset or time (ISO 8601, UTC; or @ms)."


class Chosen(NamedTuple):
    """The partitions of one log directory that a command line names, with their directories. `missing` counts the
    partitions of their topics that are known to exist and are not here."""

    log_dir: str
    folders: dict[TopicPartition, str]
    missing: int


def chosen(
    path: str, partitions: Sequence[str], topics: Sequence[str], *, skip_hint: str | None = None, tells: bool = True
) -> Chosen:
    """Returns the partitions that a command line names, or all but those of Kafka's internal topics if it names none.
    Reports missing partitions as `check_missing` does, if `tells` is set."""
    named = (*partitions, *topics)
    log_dir, folders = locate(path, named)
    if not named:
        folders = {each: folder for each, folder in folders.items() if each.topic not in INTERNAL_TOPICS} or folders
    if not tells:
        return Chosen(log_dir, folders, 0)
    note_tiered(log_dir, folders)
    return Chosen(log_dir, folders, check_missing(path, log_dir, named, skip_hint))


def check_missing(given: str, log_dir: str, named: Sequence[str], skip_hint: str | None) -> int:
    """Reports partitions that the topics of a command line have and that are not here; returns how many are certainly
    missing. `given` is the path that was typed: the directory of a partition names that partition.

    Raises IllegalStateException or KafkaStorageException; without a `skip_hint` prints notes instead.
    """
    if not named and os.path.abspath(given) != os.path.abspath(log_dir):
        named = (os.path.basename(os.path.abspath(given)),)
    return sum(len(each.numbers) for each in tell_missing([log_dir], named, skip_hint) if each.is_certain)


def tell_missing(log_dirs: Sequence[str], named: Sequence[str], skip_hint: str | None = None) -> list[Missing]:
    """Reports as `check_missing` the partitions that none of several directories has, and returns them."""
    from kafkalog._face.missing import missing_partitions, whole_topics

    try:
        missing = missing_partitions(log_dirs, whole_topics(named))
    except (CorruptCheckpointException, KafkaStorageException) as error:
        if skip_hint is not None:
            raise
        note(f"note: cannot find out whether partitions are missing: {one_line(error)}")
        return []
    for each in missing:
        if each.is_certain and skip_hint is not None:
            raise each.error(skip_hint)
        note(f"missing: {each.text}")
    return missing


def isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


class Asked(NamedTuple):
    """The records that a command line selects. `keys` are those of --key, `partition_count` is that of --partitions,
    and `lost` collects the damage that was skipped."""

    selection: Selection
    last: int | None
    keys: Sequence[bytes]
    partition_count: int | None
    lost: list[Lost]
    typed: str = ""  # the options as they were typed

    def note_nothing(self) -> None:
        """Prints that no record matched."""
        if self.typed:
            note(f"note: nothing matched {self.typed}")

    @property
    def skips_damage(self) -> bool:
        """Returns whether damage is skipped and reported."""
        return self.selection.tell is not None

    def narrowed(self, chosen: Chosen, named: Sequence[str]) -> tuple[dict[TopicPartition, str], str]:
        """Returns the partitions that may have --key, and what to report about them. Raises Usage if a given offset is
        after the end of every partition."""
        _check_offsets(chosen, self.selection.unpruned().window)
        if self.partition_count is None:
            return chosen.folders, ""
        if not self.keys:
            raise Usage("found --partitions without --key, expected both: the hash of a key determines its partition")
        names = named or tuple({partition.topic for partition in chosen.folders})
        return narrowed(chosen.folders, names, self.keys, self.partition_count)


def _check_offsets(chosen: Chosen, window: Window) -> None:
    """Raises Usage if --from is after the end of every one of several partitions, or if --from or --until is after
    every end and looks like a date."""
    asked = {
        option: offset
        for option, offset in (("--from", window.start), ("--until", window.end))
        if isinstance(offset, int)
        and offset not in MILLISECONDS  # `found_in` reports it
        and (
            day_of(offset) or (option == "--from" and len(chosen.folders) > 1)
        )  # for one partition its reader reports it
    }
    if not asked or not chosen.folders:
        return
    ends: dict[TopicPartition, int] = {}
    for partition in chosen.folders:
        try:
            with PartitionView(chosen.log_dir, partition) as view:
                ends[partition] = view.log_end_offset
        except (KafkalogError, OSError):
            return  # the code that reads it reports the error
        if ends[partition] >= max(asked.values()):
            return
    last = max(ends, key=ends.__getitem__)
    where = f"the end of {last} at offset {ends[last]}"
    if len(ends) > 1:
        where = f"the ends of all {len(ends)} partitions, which are at offset {ends[last]} at most"
    for option, offset in asked.items():
        if offset > ends[last]:
            day = day_of(offset)
            instead = "write a time as 2026-11-20T09:00, or @ms" if day is None else f"write {option} {day} for a day"
            raise Usage(f"{option} {offset}: a number is an offset, and this one is after {where}; {instead}")


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "start": START,
    "end": click.option("--until", "end", metavar="OFFSET|TIME"),
    "last": click.option(
        "--last", "last", type=Number(min=0), metavar="N", help="Only the last N records of each partition."
    ),
    "keys": click.option(
        "--key",
        "keys",
        multiple=True,
        help="Only records with this key: text, hex:00ff or base64:AP8=.  Repeatable: any matches.",
    ),
    "key_prefix": click.option("--key-prefix", help="Only keys with this prefix: text, hex:00ff or base64:AP8=."),
    "partition_count": click.option(
        "--partitions",
        "partition_count",
        type=Number(min=1, instead="to name partitions write them after the directory: DIR orders-0"),
        metavar="N",
        help="The topic's partition count: read only the partition that the key belongs to.",
    ),
    "patterns": click.option(
        "--grep",
        "patterns",
        multiple=True,
        metavar="RE",
        help="Only values that match this regular expression.  Repeatable: all must match.",
    ),
    "headers_asked": click.option(
        "--header",
        "headers_asked",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Only records with this header.  Repeatable: all must match.",
    ),
    "where": click.option(
        "--where",
        metavar="EXPR",
        help="Only records for which EXPR is true: 'offset >= 100 and time < 2026-11-01T09:05 and value is not null'.",
    ),
    "committed": COMMITTED,
    "skip_damage": click.option(
        "--skip-damage", is_flag=True, help="Continue after damage, and report what was left out (exit 1)."
    ),
}


def filters(*left_out: str, until: str = END_HELP, old: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Gives a command the options that select records, except those in `left_out`. The command gets them as `asked`, an
    Asked. `until` is the help of --until. `old` has option names of the previous release that still work, such as
    `{"--to": "end"}`."""

    def decorate(command: F) -> F:
        options = _OPTIONS | {"end": click.option("--until", "end", metavar="OFFSET|TIME", help=until)}
        names = [name for name in options if name not in left_out]
        renamed = {f"old_{name}": (option, name) for option, name in (old or {}).items()}

        @functools.wraps(command)
        def with_asked(*args: Any, **given: Any) -> Any:
            for given_as, (option, name) in renamed.items():
                value = given.pop(given_as)
                if value is not None:
                    new = _new_name(option, name)
                    if given[name] is not None:
                        raise Usage(f"found both {option} and {new}, expected {new} alone")
                    given[name] = value
            for option, name in (("--from", "start"), ("--until", "end")):
                if name in names:
                    _check_place(option, given[name], has_last="last" in names)
            typed = _typed({name: given[name] for name in names})
            asked = _asked(**{name: given.pop(name) for name in names})._replace(typed=typed)
            try:
                return command(*args, asked=asked, **given)
            except OffsetOutOfRangeException as error:
                if error.hint and re.search("_time=|start=", error.hint):
                    error.hint = "write a time in milliseconds as @MS after --from and --until"
                raise
            except (BadBytesError, InvalidRecordException, RemoteStorageException) as error:
                if "skip_damage" in names and not asked.skips_damage and _is_of_bytes(error):
                    error.hint = f"{_SKIP_HINT}; {error.hint}" if error.hint else _SKIP_HINT
                raise

        decorated: Any = with_asked
        for name in reversed(names):
            decorated = options[name](decorated)
        for given_as, (option, _) in renamed.items():
            decorated = click.option(option, given_as, hidden=True)(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _typed(given: Mapping[str, Any]) -> str:
    """Returns the options that select records, as they can be typed again."""
    options = {
        "--from": given.get("start"),
        "--until": given.get("end"),
        "--key": given.get("keys"),
        "--key-prefix": given.get("key_prefix"),
        "--grep": given.get("patterns"),
        "--header": given.get("headers_asked"),
        "--where": given.get("where"),
    }
    words = [
        f"{option} {shlex.quote(text)}"
        for option, value in options.items()
        for text in ((value,) if isinstance(value, str) else value or ())
    ]
    return " ".join(words)


def _is_of_bytes(error: KafkalogError) -> bool:
    """Returns whether reading can continue after an error: yes at a damaged chunk, no if a storage does not answer."""
    if not isinstance(error, RemoteStorageException):
        return True
    from kafkalog.toolbox.segment_check import is_of_object

    return error.position is not None and is_of_object(error)


_NEW_NAMES = {"end": "--until"}
_SKIP_HINT = "--skip-damage continues after it"


def _new_name(option: str, name: str) -> str:
    """Returns the new name of an option of the previous release, and prints a note."""
    new = _NEW_NAMES[name]
    note(f"note: kafkalog {GONE_WITH} removes {option}: write {new}")
    return new


# More than eight parameters: they are the options.
def _asked(
    *,
    start: str | None = None,
    end: str | None = None,
    last: int | None = None,
    keys: Sequence[str] = (),
    key_prefix: str | None = None,
    partition_count: int | None = None,
    patterns: Sequence[str] = (),
    headers_asked: Sequence[str] = (),
    where: str | None = None,
    committed: bool = False,
    skip_damage: bool = False,
) -> Asked:
    from kafkalog._face.selection import Selection

    first, behind = _bound(start), _bound(end)
    if first is not None and behind is not None and type(first) is type(behind) and first > behind:  # type: ignore[operator]
        raise Usage(f"--from {start} is after --until {end}; expected it before")
    wanted = [key(text) for text in keys]
    lost: list[Lost] = []
    selection = Selection(
        first if isinstance(first, int) else None,
        behind if isinstance(behind, int) else None,
        start_time=first.timestamp_ms if isinstance(first, Time) else None,
        end_time=behind.timestamp_ms if isinstance(behind, Time) else None,
        key=wanted or None,
        key_prefix=None if key_prefix is None else _octets(key_prefix, "--key-prefix"),
        headers=[header(text) for text in headers_asked],
        grep=patterns,
        where=where,
        isolation=isolation(committed),
        on_damage=lost.append if skip_damage else "raise",
    )
    return Asked(selection, last, wanted, partition_count, lost)


def note_open(view: PartitionView, selection: Selection) -> None:
    """Reports if --committed stopped at an open transaction, before the end and before --until's offset."""
    window = selection.unpruned().window
    if selection.isolation != isolation(True):
        return
    with contextlib.suppress(KafkalogError, OSError):  # already reported
        stable, end = view.last_stable_offset, view.visible_end()
        if isinstance(window.end, int) and window.end <= stable:
            return
        if stable < end:
            note(
                f"note: {view.topic_partition}: read up to {stable}, where a transaction is open; {end - stable} "
                "offsets after it were not read (`kafkalog transactions` shows whose it is)"
            )


def tell_lost(lost: Sequence[Lost], *, as_json: bool = False) -> None:
    """Prints the ranges that were skipped."""
    for each in lost:
        if as_json:
            emit_json({"kind": "lost", **fields(each)})
        else:
            note(f"lost: {each}")


def _check_place(option: str, text: str | None, *, has_last: bool) -> None:
    """Raises Usage for a negative offset, and for a time in seconds."""
    if text is not None and re.fullmatch(r"@[0-9]{1,19}", text) and int(text[1:]) in SECONDS:
        raise Usage(f"{option} {text} looks like seconds, expected milliseconds since 1970: {option} {text}000")
    if text is not None and re.fullmatch(r"-[0-9]+", text):
        instead = (
            f"; --last {int(text[1:])} reads the last {int(text[1:])} records of each partition" if has_last else ""
        )
        raise Usage(f"{option}: found {text:.40}, expected an offset from 0 on, or a time{instead}")


def _bound(text: str | None) -> int | Time | None:
    """Parses an offset (an integer) or a time (anything else)."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]+", text):
        offset = int(text) if len(text) < 20 else LONG_MAX + 1
        if offset > LONG_MAX:
            raise Usage(f"{text:.40} is not an offset; expected 0 to {LONG_MAX}")
        return offset
    return Time(parse_time_ms(text))


def key(text: str) -> bytes:
    """Parses a key: text, or bytes as `hex:00ff` or `base64:AP8=`. `text:` escapes a key that begins with such a
    prefix."""
    return _octets(text, "--key")


def header(text: str) -> tuple[str, bytes | None]:
    """Parses `name=value`, with a value as in a key; `name` alone matches any value."""
    name, equals, value = text.partition("=")
    if not equals and ":" in text:
        before, _, behind = text.partition(":")
        value_of = shlex.quote(f"{before}={behind}")
        note(f"note: --header {text!r} is taken as a name; write a value after '=': --header {value_of}")
    if not name:
        raise Usage(f"--header {text!r} has no name, expected such as --header trace-id=7, or --header trace-id")
    return name, _octets(value, "--header") if equals else None


def _octets(text: str, option: str) -> bytes:
    try:
        return octets_of(text)
    except ValueError as error:
        way = str(error)
        raise Usage(
            f"{option} {text!r} is not {way}; expected {EXPECTED[way]} (write text:{way}:... for text)"
        ) from None


def narrowed(
    partitions: dict[TopicPartition, str], named: Sequence[str], keys: Sequence[bytes], count: int
) -> tuple[dict[TopicPartition, str], str]:
    """Returns the partitions that `keys` hash to in a topic of `count` partitions, and what to report about them.

    The caller gives `count`, for no directory knows it: other partitions may be on another disk.  A partition that is
    named itself is read for every key.  Raises Usage if a partition's number is not below `count`.
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
        said = f"read only {some(f'{topic}-{number}' for number in wanted)}, to which Kafka's murmur2 assigns the key"
        elsewhere = [f"{topic}-{number}" for number in wanted if number not in here]
        note(f"note: {said}" + (f"; {some(elsewhere)} not in this directory" if elsewhere else ""))
    return kept, said
