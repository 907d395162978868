"""`kafkalog compare`: finds out whether the partitions of two log directories are the same."""

from __future__ import annotations

import os
from typing import Any

import click

from kafkalog.cli import choosing
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    log_bytes,
    named_partitions,
    note,
    paint,
    part_of,
    select_partitions,
    tell_unsettled,
)
from kafkalog.cli.remote_places import note_tiered
from kafkalog.cli.tables import Cell, Column, print_table
from kafkalog.toolbox.compare import Compared, CompareReport, Missing, Options, Span, compare_listed

COLUMNS = (
    Column("PARTITION", whole=True),
    Column("DIR", right=True),
    Column("OTHER", right=True),
    Column("DIFFER", right=True),
    Column("FIRST", right=True),
    Column("MISSING IN DIR", right=True),
    Column("MISSING IN OTHER", right=True),
    Column("WHAT"),
)
OPTIONAL = frozenset({"DIFFER", "FIRST", "MISSING IN DIR", "MISSING IN OTHER"})  # left out if no row has a value
EQUAL = "equal"


@click.command("compare", short_help="Compare two log directories record by record.")
@click.argument("log_dir", metavar="DIR", type=LocalPath())
@click.argument("other", type=LocalPath())
@click.argument("partitions", nargs=-1)
@choosing.TOPIC
@click.option(
    "--common",
    is_flag=True,
    help="Compare only offsets that both have: a copy may begin or end elsewhere, or lack partitions.",
)
@click.option("--bytes", "check_bytes", is_flag=True, help="Compare the bytes of the logs too, not only the records.")
@click.option("--skip-damage", is_flag=True, help="Continue after damage, and report what was left out (exit 1).")
@click.option(
    "--show", type=click.IntRange(min=0), default=0, metavar="N",
    help="Show the first N offsets that differ in each partition, and how: key, value, headers, timestamp.",
)  # fmt: skip
@click.option("--all", "also_equal", is_flag=True, help="Show equal partitions too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
# More than eight parameters: they are the options.
def command(
    log_dir: str,
    other: str,
    partitions: tuple[str, ...],
    topics: tuple[str, ...],
    common: bool,
    check_bytes: bool,
    skip_damage: bool,
    show: int,
    also_equal: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Compare the PARTITIONS (topic-0, a topic, or a glob; default: all) of the log directory DIR with those of OTHER.

    OTHER is a copy or a backup of DIR, or a log directory of another broker with replicas. The command changes nothing,
    takes no lock, and works while brokers are running. Records that arrive during the run are not compared.

    For each partition that differs, a line shows the offsets in each directory, how many offsets have a different key,
    value, timestamp or headers, and the first of them. It also counts the records that only one directory has at
    offsets that both have: compaction or damage removed them from the other. A transaction that is aborted in only one
    of the logs is a difference.

    Batches, compression, producer ids, leader epochs and transaction markers are not compared. --bytes compares them
    too, up to the end that both have. Bytes that are equal are not checked; `kafkalog verify` does that. If bytes
    differ, the command needs pyarrow. Exit 1 if something differs or is damaged.
    """
    log_dir, other, names = _places(log_dir, other, (*partitions, *topics))
    here, there = select_partitions(log_dir), select_partitions(other)
    chosen = named_partitions(sorted(here | there), names, f"{log_dir} or {other}")
    folders = [folders[each] for folders in (here, there) for each in chosen if each in folders]
    for place, found in ((log_dir, here), (other, there)):
        note_tiered(place, {each: found[each] for each in chosen if each in found}, "only the disk is compared")
    with Progress(log_bytes(folders), "compared", force=progress) as bar:
        report = compare_listed(
            log_dir, other, sorted(chosen), Options(check_bytes, skip_damage, show), progress=bar.advance
        )
    told = [each for each in report.partitions if not _is_equal(each, common)]
    shown = report.partitions if also_equal else told
    if as_json:
        for each in shown:
            emit_json(_as_json(each, common))
    else:
        _print(shown, common)
    for each in told:
        choosing.tell_lost(each.lost, as_json=as_json)
    _note_topic_ids(report)
    _sum_up(report, len(told), common, as_json)
    code = FINDINGS if told else CLEAN
    for error in report.unsettled:
        code = worse(code, tell_unsettled(error))
    return code


def _places(log_dir: str, other: str, names: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Returns both log directories and the names; if both paths are directories of a partition, its name."""
    parts = [None if names else part_of(path) for path in (log_dir, other)]
    if parts[0] is None and parts[1] is None:
        return log_dir, other, names
    named = {part[1] for part in parts if part is not None}
    if len(named) > 1:
        raise Usage(
            f"found {log_dir} and {other}, expected the same partition in two log directories: "
            f"{' and '.join(sorted(named))} are different"
        )
    paths = [path if part is None else part[0] for path, part in zip((log_dir, other), parts, strict=True)]
    return paths[0], paths[1], tuple(named)


def _is_equal(each: Compared, common: bool) -> bool:
    return each.is_equal_in_common if common else each.is_equal


def _is_of_one(each: Compared) -> bool:
    """Returns whether only one directory has the partition."""
    return (each.here is None or each.there is None) and not each.damage


def _print(shown: list[Compared], common: bool) -> None:
    if not shown:
        return
    rows = [
        (
            each.partition,
            _span(each.here),
            _span(each.there),
            each.differing or "-",
            "-" if each.first_differing is None else each.first_differing,
            _missing(each.missing_here),
            _missing(each.missing_there),
            Cell(*_what(each, common)),
        )
        for each in shown
    ]
    places = [
        place
        for place, column in enumerate(COLUMNS)
        if column.title not in OPTIONAL or any(row[place] != "-" for row in rows)
    ]
    print_table([COLUMNS[place] for place in places], [[row[place] for place in places] for row in rows])
    for each in shown:
        for difference in each.differences:
            emit(f"{each.partition}: offset {difference.offset} differs: {', '.join(difference.fields)}")
        if each.ended_otherwise.transactions:
            count, first = each.ended_otherwise
            emit(
                f"{each.partition}: {counted(count, 'transaction')} aborted in only one of the logs, the first one "
                f"from offset {first} on"
            )
        if each.byte_difference is not None:
            emit(f"{each.partition}: bytes differ: {each.byte_difference}")
        for wrong in each.damage:
            end = "" if each.compared_end is None else f"; compared up to offset {each.compared_end}"
            emit(paint(f"{each.partition}: damaged: {wrong}{end}", "red"))


def _span(span: Span | None) -> str:
    return "-" if span is None else f"{span.start_offset}..{span.end_offset}"


def _missing(missing: Missing) -> str:
    return f"{missing.records} from {missing.first_offset}" if missing.records else "-"


def _what(each: Compared, common: bool) -> tuple[str, str]:
    """Returns the kind of difference in words, and its style."""
    words = []
    if each.damage or each.lost:
        words.append("damaged")
    if _is_of_one(each):
        words.append("only in OTHER" if each.here is None else "only in DIR")
    if each.differing:
        words.append("records differ")
    if each.missing_here.records or each.missing_there.records:
        words.append("records missing")
    if each.ended_otherwise.transactions:
        words.append("transactions ended differently")
    if each.byte_difference is not None:
        words.append("bytes differ")
    if each.here is not None and each.there is not None and not common:
        if each.here.start_offset != each.there.start_offset:
            words.append("starts differ")
        if each.here.end_offset != each.there.end_offset:
            words.append("ends differ")
    if not words:
        return EQUAL, "green"
    return ", ".join(words), "red" if each.damage or each.lost else "yellow"


def _as_json(each: Compared, common: bool) -> dict[str, Any]:
    return {
        "kind": "partition",
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "equal": _is_equal(each, common),
        "here": None if each.here is None else fields(each.here),
        "there": None if each.there is None else fields(each.there),
        "differing": each.differing,
        "firstDiffering": each.first_differing,
        "differences": [fields(difference) for difference in each.differences],
        "missingHere": fields(each.missing_here),
        "missingThere": fields(each.missing_there),
        "endedOtherwise": fields(each.ended_otherwise),
        "topicIds": None if each.topic_ids is None else fields(each.topic_ids),
        "byteDifference": None if each.byte_difference is None else fields(each.byte_difference),
        "damage": [fields(wrong) for wrong in each.damage],
        "comparedEnd": each.compared_end,
    }


def _note_topic_ids(report: CompareReport) -> None:
    known = {each.partition.topic: each.topic_ids for each in report.partitions if each.topic_ids is not None}
    for topic, ids in known.items():
        note(f"note: topic {topic} has another id: {ids.here} in {report.log_dir}, {ids.there} in {report.other}")


def _sum_up(report: CompareReport, different: int, common: bool, as_json: bool) -> None:
    found = [each for each in report.partitions if not (common and _is_of_one(each))]
    counts = {
        "partitions": len(found),
        "equal": len(found) - different,
        "different": different,
        "onlyHere": sum(each.there is None and _is_of_one(each) for each in report.partitions),
        "onlyThere": sum(each.here is None and _is_of_one(each) for each in report.partitions),
        "differing": sum(each.differing for each in found),
        "damaged": sum(bool(each.damage or each.lost) for each in found),
    }
    if as_json:
        emit_json({"kind": "summary", **counts, "unsettled": len(report.unsettled)})
        return
    where = " in the offsets that both have" if common else ""
    are = "is" if len(found) == 1 else "are"
    line = f"{counts['equal']} of {counted(len(found), 'partition')} {are} equal{where}"
    if different:
        line += f", {different} different: {counted(counts['differing'], 'offset')} with other records"
    if counts["onlyHere"] or counts["onlyThere"]:
        line += f", {counted(counts['onlyHere'], 'partition')} only in {os.fspath(report.log_dir)}"
        line += f", {counts['onlyThere']} only in {os.fspath(report.other)}"
    if counts["damaged"]:
        line += f", {counts['damaged']} damaged"
    emit(line)
    if any(each.damage for each in found):
        note("note: --skip-damage continues after damage; `kafkalog verify` reports all of it")
