"""The topics, ACLs, credentials and quotas that a KRaft cluster knows, read from the files of `__cluster_metadata-0`:
the newest snapshot (`.checkpoint`) and the log after it.

A cluster stores its topics there, with their ids, partitions and settings, and the dynamic defaults of the cluster and
of each broker. None of this is stored next to the data. The directory is in the metadata directory of a node, which is
`metadata.log.dir`, by default the first of `log.dirs`.

Only reads, takes no lock, and works while a broker is running. Damage raises no error: `problem` describes it, and then
nobody may delete anything because of what was read. Records of a metadata transaction count once it has ended.
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
LOOKS, REST_S = 3, 0.05  # for a file that a broker may be writing
CLUSTER_DEFAULT = ""  # the name of a config resource: the default of all brokers
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4  # ConfigResource.Type
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")

Value = Mapping[str, object]
Stamp = tuple[tuple[str, int, int], ...]
QuotaEntity = tuple[tuple[str, str | None], ...]


class PartitionState(NamedTuple):
    """The nodes that may lead a partition, and the leader. `leader` is -1 if there is none. `elr` are the nodes outside
    `isr` that have every record below the high watermark."""

    leader: int
    leader_epoch: int
    isr: Sequence[int]
    elr: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic in the cluster: its id (a Uuid of 22 characters), its overrides, the node ids that hold each partition,
    and the state of each partition."""

    topic_id: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)
    states: Mapping[int, PartitionState] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions the topic has in the whole cluster."""
        return len(self.replicas)

    def on_node(self, node_id: int | None) -> list[int]:
        """Returns the numbers of the partitions that the node holds, sorted; all partitions for None."""
        return sorted(number for number, nodes in self.replicas.items() if node_id is None or node_id in nodes)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The content of the metadata in `directory`, up to `end_offset`.

    `brokers` has the dynamic settings by node id as text; those of all brokers are under `CLUSTER_DEFAULT`. `problem`
    is the error that stopped the reading: the cluster may have more than is listed here. `acls` are the records by
    their ids, `scram` the records by user and mechanism, `quotas` by the entity's types and names, each with its
    values.
    """

    directory: str
    node_id: int | None
    topics: Mapping[str, ClusterTopic]
    brokers: Mapping[str, Mapping[str, str]]
    end_offset: int = 0
    problem: KafkalogError | None = None
    seen: Stamp = ()
    epoch: int = -1  # the last batch's; among several nodes' logs the newest has the highest
    acls: Mapping[str, Value] = field(default_factory=dict)
    scram: Mapping[tuple[str, int], Value] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return self.problem is None

    @property
    def dynamic(self) -> dict[str, str]:
        """The dynamic settings that apply to this node: its settings over those of the cluster."""
        own = {} if self.node_id is None else self.brokers.get(str(self.node_id), {})
        return {**self.brokers.get(CLUSTER_DEFAULT, {}), **own}


def read_cluster_metadata(
    log_dirs: Iterable[str], files: Files, *, known: ClusterMetadata | None = None
) -> ClusterMetadata | None:
    """Returns the metadata in the first of `log_dirs` that has any; None if none has. Returns `known` if no file has
    changed since."""
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
    """Reads the metadata in one directory repeatedly, without reading old records again: a running cluster adds a
    record twice a second. Not thread-safe."""

    def __init__(self, directory: str, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._image: _Image | None = None
        self._known: ClusterMetadata | None = None

    def read(self) -> ClusterMetadata | None:
        """Returns the current metadata; None if the directory has none."""
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
    """Returns names, sizes and times of the files that matter."""
    found = []
    for name in sorted(files.list_dir(folder)):
        if name.endswith(names.LOG_FILE_SUFFIX) or _SNAPSHOT.fullmatch(name):
            try:
                stat = files.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # a broker has just deleted it
            found.append((name, stat.size, stat.mtime_ms))
    return tuple(found)


def _batches(path: str, files: Files, start: int = 0) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yields the batches of a file from `start` on, each with a header whose position counts from the batch's first
    byte. BadBytesError for a wrong checksum, and for bytes after the last whole batch that stay there: a broker may be
    writing the next batch."""
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
    raise BadBytesError(f"found {left} bytes after the last whole batch, expected none", path=path, position=reached)


def _control_type(data: bytes, header: BatchHeader) -> ControlRecordType | None:
    first = next(iter(records(data, header)), None) if header.is_control else None
    return None if first is None else parse_control_key(first.key)


class _Topic:
    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.replicas: dict[int, Sequence[int]] = {}
        self.states: dict[int, PartitionState] = {}


class _Image:
    """Applies records in order. Each function of `_TAKERS` applies one kind; other records do not concern topics."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.node_id: int | None = None
        self.end = 0
        self.epoch = -1
        self.problem: KafkalogError | None = None
        self._topics: dict[str, _Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._acls: dict[str, Value] = {}
        self._scram: dict[tuple[str, int], Value] = {}
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._held_back: list[tuple[str, Value]] | None = None  # records of a transaction that has not ended
        self._positions: dict[str, int] = {}  # by log file name: the position up to which it was read
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
        return ClusterMetadata(
            self.directory,
            self.node_id,
            topics,
            brokers,
            self.end,
            self.problem,
            epoch=self.epoch,
            acls=dict(self._acls),
            scram=dict(self._scram),
            quotas={entity: dict(values) for entity, values in self._quotas.items()},
        )

    # --- files -----------------------------------------------------------------------------------------

    def read(self, folder: str, files: Files) -> None:
        try:
            self._read_newest_snapshot(folder, files)
            self._read_log(folder, files)
        except (KafkalogError, OSError) as error:
            told = error if isinstance(error, KafkalogError) else KafkaStorageException.because_of(error, "not read")
            self.problem = told

    def read_on(self, folder: str, files: Files) -> bool:
        """Reads what was added since. False if there are other files now, so that everything must be read again."""
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
        """Reads the log after the snapshot. The log is never compacted, so its offsets have no gaps."""
        for name in sorted(name for name in files.list_dir(folder) if name.endswith(names.LOG_FILE_SUFFIX)):
            path = os.path.join(folder, name)
            for header, data in _batches(path, files, self._positions.get(name, 0)):
                if header.base_offset > self.end:
                    raise BadBytesError(
                        f"found a batch at offset {header.base_offset}, expected offset {self.end}",
                        path=path,
                        hint="the metadata between them is missing; copy the directory from the node once more",
                    )
                found = state_batch(data, header).records
                self._take(record.value for record in found if record.offset >= self.end)
                self.end = max(self.end, header.next_offset)
                self.epoch = max(self.epoch, header.leader_epoch)
                position = self._positions.get(name, 0)
                self._last = name, position, header.base_offset, header.crc
                self._positions[name] = position + header.size

    def check_nodes(self, log_dirs: Sequence[str], files: Files) -> None:
        """Reads the node id of the directory. Sets `problem` if another of `log_dirs` is of another node or cluster."""
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
                        f"cluster {mine.cluster_id}, as in {self.directory}",
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
            # A frame begins with two numbers of one byte each; most records are no-ops.
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
        """Applies a change as PartitionRegistration.merge: null changes nothing, and a named leader starts an epoch."""
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

    def _acl(self, data: Value) -> None:
        self._acls[str(data["id"])] = data

    def _remove_acl(self, data: Value) -> None:
        self._acls.pop(str(data["id"]), None)

    def _credential(self, data: Value) -> None:
        self._scram[str(data["name"]), _number(data["mechanism"])] = data

    def _remove_credential(self, data: Value) -> None:
        self._scram.pop((str(data["name"]), _number(data["mechanism"])), None)

    def _quota(self, data: Value) -> None:
        parts, value = data["entity"], data["value"]
        assert isinstance(parts, Sequence)
        assert isinstance(value, float)
        entity = tuple(sorted((part["entityType"], part["entityName"]) for part in parts))
        values = self._quotas.setdefault(entity, {})
        if data["remove"]:
            values.pop(str(data["key"]), None)
        else:
            values[str(data["key"])] = value
        if not values:
            del self._quotas[entity]


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
    "ACCESS_CONTROL_ENTRY_RECORD": _Image._acl,
    "REMOVE_ACCESS_CONTROL_ENTRY_RECORD": _Image._remove_acl,
    "USER_SCRAM_CREDENTIAL_RECORD": _Image._credential,
    "REMOVE_USER_SCRAM_CREDENTIAL_RECORD": _Image._remove_credential,
    "CLIENT_QUOTA_RECORD": _Image._quota,
}
_TRANSACTIONS = ("BEGIN_TRANSACTION_RECORD", "END_TRANSACTION_RECORD", "ABORT_TRANSACTION_RECORD")
_NUMBERS = frozenset(schema_of(kind).number for kind in (*_TAKERS, *_TRANSACTIONS))
