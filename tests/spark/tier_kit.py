"""A store with a remote tier, for Spark's tests: the same log as a local directory, as a bucket, and as both."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import kafkalog
from kafkalog.remote import RemoteStorage

KEY, SECRET = "AKIAKEYOFTHETESTS", "hunter2/secret+of=tests"
TIERED = {
    "internal.segment.bytes": "20000",
    "index.interval.bytes": "500",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
RECORDS = 1200


class Shop(NamedTuple):
    """The log before anything was copied, the directory with the rest of it, and the directory that continues."""

    full: Path
    part: Path
    url: str
    storage: RemoteStorage


class Server:
    """moto's S3, by HTTP."""

    def __init__(self, server: Any) -> None:
        self._server = server
        host, port = server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.options = {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}
        self.requests: list[str] = []

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def settle(self) -> None:
        """Waits until what was asked ahead has been answered."""
        seen = -1
        while seen != len(self.requests):
            seen = len(self.requests)
            time.sleep(0.3)

    @property
    def lists(self) -> int:
        return sum("list-type=2" in line for line in self.requests)

    @property
    def gets(self) -> list[str]:
        """The keys of the requested objects."""
        return [line.split()[1] for line in self.requests if line.startswith("GET ") and "list-type" not in line]


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _Lines(logging.Handler):
    def __init__(self, to: list[str]) -> None:
        super().__init__()
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        _, found, line = record.getMessage().partition('"')
        if found:
            self._to.append(_COLOURS.sub("", line.partition(chr(34))[0]))


@contextmanager
def s3_server() -> Iterator[Server]:
    """On a port that is free, with an empty bucket `bucket`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    made = Server(server)
    log = logging.getLogger("werkzeug")
    level, handler = log.level, _Lines(made.requests)
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        made.client().create_bucket(Bucket="bucket")
        yield made
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        server.stop()


def make_full(root: Path) -> Path:
    """Two partitions of a topic, with a transaction that was aborted and one that was not."""
    with kafkalog.open(root) as store:
        topic = store.create_topic("orders", 2, config=TIERED | {"remote.storage.enable": "false"})
        for n in range(RECORDS):
            topic.append(
                key=b"k%d" % (n % 50), value=b"%06d" % n + b"x" * 80, partition=0, timestamp=1_700_000_000_000 + n
            )
            if n == RECORDS // 2:
                try:
                    with store.transaction("t") as txn:
                        for m in range(20):
                            txn.append("orders", b"never %d" % m, partition=0)
                        raise KeyError
                except KeyError:
                    pass
            if n == RECORDS // 2 + 100:
                with store.transaction("t") as txn:
                    txn.append("orders", b"good", partition=0)
        for n in range(30):
            topic.append(value=b"other %d" % n, partition=1)
        topic.append(value=b"last", partition=0)
    return root


def tiered(full: Path, part: Path, storage: RemoteStorage) -> Shop:
    """The same directory once its closed segments are in the tier alone."""
    shutil.copytree(full, part)
    with kafkalog.open(part, remote=storage) as store:
        store.alter_topic("orders", {"remote.storage.enable": "true"})
        store.remote_log_manager.run_once()  # waits for copies that the background has begun
        store.manager.cleanup_logs()
    assert len(list((part / "orders-0").glob("*.log"))) < len(list((full / "orders-0").glob("*.log"))) // 2
    return Shop(full, part, storage.url, storage)
