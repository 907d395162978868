"""A store's share coordinator: its topic, its upkeep, what another open knows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.format.names import SHARE_GROUP_STATE_TOPIC
from kafkalog.engine.format.share_records import ShareGroupOffset, SharePartitionKey


class Shares:
    """The share coordinator of a store, asked about partition 0 of `outbox`."""

    def __init__(self, store: kafkalog.Store) -> None:
        home = store._own()
        assert isinstance(home, StoreHome)
        self.coordinators = home.coordinators
        self.catalog = home.catalog
        self.coordinator = self.coordinators.share_coordinator
        found = self.coordinators.topics.topic_id("outbox")
        assert found is not None
        self.key = SharePartitionKey("mail", found, 0)

    def ask(self, call: str, **fields: Any) -> dict[str, Any]:
        topics = [{"topicId": self.key.topic_id, "partitions": [{"partition": 0, **fields}]}]
        answer = getattr(self.coordinator, call)({"groupId": "mail", "topics": topics})
        found: dict[str, Any] = answer["results"][0]["partitions"][0]
        return found

    def initialize(self) -> None:
        assert self.ask("initialize_state", stateEpoch=1, startOffset=0)["errorCode"] == 0

    def ack(self, offset: int) -> None:
        batch = {"firstOffset": offset, "lastOffset": offset, "deliveryState": 2, "deliveryCount": 1}
        done = self.ask(
            "write_state", stateEpoch=9, leaderEpoch=0, startOffset=-1, deliveryCompleteCount=-1, stateBatches=[batch]
        )
        assert done["errorCode"] == 0, done

    @property
    def state(self) -> ShareGroupOffset | None:
        return self.coordinator.shard(self.key).states().get(self.key)

    @property
    def number(self) -> int:
        return self.coordinator.partition_for(self.key)


def test_the_topic_has_kafkas_settings_and_is_made_at_the_first_state(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        shares = Shares(store)
        assert shares.ask("read_state_summary", leaderEpoch=0)["startOffset"] == -1
        assert SHARE_GROUP_STATE_TOPIC not in store.topics(internal=True)
        shares.initialize()
        info = store.describe_topic(SHARE_GROUP_STATE_TOPIC)
        assert (info.partitions, info.is_internal) == (50, True)
        assert dict(info.overrides) == {
            "cleanup.policy": "delete", "compression.type": "producer", "segment.bytes": "104857600",
            "min.insync.replicas": "2", "retention.ms": "-1",
        }  # fmt: skip
        assert shares.catalog.numbers(SHARE_GROUP_STATE_TOPIC) == [shares.number]
        assert "outbox" in store.topics()
        assert SHARE_GROUP_STATE_TOPIC not in store.topics()


def test_states_survive_a_close(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        shares = Shares(store)
        shares.initialize()
        for offset in (0, 1, 5):
            shares.ack(offset)
        before = shares.state
    with kafkalog.open(tmp_path / "shop") as store:
        assert Shares(store).state == before
        assert before is not None
        assert before.state_batches == ((0, 1, 2, 1), (5, 5, 2, 1))


def test_pruning_moves_the_start_of_the_log(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        shares = Shares(store)
        shares.coordinators.use_share_settings(ShareSettings(snapshot_update_records_per_snapshot=2))
        shares.initialize()
        for offset in range(10):
            shares.ack(offset)
        shares.coordinator.prune()
        log = shares.catalog.internal_partition(SHARE_GROUP_STATE_TOPIC, shares.number, create=False)
        assert log is not None
        start = log.log_start_offset
        assert start > 0
        before = shares.state
    with kafkalog.open(tmp_path / "shop") as store:
        again = Shares(store)
        assert again.state == before
        log = again.catalog.internal_partition(SHARE_GROUP_STATE_TOPIC, again.number, create=False)
        assert log is not None
        assert log.log_start_offset == start


def test_upkeep_runs_by_the_timers(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        shares = Shares(store)
        timers = shares.coordinators.timers
        assert ("share coordinator", "prune") not in timers
        shares.initialize()
        assert ("share coordinator", "prune") in timers
        assert ("share coordinator", "snapshot") in timers
    with kafkalog.open(tmp_path / "shop") as store:
        shares = Shares(store)
        assert shares.state is not None  # reading it begins the upkeep, too
        assert ("share coordinator", "prune") in shares.coordinators.timers


def test_a_deleted_topic_takes_its_states_along(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        Shares(store).initialize()
    with kafkalog.open(tmp_path / "shop") as store:
        shares = Shares(store)
        store.delete_topic("outbox")
        assert shares.state is None
        store.create_topic("outbox")
        assert Shares(store).ask("read_state", leaderEpoch=0)["errorCode"] == 42


def test_threads_lose_no_acknowledgement(tmp_path: Path) -> None:
    threads, each = 4, 100
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("outbox")
        shares = Shares(store)
        shares.coordinators.use_share_settings(ShareSettings(snapshot_update_records_per_snapshot=9))
        shares.initialize()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(shares.ack, range(threads * each)))
        expected = ((0, threads * each - 1, 2, 1),)
        assert shares.state is not None
        assert shares.state.state_batches == expected
    with kafkalog.open(tmp_path / "shop") as store:
        again = Shares(store).state
        assert again is not None
        assert again.state_batches == expected


def test_a_state_of_a_higher_leader_epoch_goes_on(tmp_path: Path) -> None:
    """A broker counts its starts as epochs, also if it appends nothing."""
    with kafkalog.open(tmp_path / "shop") as store:
        topic = store.create_topic("outbox")
        for number in range(4):
            topic.append(b"%d" % number)
        with store.queue("mail", topics=["outbox"]) as queue:
            queue.ack(queue.take(1))
        shares = Shares(store)
        assert shares.ask("read_state", leaderEpoch=5)["errorCode"] == 0
    with kafkalog.open(tmp_path / "shop") as store, store.queue("mail", topics=["outbox"]) as queue:
        shares = Shares(store)
        taken = queue.take(1)
        queue.ack(taken)
        state = shares.state
        assert state is not None
        assert ([record.offset for record in taken], state.leader_epoch) == ([1], 5)
        queue.close()
        assert shares.ask("read_state", leaderEpoch=4)["errorCode"] == 74
        assert shares.ask("read_state", leaderEpoch=6)["errorCode"] == 0  # this one fences the store, as a broker
        assert shares.coordinator.leader_epoch_at_start(shares.key) == 5
