"""Copies of partitions on several brokers' disks: decides for batch reads and streams which are read, and to which
offset.

`_face/replicas` makes the decision.  This module keeps the views, logs the choice (at INFO, in the driver's log), and
reports copies that contradict each other and brokers whose disks are missing.  A directory that no broker formatted has
no replicas and is read without these checks.  It runs on the driver only: tasks get files and offsets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkalog._face.cluster_metadata import ClusterMetadata
from kafkalog._face.replicas import (
    Bound,
    Brokers,
    BrokersSeen,
    Choice,
    Copy,
    Said,
    agreed_end,
    bound_of,
    choose,
    copy_of,
    parts_below_mark,
    unequal_places,
    watermark_of,
)
from kafkalog.engine.format import names
from kafkalog.engine.format.meta_properties import MetaProperties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import is_of_cluster
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    CorruptCheckpointException,
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.spark.options import ALL_COPIES, LEADER, LONGEST, SourceOptions
from kafkalog.spark.places import files_of

log = logging.getLogger("kafkalog.spark")

SAMPLES_MOST, SAMPLES_ALL = 8, 4000  # places compared for one pair of copies, and for all pairs together
LOOKS, REST_S = 3, 0.1  # attempts if copies contradict each other: one may be truncated just now
TOLD_MOST = 20  # partitions whose choice is logged one by one
LOSS_HINT = "set the source option failOnDataLoss to false to read what still exists"
LOG_END_HINT = "endingOffsets=logEnd reads all that the directory has"

Tell = Callable[[str], None]


class CopyView(PartitionView):
    """A view of one broker's copy that ends at the high watermark.

    `limit` only grows, as the high watermark does, even if a later look reads a lower one; it starts again if the topic
    was recreated.  `whole` is the snapshot of the whole log.
    """

    limit: int | None = None
    whole: Snapshot

    def has_changed(self) -> bool:
        return self._has_changed_since(self.whole)

    def has_room(self) -> bool:
        """Whether the file has room after the last batch.

        A write there changes neither the file's size nor, within one tick of the clock, its time.
        """
        whole = self.whole
        return bool(whole.segments) and whole.end_position < whole.segments[-1].size

    def limit_to(self, limit: int | None) -> None:
        """Ends the view at this offset from now on; None means the log end offset."""
        if limit != self.limit:
            self.limit = limit
            try:
                self.snapshot = self._limited(self.whole)
            except FileNotFoundError:
                self.refresh()

    def _look(self) -> Snapshot:
        self.whole = super()._look()
        return self._limited(self.whole)

    def _limited(self, seen: Snapshot) -> Snapshot:
        if self.limit is None:
            return seen
        try:
            return seen.until(self.limit)
        except CorruptRecordException:
            return seen  # the read itself reports the damage


class _Chosen(NamedTuple):
    """A copy that is read, its upper bound, and the view that ends there."""

    view: CopyView
    choice: Choice
    bound: Bound


class _Decided(NamedTuple):
    choice: Choice
    copies: list[Copy]
    said: Said | None
    wrong: str | None


class Copies:
    """The copies of the partitions that one query reads.  Keeps its views between looks; not thread-safe."""

    def __init__(self, options: SourceOptions, *, streaming: bool = False) -> None:
        self._options = options
        self._streaming = streaming
        self.brokers = Brokers(options.paths, files_of)
        self._views: dict[tuple[str, TopicPartition], CopyView] = {}
        self._known: dict[tuple[str, TopicPartition], Copy] = {}
        self._lines: dict[str, CheckpointLines] = {}
        self._told: dict[TopicPartition, str] = {}
        self._compared: dict[TopicPartition, list[tuple[str, str | None]]] = {}  # by directory and topic id
        self._wrong: dict[TopicPartition, str] = {}  # contradictions found by the last look
        self._topic_ids: dict[TopicPartition, str] = {}  # topic ids of the copies that were chosen last
        self._samples = SAMPLES_MOST

    def look(
        self,
        found: Mapping[TopicPartition, Sequence[str]],
        tell: Tell,
        floors: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> dict[TopicPartition, list[CopyView]]:
        """Returns views of the chosen copies of the partitions that belong to a cluster.

        Other partitions are not in the result and are read as they are.  `found` has the directories of each partition.
        A partition was below the high watermark up to its entry in `floors` before, if its topic still has the id in
        `topic_ids`.  Raises IllegalStateException if copies contradict each other or none is in sync; with
        failOnDataLoss=false it logs a warning instead.
        """
        buckets = {place.path for place in self._options.remote if place.is_bucket}
        local = (log_dir for log_dir in self._options.paths if log_dir not in buckets)
        ours = {log_dir for log_dir in local if is_of_cluster(log_dir, files_of(log_dir))}
        if not ours:
            return {}
        seen = self.brokers.look()
        mine = {
            each: dirs for each, dirs in found.items() if not (ours.isdisjoint(dirs) or _is_alone(each, dirs, seen))
        }
        known = {**(topic_ids or {}), **self._topic_ids}
        self._topic_ids = {each: known[each] for each in mine if each in known}
        pairs = sum(len(dirs) - 1 for dirs in mine.values())
        self._samples = max(1, min(SAMPLES_MOST, SAMPLES_ALL // max(1, pairs)))
        logs, seen = self._logs(mine, seen, tell)
        decided = {each: self._decide(each, copies, seen) for each, copies in logs.items()}
        for _ in range(LOOKS - 1):
            doubtful = {
                each: mine[each] for each, it in decided.items() if it.wrong not in (None, self._wrong.get(each))
            }
            if not doubtful:
                break
            time.sleep(REST_S)  # a follower may be truncated just now, or a leader may just have appended
            logs, seen = self._logs(doubtful, seen, tell)
            for each in doubtful:
                decided.pop(each)
            decided |= {each: self._decide(each, copies, seen) for each, copies in logs.items()}
        self._wrong = {each: it.wrong for each, it in decided.items() if it.wrong is not None}
        chosen = {each: self._take(each, it, tell, (floors or {}).get(each, 0)) for each, it in decided.items()}
        kept = {(copy.log_dir, each) for each, it in decided.items() for copy in it.copies}
        self._views = {key: view for key, view in self._views.items() if key in kept}
        self._tell_choice(chosen)
        return {each: [one.view for one in copies] for each, copies in chosen.items()}

    # --- finding the copies -------------------------------------------------------------------------

    def _logs(
        self, found: Mapping[TopicPartition, Sequence[str]], seen: BrokersSeen, tell: Tell
    ) -> tuple[dict[TopicPartition, list[Copy]], BrokersSeen]:
        """Returns the copies that exist, and the metadata read after them."""
        for lines in self._lines.values():
            lines.forget()
        # Read before any log: the mark must be in the log of every broker that may become leader after that.
        marks = {each: self._watermarks(each, dirs, seen, tell) for each, dirs in found.items()}
        logs = {each: self._copies(each, dirs, marks[each], seen) for each, dirs in found.items()}
        return {each: copies for each, copies in logs.items() if copies}, self.brokers.look()

    def _watermarks(
        self, partition: TopicPartition, log_dirs: Sequence[str], seen: BrokersSeen, tell: Tell
    ) -> dict[str, int | None]:
        marks: dict[str, int | None] = {}
        for log_dir in log_dirs:
            lines = self._lines.get(log_dir)
            if lines is None:
                lines = self._lines[log_dir] = CheckpointLines(log_dir, files_of(log_dir), keeps_ms=KEEPS_MS)
            try:
                marks[log_dir] = watermark_of(lines, partition)
            except (CorruptCheckpointException, KafkaStorageException) as error:
                marks[log_dir] = None
                has_replicas = len(log_dirs) > 1 or seen.said(partition, ()) is not None
                if self._options.to_log_end or not has_replicas:
                    continue
                if self._options.fail_on_data_loss:
                    error.hint = "; ".join(filter(None, (error.hint, LOSS_HINT, LOG_END_HINT)))
                    raise
                tell(str(error))
        return marks

    def _copies(
        self,
        partition: TopicPartition,
        log_dirs: Sequence[str],
        marks: Mapping[str, int | None],
        seen: BrokersSeen,
    ) -> list[Copy]:
        found = []
        for log_dir in log_dirs:
            with contextlib.suppress(UnknownTopicOrPartitionException):  # deleted just now
                found.append(self._copy(partition, log_dir, marks[log_dir], seen.node_of(log_dir)))
        return found

    def _copy(self, partition: TopicPartition, log_dir: str, mark: int | None, node_id: int | None) -> Copy:
        key, files = (log_dir, partition), files_of(log_dir)
        view, known = self._views.get(key), self._known.get(key)
        if view is None:
            known = None
            view = CopyView(log_dir, partition, files=files, checkpoints=self._lines[log_dir])
            self._views[key] = view
        elif view.has_changed() or view.has_room():
            known = None
            view.refresh()
        try:
            copy = view.over(lambda _: copy_of(view.whole, log_dir, node_id, mark, files, known))
        finally:
            view.rest()
        self._known[key] = copy
        return copy

    # --- choosing among them ------------------------------------------------------------------------

    def _decide(self, partition: TopicPartition, copies: list[Copy], seen: BrokersSeen) -> _Decided:
        said = seen.said(partition, [copy.topic_id for copy in copies])
        copies = self._of_one_topic(partition, copies, said)
        choice = choose(copies, said, longest=self._options.replicas == LONGEST)
        return _Decided(choice, copies, said, self._contradiction(partition, choice.copy, copies))

    def _take(self, partition: TopicPartition, decided: _Decided, tell: Tell, floor: int) -> list[_Chosen]:
        """Returns the views for a decision, and reports what is wrong."""
        choice, copies, said, wrong = decided
        if self._is_remade(partition, choice.copy.topic_id):  # the old high watermark says nothing about the new topic
            floor = 0
            for copy in copies:
                self._views[(copy.log_dir, partition)].limit_to(None)
        if wrong is not None:
            self._lost(
                f"{partition}: {wrong}",
                tell,
                f"`kafkalog compare` shows the differences, replicas=longest reads the longest copy; {LOSS_HINT}",
            )
        if choice.is_behind and self._options.replicas == LEADER:
            self._lost(
                f"{partition}: {choice.why}; {choice.copy.place} ends at offset {choice.copy.end_offset}, and records "
                "from there on may be missing",
                tell,
                f"add the directories of a broker that is in sync to option path; {LOSS_HINT}",
            )
        read = [choice]
        if self._options.replicas == ALL_COPIES:
            read = [Choice(copy, "all copies are read") for copy in copies]
        return [self._limited(partition, each, copies, said, tell, floor) for each in read]

    def _is_remade(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether the topic was deleted and recreated since the last look.  A new directory has no id for a moment."""
        before = self._topic_ids.get(partition)
        if topic_id is not None:
            self._topic_ids[partition] = topic_id
        return topic_id is not None and before not in (None, topic_id)

    def _of_one_topic(self, partition: TopicPartition, copies: list[Copy], said: Said | None) -> list[Copy]:
        """Leaves out copies of a topic that was deleted while their broker was down.

        Raises IllegalStateException if no metadata says which topic exists now.
        """
        ids = {copy.topic_id for copy in copies if copy.topic_id is not None}
        if len(ids) < 2:
            return copies
        if said is None:
            raise IllegalStateException(
                f"{partition}: found copies of {len(ids)} topics with this name, expected one: "
                + ", ".join(f"{copy.place} has {copy.topic_id}" for copy in copies),
                hint="add the directory with the cluster's metadata to path, or leave the old topic's directory out",
            )
        old = [copy for copy in copies if copy.topic_id not in (None, said.topic_id)]
        for copy in old:
            log.info("%s: skipped %s, a copy of a topic that was deleted and created again", partition, copy.place)
        return [copy for copy in copies if copy not in old]

    def _limited(
        self,
        partition: TopicPartition,
        choice: Choice,
        copies: list[Copy],
        said: Said | None,
        tell: Tell,
        floor: int,
    ) -> _Chosen:
        copy = choice.copy
        view = self._views[(copy.log_dir, partition)]
        bound = self._bound(partition, copy, copies, said, tell)
        limit = None if bound.offset is None else max(bound.offset, floor, view.limit or 0)
        view.limit_to(limit)
        return _Chosen(view, choice, bound)

    def _bound(self, partition: TopicPartition, copy: Copy, copies: list[Copy], said: Said | None, tell: Tell) -> Bound:
        if self._options.to_log_end:
            return Bound(None, "endingOffsets=logEnd")
        if partition.topic == names.CLUSTER_METADATA_TOPIC:
            return Bound(None, "the quorum's log has no high watermark on disk")
        if said is None and len(copies) == 1:
            return self._bound_of_unknown(copy, self._views[(copy.log_dir, partition)])
        bound = bound_of(copy, copies, said, int(time.time() * 1000))
        if not bound.is_known and not self._streaming:
            self._lost(
                f"{partition}: found no line in {names.HIGH_WATERMARK_CHECKPOINT_FILE} of {copy.place}, expected the "
                "high watermark of a partition with replicas",
                tell,
                f"copy the file with the partitions' directories, or read with endingOffsets=logEnd; {LOSS_HINT}",
            )
        return bound

    def _bound_of_unknown(self, copy: Copy, view: CopyView) -> Bound:
        """Bounds a copy if nothing says how many replicas exist.

        A batch reads the whole log, unless a clean stop left the high watermark below the log end offset.  A stream
        waits for the checkpoint, since it cannot take back a row.
        """
        mark = copy.watermark
        if self._streaming and mark is None:
            path = os.path.join(copy.log_dir, names.HIGH_WATERMARK_CHECKPOINT_FILE)
            # The line of a new partition will come, and a checkpoint that existed before comes back.
            is_to_come = view.limit is not None or files_of(copy.log_dir).exists(path)
            mark = copy.start_offset if is_to_come else None
        if self._streaming and mark is not None:
            return Bound(mark, "the number of replicas is unknown: read up to the high watermark of the checkpoint")
        if copy.closed_cleanly and mark is not None and mark < copy.end_offset:
            return Bound(mark, "the high watermark at a clean stop is below the log end offset")
        return Bound(None, "nothing says that it has replicas")

    # --- contradictions -----------------------------------------------------------------------------

    def _contradiction(self, partition: TopicPartition, copy: Copy, copies: Sequence[Copy]) -> str | None:
        """Returns what contradicts between a copy and the others, among the records that both have permanently."""
        others = [each for each in copies if each is not copy]
        for other in others:
            parted = parts_below_mark(copy, other)
            if parted is not None:
                return parted
        # Batches are compared once for each choice: records below the high watermark do not change.
        who = [(each.log_dir, each.topic_id) for each in (copy, *others)]
        if not others or self._compared.get(partition) == who:
            return None
        for other in others:
            wrong = self._unequal(partition, copy, other)
            if wrong is not None:
                return wrong
        self._compared[partition] = who
        return None

    def _unequal(self, partition: TopicPartition, copy: Copy, other: Copy) -> str | None:
        start = max(copy.start_offset, other.start_offset)
        mark = other.watermark or 0  # after it the other copy may still be truncated
        if copy.epochs and other.epochs:  # unless both have the same history
            mark = max(mark, copy.watermark or 0)
        end = min(agreed_end(copy, other), mark)
        if start >= end:
            return None
        here, there = (self._views[(each.log_dir, partition)] for each in (copy, other))
        try:
            places = here.over(
                lambda _: there.over(lambda _: unequal_places(here.whole, there.whole, start, end, self._samples))
            )
            for place in places:
                if place.is_certain or _has_other_records(partition, here, there, place.offset, place.end_offset):
                    return (
                        f"{copy.place} and {other.place} have different records from offset {place.offset} on, below "
                        f"the high watermark {mark}"
                    )
        except CorruptRecordException:
            return None  # a read of this copy reports the damage; damage in a copy that is not read does not matter
        finally:
            here.rest()
            there.rest()
        return None

    def _lost(self, text: str, tell: Tell, hint: str) -> None:
        if self._options.fail_on_data_loss:
            raise IllegalStateException(f"Some data may have been lost. {text}", hint=hint)
        tell(text)

    # --- logging ------------------------------------------------------------------------------------

    def _tell_choice(self, chosen: Mapping[TopicPartition, list[_Chosen]]) -> None:
        """Logs each choice once; for many partitions the first ones, and the number of the others."""
        told = 0
        for partition, copies in chosen.items():
            texts = [f"{each.choice.copy.place}: {each.choice.why}; {_until(each)}" for each in copies]
            key = " | ".join(f"{each.choice.copy.log_dir} {each.choice.why} {each.bound.why}" for each in copies)
            if self._told.get(partition) == key:
                continue
            self._told[partition] = key
            told += 1
            if told <= TOLD_MOST:
                log.info("replicas=%s: %s is read from %s", self._options.replicas, partition, " and ".join(texts))
        if told > TOLD_MOST:
            log.info(
                "replicas=%s: %d more partitions were chosen in the same way", self._options.replicas, told - TOLD_MOST
            )


def _is_alone(partition: TopicPartition, log_dirs: Sequence[str], seen: BrokersSeen) -> bool:
    """Whether the partition has one replica, by the metadata, and one directory, which is that broker's.

    No record of such a partition can be truncated by a leader.
    """
    said = seen.said(partition, ()) if len(log_dirs) == 1 else None
    return said is not None and len(said.replicas) == 1 and seen.node_of(log_dirs[0]) in (None, *said.replicas)


def _until(chosen: _Chosen) -> str:
    view = chosen.view
    end, whole = view.log_end_offset, view.whole.log_end_offset
    if end == whole:
        return f"up to its end {end} ({chosen.bound.why})"
    return f"up to offset {end} of {whole} ({chosen.bound.why})"


def _has_other_records(
    partition: TopicPartition, here: PartitionView, there: PartitionView, start: int, end: int
) -> bool:
    """Whether two copies have different records at an offset.

    A cleaner may have removed records from one copy or rewritten its batches, but it changes no record.
    """
    from kafkalog.toolbox.compare import differing

    with here.own_view() as mine, there.own_view() as its:
        return differing(partition, mine, its, start, end) > 0


# --- for planning ------------------------------------------------------------------------------------------


def present(options: SourceOptions, tell: Tell) -> list[str]:
    """Returns the paths to search.

    Among the directories of a cluster, a missing or empty one belongs to a broker whose disk is missing.  Raises
    IllegalStateException for an empty one; with failOnDataLoss=false it logs a warning for both kinds and leaves them
    out.
    """
    paths = list(options.paths)
    if len(paths) < 2 or any(place.is_bucket for place in options.remote):
        return paths
    files = files_of(paths[0])
    away = [path for path in paths if not files.exists(path) or (files.is_dir(path) and not files.list_dir(path))]
    if not away or not any(is_of_cluster(path, files) for path in paths):
        return paths
    for path in away:
        text = f"found {'nothing in' if files.exists(path) else 'no'} {path}, expected the log directory of a broker"
        if not options.fail_on_data_loss:
            tell(text)
        elif files.exists(path):
            raise IllegalStateException(
                f"Some data may have been lost. {text}",
                hint=f"mount its disk, or leave the directory out of option path; {LOSS_HINT}",
            )
    return paths if options.fail_on_data_loss else [path for path in paths if path not in away]


def cluster_of(
    brokers: Brokers, found: Mapping[TopicPartition, Sequence[str]]
) -> tuple[ClusterMetadata | None, int | None]:
    """Returns the metadata that says which partitions are missing, and the one broker that the directories belong to.

    The broker is None if they belong to several.  A directory with metadata only, as controllers have, belongs to no
    broker. Returns (None, None) if no directory is a cluster's.
    """
    nodes = brokers.nodes()
    dirs = {
        each for partition, dirs in found.items() if partition.topic != names.CLUSTER_METADATA_TOPIC for each in dirs
    }
    ids = {node.node_id for each in dirs if (node := nodes.get(each)) is not None}
    all_ids = {node.node_id for node in nodes.values() if node is not None}
    if len(all_ids) < 2:
        return None, None
    return brokers.look().metadata, ids.pop() if len(ids) == 1 and _has_controllers(nodes, dirs) else None


def _has_controllers(nodes: Mapping[str, MetaProperties | None], dirs: set[str]) -> bool:
    """Whether the directories without a partition are those of pure controllers: brokers keep checkpoints."""
    others = [each for each, node in nodes.items() if node is not None and each not in dirs]
    path = names.HIGH_WATERMARK_CHECKPOINT_FILE
    return not any(files_of(each).exists(os.path.join(each, path)) for each in others)


def still_there(
    partition: TopicPartition, log_dirs: tuple[str, ...], nodes: Mapping[str, MetaProperties | None]
) -> tuple[str, ...]:
    """Returns the directories that still have a partition: one that moves to another disk may have been in two for a
    moment.

    Raises IllegalArgumentException if it stays in two directories of one broker.
    """
    for look in range(LOOKS):
        try:
            refuse_twice(partition, log_dirs, nodes)
            break
        except IllegalArgumentException:
            if look == LOOKS - 1:
                raise
            time.sleep(REST_S * look)
        log_dirs = tuple(each for each in log_dirs if files_of(each).is_dir(os.path.join(each, str(partition))))
    return log_dirs


def refuse_twice(
    partition: TopicPartition, log_dirs: Sequence[str], nodes: Mapping[str, MetaProperties | None]
) -> None:
    """Raises IllegalArgumentException unless the last directory with a partition is known to be another broker's."""
    ids = [None if (node := nodes[each]) is None else node.node_id for each in log_dirs]
    for log_dir, node_id in zip(log_dirs[:-1], ids, strict=False):
        if node_id is None or ids[-1] is None or node_id == ids[-1]:
            raise IllegalArgumentException(
                f"{partition} is in {log_dir} and in {log_dirs[-1]}",
                hint="name each directory of one broker or store once in option path; brokers are distinguished "
                "by node.id in meta.properties",
            )


def end_text(seen: Snapshot) -> str:
    """Returns what a message adds after the end of a snapshot, if that end is the high watermark."""
    if seen.behind_end is None:
        return ""
    return f", which is the high watermark: the cluster may still take back the records from there to {seen.behind_end}"
