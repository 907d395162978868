"""Buffers that another thread changes while they are appended or decoded: an error or the record, never a crash.

Runs in a separate process, because the fault that it looks for kills one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.crew import SECONDS

PROGRAM = """
import faulthandler, random, sys, threading, time

from kafkalog.errors import KafkalogError
from kafkalog.toolbox.verify import verify
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format import codecs
from tests.live.crew import open_live
from tests.live.interrupts import NOW_MS
from tests.live.oracle import look

path, policy, codec, kind, seconds = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])
faulthandler.dump_traceback_later(seconds + 60, exit=True)
sys.setswitchinterval(1e-5)


def batch(keys):
    builder = MemoryRecordsBuilder(codec=codecs.codec_id(codec))
    for number in range(size):
        builder.append(NOW_MS, keys[number % len(keys)], b"1.%d" % number, [("h", b"x")] if number % 7 == 0 else ())
    return bytes(builder.build())


# Batches of one length that a compacted topic takes (an empty key), or refuses one record of, or many (none).
size = 20000
forms = [batch([b""]), batch([b""] * 19999 + [None]), batch([b""] * 49 + [None])]
COUNTS = [number.to_bytes(4, "big") for number in (1, size, 0x7FFFFFFF)]
length = max(map(len, forms))
shared = bytearray(length)
stop = False


def change():
    mine = random.Random(2)
    while not stop:
        form = mine.choice(forms)
        shared[: len(form)] = form
        what = mine.randrange(8)
        if what == 0:
            shared[mine.randrange(len(form))] = mine.randrange(256)
        elif what == 1:
            shared[57:61] = mine.choice(COUNTS)


threads = [threading.Thread(target=change, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
done = refused = 0
end = time.monotonic() + seconds
config = {"cleanup.policy": policy, "internal.segment.bytes": "100000000", "max.message.bytes": "10000000"}
with open_live(path, config=config) as log:
    view = memoryview(shared) if kind == "memoryview" else shared
    while time.monotonic() < end:
        offset = log.end_offset
        try:
            log.append_batches(view)
            done += 1
        except KafkalogError:
            refused += 1
            assert log.end_offset == offset
    stop = True
    for thread in threads:
        thread.join()
    shared[:] = bytes(length)
    assert log.append(b"last", key=b"k") == log.end_offset - 1
print(done + refused)
"""


@pytest.mark.parametrize(
    ("policy", "codec", "kind"),
    [
        ("delete", "none", "bytearray"),
        ("compact", "none", "bytearray"),
        ("compact", "none", "memoryview"),
        ("compact", "lz4", "bytearray"),
        ("delete", "zstd", "bytearray"),
    ],
)
def test_a_buffer_that_changes(
    policy: str, codec: str, kind: str, base: Path, count: Callable[[str, int], None]
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, base / "log", policy, codec, kind, str(SECONDS)],
        capture_output=True, text=True, timeout=SECONDS + 120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-4000:]}"
    count("appends of a changing buffer", int(done.stdout))
