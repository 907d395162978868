"""`kafkalog report`: a survey of log directories as one HTML file with pictures, or as JSON lines."""

from __future__ import annotations

import logging
import os
from typing import Any

import click

import kafkalog
from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import Progress, counted, emit, emit_json, log_bytes, note
from kafkalog.cli.places import (
    CONFIG,
    PLACES_AND_NAMES,
    SETTINGS,
    check_names,
    log_dirs_at,
    places_and_names,
    topic_settings,
)
from kafkalog.cli.remote_places import both_tiers, note_tiered
from kafkalog.engine.files import OS_FILES, parent_dir
from kafkalog.report.survey import survey
from kafkalog.report.tables import Survey
from kafkalog.toolbox.backup_places import refuse_in_log_dir
from kafkalog.toolbox.folders import folders_of, named_folders
from kafkalog.toolbox.whole_file import WholeFile, refuse_existing

TARGET = "report.html"
PLACES = {"x", "y", "x2", "y2"}  # where a topic is in the treemap


@click.command("report", short_help="Write pictures and tables of log directories as one HTML file.")
@PLACES_AND_NAMES
@click.option(
    "-o", "--output", "target", metavar="FILE", type=LocalPath(), help=f"The file to write.  [default: {TARGET}]"
)
@click.option("--deep", is_flag=True, help="Read all records: keys, exact sums, what compaction would gain, damage.")
@SETTINGS
@CONFIG
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the report's tables as JSON lines instead of a file.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@both_tiers
def command(
    log_dirs: tuple[str, ...],
    target: str | None,
    deep: bool,
    settings: tuple[str, ...],
    broker_file: str | None,
    force: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Write a report of LOG_DIRS, or only of the named PARTITIONS (topic-0, a topic, or a glob), as one HTML file.

    Any browser opens the file, also offline: it asks no other host for anything. It shows topics, partitions, segments,
    rates, codecs, transactions, consumer groups, disks and damage, each as a picture and as a table.

    LOG_DIRS are only read; no lock is taken, and a broker may be running.

    Without --deep the command reads indexes and the headers of batches; of a large directory it reads a part of the
    headers, and the report says so. With --deep it reads all records.

    With --json no file is written, and the package for pages is not needed. Each line is a row of a table, whose name
    is in `kind`; the first line has the facts of the whole.

    The exit code is 1 if damage was found or something cannot be read; the report is written and shows it.
    """
    if as_json and target is not None:
        raise Usage("found --output with --json, expected one of them: --json prints lines and writes no file")
    # The preview of a recovery would log what it does, as if it were done.
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())
    where, asked = places_and_names(log_dirs)
    places = log_dirs_at(where)
    check_names(places, asked)
    known = topic_settings(places, settings, broker_file)
    path = os.path.abspath(target or TARGET)
    if not as_json:
        _check_target(path, force=force)
    passes = 2 if deep else 1
    with Progress(passes * _log_bytes(places, asked), "read", force=progress) as bar:
        found = survey(places, asked, deep=deep, settings=known, progress=bar.advance)
    for place in places:
        note_tiered(place, named_folders(folders_of(place), asked).logs)
    if as_json:
        _print(found)
    else:
        from kafkalog.report.page import html_page  # only this needs the packages for pages

        text = html_page(found, version=kafkalog.__version__).encode()
        with WholeFile(OS_FILES, path, force=force) as file:
            file.write(text)
        emit(f"{target or TARGET}: {_sums(found)}, {_shown.size(len(text))}; open it in a browser")
        if found.facts.get("sampled"):
            note("note: a part of the batch headers was read, and the report says where; --deep reads all records")
    return FINDINGS if len(found.tables["findings"]) else CLEAN


def _check_target(path: str, *, force: bool) -> None:
    """Raises an error, before the reading, for a file that could not be written after it."""
    from kafkalog.engine.format.needs import need_jinja2, need_vl_convert

    need_jinja2()
    need_vl_convert()
    if not OS_FILES.is_dir(parent_dir(path)):
        raise Usage(f"--output {path}: found no directory {parent_dir(path)}, expected an existing one")
    refuse_in_log_dir(path, OS_FILES)
    refuse_existing(OS_FILES, path, force=force)


def _log_bytes(places: list[str], asked: tuple[str, ...]) -> int:
    folders = [folder for place in places for folder in named_folders(folders_of(place), asked).logs.values()]
    return log_bytes(folders)


def _sums(found: Survey) -> str:
    topics, partitions = len(found.tables["topics"]), len(found.tables["partitions"])
    odd = found.tables["odd"].columns["severity"]
    said = [counted(odd.count(severity), severity) for severity in ("error", "warning", "note") if severity in odd]
    return ", ".join([counted(topics, "topic"), counted(partitions, "partition"), *said])


def _print(found: Survey) -> None:
    facts = dict(found.facts)
    shutdowns = facts.pop("cleanShutdown", {})
    facts["cleanShutdown"] = [{"logDir": log_dir, "clean": clean} for log_dir, clean in shutdowns.items()]
    emit_json({"kind": "facts", "logDirs": found.log_dirs, "nowMs": found.now_ms, "deep": found.deep, **facts})
    for name, table in found.tables.items():
        for row in table.rows():
            emit_json({"kind": name, **_renamed(row)})


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without places in a picture, and without a column `kind`, because each line has that; `du --json`
    names it `name` too.  A row about no topic or no partition has no such name."""
    missing = {name for name in ("topic", "partition") if name in row and row[name] is None} | PLACES
    return {"name" if name == "kind" else name: value for name, value in row.items() if name not in missing}
