"""Oddities of a survey: each kind is found, healthy directories have no rows, and commands run as they are."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import kafkalog
from kafkalog.cli.app import cli
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.report import oddities
from kafkalog.report.missing import COMPACTED_TEXT, MISSING_TEXT
from kafkalog.report.oddities import add_odd
from kafkalog.report.survey import survey
from kafkalog.report.tables import Survey
from tests.client_transaction import client_transaction
from tests.unit.cli_kit import Run, of_kafka, run
from tests.unit.cursor_kit import commit, store_home
from tests.unit.tier_kit import tiered

__all__ = ["run"]

KAFKA_LOGS = Path(__file__).parents[1] / "pages" / "kafka-logs"
WRITES = frozenset({"salvage"})
T0 = TopicPartition("t", 0)


def odd(made: Survey) -> list[tuple[str, str]]:
    """Returns severities and texts; the disk of the machine that runs the tests may be full."""
    rows = made.tables["odd"].rows(("severity", "text"))
    return [(row["severity"], row["text"]) for row in rows if not row["text"].startswith("the file system of")]


def texts(made: Survey) -> list[str]:
    return [text for _, text in odd(made)]


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("healthy") / "data"
    with kafkalog.open(data) as store:
        topic = store.create_topic("t", partitions=3)
        for number in range(3):
            topic.partition(number).append_many([b"%d" % each for each in range(40)])
        store.create_topic("u", config={"cleanup.policy": "compact"}).append(b"x", key=b"k")
        with store.reader("billing", topics=["t"]) as reader:
            reader.poll(50)
            reader.commit()
        with store.transaction("job") as txn:
            txn.append("u", b"y", key=b"k")
    return data


@pytest.fixture
def healthy(made_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_once, tmp_path / "data"))


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_directory_has_no_rows(healthy: Path, deep: bool) -> None:
    assert odd(survey([str(healthy)], deep=deep)) == []


@pytest.mark.parametrize("deep", [False, True])
def test_a_brokers_directory(run: Run, deep: bool) -> None:
    made = survey([str(KAFKA_LOGS)], deep=deep)
    _all_run(run, made)
    found = odd(made)
    assert [severity for severity, _ in found] == ["error", "note"]
    assert found[0][1].startswith("a transaction hangs in payments-0 for")
    assert found[0][1].endswith("transactional id 'refunds', producer 1, from offset 33; it holds back 9 records")
    assert "server.properties is not given" in found[1][1]


# --- harm --------------------------------------------------------------------------------------------


def log_of(data: Path, name: str = "t-0") -> Path:
    return max((data / name).glob("*.log"))


def torn(data: Path) -> None:
    log = log_of(data)
    os.truncate(log, log.stat().st_size - 3)


def index_alone(data: Path) -> None:
    (data / "t-1" / f"{7:020d}.index").write_bytes(b"")


def checkpoint_torn(data: Path) -> None:
    (data / names.HIGH_WATERMARK_CHECKPOINT_FILE).write_text("0\n9\nt 0 1\n")


def checkpoint_after_the_end(data: Path) -> None:
    (data / names.LOG_START_OFFSET_CHECKPOINT_FILE).write_text("0\n1\nt 0 0\n")
    (data / names.HIGH_WATERMARK_CHECKPOINT_FILE).write_text("0\n1\nt 0 5000\n")


def partition_gone(data: Path) -> None:
    for path in (data / "t-1").iterdir():
        path.unlink()
    (data / "t-1").rmdir()


def unclean(data: Path) -> None:
    (data / names.CLEAN_SHUTDOWN_FILE).unlink()


def stray(data: Path) -> None:
    (data / f"old-0.{'0' * 32}-stray").mkdir()


def moving(data: Path) -> None:
    (data / f"t-0.{'0' * 32}-future").mkdir()


def deleted(data: Path) -> None:
    (data / f"t-9.{'0' * 32}-delete").mkdir()


def foreign(data: Path) -> None:
    (data / "notes").mkdir()


def hanging(data: Path) -> None:
    with kafkalog.open_log(data, "t-0", abort_left_open=False) as log:
        txn = client_transaction(log, "x")
        txn.begin()
        txn.append(b"1", timestamp=1_700_000_000_000)


def after_the_end(data: Path) -> None:
    with store_home(data) as home:
        commit(home, "ahead", {T0: 5000})


def of_a_topic_that_is_gone(data: Path) -> None:
    with store_home(data) as home:
        commit(home, "lost", {TopicPartition("nowhere", 0): 1})


def deleted_before_it_was_read(data: Path) -> None:
    with store_home(data) as home:
        commit(home, "late", {T0: 1})
    with kafkalog.open_log(data, "t-0") as log:
        log.delete_records(20)


def in_the_future(data: Path) -> None:
    config = {
        "message.timestamp.after.max.ms": "100000000",
        "retention.ms": "1000000",
        "cleanup.policy": "delete",
        "segment.bytes": "1048576",
    }
    with kafkalog.open(data, maintenance=False) as store:
        log = store.create_topic("f", config=config).partition(0)
        log.append(b"x", timestamp=time.time_ns() // 1_000_000 + 90_000_000)
        log.append(bytes(1_000_000))
        log.append(bytes(100_000))


HARM: dict[Callable[[Path], None], tuple[str, str]] = {
    torn: ("error", "t-0 is damaged: "),
    index_alone: ("error", "t-1 is damaged: 1 finding"),
    checkpoint_torn: ("error", "replication-offset-checkpoint: "),
    checkpoint_after_the_end: ("warning", "t-0: replication-offset-checkpoint says 5000"),
    partition_gone: ("error", "topic t has 3 partitions, found no directory of t-1"),
    unclean: ("note", "was not closed cleanly, or is open now"),
    stray: ("warning", "stray directories"),
    moving: ("note", "being moved"),
    deleted: ("note", "deleted partitions"),
    foreign: ("warning", "names that are not Kafka's"),
    hanging: ("error", "a transaction hangs in t-0 for"),
    after_the_end: ("error", "group 'ahead' is at offset 5000 of t-0, after its end"),
    of_a_topic_that_is_gone: ("warning", "group 'lost' has offsets in partitions that are not in these directories"),
    deleted_before_it_was_read: ("warning", "group 'late' is at offset 1 of t-0, before its start 20"),
    in_the_future: ("warning", "f-0 has a record that is 1.0 d in the future"),
}


@pytest.mark.parametrize("harm", HARM)
def test_each_kind_is_found_and_its_command_runs(run: Run, healthy: Path, harm: Callable[[Path], None]) -> None:
    harm(healthy)
    severity, text = HARM[harm]
    for deep in (False, True):
        made = survey([str(healthy)], deep=deep)
        found = [(how, what) for how, what in odd(made) if text in what]
        assert [how for how, _ in found] == [severity], odd(made)
        assert len(odd(made)) <= 3, odd(made)
        _all_run(run, made)


def _all_run(run: Run, made: Survey) -> None:
    """Commands that only read run as they are printed, and the others are parsed."""
    for row in made.tables["odd"].rows():
        first, verb, *words = shlex.split(row["command"])
        assert first == "kafkalog"
        assert "--yes" not in words
        if verb not in WRITES:
            assert run(verb, *words).code in (0, 1), row
        _parse([verb, *words])


def _parse(words: list[str]) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None, words
    command.make_context(words[0], words[1:], parent=context, resilient_parsing=False)


def test_the_most_serious_comes_first(healthy: Path) -> None:
    for harm in (deleted, unclean, stray, torn):
        harm(healthy)
    severities = [severity for severity, _ in odd(survey([str(healthy)]))]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert set(severities) == {"error", "warning", "note"}


def test_damage_before_hanging_transactions(healthy: Path) -> None:
    hanging(healthy)
    os.truncate(log_of(healthy, "t-1"), 10)
    first, second = texts(survey([str(healthy)]))[:2]
    assert first.startswith("t-1 is damaged")
    assert second.startswith("a transaction hangs in t-0")


def test_a_hanging_transaction_has_the_command_that_ends_it(run: Run, healthy: Path) -> None:
    hanging(healthy)
    (row,) = (row for row in survey([str(healthy)]).tables["odd"].rows() if "hangs" in row["text"])
    words = shlex.split(row["command"])[1:]
    assert run(*words).code == 0
    assert "would be aborted" in run(*words).out
    assert run(*words, "--yes").code == 0
    assert not [text for text in texts(survey([str(healthy)])) if "hangs" in text]


def test_salvage_is_named_if_it_keeps_more(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with kafkalog.open_log(data, "t-0") as log:
        for number in range(20):
            log.append(b"%d" % number)
    unclean(data)
    (data / names.RECOVERY_POINT_CHECKPOINT_FILE).unlink()
    content = bytearray(log_of(data).read_bytes())
    content[300] ^= 1
    log_of(data).write_bytes(content)
    (row,) = [row for row in survey([str(data)], deep=True).tables["odd"].rows() if row["severity"] == "error"]
    assert row["command"] == f"kafkalog salvage {data} {data}-salvaged t-0"
    assert "A recovery would cut" in row["text"]
    assert run(*shlex.split(row["command"])[1:]).code == 1  # something is lost
    assert (tmp_path / "data-salvaged" / "t-0").is_dir()


def test_how_much_a_recovery_reads(tmp_path: Path) -> None:
    """From the segment with the recovery point on."""
    data = tmp_path / "data"
    with kafkalog.open_log(data, "t-0", config={"internal.segment.bytes": "1000"}) as log:
        for _ in range(30):
            log.append(bytes(200))
    unclean(data)
    sizes = [log.stat().st_size for log in sorted((data / "t-0").glob("*.log"))]
    for point, expected in ((0, sum(sizes)), (30, sizes[-1])):
        (data / names.RECOVERY_POINT_CHECKPOINT_FILE).write_text(f"0\n1\nt 0 {point}\n")
        (text,) = [text for text in texts(survey([str(data)])) if "not closed cleanly" in text]
        assert f"the next start reads {kafkalog._shown.size(expected)} of its logs" in text


@pytest.mark.parametrize("names_it", [False, True])
def test_transactions_that_are_not_followed(
    run: Run, healthy: Path, monkeypatch: pytest.MonkeyPatch, names_it: bool
) -> None:
    with kafkalog.open_log(healthy, "u-0", config={"internal.segment.bytes": "1000"}) as log:
        for number in range(10):
            log.append(bytes(200), key=b"%d" % number)
    for path in healthy.rglob("*.snapshot"):
        path.unlink()
    monkeypatch.setattr("kafkalog.report.survey.FOLLOW_BYTES_MAX", 0)
    made = survey([str(healthy)], ["u-0"] if names_it else [])
    (unknown,) = [row for row in made.tables["odd"].rows() if "are unknown: the log after" in row["text"]]
    assert unknown["severity"] == "note"
    assert (unknown["topic"], unknown["partition"]) == ("u", 0) or not names_it
    (row,) = [row for row in made.tables["partitions"].rows() if row["topic"] == "u"]
    assert [row[name] for name in ("lastStableOffset", "openTransactions", "cleanBytes", "dirtyBytes")] == [None] * 4
    _all_run(run, made)
    assert odd(survey([str(healthy)], deep=True)) == []


def test_a_partition_in_two_directories(run: Run, healthy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with kafkalog.open(other) as store:
        store.create_topic("v")
    for name in ("u-0", "t-1"):
        shutil.copytree(healthy / name, other / name)
    made = survey([str(healthy), str(other)])
    assert [(severity, text.partition(" is in ")[0]) for severity, text in odd(made)] == [
        ("error", "t-1"),
        ("error", "u-0"),
    ]
    _all_run(run, made)


@pytest.mark.parametrize("by_address", [False, True])
def test_damage_of_an_object_of_a_tier(run: Run, tmp_path: Path, by_address: bool) -> None:
    tiered(tmp_path / "store", tmp_path / "tier")
    log = max((tmp_path / "tier").rglob("*.log"))
    log.write_bytes(log.read_bytes()[:300] + b"x" + log.read_bytes()[301:])
    words = [tmp_path / "tier"] if by_address else [tmp_path / "store", "--remote", tmp_path / "tier"]
    lines = map(json.loads, run("report", *words, "--deep", "--json").lines)
    (command,) = [row["command"] for row in lines if row["kind"] == "odd" and "damaged" in row["text"]]
    assert command == f"kafkalog verify --deep {tmp_path}/tier orders-0"
    assert run(*shlex.split(command)[1:]).code == 1


def test_a_directory_that_is_missing(healthy: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    made = survey([str(healthy), gone])
    assert made.tables["odd"].columns["command"] == [f"kafkalog verify {gone}"]


def test_a_snapshot_of_producers_tells_how_far_a_log_is_compacted(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = survey([str(healthy)])
    monkeypatch.setattr("kafkalog.report.survey.FOLLOW_BYTES_MAX", 0)
    for name in ("cleanBytes", "dirtyBytes"):
        assert survey([str(healthy)]).tables["partitions"].columns[name] == known.tables["partitions"].columns[name]


# --- from tables alone ----------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Survey]:
    """An empty survey."""
    kafkalog.open_log(tmp_path / "empty", "other-0").close()
    return Survey([str(tmp_path / "empty")], 1_700_000_000_000)


def of_tables(made: Survey) -> list[str]:
    add_odd(made)
    return texts(made)


def partition(made: Survey, number: int, **row: Any) -> None:
    made.tables["partitions"].add(topic="t", partition=number, logDir=made.log_dirs[0], segments=1, **row)


def test_nothing_is_odd_about_nothing(made: Survey) -> None:
    assert of_tables(made) == []


@pytest.mark.parametrize(("free", "severity"), [(50, None), (9, "warning"), (1, "error")])
def test_a_full_disk(made: Survey, free: int, severity: str | None) -> None:
    made.tables["disks"].add(logDir=made.log_dirs[0], diskBytes=100 << 30, freeBytes=free << 30)
    add_odd(made)
    assert made.tables["odd"].columns["severity"] == ([] if severity is None else [severity])


def test_an_open_transaction_that_holds_much(made: Survey) -> None:
    for number, (age_ms, held) in enumerate([(90_000, 20_000), (90_000, 20), (900, 20_000), (90_000, None)]):
        made.tables["transactions"].add(
            topic="t", partition=number, state="open", producerId=7, firstOffset=3, ageMs=age_ms, heldRecords=held
        )
    assert of_tables(made) == [
        "a transaction is open in t-0 for 1.5 min: producer 7, from offset 3; it holds back 20000 records"
    ]


def test_a_large_lag(made: Survey) -> None:
    for number, lag in enumerate((600_000, 400_000)):
        partition(made, number, records=1_000_000, logStartOffset=0)
        made.tables["groups"].add(
            group="g", topic="t", partition=number, offset=1_000_000 - lag, end=1_000_000, lag=lag
        )
    assert of_tables(made) == ["group 'g' is 600000 records behind the end of t-0"]


def test_a_partition_that_is_not_compacted(made: Survey) -> None:
    partition(made, 0, cleanBytes=10 << 20, dirtyBytes=90 << 20)
    partition(made, 1, cleanBytes=90 << 20, dirtyBytes=80 << 20)
    partition(made, 2, cleanBytes=0, dirtyBytes=1000)
    (text,) = of_tables(made)
    assert text.startswith("t-0 is compacted, but 90.0 MiB of 100.0 MiB are not compacted yet")


def test_skew(made: Survey) -> None:
    for number, size in enumerate((400, 20, 20, 20)):
        partition(made, number, size=size << 20)
    assert of_tables(made) == ["t-0 has 400.0 MiB, 3.5 times the mean of its 4 partitions"]


def test_what_is_not_compressed(made: Survey) -> None:
    partition(made, 0)
    made.tables["codecs"].add(topic="t", partition=0, codec="none", batches=100, records=9_000, bytes=300 << 20)
    made.tables["codecs"].add(topic="t", partition=0, codec="lz4", batches=1, records=9, bytes=1 << 20)
    assert of_tables(made) == ["300.0 MiB of topic t are not compressed"]


def test_tiny_batches(made: Survey) -> None:
    partition(made, 0)
    made.tables["codecs"].add(topic="t", partition=0, codec="none", batches=20_000, records=20_000, bytes=2_000_000)
    (text,) = of_tables(made)
    assert text.startswith("batches of topic t are small: 100 bytes and 1.0 records on average")


def test_tiny_segments(made: Survey) -> None:
    made.tables["partitions"].add(topic="t", partition=0, logDir=made.log_dirs[0], segments=500, size=500 << 10)
    (text,) = of_tables(made)
    assert text.startswith("t-0 has 500 segments of 1.0 KiB on average")


def test_times_that_go_back(made: Survey) -> None:
    partition(made, 0)
    day_ms, now_ms = 86_400_000, made.now_ms
    for base, first, last in ((0, now_ms - 9 * day_ms, now_ms - day_ms), (10, now_ms - 3 * day_ms, now_ms)):
        made.tables["segments"].add(
            topic="t", partition=0, baseOffset=base, minTimestamp=first, maxTimestamp=last, size=1
        )
    (text,) = of_tables(made)
    assert text.startswith("times in t-0 go back by 2.0 d in segment 10")


def test_gaps_that_nothing_explains(made: Survey) -> None:
    for first, last, why in ((3, 4, MISSING_TEXT), (7, 16, MISSING_TEXT), (20, 29, COMPACTED_TEXT)):
        made.tables["gaps"].add(
            topic="t", partition=1, firstOffset=first, lastOffset=last, offsets=last - first + 1, why=why
        )
    assert of_tables(made) == [
        "t-1 lacks 12 offsets, most of them from 7 to 16, and nothing says that its topic is compacted: "
        "an earlier compaction or a salvage left the gap, or files are missing"
    ]


def test_preallocated_space(made: Survey) -> None:
    made.facts["preallocated"] = 2 << 30
    assert of_tables(made) == ["2.0 GiB of the disk are preallocated, after the ends of active segments"]


def test_many_rows_of_one_kind_become_one(made: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oddities, "ROWS_OF_KIND_MAX", 3)
    for number in range(10):
        made.tables["transactions"].add(
            topic="t", partition=number, state="hanging", producerId=7, firstOffset=3, ageMs=9, heldRecords=number
        )
    found = of_tables(made)
    assert len(found) == 3
    assert found[0].startswith("a transaction hangs in t-9")
    assert found[2].endswith("(and 7 more such)")


def test_names_are_quoted(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "a dir; rm"
    with kafkalog.open(data) as store:
        store.create_topic("t").append(b"x")
    with store_home(data) as home:
        commit(home, "$(reboot) '<script>'", {T0: 99})
    made = survey([str(data)])
    (row,) = [row for row in made.tables["odd"].rows() if row["text"].startswith("group")]
    assert shlex.split(row["command"]) == ["kafkalog", "cursors", str(data), "--group", "$(reboot) '<script>'"]
    _all_run(run, made)


@pytest.mark.parametrize("scenario", ["append_basic", "compact_txn", "idempotent", "retention_time"])
def test_a_clean_directory_of_real_kafkas_has_few_rows(tmp_path: Path, scenario: str) -> None:
    found = odd(survey([str(of_kafka(scenario, tmp_path))]))
    assert all(severity == "note" for severity, _ in found), found
    assert len(found) <= 3
    assert json.dumps(found)
