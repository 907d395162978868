"""The site has what a reader looks for: no broken link, and a search that finds every command, option and error."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import click
import pytest

from kafkalog import errors
from kafkalog.cli.app import cli
from kafkalog.spark import options as spark_options
from kafkalog.spark import write_options


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        self.links += [value for name in ("href", "src") if (value := found.get(name))]


def parsed(path: Path) -> Links:
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def test_no_link_is_broken(site: Path) -> None:
    pages = {path: parsed(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if urlparse(address).scheme:
                continue
            there = (path.parent / unquote(address)).resolve() if address else path
            if not there.exists() or (anchor and there in pages and unquote(anchor) not in pages[there].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A page loads no script, style, font or picture from another machine."""
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"(https?://[^\"]+)\"")
    for path in site.rglob("*.html"):
        found = [each for each in loads.findall(path.read_text(encoding="utf-8")) if "canonical" not in each]
        assert found == [], path


@pytest.fixture(scope="session")
def searched(site: Path) -> str:
    """Everything that the search knows."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return "\n".join(f"{each['title']}\n{each['text']}" for each in index["docs"])


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    ctx = click.Context(command)
    inner = [(each, command.get_command(ctx, each)) for each in command.list_commands(ctx)]
    return [pair for each, found in inner if found for pair in commands(found, f"{name} {each}")]


def test_search_finds_every_command_and_its_options(searched: str) -> None:
    missing = []
    for name, command in commands(cli, "kafkalog"):
        missing += [name] if name not in searched else []
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                options = [option for option in each.opts if option.startswith("--")]
                missing += [f"{name} {option}" for option in options if option not in searched]
    assert missing == []


def test_search_finds_every_error(searched: str) -> None:
    names = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(names) > 30
    assert [name for name in names if not re.search(rf"\b{name}\b", searched)] == []


def test_search_finds_every_option_of_spark(searched: str) -> None:
    names = {*spark_options.KNOWN, *write_options.KNOWN}
    assert len(names) > 40
    assert [name for name in sorted(names) if name not in searched] == []
