"""Hooks of the site's build: the documents at the top of the tree become pages, and click's help reads as Markdown.

README.md, ARCHITECTURE.md and others stay where GitHub's readers look for them.  The site has each as a page, with the
links changed to where the pages are.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

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
