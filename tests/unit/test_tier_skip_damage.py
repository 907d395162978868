"""An export that continues after damage in a remote tier, in each form of its logs there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalog import RemoteStorage
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.segment.scan import LogScan
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import tiered

__all__ = ["run"]

KEYS = [str(Path(__file__).parents[1] / f"golden/tiered/aiven/{name}.pem") for name in ("public", "private")]
COPIED = 50


def exported(run: Run, url: str, target: Path, *options: str) -> tuple[int, list[int], str]:
    """(exit code, offsets, the report)."""
    pytest.importorskip("pyarrow")
    result = run("export", url, "orders-0", "--to", str(target), "--skip-damage", "--force", *options)
    lines = target.read_text().splitlines() if target.exists() else []
    return result.code, [json.loads(line)["offset"] for line in lines], result.err


def offsets(log: Path, damaged: range) -> list[int]:
    """The offsets of a log's batches that have a byte there; each batch has one record."""
    with OS_FILES.open(str(log), writable=False) as file:
        tables = [piece.table for piece in LogScan(file, 0, file.size())]
    rows = [row for table in tables for row in table]
    return [
        int(row["base_offset"])
        for row in rows
        if row["position"] < damaged.stop and row["position"] + row["size"] > damaged.start
    ]


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_batch_that_is_damaged_is_passed_over(
    run: Run, tmp_path: Path, layout: str, kind: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "tier") if kind == "folder" else f"memory://{tmp_path.name}/tier"
    tiered(tmp_path / "store", RemoteStorage(url, layout=layout))
    storage = RemoteStorage(url, layout=layout).manager()
    found = storage.segments_of(storage.partitions()[0])[at]
    (key,) = [key for key in found.objects if key.endswith(".log")]
    data = bytearray(storage.objects.get(key))  # type: ignore[attr-defined]
    data[700] ^= 1
    storage.objects.put(key, lambda: [bytes(data)])  # type: ignore[attr-defined]
    (lost,) = offsets(tmp_path / "store" / "orders-0" / f"{found.base_offset:020d}.log", range(700, 701))
    code, there, told = exported(run, url, tmp_path / "out.jsonl")
    assert (code, there) == (1, [offset for offset in range(COPIED) if offset != lost]), told
    assert f"offsets {lost} to {lost}: a bad CRC" in told


@pytest.mark.parametrize("variant", ["zstd", "encrypted"])
@pytest.mark.parametrize("at", [0, 1, -1])
@pytest.mark.parametrize("chunk", [0, 1, -1])
def test_a_chunk_that_is_damaged_is_passed_over(
    run: Run, tmp_path: Path, variant: str, at: int, chunk: int, caplog: pytest.LogCaptureFixture
) -> None:
    url, options = str(tmp_path / "tier"), [] if variant == "zstd" else ["--key-pair", f"k:{':'.join(KEYS)}"]
    place = (
        RemoteStorage(url, layout="aiven", chunk_bytes=500, compression=True)
        if variant == "zstd"
        else RemoteStorage(url, layout="aiven", chunk_bytes=500, encryption={"k": (KEYS[0], KEYS[1])})
    )
    tiered(tmp_path / "store", place)
    storage = place.manager()
    assert isinstance(storage, AivenTieredStorage)
    found = storage.segments_of(storage.partitions()[0])[at]
    starts = storage.manifest(found.listed()).chunks.starts
    (log,) = Path(url).rglob(f"*{found.id}.log")
    data = bytearray(log.read_bytes())
    data[starts[chunk]] ^= 0x55
    log.write_bytes(data)
    begin = range(len(starts))[chunk] * 500
    lost = offsets(tmp_path / "store" / "orders-0" / f"{found.base_offset:020d}.log", range(begin, begin + 500))
    refused = run("export", url, "orders-0", "--to", str(tmp_path / "out.jsonl"), *options)
    assert (refused.code, "(--skip-damage continues after it" in refused.err) == (3, True), refused.err
    code, there, told = exported(run, url, tmp_path / "out.jsonl", *options)
    assert (code, there) == (1, [offset for offset in range(COPIED) if offset not in lost]), told
    assert f"{log} at byte {starts[chunk]}: " in caplog.text
