"""Copies of partitions on several brokers' disks, for batch reads and streams: which are read, and up to where.

`_face/replicas` decides; this keeps the views, tells the choice (at INFO, in the log of the driver) and what is wrong:
copies that contradict each other, brokers that are away.  A directory that no broker formatted has no replicas, and is
read as ever.  On the driver alone: tasks get files and offsets.
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

SAMPLES_MOST, SAMPLES_ALL = 8, 4000  # places of one pair of copies, and of all together
LOOKS, REST_S = 3, 0.1  # at copies that contradict each other: one may just be cut
TOLD_MOST = 20  # partitions of which the choice is told one by one
LOSS_HINT = "set the source option failOnDataLoss to false to go on without what is gone"
LOG_END_HINT = "endingOffsets=logEnd reads all that the directory has"

Tell = Callable[[str], None]


class CopyView(PartitionView):
    """A view of one broker's copy that ends at the high watermark.  `limit` only grows, as that does, even if a later
    look knows less of it, until the topic is another one; `whole` is what was seen of all the log."""

    limit: int | None = None
    whole: Snapshot

    def has_changed(self) -> bool:
        return self._has_changed_since(self.whole)

    def has_room(self) -> bool:
        """Whether bytes lie behind the last batch: a write there changes no size, nor a time within a clock's tick."""
        whole = self.whole
        return bool(whole.segments) and whole.end_position < whole.segments[-1].size

    def limit_to(self, limit: int | None) -> None:
        """End there from now on; None: at the log's end."""
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
            return seen  # who reads it meets the damage


class _Chosen(NamedTuple):
    """A copy that is read, the bound that counts for it, and the view that shows no more."""

    view: CopyView
    choice: Choice
    bound: Bound


class _Decided(NamedTuple):
    choice: Choice
    copies: list[Copy]
    said: Said | None
    wrong: str | None


class Copies:
    """The copies of the partitions that one query reads.  Views are kept between looks; not thread-safe."""

    def __init__(self, options: SourceOptions, *, streaming: bool = False) -> None:
        self._options = options
        self._streaming = streaming
        self.brokers = Brokers(options.paths, files_of)
        self._views: dict[tuple[str, TopicPartition], CopyView] = {}
        self._known: dict[tuple[str, TopicPartition], Copy] = {}
        self._lines: dict[str, CheckpointLines] = {}
        self._told: dict[TopicPartition, str] = {}
        self._compared: dict[TopicPartition, list[tuple[str, str | None]]] = {}  # by directory and topic id
        self._wrong: dict[TopicPartition, str] = {}  # what contradicted at the last look
        self._topic_ids: dict[TopicPartition, str] = {}  # as of the copies that were chosen last
        self._samples = SAMPLES_MOST

    def look(
        self,
        found: Mapping[TopicPartition, Sequence[str]],
        tell: Tell,
        floors: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> dict[TopicPartition, list[CopyView]]:
        """Views of the chosen copies of those partitions that are a cluster's; the others have none, and are read as
        they are.

        `found` has the directories of each; up to its floor a partition was below the high watermark before, if its
        topic is still that of `topic_ids`.
        IllegalStateException, or with failOnDataLoss=false a warning, where copies contradict each other, or none is in
        sync.
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
            time.sleep(REST_S)  # a follower may be cut right now, or a leader may just have gone on
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

    # --- what there is ------------------------------------------------------------------------------

    def _logs(
        self, found: Mapping[TopicPartition, Sequence[str]], seen: BrokersSeen, tell: Tell
    ) -> tuple[dict[TopicPartition, list[Copy]], BrokersSeen]:
        """The copies that there are, and the metadata as of after they were seen."""
        for lines in self._lines.values():
            lines.forget()
        # Before any log is seen: a mark lies in the log of whoever may lead then.
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

    # --- which --------------------------------------------------------------------------------------

    def _decide(self, partition: TopicPartition, copies: list[Copy], seen: BrokersSeen) -> _Decided:
        said = seen.said(partition, [copy.topic_id for copy in copies])
        copies = self._of_one_topic(partition, copies, said)
        choice = choose(copies, said, longest=self._options.replicas == LONGEST)
        return _Decided(choice, copies, said, self._contradiction(partition, choice.copy, copies))

    def _take(self, partition: TopicPartition, decided: _Decided, tell: Tell, floor: int) -> list[_Chosen]:
        """The views of what was decided, with what is wrong told."""
        choice, copies, said, wrong = decided
        if self._is_remade(partition, choice.copy.topic_id):  # what was below its high watermark says nothing any more
            floor = 0
            for copy in copies:
                self._views[(copy.log_dir, partition)].limit_to(None)
        if wrong is not None:
            self._lost(
                f"{partition}: {wrong}",
                tell,
                f"`kafkalog compare` shows what differs, replicas=longest reads the longest copy; {LOSS_HINT}",
            )
        if choice.is_behind and self._options.replicas == LEADER:
            self._lost(
                f"{partition}: {choice.why}; {choice.copy.place} ends at offset {choice.copy.end_offset}, and records "
                "behind that may be missing",
                tell,
                f"name the directories of a broker that is in sync; {LOSS_HINT}",
            )
        read = [choice]
        if self._options.replicas == ALL_COPIES:
            read = [Choice(copy, "all copies are read") for copy in copies]
        return [self._limited(partition, each, copies, said, tell, floor) for each in read]

    def _is_remade(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether the topic was deleted and made again since the last look.  A folder has no id for a moment."""
        before = self._topic_ids.get(partition)
        if topic_id is not None:
            self._topic_ids[partition] = topic_id
        return topic_id is not None and before not in (None, topic_id)

    def _of_one_topic(self, partition: TopicPartition, copies: list[Copy], said: Said | None) -> list[Copy]:
        """Without those of a topic that was deleted while their broker was down.  IllegalStateException where nobody
        says which topic there is now."""
        ids = {copy.topic_id for copy in copies if copy.topic_id is not None}
        if len(ids) < 2:
            return copies
        if said is None:
            raise IllegalStateException(
                f"{partition}: found copies of {len(ids)} topics of that name, expected one: "
                + ", ".join(f"{copy.place} has {copy.topic_id}" for copy in copies),
                hint="add the directory with the cluster's metadata to path, or leave the old topic's directory out",
            )
        old = [copy for copy in copies if copy.topic_id not in (None, said.topic_id)]
        for copy in old:
            log.info("%s: passed over %s, whose topic was deleted and made again", partition, copy.place)
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
            return Bound(None, "the quorum's own log has no high watermark on disk")
        if said is None and len(copies) == 1:
            return self._bound_of_unknown(copy, self._views[(copy.log_dir, partition)])
        bound = bound_of(copy, copies, said, int(time.time() * 1000))
        if not bound.is_known and not self._streaming:
            self._lost(
                f"{partition}: found no line in {names.HIGH_WATERMARK_CHECKPOINT_FILE} of {copy.place}, expected the "
                "high watermark of a partition with replicas",
                tell,
                f"copy the file with the partitions' folders, or read with endingOffsets=logEnd; {LOSS_HINT}",
            )
        return bound

    def _bound_of_unknown(self, copy: Copy, view: CopyView) -> Bound:
        """If nothing says how many replicas there are, a batch reads a log whole, unless a clean stop left its high
        watermark below its end; a stream, which cannot take back a row, waits for the checkpoint."""
        mark = copy.watermark
        if self._streaming and mark is None:
            path = os.path.join(copy.log_dir, names.HIGH_WATERMARK_CHECKPOINT_FILE)
            # A new partition's is to come, and a checkpoint that was there comes back.
            is_to_come = view.limit is not None or files_of(copy.log_dir).exists(path)
            mark = copy.start_offset if is_to_come else None
        if self._streaming and mark is not None:
            return Bound(mark, "nothing here says how many replicas there are: only what the checkpoint has is read")
        if copy.closed_cleanly and mark is not None and mark < copy.end_offset:
            return Bound(mark, "the high watermark at a clean stop lies below the log's end")
        return Bound(None, "nothing here says that it has replicas")

    # --- contradictions -----------------------------------------------------------------------------

    def _contradiction(self, partition: TopicPartition, copy: Copy, copies: Sequence[Copy]) -> str | None:
        """What is wrong between a copy and the others, below what both have for good."""
        others = [each for each in copies if each is not copy]
        for other in others:
            parted = parts_below_mark(copy, other)
            if parted is not None:
                return parted
        # Batches are looked at once for each choice: what lies below the high watermark stays as it is.
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
        mark = other.watermark or 0  # behind it the other one may yet be cut
        if copy.epochs and other.epochs:  # but not where both have the same history
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
            return None  # who reads it meets the damage; of the copy that is not read it is no matter
        finally:
            here.rest()
            there.rest()
        return None

    def _lost(self, text: str, tell: Tell, hint: str) -> None:
        if self._options.fail_on_data_loss:
            raise IllegalStateException(f"Some data may have been lost. {text}", hint=hint)
        tell(text)

    # --- what is told -------------------------------------------------------------------------------

    def _tell_choice(self, chosen: Mapping[TopicPartition, list[_Chosen]]) -> None:
        """Each choice once; of many partitions the first ones, and how many more there are."""
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
            log.info("replicas=%s: %d more partitions were chosen so", self._options.replicas, told - TOLD_MOST)


def _is_alone(partition: TopicPartition, log_dirs: Sequence[str], seen: BrokersSeen) -> bool:
    """Whether the partition has one replica, by the metadata, and one folder, which is that broker's: nothing of it is
    taken back."""
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
    """Whether two copies have different records at one offset.  A cleaner may have taken records from one of them, or
    written batches anew; it changes no record."""
    from kafkalog.toolbox.compare import differing

    with here.own_view() as mine, there.own_view() as its:
        return differing(partition, mine, its, start, end) > 0


# --- for planning ------------------------------------------------------------------------------------------


def present(options: SourceOptions, tell: Tell) -> list[str]:
    """The paths to look into.  Beside the directories of a cluster one that is not there, or is empty, is a broker's
    that is away: IllegalStateException for an empty one, or with failOnDataLoss=false a warning for both."""
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
                f"Some data may have been lost. {text}", hint=f"mount its disk, or leave it out of path; {LOSS_HINT}"
            )
    return paths if options.fail_on_data_loss else [path for path in paths if path not in away]


def cluster_of(
    brokers: Brokers, found: Mapping[TopicPartition, Sequence[str]]
) -> tuple[ClusterMetadata | None, int | None]:
    """The metadata by which partitions are missed, and the one broker whose directories these are; None for several.
    A directory with metadata alone, as controllers have, is no broker's.  (None, None) where none is a cluster's."""
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
    """Whether the directories without a partition are those of nodes that only control: brokers keep checkpoints."""
    others = [each for each, node in nodes.items() if node is not None and each not in dirs]
    path = names.HIGH_WATERMARK_CHECKPOINT_FILE
    return not any(files_of(each).exists(os.path.join(each, path)) for each in others)


def still_there(
    partition: TopicPartition, log_dirs: tuple[str, ...], nodes: Mapping[str, MetaProperties | None]
) -> tuple[str, ...]:
    """The directories with a partition, of which a broker that moves it to another disk may have been seen with two.
    IllegalArgumentException if it stays in two of one broker."""
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
    """IllegalArgumentException if the last of the directories with a partition is not known to be of another broker
    than the others."""
    ids = [None if (node := nodes[each]) is None else node.node_id for each in log_dirs]
    for log_dir, node_id in zip(log_dirs[:-1], ids, strict=False):
        if node_id is None or ids[-1] is None or node_id == ids[-1]:
            raise IllegalArgumentException(
                f"{partition} is in {log_dir} and in {log_dirs[-1]}",
                hint="the option path names each directory of one broker or store, each once; brokers are told apart "
                "by node.id in meta.properties",
            )


def end_text(seen: Snapshot) -> str:
    """What a message adds to the end of a snapshot, if that is the high watermark."""
    if seen.behind_end is None:
        return ""
    return f", which is the high watermark: what lies behind it, up to {seen.behind_end}, the cluster may yet take back"
