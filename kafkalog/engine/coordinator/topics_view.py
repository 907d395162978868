"""Topics, and settings of single groups, as the coordinator of groups sees them.

The face implements `TopicsView` over a store's topics, and `GroupConfigs` over the settings that
IncrementalAlterConfigs gave to a group. Nothing here takes a coordinator's lock, and every method may be called while
one is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

NO_CONFIGS: Mapping[str, str] = {}


class TopicsView(Protocol):
    """The topics that exist now."""

    @property
    def version(self) -> int:
        """A number that grows with every change of a topic."""
        ...

    def topic_id(self, name: str) -> str | None:
        """Returns the id of a topic in 22 characters; None if the topic does not exist."""
        ...

    def name(self, topic_id: str) -> str | None:
        """Returns the name of the topic with that id; None if there is none."""
        ...

    def partitions(self, name: str) -> int:
        """Returns the number of partitions; 0 if the topic does not exist."""
        ...

    def names(self) -> list[str]:
        """Returns the names of all topics, internal ones too."""
        ...


class GroupConfigs(Protocol):
    """The settings of single groups, by Kafka's names (`consumer.session.timeout.ms`)."""

    def of(self, group: str) -> Mapping[str, str]:
        """Returns the settings that were given to the group; empty without any."""
        ...


class NoTopics:
    """A view without topics."""

    version = 0

    def topic_id(self, name: str) -> str | None:
        """Returns None."""
        return None

    def name(self, topic_id: str) -> str | None:
        """Returns None."""
        return None

    def partitions(self, name: str) -> int:
        """Returns 0."""
        return 0

    def names(self) -> list[str]:
        """Returns an empty list."""
        return []


class NoGroupConfigs:
    """No group has settings of its own."""

    def of(self, group: str) -> Mapping[str, str]:
        """Returns an empty mapping."""
        return NO_CONFIGS
