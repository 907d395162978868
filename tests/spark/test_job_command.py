"""`kafkalog spark ...` as its users run it, one session for all lines of a test; and jobs on several executors."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.export_hours import NOTES, exported_files
from tests.sampling import LONG
from tests.spark.kit import damage_tail, fill, is_clean

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
SPARK = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]


def command(*argv: object, spark: bool = True) -> list[str]:
    return [sys.executable, "-m", "kafkalog", "spark", *map(str, argv), "--json", *(SPARK if spark else [])]


def run(*argv: object, spark: bool = True, file_bytes: int | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """`file_bytes`: no file may be larger, as on a disk that is full."""
    limit = None if file_bytes is None else partial(resource.setrlimit, resource.RLIMIT_FSIZE, (file_bytes,) * 2)
    line = command(*argv, spark=spark)
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), preexec_fn=limit)
    return done.returncode, [json.loads(text) for text in done.stdout.splitlines()], done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


def test_commands(tmp_path: Path) -> None:
    root, lake, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    for partition in ("t-0", "t-1"):
        fill(root, partition, 200)
    code, lines, err = run("export", root, "--to", lake, "--only", "t", "--codec", "zstd", "--progress")
    assert (code, lines[-1]["records"], lines[-1]["failed"]) == (0, 400, 0)
    assert "exported: " in err
    code, lines, _ = run("import", lake, back, spark=False)
    assert (code, [(line["partition"], line["records"], line["done"]) for line in lines]) == (
        0,
        [(0, 200, False), (1, 200, False)],
    )
    note = next((lake / NOTES / "t-0").glob("0*.json"))
    whole = note.read_bytes()
    note.write_bytes(whole[:-5])
    code, lines, _ = run("import", lake, back, spark=False)
    assert (code, lines[0]["records"], lines[1]["error"]) == (1, 0, None)
    assert str(note) in lines[0]["error"]
    note.write_bytes(whole)
    assert not back.exists()
    code, lines, _ = run("import", lake, back, "--only", "t-1", "--yes")
    assert (code, lines[0]["endOffset"]) == (0, 200)
    code, lines, _ = run("compact", root, "--only", "t", "-X", "cleanup.policy=compact", "--yes")
    assert (code, lines[-1]["kind"], lines[-1]["partitions"]) == (0, "summary", 2)
    damage_tail(root / "t-1")
    code, lines, _ = run("verify", root, "--deep")
    assert (code, lines[-1]["ok"], lines[-1]["partitions"]) == (1, False, 2)
    assert any(line["kind"] == "finding" and "t-1" in line["path"] for line in lines)


def test_exit_codes(spark: Any, tmp_path: Path) -> None:
    from kafkalog.spark import jobs

    root, lake, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    fill(root, "t-0", 300)
    with kafkalog.open_log(root, "big-0") as log:
        log.append_many([os.urandom(1000) for _ in range(1000)])
    code, lines, err = run("export", root, "--to", lake, file_bytes=500_000)
    assert (code, lines[-1]["failed"], lines[-1]["records"]) == (3, 1, 300)
    assert "big-0 [0, 1000): nothing was written" in err
    assert [(row.error, row.records) for row in jobs.export(spark, root, lake).collect()] == [(None, 1000)]
    code, lines, _ = run("import", lake, back, "--yes", "-X", "segment.index.bytes=8192", file_bytes=500_000)
    assert (code, [line["done"] for line in lines]) == (3, [False, True])
    assert str(back / "big-0") in lines[0]["error"]
    assert "/kafkalog-" not in lines[0]["error"]
    code, lines, _ = run("import", lake, root, "--yes", "--only", "t")
    assert (code, [line["done"] for line in lines]) == (1, [False])
    damage_tail(root / "t-0")
    code, lines, err = run("export", root, "--to", tmp_path / "lake2", "--only", "t", "--skip-damage")
    assert (code, lines[-1]["failed"], lines[-1]["skipped"]) == (1, 0, 1)
    assert len([line for line in lines if line["kind"] == "skipped" and "offset" in line["what"]]) == 1


def test_an_interrupt_is_one_line(tmp_path: Path) -> None:
    root, lake = tmp_path / "logs", tmp_path / "lake"
    with kafkalog.open_log(root, "t-0") as log:
        for _ in range(100):
            log.append_many([os.urandom(100) for _ in range(2000)])
    line = command("export", root, "--to", lake, "--range-size", "200KiB")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as work:
        while work.poll() is None and not any(lake.rglob("*.parquet")):
            time.sleep(0.01)
        os.killpg(work.pid, signal.SIGINT)
        _, err = work.communicate(timeout=100)
    assert work.returncode == 130
    assert "Traceback" not in err
    assert "ERROR" not in err
    assert err.rstrip().endswith("kafkalog: interrupted")
    code, lines, _ = run("export", root, "--to", lake)
    assert code == 0
    written = exported_files(str(lake), TopicPartition("t", 0))
    assert sum(file.records for file in written) == 200_000 >= lines[-1]["records"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["verify", "{nothing}"], "not found, expected a Kafka log directory"),
        (["compact", "{root}", "-X", "cleanup.policy=compact"], "expected the names of topics"),
        (["compact", "{root}", "--by-shuffle"], "--by-shuffle compacts one partition"),
        (["export", "{root}", "--to", "{nothing}", "--conf", "x"], "has no '='"),
        (["import", "{root}", "{nothing}"], "the directory has no export"),
    ],
)
def test_usage(tmp_path: Path, argv: list[str], text: str) -> None:
    fill(tmp_path / "root", "t-0", 10)
    words = [word.format(root=tmp_path / "root", nothing=tmp_path / "nothing") for word in argv]
    code, _, err = run(*words, spark=False)
    assert code == 2
    assert text in err


CLUSTER = """
import sys
from pyspark.sql import SparkSession
from kafkalog.spark import jobs
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
for key in ("driver.host", "driver.bindAddress"):
    builder = builder.config(f"spark.{key}", "127.0.0.1")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
root, lake = sys.argv[1:]
pids = spark.sparkContext.parallelize(range(4), 4).map(lambda _: __import__("os").getppid()).distinct().count()
recovered = jobs.recover(spark, root, act=True).where("done and error is null").count()
compacted = jobs.compact(spark, root, act=True, config={"cleanup.policy": "compact"}, partitions=["t"])
done = compacted.where("done and error is null").count()
(shuffled,) = jobs.compact_by_shuffle(spark, root, "u-0", act=True, config={"cleanup.policy": "compact"}).collect()
exported = jobs.export(spark, root, lake, range_bytes=4000).where("error is null").count()
bad = jobs.verify(spark, root, deep=True).where("not ok").count()
print("RESULT", pids, recovered, done, shuffled.error, shuffled.superseded > 100, exported >= 4, bad)
spark.stop()
"""


@pytest.mark.skipif(not LONG, reason="two executors of their own: KAFKALOG_LONG=1")
def test_several_executors(tmp_path: Path) -> None:
    """local-cluster: executors are separate processes, as on other machines."""
    import pyspark

    root = tmp_path / "logs"
    for partition in ("t-0", "t-1", "t-2", "u-0"):
        fill(root, partition, 300)
    (root / ".kafka_cleanshutdown").unlink()
    damage_tail(root / "t-2")
    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(root), str(tmp_path / "lake")],
        capture_output=True,
        text=True,
        timeout=560,
        env={**environment(), **home},
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [done.stderr[-3000:]]
    assert line == "RESULT 2 4 3 None True True 0"
    assert is_clean(root)


def test_executors_without_kafkalog(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.errors import KafkaException
    from kafkalog.spark.jobs.run import run as run_job

    with pytest.raises(KafkaException, match=r"the executors' Python has no kafkalog.*PYSPARK_PYTHON"):
        run_job(spark, _no_module, [1])


def _no_module(task: int) -> int:
    raise ModuleNotFoundError("No module named 'kafkalog'")
