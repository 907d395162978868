"""`kafkalog log-dirs`: prints the JSON of kafka-log-dirs for directories instead of a broker."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kafkalog.cli.app import CLEAN, IO, Usage
from kafkalog.cli.console import emit_json, looked_at, note
from kafkalog.cli.places import PLACES_AND_NAMES, check_names, log_dirs_at, places_and_names
from kafkalog.cli.remote_places import both_tiers
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox import log_dirs as toolbox


@click.command("log-dirs", short_help="Print partitions and sizes in the format of kafka-log-dirs.")
@PLACES_AND_NAMES
@click.option("--topic-list", metavar="TOPIC,TOPIC...", help="Only these topics, as for kafka-log-dirs.")
@click.option("--json", "as_json", is_flag=True, help="Accepted for symmetry: the output is always JSON.")
@click.option("--describe", is_flag=True, hidden=True)
@both_tiers
def command(log_dirs: tuple[str, ...], topic_list: str | None, as_json: bool, describe: bool) -> int:
    """Print the partitions of LOG_DIRS with their sizes as the JSON object of kafka-log-dirs, without a broker.

    PARTITIONS (topic-0, a topic, or a glob) limits the output. It includes the lag of copies that are moving. Name all
    log directories of a broker; its id is that in meta.properties, or -1 if there is none.

    The command changes nothing, takes no lock, and works while a broker is running. A directory that cannot be read
    gets an "error", and the exit code is 3. If none of LOG_DIRS is a directory, the exit code is 2.
    """
    topics = [topic for topic in (topic_list or "").split(",") if topic]
    where, asked = places_and_names(log_dirs)
    places = _places(where)
    check_names([place for place in places if OS_FILES.is_dir(place)], asked)
    with looked_at(places) as bar:
        found, problems = toolbox.log_dirs(places, topics, asked, progress=bar.advance)
    emit_json(found)
    for text in problems:
        note(f"kafkalog: {text}")
    if any(broker["broker"] == toolbox.UNKNOWN_BROKER for broker in found["brokers"]):
        note("note: broker -1 means directories without meta.properties")
    return IO if problems else CLEAN


def _places(paths: Sequence[str]) -> list[str]:
    """Returns all directories that were named, each once. One that does not exist may be a failed disk, which
    kafka-log-dirs shows too. Raises Usage or IllegalArgumentException if none exists."""
    mistakes: list[Exception] = []
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.abspath(path), path)
        try:
            log_dirs_at([path])
        except (Usage, IllegalArgumentException) as error:
            mistakes.append(error)
        except OSError:
            continue  # reported with its directory
    if len(mistakes) == len(paths):
        raise mistakes[0]
    return list(found.values())
