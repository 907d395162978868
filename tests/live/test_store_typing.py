"""A service that uses a store passes `mypy --strict`, and runs; each mistake in another one is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import service_of_topics

SERVICE = Path(service_of_topics.__file__)
WRONG = """
import kafkalog

with kafkalog.open("data", durability="soon") as store:  # arg-type
    store.create_topic(b"t")  # arg-type
    store.create_topic("t", config={"retention.ms": 5})  # dict-item
    store.alter_topic("t", {"retention.ms": 5})  # dict-item
    store.topic("t").append("text")  # arg-type
    store.topic("t").append(b"x", partition="1")  # arg-type
    store.describe_topic("t").partitions = 5  # misc
    number: str = store.topic("t").append(b"x").offset  # assignment
    store.no_such_thing()  # attr-defined
"""


def mypy(place: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    return subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file", "/dev/null",
            "--follow-imports=silent", str(place),
        ],
        capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_a_service_is_typed() -> None:
    done = mypy(SERVICE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = mypy(wrong)
    found = [line.rpartition("[")[2].rstrip("]") for line in done.stdout.splitlines() if ": error:" in line]
    assert found == [line.rpartition("# ")[2] for line in WRONG.splitlines() if "# " in line], done.stdout


def test_the_service_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert service_of_topics.main(dirs) == 0
    out = capsys.readouterr().out.splitlines()
    assert out.pop(0) == "3"  # all that was taken is billed
    assert out[0] == "create_topic() creates one"
    assert out[1].startswith("orders 3 0 2 6 ['orders']")
    assert out[2] == "True {'compression.type': 'zstd'} True"
    assert service_of_topics.main(dirs) == 0
