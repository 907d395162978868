"""A batch torn within its base offset, which no CRC covers: a log of one replica is truncated there.

Kafka's way (empty the segment, or take the batch as it is) stays if a log does not say that it has one replica.  A
process that reads, checks or copies the directory sees the same as after a recovery.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import kafkalog
from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.order import misfits
from kafkalog.errors import CorruptRecordException, InvalidOffsetException
from kafkalog.toolbox.recovery import recover
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.unit.log_kit import Kit, bases, batch, name

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A log that died with three segments: offsets 0 to 7, 8 to 15, 16 to 19; two records a batch."""
    kit = Kit(tmp_path / "logs")
    kit.root.mkdir()
    kit.has_one_replica = True
    kit.crash(kit.filled(10))
    return kit


def tear(kit: Kit, base: int, number: int, *, lost_bytes: int = 8) -> int:
    """Zeros the first bytes of a batch of a segment, as if they were never written; returns its position."""
    path = kit.path(name(base, ".log"))
    data = bytearray(path.read_bytes())
    found, _, _ = native.headers(bytes(data))
    position = found[number].position
    data[position : position + lost_bytes] = bytes(lost_bytes)
    path.write_bytes(data)
    return position


@pytest.mark.parametrize(
    ("base", "number", "left"),
    [(0, 1, [0]), (0, 3, [0]), (8, 0, [0, 8]), (8, 2, [0, 8]), (16, 0, [0, 8, 16]), (16, 1, [0, 8, 16])],
)
@pytest.mark.parametrize("behind", [0, 40])
def test_it_is_cut_and_all_before_it_stays(kit: Kit, base: int, number: int, left: list[int], behind: int) -> None:
    position = tear(kit, base, number)
    with kit.path(name(base, ".log")).open("ab") as file:
        file.write(bytes(behind))
    log = kit.open(clean=False)
    end = base + 2 * number
    assert (log.log_end_offset, log.high_watermark, bases(log)) == (end, end, left)
    assert kit.path(name(base, ".log")).stat().st_size == position
    assert [each.base_offset for each in log.read(0, 1 << 20).records.batches()] == list(range(0, min(end, 8), 2))
    log.append_as_leader(batch(2), 0)
    kit.crash(log)
    assert kit.open(clean=False).log_end_offset == end + 2


def test_a_sector_may_end_within_the_offset(tmp_path: Path) -> None:
    """The higher byte of a two-byte offset is lost."""
    kit = Kit(tmp_path)
    kit.has_one_replica = True
    large = {"internal.segment.bytes": "1000000", "segment.index.bytes": "10000"}
    log = kit.open(large)
    for _ in range(140):
        log.append_as_leader(batch(2), 0)
    kit.crash(log)
    tear(kit, 0, 139, lost_bytes=7)  # 278 is 22 now
    log = kit.open(large, clean=False)
    assert log.log_end_offset == 278


def test_where_there_may_be_replicas_it_is_as_with_kafka(kit: Kit) -> None:
    tear(kit, 0, 3)
    kit.has_one_replica = False
    log = kit.open(clean=False)
    assert (log.log_end_offset, bases(log)) == (0, [0])


def test_what_was_flushed_is_not_cut(kit: Kit) -> None:
    """A segment below the recovery point, whose index is missing, has damage of another kind."""
    tear(kit, 0, 3)
    kit.path(name(0, ".index")).unlink()
    before = kit.path(name(0, ".log")).read_bytes()
    for clean in (False, True):
        with pytest.raises(InvalidOffsetException):
            kit.open(clean=clean, recovery_point=20)
    assert kit.path(name(0, ".log")).read_bytes() == before


def test_an_unflushed_segment_without_an_index_is_cut(kit: Kit) -> None:
    tear(kit, 16, 1)
    kit.path(name(16, ".index")).unlink()
    assert kit.open(clean=False).log_end_offset == 18


def test_the_face_cuts_or_refuses(kit: Kit) -> None:
    tear(kit, 16, 1)
    with pytest.raises(CorruptRecordException, match="batches that do not belong here; opening would truncate"):
        kafkalog.open_log(kit.root, "t-0", on_damage="raise")
    with kafkalog.open_log(kit.root, "t-0") as log:
        assert log.end_offset == 18


def test_a_manager_cuts(kit: Kit) -> None:
    tear(kit, 16, 1)
    manager = LogManager([str(kit.root)])
    manager.startup()
    log = manager.get_log(PARTITION)
    assert log is not None
    assert (log.log_end_offset, log.high_watermark) == (18, 18)
    manager.shutdown()


# --- who only looks ---------------------------------------------------------------------------------------


def test_a_look_ends_where_recovery_would(kit: Kit) -> None:
    tear(kit, 16, 1)
    with PartitionView(kit.root, PARTITION) as view:
        assert view.log_end_offset == 18
        view.check_end()
        assert len(kafkalog_values(kit)) == 18
    assert kit.open(clean=False).log_end_offset == 18


def kafkalog_values(kit: Kit) -> list[bytes | None]:
    with kafkalog.open_log(kit.root, "t-0", read_only=True) as log:
        return [record.value for record in log.records()]


@pytest.mark.parametrize("known", ["flushed", "clean"])
def test_a_look_calls_it_damage_where_the_log_is_known_to_go_on(kit: Kit, known: str) -> None:
    tear(kit, 16, 1)
    if known == "clean":
        (kit.root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    else:
        (kit.root / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    with PartitionView(kit.root, PARTITION) as view:
        assert view.log_end_offset == 18
        with pytest.raises(CorruptRecordException, match="offsets are not above those before it"):
            view.check_end()
    with pytest.raises(CorruptRecordException):
        kafkalog_values(kit)


def test_a_batch_behind_it_that_fits_makes_it_damage_for_a_look(kit: Kit) -> None:
    tear(kit, 8, 1)
    tear(kit, 16, 0)
    with PartitionView(kit.root, PARTITION) as view:
        assert view.log_end_offset == 20
    with pytest.raises(CorruptRecordException):
        kafkalog_values(kit)


def test_recover_tells_and_does_it(kit: Kit) -> None:
    position = tear(kit, 0, 2)
    for act in (False, True):
        [told] = recover(kit.root, [PARTITION], act=act)
        assert (told.cuts[0].position, told.end_offset, told.lost_records) == (position, 4, 16)
    with PartitionView(kit.root, PARTITION) as view:
        assert view.log_end_offset == 4


def test_verify_finds_it_and_salvage_leaves_it_out(kit: Kit, tmp_path: Path) -> None:
    position = tear(kit, 0, 2)
    report = verify(str(kit.root))
    assert [(each.position, "do not fit here" in each.what) for each in report.findings][:1] == [(position, True)]
    salvage(kit.root, tmp_path / "rescued", list_partitions(kit.root))
    with kafkalog.open_log(tmp_path / "rescued", "t-0", read_only=True) as log:
        assert [record.offset for record in log.records()] == [0, 1, 2, 3, *range(6, 20)]


# --- the rule ---------------------------------------------------------------------------------------------


def rows(*offsets: tuple[int, int], magic: int = 2) -> np.ndarray:
    table = np.zeros(len(offsets), native.BATCH_DTYPE)
    table["magic"] = magic
    for row, (first, last) in enumerate(offsets):
        table[row]["base_offset"], table[row]["last_offset"] = first, last
    return table


@pytest.mark.parametrize(
    ("table", "expected", "limit", "wrong"),
    [
        (rows((0, 1), (2, 3), (9, 9)), 0, 9, []),
        (rows((0, 1), (2, 3)), 1, 9, [0]),
        (rows((0, 1), (1, 3)), 0, 9, [1]),
        (rows((0, 1), (0, 1), (2, 3)), 0, 9, [1]),
        (rows((0, 1), (7, 8), (2, 3)), 0, 9, [1]),
        (rows((0, 1), (2, 10)), 0, 9, [1]),
        (rows((0, 1), (3, 2)), 0, 9, [1]),
        (rows((0, 1), magic=3), 0, 9, [0]),
        (rows((0, 1), magic=-1), 0, 9, [0]),
        (rows((0, 1), (0, 2), magic=1), 0, 9, []),
        (rows((0, 1), (0, 1), magic=0), 1, 9, [1]),
        (rows((LONG_MAX, LONG_MAX)), LONG_MAX, LONG_MAX + INT_MAX, []),
        (rows((LONG_MAX, LONG_MAX)), LONG_MAX + 1, LONG_MAX + INT_MAX, [0]),
        (rows(), 0, 9, []),
    ],
)
def test_which_rows_do_not_fit(table: np.ndarray, expected: int, limit: int, wrong: list[int]) -> None:
    assert misfits(table, expected, limit) == wrong
    if expected <= LONG_MAX:
        in_order = native.rows_in_order(table, expected, min(limit, LONG_MAX))
        assert in_order <= (min(wrong) + 1 if wrong else len(table))  # a jump shows in the row after it
        assert (in_order == len(table)) == (not wrong)


def test_rows_in_order_end_with_the_one_that_falls_back() -> None:
    table = rows((0, 1), (7, 8), (2, 3), (9, 9))
    assert [native.rows_in_order(table, expected, 9) for expected in (0, 1)] == [2, 0]
    assert native.rows_in_order(table[:2], 0, 7) == 1


def test_the_native_look_refuses_what_is_no_table() -> None:
    with pytest.raises(ValueError, match="expected: found -1"):
        native.rows_in_order(rows((0, 1)), -1, 9)
    with pytest.raises((ValueError, TypeError)):
        native.rows_in_order(np.zeros(3, np.int64), 0, 9)


def test_what_is_torn_has_a_right_checksum(kit: Kit) -> None:
    """Or all of this would test another thing."""
    position = tear(kit, 0, 2)
    data = kit.path(name(0, ".log")).read_bytes()
    assert struct.unpack_from(">q", data, position) == (0,)
    assert native.crc_matches(data, position)
