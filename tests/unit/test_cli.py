"""The command line: data on stdout, one line of error on stderr, exit codes 0 clean, 1 findings, 2 usage, 3 I/O."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import COMMANDS, invoke
from kafkalog.cli.console import Progress, color_allowed
from kafkalog.engine.format.group_records import CommittedOffset, OffsetKey, encode_offset_commit
from tests.client_transaction import client_transaction

START_MS = 1_700_000_000_000
LOG = "00000000000000000000.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    root = str(tmp_path / "logs")
    with kafkalog.open_log(root, "t-0", config={"internal.segment.bytes": "660", "index.interval.bytes": "100"}) as log:
        for n in range(12):
            log.append(b"value %d" % n + b"." * 80, key=b"k%d" % n, headers=[("h", b"\xff")], timestamp=START_MS + n)
    with kafkalog.open_log(root, "u-1", compression="zstd") as log:
        with client_transaction(log, "x") as txn:
            txn.append(b"\xff\x00")
        txn.begin()
        txn.append(b"aborted")
        txn.abort()
    return root


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.lines = out.splitlines()


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*argv: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = invoke(argv)
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return call


def test_help_lists_the_commands(run: Any) -> None:
    result = run("--help")
    assert (result.code, result.err) == (0, "")
    assert "Usage: kafkalog" in result.out
    assert set(COMMANDS) <= {line.split()[0] for line in result.lines if line.startswith("  ")}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_ends_with_an_example(run: Any, name: str) -> None:
    """Which is one line as it would be typed, of options that the command has."""
    for flag in ("--help", "-h"):
        result = run(name, flag)
        assert (result.code, result.err) == (0, "")
        assert f"Usage: kafkalog {name}" in result.out
        examples = result.out.partition("For example:\n")[2].splitlines()
        assert examples
        for line in examples:
            words = line.split()
            assert words[:2] == ["kafkalog", name]
            own = name == "tier" or words[2] == "abort"  # commands with special options
            shown = run(name, words[2], flag).out if own else result.out
            for word in words:
                assert not word.startswith("--") or f"{word} " in shown.replace(",", " ").partition("For exa")[0]


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for value, wanted in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        assert color_allowed(Terminal()) is wanted
        assert not color_allowed(io.StringIO())


def test_cat(run: Any, log_dir: str) -> None:
    assert run("cat", log_dir, "t-0", "--from", "10", "-f", "%o %k %T %t-%p\\n").lines == [
        f"10 k10 {START_MS + 10} t-0",
        f"11 k11 {START_MS + 11} t-0",
    ]
    by_time = run("cat", log_dir, "t", "--from", f"@{START_MS + 3}", "--until", "2023-11-14T22:13:20.005Z", "-f", "%o ")
    assert by_time.out == "3 4 "
    (record,) = (json.loads(line) for line in run("cat", log_dir, "u-1", "--json", "--committed").lines)
    assert (record["offset"], record["value_base64"], record["key"]) == (0, "/wA=", None)
    assert [json.loads(line)["offset"] for line in run("cat", log_dir, "u-1", "--json").lines] == [0, 2]
    assert len(run("cat", log_dir, "t-0", "-n", "3").lines) == 3
    header = json.loads(run("cat", log_dir, "t-0", "-n", "1", "--json").out)["headers"]
    assert header == [{"key": "h", "value_base64": "/w=="}]


def test_append_takes_what_cat_prints(run: Any, log_dir: str, tmp_path: Path) -> None:
    first = run("cat", log_dir, "t-0", "--json").out
    copy = str(tmp_path / "copy")
    result = run("append", copy, "t-0", "--create", "--json", "--compression", "lz4", stdin=first.encode())
    assert (result.code, json.loads(result.out)["records"]) == (0, 12)
    assert run("cat", copy, "t-0", "--json").out == first
    assert run("append", copy, "t-0", "-K", ":", stdin=b"a:b\nc").lines == ["t-0: 2 records at offsets 12 to 13"]
    assert run("cat", copy, "t-0", "--from", "12", "-f", "%k=%s;").out == "a=b;=c;"


def test_describe(run: Any, log_dir: str) -> None:
    result = run("describe", log_dir)
    assert result.lines[1].split()[:4] == ["t-0", "0", "12", "3"]
    t, u = (json.loads(line) for line in run("describe", log_dir, "--json").lines)
    assert [segment["records"] for segment in t["segments"]] == [4, 4, 4]
    assert (u["logEndOffset"], u["segments"][0]["codecs"]) == (4, {"none": 2, "zstd": 2})


def test_verify_is_clean_and_finds_each_kind_of_damage(run: Any, log_dir: str) -> None:
    for deep in ([], ["--deep"]):
        result = run("verify", log_dir, *deep)
        assert (result.code, result.err) == (0, "")
        assert result.lines == [result.out.strip()]
        assert result.out.startswith("clean: 2 partitions, 4 segments, 16 batches, 16 records")
    path = Path(log_dir, "t-0", LOG)
    whole = path.read_bytes()
    size = len(whole) // 4

    def damaged(at: int, value: int) -> tuple[int, list[dict[str, Any]]]:
        data = bytearray(whole)
        data[at] ^= value
        path.write_bytes(data)
        result = run("verify", log_dir, "t-0", "--json")
        path.write_bytes(whole)
        *told, summary = (json.loads(line) for line in result.lines)
        findings = [each for each in told if each["kind"] == "finding"]
        assert summary["findings"] == len(findings)
        return result.code, findings

    for at in (size + 70, size + 17, size + 9, size + 11, size + 16, size + 7, size + 22):
        code, findings = damaged(at, 1)
        log_findings = [finding for finding in findings if finding["path"] == str(path)]
        assert code == 1, at
        assert log_findings, at
        assert log_findings[0]["position"] == size, (at, log_findings)
        assert log_findings[0]["length"] == size, (at, log_findings)
    path.write_bytes(whole[:-5])
    assert "ends after the end of the file" in run("verify", log_dir, "t-0").out
    path.write_bytes(whole)
    index = Path(log_dir, "t-0", "00000000000000000000.index")
    entries = bytearray(index.read_bytes())
    entries[7] ^= 1
    index.write_bytes(entries)
    result = run("verify", log_dir)
    assert result.code == 1
    assert "names no batch of the log" in result.out
    index.unlink()
    assert "missing" in run("verify", log_dir).out
    Path(log_dir, "recovery-point-offset-checkpoint").write_text("0\nx\n")
    assert "recovery-point-offset-checkpoint" in run("verify", log_dir).out


def test_dump_prints_kafkas_lines(run: Any, log_dir: str) -> None:
    path = f"{log_dir}/t-0/{LOG}"
    lines = run("dump", "--files", path, "--print-data-log").lines
    assert lines[:2] == [f"Dumping {path}", "Log starting offset: 0"]
    assert lines[2].startswith(
        "baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: {START_MS} size: 163 magic: 2 compresscodec: none crc: "
    )
    assert lines[2].endswith(" isvalid: true")
    assert lines[3] == (
        f"| offset: 0 CreateTime: {START_MS} keySize: 2 valueSize: 87 sequence: -1 headerKeys: [h] key: k0 "
        f"payload: value 0{'.' * 80}"
    )
    index = run("dump", f"{log_dir}/t-0/00000000000000000000.index").lines
    assert index[1] == "offset: 1 position: 163"
    times = run("dump", f"{log_dir}/t-0/00000000000000000000.timeindex")
    assert (times.code, times.lines[1]) == (0, f"timestamp: {START_MS + 1} offset: 1")
    txn = run("dump", "--deep-iteration", f"{log_dir}/u-1/{LOG}", f"{log_dir}/u-1/{LOG[:-4]}.txnindex").lines
    assert any(line.endswith("headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 0") for line in txn)
    assert txn[-1].startswith("version: 0 producerId: ")
    snapshot = run("dump", f"{log_dir}/u-1/00000000000000000004.snapshot")
    assert "currentTxnFirstOffset: OptionalLong.empty" in snapshot.out
    assert run("dump", f"{log_dir}/recovery-point-offset-checkpoint").lines[1:3] == ["0", "2"]
    for line in run("dump", "--json", "--print-data-log", path).lines:
        json.loads(line)


def test_dump_decodes_internal_topics(run: Any, tmp_path: Path) -> None:
    key, value = encode_offset_commit(OffsetKey("g", "t", 0), CommittedOffset(42, 5, "", START_MS))
    with kafkalog.open_log(tmp_path, "__consumer_offsets-0") as log:
        log.append_many(
            [(value, key, (), START_MS), (None, key, (), START_MS), (b"", b"\0\x09", (), START_MS), (b"v", None, (), 1)]
        )
    path = f"{tmp_path}/__consumer_offsets-0/{LOG}"
    result = run("dump", "--offsets-decoder", path)
    shown = '{"type":"1","data":{"group":"g","topic":"t","partition":0}}'
    head = f"| offset: 0 CreateTime: {START_MS} keySize: 12 valueSize: 24 sequence: -1 headerKeys: []"
    payload = '{"version":"4","data":{"offset":42,"leaderEpoch":5,"metadata":"","commitTimestamp":1700000000000}}'
    assert result.lines[3] == f"{head} key: {shown} payload: {payload}"
    assert result.lines[4].endswith(f"key: {shown} payload: <DELETE>")
    assert result.lines[5].endswith("headerKeys: [] key: Unknown record type 9 at offset 2, skipping.")
    assert result.lines[6].endswith("sequence: -1 headerKeys: []")
    assert "(message had a missing key)" in result.err
    assert result.code == 1  # for the missing key
    bare = run("dump", "--offsets-decoder", "--skip-record-metadata", "--print-data-log", path)
    assert bare.lines[3:6] == [
        f"| key: {shown} payload: {payload}",
        f"| key: {shown} payload: <DELETE>",
        "| key: Unknown record type 9 at offset 2, skipping.",
    ]
    values = [json.loads(line) for line in run("dump", "--offsets-decoder", "--json", path).lines[3:]]
    assert (values[0]["key"], values[0]["payload"]) == (json.loads(shown), json.loads(payload))
    assert values[1]["payload"] is None
    assert values[2]["error"] == "Unknown record type 9 at offset 2, skipping."
    assert run("dump", "--transaction-log-decoder", path).code == 1  # the wrong topic's


def test_dump_names_the_decoder_classes_that_it_has(run: Any, log_dir: str) -> None:
    path = f"{log_dir}/t-0/{LOG}"
    plain = run("dump", "--print-data-log", path)
    assert run("dump", "--key-decoder-class", "--value-decoder-class", "--files", path).out == plain.out
    result = run("dump", "--value-decoder-class", "com.example.Mine", path)
    assert result.code == 2
    assert "com.example.Mine is a Java class, which kafkalog does not run; expected one of org.apache" in result.err
    numbers = run("dump", "--value-decoder-class", "org.apache.kafka.tools.api.LongDecoder", "--json", path)
    assert json.loads(numbers.lines[3])["payload"] == int.from_bytes(b"value 0.", "big")
    short = run("dump", "--key-decoder-class", "org.apache.kafka.tools.api.IntegerDecoder", path)
    assert short.code == 1
    assert "the key at offset 0 has 2 bytes, org.apache.kafka.tools.api.IntegerDecoder needs 4" in short.err


def test_dump_tells_damage(run: Any, log_dir: str) -> None:
    path = Path(log_dir, "t-0", LOG)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data[:-5])
    result = run("dump", str(path))
    assert result.code == 1
    assert result.lines[2].endswith("isvalid: false")
    assert result.lines[-1] == f"Found 158 invalid bytes at the end of {LOG}"


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["verify", "{dir}/nowhere"], 2, "not found, expected a Kafka log directory"),
        (["append", "{dir}/t-0", "t-0"], 2, "expected the directory above it"),
        (["verify", "{dir}/t-0/" + LOG], 2, "found a file"),
        (["verify", "{empty}"], 2, "found no partitions"),
        (["cat", "{dir}", "tt-0"], 2, "did you mean t-0?"),
        (["cat", "{dir}", "t-0", "--from", "99"], 2, "offset 99 of t-0 is out of range"),
        (["cat", "{dir}", "t-0", "--from", "yesterday"], 2, "neither an offset nor a time"),
        (["cat", "{dir}", "t-0", "-f", "%q"], 2, "unknown %q"),
        (["cat", "{dir}", "t-0", "-n", "-1"], 2, "-1"),
        (["append", "{dir}", "t-0", "--compression", "brotli"], 2, "unknown codec 'brotli'"),
        (["append", "{dir}", "t-9"], 2, "did you mean t-0?; --create creates it"),
        (["append", "{dir}", "t-0", "-X", "segment.bytes=x"], 2, "segment.bytes"),
        (["append", "{dir}", "t-0", "-X", "segment.byte=5"], 2, "segment.bytes"),
        (["dump", "{dir}/nothing.log"], 2, "not found"),
        (["dump", "{dir}/t-0"], 2, "found a directory"),
        (["dump"], 2, "no file given"),
        (["frobnicate"], 2, "no command 'frobnicate'"),
        (["verify", "{dir}", "--what"], 2, "--what"),
    ],
)
def test_errors_are_one_line(run: Any, log_dir: str, tmp_path: Path, argv: list[str], code: int, text: str) -> None:
    (tmp_path / "empty").mkdir(exist_ok=True)
    result = run(*(arg.replace("{dir}", log_dir).replace("{empty}", str(tmp_path / "empty")) for arg in argv))
    assert result.code == code, result.err
    (line,) = result.err.splitlines()
    assert line.startswith("kafkalog: ")
    assert text in line


@pytest.mark.parametrize("command", ["verify", "describe", "cat", "recover", "reindex"])
def test_a_partition_folder_stands_for_its_partition(run: Any, log_dir: str, command: str) -> None:
    named = run(command, log_dir, "t-0")
    assert named.code == 0, named.err
    assert run(command, str(Path(log_dir) / "t-0")).out == named.out


def test_progress_in_lines(run: Any, log_dir: str, tmp_path: Path) -> None:
    for command in (
        ["verify", log_dir],
        ["recover", log_dir, "--from-start"],
        ["salvage", log_dir, str(tmp_path / "saved")],
        ["reindex", log_dir],
    ):
        plain = run(*command, "--json")
        assert plain.err == ""
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        result = run(*command, "--json", "--progress")
        assert result.out == plain.out
        line = result.err.splitlines()[-1]
        done, total = re.findall(r": ([\d.]+ \w+) of ([\d.]+ \w+), [\d.]+ \w+/s, 0 s left$", line)[0]
        assert done == total, line
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ticks = iter(range(1000))
    with Progress(100 << 20, "verified", clock=lambda: float(next(ticks))) as bar:
        for _ in range(10):
            bar.advance(9 << 20)
    shown = terminal.getvalue()
    assert "verified" in shown
    assert "/100.0 MiB" in shown
    assert "\x1b[" in shown
    with Progress(10, "verified") as bar:  # done before one looks
        bar.advance(10)
    assert terminal.getvalue() == shown


REFUSED_LINES = [
    ('{"a":1}', "unknown field 'a'"),
    ('{"payload":"x","a":1}', "unknown field 'a'"),
    ("{}", "found no field, expected one of value"),
    ('{"key":"k"}', "found key, expected one of value"),
    ('{"payload":"x","payload":"y"}', "'payload' occurs twice"),
    ('{"payload":"x","value":"y"}', "found value and payload, expected one of"),
    ('{"payload":"x","payload_base64":"eA=="}', "found payload and payload_base64"),
    ('{"payload":"x","key":"a","key_base64":"eA=="}', "found key and key_base64"),
    ('{"payload_base64":"?"}', "payload_base64 is not base64"),
    ('{"payload_base64":null}', "payload_base64 is not base64"),
    ('{"payload_base64":5}', "payload_base64 is not base64"),
    ('{"payload":"\\ud800"}', "UTF-8"),
    ('{"payload":NaN}', "NaN is not a number in JSON"),
    ('{"payload":' + "[" * 100_000, "JSON"),
    ('{"payload":"x","ts":1.5}', "ts is 1.5"),
    ('{"payload":"x","ts":true}', "ts is True"),
    ('{"payload":"x","ts":"now"}', "ts: 'now' is not a time"),
    ('{"payload":"x","ts":-2}', "found -2"),
    ('{"payload":"x","ts":99999999999999999999}', "does not fit into 64 bits"),
    ('{"payload":"x","headers":{"a":"b"}}', "expected a list of objects"),
    ('{"payload":"x","headers":["a"]}', "headers: found text, expected an object"),
    ('{"payload":"x","headers":[{"key":"a"}]}', "'a' has no value"),
    ('{"payload":"x","headers":[{"value":"a"}]}', "key is None, expected text"),
    ('{"payload":"x","headers":[{"key":5,"value":"a"}]}', "key is 5, expected text"),
    ('{"payload":"x","headers":[{"key":"a","value":"b","more":1}]}', "unknown field 'more'"),
    ("[1]", "found an array, expected an object"),
    ('"text"', "found text, expected an object"),
    ("null", "found null"),
    ("not json", "not JSON"),
    ('{"payload":', "not JSON"),
    ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not UTF-8 (byte 0 is 0xff)"),
]


@pytest.mark.parametrize(("line", "what"), REFUSED_LINES)
def test_append_refuses_a_line(run: Any, log_dir: str, line: str, what: str) -> None:
    before = run("cat", log_dir, "t-0").out
    result = run("append", log_dir, "t-0", "--json", stdin=line.encode("latin-1") + b"\n")
    assert (result.code, result.out) == (2, "")
    told, refused = result.err.splitlines()
    assert told == "kafkalog: nothing was appended"
    assert refused.startswith("kafkalog: line 1 of stdin: ")
    assert what in refused
    good = b'{"payload":"first"}\n\n{"value":null,"key_base64":"/w=="}\n'
    result = run("append", log_dir, "t-0", "--json", stdin=good + line.encode("latin-1") + b'\n{"payload":"never"}\n')
    assert result.code == 2
    told, refused = result.err.splitlines()
    assert told == "kafkalog: appended before it: 2 records at offsets 12 to 13"
    assert refused.startswith("kafkalog: line 4 of stdin: ")
    assert run("cat", log_dir, "t-0").out == before + "first\n\n"


def test_append_takes_every_field_that_help_names(run: Any, log_dir: str) -> None:
    line = {
        "topic": "elsewhere",
        "partition": 9,
        "offset": 7,
        "tstype": "create",
        "ts": START_MS,
        "key": "k",
        "payload": {"any": ["json", 1]},
        "headers": [{"key": "a", "value": None}, {"key": "a", "value_base64": "/w=="}, {"key": "b", "value": 5}],
    }
    assert run("append", log_dir, "t-0", "--json", stdin=json.dumps(line).encode()).code == 0
    with kafkalog.open_log(log_dir, "t-0", read_only=True) as log:
        record = next(log.records(12))
    assert record[3:] == (12, START_MS, 0, b"k", b'{"any":["json",1]}', (("a", None), ("a", b"\xff"), ("b", b"5")))
    described = run("append", "--help").out
    for name in ("payload", "payload_base64", "value", "value_base64", "key", "key_base64", "ts", "headers", "tstype"):
        assert name in described


@pytest.mark.parametrize("line", [b"\xff\xfe", b'{"payload":"\xe9"}', b"{\0\0\0"])
def test_append_says_which_line_is_no_utf8(run: Any, log_dir: str, line: bytes) -> None:
    result = run("append", log_dir, "t-0", "--json", stdin=b'{"payload":"first"}\n' + line + b"\n")
    assert result.code == 2
    assert "line 2 of stdin: not " in result.err
    assert "utf-" not in result.err
    assert ("not UTF-8 (byte " in result.err) == (line[:1] != b"{" or b"\xe9" in line)
    assert run("append", log_dir, "t-0", "--json", stdin=b'\xef\xbb\xbf{"payload":"with a mark"}\n').code == 0


def test_append_needs_a_separator_that_is_one(run: Any, log_dir: str) -> None:
    result = run("append", log_dir, "t-0", "-K", "", stdin=b"a\n")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--key-separator is empty" in result.err


@pytest.mark.parametrize("target", ["{dir}/t-0/x", "{dir}/x", "{dir}", "{dir}/link/x", "{dir}/.."])
def test_salvage_writes_nothing_into_its_source(run: Any, log_dir: str, target: str, tmp_path: Path) -> None:
    Path(log_dir, "link").symlink_to(log_dir)
    before = sorted(map(str, Path(log_dir).rglob("*")))
    result = run("salvage", log_dir, target.format(dir=log_dir))
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "expected a directory outside of it" in result.err
    assert sorted(map(str, Path(log_dir).rglob("*"))) == before


def test_append_tells_what_was_appended_before_any_error(run: Any, log_dir: str) -> None:
    lines = b"short\n" * 10_001 + b"x" * 2_000_000 + b"\n"
    result = run("append", log_dir, "t-0", stdin=lines)
    assert result.code == 2
    assert "appended before it: 10001 records at offsets 12 to 10012" in result.err
    assert "-X max.message.bytes=" in result.err


@pytest.mark.parametrize("number", ["2.50", "1e2", "1e400", "-0", "0.12345678901234567890", "9" * 5000])
def test_append_keeps_numbers_as_they_were_written(number: str, run: Any, tmp_path: Path) -> None:
    line = b'{"payload":{"n":[%s]}}' % number.encode()
    assert run("append", str(tmp_path / "logs"), "t-0", "--create", "--json", stdin=line).code == 0
    with kafkalog.open_log(tmp_path / "logs", "t-0", read_only=True) as log:
        assert [record.value for record in log] == [b'{"n":[%s]}' % number.encode()]


def test_only_the_command_line_needs_click_and_rich() -> None:
    package = Path(kafkalog.__file__).parent
    named = re.compile(r"^\s*(?:import|from)\s+(?:click|rich|kafkalog\.cli)\b", re.MULTILINE)
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if named.search(path.read_text())}
    assert {each for each in found if not each.startswith("cli/")} == {"__main__.py"}
