"""Records and times lost to damage, as verify, recover and salvage report them: by headers and indexes around it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.losses import LostRange, by_topic
from kafkalog.toolbox.verify import verify
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

T0 = 1_700_000_000_000
BATCH = 129  # bytes of each, one record in it
PARTITION = TopicPartition("orders", 0)
FIRST, SECOND = (f"{base:020}.log" for base in (0, 15))


def time_of(offset: int) -> int:
    return T0 + offset * 60_000


def iso(offset: int) -> str:
    seconds = offset * 60 + 13 * 60 + 20
    return f"2023-11-14T22:{seconds // 60:02}:{seconds % 60:02}.000Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """orders-0 with offsets 0 to 29 in two segments; a minute passes between two records."""
    with kafkalog.open_log(tmp_path / "logs", "orders-0", config={"internal.segment.bytes": "2000"}) as log:
        for offset in range(30):
            log.append(b"%06d" % offset * 10, timestamp=time_of(offset))
    folder = tmp_path / "logs" / "orders-0"
    assert (folder / FIRST).stat().st_size == (folder / SECOND).stat().st_size == 15 * BATCH
    return folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def lost(folder: Path) -> list[tuple[int, int, int | None, int, int]]:
    return [tuple(each)[2:] for each in verify(folder.parent).lost]  # type: ignore[misc]


def test_nothing_is_lost(run: Run, folder: Path) -> None:
    assert lost(folder) == []
    result = run("verify", folder.parent)
    assert "LOST" not in result.out
    assert "next:" not in result.err


def test_a_batch_whose_records_are_damaged_is_told_by_its_header(folder: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 100)
    assert lost(folder) == [(3 * BATCH, BATCH, 1, time_of(3), time_of(3))]


def test_a_damaged_header_is_not_believed(folder: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 35)  # the largest timestamp is negative now
    assert lost(folder) == [(3 * BATCH, BATCH, 1, time_of(2), time_of(4))]


def test_several_batches_are_told_by_their_neighbours(folder: Path) -> None:
    data = bytearray((folder / FIRST).read_bytes())
    data[3 * BATCH : 6 * BATCH] = b"\xee" * (3 * BATCH)
    (folder / FIRST).write_bytes(data)
    assert lost(folder) == [(3 * BATCH, 3 * BATCH, 3, time_of(2), time_of(6))]


def test_the_first_batch_has_nothing_in_front(folder: Path) -> None:
    data = bytearray((folder / FIRST).read_bytes())
    data[:BATCH] = b"\xee" * BATCH
    (folder / FIRST).write_bytes(data)
    assert lost(folder) == [(0, BATCH, 1, -1, time_of(1))]


def test_the_end_of_a_segment_is_told_by_the_next_one(folder: Path) -> None:
    os.truncate(folder / FIRST, 13 * BATCH + 20)
    assert lost(folder) == [(13 * BATCH, 20, 2, time_of(12), time_of(15))]


def test_the_end_of_the_log_is_told_by_the_time_index(folder: Path) -> None:
    os.truncate(folder / SECOND, 14 * BATCH + 20)  # the header is truncated, too
    assert lost(folder) == [(14 * BATCH, 20, None, time_of(28), time_of(29))]


def test_the_end_of_the_log_without_an_index_is_unknown(run: Run, folder: Path) -> None:
    os.truncate(folder / SECOND, 14 * BATCH + 20)
    (folder / f"{15:020}.timeindex").unlink()
    assert lost(folder) == [(14 * BATCH, 20, None, time_of(28), -1)]
    words = run("verify", folder.parent).lines[-2].split()
    assert words == ["orders", "1", "1", "unknown", "20", "B", f"~{iso(28)}", "unknown"]


def test_a_torn_batch_with_its_header_is_told_by_it(folder: Path) -> None:
    os.truncate(folder / SECOND, 15 * BATCH - 1)
    assert lost(folder) == [(14 * BATCH, BATCH - 1, 1, time_of(29), time_of(29))]


def test_a_batch_in_a_wrong_place_keeps_its_time(folder: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 6)  # base offsets are not covered by the CRC
    assert lost(folder) == [(3 * BATCH, BATCH, 1, time_of(3), time_of(3))]


def test_zeros_behind_the_end_are_no_loss(folder: Path) -> None:
    with (folder / SECOND).open("ab") as file:
        file.write(bytes(4096))
    assert lost(folder) == []


def test_verify_ends_with_the_table_and_what_helps(run: Run, folder: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 100)
    flip(folder / SECOND, 3 * BATCH + 100)
    result = run("verify", folder.parent)
    head, row = result.lines[-3:-1]
    assert head.split() == ["LOST", "OF", "TOPIC", "PARTITIONS", "RANGES", "RECORDS", "BYTES", "FROM", "TO"]
    assert row.split() == ["orders", "1", "2", "up", "to", "2", "258", "B", iso(3), iso(18)]
    assert result.lines[-1].startswith("2 findings:")
    assert f"next: kafkalog salvage {folder.parent} NEW_DIR orders-0" in result.err


def test_verify_of_a_wrong_index_names_reindex(run: Run, folder: Path) -> None:
    flip(folder / f"{0:020}.timeindex", 3)
    result = run("verify", folder.parent)
    assert "LOST" not in result.out
    assert f"next: kafkalog reindex {folder.parent} --yes orders-0" in result.err


def test_recover_ends_with_the_table(run: Run, folder: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 100)
    result = run("recover", folder.parent, "--from-start")
    assert result.code == 1
    assert result.lines[-2].split()[:6] == ["orders", "1", "1", "up", "to", "27"]
    assert result.lines[-2].split()[-2:] == [iso(3), iso(29)]
    assert result.lines[-1] == f"in all: 1 partition, up to 27 records and {27 * BATCH} bytes would be lost"
    assert f"next: kafkalog salvage {folder.parent} NEW_DIR orders-0" in result.err
    done = run("recover", folder.parent, "--from-start", "--yes")
    assert done.lines[-2] == result.lines[-2], "what is done is what was told"
    assert "next:" not in done.err


def test_recover_of_a_torn_end(run: Run, folder: Path) -> None:
    os.truncate(folder / SECOND, 14 * BATCH + 20)
    result = run("recover", folder.parent, "--from-start")
    assert result.lines[-2].split() == ["orders", "1", "1", "unknown", "20", "B", iso(28), iso(29)]


def test_recover_that_loses_nothing_names_itself(run: Run, folder: Path) -> None:
    (folder / f"{0:020}.timeindex").unlink()
    result = run("recover", folder.parent, "--from-start")
    assert result.code == 0
    assert "LOST" not in result.out
    assert f"next: kafkalog recover {folder.parent} --yes orders-0" in result.err


def test_salvage_ends_with_the_table(run: Run, folder: Path, tmp_path: Path) -> None:
    flip(folder / FIRST, 3 * BATCH + 100)
    result = run("salvage", folder.parent, tmp_path / "new")
    assert result.lines[-2].split() == ["orders", "1", "1", "up", "to", "1", "129", "B", iso(3), iso(3)]
    assert f"next: kafkalog verify {tmp_path / 'new'}" in result.err


def losses_in_json(run: Run, *argv: object) -> list[dict[str, object]]:
    """The objects of kind topicLoss, which precede the summary."""
    result = run(*argv, "--json")
    assert "next:" not in result.err
    *others, summary = map(json.loads, result.lines)
    assert summary["kind"] == "summary"
    found = [line for line in others if line["kind"] == "topicLoss"]
    assert others[len(others) - len(found) :] == found
    return found


@pytest.mark.parametrize(("command", "records", "last"), [("verify", 1, 3), ("recover", 27, 29), ("salvage", 1, 3)])
def test_the_table_is_in_the_json(
    run: Run, folder: Path, tmp_path: Path, command: str, records: int, last: int
) -> None:
    flip(folder / FIRST, 3 * BATCH + 100)
    more = {"salvage": [tmp_path / "new"], "recover": ["--from-start"]}.get(command, [])
    assert losses_in_json(run, command, folder.parent, *more) == [
        {
            "kind": "topicLoss",
            "topic": "orders",
            "partitions": [0],
            "ranges": 1,
            "records": records,
            "recordsKnown": True,
            "bytes": records * BATCH,
            "bytesKnown": True,
            "firstTimestamp": time_of(3),
            "lastTimestamp": time_of(last),
            "timesKnown": True,
        }
    ]


@pytest.mark.parametrize("command", ["verify", "recover", "salvage"])
def test_json_without_a_loss_has_no_table(run: Run, folder: Path, tmp_path: Path, command: str) -> None:
    assert losses_in_json(run, command, folder.parent, *([tmp_path / "new"] if command == "salvage" else [])) == []


def test_json_tells_what_is_not_known(run: Run, folder: Path) -> None:
    os.truncate(folder / SECOND, 14 * BATCH + 20)
    (folder / f"{15:020}.timeindex").unlink()
    flip(folder / FIRST, 3 * BATCH + 100)
    [loss] = losses_in_json(run, "verify", folder.parent)
    assert (loss["ranges"], loss["records"], loss["recordsKnown"]) == (2, 1, False)
    assert (loss["firstTimestamp"], loss["lastTimestamp"], loss["timesKnown"]) == (time_of(3), -1, False)


def test_json_has_a_line_a_topic(run: Run, folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "orders-3")
    shutil.copytree(folder, folder.parent / "bills-1")
    for each in folder.parent.glob("*-[0-9]"):
        flip(each / FIRST, 3 * BATCH + 100)
    found = losses_in_json(run, "verify", folder.parent)
    assert [(loss["topic"], loss["partitions"], loss["records"]) for loss in found] == [
        ("bills", [1], 1),
        ("orders", [0, 3], 2),
    ]


def test_many_partitions_are_named_by_their_directory(run: Run, folder: Path) -> None:
    for number in range(1, 7):
        shutil.copytree(folder, folder.parent / f"orders-{number}")
    for each in folder.parent.glob("orders-*"):
        flip(each / FIRST, 3 * BATCH + 100)
    result = run("verify", folder.parent)
    assert result.lines[-2].split()[:3] == ["orders", "7", "7"]
    assert f"next: kafkalog salvage {folder.parent} NEW_DIR\n" in result.err


def test_topics_are_told_apart() -> None:
    def lose(topic: str, records: int | None, first: int, last: int) -> LostRange:
        return LostRange(TopicPartition(topic, 0), "p", 0, 10, records, first, last)

    first, second = by_topic([lose("b", 1, 5, 9), lose("a", None, -1, 7), lose("a", 4, 6, -1), lose("b", 2, 3, 4)])
    assert (first.topic, first.records, first.unsure, first.unsure_times) == ("a", 4, True, True)
    assert (first.first_timestamp, first.last_timestamp, first.bytes, first.ranges) == (-1, -1, 20, 2)
    assert (second.records, second.unsure, second.first_timestamp, second.last_timestamp) == (3, False, 3, 9)
