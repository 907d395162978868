"""Every example of docs/how-to/spark-speed.md, and the one of find-records.md, run in a directory with small logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.pages import Page
from tests.pages.page import DOCS
from tests.pages.setups import spring

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-speed.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"line{TEXT[: TEXT.index(each)].count(chr(10))}" for each in EXAMPLES])
def test_an_example_runs(spark: Any, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with kafkalog.open_log(tmp_path / "kafka-logs", "orders-0") as log:
        log.append_many([(b'{"id":%d,"price":%d.25,"tags":["new"]}' % (n, n), None) for n in range(9)])
    space: dict[str, Any] = {}
    code = code.replace('"kafka-logs"', repr(str(tmp_path / "kafka-logs")))
    exec(compile(code, "docs/how-to/spark-speed.md", "exec"), space)
    out = capfd.readouterr().out
    assert "+--" in out
    if "valueSchema" in code:
        assert "5.25|[new]" in out.replace(" ", "")
    else:
        assert re.search(r"\|\s*0\|\s*8\|", out)


def test_the_example_of_a_key_and_a_time_window(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(DOCS / "how-to" / "find-records.md")
    (code,) = [block.code for block in page.blocks if block.title == "march.py"]
    with spring(tmp_path):
        exec(compile(code.replace('"shop"', repr(str(tmp_path / "shop"))), "march.py", "exec"), {})
    assert "which are 14:" in page.path.read_text()
    assert capsys.readouterr().out.split()[-1] == "14"
