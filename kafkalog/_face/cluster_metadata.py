"""What a KRaft cluster knows of its topics, read from the files of `__cluster_metadata-0`: the newest snapshot
(`.checkpoint`) and the log behind it.

A cluster keeps its topics there, with their ids, partitions and settings, and the dynamic defaults of the cluster and
of each broker.  Beside the data there is nothing of it.  The folder lies in the metadata directory of a node, which is
`metadata.log.dir`, by default the first of `log.dirs`.

Only reads, takes no lock, works beside a running broker.  Damage is no error: `problem` says what was found, and then
nobody may delete by what was read up to there.  Records of a metadata transaction count when it has ended.
Source: TopicsDelta, ConfigurationsDelta, ReplicationControlManager.replay, Snapshots (4.4.0).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kafkalog._native.codec.batches import BatchHeader
from kafkalog.engine.coordinator.state_log import state_batch
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import ensure_valid
from kafkalog.engine.format.control import ControlRecordType, parse_control_key
from kafkalog.engine.format.meta_properties import MetaProperties, read_meta_properties
from kafkalog.engine.format.metadata_records import decode_metadata_record, schema_of
from kafkalog.engine.format.records import records
from kafkalog.engine.segment.file_records import walk_headers
from kafkalog.engine.segment.reader import header_at
from kafkalog.errors import BadBytesError, KafkalogError, KafkaStorageException

NO_LEADER_CHANGE = -2  # in a PartitionChangeRecord
LOOKS, REST_S = 3, 0.05  # at a file that a broker may be writing to
CLUSTER_DEFAULT = ""  # the name of a config resource: the default of all brokers
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4  # ConfigResource.Type
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")

Value = Mapping[str, object]
Stamp = tuple[tuple[str, int, int], ...]


class PartitionState(NamedTuple):
    """Which nodes may lead a partition, and which one does.  `leader` is -1 where none does.  `elr` are the nodes
    outside of `isr` that have every record below the high watermark."""

    leader: int
    leader_epoch: int
    isr: Sequence[int]
    elr: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic as the cluster has it: its id (a Uuid of 22 characters), its own settings, the node ids that hold each
    partition, and who leads it."""

    topic_id: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)
    states: Mapping[int, PartitionState] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions the topic has in the whole cluster."""
        return len(self.replicas)

    def on_node(self, node_id: int | None) -> list[int]:
        """The numbers of the partitions that the node holds, in order; of all for None."""
        return sorted(number for number, nodes in self.replicas.items() if node_id is None or node_id in nodes)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """What the metadata in `directory` says, up to `end_offset`.

    `brokers` has the dynamic settings by node id as text, those of all brokers under `CLUSTER_DEFAULT`.  `problem` is
    what could not be read: there may be more than is said here.
    """

    directory: str
    node_id: int | None
    topics: Mapping[str, ClusterTopic]
    brokers: Mapping[str, Mapping[str, str]]
    end_offset: int = 0
    problem: KafkalogError | None = None
    seen: Stamp = ()
    epoch: int = -1  # of the last batch that was read: of several nodes' logs the newest has the highest

    @property
    def is_whole(self) -> bool:
        return self.problem is None

    @property
    def dynamic(self) -> dict[str, str]:
        """The dynamic settings that count for this node: its own, over those of the cluster."""
        own = {} if self.node_id is None else self.brokers.get(str(self.node_id), {})
        return {**self.brokers.get(CLUSTER_DEFAULT, {}), **own}


def read_cluster_metadata(
    log_dirs: Iterable[str], files: Files, *, known: ClusterMetadata | None = None
) -> ClusterMetadata | None:
    """The metadata that the first of `log_dirs` holds which has any; None where none has.  `known` is answered again
    if no file has changed since."""
    directories = list(log_dirs)
    for directory in directories:
        folder = os.path.join(directory, names.CLUSTER_METADATA_DIR)
        if not files.is_dir(folder):
            continue
        try:
            stamp = _stamp(folder, files)
        except OSError as error:
            problem = KafkaStorageException.because_of(error, "cannot read the cluster's metadata")
            return ClusterMetadata(directory, None, {}, {}, problem=problem)
        if known is not None and known.directory == directory and known.seen == stamp:
            return known
        image = _Image(directory)
        image.read(folder, files)
        image.check_nodes(directories, files)
        return replace(image.metadata(), seen=stamp)
    return None


class MetadataReader:
    """Reads the metadata in one directory again and again: a running cluster adds a record twice a second, and what was
    read before is not read again.  Not thread-safe."""

    def __init__(self, directory: str, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._image: _Image | None = None
        self._known: ClusterMetadata | None = None

    def read(self) -> ClusterMetadata | None:
        """What there is now; None where the directory has no metadata."""
        folder = os.path.join(self._directory, names.CLUSTER_METADATA_DIR)
        if not self._files.is_dir(folder):
            self._image = self._known = None
            return None
        try:
            stamp = _stamp(folder, self._files)
        except OSError as error:
            problem = KafkaStorageException.because_of(error, "cannot read the cluster's metadata")
            return ClusterMetadata(self._directory, None, {}, {}, problem=problem)
        if self._known is not None and self._known.seen == stamp:
            return self._known
        image = self._image
        if image is None or not image.read_on(folder, self._files):
            image = _Image(self._directory)
            image.read(folder, self._files)
            image.check_nodes([self._directory], self._files)
        self._image = image if image.problem is None else None
        self._known = replace(image.metadata(), seen=stamp)
        return self._known


def _stamp(folder: str, files: Files) -> Stamp:
    """Names, sizes and times of the files that count."""
    found = []
    for name in sorted(files.list_dir(folder)):
        if name.endswith(names.LOG_FILE_SUFFIX) or _SNAPSHOT.fullmatch(name):
            try:
                stat = files.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # a broker has just removed it
            found.append((name, stat.size, stat.mtime_ms))
    return tuple(found)


def _batches(path: str, files: Files, start: int = 0) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a file from `start` on, each with a header that counts from its own bytes.  BadBytesError for one
    whose checksum is another, and for bytes behind the last whole one that stay there: a broker may just be writing
    it."""
    reached = start
    with files.open(path, writable=False) as file:
        for look in range(LOOKS):
            for header in walk_headers(file, reached, file.size()):
                data = file.pread(header.size, header.position)
                ensure_valid(data, header, at=0, path=path)
                yield header.at(0), data
                reached = header.position + header.size
            if reached == file.size():
                return
            if look < LOOKS - 1:
                time.sleep(REST_S)
        left = file.size() - reached
    raise BadBytesError(f"found {left} bytes behind the last whole batch, expected none", path=path, position=reached)


def _control_type(data: bytes, header: BatchHeader) -> ControlRecordType | None:
    first = next(iter(records(data, header)), None) if header.is_control else None
    return None if first is None else parse_control_key(first.key)


class _Topic:
    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.replicas: dict[int, Sequence[int]] = {}
        self.states: dict[int, PartitionState] = {}


class _Image:
    """Takes records in order.  Each of `_TAKERS` is one record's effect; other records concern no topic."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.node_id: int | None = None
        self.end = 0
        self.epoch = -1
        self.problem: KafkalogError | None = None
        self._topics: dict[str, _Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._held_back: list[tuple[str, Value]] | None = None  # of a transaction that has not ended
        self._positions: dict[str, int] = {}  # by the names of log files: what was read of each
        self._last: tuple[str, int, int, int] | None = None  # name, position, base offset and checksum of a batch

    def metadata(self) -> ClusterMetadata:
        topics = {
            name: ClusterTopic(
                topic.topic_id,
                dict(self._configs.get((_TOPIC_RESOURCE, name), {})),
                dict(topic.replicas),
                dict(topic.states),
            )
            for name, topic in sorted(self._topics.items())
        }
        brokers = {name: dict(found) for (kind, name), found in self._configs.items() if kind == _BROKER_RESOURCE}
        return ClusterMetadata(self.directory, self.node_id, topics, brokers, self.end, self.problem, epoch=self.epoch)

    # --- files -----------------------------------------------------------------------------------------

    def read(self, folder: str, files: Files) -> None:
        try:
            self._read_newest_snapshot(folder, files)
            self._read_log(folder, files)
        except (KafkalogError, OSError) as error:
            told = error if isinstance(error, KafkalogError) else KafkaStorageException.because_of(error, "not read")
            self.problem = told

    def read_on(self, folder: str, files: Files) -> bool:
        """Take what was added since; False where other files are there than were read, which nobody can go on with."""
        try:
            listed = files.list_dir(folder)
            ends = [int(match[1]) for name in listed if (match := _SNAPSHOT.fullmatch(name))]
            if self._last is None or self._last[0] not in listed or max(ends, default=0) > self.end:
                return False
            name, position, *batch = self._last
            with files.open(os.path.join(folder, name), writable=False) as file:
                header = header_at(file, position)
                if header is None or [header.base_offset, header.crc] != batch:
                    return False
            self._read_log(folder, files)
        except (KafkalogError, OSError):
            return False
        return True

    def _read_newest_snapshot(self, folder: str, files: Files) -> None:
        found = [match for name in files.list_dir(folder) if (match := _SNAPSHOT.fullmatch(name))]
        if not found:
            return
        newest = max(found, key=lambda match: (int(match[1]), int(match[2])))
        path = os.path.join(folder, newest[0])
        kind = None
        for header, data in _batches(path, files):
            self._take(record.value for record in state_batch(data, header).records)
            kind = _control_type(data, header)
        if kind is not ControlRecordType.SNAPSHOT_FOOTER:
            raise BadBytesError("found no footer, expected one at the end of a snapshot", path=path)
        self.end, self.epoch = int(newest[1]), int(newest[2])

    def _read_log(self, folder: str, files: Files) -> None:
        """What lies behind the snapshot.  The log is never compacted, so its offsets have no gaps."""
        for name in sorted(name for name in files.list_dir(folder) if name.endswith(names.LOG_FILE_SUFFIX)):
            path = os.path.join(folder, name)
            for header, data in _batches(path, files, self._positions.get(name, 0)):
                if header.base_offset > self.end:
                    raise BadBytesError(
                        f"found a batch at offset {header.base_offset}, expected offset {self.end}",
                        path=path,
                        hint="the metadata between them is missing; copy the folder from the node once more",
                    )
                found = state_batch(data, header).records
                self._take(record.value for record in found if record.offset >= self.end)
                self.end = max(self.end, header.next_offset)
                self.epoch = max(self.epoch, header.leader_epoch)
                position = self._positions.get(name, 0)
                self._last = name, position, header.base_offset, header.crc
                self._positions[name] = position + header.size

    def check_nodes(self, log_dirs: Sequence[str], files: Files) -> None:
        """The node id of the directory; a `problem` where another of `log_dirs` belongs to another node or cluster."""
        mine: MetaProperties | None = None
        try:
            for directory in (self.directory, *log_dirs):
                path = os.path.join(directory, names.META_PROPERTIES_FILE)
                if not files.exists(path):
                    continue
                found = read_meta_properties(path, files)
                mine = mine or found
                if (found.cluster_id, found.node_id) != (mine.cluster_id, mine.node_id):
                    raise BadBytesError(
                        f"found node {found.node_id} of cluster {found.cluster_id}, expected node {mine.node_id} of "
                        f"cluster {mine.cluster_id}, as {self.directory} has it",
                        path=path,
                        hint="name the directories of one broker",
                    )
        except (KafkalogError, OSError) as error:
            told = error if isinstance(error, KafkalogError) else KafkaStorageException.because_of(error, "not read")
            self.problem = self.problem or told
        self.node_id = None if mine is None else mine.node_id

    # --- records ---------------------------------------------------------------------------------------

    def _take(self, values: Iterator[bytes | None]) -> None:
        for value in values:
            # A frame begins with two numbers of one byte each; most records say that a broker lives.
            if value is None or len(value) < 2 or (value[1] not in _NUMBERS and value[1] < 0x80):
                continue
            record = decode_metadata_record(value)
            if record.type == "BEGIN_TRANSACTION_RECORD":
                self._held_back = []
            elif record.type == "ABORT_TRANSACTION_RECORD":
                self._held_back = None
            elif record.type == "END_TRANSACTION_RECORD":
                held_back, self._held_back = self._held_back or [], None
                for kind, data in held_back:
                    _TAKERS[kind](self, data)
            elif record.type in _TAKERS:
                if self._held_back is None:
                    _TAKERS[record.type](self, record.data)
                else:
                    self._held_back.append((record.type, record.data))

    def _topic(self, data: Value) -> None:
        name, topic_id = str(data["name"]), str(data["topicId"])
        self._topics[name] = _Topic(topic_id)
        self._names[topic_id] = name

    def _partition(self, data: Value) -> None:
        name = self._names.get(str(data["topicId"]))
        if name is not None:
            number = _number(data["partitionId"])
            self._topics[name].replicas[number] = _numbers(data["replicas"])
            self._topics[name].states[number] = PartitionState(
                _number(data["leader"]),
                _number(data["leaderEpoch"]),
                _numbers(data["isr"]),
                _numbers(data.get("eligibleLeaderReplicas") or ()),
            )

    def _partition_change(self, data: Value) -> None:
        """As PartitionRegistration.merge: what is null stays, and a leader that is named begins an epoch."""
        name, number = self._names.get(str(data["topicId"])), _number(data["partitionId"])
        if name is None:
            return
        topic = self._topics[name]
        if data["replicas"] is not None:
            topic.replicas[number] = _numbers(data["replicas"])
        state = topic.states.get(number)
        if state is None:
            return
        if _number(data["leader"]) != NO_LEADER_CHANGE:
            state = state._replace(leader=_number(data["leader"]), leader_epoch=state.leader_epoch + 1)
        if data["isr"] is not None:
            state = state._replace(isr=_numbers(data["isr"]))
        if data.get("eligibleLeaderReplicas") is not None:
            state = state._replace(elr=_numbers(data["eligibleLeaderReplicas"]))
        topic.states[number] = state

    def _config(self, data: Value) -> None:
        found = self._configs.setdefault((_number(data["resourceType"]), str(data["resourceName"])), {})
        if data["value"] is None:
            found.pop(str(data["name"]), None)
        else:
            found[str(data["name"])] = str(data["value"])

    def _remove_topic(self, data: Value) -> None:
        name = self._names.pop(str(data["topicId"]), None)
        if name is not None:
            self._topics.pop(name, None)
            self._configs.pop((_TOPIC_RESOURCE, name), None)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _numbers(value: object) -> tuple[int, ...]:
    assert isinstance(value, Sequence)
    return tuple(value)


_TAKERS = {
    "TOPIC_RECORD": _Image._topic,
    "PARTITION_RECORD": _Image._partition,
    "PARTITION_CHANGE_RECORD": _Image._partition_change,
    "CONFIG_RECORD": _Image._config,
    "REMOVE_TOPIC_RECORD": _Image._remove_topic,
}
_TRANSACTIONS = ("BEGIN_TRANSACTION_RECORD", "END_TRANSACTION_RECORD", "ABORT_TRANSACTION_RECORD")
_NUMBERS = frozenset(schema_of(kind).number for kind in (*_TAKERS, *_TRANSACTIONS))
