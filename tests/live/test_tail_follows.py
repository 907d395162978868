"""`kafkalog tail` next to a store that writes: new records, partitions that come and go, a reader that goes away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import kafkalog

LIMIT_S = 60.0  # for all of one run


@contextmanager
def tail(log_dir: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    line = [sys.executable, "-m", "kafkalog", "tail", str(log_dir), "--json", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        late = threading.Timer(LIMIT_S, process.kill)  # a hang is a failure
        late.start()
        try:
            yield process, process.stdout
        finally:
            late.cancel()
            process.kill()


def read(out: IO[bytes]) -> tuple[str, int, str]:
    line = out.readline()
    assert line, "it printed no more"
    found = json.loads(line)
    return found["topic"], found["offset"], found["value"]


def test_partitions_come_and_go(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        orders = store.create_topic("orders")
        orders.append(b"before")
        with tail(tmp_path) as (process, out):
            assert read(out) == ("orders", 0, "before")
            orders.append(b"behind")
            assert read(out) == ("orders", 1, "behind")
            store.create_topic("invoices").append(b"of a new topic")  # from its beginning
            assert read(out) == ("invoices", 0, "of a new topic")
            store.delete_topic("orders")
            assert process.stderr is not None
            assert process.stderr.readline() == b"note: orders-0 no longer exists\n"
            store.topic("invoices").append(b"still there")
            assert read(out) == ("invoices", 1, "still there")


def test_a_topic_that_is_made_again_is_read_from_its_start(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("other")
        store.create_topic("orders").append(b"first life")
        with tail(tmp_path) as (process, out):
            assert read(out) == ("orders", 0, "first life")
            store.delete_topic("orders")
            assert process.stderr is not None
            assert process.stderr.readline() == b"note: orders-0 no longer exists\n"
            store.create_topic("orders").append(b"second life")
            assert read(out) == ("orders", 0, "second life")


def test_all_that_is_named_goes_and_comes_again(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders").append(b"first life")
        with tail(tmp_path, "orders") as (process, out):
            assert read(out) == ("orders", 0, "first life")
            store.delete_topic("orders")
            assert process.stderr is not None
            assert process.stderr.readline() == b"note: orders-0 no longer exists\n"
            time.sleep(2.5)  # it looks for new partitions, and finds nothing at all
            assert process.poll() is None
            store.create_topic("orders").append(b"second life")
            assert read(out) == ("orders", 0, "second life")


def test_whoever_reads_goes_away(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        orders = store.create_topic("orders")
        orders.append(b"first")
        with tail(tmp_path) as (process, out):
            assert read(out) == ("orders", 0, "first")
            out.close()
            orders.append(b"nobody reads this")
            assert process.wait(60) == 141
            assert process.stderr is not None
            assert process.stderr.read() == b""


def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders").append(b"first")
        with tail(tmp_path) as (process, out):
            assert read(out) == ("orders", 0, "first")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr is not None
            assert process.stderr.read().strip() == b"kafkalog: interrupted"
