"""The tests of docs/how-to/testing.md pass, a second time in the same folder, too; and a leak is told as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text()
[CODE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[LEAKS] = re.findall(r"\npytest (-W error::ResourceWarning .*)\n", PAGE)
LEAK = """
import gc


def test_leaks(store):
    store.create_topic("t").append(b"x")
    producer = store.producer()
    producer.send("t", b"x")
    del producer
    gc.collect()
"""


def run(path: Path, code: str, base: Path) -> pytest.ExitCode | int:
    path.write_text(code)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={path.parent}", f"--basetemp={base}"]
    return pytest.main([*options, *LEAKS.split(), str(path)])


@pytest.mark.filterwarnings("default")
def test_its_tests_pass_twice(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for _ in range(2):
        assert run(tmp_path / "test_page_once.py", CODE, tmp_path / "base") == pytest.ExitCode.OK
    assert sorted(each.name for each in tmp_path.iterdir() if not each.name.startswith("__")) == [
        "base",
        "test_page_once.py",
    ]


@pytest.mark.filterwarnings("default")
def test_a_leak_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "test_page_leak.py", CODE + LEAK, tmp_path / "base") == pytest.ExitCode.TESTS_FAILED
    said = capfd.readouterr().out
    assert "dropped without being closed" in said
    assert "test_leaks" in said
    assert "1 failed" in said
