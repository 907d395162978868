"""Output of the commands: JSON lines, progress, sizes and times in words; and the parsing of places and names.

Data goes to stdout through `emit`. Notes and progress go to stderr; progress is shown only on a terminal, or on
request.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from kafkalog import _shown
from kafkalog._face.named import is_glob, names_partition
from kafkalog._limits import LONG_MAX
from kafkalog.cli.app import BEING_WRITTEN, CLEAN, Usage, one_line
from kafkalog.cli.harmless import harmless, harmless_json
from kafkalog.config import meant_by_unit
from kafkalog.engine.files import OS_FILES, FileStat
from kafkalog.engine.format import names
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions, refuse_foreign_partition
from kafkalog.errors import BeingWrittenException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.toolbox.words import counted as counted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PROGRESS_FROM_BYTES = 64 << 20  # less takes a moment only
BAR_EVERY_S = 0.1
LINE_EVERY_S = 5.0
BAR_AFTER_S = 1.0
NO_PARTITIONS = "is this the broker's log.dirs? a remote tier whose keys have a prefix needs --prefix"


def emit(line: str) -> None:
    """Prints one line of data. The colours of `paint` become escape sequences; for a terminal all other control
    characters are escaped."""
    if is_terminal(sys.stdout) or color_allowed(sys.stdout):
        first, *others = _MARK.split(line)
        line = harmless(first)
        for code, text in zip(others[::2], others[1::2], strict=True):
            line += f"\x1b[{_SGR[code]}m{harmless(text)}"
    sys.stdout.write(line + "\n")


def emit_json(value: Any) -> None:
    """Prints one JSON value on one line.

    Names are camelCase, as in Kafka's own JSON, and each object has a `kind`. A partition is `topic` and the number
    `partition`. Records have the names of Python and Arrow instead. Bytes that are not UTF-8 are in a field whose name
    ends in `_base64`.
    """
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if is_terminal(sys.stdout):
        line = harmless_json(line)  # an equal JSON value
    sys.stdout.write(line + "\n")


def fields(named: Any) -> dict[str, Any]:
    """Returns a NamedTuple's fields with JSON names: first_offset becomes firstOffset."""
    return {camel(name): value for name, value in named._asdict().items()}


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def note(text: str) -> None:
    """Prints a message, which is not data, to stderr."""
    click.echo(harmless(text) if is_terminal(sys.stderr) else text, err=True)


def note_next(*words: str) -> None:
    """Prints the command that helps next, as it can be typed."""
    sys.stdout.flush()  # the note must come after the data, and not if that fails
    note(f"next: kafkalog {' '.join(map(shlex.quote, words))}")


def is_terminal(stream: Any) -> bool:
    """Returns whether a stream is a terminal."""
    return bool(getattr(stream, "isatty", lambda: False)())


def color_allowed(stream: Any) -> bool:
    """Returns whether to use colours: on a terminal that is not dumb, or with FORCE_COLOR; never with NO_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") != "0":
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


_SGR = {"0": "0", "b": "1", "d": "2", "r": "31", "g": "32", "y": "33", "l": "34", "m": "35", "c": "36"}
_STYLES = {"bold": "b", "dim": "d", "red": "r", "green": "g", "yellow": "y", "blue": "l", "magenta": "m", "cyan": "c"}
_MARK = re.compile("\ud800([0bdrgylmc])")  # half of a surrogate pair occurs in no file name or record


def paint(text: str, style: str) -> str:
    """Returns `text` in a style of _STYLES for `emit`, if colours are used."""
    return f"\ud800{_STYLES[style]}{text}\ud8000" if style and color_allowed(sys.stdout) else text


def put_bytes(out: dict[str, Any], name: str, data: bytes | None) -> None:
    """Puts bytes into `out` as text or null under `name`, or under `<name>_base64` if they are not UTF-8."""
    if data is None:
        out[name] = None
        return
    try:
        out[name] = data.decode()
    except UnicodeDecodeError:
        out[f"{name}_base64"] = base64.b64encode(data).decode()


def time_words(timestamp_ms: int) -> str:
    """Returns milliseconds since 1970 as ISO 8601 in UTC; "-" if negative."""
    return "-" if timestamp_ms < 0 else _shown.moment(timestamp_ms)


def parse_time_ms(text: str, *, or_offset: bool = True) -> int:
    """Parses `@ms` or ISO 8601 (UTC unless it has an offset) to milliseconds since 1970. Raises Usage for anything
    else; `or_offset` says whether an offset would be accepted too."""
    if text.startswith("@"):
        if re.fullmatch(r"@[0-9]{1,19}", text) and int(text[1:]) <= LONG_MAX:
            return int(text[1:])
        raise Usage(f"{text!r} is not a time; expected @ and milliseconds since 1970, such as @1700000000000")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        wrong, expected = ("neither an offset nor a time", "42, ") if or_offset else ("not a time", "")
        expected += "2026-11-21, 2026-11-21T09:00:00Z or @1700000000000"
        raise Usage(f"{text!r} is {wrong}, expected {expected}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)  # a float's seconds may be a millisecond short


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parses `-X key=value` options to topic settings. Raises Usage if "=" is missing."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"-X {text!r} has no '=', expected such as -X segment.bytes=1048576")
        key, value = key.strip(), value.strip()
        _refuse_unit(key, value)
        settings[key] = value
    return settings


def _refuse_unit(key: str, value: str) -> None:
    """Raises Usage for a number with a unit, and says which number Kafka's setting accepts instead."""
    meant = meant_by_unit(key, value)
    if meant is not None:
        raise Usage(
            f"-X {key}={value}: found a unit, expected {meant[0]} without one, as in Kafka: -X {key}={meant[1]}"
        )


def select_partitions(log_dir: str, wanted: tuple[str, ...] = ()) -> dict[TopicPartition, str]:
    """Returns the partitions of a log directory: all, or those named (`topic-0`, `topic` for all of a topic, or a glob:
    `topic-*`).

    Raises a one-line error for each mistake: a missing path, a file, the directory of a partition, no partitions, an
    unknown name.
    """
    if not (OS_FILES.exists(log_dir) or OS_FILES.is_link(log_dir)):
        raise not_a_directory(log_dir)
    if not OS_FILES.is_dir(log_dir):
        raise Usage(
            f"{log_dir}: found a file, expected a Kafka log directory (for single files use `kafkalog dump --files`)"
        )
    found = list_partitions(log_dir)
    if not found:
        raise no_partitions(log_dir)
    return {tp: found[tp] for tp in named_partitions(found, wanted, log_dir)}


def no_partitions(log_dir: str) -> Usage:
    """Returns the error for a directory without partitions; it names the log directories inside it."""
    below = _log_dirs_below(log_dir)
    hint = f"they are in {some(below)}: name one of these" if below else NO_PARTITIONS
    return Usage(f"{log_dir}: found no partitions, expected directories such as topic-0 ({hint})")


def _log_dirs_below(folder: str) -> list[str]:
    """Returns the log directories inside a directory: it may be a backup, or the mount point of several disks."""
    found: list[str] = []
    if "://" in folder:
        return found  # a bucket may have too many to list
    with contextlib.suppress(OSError, KafkalogError):
        for name in OS_FILES.list_dir(folder):
            path = os.path.join(folder, name)
            if OS_FILES.is_dir(path) and list_partitions(path):
                found.append(path)
    return found


def named_partitions(found: Collection[TopicPartition], wanted: tuple[str, ...], place: str) -> list[TopicPartition]:
    """Returns the partitions that are named, or all. Raises UnknownTopicOrPartitionException for a name or a glob that
    matches none."""
    if not wanted:
        return list(found)
    chosen: dict[TopicPartition, None] = {}
    for name in wanted:
        hits = [tp for tp in found if names_partition(name, tp)]
        if not hits and is_glob(name):
            topics = sorted({tp.topic for tp in found})
            raise UnknownTopicOrPartitionException(
                f"no topic or partition matches {name!r} in {place}",
                hint=f"it has the topics {some(topics)}; a glob matches Kafka's own topics only if it begins with __",
            )
        if not hits:
            refuse_foreign_partition(os.path.join(place, name), OS_FILES)
            raise _unknown(name, found, place)
        chosen.update(dict.fromkeys(hits))
    return list(chosen)


def _unknown(name: str, found: Collection[TopicPartition], place: str) -> Exception:
    """Returns the error for a name without a partition. It may have been meant as another directory."""
    is_dir = OS_FILES.is_dir(name)
    if is_dir and not is_name(name):
        return Usage(
            f"{name}: found a directory after {place}, expected a topic or a partition: the command accepts one "
            "directory, so run it once for each"
        )
    near = nearest(name, [*map(str, found), *sorted({tp.topic for tp in found})])
    return UnknownTopicOrPartitionException(
        f"no topic or partition {name!r} in {place}" + ("" if near or is_dir else ", and no directory of that name"),
        hint=f"did you mean {near}?" if near else f"{place} has {some(map(str, _users_first(found)))}",
    )


def _users_first(found: Collection[TopicPartition]) -> list[TopicPartition]:
    """Sorts Kafka's internal topics to the end."""
    return sorted(found, key=lambda tp: tp.topic in INTERNAL_TOPICS)


def split_place(path: str) -> tuple[str, str]:
    """Splits a path into directory and name; also an address."""
    if "://" in path:
        folder, _, name = path.rstrip("/").rpartition("/")
        return folder, name
    return os.path.split(os.path.normpath(path))


def locate(path: str, wanted: tuple[str, ...]) -> tuple[str, dict[TopicPartition, str]]:
    """Returns (log directory, partitions) for a path and names. The path is a log directory, the directory of a
    partition, a topic in a log directory (`logs/orders` for `logs/orders-0`, `logs/orders-1` ...), or a glob
    (`logs/orders-*`)."""
    below = None if wanted else part_of(path)
    if below is not None:
        return below[0], select_partitions(below[0], (below[1],))
    return path, select_partitions(path, wanted)


def part_of(path: str) -> tuple[str, str] | None:
    """Returns (log directory, name) for a path to a part of a log directory: a partition's directory, a topic or a
    glob. Returns None for any other path."""
    folder, name = split_place(path)
    if not OS_FILES.exists(path):
        folder = folder or os.curdir
        if is_glob(name) and OS_FILES.is_dir(folder):
            return folder, name
    elif OS_FILES.is_dir(path) and _has_segments(path):
        if name in ("", os.curdir, os.pardir):
            folder, name = os.path.split(os.path.abspath(path))
        folder = folder or os.curdir
    else:
        return None
    with contextlib.suppress(Usage, KafkalogError, OSError):
        select_partitions(folder, (name,))
        return folder, name
    return None


def _has_segments(path: str) -> bool:
    with contextlib.suppress(OSError):  # the code that reads it reports the error
        return any(names.segment_base(entry) is not None for entry in OS_FILES.list_dir(path))
    return False


def is_name(word: str) -> bool:
    """Returns whether a word is the name of a topic or a partition, or a glob, and not a directory."""
    if "/" in word or os.sep in word or word in (os.curdir, os.pardir):
        return False
    return not OS_FILES.is_dir(word) or _has_segments(word)


def not_a_directory(path: str, hint: str = "") -> Usage:
    """Returns the error for a log directory that does not exist; it names a similar directory next to it."""
    above, name = os.path.split(os.path.normpath(path))
    near = None
    with contextlib.suppress(OSError):
        beside = OS_FILES.list_dir(above or os.curdir)
        near = nearest(name, [each for each in beside if OS_FILES.is_dir(os.path.join(above, each))])
    meant = f"; did you mean {os.path.join(above, near)}?" if near else ""
    hint = hint or " (the directory that holds topic-0 ...)"
    return Usage(f"{path}: not found, expected a Kafka log directory{hint}{meant}")


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that is most similar to `name`, or None."""
    import difflib

    hits = difflib.get_close_matches(name, known, n=1)
    return hits[0] if hits else None


def tell_unsettled(error: BeingWrittenException | UnknownTopicOrPartitionException) -> int:
    """Reports that a partition is being written or was deleted; returns the exit code."""
    is_gone = isinstance(error, UnknownTopicOrPartitionException)
    note(f"{'note' if is_gone else 'kafkalog'}: {one_line(error)}")
    return CLEAN if is_gone else BEING_WRITTEN


def some(texts: Iterable[str], most: int = 5) -> str:
    """Returns a list in words, cut after `most` items."""
    known = list(texts)
    more = len(known) - most
    return ", ".join(known[:most]) + (f" and {more} more" if more > 0 else "")


def tell_findings(findings: Iterable[Any], notes: Iterable[str] = (), *, as_json: bool, lead: str = "") -> None:
    """Prints findings as lines that begin with `lead`, or as JSON objects, and then the notes on stderr."""
    for finding in findings:
        if as_json:
            emit_json({"kind": "finding", **fields(finding)})
        else:
            emit(paint(f"{lead}{finding}", "red"))
    for text in notes:
        note(f"note: {text}")


def log_bytes(folders: Iterable[str]) -> int:
    """Returns the bytes of all .log files in directories of partitions."""
    total = 0
    for folder in folders:
        listed, known = _logs_in(folder)
        total += sum([stat.size for stat in known.values()])
        for name in listed:
            if name.endswith(names.LOG_FILE_SUFFIX) and name not in known:
                with contextlib.suppress(OSError):  # deleted by a broker meanwhile, or its reader reports it
                    total += OS_FILES.stat(os.path.join(folder, name)).size
    return total


def _logs_in(folder: str) -> tuple[Collection[str], Mapping[str, FileStat]]:
    """Returns the names in a directory and what is known of its logs; nothing if it cannot be read: its reader reports
    the error."""
    with contextlib.suppress(OSError):
        looked = OS_FILES.look_into(folder, names.LOG_FILE_SUFFIX)
        return (OS_FILES.list_dir(folder), {}) if looked is None else (looked.names, looked.stats)
    return (), {}


def looked_at(log_dirs: Iterable[str], *, force: bool = False) -> Progress:
    """Returns a Progress over the partitions of directories; the number of directory entries is the estimated total."""
    total = 0
    for log_dir in log_dirs:
        with contextlib.suppress(OSError):  # its reader reports it
            total += len(OS_FILES.names_in(log_dir))
    return Progress(total, "read", force=force, counts="partitions")


class Progress:
    """Shows bytes done of a total, rate and remaining time on stderr; a context manager.

    On a terminal it draws a bar (with rich, imported only then) if there is enough to do. With `force` it prints a
    plain line every few seconds elsewhere, and one at the end. If `counts` names something other than bytes, the bar
    appears after the first second.
    """

    def __init__(
        self,
        total_bytes: int,
        what: str,
        *,
        force: bool = False,
        counts: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_bytes
        self._what = what
        self._clock = clock
        self._begin = self._last = clock()
        self._done = 0
        self._on_terminal = is_terminal(sys.stderr)
        self._lines = force and not self._on_terminal
        self._bar: Any = None
        self._counts = counts
        self._bar_waits = self._on_terminal and bool(counts)
        if self._on_terminal and not counts and (force or total_bytes > PROGRESS_FROM_BYTES):
            self._bar = _bar(what, total_bytes)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.finish()

    def advance(self, size_bytes: int) -> None:
        """Adds to the bytes that are done."""
        self._done = min(self._done + size_bytes, self._total)
        if self._bar is None and not self._lines and not self._bar_waits:
            return
        now = self._clock()
        if self._bar_waits and now - self._begin >= BAR_AFTER_S:
            self._bar_waits, self._bar = False, _bar(self._what, self._total, self._counts)
        if now - self._last < (LINE_EVERY_S if self._lines else BAR_EVERY_S):
            return
        self._last = now
        if self._bar is not None:
            self._bar.update(0, completed=self._done)
        elif self._lines:
            self._line(now)

    def _line(self, now: float) -> None:
        seconds = max(now - self._begin, 1e-9)
        rate = self._done / seconds
        left_s = f"{(self._total - self._done) / rate:.0f}" if rate else "?"
        words = (lambda number: f"{number} {self._counts}") if self._counts else _shown.size
        note(f"{self._what}: {words(self._done)} of {words(self._total)}, {words(int(rate))}/s, {left_s} s left")

    def finish(self) -> None:
        """Removes the bar; a second call does nothing."""
        if self._bar is not None:
            self._bar.stop()
        elif self._lines:
            self._line(self._clock())
        self._bar, self._lines, self._bar_waits = None, False, False


def _bar(what: str, total: int, counts: str = "") -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    done: tuple[ProgressColumn, ...] = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    if counts:
        done = (MofNCompleteColumn(), TextColumn(counts))
    bar = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        *done,
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=not color_allowed(sys.stderr)),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task(what, total=total)
    bar.start()
    return bar
