"""`kafkalog history`: prints every stored value of a key, and says which one is current."""

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


@click.command("history", short_help="Print every stored value of a key.")
@click.argument("key")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@choosing.filters("keys", "key_prefix", "committed", "last")
@choosing.COMMITTED
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: records as cat prints them, with state and tombstone."
)
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
    """Print every value of KEY that is still stored in PARTITIONS (topic-0, or a topic; default: all) of LOG_DIR.

    KEY is text, hex:00ff or base64:AP8=. The command changes nothing, takes no lock, and works while a broker is
    running. Needs pyarrow.

    A line has the partition, the offset, the time, the state and the value, separated by tabs. A tombstone has no value
    and deletes the key. --committed prints only latest and superseded values.

    \b
    States:
      latest      the current value
      superseded  the next compaction may remove it
      aborted     its transaction was aborted
      pending     a transaction is open at it or before it

    Each partition is searched separately. With --partitions N (how many partitions the topic has on all disks and
    brokers) only the one that Kafka's producers choose for the key is read.

    At damage the command prints the values before it, and stops with exit code 1.
    """
    need_pyarrow()
    if OS_FILES.is_dir(key) and not ("://" in log_dir or OS_FILES.exists(log_dir)):
        raise Usage(f"found the directory {key} instead of a key, expected the key first: history KEY {key} ...")
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
