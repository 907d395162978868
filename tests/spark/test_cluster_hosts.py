"""docs/how-to/spark-cluster.md: executors in separate processes that see other mounts than the driver.

Their Python runs in a mount namespace that hides the driver's directories. It sees the mounts that the page describes
as read-only: a snapshot, the log directory that a process appends to, or only a bucket.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

import kafkalog
from kafkalog.remote import RemoteStorage
from kafkalog.toolbox.backup import backup
from tests.sampling import LONG
from tests.spark.kit import fill
from tests.spark.tier_kit import KEY, SECRET, make_full, s3_server, tiered

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "spark-cluster.md").read_text()
WRAPPER = """#!/bin/sh
exec unshare -m sh -c '
mount -t tmpfs none "{hidden}" && mount --bind "{mounted}" "{mounted}" && mount -o remount,bind,ro "{mounted}" || exit 1
exec "{python}" "$@"' sh "$@"
"""
# Separate executors, or the driver's, of which only the Python process is separate.
EXECUTORS, MASTER = (2, "local-cluster[2,1,1024]") if LONG else (1, "local[2]")
DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from kafkalog.spark import jobs
master, snapshot, shared, bucket, options = sys.argv[1:]
options = json.loads(options)
builder = SparkSession.builder.master(master).config("spark.executor.memory", "512m")
for name, value in {"ui.enabled": "false", "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1",
                    **{f"hadoop.fs.s3a.{key}": text for key, text in options.items()}}.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
from kafkalog.spark.source import register
register(spark)
read = lambda path, topic: spark.read.format("kafkalog").option("subscribe", topic).load(path).count()
print("RESULT", json.dumps({
    "snapshot": read(snapshot, "t"), "shared": read(shared, "t"), "bucket": read(bucket, "orders"),
    "doctor": [[row.place, row.check, row.found] for row in
               jobs.doctor(spark, [snapshot, shared, bucket]).where("not ok").collect()],
    "executors": jobs.doctor(spark).where("check = 'python'").count() - 1,
    "writable": spark.sparkContext.parallelize(range(2), 2).map(lambda _: __import__("os").access(shared, 2)).collect(),
}))
spark.stop()
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0, reason="no mount namespaces here"
)
def test_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    hidden, mounted = tmp_path / "hidden", tmp_path / "mounted"
    mounted.mkdir()
    fill(hidden / "logs", "t-0", 200)
    fill(mounted / "shared", "t-0", 300)
    backup(hidden / "logs", mounted / "snapshot", link=True)
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(hidden=hidden, mounted=mounted, python=sys.executable))
    wrapper.chmod(0o755)
    with s3_server() as server, kafkalog.open_log(mounted / "shared", "t-0") as log:
        full = make_full(hidden / "full")
        storage = RemoteStorage("s3://bucket/hosts", options=server.options)
        shop = tiered(full, hidden / "part", storage)
        log.append(b"while executors read")
        options = {"access.key": KEY, "secret.key": SECRET, "endpoint": server.endpoint}
        paths = [mounted / "snapshot" / "log-dir-1", mounted / "shared", shop.url]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        environment["PYSPARK_PYTHON"] = str(wrapper)
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, MASTER, *map(str, paths), json.dumps(options)],
            capture_output=True, text=True, timeout=400, env=environment, cwd=ROOT,
        )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [done.stderr[-3000:]]
    found = json.loads(line.removeprefix("RESULT "))
    assert found["doctor"] == []
    assert (found["snapshot"], found["shared"], found["executors"]) == (200, 301, EXECUTORS)
    assert 1000 < found["bucket"] < 1251
    assert found["writable"] == [False, False]


def test_the_page(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    fill(tmp_path / "kafka-logs", "t-0", 30)
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(compile(code, "docs/how-to/spark-cluster.md", "exec"), space)
    assert space["exit_code"] == 0
    assert "advice" in capfd.readouterr().out
    fill(tmp_path / "var", "t-0", 30)
    (line,) = re.findall(r"^kafkalog backup .*$", PAGE, re.MULTILINE)
    words = line.replace("/var/kafka-logs", str(tmp_path / "var")).replace("/var/snapshots", str(tmp_path)).split()
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "2026-11-27" / "log-dir-1" / "t-0").is_dir()
