"""`kafkalog du`: shows what uses the space of log directories."""

from __future__ import annotations

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.console import counted, emit, emit_json, looked_at, tell_findings
from kafkalog.cli.places import PLACES_AND_NAMES, check_names, log_dirs_at, places_and_names
from kafkalog.cli.remote_places import both_tiers
from kafkalog.cli.tables import print_table
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.toolbox.disk_usage import DIRECTORY, Sum, disk_usage

HEADERS = ("FILES", "SIZE", "ON DISK")
NAMES = {DIRECTORY: "(log directory)", "folders": "directories", "foreign": "other files"}  # name in JSON -> in tables


@click.command("du", short_help="Show what uses disk space.")
@PLACES_AND_NAMES
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: topics, kinds of file, ages and a summary.")
@both_tiers
def command(log_dirs: tuple[str, ...], as_json: bool) -> int:
    """Show what uses the space of LOG_DIRS, or only of the named PARTITIONS (topic-0, a topic, or a glob).

    Three tables show the space by topic, by kind of file, and for logs by the age of their segments. The command
    changes nothing, takes no lock, and works while a broker is running.

    SIZE is the length of the files. ON DISK is what the file system has allocated, as `du -B1` counts it; preallocated
    indexes are long but use little of it. The row (log directory) has what belongs to no topic. Kinds include files
    that will be deleted (.deleted, -delete) and files left by a crash (.cleaned, .swap). The age of a segment is the
    time since its file was last written.

    A directory that cannot be read is reported and not counted (exit 1).
    """
    where, asked = places_and_names(log_dirs)
    places = log_dirs_at(where)
    check_names(places, asked)
    with looked_at(places) as bar:
        usage = disk_usage(places, SYSTEM_CLOCK.milliseconds(), asked, progress=bar.advance)
    tell_findings(usage.unread, as_json=as_json)
    code = FINDINGS if usage.unread else CLEAN
    tables = (("topic", usage.by_topic), ("fileKind", usage.by_kind), ("age", usage.by_age))
    if as_json:
        for kind, sums in tables:
            for name, each in sums.items():
                emit_json({"kind": kind, "name": name, **_json(each)})
        emit_json({"kind": "summary", **_json(usage.total), "preallocated": _json(usage.preallocated)})
        return code
    for title, (_, sums) in zip(("TOPIC", "KIND", "LOGS BY AGE"), tables, strict=True):
        if sums:
            print_table((title, *HEADERS), [(NAMES.get(name, name), *_cells(each)) for name, each in sums.items()])
            emit("")
    emit(
        f"in all: {counted(usage.total.files, 'file')} and directories, {_shown.size(usage.total.size)}, on disk "
        f"{_shown.size(usage.total.allocated)}"
    )
    spare = usage.preallocated
    emit(f"of which preallocated and unused: {_shown.size(spare.size)}, on disk {_shown.size(spare.allocated)}")
    return code


def _cells(each: Sum) -> tuple[object, ...]:
    return each.files, _shown.size(each.size), _shown.size(each.allocated)


def _json(each: Sum) -> dict[str, int]:
    return {"files": each.files, "size": each.size, "allocated": each.allocated}
