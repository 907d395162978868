"""What is known of each topic beside its data: the overrides of its settings, its partitions and its id.

Kafka keeps that in its metadata log, which a directory without a broker has not got.  Here it is one small file,
`.kafkalog_topics`, in every live directory (a broker passes over plain files there): JSON with a revision that grows,
replaced whole while it is small.  Behind a larger one each change is a line of its own, so that a change costs the same
however many topics there are, until the lines are as long as the rest, and all is written anew.  A last line that was
cut short counts for nothing.  At start the highest revision that can be read counts, and goes to every live directory:
any of them may be the one that is left.  A topic that lost its overrides stays in the file, with none, and one that was
deleted, marked so; so one that the highest revision does not name was set elsewhere, and a lower one that names it
counts.
Knows nothing of logs; who makes or removes a topic writes it here first.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kafkalog._limits import LONG_MAX
from kafkalog._native.state.log_end import PartitionLock
from kafkalog.config import LogConfig
from kafkalog.engine.files import Files
from kafkalog.engine.files.failure import refused
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names, values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.host.changes import inside
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    InvalidTopicException,
    KafkaStorageException,
)

LOGGER = "kafkalog.manager"

VERSION = 0
PARTITIONS_MAX = 1_000_000  # of a topic, that are taken for real
WHOLE_BYTES = 1 << 14  # a file that is smaller is replaced whole at each change
_END = b"\n}\n"  # of what was written whole, before the lines


Topics = Mapping[str, Mapping[str, str]]


class KnownTopic(NamedTuple):
    """How many partitions a topic has, and its id (a Uuid of 22 characters).

    `is_deleted`: it has none any more, and what is left of it is to go.  `made`: how many of them are there for sure,
    None where all are; fewer while they are being made, with 0 of a topic that is just being created.  `gone`: the ids
    of topics that had the name before, and of which folders may be left in a directory that was not there.  `numbers`:
    the partitions of a coordinator's topic that were made so far; other topics are made whole, and have none there.
    `leaves`: its settings say no more that it uses the remote tier, and what is there is to go."""

    partitions: int
    topic_id: str
    is_deleted: bool = False
    made: int | None = None
    gone: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    leaves: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is just being made, or was when a crash came."""
        return self.made is None


class _Written(NamedTuple):
    """A file's bytes: `size` of them, of which the first `whole` were written at once."""

    whole: int
    size: int


class _Content(NamedTuple):
    """Of one file; not every topic of the one is in the other."""

    revision: int
    topics: Topics
    known: Mapping[str, KnownTopic]


class _Change(NamedTuple):
    """What is new of one topic; no overrides: it is forgotten."""

    topic: str
    overrides: Mapping[str, str] | None
    known: KnownTopic | None

    def apply(self, topics: dict[str, Mapping[str, str]], known: dict[str, KnownTopic]) -> None:
        if self.overrides is None:
            known.pop(self.topic, None)
            topics.pop(self.topic, None)
            return
        if self.known is not None:
            known[self.topic] = self.known
        topics[self.topic] = self.overrides

    def line(self, revision: int) -> bytes:
        fields: dict[str, Any] = {"revision": revision, "topic": self.topic}
        if self.overrides is not None:
            fields["overrides"] = self.overrides
        if self.known is not None:
            fields["known"] = _fields_of(self.known)
        return json.dumps(fields, sort_keys=True).encode() + b"\n"


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

    def __init__(
        self,
        directories: Iterable[str],
        files: Files,
        failed: Callable[[str, str, OSError], object],
        *,
        passes: Callable[[OSError], bool] = lambda error: False,
    ) -> None:
        """Reads what there is, and gives it to the directories that have less.  One whose file does not parse keeps it
        until `set`, and a warning says so.

        `failed(directory, message, error)` is told of a disk that refuses; the others have it all, too.  What `passes`
        (a full disk) is no failure: a directory takes it with the next write; if none takes it the write is refused.
        CorruptCheckpointException when no directory's file can be read, and one has some.
        """
        self._files = files
        self._failed = failed
        self._passes = passes
        self._directories = list(directories)
        self._lock = PartitionLock()
        self._written: dict[str, _Written] = {}  # by this process, where nothing failed since
        self._topics: dict[str, Mapping[str, str]]
        self._known: dict[str, KnownTopic]
        self._revision, topics, known = self._gather()
        self._topics, self._known = dict(topics), dict(known)
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

    def has(self, topic: str) -> bool:
        """Whether there are settings of a topic here, be it that it has no overrides."""
        known = self._known.get(topic)
        return bool(self.overrides(topic)) or (known is not None and not known.is_deleted)

    def forget(self, topic: str) -> None:
        """Of a topic that is deleted, and of which nothing is left anywhere.  Errors as `set`."""
        if self._lock.is_mine():
            raise inside("writing the topics' settings")
        with self._lock:
            if topic in self._topics or topic in self._known or not self._is_written:
                self._change(_Change(topic, None, None))

    def set(
        self, topic: str, overrides: Mapping[str, str], known: KnownTopic | None = None, *, durable: bool = True
    ) -> None:
        """Replaces a topic's overrides, and what is known of it where that is given, in every directory.  Not
        `durable`: power loss may undo it, up to the next change that is.

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
            self._change(_Change(topic, dict(overrides), known), durable=durable)

    def _change(self, change: _Change, *, durable: bool = True) -> None:
        self._revision += 1  # first: what fails half way must not be taken for what comes next
        if not self._is_written:
            self._written.clear()  # nobody knows what is there: it is replaced whole
        self._is_written = False
        took, error, where = self._write_change(change, durable)
        if error is not None and not took:
            message = "the topics' settings were not written"
            if self._passes(error):
                raise refused(where, message, error) from error
            raise KafkaStorageException.because_of(error, message) from error
        change.apply(self._topics, self._known)
        self._is_written = error is None or not self._passes(error)

    def forget_directory(self, directory: str) -> None:
        """It is offline: nothing is written there any more."""
        with self._lock:
            self._directories = [each for each in self._directories if each != directory]

    def _write_change(self, change: _Change, durable: bool) -> tuple[int, OSError | None, str]:
        """As `_write`, of one change: a line behind what is there, or all anew."""
        line = change.line(self._revision)
        whole: list[bytes] = []

        def write(directory: str) -> None:
            if self._append(directory, line, durable):
                return
            if not whole:
                topics, known = dict(self._topics), dict(self._known)
                change.apply(topics, known)
                whole.append(_encode(_Content(self._revision, topics, known)))
            self._files.write_atomic(_path(directory), whole[0])
            self._written[directory] = _Written(len(whole[0]), len(whole[0]))

        return self._each(self._directories, write)

    def _append(self, directory: str, line: bytes, durable: bool) -> bool:
        """Whether the line stands behind what this process wrote there; False, and nothing done, where it is better to
        write all anew."""
        written = self._written.pop(directory, None)
        if written is None or written.whole < WHOLE_BYTES or written.size + len(line) > 2 * written.whole:
            return False
        try:
            file = self._files.open(_path(directory))
        except FileNotFoundError:  # somebody has removed it
            return False
        with file:
            if file.size() != written.size:
                return False
            try:
                file.pwrite(line, written.size)
            except OSError as error:
                if self._passes(error):  # half a line counts for nothing, but it takes space
                    with contextlib.suppress(OSError):
                        file.truncate(written.size)
                raise
            if durable:
                file.sync_data()
        self._written[directory] = _Written(written.whole, written.size + len(line))
        return True

    def _write(self, directories: Iterable[str], content: _Content) -> tuple[int, OSError | None, str]:
        """To those whose disk takes it: as `_each`."""
        data = _encode(content)
        return self._each(directories, lambda directory: self._files.write_atomic(_path(directory), data))

    def _each(self, directories: Iterable[str], write: Callable[[str], object]) -> tuple[int, OSError | None, str]:
        """To those whose disk takes it; how many did, what one that did not raised (sooner what passes), and which."""
        took, where = 0, ""
        error: OSError | None = None
        for directory in list(directories):
            try:
                write(directory)
                took += 1
            except OSError as failure:
                if error is None or self._passes(failure):
                    error, where = failure, directory
                if not self._passes(failure):
                    self._give_up(directory, "writing", failure)
        return took, error, where

    def _give_up(self, directory: str, doing: str, error: OSError) -> None:
        message = f"Error while {doing} {_path(directory)}"
        if self._passes(error):
            raise refused(directory, message, error) from error
        self.forget_directory(directory)
        self._failed(directory, message, error)

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


def trimmed(
    data: bytes, path: str, is_kept: Callable[[str], bool], is_there: Callable[[TopicPartition], bool]
) -> bytes:
    """A file's bytes with what those of the file at `path` have of the topics that are kept alone.  Of a coordinator's
    topic those partitions count as made that are there.  CorruptCheckpointException."""
    content = _parsed(data, path)
    known = {
        topic: each._replace(numbers=tuple(n for n in each.numbers if is_there(TopicPartition(topic, n))))
        for topic, each in content.known.items()
        if is_kept(topic)
    }
    topics = {topic: each for topic, each in content.topics.items() if is_kept(topic)}
    return _encode(content._replace(topics=topics, known=known))


def known_in(data: bytes, path: str) -> Mapping[str, KnownTopic]:
    """What the bytes of the file at `path` say of the topics that are there.  CorruptCheckpointException."""
    return {topic: each for topic, each in _parsed(data, path).known.items() if not each.is_deleted}


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
    if known.numbers:
        fields["numbers"] = list(known.numbers)
    if known.leaves:
        fields["leaves"] = True
    return fields


def _read(path: str, files: Files) -> _Content:
    return _parsed(read_small(path, files), path)


def _parsed(data: bytes, path: str) -> _Content:
    begin, end, lines = data.partition(_END)
    try:
        content = json.loads(begin + end)
        version, revision, topics = content["version"], content["revision"], content["topics"]
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}")
        if type(revision) is not int or not 0 <= revision < LONG_MAX:
            raise ValueError(f"revision {revision}, expected a whole number from 0 on")
        for topic, overrides in topics.items():
            names.validate_topic_name(topic)
            LogConfig.validate(overrides)
        known = {topic: _known(topic, fields) for topic, fields in content.get("known", {}).items()}
        return _with_lines(_Content(revision, dict(topics), known), lines)
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointException(
            f"found {type(error).__name__}: {error}; expected JSON with version, revision and topics",
            path=path,
            hint="copy the file from another log directory, or remove it and set the topics' settings anew",
        ) from None


def _with_lines(content: _Content, data: bytes) -> _Content:
    """`content`, and what the lines behind it changed.  The last one may have been cut short by a crash, or is just
    being written."""
    if not data:
        return content
    revision, topics, known = content.revision, dict(content.topics), dict(content.known)
    *lines, _ = data.split(b"\n")
    for number, line in enumerate(lines):
        try:
            fields = json.loads(line)
        except ValueError:
            if number == len(lines) - 1:
                break
            raise
        if type(fields["revision"]) is not int or not revision < fields["revision"] < LONG_MAX:
            raise ValueError(f"revision {fields['revision']} behind {revision}")
        revision, topic, overrides = fields["revision"], fields["topic"], fields.get("overrides")
        names.validate_topic_name(topic)
        if overrides is not None:
            LogConfig.validate(overrides)
        change = _Change(topic, overrides, _known(topic, fields["known"]) if "known" in fields else None)
        change.apply(topics, known)
    return _Content(revision, topics, known)


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
    numbers = fields.get("numbers", [])
    if type(numbers) is not list or not all(type(each) is int and 0 <= each < partitions for each in numbers):
        raise ValueError(f"{topic}: numbers {numbers}, expected a list of numbers below {partitions}")
    former, leaves = tuple(map(checked_topic_id, gone)), fields.get("leaves", False)
    if type(leaves) is not bool:
        raise ValueError(f"{topic}: leaves {leaves}, expected a flag")
    return KnownTopic(partitions, checked_topic_id(fields["id"]), deleted, made, former, tuple(numbers), leaves)
