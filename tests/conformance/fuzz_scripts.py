"""Random scripts over the whole partition operation set: the same choices give the same script.

Who chooses is a `Chooser`: a seed in bulk runs, hypothesis where a script that differs is to be shrunk.  A
`ScriptWriter` keeps a rough idea of the log (its end, its producers, its open transactions), so that most operations
make sense and the rest are the interesting kind of nonsense.  It never needs to be right: real Kafka says what is.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass
from typing import Any

from kafkalog._native.codec import batches as native
from kafkalog.engine.format import codecs
from kafkalog.errors import IllegalArgumentException
from tests.conformance.batch_spec import batch_from_spec
from tests.conformance.choosing import Chooser, SeededChooser
from tests.conformance.fuzz_configs import topic_config

START_MS = 1_700_000_000_000
INT_MAX = 2147483647
SIGN = 1 << 63
AHEAD_MS = 200_000
# Where a batch's header has them.
ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, COUNT, RECORDS = 21, 27, 35, 57, 61
DIR = "logs"
PARTITION = "foo-0"
TOPIC_IDS = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")
# For lz4 levels 1 and 2 lz4-java uses a different codec: no other library gives equal bytes.
LEVELS = {"gzip": (1, 6, 9), "lz4": (3, 9, 12), "zstd": (1, 3, 7)}

# The steps of a script, and how often each is taken.
STEPS: dict[str, float] = {
    "append_leader": 30, "append_follower": 8, "append_marker": 9, "read": 9, "high_watermark": 9, "roll": 3,
    "truncate": 4, "start_offset": 3, "retention": 4, "by_time": 5, "epochs": 5, "new_config": 2, "show": 6,
    "advance_clock": 7, "reopen": 3, "crash_and_reopen": 2.5, "rare": 2.5,
}  # fmt: skip
COMPACTION_STEPS = STEPS | {
    "clean": 10, "clean_for_a_while": 5, "roll": 12, "append_marker": 12, "read": 5, "by_time": 2, "epochs": 2,
    "truncate": 3, "rare": 4,
}  # fmt: skip

Line = dict[str, Any]


@dataclass
class Producer:
    """The writer's view of a producer."""

    epoch: int = 0
    next_sequence: int = 0
    in_transaction: bool = False
    last_batch: Line | None = None


class ScriptWriter:
    """One script in the making."""

    def __init__(self, choose: Chooser, *, compact: bool = False) -> None:
        self.choose = choose
        self.compact = compact
        self.lines: list[Line] = []
        self.leo = 0
        self.log_start = 0
        self.now = START_MS
        self.leader_epoch = 0
        self.coordinator_epoch = 0
        self.producers: dict[int, Producer] = {}
        self.config = topic_config(self.choose, compact=self.compact)
        self.verification = self.chance(0.15)
        self.topic_id = self.choose.choice((None, TOPIC_IDS[0]))
        self.manual_scheduler = self.chance(0.05)
        self.options: Line = {}
        if self.chance(0.2):
            self.options["producer_id_expiration_ms"] = self.choose.choice((1000, 5000))
            self.options["producer_id_expiration_check_interval_ms"] = self.choose.choice((1000, 2000, 600000))

    @classmethod
    def of_seed(cls, seed: int, *, compact: bool = False) -> ScriptWriter:
        return cls(SeededChooser(seed), compact=compact)

    def chance(self, probability: float) -> bool:
        return self.choose.chance(probability)

    def add(self, op: str, **fields: Any) -> None:
        self.lines.append({"op": op, **fields})

    # --- the whole ----------------------------------------------------------------------------------

    def write(self, *, closed: bool = True) -> list[Line]:
        """Writes 20 to 60 operations; ends with a read of everything, and a close unless the files get damaged next."""
        self.open(clean=True)
        for _ in range(self.choose.integer(20, 60)):
            self.step()
        self.look()
        # The length of a snappy payload depends on the compressor: a position in the file is in another batch there.
        if self.compact and closed and self.chance(0.3) and not broker_may_compress_with_snappy(self.lines):
            self.clean_what_is_damaged()
        if closed:
            self.finish()
        return self.lines

    def look(self) -> None:
        for op in ("segments", "producers", "epoch_cache", "dump"):
            self.add(op)

    def finish(self) -> None:
        if self.chance(0.1):
            self.add("close", broker_style=False)
        elif self.chance(0.1):
            self.add("crash")
        elif self.chance(0.05):
            self.add("delete_log")
        else:
            self.add("close")
        self.add("advance_clock", by_ms=100_000)
        self.add("dump", path=DIR)

    def step(self) -> None:
        steps = COMPACTION_STEPS if self.compact else STEPS
        getattr(self, self.choose.weighted(list(steps), list(steps.values())))()

    # --- open and close -----------------------------------------------------------------------------

    def open(self, *, clean: bool, **extra: Any) -> None:
        fields: Line = {"dir": DIR, "topic_partition": PARTITION, "config": self.config, "now_ms": self.now}
        fields |= {"clean_shutdown": clean, **self.options}
        if self.verification:
            fields["transaction_verification"] = True
        if self.manual_scheduler:
            fields["scheduler"] = "manual"
        if self.topic_id is not None:
            fields["topic_id"] = TOPIC_IDS[1] if self.chance(0.02) else self.topic_id
            if self.chance(0.1):
                fields["topic_id_at_create"] = False
        self.add("open", **(fields | extra))

    def _checkpoints(self) -> Line:
        """The checkpoint values that a manager would have read, or other values."""
        kept: Line = {"recovery_point": self.choose.choice((0, 0, self.leo, self.choose.integer(0, self.leo + 1)))}
        if self.log_start or self.chance(0.05):
            kept["log_start_offset"] = self.log_start if self.chance(0.8) else self.choose.integer(0, self.leo + 2)
        return kept

    def reopen(self) -> None:
        self.add("close", broker_style=self.chance(0.9))
        if self.chance(0.3):
            self.now += self.choose.choice((0, 1, 1000, 70_000))
        if self.chance(0.15):
            self.config = topic_config(self.choose, compact=self.compact)
        self.open(clean=True, **self._checkpoints())

    def crash_and_reopen(self) -> None:
        self.add("crash")
        if self.chance(0.2):
            self.now += self.choose.choice((1, 1000, 70_000))
        self.open(clean=False, **self._checkpoints())
        self.show()

    # --- batches ------------------------------------------------------------------------------------

    def value(self) -> str | None:
        if self.chance(0.08):
            return None
        size = self.choose.choice((0, 1, 5, 20, 20, 40, 40, 100))
        # Half of it compresses.
        return self.choose.data(size // 2).hex() + "61" * (size - size // 2)

    def timestamp(self) -> int:
        return self.choose.weighted(
            (self.now, self.now + self.choose.integer(-3000, 3000), -1, self.now + 50_000, self.now - 50_000, 0),
            (50, 40, 2, 3, 3, 1),
        )

    def records(self, magic: int, count: int | None = None) -> list[Line]:
        found = []
        for _ in range(count if count is not None else self.choose.choice((1, 1, 2, 2, 3, 5))):
            record: Line = {"ts": self.timestamp()}
            record["key_hex"] = None if self.chance(0.1) else f"6b3{self.choose.integer(0, 5)}"
            record["value_hex"] = self.value()
            if magic == 2 and self.chance(0.15):
                names = [
                    self.choose.weighted(("h", "", "h\u00e9"), (1, 1, 1)) for _ in range(self.choose.integer(1, 2))
                ]
                record["headers"] = [[name, self.choose.choice((None, "", "6869"))] for name in names]
            found.append(record)
        return found

    def batch(self, magic: int | None = None) -> Line:
        if magic is None:
            magic = self.choose.weighted((2, 1, 0), (88, 7, 5))
        codec = self.choose.weighted(("none", "gzip", "snappy", "lz4", "zstd"), (50, 10, 7, 12, 12))
        if magic < 2 and codec == "zstd" and self.chance(0.9):
            codec = "gzip"
        batch: Line = {"codec": codec, "records": self.records(magic)}
        if magic != 2:
            batch["magic"] = magic
        if codec in LEVELS and self.chance(0.15):
            batch["level"] = self.choose.choice(LEVELS[codec])
        if self.chance(0.04):
            batch |= {"timestamp_type": "log_append", "log_append_time": self.now - 5}
        return batch

    def with_producer(self, batch: Line) -> Line:
        """Gives the batch a producer: mostly in order, sometimes a duplicate, a gap, an old or a new epoch."""
        producer_id = self.choose.choice((1, 2, 3, 17, 33, 8_589_934_592))
        producer = self.producers.setdefault(producer_id, self._new_producer())
        kind = self.choose.weighted(
            ("next", "again", "gap", "old epoch", "new epoch", "odd epoch"), (75, 8, 4, 4, 6, 3)
        )
        if kind == "again" and producer.last_batch is not None:
            return producer.last_batch
        count = len(batch["records"])
        epoch, sequence = producer.epoch, producer.next_sequence
        if kind == "gap":
            sequence = (sequence + self.choose.integer(1, 3)) % (INT_MAX + 1)
        elif kind == "old epoch":
            epoch = max(0, epoch - 1)
        elif kind == "new epoch":
            epoch, sequence = epoch + 1, 0
        elif kind == "odd epoch":
            epoch += 1
        batch |= {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        transactional = producer.in_transaction if self.chance(0.95) else not producer.in_transaction
        if not producer.in_transaction and self.chance(0.4):
            transactional = True
        if transactional:
            batch["transactional"] = True
        if kind in ("next", "new epoch"):
            producer.epoch = epoch
            producer.next_sequence = (sequence + count) % (INT_MAX + 1)
            producer.in_transaction = transactional
            producer.last_batch = batch
        return batch

    def twisted(self, batch: Line) -> Line:
        """The batch with content that no client writes, under a right checksum.

        The content is an unknown codec, a wrong record count, a time 2^63 ms ago, or a payload that ends early."""
        if batch.get("magic", 2) != 2:
            return batch
        kind = self.choose.weighted(("count", "time", "codec", "cut"), (4, 4, 2, 1))
        if kind == "count":  # later than all before, so that a search by time reaches it, one record after the other
            records = [{**record, "ts": self.now + AHEAD_MS + i} for i, record in enumerate(batch["records"])]
            batch = {**batch, "records": records}
        try:
            data = bytearray(batch_from_spec(batch))
        except IllegalArgumentException:
            return batch  # a level or a time that the builder refuses
        if not data:
            return batch
        if kind == "count":
            count = len(batch["records"]) + self.choose.choice((-1, 1, -2, 3, 70_000))
            struct.pack_into(">i", data, COUNT, self.choose.weighted((count, 0, -1), (8, 1, 1)))
        elif kind == "time":
            far = self.choose.choice(
                (self.now - SIGN, -SIGN, SIGN - 1, self.now - SIGN + self.choose.integer(-1, 9000))
            )
            for at in self.choose.choice(((BASE_TIMESTAMP, MAX_TIMESTAMP), (MAX_TIMESTAMP,), (BASE_TIMESTAMP,))):
                struct.pack_into(">q", data, at, far)
        elif kind == "codec":
            data[ATTRIBUTES + 1] = data[ATTRIBUTES + 1] & ~7 | self.choose.integer(5, 7)
        else:
            del data[max(RECORDS, len(data) - self.choose.integer(1, 20)) :]
            struct.pack_into(">i", data, 8, len(data) - 12)
        struct.pack_into(">I", data, 17, native.compute_crc(data, 0, len(data)))
        return {"raw_hex": data.hex()}

    def maybe_twisted(self, batches: list[Line], probability: float) -> list[Line]:
        """Perhaps with one of them twisted."""
        if not self.chance(probability):
            return batches
        number = self.choose.integer(0, len(batches) - 1)
        return [*batches[:number], self.twisted(batches[number]), *batches[number + 1 :]]

    def look_behind(self, batches: list[Line]) -> None:
        """After a batch with odd content: operations that meet its records or its time."""
        times = [record["ts"] for batch in batches for record in batch["records"]]
        times += [self.now + AHEAD_MS + i for i in range(3)]
        for _ in range(self.choose.integer(1, 3)):
            self.add("offset_for_timestamp", ts=self.choose.choice((*times, -3)))
        if self.chance(0.5):
            self.advance_clock()
            self.add("remove_expired_producers")
            self.add("producers")

    def _new_producer(self) -> Producer:
        return Producer(next_sequence=self.choose.choice((0, 0, 0, 5, INT_MAX - 2)))

    # --- appends ------------------------------------------------------------------------------------

    def append_leader(self) -> None:
        batches = [self.batch()]
        if self.chance(0.45):
            batches[0].pop("magic", None)
            if batches[0]["codec"] not in ("none", "gzip", "snappy", "lz4", "zstd"):
                batches[0]["codec"] = "none"
            batches = [self.with_producer(batches[0])]
        elif self.chance(0.12):
            batches += [self.batch() for _ in range(self.choose.integer(1, 2))]
            if self.chance(0.7):  # only uncompressed batches may come several at a time
                for batch in batches:
                    batch["codec"] = "none"
                    batch.pop("level", None)
        if self.chance(0.02):
            batches[0]["base_offset"] = self.choose.integer(1, 5)
        sent = self.maybe_twisted(batches, 0.03)
        fields: Line = {"batches": sent, "leader_epoch": self.leader_epoch}
        if self.chance(0.08):
            fields["origin"] = self.choose.weighted(("coordinator", "replication"), (3, 1))
        if self.chance(0.1):
            fields["transaction_version"] = self.choose.choice((0, 1, 2))
        if self.verification and self.chance(0.7):
            fields["verification"] = "guard"
            fields["supports_epoch_bump"] = self.chance(0.6)
        self.add("append_leader", **fields)
        self.leo += sum(len(batch["records"]) for batch in batches)
        if sent is not batches:
            self.look_behind(batches)

    def append_follower(self, *, below: bool = True) -> None:
        base = self.leo
        if self.chance(0.15):
            base += self.choose.choice((1, 3, 10, 1000, 3_000_000_000))
        elif below and self.chance(0.1):
            base = max(0, base - self.choose.integer(1, 3))
        epoch = self.leader_epoch
        if self.chance(0.25):
            self.leader_epoch += 1
            epoch = self.leader_epoch
        batches = []
        for _ in range(self.choose.choice((1, 1, 1, 2, 3))):
            batch = self.batch()
            if self.chance(0.3) and "magic" not in batch:
                batch = self.with_producer(batch)
            # A copy: a batch that a producer remembers must not change when it is sent again.
            batch = copy.deepcopy(batch)
            for i, record in enumerate(batch["records"]):
                record["offset"] = base + i
            batch |= {"base_offset": base, "leader_epoch": epoch if self.chance(0.95) else epoch + 1}
            if self.chance(0.03) and "magic" not in batch:
                batch["last_offset"] = base + len(batch["records"]) + 2
            base = batch.get("last_offset", base + len(batch["records"]) - 1) + 1
            batches.append(batch)
        leader_epoch = epoch if self.chance(0.9) else max(0, epoch - 1)
        sent = self.maybe_twisted(batches, 0.12)
        self.add("append_follower", batches=sent, leader_epoch=leader_epoch)
        self.leo = max(self.leo, base)
        if sent is not batches:
            self.look_behind(batches)

    def append_marker(self) -> None:
        in_transaction = [pid for pid, producer in self.producers.items() if producer.in_transaction]
        if in_transaction and self.chance(0.85):
            producer_id = self.choose.choice(in_transaction)
        else:
            producer_id = self.choose.choice((1, 2, 3, 77))
        producer = self.producers.setdefault(producer_id, self._new_producer())
        version = self.choose.weighted((0, 1, 2, -1), (50, 15, 30, 5))
        epoch = producer.epoch + (1 if version == 2 and self.chance(0.8) else 0)
        if self.chance(0.06):
            epoch = max(0, epoch + self.choose.choice((-1, 1)))
        if self.chance(0.1):
            self.coordinator_epoch += 1
        fields: Line = {"producer_id": producer_id, "epoch": epoch, "type": self.choose.choice(("commit", "abort"))}
        stale = 1 if self.coordinator_epoch > 0 and self.chance(0.05) else 0
        fields["coordinator_epoch"] = self.coordinator_epoch - stale
        fields |= {"leader_epoch": self.leader_epoch, "transaction_version": version}
        if self.chance(0.1):
            fields["ts"] = self.timestamp()
        self.add("append_end_txn_marker", **fields)
        producer.in_transaction = False
        if epoch > producer.epoch:
            producer.epoch, producer.next_sequence = epoch, 0
        self.leo += 1

    # --- reads --------------------------------------------------------------------------------------

    def some_offset(self, spread: int = 2) -> int:
        return self.choose.integer(min(self.log_start, self.leo), self.leo + spread)

    def read(self) -> None:
        offset = self.some_offset(1) if self.chance(0.9) else self.choose.choice((-1, 0, self.leo + 5))
        self.add(
            "read",
            offset=offset,
            max_bytes=self.choose.choice((0, 1, 16, 17, 61, 100, 150, 500, 5000, 1 << 20)),
            isolation=self.choose.choice(("log_end", "high_watermark", "txn_committed")),
            min_one_message=self.chance(0.7),
        )

    def by_time(self) -> None:
        special = self.choose.choice((-1, -2, -3, -4, -5, 0, self.now, SIGN - 1, -SIGN, self.now - SIGN))
        self.add("offset_for_timestamp", ts=self.timestamp() if self.chance(0.6) else special)

    def show(self) -> None:
        self.add(self.choose.choice(("segments", "producers", "producers", "epoch_cache", "dump", "dump")))

    def epochs(self) -> None:
        if self.chance(0.25):
            epoch = self.leader_epoch + self.choose.choice((0, 1, 1, 2, -1))
            self.leader_epoch = max(self.leader_epoch, epoch)
            self.add("assign_epoch", epoch=epoch, offset=self.some_offset())
        elif self.chance(0.4):
            self.leader_epoch += 1
        else:
            self.add("end_offset_for_epoch", epoch=self.choose.integer(-1, self.leader_epoch + 1))

    # --- changes ------------------------------------------------------------------------------------

    def high_watermark(self) -> None:
        if self.chance(0.3):
            self.add("maybe_increment_high_watermark", hw=self.some_offset(0))
        else:
            self.add("update_high_watermark", hw=self.leo if self.chance(0.5) else self.some_offset())
        if self.chance(0.01):
            self.add("update_high_watermark", hw=-1)

    def roll(self) -> None:
        if self.chance(0.25):
            expected = max(0, self.leo + self.choose.choice((-3, -1, 0, 1, 5)))
            self.add("roll", expected_next_offset=expected)
            if expected > self.leo:
                # Batches below their segment's base make Kafka's time index write half an entry: not worth copying.
                self.leo = expected
                self.append_follower(below=False)
        else:
            self.add("roll")

    def truncate(self) -> None:
        if self.chance(0.2):
            offset = self.choose.choice((self.some_offset(10), self.leo + 100, 0))
            self.leo = self.log_start = offset
            fields: Line = {"offset": offset}
            if self.chance(0.3):
                fields["log_start_offset"] = self.log_start = max(0, offset - self.choose.integer(0, 5))
            self.add("truncate_fully_and_start_at", **fields)
        else:
            offset = self.some_offset() if self.chance(0.95) else -1
            self.add("truncate_to", offset=offset)
            self.leo = max(0, min(self.leo, offset))
        for producer in self.producers.values():
            producer.in_transaction = False

    def start_offset(self) -> None:
        offset = self.some_offset(1)
        if self.chance(0.7):
            self.add("update_high_watermark", hw=self.leo)
            self.log_start = max(self.log_start, min(offset, self.leo))
        self.add("increment_log_start_offset", offset=offset)

    def clean(self) -> None:
        if self.chance(0.8):
            self.add("update_high_watermark", hw=self.leo)
        fields: Line = {}
        if self.chance(0.3):
            fields["last_clean_offset"] = self.choose.choice((None, 0, self.some_offset()))
        if self.chance(0.3):
            fields["buffer_bytes"] = self.choose.choice((72, 48, 96, 120, 24, 240))
        if self.chance(0.25):
            fields["io_buffer"] = self.choose.choice((512, 16, 64, 128, 200))
            fields["max_io_buffer"] = fields["io_buffer"] * self.choose.choice((64, 1, 4))
        if self.chance(0.15):
            fields["load_factor"] = self.choose.choice((0.5, 0.75, 1.0))
        self.add("clean", **fields)
        if self.chance(0.5):
            self.add("dump")
        if self.chance(0.15):
            self.add("segments")

    def clean_for_a_while(self) -> None:
        """Records of few keys and the ends of their transactions, a pass, time, and again: what a pass has given a
        horizon, or left of a producer, the next ones drop."""
        for _ in range(self.choose.integer(2, 3)):
            for _ in range(self.choose.integer(1, 3)):
                self.append_leader()
            for producer_id, producer in self.producers.items():
                if producer.in_transaction and self.chance(0.9):
                    self.end_transaction(producer_id, producer)
            self.add("update_high_watermark", hw=self.leo)
            self.add("roll")
            self.clean()
            if self.chance(0.7):
                self.advance_clock()
            if self.chance(0.2):
                self.add("remove_expired_producers")

    def end_transaction(self, producer_id: int, producer: Producer) -> None:
        """In order, so that it ends."""
        kind = self.choose.choice(("commit", "abort"))
        fields: Line = {"producer_id": producer_id, "epoch": producer.epoch, "type": kind}
        fields |= {"coordinator_epoch": self.coordinator_epoch, "leader_epoch": self.leader_epoch}
        self.add("append_end_txn_marker", **fields, transaction_version=0)
        producer.in_transaction = False
        self.leo += 1

    def clean_what_is_damaged(self) -> None:
        """Other bytes in the oldest segment of most logs, which is open, and passes that come to them."""
        log_file = f"{DIR}/{PARTITION}/{0:020}.log"
        self.add("update_high_watermark", hw=self.leo)
        self.add("roll")
        for _ in range(self.choose.integer(1, 2)):
            # Leaves out the first batch's time, which Kafka has read once and remembers.
            offset = self.choose.integer(RECORDS, self.choose.choice((150, 700)))
            self.add("fs_corrupt", file=log_file, offset=offset, xor_hex=self.choose.data(1).hex())
        self.add("clean", last_clean_offset=self.choose.choice((0, self.some_offset())))
        self.add("dump")
        self.clean()

    def retention(self) -> None:
        if self.chance(0.6):
            self.add("update_high_watermark", hw=self.leo)
        self.add("delete_old_segments")

    def new_config(self) -> None:
        self.config = topic_config(self.choose, compact=self.compact)
        self.add("update_config", config=self.config)

    def advance_clock(self) -> None:
        by = self.choose.choice((1, 500, 1000, 5000, 5001, 60_000, 700_000))
        self.now += by
        self.add("advance_clock", by_ms=by)

    def rare(self) -> None:
        kind = self.choose.choice(("flush", "flush", "snapshot", "expire", "tick", "topic id", "rename", "empty"))
        if kind == "flush":
            self.add("flush", force_active=self.chance(0.5))
        elif kind == "snapshot":
            self.add("take_producer_snapshot")
        elif kind == "expire":
            self.add("remove_expired_producers")
        elif kind == "tick":
            self.add("tick")
        elif kind == "topic id":
            self.add("assign_topic_id", topic_id=self.choose.choice(TOPIC_IDS))
        elif kind == "rename":
            # There and back: the rest of the script knows the directory by its first name.
            self.add("rename_dir", name="foo-0.0123456789abcdef0123456789abcdef-future")
            self.add("rename_dir", name=PARTITION)
        else:
            self.add("append_leader", raw_hex="", leader_epoch=self.leader_epoch)

    # --- damage -------------------------------------------------------------------------------------

    def write_damage(self, files: dict[str, Any]) -> list[Line]:
        """The part after a first part whose files are known: damage, an open, and further operations.

        `files` are names below the partition's directory with their sizes.
        """
        self.damage(files)
        self.look()
        for _ in range(self.choose.integer(3, 12)):
            self.step()
        self.look()
        self.finish()
        return self.lines

    def damage(self, files: dict[str, Any]) -> None:
        """Crash or close, damage to one to four files, and an open."""
        self.add("crash" if self.chance(0.6) else "close")
        for _ in range(self.choose.integer(1, 4)):
            self.damage_one(dict(files))
        clean = self.chance(0.3)
        self.open(clean=clean, **self._checkpoints())

    def damage_one(self, files: dict[str, Any], folder: str = f"{DIR}/{PARTITION}") -> None:
        """Damages one of the files of a partition's directory, chosen from these names."""
        # partition.metadata is a text of fixed form: damage there ends the run too early to be interesting.
        names = sorted(name for name in files if name != "partition.metadata" and not name.endswith(".deleted"))
        if not names:
            return
        name = self.choose.choice(names)
        size = files[name]["size"]
        path = f"{folder}/{name}"
        kinds = ("delete", "truncate", "corrupt", "corrupt", "append", "swap", "cleaned", "deleted", "write")
        kind = self.choose.choice(kinds)
        if kind == "delete":
            self.add("fs_delete", file=path)
        elif kind == "truncate":
            self.add("fs_truncate", file=path, drop_bytes=self.choose.choice((1, 8, 12, 13, 60, size)))
        elif kind == "corrupt" and size > 0:
            # A corrupted time or offset index is trusted by Kafka after a clean shutdown: what follows is arbitrary.
            if name.endswith((".log", ".snapshot", ".txnindex")):
                width = self.choose.choice((1, 1, 2, 4))
                mask = self.choose.data(width).hex()
                self.add("fs_corrupt", file=path, offset=self.choose.integer(0, size - 1), xor_hex=mask)
        elif kind == "append" and name.endswith(".log"):
            self.add("fs_append", file=path, hex=self.choose.data(self.choose.choice((1, 12, 17, 61, 100))).hex())
        elif kind == "swap":
            stem = name.rsplit(".", 1)[0]
            for suffix in ("log", "index", "timeindex", "txnindex"):
                if f"{stem}.{suffix}" in files and self.chance(0.9):
                    source = f"{folder}/{stem}.{suffix}"
                    self.add("fs_copy", **{"from": source, "to": source + ".swap"})
        # Where a .cleaned has no offset, Kafka removes the .deleted files that its directory lists before that one.
        elif kind == "cleaned" and name[0].isdigit():
            self.add("fs_copy", **{"from": path, "to": path + ".cleaned"})
        elif kind == "deleted":
            self.add("fs_copy", **{"from": path, "to": path + ".deleted"})
        elif kind == "write":
            number = self.choose.integer(0, 9)
            suffix = self.choose.choice(("index", "snapshot", "timeindex", "txnindex"))
            stray = f"{number:020}.{suffix}" if self.chance(0.8) else "notes.txt"
            self.add("fs_write", file=f"{folder}/{stray}", hex="00" * self.choose.choice((0, 8, 10)))


def broker_may_compress_with_snappy(lines: list[Line]) -> bool:
    """Then records count, not bytes: the topic says snappy, snappy batches of an old format are converted, or a cleaner
    builds batches anew."""
    cleans = any(line["op"] == "clean" for line in lines)
    return any(
        (line.get("config") or {}).get("compression.type") == "snappy"
        or any(_is_snappy(b) and (cleans or b.get("magic", 2) < 2) for b in line.get("batches", ()))
        for line in lines
    )


def _is_snappy(batch: Line) -> bool:
    if "raw_hex" in batch:
        data = bytes.fromhex(batch["raw_hex"])
        return len(data) >= RECORDS and data[ATTRIBUTES + 1] & 7 == codecs.SNAPPY
    return bool(batch.get("codec") == "snappy")


def with_built_batches(lines: list[Line], results: list[dict[str, Any]]) -> list[Line]:
    """The script for the other engine: batches with snappy in them carry the bytes that Kafka built."""
    changed = list(lines)
    for result in results:
        line = lines[result["line"] - 1]
        if "input_hex" in result and any(batch.get("codec") == "snappy" for batch in line.get("batches", ())):
            changed[result["line"] - 1] = {**line, "raw_hex": result["input_hex"]}
    return changed
