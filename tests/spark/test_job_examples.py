"""Every example of docs/how-to/spark-jobs.md runs, in a directory with two small log directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.kit import START_MS, fill

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-jobs.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"line{TEXT[: TEXT.index(each)].count(chr(10))}" for each in EXAMPLES])
def test_an_example_runs(
    spark: Any, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for root in ("kafka-logs", "kafka-logs-2"):
        fill(tmp_path / root, "orders-0", 30)
        with kafkalog.open_log(root, "orders-0") as log:
            log.append(b"paid", key=b"customer-7", headers=[("trace", b"abc")], timestamp=START_MS)
    # Paths are the driver's: a session's workers are in the directory where it began.
    code = re.sub(r'"(kafka-logs(?:-2)?|lake|checkpoints/orders)"', lambda found: repr(str(tmp_path / found[1])), code)
    space: dict[str, Any] = {}
    exec(compile(code, "docs/how-to/spark-jobs.md", "exec"), space)
    assert space["spark"] is spark or space["spark"].sparkContext is spark.sparkContext
    assert space.get("exit_code", 0) == 0
    out = capfd.readouterr().out
    assert "+--" in out
    if "orders_a_minute" in code:
        assert "2023-11-14 22:13:00" in out
    if "customer-7" in code:
        assert "paid" in out
        assert "abc" in out
