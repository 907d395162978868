"""`kafkalog ui`: serves the live pages of log directories to a browser on this machine."""

from __future__ import annotations

import errno
import re
import sys
import webbrowser
from typing import TYPE_CHECKING, Any

import click

from kafkalog.cli.app import CLEAN, LocalPath, Number, Usage
from kafkalog.cli.console import emit, note
from kafkalog.cli.places import PLACES_AND_NAMES, check_names, log_dirs_at, places_and_names
from kafkalog.cli.remote_places import both_tiers
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.format.needs import need_pyarrow, need_starlette, need_uvicorn, need_vl_convert
from kafkalog.engine.host.log_dirs import list_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.ui.schemas import Schemas


@click.command("ui", short_help="Serve live pages to a browser: the report, and a browser of records.")
@PLACES_AND_NAMES
@click.option(
    "--port", type=Number(min=0, max=65535), default=0, metavar="PORT", help="The port.  [default: a free one]"
)
@click.option("--listen", metavar="HOST[:PORT]", help="Listen on another address than 127.0.0.1.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="TOPIC|ID=FILE",
    help="Decode values of a topic, or of a schema id, by FILE: .avsc, .json, .proto or .desc[#MESSAGE].  Repeatable.",
)
@click.option(
    "--registry-dir", type=LocalPath(), metavar="DIR", help="Decode by the schemas in DIR: 7.avsc for schema id 7."
)
@both_tiers
def command(
    log_dirs: tuple[str, ...],
    port: int,
    listen: str | None,
    opens: bool,
    schemas: tuple[str, ...],
    registry_dir: str | None,
) -> int:
    """Serve pages that show LOG_DIRS, or PARTITIONS of them, and refresh as they grow.

    The pages are those of `kafkalog report`, and a browser of records: by partition, offset, time, key, header and
    pattern, decoded by schemas, with each record's place in its file, byte by byte.

    The command prints an address with a random token, and serves until it is interrupted. Only who has the address can
    read. The command changes nothing, takes no lock, and works while a broker is running. With --remote the pages show
    both tiers, and the address of a tier shows the tier alone.

    Without --listen only this machine can reach the page. With --listen others can; the connection is not encrypted.
    """
    need_starlette()
    need_uvicorn()
    need_vl_convert()
    need_pyarrow()
    from kafkalog.ui import page, server

    host, number = _place(listen, port)
    places, names = places_and_names(log_dirs)
    found = log_dirs_at(places)
    check_names(found, names)
    given = _schemas(schemas, registry_dir)
    _tell_unknown_topics(given.of_topics, found)
    token = server.new_token()
    empty = page.empty(found, SYSTEM_CLOCK.milliseconds())
    try:
        at = server.listening(host, number)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Usage(
            f"port {number} of {host} is in use, expected a free one: choose another with --port, or leave it out"
        ) from None
    number = at.getsockname()[1]
    where = server.address(host, number, token)
    if not server.is_loopback(host):
        note(
            f"warning: other machines can reach {host}: anybody who learns the address can read all records, and the "
            "connection is not encrypted"
        )

    def ready() -> None:
        emit(where)
        sys.stdout.flush()
        note("serving until interrupted with Ctrl-C")
        if opens:
            webbrowser.open(where)

    live = server.Live(found, page.making(found, names), page.files(), given, empty)
    try:
        server.serve(server.guarded(live, token, number, host), at, ready)
    except KeyboardInterrupt:
        return CLEAN
    finally:
        live.watch.close()
    return CLEAN


def _place(listen: str | None, port: int) -> tuple[str, int]:
    """Returns the host and the port to listen on."""
    if listen is None:
        return "127.0.0.1", port
    found: Any = re.fullmatch(r"(\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(:(?P<port>[0-9]{1,5}))?", listen)
    if found is None or (found["port"] and int(found["port"]) > 65535):
        raise Usage(f"--listen {listen!r}: expected HOST or HOST:PORT, such as 192.168.1.5:8080 or [::1]:8080")
    if found["port"] and port:
        raise Usage("found a port in --listen and in --port, expected it once")
    return found["v6"] or found["host"], int(found["port"] or port)


def _tell_unknown_topics(topics: Iterable[str], found: Sequence[str]) -> None:
    """Says for which topics a schema was given that no directory has; they may still come."""
    known = {partition.topic for log_dir in found for partition in list_partitions(log_dir)}
    for topic in sorted(set(topics) - known):
        note(f"note: no topic {topic!r} in {', '.join(found)} yet: its --schema is not used")


def _schemas(texts: Sequence[str], folder: str | None) -> Schemas:
    from kafkalog.ui.schemas import Schemas

    made = Schemas()
    if folder is not None:
        made.give_folder(folder)
    made.give(texts)
    return made
