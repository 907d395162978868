"""The overrides of each topic's settings, kept beside the data, so that an open need not repeat them.

Kafka keeps them in its metadata log, which a directory without a broker has not got.  Here they are one small file,
`.kafkalog_topics`, in every live directory (a broker passes over plain files there): JSON, replaced whole, with a
revision that grows; at start the highest one that can be read counts.  Knows nothing of logs.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kafkalog.config import LogConfig
from kafkalog.errors import CorruptCheckpointException, InvalidTopicException, KafkaStorageException
from kafkalog.files import Files
from kafkalog.files.lines import Lines
from kafkalog.format import names

LOGGER = "kafkalog.manager"

VERSION = 0


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
        """`failed(directory, message, error)` is told of a disk that refuses; the others have it all, too.
        CorruptCheckpointException when no directory's file can be read, and one has some."""
        self._files = files
        self._failed = failed
        self._directories = list(directories)
        self._lock = threading.RLock()
        self._revision, self._topics = self._newest()
        self._is_written = True  # off while the files may say something else

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})

    @property
    def topics(self) -> dict[str, Mapping[str, str]]:
        """All that have overrides."""
        return dict(self._topics)

    def set(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides, in every directory; none at all forget the topic.  ConfigException;
        KafkaStorageException when no disk takes it: what was written then may count after a restart."""
        if not isinstance(topic, str):
            raise InvalidTopicException(f"found {topic!r}, expected a topic's name")
        names.validate_topic_name(topic)
        LogConfig.validate(overrides)
        with self._lock:
            if self._is_written and self._topics.get(topic, {}) == overrides:
                return
            topics = {**self._topics, topic: dict(overrides)}
            if not overrides:
                del topics[topic]
            self._revision += 1  # first: what fails half way must not be taken for what comes next
            self._is_written = False
            self._write(self._revision, topics)
            self._topics = topics
            self._is_written = True

    def forget_directory(self, directory: str) -> None:
        """It is offline: nothing is written there any more."""
        with self._lock:
            self._directories = [each for each in self._directories if each != directory]

    def _write(self, revision: int, topics: Mapping[str, Mapping[str, str]]) -> None:
        text = json.dumps({"version": VERSION, "revision": revision, "topics": topics}, indent=1, sort_keys=True)
        data = text.encode() + b"\n"
        error: OSError | None = None
        for directory in self._directories:
            try:
                self._files.write_atomic(_path(directory), data)
            except OSError as failure:
                self._give_up(directory, "writing", failure)
                error = failure
        if error is not None and not self._directories:
            raise KafkaStorageException.because_of(error, "the topics' settings were not written") from error

    def _give_up(self, directory: str, doing: str, error: OSError) -> None:
        self.forget_directory(directory)
        self._failed(directory, f"Error while {doing} {_path(directory)}", error)

    def _newest(self) -> tuple[int, dict[str, Mapping[str, str]]]:
        found: list[tuple[int, dict[str, Mapping[str, str]]]] = []
        problem: CorruptCheckpointException | None = None
        for directory in self._directories:
            try:
                found.append(_read(_path(directory), self._files))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._give_up(directory, "reading", error)
            except CorruptCheckpointException as error:
                Lines(LOGGER, directory).warning("%s", error)
                problem = error
        if problem is not None and not found:
            raise problem
        return max(found, key=lambda each: each[0], default=(0, {}))


def stored_overrides(directory: str, topic: str, files: Files) -> Mapping[str, str] | None:
    """A topic's overrides as one directory has them; None where it has none.  CorruptCheckpointException,
    KafkaStorageException."""
    return stored_topics(directory, files).get(topic)


def stored_topics(directory: str, files: Files) -> Mapping[str, Mapping[str, str]]:
    """All overrides, by topic, as one directory has them.  CorruptCheckpointException, KafkaStorageException."""
    try:
        return _read(_path(directory), files)[1]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the topics' settings") from error


def _path(directory: str) -> str:
    return os.path.join(directory, names.TOPIC_CONFIGS_FILE)


def _read(path: str, files: Files) -> tuple[int, dict[str, Mapping[str, str]]]:
    data = files.read_bytes(path)
    try:
        content = json.loads(data)
        version, revision, topics = content["version"], content["revision"], content["topics"]
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}")
        for topic, overrides in topics.items():
            names.validate_topic_name(topic)
            LogConfig.validate(overrides)
        return int(revision), dict(topics)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointException(
            f"found {type(error).__name__}: {error}; expected JSON with version, revision and topics",
            path=path,
            hint="copy the file from another log directory, or remove it and set the topics' settings anew",
        ) from None
