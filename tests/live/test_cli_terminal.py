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
from pathlib import Path

import pytest

import kafkalog

SGR = re.compile(r"\x1b\[[0-9;]*m")
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


def on_terminal(width: int, *argv: object, **environ: str) -> tuple[int, str]:
    """(exit code, all that came) of a command whose standard streams are a terminal of `width` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "kafkalog", *map(str, argv)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**inherited, "TERM": "xterm-256color", **environ},
    )  # fmt: skip
    os.close(theirs)
    came = b""
    try:
        while piece := os.read(ours, 65536):
            came += piece
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(), came.decode().replace("\r\n", "\n")


def table_of(out: str) -> list[str]:
    """The lines of tables: without paths and sentences, which the terminal wraps."""
    return [line for line in SGR.sub("", out).split("\n") if not re.search(r"/|: |, ", line) or "no room" in line]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("command", TABLES)
def test_tables_are_as_wide_as_the_terminal(log_dir: Path, command: str, width: int) -> None:
    code, out = on_terminal(width, command, log_dir)
    assert code == (command == "checkpoint")  # which sees that the end is missing
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
