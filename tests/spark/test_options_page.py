"""The examples of docs/reference/spark-options.md run, in a directory with a small log directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.spark.kit import fill

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"line{TEXT[: TEXT.index(each)].count(chr(10))}" for each in EXAMPLES])
def test_an_example_runs(spark: Any, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "kafka-logs", "orders-0", 30)
    fill(tmp_path / "kafka-logs", "orders-eu-0", 10)
    fill(tmp_path / "kafka-logs", "reorders-0", 10)
    # Paths are the driver's: a session's workers are in the directory where it began.
    code = re.sub(r'"(kafka-logs|checkpoints/orders)"', lambda found: repr(str(tmp_path / found[1])), code)
    space: dict[str, Any] = {}
    exec(compile(code, "docs/reference/spark-options.md", "exec"), space)
    out = capfd.readouterr().out
    assert "+--" in out
    if "subscribePattern" in code:
        assert "orders-eu" in out
        assert "reorders" not in out
    if "outputMode" in code:
        assert {(row.key, row.value) for row in space["latest"].select("key", "value").collect()} == {
            (b"key-%d" % n, b"%d" % (5 if n in {number * 7919 % 7 for number in (28, 29)} else 4)) for n in range(7)
        }
