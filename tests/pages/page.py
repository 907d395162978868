"""A page as a list of blocks: the content of the Markdown file, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)
COMMENT = re.compile(r"^<!-- (setup|needs|run): (.*?) -->$", re.M | re.S)


@dataclass
class Block:
    """A fenced block: its language, its title, its code without the indent, and where it is in the text."""

    language: str
    title: str
    code: str
    line: int
    start: int
    end: int
    indent: str = ""

    @property
    def is_output(self) -> bool:
        return self.title.lower() == "output"

    @property
    def is_file(self) -> bool:
        return bool(re.fullmatch(r"[\w./-]+\.\w+|Dockerfile|Makefile", self.title))


class Page:
    """A Markdown file, its blocks and its directives in the order of the text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.setups: list[str] = []
        self.needs: list[str] = []  # programs
        found: list[tuple[int, Block]] = [(each.start, each) for each in self._fences()]
        for each in COMMENT.finditer(self.text):
            if each[1] == "setup":
                self.setups += each[2].split()
            elif each[1] == "needs":
                self.needs += each[2].split()
            else:
                line = self.text.count("\n", 0, each.start()) + 1
                found.append((each.start(), Block("run", "", each[2], line, each.start(), each.end())))
        self.blocks = [block for _, block in sorted(found, key=lambda pair: pair[0])]

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix() if self.path.is_relative_to(ROOT) else str(self.path)

    def _fences(self) -> Iterator[Block]:
        for each in FENCE.finditer(self.text):
            indent = each["indent"]
            language, _, attributes = each["info"].strip().partition(" ")
            title = re.search(r'title="([^"]*)"', attributes)
            code = re.sub(rf"^{indent}", "", each["code"], flags=re.M) if indent else each["code"]
            line = self.text.count("\n", 0, each.start()) + 1
            yield Block(language, title[1] if title else "", code, line, each.start("code"), each.end("code"), indent)

    @property
    def runs(self) -> bool:
        """True if a block of the page is run."""
        return any(each.language in {"python", "console"} for each in self.blocks)


def pages() -> list[Page]:
    """README and all pages of the site, in the order of their paths."""
    return [Page(path) for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]]
