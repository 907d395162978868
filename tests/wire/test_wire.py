"""The same sequences of requests to Apache Kafka 4.4.0 and to kafkalog give the same answers, field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.servers import Servers
from tests.wire import stories_data, stories_groups, stories_topics
from tests.wire.normal import Normal, differences
from tests.wire.permitted import is_permitted
from tests.wire.talk import Talk

pytestmark = pytest.mark.broker

Story = Callable[[Talk], None]
STORIES: dict[str, Story] = {**stories_topics.STORIES, **stories_data.STORIES, **stories_groups.STORIES}


def told(bootstrap: str, story: Story) -> list[tuple[str, Any]]:
    """Tells a story to a server, and returns the answers, normalized."""
    normal = Normal()
    with Talk(bootstrap) as talk:
        try:
            story(talk)
        except (KeyError, IndexError, TypeError) as error:  # an answer that the story cannot go on with
            return [*map(normal.heard, talk.heard), ("the end", f"{type(error).__name__}: {error}")]
        return [*map(normal.heard, talk.heard), ("the end", "")]


def compared(theirs: list[tuple[str, Any]], ours: list[tuple[str, Any]]) -> list[str]:
    """The differences, each kind of them once."""
    found: dict[tuple[str, str], str] = {}
    for number, (kafka, kafkalog) in enumerate(zip(theirs, ours, strict=False)):
        if kafka[0] != kafkalog[0]:
            found["the end", ""] = f"{number}: Kafka heard {kafka!r:.300}, kafkalog {kafkalog!r:.300}"
            break
        name = kafka[0].partition(" ")[0]
        for line in differences(kafka[1], kafkalog[1]):
            if not is_permitted(name, line):
                found.setdefault((name, line), f"{number}: {kafka[0]} {line}")
    return list(found.values())


@pytest.mark.parametrize("name", STORIES)
def test_the_same_answers(servers: Servers, name: str) -> None:
    theirs, ours = (told(server, STORIES[name]) for server in servers)
    found = compared(theirs, ours)
    assert not found, "\n".join(found)
