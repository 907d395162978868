"""Scripts of RemoteLogManagerMain, one for each rule, and where both tiers begin then."""

from __future__ import annotations

from typing import Any, NamedTuple

Line = dict[str, Any]
COPY, EXPIRE, RETAIN, ROLL, LEAD, FOLLOW = (
    {"op": name} for name in ("copy", "expire", "delete_old_segments", "roll", "lead", "follow")
)
NOW_MS = 1_000_000
TIERED = {
    "remote.storage.enable": "true",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
    "index.interval.bytes": "1",
}
ALL_REMOTE = {**TIERED, "local.retention.bytes": "0"}


class Rule(NamedTuple):
    name: str
    ops: list[Line]
    remote: list[str]  # segments, as "first-last", in another state than COPY_SEGMENT_FINISHED, with the state after it
    starts: tuple[int, int]  # the log's, and the local log's


def _open(config: Line, **fields: Any) -> Line:
    return {"op": "open", "config": config, **fields}


def _begin(config: Line) -> list[Line]:
    return [_clock(NOW_MS), _open(config), LEAD]


def _clock(by_ms: int) -> Line:
    return {"op": "advance_clock", "by_ms": by_ms}


def _records(count: int, ts: int, value_bytes: int) -> list[Line]:
    return [{"ts": ts + number, "value_hex": "61" * value_bytes} for number in range(count)]


def _append(count: int = 5, *, epoch: int = 0, ts: int = NOW_MS, value_bytes: int = 10) -> Line:
    return {"op": "append_leader", "leader_epoch": epoch, "batches": [{"records": _records(count, ts, value_bytes)}]}


def _transact(producer: int, count: int = 2, *, sequence: int = 0) -> Line:
    batch = {
        "producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True,
        "records": _records(count, NOW_MS, 5),
    }  # fmt: skip
    return {"op": "append_leader", "leader_epoch": 0, "batches": [batch]}


def _mark(producer: int, kind: str) -> Line:
    return {"op": "append_end_txn_marker", "type": kind, "producer_id": producer, "epoch": 0, "ts": NOW_MS}


def _hw(offset: int) -> Line:
    return {"op": "update_high_watermark", "hw": offset}


def _config(config: Line) -> Line:
    return {"op": "set_config", "config": config}


def _storage(**fields: Any) -> Line:
    return {"op": "storage", **fields}


def _closed(count: int, *, epoch: int = 0, first: int = 0, value_bytes: int = 10) -> list[Line]:
    """Closed segments of five records, each a second later than the one before."""
    ops: list[Line] = []
    for number in range(count):
        ops += [_append(epoch=epoch, ts=NOW_MS + 1000 * (first // 5 + number), value_bytes=value_bytes), ROLL]
    return [*ops, _hw(first + 5 * count)]


ASK = [
    *({"op": "offset", "ts": special} for special in range(-6, 0)),
    *({"op": "offset", "ts": NOW_MS + at} for at in (-1, 0, 3, 5, 1000, 1004, 2003, 5000, 99_000)),
    *({"op": "fetch", "offset": offset} for offset in range(20)),
    *({"op": "aborted", "first": offset, "last": offset + 3} for offset in range(20)),
]

# fmt: off  (a script is a line of its own steps)
RULES = [
    Rule(
        "nothing is copied before the high watermark", [*_begin(TIERED), _append(), ROLL, _append(), COPY], [], (0, 0)
    ),
    Rule(
        "closed segments are copied, the active one is not",
        [*_begin(TIERED), *_closed(2), _append(), COPY, RETAIN, *ASK],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "what was copied goes from the disk",
        [*_begin(ALL_REMOTE), *_closed(3), _append(), _hw(20), RETAIN, COPY, RETAIN, *ASK],
        ["0-4", "5-9", "10-14"],
        (0, 15),
    ),
    Rule(
        "the active segment is rolled where local retention asks for it",
        [
            *_begin({**ALL_REMOTE, "local.retention.ms": "10"}),
            _append(),
            _hw(5),
            _clock(20),
            RETAIN,
            COPY,
            RETAIN,
            *ASK,
        ],
        ["0-4"],
        (0, 5),
    ),
    Rule(
        "a transaction that is not decided keeps its segment, and those behind it",
        [
            *_begin(ALL_REMOTE),
            *_closed(1),
            _transact(1),
            ROLL,
            _append(),
            ROLL,
            _hw(12),
            COPY,
            RETAIN,
            _mark(1, "abort"),
            _hw(13),
            COPY,
            RETAIN,
            ROLL,
            _append(),
            _hw(18),
            COPY,
            RETAIN,
            *ASK,
        ],
        ["0-4", "5-6", "7-11", "12-12"],
        (0, 13),
    ),
    Rule(
        "transactions that end in another segment, in another tier",
        [
            *_begin(ALL_REMOTE),
            _transact(1),
            _transact(2),
            ROLL,
            _mark(1, "abort"),
            _append(),
            ROLL,
            _hw(10),
            COPY,
            _transact(1, sequence=2),
            ROLL,
            _mark(2, "commit"),
            _mark(1, "abort"),
            _hw(14),
            COPY,
            RETAIN,
            *ASK,
        ],
        ["0-3", "4-9", "10-11"],
        (0, 12),
    ),
    Rule(
        "copying waits for its lag in time",
        [
            *_begin({**TIERED, "remote.copy.lag.ms": "5000", "remote.copy.lag.bytes": "-1"}),
            *_closed(3),
            _clock(6500),
            COPY,
        ],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "copying waits for its lag in bytes",
        [*_begin({**TIERED, "remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": "150"}), *_closed(3), _append(), COPY],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "an upload that may be tried again leaves its event, and ends the run",
        [*_begin(TIERED), *_closed(2), _storage(copies=["", "retriable"]), COPY, COPY],
        ["0-4", "5-9", "5-9 COPY_SEGMENT_STARTED"],
        (0, 0),
    ),
    Rule(
        "an upload that fails is removed",
        [*_begin(TIERED), *_closed(2), _storage(copies=["", "permanent"]), COPY],
        ["0-4"],
        (0, 0),
    ),
    Rule(
        "an upload that fails, and its removal, too",
        [*_begin(TIERED), *_closed(1), _storage(copies=["permanent"], deletions=["permanent"]), COPY, COPY],
        ["0-4", "0-4 DELETE_SEGMENT_STARTED"],
        (0, 0),
    ),
    Rule(
        "too much custom metadata ends copying, until it was switched off and on",
        [
            *_begin(TIERED),
            *_closed(2),
            _storage(custom_bytes=17),
            COPY,
            _storage(custom_bytes=16),
            COPY,
            _config(TIERED),
            COPY,
            _config({**TIERED, "remote.log.copy.disable": "true"}),
            COPY,
            _config(TIERED),
            COPY,
        ],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "without copying local segments go by the settings of both tiers",
        [
            *_begin({**ALL_REMOTE, "remote.log.copy.disable": "true"}),
            *_closed(3),
            COPY,
            RETAIN,
            _config({**ALL_REMOTE, "remote.log.copy.disable": "true", "retention.bytes": "200"}),
            RETAIN,
            *ASK,
        ],
        [],
        (5, 5),
    ),
    Rule(
        "without copying what was copied expires",
        [
            *_begin(ALL_REMOTE),
            *_closed(3),
            COPY,
            RETAIN,
            _config({**ALL_REMOTE, "remote.log.copy.disable": "true", "retention.ms": "1500"}),
            _clock(3000),
            EXPIRE,
        ],
        ["10-14"],
        (10, 15),
    ),
    Rule(
        "a tier that is switched off loses all, and the log begins on the disk",
        [
            *_begin(ALL_REMOTE),
            *_closed(3),
            COPY,
            RETAIN,
            _append(),
            _hw(20),
            _config({**TIERED, "remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}),
            COPY,
            EXPIRE,
            *ASK,
        ],
        [],
        (15, 15),
    ),
    Rule(
        "a tier that is switched off and on begins anew",
        [
            *_begin(ALL_REMOTE),
            *_closed(2),
            COPY,
            RETAIN,
            *_closed(1, first=10),
            _config({**TIERED, "remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}),
            _config(ALL_REMOTE),
            COPY,
            RETAIN,
            *ASK,
        ],
        ["10-14"],
        (10, 15),
    ),
    Rule(
        "retention by time",
        [*_begin({**ALL_REMOTE, "retention.ms": "1500"}), *_closed(4), COPY, RETAIN, _clock(3504), EXPIRE, *ASK],
        ["10-14", "15-19"],
        (10, 20),
    ),
    Rule(
        "retention by time keeps all while the clock is below it",
        [*_begin({**ALL_REMOTE, "retention.ms": "2000000"}), *_closed(2), COPY, EXPIRE],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "retention by size counts both tiers, each segment once",
        [
            *_begin({**ALL_REMOTE, "retention.bytes": "400"}),
            *_closed(3),
            COPY,
            RETAIN,
            *_closed(2, first=15),
            EXPIRE,
            *ASK,
        ],
        ["10-14"],
        (10, 15),
    ),
    Rule(
        "retention by size takes none that is larger than what is too much",
        [
            *_begin({**TIERED, "retention.bytes": "500"}),
            *_closed(1, value_bytes=100),
            *_closed(2, first=5),
            COPY,
            EXPIRE,
        ],
        ["0-4", "5-9", "10-14"],
        (0, 0),
    ),
    Rule(
        "what lies below the log's start goes",
        [
            *_begin(ALL_REMOTE),
            *_closed(3),
            COPY,
            {"op": "increment_log_start_offset", "offset": 10},
            EXPIRE,
            RETAIN,
            *ASK,
        ],
        ["10-14"],
        (10, 15),
    ),
    Rule(
        "a segment that holds the log's start stays",
        [
            *_begin(ALL_REMOTE),
            *_closed(3),
            COPY,
            RETAIN,
            {"op": "increment_log_start_offset", "offset": 8},
            EXPIRE,
            *ASK,
        ],
        ["5-9", "10-14"],
        (8, 15),
    ),
    Rule(
        "epochs that the log has forgotten go with their segments",
        [
            *_begin(ALL_REMOTE),
            *_closed(2),
            COPY,
            *_closed(2, epoch=1, first=10),
            COPY,
            RETAIN,
            {"op": "increment_log_start_offset", "offset": 12},
            EXPIRE,
            *ASK,
        ],
        ["10-14", "15-19"],
        (12, 20),
    ),
    Rule(
        "a segment with a forgotten epoch and a known one stays",
        [
            *_begin(ALL_REMOTE),
            _append(),
            _append(epoch=1),
            ROLL,
            _append(epoch=2),
            ROLL,
            _hw(15),
            COPY,
            RETAIN,
            {"op": "increment_log_start_offset", "offset": 7},
            EXPIRE,
            *ASK,
        ],
        ["0-9", "10-14"],
        (7, 15),
    ),
    Rule(
        "a deletion that fails is gone on with",
        [
            *_begin({**ALL_REMOTE, "retention.ms": "0"}),
            *_closed(3),
            COPY,
            RETAIN,
            _clock(9000),
            _storage(deletions=["", "retriable", "permanent"]),
            EXPIRE,
            *ASK,
            EXPIRE,
            *ASK,
            EXPIRE,
        ],
        [],
        (15, 15),
    ),
    Rule(
        "nothing expires above the high watermark",
        [
            *_begin({**TIERED, "retention.ms": "0"}),
            *_closed(2),
            COPY,
            _clock(9000),
            _open({**TIERED, "retention.ms": "0"}),
            LEAD,
            _hw(3),
            EXPIRE,
            *ASK,
        ],
        ["0-4", "5-9"],
        (0, 0),
    ),
    Rule(
        "a restart finds what was copied, and goes on behind it",
        [
            *_begin(ALL_REMOTE),
            *_closed(2),
            COPY,
            RETAIN,
            *_closed(1, first=10),
            _open(ALL_REMOTE),
            LEAD,
            RETAIN,
            EXPIRE,
            RETAIN,
            COPY,
            _hw(15),
            COPY,
            RETAIN,
            *ASK,
        ],
        ["0-4", "5-9", "10-14"],
        (0, 15),
    ),
    Rule(
        "another leader cut what was copied: what it gave up does not expire",
        [
            *_begin({**ALL_REMOTE, "retention.ms": "5000"}),
            *_closed(3),
            COPY,
            FOLLOW,
            {"op": "truncate_to", "offset": 8},
            {"op": "begin_epoch", "epoch": 1},
            LEAD,
            _append(epoch=1),
            ROLL,
            _hw(13),
            COPY,
            RETAIN,
            EXPIRE,
            *ASK,
            _clock(8000),
            EXPIRE,
        ],
        ["5-9"],
        (13, 13),
    ),
    Rule(
        "an epoch without records",
        [
            *_begin(ALL_REMOTE),
            *_closed(1),
            {"op": "begin_epoch", "epoch": 1},
            {"op": "begin_epoch", "epoch": 3},
            *_closed(2, epoch=3, first=5),
            COPY,
            RETAIN,
            {"op": "begin_epoch", "epoch": 4},
            COPY,
            EXPIRE,
            *ASK,
        ],
        ["0-4", "5-9", "10-14"],
        (0, 15),
    ),
    Rule(
        "a follower knows how far the leader copied",
        [*_begin(ALL_REMOTE), *_closed(2), COPY, _open(ALL_REMOTE), LEAD, FOLLOW, _hw(10), RETAIN, *ASK[:6]],
        ["0-4", "5-9"],
        (0, 10),
    ),
    Rule(
        "a partition that goes leaves its segments, or takes them along",
        [
            *_begin(ALL_REMOTE),
            *_closed(2),
            COPY,
            {"op": "stop"},
            COPY,
            LEAD,
            COPY,
            EXPIRE,
            _storage(deletions=["permanent"]),
            {"op": "stop", "delete": True},
            LEAD,
            EXPIRE,
        ],
        [],
        (0, 0),
    ),
]
# fmt: on
