"""Stores what is known of each topic apart from its data: the overrides of its settings, its partitions and its id.

Kafka keeps this in its metadata log, which a directory without a broker does not have.  Here it is one small file,
`.kafkalog_topics`, in every live directory.  A broker skips plain files there.

The file is JSON with a revision that grows.  While it is small, each change replaces it.  In a larger file each change
appends a line, so that a change costs the same however many topics there are.  When the lines are as long as the rest,
the file is written again.  An incomplete last line is ignored.

At a start the highest revision that can be read counts, and is copied to every live directory, because any of them may
be the only one left.  A topic that lost its overrides stays in the file without overrides, and a deleted topic stays,
marked so.  A topic that the highest revision does not name was therefore set in another set of directories; an older
revision that names it counts for it.
Knows nothing of logs.  Code that creates or removes a topic writes it here first.
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
PARTITIONS_MAX = 1_000_000  # a topic with more in the file is refused as damage
WHOLE_BYTES = 1 << 12  # a file that is smaller is replaced whole at each change
_END = b"\n}\n"  # the end of the part that was written whole; the lines follow


Topics = Mapping[str, Mapping[str, str]]


class KnownTopic(NamedTuple):
    """How many partitions a topic has, and its id (a Uuid of 22 characters).

    `is_deleted`: the topic is deleted, and its remaining files are to be removed.  `made`: how many partitions
    certainly exist while some are being created (0 for a topic that is just being created); None if all exist.
    `gone`: the ids of earlier topics of this name, of which files may be left in a directory that was offline.
    `numbers`: the partitions of a coordinator's topic that were created so far; other topics are created whole, and
    have none here.  `leaves`: its settings no longer use the remote tier, and its objects there are to be deleted.
    """

    partitions: int
    topic_id: str
    is_deleted: bool = False
    made: int | None = None
    gone: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    leaves: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no partition is being created, or was when a crash came."""
        return self.made is None


class _Written(NamedTuple):
    """A file's length: `size` bytes, of which the first `whole` were written at once."""

    whole: int
    size: int


class _Content(NamedTuple):
    """The content of one file.  `topics` and `known` need not have the same topics."""

    revision: int
    topics: Topics
    known: Mapping[str, KnownTopic]


class _Change(NamedTuple):
    """A change of one topic.  If `overrides` is None, the topic is forgotten."""

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
    """Returns a caller's settings of a topic after checking them.

    Raises IllegalArgumentException for keys or values of a wrong type, and ConfigException for a key that Kafka does
    not have or a value out of range.
    """
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
    """The source from which a manager reads a topic's overrides (Kafka's ConfigRepository)."""

    def overrides(self, topic: str) -> Mapping[str, str]: ...


class FixedTopicConfigs:
    """Overrides that the caller passes each time it opens the directories."""

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
        """Reads the files, and brings directories with an older content up to date.

        A file that does not parse stays until `set`, and a warning says so.
        `failed(directory, message, error)` is called for a disk that fails; the others have everything too.  An error
        that `passes` accepts (a full disk) is no failure: the directory gets the content with the next write.  If no
        directory can be written, the write is refused.
        Raises CorruptCheckpointException if there are files, and none of them can be read.
        """
        self._files = files
        self._failed = failed
        self._passes = passes
        self._directories = list(directories)
        self._lock = PartitionLock()
        self._written: dict[str, _Written] = {}  # by this process, if nothing failed since
        self._topics: dict[str, Mapping[str, str]]
        self._known: dict[str, KnownTopic]
        self._revision, topics, known = self._gather()
        self._topics, self._known = dict(topics), dict(known)
        self._is_written = True  # False while the files may have another content

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, {})

    @property
    def topics(self) -> dict[str, Mapping[str, str]]:
        """All topics that have overrides."""
        return {topic: overrides for topic, overrides in self._topics.items() if overrides}

    @property
    def known(self) -> dict[str, KnownTopic]:
        """All topics whose partitions are known, deleted ones too."""
        return dict(self._known)

    def known_of(self, topic: str) -> KnownTopic | None:
        return self._known.get(topic)

    def has(self, topic: str) -> bool:
        """Returns whether a topic exists here, also if it has no overrides."""
        known = self._known.get(topic)
        return bool(self.overrides(topic)) or (known is not None and not known.is_deleted)

    def forget(self, topic: str) -> None:
        """Forgets a topic that is deleted, and of which no files are left anywhere.  Raises as `set`."""
        if self._lock.is_mine():
            raise inside("writing the topics' settings")
        with self._lock:
            if topic in self._topics or topic in self._known or not self._is_written:
                self._change(_Change(topic, None, None))

    def set(
        self, topic: str, overrides: Mapping[str, str], known: KnownTopic | None = None, *, durable: bool = True
    ) -> None:
        """Replaces a topic's overrides in every directory, and `known` if it is given.

        Without `durable`, a power loss may undo the change until the next durable one.
        Raises ConfigException, IllegalStateException if it interrupts itself, and KafkaStorageException if no disk
        accepts it: a part that was written then may count after a restart.
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
        self._revision += 1  # first: a half-written change must not be mistaken for the next one
        if not self._is_written:
            self._written.clear()  # the content of the files is unknown: they are replaced
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
        """Stops writing to a directory, which is offline."""
        with self._lock:
            self._directories = [each for each in self._directories if each != directory]

    def _write_change(self, change: _Change, durable: bool) -> tuple[int, OSError | None, str]:
        """Writes one change as a line at the end of each file, or replaces the file.  Returns as `_each`."""
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
        """Appends a line to the file that this process wrote.

        Returns False, and does nothing, if it is better to replace the file.
        """
        written = self._written.pop(directory, None)
        if written is None or written.whole < WHOLE_BYTES or written.size + len(line) > 2 * written.whole:
            return False
        try:
            file = self._files.open(_path(directory))
        except FileNotFoundError:  # another program has removed it
            return False
        with file:
            if file.size() != written.size:
                return False
            try:
                file.pwrite(line, written.size)
            except OSError as error:
                if self._passes(error):  # an incomplete line is ignored, but takes space
                    with contextlib.suppress(OSError):
                        file.truncate(written.size)
                raise
            if durable:
                file.sync_data()
        self._written[directory] = _Written(written.whole, written.size + len(line))
        return True

    def _write(self, directories: Iterable[str], content: _Content) -> tuple[int, OSError | None, str]:
        """Writes the content to the directories.  Returns as `_each`."""
        data = _encode(content)
        return self._each(directories, lambda directory: self._files.write_atomic(_path(directory), data))

    def _each(self, directories: Iterable[str], write: Callable[[str], object]) -> tuple[int, OSError | None, str]:
        """Calls `write` for each directory.

        Returns how many succeeded, an error (preferably one that `passes` accepts), and the directory of that error.
        """
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
        """Returns the content that counts, and writes it to every directory."""
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
    """Merges the contents of several files."""
    newest, *others = sorted(there, key=lambda each: -each.revision)
    topics, known = dict(newest.topics), dict(newest.known)
    for older in others:
        topics, known = {**older.topics, **topics}, {**older.known, **known}
    is_all = (topics, known) == (newest.topics, newest.known)
    return newest if is_all else _Content(newest.revision + 1, topics, known)


def stored_overrides(directory: str, topic: str, files: Files) -> Mapping[str, str] | None:
    """Returns a topic's overrides in one directory; None if it has none.

    Raises CorruptCheckpointException, KafkaStorageException.
    """
    return stored_topics(directory, files).get(topic)


def stored_topics(directory: str, files: Files) -> Mapping[str, Mapping[str, str]]:
    """Returns all overrides in one directory, by topic.  Raises CorruptCheckpointException, KafkaStorageException."""
    try:
        return _read(_path(directory), files).topics
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the topics' settings") from error


def stored_content(directories: Iterable[str], files: Files) -> tuple[Topics, Mapping[str, KnownTopic]]:
    """Returns the overrides, and the known topics, of several directories together, for a reader.

    Raises CorruptCheckpointException if a file cannot be read and no other directory has one, and
    KafkaStorageException.
    """
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
    """Copies a topic's overrides from `source` to `target`, unless `target` has or had some for it.

    Returns whether it copied them.  Other topics do not change.  The caller holds `target`, and has no manager open
    on it.  Raises CorruptCheckpointException, OSError.
    """
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
    """Returns a file's bytes reduced to the topics that `is_kept` accepts.

    `path` names the file in errors.  A partition of a coordinator's topic counts as created only if `is_there` accepts
    it.  Raises CorruptCheckpointException.
    """
    content = _parsed(data, path)
    known = {
        topic: each._replace(numbers=tuple(n for n in each.numbers if is_there(TopicPartition(topic, n))))
        for topic, each in content.known.items()
        if is_kept(topic)
    }
    topics = {topic: each for topic, each in content.topics.items() if is_kept(topic)}
    return _encode(content._replace(topics=topics, known=known))


def known_in(data: bytes, path: str) -> Mapping[str, KnownTopic]:
    """Returns the topics, without deleted ones, in the bytes of the file at `path`.  CorruptCheckpointException."""
    return {topic: each for topic, each in _parsed(data, path).known.items() if not each.is_deleted}


def _path(directory: str) -> str:
    return os.path.join(directory, names.TOPIC_CONFIGS_FILE)


def _encode(content: _Content) -> bytes:
    fields: dict[str, Any] = {"version": VERSION, "revision": content.revision, "topics": content.topics}
    if content.known:
        fields["known"] = {topic: _fields_of(known) for topic, known in content.known.items()}
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def _fields_of(known: KnownTopic) -> dict[str, Any]:
    """Returns the fields of a topic.  Fields that have their default value are omitted."""
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
            hint="copy the file from another log directory, or remove it and set the topics' settings again",
        ) from None


def _with_lines(content: _Content, data: bytes) -> _Content:
    """Returns `content` with the changes of the lines after it.

    The last line may be incomplete, because of a crash or because it is just being written.
    """
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
            raise ValueError(f"revision {fields['revision']} after {revision}, expected a higher one")
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
