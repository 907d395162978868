"""Cases for the golden bytes, and a program that gets them from Apache Kafka.

As a script it writes kafka_bytes.jsonl next to itself: each line has a case and the answer of Kafka's classes (long
answers as their SHA-256).  It needs a JDK 17 and the Kafka jars: `python kafka_bytes.py 'JARS/*'`.
The test next to it reads only the file.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "kafka_bytes.jsonl"
LONG_BYTES = 400

SIZES = (0, 1, 5, 100, 1000, 16383, 16384, 32768, 32769, 65535, 65536, 65537, 131072, 131073, 200000)
LEVELS: dict[str, tuple[int | None, ...]] = {
    "none": (None,),
    "gzip": (None, 1, 6, 9),
    "snappy": (None,),
    "lz4": (None, 3, 9, 12, 17),
    "zstd": (None, -5, 1, 9, 19),
}


def data(kind: str, size: int) -> bytes:
    """Bytes to compress: one letter, noise, lines of text, or both halves mixed."""
    rng = random.Random(size)
    if kind == "zeros":
        return bytes(size)
    if kind == "noise":
        return rng.randbytes(size)
    if kind == "text":
        line = b"".join(b"user-%05d clicked item %d at %d\n" % (rng.randrange(900), rng.randrange(99), i)
                        for i in range(size // 25 + 1))  # fmt: skip
        return line[:size]
    half = size // 2
    return data("text", half) + rng.randbytes(size - half)


def compress_cases() -> list[dict[str, Any]]:
    cases = [
        {"compress": codec, "level": level, "magic": 2, "kind": kind, "size": size}
        for codec in ("gzip", "lz4", "zstd")
        for level in LEVELS[codec]
        for kind in ("zeros", "noise", "text", "mixed")
        for size in SIZES
        if level is None or size in (0, 100, 65537, 200000)
    ]
    cases += [{"compress": "lz4", "level": None, "magic": 0, "kind": "text", "size": n} for n in (0, 100, 65537)]
    return cases


def batch_cases() -> list[dict[str, Any]]:
    rng = random.Random(4)
    rows = [
        {"ts": 1000 + rng.randrange(100), "key_hex": rng.randbytes(rng.randrange(9)).hex(),
         "value_hex": (b"value-%d " % i * 5).hex(), "headers": []}
        for i in range(20)
    ]  # fmt: skip
    rows[3]["key_hex"] = None
    rows[4]["value_hex"] = None
    plain = [{k: v for k, v in row.items() if k != "headers"} for row in rows]
    rows[5]["headers"] = [["h", "00ff"], ["h", None], ["ключ", ""]]
    far = [{"ts": 5, "value_hex": "01", "offset": 7}, {"ts": 1 << 60, "value_hex": "02", "offset": 2_000_000_000}]
    cases: list[dict[str, Any]] = []
    for magic in (0, 1, 2):
        for codec in LEVELS:
            for kind in ("create", "log_append"):
                spec = {"magic": magic, "codec": codec, "timestamp_type": kind, "base_offset": 1 << 33}
                if kind == "log_append":
                    spec["log_append_time"] = 777777
                cases.append({"batch": spec | {"records": rows if magic == 2 else plain}})
                cases.append({"batch": spec | {"records": [{}]}})
                cases.append({"batch": spec | {"records": []}})
    base = {"records": rows}
    cases += [
        {"batch": base | {"producer_id": 9, "producer_epoch": 2, "base_sequence": 2147483640, "leader_epoch": 7}},
        {"batch": base | {"producer_id": 9, "producer_epoch": 2, "base_sequence": 0, "transactional": True}},
        {"batch": base | {"last_offset": 900}},
        {"batch": base | {"last_offset": 900, "delete_horizon_ms": 123456, "codec": "gzip"}},
        {"batch": base | {"delete_horizon_ms": 0}},
        {"batch": {"records": far}},
        {"batch": {"records": far, "codec": "zstd", "level": 7}},
        {"batch": {"records": far, "magic": 1, "codec": "gzip"}},
        {"batch": {"records": [{"ts": -1}, {"ts": 0}, {"ts": 1 << 62}]}},
        {"batch": {"records": [{"ts": -2}]}},
        {"batch": {"records": [{"offset": 5}, {"offset": 5}]}},
        {"batch": {"records": [{"offset": 1 << 31}]}},
        {"batch": {"records": [{"offset": 3}], "base_offset": 10}},
        {"batch": {"records": rows, "magic": 1}},
        {"batch": base | {"transactional": True}},
        {"batch": base | {"producer_id": 1, "base_sequence": 1}},
        {"batch": base | {"producer_id": 1, "producer_epoch": 1}},
        {"batch": {"records": plain, "magic": 1, "producer_id": 1, "producer_epoch": 1, "base_sequence": 1}},
        {"batch": {"records": plain, "magic": 1, "transactional": True}},
        {"batch": {"records": plain, "magic": 0, "control": True}},
        {"batch": {"records": plain, "magic": 0, "delete_horizon_ms": 5}},
        {"batch": base | {"codec": "lz4", "level": 18}},
        {"batch": base | {"codec": "gzip", "level": 0}},
        {"batch": base | {"codec": "zstd", "level": 23}},
        {"batch": {"control": True, "leader_epoch": 3, "records": [{"ts": 1, "key_hex": "00000002", "value_hex":
            "0000000000010200000001000200000001000" + "0"}]}},
        {"batch": {"control": True, "records": [{"ts": 1, "key_hex": "00000063", "value_hex": ""}]}},
        {"batch": {"control": True, "records": [{"ts": 1, "key_hex": "ffff0001", "value_hex": ""}]}},
        {"batch": {"control": True, "records": [{"ts": 1, "key_hex": "0000", "value_hex": ""}]}},
        {"batch": {"control": True, "producer_id": 4, "producer_epoch": 1, "transactional": True, "records":
            [{"ts": 1, "key_hex": "00010001", "value_hex": "000000000001"}]}},
        {"batch": {"log_append_time": -5, "timestamp_type": "log_append", "magic": 1, "records": [{"ts": 1}]}},
    ]  # fmt: skip
    return cases


def marker_cases() -> list[dict[str, Any]]:
    common = {"offset": 12, "ts": 1_700_000_000_000, "producer_id": 77, "producer_epoch": 3}
    return [
        {"marker": common | {"commit": commit, "coordinator_epoch": epoch, "leader_epoch": epoch}}
        for commit in (True, False)
        for epoch in (-1, 0, 5)
    ] + [{"marker": common | {"commit": True, "coordinator_epoch": 1, "leader_epoch": 1, "producer_epoch": -1}}]


def cases() -> list[dict[str, Any]]:
    return [*compress_cases(), *batch_cases(), *marker_cases()]


def request(case: dict[str, Any]) -> dict[str, Any]:
    """The request to the Java side for a case."""
    if "compress" not in case:
        return case
    asked = {name: case[name] for name in ("compress", "level", "magic")}
    return asked | {"data": data(case["kind"], case["size"]).hex()}


def shortened(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it is kept: without the text of errors, long bytes as their hash and length."""
    kept = {name: value for name, value in answer.items() if name != "message"}
    if len(kept.get("bytes", "")) > 2 * LONG_BYTES:
        raw = bytes.fromhex(kept.pop("bytes"))
        kept["sha256"] = hashlib.sha256(raw).hexdigest()
        kept["size"] = len(raw)
    return kept


def ask_kafka(classpath: str, requests: list[dict[str, Any]], classes: str) -> list[dict[str, Any]]:
    """Kafka's answers; compiles the Java side into the directory `classes`."""
    source = str(HERE / "KafkaBytes.java")
    subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", classes, source], check=True)
    lines = "".join(json.dumps(one) + "\n" for one in requests)
    command = ["java", "-cp", f"{classes}:{classpath}", "KafkaBytes"]
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    import tempfile

    asked = cases()
    with tempfile.TemporaryDirectory() as classes:
        answers = ask_kafka(sys.argv[1], [request(case) for case in asked], classes)
    with GOLDEN.open("w") as out:
        for case, answer in zip(asked, answers, strict=True):
            out.write(json.dumps({"case": case, "kafka": shortened(answer)}) + "\n")


if __name__ == "__main__":
    main()
