"""`kafkalog history`: every value of a key that is still there, and which of them counts."""

from __future__ import annotations

import sys

import click

from kafkalog.cli import choosing, record_lines
from kafkalog.cli.app import CLEAN, FINDINGS, Usage
from kafkalog.cli.console import emit_json, note, time_words
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.log.view import PartitionView
from kafkalog.records import NO_TIMESTAMP_TYPE
from kafkalog.toolbox.history import LATEST, SUPERSEDED, Entry, history


@click.command("history", short_help="Print every value of a key.")
@click.argument("key")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.filters("keys", "key_prefix", "committed", "last")
@choosing.COMMITTED
@click.option("--json", "as_json", is_flag=True, help="One JSON object a value: cat's, with state and tombstone.")
@both_tiers
def command(
    key: str,
    log_dir: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    asked: choosing.Asked,
    committed: bool,
    as_json: bool,
) -> int:
    """Print every value of KEY that is still in PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR.

    A line has the partition, the offset, the time, what it counts for, and the value, with tabs in between: the latest;
    superseded, which the next clean may take; aborted; pending, where a transaction is open at it or before it.  One
    without a value is a tombstone and deletes the key.  --committed prints the latest and the superseded ones alone.

    KEY is text, hex:00ff or base64:AP8=.  Each partition answers for itself.  With --partitions N, the number that the
    topic has on all disks and brokers, only the one is read that Kafka's producers choose by the key.

    Works beside a running broker.  At damage it prints what lies before it, and stops with exit code 1.  Needs pyarrow.
    """
    need_pyarrow()
    if OS_FILES.is_dir(key) and not ("://" in log_dir or OS_FILES.exists(log_dir)):
        raise Usage(f"found the directory {key} in the place of a key, expected the key first: history KEY {key} ...")
    wanted = choosing.key(key)
    chosen = choosing.chosen(log_dir, partitions, topics)
    places, said = asked._replace(keys=[wanted]).narrowed(chosen, (*partitions, *topics))
    found = 0
    for partition in places:
        with PartitionView(chosen.log_dir, partition) as view:
            for entry in history(view, wanted, asked.selection, lenient=len(chosen.folders) > 1):
                if not committed or entry.state in (LATEST, SUPERSEDED):
                    _tell(entry, as_json)
                    found += 1
    if said and not found:
        note(choosing.NOT_THERE)
    choosing.tell_lost(asked.lost)
    return FINDINGS if asked.lost else CLEAN


def _tell(entry: Entry, as_json: bool) -> None:
    record = entry.record
    if as_json:
        emit_json(record_lines.as_json(record) | {"state": entry.state, "tombstone": entry.tombstone})
        return
    time = "-" if record.timestamp_type == NO_TIMESTAMP_TYPE else time_words(record.timestamp)
    state = f"{entry.state} tombstone" if entry.tombstone else entry.state
    head = f"{record.topic}-{record.partition}\t{record.offset}\t{time}\t{state}\t"
    sys.stdout.buffer.write(head.encode() + (record.value or b"") + b"\n")
