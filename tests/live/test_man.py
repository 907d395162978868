"""The man pages of the commands, as man and groff show them: without a warning, and with what they are about."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kafkalog.cli.man_pages import write_man_pages


def test_man_shows_them_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("no man and groff here")
    paths = write_man_pages(str(tmp_path))
    assert len(paths) > 30
    environment = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANROFFSEQ": ""}
    for path in paths:
        done = subprocess.run(
            ["man", "--warnings=w", "--local-file", path],
            env=environment, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stderr == "", path
        name = Path(path).stem
        assert f"{name.upper()}(1)" in done.stdout.replace("\b", "")
    cat = subprocess.run(
        ["man", "--local-file", str(tmp_path / "kafkalog-cat.1")],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert "kafkalog cat /var/kafka-logs orders-0 --last 10 -f '%o %T %k: %s\\n'" in cat
