"""Failures in a job: the row of the partition, an attempt that must not answer, errors before anything begins."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    ConfigException,
    CorruptCheckpointException,
    IllegalArgumentException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    LogDirLockedException,
    NoSuchFileException,
    UnsupportedOperationException,
)
from kafkalog.toolbox.export_hours import NOTES
from tests.spark.kit import damage_tail, files_of, fill, is_clean

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
T0 = TopicPartition("t", 0)
COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def jobs(spark: Any) -> Any:
    from kafkalog.spark import jobs

    return jobs


# --- a task ----------------------------------------------------------------------------------------------

ERRORS: dict[str, Exception] = {
    "MemoryError": MemoryError(),
    "OverflowError": OverflowError("date value out of range"),
    "ENOSPC": OSError(28, "No space left on device", "/lake/x"),
    "ours": LogDirLockedException("somebody has it"),
}


def _raise(name: str) -> str:
    if name in ERRORS:
        raise ERRORS[name]
    return name


def _failed(name: str, error: KafkalogError) -> str:
    return f"{name}: {error}"


def test_whatever_a_task_raises_is_its_result(spark: Any) -> None:
    from kafkalog.spark.jobs.run import run

    assert run(spark, _raise, ["fine", *ERRORS], failed=_failed) == [
        "fine",
        "MemoryError: MemoryError:  (use smaller tasks (range_bytes, map_bytes) or more memory)",
        "OverflowError: OverflowError: date value out of range",
        "ENOSPC: /lake/x: OSError: No space left on device",
        "ours: somebody has it",
    ]
    with pytest.raises(KafkaException, match="Spark ended the job: OverflowError: date value out of range"):
        run(spark, _raise, ["OverflowError"])


def test_errors_of_the_system_say_where_and_what_to_do() -> None:
    from kafkalog.spark.jobs.run import portable

    found = {
        kind: portable(kind(2, "words", "/x"))
        for kind in (FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError, OSError)
    }
    assert {kind: type(error) for kind, error in found.items()} == {
        FileNotFoundError: NoSuchFileException,
        PermissionError: KafkaStorageException,
        FileExistsError: IllegalArgumentException,
        NotADirectoryError: IllegalArgumentException,
        OSError: NoSuchFileException,  # Python makes a FileNotFoundError of number 2
    }
    assert {error.path for error in found.values()} == {"/x"}
    assert "owns it" in str(found[PermissionError])
    cause = KafkaStorageException("appending failed", path="/x")
    cause.__cause__ = OSError(28, "No space left on device")
    assert "No space left on device" in str(pickle.loads(pickle.dumps(portable(cause))))


# --- a second attempt ------------------------------------------------------------------------------------

FIRST = """
import base64, pickle, sys
from kafkalog.spark.jobs.shared import borrowed
with borrowed(pickle.loads(base64.b64decode(sys.argv[1]))):
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_a_second_attempt_fails_when_the_first_has_ended(tmp_path: Path) -> None:
    from kafkalog.spark.jobs import compacting, recovery, shared
    from kafkalog.spark.jobs.run import Unanswered, attempted, choose

    fill(tmp_path, "t-0", 30)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with shared.SharedDirectory(str(tmp_path)) as directory, ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        (task,) = choose(tmp_path, "t-0")
        loan = directory.lend(T0)
        directory.share()
        text = base64.b64encode(pickle.dumps(loan)).decode()
        first = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", FIRST, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )
        )
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "at work\n"
        recover = recovery.RecoveryOptions({}, from_start=False)
        attempts = [
            pool.submit(
                attempted, lambda task: recovery._recover(recover, task), recovery._not_recovered, (task, loan)
            ),
            pool.submit(attempted, lambda task: compacting.compact_loan(task, {}, None), _failed, loan),
        ]
        assert not any(attempt.done() for attempt in attempts)
        first.stdin.close()
        for attempt in attempts:
            with pytest.raises(Unanswered, match="another attempt at this task was running"):
                attempt.result(timeout=60)


@pytest.mark.parametrize("is_new", [True, False])
def test_only_the_driver_warns_of_lost_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture, is_new: bool) -> None:
    """A new directory has empty checkpoints, and those of a closed one have lost their lines."""
    from kafkalog.spark.jobs import shared

    if not is_new:
        fill(tmp_path, "t-0", 3)
        (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"")
    with shared.SharedDirectory(str(tmp_path), create=True) as directory:
        loan = directory.lend(T0)
        directory.share()
        assert [text for text in caplog.messages if "all records count as not flushed" in text] == [
            f"[dir={tmp_path}] {tmp_path}/recovery-point-offset-checkpoint: found an empty file, expected entries and "
            "their number; all records count as not flushed"
        ] * (not is_new)
        caplog.clear()
        with shared.borrowed(loan) as own, kafkalog.open_log(own.path, T0):
            assert not caplog.messages


def test_an_attempt_whose_job_is_over_does_not_answer(tmp_path: Path) -> None:
    from kafkalog.spark.jobs import recovery, shared
    from kafkalog.spark.jobs.run import Unanswered, attempted, choose

    fill(tmp_path, "t-0", 30)
    before = files_of(tmp_path / "t-0")
    with shared.SharedDirectory(str(tmp_path)) as directory:
        (task,) = choose(tmp_path, "t-0")
        loan = directory.lend(T0)
        directory.share()
    how = recovery.RecoveryOptions({}, from_start=True)
    with pytest.raises(Unanswered, match="not shared any more"):
        attempted(partial(recovery._recover, how), recovery._not_recovered, (task, loan))
    assert files_of(tmp_path / "t-0") == before


# --- before anything begins ------------------------------------------------------------------------------

HOLD = "import kafkalog, sys; log = kafkalog.open_log(sys.argv[1], 't-0'); print('held', flush=True); sys.stdin.read()"


def test_a_directory_that_cannot_be_had_leaves_the_others_clean(spark: Any, jobs: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for root in (first, second):
        fill(root, "t-0" if root == second else "s-0", 20)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(second)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for job in (
            lambda: jobs.recover(spark, [first, second], act=True),
            lambda: jobs.compact(spark, [first, second], ["s", "t"], act=True, config=COMPACT),
        ):
            with pytest.raises(LogDirLockedException):
                job()
            assert is_clean(first)
        holder.kill()


def snapshot(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != names.LOCK_FILE}


SETTINGS: list[tuple[dict[str, str], str]] = [
    ({"cleanup.policy": "nonsense"}, "cleanup.policy"),
    ({"no.such.setting": "1"}, "no.such.setting"),
    ({"segment.bytes": "many"}, "segment.bytes"),
    ({"max.compaction.lag.ms": "10"}, "max.compaction.lag.ms"),  # below the min that the topic has
]


@pytest.mark.parametrize(("config", "text"), SETTINGS)
def test_settings_without_sense_change_nothing(
    spark: Any, jobs: Any, tmp_path: Path, config: dict[str, str], text: str
) -> None:
    root, lake = tmp_path / "logs", tmp_path / "lake"
    with kafkalog.open(root) as store:
        store.create_topic("t", partitions=1, config={**COMPACT, "min.compaction.lag.ms": "100"})
    fill(root, "t-0", 20)
    jobs.export(spark, root, lake)
    assert is_clean(root)
    before = snapshot(root)
    for job in (
        lambda: jobs.recover(spark, root, act=True, config=config),
        lambda: jobs.compact(spark, root, ["t"], act=True, config=config),
        lambda: jobs.compact_by_shuffle(spark, root, "t-0", act=True, config=config),
        lambda: jobs.import_(spark, lake, root, config=config, resume=True),
    ):
        with pytest.raises(ConfigException, match=text):
            job()
        assert snapshot(root) == before
    if "max.compaction.lag.ms" not in config:  # it depends on the defaults of a new topic
        with pytest.raises(ConfigException, match=text):
            jobs.import_(spark, lake, tmp_path / "new", config=config)
        assert not (tmp_path / "new").exists()


def test_a_policy_is_for_topics_that_are_named(spark: Any, jobs: Any, tmp_path: Path) -> None:
    """Records of others, without keys, would be lost."""
    fill(tmp_path, "t-0", 20)
    before = snapshot(tmp_path)
    with pytest.raises(IllegalArgumentException, match=r"cleanup\.policy for whole directories.*`partitions`"):
        jobs.compact(spark, tmp_path, act=True, config=COMPACT)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("map_bytes", [-1, 0, 71, "many", None])
def test_a_map_without_sense_changes_nothing(spark: Any, jobs: Any, tmp_path: Path, map_bytes: Any) -> None:
    fill(tmp_path, "t-0", 20)
    before = snapshot(tmp_path)
    with pytest.raises(IllegalArgumentException, match="map_bytes: found"):
        jobs.compact(spark, tmp_path, ["t"], act=True, config=COMPACT, map_bytes=map_bytes)
    assert snapshot(tmp_path) == before
    assert is_clean(tmp_path)


def test_stored_settings_that_cannot_be_read_change_nothing(spark: Any, jobs: Any, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t", partitions=1)
    fill(tmp_path, "t-0", 20)
    (tmp_path / names.TOPIC_CONFIGS_FILE).write_text("nonsense")
    before = snapshot(tmp_path)
    for job in (jobs.recover, jobs.compact):
        with pytest.raises(CorruptCheckpointException, match="kafkalog_topics"):
            job(spark, tmp_path, act=True)
        assert snapshot(tmp_path) == before


def test_a_session_that_runs_no_jobs_changes_nothing(jobs: Any, tmp_path: Path, spark: Any) -> None:
    """The same as with a session of Spark Connect, which has no context."""
    root, lake = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 20)
    jobs.export(spark, root, lake)
    before = snapshot(tmp_path)
    for job in (
        lambda: jobs.recover(None, root, act=True),
        lambda: jobs.compact(None, root, ["t"], act=True, config=COMPACT),
        lambda: jobs.compact_by_shuffle(None, root, "t-0", act=True, config=COMPACT),
        lambda: jobs.import_(None, lake, root, resume=True),
        lambda: jobs.import_(None, lake, tmp_path / "new"),
        lambda: jobs.export(None, root, tmp_path / "new"),
    ):
        with pytest.raises(UnsupportedOperationException, match="classic session"):
            job()
        assert snapshot(tmp_path) == before
        assert not (tmp_path / "new").exists()
    assert is_clean(root)


def test_a_partition_that_this_process_has_open_leaves_the_directory_clean(
    spark: Any, jobs: Any, tmp_path: Path
) -> None:
    for partition in ("t-0", "t-1", "t-2"):
        fill(tmp_path, partition, 20)
    for job in (
        lambda: jobs.recover(spark, tmp_path, act=True),
        lambda: jobs.compact(spark, tmp_path, ["t"], act=True, config=COMPACT),
    ):
        with kafkalog.open_log(tmp_path, "t-1"), pytest.raises(IllegalArgumentException, match="open already"):
            job()
        assert is_clean(tmp_path)


class Unreadable(str):
    """A text that no executor can unpickle: Spark ends the job."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, ()


def _explode() -> None:
    raise RuntimeError("nobody can read this")


def test_a_job_that_spark_ends_says_what_it_left(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, lake, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    fill(root, "t-0", 20)
    with pytest.raises(KafkaException, match="Spark ended the job") as caught:
        jobs.export(spark, root, lake, codec=Unreadable("zstd"))
    assert f"{lake / NOTES} was created and not removed" in str(caught.value)
    jobs.export(spark, root, lake)
    fill(root, "t-0", 20)
    with pytest.raises(KafkaException, match="Spark ended the job") as caught:
        jobs.export(spark, root, lake, codec=Unreadable("zstd"))
    assert "was created" not in str(caught.value)
    config = {"segment.ms": Unreadable("1000000")}
    for job, directory in (
        (lambda: jobs.recover(spark, root, act=True, config=config), root),
        (lambda: jobs.compact(spark, root, ["t"], act=True, config={**config, **COMPACT}), root),
        (lambda: jobs.compact_by_shuffle(spark, root, "t-0", act=True, config={**config, **COMPACT}), root),
        (lambda: jobs.import_(spark, lake, back, config=config), back),
    ):
        with pytest.raises(KafkaException, match="Spark ended the job") as caught:
            job()
        assert f"{directory} has no clean-shutdown marker now" in str(caught.value)
        assert not is_clean(directory)
        assert {row.error for row in jobs.recover(spark, root, act=True).collect()} == {None}
        assert is_clean(root)


def test_what_the_system_says_of_a_target_is_an_error_of_ours(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, lake = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 20)
    folder = lake / "topic=t" / "hour=2023-11-14-22" / f"t-0-{0:020d}.parquet"
    folder.mkdir(parents=True)
    with pytest.raises(KafkalogError) as caught:
        jobs.export(spark, root, lake)
    assert str(folder) in str(caught.value)
    assert f"expected a directory to write to; {lake / NOTES} was created and not removed" in str(caught.value)


def test_targets_in_log_directories_are_refused(spark: Any, jobs: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for root in (first, second):
        fill(root, "t-0", 20)
    before = sorted(path for root in (first, second) for path in root.rglob("*"))
    for target in (first, first / "lake", second, second / "t-0" / "lake"):
        with pytest.raises(IllegalArgumentException, match=r"expected a target outside of log directories.*another"):
            jobs.export(spark, first, target)
    assert sorted(path for root in (first, second) for path in root.rglob("*")) == before


def test_internal_topics_are_exported_by_name(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    for partition in ("t-0", f"{names.GROUP_METADATA_TOPIC}-3", f"{names.TRANSACTION_STATE_TOPIC}-1"):
        fill(root, partition, 20)
    assert {row.topic for row in jobs.export(spark, root, tmp_path / "lake").collect()} == {"t"}
    rows = jobs.export(spark, root, tmp_path / "lake", [names.GROUP_METADATA_TOPIC]).collect()
    assert [(row.topic, row.partition, row.records) for row in rows] == [(names.GROUP_METADATA_TOPIC, 3, 20)]
    assert jobs.verify(spark, root).where("topic is not null").count() == 3


def test_one_name_is_one_name(spark: Any, jobs: Any, tmp_path: Path) -> None:
    for partition in ("t-0", "t-1"):
        fill(tmp_path / "logs", partition, 20)
    for name in ("t-1", TopicPartition("t", 1)):
        rows = jobs.verify(spark, tmp_path / "logs", name).collect()
        assert [(row.topic, row.partition) for row in rows] == [("t", 1)]
    jobs.export(spark, tmp_path / "logs", tmp_path / "lake", "t")
    (row,) = jobs.import_(spark, tmp_path / "lake", tmp_path / "back", "t-1").collect()
    assert (row.partition, row.records) == (1, 20)


def test_paths_that_are_wrong(spark: Any, jobs: Any, tmp_path: Path) -> None:
    fill(tmp_path / "logs", "t-0", 20)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoSuchFileException, match=r"nothing: not found .*expected a Kafka log directory"):
        jobs.verify(spark, tmp_path / "nothing")
    with pytest.raises(IllegalArgumentException, match="file: found a file, expected a directory"):
        jobs.verify(spark, tmp_path / "file")
    with pytest.raises(IllegalArgumentException, match=r"file.*: found a file, expected a directory"):
        jobs.export(spark, tmp_path / "logs", tmp_path / "file")
    jobs.export(spark, tmp_path / "logs", tmp_path / "lake")
    with pytest.raises(IllegalArgumentException, match=r"file.*: found a file, expected a directory"):
        jobs.import_(spark, tmp_path / "lake", tmp_path / "file")


def test_an_import_that_is_refused_leaves_the_directory_clean(spark: Any, jobs: Any, tmp_path: Path) -> None:
    fill(tmp_path / "logs", "t-0", 20)
    jobs.export(spark, tmp_path / "logs", tmp_path / "lake")
    (row,) = jobs.import_(spark, tmp_path / "lake", tmp_path / "logs").collect()
    assert "already has records up to offset 19 (use resume to append the records after them)" in row.error
    assert is_clean(tmp_path / "logs")


def test_errors_of_an_executor_name_the_real_directory(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    fill(root, "t-0", 200)
    (root / names.CLEAN_SHUTDOWN_FILE).unlink()
    damage_tail(root / "t-0")
    jobs.export(spark, root, tmp_path / "lake", skip_damage=True)
    (row,) = jobs.import_(spark, tmp_path / "lake", root, resume=True).collect()
    assert str(root / "t-0") in row.error
    assert "/kafkalog-" not in row.error


# --- compact_by_shuffle tells ----------------------------------------------------------------------------


@pytest.mark.parametrize("rolls", [False, True])
def test_compaction_by_shuffle_tells_what_it_does(spark: Any, jobs: Any, tmp_path: Path, rolls: bool) -> None:
    fill(tmp_path, "t-0", 300, keys=40)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (told,) = jobs.compact_by_shuffle(spark, tmp_path, "t-0", config=COMPACT, rolls=rolls).collect()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with kafkalog.open_log(tmp_path, "s-0"):  # the directory is not in use
        pass
    (done,) = jobs.compact_by_shuffle(spark, tmp_path, "t-0", act=True, config=COMPACT, rolls=rolls).collect()
    assert (told.done, done.done, told.error, done.error) == (False, True, None, None)
    same = [name for name in told.asDict() if name not in ("done", "elapsed_ms")]
    assert [told[name] for name in same] == [done[name] for name in same]
    assert told.superseded > 100
