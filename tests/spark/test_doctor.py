"""doctor: a session in which all is well, and separate executors that see another machine's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.remote import RemoteStorage
from kafkalog.spark.jobs.probe import Asked, look, sample
from tests.sampling import LONG
from tests.unit.tier_kit import tiered

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for partition in ("t-0", "u-0"):
        with kafkalog.open_log(tmp_path / "logs", partition) as log:
            log.append_many([b"x" * 100] * 1000)
    return tmp_path / "logs"


def test_all_is_well(spark: Any, log_dir: Path) -> None:
    from kafkalog.spark import jobs

    rows = jobs.doctor(spark, log_dir, writes=True).collect()
    assert [row for row in rows if not row.ok] == []
    assert {row.place for row in rows if "/" not in row.place} == {"driver", "cluster"}
    executor = {row.check: row.found for row in rows if "/" in row.place}
    assert {"python", "pyspark", "pyarrow", "kafkalog", "natives", "data source", "clock", str(log_dir)} <= {*executor}
    assert executor[f"{log_dir}: files"] == "2 files are the same"
    assert executor["staging: writes"] == "the driver sees them"
    assert [name for name in os.listdir(log_dir) if "doctor" in name] == []


def test_a_directory_that_is_not_there(spark: Any, log_dir: Path, tmp_path: Path) -> None:
    from kafkalog.spark.jobs.doctor import examined

    failed = [each for each in examined(spark, [log_dir, tmp_path / "none"]) if not each.ok]
    assert {each.check for each in failed} == {str(tmp_path / "none")}
    assert len({each.place for each in failed}) == 2
    assert all("readable for uid" in each.advice for each in failed)


def test_a_place_without_partitions(spark: Any, tmp_path: Path) -> None:
    from kafkalog.spark.jobs.doctor import examined

    (tmp_path / "empty").mkdir()
    checks = examined(spark, tmp_path / "empty")
    failed = [each for each in checks if not each.ok]
    assert {each.check for each in failed} == {str(tmp_path / "empty")}
    assert {each.found for each in failed} == {"0 partitions"}
    assert len(failed) == 2
    assert all("the directory that has the partitions" in each.advice for each in failed)
    assert [each for each in checks if "the same" in each.found] == []


def test_the_directory_of_a_tier(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.spark.jobs.doctor import examined

    pytest.importorskip("fsspec")
    tiered(tmp_path / "store", RemoteStorage(tmp_path / "tier"))
    monkeypatch.chdir(tmp_path)
    for given in ("tier", f"{tmp_path}/tier/", tmp_path / "tier"):
        checks = examined(spark, given)
        assert [each for each in checks if not each.ok] == []
        assert [each.found for each in checks if each.check == str(tmp_path / "tier")] == ["1 partition"] * 2


def test_names_that_are_no_text_and_many_paths(spark: Any, log_dir: Path, tmp_path: Path) -> None:
    from kafkalog.spark import jobs

    odd = tmp_path / os.fsdecode(b"a '\"\n\xff,b")
    os.makedirs(odd / os.fsdecode(b"\xfe\n-0"))
    none = tmp_path / os.fsdecode(b"none\xff")
    paths = [log_dir, odd, none, *(tmp_path / f"none-{number}" for number in range(100))]
    rows = jobs.doctor(spark, paths).collect()
    shown = str(tmp_path) + "/a '\"\\n\\udcff,b"
    assert {row.ok for row in rows if row.check == shown} == {True}
    failed = [row.check for row in rows if not row.ok]
    assert len(failed) == 2 * 101
    assert failed.count(f"{tmp_path}/none\\udcff") == 2


def test_a_sample_of_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(300_000))
    before = sample(str(path), 300_000)
    with path.open("ab") as file:
        file.write(b"more")
    assert sample(str(path), 300_000) == before
    os.truncate(path, 10)
    assert sample(str(path), 300_000).why == "it has 10 bytes"
    found = look(Asked((), (), str(tmp_path / "none"), True))
    assert found["staging"] == {"why": "No such file or directory"}
    assert found["broken"] is None


# Another machine's view: a Python in its own mount namespace, with other files under the path, and without kafkalog.
WRAPPER = """#!/bin/sh
exec unshare -m sh -c 'mount --bind "{other}" "{path}" && exec "{python}" "$@"' sh "$@"
"""


def command(log_dir: Path, python: Path | str, *more: str) -> tuple[int, list[dict[str, Any]], str]:
    import pyspark

    line = [sys.executable, "-m", "kafkalog", "spark", "doctor", str(log_dir), "--json"]
    for setting in ("ui.enabled=false", "driver.host=127.0.0.1", "driver.bindAddress=127.0.0.1", *more):
        line += ["--conf", f"spark.{setting}"]
    line += ["--conf", f"spark.pyspark.python={python}", "--conf", f"spark.pyspark.driver.python={sys.executable}"]
    home = str(Path(pyspark.__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    environment |= {"SPARK_HOME": home}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)
    return done.returncode, [json.loads(text) for text in done.stdout.splitlines()], done.stderr


@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0, reason="no mount namespaces here"
)
def test_executors_that_see_other_files(log_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with kafkalog.open_log(other, "t-0") as log:
        log.append_many([b"y" * 100] * 1000)
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(other=other, path=log_dir, python=sys.executable))
    wrapper.chmod(0o755)
    executors = 2 if LONG else 1  # one: only its Python is a separate process
    cluster = ("master=local-cluster[2,1,1024]", "executor.memory=512m") if LONG else ("master=local[2]",)
    code, lines, err = command(log_dir, wrapper, *cluster)
    assert code == 1, err
    failed = [(each["check"], each["found"]) for each in lines if each["kind"] == "check" and not each["ok"]]
    assert len({each["place"] for each in lines if "/" in each.get("place", "")}) == executors, lines
    assert sorted({check for check, _ in failed}) == [str(log_dir), f"{log_dir}: files"]
    assert (str(log_dir), "1 partition, not u-0") in failed
    assert any("other bytes" in found for _, found in failed)
    assert lines[-1] == {"kind": "summary", "checks": len(lines) - 1, "failed": 2 * executors}


def test_executors_without_a_python(log_dir: Path, tmp_path: Path) -> None:
    code, lines, err = command(log_dir, tmp_path / "none", "master=local[1]")
    assert code == 1, err
    (failed,) = [each for each in lines if each["kind"] == "check" and not each["ok"]]
    assert failed["check"] == "executors"
    assert "Cannot run program" in failed["found"]
    assert "PYSPARK_PYTHON" in failed["advice"]
