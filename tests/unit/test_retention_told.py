"""`explain` reports what retention will do: it uses the same rule, so it names the same segments and times."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, invoke
from kafkalog.config import LogConfig
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.retention_rule import Bounds, Held, Rule, condition_of, oldest_run, rules_of, runs_of
from kafkalog.toolbox.explain import Explanation, Reason, explain
from kafkalog.toolbox.segment_facts import SegmentFacts
from tests.unit.cli_kit import Run, run
from tests.unit.log_kit import NOW_MS, SMALL, Kit, bases, batch

__all__ = ["run"]

T0 = TopicPartition("t", 0)


def told(kit: Kit, settings: dict[str, str], now_ms: int | None = None) -> Explanation:
    config = LogConfig.from_props(None, {**SMALL, **settings})
    return explain(str(kit.root), T0, config, kit.clock.now_ms if now_ms is None else now_ms)


def stays(explanation: Explanation) -> list[int]:
    return [entry.segment.base_offset for entry in explanation.segments if entry.goes is None]


def mark(kit: Kit, high_watermark: int) -> None:
    OffsetCheckpointFile(str(kit.root / "replication-offset-checkpoint")).write({T0: high_watermark})


@pytest.mark.parametrize("seed", range(40))
def test_what_is_told_to_go_goes(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kit = Kit(tmp_path)
    settings = {
        "retention.ms": str(rng.choice([-1, 0, 1, 5000, 10_000, 1_000_000])),
        "retention.bytes": str(rng.choice([-1, 0, 400, 900, 2000, 100_000])),
        "cleanup.policy": rng.choice(["delete", "delete", "compact", "compact,delete", ""]),
    }
    log = kit.open(settings)
    for number in range(rng.randrange(1, 20)):
        log.append_as_leader(batch(ts=NOW_MS + number * 1000 + rng.choice([0, 0, 0, 50_000])), 0)
    if rng.random() < 0.2:
        log.roll()
    high = rng.randint(0, log.log_end_offset) if rng.random() < 0.5 else log.log_end_offset
    log.update_high_watermark(high)
    mark(kit, high)
    log.maybe_increment_log_start_offset(rng.randint(0, high // 2))
    OffsetCheckpointFile(str(kit.root / "log-start-offset-checkpoint")).write({T0: log.log_start_offset})
    kit.clock.now_ms = NOW_MS + rng.choice([0, 5000, 12_000, 60_000, 2_000_000])
    explanation = told(kit, settings)
    expected = stays(explanation)
    log.delete_old_segments()
    assert [base for base in bases(log) if base < log.log_end_offset or base in expected] == expected
    for entry in explanation.segments:
        assert (entry.goes is None) == bool(entry.reasons)


def test_until_is_the_very_moment(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.filled(12)
    settings = {"retention.ms": "10000"}
    first, second, active = told(kit, settings).segments
    for entry in (first, second, active):
        until = entry.until_ms
        assert until is not None
        base = entry.segment.base_offset
        assert base in stays(told(kit, settings, until - 1))
        assert base not in stays(told(kit, settings, until))


def test_an_older_segment_with_later_times_holds_those_behind_it(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.open({"message.timestamp.after.max.ms": str(1 << 60), "segment.ms": str(1 << 60)})
    for number in range(12):
        log.append_as_leader(batch(ts=NOW_MS + number * 1000 + (10**9 if number == 5 else 0)), 0)
    kit.clock.now_ms += 1_000_000
    explanation = told(kit, {"retention.ms": "1000"})
    first, late, behind = explanation.segments
    assert first.goes is Rule.TIME
    assert late.future is not None
    assert (late.future.offset, late.future.timestamp) == (10, NOW_MS + 5000 + 10**9)
    (reason,) = [each for each in behind.reasons if each.what == "futureTimestamp"]
    assert reason.blocked_by == late.segment.base_offset == 8
    assert behind.until_ms == late.until_ms == NOW_MS + 5001 + 10**9 + 1000 + 1
    (finding,) = explanation.findings
    assert "in the future, first at offset 10" in finding
    assert not stays(told(kit, {"retention.ms": "1000"}, late.until_ms))
    assert told(kit, {"retention.ms": "-1"}).findings  # reported, too, if no limit is by time


def test_bytes_missing_are_exact(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.filled(12)
    size = told(kit, {}).facts.size
    settings = {"retention.ms": "-1", "retention.bytes": str(size)}
    missing = [reason.after_bytes for entry in told(kit, settings).segments for reason in entry.reasons]
    for entry, bytes_more in zip(
        told(kit, settings).segments, [each for each in missing if each is not None], strict=True
    ):
        base = entry.segment.base_offset
        assert base in stays(told(kit, {"retention.ms": "-1", "retention.bytes": str(size - bytes_more + 1)}))
        assert base not in stays(told(kit, {"retention.ms": "-1", "retention.bytes": str(size - bytes_more)}))


def test_the_high_watermark_and_the_policy_hold(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.filled(12)
    mark(kit, 17)
    explanation = told(kit, {"retention.ms": "1"}, NOW_MS + 10**9)
    assert stays(explanation) == [16]
    (reason,) = explanation.segments[-1].reasons
    assert reason.what == "highWatermark"
    explanation = told(kit, {"retention.ms": "1", "cleanup.policy": "compact"}, NOW_MS + 10**9)
    assert stays(explanation) == [0, 8, 16]
    assert {reason.what for entry in explanation.segments for reason in entry.reasons} <= {
        "policy", "logStart", "highWatermark", "dirty", "uncompacted",
    }  # fmt: skip


def test_a_time_index_that_lost_its_entries_is_told(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.filled(12)
    log.shut_down()
    kit.path("00000000000000000008.timeindex").write_bytes(b"")
    kit.clock.now_ms += 60_000
    (finding,) = told(kit, {}).findings
    assert "its time index is empty" in finding
    config = LogConfig.from_props(None, SMALL)
    exact = explain(str(kit.root), T0, config, kit.clock.now_ms, exact=True)
    assert not exact.findings
    assert exact.segments[1].segment.record_timestamp == NOW_MS + 7001


def piece(base: int, size: int, largest_ms: int) -> SegmentFacts:
    return SegmentFacts(base, base + 10, "", size, size, 0, largest_ms, False, False)


def test_the_rule_by_table() -> None:
    pieces = [piece(0, 100, 1000), piece(10, 100, 5000), piece(20, 100, 2000), piece(30, 0, 3000)]
    end = Bounds(0, 30, 30)
    settings: list[tuple[dict[str, str], Bounds, int, list[tuple[Rule, int]]]] = [
        ({"retention.ms": "1000"}, end, 2001, [(Rule.LOG_START, 0), (Rule.SIZE, 0), (Rule.TIME, 1)]),
        ({"retention.ms": "1000"}, end, 6001, [(Rule.LOG_START, 0), (Rule.SIZE, 0), (Rule.TIME, 3)]),
        ({"retention.ms": "1000"}, Bounds(0, 19, 30), 6001, [(Rule.LOG_START, 0), (Rule.SIZE, 0), (Rule.TIME, 1)]),
        (
            {"retention.ms": "-1", "retention.bytes": "100"},
            end,
            0,
            [(Rule.LOG_START, 0), (Rule.SIZE, 2), (Rule.TIME, 0)],
        ),
        (
            {"retention.ms": "-1", "retention.bytes": "101"},
            end,
            0,
            [(Rule.LOG_START, 0), (Rule.SIZE, 1), (Rule.TIME, 0)],
        ),
        ({"retention.ms": "-1"}, Bounds(20, 30, 30), 0, [(Rule.LOG_START, 2), (Rule.SIZE, 0), (Rule.TIME, 0)]),
        ({"cleanup.policy": "compact", "retention.ms": "0"}, Bounds(10, 30, 30), 10**6, [(Rule.LOG_START, 1)]),
    ]
    for overrides, bounds, now_ms, expected in settings:
        assert runs_of(pieces, bounds, LogConfig.from_props(None, overrides), now_ms) == expected, overrides
    config = LogConfig.from_props(None, {"retention.ms": "0"})
    condition = condition_of(Rule.TIME, pieces, 0, config, 10**6)
    assert condition is not None
    assert oldest_run(pieces, end, condition) == (3, Held.LAST_AND_EMPTY)
    assert oldest_run(pieces, Bounds(0, 9, 30), condition) == (0, Held.HIGH_WATERMARK)
    assert rules_of(LogConfig.from_props(None, {"cleanup.policy": "compact"})) == (Rule.LOG_START,)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "orders-0", config={"internal.segment.bytes": "600"}) as log:
        for number in range(20):
            log.append(b"%d" % number * 20)

    def run(*argv: str) -> tuple[int, list[dict[str, Any]], str]:
        code = invoke(["explain", "--json", *argv])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    code, lines, err = run(str(root / "orders-0"), "-X", "retention.bytes=0")
    *segments, summary = lines
    assert (code, "guessed: cleanup.policy, retention.ms: no settings are stored next to the data" in err) == (0, True)
    assert summary["sources"]["retention.bytes"] == "given"
    assert summary["sources"]["retention.ms"] == "guessed default"
    assert {line["kind"] for line in segments} == {"segment"}
    assert (summary["kind"], summary["goes"], summary["config"]["retention.bytes"]) == ("summary", len(segments), 0)
    assert invoke(["explain", str(root / "orders-0")]) == 0
    out, err = capsys.readouterr()
    assert "kept until" in out
    assert "guessed: cleanup.policy, retention.ms, retention.bytes" in err
    assert "retention.ms=604800000 (7.0 d, guessed default)" in out
    properties = root.parent / "server.properties"
    properties.write_text("log.retention.hours=24\n")
    assert invoke(["explain", str(root / "orders-0"), "--config", str(properties)]) == 0
    out, err = capsys.readouterr()
    assert "retention.ms=86400000 (1.0 d, server.properties, unless the topic sets it)" in out
    assert "cleanup.policy=delete (guessed default)" in out
    assert (
        "the topic may have other values: cleanup.policy, retention.ms, retention.bytes: no settings are stored" in err
    )
    assert "--config" not in err
    assert invoke(["retain", str(root), "--config", str(properties), "--yes"]) == 2  # it may not count
    capsys.readouterr()
    for place in (root, root / "orders"):
        assert [line["topic"] for line in run(str(place))[1] if line["kind"] == "summary"] == ["orders"]
    for path, hint in (
        (root / "order-0", "did you mean orders-0"),
        (root / "orders-0" / "00000000000000000000.log", "found a file"),
        (tmp_path / "no" / "such-0", "not found"),
    ):
        code, lines, err = run(str(path))
        assert (code, lines) == (2, []), path
        assert hint in err, err
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.bytes=0\nlog.dirs=/x\n")
    *_, summary = run(str(root / "orders-0"), "--config", str(properties))[1]
    assert summary["goes"] == summary["segments"]
    assert run(str(root / "orders-0"), "-X", "retention.mss=1")[0] == 2


def commands(reasons: list[Reason]) -> list[list[str]]:
    return [shlex.split(line) for reason in reasons for line in re.findall("`kafkalog (.*?)`", reason.text)]


def test_commands_that_are_told_can_be_run(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "log dir"
    root.mkdir()
    kit = Kit(root)
    kit.filled(12)
    for settings, first, offered in (
        ({"cleanup.policy": "delete"}, "logStart", {"delete-records"}),
        ({"cleanup.policy": "compact"}, "dirty", {"compact"}),
        ({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}, "dirty", {"compact"}),
        ({"cleanup.policy": "compact,delete"}, "dirty", {"compact", "delete-records"}),
    ):
        explanation = told(kit, settings)
        assert explanation.segments[0].reasons[0].what == first
        found = [line for entry in explanation.segments for line in commands(entry.reasons)]
        assert {line[0] for line in found} == offered
        for line in found:
            result = run(*line, *(each for key in settings for each in ("-X", f"{key}={settings[key]}")))
            assert result.code == CLEAN, (line, result.err)


def test_retain_and_explain_show_one_size(tmp_path: Path, run: Run) -> None:
    kit = Kit(tmp_path)
    kit.filled(12).shut_down()
    size = kit.path("00000000000000000000.log").stat().st_size
    by_time = ("-X", "retention.ms=1")
    retained, explained = run("retain", tmp_path / "t-0", *by_time), run("explain", tmp_path / "t-0", *by_time)
    for lines in (retained.lines, explained.lines):
        [line] = [line for line in lines if "00000000000000000000.log" in line]
        assert f"  {size} B " in line
    assert "B on disk) would be deleted" in retained.lines[0]
