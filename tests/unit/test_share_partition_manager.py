"""The manager of share partitions over doubles: sessions, fetches that wait, acknowledgements, forgetting."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog.engine.coordinator.share_acquire import AcquireRequest
from kafkalog.engine.coordinator.share_config import ShareGroupConfigProvider, ShareGroupSettings
from kafkalog.engine.coordinator.share_fetch import Answers, ShareFetch, rotated, shared_out
from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
from kafkalog.engine.coordinator.share_partition import ShareAcknowledgementBatch
from kafkalog.engine.coordinator.share_partition_manager import SharePartitionManager
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import (
    InvalidRequestException,
    InvalidShareSessionEpochException,
    NotLeaderOrFollowerException,
    ShareSessionLimitReachedException,
    ShareSessionNotFoundException,
    UnknownTopicOrPartitionException,
)
from tests.share_doubles import GROUP, PARTITION, MadeLogs, MadePersister

OTHER = PARTITION._replace(partition=1)
EARLIEST = {"share.auto.offset.reset": "earliest"}


class Kit:
    """A manager over one log that all partitions share, and what its fetches were answered."""

    def __init__(self, max_share_sessions: int = 10) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.timers = Timers(self.clock)
        self.logs = MadeLogs()
        self.persister = MadePersister()
        configs = ShareGroupConfigProvider(
            ShareGroupSettings(max_share_sessions=max_share_sessions), lambda _: EARLIEST
        )
        self.manager = SharePartitionManager(self.logs, self.persister, self.timers, self.clock, configs=configs)
        self.answers: list[Answers] = []

    def fetch(self, member: str = "m1", *, min_bytes: int = 1, max_wait_ms: int = 500, **more: Any) -> None:
        request = AcquireRequest(member, more.pop("max_records", 500))
        partitions = more.pop("partitions", [PARTITION])
        self.manager.fetch(
            ShareFetch(
                GROUP,
                partitions,
                request,
                self.answers.append,
                min_bytes=min_bytes,
                max_bytes=more.pop("max_bytes", 1 << 20),
                max_wait_ms=max_wait_ms,
            )
        )

    def acquired(self) -> list[list[tuple[int, ...]]]:
        """Returns the acquired offsets of each answer, and forgets the answers."""
        found = [
            [tuple(each.values()) for answer in answers.values() for each in answer["acquiredRecords"]]
            for answers in self.answers
        ]
        self.answers.clear()
        return found

    def run(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.timers.run_due()

    def acknowledge(self, first: int, last: int, kind: int = 1, member: str = "m1") -> Any:
        batches = {PARTITION: [ShareAcknowledgementBatch(first, last, (kind,))]}
        return self.manager.acknowledge(GROUP, member, batches)[PARTITION]

    def session(
        self, epoch: int, *partitions: TopicIdPartition, member: str = "m1", connection: int = 1, **more: Any
    ) -> Any:
        return self.manager.new_context(GROUP, member, epoch, partitions, connection=connection, **more)


@pytest.fixture
def kit() -> Kit:
    return Kit()


def test_a_fetch_that_finds_enough_is_answered_at_once(kit: Kit) -> None:
    kit.logs.append(3)
    kit.fetch()
    assert kit.acquired() == [[(0, 2, 1)]]


def test_an_append_wakes_a_fetch(kit: Kit) -> None:
    kit.fetch()
    kit.run()
    assert kit.answers == []
    kit.logs.append(2)
    kit.run()
    assert kit.acquired() == [[(0, 1, 1)]]
    assert len(kit.timers) == 1  # the locks; the time of the fetch is over


def test_fetches_that_were_woken_leave_no_timer(kit: Kit) -> None:
    for _ in range(20):
        kit.fetch(max_wait_ms=2**31 - 1)
        kit.logs.append(1)
        kit.run()
        ((offsets,),) = kit.acquired()
        assert kit.acknowledge(*offsets[:2]) is None
    assert len(kit.timers) <= 1  # the locks


def test_a_release_wakes_a_fetch_of_the_group(kit: Kit) -> None:
    kit.logs.append(2)
    kit.fetch("m1")
    kit.fetch("m2")
    assert kit.acquired() == [[(0, 1, 1)]]
    assert kit.acknowledge(0, 0, 2) is None
    assert kit.acquired() == [[(0, 0, 2)]]


def test_a_lock_that_ends_wakes_a_fetch(kit: Kit) -> None:
    kit.logs.append(2)
    kit.fetch("m1")
    kit.fetch("m2", max_wait_ms=60_000)
    kit.run(30_000)
    assert kit.acquired() == [[(0, 1, 1)], [(0, 1, 2)]]


def test_the_time_of_a_fetch_ends(kit: Kit) -> None:
    kit.fetch(max_wait_ms=500)
    kit.run(499)
    assert kit.answers == []
    kit.run(1)
    assert kit.acquired() == [[]]
    kit.logs.append(1)
    kit.run()
    assert kit.answers == []


def test_too_few_bytes_wait_for_more_or_the_end(kit: Kit) -> None:
    kit.logs.append(1)
    kit.fetch(min_bytes=150)
    assert kit.answers == []
    kit.logs.append(1)
    kit.run()
    assert kit.acquired() == [[(0, 1, 1)]]
    kit.logs.append(1)
    kit.fetch(min_bytes=150)
    kit.run(500)
    assert kit.acquired() == [[(2, 2, 1)]]


def test_nothing_to_fetch(kit: Kit) -> None:
    kit.logs.append(1)
    kit.fetch(max_records=0)
    kit.fetch(max_bytes=0)
    kit.fetch(partitions=[])
    assert kit.answers == [{}, {}, {}]


def test_a_state_that_cannot_be_read(kit: Kit) -> None:
    kit.persister.failing = 0
    kit.persister.batches = ()
    kit.manager._logs.earliest_offset = lambda _: 1 / 0  # type: ignore[method-assign]
    kit.fetch()
    (answer,) = kit.answers
    assert answer[PARTITION]["errorCode"] == Errors.UNKNOWN_SERVER_ERROR
    del kit.manager._logs.earliest_offset  # type: ignore[attr-defined]
    kit.answers.clear()
    kit.logs.append(1)
    kit.fetch()
    assert kit.acquired() == [[(0, 0, 1)]]


def test_a_fenced_partition_is_read_again(kit: Kit) -> None:
    kit.logs.append(2)
    kit.fetch()
    kit.persister.failing = Errors.FENCED_STATE_EPOCH
    assert isinstance(kit.acknowledge(0, 1), NotLeaderOrFollowerException)
    kit.persister.failing = 0
    assert isinstance(kit.acknowledge(0, 1), UnknownTopicOrPartitionException)  # nobody has fetched since
    kit.answers.clear()
    kit.fetch()
    assert kit.acquired() == [[(0, 1, 1)]]


def test_epochs_of_a_session(kit: Kit) -> None:
    with pytest.raises(ShareSessionNotFoundException):
        kit.session(1)
    with pytest.raises(InvalidRequestException):
        kit.session(0, PARTITION, acknowledges=True)
    assert kit.session(0, PARTITION).partitions() == [PARTITION]
    assert kit.session(1).partitions() == [PARTITION]
    with pytest.raises(InvalidShareSessionEpochException):
        kit.session(1)
    assert kit.session(2, OTHER, forgotten=[PARTITION]).partitions() == [OTHER]
    for epoch, error in ((0, InvalidShareSessionEpochException), (7, InvalidShareSessionEpochException)):
        with pytest.raises(error):
            kit.manager.acknowledge_session_update(GROUP, "m1", epoch)
    kit.manager.acknowledge_session_update(GROUP, "m1", 3)
    kit.manager.acknowledge_session_update(GROUP, "m1", -1)
    assert kit.session(-1).partitions() == []
    kit.manager.release_session(GROUP, "m1")
    with pytest.raises(ShareSessionNotFoundException):
        kit.session(-1)
    with pytest.raises(ShareSessionNotFoundException):
        kit.manager.release_session(GROUP, "m1")


def test_a_session_tells_of_what_is_new(kit: Kit) -> None:
    kit.session(0, PARTITION)
    context = kit.session(1, OTHER)
    empty = {"errorCode": 0, "records": b""}
    error, told = context.answer({PARTITION: empty, OTHER: empty})
    assert (error, list(told)) == (0, [OTHER])  # it was added by this request
    context = kit.session(2)
    assert list(context.answer({PARTITION: empty | {"records": b"x"}, OTHER: empty})[1]) == [PARTITION]
    assert kit.session(3).partitions() == [OTHER, PARTITION]  # with records: to the end
    assert context.answer({})[0] == Errors.INVALID_SHARE_SESSION_EPOCH  # a later request has come


def test_too_many_sessions() -> None:
    kit = Kit(max_share_sessions=1)
    kit.session(0, PARTITION)
    kit.session(0, PARTITION)  # the same member
    with pytest.raises(ShareSessionLimitReachedException):
        kit.session(0, PARTITION, member="m2")


def test_the_end_of_a_connection(kit: Kit) -> None:
    kit.logs.append(4)
    kit.session(0, PARTITION, connection=1)
    kit.session(0, PARTITION, member="m2", connection=2)
    kit.fetch("m1")
    kit.fetch("m2", max_wait_ms=5000)
    kit.manager.sessions.on_disconnect(1)
    assert kit.acquired() == [[(0, 3, 1)], [(0, 3, 2)]]
    assert kit.manager._partitions
    kit.manager.sessions.on_disconnect(2)
    assert not kit.manager._partitions  # the group's last session
    kit.manager.sessions.on_disconnect(2)


def test_a_queue_keeps_the_partitions(kit: Kit) -> None:
    kit.manager.hold(GROUP)
    kit.manager.share_partition(GROUP, PARTITION)
    kit.session(0, PARTITION)
    kit.manager.sessions.on_disconnect(1)
    assert kit.manager._partitions
    kit.manager.let_go(GROUP)
    assert not kit.manager._partitions


def test_the_manager_closes(kit: Kit) -> None:
    kit.fetch(max_wait_ms=10_000)
    kit.manager.close()
    assert kit.answers == [{}]


def test_bytes_are_shared_out() -> None:
    partitions = [PARTITION, OTHER]
    assert sorted(shared_out(101, partitions, 2).values()) == [50, 51]
    assert sorted(shared_out(3, partitions, 4).values()) == [1, 2]
    assert sorted(shared_out(1, partitions, 2).values()) == [0, 1]
    assert sorted(shared_out(-1, partitions, 2).values()) == [0, 0]
    assert rotated(partitions, 1) == [OTHER, PARTITION]
    assert rotated(partitions, 2) == rotated(partitions, 0) == partitions
