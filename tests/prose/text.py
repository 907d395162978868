"""Extracts the sentences that people read from a file.

A sentence carries its line, its kind (docstring, comment, message, page) and its text.  Inline code counts as one
word.  Code blocks, doctests, headings and front matter are not sentences.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("kafkalog", "bench", "docs", "tests", ".github")
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".md", ".toml", ".yml"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "warn"}
SPOKEN_ARGUMENTS = {"help", "short_help", "epilog", "metavar_help"}  # arguments of click
NOT_PROSE = re.compile(r"noqa|type: ignore|fmt: |pragma|cython: |distutils: |!/usr/bin|^-+ .* -+$|^[-=]+$|^<!--|-->$")


@dataclass(frozen=True)
class Sentence:
    line: int
    kind: str
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())


def files(*places: Path) -> Iterator[Path]:
    """The files with prose below some places; without a place, those of the whole tree."""
    for place in places or (*(ROOT / name for name in FOLDERS), *ROOT.glob("*.md"), *ROOT.glob("*.py")):
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.suffix in SUFFIXES and "/frozen/" not in path.as_posix())


def sentences(path: Path) -> Iterator[Sentence]:
    """All sentences of a file, in the order of their lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _of_page(text)
    elif path.suffix in {".py", ".pyi"}:
        found = [*_of_docstrings(text), *_of_messages(text), *_of_comments(text)]
        yield from sorted(found, key=lambda each: each.line)
    elif path.suffix in {".pyx", ".pxd"}:
        yield from sorted([*_of_cython(text)], key=lambda each: each.line)
    else:
        yield from _of_hash_comments(text)


# --- Python ----------------------------------------------------------------------------------------------


def _of_docstrings(text: str) -> Iterator[Sentence]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from _of_docstring(first.value.value, first.lineno)


def _of_docstring(doc: str, line: int) -> Iterator[Sentence]:
    """Paragraphs of a docstring without its code: doctests, and blocks that are indented more than the text."""
    head, _, rest = doc.partition("\n")
    text = head.strip() + "\n" + textwrap.dedent(rest)
    paragraph: list[str] = []
    start, is_code, section = line, False, False
    for number, raw in enumerate([*text.split("\n"), ""]):
        stripped = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if stripped in {"Args:", "Returns:", "Raises:", "Yields:", "Attributes:", "Note:", "Warning:"}:
            yield from _split("\n".join(paragraph), start, "docstring")
            paragraph, section, is_code = [], True, False
            continue
        if stripped in {"Example:", "Examples:"}:
            yield from _split("\n".join(paragraph), start, "docstring")
            paragraph, section, is_code = [], False, True
            continue
        if not stripped:
            yield from _split("\n".join(paragraph), start, "docstring")
            paragraph, is_code = [], is_code and False
            continue
        if stripped.startswith((">>>", "...", "\b")) or (is_code and stripped):
            is_code = True
            continue
        if not paragraph and indent >= 4 and number and not section:
            is_code = True
            continue
        if section and indent <= 4 and re.match(r"\*{0,2}[\w, .*]+( \([^)]*\))?: ", stripped):
            yield from _split("\n".join(paragraph), start, "docstring")
            paragraph = []
            stripped = stripped.partition(": ")[2]
        if section and indent == 0:
            section = False
        if not paragraph:
            start = line + number
        if re.match(r"([-*] |\d+\. )", stripped) and paragraph:
            yield from _split("\n".join(paragraph), start, "docstring")
            paragraph, start = [], line + number
        paragraph.append(stripped)


def _of_comments(text: str) -> Iterator[Sentence]:
    lines: list[tuple[int, int, str]] = []  # line, column, text
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines.append((token.start[0], token.start[1], token.string))
    except tokenize.TokenError:  # pragma: no cover
        return
    yield from _of_comment_lines(lines)


def _of_comment_lines(lines: list[tuple[int, int, str]]) -> Iterator[Sentence]:
    """Comments on lines that follow each other in one column are one paragraph."""
    paragraph: list[str] = []
    start = last = at = -1
    for line, column, raw in lines:
        words = raw.lstrip("#:").strip()
        if NOT_PROSE.search(words) or _looks_like_code(words):
            words = ""
        if line != last + 1 or column != at or not words:
            yield from _split("\n".join(paragraph), start, "comment")
            paragraph, start = [], line
        if words:
            paragraph.append(words)
        last, at = line, column
    yield from _split("\n".join(paragraph), start, "comment")


def _of_messages(text: str) -> Iterator[Sentence]:
    for node in ast.walk(ast.parse(text)):
        spoken: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            spoken = [*node.exc.args]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LOGGING:
                spoken = node.args[:1]
            spoken += [each.value for each in node.keywords if each.arg in SPOKEN_ARGUMENTS]
        for each in spoken:
            words = _literal(each)
            if words and " " in words.strip():
                yield from _split(words.replace("%s", "X").replace("%d", "X"), each.lineno, "message")


def _literal(node: ast.expr) -> str:
    """The text of a string, with each value that it formats as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else "X"
            for each in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left) + _literal(node.right)
    return ""


# --- Cython, TOML and YAML -------------------------------------------------------------------------------


def _of_cython(text: str) -> Iterator[Sentence]:
    text = re.sub(r'(extern from .*:\n\s*)""".*?"""', lambda found: "\n" * found[0].count("\n"), text, flags=re.S)  # C
    for found in re.finditer(r'^[ \t]*"""(.*?)"""', text, re.DOTALL | re.MULTILINE):
        yield from _of_docstring(found[1], text.count("\n", 0, found.start()) + 1)
    yield from _of_hash_comments(text)


def _of_hash_comments(text: str) -> Iterator[Sentence]:
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        found = re.match(r"""((?:[^'"#]|"[^"]*"|'[^']*')*?)(#.*)""", raw)
        if found:
            lines.append((number, len(found[1]), found[2]))
    yield from _of_comment_lines(lines)


# --- Markdown --------------------------------------------------------------------------------------------


def _of_page(text: str) -> Iterator[Sentence]:
    paragraph: list[str] = []
    start, fence = 1, ""

    def flush() -> Iterator[Sentence]:
        yield from _split("\n".join(paragraph), start, "page")
        paragraph.clear()

    if text.startswith("---\n"):  # front matter
        end = text.index("\n---", 4) + 4
        text = re.sub(r"[^\n]", "", text[:end]) + text[end:]
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        marker = re.match(r"(```+|~~~+)", stripped)
        if fence or marker:
            if marker and (not fence or stripped == fence):
                fence = "" if fence else marker[1]
            yield from flush()
            continue
        if not stripped or stripped.startswith(("#", "<!--", "::: ", "--8<--", "|--", "|:-")) or stripped == "---":
            yield from flush()
            continue
        if stripped.startswith(("!!! ", "??? ", "=== ")):
            yield from flush()
            continue
        if stripped.startswith("|"):
            yield from flush()
            for cell in stripped.strip("|").split("|"):
                yield from _split(cell.strip(), number, "cell")
            continue
        if re.match(r"([-*+] |\d+\. |> )", stripped):
            yield from flush()
            stripped = re.sub(r"^([-*+] |\d+\. |> )", "", stripped)
        if not paragraph:
            start = number
        paragraph.append(stripped)
    yield from flush()


# --- sentences -------------------------------------------------------------------------------------------

CODE_LIKE = re.compile(r"^[\w.]+\(.*\)$|^[\w.\[\]]+ = |^(def|class|import|from|return|if|for|while) .*[:)]$")


def _looks_like_code(words: str) -> bool:
    return bool(CODE_LIKE.match(words))


def _split(text: str, line: int, kind: str) -> Iterator[Sentence]:
    if not text.strip():
        return
    text = re.sub(r"``.+?``|`[^`]*`", lambda found: "\n" * found[0].count("\n") + "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link is its words
    text = re.sub(r"<https?://[^>]*>|https?://\S+", "URL", text)
    text = re.sub(r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", "", text)
    at = 0
    for piece in re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])|\n{2,}", text):
        where = text.find(piece, at)
        words = " ".join(piece.split())
        if re.search(r"\w", words):
            yield Sentence(line + text.count("\n", 0, max(where, 0)), kind, words)
        at = max(where, 0) + len(piece)
