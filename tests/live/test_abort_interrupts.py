"""An interrupt anywhere in an abort of an open transaction, offline: the same abort, planned again, or the next open of
a store ends it, and no record is lost.  KAFKALOG_LONG=1 takes all places."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import InvalidTxnStateException
from kafkalog.toolbox.abort_transactions import Abort, Aimed, abort, plan_abort
from kafkalog.toolbox.known_transactions import KnownTransactions
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, sampled_of
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG

LIMIT = None if LONG else 15
OURS = ("toolbox/abort", "_face/", "engine/coordinator/", "engine/log/", "engine/host/")
OUT = [TopicPartition("out", 0), TopicPartition("out", 1)]


def hanging(root: Path) -> None:
    """Writes a transaction that no coordinator knows."""
    with kafkalog.open_log(root, "out-0") as log:
        log.append(b"before")
        txn = client_transaction(log, "lost")
        txn.begin()
        txn.append_many([b"lost", b"lost"])
        log.append(b"behind")


def crashed(root: Path) -> None:
    """A store as a crash leaves it, in a transaction over two partitions."""
    with kafkalog.open(root.parent / f"{root.name}-store") as store:
        topic = store.create_topic("out", 2)
        topic.partition(0).append(b"before")
        txn = store.transaction("job")
        txn.begin()
        for partition in range(2):
            txn.append("out", b"lost", partition=partition)
        topic.partition(0).append(b"behind")
        shutil.copytree(root.parent / f"{root.name}-store", root)
        txn.abort()


WORLDS = {
    "hanging": (hanging, Aimed(start_offset=1), OUT[:1]),
    "coordinated": (crashed, Aimed(transactional_id="job"), OUT),
}


def planned(root: Path, which: str) -> Abort:
    _, aimed, partitions = WORLDS[which]
    return plan_abort(str(root), partitions, aimed)


def committed(root: Path, partition: int) -> list[bytes | None]:
    with kafkalog.open_log(root, f"out-{partition}", read_only=True) as log:
        assert log.last_stable_offset == log.end_offset
        return [record.value for record in log.records(isolation="read_committed")]


def markers(root: Path, partition: int) -> int:
    """How many control records there are: offsets that no reader is shown."""
    with kafkalog.open_log(root, f"out-{partition}", read_only=True) as log:
        return log.end_offset - log.log_start_offset - len(list(log))


def judge(root: Path, which: str) -> None:
    """Ends it, if it was not ended, and reads the result."""
    with suppress(InvalidTxnStateException):  # it was ended before the interrupt
        abort(planned(root, which))
    with pytest.raises(InvalidTxnStateException):
        planned(root, which)
    for partition in WORLDS[which][2]:
        assert committed(root, partition.partition) == ([b"before", b"behind"] if partition.partition == 0 else [])
        # As Kafka's, a coordinator whose word was not written down sends its markers again.
        assert markers(root, partition.partition) in ((1,) if which == "hanging" else (1, 2))
    if which == "coordinated":
        assert KnownTransactions(str(root)).by_id["job"].state == "CompleteAbort"
    assert verify(root, deep=True).ok
    assert no_descriptors_below(root) == []
    with kafkalog.open(root) as store:
        topic = store.topic("out")
        with store.transaction("job") as txn:
            txn.append("out", b"next", partition=0)
        assert [it.value for it in topic.partition(0).records(isolation="read_committed")][-1] == b"next"


@pytest.fixture(params=[*WORLDS])
def world(base: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    WORLDS[request.param][0](base / "made")
    return base, request.param


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", [CALLS, LINES])
def test_an_interrupt_anywhere(world: tuple[Path, str], kind: str) -> None:
    base, which = world
    for number in range(2):  # lazy initialization is not a place of the operation
        root = shutil.copytree(base / "made", base / f"counted-{number}")
        plan = planned(root, which)
        with Tracer(kind) as tracer:
            abort(plan)
    judge(root, which)
    places = tracer.places
    for number in sampled_of(places, OURS, LIMIT):
        root = shutil.copytree(base / "made", base / f"at-{number}")
        plan = planned(root, which)
        with suppress(Interrupted), Tracer(kind, number):
            abort(plan)
        try:
            in_a_thread(lambda root=root: judge(root, which))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"interrupted at {places[number]}, number {number}")
            raise
        shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_open_after_an_interrupt_goes_on(base: Path) -> None:
    """The next open completes a decision of the coordinator. It aborts a transaction without a decision."""
    crashed(base / "made")
    root = shutil.copytree(base / "made", base / "counted")
    plan = planned(root, "coordinated")
    with Tracer(CALLS) as tracer:
        abort(plan)
    places = tracer.places
    for number in sampled_of(places, OURS, LIMIT):
        root = shutil.copytree(base / "made", base / f"at-{number}")
        plan = planned(root, "coordinated")
        with suppress(Interrupted), Tracer(CALLS, number):
            abort(plan)

        def go_on(root: Path = root) -> None:
            with kafkalog.open(root) as store:
                topic = store.topic("out")
                seen = [
                    [it.value for it in topic.partition(each).records(isolation="read_committed")] for each in (0, 1)
                ]
                assert seen == [[b"before", b"behind"], []]
            assert {markers(root, partition) for partition in range(2)} <= {1, 2}
            assert KnownTransactions(str(root)).by_id["job"].state == "CompleteAbort"

        try:
            in_a_thread(go_on)
        except BaseException as error:
            error.add_note(f"interrupted at {places[number]}, number {number}")
            raise
        shutil.rmtree(root)
