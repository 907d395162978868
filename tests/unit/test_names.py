"""Names of files and directories, as LogFileUtils and LocalLog of Apache Kafka 4.4.0 write and read them."""

from __future__ import annotations

import pytest

from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException, InvalidTopicException, KafkaException, NumberFormatException


def test_segment_files() -> None:
    assert names.filename_prefix_from_offset(0) == "0" * 20
    assert names.filename_prefix_from_offset(-5) == "-00000000000000000005"
    assert names.filename_prefix_from_offset((1 << 63) - 1) == "09223372036854775807"
    assert names.log_file("d", 7) == "d/00000000000000000007.log"
    assert names.offset_index_file("d", 7, ".swap") == "d/00000000000000000007.index.swap"
    assert names.time_index_file("d", 7, ".cleaned") == "d/00000000000000000007.timeindex.cleaned"
    assert names.transaction_index_file("d", 7, ".deleted") == "d/00000000000000000007.txnindex.deleted"
    assert names.producer_snapshot_file("d", 7) == "d/00000000000000000007.snapshot"
    assert names.is_log_file("1.log")
    assert not names.is_log_file("1.log.deleted")
    assert all(names.is_index_file(f"1.{kind}") for kind in ("index", "timeindex", "txnindex"))
    assert not names.is_index_file("1.log")
    assert names.replace_suffix("a.log.swap", ".swap", "") == "a.log"
    with pytest.raises(IllegalArgumentException, match=r"Expected string to end with '\.swap' but string is 'a\.log'"):
        names.replace_suffix("a.log", ".swap", "")


def test_stems() -> None:
    assert names.segment_stem("/d/t-0", 7) == "/d/t-0/00000000000000000007"
    assert names.segment_stem("/", 7) == "/00000000000000000007"
    assert names.segment_stem("", -7) == "-00000000000000000007"
    text = "00000000000000000007"
    others = [
        "7.log",
        text + ".index",
        text + ".log.swap",
        "-" + text + ".log",
        "0\u0660" + text[2:] + ".log",
        "a" * 24,
    ]
    assert names.log_stems([text + ".log", *others]) == {text}


@pytest.mark.parametrize(
    ("name", "offset"),
    [("00000000000000000007.log", 7), ("7.log.cleaned", 7), ("/x.y/12.index", 12), ("-3.log", -3), ("٣.log", 3)],
)
def test_offsets_of_names(name: str, offset: int) -> None:
    assert names.offset_from_filename(name) == offset


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint", ".lock", "1_0.log", " 1.log",
                                  "9223372036854775808.log", "9" * 100_000 + ".log"])  # fmt: skip
def test_names_without_an_offset(name: str) -> None:
    with pytest.raises(NumberFormatException):
        names.offset_from_filename(name)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a-0", ("a", 0)),
        ("a-b-1", ("a-b", 1)),
        ("a--1", ("a-", 1)),
        ("a-+1", ("a", 1)),
        ("a-01", ("a", 1)),
        ("a b-0", ("a b", 0)),
        ("a-0.abc-delete", ("a", 0)),
        ("a.b-c-0.abc-delete", ("a.b-c", 0)),
        ("a-0.x-future", ("a", 0)),
        ("a-0.x-stray", ("a", 0)),
    ],
)
def test_partition_directories(name: str, parsed: tuple[str, int]) -> None:
    assert names.parse_topic_partition_name(f"/k/{name}") == parsed
    assert names.parse_topic_partition_name(f"/k/{name}/") == TopicPartition(*parsed)


@pytest.mark.parametrize(
    "name",
    ["x", "-1", "a-", "x-delete", "a-1-delete", "a-0.abc-deletex", "a-0.b c-delete", "a-0.x.y-stray", "a-99999999999"],
)
def test_foreign_directories(name: str) -> None:
    with pytest.raises(KafkaException) as refused:
        names.parse_topic_partition_name(f"/k/{name}")
    assert refused.value.message == (
        f"Found directory /k/{name}, '{name}' is not in the form of topic-partition or topic-partition.uniqueId-delete "
        "(if marked for deletion).\nKafka's log directories (and children) should only contain Kafka topic data."
    )


def test_directories_made() -> None:
    partition = TopicPartition("t" * 249, 12)
    assert names.log_dir_name(partition) == str(partition) == "t" * 249 + "-12"
    deleted = names.log_delete_dir_name(partition)
    assert len(deleted) == 255
    assert names.is_delete_dir(deleted)
    assert names.parse_topic_partition_name(deleted).partition == 12
    assert names.log_stray_dir_name(TopicPartition("t", 0), unique_id="u") == "t-0.u-stray"
    future = names.log_future_dir_name(partition)
    assert names.parse_topic_partition_name(future) == partition
    assert names.is_future_dir(future)
    assert names.is_stray_dir("t-0.u-stray")


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("é", "'é' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_topic_names(topic: str, why: str) -> None:
    names.validate_topic_name("a.B_c-9" + "x" * 200)
    with pytest.raises(InvalidTopicException) as refused:
        names.validate_topic_name(topic)
    assert refused.value.message == f"Topic name is invalid: {why}"
