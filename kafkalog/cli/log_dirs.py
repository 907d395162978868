"""`kafkalog log-dirs`: what kafka-log-dirs prints, of directories instead of a broker."""

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


@click.command("log-dirs", short_help="Print partitions and sizes as kafka-log-dirs does.")
@PLACES_AND_NAMES
@click.option("--topic-list", metavar="TOPIC,TOPIC...", help="Only these topics, as kafka-log-dirs has it.")
@click.option("--json", "as_json", is_flag=True, help="For symmetry: the output is JSON in any case.")
@click.option("--describe", is_flag=True, hidden=True)
@both_tiers
def command(log_dirs: tuple[str, ...], topic_list: str | None, as_json: bool, describe: bool) -> int:
    """Print the partitions of LOG_DIRS, or only the named PARTITIONS (topic-0, a topic, or a glob) in them, their
    sizes, and the lag of copies that are moving, as one JSON object: the one that kafka-log-dirs prints, without a
    broker.

    Name all directories of a broker together; its id comes from meta.properties (-1 where there is none).  Reads only,
    takes no lock, works beside a running broker.  A directory that cannot be read has an "error" and makes exit code 3;
    where none of LOG_DIRS is a directory it is a mistake, exit 2.
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
        note("note: broker -1 stands for directories without meta.properties")
    return IO if problems else CLEAN


def _places(paths: Sequence[str]) -> list[str]:
    """All that were named, each once: one that is gone may be a failed disk, which kafka-log-dirs shows too.
    Usage, IllegalArgumentException where there is no other."""
    mistakes: list[Exception] = []
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.abspath(path), path)
        try:
            log_dirs_at([path])
        except (Usage, IllegalArgumentException) as error:
            mistakes.append(error)
        except OSError:
            continue  # told with its directory
    if len(mistakes) == len(paths):
        raise mistakes[0]
    return list(found.values())
