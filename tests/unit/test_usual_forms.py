"""Records and batches in their usual form have a short path: it and the long one give one answer for any bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._limits import LONG_MAX
from kafkalog._native.state.walk import walked
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import java_text, names
from kafkalog.engine.format.checkpoints import CheckpointFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log import view as views
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError


def outcome(ask: Any) -> object:
    try:
        return ask()
    except (KafkalogError, OSError, ValueError) as error:
        return type(error), str(error)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Four batches."""
    root = tmp_path_factory.mktemp("log")
    with kafkalog.open(root) as store:
        topic = store.create_topic("t", 1)
        for number in range(4):
            topic.append_many([b"value %d" % number] * (number + 1), partition=0)
    return (root / "t-0" / "00000000000000000000.log").read_bytes()


def changes(log: bytes) -> dict[str, bytes]:
    size = len(log) // 2

    def with_byte(place: int, value: int) -> bytes:
        return log[:place] + bytes([value]) + log[place + 1 :]

    return {
        "whole": log,
        "empty": b"",
        "torn": log[:-5],
        "a short tail": log + bytes(17),
        "preallocated": log + bytes(4096),
        "noise behind it": log + os.urandom(300),
        "a flipped bit": with_byte(size, log[size] ^ 1),
        "the first batch is old": with_byte(16, 1),
        "an unknown magic": with_byte(16, 7),
        "an offset of its own": with_byte(7, 200),
        "an offset below the segment": with_byte(0, 0x80),
        "no size": with_byte(11, 0),
        "twice": log + log,
    }


@pytest.mark.parametrize("base", [0, 2, 1 << 40])
def test_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: bytes, base: int) -> None:
    taken = 0

    def counted(*args: Any) -> tuple[int, int, int, bool] | None:
        nonlocal taken
        found = walked(*args)
        taken += found is not None
        return found

    for number, (what, data) in enumerate(changes(log).items()):
        root = tmp_path / str(number)
        folder = root / "t-0"
        folder.mkdir(parents=True)
        (folder / f"{base:020d}.log").write_bytes(data)
        answers = []
        for walk in (counted, lambda *args: None):
            monkeypatch.setattr(views, "walked", walk)
            with PartitionView(root, "t-0") as view:
                seen = view.snapshot
                answers.append((seen.log_end_offset, seen.end_position, seen.tail_timestamp, seen.unreadable_end))
        assert answers[0] == answers[1], what
    assert taken >= (3 if base == 0 else 1)


def test_what_is_not_ordinary_is_left(tmp_path: Path, log: bytes) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(log)
    with OS_FILES.open(str(path), writable=False) as file:
        end, position, newest, _ = walked(file, 0, len(log), 0, LONG_MAX) or (-1, -1, -1, False)
        assert (end, position) == (10, len(log))
        assert newest > 0
        assert walked(file, 0, len(log) + 1, 0, LONG_MAX) is None  # the file ends before
        assert walked(file, 0, len(log), 1, LONG_MAX) is None
        assert walked(file, 0, len(log), 0, 8) is None
        assert walked(file, 5, 3, 0, LONG_MAX) is None
        assert walked(file, 4, 4, 7, LONG_MAX) == (7, 4, -1, False)
    assert walked(file, 0, len(log), 0, LONG_MAX) is None  # closed
    assert walked(object(), 0, len(log), 0, LONG_MAX) is None
    with pytest.raises(TypeError):
        walked(file, "0", len(log), 0, LONG_MAX)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"0", b"0\n", b"0\n0", b"0\n0\n", b"0\n2\na 0 1\nb 1 2\n", b"0\n2\na 0 1\nb 1 2", b"0\n2\na 0 1\na 0 2\n",
        b"0\n1\na 0 1\nb 1 2\n", b"0\n2\na 0 1\n", b"0\n1\na b 0 1\n", b"0\n1\n a 0 1\n", b"0\n1\na  0\t1 \n",
        b"0\n1\na 0 -1\n", b"0\n1\na +0 01\n", b"0\n1\na 2147483648 1\n", b"0\n1\na 0 9223372036854775807\n",
        b"0\n1\na 0 9223372036854775808\n", b"0\r\n1\r\na 0 1\r\n", b"0\n2\na 0 1\rb 1 2\n", b"0\n1\n\xc3\xa4 0 1\n",
        b"0\n1\n\xff 0 1\n", b"0\n1\na\0 0 1\n", b"1\n1\na 0 1\n", b"0\n-1\n", b"0\n01\na 0 1\n", b"0\n1\na 0 1\n\n",
        b"0\n1\na 0 x\n", b"0\n1\n\n", b"0\n3\na 0 1\n\nb 0 1\n",
    ],
)  # fmt: skip
def test_an_offset_checkpoint(data: bytes) -> None:
    checkpoint = OffsetCheckpointFile("checkpoint", create=False)
    assert outcome(lambda: checkpoint.decode(data)) == outcome(lambda: CheckpointFile.decode(checkpoint, data))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", TopicPartition("t", 0)),
        ("/logs/a-b-07", TopicPartition("a-b", 7)),
        ("logs-1/t-2", TopicPartition("t", 2)),
        ("t-2/", TopicPartition("t", 2)),
        ("t-2/.", TopicPartition("t", 2)),
        ("t-2147483647", TopicPartition("t", 2147483647)),
        ("t-\N{ARABIC-INDIC DIGIT THREE}", TopicPartition("t", 3)),
        ("t--1", TopicPartition("t-", 1)),
        ("t-+1", TopicPartition("t", 1)),
        ("t-0.abc-delete", TopicPartition("t", 0)),
        ("t-2147483648", None),
        ("-0", None),
        ("a/-0", None),
        ("0", None),
        ("t-", None),
        ("t-\N{SUPERSCRIPT TWO}", None),
        ("t-0/..", None),
    ],
)
def test_a_partitions_name(name: str, expected: TopicPartition | None) -> None:
    if expected is None:
        with pytest.raises(KafkalogError, match="is not in the form of topic-partition"):
            names.parse_topic_partition_name(name)
    else:
        assert names.parse_topic_partition_name(name) == expected


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("00000000000000000007.log", 7),
        ("00999999999999999999.log", 999_999_999_999_999_999),
        ("09223372036854775807.log", LONG_MAX),
        ("09223372036854775808.log", None),
        ("0000000000000000007.log", None),
        ("000000000000000000007.log", None),
        ("0000000000000000000\N{ARABIC-INDIC DIGIT THREE}.log", None),
        ("00000000000000000007.log.swap", None),
        ("00000000000000000007log", None),
        ("a/00000000000000007.log", None),
    ],
)
def test_a_segments_name(name: str, base: int | None) -> None:
    assert names.segment_base(name) == base


@pytest.mark.parametrize("text", ["0", "007", "999999999", "2147483647", "-5", "+5", "\N{ARABIC-INDIC DIGIT THREE}"])
def test_a_number(text: str) -> None:
    assert java_text.parse_int(text) == java_text.parse_long(text) == int(text)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "\N{SUPERSCRIPT TWO}", "2147483648", "0x1"])
def test_no_number(text: str) -> None:
    with pytest.raises(KafkalogError):
        java_text.parse_int(text)
