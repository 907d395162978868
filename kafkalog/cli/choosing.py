"""What to read, as the reading commands are asked: partitions, a window of offsets or times, keys and headers.

The options stand here once, for `cat`, `export`, `latest`, `history` and `transactions`; what they mean is in
`kafkalog._face.window` and `kafkalog._face.match`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kafkalog._face.times import SECONDS
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

TOPIC = click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic, or topic-0; as PARTITIONS.")
START = click.option(
    "--from", "start", metavar="OFFSET|TIME", help="Records from an offset or a time (ISO, UTC; or @ms) on."
)
COMMITTED = click.option("--committed", is_flag=True, help="Leave out aborted and open transactions (read_committed).")
NOT_THERE = "note: nothing found there; another partitioner, or a producer before the topic grew, puts it elsewhere"
END_HELP = "Records below an offset, or before a time (ISO, UTC; or @ms)."


class Chosen(NamedTuple):
    """What a command line names: partitions of one log directory, with their folders.  `missing`: how many partitions
    of their topics are known to be somewhere, and are not there."""

    log_dir: str
    folders: dict[TopicPartition, str]
    missing: int


def chosen(
    path: str, partitions: Sequence[str], topics: Sequence[str], *, skip_hint: str | None = None, tells: bool = True
) -> Chosen:
    """What a command line names; where it names none, all partitions but those of Kafka's own topics.  Partitions that
    are missing are told as by `check_missing`, unless it is not to tell."""
    named = (*partitions, *topics)
    log_dir, folders = locate(path, named)
    if not named:
        folders = {each: folder for each, folder in folders.items() if each.topic not in INTERNAL_TOPICS} or folders
    if not tells:
        return Chosen(log_dir, folders, 0)
    note_tiered(log_dir, folders)
    return Chosen(log_dir, folders, check_missing(path, log_dir, named, skip_hint))


def check_missing(given: str, log_dir: str, named: Sequence[str], skip_hint: str | None) -> int:
    """Tells of partitions that the topics of a command line have, and that are not there; how many are missing for
    sure.  `given` is the path that was typed: a partition's own folder names that partition.

    IllegalStateException, KafkaStorageException; without a `skip_hint` a note for each.
    """
    if not named and os.path.abspath(given) != os.path.abspath(log_dir):
        named = (os.path.basename(os.path.abspath(given)),)
    return sum(len(each.numbers) for each in tell_missing([log_dir], named, skip_hint) if each.is_certain)


def tell_missing(log_dirs: Sequence[str], named: Sequence[str], skip_hint: str | None = None) -> list[Missing]:
    """As `check_missing`, of what none of several directories has; all that was told."""
    from kafkalog._face.missing import missing_partitions, whole_topics

    try:
        missing = missing_partitions(log_dirs, whole_topics(named))
    except (CorruptCheckpointException, KafkaStorageException) as error:
        if skip_hint is not None:
            raise
        note(f"note: whether partitions are missing cannot be told: {one_line(error)}")
        return []
    for each in missing:
        if each.is_certain and skip_hint is not None:
            raise each.error(skip_hint)
        note(f"missing: {each.text}")
    return missing


def isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


class Asked(NamedTuple):
    """Which records a command line asks for.  `keys` are those of --key, `partition_count` is that of --partitions, and
    `lost` what was passed over so far."""

    selection: Selection
    last: int | None
    keys: Sequence[bytes]
    partition_count: int | None
    lost: list[Lost]
    typed: str = ""  # the options as they were given

    def note_nothing(self) -> None:
        """Says that no record is as it was asked for."""
        if self.typed:
            note(f"note: nothing matched {self.typed}")

    @property
    def skips_damage(self) -> bool:
        """Whether damage is passed over, and told."""
        return self.selection.tell is not None

    def narrowed(self, chosen: Chosen, named: Sequence[str]) -> tuple[dict[TopicPartition, str], str]:
        """Of the partitions those where --key may be, and what to say of that.  Usage where an offset that was asked
        for lies beyond the end of all."""
        _check_offsets(chosen, self.selection.unpruned().window)
        if self.partition_count is None:
            return chosen.folders, ""
        if not self.keys:
            raise Usage("found --partitions without --key, expected both: a key's hash tells its partition")
        names = named or tuple({partition.topic for partition in chosen.folders})
        return narrowed(chosen.folders, names, self.keys, self.partition_count)


def _check_offsets(chosen: Chosen, window: Window) -> None:
    """Usage for --from beyond the ends of several partitions, where nothing is, and for it and --until beyond every
    end if they read like a day."""
    asked = {
        option: offset
        for option, offset in (("--from", window.start), ("--until", window.end))
        if isinstance(offset, int)
        and offset not in MILLISECONDS  # `found_in` tells
        and (day_of(offset) or (option == "--from" and len(chosen.folders) > 1))  # of one partition its reader tells
    }
    if not asked or not chosen.folders:
        return
    ends: dict[TopicPartition, int] = {}
    for partition in chosen.folders:
        try:
            with PartitionView(chosen.log_dir, partition) as view:
                ends[partition] = view.log_end_offset
        except (KafkalogError, OSError):
            return  # told by who reads it
        if ends[partition] >= max(asked.values()):
            return
    last = max(ends, key=ends.__getitem__)
    where = f"the end of {last} at offset {ends[last]}"
    if len(ends) > 1:
        where = f"the ends of all {len(ends)} partitions, which are at offset {ends[last]} at most"
    for option, offset in asked.items():
        if offset > ends[last]:
            day = day_of(offset)
            instead = "a time is such as 2026-11-20T09:00, or @ms" if day is None else f"write {option} {day} for a day"
            raise Usage(f"{option} {offset}: digits are an offset, and this one lies beyond {where}; {instead}")


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "start": START,
    "end": click.option("--until", "end", metavar="OFFSET|TIME"),
    "last": click.option("--last", "last", type=Number(min=0), help="Only the last so many of each partition."),
    "keys": click.option(
        "--key", "keys", multiple=True, help="Only this key: text, hex:00ff or base64:AP8=.  Several: any."
    ),
    "key_prefix": click.option("--key-prefix", help="Only keys that begin so: text, hex:00ff or base64:AP8=."),
    "partition_count": click.option(
        "--partitions",
        "partition_count",
        type=Number(min=1, instead="partitions stand behind the directory, without an option: DIR orders-0"),
        metavar="N",
        help="With a key: how many partitions the topic has, to look only in the key's.",
    ),
    "patterns": click.option(
        "--grep", "patterns", multiple=True, metavar="RE", help="Only values that match.  Several: all."
    ),
    "headers_asked": click.option(
        "--header", "headers_asked", multiple=True, metavar="NAME[=VALUE]", help="Only with it.  Several: all."
    ),
    "where": click.option(
        "--where",
        metavar="EXPR",
        help="Only such as 'offset >= 100 and time < 2026-11-01T09:05 and value is not null'.",
    ),
    "committed": COMMITTED,
    "skip_damage": click.option(
        "--skip-damage", is_flag=True, help="Go on behind damage and say what was left out (exit 1)."
    ),
}


def filters(*left_out: str, until: str = END_HELP, old: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Gives a command the options by which records are chosen, but for those that are left out; it gets them as
    `asked`, an Asked.  `until` is --until's help; `old` has the names of the release before that still work, such as
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
                    error.hint = "--from and --until take a time in ms as @MS"
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
    """The options that leave records out, as they may be typed again."""
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
    """Whether reading can go on behind it: not where a storage does not answer, but at a chunk that is damaged."""
    if not isinstance(error, RemoteStorageException):
        return True
    from kafkalog.toolbox.segment_check import is_of_object

    return error.position is not None and is_of_object(error)


_NEW_NAMES = {"end": "--until"}
_SKIP_HINT = "--skip-damage goes on behind it"


def _new_name(option: str, name: str) -> str:
    """What an option of the release before is called now; tells it."""
    new = _NEW_NAMES[name]
    note(f"note: {option} goes with kafkalog {GONE_WITH}: write {new}")
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
        raise Usage(f"--from {start} lies behind --until {end}, expected it before")
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
    """Tells where --committed ended before the end: at an open transaction, if that lies before --until's offset."""
    window = selection.unpruned().window
    if selection.isolation != isolation(True):
        return
    with contextlib.suppress(KafkalogError, OSError):  # told by who read it
        stable, end = view.last_stable_offset, view.visible_end()
        if isinstance(window.end, int) and window.end <= stable:
            return
        if stable < end:
            note(
                f"note: {view.topic_partition}: read up to {stable}, where a transaction is open; {end - stable} "
                "offsets lie behind it (`kafkalog transactions` tells whose it is)"
            )


def tell_lost(lost: Sequence[Lost], *, as_json: bool = False) -> None:
    """What was passed over."""
    for each in lost:
        if as_json:
            emit_json({"kind": "lost", **fields(each)})
        else:
            note(f"lost: {each}")


def _check_place(option: str, text: str | None, *, has_last: bool) -> None:
    """Usage for a negative offset, and for seconds."""
    if text is not None and re.fullmatch(r"@[0-9]{1,19}", text) and int(text[1:]) in SECONDS:
        raise Usage(f"{option} {text} looks like seconds, expected milliseconds since 1970: {option} {text}000")
    if text is not None and re.fullmatch(r"-[0-9]+", text):
        instead = f"; --last {int(text[1:])} takes the last {int(text[1:])} of each partition" if has_last else ""
        raise Usage(f"{option}: found {text:.40}, expected an offset from 0 on, or a time{instead}")


def _bound(text: str | None) -> int | Time | None:
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
    if not equals and ":" in text:
        before, _, behind = text.partition(":")
        value_of = shlex.quote(f"{before}={behind}")
        note(f"note: --header {text!r} is a name; a value stands behind '=': --header {value_of}")
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
