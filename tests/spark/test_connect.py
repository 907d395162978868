"""Spark Connect: a client without a JVM, and a server that finds the source automatically."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from tests.conftest import leave_out
from tests.spark.session import ROOT
from tests.spark.versions import PYSPARK

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

NEEDED = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "pandas": "pandas",
}
START_MS = 1_700_000_000_000


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_a_client_reads_and_writes(tmp_path: Path) -> None:
    missing = [package for module, package in NEEDED.items() if not is_there(module)]
    if missing:
        leave_out(f"no Spark Connect (pip install {' '.join(missing)})")
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        for number in range(100):
            log.append(b"value-%d" % number, timestamp=START_MS + number)
    writes = PYSPARK >= (4, 2)
    steps = ["read", "refused", "table", "job", *(["write", "stream"] if writes else []), "registered"]
    paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.spark.connect_driver", str(tmp_path), *steps],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["read"] == [100, "value-7", START_MS + 7, [0, 1, 2]]
    assert "One of the following options must be specified" in seen["refused"]
    assert seen["table"] == 100
    assert "jobs need a classic session" in seen["job"]
    if writes:
        assert (seen["write"], seen["stream"]) == (100, 100)
    settings, error, count = seen["registered"]
    assert (settings, count) == ({"fs.s3a.endpoint": "store.example"}, 100)
    assert error is None or (PYSPARK < (4, 2) and "cannot take settings of object stores" in error)
