"""Every error, by Kafka's name, sorted by what the caller can do.

Four families: the request was wrong (`RequestError`: mend the call), the bytes are bad
(`BadBytesError`: cut, salvage or refuse), the disk failed (`DiskError`: the log directory is
offline and stays so, but for `DiskFull`, which ends when there is space), the remote storage failed
(`RemoteStorageException`: nothing is lost locally, try again).  Class names are those of
Apache Kafka 4.4.0, so that a search finds both worlds; where Kafka raises a plain Java exception the
class here is also Python's own kind.
Native code raises none of these: it returns a verdict and a position, and Python adds the place.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "BadBytesError",
    "BeingWrittenException",
    "BufferExhaustedException",
    "ClosedChannelException",
    "ConcurrentTransactionsException",
    "ConfigException",
    "CorruptCheckpointException",
    "CorruptIndexException",
    "CorruptManifestException",
    "CorruptRecordException",
    "CorruptSnapshotException",
    "DiskError",
    "DiskFull",
    "DuplicateSequenceException",
    "GroupIdNotFoundException",
    "GroupNotEmptyException",
    "GroupSubscribedToTopicException",
    "IllegalArgumentException",
    "IllegalStateException",
    "InconsistentTopicIdException",
    "IndexOffsetOverflowException",
    "InvalidConfigurationException",
    "InvalidGroupIdException",
    "InvalidOffsetException",
    "InvalidPartitionsException",
    "InvalidPidMappingException",
    "InvalidProducerEpochException",
    "InvalidRecordException",
    "InvalidTimestampException",
    "InvalidTopicException",
    "InvalidTxnStateException",
    "InvalidTxnTimeoutException",
    "KafkaException",
    "KafkaStorageException",
    "KafkalogError",
    "LogCleaningAbortedException",
    "LogCleaningException",
    "LogDirLockedException",
    "LogDirNotFoundException",
    "LogReadOnlyException",
    "LogSegmentOffsetOverflowException",
    "MissingPackageException",
    "NoLiveLogDirException",
    "NoOffsetForPartitionException",
    "NoSuchFileException",
    "NullPointerException",
    "NumberFormatException",
    "OffsetMetadataTooLarge",
    "OffsetOutOfRangeException",
    "OffsetsOutOfOrderException",
    "OutOfOrderSequenceException",
    "PolicyViolationException",
    "ProducerFencedException",
    "RecordBatchTooLargeException",
    "RecordDeserializationException",
    "RecordTooLargeException",
    "RecordValidationException",
    "RemoteResourceNotFoundException",
    "RemoteStorageException",
    "RequestError",
    "RetriableRemoteStorageException",
    "SchemaException",
    "TimeoutException",
    "TooManyOpenFilesException",
    "TopicExistsException",
    "TransactionAbortableException",
    "TransactionCoordinatorFencedException",
    "TransactionalIdNotFoundException",
    "UnexpectedAppendOffsetException",
    "UnknownMemberIdException",
    "UnknownRecordTypeException",
    "UnknownRecordVersionException",
    "UnknownTopicOrPartitionException",
    "UnstableOffsetCommitException",
    "UnsupportedCompressionTypeException",
    "UnsupportedForMessageFormatException",
    "UnsupportedOperationException",
    "UnsupportedVersionException",
]

_IMPORTED = frozenset(globals())


class KafkalogError(Exception):
    """Base of everything that kafkalog raises on purpose.

    `path` and `position` (bytes from the file's start) name the place where there is one; `hint` says
    what to do.  They are part of the text, so that a message printed alone is enough.  `appended`: the
    offsets of what an append of many had appended before it was refused; empty when it was nothing.
    """

    appended: range = range(0)
    appended_partitions: dict[int, range] = {}  # the same of a topic, by partition; replaced, never changed

    def __init__(
        self,
        message: str = "",
        *,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.position = position
        self.hint = hint

    def __str__(self) -> str:
        place = self.path or ""
        if place and re.search(rf"(?<!\w){re.escape(place)}(?!\w)", self.message):  # Kafka's words name it
            place = ""
        if self.position is not None:
            place += f" at byte {self.position}"
        text = f"{place.strip()}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments survive pickling: Spark and process pools send errors between processes.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(kind: type[KafkalogError], message: str, state: dict[str, object]) -> KafkalogError:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    for name, value in state.items():
        setattr(error, name, value)
    return error


# --- the families -------------------------------------------------------------------------


class RequestError(KafkalogError):
    """The call was wrong; nothing happened to the data.  Mend the call."""


class BadBytesError(KafkalogError):
    """Bytes that should follow a format do not.  Cut here, salvage, or refuse."""


class DiskError(KafkalogError):
    """The disk failed.  The log directory is offline until the process opens it anew, unless it is a DiskFull."""


# --- plain Java exceptions ------------------------------------------------------------------------


class IllegalArgumentException(RequestError, ValueError):
    """java.lang.IllegalArgumentException."""


class IllegalStateException(RequestError, RuntimeError):
    """java.lang.IllegalStateException."""


class NullPointerException(RequestError, TypeError):
    """java.lang.NullPointerException: a value that must be given is missing."""


class UnsupportedOperationException(RequestError, RuntimeError):
    """java.lang.UnsupportedOperationException."""


class NumberFormatException(IllegalArgumentException):
    """java.lang.NumberFormatException."""


class NoSuchFileException(RequestError, FileNotFoundError):
    """java.nio.file.NoSuchFileException."""

    def __str__(self) -> str:
        return KafkalogError.__str__(self)


class MissingPackageException(RequestError, ModuleNotFoundError):
    """An optional package that this call needs is not installed."""


# --- the request was wrong ------------------------------------------------------------------------


class KafkaException(RequestError):
    """org.apache.kafka.common.KafkaException: Kafka's general error."""


class ConfigException(RequestError, ValueError):
    """A configuration value has the wrong type or is out of range."""


class InvalidConfigurationException(ConfigException):
    """A configuration key is unknown, or two keys contradict each other."""


class InvalidTopicException(RequestError, ValueError):
    """A topic name that Kafka does not allow."""


class UnknownTopicOrPartitionException(RequestError, LookupError):
    """No such topic or partition in the log directory."""


class TopicExistsException(RequestError):
    """A topic of that name is there already."""


class InvalidPartitionsException(RequestError, ValueError):
    """A number of partitions that no topic can have, or less than it has."""


class OffsetOutOfRangeException(RequestError, LookupError):
    """An offset outside [log start offset, log end offset], or above the high watermark."""


class NoOffsetForPartitionException(RequestError, LookupError):
    """A cursor has no offset for a partition, and is not told where to start."""


class InvalidOffsetException(RequestError):
    """An offset that does not grow where it must (index append)."""


class OffsetsOutOfOrderException(RequestError):
    """A follower append whose offsets do not increase."""


class UnexpectedAppendOffsetException(RequestError):
    """A follower append that starts below the log end offset."""

    first_offset: int = -1
    last_offset: int = -1


class LogSegmentOffsetOverflowException(RequestError):
    """An offset too far from its segment's base for 31 bits.  `segment` is the LogSegment to split."""

    segment: Any = None
    offset: int = -1


class IndexOffsetOverflowException(RequestError):
    """An offset too far from its index's base for 31 bits."""


class RecordTooLargeException(RequestError):
    """A batch larger than max.message.bytes."""


class RecordBatchTooLargeException(RequestError):
    """An append larger than segment.bytes."""


class InvalidTimestampException(RequestError):
    """A record timestamp outside message.timestamp.before/after.max.ms."""


class InvalidRecordException(RequestError, ValueError):
    """A record or batch that breaks a rule of its format or of its topic."""


class RecordValidationException(RequestError):
    """Several records of an append were refused; `record_errors` lists each.

    `invalid_exception` is what Kafka's broker answers the producer with.
    """

    record_errors: list[object]
    invalid_exception: KafkalogError


class UnsupportedForMessageFormatException(RequestError):
    """The message format of the batch cannot carry what it asks for."""


class UnsupportedCompressionTypeException(RequestError):
    """A codec that this message format or topic does not allow."""


class UnsupportedVersionException(RequestError):
    """A format version that this code does not know."""


class OutOfOrderSequenceException(RequestError):
    """An idempotent producer's sequence number leaves a gap."""


class DuplicateSequenceException(RequestError):
    """An idempotent producer's batch that was already appended."""


class InvalidProducerEpochException(RequestError):
    """A producer that was fenced by a newer epoch."""


class InvalidTxnStateException(RequestError):
    """A transactional append outside its transaction."""


class TransactionCoordinatorFencedException(RequestError):
    """A transaction marker from an older coordinator epoch."""


class ProducerFencedException(RequestError):
    """A transactional id's earlier holder: somebody else took the id over, or its transaction timed out."""


class InvalidPidMappingException(RequestError):
    """A transactional id that is not known, or has another producer id."""


class ConcurrentTransactionsException(RequestError):
    """The transactional id's last transaction is decided, but not ended in every partition yet."""


class TimeoutException(RequestError, TimeoutError):
    """What was asked for did not happen in the time that it was given; nothing is known to be wrong."""

    def __str__(self) -> str:
        return KafkalogError.__str__(self)


class BufferExhaustedException(TimeoutException):
    """A producer's memory was full for as long as it may wait (`max.block.ms`): the log is slower than its senders."""


class InvalidTxnTimeoutException(RequestError):
    """A transaction timeout outside 1 to transaction.max.timeout.ms."""


class TransactionAbortableException(RequestError):
    """A partition that is not part of the transaction: it can only be aborted."""


class TransactionalIdNotFoundException(RequestError, LookupError):
    """A transactional id that nobody has used, or that has expired."""


class InvalidGroupIdException(RequestError):
    """A group without a name."""


class GroupIdNotFoundException(RequestError, LookupError):
    """A group that is not there, or is of another kind."""


class GroupNotEmptyException(RequestError):
    """A group that has members."""


class GroupSubscribedToTopicException(RequestError):
    """Offsets of a topic that members of the group read."""


class UnknownMemberIdException(RequestError):
    """A commit by somebody who is no member of a group that has members."""


class OffsetMetadataTooLarge(RequestError):
    """A committed offset's metadata above offset.metadata.max.bytes."""


class UnstableOffsetCommitException(RequestError):
    """An offset that an open transaction may still replace."""


class InconsistentTopicIdException(RequestError):
    """partition.metadata names another topic id."""


class PolicyViolationException(RequestError):
    """An operation that the topic's cleanup.policy forbids."""


class LogCleaningAbortedException(RequestError):
    """Cleaning of a partition was aborted on request."""


class LogCleaningException(RequestError):
    """The cleaner failed on a partition; `__cause__` says why."""


class LogDirLockedException(KafkaException):
    """Another process (a broker, another kafkalog) holds the log directory's .lock."""


class BeingWrittenException(KafkaException):
    """Somebody writes the files that were looked at without a lock, and each look found something else: ask again."""


class LogDirNotFoundException(RequestError, LookupError):
    """A log directory that the manager was not given."""


class ClosedChannelException(IllegalStateException):
    """java.nio.channels.ClosedChannelException: a file that was let go, because its log or segment is closed."""


class TooManyOpenFilesException(KafkaException):
    """The process may open no more files, and none of ours is idle: nothing was done, and nothing is offline."""


class LogReadOnlyException(IllegalStateException):
    """A write on a log that was opened read-only."""


# --- the bytes are bad ----------------------------------------------------------------------------


class CorruptRecordException(BadBytesError):
    """A record batch whose size, magic or CRC is wrong."""


class RecordDeserializationException(BadBytesError):
    """A record whose key or value cannot be decoded as it was asked for: where it is, as far as that is known."""

    topic: str | None = None
    partition: int = -1
    offset: int = -1
    row: int = -1  # of the column that was to be decoded
    last_row: int = -1  # where it is one of several up to this


class CorruptIndexException(BadBytesError):
    """An index file that cannot belong to its segment."""


class CorruptSnapshotException(BadBytesError):
    """A producer-state snapshot with a wrong version, layout or CRC."""


class CorruptCheckpointException(BadBytesError):
    """A text checkpoint or metadata file that does not parse."""


class SchemaException(BadBytesError):
    """A structured value (marker, snapshot, metadata record) that does not parse."""


class UnknownRecordTypeException(BadBytesError):
    """A record of an internal topic whose type this version does not know; coordinators pass it over."""

    unknown_type: int = -1


class UnknownRecordVersionException(SchemaException):
    """A record of an internal topic whose value has a version that this one does not know."""


# --- the disk failed ------------------------------------------------------------------------------


OPEN_FILES_HINT = "raise the limit of open files (ulimit -n), or close logs and readers that are not used"


class KafkaStorageException(DiskError, OSError):
    """An I/O error; the log directory is offline.  The operating system's error is `__cause__`."""

    is_of_closed_log = False  # nothing failed: a log did nothing, for it is closed, or was about to be

    @classmethod
    def because_of(cls, error: Exception, message: str) -> Self:
        """`message`, and why: what the operating system said of which file; `errno` as there."""
        if not isinstance(error, OSError) or error.strerror is None:
            return cls(f"{message}: {error}")
        path = error.filename if isinstance(error.filename, (str, os.PathLike)) else None
        hint = OPEN_FILES_HINT if error.errno in (errno.EMFILE, errno.ENFILE) else None
        made = cls(f"{message}: {error.strerror}", path=path, hint=hint)
        made.errno, made.strerror = error.errno, error.strerror
        return made

    def __str__(self) -> str:
        return KafkalogError.__str__(self)

    def __reduce__(self) -> tuple[object, ...]:
        state = {**self.__dict__, "errno": self.errno, "strerror": self.strerror}  # OSError keeps these elsewhere
        return (_rebuild, (type(self), self.message, state))


class RemoteStorageException(KafkalogError):
    """The remote storage refused, did not answer, or gave other bytes than it was given: the message names the object.
    Nothing is lost locally, and copying goes on later."""


class RemoteResourceNotFoundException(RemoteStorageException, FileNotFoundError):
    """The remote storage has no such object, or the metadata no such segment."""


class CorruptManifestException(RemoteStorageException):
    """The manifest of a segment in the remote tier is none: that segment cannot be read, and others can."""


class RetriableRemoteStorageException(RemoteStorageException):
    """The remote storage failed for now: it is tried again."""


class DiskFull(KafkaStorageException):
    """The disk, or a quota, has no space left in the log directory `log_dir`.  The call was refused, and what it had
    half written is taken back.  Nothing is offline: reads go on, and the next write tries again.

        try:
            topic.append(b"value")
        except kafkalog.errors.DiskFull as error:
            wait_for_space(error.log_dir)  # then append it again
    """

    log_dir: str = ""


class NoLiveLogDirException(KafkaStorageException):
    """Every log directory has failed: nothing can be read or written.  Kafka's broker halts its process there."""


def __dir__() -> list[str]:
    """What is public here, for completion and help(): not what this module imports."""
    return sorted(name for name in globals().keys() - _IMPORTED if not name.startswith("_"))
