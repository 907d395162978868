"""`compare`: two log directories that are equal, and every way in which they are not."""

from __future__ import annotations

import errno
import json
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.cli import compare as command
from kafkalog.cli import tables
from kafkalog.cli.app import BEING_WRITTEN, CLEAN, FINDINGS, USAGE
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.batch import LOG_OVERHEAD, RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException, OffsetOutOfRangeException, UnknownTopicOrPartitionException
from kafkalog.toolbox import compare as module
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.compare import Compared, Difference, EndedOtherwise, Missing, Span, compare
from tests.client_transaction import client_transaction
from tests.file_doubles import Fault, FaultyFiles
from tests.reference.legacy import build_batch
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

NOW = 1_700_000_000_000
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "100"}


def written(
    root: Path,
    values: Iterable[bytes | None],
    name: str = "t-0",
    *,
    config: dict[str, str] | None = None,
    at_once: int = 1,
    changed: dict[int, dict[str, Any]] | None = None,
) -> Path:
    """A directory with one record a value; `changed`: fields of single ones; `at_once`: records a batch."""
    with kafkalog.open_log(root, name, config=SMALL if config is None else config) as log:
        records = []
        for number, value in enumerate(values):
            fields: dict[str, Any] = {
                "value": value,
                "key": b"k%d" % (number % 5),
                "timestamp": NOW + number,
                "headers": [("h", b"\xff")],
            }
            records.append(fields | (changed or {}).get(number, {}))
        for first in range(0, len(records), at_once):
            columns: dict[str, list[Any]] = {"values": [], "keys": [], "timestamps": [], "headers": []}
            for each in records[first : first + at_once]:
                for name_, field in zip(columns, ("value", "key", "timestamp", "headers"), strict=True):
                    columns[name_].append(each[field])
            log.append_columns(**columns)
    return root


def numbered(count: int) -> list[bytes | None]:
    return [b"value %d " % number + b"." * 50 for number in range(count)]


def one(log_dir: Path, other: Path, **options: Any) -> Compared:
    found = compare(log_dir, other, **options).partitions
    assert len(found) == 1
    return found[0]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return written(tmp_path / "here", numbered(30))


@pytest.fixture
def copy(here: Path) -> Path:
    return Path(shutil.copytree(here, here.parent / "copy"))


def flip(log_dir: Path, place: int = 1, at: int = -3) -> Path:
    path = sorted((log_dir / "t-0").glob("*.log"))[place]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


def test_equal_needs_no_decoding(here: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "batches_in", None)
    taken: list[int] = []
    found = one(here, copy, check_bytes=True, progress=taken.append)
    assert found.is_equal
    assert found.here == found.there == Span(0, 30)
    assert sum(taken) == 2 * sum(path.stat().st_size for path in (here / "t-0").glob("*.log"))


def test_other_segments_are_the_same_bytes(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written(tmp_path / "whole", numbered(30), config={})
    assert len(list((whole / "t-0").glob("*.log"))) == 1 < len(list((here / "t-0").glob("*.log")))
    monkeypatch.setattr(module, "batches_in", None)
    assert one(here, whole, check_bytes=True).is_equal
    assert one(whole, here, check_bytes=True).is_equal


def test_a_prefix(here: Path, tmp_path: Path) -> None:
    shorter = written(tmp_path / "shorter", numbered(20))
    found = one(here, shorter)
    assert (found.here, found.there) == (Span(0, 30), Span(0, 20))
    assert not found.is_equal
    assert found.is_equal_in_common
    with kafkalog.open_log(here, "t-0", config=SMALL) as log:
        log.delete_records(7)
    found = one(here, shorter)
    assert found.here == Span(7, 30)
    assert found.is_equal_in_common


def test_nothing_in_common(here: Path, tmp_path: Path) -> None:
    shorter = written(tmp_path / "shorter", numbered(5))
    with kafkalog.open_log(here, "t-0", config=SMALL) as log:
        log.delete_records(30)
    found = one(here, shorter)
    assert (found.is_equal, found.is_equal_in_common, found.compared_end) == (False, True, None)
    empty = written(tmp_path / "empty", [])
    assert one(empty, empty).is_equal
    assert one(empty, shorter).here == Span(0, 0)


@pytest.mark.parametrize(
    "field",
    [
        {"value": b"other"},
        {"value": None},
        {"key": None},
        {"key": b""},
        {"timestamp": NOW - 1},
        {"headers": []},
        {"headers": [("h", None)]},
        {"headers": [("h", b"\xff"), ("h", b"\xff")]},
    ],
)
@pytest.mark.parametrize("at_once", [1, 7])
def test_a_record_differs(here: Path, tmp_path: Path, field: dict[str, Any], at_once: int) -> None:
    other = written(tmp_path / "other", numbered(30), changed={13: field, 29: field}, at_once=at_once)
    found = one(here, other)
    assert (found.differing, found.first_differing) == (2, 13)
    assert (found.missing_here, found.missing_there) == (Missing(), Missing())
    assert one(other, here).differing == 2


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_the_first_differences(
    run: Run, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    changed = {3: {"value": b"x"}, 4: {"key": b"x", "headers": []}, 13: {"timestamp": NOW}, 29: {"value": None}}
    other = written(tmp_path / "other", numbered(30), changed=changed)
    wanted = [
        Difference(3, ("value",)), Difference(4, ("key", "headers")), Difference(13, ("timestamp",)),
        Difference(29, ("value",)),
    ]  # fmt: skip
    for count in (0, 1, 3, 4, 9):
        found = one(here, other, differences=count)
        assert (found.differences, found.differing) == (wanted[:count], 4)
    result = run("compare", here, other, "--show", 2)
    assert result.lines[2:4] == ["t-0: offset 3 differs: value", "t-0: offset 4 differs: key, headers"]
    (told, _) = map(json.loads, run("compare", here, other, "--show", 3, "--json").lines)
    assert told["differences"][1:] == [
        {"offset": 4, "fields": ["key", "headers"]}, {"offset": 13, "fields": ["timestamp"]},
    ]  # fmt: skip
    with pytest.raises(IllegalArgumentException, match="differences"):
        compare(here, other, differences=-1)


def test_only_pieces_that_differ_are_decoded(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 300)
    other = written(tmp_path / "other", numbered(30), changed={13: {"value": b"x"}})
    places = []
    real = module.selected_range

    def noted(*args: Any) -> Any:
        found = real(*args)
        places.append((found.start, found.end))
        return found

    monkeypatch.setattr(module, "selected_range", noted)
    assert one(here, other).differing == 1
    assert len(set(places)) == 1
    ((start, end),) = set(places)
    assert start <= 13 < end <= start + 6


@pytest.mark.parametrize("piece_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("at_once", [1, 3, 30])
def test_layout_and_codec_do_not_count(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, at_once: int
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    other = written(tmp_path / "other", numbered(30), config={**SMALL, "compression.type": "gzip"}, at_once=at_once)
    assert one(here, other).is_equal
    found = one(here, other, check_bytes=True)
    assert (found.is_equal, found.differing) == (False, 0)
    difference = found.byte_difference
    assert difference is not None
    mine, its = Path(difference.path).read_bytes(), Path(difference.other_path).read_bytes()
    assert difference.position == difference.other_position
    assert mine[: difference.position] == its[: difference.position]
    assert mine[difference.position] != its[difference.position]


def test_compacted_against_its_source(tmp_path: Path) -> None:
    source = written(tmp_path / "source", numbered(30))
    compacted = Path(shutil.copytree(source, tmp_path / "compacted"))
    with kafkalog.open_log(compacted, "t-0", config={**SMALL, "cleanup.policy": "compact"}) as log:
        log.compact()
        left = [record.offset for record in log.records()]
    assert 5 <= len(left) < 30
    found = one(source, compacted)
    gone = sorted(set(range(30)) - set(left))
    assert found.missing_there == Missing(len(gone), gone[0])
    assert (found.missing_here, found.differing) == (Missing(), 0)
    assert one(compacted, source).missing_here == found.missing_there
    assert one(compacted, compacted).is_equal


def test_damage_is_told_with_its_place(here: Path, copy: Path) -> None:
    path = flip(copy)
    found = one(here, copy)
    (wrong,) = found.damage
    assert (wrong.path, found.is_equal) == (str(path), False)
    assert wrong.position is not None
    assert found.compared_end is not None
    assert found.compared_end < 30
    assert (found.differing, found.missing_there) == (0, Missing())

    found = one(here, copy, skip_damage=True)
    assert (found.damage, found.compared_end, found.differing) == ([], 30, 0)
    (lost,) = found.lost
    assert lost.path == str(path)
    assert found.missing_there == Missing(lost.last_offset - lost.first_offset + 1, lost.first_offset)


def test_damage_inside_of_a_batch(run: Run, here: Path, copy: Path) -> None:
    """A record's length is wrong and the checksum right: the other partitions are compared."""
    for root in (here, copy):
        written(root, numbered(3), "a-0")
        written(root, numbered(3), "z-0")
    path = sorted((copy / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[RECORD_BATCH_OVERHEAD] = 120
    size = LOG_OVERHEAD + struct.unpack_from(">i", data, 8)[0]
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:size])))
    path.write_bytes(data)
    found = {str(each.partition): each for each in compare(here, copy).partitions}
    assert [name for name, each in found.items() if not each.is_equal] == ["t-0"]
    (wrong,) = found["t-0"].damage
    assert (wrong.path, wrong.position) == (str(path), 0)
    result = run("compare", here, copy)
    assert (result.code, f"t-0: damaged: {path} at byte 0" in result.out) == (FINDINGS, True), result.err
    assert "2 of 3 partitions are equal" in result.out
    (each,) = compare(here, copy, ["t"], skip_damage=True).partitions
    assert [lost.path for lost in each.lost] == [str(path)]


@pytest.mark.parametrize("way", ["folder as log", "dangling log", "dangling folder", "bad blocks", "no permission"])
def test_what_cannot_be_read_stops_nothing(run: Run, here: Path, copy: Path, way: str) -> None:
    for root in (here, copy):
        written(root, numbered(3), "a-0")
        written(root, numbered(3), "z-0")
    path, fault = copy / "t-0" / f"{0:020}.log", None
    if way == "dangling folder":
        path = path.parent
        shutil.rmtree(path)
        path.symlink_to(copy / "nowhere")
    elif way == "dangling log":
        path.unlink()
        path.symlink_to(copy / "nowhere")
    elif way == "folder as log":
        path.unlink()
        path.mkdir()
    else:
        number = errno.EIO if way == "bad blocks" else errno.EACCES
        fault = Fault(0, number, kinds=("open",), paths=lambda each: each == str(path))
    files = FaultyFiles(OS_FILES, fault)
    found = {str(each.partition): each for each in compare(here, copy, files=files).partitions}
    assert [name for name, each in found.items() if not each.is_equal] == ["t-0"]
    (wrong,) = found["t-0"].damage
    assert (wrong.path, wrong.what.startswith("cannot be read: ")) == (str(path), True)
    assert found["t-0"].here == Span(0, 30)
    if fault is None:
        result = run("compare", here, copy)
        assert (result.code, f"t-0: damaged: {path}: cannot be read" in result.out) == (FINDINGS, True), result.err
        assert "2 of 3 partitions are equal" in result.out


@pytest.mark.parametrize("deltas", [(1, 2, 0), (0, 0, 1), (0, 2, 2), (2, 1, 0), (0, 1, 1)])
def test_offsets_that_do_not_rise_are_damage(tmp_path: Path, deltas: tuple[int, ...]) -> None:
    """The checksum of such a batch is right: its writer wrote it that way."""
    good = build_batch([(NOW, b"k", b"v", ())] * 3)
    bad = bytearray(good)
    position = RECORD_BATCH_OVERHEAD
    for delta in deltas:
        bad[position + 3] = delta << 1  # after length, attributes and timestamp delta
        position += 1 + (bad[position] >> 1)
    struct.pack_into(">I", bad, 17, crc32c(bytes(bad[21:])))
    for name, data in (("good", good), ("bad", bytes(bad))):
        (tmp_path / name / "t-0").mkdir(parents=True)
        (tmp_path / name / "t-0" / f"{0:020}.log").write_bytes(data)
    for first, second in (("good", "bad"), ("bad", "good")):
        for skip_damage in (False, True):
            found = one(tmp_path / first, tmp_path / second, skip_damage=skip_damage)
            (wrong,) = found.damage
            assert (wrong.path, wrong.position) == (str(tmp_path / "bad" / "t-0" / f"{0:020}.log"), 0)
            assert "expected increasing offsets" in wrong.what
            assert not found.is_equal


def test_a_log_that_lost_its_end(here: Path, copy: Path) -> None:
    path = sorted((copy / "t-0").glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[:-5])
    found = one(here, copy)
    assert found.there is not None
    assert found.there.end_offset == 29
    assert [wrong.path for wrong in found.damage] == [str(path)]  # the log was closed cleanly


@pytest.mark.parametrize("common", [False, True])
def test_a_wrong_checksum_at_the_end_without_checkpoints(run: Run, tmp_path: Path, common: bool) -> None:
    """No reader takes it for damage: it might be being written."""
    mine, its = (written(tmp_path / name, numbered(5), config={}) for name in ("mine", "its"))
    for root in (mine, its):
        for path in root.iterdir():
            if path.is_file():
                path.unlink()
    path = flip(its, place=0)
    for first, second in ((mine, its), (its, mine)):
        found = one(first, second)
        (wrong,) = found.damage
        assert (wrong.path, wrong.what) == (str(path), "a bad CRC where offset 4 should be")
        assert (found.compared_end, found.differing) == (4, 0)
    result = run("compare", mine, its, *["--common"] * common)
    assert (result.code, f"t-0: damaged: {path} at byte" in result.out) == (FINDINGS, True)
    path.write_bytes(path.read_bytes()[:-5])  # torn: after a crash, or during a write
    found = one(mine, its)
    assert (found.damage, found.is_equal, found.is_equal_in_common) == ([], False, True)


def test_what_kafka_left(tmp_path: Path) -> None:
    logs = of_kafka("recover_torn_tail", tmp_path)
    found = compare(logs, logs).partitions
    assert found
    assert all(each.here == each.there and not each.differing for each in found)


@pytest.mark.parametrize("seed", range(12))
def test_random_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Compares the answer with two mappings of offsets, for any rolls, batches, compaction and compression."""
    chance = random.Random(seed)
    monkeypatch.setattr(module, "PIECE_BYTES", chance.choice([1, 100, 1000, 1 << 20]))
    monkeypatch.setattr(module, "BATCH_ROWS", chance.choice([1, 3, 1000]))
    monkeypatch.setattr(module, "CHUNK_BYTES", chance.choice([7, 100, 1 << 20]))
    known: list[dict[int, Any]] = []
    spans: list[Span] = []
    for name in ("one", "two"):
        changed = {chance.randrange(40): {"value": b"changed"} for _ in range(chance.choice([0, 1, 3]))}
        config = {**SMALL, "compression.type": chance.choice(["uncompressed", "uncompressed", "gzip"])}
        count, at_once = chance.randint(20, 40), chance.choice([1, 1, 4])
        written(tmp_path / name, numbered(count), config=config, at_once=at_once, changed=changed)
        with kafkalog.open_log(tmp_path / name, "t-0", config={**config, "cleanup.policy": "compact,delete"}) as log:
            if chance.random() < 0.4:
                log.compact()
            if chance.random() < 0.4:
                log.delete_records(chance.randint(0, log.end_offset))
            spans.append(Span(log.log_start_offset, log.end_offset))
            known.append({each.offset: (each.key, each.value, each.timestamp) for each in log.records()})
    low, high = max(spans)[0], min(span.end_offset for span in spans)
    mine, its = ({at: each for at, each in records.items() if low <= at < high} for records in known)
    differ = sorted(at for at in mine.keys() & its if mine[at] != its[at])
    found = one(tmp_path / "one", tmp_path / "two", check_bytes=chance.random() < 0.3)
    assert (found.here, found.there, found.damage) == (*spans, [])
    assert (found.differing, found.first_differing) == (len(differ), min(differ, default=None))
    assert found.missing_here == Missing(len(its.keys() - mine), min(its.keys() - mine, default=None))
    assert found.missing_there == Missing(len(mine.keys() - its), min(mine.keys() - its, default=None))


def test_beside_a_writer(here: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records after the ends that were seen are not compared."""
    real = module._Comparison.run

    def run_later(self: Any) -> None:
        with kafkalog.open_log(copy, "t-0", config=SMALL) as log:
            log.append(b"later")
        real(self)

    monkeypatch.setattr(module._Comparison, "run", run_later)
    assert one(here, copy).is_equal


def test_what_goes_meanwhile(run: Run, here: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def gone(self: Any) -> None:
        looks.append(self)
        raise OffsetOutOfRangeException("the log start moved")

    monkeypatch.setattr(module._Comparison, "run", gone)
    report = compare(here, copy)
    assert (report.partitions, len(report.unsettled), len(looks)) == ([], 1, module.LOOKS_MAX)
    assert not report.is_equal
    result = run("compare", here, copy)
    assert (result.code, "is being written" in result.err) == (BEING_WRITTEN, True)


def test_what_makes_no_sense(here: Path, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionException, match="'u' in"):
        compare(here, copy, ["t", "u"])
    for wrong in ([], [3], 3, [("t",)], [("t", "0")], [("t", -1)], ("t", 0), b"t-0", [b"t-0"], [None], [("t-0", 1, 2)]):
        with pytest.raises(IllegalArgumentException, match="partitions"):
            compare(here, copy, wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentException, match="skip_damage"):
        compare(here, copy, skip_damage="yes")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionException, match="'t-1' in"):
        compare(here, copy, [("t", 1)])
    with pytest.raises(IllegalArgumentException, match="progress"):
        compare(here, copy, progress=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        compare(here, tmp_path / "nothing")
    with pytest.raises(IllegalArgumentException):
        compare(here / "t-0", copy)


def with_transactions(root: Path, *ends: str, later: bytes = b"later", open_too: bool = False) -> Path:
    """A transaction of two records for each of `ends`, with a record of another producer inside."""
    with kafkalog.open_log(root, "t-0") as log:
        for number, end in enumerate(ends):
            txn = client_transaction(log, f"txn{number}")
            txn.begin()
            txn.append_many([(b"one", None, (), NOW), (b"two", None, (), NOW)])
            log.append(b"between", timestamp=NOW)
            getattr(txn, end)()
        if open_too:
            client_transaction(log, "open").append_many([b"open", b"open"])
        log.append(later, timestamp=NOW)
    return root


def test_transactions_that_ended_differently(run: Run, tmp_path: Path) -> None:
    ends = ["commit", "abort", "abort", "commit"]
    mine = with_transactions(tmp_path / "mine", *ends)
    its = with_transactions(tmp_path / "its", "commit", "commit", "abort", "abort")
    for first, second in ((mine, its), (its, mine)):
        found = one(first, second)
        assert (found.is_equal, found.differing) == (False, 0)
        assert found.ended_otherwise == EndedOtherwise(2, 4)
    result = run("compare", mine, its)
    assert (result.code, "transactions ended differently" in result.lines[1]) == (FINDINGS, True)
    assert "t-0: 2 transactions aborted in only one of the logs" in result.out
    assert json.loads(run("compare", mine, its, "--json").lines[0])["endedOtherwise"] == {
        "transactions": 2, "firstOffset": 4,
    }  # fmt: skip
    same = with_transactions(tmp_path / "same", *ends, later=b"other")
    found = one(mine, same)  # it is looked for, as bytes differ
    assert (found.differing, found.ended_otherwise) == (1, EndedOtherwise())


def test_transactions_that_one_has_not_ended(tmp_path: Path) -> None:
    """An open one, and one that ends after the other log's end, do not count as ended differently."""
    mine = with_transactions(tmp_path / "mine", "abort", open_too=True)
    its = with_transactions(tmp_path / "its", "abort", "abort")
    found = one(mine, its)
    assert (found.differing > 0, found.ended_otherwise) == (True, EndedOtherwise())
    plain = written(tmp_path / "plain", [b"one", b"two", b"between"])
    assert one(mine, plain).ended_otherwise == EndedOtherwise(1, 0)  # no transaction there: readers see its records


def test_other_topic_ids_are_a_note(run: Run, here: Path, copy: Path) -> None:
    ids = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")
    for root, topic_id in zip((here, copy), ids, strict=True):
        (root / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    found = one(here, copy)
    assert (found.is_equal, found.topic_ids) == (True, ids)
    result = run("compare", here, copy)
    assert (result.code, f"topic t has another id: {ids[0]} in {here}, {ids[1]} in" in result.err) == (CLEAN, True)
    (copy / "t-0" / "partition.metadata").write_text("nonsense")
    assert one(here, copy).topic_ids is None


def test_which_partitions(run: Run, here: Path) -> None:
    written(here, numbered(1), "t-0-1")  # the topic t-0
    written(here, numbered(1), "u-0")

    def taken(*asked: Any) -> list[str]:
        return [str(each.partition) for each in compare(here, here, *asked).partitions]

    assert taken() == taken(None) == ["t-0", "t-0-1", "u-0"]
    assert taken(["t"]) == taken("t") == taken([("t", 0)]) == taken(TopicPartition("t", 0)) == ["t-0"]
    assert taken([TopicPartition("t-0", 1)]) == taken(["t-0-1"]) == ["t-0-1"]
    assert taken(["t-0"]) == taken(["t*"]) == ["t-0", "t-0-1"]  # names both, as for commands
    assert taken(iter(["u-0", "u", ("u", 0)])) == ["u-0"]
    for name, count in {"t": 1, "t-0": 2, "t-0-1": 1}.items():
        assert run("compare", here, here, name).lines == [
            "1 of 1 partition is equal" if count == 1 else f"{count} of {count} partitions are equal"
        ]


def test_many_names_take_no_long_time() -> None:
    known = [TopicPartition("topic", number) for number in range(20_000)]
    assert module._chosen(known, [*known, *map(str, known)], "here") == known


def test_what_goes_behind_the_listing(run: Run, here: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(here, numbered(1), "gone-0")
    for root in (here, copy):
        written(root, numbered(1), "half-0")
    real = command.note_tiered

    def later(place: str, *rest: Any) -> None:
        for path in (here / "gone-0", copy / "half-0"):
            shutil.rmtree(path, ignore_errors=True)
        real(place, *rest)

    monkeypatch.setattr(command, "note_tiered", later)
    result = run("compare", here, copy)
    assert (result.code, "only in DIR" in result.lines[1]) == (FINDINGS, True), result.err
    assert result.lines[1].split()[0] == "half-0"
    assert result.lines[-1].startswith("1 of 2 partitions are equal")


# --- the command -------------------------------------------------------------------------------------------


def test_command_on_equal_ones(run: Run, here: Path, copy: Path) -> None:
    result = run("compare", here, copy)
    assert (result.code, result.lines) == (CLEAN, ["1 of 1 partition is equal"]), result.err
    result = run("compare", here, copy, "--all")
    assert result.lines[0].split()[:3] == ["PARTITION", "DIR", "OTHER"]
    assert result.lines[1].split() == ["t-0", "0..30", "0..30", "equal"]
    assert run("compare", here / "t-0", copy / "t-0").lines == ["1 of 1 partition is equal"]


def test_command_on_partitions_of_one_alone(run: Run, here: Path, copy: Path) -> None:
    written(here, numbered(3), "mine-0")
    written(copy, numbered(4), "its-1")
    result = run("compare", here, copy)
    assert result.code == FINDINGS
    rows = {line.split()[0]: line.split() for line in result.lines[1:3]}
    assert rows["its-1"][1:3] == ["-", "0..4"]
    assert rows["its-1"][-3:] == ["only", "in", "OTHER"]
    assert rows["mine-0"][-3:] == ["only", "in", "DIR"]
    assert result.lines[-1].startswith("1 of 3 partitions are equal, 2 different")
    assert run("compare", here, copy, "t").code == CLEAN
    assert run("compare", here, copy, "m*", "t-0").code == FINDINGS
    result = run("compare", here, copy, "--common")
    assert result.code == CLEAN
    assert result.lines == [
        f"1 of 1 partition is equal in the offsets that both have, 1 partition only in {here}, 1 only in {copy}"
    ]
    result = run("compare", here, copy, "--common", "--topic", "mine", "--all")
    assert (result.code, result.lines[1].endswith("only in DIR")) == (CLEAN, True)


def test_command_shows_columns_that_say_something(
    run: Run, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "payments-of-last-month-0"
    written(here, numbered(30), name)
    other = written(tmp_path / "other", numbered(30), changed={13: {"value": b"x"}})
    written(other, numbered(29), name)
    assert run("compare", here, other, "t").lines[0].split() == ["PARTITION", "DIR", "OTHER", "DIFFER", "FIRST", "WHAT"]
    compacted = Path(shutil.copytree(here, tmp_path / "compacted"))
    with kafkalog.open_log(compacted, "t-0", config={**SMALL, "cleanup.policy": "compact"}) as log:
        log.compact()
    assert run("compare", here, compacted).lines[0].split("  ")[-2:] == ["MISSING IN OTHER", "WHAT"]
    assert "MISSING IN DIR" in run("compare", compacted, other).lines[0]
    monkeypatch.setenv("COLUMNS", "64")
    monkeypatch.setattr(tables, "is_terminal", lambda stream: True)
    result = run("compare", here, other)
    assert [line for line in result.lines if line.startswith(f"{name}  ")], result.out


def test_command_on_a_backup(run: Run, here: Path, tmp_path: Path) -> None:
    backup(here, tmp_path / "saved")
    saved = tmp_path / "saved" / "log-dir-1"
    assert run("compare", here, saved, "--bytes").code == CLEAN
    with kafkalog.open_log(here, "t-0", config=SMALL) as log:
        log.append(b"later")
    result = run("compare", here, saved)
    assert (result.code, "ends differ" in result.out) == (FINDINGS, True)
    result = run("compare", here, saved, "--common")
    assert (result.code, result.lines) == (CLEAN, ["1 of 1 partition is equal in the offsets that both have"])
    result = run("compare", here, tmp_path / "saved")
    assert (result.code, "log-dir-1" in result.err) == (USAGE, True)


def test_command_on_damage(run: Run, here: Path, copy: Path) -> None:
    path = flip(copy)
    result = run("compare", here, copy)
    assert result.code == FINDINGS
    assert f"t-0: damaged: {path} at byte " in result.out
    assert "--skip-damage" in result.err
    result = run("compare", here, copy, "--skip-damage")
    assert (result.code, f"lost: {path}" in result.err, "damaged, records missing" in result.out) == (1, True, True)


def test_command_with_json(run: Run, here: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", numbered(29), changed={4: {"key": b"x"}})
    result = run("compare", here, other, "--json", "--bytes")
    assert result.code == FINDINGS
    told, summary = map(json.loads, result.lines)
    assert (told["topic"], told["partition"], told["equal"]) == ("t", 0, False)
    assert told["here"] == {"startOffset": 0, "endOffset": 30}
    assert (told["differing"], told["firstDiffering"]) == (1, 4)
    assert told["missingHere"] == {"records": 0, "firstOffset": None}
    assert told["byteDifference"]["position"] > 0
    assert summary == {
        "kind": "summary", "partitions": 1, "equal": 0, "different": 1, "onlyHere": 0, "onlyThere": 0,
        "differing": 1, "damaged": 0, "unsettled": 0,
    }  # fmt: skip
    (summary,) = map(json.loads, run("compare", other, other, "--json").lines)
    assert summary["equal"] == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{here}", "{here}", "t-1"], "did you mean t-0?"),
        (["{here}", "{here}", "x*"], "no topic or partition matches"),
        (["{here}", "{here}x"], "not found"),
        (["{here}"], "Missing argument 'OTHER'"),
        (["{here}/t-0", "{here}/u-0"], "are different"),
    ],
)
def test_command_with_a_slip(run: Run, here: Path, argv: list[str], said: str) -> None:
    written(here, numbered(1), "u-0")
    result = run("compare", *[word.format(here=here) for word in argv])
    assert (result.code, said in result.err) == (USAGE, True), result.err
