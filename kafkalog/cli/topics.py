"""`kafkalog topics`: one table of the topics in several log directories."""

from __future__ import annotations

import click

from kafkalog import _shown
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.cli.app import CLEAN, FINDINGS, worse
from kafkalog.cli.console import (
    NO_PARTITIONS,
    Progress,
    emit,
    emit_json,
    log_bytes,
    looked_at,
    note,
    paint,
    tell_unsettled,
)
from kafkalog.cli.places import (
    CONFIG,
    PLACES_AND_NAMES,
    SHOWN,
    check_names,
    log_dirs_at,
    places_and_names,
    setting_fields,
    topic_settings,
)
from kafkalog.cli.remote_places import both_tiers, note_tiered
from kafkalog.cli.tables import Cell, Column, When, print_table, utc_option
from kafkalog.toolbox.folders import folders_of, named_folders
from kafkalog.toolbox.topics import TopicRow, topics

COLUMNS = (
    Column("TOPIC"),
    Column("ID", drop=5),
    Column("PARTITIONS", right=True),
    Column("SEGMENTS", right=True, drop=4),
    Column("SIZE", right=True),
    Column("RECORDS", right=True),
    Column("FIRST", right=True, drop=2),
    Column("LAST", right=True, drop=1),
    Column("CODECS", right=True, drop=3),
)


@click.command("topics", short_help="Show the topics of log directories in one table.")
@PLACES_AND_NAMES
@click.option("--exact", is_flag=True, help="Read all batch headers, for exact records, times and codecs.")
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: topics, findings and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@utc_option
@both_tiers
def command(log_dirs: tuple[str, ...], exact: bool, broker_file: str | None, as_json: bool, progress: bool) -> int:
    """Show the topics of LOG_DIRS, or only the named PARTITIONS (topic-0, a topic, or a glob), in one table.

    Name all log directories of a broker together. The command changes nothing, takes no lock, and works while a broker
    is running.

    PARTITIONS counts those in LOG_DIRS, of how many the cluster's metadata or the store's settings name. Partitions,
    segments and sizes are exact.

    Without --exact the other columns are estimates, marked `~`. RECORDS is the range of offsets, an upper bound: a
    compacted or transactional topic has fewer. FIRST, LAST and CODECS come from the time indexes and a few batches of
    each segment (in a remote tier: of the first and the last one). With --exact they are those of the records that
    readers get, without transaction markers and records before the log start.

    Directories that are deleted, moving, stray or not Kafka's are named on stderr. Exit 1 if something would stop a
    broker from starting, or if a partition cannot be read. Exit 4 if a partition is being changed and cannot be shown.
    """
    where, asked = places_and_names(log_dirs)
    places = log_dirs_at(where)
    check_names(places, asked)
    if exact:
        folders = (named_folders(folders_of(place), asked) for place in places)
        total = log_bytes(path for found in folders for path in found.partitions.values())
        watched = Progress(total, "read", force=progress)
    else:
        watched = looked_at(places, force=progress)
    with watched as bar:
        found = topics(places, asked, exact=exact, progress=bar.advance)
    for place in places:
        note_tiered(place, found.folders(place))
    known = topic_settings(places, (), broker_file)
    if as_json:
        for row in found.rows.values():
            emit_json(_json(row, exact, known))
    elif found.rows:
        print_table(COLUMNS, [_cells(row, exact, known) for row in found.rows.values()])
    else:
        note(f"no topics: expected directories such as orders-0 ({NO_PARTITIONS})")
    for text in found.findings:
        if as_json:
            emit_json({"kind": "finding", "what": text})
        else:
            emit(paint(text, "red"))
    for text in found.notes:
        note(f"note: {text}")
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "topics": len(found.rows),
                "partitions": sum(len(row.partitions) for row in found.rows.values()),
                "segments": sum(row.segments for row in found.rows.values()),
                "bytes": sum(row.bytes for row in found.rows.values()),
                "findings": len(found.findings),
                "notes": found.notes,
            }
        )
    code = FINDINGS if found.findings else CLEAN
    for error in found.unsettled:
        code = worse(code, tell_unsettled(error))
    return code


def _cells(row: TopicRow, exact: bool, known: TopicSettings) -> list[object]:
    contents = row.contents
    records = contents.records if exact else row.offsets
    about = "" if exact or not records else "~"  # no records is exact
    count = known.partition_count(row.topic) or 0
    return [
        row.topic + (" (internal)" if row.internal else ""),
        row.topic_ids[0] if len(row.topic_ids) == 1 else "several" if row.topic_ids else "-",
        len(row.partitions) if len(row.partitions) >= count else Cell(f"{len(row.partitions)} of {count}", "yellow"),
        row.segments,
        _shown.size(row.bytes),
        f"{about}{records}",
        When(contents.first_timestamp, about),
        When(contents.last_timestamp, about),
        about + (",".join(row.codec_names) or "-"),
    ]


def _json(row: TopicRow, exact: bool, known: TopicSettings) -> dict[str, object]:
    contents = row.contents
    return {
        "kind": "topic",
        "topic": row.topic,
        "topicId": row.topic_ids[0] if len(row.topic_ids) == 1 else None,
        "internal": row.internal,
        "partitions": row.partitions,
        "partitionCount": known.partition_count(row.topic),
        "logDirs": row.log_dirs,
        "segments": row.segments,
        "bytes": row.bytes,
        "offsets": row.offsets,
        "records": contents.records if exact else None,
        "batches": contents.batches if exact else None,
        "firstTimestamp": contents.first_timestamp,
        "lastTimestamp": contents.last_timestamp,
        "codecs": row.codec_names,
        "exact": exact,
        **setting_fields(known, row.topic, SHOWN),
    }
