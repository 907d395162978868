"""reindex: every wrong entry is reported, and a rebuilt index equals the one that the engine had written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.cli.app import invoke
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.index_entries import TXN_ENTRIES
from kafkalog.toolbox.verify import verify

INDEXES = (".index", ".timeindex", ".txnindex")
OPTIONS = ("--index-interval-bytes", "0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some segments with aborted transactions in them, across them, and one within another."""
    root = tmp_path_factory.mktemp("whole")
    config = {"internal.segment.bytes": "700", "index.interval.bytes": "0"}
    clock = ManualClock(1_700_000_000_000)
    with kafkalog.open_log(root, "t-0", config=config, clock=clock) as log:
        for n in range(6):
            clock.now_ms += 1000
            log.append_many([b"plain"] * 3)
            outer = log.transaction("outer")
            outer.begin()
            outer.append(b"o" * 60)
            with log.transaction("inner") as inner:
                inner.append(b"i")
                if n % 2:
                    inner.abort()
            if n % 3:
                outer.abort()
            else:
                outer.commit()
    assert len(list((root / "t-0").glob("*.log"))) > 3
    assert verify(root, deep=True).ok
    return root


def indexes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "t-0").iterdir() if path.suffix in INDEXES}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[dict[str, Any]]]:
    code = invoke(["reindex", "--json", *argv])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_nothing_is_wrong(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(whole)) == (0, [{"kind": "summary", "rebuilt": 0, "wrong": 0}])


def test_all_are_built_again(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    shutil.copytree(whole, root)
    before = indexes(root)
    for name in before:
        (root / "t-0" / name).unlink()
    code, told = run(capsys, str(root), *OPTIONS)
    assert code == 1
    assert not indexes(root)
    assert run(capsys, str(root), *OPTIONS, "--yes")[0] == 0
    assert {name: data for name, data in indexes(root).items() if data} == {
        name: data for name, data in before.items() if data
    }
    lacking = [finding for segment in told[:-1] for finding in segment["findings"] if "lacks" in finding["what"]]
    entries = sum(len(data) // TXN_ENTRIES.itemsize for name, data in before.items() if name.endswith(".txnindex"))
    assert len(lacking) == entries > 4
    assert verify(root, deep=True).ok
    with kafkalog.open_log(root, "t-0") as log:
        assert b"o" * 60 in {record.value for record in log.records(isolation="read_committed")}


@pytest.mark.slow
def test_each_wrong_entry_is_told(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harmless = 0
    for name, right in indexes(whole).items():
        entry_bytes = {".index": 8, ".timeindex": 12, ".txnindex": TXN_ENTRIES.itemsize}["." + name.split(".")[1]]
        for slot in range(len(right) // entry_bytes):
            for byte in {0, entry_bytes // 2, entry_bytes - 9 if entry_bytes > 12 else entry_bytes - 1}:
                root = tmp_path / "logs"
                shutil.copytree(whole, root)
                data = bytearray(right)
                data[slot * entry_bytes + byte] ^= 1
                (root / "t-0" / name).write_bytes(data)
                code, told = run(capsys, str(root), *OPTIONS, "--yes")
                assert code == 0
                if len(told) == 1:
                    # An earlier begin, in a segment before: as if compaction had been there.  Or another offset of the
                    # same batch: a search goes through all of it.
                    assert (name.split(".")[1], byte) in (("txnindex", 17), ("timeindex", 11))
                    harmless += 1
                    shutil.rmtree(root)
                    continue
                (segment, summary) = told
                assert summary["rebuilt"] == 1
                assert {Path(finding["path"]).name for finding in segment["findings"]} == {name}, (name, slot, byte)
                assert indexes(root)[name] == right, (name, slot, byte)
                shutil.rmtree(root)
    assert 0 < harmless < 15


def test_a_log_that_does_not_begin_at_its_beginning(whole: Path, tmp_path: Path) -> None:
    """The snapshot at the first segment says what was open; without it old entries are kept."""
    root = tmp_path / "logs"
    shutil.copytree(whole, root)
    before = indexes(root)
    bases = sorted(path.name.split(".")[0] for path in (root / "t-0").glob("*.log"))
    for number, base in enumerate(bases[:-1]):
        for path in (root / "t-0").glob(f"{base}.*"):
            path.unlink()
        kept = {name: data for name, data in before.items() if name.split(".")[0] in bases[number + 1 :]}
        for snapshot in (True, False):
            if not snapshot:
                (root / "t-0" / f"{bases[number + 1]}.snapshot").unlink(missing_ok=True)
            assert invoke(["reindex", str(root), *OPTIONS]) == 0, (base, snapshot)
            assert invoke(["reindex", str(root), *OPTIONS, "--all", "--yes"]) == 0
            assert indexes(root) == kept


@pytest.mark.parametrize("place", [100, 150])  # a base offset, which no CRC covers, and a record
def test_a_damaged_log_is_left_alone(
    whole: Path, tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "logs"
    shutil.copytree(whole, root)
    path = min((root / "t-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    before = indexes(root)
    code, told = run(capsys, str(root), *OPTIONS, "--yes")
    assert code == 1
    assert told[0]["damaged"]
    assert not told[0]["rebuilt"]
    assert told[-1]["wrong"] == 1
    first = path.name.split(".")[0]
    assert all(indexes(root)[name] == data for name, data in before.items() if name.startswith(first))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("place", [0, 3])
def test_entries_behind_a_damaged_batch_are_not_called_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int, is_last: bool
) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0", config={"internal.segment.bytes": "2000", "index.interval.bytes": "0"}) as log:
        for n in range(36):
            log.append(b"%d" % n * 20, timestamp=1_700_000_000_000 + n)
    path = sorted((root / "t-0").glob("*.log"))[-1 if is_last else 0]
    data = bytearray(path.read_bytes())
    positions = [header.position for header in native.headers(bytes(data))[0]]
    assert len(positions) > 5
    data[positions[place] + 70] ^= 1  # in the batch's records
    path.write_bytes(data)
    before = indexes(root)
    code, (segment, summary) = run(capsys, str(root))
    assert (code, summary["wrong"]) == (1, 1)
    assert (segment["path"], segment["damaged"], segment["findings"]) == (str(path), True, [])
    assert {Path(each.path).name for each in verify(root).findings} == {path.name}
    assert run(capsys, str(root), "--yes")[0] == 1
    assert indexes(root) == before  # they help a reader after the damage
    # A wrong entry there is reported.
    index = path.with_suffix(".index")
    content = bytearray(index.read_bytes())
    content[8 * 4 + 7] ^= 1
    index.write_bytes(content)
    _, (segment, _) = run(capsys, str(root))
    (finding,) = segment["findings"]
    assert (finding["path"], finding["position"]) == (str(index), 32)
    assert "names no batch of the log" in finding["what"]
