"""Fetch: what is read, sessions, and fetches that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.records import records as records_of
from kafkalog.server.request import Pending
from kafkalog.server.sessions import EVICTION_MS, FetchPartition, FetchSessionCache
from tests.unit.data_kit import FETCH, Node, batch, fetched, node
from tests.unit.test_server_produce import holder, of
from tests.unit.tier_kit import tiered

VERSION = 17


def take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fetch goes on after others have had their turn, once for each partition."""
    monkeypatch.setattr("kafkalog.server.request.LARGE_BYTES", -1)
    for module in ("sessions", "handlers.fetch"):
        monkeypatch.setattr(f"kafkalog.server.{module}.TURN_PARTITIONS", 1)


@pytest.fixture(params=[False, True], ids=["at-once", "in-turns"])
def at(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    if request.param:
        take_turns(monkeypatch)
    with node(tmp_path) as found:
        yield found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Functions that the I/O thread runs soon, in a test whose fetches take turns."""
    take_turns(monkeypatch)
    return []


def begin(
    at: Node,
    *partitions: dict[str, Any],
    topic: str = "",
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    **more: Any,
) -> Any:
    fields: dict[str, Any] = {
        "minBytes": 1,
        "maxBytes": 1 << 20,
        "isolationLevel": 0,
        "rackId": "",
        "forgottenTopicsData": [],
    }
    version: int = more.pop("version", VERSION)
    topics = [{"topic": "orders", "topicId": topic, "partitions": list(partitions)}] if partitions else []
    fields |= {"maxWaitMs": wait_ms, "sessionId": session[0], "sessionEpoch": session[1], "topics": topics}
    return at.begin(FETCH, version, **(fields | more))


def fetch(at: Node, *partitions: dict[str, Any], **more: Any) -> Any:
    return at.told(FETCH, more.get("version", VERSION), begin(at, *partitions, **more))


def told(answer: Any) -> dict[int, Any]:
    return {each["partitionIndex"]: each for topic in answer["responses"] for each in topic["partitions"]}


def values(partition: Any) -> list[bytes | None]:
    data = bytes(partition["records"])
    return [each.value for header in MemoryRecords(data).batches() for each in records_of(data, header)]


# --- reading ---------------------------------------------------------------------------------------------


def test_batches_are_read_with_the_offsets_of_the_log(at: Node) -> None:
    topic = at.topic()
    at.produce(batch(b"a", b"b"))
    at.produce(batch(b"c"))
    found = told(fetch(at, fetched(0, 1), topic=topic))[0]
    assert values(found) == [b"a", b"b", b"c"]  # whole batches
    assert (found["errorCode"], found["highWatermark"], found["lastStableOffset"], found["logStartOffset"]) == (
        0,
        3,
        3,
        0,
    )
    assert found["abortedTransactions"] is None


def test_a_topic_may_be_named(at: Node) -> None:
    at.topic()
    at.produce(batch(b"a"))
    answer = fetch(at, fetched(0, 0), version=12)
    assert (answer["responses"][0]["topic"], values(told(answer)[0])) == ("orders", [b"a"])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (fetched(0, 2), Errors.OFFSET_OUT_OF_RANGE),
        (fetched(0, -1), Errors.OFFSET_OUT_OF_RANGE),
        (fetched(5, 0), Errors.UNKNOWN_TOPIC_OR_PARTITION),
        (fetched(0, 0, currentLeaderEpoch=0), Errors.NONE),
        (fetched(0, 0, currentLeaderEpoch=1), Errors.UNKNOWN_LEADER_EPOCH),
        (fetched(0, 0, lastFetchedEpoch=7), Errors.OFFSET_OUT_OF_RANGE),
    ],
)
def test_errors_of_partitions(at: Node, asked: dict[str, Any], code: Errors) -> None:
    topic = at.topic()
    at.produce(batch(b"a"))
    found = told(fetch(at, asked, topic=topic))[asked["partition"]]
    assert found["errorCode"] == code
    if code:
        assert (found["highWatermark"], found["lastStableOffset"], bytes(found["records"])) == (-1, -1, b"")


def test_an_older_leader_epoch_is_fenced_and_told_the_leader(at: Node) -> None:
    topic = at.topic()
    log = at.broker.home.manager.get_log("orders-0")
    assert log is not None
    log.append_as_leader(batch(b"a"), 3)
    found = told(fetch(at, fetched(0, 0, currentLeaderEpoch=2), topic=topic))[0]
    assert (found["errorCode"], found["currentLeader"]) == (
        Errors.FENCED_LEADER_EPOCH, {"leaderId": 1, "leaderEpoch": 3},
    )  # fmt: skip
    diverging = told(fetch(at, fetched(0, 1, lastFetchedEpoch=2), topic=topic))[0]
    assert diverging["divergingEpoch"] == {"epoch": 2, "endOffset": 0}
    log.append_as_leader(batch(b"b"), 5)
    found = told(fetch(at, fetched(0, 2, lastFetchedEpoch=4), topic=topic))[0]
    assert (found["divergingEpoch"], bytes(found["records"])) == ({"epoch": 3, "endOffset": 1}, b"")


def test_an_unknown_topic_id(at: Node) -> None:
    found = told(fetch(at, fetched(0, 0), topic="A" * 21 + "Q"))[0]
    assert found["errorCode"] == Errors.UNKNOWN_TOPIC_ID


NAMELESS, UNKNOWN = "A" * 22, "A" * 21 + "Q"


@pytest.mark.parametrize(
    ("ids", "codes"),
    [
        ((NAMELESS,), [Errors.UNKNOWN_TOPIC_ID]),
        ((UNKNOWN, NAMELESS), [Errors.UNKNOWN_TOPIC_ID, Errors.UNKNOWN_TOPIC_ID]),
        ((NAMELESS, UNKNOWN), None),
        ((NAMELESS, NAMELESS), None),
        (("", UNKNOWN), [Errors.UNKNOWN_TOPIC_ID, Errors.UNKNOWN_TOPIC_OR_PARTITION]),
        (("", NAMELESS), None),
    ],
)
def test_the_id_of_zeros_before_another_partition(at: Node, ids: tuple[str, ...], codes: list[Errors] | None) -> None:
    """Kafka fails at such an answer (None).  Unknown ids are told first; "" is a topic without such a partition."""
    topic = at.topic()
    asked = [{"topicId": each or topic, "partitions": [fetched(7 + number, 0)]} for number, each in enumerate(ids)]
    answer = fetch(at, fetched(0, 0), topics=asked)
    assert answer["errorCode"] == (Errors.NONE if codes else Errors.UNKNOWN_SERVER_ERROR)
    assert [row["errorCode"] for row in told(answer).values()] == (codes or [])


def test_limits_of_bytes(at: Node) -> None:
    topic = at.topic(partitions=3)
    one = batch(b"x" * 1000)
    for _ in range(3):
        at.produce(one, one, one)
    found = told(fetch(at, fetched(0, 0, 1), fetched(1, 0, 1), fetched(2, 0), topic=topic, maxBytes=2 * len(one)))
    sizes = [len(found[each]["records"]) for each in range(3)]
    # The first gets a batch that is larger than its limit; the second would get less than one; the third the rest.
    assert sizes == [len(one), 0, len(one)]


def test_the_least_bytes_may_be_more_than_the_limits_let_through(at: Node) -> None:
    topic = at.topic(partitions=2)
    one = batch(b"x" * 1000)
    at.produce(one, one)
    limit = len(one) + 100
    found = fetch(at, fetched(0, 0), fetched(1, 0), topic=topic, wait_ms=1000, minBytes=limit, maxBytes=limit)
    assert [len(found["responses"][0]["partitions"][each]["records"]) for each in range(2)] == [len(one), 0]
    assert at.data.waiting.count == 0
    assert not any(log.waiters for log in at.broker.home.manager.all_logs())


def test_a_follower_is_no_replica(at: Node) -> None:
    topic = at.topic()
    asked = fetched(0, 0)
    found = told(fetch(at, asked, topic=topic, replicaState={"replicaId": 2, "replicaEpoch": 1}))[0]
    assert found["errorCode"] == Errors.NOT_LEADER_OR_FOLLOWER


def test_committed_readers_stop_at_the_open_transaction(at: Node) -> None:
    topic = at.topic()
    producer = holder(at)
    at.produce(batch(b"plain"))
    at.produce(of(producer, b"open"), transactionalId="tx")
    at.produce(batch(b"after"))
    found = told(fetch(at, fetched(0, 0), topic=topic, isolationLevel=1))[0]
    assert (values(found), found["lastStableOffset"], found["highWatermark"]) == ([b"plain"], 1, 3)
    assert found["abortedTransactions"] == []
    assert values(told(fetch(at, fetched(0, 0), topic=topic))[0]) == [b"plain", b"open", b"after"]
    end = {
        "transactionalId": "tx",
        "producerId": producer.producer_id,
        "producerEpoch": producer.epoch,
        "committed": False,
    }
    assert at.ask(26, 5, **end)["errorCode"] == 0
    found = told(fetch(at, fetched(0, 1), topic=topic, isolationLevel=1))[0]
    assert found["abortedTransactions"] == [{"producerId": producer.producer_id, "firstOffset": 1}]


def test_an_untouched_partition_of_an_internal_topic_is_empty(at: Node) -> None:
    at.broker.home.offsets("g", create=True)
    topics = [{"topic": "__consumer_offsets", "partitions": [fetched(7, 0)]}]
    found = told(at.ask(FETCH, 12, maxWaitMs=0, minBytes=1, maxBytes=1 << 20, isolationLevel=0, topics=topics))[7]
    assert (found["errorCode"], found["highWatermark"]) == (0, 0)


# --- sessions --------------------------------------------------------------------------------------------


def test_a_session_names_only_what_has_changed(at: Node) -> None:
    topic = at.topic(partitions=3)
    at.produce(batch(b"a"), batch(b"b"))
    first = fetch(at, fetched(0, 0), fetched(1, 0), fetched(2, 0), topic=topic, session=(0, 0))
    session = first["sessionId"]
    assert session > 0
    assert list(told(first)) == [0, 1, 2]
    second = fetch(at, fetched(0, 1), fetched(1, 1), topic=topic, session=(session, 1))
    assert (second["errorCode"], told(second)) == (0, {})
    at.produce(batch(b"c"))
    third = fetch(at, session=(session, 2))
    assert {number: values(each) for number, each in told(third).items()} == {0: [b"c"]}
    # The partition that had records is read last from now on.
    at.produce(batch(b"d"), batch(b"e"))
    fourth = fetch(at, fetched(0, 2), topic=topic, session=(session, 3))
    assert list(told(fourth)) == [1, 0]
    forgotten = [{"topicId": topic, "partitions": [1]}]
    fifth = fetch(at, fetched(0, 3), topic=topic, session=(session, 4), forgottenTopicsData=forgotten)
    assert told(fifth) == {}


def test_a_session_is_refused_out_of_order(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    assert fetch(at, session=(session, 2))["errorCode"] == Errors.INVALID_FETCH_SESSION_EPOCH
    assert fetch(at, session=(session + 1, 1))["errorCode"] == Errors.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(at, session=(session, 1), version=12)["errorCode"] == Errors.FETCH_SESSION_TOPIC_ID_ERROR
    assert fetch(at, session=(session, 1))["errorCode"] == Errors.NONE
    assert fetch(at, fetched(0, 0), topic=topic, session=(session, -1))["sessionId"] == 0
    assert fetch(at, session=(session, 2))["errorCode"] == Errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_forgets_everything_ends(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    forgotten = [{"topicId": topic, "partitions": [0]}]
    assert fetch(at, session=(session, 1), forgottenTopicsData=forgotten)["sessionId"] == 0
    assert len(at.data.fetches.cache) == 0


def test_the_start_of_the_log_is_news(at: Node) -> None:
    topic = at.topic()
    at.produce(batch(b"a"))
    session = fetch(at, fetched(0, 1), topic=topic, session=(0, 0))["sessionId"]
    assert told(fetch(at, session=(session, 1))) == {}
    at.ask(21, 2, topics=[{"name": "orders", "partitions": [{"partitionIndex": 0, "offset": 1}]}], timeoutMs=1)
    assert told(fetch(at, session=(session, 2)))[0]["logStartOffset"] == 1


def cached(cache: FetchSessionCache, size: int, now_ms: int, *, is_privileged: bool = False) -> Any:
    partitions = {("t", number): FetchPartition(("t", number), "t", "", number) for number in range(size)}
    return cache.create(partitions, now_ms, is_privileged=is_privileged, uses_ids=False)


def test_sessions_make_room() -> None:
    cache = FetchSessionCache(8)
    made = [cached(cache, 2, 0) for _ in range(8)]
    assert cached(cache, 9, 1) is None  # all are young
    old = EVICTION_MS + 1
    for each in made:
        cache.touch(each, old)  # in use, and old enough
    assert cached(cache, 1, old) is None  # it is smaller than all
    larger = cached(cache, 3, old)
    assert larger is not None
    assert len(cache) == 8
    assert cached(cache, 1, 2 * old + 1) is not None  # one was not used for two minutes
    assert cache.evictions == 2
    assert FetchSessionCache(7).slots == 0


# --- waiting ---------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_an_append(at: Node) -> None:
    topic = at.topic(partitions=2)
    pending = begin(at, fetched(0, 0), fetched(1, 0), topic=topic, wait_ms=1000)
    assert isinstance(pending, Pending)
    assert not pending.is_ended
    at.produce(batch(b"a"))
    at.data.waiting.look()
    assert values(told(at.told(FETCH, VERSION, pending))[0]) == [b"a"]
    assert at.data.waiting.count == 0


def test_the_first_append_to_an_internal_topic_wakes(at: Node) -> None:
    catalog = at.broker.home.catalog
    at.broker.home.offsets("g", create=True)
    topics = [{"topic": "__consumer_offsets", "partitions": [fetched(7, 0)]}]
    asked: dict[str, Any] = {"minBytes": 1, "maxBytes": 1 << 20, "isolationLevel": 0, "topics": topics}
    assert told(at.ask(FETCH, 12, maxWaitMs=0, **asked))[7]["highWatermark"] == 0
    assert catalog.internal_partition("__consumer_offsets", 7, create=False) is None
    pending = at.begin(FETCH, 12, maxWaitMs=10_000, **asked)
    assert not pending.is_ended
    log = catalog.internal_partition("__consumer_offsets", 7, create=True)
    assert log is not None
    log.append_as_leader(batch(b"a"), 0)
    at.data.waiting.look()
    assert values(told(at.told(FETCH, 12, pending))[7]) == [b"a"]


def test_the_stores_own_appends_wake(at: Node) -> None:
    topic = at.topic()
    pending = begin(at, fetched(0, 0), topic=topic, wait_ms=1000)
    thread = threading.Thread(target=lambda: at.store.topic("orders").append(b"own"))
    thread.start()
    thread.join()
    at.data.waiting.look()
    assert values(told(at.told(FETCH, VERSION, pending))[0]) == [b"own"]


def test_a_fetch_waits_for_its_least_bytes(at: Node) -> None:
    topic = at.topic()
    one = batch(b"x" * 100)
    pending = begin(at, fetched(0, 0), topic=topic, wait_ms=1000, minBytes=2 * len(one))
    for _ in range(2):
        assert not pending.is_ended
        at.produce(one)
        at.data.waiting.look()
    assert len(told(at.told(FETCH, VERSION, pending))[0]["records"]) == 2 * len(one)


def test_a_fetch_ends_when_its_time_is_over(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    for epoch in range(1, 4):
        pending = begin(at, session=(session, epoch), wait_ms=500)
        at.tick(400)
        assert not pending.is_ended
        at.tick(110)
        answer = at.told(FETCH, VERSION, pending)
        assert (answer["errorCode"], answer["sessionId"], told(answer)) == (0, session, {})
    # Woken in between: nothing is missed by the requests that need no read.
    at.produce(batch(b"a"))
    assert values(told(fetch(at, session=(session, 4), wait_ms=500))[0]) == [b"a"]


@pytest.mark.parametrize("version", [7, 11, 12, 18])
def test_the_answer_of_a_quiet_session_in_each_form(at: Node, version: int) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0), version=version)["sessionId"]
    answers = []
    for epoch in range(1, 4):
        pending = begin(at, session=(session, epoch), wait_ms=50, version=version)
        at.tick(60)
        answers.append(at.told(FETCH, version, pending))
    assert answers[0] == answers[1] == answers[2]  # the first one was read
    assert (answers[0]["sessionId"], answers[0]["responses"]) == (session, [])


def test_an_append_between_two_requests_of_a_quiet_session(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    for epoch in (1, 2):
        pending = begin(at, session=(session, epoch), wait_ms=100)
        at.tick(110)
        assert pending.is_ended
    at.store.topic("orders").append(b"a")
    at.data.waiting.look()
    pending = begin(at, session=(session, 3), wait_ms=100)
    assert values(told(at.told(FETCH, VERSION, pending))[0]) == [b"a"]


def test_a_deleted_topic_ends_its_fetches(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    begin(at, session=(session, 1), wait_ms=100)
    at.tick(110)
    pending = begin(at, session=(session, 2), wait_ms=1000)
    at.store.delete_topic("orders")
    at.data.waiting.look()
    found = told(at.told(FETCH, VERSION, pending))[0]
    assert found["errorCode"] in (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID)


def test_a_connection_that_ends_leaves_nothing(at: Node) -> None:
    topic = at.topic()
    pending = begin(at, fetched(0, 0), topic=topic, wait_ms=1000)
    for each in pending.abandon():
        each()
    assert at.data.waiting.count == 0
    log = at.broker.home.manager.get_log("orders-0")
    assert log is not None
    assert log.waiters == []


def test_a_request_that_overtakes_another(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    first = begin(at, session=(session, 1), wait_ms=1000)
    second = begin(at, session=(session, 2), wait_ms=1000)
    assert at.told(FETCH, VERSION, first)["errorCode"] == Errors.INVALID_FETCH_SESSION_EPOCH
    at.produce(batch(b"a"))
    at.data.waiting.look()
    assert values(told(at.told(FETCH, VERSION, second))[0]) == [b"a"]


def all_of(soon: list[Callable[[], object]]) -> int:
    count = 0
    while soon:
        soon.pop(0)()
        count += 1
    return count


def test_others_have_their_turn_while_many_partitions_are_read(
    tmp_path: Path, soon: list[Callable[[], object]]
) -> None:
    with node(tmp_path) as at:
        topic = at.topic(partitions=3)
        at.broker.call_soon = soon.append
        first = begin(at, *(fetched(each, 0) for each in range(3)), topic=topic, wait_ms=100)
        soon.pop(0)()
        assert not first.is_ended
        assert at.produce(batch(b"a"))[0]["errorCode"] == 0
        assert all_of(soon) >= 3
        found = told(at.told(FETCH, VERSION, first))
        assert [values(found[each]) for each in range(3)] == [[b"a"], [], []]


@pytest.mark.parametrize("turns", range(1, 8))
def test_an_append_in_any_turn_is_not_missed(tmp_path: Path, soon: list[Callable[[], object]], turns: int) -> None:
    with node(tmp_path) as at:
        topic = at.topic(partitions=3)
        at.broker.call_soon = soon.append
        waits = begin(at, *(fetched(each, 0) for each in range(3)), topic=topic, wait_ms=100)
        for _ in range(turns):
            if soon:
                soon.pop(0)()
        at.produce(batch(b"a"))
        all_of(soon)
        at.data.waiting.look()
        all_of(soon)
        assert values(told(at.told(FETCH, VERSION, waits))[0]) == [b"a"]


@pytest.mark.parametrize("turns", range(1, 5))
def test_a_connection_that_ends_between_two_turns(tmp_path: Path, soon: list[Callable[[], object]], turns: int) -> None:
    with node(tmp_path) as at:
        topic = at.topic(partitions=3)
        at.broker.call_soon = soon.append
        waits = begin(at, *(fetched(each, 0) for each in range(3)), topic=topic, wait_ms=100)
        for _ in range(turns):
            soon.pop(0)()
        for run in waits.abandon():
            run()
        all_of(soon)
        assert at.data.waiting.count == 0
        at.produce(batch(b"a"))
        assert not at.data.waiting.rung.take()


@pytest.mark.parametrize("ends", [False, True])
def test_a_session_that_is_overtaken_or_ends_between_two_turns(
    tmp_path: Path, soon: list[Callable[[], object]], ends: bool
) -> None:
    with node(tmp_path) as at:
        topic = at.topic(partitions=3)
        asked = [fetched(each, 0) for each in range(3)]
        session = fetch(at, *asked, topic=topic, session=(0, 0))["sessionId"]
        at.broker.call_soon = soon.append
        slow = begin(at, *asked, topic=topic, session=(session, 1), wait_ms=100)
        for _ in range(4):
            soon.pop(0)()
        begin(at, session=(session, -1 if ends else 2))
        all_of(soon)
        overtaken = Errors.NONE if ends else Errors.INVALID_FETCH_SESSION_EPOCH
        assert at.told(FETCH, VERSION, slow)["errorCode"] == overtaken
        assert at.data.waiting.count == 0
        at.produce(batch(b"a"))
        assert not at.data.waiting.rung.take()


def test_an_error_does_not_wait(at: Node) -> None:
    topic = at.topic()
    assert told(fetch(at, fetched(0, 9), topic=topic, wait_ms=1000))[0]["errorCode"] == Errors.OFFSET_OUT_OF_RANGE


# --- the remote tier -------------------------------------------------------------------------------------


def test_what_only_the_remote_tier_has(tmp_path: Path) -> None:
    tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "3000"})
    with node(tmp_path / "store", {"remote": tmp_path / "tier"}) as at:
        partition = at.store.topic("orders").partition(0)
        assert partition.delete_old_segments() > 0
        log = at.broker.home.manager.get_log("orders-0")
        assert log is not None
        local = log.local_log_start_offset
        assert local > 2
        expected = [each.value for each in partition]
        topic = at.store.topic("orders").info.topic_id
        assert topic is not None
        found, offset = [], 0
        while offset < log.log_end_offset:
            answer = told(fetch(at, fetched(0, offset), topic=topic, isolationLevel=1))[0]
            assert (answer["errorCode"], answer["logStartOffset"], answer["abortedTransactions"]) == (0, 0, [])
            batches = MemoryRecords(bytes(answer["records"])).batches()
            assert batches
            found += values(answer)
            offset = batches[-1].next_offset
        assert found == expected
        assert len(told(fetch(at, fetched(0, 0, 1), topic=topic))[0]["records"]) > 1  # a whole batch
        below = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))
        assert below["sessionId"] > 0


# --- permissions -----------------------------------------------------------------------------------------


class Only:
    """An authorizer that allows one operation on one topic."""

    is_on = True

    def __init__(self, operation: str, name: str) -> None:
        self.allowed = (operation, "TOPIC", name)

    def authorize(self, request: Any, operation: str, resource_type: str, name: str, *, log: bool = True) -> bool:
        return (operation, resource_type, name) == self.allowed

    def authorize_by_resource_type(self, request: Any, operation: str, resource_type: str) -> bool:
        return False


def test_each_topic_needs_its_permission(at: Node) -> None:
    topic, other = at.topic(), at.topic("secret")
    at.broker.authorizer = Only("READ", "orders")  # type: ignore[assignment]
    assert told(fetch(at, fetched(0, 0), topic=topic))[0]["errorCode"] == 0
    assert told(fetch(at, fetched(0, 0), topic=other))[0]["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    for epoch in (1, 2):
        pending = begin(at, session=(session, epoch), wait_ms=100)
        at.tick(110)
        assert told(at.told(FETCH, VERSION, pending)) == {}
    at.broker.authorizer = Only("READ", "secret")  # type: ignore[assignment]
    refused = told(fetch(at, session=(session, 3), wait_ms=0))[0]
    assert refused["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    assert at.produce(batch(b"a"))[0]["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    at.broker.authorizer = Only("WRITE", "orders")  # type: ignore[assignment]
    assert at.produce(batch(b"a"))[0]["errorCode"] == 0
    assert at.produce(batch(b"a"), topic="missing")[0]["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    assert at.ask(22, 5, transactionalId="tx", transactionTimeoutMs=1)["errorCode"] == (
        Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    assert (
        at.ask(22, 5, transactionalId=None, transactionTimeoutMs=1)["errorCode"] == Errors.CLUSTER_AUTHORIZATION_FAILED
    )


def test_an_unknown_isolation_level_fails_what_would_be_read(at: Node) -> None:
    at.topic()
    for level in (2, -1):
        found = at.ask(FETCH, 12, maxWaitMs=0, isolationLevel=level, topics=_asked("orders", "missing"))
        assert found["errorCode"] == -1
        assert {each["partitions"][0]["errorCode"] for each in found["responses"]} == {-1}
        assert at.ask(FETCH, 12, maxWaitMs=0, isolationLevel=level, topics=_asked("missing"))["errorCode"] == 0


def test_an_unknown_isolation_level_in_a_session(at: Node) -> None:
    topic = at.topic()
    session = fetch(at, fetched(0, 0), topic=topic, session=(0, 0))["sessionId"]
    pending = begin(at, session=(session, 1), wait_ms=10)
    at.tick(20)
    assert pending.is_ended  # it is quiet from now on
    codes = [fetch(at, session=(session, epoch), wait_ms=10, isolationLevel=2)["errorCode"] for epoch in (9, 2)]
    assert codes == [Errors.INVALID_FETCH_SESSION_EPOCH, Errors.UNKNOWN_SERVER_ERROR]
    assert fetch(at, session=(7, 1), isolationLevel=2)["errorCode"] == Errors.FETCH_SESSION_ID_NOT_FOUND


def _asked(*names: str) -> list[dict[str, Any]]:
    return [
        {"topic": name, "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 100}]} for name in names
    ]
