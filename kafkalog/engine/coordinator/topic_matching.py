"""The topics that a group's regular expressions match: long work, which holds no lock of a coordinator.

    found = Matching(topics, clock, context, ["orders-.*"], lines).run(is_wanted)

An expression may be slow: it costs its length times a name's length, for each topic. Source: TopicRegexResolver
(4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.java_order import name_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.topic_regex import compile_regex
from kafkalog.engine.coordinator.topics_view import TopicsView
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.errors import KafkalogError


class Matched(NamedTuple):
    """The topics of each expression, the version of all topics before they were read, and when that was."""

    topics: JavaHashMap[str, JavaHashMap[str, None]]
    version: int
    timestamp_ms: int


class Matching(NamedTuple):
    """One resolution of expressions, for the client of `context`: topics that it may not see match nothing."""

    topics: TopicsView
    clock: Clock
    context: RequestContext
    regexes: Sequence[str]
    lines: Lines

    def run(self, is_wanted: Callable[[], bool]) -> Matched:
        """Returns the topics. Stops early, with fewer, once it is not wanted any more. An invalid expression has no
        topics."""
        version, now_ms = self.topics.version, self.clock.milliseconds()
        found: JavaHashMap[str, JavaHashMap[str, None]] = name_map(len(self.regexes))
        compiled = []
        for regex in self.regexes:
            found[regex] = name_map()
            try:
                compiled.append(compile_regex(regex))
            except KafkalogError as error:
                self.lines.warning("%s", error)
        for topic in self.topics.names():
            for each in compiled:
                if not is_wanted():
                    return Matched(found, version, now_ms)
                if each.matches(topic):
                    found[each.pattern][topic] = None
        self._hide(found)
        ordered: JavaHashMap[str, JavaHashMap[str, None]] = name_map(len(found))
        for regex, matched in found.items():
            ordered[regex] = matched
        return Matched(ordered, version, now_ms)

    def _hide(self, found: JavaHashMap[str, JavaHashMap[str, None]]) -> None:
        """Removes the topics that the client may not see."""
        topics = {topic for each in found.values() for topic in each}
        shown = topics if self.context.describable is None else set(self.context.describable(topics))
        for hidden in topics - shown:
            for each in found.values():
                each.pop(hidden, None)
