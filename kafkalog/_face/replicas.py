"""Copies of a partition on the disks of several brokers: which one to read, up to which offset, and whether they agree.

A follower's log equals the leader's, batch for batch, up to the offset where their histories of leader epochs part.
When the follower meets its leader, the part after that offset is truncated. Records that all in-sync replicas have are
below the high watermark, and a cluster never takes them back (unless an operator allows an unclean election). Each
broker writes the high watermark that it knows into `replication-offset-checkpoint`, every five seconds and at a clean
stop: a lower bound. So a copy is safe to read below the watermark of any copy, as far as the two histories agree. For
logs that nobody writes to, the cluster's metadata says more: records that all electable nodes have are safe, too.

The functions decide from what was seen (`Copy`, `Said`), without a file. `Brokers` reads the small files of
directories. `unequal_places` reads headers of batches. Nothing here writes or takes a lock.
Source: Partition.maybeIncrementLeaderHW, LeaderEpochFileCache.endOffsetFor, ReplicaManager.checkpointHighWatermarks,
PartitionRegistration (4.4.0).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.cluster_metadata import CLUSTER_DEFAULT, ClusterMetadata, MetadataReader, PartitionState
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.format.meta_properties import MetaProperties, read_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.log.snapshot import Snapshot

RESTS_MS = 10_000  # two checkpoint intervals: after that time without a write the metadata on the disk is current
MIN_ISR = "min.insync.replicas"


class Copy(NamedTuple):
    """A partition's log in one directory, as it was seen. `epochs` is its history, oldest first; empty if unknown.
    `latest_epoch` is -1 if there is no record. `watermark` is the checkpoint's; None without a line. `mtime_ms` is that
    of its newest segment."""

    log_dir: str
    node_id: int | None
    start_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...] = ()
    latest_epoch: int = -1
    watermark: int | None = None
    mtime_ms: int = 0
    topic_id: str | None = None
    closed_cleanly: bool = False

    @property
    def place(self) -> str:
        """The copy's name in messages."""
        return self.log_dir if self.node_id is None else f"{self.log_dir} (broker {self.node_id})"


class Said(NamedTuple):
    """The cluster's metadata about a partition. `min_isr` is None if nothing sets it there. `is_of_leader`: the
    metadata is at least as new as that of the node that leads, or may be elected. `is_whole`: all metadata could be
    read."""

    topic_id: str
    state: PartitionState
    replicas: tuple[int, ...]
    min_isr: int | None = None
    is_of_leader: bool = False
    is_whole: bool = True

    @property
    def electable(self) -> frozenset[int]:
        """The nodes that may lead without a loss of records."""
        return frozenset((*self.state.isr, *self.state.elr))


class Choice(NamedTuple):
    """The copy to read. `is_behind`: it may lack records that the cluster has. `why` is for messages."""

    copy: Copy
    why: str
    is_behind: bool = False


class Bound(NamedTuple):
    """The offset up to which a copy may be read; None for its end. `is_known` is False if nothing says how far."""

    offset: int | None
    why: str
    is_known: bool = True


# --- decisions ---------------------------------------------------------------------------------------------


def agreed_end(one: Copy, other: Copy) -> int:
    """Returns the offset up to which two copies have the same history of leader epochs; the smaller end if the history
    of one is unknown. (OffsetsForLeaderEpoch, repeated until both know the epoch.)"""
    end = min(one.end_offset, other.end_offset)
    mine = [entry for entry in one.epochs if entry.start_offset < one.end_offset]
    its = [entry for entry in other.epochs if entry.start_offset < other.end_offset]
    while mine and its and mine[-1].epoch != its[-1].epoch:
        later = mine if mine[-1].epoch > its[-1].epoch else its
        end = min(end, later.pop().start_offset)
    return end


def choose(copies: Sequence[Copy], said: Said | None, *, longest: bool = False) -> Choice:
    """Returns the copy of the leader, or without a leader the copy that an election would choose first.

    `longest`: the copy whose log has the highest end, whatever the metadata says.
    """
    if longest:
        return Choice(max(copies, key=lambda copy: (copy.end_offset, copy.latest_epoch)), "its log is the longest")
    newest = max(copies, key=lambda copy: (copy.latest_epoch, copy.end_offset, copy.watermark or 0))
    if said is None:
        why = "it is the only copy" if len(copies) == 1 else "it has the highest leader epoch and end"
        return Choice(newest, why)
    state = said.state
    if newest.latest_epoch > state.leader_epoch:
        return Choice(newest, "it has a higher leader epoch than the metadata here, which is older than the logs")
    leads = next((copy for copy in copies if copy.node_id == state.leader), None)
    if leads is not None:
        return Choice(leads, f"it leads, in epoch {state.leader_epoch}")
    who = f"the leader, broker {state.leader}, is not here" if state.leader >= 0 else "no broker leads"
    for nodes, what in ((state.isr, "is in sync"), (state.elr, "may be elected")):
        found = [copy for copy in copies if copy.node_id in nodes]
        if found:
            best = max(found, key=lambda copy: (copy.latest_epoch, copy.end_offset))
            return Choice(best, f"{who}, and it {what}")
    if any(copy.node_id is None for copy in copies):
        return Choice(newest, f"{who}, and nothing says which broker the directory belongs to")
    there = ", ".join(map(str, sorted(said.electable))) or "none"
    return Choice(newest, f"{who}, and no copy here is in sync (the brokers in sync are {there})", is_behind=True)


def bound_of(copy: Copy, copies: Sequence[Copy], said: Said | None, now_ms: int) -> Bound:
    """Returns how far `copy` may be read so that the cluster takes no record back that was read."""
    if said is not None and len(said.replicas) == 1 and len(copies) == 1:
        return Bound(None, "the partition has one replica")
    marks = [(min(other.watermark, agreed_end(copy, other)), other) for other in copies if other.watermark is not None]
    mark, known_by = max(marks, key=lambda each: each[0]) if marks else (-1, copy)
    reached = _by_metadata(copy, copies, said, now_ms)
    if reached is not None and reached > mark:
        return Bound(reached, "all replicas that may lead have the records below it")
    if mark >= 0:
        return Bound(
            mark, f"the high watermark in {os.path.join(known_by.log_dir, names.HIGH_WATERMARK_CHECKPOINT_FILE)}"
        )
    is_new = copy.end_offset == 0 or now_ms - copy.mtime_ms < RESTS_MS  # the checkpoint is not written yet
    return Bound(copy.start_offset, "nothing here says where the high watermark is", is_known=is_new)


def _by_metadata(copy: Copy, copies: Sequence[Copy], said: Said | None, now_ms: int) -> int | None:
    """Returns the end of the shortest log among those that may lead; None if it is not certain.

    Metadata on a disk may be some moments older than the controller's, and another replica may have come in sync since.
    So only logs that nobody has written to for a while are judged by it.
    """
    if said is None or not (said.is_whole and said.is_of_leader) or not said.electable:
        return None
    if any(each.latest_epoch > said.state.leader_epoch for each in copies):
        return None
    # With fewer in sync the high watermark does not move. If the minimum is unknown, more than half are required.
    wanted = len(said.replicas) // 2 + 1 if said.min_isr is None else min(said.min_isr, len(said.replicas))
    if len(said.state.isr) < wanted:
        return None
    theirs = [each for each in copies if each.node_id in said.electable]
    if len(theirs) < len(said.electable) or any(now_ms - each.mtime_ms < RESTS_MS for each in (*theirs, copy)):
        return None
    return min(agreed_end(copy, each) for each in theirs)


def parts_below_mark(copy: Copy, other: Copy) -> str | None:
    """Returns how the histories of two copies contradict each other; None if they do not. A contradiction means that
    the other copy has records below its high watermark that `copy` lacks, or has different ones."""
    agreed = agreed_end(copy, other)
    if other.watermark is None or agreed >= min(other.watermark, other.end_offset) or agreed < copy.start_offset:
        return None
    if agreed == copy.end_offset:
        return (
            f"{copy.place} ends at offset {agreed}, but {other.place} has records up to its high watermark "
            f"{other.watermark}"
        )
    return (
        f"{copy.place} and {other.place} have different leader epochs from offset {agreed} on, below the latter's high "
        f"watermark {other.watermark}"
    )


# --- batches -----------------------------------------------------------------------------------------------


class Unequal(NamedTuple):
    """Two different batches that hold one offset. `is_certain`: compaction cannot have made both from one batch."""

    offset: int
    end_offset: int
    is_certain: bool


def unequal_places(one: Snapshot, other: Snapshot, start: int, end: int, samples: int) -> list[Unequal]:
    """Samples offsets in [start, end), the last one included, and returns those whose batches have different headers in
    two logs. Only headers are read; they have the checksum of the rest. CorruptRecordException, FileNotFoundError."""
    found = []
    step = max(1, (end - start) // max(1, samples))
    for offset in sorted({*range(end - 1, start - 1, -step)} if start < end else ()):
        mine, its = _header_of(one, offset), _header_of(other, offset)
        if mine is None or its is None or min(mine.magic, its.magic) < 2 or _framed(mine) == _framed(its):
            continue
        # A cleaner keeps these fields; the others may differ if it ran on one of the brokers.
        kept = [(each.leader_epoch, each.producer_id, each.is_control) for each in (mine, its)]
        is_certain = mine.base_offset == its.base_offset and kept[0] != kept[1]
        low, high = min(mine.base_offset, its.base_offset), max(mine.last_offset, its.last_offset) + 1
        found.append(Unequal(max(low, start), min(high, end), is_certain))
    return found


def _header_of(seen: Snapshot, offset: int) -> BatchHeader | None:
    """Returns the header of the batch that has the offset, or of the next batch."""
    place, position = seen.position_of(offset)
    return seen.header_at(place, position) if place < len(seen.segments) else None


def _framed(header: BatchHeader) -> tuple[int, ...]:
    return header.base_offset, header.last_offset, header.crc, header.leader_epoch


# --- files -------------------------------------------------------------------------------------------------


class BrokersSeen(NamedTuple):
    """The broker of each directory, and the newest metadata among them. An unformatted directory has None."""

    nodes: Mapping[str, MetaProperties | None]
    metadata: ClusterMetadata | None
    metadata_nodes: frozenset[int]

    @property
    def node_ids(self) -> frozenset[int]:
        """The ids of the brokers."""
        found = (None if node is None else node.node_id for node in self.nodes.values())
        return frozenset(each for each in found if each is not None)

    def node_of(self, log_dir: str) -> int | None:
        """Returns the id of the broker that the directory belongs to."""
        node = self.nodes[log_dir]
        return None if node is None else node.node_id

    def said(self, partition: TopicPartition, topic_ids: Iterable[str | None]) -> Said | None:
        """Returns the metadata about a partition; None if it has none for a topic with one of these ids."""
        metadata = self.metadata
        topic = None if metadata is None else metadata.topics.get(partition.topic)
        state = None if topic is None else topic.states.get(partition.partition)
        if metadata is None or topic is None or state is None:
            return None
        known = {each for each in topic_ids if each is not None}
        if known and topic.topic_id not in known:
            return None
        setting = topic.overrides.get(MIN_ISR, metadata.brokers.get(CLUSTER_DEFAULT, {}).get(MIN_ISR))
        leads = {state.leader} if state.leader >= 0 else {*state.isr, *state.elr}
        return Said(
            topic.topic_id,
            state,
            tuple(topic.replicas[partition.partition]),
            int(setting) if setting is not None and setting.isdigit() else None,
            bool(leads & self.metadata_nodes),
            metadata.is_whole,
        )


class Brokers:
    """The brokers of some log directories. Files that have not changed are not read again."""

    def __init__(self, log_dirs: Sequence[str], files: Callable[[str], Files] = lambda path: OS_FILES) -> None:
        self._log_dirs = tuple(log_dirs)
        self._files = files
        self._readers: dict[str, MetadataReader] = {}
        self._nodes: dict[str, tuple[object, MetaProperties | None]] = {}

    def nodes(self) -> dict[str, MetaProperties | None]:
        """Returns the broker of each directory. IllegalArgumentException for directories of several clusters."""
        nodes = {log_dir: self._node(log_dir) for log_dir in self._log_dirs}
        _refuse_clusters(nodes)
        return nodes

    def look(self) -> BrokersSeen:
        """Reads the brokers and the newest metadata. IllegalArgumentException for directories of several clusters."""
        nodes = self.nodes()
        ends = {}
        for log_dir in self._log_dirs:
            files = self._files(log_dir)
            if files.is_dir(os.path.join(log_dir, names.CLUSTER_METADATA_DIR)):
                ends[log_dir] = _metadata_end(log_dir, files) if len(self._log_dirs) > 1 else (0, 0)
        if not ends:
            return BrokersSeen(nodes, None, frozenset())
        newest = max(ends, key=ends.__getitem__)
        if newest not in self._readers:
            self._readers[newest] = MetadataReader(newest, self._files(newest))
        found = self._readers[newest].read()
        held = (nodes[log_dir] for log_dir in ends)
        ids = frozenset(node.node_id for node in held if node is not None and node.node_id is not None)
        return BrokersSeen(nodes, found, ids)

    def _node(self, log_dir: str) -> MetaProperties | None:
        path, files = os.path.join(log_dir, names.META_PROPERTIES_FILE), self._files(log_dir)
        try:
            stat = files.stat(path)
            known = self._nodes.get(log_dir)
            if known is None or known[0] != stat:
                known = self._nodes[log_dir] = stat, read_meta_properties(path, files)
            return known[1]
        except (KafkalogError, OSError):
            return None  # no broker's: a partition that is in it and in another directory is refused


def _refuse_clusters(nodes: Mapping[str, MetaProperties | None]) -> None:
    by_cluster: dict[str, str] = {}
    for log_dir, node in nodes.items():
        if node is not None and node.cluster_id is not None:
            by_cluster.setdefault(node.cluster_id, log_dir)
    if len(by_cluster) > 1:
        (one, where), (other, there), *_ = by_cluster.items()
        raise IllegalArgumentException(
            f"{where} is of the cluster {one} and {there} of the cluster {other}",
            hint="the option path must name directories of one cluster",
        )


def _metadata_end(log_dir: str, files: Files) -> tuple[int, int]:
    """Returns (leader epoch, end) of a directory's metadata log: an election compares them to find the newest."""
    try:
        with PartitionView(log_dir, names.CLUSTER_METADATA_DIR, files=files) as view:
            epochs = read_epochs(view.directory, files)
            return (epochs[-1].epoch if epochs else -1), view.log_end_offset
    except (KafkalogError, OSError):
        return -1, -1  # if it is the only one, reading it raises the error


def read_epochs(folder: str, files: Files) -> tuple[EpochEntry, ...]:
    """Returns the leader epochs in a partition's directory; empty if the file is missing or cannot be read."""
    with contextlib.suppress(KafkalogError, OSError):
        found = LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.new_file(folder), files, create=False).read()
        rising: list[EpochEntry] = []
        for entry in found:
            if not rising or (entry.epoch > rising[-1].epoch and entry.start_offset >= rising[-1].start_offset):
                rising.append(entry)
        return tuple(rising)
    return ()


def watermark_of(lines: CheckpointLines, partition: TopicPartition) -> int | None:
    """Returns the high watermark in a directory's checkpoint; None without a line. CorruptCheckpointException, or
    KafkaStorageException if the file cannot be read."""
    told = lines.told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
    return told.sure_watermark("nothing of the partition is read")


def copy_of(
    seen: Snapshot, log_dir: str, node_id: int | None, watermark: int | None, files: Files, known: Copy | None = None
) -> Copy:
    """Returns a partition's log as a Copy. `known`: a Copy of the same log, if the log has not changed since."""
    if known is not None:
        return known._replace(watermark=watermark)
    epochs = tuple(each for each in read_epochs(seen.directory, files) if each.start_offset <= seen.log_end_offset)
    topic_id = None
    with contextlib.suppress(KafkalogError, OSError):
        topic_id = topic_id_of(seen.directory, files)
    latest = epochs[-1].epoch if epochs else -1
    if not epochs and seen.log_end_offset > seen.log_start_offset:
        with contextlib.suppress(KafkalogError):
            header = _header_of(seen, seen.log_end_offset - 1)
            latest = header.leader_epoch if header is not None and header.magic >= 2 else -1
    return Copy(
        log_dir,
        node_id,
        seen.log_start_offset,
        seen.log_end_offset,
        epochs,
        latest,
        watermark,
        seen.segments[-1].mtime_ms if seen.segments else 0,
        topic_id,
        seen.closed_cleanly,
    )
