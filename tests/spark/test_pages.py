"""The code blocks of pages that use Spark run, and print what their pages show.

Each page has a separate process and JVM, which start in the page's directory: Spark resolves relative paths there.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pages import Page
from tests.pages.page import ROOT
from tests.pages.test_pages import PAGES

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("page", [page for page in PAGES if "spark" in page.setups], ids=str)
def test_a_page_prints_what_it_shows(page: Page) -> None:
    command = [sys.executable, "-m", "tests.pages", str(page.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
