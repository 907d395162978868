"""`kafkalog cat`: the records of a partition as text or JSON lines; all, the last ones, or those that match."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kafkalog._face.times import ALL_TIMES
from kafkalog._face.window import Window, found_in, last
from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, Usage
from kafkalog.cli.console import note, some
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.engine.log.view import PartitionView

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import ChunkReader
    from kafkalog._face.match import Condition, Match
    from kafkalog.records import Record

FOLLOW_EVERY_S = 0.2


@click.command("cat", short_help="Print records as text or JSON lines.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.START
@click.option("--until", "--to", "end", metavar="OFFSET|TIME", help=choosing.END_HELP)
@click.option("-n", "--limit", type=click.IntRange(min=0), help="At most so many records of each partition.")
@click.option("--last", "count", type=click.IntRange(min=0), help="Only the last so many of each partition.")
@click.option("--key", "keys", multiple=True, help="Only this key: text, hex:00ff or base64:AP8=.  Several: any.")
@click.option(
    "--partitions",
    "partition_count",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --key: how many the topic has, to look only in the key's.",
)
@click.option("--grep", "patterns", multiple=True, metavar="RE", help="Only values that match.  Several: all.")
@click.option("--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="Only with it.  Several: all.")
@click.option("--where", metavar="EXPR", help="Only such as 'offset >= 100 and time < 2026-11-01T09:05'.")
@choosing.COMMITTED
@click.option("-f", "--format", "template", default="%s\\n", show_default=True, help="Text with kcat's %s %k %o ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record; bytes that are not UTF-8 as base64.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until interrupted (one partition).")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    start: str | None,
    end: str | None,
    limit: int | None,
    count: int | None,
    keys: tuple[str, ...],
    partition_count: int | None,
    patterns: tuple[str, ...],
    headers: tuple[str, ...],
    where: str | None,
    committed: bool,
    template: str,
    as_json: bool,
    follow: bool,
) -> int:
    """Print the records of PARTITIONS (topic-0, or a topic for all of its partitions) of LOG_DIR.

    A directory with one partition needs no name.  Works beside a running broker.

    Format: %s value, %S its size, %R its size in four bytes, %k key, %K its size, %o offset, %T timestamp in ms, %t
    topic, %p partition, %h headers, %% itself; \\n, \\t, \\x1f as in C.  JSON has kcat's names, and headers as a list
    of objects; text that is no UTF-8 is in key_base64, payload_base64, value_base64: `append --json` takes it.

    --key, --grep, --header and --where go together, and need pyarrow.  A time of --from or --until chooses records by
    their timestamps, whatever their order in the log; --follow goes on behind it.  --grep has RE2's syntax.  --last
    reads from the end.

    --key of a topic looks in all of its partitions that are here; with --partitions N, the number that the topic has on
    all disks and brokers, only in the one that Kafka's producers choose by the key.
    """
    if partition_count is not None and not keys:
        raise Usage("found --partitions without --key, expected both: a key's hash tells its partition")
    if count is not None and limit is not None:
        raise Usage("found both --last and --limit, expected one of them")
    conditions = choosing.conditions(where)
    window = choosing.pruned(choosing.window(start, end), conditions)
    show = record_lines.printer(template, json=as_json)
    wanted = [choosing.key(text) for text in keys]
    pairs = [choosing.header(text) for text in headers]
    log_dir, chosen, _ = choosing.chosen(log_dir, partitions, topics)
    if not (partitions or topics) and len(chosen) > 1 and len({partition.topic for partition in chosen}) > 1:
        raise Usage(f"{log_dir} has {some(map(str, chosen))}: name the partitions to print, or a topic")
    many = len(chosen) > 1
    said = ""
    if partition_count is not None:
        names = (*partitions, *topics) or tuple({partition.topic for partition in chosen})
        chosen, said = choosing.narrowed(chosen, names, wanted, partition_count)
    if follow and len(chosen) > 1:
        raise Usage(f"--follow takes one partition, found {len(chosen)}")
    match = _match(wanted, patterns, pairs, conditions)
    isolation = choosing.isolation(committed)
    found = 0
    for partition_name in chosen:
        with PartitionView(log_dir, partition_name) as view:
            for record in _Reading(view, isolation, match).records(window, limit, count, follow, lenient=many):
                show(record)
                found += 1
    if said and not found:
        note(choosing.NOT_THERE)
    return CLEAN


def _match(
    keys: list[bytes],
    patterns: tuple[str, ...],
    headers: list[tuple[str, bytes | None]],
    conditions: list[Condition],
) -> Match | None:
    if not (keys or patterns or headers or conditions):
        return None
    from kafkalog._face.match import Match

    return Match(keys, patterns, headers, conditions)


class _Reading:
    """One partition's records, as many as asked for."""

    def __init__(self, view: PartitionView, isolation: str, match: Match | None) -> None:
        self._view = view
        self._isolation = isolation
        self._match = match
        self._times = ALL_TIMES

    def records(
        self, window: Window, limit: int | None, count: int | None, follow: bool, *, lenient: bool
    ) -> Iterator[Record]:
        view = self._view
        begin, stop, self._times = found_in(view, window, lenient=lenient)
        if count is not None:
            high = view.visible_end(self._isolation)
            high = high if stop is None else min(stop, high)
            yield from last(self._between, count, max(begin, view.log_start_offset), high)
            begin = max(begin, high)
        left = limit
        reader = self._reader(begin, stop)
        while True:
            for record in self._found(reader):
                if left is not None:
                    if left == 0:
                        return
                    left -= 1
                yield record
            if not follow or (stop is not None and reader.offset >= stop):
                return
            sys.stdout.flush()
            time.sleep(FOLLOW_EVERY_S)
            view.refresh()

    def _between(self, start: int, end: int) -> Iterator[Record]:
        return self._found(self._reader(start, end))

    def _reader(self, start: int, end: int | None) -> ChunkReader:
        from kafkalog._face.chunk_reader import ChunkReader

        return ChunkReader(self._view, start, isolation=self._isolation, end_offset=end)

    def _found(self, reader: ChunkReader) -> Iterator[Record]:
        if self._match is None:
            from kafkalog._face.chunk_reader import walk_records

            return walk_records(reader.batches_of_records(), times=self._times)
        from kafkalog._face.match import matching

        return matching(reader, self._match, self._times)
