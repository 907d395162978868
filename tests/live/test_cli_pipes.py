"""Closed standard streams, from the start or during a command: every command ends quietly, never with "findings"."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kafkalog

COMMANDS = {
    "append": ("append", "DIR", "t-0", "--json"),
    "backup": ("backup", "DIR", "--to", "TARGET"),
    "cat": ("cat", "DIR", "t-0"),
    "compare": ("compare", "DIR", "DIR", "--all"),
    "describe": ("describe", "DIR"),
    "cat filtered": ("cat", "DIR", "t-0", "--grep", "x", "--last", "1500"),
    "dump": ("dump", "--files", "LOG", "--print-data-log"),
    "export": ("export", "DIR", "--to", "TARGET", "--json"),
    "recover": ("recover", "DIR"),
    "reindex": ("reindex", "DIR"),
    "salvage": ("salvage", "DIR", "TARGET"),
    "transactions": ("transactions", "DIR"),
    "verify": ("verify", "DIR"),
    "help": ("--help",),
    "help of one": ("cat", "--help"),
    "version": ("--version",),
}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        log.append_many([b"x" * 1000] * 2000)
    return tmp_path / "logs"


def command_line(name: str, log_dir: Path, target: str) -> list[str]:
    places = {"DIR": str(log_dir), "LOG": str(log_dir / "t-0" / f"{0:020}.log"), "TARGET": str(log_dir.parent / target)}
    return [sys.executable, "-m", "kafkalog", *(places.get(word, word) for word in COMMANDS[name])]


@pytest.mark.parametrize("name", COMMANDS)
def test_nobody_reads(name: str, log_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            command_line(name, log_dir, "rescued"), input=b'{"payload":"x"}\n', stdout=write_end, stderr=subprocess.PIPE
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("name", ["cat", "cat filtered", "describe", "dump", "transactions"])
def test_the_reader_goes_after_a_line(name: str, log_dir: Path) -> None:
    for n in range(300):  # more than a pipe holds, also for describe
        (log_dir / f"{'topic' * 40}-{n}").mkdir()
    with subprocess.Popen(command_line(name, log_dir, "-"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_from_the_start(name: str, log_dir: Path) -> None:
    before = {path: path.read_bytes() for path in log_dir.rglob("*.log")}
    for number, closed in enumerate((">&-", "<&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")):
        line = ["sh", "-c", f'exec "$@" {closed}', "sh", *command_line(name, log_dir, f"rescued{number}")]
        done = subprocess.run(line, input=b"", capture_output=True)
        assert done.returncode == 0, (closed, done.stderr)
        assert b"Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in log_dir.rglob("*.log")} == before


def test_findings_stay_findings_without_output(log_dir: Path) -> None:
    path = log_dir / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *command_line("verify", log_dir, "-")]
    assert subprocess.run(line, capture_output=True).returncode == 1


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("append", "reindex")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_stdout(name: str, unbuffered: str, log_dir: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is Linux's")
    with open("/dev/full", "wb") as full:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            command_line(name, log_dir, "saved"), stdout=full, stderr=subprocess.PIPE, env=environment
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1)
    assert done.stderr.startswith(b"kafkalog: standard output: ")
    assert b"No space left" in done.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="signals of a POSIX system")
@pytest.mark.parametrize("command", [("cat", "--last", "1", "--follow"), ("tail", "-n", "1", "--json")], ids="-".join)
def test_ctrl_c_ends_a_follower_quietly(log_dir: Path, command: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "kafkalog", command[0], str(log_dir), "t-0", *command[1:]]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        late = threading.Timer(60, process.kill)  # a hang is a failure
        late.start()
        try:
            assert b"x" * 1000 in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            late.cancel()
            process.kill()
    assert (process.returncode, out) == (130, b"")
    assert err.strip() == b"kafkalog: interrupted"
