"""`compare` next to writers, compaction and deletion, from several threads, and interrupted anywhere: it reports no
false difference, and leaves no file open.  KAFKALOG_LONG=1 takes all places."""

from __future__ import annotations

import gc
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.toolbox.compare import CompareReport, Missing, compare
from tests.client_transaction import client_transaction
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, sampled_of
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG

LIMIT = None if LONG else 25
ROUNDS = 200 if LONG else 12
OURS = ("toolbox/compare", "_face/", "engine/log/")
SMALL = {"internal.segment.bytes": "2000", "cleanup.policy": "compact,delete"}
NOW = 1_700_000_000_000


def append(log: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.append(b"value %d" % number, key=b"k%d" % (number % 7), timestamp=NOW + number)


@pytest.mark.parametrize("threads", [1, 4])
def test_beside_a_writer(base: Path, threads: int) -> None:
    """One directory continues, is compacted and deleted from; its copy stays, and may have more."""
    with kafkalog.open_log(base / "shop", "t-0", config=SMALL) as log:
        append(log, 0, 200)
    shutil.copytree(base / "shop", base / "copy")
    done = threading.Event()

    def write() -> None:
        with kafkalog.open_log(base / "shop", "t-0", config=SMALL) as log:
            first = log.end_offset
            while not done.is_set():
                append(log, first, 50)
                first += 50
                if first % 500 == 0:
                    log.compact()
                if first % 2000 == 0:
                    log.delete_records(min(log.log_start_offset + 20, 150))

    def look(_: int) -> CompareReport:
        return compare(base / "copy", base / "shop", [("t", 0)])

    with ThreadPoolExecutor(threads + 1) as pool:
        writing = pool.submit(write)
        try:
            reports = [*pool.map(look, range(ROUNDS))]
        finally:
            done.set()
        writing.result()
    settled = 0
    for report in reports:
        settled += len(report.partitions)
        for each in report.partitions:
            assert (each.differing, each.missing_here, each.damage) == (0, Missing(), []), each
            assert each.ended_otherwise.transactions == 0
    assert settled
    gc.collect()  # a view that met a file which had gone holds the error, and its frames, until then
    assert no_descriptors_below(base) == []


@pytest.fixture
def two(base: Path) -> tuple[Path, Path]:
    """Directories that differ in records and in how a transaction ended."""
    for name, end in (("mine", "commit"), ("its", "abort")):
        with kafkalog.open_log(base / name, "t-0") as log:
            append(log, 0, 5)
            txn = client_transaction(log, "one")
            txn.begin()
            txn.append_many([(b"one", None, (), NOW)])
            getattr(txn, end)()
            log.append(name.encode(), timestamp=NOW)
    return base / "mine", base / "its"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", [CALLS, LINES])
def test_an_interrupt_anywhere(two: tuple[Path, Path], kind: str) -> None:
    def found() -> tuple[object, ...]:
        (each,) = compare(*two, differences=3).partitions
        return each.differing, each.ended_otherwise, each.differences, each.damage

    wanted = found()
    assert wanted[0] == 1
    with Tracer(kind) as tracer:
        found()
    for number in sampled_of(tracer.places, OURS, LIMIT):
        with suppress(Interrupted), Tracer(kind, number):
            found()
        again: list[object] = []
        in_a_thread(lambda again=again: again.append(found()))  # type: ignore[misc]
        assert again == [wanted], tracer.places[number]
        assert no_descriptors_below(two[0].parent) == [], tracer.places[number]
