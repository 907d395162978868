"""`kafkalog serve`: serves a store to clients of Apache Kafka, until it is told to stop."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import click

from kafkalog.cli.app import CLEAN, LocalPath, Usage
from kafkalog.cli.console import emit, note
from kafkalog.cli.places import CONFIG, TAKE_OVER
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.host.log_dirs import is_of_cluster
from kafkalog.errors import KafkaException

if TYPE_CHECKING:
    from kafkalog.engine.host.settings import ManagerSettings
    from kafkalog.metrics.registry import MetricsRegistry

FILES_MAX = 1 << 18
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
STORES_OWN = ("log.dir", "log.dirs")


@click.command("serve", short_help="Serve a store to clients of Apache Kafka: no JVM, one node.")
@click.argument("log_dirs", nargs=-1, required=True, type=LocalPath())
@click.option(
    "--listen",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="Where to listen; port 0 takes a free one.  Repeatable.  [default: 127.0.0.1:9092]",
)
@click.option("--advertise", metavar="[NAME://]HOST:PORT", help="The address that clients are told, if it differs.")
@click.option(
    "-X", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of a broker: num.partitions=3.  Repeatable."
)
@CONFIG
@click.option(
    "--durability",
    type=click.Choice(["os", "fsync"]),
    default="os",
    help="When a write is on the disk: when the system decides, as in Kafka, or before it is acknowledged.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME:PASSWORD",
    help="A user who may log in, by PLAIN or SCRAM.  Repeatable; other users of the machine can see it.",
)
@click.option("--users-file", type=LocalPath(), metavar="FILE", help="A file with a line NAME:PASSWORD for each user.")
@click.option("--tls", type=LocalPath(), metavar="FILE", help="The server's key and certificates as PEM: TLS.")
@click.option("--allow-anonymous", is_flag=True, help="Let everybody in: other machines too, or beside users.")
@click.option("--metrics", "metrics_at", metavar="HOST:PORT", help="Serve metrics for Prometheus over HTTP.")
@TAKE_OVER
@click.option("-v", "--verbose", count=True, help="Log what happens; twice: each request.")
# More than eight parameters: the options of a command, each once.
def command(
    log_dirs: tuple[str, ...],
    listen: tuple[str, ...],
    advertise: str | None,
    settings: tuple[str, ...],
    broker_file: str | None,
    durability: str,
    users: tuple[str, ...],
    users_file: str | None,
    tls: str | None,
    allow_anonymous: bool,
    metrics_at: str | None,
    take_over: bool,
    verbose: int,
) -> int:
    """Serve the topics, groups and transactions in LOG_DIRS to any client of Apache Kafka.

    The directories are created if they are missing. The server is one node of a cluster without replicas. It listens on
    127.0.0.1:9092 unless --listen or the setting `listeners` says otherwise. An address that other machines can reach
    needs authentication, or --allow-anonymous. With users, clients use SASL (PLAIN or SCRAM); with --tls, TLS. So
    `--user alice:secret --tls server.pem` is a listener of the protocol SASL_SSL.

    Settings are those of Kafka's server.properties, by -X or from --config FILE. Topics keep their records for seven
    days unless their settings say otherwise, as in Kafka.

    The command prints the address when clients can connect, and serves until it gets SIGTERM or Ctrl-C. Then it answers
    what is in flight and closes the logs. A second signal ends it at once.
    """
    _log_to_stderr(verbose)
    given = _settings(listen, advertise, settings, broker_file, users, users_file, tls)
    _raise_files_limit()
    with _StopSignals() as stopped:
        from kafkalog.server.server import refuse_open_listeners
        from kafkalog.server.settings import ServerSettings
        from kafkalog.store import open_store

        parsed = ServerSettings.from_props(given)  # a mistake is told before anything is opened
        refuse_open_listeners(parsed.endpoints, parsed, allow_anonymous=allow_anonymous)
        metrics_address = None if metrics_at is None else _address(metrics_at)
        registry = None if metrics_address is None else _registry()
        store = open_store(
            list(log_dirs),
            durability="fsync" if durability == "fsync" else "os",
            settings=_log_settings(given, log_dirs, broker_file),
            metrics=registry,
            take_over=take_over,
            broker_config=broker_file if take_over else None,
        )
        with store, store.serve(allow_anonymous=allow_anonymous, **given) as server:
            if registry is not None and metrics_address is not None:
                note(f"metrics at http://{_serve_metrics(registry, *metrics_address)}/metrics")
            emit(f"serving {', '.join(log_dirs)} at {server.bootstrap_servers}")
            _collect_seldom()
            sys.stdout.flush()
            stopped.wait()
            note("stopping")
    return CLEAN


def _collect_seldom() -> None:
    """Lets the garbage collector look seldom.  A request leaves no cycle of references, and those that wait would be
    looked at again and again: this took a quarter of the time of an idle consumer's fetch."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _settings(
    listen: tuple[str, ...],
    advertise: str | None,
    settings: tuple[str, ...],
    broker_file: str | None,
    users: tuple[str, ...] = (),
    users_file: str | None = None,
    tls: str | None = None,
) -> dict[str, Any]:
    """Returns the settings by Kafka's names; options prevail over the file."""
    from kafkalog._face.topic_settings import broker_properties
    from kafkalog.server.server import TLS_KEYS, named_settings

    given: dict[str, Any] = {}
    if broker_file is not None:
        given.update(_of_file(broker_file, broker_properties(broker_file)))
    addresses = ("listeners", "advertised.listeners")  # that of the file need not lead to the address here
    for option, keys in ((listen, addresses), (advertise, ("advertised.listeners",)), (tls, TLS_KEYS)):
        for key in keys if option else ():
            given.pop(key, None)
    given.update(_parsed(settings))
    words = {"users": users or None, "users.file": users_file, "tls": tls, "advertise": advertise}
    given.update({word: value for word, value in words.items() if value is not None})
    return named_settings(given, listen or None)


def _of_file(path: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings of a file that have an effect, and tells the others."""
    from kafkalog.server.settings import hint_for, is_known

    known = {key: value for key, value in found.items() if is_known(key)}
    if found and not known:
        raise Usage(f"{path}: has no setting of a broker, expected a server.properties")
    for key in found:
        if key not in known:
            hint = hint_for(key)
            note(f"note: {path}: {key} is no setting of a broker, and is ignored" + (f" ({hint})" if hint else ""))
        elif key in STORES_OWN:
            note(f"note: {path}: {key} is ignored: the directories are arguments")
            del known[key]
    return known


def _parsed(texts: tuple[str, ...]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise Usage(f"-X {text}: expected KEY=VALUE, such as -X num.partitions=3")
        if key.strip() in STORES_OWN:
            raise Usage(f"-X {text}: name the directories as arguments")
        found[key.strip()] = value
    return found


def _log_settings(given: Mapping[str, Any], log_dirs: Iterable[str], broker_file: str | None) -> ManagerSettings:
    """Returns the settings of the logs.  Kafka's default retention is in effect, unless the directories are a broker's,
    whose own retention is not known without its file."""
    from kafkalog.server.settings import manager_settings

    if broker_file is not None or not any(is_of_cluster(each, OS_FILES) for each in log_dirs):
        given = {"log.retention.hours": "168", **given}
    return manager_settings(given)


def _log_to_stderr(verbose: int) -> None:
    logger = logging.getLogger("kafkalog")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(LEVELS[min(verbose, len(LEVELS) - 1)])


def _raise_files_limit() -> None:
    """Allows as many open files as the system lets this process have: each connection needs one."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _StopSignals:
    """SIGTERM and SIGINT while a server runs: the first ends the wait, a second has its usual effect.

    No lock is waited for: a signal that comes just before such a wait would not end it.
    """

    def __enter__(self) -> Self:
        self._told, self._tells = socket.socketpair()
        self._tells.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._tells.fileno())
        self._before = {each: signal.signal(each, self._restore) for each in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        signal.set_wakeup_fd(self._fd_before)
        self._told.close()
        self._tells.close()

    def wait(self) -> None:
        """Waits for the first signal."""
        while self._told.recv(1)[0] not in self._before:  # a byte is the number of a signal
            pass

    def _restore(self, *signalled: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)


def _registry() -> MetricsRegistry:
    from kafkalog.metrics import MetricsRegistry

    return MetricsRegistry()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise Usage(f"--metrics {text}: expected HOST:PORT, such as 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


def _serve_metrics(registry: MetricsRegistry, host: str, port: int) -> str:
    """Starts an HTTP server for Prometheus in a thread.  Returns its address."""
    from kafkalog.engine.format.needs import need_prometheus_client
    from kafkalog.metrics import PrometheusCollector

    prometheus = need_prometheus_client()
    own = prometheus.CollectorRegistry()
    own.register(PrometheusCollector(registry))
    try:
        server, _ = prometheus.start_http_server(port, host, own)
    except OSError as error:
        raise KafkaException(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}", hint="port 0 takes a free one"
        ) from None
    return f"{host}:{server.server_port}"
