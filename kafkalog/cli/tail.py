"""`kafkalog tail`: prints the last records of all topics and new ones as they arrive, one line each.

Partitions are polled one after another; one whose file and directory have not changed costs two system calls. New
records are printed in the order in which they are found: by partition, and in each by offset.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from kafkalog._face.selected import records_in, selected_range
from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, FINDINGS, Number, Usage
from kafkalog.cli.console import emit, emit_json, is_terminal, note, paint, time_words
from kafkalog.cli.harmless import harmless
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.cli.tables import cut, terminal_width
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import UnknownTopicOrPartitionException

if TYPE_CHECKING:
    from kafkalog._face.window import Range
    from kafkalog.records import Record

EVERY_S = 0.2
TOPICS_EVERY_S = 2.0  # interval of the search for new partitions
RATE_EVERY_S = 1.0
_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
COLOURS = ("cyan", "magenta", "green", "blue", "yellow")


@click.command("tail", short_help="Print the newest records of all topics, and new ones as they arrive.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.filters("start", "end", "last", "partition_count")
@click.option(
    "-n",
    "--last",
    "count",
    type=Number(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Print the last N records first.",
)
@click.option("--no-follow", is_flag=True, help="Do not wait for new records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: records as cat prints them.")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    asked: choosing.Asked,
    count: int,
    no_follow: bool,
    as_json: bool,
) -> int:
    """Print the newest records of PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR, and new ones as they
    arrive.

    The command runs until it is interrupted. It changes nothing, takes no lock, and works while a broker or a store is
    writing.

    A line has the time, the partition and offset, the key and the value. On a terminal it is cut to the width, each
    topic has a colour, and stderr shows the records per second. The first lines are the newest records by timestamp;
    later records are printed in the order in which they are found. New partitions are followed too.
    """
    show = _json if as_json else _line
    with ExitStack() as stack:
        followed = _Followed(log_dir, (*partitions, *topics), asked, stack)
        for record in followed.newest(count):
            show(record)
        if not no_follow:
            followed.follow(show)
    choosing.tell_lost(asked.lost, as_json=as_json)
    return FINDINGS if asked.lost else CLEAN


class _Followed:
    """Partitions that are followed, each with the offset after the last printed record."""

    def __init__(self, log_dir: str, named: tuple[str, ...], asked: choosing.Asked, stack: ExitStack) -> None:
        self._log_dir, self._named, self._asked, self._stack = log_dir, named, asked, stack
        self._views: dict[str, tuple[PartitionView, int]] = {}
        self._look(is_first=True)

    def _look(self, *, is_first: bool = False) -> None:
        """Adds the partitions that exist now; new ones are read from their start."""
        try:
            chosen = choosing.chosen(self._log_dir, self._named, (), tells=is_first)
        except (Usage, UnknownTopicOrPartitionException):
            if is_first:
                raise
            return  # all partitions were deleted, and may be created again
        for partition in chosen.folders:
            if str(partition) not in self._views:
                view = self._stack.enter_context(PartitionView(chosen.log_dir, partition))
                end = view.visible_end(self._asked.selection.isolation)
                self._views[str(partition)] = view, end if is_first else view.log_start_offset

    def newest(self, count: int) -> list[Record]:
        """Returns the last records of all partitions, in the order of their times."""
        found: list[Record] = []
        for view, end in self._views.values():
            place = selected_range(lambda view=view: view, self._asked.selection, count, lenient=True)  # type: ignore[misc]
            found += self._records(view, place._replace(end=end))
        found.sort(key=lambda record: record.timestamp)  # stable: equal times are in order of partition and offset
        return found[-count:] if count else []

    def _records(self, view: PartitionView, place: Range) -> Iterator[Record]:
        return records_in(lambda: view, self._asked.selection, place)

    def follow(self, show: Callable[[Record], None]) -> None:
        """Prints new records until interrupted."""
        rate, looked = _Rate(), time.monotonic()
        while True:
            for name, (view, offset) in list(self._views.items()):
                try:
                    if view.has_changed():
                        view.refresh()
                    end = view.visible_end(self._asked.selection.isolation)
                    if end <= offset:
                        continue
                    place = selected_range(lambda view=view: view, self._asked.selection, lenient=True)  # type: ignore[misc]
                    for record in self._records(
                        view, place._replace(start=max(offset, view.log_start_offset), end=end)
                    ):
                        rate.clear()
                        show(record)
                        rate.count += 1
                except UnknownTopicOrPartitionException:
                    note(f"note: {name} no longer exists")
                    del self._views[name]
                    continue
                self._views[name] = view, end
            sys.stdout.flush()
            rate.tell()
            time.sleep(EVERY_S)
            if time.monotonic() - looked >= TOPICS_EVERY_S:
                self._look()
                looked = time.monotonic()


class _Rate:
    """Shows records per second on a terminal, in a line that the next record replaces."""

    def __init__(self) -> None:
        self.count, self._since = 0, time.monotonic()
        self._is_told, self._is_there = is_terminal(sys.stderr), False

    def clear(self) -> None:
        if self._is_there:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._is_there = False

    def tell(self) -> None:
        now = time.monotonic()
        if now - self._since < RATE_EVERY_S:
            return
        if self._is_told:
            self.clear()
            click.echo(f"{self.count / (now - self._since):.0f} records/s", nl=False, err=True)
            self._is_there = True
        self.count, self._since = 0, now


def _json(record: Record) -> None:
    emit_json(record_lines.as_json(record))


def _line(record: Record) -> None:
    place = f"{record.topic}-{record.partition}@{record.offset}"
    text = "null" if record.value is None else _text(record.value)
    if record.key is not None:
        text = f"{_text(record.key)}: {text}"
    time_of = time_words(record.timestamp)
    if is_terminal(sys.stdout):
        text = cut(text, terminal_width() - len(time_of) - len(place) - 2)
    colour = COLOURS[zlib.crc32(record.topic.encode()) % len(COLOURS)]
    emit(f"{time_of} {paint(place, colour)} {text}")


def _text(data: bytes) -> str:
    return harmless(data.decode("utf-8", "backslashreplace").translate(_BREAKS))
