"""Commands on a terminal that is one (a pty): tables as wide as it is, colours as it takes them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from rich.cells import cell_len

import kafkalog

SGR = re.compile(r"\x1b\[[0-9;]*m")
LIMIT_S = 120.0  # for one command
# The terminal becomes the session's, which gets its signals.
ON_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from kafkalog.cli.app import run
run()
"""
TABLES = ("topics", "describe", "du", "checkpoint")


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("terminal") / "logs"
    with kafkalog.open(root) as store:
        for name in ("orders", "invoices-and-reminders-of-all-customers-everywhere-on-earth"):
            topic = store.create_topic(name, 3)
            for partition in range(3):
                topic.append_many([b"x" * 100] * 10, partition=partition)
    log = root / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    return root


class Terminal:
    """A command whose standard streams are a terminal of `width` columns, which sends Ctrl-C."""

    def __init__(self, width: int, *argv: object, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *map(str, argv)],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**inherited, "TERM": "xterm-256color", **environ},
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.came = b""

    def __enter__(self) -> Terminal:
        self._late = threading.Timer(LIMIT_S, self.process.kill)  # a hang is a failure
        self._late.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._late.cancel()
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def read(self, until: bytes | None = None) -> str:
        """The output since the last read: up to a pattern, or to the end."""
        found = None if until is None else re.search(until, self.came)
        while found is None:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # Linux: the other end is closed
                piece = b""
            if not piece:
                assert until is None, (until, self.came)
                break
            self.came += piece
            found = None if until is None else re.search(until, self.came)
        end = len(self.came) if found is None else found.end()
        told, self.came = self.came[:end], self.came[end:]
        return told.decode().replace("\r\n", "\n")

    def interrupt(self) -> None:
        """Types Ctrl-C."""
        os.write(self._ours, b"\x03")


def on_terminal(width: int, *argv: object, **environ: str) -> tuple[int, str]:
    """(exit code, all that came) of a command on a terminal of `width` columns."""
    with Terminal(width, *argv, **environ) as terminal:
        came = terminal.read()
        return terminal.process.wait(), came


def table_of(out: str) -> list[str]:
    """The lines of tables: without paths and sentences, which the terminal wraps."""
    return [line for line in SGR.sub("", out).split("\n") if not re.search(r"/|: |, ", line) or "no room" in line]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("command", TABLES)
def test_tables_are_as_wide_as_the_terminal(log_dir: Path, command: str, width: int) -> None:
    code, out = on_terminal(width, command, log_dir)
    assert code == (command == "checkpoint")  # it sees that the end is missing
    assert "\x1b[1m" in out
    assert max(map(len, table_of(out))) <= width
    assert "orders" in out


def test_what_needs_action_is_red_and_the_table_of_losses_fits(log_dir: Path) -> None:
    code, out = on_terminal(60, "verify", log_dir, "orders")
    assert code == 1
    assert "\x1b[31morders\x1b[0m" in out
    assert max(map(len, table_of(out))) <= 60
    assert re.search(r"next: kafkalog salvage .* NEW_DIR orders-0", out)


def test_columns_says_another_width(log_dir: Path) -> None:
    _, out = on_terminal(200, "topics", log_dir, COLUMNS="60")
    assert max(map(len, table_of(out))) <= 60


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_none_are_wanted(log_dir: Path, environ: dict[str, str]) -> None:
    for argv in (["topics", log_dir], ["verify", log_dir, "orders"]):
        _, out = on_terminal(80, *argv, **environ)
        assert "\x1b" not in out


def test_a_pipe_beside_it_is_plain(log_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kafkalog", "topics", log_dir], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "40"},
    )  # fmt: skip
    assert "\x1b" not in done.stdout
    assert re.search(r"  ~\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  ", done.stdout)


def test_help_of_commands_with_times_has_utc(log_dir: Path) -> None:
    _, out = on_terminal(120, "describe", log_dir, "orders", "--utc")
    assert re.search(r"\dZ\n", out)
    assert " ago" not in out


# --- tail ------------------------------------------------------------------------------------------------------


def test_tail_is_cut_coloured_and_told_a_rate(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topics = [store.create_topic(name) for name in ("orders", "invoices")]
        for topic in topics:
            topic.append(b"value " + b"x" * 500, key=b"customer-7")
        with Terminal(80, "tail", tmp_path) as terminal:
            colours = set()
            for _ in topics:
                line = terminal.read(rb"\n").strip("\n")
                place = re.search(r"\x1b\[(3[1-6])m(orders|invoices)-0@0\x1b\[0m customer-7: value x+\u2026$", line)
                assert place is not None, line
                colours.add((place[1], place[2]))
                assert len(SGR.sub("", line)) == 80
            assert len({colour for colour, _ in colours}) == len({topic for _, topic in colours}) == 2
            terminal.read(rb"0 records/s")
            topics[0].append(b"behind")
            came = terminal.read(rb"behind\r\n")
            assert "\r\x1b[K" in came  # the record replaces the rate
            assert re.search(r"(?m)^\S* ?.*orders-0@1", SGR.sub("", came.replace("\r\x1b[K", "\n")))
            rate = re.search(r"(\d+) records/s", terminal.read(rb"\d+ records/s"))
            assert rate is not None
            assert int(rate[1]) <= 2
            terminal.interrupt()
            assert terminal.read().replace("\x1b[K", "").replace("^C", "").split() == ["kafkalog:", "interrupted"]
            assert terminal.process.wait() == 130


@pytest.mark.parametrize("width", [40, 60, 200])
def test_tail_fits(tmp_path: Path, width: int) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders").append_many([b"x" * 500, b"a\x1b[2Jb\tc\nd", None, "\u65e5\u672c".encode() * 99])
        code, out = on_terminal(width, "tail", tmp_path, "--no-follow")
    assert code == 0
    lines = SGR.sub("", out).splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert max(map(cell_len, lines)) <= width


def test_tail_without_colours(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders").append(b"x")
        assert "\x1b" not in on_terminal(80, "tail", tmp_path, "--no-follow", NO_COLOR="1")[1]
