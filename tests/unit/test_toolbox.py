"""Verify, salvage, reindex and recover: every flipped bit of a small log, and the results."""

from __future__ import annotations

import errno
import itertools
import json
import random
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.cli.app import invoke
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.epoch_order import in_order
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.log_kit import batch

START_MS = 1_700_000_000_000
LOG = "00000000000000000000.log"
TP = TopicPartition("t", 0)
BATCHES = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment of four one-record batches of equal size, closed cleanly, and an empty second segment's roll."""
    root = tmp_path_factory.mktemp("whole")
    with kafkalog.open_log(root, "t-0", config={"index.interval.bytes": "0"}) as log:
        for n in range(BATCHES):
            log.append(b"value %d" % n, timestamp=START_MS + n)
    return root


def records(root: Path) -> list[tuple[int, bytes | None]]:
    with kafkalog.open_log(root, "t-0", read_only=True) as log:
        return [(record.offset, record.value) for record in log]


@pytest.mark.slow
def test_each_flipped_bit_of_a_header_is_found_and_the_rest_salvaged(whole: Path, tmp_path: Path) -> None:
    data = (whole / "t-0" / LOG).read_bytes()
    size = len(data) // BATCHES
    good = {n: b"value %d" % n for n in range(BATCHES)}
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    for byte in range(size, size + 61):
        for bit in (0, 7) if byte < size + 57 else range(8):
            flipped = bytearray(data)
            flipped[byte] ^= 1 << bit
            (damaged / "t-0" / LOG).write_bytes(flipped)
            epoch = 12 <= byte - size < 16  # raises the epoch of one batch: seen at the next, whose epoch falls back
            report = verify(damaged)
            where = [finding for finding in report.findings if finding.path.endswith(".log")]
            assert where, (byte, bit)
            if not epoch:
                assert where[0].position in (size, 0), (byte, bit, where)
            target = tmp_path / "salvaged"
            saved = salvage(damaged, target, {TP: str(damaged / "t-0")})
            assert verify(target, deep=True).ok, (byte, bit)
            assert saved.epochs_mended == epoch, (byte, bit)
            with kafkalog.open_log(target, "t-0") as log:
                kept = {record.offset: record.value for record in log}
            expected = good if epoch else {n: value for n, value in good.items() if n != 1}
            assert kept == expected, (byte, bit, saved.lost)
            assert (len(saved.lost) == 0) == epoch, (byte, bit)
            shutil.rmtree(target)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("damage", "mended"),
    [
        ({2: 1 << 20}, 1),  # by batch: the leader epoch that it gets
        ({0: 7}, 1),
        ({9: 0, 10: 0}, 2),
        ({5: -(1 << 31)}, 1),
        ({1: 3, 5: 9, 9: 0, 10: 1 << 30}, 4),
        ({11: 9}, 0),  # the last batch may well be of a later leader
    ],
)
def test_leader_epochs_that_go_back_are_mended(
    tmp_path: Path, transactional: bool, damage: dict[int, int], mended: int
) -> None:
    damaged, target = tmp_path / "damaged", tmp_path / "salvaged"
    with kafkalog.open_log(damaged, "t-0", config={"internal.segment.bytes": "500"}) as log:
        for n in range(11 if transactional else 12):
            in_transaction = transactional and n == 0
            data = batch(
                1,
                producer_id=7 if in_transaction else n % 2,
                producer_epoch=0,
                sequence=n // 2,
                transactional=in_transaction,
            )
            log.engine.append_as_leader(data, log.end_offset // 4)
            if transactional and n == 3:
                marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
                log.engine.append_as_leader(
                    end_txn_marker_batch(0, START_MS, 0, 7, 0, marker),
                    log.end_offset // 4,
                    AppendOrigin.COORDINATOR,
                    transaction_version=1,
                )
    assert verify(damaged, deep=True).ok
    place, epochs = 0, []
    for path in sorted((damaged / "t-0").glob("*.log")):
        content = bytearray(path.read_bytes())
        for header in native.headers(bytes(content))[0]:
            epochs.append(header.leader_epoch)
            if place in damage:
                content[header.position + 12 : header.position + 16] = damage[place].to_bytes(4, "big", signed=True)
            place += 1
        path.write_bytes(content)
    assert place == 12
    assert verify(damaged).ok == (not mended)
    report = salvage(damaged, target, {TP: str(damaged / "t-0")})
    assert (report.epochs_mended, report.lost, report.batches) == (mended, [], 12)
    assert verify(target, deep=True).findings == []
    found = [
        header.leader_epoch
        for path in sorted((target / "t-0").glob("*.log"))
        for header in native.headers(path.read_bytes())[0]
    ]
    assert found[:11] == epochs[:11]
    with kafkalog.open_log(target, "t-0") as log:
        assert log.engine.latest_epoch == found[-1]
    assert verify(target, deep=True).findings == []


def test_the_fewest_epochs_are_mended() -> None:
    chosen = random.Random(20)
    for _ in range(2000):
        epochs = [chosen.randrange(-1, 5) for _ in range(chosen.randrange(8))]
        batches = [chosen.randrange(1, 4) for _ in epochs]
        kept = in_order(epochs, batches)
        assert kept == sorted(set(kept))
        assert all(epochs[place] >= 0 for place in kept)
        assert [epochs[place] for place in kept] == sorted(epochs[place] for place in kept)
        best = 0
        for mask in itertools.product((False, True), repeat=len(epochs)):
            some = [place for place, taken in enumerate(mask) if taken and epochs[place] >= 0]
            if [epochs[place] for place in some] == sorted(epochs[place] for place in some):
                best = max(best, sum(batches[place] for place in some))
        assert sum(batches[place] for place in kept) == best, (epochs, batches)


def test_a_log_cut_at_every_byte(whole: Path, tmp_path: Path) -> None:
    data = (whole / "t-0" / LOG).read_bytes()
    size = len(data) // BATCHES
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    (damaged / ".kafka_cleanshutdown").unlink()  # with it, or the recovery point, a truncation would be damage
    (damaged / "recovery-point-offset-checkpoint").unlink()
    for end in range(size * 2, len(data)):
        (damaged / "t-0" / LOG).write_bytes(data[:end])
        assert len(records(damaged)) == end // size
        report = verify(damaged)
        assert report.batches == end // size
        if any(data[end // size * size : end]):  # a few zero bytes may as well be preallocated
            assert any(finding.position == end // size * size for finding in report.findings), end


def test_garbage_in_the_middle_and_a_second_segment(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0", config={"internal.segment.bytes": "1000"}, compression="lz4") as log:
        for n in range(40):
            log.append_many(
                [b"%d-%d" % (n, m) * 9 for m in range(3)],
            )
        log.delete_records(4)
    path = root / "t-0" / LOG
    before = path.read_bytes()
    data = bytearray(before)
    data[300:400] = b"\x00\x01\x02\x03" * 25
    path.write_bytes(data)
    report = verify(root, deep=True)
    (finding,) = (finding for finding in report.findings if finding.path == str(path))
    assert finding.position <= 300
    assert finding.position + finding.length >= 400
    target = tmp_path / "target"
    result = salvage(root, target, {TP: str(root / "t-0")})
    (lost,) = result.lost
    assert path.read_bytes() == bytes(data)
    with kafkalog.open_log(target, "t-0") as log:
        offsets = [record.offset for record in log]
        assert log.log_start_offset == 4
    gone = set(range(lost.first_offset, lost.last_offset + 1))
    assert gone
    assert offsets == [n for n in range(4, 120) if n not in gone]
    assert verify(target, deep=True).ok
    with pytest.raises(IllegalArgumentException, match="the directory is not empty"):
        salvage(root, target, {})


def test_deep_finds_what_checksums_do_not(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0") as log:
        txn = client_transaction(log, "x")
        txn.begin()
        txn.append(b"1")
        txn.abort()
    assert verify(root, deep=True).ok
    index = root / "t-0" / "00000000000000000000.txnindex"
    index.write_bytes(b"")
    assert verify(root).ok
    (finding,) = verify(root, deep=True).findings
    assert "lacks the aborted transaction" in finding.what
    (root / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 5\n")
    (root / "t-0" / "00000000000000000099.snapshot").write_bytes(
        (root / "t-0" / "00000000000000000002.snapshot").read_bytes()
    )
    whats = " ".join(finding.what for finding in verify(root, deep=True).findings)
    assert "covers offsets up to 99" in whats


def test_reindex(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    shutil.copytree(whole, root)
    index = root / "t-0" / "00000000000000000000.index"
    times = root / "t-0" / "00000000000000000000.timeindex"
    right = (index.read_bytes(), times.read_bytes())
    assert invoke(["reindex", str(root)]) == 0
    index.write_bytes(b"\x00\x00\x00\x01\x00\x00\x00\x05" * 3)
    times.unlink()
    assert invoke(["reindex", str(root), "--index-interval-bytes", "0"]) == 1
    assert not times.exists()
    assert invoke(["reindex", str(root), "--index-interval-bytes", "0", "--yes"]) == 0
    assert (index.read_bytes(), times.read_bytes()) == right
    assert verify(root).ok
    assert "1 segment rebuilt" in capsys.readouterr().out


def test_recover(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    shutil.copytree(whole, root)
    path = root / "t-0" / LOG
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    assert invoke(["recover", str(root), "--from-start", "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    size = len(data) // BATCHES
    assert (told["done"], told["lostBytes"], told["endOffset"]) == (False, size - 3, 3)
    assert told["cuts"] == [
        {
            "path": str(path),
            "position": size * 3,
            "length": size - 3,
            "why": "a batch that ends after the end of the file",
        }
    ]
    assert path.read_bytes() == data[:-3]
    assert invoke(["recover", str(root), "--from-start", "--yes", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["endOffset"] == 3
    assert path.read_bytes() == data[: size * 3]
    assert verify(root, deep=True).ok
    assert invoke(["recover", str(root), "--yes"]) == 0


def test_recover_tells_that_it_does_not_look_below_the_recovery_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "500"}) as log:
        for number in range(40):
            log.append(b"%02d" % number)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert invoke(["recover", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert "note: segments before the recovery point were not checked in 1 partition" in told
    assert f"`kafkalog verify --deep {tmp_path}` finds damage there" in told
    assert invoke(["verify", "--deep", str(tmp_path)]) == 1
    capsys.readouterr()
    assert invoke(["recover", str(tmp_path), "--from-start"]) == 1
    assert "not looked at" not in capsys.readouterr().err


def test_salvage_takes_only_the_files_that_kafka_reads(whole: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    folder = damaged / "t-0"
    for name in ("5.log", "\u00b2.log", "x.log"):
        (folder / name).write_bytes((folder / LOG).read_bytes())
    result = salvage(damaged, tmp_path / "salvaged", {TP: str(folder)})
    assert {Path(lost.path).name for lost in result.lost} == {"5.log", "\u00b2.log", "x.log"}
    assert all("(twenty digits and .log)" in lost.what and lost.last_offset < lost.first_offset for lost in result.lost)
    assert records(tmp_path / "salvaged") == records(whole)
    assert len(list((tmp_path / "salvaged" / "t-0").glob("*.log"))) == len(list((whole / "t-0").glob("*.log")))


def test_a_writer_that_the_log_forgot_begins_anew_without_a_finding(tmp_path: Path) -> None:
    """An open forgets producers without records above the log start, and the records below may still be in the file."""
    for _ in range(3):
        with kafkalog.open_log(tmp_path, "t-0") as log:
            writer = log.writer("w")
            assert writer.next_sequence == 0
            for number in range(30):
                writer.append(b"%d" % number)
            with client_transaction(log, "job") as txn:
                txn.append(b"x")
            assert verify(tmp_path, deep=True).ok
            log.delete_records(log.end_offset)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.writer("w").append_many([b"a", b"b"])
        assert verify(tmp_path, deep=True).ok
    # Above the log start it is requested as before.
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n0\n")
    findings = verify(tmp_path, deep=True).findings
    assert ["sequence 0 after" in finding.what for finding in findings] == [True] * 5


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".log", ".snapshot"])
def test_verify_names_a_folder_where_a_file_should_be(tmp_path: Path, suffix: str) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"1")
    path = tmp_path / "t-0" / (f"{1 if suffix == '.snapshot' else 0:020d}" + suffix)
    path.unlink(missing_ok=True)
    path.mkdir()
    (finding,) = verify(tmp_path).findings
    assert finding.path == str(path)
    assert "cannot be read: Is a directory (expected a readable file" in finding.what


@pytest.mark.parametrize("kind", ["open", "list_dir"])
def test_verify_tells_what_it_may_not_read(tmp_path: Path, kind: str) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"1")
    files = FaultyFiles(OS_FILES, Fault(0, errno.EACCES, kinds={kind}, paths=lambda path: "/t-0" in path))
    findings = verify(tmp_path, files=files).findings
    assert findings
    assert all("t-0" in each.path and "Permission denied (no permission for user" in each.what for each in findings)


@pytest.mark.parametrize("bit", [0, 3, 6, 30, 63])
def test_deep_counts_no_records_below_zero_where_a_base_offset_lies(tmp_path: Path, bit: int) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for number in range(40):
            log.append(b"%02d" % number)  # all batches of one size
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    place = len(data) // 40 * 20
    assert int.from_bytes(data[place : place + 8]) == 20
    data[place + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    shallow, deep = (
        [finding for finding in verify(tmp_path, deep=deep).findings if finding.path == str(path)]
        for deep in (False, True)
    )
    assert deep == shallow  # records are counted in each batch alone
    assert shallow


def test_a_segment_that_went_is_told_by_its_indexes_and_no_reindex_is_advised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "500"}) as log:
        for number in range(40):
            log.append(b"%02d" % number)
    logs = sorted((tmp_path / "t-0").glob("*.log"))
    logs[1].unlink()
    assert invoke(["verify", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert f"{logs[1].with_suffix('.index')}: an index without its .log file: the records" in told.out
    assert f"next: kafkalog salvage {tmp_path} NEW_DIR t-0" in told.err
    logs[2].with_suffix(".index").write_bytes(b"\1" * 8)
    assert invoke(["verify", str(tmp_path)]) == 1
    assert "next: kafkalog reindex" not in capsys.readouterr().err
