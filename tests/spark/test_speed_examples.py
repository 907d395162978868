"""Every example of docs/how-to/spark-speed.md runs, in a directory with a small log directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog

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
