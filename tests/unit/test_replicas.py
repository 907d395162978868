"""Which copy of a partition is read, how far, and when two copies contradict each other: tables, without a file."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from kafkalog._face import cluster_metadata
from kafkalog._face.cluster_metadata import MetadataReader, PartitionState, read_cluster_metadata
from kafkalog._face.replicas import (
    RESTS_MS,
    Bound,
    Brokers,
    Copy,
    Said,
    agreed_end,
    bound_of,
    choose,
    parts_below_mark,
)
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException
from tests.unit import replica_kit
from tests.unit.cluster_kit import NODE_ID, TOPIC_IDS, batch, metadata_log, snapshot
from tests.unit.replica_kit import Batch

NOW_MS = 1_000_000


def log(
    node: int, end: int, *epochs: tuple[int, int], mark: int | None = None, start: int = 0, age: int = RESTS_MS
) -> Copy:
    entries = tuple(EpochEntry(*each) for each in epochs)
    return Copy(
        f"/disk-{node}", node, start, end, entries, entries[-1].epoch if entries else -1, mark, NOW_MS - age, "id"
    )


def said(
    leader: int = 1,
    epoch: int = 5,
    isr: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
    min_isr: int | None = 1,
    is_of_leader: bool = True,
) -> Said:
    return Said("id", PartitionState(leader, epoch, isr, elr), replicas, min_isr, is_of_leader)


@pytest.mark.parametrize(
    ("one", "other", "end"),
    [
        (log(1, 100, (0, 0)), log(2, 80, (0, 0)), 80),
        (log(1, 100, (0, 0), (1, 50)), log(2, 80, (0, 0)), 50),  # 2 led epoch 0 on, and wrote 30 that are lost
        (log(1, 100, (0, 0), (2, 50)), log(2, 80, (0, 0), (1, 60)), 50),
        (log(1, 100, (0, 0), (2, 70)), log(2, 80, (0, 0), (1, 60)), 60),
        (log(1, 100, (0, 0), (2, 50), (3, 90)), log(2, 95, (0, 0), (2, 50)), 90),
        (log(1, 100, (0, 0), (2, 50), (3, 90)), log(2, 85, (0, 0), (2, 50)), 85),
        (log(1, 100, (3, 60), start=60), log(2, 80, (2, 0)), 60),  # retention took what they had in common
        (log(1, 100, (3, 60), start=60), log(2, 50, (2, 0)), 50),
        (log(1, 100), log(2, 80, (2, 0)), 80),  # no history is known
        (log(1, 100, (0, 0), (4, 100)), log(2, 80, (0, 0)), 80),  # an epoch without a record
        # Compaction took the first batches of epoch 2; a new follower knows it from the first that is left.
        (log(1, 100, (1, 0), (2, 50)), log(2, 100, (1, 0), (2, 70)), 100),
    ],
)
def test_how_far_histories_agree(one: Copy, other: Copy, end: int) -> None:
    assert agreed_end(one, other) == end
    assert agreed_end(other, one) == end


A, B, C = log(1, 100, (5, 0)), log(2, 120, (4, 0)), log(3, 90, (5, 0))


@pytest.mark.parametrize(
    ("copies", "what", "node", "why", "is_behind"),
    [
        ((A, B, C), said(leader=1), 1, "it leads, in epoch 5", False),
        ((A, B, C), said(leader=3), 3, "it leads, in epoch 5", False),
        ((A, B, C), None, 1, "it has the highest leader epoch and end", False),
        ((A,), None, 1, "it is the only copy", False),
        ((A, B, C), said(leader=2, epoch=4), 1, "higher leader epoch than the metadata", False),
        ((B, C), said(leader=1), 3, "the leader, broker 1, is not here, and it is in sync", False),
        ((A, B, C), said(leader=-1, isr=(3,), elr=(1,)), 3, "no broker leads, and it is in sync", False),
        ((A, B), said(leader=-1, isr=(), elr=(2,)), 2, "no broker leads, and it may be elected", False),
        (
            (A._replace(node_id=None),),
            said(leader=1),
            None,
            "nothing says which broker the directory",
            False,
        ),
        ((B,), said(leader=1, isr=(1, 3)), 2, "no copy here is in sync (the brokers in sync are 1, 3)", True),
    ],
)
def test_which_copy_is_read(
    copies: tuple[Copy, ...], what: Said | None, node: int | None, why: str, is_behind: bool
) -> None:
    choice = choose(copies, what)
    assert (choice.copy.node_id, choice.is_behind) == (node, is_behind)
    assert why in choice.why


def test_the_longest_is_read_whoever_leads() -> None:
    assert choose((A, B, C), said(leader=1), longest=True).copy is B


@pytest.mark.parametrize(
    ("copies", "what", "offset"),
    [
        # The marks of all copies count, as far as the histories agree.
        ((log(1, 100, (5, 0), mark=60), log(2, 100, (5, 0), mark=70)), None, 70),
        ((log(1, 100, (4, 0), (5, 50), mark=60), log(2, 100, (4, 0), mark=70)), None, 60),
        ((log(1, 60, (5, 0), mark=50), log(2, 100, (5, 0), mark=70)), None, 60),
        ((log(1, 100, (5, 0), mark=0),), said(isr=(1, 2)), 0),
        # All that may lead exist, and rest: the records that they all have are safe.
        ((log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=60)), said(isr=(1, 2)), 90),
        ((log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=60)), said(isr=(1, 2), is_of_leader=False), 60),
        ((log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=60)), said(isr=(1, 2, 3)), 60),
        ((log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=60, age=9)), said(isr=(1, 2)), 60),
        ((log(1, 100, (5, 0), mark=60),), said(isr=(1,)), 100),
        ((log(1, 100, (5, 0), mark=60),), said(isr=(1,), min_isr=2), 60),  # the high watermark rests
        ((log(1, 100, (5, 0), mark=60),), said(isr=(1,), min_isr=None), 60),
        ((log(1, 100, (5, 0), mark=60),), said(isr=(1,), elr=(2,)), 60),
        ((log(1, 100, (6, 0), mark=60),), said(isr=(1,), epoch=5), 60),  # the metadata is old
        # One replica has no mark.
        ((log(1, 100, (5, 0), mark=60),), said(isr=(1,), replicas=(1,)), None),
        ((log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=80)), said(isr=(1,), replicas=(1,), min_isr=2), 100),
    ],
)
def test_how_far_a_copy_is_read(copies: tuple[Copy, ...], what: Said | None, offset: int | None) -> None:
    bound = bound_of(copies[0], copies, what, NOW_MS)
    assert (bound.offset, bound.is_known) == (offset, True)


def test_nobody_knows_how_far() -> None:
    assert bound_of(A, (A,), said(isr=(1, 2)), NOW_MS) == Bound(
        0, "nothing here says where the high watermark is", is_known=False
    )
    new = A._replace(mtime_ms=NOW_MS)
    assert bound_of(new, (new,), said(isr=(1, 2)), NOW_MS).is_known, "the checkpoint of a new partition will come"


@pytest.mark.parametrize(
    ("copy", "other", "text"),
    [
        (log(1, 100, (5, 0), mark=60), log(2, 90, (5, 0), mark=90), None),
        (log(1, 100, (4, 0), (5, 50)), log(2, 90, (4, 0), mark=50), None),  # 2 is yet to be truncated
        (log(1, 100, (4, 0), (5, 50)), log(2, 90, (4, 0), mark=51), "different leader epochs from offset 50 on"),
        (log(1, 50, (5, 0)), log(2, 90, (5, 0), mark=60), "/disk-1 (broker 1) ends at offset 50"),
        (log(1, 50, (5, 0)), log(2, 90, (5, 0)), None),
        (log(1, 200, (5, 100), start=100), log(2, 90, (4, 0), mark=90), None),  # nothing in common
    ],
)
def test_what_contradicts(copy: Copy, other: Copy, text: str | None) -> None:
    found = parts_below_mark(copy, other)
    assert found is None if text is None else text in (found or "")


# --- the cluster's metadata ------------------------------------------------------------------------------------


def test_who_leads_is_read_from_the_metadata(tmp_path: Path) -> None:
    """As the controllers replay it: a leader that is named begins an epoch, what is null stays."""
    replica_kit.metadata(
        tmp_path,
        replica_kit.partition(),
        replica_kit.change(isr=[1, 2]),
        replica_kit.change(leader=2, isr=[2], eligibleLeaderReplicas=[1]),
        replica_kit.change(leader=2),
        replica_kit.change(eligibleLeaderReplicas=[]),
    )
    found = read_cluster_metadata([str(tmp_path)], OS_FILES)
    assert found is not None
    assert found.problem is None
    assert found.topics["orders"].states[0] == PartitionState(2, 2, (2,), ())


def test_a_snapshot_says_it_too(tmp_path: Path) -> None:
    named = ("TOPIC_RECORD", {"name": "orders", "topicId": TOPIC_IDS["orders"]}, 0)
    snapshot(tmp_path, [named, replica_kit.partition(leader=3, epoch=7, isr=[3], elr=[1, 2])], 2)
    metadata_log(tmp_path, [], base_offset=2)
    found = read_cluster_metadata([str(tmp_path)], OS_FILES)
    assert found is not None
    assert found.topics["orders"].states[0] == PartitionState(3, 7, (3,), (1, 2))
    assert found.topics["orders"].replicas[0] == (1, 2, 3)


def test_the_newest_metadata_counts(tmp_path: Path) -> None:
    """A broker that was down has an older one."""
    paths = [str(replica_kit.broker(tmp_path, node)) for node in (1, 2, 3)]
    replica_kit.metadata(Path(paths[0]), replica_kit.partition())
    replica_kit.metadata(Path(paths[1]), replica_kit.partition(), replica_kit.change(leader=2, isr=[2, 3]))
    seen = Brokers(paths).look()
    assert seen.node_ids == {1, 2, 3}
    assert seen.metadata_nodes == {1, 2}
    found = seen.said(replica_kit.TopicPartition("orders", 0), [None])
    assert found is not None
    assert (found.state.leader, found.is_of_leader, found.min_isr) == (2, True, None)
    assert seen.said(replica_kit.TopicPartition("orders", 0), ["A" * 21 + "g"]) is None, "another topic of that name"


def test_metadata_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that continued has the same as one that reads everything; other files are read from their beginning."""
    root = replica_kit.broker(tmp_path, 1)
    replica_kit.metadata(root, replica_kit.partition())
    reader = MetadataReader(str(root), OS_FILES)
    first = reader.read()
    path = root / "__cluster_metadata-0" / f"{0:020d}.log"
    whole: list[str] = []
    times: list[int] = []
    read = cluster_metadata._Image.read
    monkeypatch.setattr(
        cluster_metadata._Image, "read", lambda self, folder, files: whole.append(folder) or read(self, folder, files)
    )

    def add(offset: int, **change: Any) -> Any:
        with path.open("ab") as out:
            out.write(batch([replica_kit.change(**change)], offset))
        times.append(len(times))
        os.utime(path, (len(times), len(times)))  # within a tick of the clock nobody could tell
        found, fresh = reader.read(), read_cluster_metadata([str(root)], OS_FILES)
        assert found == fresh
        assert found is not None
        return found.topics["orders"].states[0]

    assert add(2, isr=[1, 2]).isr == (1, 2)
    assert add(3, leader=2) == PartitionState(2, 1, (1, 2))
    assert len(whole) == 2, "those of the fresh ones"
    assert first is not None
    assert first.topics["orders"].states[0].isr == (1, 2, 3), "what was read before stays"
    path.write_bytes(path.read_bytes()[: -len(batch([replica_kit.change(leader=2)], 3))])
    assert add(3, leader=3) == PartitionState(3, 1, (1, 2))
    assert len(whole) == 4, "it was cut, and another batch is there"


def test_two_clusters_are_refused(tmp_path: Path) -> None:
    paths = [
        str(replica_kit.broker(tmp_path, NODE_ID)),
        str(replica_kit.broker(tmp_path, 2, cluster_id="another-cluster-000000")),
    ]
    with pytest.raises(IllegalArgumentException, match=r"is of the cluster .* and .* of the cluster another-cluster"):
        Brokers(paths).look()


# --- a cluster that fails ---------------------------------------------------------------------------------------


class Node:
    def __init__(self) -> None:
        self.log: list[int] = []  # the leader epoch of each record: with its offset it says which record it is
        self.mark = self.checkpoint = 0
        self.is_up = True

    def seen(self, number: int) -> Copy:
        epochs = [
            (epoch, offset) for offset, epoch in enumerate(self.log) if offset == 0 or self.log[offset - 1] != epoch
        ]
        return log(number, len(self.log), *epochs, mark=self.checkpoint)


class Model:
    """Three nodes with clean elections alone, and what readers of their disks were promised."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.nodes = {number: Node() for number in (1, 2, 3)}
        self.leader, self.epoch = 1, 0
        self.isr, self.elr = {1, 2, 3}, set[int]()
        self.min_isr = draw.choice((1, 2, 3))
        self.promised: list[int] = []
        self.reached: dict[int, int] = {}  # the followers' ends as the leader knows them

    def step(self) -> None:
        self.draw.choice(
            (self.append, self.fetch, self.fetch, self.checkpoint, self.shrink, self.crash, self.start, self.read)
        )()

    def append(self) -> None:
        if self.leader > 0:
            self.nodes[self.leader].log += [self.epoch] * self.draw.randrange(1, 5)
            self.advance()

    def advance(self) -> None:
        if len(self.isr) >= self.min_isr:
            leads = self.nodes[self.leader]
            ends = {**self.reached, self.leader: len(leads.log)}
            leads.mark = max(leads.mark, min(ends.get(each, 0) for each in self.isr))

    def fetch(self) -> None:
        number = self.draw.choice((1, 2, 3))
        node = self.nodes[number]
        if self.leader < 0 or number == self.leader or not node.is_up:
            return
        leads = self.nodes[self.leader]
        same = next((at for at, pair in enumerate(zip(node.log, leads.log, strict=False)) if pair[0] != pair[1]), None)
        end = min(len(node.log), len(leads.log)) if same is None else same
        node.log = leads.log[: max(end, self.draw.randrange(end, len(leads.log) + 1))]
        node.mark = min(leads.mark, len(node.log))
        self.reached[number] = len(node.log)
        if len(node.log) >= leads.mark and number not in self.isr and len(node.log) == len(leads.log):
            self.isr.add(number)
        if len(self.isr) >= self.min_isr:
            self.elr.clear()
        self.elr -= self.isr
        self.advance()

    def checkpoint(self) -> None:
        node = self.nodes[self.draw.choice((1, 2, 3))]
        if node.is_up:
            node.checkpoint = node.mark

    def shrink(self) -> None:
        if self.leader > 0:
            self.leave(self.draw.choice((1, 2, 3)))

    def leave(self, number: int) -> None:
        if number == self.leader or number not in self.isr:
            return
        self.isr.discard(number)
        if len(self.isr) < self.min_isr:
            self.elr.add(number)
        if self.leader > 0:
            self.advance()

    def crash(self) -> None:
        number = self.draw.choice((1, 2, 3))
        self.nodes[number].is_up = False
        if number == self.leader:
            self.leader = -1
        if len(self.isr) > 1 or number not in self.isr:
            self.leave(number)
        self.elect()

    def start(self) -> None:
        number = self.draw.choice((1, 2, 3))
        self.nodes[number].is_up = True
        self.elect()

    def elect(self) -> None:
        if self.leader > 0:
            return
        for nodes in (self.isr, self.elr):
            found = [each for each in sorted(nodes) if self.nodes[each].is_up]
            if found:
                self.leader, self.epoch = self.draw.choice(found), self.epoch + 1
                self.isr, self.reached = ({self.leader}, {}) if nodes is self.elr else (self.isr, {})
                self.elr = set() if len(self.isr) >= self.min_isr else self.elr - self.isr
                leads = self.nodes[self.leader]
                assert leads.log[: len(self.promised)] == self.promised, "the cluster took back what was read"
                leads.mark = min(leads.mark, len(leads.log))
                self.advance()
                return

    def read(self) -> None:
        """Some of the disks, with or without the metadata."""
        numbers = self.draw.sample((1, 2, 3), self.draw.randrange(1, 4))
        copies = [self.nodes[each].seen(each) for each in numbers]
        state = PartitionState(self.leader, self.epoch, tuple(self.isr), tuple(self.elr))
        what = Said("id", state, (1, 2, 3), self.draw.choice((self.min_isr, None)), is_of_leader=True)
        known = self.draw.choice((what, None))
        choice = choose(copies, known)
        bound = bound_of(choice.copy, copies, known, NOW_MS)
        assert bound.offset is not None
        read = self.nodes[choice.copy.node_id or 0].log[: bound.offset]
        shorter = min(len(read), len(self.promised))
        assert read[:shorter] == self.promised[:shorter], "two reads have other records at one offset"
        self.promised = max(read, self.promised, key=len)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_was_read_is_taken_back(seed: int) -> None:
    for number in range(25):
        model = Model(random.Random(seed * 1000 + number))
        for _ in range(120):
            model.step()


# --- a log as if it ended sooner -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_that_ends_sooner_is_that_of_a_shorter_log(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    batches: list[Batch] = []
    running: set[int] = set()
    for _ in range(draw.randrange(1, 25)):
        producer = draw.choice((-1, 7, 8))
        if producer in running and draw.random() < 0.5:
            batches.append(Batch(0, producer_id=producer, ends=draw.random() < 0.5))
            running.discard(producer)
        else:
            batches.append(Batch(0, draw.randrange(1, 9), producer_id=producer))
            running |= {producer} - {-1}
    of_segment = draw.choice((1, 3, 1000))
    replica_kit.copy(replica_kit.broker(tmp_path, 1), batches, None, batches_of_segment=of_segment)
    whole = PartitionView(tmp_path / "broker-1", "orders-0").snapshot
    for count in range(len(batches) + 1):
        root = tmp_path / f"cut-{count}"
        root.mkdir()
        replica_kit.copy(root, batches[:count], None, batches_of_segment=of_segment)
        shorter = PartitionView(root, "orders-0").snapshot
        end = sum(each.offsets for each in batches[:count])
        cut = whole.until(end)
        assert (cut.log_start_offset, cut.log_end_offset) == (0, end)
        assert cut.last_stable_offset == shorter.last_stable_offset, (batches, end)
        assert cut.damage_at_end("read_committed") is None
        # An aborted transaction is known once its marker exists.
        assert [txn[:4] for txn in cut.aborted] == [txn[:4] for txn in shorter.aborted]
        for offset in range(end + 2):
            assert cut.offset_for_time(replica_kit.NOW_MS + offset) == shorter.offset_for_time(
                replica_kit.NOW_MS + offset
            )
            if offset < end:
                mine, its = cut.position_of(offset), shorter.position_of(offset)
                assert (cut.bases[mine[0]], mine[1]) == (shorter.bases[its[0]], its[1])
        assert cut.until(end) is cut
