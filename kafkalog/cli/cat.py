"""`kafkalog cat`: prints the records of partitions as text or JSON lines: all, the last ones, or those that match."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from kafkalog._face.selected import records_in, selected_range
from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, FINDINGS, Number, Usage
from kafkalog.cli.console import note
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.engine.log.view import PartitionView

if TYPE_CHECKING:
    from kafkalog.records import Record

FOLLOW_EVERY_S = 0.2


@click.command("cat", short_help="Print records as text or JSON lines.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.filters(old={"--to": "end"})
@click.option("-n", "--limit", type=Number(min=0), metavar="N", help="Print at most N records of each partition.")
@click.option(
    "-f", "--format", "template", default="%s\\n", show_default=True, help="Text with kcat's fields: %s %k %o ..."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: records; bytes that are not UTF-8 as base64.")
@click.option("--follow", is_flag=True, help="At the end wait for new records, until interrupted (one partition).")
@both_tiers
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    asked: choosing.Asked,
    limit: int | None,
    template: str,
    as_json: bool,
    follow: bool,
) -> int:
    """Print the records of PARTITIONS (topic-0, or a topic for all of its partitions; default: all) of LOG_DIR.

    The command changes nothing, takes no lock, and works while a broker is running.

    \b
    Fields of --format:
      %s value      %S its size, %R its size in four bytes
      %k key        %K its size
      %o offset     %T timestamp in ms
      %t topic      %p partition
      %h headers    %% a percent sign
    Escapes such as \\n, \\t and \\x1f are as in C.

    --json prints Python's names: topic, partition, offset, timestamp, timestamp_type, key, value, and headers as a list
    of objects. Bytes that are not UTF-8 are in key_base64 and value_base64. `-f kcat` prints JSON with kcat's names.
    `append --json` accepts both.

    A record is printed if it matches all given options. A time in --from or --until selects records by their
    timestamps, whatever their order in the log. --follow continues after the time of --until. For --grep use RE2's
    syntax. --grep, --header and --where need pyarrow. --last reads from the end.

    --key with a topic reads all of its partitions in LOG_DIR. With --partitions N (how many partitions the topic has on
    all disks and brokers) it reads only the one that Kafka's producers choose for the key.
    """
    if asked.last is not None and limit is not None:
        raise Usage("found both --last and --limit, expected one of them")
    show = record_lines.printer(template, json=as_json)
    chosen = choosing.chosen(log_dir, partitions, topics)
    places, said = asked.narrowed(chosen, (*partitions, *topics))
    if follow and len(places) > 1:
        hint = "name one, such as orders-0, or follow them all with `kafkalog tail`"
        raise Usage(f"--follow needs one partition, found {len(places)}: {hint}")
    found = 0
    for partition in places:
        before = found
        with PartitionView(chosen.log_dir, partition) as view:
            for record in islice(_records(view, asked, lenient=len(chosen.folders) > 1, follow=follow), limit):
                show(record)
                found += 1
            if limit is None or found - before < limit:
                choosing.note_open(view, asked.selection)
    choosing.tell_lost(asked.lost)
    if said and not found:
        note(choosing.NOT_THERE)
    return FINDINGS if asked.lost else CLEAN


def _records(view: PartitionView, asked: choosing.Asked, *, lenient: bool, follow: bool) -> Iterator[Record]:
    """Yields the selected records of a partition, and new ones if `follow` is set."""

    def ready() -> PartitionView:
        return view

    selection = asked.selection
    place = selected_range(ready, selection, asked.last, lenient=lenient)
    while True:
        end = view.visible_end(selection.isolation)
        yield from records_in(ready, selection, place)
        if not follow or (place.end is not None and end >= place.end):
            return
        place = place._replace(start=max(place.start, end))
        sys.stdout.flush()
        time.sleep(FOLLOW_EVERY_S)
        view.refresh()
