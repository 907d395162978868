"""An interrupt anywhere in an open that refuses damage: no byte of a log is lost, and the directory opens again.
KAFKALOG_LONG=1 takes all places."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import CorruptRecordException
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, sampled_of
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG

LIMIT = None if LONG else 15
OURS = ("store.py", "_face/", "engine/host/", "engine/log/")


def made(root: Path) -> dict[str, bytes]:
    """Two partitions, one of them damaged, as a crash leaves them; the bytes of their logs."""
    with kafkalog.open(root) as store:
        topic = store.create_topic("t", 2)
        for number in range(20):
            topic.append(b"value %02d" % number, partition=number % 2)
    (path,) = (root / "t-1").glob("*.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"value 07")] ^= 1
    path.write_bytes(data)
    (root / ".kafka_cleanshutdown").unlink()
    (root / "recovery-point-offset-checkpoint").unlink()
    return logs(root)


def logs(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("t-*/*.log")}


def refused(root: Path, load: Any) -> None:
    def read() -> None:
        with kafkalog.open(root, on_damage="raise", load=load) as store:
            list(store.topic("t"))

    with pytest.raises(CorruptRecordException, match="Nothing was truncated"):
        read()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [CALLS, LINES])
@pytest.mark.parametrize("load", ["all", "on demand"])
def test_an_interrupt_anywhere(base: Path, load: str, kind: str) -> None:
    before = made(base / "made")
    for number in range(2):  # lazy initialization is not a place
        root = shutil.copytree(base / "made", base / f"counted-{number}")
        with Tracer(kind) as tracer:
            refused(root, load)
    places = tracer.places
    for number in sampled_of(places, OURS, LIMIT):
        root = shutil.copytree(base / "made", base / f"at-{number}")
        with suppress(Interrupted), Tracer(kind, number):
            refused(root, load)

        def go_on(root: Path = root) -> None:
            assert logs(root) == before
            refused(root, load)
            assert logs(root) == before
            assert no_descriptors_below(root) == []
            with kafkalog.open(root) as store:
                ends = [store.topic("t").partition(each).end_offset for each in range(2)]
                assert ends == [10, 3]

        try:
            in_a_thread(go_on)
        except BaseException as error:
            error.add_note(f"interrupted at {places[number]}, number {number}")
            raise
        shutil.rmtree(root)
