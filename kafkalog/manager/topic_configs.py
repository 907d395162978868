"""What is known of each topic beside its data: the overrides of its settings, its partitions and its id.

Kafka keeps that in its metadata log, which a directory without a broker has not got.  Here it is one small file,
`.kafkalog_topics`, in every live directory (a broker passes over plain files there): JSON, replaced whole, with a
revision that grows.  At start the highest one that can be read counts, and goes to every live directory: any of them
may be the one that is left.  A topic that lost its overrides stays in the file, with none, and one that was deleted,
marked so; so one that the highest revision does not name was set elsewhere, and a lower one that names it counts.
Knows nothing of logs; who makes or removes a topic writes it here first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

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
from kafkalog.format.partition_metadata import checked_topic_id
from kafkalog.limits import LONG_MAX
from kafkalog.manager.changes import inside

LOGGER = "kafkalog.manager"

VERSION = 0
PARTITIONS_MAX = 1_000_000  # of a topic, that are taken for real


Topics = Mapping[str, Mapping[str, str]]


class KnownTopic(NamedTuple):
    """How many partitions a topic has, and its id (a Uuid of 22 characters).

    `is_deleted`: it has none any more, and what is left of it is to go.  `made`: how many of them are there for sure,
    None where all are; fewer while they are being made, with 0 of a topic that is just being created.  `gone`: the ids
    of topics that had the name before, and of which folders may be left in a directory that was not there."""

    partitions: int
    topic_id: str
    is_deleted: bool = False
    made: int | None = None
    gone: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is just being made, or was when a crash came."""
        return self.made is None


class _Content(NamedTuple):
    """Of one file; not every topic of the one is in the other."""

    revision: int
    topics: Topics
    known: Mapping[str, KnownTopic]


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
        self._revision, self._topics, self._known = self._gather()
        self._is_written = True  # off while the files may say something else

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})

    @property
    def topics(self) -> dict[str, Mapping[str, str]]:
        """All that have overrides."""
        return {topic: overrides for topic, overrides in self._topics.items() if overrides}

    @property
    def known(self) -> dict[str, KnownTopic]:
        """All whose partitions are known, those too that were deleted."""
        return dict(self._known)

    def known_of(self, topic: str) -> KnownTopic | None:
        return self._known.get(topic)

    def forget(self, topic: str) -> None:
        """Of a topic that is deleted, and of which nothing is left anywhere.  Errors as `set`."""
        if self._lock.is_mine():
            raise inside("writing the topics' settings")
        with self._lock:
            topics, known = dict(self._topics), dict(self._known)
            topics.pop(topic, None)
            known.pop(topic, None)
            if (topics, known) != (self._topics, self._known) or not self._is_written:
                self._replace(topics, known)

    def set(self, topic: str, overrides: Mapping[str, str], known: KnownTopic | None = None) -> None:
        """Replaces a topic's overrides, and what is known of it where that is given, in every directory.

        ConfigException; IllegalStateException inside of itself; KafkaStorageException when no disk takes it: what was
        written then may count after a restart.
        """
        if not isinstance(topic, str):
            raise InvalidTopicException(f"found {topic!r}, expected a topic's name")
        names.validate_topic_name(topic)
        LogConfig.validate(overrides)
        if self._lock.is_mine():
            raise inside("writing the topics' settings")
        with self._lock:
            known = self._known.get(topic) if known is None else known
            if self._is_written and (self._topics.get(topic, {}), self._known.get(topic)) == (overrides, known):
                return
            all_known = dict(self._known) if known is None else {**self._known, topic: known}
            self._replace({**self._topics, topic: dict(overrides)}, all_known)

    def _replace(self, topics: Topics, known: Mapping[str, KnownTopic]) -> None:
        self._revision += 1  # first: what fails half way must not be taken for what comes next
        self._is_written = False
        error = self._write(self._directories, _Content(self._revision, topics, known))
        if error is not None and not self._directories:
            raise KafkaStorageException.because_of(error, "the topics' settings were not written") from error
        self._topics, self._known = topics, known
        self._is_written = True

    def forget_directory(self, directory: str) -> None:
        """It is offline: nothing is written there any more."""
        with self._lock:
            self._directories = [each for each in self._directories if each != directory]

    def _write(self, directories: Iterable[str], content: _Content) -> OSError | None:
        """To those whose disk takes it; what the last one that did not raised."""
        data = _encode(content)
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
        there = [each for each in found.values() if each is not None]
        if problem is not None and not there:
            raise problem
        if not there:
            return _Content(0, {}, {})
        content = _merged(there)
        self._write((each for each, had in found.items() if had != content), content)
        return content


def _merged(there: Iterable[_Content]) -> _Content:
    """What counts of several files."""
    newest, *others = sorted(there, key=lambda each: -each.revision)
    topics, known = dict(newest.topics), dict(newest.known)
    for older in others:
        topics, known = {**older.topics, **topics}, {**older.known, **known}
    is_all = (topics, known) == (newest.topics, newest.known)
    return newest if is_all else _Content(newest.revision + 1, topics, known)


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


def stored_content(directories: Iterable[str], files: Files) -> tuple[Topics, Mapping[str, KnownTopic]]:
    """Overrides, and what else is known, as several directories have them together; for who only looks.
    CorruptCheckpointException where one cannot be read, and none of the others has any; KafkaStorageException."""
    there: list[_Content] = []
    problem: CorruptCheckpointException | None = None
    for directory in directories:
        try:
            there.append(_read(_path(directory), files))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read the topics' settings") from error
        except CorruptCheckpointException as error:
            problem = error
    if problem is not None and not there:
        raise problem
    content = _merged(there) if there else _Content(0, {}, {})
    return content.topics, content.known


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
        found = _Content(ours.revision, {}, {})
    if topic in found.topics:
        return False
    files.write_atomic(_path(target), _encode(found._replace(topics={**found.topics, topic: ours.topics[topic]})))
    return True


def _path(directory: str) -> str:
    return os.path.join(directory, names.TOPIC_CONFIGS_FILE)


def _encode(content: _Content) -> bytes:
    fields: dict[str, Any] = {"version": VERSION, "revision": content.revision, "topics": content.topics}
    if content.known:
        fields["known"] = {topic: _fields_of(known) for topic, known in content.known.items()}
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def _fields_of(known: KnownTopic) -> dict[str, Any]:
    """Those that are as they mostly are, are left out."""
    fields: dict[str, Any] = {"partitions": known.partitions, "id": known.topic_id}
    if known.is_deleted:
        fields["deleted"] = True
    if known.made is not None:
        fields["made"] = known.made
    if known.gone:
        fields["gone"] = list(known.gone)
    return fields


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
        known = {topic: _known(topic, fields) for topic, fields in content.get("known", {}).items()}
        return _Content(revision, dict(topics), known)
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointException(
            f"found {type(error).__name__}: {error}; expected JSON with version, revision and topics",
            path=path,
            hint="copy the file from another log directory, or remove it and set the topics' settings anew",
        ) from None


def _known(topic: str, fields: Any) -> KnownTopic:
    names.validate_topic_name(topic)
    partitions, deleted, made = fields["partitions"], fields.get("deleted", False), fields.get("made")
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX or type(deleted) is not bool:
        raise ValueError(
            f"{topic}: partitions {partitions}, deleted {deleted}, expected 1 to {PARTITIONS_MAX}, and a flag"
        )
    if made is not None and (type(made) is not int or not 0 <= made < partitions):
        raise ValueError(f"{topic}: made {made}, expected fewer than the {partitions} partitions")
    gone = fields.get("gone", [])
    if type(gone) is not list:
        raise ValueError(f"{topic}: gone {gone}, expected a list of ids")
    return KnownTopic(partitions, checked_topic_id(fields["id"]), deleted, made, tuple(map(checked_topic_id, gone)))
