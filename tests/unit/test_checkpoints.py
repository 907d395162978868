"""Text files of a log directory: bytes, order and refusals as recorded from Apache Kafka 4.4.0."""
# ruff: noqa: E501  (recorded texts stay in one piece)

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkalog
from kafkalog._native.codec.java_hash import (
    JavaHashMap,
    hash_map_order,
    long_hash,
    string_hash,
    topic_partition_hash,
)
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format import java_text
from kafkalog.engine.format.checkpoints import (
    CleanShutdownFile,
    EpochEntry,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
)
from kafkalog.engine.format.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import (
    PartitionMetadata,
    decode_partition_metadata,
    read_partition_metadata,
    write_partition_metadata,
)
from kafkalog.errors import (
    BadBytesError,
    CorruptCheckpointException,
    IllegalArgumentException,
    KafkalogError,
    NullPointerException,
    NumberFormatException,
)
from kafkalog.toolbox.verify import verify
from tests.file_doubles import RecordingFiles

UUID = "AAAAAAAAAAAAAAAAAAAAAQ"


def tp(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


# --- the order of Java's maps ---------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "Aa", "BB"]), st.sampled_from([1, 64, 4096]), st.integers(0, 300))),
    st.sampled_from([1, 2, 16, 64, 512]),
)
def test_the_order_is_that_of_a_map_into_which_all_were_put(rows: list[tuple[str, int, int]], capacity: int) -> None:
    """With few to a bucket, and with so many that Java makes a tree of it."""
    keys = [TopicPartition(topic, step * number) for topic, step, number in rows]
    found: JavaHashMap[TopicPartition, None] = JavaHashMap(topic_partition_hash, capacity)
    for key in keys:
        found[key] = None
    assert hash_map_order(keys, topic_partition_hash, initial_capacity=capacity) == list(found)


def test_order_of_partitions() -> None:
    given_order = [tp(name) for name in ("a-0", "b-0", "zeta-0", "a-1", "topic-5", "topic-17", "é-3", "x😀-1")]
    found = [str(key) for key in hash_map_order(given_order, topic_partition_hash)]
    assert found == ["zeta-0", "a-1", "a-0", "b-0", "é-3", "x😀-1", "topic-17", "topic-5"]
    many = [TopicPartition(f"t{number % 7}", number) for number in range(40)]
    assert [key.partition for key in hash_map_order(many, topic_partition_hash)] == [
        29, 31, 33, 21, 23, 25, 27, 15, 17, 19, 7, 9, 11, 13, 36, 38, 1, 3, 5, 28,
        30, 32, 34, 22, 24, 26, 14, 16, 18, 20, 8, 10, 12, 35, 37, 39, 0, 2, 4, 6,
    ]  # fmt: skip
    assert string_hash("") == 0
    assert string_hash("a" * 20) == hash_of_as()
    assert long_hash(-1) == 0
    assert long_hash(1 << 33) == 2


def hash_of_as() -> int:
    value = 0
    for _ in range(20):
        value = (value * 31 + 97) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([1000, 2, 17, 1, 1 << 33, 16, 33], [16, 17, 1, 33, 2, 1 << 33, 1000]),
        # nine in a chain: the table grows before its time
        ([n * 16 + 5 for n in range(11)], [5, 37, 69, 101, 133, 165, 21, 53, 85, 117, 149]),
        ([(9 - n) * 16 + 5 for n in range(10)] + [3, 35, 67], [3, 35, 67, 133, 101, 69, 37, 5, 149, 117, 85, 53, 21]),
        # chains that became trees
        ([(29 - n) * 64 * (n % 3 + 1) for n in range(30)],
         [2816, 3584, 1856, 5184, 1664, 1728, 3200, 2880, 3456, 4608, 1472, 4032, 1280, 1152, 1088, 896, 704, 512, 576,
          320, 128, 0, 2432, 2048, 2304]),
        ([n * 7919 % 20 * 64 for n in range(20)],
         [768, 1024, 0, 64, 192, 128, 320, 256, 448, 384, 576, 512, 1216, 1152, 1088, 960, 896, 832, 704, 640]),
        ([n * 1000 + n * 7 % 3 for n in range(14)],
         [0, 12000, 4001, 8002, 9000, 1001, 13001, 5002, 6000, 10001, 2002, 3000, 7001, 11002]),
        ([-n * (1 << 33) + n for n in range(5)], [0, -8589934591, -17179869182, -34359738364, -25769803773]),
    ],
)  # fmt: skip
def test_order_of_producer_ids(keys: list[int], order: list[int]) -> None:
    assert hash_map_order(keys, long_hash) == order


def test_a_map_remembers_how_large_it_was() -> None:
    grown: JavaHashMap[int, str] = JavaHashMap(long_hash)
    for number in range(100):
        grown[number] = str(number)
    for number in range(98):
        del grown[number]
    grown[17], grown[1] = "17", "1"
    assert list(grown) == [1, 17, 98, 99]
    assert grown.capacity == 256
    assert list(JavaHashMap.copy_of(grown, long_hash)) == [1, 17, 98, 99]
    assert grown.pop(98) == "98"
    assert grown.pop(98, None) is None
    with pytest.raises(KeyError):
        del grown[98]
    assert grown.setdefault(17, "x") == "17"
    assert grown.items() == [(1, "1"), (17, "17"), (99, "99")]
    assert grown.values() == ["1", "17", "99"]
    assert grown.keys() == [1, 17, 99]
    grown.clear()
    assert (list(grown), len(grown), grown.capacity) == ([], 0, 256)
    small = JavaHashMap[int, int](long_hash, 3)
    small.update({33: 0, 1: 0})
    assert (list(small), small.capacity) == ([33, 1], 4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40).map(lambda n: n * 64)), max_size=200))
def test_a_map_holds_what_a_dict_holds(steps: list[tuple[bool, int]]) -> None:
    plain: dict[int, int] = {}
    java: JavaHashMap[int, int] = JavaHashMap(long_hash)
    for number, (add, key) in enumerate(steps):
        if add:
            plain[key] = java[key] = number
        else:
            assert plain.pop(key, None) == java.pop(key, None)
    assert dict(java) == plain
    assert sorted(java) == sorted(plain)


# --- checkpoints ---------------------------------------------------------------------------------------


def test_offsets_are_written_in_javas_order(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    file = OffsetCheckpointFile(str(path))
    assert path.read_bytes() == b""
    assert file.read() == {}
    offsets = {tp(name): number for number, name in enumerate(("a-0", "b-0", "zeta-0", "a-1"))}
    file.write(offsets)
    assert path.read_bytes() == b"0\n4\nzeta 0 2\na 1 3\na 0 0\nb 0 1\n"
    assert file.read() == offsets
    wide: JavaHashMap[TopicPartition, int] = JavaHashMap(topic_partition_hash, 64)
    wide.update(offsets)
    file.write(wide)
    assert [str(key) for key in file.read()] == [str(key) for key in wide]
    file.write({})
    assert path.read_bytes() == b"0\n0\n"


@pytest.mark.parametrize("topic", ["a b", "a\nb", " a", "a\r", "\x0b", "a\x0cb", "a\tb", "\udc80"])
def test_a_line_that_could_not_be_read_is_refused(topic: str, tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    file = OffsetCheckpointFile(str(path))
    file.write({tp("a-0"): 3})
    with pytest.raises(IllegalArgumentException, match="cannot hold the name"):
        file.write({tp("a-0"): 4, TopicPartition(topic, 0): 5})
    with pytest.raises(IllegalArgumentException):
        file.write({TopicPartition("a", 1 << 31): 5})
    assert file.read() == {tp("a-0"): 3}


@pytest.mark.parametrize("topic", ["a", "é", "a\x85b", "a\u2028b", "", "\0", "\x1c", "a\u00a0b"])
@pytest.mark.parametrize("number", [0, -1, (1 << 31) - 1, -(1 << 31)])
def test_a_line_that_can_be_read_is_written(topic: str, number: int, tmp_path: Path) -> None:
    file = OffsetCheckpointFile(str(tmp_path / "recovery-point-offset-checkpoint"))
    lines = {TopicPartition(topic, number): -(1 << 63), tp("b-0"): (1 << 63) - 1}
    file.write(lines)
    assert file.read() == lines


def test_an_epoch_that_could_not_be_read_is_refused(tmp_path: Path) -> None:
    file = LeaderEpochCheckpointFile(str(tmp_path / "leader-epoch-checkpoint"))
    file.write([EpochEntry((1 << 31) - 1, 0)])
    with pytest.raises(IllegalArgumentException):
        file.write([EpochEntry(1 << 31, 0)])
    assert file.read() == [EpochEntry((1 << 31) - 1, 0)]


def test_a_look_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OffsetCheckpointFile(str(tmp_path / "c"), create=False).read()
    assert OffsetCheckpointFile(str(tmp_path / "c"), create=False).read_or_empty() == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", {}),
        (b"0\n", {}),
        (b"0\n1\na 0 5", {"a-0": 5}),
        (b"0\r\n1\r\na 0 5\r\n", {"a-0": 5}),
        (b"0\n1\na  0\t5  \n", {"a-0": 5}),
        (b"0\n2\na 0 5\na 0 6\n", {"a-0": 6}),
        (b"0\n1\na -1 -5\n", {"a--1": -5}),
    ],
)
def test_offsets_that_kafka_reads(tmp_path: Path, content: bytes, found: dict[str, int]) -> None:
    path = tmp_path / "c"
    path.write_bytes(content)
    assert {str(key): offset for key, offset in OffsetCheckpointFile(str(path)).read().items()} == found
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"1\n0\n", CorruptCheckpointException, "Unrecognised version:1, expected version: 0 in checkpoint file at: P"),
        (b"x\n", CorruptCheckpointException, "Malformed line in checkpoint file [P]: x"),
        (b"0\nx\n", CorruptCheckpointException, "Malformed line in checkpoint file [P]: x"),
        (b"0\n1\na 0\n", CorruptCheckpointException, "Malformed line in checkpoint file [P]: a 0"),
        (b"0\n1\n a 0 5\n", CorruptCheckpointException, "Malformed line in checkpoint file [P]:  a 0 5"),
        (b"0\n1\na 0 5\n\n", CorruptCheckpointException, "Malformed line in checkpoint file [P]: "),
        (b"0\n0\nx", CorruptCheckpointException, "Malformed line in checkpoint file [P]: x"),
        (b"0\n1\na 0 5\nx", CorruptCheckpointException, "Malformed line in checkpoint file [P]: x"),
        (b"0\n3\na 0 1\n", CorruptCheckpointException, "Expected [3] entries in checkpoint file [P], but found only [1]"),
        (b"0\n0\na 0 1\n", CorruptCheckpointException, "Expected [0] entries in checkpoint file [P], but found only [1]"),
        (b"0\n2147483647\n", CorruptCheckpointException,
         "Expected [2147483647] entries in checkpoint file [P], but found only [0]"),
        (b"0\n-1\n", IllegalArgumentException, "Illegal Capacity: -1"),
        (b"0\n1\na x 1\n", NumberFormatException, 'For input string: "x"'),
        (b"0\n1\na 0 99999999999999999999\n", NumberFormatException, 'For input string: "99999999999999999999"'),
        (b"0\n1\n\xff\xfe 0 5\n", CorruptCheckpointException, "found byte 0xff, which is not valid UTF-8 text"),
    ],
)  # fmt: skip
def test_offsets_that_kafka_refuses(tmp_path: Path, content: bytes, error: type[KafkalogError], message: str) -> None:
    path = tmp_path / "c"
    path.write_bytes(content)
    with pytest.raises(error) as refused:
        OffsetCheckpointFile(str(path)).read()
    assert OffsetCheckpointFile(str(path)).read_or_empty() == {}
    assert refused.value.message == message.replace("P", str(path))
    assert isinstance(refused.value, BadBytesError)
    assert type(refused.value).__name__ == error.__name__
    assert str(path) in str(refused.value)
    assert "remove the file" in str(refused.value)


def test_leader_epochs(tmp_path: Path) -> None:
    path = LeaderEpochCheckpointFile.new_file(str(tmp_path))
    file = LeaderEpochCheckpointFile(path)
    assert OS_FILES.read_bytes(path) == b""
    entries = [EpochEntry(0, 0), EpochEntry(3, 17)]
    file.write(entries)
    assert OS_FILES.read_bytes(path) == b"0\n2\n0 0\n3 17\n"
    assert file.read() == entries
    assert str(entries[1]) == "EpochEntry[epoch=3, startOffset=17]"
    OS_FILES.remove_tree(str(tmp_path))
    file.write_if_dir_exists(entries)
    with pytest.raises(FileNotFoundError):
        file.write(entries)


def test_a_long_line_is_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"0\n1\n" + b"x" * 100_000)
    with pytest.raises(CorruptCheckpointException) as refused:
        OffsetCheckpointFile(str(path)).read()
    assert len(str(refused.value)) < 1000


@given(st.binary(max_size=60) | st.text("0123456789 -\n\rab", max_size=40).map(str.encode))
def test_any_bytes_give_entries_or_bad_bytes(data: bytes) -> None:
    checkpoint = OffsetCheckpointFile("checkpoint", create=False)
    for decode in (checkpoint.decode, lambda content: decode_partition_metadata(content, path="p")):
        with contextlib.suppress(BadBytesError):
            decode(data)


# --- the clean-shutdown marker ---------------------------------------------------------------------------


def test_clean_shutdown_marker(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    marker = CleanShutdownFile(str(tmp_path), files)
    assert marker.read() is None
    assert not marker.delete()
    marker.write(42)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":42}'
    assert marker.exists()
    assert marker.read() == 42
    assert marker.delete()
    assert [op.kind for op in files.ops] == ["create", "write", "sync", "unlink", "sync_dir"]


@pytest.mark.parametrize(
    ("content", "epoch"),
    [
        (b'{"version":0,"brokerEpoch":-1}', -1),
        (b' {"brokerEpoch":"7","more":[1]} ', 7),
        (b"", None),
        (b"{}", None),
        (b'{"brokerEpoch":null}', None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        # As Jackson reads it: what follows does not count, be it text or not; numbers are cut and must fit.
        (b'{"version":0,"brokerEpoch":42}<G\x1b\xff\xfe', 42),
        (b'{"other":"\xff","brokerEpoch":42}', 42),
        (b'{"version":1.5,"brokerEpoch":42.9}', 42),
        (b'{"version":99999999999,"brokerEpoch":42}', None),
        (b'{"brokerEpoch":9223372036854775808}', None),
        (b'{"brokerEpoch":true}', None),
        (b'{"brokerEpoch":NaN}', None),
        (b'{"brokerEpoch":1e400}', None),
    ],
)
def test_clean_shutdown_marker_content(tmp_path: Path, content: bytes, epoch: int | None) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert CleanShutdownFile(str(tmp_path)).read() == epoch


# --- partition.metadata ------------------------------------------------------------------------------------


def test_partition_metadata(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    write_partition_metadata(str(path), UUID)
    assert path.read_bytes() == b"version: 0\ntopic_id: " + UUID.encode()
    assert len(path.read_bytes()) == 43
    assert read_partition_metadata(str(path)) == PartitionMetadata(0, UUID)


@pytest.mark.parametrize("content", [f"version: 1\ntopic_id: {UUID}\n", f"x: 1\ny: \t{UUID}==\nmore"])
def test_partition_metadata_that_kafka_reads(content: str) -> None:
    assert decode_partition_metadata(content.encode(), path="p") == PartitionMetadata(1, UUID)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("version: 0\ntopic_id: " + "A" * 22, CorruptCheckpointException,
         "Invalid topic ID in partition metadata file (P)"),
        ("version: -1\ntopic_id: x", CorruptCheckpointException,
         "Unrecognized version of partition metadata file (P): -1"),
        ("version 0\n", CorruptCheckpointException, "Malformed line in partition metadata file [P]: version 0"),
        ("version: a\n", CorruptCheckpointException, "Malformed line in partition metadata file [P]: version: a"),
        ("version:0\n", CorruptCheckpointException, "Malformed line in partition metadata file [P]: version:0"),
        ("version: 0\ntopic_id: x", IllegalArgumentException,
         "Input byte[] should at least have 2 bytes for base64 bytes"),
        ("version: 0\ntopic_id: " + "A" * 21, IllegalArgumentException, "Last unit does not have enough valid bits"),
        ("version: 0\ntopic_id: AAAA", IllegalArgumentException,
         "Input string `AAAA` decoded as 3 bytes, which is not equal to the expected 16 bytes of a base64-encoded UUID"),
        ("version: 0\ntopic_id: " + "A" * 26, IllegalArgumentException,
         f"Input string with prefix `{'A' * 24}` is too long to be decoded as a base64 UUID"),
        ("version: 0\ntopic_id: +" + "A" * 21, IllegalArgumentException, "Illegal base64 character 2b"),
        ("", NullPointerException, "line 1 is missing; expected `version: ...`"),
        ("version: 0\n", NullPointerException, "line 2 is missing; expected `topic_id: ...`"),
    ],
)  # fmt: skip
def test_partition_metadata_refused(content: str, error: type[KafkalogError], message: str) -> None:
    with pytest.raises(error) as refused:
        decode_partition_metadata(content.encode(), path="/P")
    assert refused.value.message == message.replace("P)", "/P)").replace("[P]", "[/P]")
    assert isinstance(refused.value, BadBytesError)
    assert "/P" in str(refused.value)


# --- meta.properties and .properties ------------------------------------------------------------------------


def test_meta_properties(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    written = MetaProperties(1, "abcDEF", 1, UUID)
    write_meta_properties(str(path), written, clock=ManualClock(1_795_252_332_999))
    assert path.read_text() == (
        f"#\n#Sat Nov 21 09:12:12 UTC 2026\nnode.id=1\ndirectory.id={UUID}\nversion=1\ncluster.id=abcDEF\n"
    )
    assert read_meta_properties(str(path)) == written
    assert list(MetaProperties(0, "x", 1).to_properties().items()) == [
        ("broker.id", "1"), ("version", "0"), ("cluster.id", "x")
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("version=1\n", "Failed to find node.id"),
        ("version=1\nnode.id=a\ncluster.id=x\n", "Unable to read node.id as a base-10 number."),
        ("version=1\nnode.id=1\n", "cluster.id was not found."),
        ("version=2\n", "Unknown meta.properties version number 2"),
        ("version=x\n", "Invalid meta.properties version string 'x'"),
        ("broker.id=z", "Unable to read broker.id as a base-10 number."),
        ("directory.id=zz\n", "Unable to read directory.id as a Uuid: Input string `zz` decoded as 1 bytes, which is not "
                              "equal to the expected 16 bytes of a base64-encoded UUID"),
        ("a=\\u00g0", "Malformed \\uxxxx encoding."),
    ],
)  # fmt: skip
def test_meta_properties_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "meta.properties"
    path.write_text(content)
    with pytest.raises(CorruptCheckpointException) as refused:
        read_meta_properties(str(path))
    assert refused.value.message == message
    assert refused.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}), ("a=b", {"a": "b"}), ("a:b", {"a": "b"}), ("a b", {"a": "b"}), ("  a  =  b  ", {"a": "b  "}),
        ("a", {"a": ""}), ("a=", {"a": ""}), ("=b", {"": "b"}), ("#c\n!d\nx=1", {"x": "1"}),
        ("a=b\\\n   c", {"a": "bc"}), ("a\\ b=c", {"a b": "c"}), ("a\\:b=c", {"a:b": "c"}),
        ("k=\\u00e9\\t\\n\\q", {"k": "é\t\nq"}), ("a==b", {"a": "=b"}), ("a = = b", {"a": "= b"}),
        ("a\fb", {"a": "b"}), ("x=1\rx=2\r\ny=3", {"x": "2", "y": "3"}), ("k\\\n  v=z", {"kv": "z"}),
        ("# c\\\nq=1", {"q": "1"}), ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}), ("\\u0041=1", {"A": "1"}),
        ("a=b\\\n#c", {"a": "b#c"}), ("a=b\\\n\nc=d", {"a": "b", "c": "d"}), ("a=b\\", {"a": "b"}),
    ],
)  # fmt: skip
def test_properties(text: str, found: dict[str, str]) -> None:
    assert java_text.parse_properties(text) == found
    assert java_text.parse_properties(text.encode("latin-1")) == found


def test_properties_written() -> None:
    text = java_text.format_properties({"a b:c=#!": "  v é\t\n\\ = : #!", "": ""}, now_ms=0)
    assert text.splitlines()[2:] == ["a\\ b\\:c\\=\\#\\!=\\  v é\\t\\n\\\\ \\= \\: \\#\\!", "="]


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5))
def test_properties_come_back(properties: dict[str, str]) -> None:
    assert java_text.parse_properties(java_text.format_properties(properties, now_ms=0)) == properties


@pytest.mark.parametrize("text", ["", "+", "-", "1a", "99999999999", "-2147483649", " 1", "1_0", "+-1"])
def test_integers_refused(text: str) -> None:
    with pytest.raises(NumberFormatException, match=r"For input string"):
        java_text.parse_int(text)


def test_integers() -> None:
    assert [java_text.parse_int(text) for text in ("٣", "+5", "-0", "0" * 40 + "7", "-2147483648")] == [
        3,
        5,
        0,
        7,
        -(1 << 31),
    ]
    assert java_text.parse_short("-32768") == -32768
    with pytest.raises(NumberFormatException, match="out of range"):
        java_text.parse_short("32768")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "found an empty file"),
        (b"0\n", "found an empty file"),
        (b"0\nx\n", "Malformed line"),
        (
            b"0\n1\nt 0 ten\n",
            'For input string: "ten" (line 3, byte 4; expected `topic partition offset`; repair the line',
        ),
        (b"\x7fELF\xfe\xff", "found byte 0xfe, which is not valid UTF-8 text (expected lines of `topic partition"),
        (None, "found no such file"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None, told: str
) -> None:
    """As in Kafka it is ignored: deleted records come back, which once happened silently."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"a"] * 10)
        log.append_many([b"b"] * 10)
        log.delete_records(10)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert log.log_start_offset == 10
    assert warnings_of(caplog) == []
    path = tmp_path / name
    assert verify(tmp_path).ok
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
        (finding,) = verify(tmp_path).findings
        assert (finding.path, told.removeprefix("found ") in str(finding)) == (str(path), True)
    kafkalog.open_log(tmp_path, "t-0").close()
    (warning,) = warnings_of(caplog)
    assert warning.count(str(path)) == 1
    assert told in warning


def test_what_was_never_written_is_no_finding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker makes both checkpoints empty, and writes them after a minute."""
    log = kafkalog.open_log(tmp_path, "t-0")
    log.append(b"a")
    shutil.copytree(tmp_path, tmp_path / "killed")
    log.close()
    assert verify(tmp_path / "killed").ok
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (tmp_path / "killed" / name).write_bytes(b"")
    assert verify(tmp_path / "killed").ok
    assert warnings_of(caplog) == []
    kafkalog.open_log(tmp_path / "killed", "t-0").close()
    assert warnings_of(caplog) == []  # its creator was killed while it was young
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (tmp_path / "killed" / name).write_bytes(b"")
    kafkalog.open_log(tmp_path / "killed", "t-0").close()
    assert len(warnings_of(caplog)) == 2  # after a clean shutdown both had lines
