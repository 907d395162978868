"""Random scripts of RemoteLogManagerMain: a leader with a remote tier, and its copies and deletions.

A script has rounds of appending, closing segments, copying and both retentions, in any order.  Now and then settings
change, the storage fails, another leader takes over (which truncates the log and begins an epoch), the log restarts, or
the tier is disabled.  Every query follows at the end.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.choosing import Chooser, SeededChooser

Line = dict[str, Any]

SETTINGS: dict[str, tuple[str, ...]] = {
    "retention.ms": ("-1", "3000", "20000", "0"),
    "retention.bytes": ("-1", "400", "1000", "0", "100000"),
    "local.retention.ms": ("1000", "-2", "0", "5000"),
    "local.retention.bytes": ("0", "150", "500", "-2"),
    "remote.log.copy.disable": ("false", "false", "true"),
    "remote.copy.lag.ms": ("0", "-1", "2000"),
    "remote.copy.lag.bytes": ("0", "-1", "200"),
}
START: Line = {
    "remote.storage.enable": "true",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "100",
    "retention.ms": "-1",
    "local.retention.bytes": "200",
}
STEPS = {
    "turn": 20, "append": 9, "transact": 3, "mark": 3, "roll": 6, "raise_hw": 7, "copy": 7, "expire": 4, "retain": 5,
    "configure": 3, "advance": 3, "raise_start": 1, "break_storage": 1, "change_leader": 1, "reopen": 0.6, "stop": 0.2,
    "switch_off": 0.2, "ask": 3,
}  # fmt: skip


class RemoteScriptWriter:
    def __init__(self, choose: Chooser) -> None:
        self._choose = choose
        self._lines: list[Line] = []
        self._config = dict(START)
        self._now = 1_000_000
        self._epoch = 0
        self._next = 0
        self._sequences: dict[int, int] = {}
        self._open: dict[int, int] = {}  # producers in a transaction, and where it began
        self._batches: list[tuple[int, int]] = []  # first offset, and the one after the batch
        self._producers = 0  # producers from this number on are new

    @classmethod
    def of_seed(cls, seed: int) -> RemoteScriptWriter:
        return cls(SeededChooser(seed))

    def write(self) -> Line:
        choose = self._choose
        if choose.chance(0.4):
            self._config["internal.segment.bytes"] = choose.choice(["250", "400"])
        for name in SETTINGS:
            if choose.chance(0.3):
                self._config[name] = choose.choice(SETTINGS[name])
        self._say("advance_clock", by_ms=self._now)
        self._say("open", config=dict(self._config))
        self._say("lead")
        for _ in range(choose.integer(15, 45)):
            getattr(self, choose.weighted([*STEPS], [*STEPS.values()]))()
        self._ask_all()
        return {"settings": {"remote.log.metadata.custom.metadata.max.bytes": "16"}, "ops": self._lines}

    def turn(self) -> None:
        """Writes a broker's usual work."""
        choose = self._choose
        for producer in sorted(self._open):
            if choose.chance(0.7):
                self._end(producer)
        for _ in range(choose.integer(1, 3)):
            self.transact() if choose.chance(0.2) else self.append()
        if choose.chance(0.8):
            self._say("roll")
        if choose.chance(0.8):
            self._say("maybe_increment_high_watermark", hw=self._next)
        if choose.chance(0.8):
            self._say("copy")
        if choose.chance(0.7):
            self._say("delete_old_segments")
        if choose.chance(0.3):
            self._say("expire")

    def _say(self, op: str, **fields: Any) -> None:
        self._lines.append({"op": op, **fields})

    def _appended(self, count: int) -> None:
        self._batches.append((self._next, self._next + count))
        self._next += count

    def _records(self) -> list[Line]:
        count = self._choose.integer(1, 4)
        times = [self._now - self._choose.choice([0, 0, 10, 900, 4000, -2000]) for _ in range(count)]
        return [{"ts": ts, "value_hex": "61" * self._choose.integer(0, 30)} for ts in times]

    def append(self) -> None:
        records = self._records()
        self._say("append_leader", leader_epoch=self._epoch, batches=[{"records": records}])
        self._appended(len(records))

    def transact(self) -> None:
        producer, records = self._producers + self._choose.integer(1, 3), self._records()
        sequence = self._sequences.get(producer, 0)
        batch = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": sequence,
            "transactional": True,
            "records": records,
        }
        self._say("append_leader", leader_epoch=self._epoch, batches=[batch])
        self._sequences[producer] = sequence + len(records)
        self._open.setdefault(producer, self._next)
        self._appended(len(records))

    def mark(self) -> None:
        if self._open:
            self._end(self._choose.choice(sorted(self._open)))

    def _end(self, producer: int) -> None:
        del self._open[producer]
        kind = self._choose.choice(["abort", "commit"])
        self._say(
            "append_end_txn_marker", type=kind, producer_id=producer, epoch=0, leader_epoch=self._epoch, ts=self._now
        )
        self._appended(1)

    def roll(self) -> None:
        self._say("roll")

    def raise_hw(self) -> None:
        high = self._next if self._choose.chance(0.8) else self._choose.integer(0, self._next)
        self._say("maybe_increment_high_watermark", hw=high)

    def copy(self) -> None:
        self._say("copy")

    def expire(self) -> None:
        self._say("expire")

    def retain(self) -> None:
        self._say("delete_old_segments")

    def configure(self) -> None:
        name = self._choose.choice([*SETTINGS])
        self._config[name] = self._choose.choice(SETTINGS[name])
        self._say("set_config", config=dict(self._config))

    def advance(self) -> None:
        by_ms = self._choose.choice([10, 1000, 5000])
        self._now += by_ms
        self._say("advance_clock", by_ms=by_ms)

    def raise_start(self) -> None:
        self._say("increment_log_start_offset", offset=self._choose.integer(0, self._next))

    def break_storage(self) -> None:
        words = [self._choose.choice(["permanent", "retriable", ""]) for _ in range(self._choose.integer(1, 2))]
        kind = self._choose.choice(["copies", "deletions"])
        more = {"custom_bytes": self._choose.choice([-1, 3, 16, 17])} if self._choose.chance(0.5) else {}
        self._say("storage", **{kind: words}, **more)

    def change_leader(self) -> None:
        self._say("follow")
        if self._choose.chance(0.6):
            low = max(0, self._next - 12)
            self._cut(self._choose.integer(low, self._next))
        if self._choose.chance(0.3):
            self._say("expire")
        self._epoch += self._choose.integer(1, 2)
        self._say("begin_epoch", epoch=self._epoch)
        self._say("lead")

    def _cut(self, offset: int) -> None:
        """Replaces the producers after a truncation, because their state is no longer known."""
        self._say("truncate_to", offset=offset)
        self._batches = [batch for batch in self._batches if batch[1] <= offset]
        self._next = self._batches[-1][1] if self._batches else offset
        self._open = {producer: began for producer, began in self._open.items() if began < self._next}
        self._producers += 3

    def reopen(self) -> None:
        self._say("open", config=dict(self._config), clean=self._choose.chance(0.8))
        self._say("lead")

    def stop(self) -> None:
        self._say("stop", delete=self._choose.chance(0.5))
        self._say("lead")

    def switch_off(self) -> None:
        off = {**self._config, "remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        self._say("set_config", config=off)
        if self._choose.chance(0.5):
            self.append()
            self._say("delete_old_segments")
        self._say("set_config", config=dict(self._config))

    def ask(self) -> None:
        match self._choose.choice(["offset", "special", "aborted", "fetch"]):
            case "offset":
                self._say("offset", ts=self._now - self._choose.choice([0, 11, 901, 3000, 10_000]))
            case "special":
                self._say("offset", ts=self._choose.integer(-6, -1))
            case "aborted":
                first = self._choose.integer(0, self._next)
                self._say("aborted", first=first, last=first + self._choose.integer(0, 10))
            case _:
                self._say("fetch", offset=self._choose.integer(0, self._next))

    def _ask_all(self) -> None:
        for special in range(-6, 0):
            self._say("offset", ts=special)
        for back in (20_000, 9000, 5000, 4000, 1000, 900, 10, 0, -2000, -2001):
            self._say("offset", ts=self._now - back)
        for offset in range(self._next + 1):
            self._say("fetch", offset=offset)
            self._say("aborted", first=offset, last=offset + self._choose.integer(0, 12))
