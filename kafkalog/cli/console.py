"""What commands print with: JSON lines, progress, sizes and times in words.

Data goes through `emit` to stdout; notes and progress to stderr, progress only where someone watches.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from kafkalog.cli.app import Usage
from kafkalog.errors import UnknownTopicOrPartitionException
from kafkalog.files import OS_FILES
from kafkalog.format.names import TopicPartition
from kafkalog.topics.directory import refuse_partition_folder
from kafkalog.topics.view import list_partitions

PROGRESS_EVERY_S = 0.5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def emit(line: str) -> None:
    """One line of data."""
    sys.stdout.write(line + "\n")


def emit_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def note(text: str) -> None:
    """Something that is no data."""
    click.echo(text, err=True)


def color_allowed(stream: Any) -> bool:
    """Whether to use colours: a terminal, and NO_COLOR not set."""
    return not os.environ.get("NO_COLOR") and bool(getattr(stream, "isatty", lambda: False)())


def paint(text: str, color: str) -> str:
    """`text` for stdout, coloured where that is wanted."""
    return click.style(text, fg=color) if color_allowed(sys.stdout) else text


def put_bytes(out: dict[str, Any], name: str, data: bytes | None) -> None:
    """`name` as text or null, `<name>_base64` where it is not UTF-8."""
    if data is None:
        out[name] = None
        return
    try:
        out[name] = data.decode()
    except UnicodeDecodeError:
        out[f"{name}_base64"] = base64.b64encode(data).decode()


def size_words(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(size_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def time_words(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; "-" for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def parse_time_ms(text: str) -> int:
    """`@ms` or ISO 8601 (UTC unless it says otherwise) as milliseconds since 1970; Usage for anything else."""
    if text.startswith("@"):
        if re.fullmatch(r"@\d+", text):
            return int(text[1:])
        raise Usage(f"{text!r} is no time, expected @ and milliseconds since 1970, such as @1700000000000")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(
            f"{text!r} is neither an offset nor a time, expected 42, 2026-11-21T09:00:00Z or @1700000000000"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def select_partitions(log_dir: str, wanted: tuple[str, ...] = ()) -> dict[TopicPartition, str]:
    """Partitions of a log directory: all, or those named (`topic-0`, or `topic` for all of a topic).

    One line of error each for: nothing there, a file, a partition's own folder, no partitions in it, an unknown name.
    """
    if not os.path.lexists(log_dir):
        raise Usage(f"{log_dir}: not found, expected a Kafka log directory (the folder that holds topic-0 ...)")
    if not OS_FILES.is_dir(log_dir):
        raise Usage(
            f"{log_dir}: found a file, expected a Kafka log directory (for single files use `kafkalog dump --files`)"
        )
    refuse_partition_folder(OS_FILES.list_dir(log_dir), log_dir)
    found = list_partitions(log_dir)
    if not found:
        raise Usage(
            f"{log_dir}: found no partitions, expected folders such as topic-0 (is this the broker's log.dirs?)"
        )
    if not wanted:
        return found
    chosen = {}
    for name in wanted:
        hits = {tp: path for tp, path in found.items() if str(tp) == name or tp.topic == name}
        if not hits:
            near = _nearest(name, [str(tp) for tp in found])
            raise UnknownTopicOrPartitionException(
                f"no topic or partition {name!r} in {log_dir}",
                hint=f"did you mean {near}?" if near else f"it has {_some([str(tp) for tp in found])}",
            )
        chosen.update(hits)
    return chosen


def _nearest(name: str, known: list[str]) -> str | None:
    import difflib

    hits = difflib.get_close_matches(name, known, n=1)
    return hits[0] if hits else None


def _some(names: list[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class Progress:
    """`done` of `total` bytes with rate and remaining time, on stderr, where that is a terminal (or `force`)."""

    def __init__(
        self, total_bytes: int, what: str, *, force: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total_bytes
        self._what = what
        self._clock = clock
        self._begin = self._last = clock()
        self._done = 0
        self._shown = False
        self._on = force or (bool(getattr(sys.stderr, "isatty", lambda: False)()) and total_bytes > 64 << 20)

    def advance(self, size_bytes: int) -> None:
        """So many bytes more are done."""
        self._done += size_bytes
        now = self._clock()
        if self._on and now - self._last >= PROGRESS_EVERY_S:
            self._last = now
            rate = self._done / max(now - self._begin, 1e-9)
            left_s = (self._total - self._done) / rate if rate else 0
            sys.stderr.write(
                f"\r{self._what}: {size_words(self._done)} of {size_words(self._total)}, {size_words(int(rate))}/s, "
                f"{left_s:.0f} s left   "
            )
            sys.stderr.flush()
            self._shown = True

    def finish(self) -> None:
        """Clear the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
            sys.stderr.flush()
