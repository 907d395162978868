"""Every code block of the documentation runs, and prints what its page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.pages import Mismatch, Page, pages, run
from tests.pages.page import ROOT
from tests.pages.running import check_set_up, matches

# Pages whose blocks need more than an empty directory: the file of tests that reads the page.
ELSEWHERE = {
    "docs/how-to/spark-cluster.md": "tests/spark/test_cluster_hosts.py",
    "docs/how-to/spark-decoding.md": "tests/spark/test_decoding_examples.py",
    "docs/how-to/spark-jobs.md": "tests/spark/test_job_examples.py",
    "docs/how-to/spark-lake.md": "tests/spark/lake/__init__.py",
    "docs/how-to/spark-replicas.md": "tests/spark/test_replicas.py",
    "docs/how-to/spark-speed.md": "tests/spark/test_speed_examples.py",
    "docs/reference/spark-metrics.md": "tests/spark/test_metrics.py",
    "docs/reference/spark-options.md": "tests/spark/test_options_page.py",
}
PAGES = [page for page in pages() if page.runs and str(page) not in ELSEWHERE]


@pytest.mark.parametrize("page", [page for page in PAGES if "spark" not in page.setups], ids=str)
def test_a_page_prints_what_it_shows(page: Page, tmp_path: Path) -> None:
    missing = [program for program in page.needs if shutil.which(program) is None]
    if missing:
        leave_out(f"no {' and no '.join(missing)}, which {page} needs")
    run(page, tmp_path)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_test_runs_the_page(name: str) -> None:
    assert Path(name).name in (ROOT / ELSEWHERE[name]).read_text()


def test_blocks_that_set_up_a_machine_name_what_exists() -> None:
    for page in pages():
        for block in page.blocks:
            if block.language == "sh":
                check_set_up(block.code, f"{page}:{block.line}")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("rm -rf /", "use a console block"),
        ("make nonsense", "no target nonsense"),
        ("pip install 'kafkalog[cli,nonsense]'", "no extra nonsense"),
    ],
)
def test_set_up_is_checked(code: str, message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        check_set_up(code, "page.md:1")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n...\nb\n", "a\n1\n2\nb\n", True),
        ("a\n...\nb\n", "a\nb\n", True),
        ("a\n...\nb\n", "a\n1\n2\n", False),
        ("offset ... of 5", "offset 3 of 5", True),
        ("took 0.1 s", "took 12.5 s", True),
        ("3 records", "4 records", False),
        ("", "unexpected\n", False),
        ("at 2026-03-01T00:00:00Z", "at 2027-01-01T01:02:03Z", True),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def a_page(place: Path, text: str) -> Page:
    path = place / "page.md"
    path.write_text(text)
    return Page(path)


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    good = (
        '```python\nx = 1\nx + 1\n```\n\n```text title="Output"\n2\n```\n\n'
        "```console\n$ echo $HOME; false\n...\n$ echo $?\n1\n```\n"
    )
    run(a_page(tmp_path, good), place)
    with pytest.raises(Mismatch, match="shows"):
        run(a_page(tmp_path, good.replace("\n2\n", "\n3\n")), place)
    with pytest.raises(Mismatch, match="shows"):
        run(a_page(tmp_path, good.replace("\n1\n```", "\n0\n```")), place)
    with pytest.raises(Mismatch, match="ZeroDivisionError"):
        run(a_page(tmp_path, "```python\n1 / 0\n```\n"), place)


def test_outputs_are_written_into_a_page(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    page = a_page(tmp_path, '```python title="a.py"\nprint(5)\n```\n\n```console\n$ python a.py\n$ pwd\n```\n')
    run(page, place, write=True)
    assert page.path.read_text().endswith("```console\n$ python a.py\n5\n$ pwd\n/data\n```\n")
    run(Page(page.path), place)
