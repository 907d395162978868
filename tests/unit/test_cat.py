"""`kafkalog cat`: filters, windows, the last records, kcat's format; the same answers as a walk over all records."""

from __future__ import annotations

import json
import operator
import random
import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.match import Match
from kafkalog._face.selection import Selection, walk_selected
from kafkalog._face.times import ALL_TIMES, Times
from kafkalog._face.window import Time, Window, found_in, last
from kafkalog._native.codec.murmur2 import murmur2
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from kafkalog.cli.console import parse_time_ms
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import CorruptRecordException, IllegalArgumentException
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

START_MS = 1_700_000_000_000
PARTITIONS = 3
KEYS = [b"k%d" % n for n in range(7)] + [b"\xff\x00", b""]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic whose keys lie where Kafka's producers put them; several segments, codecs, headers, nulls, aborted."""
    root = tmp_path_factory.mktemp("logs")
    for partition in range(PARTITIONS):
        for codec in ("none", "zstd", "gzip"):
            config = {"internal.segment.bytes": "3000", "index.interval.bytes": "100"}
            with kafkalog.open_log(root, f"t-{partition}", config=config, compression=codec) as log:
                for n in range(200):
                    key = KEYS[n % len(KEYS)] if n % 10 else None
                    if key is not None and partition_for_key(key, PARTITIONS) != partition:
                        continue
                    headers = [("trace", b"%d" % (n % 3)), ("odd", b"\xff"), ("none", None)][: n % 4]
                    value = None if n % 17 == 0 else b"value %d\x00\n" % n
                    log.append(value, key=key, headers=headers, timestamp=START_MS + n)
                with log.transaction("x") as txn:
                    txn.append(b"committed", key=KEYS[0], timestamp=START_MS)
                txn.begin()
                txn.append(b"aborted", key=KEYS[0], timestamp=START_MS)
                txn.abort()
    return root


def records(log_dir: Path, partition: int, isolation: str = "read_uncommitted") -> list[Any]:
    with kafkalog.open_log(log_dir, f"t-{partition}", read_only=True) as log:
        return list(log.records(isolation=isolation))


def cat_offsets(run: Run, *argv: object) -> list[tuple[int, int]]:
    result = run("cat", *argv, "--json")
    assert result.code == CLEAN, result.err
    return [(entry["partition"], entry["offset"]) for entry in map(json.loads, result.lines)]


def test_filters_are_those_of_a_plain_walk(log_dir: Path) -> None:
    """Any combination, against Python's own comparison of all records."""
    rng = random.Random(11)
    everything = {number: records(log_dir, number) for number in range(PARTITIONS)}
    for _ in range(25):
        keys = rng.sample([*KEYS, None, b"absent"], rng.choice([0, 1, 2]))
        patterns = rng.sample(["1", "^value 1", r"\x00\n$", "9|77", "(?i)VALUE"], rng.choice([0, 1, 2]))
        headers = rng.sample([("trace", b"1"), ("trace", None), ("odd", b"\xff"), ("none", None), ("no", b"")], 1)
        headers = headers if rng.random() < 0.6 else []
        selection = Selection(key=keys or None, grep=patterns, headers=headers)
        for number, there in everything.items():
            wanted = [
                record
                for record in there
                if (not keys or record.key in keys)
                and all(record.value is not None and re.search(p.encode(), record.value) for p in patterns)
                and all(
                    any(name == have and value in (None, it) for have, it in record.headers) for name, value in headers
                )
            ]
            with PartitionView(log_dir, f"t-{number}") as view:
                for chunk_bytes in (2000, 1 << 20):
                    reader = ChunkReader(view, chunk_bytes=chunk_bytes)
                    found = list(walk_selected(reader.batches_of_records(), selection, ALL_TIMES))
                    assert [tuple(record.headers) for record in found] == [tuple(it.headers) for it in wanted]
                    assert [it._replace(headers=()) for it in found] == [it._replace(headers=()) for it in wanted]


@pytest.mark.parametrize(
    "where",
    [
        "offset >= 13", "offset > 13 and offset < 40", "offset=20", "offset <= 5,offset>=5", "offset > 100000",
        f"ts >= @{START_MS + 50}", f"timestamp < @{START_MS + 50}", f"time = @{START_MS + 3}",
        f"offset < 60 AND time > @{START_MS + 10} and time <= @{START_MS + 120}",
    ],
)  # fmt: skip
def test_where_looks_at_each_record(run: Run, log_dir: Path, where: str) -> None:
    """Timestamps do not rise there: each codec's records begin at the same time again."""

    def holds(record: Any) -> bool:
        for part in re.split(r" and |,", where.lower()):
            name, comparison, number = re.fullmatch(r"(\w+) ?([<>=]+) ?@?(\d+)", part).groups()  # type: ignore[union-attr]
            have = record.offset if name == "offset" else record.timestamp
            if not eval(f"{have} {'==' if comparison == '=' else comparison} {number}"):
                return False
        return True

    wanted = [(number, each.offset) for number in range(PARTITIONS) for each in records(log_dir, number) if holds(each)]
    assert cat_offsets(run, log_dir, "--where", where) == wanted


@pytest.mark.parametrize("comparison", [">", ">=", "=", "<", "<="])
@pytest.mark.parametrize("value", [0, 10, 49, 50, 75, 99, 100, 150, (1 << 63) - 1])
@pytest.mark.parametrize("argv", [(), ("--last", "7"), ("-n", "7"), ("--from", "60"), ("--until", "70")])
def test_where_asks_for_no_place_of_the_log(
    argv: tuple[str, ...], value: int, comparison: str, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "from_50_to_100"
    if not root.exists():
        with kafkalog.open_log(root, "t-0") as log:
            for group in range(10):
                log.append_many([b"%d" % (group * 10 + number) for number in range(10)])
            log.delete_records(50)
    compare = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}[comparison]
    low, high = (60 if "--from" in argv else 50), (70 if "--until" in argv else 100)
    wanted = [offset for offset in range(low, high) if compare(offset, value)]
    wanted = wanted[-7:] if "--last" in argv else wanted[:7] if "-n" in argv else wanted
    for who in ("t-0", "t"):
        found = cat_offsets(run, root, who, "--where", f"offset {comparison} {value}", *argv)
        assert [offset for _, offset in found] == wanted
    result = run("cat", root, "t-0", "--where", "offset > 60", "--from", "10")
    assert (result.code, "offset 10 of t-0 is out of range" in result.err) == (2, True)


@pytest.mark.parametrize(
    "where",
    ["", "offset", "offset ~ 3", "foo = 3", "offset = x", "time < 25:99", "offset > -1", "key = 'a' nd offset < 5"],
)
def test_what_is_no_condition_is_refused(run: Run, log_dir: Path, where: str) -> None:
    result = run("cat", log_dir, "--where", where)
    assert result.code == 2
    assert "expected" in result.err or "unknown column" in result.err


@pytest.mark.parametrize("option", ["--from", "--until"])
def test_a_negative_offset_is_refused(run: Run, log_dir: Path, option: str) -> None:
    told = f"{option}: found -5, expected an offset from 0 on, or a time"
    result = run("cat", log_dir, option, "-5")
    assert (result.code, f"{told}; --last 5 reads the last 5 records of each partition" in result.err) == (2, True)
    if option == "--until":
        result = run("latest", log_dir, option, "-5")
        assert (result.code, told in result.err, "--last" in result.err) == (2, True, False)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_last_records(run: Run, log_dir: Path, isolation: str) -> None:
    there = [record.offset for record in records(log_dir, 0, isolation)]
    committed = ["--committed"] if isolation == "read_committed" else []
    for count in (0, 1, 2, 7, len(there) - 1, len(there), len(there) + 5):
        found = cat_offsets(run, log_dir, "t-0", "--last", count, *committed)
        assert [offset for _, offset in found] == there[len(there) - count if count < len(there) else 0 :]
    assert [offset for _, offset in cat_offsets(run, log_dir, "t-0", "--last", 2, "--until", 20, *committed)] == [
        offset for offset in there if offset < 20
    ][-2:]
    matched = cat_offsets(run, log_dir, "t-0", "--last", 3, "--grep", "9", *committed)
    whole = [it.offset for it in records(log_dir, 0, isolation) if it.value is not None and b"9" in it.value]
    assert [offset for _, offset in matched] == whole[-3:]


def test_the_last_records_are_read_from_the_end() -> None:
    looks: list[tuple[int, int]] = []

    def read(start: int, end: int) -> Any:
        looks.append((start, end))
        return iter(range(start - start % 100 + 99, end, 100))  # one of a hundred offsets has a record

    assert list(last(read, 10, 0, 1_000_000)) == list(range(999_099, 1_000_000, 100))
    assert sum(end - start for start, end in looks) < 4000
    assert [start for start, _ in looks[:-1]] == [end for _, end in looks[1:]]
    assert list(last(read, 3, 50, 90)) == []


def test_the_last_records_behind_damage() -> None:
    def read(start: int, end: int) -> Any:
        if start < 700:
            raise CorruptRecordException("damage")
        return iter(range(start, end, 2))

    def until_damage(count: int) -> list[int]:
        found = []
        records_of = last(read, count, 0, 2000)
        while True:
            try:
                found.append(next(records_of))
            except CorruptRecordException:
                return found

    assert until_damage(900) == list(range(1100, 2000, 2))
    assert until_damage(1400) == []


def test_windows(log_dir: Path, run: Run) -> None:
    with PartitionView(log_dir, "t-0") as view:
        end = view.log_end_offset
        assert found_in(view, Window()) == (0, None, ALL_TIMES)
        assert found_in(view, Window(3, end + 9)) == (3, end + 9, ALL_TIMES)
        assert found_in(view, Window(end + 9)) == (end + 9, None, ALL_TIMES)
        assert found_in(view, Window(end + 9), lenient=True) == (end, None, ALL_TIMES)
        assert found_in(view, Window(Time(0), Time(START_MS * 2))) == (0, None, Times(0, START_MS * 2 - 1))
    low = next(it.offset for it in records(log_dir, 0) if it.timestamp >= START_MS + 50)
    assert cat_offsets(run, log_dir, "t-0", "--from", f"@{START_MS + 50}", "-n", 1) == [(0, low)]
    assert cat_offsets(run, log_dir, "t-0", "--from", "2023-11-14T22:13:20.050Z", "-n", 1) == [(0, low)]
    for ms in range(1000):  # exactly: seconds as a float may be a millisecond short
        assert parse_time_ms(f"2023-11-14T22:13:20.{ms:03}") == 1_700_000_000_000 + ms
    for text in (f"@{1 << 63}", "@-1", "@1.5"):
        assert run("cat", log_dir, "t-0", "--from", text).code == USAGE
    assert cat_offsets(run, log_dir, "t-0", "--from", 5, "--until", 7) == [(0, 5), (0, 6)]
    assert cat_offsets(run, log_dir, "t-0", "--from", 5, "--until", 7) == [(0, 5), (0, 6)]


@pytest.mark.parametrize(
    ("key", "kafka"),
    [
        (b"", 275646681),
        (b"a", -1563381124),
        (b"ab", 316155434),
        (b"abc", 479470107),
        (b"abcd", -1323649548),
        (b"foobar", -790332482),
        (b"customer-7", -1283830537),
        ("ein Schlüssel mit mehr als zwanzig Bytes".encode(), 1888347141),
        (bytes(range(256)), -1948347274),
        (bytes(range(255)), 1542706800),
    ],
)
def test_murmur2_is_kafkas(key: bytes, kafka: int) -> None:
    """The results of org.apache.kafka.common.utils.Utils.murmur2 of Kafka 4.4.0."""
    assert murmur2(key) == murmur2(memoryview(bytearray(key))) == kafka
    assert partition_for_key(key, 7) == (kafka & 0x7FFFFFFF) % 7


def test_a_key_tells_its_partition(run: Run, log_dir: Path) -> None:
    for key in KEYS:
        result = run("cat", log_dir, "t", "--key", f"hex:{key.hex()}", "--json", "--partitions", PARTITIONS)
        entries = [json.loads(line) for line in result.lines]
        home = partition_for_key(key, PARTITIONS)
        wanted = [it.offset for it in records(log_dir, home) if it.key == key]
        assert [(entry["partition"], entry["offset"]) for entry in entries] == [(home, offset) for offset in wanted]
        (line,) = result.err.splitlines()
        assert line == f"note: read only t-{home}, to which Kafka's murmur2 assigns the key"
    # The transactions of the fixture put k0 into every partition: a named one is read, whatever the hash says.
    for number in range(PARTITIONS):
        wanted_there = [it for it in records(log_dir, number) if it.key == b"k0"]
        argv = ("cat", log_dir, f"t-{number}", "--key", "k0", "--json")
        assert len(run(*argv).lines) == len(run(*argv, "--partitions", 3).lines) == len(wanted_there) > 0
    nothing = run("cat", log_dir, "t", "--key", "absent", "--partitions", 3)
    assert (nothing.code, nothing.out) == (CLEAN, "")
    assert "another partitioner" in nothing.err.splitlines()[1]
    for argv, hint in (
        (["--key", "a", "--partitions", 2], "found t-2, expected at least 3"),
        (["--partitions", 3], "--key"),
    ):
        result = run("cat", log_dir, "t", *argv)
        assert (result.code, hint in result.err) == (2, True), result.err


@pytest.mark.parametrize("here", [(0, 1, 2), (0, 2), (0, 1), (1, 2), (0,), (2,)])
def test_no_record_of_a_key_is_missed(here: tuple[int, ...], run: Run, log_dir: Path, tmp_path: Path) -> None:
    """The other partitions may lie on another disk."""
    for number in here:
        (tmp_path / f"t-{number}").symlink_to(log_dir / f"t-{number}", target_is_directory=True)
    for key in KEYS:
        argv = ("cat", tmp_path, "t", "--key", f"hex:{key.hex()}", "--json")
        result = run(*argv)
        wanted = [(number, it.offset) for number in here for it in records(log_dir, number) if it.key == key]
        assert [(entry["partition"], entry["offset"]) for entry in map(json.loads, result.lines)] == wanted
        assert result.err == ""
        home = partition_for_key(key, PARTITIONS)
        result = run(*argv, "--partitions", PARTITIONS)
        assert (f"t-{home} not in this directory" in result.err) == (home not in here)
        assert {json.loads(line)["partition"] for line in result.lines} <= {home}


def test_ways_to_name_a_topic(run: Run, log_dir: Path) -> None:
    named = run("cat", log_dir, "t", "-f", "%t-%p %o;")
    assert named.code == CLEAN
    assert named.out.count(";") == sum(len(records(log_dir, number)) for number in range(PARTITIONS))
    for argv in ([log_dir, "--topic", "t"], [log_dir / "t"], [log_dir], [f"{log_dir}/t/"]):
        assert run("cat", *argv, "-f", "%t-%p %o;").out == named.out
    assert run("cat", log_dir / "t-1", "-n", 1).out == run("cat", log_dir, "t-1", "-n", 1).out


def test_kcats_format(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-7") as log:
        log.append(b"va%lue", key=b"\xff", headers=[("a", b"1"), ("b", None), ("c", b"")], timestamp=START_MS)
        log.append(None, timestamp=-1)
        log.append(b"", key=b"")

    def formatted(template: str) -> bytes:
        result = run("cat", tmp_path, "-f", template)
        assert result.code == CLEAN, result.err
        return result.octets

    assert formatted("%t %p %o %k %K %S %T|%s|%h\\n") == (
        b"t 7 0 \xff 1 6 1700000000000|va%lue|a=1,b=NULL,c=\nt 7 1  -1 -1 "
        + re.search(rb"t 7 1  -1 -1 (-?\d+)", formatted("%t %p %o %k %K %S %T\\n"))[1]  # type: ignore[index]
        + b"||\n"
        + formatted("%t %p %o %k %K %S %T||\\n").splitlines()[2]
        + b"\n"
    )
    assert formatted("%R") == b"\0\0\0\6\xff\xff\xff\xff\0\0\0\0"
    assert (
        formatted("%%\\t\\r\\\\\\q\\x41\\x0a;\\101;\\0;\\0101;\\65;")
        == b"%\t\r\\qA\ne\x00;".replace(b"e\x00;", b";e;\x00;A;A;") * 3
    )


def test_json_has_pythons_names_or_kcats(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"message.timestamp.type": "LogAppendTime"}) as log:
        log.append(b"1")
    with kafkalog.open_log(tmp_path, "u-0") as log:
        log.append(b"\xff", key=b"k", headers=[("h", b"v")], timestamp=START_MS)
    (line,) = run("cat", tmp_path, "u-0", "--json").lines
    assert line == (
        '{"topic":"u","partition":0,"offset":0,"timestamp":1700000000000,"timestamp_type":0,"key":"k",'
        '"value_base64":"/w==","headers":[{"key":"h","value":"v"}]}'
    )
    assert json.loads(run("cat", tmp_path, "t-0", "--json").out)["timestamp_type"] == 1
    assert run("append", tmp_path, "u-0", "--json", stdin=line.encode()).code == CLEAN
    (line,) = run("cat", tmp_path, "u-0", "-f", "kcat", "-n", "1").lines
    assert line == (
        '{"topic":"u","partition":0,"offset":0,"tstype":"create","ts":1700000000000,"broker":-1,'
        '"headers":[{"key":"h","value":"v"}],"key":"k","payload_base64":"/w=="}'
    )
    assert json.loads(run("cat", tmp_path, "t-0", "-f", "kcat").out)["tstype"] == "logappend"
    assert run("append", tmp_path, "u-0", "--json", stdin=line.encode()).code == CLEAN


@pytest.mark.parametrize("command", [["--key", "k0"], ["--grep", "v"], ["--last", "500"], ["--header", "trace"], []])
def test_damage_is_said(run: Run, log_dir: Path, tmp_path: Path, command: list[str]) -> None:
    """Prints the records before it (after it, from the end) and the place, for any request."""
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0", config={"index.interval.bytes": "100"}) as log:
        for n in range(3000):
            log.append(b"v%d" % n, key=b"k0", headers=[("trace", b"1")])
    path = root / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    size = len(data) // 3000
    data[2700 * size - 3] ^= 1
    path.write_bytes(data)
    result = run("cat", root, "t-0", "-f", "%o\\n", *command)
    assert result.code == FINDINGS
    assert f"{path} at byte " in result.err
    assert "a bad CRC" in result.err
    assert "--skip-damage continues after it" in result.err
    found = [int(line) for line in result.lines]
    assert found == sorted(found)
    if "--last" in command:
        assert found == [] or found[-1] == 2999
    else:
        assert found == list(range(found[-1] + 1))
        assert 2600 < found[-1] < 2700


def test_a_directory_of_real_kafkas(run: Run, tmp_path: Path) -> None:
    root = of_kafka("txn_interleaved_roll", tmp_path)
    everything = [json.loads(line) for line in run("cat", root, "--json").lines]
    assert len(everything) == 15
    committed = run("cat", root, "foo-0", "--json", "--committed").lines
    assert 0 < len(committed) < 15
    key = everything[4]["key"]
    found = run("cat", root, "foo-0", "--key", key, "--json")
    assert [json.loads(line) for line in found.lines] == [entry for entry in everything if entry["key"] == key]
    assert run("cat", root, "--json", "--last", 4).lines == run("cat", root, "--json").lines[-4:]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--key", "hex:zz"], "hex"),
        (["--key", "base64:?"], "base64"),
        (["--grep", "("], "'(' is not a regular expression: missing )"),
        (["--grep", "(?=x)"], "without look-around"),
        (["--header", "=x"], "has no name"),
        (["--last", "-1"], "-1"),
        (["--last", "1", "-n", "1"], "both --last and --limit"),
        (["--from", "2026-13-01"], "neither an offset nor a time"),
        (["--from", "@x"], "is not a time"),
        (["--from", "99999999999999999999"], "is not an offset"),
        (["--from", "9", "--until", "8"], "is after"),
        (["-f", "%"], "unknown %"),
        (["--topic", "tt"], "did you mean t?"),
        (["--from", "20261120"], "after the end of t-0 at offset"),
        (["--from", "20261120"], "write --from 2026-11-20 for a day"),
        (["--until", "20261120"], "write --until 2026-11-20 for a day"),
        (["--from", "5", "--until", "20240229"], "write --until 2024-02-29 for a day"),
        (["--from", "20230229"], "is out of range: the log has [0, "),  # no day, so its offset alone is wrong
        (["--topic", "t", "--from", "20261120"], "the ends of all 3 partitions"),
        (["--topic", "t", "--from", "5000"], "after the ends of all 3 partitions"),
    ],
)
def test_mistakes_are_one_line(run: Run, log_dir: Path, argv: list[str], text: str) -> None:
    result = run("cat", log_dir, *([] if "--topic" in argv else ["t-0"]), *argv)
    assert result.code == USAGE
    (line,) = result.err.splitlines()
    assert line.startswith("kafkalog: ")
    assert text in line


@pytest.mark.parametrize("command", [["export", "--to", "{to}"], ["latest"], ["history", "k1"]])
@pytest.mark.parametrize("option", ["--from", "--until"])
def test_digits_of_a_day_are_refused_by_each_command(
    run: Run, log_dir: Path, tmp_path: Path, command: list[str], option: str
) -> None:
    command = [each.format(to=tmp_path / "out.jsonl") for each in command]
    result = run(*command, log_dir, option, "20261120")
    assert (result.code, f"write {option} 2026-11-20 for a day" in result.err) == (USAGE, True)
    assert not list(tmp_path.iterdir())


def test_digits_of_a_day_are_an_offset_where_one_partition_has_it(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"first")
    folder = tmp_path / "t-1"
    folder.mkdir()
    batch = build_batch([(START_MS, None, b"far", ())], base_offset=20261120)
    (folder / "00000000000020261120.log").write_bytes(batch)
    assert run("cat", tmp_path, "t", "--from", "20261120").out == "far\n"
    assert run("cat", tmp_path, "t", "--until", "20261121").out == "first\nfar\n"
    assert run("cat", tmp_path, "t-0", "--until", "20261121").code == USAGE


def test_a_bad_pattern_is_refused_at_the_door() -> None:
    with pytest.raises(IllegalArgumentException, match="not a regular expression"):
        Match(patterns=["["])
