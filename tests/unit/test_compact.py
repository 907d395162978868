"""`compact`: a dry run reports what the real run does; partitions left alone, and why; damage; the checkpoint."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.cleaner.passes import CompactionStats
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import BeingWrittenException, CorruptRecordException, LogDirLockedException
from kafkalog.toolbox.compact import Compacted, PassOptions, compact, left_alone
from kafkalog.toolbox.explain import explain
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction
from tests.file_doubles import UnsyncedFiles
from tests.sampling import LONG
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

NOW_MS = 1_700_000_000_000
FAST = UnsyncedFiles()
T0 = TopicPartition("t", 0)
SMALL = {
    "internal.segment.bytes": "900",
    "index.interval.bytes": "150",
    "message.timestamp.before.max.ms": str(1 << 60),
}
COMPACT = {**SMALL, "cleanup.policy": "compact", "delete.retention.ms": "5000"}


def fill(root: Path, rng: random.Random, clock: ManualClock, records: int = 80) -> None:
    """Keys over and over, tombstones, some without a key, transactions of both kinds, all codecs."""
    compression = rng.choice(["none", "none", "gzip", "lz4", "zstd"])
    with kafkalog.open_log(root, T0, config=SMALL, compression=compression, clock=clock, files=FAST) as log:
        for number in range(rng.randrange(records)):
            clock.advance(rng.randrange(200))
            many = [
                (
                    None if rng.random() < 0.2 else b"%d" % number + b"." * rng.randrange(60),
                    None if rng.random() < 0.05 else b"k%d" % rng.randrange(15),
                )
                for _ in range(rng.choice((1, 1, 1, 5)))
            ]
            if rng.random() < 0.15:
                txn = client_transaction(log, f"x{rng.randrange(3)}")
                txn.begin()
                txn.append_many(many)
                (txn.commit if rng.random() < 0.5 else txn.abort)()
            else:
                log.append_many(many)


def state(root: Path) -> dict[bytes | None, bytes | None]:
    with kafkalog.open_log(root, T0, read_only=True) as log:
        found = {record.key: record.value for record in log.records(isolation="read_committed")}
    return {key: value for key, value in found.items() if key is not None and value is not None}


def census(root: Path) -> tuple[int, int, int, int]:
    """Records (markers too), batches, bytes, segments."""
    records = batches = size = 0
    with PartitionView(root, T0) as view:
        seen = view.snapshot
        for segment in seen.segments:
            for piece in LogScan(seen.file(segment), 0, segment.size):
                records += int(piece.table["record_count"].sum())
                batches += len(piece.table)
            size += segment.size
        return records, batches, size, len(seen.segments)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def one(root: Path, how: PassOptions, *, act: bool, **given: str) -> Compacted:
    settings = TopicSettings(str(root), {**COMPACT, **{key.replace("_", "."): value for key, value in given.items()}})
    (found,) = compact(str(root), {T0: f"{root}/{T0}"}, settings, how, act=act, files=FAST)
    return found


def timeless(stats: CompactionStats | None) -> CompactionStats:
    assert stats is not None
    return replace(stats, elapsed_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400 if LONG else 12))
def test_a_dry_run_tells_what_is_done(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    rng = random.Random(seed)
    clock = ManualClock(NOW_MS)
    root = tmp_path / "logs"
    for _ in range(3):
        fill(root, rng, clock)
        clock.advance(rng.choice((0, 0, 3000, 20_000)))
        slots = rng.choice((3, 5, 9, 1000))
        given = {"min_compaction_lag_ms": str(rng.choice((0, 0, 2000)))}
        if rng.random() < 0.2:
            given["min_cleanable_dirty_ratio"] = "0.5"
        how = PassOptions(
            CleanerConfig(1, slots * 24, max_message_size=rng.choice((400, 524288)), io_buffer_size=400),
            rng.random() < 0.4,
            clock,
        )
        before, counted, known = tree(root), census(root), state(root)
        told = one(root, how, act=False, **given)
        assert tree(root) == before
        assert os.listdir(tmp_path / "tmp") == []
        done = one(root, how, act=True, **given)
        assert timeless(told.stats) == timeless(done.stats)
        assert (told.held, told.error, done.error) == (done.held, None, None)
        stats = timeless(done.stats)
        after = census(root)
        assert counted[0] - after[0] == stats.records
        assert counted[1] - after[1] == stats.batches
        assert counted[2] - after[2] == stats.bytes_gained
        assert (stats.bytes_before, stats.bytes_after) == (counted[2], after[2])
        assert counted[3] - after[3] in (stats.segments, stats.segments - how.rolls)
        assert state(root) == known
        assert verify(root, deep=True).ok
        if stats.end_offset:
            assert checkpoint(root) == {T0: stats.end_offset}
        again = one(root, how, act=True, **given)
        assert timeless(again.stats).passes == 0 or given.get("min_cleanable_dirty_ratio")


SOON = PassOptions(CleanerConfig(1, 2400), clock=ManualClock(NOW_MS + 10_000))


def test_several_passes(tmp_path: Path) -> None:
    """A map of two keys: the same result as with space for all; one pass reads what another wrote."""
    for name in ("small", "large"):
        keyed(tmp_path / name, 100, keys=7)
    small = PassOptions(CleanerConfig(1, 72), clock=SOON.clock)
    told, done = (one(tmp_path / "small", small, act=act) for act in (False, True))
    assert timeless(told.stats) == timeless(done.stats)
    assert timeless(done.stats).passes > 10
    whole = timeless(one(tmp_path / "large", SOON, act=True).stats)
    assert whole.passes == 1
    assert (whole.records, whole.bytes_after) == (timeless(done.stats).records, timeless(done.stats).bytes_after)
    assert state(tmp_path / "small") == state(tmp_path / "large")


def checkpoint(root: Path) -> dict[TopicPartition, int]:
    path = root / "cleaner-offset-checkpoint"
    return OffsetCheckpointFile(str(path), OS_FILES, create=False).read() if path.exists() else {}


def keyed(root: Path, count: int = 60, *, name: TopicPartition = T0, keys: int = 4) -> None:
    with kafkalog.open_log(root, name, config=COMPACT, clock=ManualClock(NOW_MS), files=FAST) as log:
        for number in range(count):
            log.append(b"%d" % number + b"." * 30, key=b"k%d" % (number % keys), timestamp=NOW_MS + number)


def test_held(tmp_path: Path) -> None:
    """The reason why a log is not compacted is named, in the order in which one reason replaces the next."""
    keyed(tmp_path)
    with PartitionView(tmp_path, T0) as view:
        bases = [segment.base_offset for segment in view.segments]
    assert len(bases) > 3
    OffsetCheckpointFile(str(tmp_path / "replication-offset-checkpoint"), OS_FILES).write({T0: bases[1] + 1})
    found = one(tmp_path, SOON, act=False)
    assert found.held is not None
    assert (found.held.what, found.held.offset) == ("highWatermark", bases[1] + 1)
    assert timeless(found.stats).end_offset == bases[1]
    (tmp_path / "replication-offset-checkpoint").unlink()

    found = one(tmp_path, SOON, act=False, min_compaction_lag_ms=str(10_000 - bases[2] - 1))
    assert found.held is not None
    assert (found.held.what, found.held.offset) == ("lag", bases[2])
    assert found.held.until_ms == NOW_MS + bases[3] - 1 + 10_000 - bases[2] - 1

    found = one(tmp_path, SOON, act=False, min_cleanable_dirty_ratio="1")
    assert found.held is not None
    assert (found.held.what, timeless(found.stats).passes) == ("ratio", 0)

    found = one(tmp_path, SOON, act=True)
    assert found.held is not None
    assert (found.held.what, found.held.offset) == ("active", bases[-1])
    assert timeless(found.stats).end_offset == bases[-1]


def test_an_open_transaction_holds(tmp_path: Path) -> None:
    keyed(tmp_path, 20)
    log = kafkalog.open_log(tmp_path, T0, config=COMPACT)
    txn = client_transaction(log, "x")
    txn.begin()
    txn.append(b"1", key=b"k1")
    first = log.last_stable_offset
    for number in range(40):
        log.append(b"%d" % number + b"." * 30, key=b"k%d" % (number % 4))
    assert log.engine is not None
    log.engine.flush(True)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "t-0", killed / "t-0")
    log.close()
    found = one(killed, SOON, act=True)
    assert found.held is not None
    assert (found.held.what, found.held.offset) == ("transaction", first)
    assert timeless(found.stats).end_offset <= first


def test_damage_is_named_and_the_others_go_on(tmp_path: Path, run: Run) -> None:
    for name in ("a-0", "t-0", "z-0"):
        keyed(tmp_path, name=TopicPartition(name[0], 0))
    logs = sorted((tmp_path / "t-0").glob("*.log"))
    data = bytearray(logs[1].read_bytes())
    data[61:] = b"\xff" * (len(data) - 61)  # lengths of records that lead nowhere
    logs[1].write_bytes(data)
    before = {path.name: path.read_bytes() for path in logs}
    line = ["compact", tmp_path, "a", "t", "z", "-X", "cleanup.policy=compact", "-X", "internal.segment.bytes=900"]
    for options in ([], ["--yes"]):
        result = run(*line, *options, "--json")
        assert result.code == 1
        *partitions, summary = map(json.loads, result.lines)
        assert [each["error"] is None for each in partitions] == [True, False, True]
        assert partitions[1]["path"].endswith(logs[1].name)
        assert partitions[1]["position"] is not None
        assert partitions[1]["done"] is False
        assert summary["uncleanable"] == 1
        assert summary["partitions"] == 2
    assert {path.name: path.read_bytes() for path in sorted((tmp_path / "t-0").glob("*.log"))} == before
    assert checkpoint(tmp_path).keys() - {T0} == {TopicPartition("a", 0), TopicPartition("z", 0)}
    assert checkpoint(tmp_path).get(T0, 0) == 0
    text = run(*line)
    assert "t-0: cannot be compacted:" in text.out
    assert "not compacted because of damage: 1" in text.out


def test_policies(tmp_path: Path, run: Run) -> None:
    keyed(tmp_path)
    keyed(tmp_path, name=TopicPartition("u", 0))
    result = run("compact", tmp_path)
    assert result.code == 0
    assert "t-0, u-0 are skipped: the cleanup.policy is unknown" in result.err
    result = run("compact", tmp_path / "t")
    assert result.code == 2
    assert "-X cleanup.policy=compact to set it" in result.err
    result = run("compact", tmp_path, "-X", "cleanup.policy=compact")
    assert result.code == 2
    assert "for a whole directory" in result.err
    result = run("compact", tmp_path / "t-0", "-X", "cleanup.policy=delete")
    assert result.code == 2
    assert "its cleanup.policy is delete" in result.err
    result = run("compact", tmp_path, "--dedupe-buffer-size", "10")
    assert result.code == 2
    with kafkalog.LogManager([tmp_path]) as manager:
        manager.set_topic_config("t", {"cleanup.policy": "compact", "internal.segment.bytes": "900"})
    result = run("compact", tmp_path, "--json", "--yes")
    first, summary = map(json.loads, result.lines)
    assert (first["topic"], first["done"]) == ("t", True)
    assert summary["skipped"].keys() == {"u-0"}
    properties = tmp_path / "server.properties"
    properties.write_text("log.dirs=/x\nlog.cleanup.policy=compact\nlog.cleaner.dedupe.buffer.size=2000000\n")
    assert run("compact", tmp_path, "--config", properties).err.count("skipped") == 1
    assert "u-0: " in run("compact", tmp_path / "u", "--config", properties).out


def test_the_metadata_log_is_left_alone(tmp_path: Path) -> None:
    settings = TopicSettings(str(tmp_path), {"cleanup.policy": "compact"})
    metadata = TopicPartition("__cluster_metadata", 0)
    assert left_alone(str(tmp_path), [metadata, T0], settings).keys() == {metadata}


def test_locked(tmp_path: Path, run: Run) -> None:
    keyed(tmp_path)
    lock = OS_FILES.lock(str(tmp_path / ".lock"))
    try:
        line = ["compact", tmp_path / "t", "-X", "cleanup.policy=compact"]
        assert run(*line).code == 0
        assert run(*line, "--yes").code == 3
        with pytest.raises(LogDirLockedException):
            one(tmp_path, SOON, act=True)
    finally:
        lock.release()


def test_an_unclean_and_damaged_log_is_not_opened(tmp_path: Path) -> None:
    keyed(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    last = max((tmp_path / "t-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    before = tree(tmp_path)
    assert isinstance(one(tmp_path, SOON, act=False).error, CorruptRecordException)
    assert tree(tmp_path) == before
    assert isinstance(one(tmp_path, SOON, act=True).error, CorruptRecordException)
    assert {name: data for name, (data, _) in tree(tmp_path).items() if name.endswith(".log")} == {
        name: data for name, (data, _) in before.items() if name.endswith(".log")
    }


@pytest.mark.parametrize("name", ["t-0/leader-epoch-checkpoint", "cleaner-offset-checkpoint"])
def test_a_small_file_that_does_not_parse_is_damage(tmp_path: Path, run: Run, name: str) -> None:
    keyed(tmp_path)
    path = tmp_path / name
    path.write_text("0\n2\n0 0\n")
    line = ["compact", tmp_path / "t-0", "-X", "cleanup.policy=compact", "-X", "internal.segment.bytes=900"]
    for options in ([], ["--yes"]):
        result = run(*line, *options, "--json")
        assert result.code == 1
        assert json.loads(result.lines[0])["path"] == str(path)
        text = run(*line, *options)
        assert text.code == 1
        assert text.out.count(str(path)) == 1
        assert "not compacted because of damage: 1 partition" in text.out
    assert path.read_text() == "0\n2\n0 0\n"


def test_a_full_disk_is_no_damage(tmp_path: Path, run: Run) -> None:
    keyed(tmp_path, 600)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    line = ["compact", tmp_path / "t-0", "-X", "cleanup.policy=compact", "-X", "internal.segment.bytes=900", "--yes"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = run(*line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.code == 3
    assert "for damage" not in result.out
    assert "kafkalog verify" not in result.out
    assert result.lines[-1].startswith("not compacted because of a disk error or another program that is writing: 1")
    assert state(tmp_path).keys() == {b"k%d" % key for key in range(4)}


def test_a_delete_horizon_that_is_compressed_differs_by_some_bytes(tmp_path: Path, run: Run) -> None:
    """Time passes between a dry run and the real one; nothing else of their numbers differs."""
    rng = random.Random(5)
    with kafkalog.open_log(tmp_path, T0, config=COMPACT, compression="gzip", clock=ManualClock(NOW_MS)) as log:
        for _ in range(30):
            log.append_many([(rng.choice((None, b"v%d" % rng.randrange(99))), b"k%d" % key) for key in range(20)])
    told = timeless(one(tmp_path, SOON, act=False).stats)
    done = timeless(one(tmp_path, PassOptions(SOON.cleaner, clock=ManualClock(NOW_MS + 123_456)), act=True).stats)
    assert abs(told.bytes_after - done.bytes_after) <= 16
    told = replace(told, bytes_after=done.bytes_after, bytes_written=done.bytes_written)
    assert told == done
    assert "delete horizon" in " ".join(run("compact", "--help").out.split())


class Restless(UnsyncedFiles):
    """Does something at the n-th file that is opened, or, with `every`, at each n-th."""

    def __init__(self, number: int, do: Callable[[], object], *, every: bool = False) -> None:
        super().__init__()
        self.number, self.do, self.every, self.opened = number, do, every, 0

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        self.opened += 1
        if self.opened == self.number or (self.every and self.opened % self.number == 0):
            self.do()
        return super().open(path, writable=writable, create=create, exclusive=exclusive)


def looked_at(root: Path, files: Restless) -> Compacted:
    settings = TopicSettings(str(root), COMPACT)
    (found,) = compact(str(root), {T0: f"{root}/{T0}"}, settings, SOON, act=False, files=files)
    return found


@pytest.mark.parametrize("number", range(1, 400 if LONG else 120, 1 if LONG else 7))
def test_a_cleaner_that_is_at_it_is_no_damage(tmp_path: Path, number: int) -> None:
    """Another process exchanges the segments at any moment: the report describes the state before or after it."""
    root, other = tmp_path / "logs", tmp_path / "other"
    keyed(root, 200)
    shutil.copytree(root, other)
    told = [timeless(one(root, SOON, act=False).stats)]
    one(other, SOON, act=True)
    told.append(timeless(one(other, SOON, act=False).stats))

    def exchange() -> None:
        for path in sorted((root / "t-0").iterdir()):
            if path.suffix in (".log", ".index", ".timeindex"):
                path.unlink()
        shutil.copytree(other, root, dirs_exist_ok=True)

    found = looked_at(root, Restless(number, exchange))
    assert found.error is None
    assert timeless(found.stats) in told


def test_who_never_rests_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed(tmp_path, 200)
    first, *_ = sorted((tmp_path / "t-0").glob("*.log"))
    times = itertools.count(NOW_MS // 1000)
    monkeypatch.setattr("kafkalog.toolbox.second_look.REST_S", 0.0)
    found = looked_at(tmp_path, Restless(5, lambda: os.utime(first, (0, next(times))), every=True))
    assert isinstance(found.error, BeingWrittenException)
    assert "t-0 is being written: it changed during each of 10 attempts" in str(found.error)


def test_damage_beside_who_appends_is_damage(tmp_path: Path) -> None:
    """The file stays as it is, and two looks agree."""
    keyed(tmp_path, 200)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    first, *_, last = sorted((tmp_path / "t-0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[70] ^= 1
    first.write_bytes(data)
    more = last.read_bytes()

    def append() -> None:
        with last.open("ab") as file:
            file.write(more)

    found = looked_at(tmp_path, Restless(3, append, every=True))
    assert isinstance(found.error, CorruptRecordException)
    assert found.error.path == str(first)


@pytest.mark.parametrize("text", ["0\n2\nt 0 100\n", "0\n1\nt 0 1o0\n", "0\n1\nt 0\n", "7\n", "garbage"])
def test_high_watermarks_that_cannot_be_read(tmp_path: Path, run: Run, text: str) -> None:
    """A log end in their place would take records that not all replicas have."""
    keyed(tmp_path)
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(text)
    before = {name: data for name, (data, _) in tree(tmp_path / "t-0").items() if name.endswith(".log")}
    line = ["compact", tmp_path / "t-0", "-X", "cleanup.policy=compact", "-X", "internal.segment.bytes=900"]
    for options in ([], ["--yes"]):
        result = run(*line, *options)
        assert result.code == 1
        assert result.out.startswith("t-0: cannot be compacted: ")
        assert result.out.count(str(path)) == 1
        assert json.loads(run(*line, *options, "--json").lines[0])["path"] == str(path)
    assert {name: data for name, (data, _) in tree(tmp_path / "t-0").items() if name.endswith(".log")} == before
    told = run("explain", tmp_path / "t-0", "-X", "cleanup.policy=compact")
    assert told.code == 1
    assert "high watermark 60 (its checkpoint cannot be read: this is the log end)" in told.out
    assert "the high watermark is unknown: " in told.out


def test_high_watermarks_that_are_empty(tmp_path: Path, run: Run) -> None:
    """Kafka makes such a file, and reads it as one without lines."""
    keyed(tmp_path)
    line = ["compact", tmp_path / "t-0", "-X", "cleanup.policy=compact", "-X", "internal.segment.bytes=900"]
    without = run(*line)
    assert "high watermark" not in without.err
    (tmp_path / "replication-offset-checkpoint").write_text("")
    result = run(*line)
    assert (result.code, result.lines[0]) == (0, without.lines[0])
    assert "replication-offset-checkpoint is an empty file" in result.err
    told = run("explain", tmp_path / "t-0", "-X", "cleanup.policy=compact")
    assert told.code == 0
    assert "(its checkpoint is an empty file: this is the log end)" in told.out


# --- explain ----------------------------------------------------------------------------------------------


def reasons(root: Path, config: dict[str, str], now_ms: int) -> list[tuple[int, str]]:
    told = explain(str(root), T0, LogConfig.from_props(None, config), now_ms)
    return [
        (entry.segment.base_offset, reason.what)
        for entry in told.segments
        for reason in entry.reasons
        if reason.what in ("compacted", "dirty", "uncompacted")
    ]


@pytest.mark.parametrize("seed", range(60 if LONG else 8))
def test_explain_tells_what_a_pass_would_take(tmp_path: Path, seed: int) -> None:
    """The same bound as the engine's, found from files; the part that it calls compacted is below the checkpoint."""
    rng, clock = random.Random(seed), ManualClock(NOW_MS)
    fill(tmp_path, rng, clock)
    if rng.random() < 0.5:
        one(tmp_path, PassOptions(CleanerConfig(1, 24 * rng.choice((4, 1000))), clock=clock), act=True)
        fill(tmp_path, rng, clock, 60)
    with PartitionView(tmp_path, T0) as view:
        end, bases = view.log_end_offset, [segment.base_offset for segment in view.segments]
    if rng.random() < 0.4:
        OffsetCheckpointFile(str(tmp_path / "replication-offset-checkpoint"), OS_FILES).write({T0: rng.randint(0, end)})
    given = {"min_compaction_lag_ms": str(rng.choice((0, 2000, 100_000)))}
    config = {**COMPACT, **{key.replace("_", "."): value for key, value in given.items()}}
    told = explain(str(tmp_path), T0, LogConfig.from_props(None, config), clock.now_ms)
    state = told.compaction
    assert state is not None
    found = one(tmp_path, PassOptions(clock=clock), act=False, **given)
    stats = timeless(found.stats)
    assert state.first_dirty_offset == stats.first_dirty_offset
    assert state.checkpointed == checkpoint(tmp_path).get(T0)
    assert bool(state.dirty_bytes) == bool(stats.passes)
    if stats.passes:
        assert state.first_uncleanable_offset == stats.end_offset
    assert found.held is not None
    assert state.held == found.held
    by_base = dict(reasons(tmp_path, config, clock.now_ms))
    assert by_base.keys() == set(bases)
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        if by_base[base] == "dirty":
            assert base < state.first_uncleanable_offset
            assert following > state.first_dirty_offset
        if by_base[base] == "compacted":
            assert following <= state.first_dirty_offset
    assert by_base[bases[-1]] == "uncompacted"


def test_a_rule_that_holds_compaction_is_told_once(tmp_path: Path, run: Run) -> None:
    """With what it would gain without the rule."""
    keyed(tmp_path)
    held = ("-X", "cleanup.policy=compact", "-X", f"min.compaction.lag.ms={10**14}")
    result = run("explain", tmp_path / "t-0", *held)
    assert len([line for line in result.lines if ".log " in line]) > 2
    assert result.out.count("younger than min.compaction.lag.ms") == 1
    assert "from offset 0 on, compaction changes nothing yet: segment 0 has records younger" in result.out
    assert result.out.count("logStart:") == 1  # that of its segment
    told = [json.loads(line) for line in run("explain", tmp_path / "t-0", *held, "--json").lines]
    segments = [{each["what"] for each in entry["reasons"]} for entry in told if entry["kind"] == "segment"]
    assert all({"uncompacted", "logStart"} <= reasons for reasons in segments)
    result = run("compact", tmp_path / "t-0", *held)
    assert "t-0: nothing to compact" in result.out
    assert "(-X min.compaction.lag.ms=0 shows what a pass would gain without this rule)" in result.out
    free = run("compact", tmp_path / "t-0", "-X", "cleanup.policy=compact", "-X", "min.compaction.lag.ms=0")
    assert "would be removed" in free.out
    assert "without this rule" not in free.out


def test_explain_tells_when_it_is_due(tmp_path: Path, run: Run) -> None:
    keyed(tmp_path)
    line = ["explain", tmp_path / "t-0", "-X", "cleanup.policy=compact"]
    result = run(*line)
    assert "clean (compacted) up to offset 0 (no checkpoint: never compacted)" in result.out
    assert "to be compacted by the next pass: 100 % of the log is dirty, more than min." in result.out
    assert f"uncleanable: `kafkalog compact {tmp_path}/t-0` shows" in result.out
    result = run(*line, "-X", "min.cleanable.dirty.ratio=1")
    assert "100 % of the log is dirty, and a cleaner starts above min.cleanable.dirty.ratio=" in result.out
    result = run(*line, "-X", "min.cleanable.dirty.ratio=1", "-X", "max.compaction.lag.ms=1000", "--json")
    *segments, summary = map(json.loads, result.lines)
    assert summary["compaction"]["isDue"] is True
    assert summary["compaction"]["overdueMs"] > 0
    assert "over max.compaction.lag.ms" in json.dumps(segments)
    one(tmp_path, SOON, act=True)
    result = run(*line)
    assert "compacted: compaction has processed it (clean up to" in result.out
    assert "dirty" not in result.out.split("\n", 3)[3]
    assert run("explain", tmp_path / "t-0").out.count("compact") == 0
