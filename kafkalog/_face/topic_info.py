"""What a topic is, told from what is known of it and from its folders.

A store that writes has the folders from its logs (`catalog`), one that reads from listings (`store_view`), and so have
commands that look for what is missing (`missing`).  Knows no log, and touches no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.topic_configs import PARTITIONS_MAX, KnownTopic
from kafkalog.errors import InvalidPartitionsException, InvalidTopicException, UnknownTopicOrPartitionException


class TopicInfo(NamedTuple):
    """A topic: how many partitions it has, its id (a Uuid of 22 characters; None where nobody gave it one), and the
    settings in which it differs from the store's defaults."""

    name: str
    partitions: int
    topic_id: str | None
    overrides: Mapping[str, str]
    is_internal: bool


def present_topic(
    known: KnownTopic | None,
    numbers: Sequence[int],
    ids: Callable[[], Iterable[str | None]],
    *,
    may_be_elsewhere: bool,
) -> KnownTopic | None:
    """A topic as it is there, of what is known of it and what its folders say: their numbers, and the ids in them.

    None where there is none: it is being made, is deleted, or has no folder at all, and `may_be_elsewhere` is off.
    """
    if not numbers and known is not None:
        return None if known.is_deleted or known.made == 0 or not may_be_elsewhere else known
    if known is None:
        return of_folders(numbers, next((each for each in ids() if each is not None), ""))
    theirs: list[str] = []
    for each in ids():
        if each is None or each == known.topic_id:
            break  # it is the one that is known
        theirs.append(each)
    else:
        return of_folders(numbers, theirs[0])
    if known.is_deleted or known.made == 0:
        return None
    if known.made is not None:
        return known._replace(partitions=known.made)
    return known._replace(partitions=max(known.partitions, 1 + max(numbers)))


def of_folders(partitions: Sequence[int], topic_id: str) -> KnownTopic | None:
    """What the folders of a topic say of it."""
    return KnownTopic(1 + max(partitions), topic_id) if partitions else None


def topic_info(topic: str, known: KnownTopic | None, overrides: Mapping[str, str]) -> TopicInfo | None:
    """What is known of a topic; None where that is nothing, or its deletion."""
    if known is None or known.is_deleted:
        return None
    is_internal = topic in names.INTERNAL_TOPICS
    return TopicInfo(topic, known.partitions, known.topic_id or None, dict(overrides), is_internal)


def no_topic(
    topic: str, place: str, known: Iterable[str], is_there: Callable[[str], bool], *, read_only: bool = False
) -> UnknownTopicOrPartitionException:
    """Names the nearest of the topics that are `known`, if it `is_there`."""
    from difflib import get_close_matches

    near = next(filter(is_there, get_close_matches(topic, sorted({*known} - {topic}))), None)
    hint = (
        "the process that writes makes topics, and this store only reads" if read_only else "create_topic() makes one"
    )
    return UnknownTopicOrPartitionException(
        f"no topic {topic!r} in {place}", hint=hint if near is None else f"did you mean {near!r}? {hint}"
    )


def check_appendable(topic: str) -> None:
    """InvalidTopicException for one of Kafka's own, as a broker's answer to any client."""
    if topic in names.INTERNAL_TOPICS:
        raise InvalidTopicException(f"Cannot append to internal topic {topic}", hint="cursors and transactions do")


def not_made(partition: TopicPartition) -> UnknownTopicOrPartitionException:
    """Of one of Kafka's own topics."""
    return UnknownTopicOrPartitionException(
        f"{partition} was not made yet", hint=f"partitions of {partition.topic} are made when they are first written to"
    )


def made_partitions(known: KnownTopic | None, here: Iterable[int]) -> list[int]:
    """The partitions of one of Kafka's own topics that were made so far, of what is known of it and those that are
    here."""
    return sorted({*here, *(() if known is None else known.numbers)})


def countable(info: TopicInfo) -> int:
    """A topic's number of partitions, for who goes over all of them.  InvalidPartitionsException where no cluster has
    so many: the name of a folder says it."""
    if info.partitions > PARTITIONS_MAX:
        raise InvalidPartitionsException(
            f"topic {info.name!r}: a folder says that it has {info.partitions} partitions, expected at most "
            f"{PARTITIONS_MAX}",
            hint=f"the folder {info.name}-{info.partitions - 1} is perhaps none of Kafka's",
        )
    return info.partitions
