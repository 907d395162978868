"""`kafkalog cat`: the records of a partition as text or JSON lines; all, the last ones, or those that match."""

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
@click.option("-n", "--limit", type=Number(min=0), help="At most so many records of each partition.")
@click.option("-f", "--format", "template", default="%s\\n", show_default=True, help="Text with kcat's %s %k %o ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record; bytes that are not UTF-8 as base64.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until interrupted (one partition).")
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

    Works beside a running broker.

    Format: %s value, %S its size, %R its size in four bytes, %k key, %K its size, %o offset, %T timestamp in ms, %t
    topic, %p partition, %h headers, %% itself; \\n, \\t, \\x1f as in C.  `-f kcat` prints
    JSON with kcat's names.  --json has Python's: topic, partition, offset, timestamp, timestamp_type, key, value, and
    headers as a list of objects; text that is no UTF-8 is in key_base64, value_base64.  `append --json` takes both.

    All that is asked for must hold.  A time of --from or --until chooses records by their timestamps, whatever their
    order in the log; --follow goes on behind it.  --grep has RE2's syntax; it, --header and --where need pyarrow.
    --last reads from the end.

    --key of a topic looks in all of its partitions that are here; with --partitions N, the number that the topic has on
    all disks and brokers, only in the one that Kafka's producers choose by the key.
    """
    if asked.last is not None and limit is not None:
        raise Usage("found both --last and --limit, expected one of them")
    show = record_lines.printer(template, json=as_json)
    chosen = choosing.chosen(log_dir, partitions, topics)
    places, said = asked.narrowed(chosen, (*partitions, *topics))
    if follow and len(places) > 1:
        raise Usage(f"--follow takes one partition, found {len(places)}")
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
    """One partition's, and what comes if they are followed."""

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
