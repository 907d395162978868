"""Hooks of the site's build: the documents at the top of the tree become pages, and click's help becomes Markdown.

README.md, ARCHITECTURE.md and others stay where GitHub's readers look for them.  The site has each as a page, with the
links changed to where the pages are.

`::: mkdocs-click` includes a command's usage, description and options.  mkdocs-click's renderer is replaced: it adds a
title, joins the lines of lists, and loses the names of values.
"""

from __future__ import annotations

import html
import inspect
import itertools
import os
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import mkdocs_click._extension
from mkdocs.structure.files import File
from tables import filled

ROOT = Path(__file__).parents[2]
AT_THE_TOP = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_startup(command: str, dirty: bool) -> None:
    """Imports of the package find this tree, also in processes that the plugins start."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    mkdocs_click._extension.make_command_docs = of_command


def on_files(files: Any, config: Any) -> Any:
    """Adds the documents at the top of the tree."""
    for name, page in AT_THE_TOP.items():
        path = ROOT / name
        if path.exists():
            files.append(File.generated(config, page, content=from_the_top(path.read_text(encoding="utf-8"))))
    return files


def from_the_top(text: str) -> str:
    """The text of a document at the top of the tree, with links as pages in docs/ have them."""

    def link(found: re.Match[str]) -> str:
        target = found[1]
        if target in AT_THE_TOP:
            target = AT_THE_TOP[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        return f"]({target}{found[2] or ''})"

    return LINK.sub(link, text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adds tables, and changes links to documents at the top of the tree to the pages that they have become."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join("docs", folder, found[1]))
        if there not in AT_THE_TOP:
            return found[0]
        return f"]({posixpath.relpath(AT_THE_TOP[there], folder or '.')}{found[2] or ''})"

    return LINK.sub(link, filled(markdown))


def of_command(prog_name: str, command: click.Command, **_: Any) -> Iterator[str]:
    """Yields the Markdown of `::: mkdocs-click`: usage, description, and a table of the options."""
    above, _, name = prog_name.rpartition(" ")
    parent = click.Context(click.Group(above), info_name=above, help_option_names=["-h", "--help"])
    ctx = click.Context(command, parent=parent, info_name=name)
    yield from _block(f"{prog_name} {' '.join(command.collect_usage_pieces(ctx))}")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):  # click keeps the lines of such a paragraph
            yield from _kept(paragraph.splitlines()[1:])
        else:
            yield from [_escaped(" ".join(paragraph.split())), ""]
    yield from ["| Option | Meaning |", "|---|---|"]
    for option in command.get_params(ctx):
        if isinstance(option, click.Option):
            names, meaning = option.get_help_record(ctx) or ("", "")
            cells = f'<code class="option">{html.escape(names)}</code>', _escaped(meaning)
            yield from [f"| {' | '.join(each.replace('|', '&#124;') for each in cells)} |"] if names else []
    yield ""


def _kept(lines: list[str]) -> Iterator[str]:
    """Yields lines that stay lines as a block, and those around it that are not indented as paragraphs."""
    if not lines[0].endswith(":"):
        yield from _block("\n".join(lines))
        return
    for indented, group in itertools.groupby(lines, lambda line: line.startswith(" ")):
        text = "\n".join(group)
        yield from _block(textwrap.dedent(text)) if indented else [_escaped(text), ""]


def _block(text: str) -> list[str]:
    return ["```text", *text.splitlines(), "```", ""]


def _escaped(text: str) -> str:
    """Returns a help text in which Markdown sees nothing but code in backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_\\\[\]])", r"\\\1", each).replace("<", "&lt;") for each in parts[::2]]
    return "`".join(parts)
