"""The command line where another process holds the directory, and where the user may not read it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.unit.test_cli import LOG, log_dir, run

__all__ = ["log_dir", "run"]


def test_a_held_directory(run: Any, log_dir: str) -> None:
    code = f"import kafkalog, sys; log = kafkalog.open_log({log_dir!r}, 't-0'); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        result = run("append", log_dir, "t-0", stdin=b"x")
        assert run("cat", log_dir, "t-0", "-n", "1").code == 0
        holder.communicate("\n")
    assert result.code == 3
    (line,) = result.err.splitlines()
    assert "Failed to acquire lock" in line


LEFT_OPEN = """
import sys
from tests.client_transaction import client_transaction
import kafkalog
log = kafkalog.open_log(sys.argv[1], "t-0")
txn = client_transaction(log, "job")
txn.begin()
txn.append(b"open")
print(txn.producer_id, flush=True)
input()
"""


@pytest.mark.parametrize("is_brokers", [False, True])
def test_an_abort_beside_who_writes(run: Any, tmp_path: Path, is_brokers: bool) -> None:
    """It is reported, not done; for a broker's directory together with the broker's tool."""
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        producer_id = holder.stdout.readline().strip()
        if is_brokers:
            (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\n")
        argv = ("transactions", "abort", str(tmp_path), "t-0", "--producer-id", producer_id)
        assert run(*argv).code == 0
        refused = run(*argv, "--take-over", "--yes")
        holder.communicate("\n")
    assert refused.code == 3
    assert "Failed to acquire lock" in refused.err
    tool = "kafka-transactions.sh --bootstrap-server HOST:9092 abort --topic t --partition 0 --start-offset 0"
    assert (tool in refused.err) is is_brokers
    assert run(*argv, "--take-over", "--yes").code == 0


DROPPED = """
import importlib, os, pkgutil, sys, tempfile
import kafkalog
for module in pkgutil.walk_packages(kafkalog.__path__, "kafkalog."):  # nobody may not even read the standard library
    if not module.name.startswith(("kafkalog.spark", "kafkalog.__main__")):
        importlib.import_module(module.name)
if os.getuid() == 0:  # root may read everything
    os.setgid(65534)
    os.setuid(65534)
kafkalog.cli.app.run(sys.argv[1:])
"""


GO_ON = ("verify", "recover", "salvage", "backup", "compare")


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="Windows has no such permissions")
@pytest.mark.parametrize(
    ("argv", "closed"),
    [
        (["verify", "{dir}"], f"t-0/{LOG}"),
        (["cat", "{dir}", "t-0"], f"t-0/{LOG}"),
        (["describe", "{dir}"], "t-0"),
        (["recover", "{dir}"], f"t-0/{LOG}"),
        (["salvage", "{dir}", "{dir}-new"], "t-0"),
        (["backup", "{dir}", "--to", "{dir}-new"], f"t-0/{LOG}"),
        (["compare", "{dir}", "{dir}"], f"t-0/{LOG}"),
        (["append", "{dir}", "t-0"], "."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_missing_permission(argv: list[str], closed: str) -> None:
    """A line names it, also for root: the command runs as nobody.  Not in tmp_path: nobody may not enter pytest's."""
    with tempfile.TemporaryDirectory(prefix="kafkalog-test-") as folder:
        os.chmod(folder, 0o777)
        root = os.path.join(folder, "logs")
        with kafkalog.open_log(root, "t-0") as log:
            log.append(b"1")
        for path in Path(root).rglob("*"):
            path.chmod(0o777)
        Path(root).chmod(0o777)
        path = Path(root, closed)
        path.chmod(0o555 if closed == "." else 0)
        done = subprocess.run(
            [sys.executable, "-c", DROPPED, *(arg.replace("{dir}", root) for arg in argv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        path.chmod(0o777)
        told = [line for line in (done.stdout + done.stderr).splitlines() if str(path) in line]
        line = told[0]
        is_found = argv[0] in GO_ON  # reported as a finding, and the other partitions are checked
        assert done.returncode == (1 if is_found else 3)
        assert "no permission for user" in line
        assert f"expected to be able to {'write there' if closed == '.' else 'read it'}" in line
        assert str(path.name if closed != "." else root) in line
