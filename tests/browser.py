"""Chromium for the tests of pages: one process for each file of tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield found
        found.close()


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Waits for an expression.  Playwright's own waiting uses `eval`, which the page's policy refuses."""
    for _ in range(300):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(100)
    raise AssertionError(expression)
