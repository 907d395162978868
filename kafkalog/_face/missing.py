"""Partitions of a topic that have no directory in the given log directories: a disk is missing, or was cleared.

A store's settings (`.kafkalog_topics`) say how many partitions a topic has; without them, a gap in the numbers shows it
(t-0, t-2). A broker holds only the partitions that were assigned to it. The cluster's metadata says which these are;
without it, a gap in a broker's directories proves nothing: it is reported, and is no error. Kafka's internal topics are
created partition by partition, and partitions that were never written to are not missing.

Reads only names and small files. Code that reads whole topics checks this first: the data source, exports, the last
values of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kafkalog._face.cluster_metadata import ClusterMetadata
from kafkalog._face.named import names_topic
from kafkalog._face.topic_info import present_topic
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.topic_configs import KnownTopic, stored_content
from kafkalog.errors import IllegalStateException, KafkaStorageException

SHOWN = 10  # partitions in a message


class Missing(NamedTuple):
    """The missing partitions of one topic. `is_certain`: they are known to exist; otherwise there is only a gap."""

    topic: str
    numbers: tuple[int, ...]
    partition_count: int
    is_certain: bool
    where: str

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in self.numbers]

    @property
    def text(self) -> str:
        some = ", ".join(map(str, self.partitions[:SHOWN]))
        more = f" and {len(self.numbers) - SHOWN} more" if len(self.numbers) > SHOWN else ""
        said = f"topic {self.topic} has {self.partition_count} partitions, found no directory of {some}{more}"
        said += f" in {self.where}"
        return said if self.is_certain else f"{said} (the cluster may have them on other nodes)"

    def error(self, hint: str) -> IllegalStateException:
        """Returns an IllegalStateException with the text; `hint` is added to what to do."""
        return IllegalStateException(
            f"Some data may have been lost. {self.text}",
            hint=f"name every directory of the store, restore the missing ones, or name the partitions to read; {hint}",
        )


def missing_partitions(
    log_dirs: Sequence[str],
    wanted: Callable[[str], bool],
    *,
    files: Files = OS_FILES,
    cluster: ClusterMetadata | None = None,
    node_id: int | None = None,
) -> list[Missing]:
    """Returns the missing partitions of the topics that are `wanted`, by name. CorruptCheckpointException if the
    settings of no directory can be read although there are some; KafkaStorageException.

    `cluster`: the metadata of the cluster whose directories these are, if they are not one broker's own. Then all
    partitions of a topic are checked, or those that `node_id` holds.

    Directories and settings are not written at once, so a missing partition is checked a second time.
    """
    if cluster is not None:
        cluster = replace(cluster, node_id=node_id)
    found = _look(log_dirs, wanted, files, cluster)
    return _look(log_dirs, wanted, files, cluster) if found else []


def _look(
    log_dirs: Sequence[str], wanted: Callable[[str], bool], files: Files, whole_cluster: ClusterMetadata | None
) -> list[Missing]:
    topics: dict[str, dict[int, str]] = {}
    for log_dir in log_dirs:
        for partition, path in list_partitions(log_dir, files=files).items():
            topics.setdefault(partition.topic, {})[partition.partition] = path
    if whole_cluster is not None:
        return list(_of_whole_cluster(whole_cluster, wanted, topics, ", ".join(log_dirs)))
    settings = TopicSettings(log_dirs, files=files)
    cluster, is_of_cluster = settings.cluster, settings.is_of_cluster
    _, known = stored_content(log_dirs, files)
    named = cluster.topics if cluster is not None else {} if is_of_cluster else known
    topics |= {topic: {} for topic in named if topic not in topics}
    left_out = names.INTERNAL_TOPICS | {names.CLUSTER_METADATA_TOPIC}
    where = ", ".join(log_dirs)
    result = []
    for topic, folders in sorted(topics.items()):
        if topic in left_out or not wanted(topic):
            continue
        theirs = settings.cluster_topic(topic)
        if cluster is not None and theirs is not None:
            numbers = tuple(number for number in theirs.on_node(cluster.node_id) if number not in folders)
            if numbers:
                result.append(Missing(topic, numbers, theirs.partitions, cluster.is_whole, where))
            continue
        count = _count(known.get(topic), folders, files)
        numbers = tuple(number for number in range(count) if number not in folders)
        if numbers:
            # A directory that only `open_log` has written to has no list of topics: one partition is all it has.
            if not (known.keys() - left_out or is_of_cluster):
                continue
            result.append(Missing(topic, numbers, count, not is_of_cluster, where))
    return result


def _of_whole_cluster(
    cluster: ClusterMetadata, wanted: Callable[[str], bool], topics: Mapping[str, Mapping[int, str]], where: str
) -> Iterator[Missing]:
    for topic, theirs in cluster.topics.items():
        if topic in names.INTERNAL_TOPICS or not wanted(topic):
            continue
        folders = topics.get(topic, {})
        numbers = tuple(number for number in theirs.on_node(cluster.node_id) if number not in folders)
        if numbers:
            yield Missing(topic, numbers, theirs.partitions, cluster.is_whole, where)


def _count(known: KnownTopic | None, folders: Mapping[int, str], files: Files) -> int:
    def ids() -> Iterator[str | None]:
        for path in folders.values():
            try:
                yield topic_id_of(path, files)
            except OSError as error:
                raise KafkaStorageException.because_of(error, "cannot read a topic's id") from error

    found = present_topic(known, list(folders), ids, may_be_elsewhere=True)
    return 0 if found is None else found.partitions


def whole_topics(names_given: Iterable[str]) -> Callable[[str], bool]:
    """Returns a function that tells whether names (`t`, `t-0` or `t*`) request all of a topic. No names request all."""
    asked = set(names_given)
    return lambda topic: not asked or any(names_topic(name, topic) for name in asked)
