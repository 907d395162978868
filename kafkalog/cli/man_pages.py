"""Writes man pages for all commands from their `--help`: `python -m kafkalog.cli.man_pages DIRECTORY`.

Each command has a page; `kafkalog-tier-list.1` is that of a command in a group. `make man` writes them to build/man.
The text is click's data in troff's man macros; characters that are special in troff are escaped.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import click

import kafkalog
from kafkalog.cli.app import CLEAN, USAGE, cli
from kafkalog.cli.shell import NAME
from kafkalog.engine.files import OS_FILES

__all__ = ["man_pages", "write_man_pages"]

EXIT_CODES = (
    ("0", "clean"),
    ("1", "findings"),
    ("2", "wrong command line"),
    ("3", "the directory is locked, or an I/O error"),
    ("4", "a broker or another program was writing: try again"),
    ("130", "interrupted"),
    ("141", "the reader of the output closed the pipe"),
)


def man_pages() -> Iterator[tuple[str, str]]:
    """Yields (file name, text) of the page of every command."""
    for ctx in _contexts(click.Context(cli, info_name=NAME, **cli.context_settings)):
        yield ctx.command_path.replace(" ", "-") + ".1", _page(ctx)


def write_man_pages(directory: str) -> list[str]:
    """Writes the pages to a directory, which is created if it is missing, and returns their paths. Raises OSError."""
    return [write_text(directory, name, text) for name, text in man_pages()]


def write_text(directory: str, name: str, text: str) -> str:
    """Writes a file of a directory, which is created if it is missing, and returns its path. Raises OSError."""
    OS_FILES.mkdirs(directory)
    path = f"{directory.rstrip('/')}/{name}"
    with OS_FILES.open(path, create=True) as file:
        file.truncate(0)
        file.pwrite(text.encode(), 0)
    return path


def _contexts(ctx: click.Context) -> Iterator[click.Context]:
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            if command is not None and name != getattr(ctx.command, "default", None):
                yield from _contexts(click.Context(command, info_name=name, parent=ctx))


def _page(ctx: click.Context) -> str:
    command = ctx.command
    name = ctx.command_path.replace(" ", "-")
    made_s = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())  # for reproducible builds
    date = datetime.fromtimestamp(made_s, UTC).strftime("%Y-%m-%d")
    summary = (command.short_help or command.get_short_help_str(limit=100)).rstrip(".")
    lines = [
        f'.TH "{_text(name.upper())}" 1 {date} "kafkalog {_text(kafkalog.__version__)}" "kafkalog"',
        ".nh",  # do not hyphenate names and options
        ".ad l",
        ".SH NAME",
        f"{_text(name)} \\- {_text(summary[:1].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f".B {_text(ctx.command_path)}",
        _text(_usage(ctx)),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    options = _options(ctx)
    if options:
        lines.append(".SH OPTIONS")
        lines += _items(options)
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        lines += _items(_commands(ctx, command))
    if ctx.parent is None:
        lines.append(".SH EXIT STATUS")
        lines += _items(EXIT_CODES)
    if command.epilog:
        lines.append(".SH EXAMPLES")
        lines += _paragraphs(command.epilog.replace("For example:\n", ""))
    lines.append(".SH SEE ALSO")
    others = _others(ctx)
    lines += [f".BR {_text(each)} (1){',' if each != others[-1] else ''}" for each in others]
    return "\n".join(lines) + "\n"


def _usage(ctx: click.Context) -> str:
    """Returns the usage after the command's name, in one line."""
    words = ctx.command.get_usage(ctx).split()
    return " ".join(words[1 + len(ctx.command_path.split()) :])


def _options(ctx: click.Context) -> list[tuple[str, str]]:
    command = ctx.command
    default = getattr(command, "default", None)
    if isinstance(command, click.Group) and default is not None:
        command = command.commands[default]
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    return [record for each in options if (record := each.get_help_record(ctx)) is not None]


def _commands(ctx: click.Context, group: click.Group) -> list[tuple[str, str]]:
    default = getattr(group, "default", None)
    found = [(name, group.get_command(ctx, name)) for name in group.list_commands(ctx) if name != default]
    return [(name, "" if each is None else each.get_short_help_str(limit=200)) for name, each in found]


def _others(ctx: click.Context) -> list[str]:
    """Returns the commands above, and those directly below."""
    above = [] if ctx.parent is None else [ctx.parent.command_path]
    if ctx.parent is not None and ctx.parent.parent is not None:
        above.insert(0, NAME)
    default = getattr(ctx.command, "default", None)
    names = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    below = [f"{ctx.command_path} {name}" for name in names if name != default]
    return [path.replace(" ", "-") for path in (*above, *below)]


# --- troff ------------------------------------------------------------------------------------------------

_ESCAPES = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    '"': r"\(dq",
}


def _text(text: str) -> str:
    """Returns text that troff shows unchanged."""
    shown = "".join(_ESCAPES.get(char, char) for char in text)
    return f"\\&{shown}" if shown.startswith(".") else shown


def _items(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields names, each with its description."""
    for name, what in rows:
        yield from (".TP", f".B {_text(name)}", _text(" ".join(what.split())) or "\\&")


def _paragraphs(text: str) -> Iterator[str]:
    """Yields click's paragraphs; those after its mark keep their lines."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text))):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            kept = [line for line in paragraph.splitlines()[1:] if line.strip()]
            yield from (".nf", *(_text(line) for line in kept), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def main(argv: Sequence[str]) -> int:
    """Writes the pages, prints how many, and returns the exit code."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print(
            "kafkalog: expected a directory for the man pages, such as: python -m kafkalog.cli.man_pages build/man",
            file=sys.stderr,
        )
        return USAGE
    print(f"{len(write_man_pages(argv[0]))} pages in {argv[0]}")
    return CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
