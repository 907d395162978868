"""Tests an installed wheel: what kafkalog must do with its core dependencies only, and its commands if `kafkalog[cli]`
is installed. It needs no test runner.

Usage: python smoke.py [EMPTY_DIRECTORY]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path


def main(log_dir: Path) -> None:
    import kafkalog
    from kafkalog._native.codec import batches, crc32c

    unwanted = {"pyarrow", "pyspark", "click", "rich"} & set(sys.modules)
    assert not unwanted, f"importing kafkalog imported {unwanted}"
    assert crc32c.crc32c(b"123456789") == 0xE3069283, crc32c.implementation()
    assert batches.BATCH_DTYPE["base_offset"] == "i8"

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = f"smoke.{codec}-0"
        with kafkalog.open_log(
            log_dir, topic, config={"compression.type": codec.replace("none", "uncompressed")}
        ) as log:
            for i in range(100):
                log.append(b"value %d" % i * 20, key=b"key %d" % i, headers=[("h", b"1")])
        with kafkalog.open_log(log_dir, topic, read_only=True) as log:
            records = list(log)
            assert [record.offset for record in records] == list(range(100)), codec
            assert records[7].key == b"key 7", codec
            assert records[7].value == b"value 7" * 20, codec

    unwanted = {"click", "rich"} & set(sys.modules)
    assert not unwanted, f"using a log imported {unwanted}"

    with kafkalog.open(log_dir.with_name(log_dir.name + "-store")) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append(b"value", key=b"key")
        with store.reader("billing", topics=["orders"]) as reader:
            assert [record.value for record in reader.poll()] == [b"value"]
            reader.commit()

    if find_spec("click") is None:
        print(f"kafkalog {kafkalog.__version__}: smoke test passed (kafkalog[cli] is not installed)")
        return
    for command in (["describe", str(log_dir)], ["verify", str(log_dir)]):
        done = subprocess.run([sys.executable, "-m", "kafkalog", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    print(f"kafkalog {kafkalog.__version__}: smoke test passed ({crc32c.implementation()})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        place = Path(sys.argv[1])
        place.mkdir(parents=True, exist_ok=True)
        main(place)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
