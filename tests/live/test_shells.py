"""Completion in the shells themselves: bash and zsh on a terminal, where Tab is pressed, and fish's own `complete`."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kafkalog

pty = pytest.importorskip("pty", reason="Windows has no such terminals")

WAIT_S = 60
PROMPT = "ready> "


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for name in ("solo-0", "other-0", "other-1"):
        with kafkalog.open_log(tmp_path / "logs", name) as log:
            log.append(b"1")
    return tmp_path / "logs"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a `kafkalog` in the path."""
    program = tmp_path / "bin" / "kafkalog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kafkalog "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {
        "PYTHONPATH": str(Path(kafkalog.__file__).parents[1]),
        "LANG": "C.UTF-8",
        "PATH": path,
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PS1": PROMPT,
        "PROMPT": PROMPT,
        "NO_COLOR": "1",
    }


class Terminal:
    """A shell on a separate terminal."""

    def __init__(self, argv: list[str], environment: dict[str, str], place: Path) -> None:
        self._here, there = os.openpty()
        self.process = subprocess.Popen(
            argv, stdin=there, stdout=there, stderr=there, env=environment, cwd=place, start_new_session=True
        )
        os.close(there)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def until(self, text: str) -> str:
        """The output up to and including `text`."""
        end = time.monotonic() + WAIT_S
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self._here], [], [], 1)[0]:
                self.seen += os.read(self._here, 1 << 16).decode(errors="replace").replace("\a", "")
        found, self.seen = self.seen.split(text, 1)
        return found + text

    def command(self, line: str) -> None:
        """Runs a line and waits for the next prompt: earlier keys would not reach the shell's editor."""
        self.type(f"{line}; echo do'n'e\n")
        self.until("done")
        self.until(PROMPT)


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


@pytest.mark.parametrize(
    ("shell", "options", "setup"),
    [
        ("bash", ["--norc", "--noprofile", "-i"], 'eval "$(kafkalog completion bash)"'),
        ("zsh", ["-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(kafkalog completion zsh)"'),
    ],
)
def test_tab(shell: str, options: list[str], setup: str, log_dir: Path, environment: dict[str, str]) -> None:
    """Completes a partly typed word."""
    with Terminal([shell_or_skip(shell), *options], environment, log_dir.parent) as terminal:
        terminal.until(PROMPT)
        terminal.command("stty columns 200")
        terminal.command(setup)
        terminal.type("kafkalog descr\t")
        terminal.until("describe")
        terminal.type("logs so\t")
        terminal.until("solo")
        terminal.type(" --js\t")
        terminal.until("--json")
        terminal.type("\n")
        terminal.until('"topic":"solo"')
        terminal.until(PROMPT)
        terminal.type("kafkalog describe logs other\t\t")
        shown = terminal.until("other-1")
        assert "other-0" in shown


def test_fish(log_dir: Path, environment: dict[str, str]) -> None:
    def completed(line: str) -> list[str]:
        script = f'kafkalog completion fish | source; complete -C "{line}"'
        done = subprocess.run(
            [shell_or_skip("fish"), "--no-config", "-c", script],
            env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return [each.split("\t")[0] for each in done.stdout.splitlines()]

    assert completed("kafkalog descr") == ["describe"]
    assert completed(f"kafkalog describe {log_dir} so") == ["solo", "solo-0"]
    assert completed(f"kafkalog describe {log_dir} so --js") == ["--json"]
    assert f"{log_dir}/" in completed(f"kafkalog describe {log_dir}")
