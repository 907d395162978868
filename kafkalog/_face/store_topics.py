"""A store's topics, and the settings of single groups, as coordinators see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog._face.catalog import Catalog
    from kafkalog.engine.coordinator.topics_view import GroupConfigs

NO_CONFIGS: Mapping[str, str] = {}


class CatalogTopics:
    """The topics of a store, as coordinators see them (TopicsView)."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names: dict[str, str] = {}  # by topic id, as last seen
        self._searched: tuple[int, int] | None = None  # changes of logs and of topics, as of the last search of all

    @property
    def version(self) -> int:
        """A number that grows with every change of a topic."""
        return self._catalog.changes

    def topic_id(self, name: str) -> str | None:
        """Returns the id of a topic; None if it does not exist, or has none."""
        found = self._catalog.info(name)
        return None if found is None else found.topic_id

    def name(self, topic_id: str) -> str | None:
        """Returns the name of the topic with that id; None if there is none."""
        name = self._names.get(topic_id)
        if name is not None and self.topic_id(name) == topic_id:
            return name
        version = (self._catalog.registry.changes, self._catalog.changes)
        if version == self._searched:
            return None
        for each in self._catalog.recorded_with_id(topic_id):  # a new topic is found without looking at all others
            if self.topic_id(each) == topic_id:
                self._names[topic_id] = each
                return each
        self._names = {found: each for each in self.names() if (found := self.topic_id(each)) is not None}
        self._searched = version
        return self._names.get(topic_id)

    def partitions(self, name: str) -> int:
        """Returns the number of partitions; 0 if the topic does not exist."""
        found = self._catalog.info(name)
        return 0 if found is None else found.partitions

    def names(self) -> list[str]:
        """Returns the names of all topics."""
        return self._catalog.names()


class LateGroupConfigs:
    """The settings of single groups (GroupConfigs). A server says where they are; before that, groups have none."""

    def __init__(self) -> None:
        self.source: GroupConfigs | None = None

    def of(self, group: str) -> Mapping[str, str]:
        """Returns the settings that were given to the group."""
        return NO_CONFIGS if self.source is None else self.source.of(group)
