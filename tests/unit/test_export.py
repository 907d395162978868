"""`kafkalog export`: every format has every record, files are complete or absent, and lost records are reported."""

from __future__ import annotations

import base64
import csv
import errno
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafkalog
from kafkalog._face.selection import Selection
from kafkalog._native.codec import batches as native
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.export import BATCH_BYTES, ExportOptions, ExportReport, export
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

START_MS = 1_700_000_000_000
FORMATS = ("parquet", "arrow", "csv", "jsonl")
LOG = f"{0:020}.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    for partition in range(2):
        with kafkalog.open_log(root, f"t-{partition}", compression="lz4") as log:
            log.append_many(
                [(b"v%d" % n, None if n % 5 == 0 else b"k%d" % n, (), START_MS + n) for n in range(100 + partition)]
            )
            log.append_many([(None, b"", [("h", b"1"), ("h", None), ("i", b"")]), (b'"quoted", \n', b"x")])
            with log.transaction("x") as txn:
                txn.append("größe".encode(), key=b"txn")
            txn.begin()
            txn.append(b"aborted", key=b"txn")
            txn.abort()
    return root


def there(root: Path, partition: int, isolation: str = "read_uncommitted") -> list[Any]:
    with kafkalog.open_log(root, f"t-{partition}", read_only=True) as log:
        return list(log.records(isolation=isolation))


def load(path: Path) -> list[dict[str, Any]]:
    """Rows of any format as (key, value, ...) with bytes, times in ms and headers as pairs."""
    kind = path.suffix[1:]
    if kind in ("parquet", "arrow"):
        table = pq.read_table(path) if kind == "parquet" else pa.ipc.open_file(path).read_all()
        times = table.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        rows = table.set_column(3, "timestamp", times)
        return [
            row | {"headers": None if row["headers"] is None else [(it["key"], it["value"]) for it in row["headers"]]}
            for row in rows.to_pylist()
        ]
    if kind == "csv":
        return [_of_csv(row) for row in _csv_rows(path)]
    return [_of_json(json.loads(line)) for line in path.read_text().splitlines()]


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Python's csv does not tell an empty field from quoted nothing; Arrow's reader does."""
    import pyarrow.csv as arrow_csv

    text = dict.fromkeys(("key", "value", "timestamp", "headers"), pa.string())
    table = arrow_csv.read_csv(
        path,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=text, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )
    yield from table.to_pylist()
    with path.open(newline="") as file:
        assert len(list(csv.reader(file))) == len(table) + 1


def _ms(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _of_csv(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("key", "value"):
        row[name] = None if row[name] is None else row[name].encode()
    headers = row["headers"]
    return row | {
        "timestamp": _ms(row["timestamp"]),
        "headers": None if headers is None else _pairs(json.loads(headers)),
    }


def _of_json(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("key", "value"):
        if f"{name}_base64" in row:
            row[name] = base64.b64decode(row.pop(f"{name}_base64"))
        elif row[name] is not None:
            row[name] = row[name].encode()
    return row | {
        "timestamp": _ms(row["timestamp"]),
        "headers": None if row["headers"] is None else _pairs(row["headers"]),
    }


def _pairs(headers: list[dict[str, Any]]) -> list[tuple[str, bytes | None]]:
    return [
        (
            it["key"],
            base64.b64decode(it["value_base64"])
            if "value_base64" in it
            else None
            if it["value"] is None
            else it["value"].encode(),
        )
        for it in headers
    ]


def row_of(record: Any) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "headers": list(record.headers) or None,
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_every_record_in_every_format(run: Run, log_dir: Path, tmp_path: Path, kind: str, isolation: str) -> None:
    wanted = [row_of(record) for number in range(2) for record in there(log_dir, number, isolation)]
    committed = ["--committed"] if isolation == "read_committed" else []
    target = tmp_path / f"all.{kind}"
    result = run("export", log_dir, "t", "--to", target, "--headers", "--json", *committed)
    assert (result.code, result.err) == (CLEAN, "")
    file, summary = map(json.loads, result.lines)
    assert file == {
        "kind": "file",
        "path": str(target),
        "partitions": ["t-0", "t-1"],
        "records": len(wanted),
        "bytes": target.stat().st_size,
    }
    assert (summary["kind"], summary["records"], summary["lost"]) == ("summary", len(wanted), 0)
    assert load(target) == wanted
    folder = tmp_path / "new" / "folder"
    result = run("export", log_dir, "--to", folder, "--format", kind, "--headers", *committed)
    assert result.code == CLEAN, result.err
    assert sorted(path.name for path in folder.iterdir()) == [f"t-0.{kind}", f"t-1.{kind}"]
    assert load(folder / f"t-0.{kind}") + load(folder / f"t-1.{kind}") == wanted


def test_columns_are_those_of_read_arrow(run: Run, log_dir: Path, tmp_path: Path) -> None:
    for headers in ([], ["--headers"]):
        target = tmp_path / f"{len(headers)}.parquet"
        assert run("export", log_dir, "t-0", "--to", target, *headers).code == CLEAN
        kinds = {field.name: str(field.type) for field in pq.read_schema(target)}
        assert kinds.pop("headers", None) == ("list<element: struct<key: string, value: binary>>" if headers else None)
        assert kinds == {
            "topic": "string",
            "partition": "int32",
            "offset": "int64",
            "timestamp": "timestamp[ms, tz=UTC]",
            "timestamp_type": "int8",
            "key": "binary",
            "value": "binary",
        }


def test_bytes_that_are_no_text(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0") as log:
        log.append(b"fine", key=b"\x80", headers=[("h", b"\xff")], timestamp=0)
    for kind in ("parquet", "arrow", "jsonl"):
        assert run("export", root, "--to", tmp_path / f"a.{kind}", "--headers").code == CLEAN
        (row,) = load(tmp_path / f"a.{kind}")
        assert (row["key"], row["headers"]) == (b"\x80", [("h", b"\xff")])
    target = tmp_path / "a.csv"
    result = run("export", root, "--to", target)
    assert result.code == USAGE
    assert "the key of the record at offset 0 of t-0 is not UTF-8" in result.err
    assert "--base64" in result.err
    assert not target.exists()
    assert run("export", root, "--to", target, "--base64").code == CLEAN
    assert target.read_text().splitlines()[1] == '"t",0,0,"1970-01-01T00:00:00.000Z",0,"gA==","ZmluZQ=="'
    assert run("export", root, "--to", tmp_path / "b.jsonl", "--base64").code == CLEAN
    assert json.loads((tmp_path / "b.jsonl").read_text())["value_base64"] == "ZmluZQ=="


@pytest.mark.parametrize(
    ("codec", "kind"),
    [(None, "parquet"), ("zstd", "parquet"), ("none", "parquet"), ("lz4", "arrow"), ("zstd", "arrow")],
)
def test_codecs(run: Run, log_dir: Path, tmp_path: Path, codec: str | None, kind: str) -> None:
    target = tmp_path / f"x.{kind}"
    assert run("export", log_dir, "t", "--to", target, *(["--codec", codec] if codec else [])).code == CLEAN
    if kind == "parquet":
        names = {"none": "UNCOMPRESSED", "zstd": "ZSTD", None: "SNAPPY"}
        assert pq.ParquetFile(target).metadata.row_group(0).column(6).compression == names[codec]
    else:
        assert pa.ipc.open_file(target).read_all().num_rows == 209


def test_a_few_rows_of_each_partition_make_one_row_group(run: Run, tmp_path: Path) -> None:
    for partition in range(20):
        with kafkalog.open_log(tmp_path / "logs", f"t-{partition}") as log:
            log.append_many([(b"%d" % partition, b"k%d" % (n % 5)) for n in range(10)])
    assert run("export", str(tmp_path / "logs"), "--key", "k1", "--to", str(tmp_path / "out.parquet")).code == CLEAN
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.metadata.num_row_groups == 1
    assert file.read(["partition"])["partition"].to_pylist() == [each for each in range(20) for _ in range(2)]


def test_windows(run: Run, log_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.jsonl"
    assert run("export", log_dir, "t-0", "--to", target, "--from", "5", "--until", f"@{START_MS + 9}").code == CLEAN
    assert [json.loads(line)["offset"] for line in target.read_text().splitlines()] == [5, 6, 7, 8]
    # Each of many partitions contributes its part of the window.
    end = there(log_dir, 0)[-1].offset + 2
    report = export(
        log_dir,
        [TopicPartition("t", 0), TopicPartition("t", 1)],
        tmp_path / "y.jsonl",
        ExportOptions(format="jsonl", selection=Selection(end, end_time=START_MS * 2)),
    )
    assert report.records <= 1
    assert run("export", log_dir, "t-0", "--to", tmp_path / "z.jsonl", "--from", 99999).code == USAGE
    assert not (tmp_path / "z.jsonl").exists()


def test_nothing_is_replaced_unasked(run: Run, log_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "t-1.parquet").write_bytes(b"mine")
    result = run("export", log_dir, "t", "--to", target)
    assert result.code == USAGE
    assert f"{target / 't-1.parquet'}: the file exists already (use --force to replace it)" in result.err
    assert [path.name for path in target.iterdir()] == ["t-1.parquet"]
    assert run("export", log_dir, "t", "--to", target, "--force").code == CLEAN
    assert len(pq.read_table(target / "t-1.parquet")) == 105
    folder = tmp_path / "x.csv" / "t-0.csv"
    folder.mkdir(parents=True)
    result = run("export", log_dir, "t-0", "--to", tmp_path / "x.csv", "--format", "csv", "--force")
    assert result.code == USAGE
    assert "a directory has the file's name" in result.err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--to", "{tmp}/x.xlsx"], "unknown suffix, expected .parquet, .arrow, .csv, .jsonl"),
        (["--to", "{tmp}/x", "--format", "avro"], "unknown format 'avro'"),
        (["--to", "{tmp}/x.csv", "--codec", "zstd"], "csv does not support the compression 'zstd'"),
        (["--to", "{tmp}/x.parquet", "--codec", "brotlix"], "it supports gzip, lz4, none, snappy, zstd"),
        (["--to", "{tmp}/x.parquet", "--base64"], "parquet holds any bytes"),
        (["--to", "{tmp}/file", "--format", "csv"], "the target is an existing file"),
        ([], "--to"),
        (["--to", "{tmp}/x.csv", "--from", "soon"], "neither an offset nor a time"),
    ],
)
def test_mistakes_are_one_line(run: Run, log_dir: Path, tmp_path: Path, argv: list[str], text: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run("export", log_dir, "t-0", *(arg.replace("{tmp}", str(tmp_path)) for arg in argv))
    assert result.code == USAGE
    (line,) = result.err.splitlines()
    assert text in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "logs"]


def test_odd_times(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    config = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    with kafkalog.open_log(root, "t-0", config=config) as log:
        log.append(b"", timestamp=-1)
        log.append(b"", timestamp=253_402_300_800_000)
        log.append(b"", timestamp=(1 << 63) // 1000 - 1)
    assert run("export", root, "--to", tmp_path / "x.jsonl").code == CLEAN
    first, *others = [json.loads(line)["timestamp"] for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert others == ["@253402300800000", "@9223372036854774"]
    with kafkalog.open_log(root, "t-0", config=config) as log:
        log.append(b"", timestamp=1 << 60)
    assert run("export", root, "--to", tmp_path / "y.parquet").code == CLEAN
    assert pq.read_table(tmp_path / "y.parquet").column("timestamp").cast("int64").to_pylist()[-1] == 1 << 60
    assert first.endswith("Z")


# --- damage ---------------------------------------------------------------------------------------------------


def sized(root: Path) -> tuple[Path, int]:
    """A log of 60 batches of three records, all of one size; its first file."""
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "200"}
    with kafkalog.open_log(root, "t-0", config=config) as log:
        for n in range(60):
            log.append_many([(b"v%03d" % (3 * n + i) + b"." * 20, b"k") for i in range(3)])
    path = root / "t-0" / LOG
    return path, native.headers(path.read_bytes())[0][0].size


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_stops_it_and_leaves_nothing(run: Run, tmp_path: Path, kind: str) -> None:
    path, size = sized(tmp_path / "logs")
    flip(path, 3 * size + 70)
    target = tmp_path / f"x.{kind}"
    result = run("export", tmp_path / "logs", "--to", target, "--json")
    assert (result.code, result.out) == (FINDINGS, "")
    (line,) = result.err.splitlines()
    assert f"{path} at byte {3 * size}: a bad CRC" in line
    assert "--skip-damage" in line
    assert [file.name for file in tmp_path.iterdir()] == ["logs"]
    result = run("export", tmp_path / "logs", "--to", target, "--skip-damage", "--json")
    assert result.code == FINDINGS
    file, lost, summary = map(json.loads, result.lines)
    assert (file["records"], summary["lost"]) == (177, 1)
    assert lost["what"].startswith("a bad CRC")
    assert {name: lost[name] for name in ("kind", "path", "position", "length", "firstOffset", "lastOffset")} == {
        "kind": "lost",
        "path": str(path),
        "position": 3 * size,
        "length": size,
        "firstOffset": 9,
        "lastOffset": 11,
    }
    result = run("export", tmp_path / "logs", "--to", target, "--skip-damage", "--force")
    assert result.err.startswith(f"lost: {path}: bytes {3 * size} to {4 * size}, offsets 9 to 11: a bad CRC")


def flip(path: Path, at: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def test_records_that_do_not_decode_under_a_good_checksum(run: Run, tmp_path: Path) -> None:
    """One batch is left out, the batches after it in the same read are not."""
    path, size = sized(tmp_path / "logs")
    data = bytearray(path.read_bytes())
    at = 4 * size
    data[at + 61] = 0x7F  # the first record's length
    data[at + 17 : at + 21] = native.compute_crc(bytes(data[at : at + size])).to_bytes(4, "big")
    path.write_bytes(data)
    assert run("export", tmp_path / "logs", "--to", tmp_path / "x.jsonl").code in (FINDINGS, USAGE)
    result = run("export", tmp_path / "logs", "--to", tmp_path / "x.jsonl", "--skip-damage", "--json")
    assert result.code == FINDINGS
    _, lost, summary = map(json.loads, result.lines)
    assert (lost["position"], lost["length"], lost["firstOffset"], lost["lastOffset"]) == (at, size, 12, 14)
    assert summary["records"] == 177


def test_any_damage_is_passed_over_and_told(tmp_path: Path) -> None:
    """The missing records are the ones reported, and the others are right, except for bytes without a CRC."""
    root = tmp_path / "logs"
    sized(root)
    paths = sorted((root / "t-0").glob("*.log"))
    whole = [path.read_bytes() for path in paths]
    firsts = [[header.position for header in native.headers(data)[0]] for data in whole]
    rng = random.Random(5)
    target = tmp_path / "x.parquet"
    complete = 0
    for _ in range(60):
        for path, data in zip(paths, whole, strict=True):
            path.write_bytes(data)
        for _ in range(rng.choice([1, 1, 2, 3])):
            number = rng.randrange(len(paths))
            data = bytearray(paths[number].read_bytes())
            start = rng.choice(firsts[number]) + 8
            at, length = start + rng.randrange(100), rng.randrange(1, 30)
            if rng.random() < 0.5:
                data[at : at + 1] = bytes([data[at] ^ 1 << rng.randrange(8)]) if at < len(data) else b""
            else:
                data[at : at + length] = b""
            paths[number].write_bytes(data)
        start_offset, lost = rng.choice([None, rng.randrange(180)]), []
        options = ExportOptions(force=True, selection=Selection(start_offset, on_damage=lost.append))
        export(root, [TopicPartition("t", 0)], target, options)
        rows = pq.read_table(target).to_pylist()
        seen = [row["offset"] for row in rows]
        assert seen == sorted(set(seen))
        assert all(row["value"] == b"v%03d" % row["offset"] + b"." * 20 for row in rows)
        missing = set(range(start_offset or 0, 180)) - set(seen)
        told = {offset for each in lost for offset in range(each.first_offset, each.last_offset + 1)}
        at_end = {offset for offset in missing if seen and offset > seen[-1]}
        if at_end - told:  # after the last batch only bytes are reported, and how far the log was flushed
            assert "were flushed" in lost[-1].what
        assert missing - told <= at_end
        complete += missing == told
    assert complete > 40


# --- the file -------------------------------------------------------------------------------------------------


def test_a_file_is_synced_before_it_has_its_name(log_dir: Path, tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    export(log_dir, [TopicPartition("t", 0)], tmp_path / "new" / "out", ExportOptions(), files=files)
    steps = [(op.kind, op.target or op.path) for op in files.ops if op.kind != "write"]
    temporary = steps[4][1]
    assert steps == [
        ("mkdir", "new"),
        ("sync_dir", ""),
        ("mkdir", "new/out"),
        ("sync_dir", "new"),
        ("create", temporary),
        ("sync", temporary),
        ("rename", "new/out/t-0.parquet"),
        ("sync_dir", "new/out"),
    ]
    last_write = max(number for number, op in enumerate(files.ops) if op.kind == "write")
    assert [op.kind for op in files.ops[last_write + 1 :]] == ["sync", "rename", "sync_dir"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_nothing(log_dir: Path, tmp_path: Path, kind: str, number: int) -> None:
    """At any step: the file is whole or absent."""
    target = tmp_path / "out"
    target.mkdir()
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    for step in range(100):
        full = number == errno.ENOSPC
        of_it = f"{target}/.t-1."  # before it gets its name
        fault = Fault(step, number, sticky=full, paths=lambda path, of_it=of_it: path.startswith(of_it))
        files = FaultyFiles(OS_FILES, fault)
        report = ExportReport()
        try:
            export(log_dir, both, target, ExportOptions(format=kind, force=True), files=files, report=report)
        except OSError as error:
            assert error.errno == number  # noqa: PT017
            assert [path.name for path in target.iterdir()] == [f"t-0.{kind}"]
            assert [file.records for file in report.files] == [104]
        else:
            break
    assert step >= (2 if full else 4)  # create, write; sync, rename
    assert len(report.files) == 2


def test_an_interrupt_leaves_nothing(log_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()

    def stop(size_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(log_dir, [TopicPartition("t", 0)], target, ExportOptions(), progress=stop)
    assert list(target.iterdir()) == []


def test_memory_is_a_batchs_not_a_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog._face import selected
    from kafkalog.toolbox import export as module

    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0") as log:
        for _ in range(40):
            log.append_many([bytes(100_000)] * 10)
    monkeypatch.setattr(module, "BATCH_BYTES", 4_000_000)
    monkeypatch.setattr(selected, "SCAN_CHUNK_BYTES", 1_000_000)
    target = tmp_path / "x.parquet"
    export(root, [TopicPartition("t", 0)], target, ExportOptions())
    metadata = pq.ParquetFile(target).metadata
    assert metadata.num_rows == 400
    assert max(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)) <= 60
    assert BATCH_BYTES <= 64 << 20


def test_a_directory_of_real_kafkas(run: Run, tmp_path: Path) -> None:
    root = of_kafka("txn_interleaved_roll", tmp_path)
    assert run("export", root, "--to", tmp_path / "x.jsonl").code == CLEAN
    mine = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    cat = [json.loads(line) for line in run("cat", root, "foo-0", "--json").lines]
    assert [(row["offset"], row["key"], row["value"]) for row in mine] == [
        (row["offset"], row["key"], row["value"]) for row in cat
    ]
    torn = of_kafka("recover_torn_tail", tmp_path / "other")
    assert run("export", torn, "--to", tmp_path / "y.parquet", "--committed").code == CLEAN


def test_errors_of_options_come_before_anything_is_made(log_dir: Path, tmp_path: Path) -> None:
    makers: list[Callable[[], object]] = [
        lambda: export(log_dir, [], tmp_path / "a", ExportOptions(format="x")),
        lambda: export(log_dir, [], tmp_path / "a", ExportOptions(codec="x")),
        lambda: export(log_dir, [], tmp_path / "a", ExportOptions(), progress=3),  # type: ignore[arg-type]
    ]
    for make in makers:
        with pytest.raises(IllegalArgumentException):
            make()
    assert not (tmp_path / "a").exists()
