"""The web service of docs/how-to/processes.md: its two applications, and the refusal of a second writer."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.unit import fastapi_double

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "processes.md"


def application(name: str) -> dict[str, Any]:
    """What the page says of `name`, as a module's names."""
    fastapi_double.put_up()
    found = re.search(rf"`{name}\.py`, started by .*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    space: dict[str, Any] = {}
    exec(compile(found[1], name, "exec"), space)
    return space


def test_the_two_applications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer, reader = application("writer"), application("reader")

    async def main() -> None:
        async with writer["lifespan"](writer["app"]), reader["lifespan"](reader["app"]):
            for number in range(3):
                told = await writer["add"](fastapi_double.Request(b"order %d" % number))
                assert told == {"partition": 0, "offset": number}
                found = await asyncio.to_thread(reader["order"], number)
                assert found == {"found": True, "offset": number, "value": f"order {number}"}
            assert await asyncio.to_thread(reader["order"], 9) == {"found": False}

    asyncio.run(main())


def test_a_second_process_is_told_the_ways_out(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", "import sys, kafkalog; kafkalog.open(sys.argv[1])", str(tmp_path)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    told = done.stderr.splitlines()[-1]
    assert told.startswith("kafkalog.errors.LogDirLockedException: Failed to acquire lock on file .lock in ")
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown
    page = re.sub(r"\s+", " ", shown[1]).strip()
    holder = re.compile(r"process \d+ \([^)]*\)")
    assert holder.search(told)
    assert holder.sub("X", told).replace(str(tmp_path), "D") == holder.sub("X", page).replace("/srv/shop", "D")
