"""The overrides of each topic's settings, kept beside the data, so that an open need not repeat them.

Kafka keeps them in its metadata log, which a directory without a broker has not got.  Here they are one small file,
`.kafkalog_topics`, in every live directory (a broker passes over plain files there): JSON, replaced whole, with a
revision that grows.  At start the highest one that can be read counts, and goes to every live directory: any of them
may be the one that is left.  A topic that lost its overrides stays in the file, with none; so one that the highest
revision does not name was set elsewhere, and a lower one that names it counts.  Knows nothing of logs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from kafkalog._native.log_end import PartitionLock
from kafkalog.config import LogConfig
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    InvalidTopicException,
    KafkaStorageException,
)
from kafkalog.files import Files
from kafkalog.files.lines import Lines
from kafkalog.format import names, values
from kafkalog.limits import LONG_MAX
from kafkalog.manager.changes import inside

LOGGER = "kafkalog.manager"

VERSION = 0


Topics = Mapping[str, Mapping[str, str]]


class _Content(NamedTuple):
    """Of one file."""

    revision: int
    topics: Topics


def checked_overrides(overrides: object, what: str = "overrides") -> Mapping[str, str]:
    """What a caller gives as a topic's settings.  IllegalArgumentException for what are no names and texts;
    ConfigException for a name that Kafka has not, and for a value out of range."""
    hint = 'such as {"segment.bytes": "1048576"}'
    if not isinstance(overrides, Mapping):
        raise IllegalArgumentException(
            f"{what}: found {type(overrides).__name__}, expected Kafka's topic keys and their values", hint=hint
        )
    for name in overrides:
        values.text(name, f"{what}: a key", hint=hint)
    LogConfig.validate(overrides)
    return overrides


class TopicConfigs(Protocol):
    """Where a manager asks for a topic's overrides (Kafka's ConfigRepository)."""

    def overrides(self, topic: str) -> Mapping[str, str]: ...


class FixedTopicConfigs:
    """Overrides that whoever opens the directories says anew each time."""

    def __init__(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        self._topics = {topic: dict(overrides) for topic, overrides in topics.items()}

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})


class StoredTopicConfigs:
    """Overrides in the file of each of `directories`.  Thread-safe."""

    def __init__(self, directories: Iterable[str], files: Files, failed: Callable[[str, str, OSError], object]) -> None:
        """Reads what there is, and gives it to the directories that have less.  One whose file does not parse keeps it
        until `set`, and a warning says so.

        `failed(directory, message, error)` is told of a disk that refuses; the others have it all, too.
        CorruptCheckpointException when no directory's file can be read, and one has some.
        """
        self._files = files
        self._failed = failed
        self._directories = list(directories)
        self._lock = PartitionLock()
        self._revision, self._topics = self._gather()
        self._is_written = True  # off while the files may say something else

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})

    @property
    def topics(self) -> dict[str, Mapping[str, str]]:
        """All that have overrides."""
        return {topic: overrides for topic, overrides in self._topics.items() if overrides}

    def set(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides, in every directory.  ConfigException; IllegalStateException inside of itself;
        KafkaStorageException when no disk takes it: what was written then may count after a restart."""
        if not isinstance(topic, str):
            raise InvalidTopicException(f"found {topic!r}, expected a topic's name")
        names.validate_topic_name(topic)
        LogConfig.validate(overrides)
        if self._lock.is_mine():
            raise inside("writing the topics' settings")
        with self._lock:
            if self._is_written and self._topics.get(topic, {}) == overrides:
                return
            topics = {**self._topics, topic: dict(overrides)}
            self._revision += 1  # first: what fails half way must not be taken for what comes next
            self._is_written = False
            error = self._write(self._directories, self._revision, topics)
            if error is not None and not self._directories:
                raise KafkaStorageException.because_of(error, "the topics' settings were not written") from error
            self._topics = topics
            self._is_written = True

    def forget_directory(self, directory: str) -> None:
        """It is offline: nothing is written there any more."""
        with self._lock:
            self._directories = [each for each in self._directories if each != directory]

    def _write(self, directories: Iterable[str], revision: int, topics: Topics) -> OSError | None:
        """To those whose disk takes it; what the last one that did not raised."""
        data = _encode(revision, topics)
        error: OSError | None = None
        for directory in list(directories):
            try:
                self._files.write_atomic(_path(directory), data)
            except OSError as failure:
                self._give_up(directory, "writing", failure)
                error = failure
        return error

    def _give_up(self, directory: str, doing: str, error: OSError) -> None:
        self.forget_directory(directory)
        self._failed(directory, f"Error while {doing} {_path(directory)}", error)

    def _gather(self) -> _Content:
        """What counts, which every directory has from then on."""
        found: dict[str, _Content | None] = {}
        problem: CorruptCheckpointException | None = None
        for directory in list(self._directories):
            try:
                found[directory] = _read(_path(directory), self._files)
            except FileNotFoundError:
                found[directory] = None
            except OSError as error:
                self._give_up(directory, "reading", error)
            except CorruptCheckpointException as error:
                Lines(LOGGER, directory).warning("%s", error)
                problem = error
        there = sorted((each for each in found.values() if each is not None), key=lambda each: -each.revision)
        if problem is not None and not there:
            raise problem
        if not there:
            return _Content(0, {})
        newest, topics = there[0], dict(there[0].topics)
        for older in there[1:]:
            topics = {**older.topics, **topics}
        content = newest if topics == newest.topics else _Content(newest.revision + 1, topics)
        self._write((each for each, had in found.items() if had != content), *content)
        return content


def stored_overrides(directory: str, topic: str, files: Files) -> Mapping[str, str] | None:
    """A topic's overrides as one directory has them; None where it has none.  CorruptCheckpointException,
    KafkaStorageException."""
    return stored_topics(directory, files).get(topic)


def stored_topics(directory: str, files: Files) -> Mapping[str, Mapping[str, str]]:
    """All overrides, by topic, as one directory has them.  CorruptCheckpointException, KafkaStorageException."""
    try:
        return _read(_path(directory), files).topics
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the topics' settings") from error


def take_over(source: str, target: str, topic: str, files: Files) -> bool:
    """Gives the directory `target` a topic's overrides as `source` has them, unless it has some, or had: then these
    count.  Whether it did; other topics' stay as they are.  For who holds `target`, and has no manager of it open.
    CorruptCheckpointException, OSError."""
    try:
        ours = _read(_path(source), files)
    except FileNotFoundError:
        return False
    if not ours.topics.get(topic):
        return False
    try:
        found = _read(_path(target), files)
    except FileNotFoundError:
        found = _Content(ours.revision, {})
    if topic in found.topics:
        return False
    files.write_atomic(_path(target), _encode(found.revision, {**found.topics, topic: ours.topics[topic]}))
    return True


def _path(directory: str) -> str:
    return os.path.join(directory, names.TOPIC_CONFIGS_FILE)


def _encode(revision: int, topics: Topics) -> bytes:
    text = json.dumps({"version": VERSION, "revision": revision, "topics": topics}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def _read(path: str, files: Files) -> _Content:
    data = files.read_bytes(path)
    try:
        content = json.loads(data)
        version, revision, topics = content["version"], content["revision"], content["topics"]
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}")
        if type(revision) is not int or not 0 <= revision < LONG_MAX:
            raise ValueError(f"revision {revision}, expected a whole number from 0 on")
        for topic, overrides in topics.items():
            names.validate_topic_name(topic)
            LogConfig.validate(overrides)
        return _Content(revision, dict(topics))
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointException(
            f"found {type(error).__name__}: {error}; expected JSON with version, revision and topics",
            path=path,
            hint="copy the file from another log directory, or remove it and set the topics' settings anew",
        ) from None
