"""Runs some tests of Spark with other versions of PySpark than the installed one.

python -m tests.spark_versions              # 4.0 and 4.2, at the same time
python -m tests.spark_versions 4.0 -- -x    # one of them; arguments after -- are for pytest

Each version is downloaded from the package registry once, into build/pyspark-<version> (`pip --target`, about 500 MB
with its jars and py4j).  pytest then finds it before the environment's version.  Tests of features that an older
PySpark lacks are skipped with the reason (`tests/spark/versions.py`).  KAFKALOG_SPARK_ONE=1 runs only the day's version
(`tests/sampling.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.durations import ROOT
from tests.sampling import SEED

VERSIONS = {"4.0": "pyspark==4.0.*", "4.2": "pyspark==4.2.*"}

# A few short tests of each part; PySpark 4.0 has neither streams nor Arrow writers for Python's sources.
TESTS = {
    "test_source.py": (
        "test_rows_are_the_records",
        "test_schema_is_that_of_the_kafka_source",
        "test_errors",
        "test_data_loss_can_be_accepted",
        "test_a_stream_asks_for_keys",
    ),
    "test_batch_read.py": (
        "test_filters_give_the_same_rows_pushed_or_not",
        "test_a_frame_that_is_used_twice_is_right_by_default",
        "test_latest_as_of_an_offset_and_pruned",
    ),
    "test_sql.py": (
        "test_a_table_is_read",
        "test_a_statements_options_go_before_the_tables",
        "test_rows_are_inserted",
        "test_a_table_without_options",
        "test_a_table_as_a_stream",
    ),
    "test_sessions.py": (
        "test_timestamps_without_a_time_zone",
        "test_columns_that_are_not_null",
        "test_arrow_and_names",
        "test_sparks_own_settings_are_no_users",
        "test_a_thread_reads",
        "test_a_thread_writes",
    ),
    "test_option_errors.py": (
        "test_a_sentence_at_the_end",
        "test_a_stream_is_refused_when_it_is_built",
        "test_paths_with_commas",
        "test_modes_of_a_write",
    ),
    "test_json_values.py": ("test_with_other_options", "test_by_a_schema", "test_a_stream"),
    "test_packing.py": (
        "test_many_small_partitions_are_few_tasks",
        "test_a_source_that_knows_the_session_makes_tasks_for_its_cores",
    ),
    "test_decoding.py": ("test_what_cannot_be_decoded", "test_debezium", "test_a_value_is_parsed_once"),
    "test_changes.py": ("test_columns_and_what_is_refused",),
}


def folder(version: str) -> Path:
    return ROOT / "build" / f"pyspark-{version}"


def fetch(version: str) -> Path:
    """The directory of a version; downloaded if it does not exist yet, whole or not at all."""
    made = folder(version)
    if not (made / "pyspark").is_dir():
        part = made.with_name(f"{made.name}.part-{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(part)]
        subprocess.run([*pip, VERSIONS[version]], check=True)
        part.rename(made)
    return made


def start(version: str, pytest_args: Sequence[str]) -> subprocess.Popen[bytes]:
    """pytest with that PySpark before all others, on Spark's side too."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder(version)), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "KAFKALOG_EXPECT_PYSPARK": version,
    }
    env.pop("SPARK_HOME", None)
    tests = [f"{ROOT / 'tests' / 'spark' / file}::{name}" for file, names in TESTS.items() for name in names]
    with open(ROOT / "build" / f"pyspark-{version}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-rs", *tests, *pytest_args],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def main(args: Sequence[str]) -> int:
    place = args.index("--") if "--" in args else len(args)
    versions, pytest_args = list(args[:place]) or list(VERSIONS), args[place + 1 :]
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown:
        print(f"found {' '.join(unknown)}, expected some of {' '.join(VERSIONS)}", file=sys.stderr)
        return 2
    if os.environ.get("KAFKALOG_SPARK_ONE") == "1":
        versions = [versions[SEED % len(versions)]]
    for version in versions:
        fetch(version)
    began = time.monotonic()
    failed = []
    for version, running in [(version, start(version, pytest_args)) for version in versions]:
        code = running.wait()
        text = (ROOT / "build" / f"pyspark-{version}.log").read_text(errors="replace")
        lines = text.splitlines()
        print(f"PySpark {version}, {time.monotonic() - began:.0f} s: {lines[-1] if lines else f'ended with {code}'}")
        if code:
            failed.append(version)
            print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
