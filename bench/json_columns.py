"""`python -m bench.json_columns`: JSON values to Arrow columns, compared with other readers of JSON lines into Arrow.

The lines have about 200 bytes and 8 fields; all fields are read, or three of them. In kafkalog, one thread decodes the
column `value` of record batches of 65,536 rows, as a reader of a topic has them. The others, pyarrow and Polars, read
the same lines, with the same schema, from one buffer in memory. The sides run alternately, and the median of five runs
of each counts. Without Polars its rows are omitted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

from bench.kept import BYTES_PER_S, Results, add_options, keep
from kafkalog._face.value_columns import decoding

LINES = 200_000
BATCH_ROWS = 65_536
TURNS = 5
AIM = 3.0
SCHEMA: Mapping[str, Any] = {
    "order_id": pa.int64(), "customer": pa.string(), "amount": pa.float64(), "currency": pa.string(),
    "created_at": pa.int64(), "status": pa.string(), "express": pa.bool_(), "note": pa.string(),
}  # fmt: skip
FEW = ("order_id", "amount", "status")


def lines(count: int = LINES) -> list[bytes]:
    rng = random.Random(28)
    rows = (
        {
            "order_id": 10_000_000 + number,
            "customer": f"customer-{rng.randrange(100_000)}",
            "amount": round(rng.random() * 1000, 2),
            "currency": rng.choice(["EUR", "USD", "GBP"]),
            "created_at": 1_700_000_000_000 + 137 * number,
            "status": rng.choice(["created", "paid", "shipped"]),
            "express": rng.random() < 0.3,
            "note": "lorem ipsum dolor sit amet consectetur adipiscing elit sed do"[: rng.randrange(20, 60)],
        }
        for number in range(count)
    )
    return [json.dumps(row, separators=(",", ":")).encode() for row in rows]


def batches_of(values: list[bytes]) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"value": pa.array(values[start : start + BATCH_ROWS], pa.binary())})
        for start in range(0, len(values), BATCH_ROWS)
    ]


def sides(values: list[bytes], schema: Mapping[str, Any]) -> dict[str, Callable[[], int]]:
    """Returns the readers of the lines; each returns its number of rows."""
    batches, data = batches_of(values), b"\n".join(values) + b"\n"
    buffer, ours = pa.py_buffer(data), decoding("json", schema)
    parsing = pyarrow.json.ParseOptions(explicit_schema=pa.schema(schema), unexpected_field_behavior="ignore")

    def by_pyarrow(threads: bool) -> int:
        options = pyarrow.json.ReadOptions(use_threads=threads)
        return int(pyarrow.json.read_json(pa.BufferReader(buffer), options, parsing).num_rows)

    found: dict[str, Callable[[], int]] = {
        "kafkalog": lambda: sum(len(ours.apply(batch)) for batch in batches),
        "pyarrow, one thread": lambda: by_pyarrow(False),
        "pyarrow, threads": lambda: by_pyarrow(True),
    }
    try:
        polars = importlib.import_module("polars")
    except ModuleNotFoundError:
        return found
    kinds = {
        pa.int64(): polars.Int64,
        pa.string(): polars.String,
        pa.float64(): polars.Float64,
        pa.bool_(): polars.Boolean,
    }
    wanted = {name: kinds[kind] for name, kind in schema.items()}
    found["Polars, threads"] = lambda: int(polars.read_ndjson(io.BytesIO(data), schema=wanted).height)
    return found


def measured(found: Mapping[str, Callable[[], int]], rows: int) -> dict[str, list[float]]:
    """Returns the seconds of each run of each side."""
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(TURNS + 1):
        for name, read in found.items():
            start = time.perf_counter()
            assert read() == rows, name
            if turn:  # the first run is a warm-up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main(results: Results, count: int = LINES) -> None:
    """Runs the comparison, and prints a table of MB/s of lines."""
    values = lines(count)
    size = sum(map(len, values))
    print(f"{count:,} lines of {size / count:.0f} bytes; kafkalog uses one thread")
    print(f"| {'fields':12} | {'kafkalog MB/s':>13} | compared with | ratio |")
    print("|---|---|---|---|")
    for name, schema in (("all 8", SCHEMA), ("3 of 8", {each: SCHEMA[each] for each in FEW})):
        seconds = measured(sides(values, schema), count)
        rates = {side: [size / each for each in of] for side, of in seconds.items()}
        results.row("json", f"JSON as columns, {name} fields", BYTES_PER_S, rates)
        figures = {side: statistics.median(each) / 1e6 for side, each in rates.items()}
        ours = figures["kafkalog"]
        for side, theirs in figures.items():
            if side != "kafkalog":
                aim = AIM if side.startswith("pyarrow") else None
                verdict = "" if aim is None else f" ({'aim' if ours >= aim * theirs else 'BELOW the aim of'} {aim:g})"
                print(f"| {name:12} | {ours:13.0f} | {side} {theirs:.0f} | {ours / theirs:.2f}x{verdict} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.json_columns", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES)
    add_options(parser)
    given = parser.parse_args()
    measured_rows = Results()
    main(measured_rows, given.lines)
    keep(given, measured_rows)
