"""kafkalog's side of the benchmarks, and that of the alternative Python packages.

Each function prepares and returns one round of work: a call that does the work and returns how many units it did. The
names are those of the Java side (`KafkaBench.java`), so that a ratio compares the same work on the same file.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kafkalog._native.codec import batches, crc32c
from kafkalog._native.state.ahead import Busy
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import OS_FILES, LogDirFailureChannel, ManualScheduler, SystemClock
from kafkalog.engine.files.processes import processors
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.epoch_checkpoint import PartitionEpochCheckpoint
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.replay import RecoveryReplay
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.offset_index import OffsetIndex

Round = Callable[[], int]
GIB = 1 << 30
# Both sides truncate the log to nothing after this many bytes. The cost of a new page of memory, and of writing it to
# disk, depends on the machine and is several times that of an append.
KEPT_BYTES = 256 << 20
SEQUENCE, CRC = struct.Struct(">i"), struct.Struct(">I")


class NoScheduler(ManualScheduler):
    """Runs no background work, which is not measured: flushes of rolled segments would measure the disk."""


def config(**extra: str) -> LogConfig:
    return LogConfig.from_props(None, {"segment.bytes": str(GIB), "max.message.bytes": "10485760", **extra})


def segment_file(data: Path, kind: str) -> Path:
    return data / f"{kind}-0" / f"{0:020d}.log"


def scan(data: Path, kind: str) -> Round:
    records = FileRecords.open(str(segment_file(data, kind)), OS_FILES, mutable=False)

    def round() -> int:
        count = 0
        for part in records.scan(check_crc=True):
            count += len(part.table)
        assert count > 0
        return records.size

    return round


def context(place: Path, clock: SystemClock, **extra: str) -> PartitionContext:
    producers = ProducerSettings(ProducerStateManagerConfig())
    return PartitionContext(place, config(**extra), producers, NoScheduler(clock), clock, LogDirFailureChannel())


def unified_log(place: Path, clean: bool, **extra: str) -> UnifiedLog:
    clock = SystemClock()
    return UnifiedLog.create(context(place, clock, **extra), 0, 0, clean)


def recover(data: Path, kind: str, name: str = "recover") -> Round:
    place = scratch(data, f"{name}-{kind}-0")
    shutil.copy(segment_file(data, kind), place)
    clock = SystemClock()

    def round() -> int:
        of = context(place, clock)
        segment = LogSegment.open(str(place), 0, of.config, clock, OS_FILES)
        epochs = LeaderEpochFileCache(of.topic_partition, PartitionEpochCheckpoint(of), of.scheduler)
        assert segment.recover(RecoveryReplay(segment.txn_index, ProducerStateManager(of), epochs)) == 0
        size = segment.size
        segment.close()
        return size

    return round


def reading_nothing_ahead() -> list[Busy]:
    """Returns objects that keep scans from using a second thread as long as they exist."""
    return [Busy() for _ in range(processors())]


def recover_two(data: Path, kind: str, threads: int) -> Round:
    """Recovers two partitions, one after the other or in parallel.

    With one thread the scans do not read ahead, because that would use a second processor.
    """
    rounds = [recover(data, kind, f"recover{threads}{name}") for name in "ab"]
    if threads == 1:

        def one() -> int:
            others = reading_nothing_ahead()
            try:
                return sum(round() for round in rounds)
            finally:
                del others

        return one
    pool = ThreadPoolExecutor(threads)
    return lambda: sum(pool.map(lambda round: round(), rounds))


def opens(data: Path, clean: bool) -> Round:
    """Opens and closes a partition of many small segments, after a clean shutdown or after a crash."""
    place = data / "python" / f"many-{int(clean)}"
    shutil.copytree(data / "many-0", place)

    def round() -> int:
        log = unified_log(place, clean)
        count = log.number_of_segments
        log.prepare_active_segment_for_close()
        log.close()
        return count

    return round


def decode(data: Path, kind: str) -> Round:
    from kafkalog.engine.format import arrow

    records = FileRecords.open(str(segment_file(data, kind)), OS_FILES, mutable=False)

    def round() -> int:
        count = 0
        for table, buffer, position in records.scan(check_crc=False):
            for columns in arrow.read_columns(buffer, table, base_position=position):
                count += len(columns)
        return count

    return round


def encode(data: Path) -> Round:
    """Encodes one v2 batch, including header and CRC, of 10,000 records in an Arrow record batch."""
    import pyarrow as pa

    from kafkalog._native.codec.encode import ColumnEncoder

    rng = np.random.default_rng(1)
    count = 10_000
    records = pa.record_batch(
        {
            "timestamp": np.arange(1_700_000_000_000, 1_700_000_000_000 + count, dtype=np.int64),
            "key": [b"key-%08d" % n for n in rng.integers(0, 100_000_000, count)],
            "value": [rng.bytes(80) for _ in range(count)],
        }
    )

    def round() -> int:
        ColumnEncoder.from_arrow(records).encode_batch()
        return count

    return round


def append(data: Path, kind: str, compression: str = "producer", name: str = "append") -> Round:
    payload = (data / f"batch-{kind}.bin").read_bytes()
    log = unified_log(scratch(data, f"{name}-{kind}-{compression}-0"), True, **{"compression.type": compression})
    appended = sequence = 0
    buffer = bytearray(payload)
    checked = memoryview(buffer)[21:]
    (count,) = SEQUENCE.unpack_from(buffer, 57)
    stamped = kind in ("idempotent", "txn")
    given = buffer if stamped else payload  # bytes, as in a service; a mutable buffer is copied once

    def round() -> int:
        nonlocal appended, sequence
        if stamped:
            SEQUENCE.pack_into(buffer, 53, sequence)
            CRC.pack_into(buffer, 17, crc32c.crc32c(checked))
            sequence += count
        log.append_as_leader(given, 0)
        appended += len(payload)
        if appended > KEPT_BYTES:
            log.truncate_to(0)
            appended = sequence = 0
        return 1

    return round


def read(data: Path, how: str) -> Round:
    place = scratch(data, f"read-{how}-0")
    shutil.copy(segment_file(data, "k16"), place)
    log = unified_log(place, False)
    end = log.log_end_offset
    log.update_high_watermark(end)
    isolation = FetchIsolation.HIGH_WATERMARK
    if how == "point":
        rng = random.Random(7)

        def point() -> int:
            log.read(int(rng.random() * end), 1, isolation, True).records.to_bytes()
            return 1

        return point
    buffer = bytearray(2 << 20)

    def sequential() -> int:
        offset = done = 0
        while offset < end:
            records = log.read(offset, 1 << 20, isolation, True).records
            count = records.read_into(buffer)
            done += count
            table, _, _ = batches.scan(buffer, 0, count, framing=batches.FRAMING_BUFFER, check_crc=False)
            offset = int(table["last_offset"][-1]) + 1
        return done

    return sequential


def lookup_targets(data: Path) -> tuple[OffsetIndex, list[int]]:
    index = OffsetIndex(str(data / "lookup.index"), 0, 10485760, OS_FILES)
    rng = random.Random(3)
    return index, [int(rng.random() * index.last_offset) for _ in range(4096)]


def lookup(data: Path) -> Round:
    index, targets = lookup_targets(data)

    def round() -> int:
        for target in targets:
            index.lookup(target)
        return len(targets)

    return round


def lookups(data: Path) -> Round:
    """Looks up many targets in one call, compared with the Java side's loop."""
    index, listed = lookup_targets(data)
    targets = np.array(listed)

    def round() -> int:
        _, positions = index.lookups(targets)
        return len(positions)

    return round


def aiokafka_decode(data: Path, kind: str) -> Round:
    from aiokafka.record.memory_records import MemoryRecords

    return _peer_decode(segment_file(data, kind).read_bytes()[: 32 << 20], MemoryRecords)


def kafka_python_decode(data: Path, kind: str) -> Round:
    from kafka.record.memory_records import MemoryRecords

    return _peer_decode(segment_file(data, kind).read_bytes()[: 4 << 20], MemoryRecords)


def _peer_decode(blob: bytes, memory_records: type) -> Round:
    def round() -> int:
        count = 0
        records = memory_records(blob)
        while records.has_next():
            for record in records.next_batch():
                record.key, record.value, record.offset, record.timestamp  # noqa: B018  (as a consumer touches them)
                count += 1
        return count

    return round


def scratch(data: Path, name: str) -> Path:
    place = data / "python" / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
