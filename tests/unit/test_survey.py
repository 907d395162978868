"""`survey`: its numbers are those of `describe`, `topics`, `explain`, `du` and of the records themselves."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OsFiles
from kafkalog.engine.files.mounts import mount, unmount
from kafkalog.report import partition_look
from kafkalog.report import survey as module
from kafkalog.report.batch_sums import BatchSums
from kafkalog.report.missing import GAPS_MAX, Missing
from kafkalog.report.rates import WIDTHS_MS, Rates
from kafkalog.report.survey import survey
from kafkalog.report.tables import Survey
from kafkalog.report.treemap import places
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import tiered

__all__ = ["run"]

KAFKA_LOGS = Path(__file__).parents[1] / "pages" / "kafka-logs"
FAST = UnsyncedFiles()
START_MS = 1_772_323_200_000
SMALL = {"internal.segment.bytes": "6000", "index.interval.bytes": "200"}
HOUR_MS = 3_600_000
METADATA = "__cluster_metadata"  # `topics` does not list it


def filled(root: Path) -> Path:
    """A store of three topics: each with another codec, one compacted, one with retention."""
    with kafkalog.open(root, files=FAST, maintenance=False, config=SMALL) as store:
        for name, settings in (
            ("plain", {"retention.ms": "-1"}),
            ("packed", {"compression.type": "zstd", "retention.ms": str(1000 * HOUR_MS)}),
            ("prices", {"cleanup.policy": "compact", "compression.type": "gzip", "min.cleanable.dirty.ratio": "0"}),
        ):
            topic = store.create_topic(name, 2, config=settings)
            for number in range(60):
                rows = [
                    (b"%d " % (number * each) + b"x" * 120, b"key-%d" % (number % 7 if each else 99))
                    for each in range(5)
                ]
                for value, key in rows[: 1 + number % 5]:
                    topic.append(value, key=key, partition=number % 2, timestamp=START_MS + number * HOUR_MS)
                topic.append_many(rows, partition=number % 2)
        for partition in range(2):
            store.topic("prices").partition(partition).compact()
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("made") / "store")


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def rows(found: Survey, table: str, **of: Any) -> list[dict[str, Any]]:
    return [row for row in found.tables[table].rows() if all(row[name] == value for name, value in of.items())]


def printed(run: Run, *argv: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*argv, "--json").lines]


def known(timestamp: int) -> int | None:
    return None if timestamp < 0 else timestamp


def compare(run: Run, found: Survey, log_dir: Path, *options: object) -> None:
    """The survey's numbers are those that commands print."""
    described = printed(run, "describe", log_dir, *options)
    assert len(described) == len(found.tables["partitions"])
    for part in described:
        of = {"topic": part["topic"], "partition": part["partition"]}
        (row,) = rows(found, "partitions", **of)
        for name in ("logStartOffset", "logEndOffset", "lastStableOffset", "size"):
            assert row[name] == part[name], (of, name)
        assert row["segments"] == len(part["segments"])
        segments = rows(found, "segments", **of)
        assert [each["baseOffset"] for each in segments] == [each["baseOffset"] for each in part["segments"]]
        for mine, theirs in zip(segments, part["segments"], strict=True):
            assert mine["size"] == theirs["size"]
            if mine["batches"] is None:
                continue
            assert (mine["batches"], mine["records"]) == (theirs["batches"], theirs["records"])
            assert mine["minTimestamp"] == known(theirs["minTimestamp"])
            assert mine["maxTimestamp"] == known(theirs["maxTimestamp"])
            assert mine["codec"] is None or mine["codec"] in theirs["codecs"]
        codecs = Counter[str]()
        for each in part["segments"]:
            codecs.update(each["codecs"])
        if all(each["batches"] is not None for each in segments):
            assert {row["codec"]: row["batches"] for row in rows(found, "codecs", **of)} == codecs
            by_size = Counter[str]()
            for each in rows(found, "batches", **of):
                by_size[each["codec"]] += each["batches"]
            assert by_size == codecs
    for row in printed(run, "topics", log_dir, *options):
        if row["kind"] == "topic":
            (mine,) = rows(found, "topics", topic=row["topic"])
            assert (mine["segments"], mine["size"], mine["records"]) == (row["segments"], row["bytes"], row["offsets"])
            assert mine["partitions"] == len(row["partitions"])
            assert mine["firstTime"] == known(row["firstTimestamp"])
            assert mine["lastTime"] == known(row["lastTimestamp"])
            assert [mine["cleanupPolicy"], mine["retentionMs"], mine["retentionBytes"]] == [*row["config"].values()]
        elif row["kind"] == "summary":
            listed = [each for each in rows(found, "topics") if each["topic"] != METADATA]
            assert len([each for each in listed if each["partitions"]]) == row["topics"]
            for name in ("partitions", "segments", "size"):
                assert sum(each[name] for each in listed) == row["bytes" if name == "size" else name]
    due: Counter[tuple[str, int]] = Counter()
    for row in printed(run, "explain", log_dir, "*", *options):
        of = {"topic": row.get("topic"), "partition": row.get("partition")}
        if row["kind"] == "segment":
            (mine,) = rows(found, "segments", baseOffset=row["baseOffset"], **of)
            assert mine["endOffset"] == row["endOffset"]
            assert mine["goesAtMs"] == (found.now_ms if row["goes"] else row["untilMs"])
            due[row["topic"], row["partition"]] += row["size"] if row["goes"] else 0
        elif row["kind"] == "summary" and "highWatermark" in row:
            (mine,) = rows(found, "partitions", **of)
            assert mine["highWatermark"] == row["highWatermark"]
            assert mine["dueBytes"] == due[row["topic"], row["partition"]]
            state = row["compaction"]
            assert mine["cleanBytes"] == (state and state["cleanBytes"])
            assert mine["dirtyBytes"] == (state and state["dirtyBytes"])
    for row in printed(run, "du", log_dir, *options):
        if row["kind"] == "kind":
            (mine,) = rows(found, "kinds", kind=row["name"])
            assert [mine[name] for name in ("files", "size", "allocated")] == [
                row["files"],
                row["size"],
                row["allocated"],
            ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_broker_s_directory(run: Run, tmp_path: Path, deep: bool) -> None:
    log_dir = Path(shutil.copytree(KAFKA_LOGS, tmp_path / "kafka-logs"))
    found = survey([str(log_dir)], deep=deep)
    compare(run, found, log_dir)
    assert not rows(found, "findings")
    (disk,) = rows(found, "disks")
    assert (disk["partitions"], disk["files"]) == (7, found.facts["files"])
    assert disk["freeBytes"] < disk["diskBytes"]
    assert {row["state"] for row in rows(found, "transactions")} >= {"hanging", "committed", "aborted"}
    assert {row["group"] for row in rows(found, "groups")} == {"billing"}
    assert found.facts["sampled"] is False
    json.dumps(found.to_json(), allow_nan=False)  # numbers of numpy would not do


@pytest.mark.parametrize("deep", [False, True])
def test_a_store(run: Run, store: Path, deep: bool) -> None:
    found = survey([str(store)], deep=deep)
    compare(run, found, store)
    assert len(rows(found, "segments")) > 12
    assert {row["codec"] for row in rows(found, "codecs", topic="packed")} == {"zstd"}
    offsets = sum(row["records"] for row in rows(found, "partitions"))
    assert found.facts["records"] == offsets
    for row in rows(found, "partitions"):
        of = {"topic": row["topic"], "partition": row["partition"]}
        with kafkalog.open(store, read_only=True) as opened:
            records = list(opened.topic(row["topic"]).partition(row["partition"]))
        missing = set(range(row["logStartOffset"], row["logEndOffset"])) - {each.offset for each in records}
        assert row["missing"] == len(missing)
        if deep:
            listed = [(gap["firstOffset"], gap["lastOffset"]) for gap in rows(found, "gaps", **of)]
            assert {offset for first, last in listed for offset in range(first, last + 1)} == missing
        assert sum(each["records"] for each in rows(found, "rates", **of)) == len(records)
        assert sum(each["bytes"] for each in rows(found, "rates", **of)) == row["size"]
    assert all("compaction" in row["why"] for row in rows(found, "gaps"))
    assert rows(found, "gaps", topic="prices")
    assert not rows(found, "gaps", topic="plain")


def test_depth_knows_keys_sizes_and_what_compaction_gains(run: Run, store: Path) -> None:
    with kafkalog.open(store, files=FAST, maintenance=False, config=SMALL) as opened:
        for number in range(100):
            opened.topic("prices").append(b"again" * 30, key=b"key-%d" % (number % 3), partition=0)
    found = survey([str(store)], deep=True)
    with kafkalog.open(store, read_only=True) as opened:
        for name in ("plain", "packed", "prices"):
            counts: Counter[tuple[int, str]] = Counter()
            sizes: Counter[tuple[int, str]] = Counter()
            for partition in (0, 1):
                for record in opened.topic(name).partition(partition):
                    of = partition, record.key.decode()
                    counts[of] += 1
                    sizes[of] += len(record.key) + len(record.value)
            keys = rows(found, "keys", topic=name)
            assert {(row["partition"], row["key"]): row["records"] for row in keys} == dict(counts)
            assert {(row["partition"], row["key"]): row["bytes"] for row in keys} == dict(sizes)
            assert sum(row["share"] for row in keys) == pytest.approx(1, abs=1e-4)
    gains = {
        (row["topic"], row["partition"]): row["gained"]
        for row in printed(run, "compact", store)
        if row["kind"] == "partition"
    }
    assert gains["prices", 0] > 0
    assert {
        (row["topic"], row["partition"]): row["gainBytes"]
        for row in rows(found, "partitions")
        if row["gainBytes"] is not None
    } == gains
    for row in rows(found, "codecs"):
        assert row["sampled"] is False
        assert row["savedBytes"] == row["rawBytes"] - row["bytes"]
    assert any(row["savedBytes"] > 0 for row in rows(found, "codecs", codec="zstd"))
    assert not survey([str(store)]).tables["keys"].columns["key"]


def test_a_sample_says_so_and_is_about_right(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = survey([str(store)], deep=True)
    monkeypatch.setattr(module, "HEADER_BYTES_MAX", 0)
    found = survey([str(store)])
    assert found.facts["sampled"] is True
    assert found.facts["headerBytes"] == 0
    assert found.facts["sampledHeaders"] > 0
    assert {row["batches"] for row in rows(found, "segments", topic="plain") if row["size"]} == {None}
    assert [row["size"] for row in rows(found, "segments")] == [row["size"] for row in rows(whole, "segments")]
    for row in rows(found, "codecs"):
        assert row["sampled"] is True
        (exact,) = rows(whole, "codecs", topic=row["topic"], partition=row["partition"], codec=row["codec"])
        for name in ("batches", "records", "bytes", "rawBytes"):
            assert row[name] == pytest.approx(exact[name], rel=0.35, abs=3), (row, exact)
    for row in rows(found, "partitions"):
        rates = rows(found, "rates", topic=row["topic"], partition=row["partition"])
        assert sum(each["bytes"] for each in rates) == pytest.approx(row["size"], abs=2000)
        assert sum(each["records"] for each in rates) <= row["records"]


def test_many_partitions_are_summed_up_by_topic(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = survey([str(store)])
    monkeypatch.setattr(module, "MANY", 3)
    monkeypatch.setattr(module, "SEGMENT_ROWS_MAX", 12)
    found = survey([str(store)])
    assert found.facts["byTopic"] is True
    for name in ("rates", "codecs", "batches"):
        assert {row["partition"] for row in rows(found, name)} == {None}
        for topic in ("plain", "packed", "prices"):
            for column in ("records", "bytes"):
                both = [sum(row[column] for row in rows(each, name, topic=topic)) for each in (found, few)]
                assert both[0] == both[1]
    for row in rows(found, "partitions"):
        here = rows(found, "segments", topic=row["topic"], partition=row["partition"])
        assert len(here) == min(2, row["segments"])
        assert here[-1]["endOffset"] == row["logEndOffset"]
    assert found.facts["leftOut"]["segments"] == found.facts["segments"] - len(found.tables["segments"])


def test_a_torn_tail(run: Run, store: Path) -> None:
    log = max((store / "plain-0").glob("*.log"))
    with open(log, "ab") as file:
        file.write(b"\x00\x00\x00\x00\x00\x00\x00\x63torn" * 3)
    found = survey([str(store)])
    compare(run, found, store)
    (row,) = rows(found, "partitions", topic="plain", partition=0)
    assert "closed cleanly" in row["damage"] or rows(found, "findings", topic="plain", partition=0)
    assert rows(found, "partitions", topic="plain", partition=1)[0]["damage"] is None


@pytest.mark.parametrize("deep", [False, True])
def test_a_flipped_byte(run: Run, store: Path, deep: bool) -> None:
    log = min((store / "packed-1").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 120] = b"\xff" * 120
    log.write_bytes(data)
    found = survey([str(store)], deep=deep)
    described = {(row["topic"], row["partition"]): row for row in printed(run, "describe", store)}
    assert described["packed", 1]["segments"][0]["damagedAt"] is not None
    compare(run, found, store)
    gaps = rows(found, "gaps", topic="packed", partition=1)
    assert any("damaged" in gap["why"] for gap in gaps)
    assert len(rows(found, "partitions")) == 6
    if deep:
        assert rows(found, "findings", topic="packed", partition=1)


def test_a_partition_that_cannot_be_read_stops_nothing(run: Run, store: Path) -> None:
    first, *_ = sorted((store / "plain-0").glob("*.log"))
    first.unlink()
    first.mkdir()
    found = survey([str(store)])
    (row,) = rows(found, "partitions", topic="plain", partition=0)
    assert row["logEndOffset"] is None
    assert row["damage"]
    assert rows(found, "findings", topic="plain", partition=0)
    assert len(rows(found, "partitions")) == 6
    assert rows(found, "partitions", topic="plain", partition=1)[0]["records"] > 0
    assert any(odd["topic"] == "plain" for odd in rows(found, "odd"))


def test_a_missing_file(store: Path) -> None:
    logs = sorted((store / "plain-0").glob("*.log"))
    bases = [int(each.stem) for each in logs]
    for path in (store / "plain-0").glob(logs[1].stem + ".*"):
        path.unlink()
    found = survey([str(store)])
    (gap,) = rows(found, "gaps", topic="plain", partition=0)
    assert (gap["firstOffset"], gap["lastOffset"], gap["offsets"]) == (bases[1], bases[2] - 1, bases[2] - bases[1])
    assert "not compacted" in gap["why"]


def test_a_directory_that_cannot_be_listed(store: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    found = survey([gone, str(store)])
    assert [row["logDir"] for row in rows(found, "disks")] == [str(store)]
    assert any(row["path"] == gone for row in rows(found, "findings"))
    assert found.facts["partitions"] == 6


def test_only_what_is_named(store: Path) -> None:
    passed: list[int] = []
    found = survey([str(store)], ["plain-1", "prices"], progress=passed.append)
    parts = {(row["topic"], row["partition"]) for row in rows(found, "partitions")}
    assert parts == {("plain", 1), ("prices", 0), ("prices", 1)}
    assert sum(passed) == found.facts["size"]


@pytest.mark.parametrize("names", [(), ("plain-1", "prices")])
def test_in_depth_each_byte_is_read_and_verified(store: Path, names: tuple[str, ...]) -> None:
    passed: list[int] = []
    found = survey([str(store)], names, deep=True, progress=passed.append)
    assert sum(passed) == 2 * found.facts["size"]


def test_settings_and_the_time_are_given(store: Path) -> None:
    settings = TopicSettings(str(store), {"retention.ms": "1000"})
    found = survey([str(store)], ["plain"], settings=settings, now_ms=START_MS + 1000 * HOUR_MS)
    assert {row["retentionMs"] for row in rows(found, "topics")} == {1000}
    assert all(row["dueBytes"] > 0 for row in rows(found, "partitions"))
    assert found.now_ms == START_MS + 1000 * HOUR_MS


def test_a_directory_that_changes_meanwhile(store: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with kafkalog.open(store, files=FAST, maintenance=False, config=SMALL) as opened:
            topic, number = opened.topic("plain"), 0
            while not stop.wait(0.0005):
                topic.append(b"y" * 300, partition=number % 2)
                number += 1
                if number % 100 == 50:
                    opened.create_topic("fleeting").append(b"z")
                elif number % 100 == 0:
                    opened.delete_topic("fleeting")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    ends = []
    try:
        for number in range(6):
            found = survey([str(store)], deep=number == 5)
            assert not [row for row in rows(found, "findings") if row["topic"] in ("plain", "packed", "prices")]
            assert not [row for row in rows(found, "partitions") if row["damage"] and row["topic"] != "fleeting"]
            ends.append(rows(found, "partitions", topic="plain", partition=0)[0]["logEndOffset"])
    finally:
        stop.set()
        writer.join()
    assert ends == sorted(ends)
    assert ends[-1] > ends[0]


@pytest.fixture
def both_tiers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A directory, mounted with its remote tier."""
    root, tier = tmp_path / "store", tmp_path / "tier"
    tiered(root, tier, settings={"local.retention.bytes": "3000"})
    with kafkalog.open(root, remote=str(tier), maintenance=False) as opened:
        opened.topic("orders").partition(0).delete_old_segments()
    storage = kafkalog.RemoteStorage(str(tier)).with_layout([str(root)], OsFiles())
    mount(str(root), storage.tiered_files([str(root)], OsFiles()))
    yield str(root), str(tier)
    unmount(str(root))


def test_a_directory_with_its_tier(run: Run, both_tiers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, tier = both_tiers
    found = survey([root], ["orders"])
    assert {row["remote"] for row in rows(found, "segments")} == {True, False}
    (row,) = rows(found, "partitions")
    assert (row["logStartOffset"], row["logEndOffset"]) == (0, 90)
    assert row["missing"] == 0
    unmount(root)
    (described,) = printed(run, "describe", root, "orders-0", "--remote", tier)
    mount(root, kafkalog.RemoteStorage(tier).with_layout([root], OsFiles()).tiered_files([root], OsFiles()))
    assert row["size"] == described["size"]
    mine = [(each["baseOffset"], each["size"], each["batches"]) for each in rows(found, "segments")]
    assert mine == [(each["baseOffset"], each["size"], each["batches"]) for each in described["segments"]]
    monkeypatch.setattr(module, "REMOTE_BYTES_MAX", 0)
    found = survey([root], ["orders"])
    assert {row["batches"] is None for row in rows(found, "segments", remote=True)} == {True}
    assert {row["batches"] is None for row in rows(found, "segments", remote=False)} == {False}


def test_places_fill_the_rectangle() -> None:
    areas = [60.0, 30.0, 12.0, 12.0, 6.0, 3.0, 1.0]
    found = places(areas, 2.0, 1.0)
    for area, (x, y, x2, y2) in zip(areas, found, strict=True):
        assert (x2 - x) * (y2 - y) == pytest.approx(2.0 * area / sum(areas))
        assert 0 <= x < x2 <= 2 + 1e-9
        assert 0 <= y < y2 <= 1 + 1e-9
        assert max(x2 - x, y2 - y) / min(x2 - x, y2 - y) < 5
    for one, (x, y, x2, y2) in enumerate(found):
        for x3, y3, x4, y4 in found[one + 1 :]:
            assert min(x2, x4) - max(x, x3) < 1e-9 or min(y2, y4) - max(y, y3) < 1e-9
    assert places([], 2.0, 1.0) == []


def test_rates_are_joined_exactly() -> None:
    assert all(wide % narrow == 0 for narrow, wide in pairwise(WIDTHS_MS))
    rates = Rates()
    times = np.arange(0, 5000) * 90_000 + START_MS
    rates.add(times, np.ones(5000), np.full(5000, 10))
    other = Rates()
    other.add(np.array([START_MS, -1]), np.array([1, 1]), np.array([10, 10]))
    other.take(rates)
    other.fit(200)
    found = list(other.rows())
    assert len(found) <= 200
    assert sum(row["records"] for row in found) == 5001
    assert sum(row["bytes"] for row in found) == 50_010
    assert found[0]["fromTime"] <= START_MS < found[0]["toTime"]
    assert all(one["toTime"] <= two["fromTime"] for one, two in pairwise(found))


def test_many_rates_are_taken_exactly() -> None:
    whole, sums = Rates(), Counter[int]()
    for number in range(300):
        part = Rates()
        for each in range(5):
            times = START_MS + np.arange(each, 3000, 7) * (number % 40 + 1) * 90_000
            part.add(times, np.full(len(times), number), np.full(len(times), 2 * number))
            sums.update({int(time): number for time in times if number})
        whole.take(part)
    whole.fit(100)
    found = list(whole.rows())
    assert len(found) <= 102
    for row in (found[0], found[len(found) // 2], found[-1]):
        assert row["records"] * 2 == row["bytes"]
    totals = Counter[int]()
    for time, count in sums.items():
        totals[time - time % WIDTHS_MS[whole.step]] += count
    assert {row["fromTime"]: row["records"] for row in found if row["records"]} == totals


def test_a_wrong_timestamp_does_not_widen_all_stretches() -> None:
    rates = Rates()
    rates.add(np.arange(100) * 60_000 + START_MS, np.full(100, 10), np.full(100, 10))
    rates.add(np.array([0, START_MS * 2]), np.array([1, 1]), np.array([1, 1]))
    rates.fit(200)
    assert rates.step == 0
    assert len(rates) == 102


def test_gaps_are_counted_and_the_largest_kept() -> None:
    missing, lost = Missing(), set[int]()
    offset = after = 0
    for number in range(3000):
        size = number % 97
        lost.update(range(offset, offset + size))
        offset += size
        after = missing.between(after, (np.array([offset + 2, offset]), np.array([offset + 2, offset + 1])))
        offset += 3
        assert after == offset
    assert missing.offsets == len(lost)
    assert missing.gaps == 3000 - 31
    kept = missing.largest()
    assert len(kept) == GAPS_MAX
    assert min(last - first for first, last, _ in kept) >= 88
    assert kept == sorted(kept)


def test_the_first_keys_of_very_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kafkalog.report.keys.KEYS_MAX", 500)
    monkeypatch.setattr("kafkalog.report.keys.WAITING_RECORDS", 300)
    with kafkalog.open(tmp_path / "store", files=FAST) as opened:
        topic = opened.create_topic("many")
        for number in range(40):
            rare = [(b"v", b"rare-%d-%d" % (number, each)) for each in range(100)]
            topic.append_many([*rare, *[(b"v", b"often-%d" % (each % 3)) for each in range(60)], (b"v", None)])
    found = survey([str(tmp_path / "store")], deep=True)
    top = rows(found, "keys")[:3]
    assert {(row["key"], row["records"]) for row in top} == {(f"often-{each}", 800) for each in range(3)}
    assert top[0]["share"] == pytest.approx(800 / (40 * 160), abs=1e-5)
    assert found.facts["keysAreExact"] is False


def test_equal_keys_are_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kafkalog.report.keys.WAITING_RECORDS", 100)
    with kafkalog.open(tmp_path / "store", files=FAST) as opened:
        topic = opened.create_topic("equal")
        for _ in range(3):
            for number in range(20):
                topic.append_many([(b"v", b"key-%d" % (50 * number + each)) for each in range(50)])
    found = survey([str(tmp_path / "store")], deep=True)
    assert [(row["records"], row["bytes"] - len(row["key"]) * 3) for row in rows(found, "keys")] == [(3, 3)] * 20
    assert len({row["key"] for row in rows(found, "keys")}) == 20
    assert found.facts["keysAreExact"] is True


def test_sums_scale_uncompressed_sizes() -> None:
    table = np.zeros(4, partition_look.native.BATCH_DTYPE)
    table["size"], table["attributes"], table["record_count"], table["magic"] = [100, 110, 3000, 70], [4, 4, 4, 0], 5, 2
    sums = BatchSums()
    sums.feed(table)
    assert {row["codec"]: row["rawBytes"] for row in sums.by_codec()} == {"zstd": None, "none": 70}
    sums.feed_raw(table[:1], np.array([300.0]))
    packed, plain = sums.by_codec()
    assert (packed["rawBytes"], packed["savedBytes"], packed["sampled"]) == (9630, 6420, True)
    assert (plain["savedBytes"], plain["sampled"]) == (0, False)
    assert {(row["fromBytes"], row["batches"]) for row in sums.by_size()} == {(64, 1), (64, 2), (2048, 1)}


@pytest.mark.parametrize("deep", [False, True])
def test_the_oldest_time_is_that_of_a_record(tmp_path: Path, deep: bool) -> None:
    """A batch's base timestamp is the producer's time, or the time until which a tombstone is kept."""
    with kafkalog.open(tmp_path / "store", files=FAST, maintenance=False, config=SMALL) as store:
        log = store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"}).partition(0)
        log.append(b"x", timestamp=START_MS)
        prices = store.create_topic("prices", config={"cleanup.policy": "compact"}).partition(0)
        for number in range(60):
            prices.append(None, key=b"%d" % number, timestamp=START_MS)
            prices.append(b"x" * 200, key=b"same", timestamp=START_MS)
        prices.compact()
        (when,) = (record.timestamp for record in log)
    found = survey([str(tmp_path / "store")], deep=deep)
    assert [row["minTimestamp"] for row in rows(found, "segments", topic="t")] == [when]
    assert {row["minTimestamp"] for row in rows(found, "segments", topic="prices")} == {START_MS}
