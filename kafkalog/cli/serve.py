"""`kafkalog serve`: serves a store to clients of Apache Kafka, until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from kafkalog.cli.app import CLEAN, LocalPath, Usage
from kafkalog.cli.console import emit, note
from kafkalog.cli.places import CONFIG, TAKE_OVER
from kafkalog.config import BrokerLogConfig, ProducerStateManagerConfig
from kafkalog.engine.host.settings import ManagerSettings

if TYPE_CHECKING:
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
@click.option("--allow-anonymous", is_flag=True, help="Serve other machines even without authentication.")
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
    with _told_to_stop() as stopped:
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
            settings=_manager_settings(given),
            metrics=registry,
            take_over=take_over,
            broker_config=broker_file if take_over else None,
        )
        with store, store.serve(allow_anonymous=allow_anonymous, **given) as server:
            if registry is not None and metrics_address is not None:
                note(f"metrics at http://{_serve_metrics(registry, *metrics_address)}/metrics")
            emit(f"serving {', '.join(log_dirs)} at {server.bootstrap_servers}")
            sys.stdout.flush()
            stopped.wait()
            note("stopping")
    return CLEAN


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
    from kafkalog.server.server import listeners_of, protocol_of
    from kafkalog.server.settings import is_known

    given: dict[str, Any] = {}
    for key, value in {} if broker_file is None else broker_properties(broker_file).items():
        if is_known(key):
            given[key] = value
        else:
            note(f"note: {broker_file}: {key} is no setting of a broker, and is ignored")
    given.update(_parsed(settings))
    if users:
        given["users"] = users
    if users_file is not None:
        given["users.file"] = users_file
    if tls is not None:
        given.update({"ssl.keystore.type": "PEM", "ssl.keystore.location": tls})
    protocol = protocol_of(given)
    if listen or ("listeners" not in given and protocol != "PLAINTEXT"):
        given["listeners"] = listeners_of(listen or 9092, protocol)
    if advertise is not None:
        given["advertised.listeners"] = listeners_of(advertise, protocol)
    return given


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


def _manager_settings(given: Mapping[str, Any]) -> ManagerSettings:
    config = BrokerLogConfig.from_props({key: value for key, value in given.items() if key not in STORES_OWN})
    made = ManagerSettings.from_broker(config)
    # The server asks the coordinator of transactions itself.
    known = ProducerStateManagerConfig(made.producers.config.producer_id_expiration_ms, False)
    return made._replace(producers=made.producers._replace(config=known))


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


@contextlib.contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and SIGINT set.  A second signal has its usual effect."""
    event = threading.Event()
    before: dict[int, Any] = {}

    def stop(number: int, frame: object) -> None:
        event.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, stop)
    try:
        yield event
    finally:
        for each, handler in before.items():
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
    server, _ = prometheus.start_http_server(port, host, own)
    return f"{host}:{server.server_port}"
