"""Runs a page's blocks in a directory.

Python runs in this process, so that what `setups.py` prepares (a Spark session) can be among its names.  Commands run
in bash with `kafkalog` and `python` of this environment before all others on the PATH.  A server that a page starts
with `&` is stopped when the page ends.  Output goes through a file: a server that keeps it open does not hold the page
up.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.pages.page import ROOT, Block, Page

COMMAND_SECONDS_MAX = 120
STOP_SECONDS_MAX = 10
SHOWN_LINES_MAX = 12
MARK = "\x1e"  # between the outputs of commands
SET_UP = re.compile(
    r"(python3? -m )?pip install (-U |--upgrade )?(?P<packages>.+)|make (?P<target>[\w-]+)|git clone .*|cd .*"
)
# Times of today, durations and rates differ from run to run.
VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "DATE"),
    (re.compile(r"\b\d{13}\b"), "MILLISECONDS"),
    (re.compile(r"(?:(?<=-)|(?<![\w-]))(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{22}(?![\w-])"), "UUID"),
    (re.compile(r"\b\d+(\.\d+)? ?(ns|us|µs|ms|s|seconds|min|minutes|h|d)\b"), "DURATION"),
    (re.compile(r"\b\d+(\.\d+)? ?([KMG]i?)?B/s"), "RATE"),
    (re.compile(r"\b\d+(\.\d+)? [KMGT]?i?B are free now"), "FREE"),
)


class Mismatch(AssertionError):
    """A block failed, or printed something else than the page shows."""


def run(page: Page, place: Path, *, write: bool = False) -> None:
    """Runs a page in the empty directory `place`.

    Args:
        page: The page.
        place: The directory in which its blocks run.
        write: Puts what was printed into the page, instead of comparing.

    Raises:
        Mismatch: A block failed, or the page shows something else than it prints.
    """
    from tests.pages import setups

    space: dict[str, Any] = {"__name__": "__main__"}
    changes: list[tuple[int, int, str]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_working_directory(place))
        commands = stack.enter_context(_Commands(place))
        for name in page.setups:
            space.update(stack.enter_context(getattr(setups, name.replace("-", "_"))(place)) or {})
        printed: str | None = None
        for block in page.blocks:
            where = f"{page}:{block.line}"
            if block.is_output:
                if printed is None:
                    raise Mismatch(f"{where}: no block before it printed anything")
                _compare(block, printed, where, changes, write)
                printed = None
            elif block.is_file:
                path = place / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.code)
            elif block.language in {"python", "run"}:
                printed = _run_python(block, space, where)
            elif block.language == "console":
                _compare(block, commands.run(block.code, where), where, changes, write)
            elif block.language == "sh":
                check_set_up(block.code, where)
    for start, end, text in reversed(changes):
        page.text = page.text[:start] + text + page.text[end:]
    if changes:
        page.path.write_text(page.text, encoding="utf-8")


def check_set_up(code: str, where: str) -> None:
    """Checks a block that sets up a machine: extras and targets that it names exist.

    Raises:
        Mismatch: A command is neither `pip install` nor `make`, or names what does not exist.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in code.splitlines():
        command = line.partition(" #")[0].strip()
        if not command or command.startswith("#"):
            continue
        found = SET_UP.fullmatch(command)
        if found is None:
            raise Mismatch(f"{where}: {command!r} is not run: use a console block, which is")
        if found["target"] and found["target"] not in targets:
            raise Mismatch(f"{where}: the Makefile has no target {found['target']}")
        for names in re.findall(r"kafkalog\[([\w,-]+)\]", found["packages"] or ""):
            unknown = {*names.split(",")} - {*extras}
            if unknown:
                raise Mismatch(f"{where}: kafkalog has no extra {', '.join(unknown)}")


@contextlib.contextmanager
def _working_directory(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    sys.path.insert(0, str(place))
    known = set(sys.modules)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(place))
        for name in set(sys.modules) - known:  # modules that the page wrote
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(place):
                del sys.modules[name]


def _run_python(block: Block, space: dict[str, Any], where: str) -> str:
    """Runs a block; returns its output.  The value of an expression on its last line is printed, as a notebook does."""
    output = io.StringIO()
    try:
        tree = ast.parse("\n" * block.line + block.code, where)
        last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if last is not None:
            tree.body.pop()
        with contextlib.redirect_stdout(output):
            exec(compile(tree, where, "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), where, "eval"), space)
                if value is not None:
                    print(repr(value))
    except Exception as error:
        short = "\n".join(str(error).splitlines()[:SHOWN_LINES_MAX])  # Spark's have hundreds
        raise Mismatch(f"{where}: {type(error).__name__}: {short}") from error
    return output.getvalue()


def _runs(group: int) -> bool:
    """Whether a process of the group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class _Commands:
    """Runs the commands of console blocks; stops what they left running."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._groups: list[int] = []
        self._directory = str(place)
        self._tools = tempfile.TemporaryDirectory()

    def __enter__(self) -> _Commands:
        tools = Path(self._tools.name)
        for name, arguments in (("kafkalog", " -m kafkalog"), ("python", ""), ("python3", "")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            tool.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS_MAX
        while any(map(_runs, self._groups)) and time.monotonic() < until:  # a server writes while it stops
            time.sleep(0.02)
        self._tools.cleanup()

    def run(self, code: str, where: str) -> str:
        """Runs a block; the block as it should be: each command, and below it what it printed."""
        commands = list(_commands(code))
        if not commands:
            raise Mismatch(f"{where}: a console block needs a line that begins with '$ '")
        script = "".join(f"{command}\n__code=$?; printf '{MARK}'; (exit $__code)\n" for _, command in commands)
        script += f'\nprintf "%s{MARK}" "$PWD"\n'
        path = [self._tools.name, str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        environment = {
            **os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "COLUMNS": "100", "LINES": "50",
            "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self._directory, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._groups.append(process.pid)
            try:
                process.wait(COMMAND_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise Mismatch(f"{where}: did not end within {COMMAND_SECONDS_MAX} seconds") from None
            output.seek(0)
            outputs = output.read().decode(errors="replace").split(MARK)
        if len(outputs) < len(commands) + 2:
            raise Mismatch(f"{where}: bash ended early:\n{outputs[-1]}")
        self._directory = outputs[len(commands)]
        shown = []
        for (lines, _), printed in zip(commands, outputs, strict=False):
            text = printed.replace(str(self._place), "/data").replace(self._tools.name, "/usr/bin")
            shown.append(lines + "".join(f"{line.rstrip()}\n" for line in text.splitlines()))
        return "".join(shown)


def _commands(code: str) -> Iterator[tuple[str, str]]:
    """(the lines as the page has them, the command) of a console block."""
    lines = code.splitlines()
    number = 0
    while number < len(lines):
        if lines[number].startswith("$ "):
            first = number
            command = [lines[number][2:]]
            # A command continues after a backslash, or up to the end of a here-document.
            document = re.search(r"<<-?'?(\w+)'?", command[0])
            while number + 1 < len(lines) and (
                command[-1].endswith("\\") or (document and command[-1].strip() != document[1])
            ):
                number += 1
                command.append(lines[number].removeprefix("> "))
            yield "".join(f"{line}\n" for line in lines[first : number + 1]), "\n".join(command)
        number += 1


def _compare(block: Block, printed: str, where: str, changes: list[tuple[int, int, str]], write: bool) -> None:
    if matches(block.code, printed):
        return
    if write:
        text = "".join(f"{block.indent}{line}".rstrip() + "\n" for line in printed.rstrip("\n").splitlines())
        changes.append((block.start, block.end, text))
    else:
        raise Mismatch(f"{where}: the page shows\n{block.code}\nbut it prints\n{printed}")


def matches(shown: str, printed: str) -> bool:
    """Compares a page's text with an output: `...` stands for anything, and what differs from run to run may differ."""
    expected = [_steady(line) for line in shown.rstrip().splitlines()]
    found = "\n".join(_steady(line) for line in printed.rstrip().splitlines())
    parts = []
    for line in expected:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in line.split("...")) + "\n")
    return re.fullmatch("".join(parts), found + "\n" if found else "") is not None


def _steady(line: str) -> str:
    for pattern, name in VOLATILE:
        line = pattern.sub(name, line)
    return re.sub(r"\s+", " ", line).rstrip()  # columns move with the width of a time
