"""The site in a real browser, as wide as a desktop and as a phone: pages fit, and the search leads to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import browser

__all__ = ["browser"]

pytestmark = pytest.mark.browser

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
PAGES = (
    "index.html",
    "how-to/full-disk.html",
    "reference/spark-options.html",
    "explanation/format.html",
    "reference/settings.html",
    "reference/errors.html",
    "reference/metrics.html",
    "reference/api/store.html",
)


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(viewport=request.param)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda asked: problems.append(f"{asked.url}: {asked.failure}"))
    yield page
    context.close()
    assert problems == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window(page: Any, address: str, name: str) -> None:
    page.goto(f"{address}/{name}")
    assert page.locator("h1").first.is_visible()
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{name} is {wide} pixels wider than the window"


@pytest.mark.parametrize(
    ("words", "leads_to"),
    [
        ("kafkalog verify", "verify"),
        ("startingTimestamp", "startingTimestamp"),
        ("OffsetOutOfRangeException", "OffsetOutOfRangeException"),
    ],
)
def test_the_search_finds_a_command_an_option_and_an_error(page: Any, address: str, words: str, leads_to: str) -> None:
    page.goto(f"{address}/index.html")
    if page.viewport_size["width"] < 600:
        page.locator(".md-header__button[for=__search]").first.click()
    page.locator("input[name=query]").press_sequentially(words)
    first = page.locator(".md-search-result__item a").first
    first.wait_for(state="visible")
    first.click()
    page.wait_for_load_state()
    assert leads_to in page.locator("article").inner_text()
