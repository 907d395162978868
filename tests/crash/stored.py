"""A store of two directories, with an account of the promises about its topics: for crashes, faults and kills.

For each topic, `Story` lists the states that a start may find: the number of partitions, the settings and the id, or
that the topic does not exist.  A step that was begun may have happened or not, and never in part.  Records carry the id
of their topic, so that those of a deleted one cannot be taken for those of the next one of its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import kafkalog
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.files import Files
from kafkalog.engine.format.java_text import new_uuid as new_topic_id
from kafkalog.engine.format.names import TOPIC_CONFIGS_FILE, TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.errors import KafkalogError
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles

FAST = UnsyncedFiles()
DISKS = 2
Settings = tuple[tuple[str, str], ...]


class State(NamedTuple):
    """The state of a topic that exists."""

    partitions: int
    topic_id: str
    settings: Settings


class Story:
    """The promises made up to a point."""

    def __init__(self) -> None:
        self.states: dict[str, list[State | None]] = {}  # that a topic may be in
        self.acknowledged: dict[tuple[str, int], int] = {}  # records, by topic id and partition

    def told(self, label: str, value: object) -> None:
        """One mark."""
        assert isinstance(value, tuple)
        if label == "append":
            self.acknowledged[value] = self.acknowledged.get(value, 0) + 1
            return
        topic, state = value
        if label == "begin":
            self.states.setdefault(topic, [None]).append(state)
        else:
            self.states[topic] = [state]

    def judge(self, store: Store, *, process_only: bool) -> None:
        """AssertionError where a topic is what it must not be."""
        there = {}
        for topic in store.topics():
            info = store.describe_topic(topic)
            assert info.topic_id is not None
            there[topic] = State(info.partitions, info.topic_id, as_settings(info.overrides))
        for topic, choices in self.states.items():
            found = there.pop(topic, None)
            assert found in choices, f"{topic}: found {found}, expected one of {choices}"
            logs = store.manager.logs_by_topic(topic)
            numbers = sorted(log.topic_partition.partition for log in logs)
            assert numbers == list(range(found.partitions if found else 0)), (topic, found, numbers)
            if found is not None:
                assert {log.topic_id for log in logs} == {found.topic_id}, topic
                self._judge_records(store, topic, found, process_only)
        assert not there, f"nobody made {there}"

    def _judge_records(self, store: Store, topic: str, state: State, process_only: bool) -> None:
        for number in range(state.partitions):
            values = values_in(store, TopicPartition(topic, number))
            assert set(values) <= {state.topic_id.encode()}, (topic, number, values)
            if process_only:
                assert len(values) >= self.acknowledged.get((state.topic_id, number), 0), (topic, number)


def as_settings(overrides: Mapping[str, str]) -> Settings:
    return tuple(sorted(overrides.items()))


def values_in(store: Store, partition: TopicPartition) -> list[bytes]:
    log = store.manager.get_log(partition)
    assert log is not None, partition
    found: list[bytes] = []
    while len(found) < log.log_end_offset:
        found += [bytes(each.value or b"") for each in log.read(len(found), 1 << 20).records.records()]
    return found


class Shelf:
    """Stores of the same directories, one after the other."""

    def __init__(self, root: str | os.PathLike[str], files: Files = FAST) -> None:
        self.dirs = [os.path.join(root, f"disk{number}") for number in range(DISKS)]
        self.files = files
        self.story = Story()
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def open(self) -> Store:
        self._store = None
        self._store = kafkalog.open(self.dirs, files=self.files)
        return self._store

    def close(self) -> None:
        self.store.close()

    def die(self) -> None:
        """As a crash: closes everything, writes nothing."""
        if self._store is not None:
            home = self._store._home
            assert isinstance(home, StoreHome)
            home.abandon()

    def mark(self, label: str, value: tuple[object, ...]) -> None:
        self.story.told(label, value)
        told = getattr(self.files, "mark", None)
        if told is not None:
            told(label, value)

    def step(self, topic: str, after: State | None, call: Callable[[], object]) -> None:
        self.mark("begin", (topic, after))
        call()
        self.mark("end", (topic, after))

    # --- what a service does ---------------------------------------------------------------------------

    def state(self, topic: str) -> State:
        info = self.store.describe_topic(topic)
        assert info.topic_id is not None
        return State(info.partitions, info.topic_id, as_settings(info.overrides))

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        overrides = {name.replace("_", "."): value for name, value in settings.items()}
        state = State(partitions, new_topic_id(), as_settings({"retention.ms": "-1", **overrides}))
        self.step(
            topic,
            state,
            lambda: self.store.create_topic(topic, partitions, config=overrides, topic_id=state.topic_id),
        )

    def add(self, topic: str, partitions: int) -> None:
        state = self.state(topic)._replace(partitions=partitions)
        self.step(topic, state, lambda: self.store.add_partitions(topic, partitions))

    def alter(self, topic: str, **settings: str | None) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        before = self.state(topic)
        merged = {**dict(before.settings), **given}
        left = {name: value for name, value in merged.items() if value is not None}
        left.setdefault("retention.ms", "-1")
        after = before._replace(settings=as_settings(left))
        self.step(topic, after, lambda: self.store.alter_topic(topic, given))

    def delete(self, topic: str) -> None:
        self.step(topic, None, lambda: self.store.delete_topic(topic))

    def append(self, topic: str, *partitions: int) -> None:
        topic_id = self.state(topic).topic_id
        for number in partitions:
            self.store.topic(topic).append(topic_id.encode(), partition=number)
            self.mark("append", (topic_id, number))


def check_start(root: str | os.PathLike[str], story: Story, *, process_only: bool = True) -> None:
    """Opens and checks; creates, writes and deletes topics; compares all directories; opens and checks again."""
    shelf = Shelf(root)
    shelf.story = story
    try:
        store = shelf.open()
        assert not store.manager.offline_log_dirs
        story.judge(store, process_only=process_only)
        story.states = {topic: [shelf.state(topic) if topic in store else None] for topic in story.states}
        story.acknowledged = {}
        for topic, [state] in list(story.states.items()):
            if state is None:
                shelf.create(topic, 3)
            else:
                shelf.add(topic, state.partitions + 1)
            shelf.append(topic, 0, shelf.state(topic).partitions - 1)
        shelf.close()
        check_files(shelf)
        story.judge(shelf.open(), process_only=True)
        for topic in story.states:
            shelf.delete(topic)
        shelf.close()
        assert not own_folders(shelf)
        story.judge(shelf.open(), process_only=True)
        shelf.close()
    finally:
        shelf.die()


def own_folders(shelf: Shelf) -> list[str]:
    return [
        os.path.join(each, name)
        for each in shelf.dirs
        for name in os.listdir(each)
        if re.fullmatch(r"[a-z]+-\d+", name) and os.path.isdir(os.path.join(each, name))
    ]


def check_files(shelf: Shelf) -> None:
    """Checks that ids and settings are the same everywhere, and that no partition exists twice."""
    found = own_folders(shelf)
    assert len({os.path.basename(path) for path in found}) == len(found), found
    for path in found:
        [state] = shelf.story.states[os.path.basename(path).rpartition("-")[0]]
        assert state is not None
        assert topic_id_of(path) == state.topic_id, path
    files = [Path(each, TOPIC_CONFIGS_FILE) for each in shelf.dirs]
    if shelf.story.states or any(file.exists() for file in files):  # none is written before there is a topic
        assert len({file.read_bytes() for file in files}) == 1


def tried(call: Callable[[], object]) -> KafkalogError | None:
    """The error that a call raised, or None."""
    try:
        call()
    except KafkalogError as error:
        return error
    return None
