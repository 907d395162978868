"""The names in the output of commands with --json belong to one family: each command runs with and without findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import COMMANDS
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.backup import backup
from tests.client_transaction import client_transaction
from tests.unit.cli_kit import Run, of_kafka, run
from tests.unit.cursor_kit import commit, store_home
from tests.unit.tier_kit import tiered

__all__ = ["run"]

CAMEL = re.compile(r"[a-z]+([A-Z][a-z]*)*(_base64)?")
RECORD = {"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"}  # as in Python
KAFKAS = {"compresscodec", "isvalid"}  # kafka-dump-log writes them so

# Command lines; {clean}, {damaged} and {kafka} are log directories, {new} is a name that nothing has yet.
LINES = {
    "append": ["append {clean} t-0 --json", "append {clean} t-0 --create --json"],
    "backup": ["backup {clean} --to {new} --json", "backup {damaged} --to {new} --json"],
    "cat": ["cat {clean} t-0 --json", "cat {kafka} --json", "cat {damaged} t-0 --json --key k"],
    "checkpoint": [
        "checkpoint {clean} --json",
        "checkpoint set {clean}/recovery-point-offset-checkpoint t-0 1 --json",
    ],
    "compact": [
        "compact {clean} t-0 -X cleanup.policy=compact --roll --json",
        "compact {clean} --json",
        "compact {damaged} t -X cleanup.policy=compact --json",
    ],
    "compare": [
        "compare {clean} {clean} --all --json",
        "compare {clean} {damaged} --json",
        "compare {clean} {damaged} --skip-damage --json",
        "compare {clean} {other} --json",
    ],
    "cursors": [
        "cursors {store} --json",
        "cursors {store} --json --group billing --topic t --to-offset 9",
        "cursors {store} --json --group billing --delete",
    ],
    "delete-records": ["delete-records {clean}/t-0 --before 3 --json"],
    "describe": ["describe {clean} --json", "describe {damaged} --json"],
    "du": ["du {clean} --json"],
    "dump": [
        "dump {clean}/t-0/00000000000000000000.log --print-data-log --json",
        "dump {clean}/t-0/{log}.index --json",
    ],
    "explain": ["explain {clean}/t-0 -X retention.ms=1000 --json", "explain {both} --json"],
    "export": ["export {clean} --to {new} --json", "export {damaged} --to {new} --skip-damage --json"],
    "history": ["history k {clean} --json", "history k {damaged} --json", "history hex:ff {clean} t-0 --json"],
    "latest": ["latest {clean} --json", "latest {damaged} --json", "latest {kafka} --json --uncommitted"],
    "log-dirs": ["log-dirs {clean}"],
    "move": ["move {clean}/t-0 {other} --json"],
    "recover": ["recover {clean} --json", "recover {damaged} --from-start --json"],
    "reindex": ["reindex {clean} --json --all", "reindex {damaged} --json"],
    "report": ["report {clean} --json", "report {damaged} --deep --json", "report {kafka} --json"],
    "restore": ["restore {saved} {new} --json", "restore {saved} {new} t --json --yes"],
    "retain": ["retain {clean} -X retention.ms=1 --json"],
    "salvage": ["salvage {clean} {new} --json", "salvage {damaged} {new} --json"],
    "tail": ["tail {clean} t-0 --no-follow --json", "tail {kafka} --no-follow --json -n 3"],
    "tier": [
        "tier list {tiered} --remote {tier} --json",
        "tier verify {tiered} --remote {tier} --json",
        "tier copy {tiered} --remote {tier} --json",
        "tier copy {tiered} --remote {tier} --json --yes",
        "tier restore {tier} {new} --json",
        "tier orphans {tier} --json",
    ],
    "topics": ["topics {clean} --json", "topics {damaged} --json"],
    "transactions": [
        "transactions {clean} --json",
        "transactions {damaged} --json",
        "transactions {kafka} --json",
        "transactions abort {kafka} foo-0 --producer-id 9 --json",
    ],
    "verify": ["verify {clean} --json", "verify {damaged} --json --deep"],
}


def names(value: Any) -> Iterator[str]:
    """Every name in a JSON value; the names in `codecs`, `config`, `files`, `skipped` and `sources` are others'."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from () if name in ("codecs", "config", "files", "skipped", "sources") else names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    roots = {"clean": tmp_path / "clean", "damaged": tmp_path / "damaged"}
    config = {"internal.segment.bytes": "700", "index.interval.bytes": "100"}
    for root in roots.values():
        with kafkalog.open_log(root, "t-0", config=config) as log:
            for n in range(12):
                log.append(b"value %d" % n + b"." * 60, key=b"k", headers=[("h", b"\xff")])
            with client_transaction(log, "x") as txn:
                txn.append(b"\xff\x00", key=b"\xff")
            txn.begin()
            txn.append(b"aborted")
            txn.abort()
    first, second, *_ = sorted((roots["damaged"] / "t-0").glob("*.log"))
    for path in (first, second):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    next((roots["damaged"] / "t-0").glob("*.index")).write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 9]))
    kafkalog.open_log(tmp_path / "other", "u-0").close()
    for name in ("u-0", "u-1"):
        kafkalog.open_log(tmp_path / "both", name).close()
    with store_home(tmp_path / "store") as home:
        home.create_topic("t", 2, None, None, exist_ok=False)
        commit(home, "billing", {TopicPartition("t", 0): 0, TopicPartition("gone", 0): 1})
    tiered(tmp_path / "tiered", tmp_path / "tier")
    next((tmp_path / "tier").rglob("*.log")).unlink()
    backup(roots["damaged"], tmp_path / "saved")
    return roots | {
        "saved": tmp_path / "saved",
        "tiered": tmp_path / "tiered",
        "tier": tmp_path / "tier",
        "store": tmp_path / "store",
        "other": tmp_path / "other",
        "both": tmp_path / "both",
        "kafka": of_kafka("recover_torn_tail", tmp_path / "kafka"),
        "log": Path(f"{0:020}"),
    }


def test_every_command_is_here() -> None:
    assert set(LINES) == set(COMMANDS) - {"completion", "serve", "spark", "ui"}  # tests/spark has its own


@pytest.mark.parametrize("command", LINES)
def test_names_are_of_one_family(run: Run, places: dict[str, Path], tmp_path: Path, command: str) -> None:
    kinds = set()
    for number, line in enumerate(LINES[command]):
        argv = line.format(**places, new=tmp_path / f"new{number}").split()
        result = run(*argv, stdin=b'{"value":"1"}\n')
        assert result.code in (0, 1), result.err
        assert result.lines, line
        for text in result.lines:
            entry = json.loads(text)
            assert isinstance(entry, dict)
            if command in ("cat", "latest", "history", "tail"):
                own = {"state", "tombstone"} if command == "history" else set()
                assert own <= set(entry)
                assert {name.removesuffix("_base64") for name in entry} <= RECORD | own
                assert {name.removesuffix("_base64") for name in names(entry)} <= RECORD | own | {"name"}
                continue
            if command == "log-dirs":  # kafka-log-dirs' own object
                assert set(entry) == {"version", "brokers"}
                continue
            kinds.add(entry["kind"])
            odd = {name for name in names(entry) if not CAMEL.fullmatch(name)} - KAFKAS
            assert not odd, (line, odd)
            if "partition" in entry:  # an entry about one partition has the same two names
                assert isinstance(entry["partition"], int)
                assert isinstance(entry["topic"], str)
    wanted = {
        "append": {"appended"},
        "backup": {"finding", "summary"},
        "cat": set(),
        "checkpoint": {"partition", "directory", "change"},
        "compact": {"partition", "summary"},
        "compare": {"partition", "lost", "summary"},
        "cursors": {"group", "cursor", "change", "deletedGroup"},
        "delete-records": {"partition"},
        "describe": {"partition"},
        "du": {"topic", "fileKind", "age", "summary"},
        "explain": {"segment", "summary", "topic"},
        "export": {"file", "lost", "summary"},
        "history": set(),
        "latest": set(),
        "log-dirs": set(),
        "move": {"move"},
        "recover": {"partition", "topicLoss", "summary"},
        "reindex": {"segment", "summary"},
        "restore": {"partition", "finding", "summary"},
        "retain": {"partition", "topic", "summary"},
        "salvage": {"lost", "topicLoss", "summary"},
        "topics": {"topic", "summary"},
        "transactions": {"partition", "abort"},
        "verify": {"finding", "topicLoss", "summary"},
    }
    assert kinds == wanted.get(command, kinds)


DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "json-lines.md").read_text()
GROUPS = {"state", "type", "protocolType", "members", "logDir", "offsetsPartition"}  # named in a sentence there


@pytest.mark.parametrize(
    ("title", "command", "kind"),
    [
        ("topicLoss: records and times lost", "verify", "topicLoss"),
        ("topicLoss: records and times lost", "salvage", "topicLoss"),
        ("topicLoss: records and times lost", "recover", "topicLoss"),
        ("topic, of explain", "explain", "topic"),
        ("topic, of retain", "retain", "topic"),
        ("group", "cursors", "group"),
        ("partition, of compare", "compare", "partition"),
        ("summary, of compare", "compare", "summary"),
    ],
)
def test_sums_have_the_documented_names(
    run: Run, places: dict[str, Path], tmp_path: Path, title: str, command: str, kind: str
) -> None:
    table = DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    documented = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    found = []
    for number, line in enumerate(LINES[command]):
        lines = run(*line.format(**places, new=tmp_path / f"new{number}").split()).lines
        found += [entry for entry in map(json.loads, lines) if entry["kind"] == kind]
    assert found
    for entry in found:
        assert set(entry) - {"kind"} - (GROUPS if command == "cursors" else set()) == set(documented)


@pytest.mark.parametrize(
    "argv", ["verify {damaged} --deep", "export {damaged} --to {new} --skip-damage", "cat {clean}"]
)
def test_data_on_stdout_notes_on_stderr(run: Run, places: dict[str, Path], tmp_path: Path, argv: str) -> None:
    """Only JSON on stdout; everything else goes elsewhere."""
    result = run(
        *argv.format(**places, new=tmp_path / "new").split(), "--json", *(["--progress"] * ("cat" not in argv))
    )
    for line in result.lines:
        json.loads(line)
    assert "cat" in argv or result.err
