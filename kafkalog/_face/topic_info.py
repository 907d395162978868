"""The description of a topic, derived from recorded facts and from its partition directories.

A store that writes has the directories from its logs (`catalog`). A store that reads (`store_view`) and the commands
that search for missing partitions (`missing`) have them from listings. Knows no log and touches no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkalog import _shown
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.topic_configs import PARTITIONS_MAX, KnownTopic
from kafkalog.errors import InvalidPartitionsException, InvalidTopicException, UnknownTopicOrPartitionException


class TopicInfo(NamedTuple):
    """The facts about a topic that are known without opening its logs, as `Topic.info` has them.

    Attributes:
        name: The topic's name.
        partitions: The number of partitions.
        topic_id: The id, a Uuid of 22 characters; None if the topic has none.
        overrides: The settings in which it differs from the store's defaults.
        is_internal: Whether it is one of Kafka's internal topics.

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     prices = store.create_topic("prices", partitions=3, config={"cleanup.policy": "compact"})
        ...     found = prices.info
        >>> found.name, found.partitions, found.overrides["cleanup.policy"], found.is_internal
        ('prices', 3, 'compact', False)
    """

    name: str
    partitions: int
    topic_id: str | None
    overrides: Mapping[str, str]
    is_internal: bool

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _table_of(self))


def _table_of(info: TopicInfo) -> str:
    told = [("partitions", info.partitions), ("topic id", info.topic_id), *sorted(info.overrides.items())]
    return _shown.table(info.name, ("", ""), ((name, _shown.cut(value)) for name, value in told if value is not None))


def present_topic(
    known: KnownTopic | None,
    numbers: Sequence[int],
    ids: Callable[[], Iterable[str | None]],
    *,
    may_be_elsewhere: bool,
) -> KnownTopic | None:
    """Returns the current state of a topic, from its recorded state, the numbers of its directories and the ids in
    them.

    None if there is no such topic. Then it is being created, is deleted, or has no directory at all and is not
    `may_be_elsewhere`.
    """
    if not numbers and known is not None:
        return None if known.is_deleted or known.made == 0 or not may_be_elsewhere else known
    if known is None:
        return of_folders(numbers, next((each for each in ids() if each is not None), ""))
    theirs: list[str] = []
    for each in ids():
        if each is None or each == known.topic_id:
            break  # it is the recorded topic
        theirs.append(each)
    else:
        return of_folders(numbers, theirs[0])
    if known.is_deleted or known.made == 0:
        return None
    if known.made is not None:
        return known._replace(partitions=known.made)
    return known._replace(partitions=max(known.partitions, 1 + max(numbers)))


def of_folders(partitions: Sequence[int], topic_id: str) -> KnownTopic | None:
    """Returns the state of a topic by its directories alone."""
    return KnownTopic(1 + max(partitions), topic_id) if partitions else None


def topic_info(topic: str, known: KnownTopic | None, overrides: Mapping[str, str]) -> TopicInfo | None:
    """Returns a topic's description; None if nothing is known of it, or if it was deleted."""
    if known is None or known.is_deleted:
        return None
    is_internal = topic in names.INTERNAL_TOPICS
    return TopicInfo(topic, known.partitions, known.topic_id or None, dict(overrides), is_internal)


def no_topic(
    topic: str, place: str, known: Iterable[str], is_there: Callable[[str], bool], *, read_only: bool = False
) -> UnknownTopicOrPartitionException:
    """Returns the error for an unknown topic. It names the most similar one of `known` that `is_there`."""
    from difflib import get_close_matches

    near = next(filter(is_there, get_close_matches(topic, sorted({*known} - {topic}))), None)
    hint = "the writing process creates topics; this store only reads" if read_only else "create_topic() creates one"
    return UnknownTopicOrPartitionException(
        f"no topic {topic!r} in {place}", hint=hint if near is None else f"did you mean {near!r}? {hint}"
    )


def check_appendable(topic: str) -> None:
    """Raises InvalidTopicException for an internal topic, as a broker does for every client."""
    if topic in names.INTERNAL_TOPICS:
        raise InvalidTopicException(
            f"Cannot append to internal topic {topic}", hint="only cursors and transactions append to it"
        )


def not_made(partition: TopicPartition) -> UnknownTopicOrPartitionException:
    """Returns the error for a partition of an internal topic that does not exist yet."""
    return UnknownTopicOrPartitionException(
        f"{partition} was not created yet",
        hint=f"partitions of {partition.topic} are created when they are first written to",
    )


def made_partitions(known: KnownTopic | None, here: Iterable[int]) -> list[int]:
    """Returns the partitions of an internal topic that were created so far, from its recorded state and those that are
    here."""
    return sorted({*here, *(() if known is None else known.numbers)})


def countable(info: TopicInfo) -> int:
    """Returns a topic's number of partitions, for code that iterates over all of them. InvalidPartitionsException if no
    cluster has so many, which the name of a directory can cause."""
    if info.partitions > PARTITIONS_MAX:
        raise InvalidPartitionsException(
            f"topic {info.name!r}: a directory's name says that it has {info.partitions} partitions, expected at most "
            f"{PARTITIONS_MAX}",
            hint=f"the directory {info.name}-{info.partitions - 1} may not be a partition of Kafka",
        )
    return info.partitions
