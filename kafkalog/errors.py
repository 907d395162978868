"""Errors of kafkalog, with Kafka's names, in four families by what the caller can do.

- `RequestError`: the call was wrong. Correct the call.
- `BadBytesError`: the bytes do not follow their format. Truncate the file, salvage its records, or stop.
- `DiskError`: the disk failed. The log directory is offline and stays offline, except after `DiskFull`, which ends
  when there is space again.
- `RemoteStorageException`: the remote storage failed. Nothing is lost locally. Try again.

Class names are those of Apache Kafka 4.4.0, so that a search finds both. A class that stands for a plain Java exception
is also a subclass of the matching Python exception, such as `ValueError`.

Native code raises none of these errors. It returns a verdict and a position, and Python code adds the file.

Example:
    >>> import tempfile
    >>> import kafkalog
    >>> store = kafkalog.open(tempfile.mkdtemp())
    >>> try:
    ...     store.topic("orders")
    ... except kafkalog.errors.UnknownTopicOrPartitionException as error:
    ...     print(type(error).__name__)
    UnknownTopicOrPartitionException
    >>> store.close()
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
    "ClusterAuthorizationException",
    "ConcurrentTransactionsException",
    "ConfigException",
    "CoordinatorLoadInProgressException",
    "CoordinatorNotAvailableException",
    "CorruptCheckpointException",
    "CorruptIndexException",
    "CorruptManifestException",
    "CorruptRecordException",
    "CorruptSnapshotException",
    "DiskError",
    "DiskFull",
    "DuplicateSequenceException",
    "FencedInstanceIdException",
    "FencedMemberEpochException",
    "GroupIdNotFoundException",
    "GroupMaxSizeReachedException",
    "GroupNotEmptyException",
    "GroupSubscribedToTopicException",
    "IllegalArgumentException",
    "IllegalGenerationException",
    "IllegalStateException",
    "InconsistentGroupProtocolException",
    "InconsistentTopicIdException",
    "IndexOffsetOverflowException",
    "InvalidConfigurationException",
    "InvalidGroupIdException",
    "InvalidOffsetException",
    "InvalidPartitionsException",
    "InvalidPidMappingException",
    "InvalidProducerEpochException",
    "InvalidRecordException",
    "InvalidRecordStateException",
    "InvalidRegularExpression",
    "InvalidRequestException",
    "InvalidSessionTimeoutException",
    "InvalidShareSessionEpochException",
    "InvalidTimestampException",
    "InvalidTopicException",
    "InvalidTxnStateException",
    "InvalidTxnTimeoutException",
    "KafkaException",
    "KafkaStorageException",
    "KafkalogError",
    "LeaderNotAvailableException",
    "LogCleaningAbortedException",
    "LogCleaningException",
    "LogDirLockedException",
    "LogDirNotFoundException",
    "LogReadOnlyException",
    "LogSegmentOffsetOverflowException",
    "MemberIdRequiredException",
    "MissingPackageException",
    "NoLiveLogDirException",
    "NoOffsetForPartitionException",
    "NoSuchFileException",
    "NotCoordinatorException",
    "NotLeaderOrFollowerException",
    "NullPointerException",
    "NumberFormatException",
    "OffsetMetadataTooLarge",
    "OffsetNotAvailableException",
    "OffsetOutOfRangeException",
    "OffsetsOutOfOrderException",
    "OutOfOrderSequenceException",
    "PolicyViolationException",
    "ProducerFencedException",
    "RebalanceInProgressException",
    "RecordBatchTooLargeException",
    "RecordDeserializationException",
    "RecordTooLargeException",
    "RecordValidationException",
    "RemoteResourceNotFoundException",
    "RemoteStorageException",
    "RequestError",
    "RetriableRemoteStorageException",
    "SchemaException",
    "SecurityDisabledException",
    "ShareSessionLimitReachedException",
    "ShareSessionNotFoundException",
    "StaleMemberEpochException",
    "ThrottlingQuotaExceededException",
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
    "UnknownServerException",
    "UnknownTopicIdException",
    "UnknownTopicOrPartitionException",
    "UnreleasedInstanceIdException",
    "UnstableOffsetCommitException",
    "UnsupportedAssignorException",
    "UnsupportedCompressionTypeException",
    "UnsupportedForMessageFormatException",
    "UnsupportedOperationException",
    "UnsupportedVersionException",
]

_IMPORTED = frozenset(globals())


class KafkalogError(Exception):
    """Base class of every error that kafkalog raises on purpose.

    The text of an error contains its place and its hint, so a printed message alone is enough.

    Args:
        message: The text that says what happened.
        path: The file or directory that the error is about, or None.
        position: The position in that file, in bytes from its start, or None.
        hint: Advice on what to do, or None.

    Attributes:
        message: The text as given, without the place and the hint.
        path: As given.
        position: As given.
        hint: As given.
        appended: The offsets that a call which appends many records had appended before the error. Empty if none.
        appended_partitions: The same for a topic: a range of offsets for each partition number.

    Example:
        >>> from kafkalog.errors import KafkalogError
        >>> print(KafkalogError("Found no batch", path="orders-0/0.log", position=61, hint="run kafkalog verify"))
        orders-0/0.log at byte 61: Found no batch (run kafkalog verify)
    """

    appended: range = range(0)
    appended_partitions: dict[int, range] = {}  # an instance's own dict replaces this one

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
        if place and re.search(rf"(?<!\w){re.escape(place)}(?!\w)", self.message):  # Kafka's message names it
            place = ""
        if self.position is not None:
            place += f" at byte {self.position}"
        text = f"{place.strip()}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Keeps the keyword arguments when pickled: Spark and process pools send errors between processes.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(kind: type[KafkalogError], message: str, state: dict[str, object]) -> KafkalogError:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    for name, value in state.items():
        setattr(error, name, value)
    return error


# --- the families -------------------------------------------------------------------------


class RequestError(KafkalogError):
    """The call was wrong, and the data did not change.

    Correct the call.
    """


class BadBytesError(KafkalogError):
    """Bytes do not follow their format.

    `path` and `position` say where. Truncate the file there, salvage the records after it with `kafkalog.toolbox`, or
    stop.
    """


class DiskError(KafkalogError):
    """The disk failed.

    The log directory is offline until the process opens it again. Only `DiskFull` takes nothing offline.
    """


# --- plain Java exceptions ------------------------------------------------------------------------


class IllegalArgumentException(RequestError, ValueError):
    """An argument has a wrong value (java.lang.IllegalArgumentException).

    Pass a value that the message allows.

    Example:
        >>> import kafkalog
        >>> from kafkalog.errors import IllegalArgumentException
        >>> try:
        ...     kafkalog.RemoteStorage("s3://bucket/tier", attempts=0)
        ... except IllegalArgumentException as error:
        ...     print(error)
        attempts: found 0, expected tries (at least 1)
        >>> issubclass(IllegalArgumentException, ValueError)
        True
    """


class IllegalStateException(RequestError, RuntimeError):
    """The object is in a state that does not allow the call (java.lang.IllegalStateException).

    The message names the state.
    """


class NullPointerException(RequestError, TypeError):
    """A required value is missing (java.lang.NullPointerException).

    Pass it.
    """


class UnsupportedOperationException(RequestError, RuntimeError):
    """The object does not support the operation (java.lang.UnsupportedOperationException).

    Use the call that the message names.
    """


class NumberFormatException(IllegalArgumentException):
    """A text is not a number (java.lang.NumberFormatException).

    Pass a number.
    """


class NoSuchFileException(RequestError, FileNotFoundError):
    """A file does not exist (java.nio.file.NoSuchFileException).

    Check the path.
    """

    def __str__(self) -> str:
        return KafkalogError.__str__(self)


class MissingPackageException(RequestError, ModuleNotFoundError):
    """The call needs an optional package that is not installed.

    The hint is the `pip install` command.
    """


# --- the request was wrong ------------------------------------------------------------------------


class KafkaException(RequestError):
    """Kafka's general error (org.apache.kafka.common.KafkaException).

    The message says what happened; a subclass says more.
    """


class ConfigException(RequestError, ValueError):
    """A setting has a value of the wrong type or out of range.

    Pass a value that the message allows.

    Example:
        >>> import kafkalog
        >>> try:
        ...     kafkalog.LogConfig.from_props({"segment.ms": 0})
        ... except kafkalog.errors.ConfigException as error:
        ...     print(error)
        Invalid value 0 for configuration segment.ms: Value must be at least 1
    """


class InvalidConfigurationException(ConfigException):
    """A setting is unknown, or two settings contradict each other.

    Correct the name or the values.
    """


class InvalidTopicException(RequestError, ValueError):
    """A topic's name is one that Kafka does not allow.

    Use 1 to 249 letters, digits, dots, underscores and hyphens.
    """


class UnknownTopicOrPartitionException(RequestError, LookupError):
    """The topic or partition does not exist.

    Check the name and the directory, or create the topic.
    """


class TopicExistsException(RequestError):
    """A topic of this name exists already.

    Use another name, or pass `exist_ok=True`.

    Example:
        >>> import tempfile
        >>> import kafkalog
        >>> with kafkalog.open(tempfile.mkdtemp()) as store:
        ...     _ = store.create_topic("orders")
        ...     try:
        ...         store.create_topic("orders")
        ...     except kafkalog.errors.TopicExistsException:
        ...         print("it exists")
        it exists
    """


class InvalidPartitionsException(RequestError, ValueError):
    """A topic cannot have this number of partitions, or has more already.

    Pass a number that the message allows.
    """


class OffsetOutOfRangeException(RequestError, LookupError):
    """An offset is outside the log: below the log start offset or above the log end offset or high watermark.

    Records below the log start offset were deleted. Read from `log_start_offset`, or pass an offset that exists.
    """


class NoOffsetForPartitionException(RequestError, LookupError):
    """A cursor has no offset for a partition, and the reader has no `start`.

    Pass `start="earliest"`, `start="latest"` or `start_offsets`.
    """


class InvalidOffsetException(RequestError):
    """An index entry does not have a larger offset than the entry before it.

    Append entries in order.
    """


class OffsetsOutOfOrderException(RequestError):
    """A follower's append has offsets that do not increase.

    Append the leader's batches in order.
    """


class UnexpectedAppendOffsetException(RequestError):
    """A follower's append starts below the log end offset.

    Fetch from the log end offset.

    Attributes:
        first_offset: The first offset of the append.
        last_offset: The last offset of the append.
    """

    first_offset: int = -1
    last_offset: int = -1


class LogSegmentOffsetOverflowException(RequestError):
    """An offset is too far from its segment's base offset: the difference needs more than 31 bits.

    Split the segment.

    Attributes:
        segment: The `LogSegment` to split.
        offset: The offset that does not fit.
    """

    segment: Any = None
    offset: int = -1


class IndexOffsetOverflowException(RequestError):
    """An offset is too far from its index's base offset: the difference needs more than 31 bits.

    Roll the segment first.
    """


class RecordTooLargeException(RequestError):
    """A batch is larger than `max.message.bytes`.

    Append smaller batches or records, or raise the topic's setting.
    """


class RecordBatchTooLargeException(RequestError):
    """An append is larger than `segment.bytes`.

    Append less at a time, or raise the topic's setting.
    """


class InvalidTimestampException(RequestError):
    """A record's timestamp is too far from the current time.

    `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms` set the limits. Correct the
    timestamp, which is in milliseconds since 1970, or change the topic's settings.
    """


class InvalidRecordException(RequestError, ValueError):
    """A record or batch breaks a rule of its format or of its topic.

    Correct the record.
    """


class RecordValidationException(RequestError):
    """Several records of an append were refused, so nothing of it was appended.

    Correct these records.

    Attributes:
        record_errors: One entry for each refused record: its position in the batch and the reason.
        invalid_exception: The error that Kafka's broker sends to the producer.
    """

    record_errors: list[object]
    invalid_exception: KafkalogError


class UnsupportedForMessageFormatException(RequestError):
    """The batch's message format cannot hold a field that the append has.

    Append batches of format 2.
    """


class UnsupportedCompressionTypeException(RequestError):
    """The message format or the topic does not allow this codec, or the codec is unknown.

    Use a codec that the message names.
    """


class UnknownServerException(RequestError):
    """The request failed in the server for a reason that has no error of its own.

    The server's log has the reason.
    """


class UnsupportedVersionException(RequestError):
    """Data has a format version that this code does not know.

    Upgrade kafkalog.
    """


class OutOfOrderSequenceException(RequestError):
    """An idempotent producer's sequence number leaves a gap: an earlier batch is missing.

    Append that batch first.
    """


class DuplicateSequenceException(RequestError):
    """An idempotent producer's batch was appended before.

    The log has its records already, so do nothing.
    """


class InvalidProducerEpochException(RequestError):
    """A producer with a newer epoch has fenced this producer.

    Stop this producer, or start again with a new epoch.
    """


class InvalidTxnStateException(RequestError):
    """A transactional append is outside its transaction.

    Begin a transaction, or add the partition first.
    """


class TransactionCoordinatorFencedException(RequestError):
    """A transaction marker has an older coordinator epoch than the log knows.

    Let the newer coordinator end the transaction.
    """


class ProducerFencedException(RequestError):
    """Another producer took over the transactional id, or the transaction timed out.

    The transaction is aborted. Stop this producer, or create a new one if it is the only one with this id.
    """


class InvalidPidMappingException(RequestError):
    """The transactional id is unknown, or belongs to another producer id.

    Begin a new transaction with the id.
    """


class InvalidRequestException(RequestError):
    """A request does not follow its format, or contradicts itself.

    The program that sent it does not speak Kafka's protocol as this version knows it.
    """


class ConcurrentTransactionsException(RequestError):
    """The id's last transaction is decided, but has not ended in every partition yet.

    Try again shortly.
    """


class TimeoutException(RequestError, TimeoutError):
    """The call did not finish within its time limit.

    Nothing is known to be wrong: the work may still finish. Wait and try again, or allow more time.
    """

    def __str__(self) -> str:
        return KafkalogError.__str__(self)


class BufferExhaustedException(TimeoutException):
    """A producer's memory stayed full for `max.block.ms`, because the log is slower than the senders.

    Send less, or give the producer more memory or time.
    """


class InvalidTxnTimeoutException(RequestError):
    """A transaction's timeout is not between 1 ms and `transaction.max.timeout.ms`.

    Pass a timeout in that range.
    """


class TransactionAbortableException(RequestError):
    """A partition is not part of the transaction.

    Abort the transaction.
    """


class TransactionalIdNotFoundException(RequestError, LookupError):
    """Nobody has used this transactional id, or it has expired.

    Check the id; begin a transaction to use it.
    """


class InvalidGroupIdException(RequestError):
    """A consumer group has no name.

    Pass a name that is not empty.
    """


class GroupIdNotFoundException(RequestError, LookupError):
    """The consumer group does not exist, or is of another kind.

    Check its name.
    """


class GroupNotEmptyException(RequestError):
    """The consumer group still has members.

    Close its consumers first.
    """


class GroupSubscribedToTopicException(RequestError):
    """The offsets of a topic cannot be deleted, because members of the group read the topic.

    Close these consumers first.
    """


class UnknownMemberIdException(RequestError):
    """The group has members, and the caller that commits is not one of them.

    Close the group's consumers first.
    """


class IllegalGenerationException(RequestError):
    """A member of a group named a generation that is not the group's current one.

    The group has divided its partitions anew: join it again.
    """


class StaleMemberEpochException(RequestError):
    """A member of a consumer group named an epoch that is not its current one.

    Repeat the request with the epoch of the last heartbeat.
    """


class FencedMemberEpochException(RequestError):
    """A member of a group named an epoch that the coordinator does not know.

    Give up all partitions, and join the group again with epoch 0.
    """


class FencedInstanceIdException(RequestError):
    """Another member has taken over the static id (`group.instance.id`).

    Only one client may use the id at a time.
    """


class UnreleasedInstanceIdException(RequestError):
    """Another member still has the static id (`group.instance.id`).

    Close that member first, or wait for its session timeout.
    """


class RebalanceInProgressException(RequestError):
    """The group is dividing its partitions anew.

    Join it again.
    """


class MemberIdRequiredException(RequestError):
    """A new member must join again, with the id that it got.

    The error has no id; the answer to the request has it.
    """


class InconsistentGroupProtocolException(RequestError):
    """A member's protocols are not those of its group.

    All members need the same protocol type, and one assignor in common.
    """


class GroupMaxSizeReachedException(RequestError):
    """The group has as many members as its limit allows.

    Raise the limit (group.max.size), or stop another member.
    """


class InvalidSessionTimeoutException(RequestError):
    """The session timeout is outside the coordinator's limits.

    They are group.min.session.timeout.ms and group.max.session.timeout.ms.
    """


class UnsupportedAssignorException(RequestError):
    """The coordinator has no assignor of that name.

    Use one of group.consumer.assignors.
    """


class InvalidRegularExpression(RequestError):
    """The pattern of topics is not a regular expression.

    Its syntax is RE2's.
    """


class CoordinatorNotAvailableException(RequestError):
    """The coordinator of the group does not serve now.

    Try again.
    """


class CoordinatorLoadInProgressException(RequestError):
    """The coordinator is still reading its log.

    Try again.
    """


class NotCoordinatorException(RequestError):
    """This broker does not coordinate the group or transactional id.

    Ask for its coordinator again.
    """


class UnknownTopicIdException(RequestError, LookupError):
    """There is no topic with that id.

    The topic was deleted, or made again under another id.
    """


class OffsetMetadataTooLarge(RequestError):
    """The text with a committed offset is longer than `offset.metadata.max.bytes`.

    Commit a shorter text.
    """


class UnstableOffsetCommitException(RequestError):
    """An open transaction may still replace a committed offset.

    Try again after the transaction has ended.
    """


class InvalidRecordStateException(RequestError):
    """A record is not acquired by the member that acknowledges it.

    Its lock may have ended: the record is delivered again.
    """


class InvalidShareSessionEpochException(RequestError):
    """A request of a share session is not the next one.

    Open a new session.
    """


class LeaderNotAvailableException(RequestError):
    """A partition is not ready yet.

    Try again.
    """


class NotLeaderOrFollowerException(RequestError):
    """The state of a partition was taken over by somebody else.

    Try again.
    """


class OffsetNotAvailableException(RequestError):
    """An offset is not known yet.

    Try again.
    """


class ShareSessionLimitReachedException(RequestError):
    """There are too many share sessions.

    Close some, or raise group.share.max.share.sessions.
    """


class ShareSessionNotFoundException(RequestError, LookupError):
    """There is no such share session.

    Open a new session.
    """


class InconsistentTopicIdException(RequestError):
    """`partition.metadata` has another topic id than expected: the files are of another topic with the same name.

    Remove the directory of the topic that was deleted, or open the directories of one store only.
    """


class PolicyViolationException(RequestError):
    """The topic's `cleanup.policy` forbids the operation.

    Change the policy, or use another topic.
    """


class ClusterAuthorizationException(RequestError):
    """The client may not do this with the server.

    Give its principal an ACL for the cluster.
    """


class SecurityDisabledException(RequestError):
    """The server checks no ACLs.

    Start it with `authorizer.class.name`.
    """


class ThrottlingQuotaExceededException(RequestError):
    """The client changes topics faster than its quota allows.

    Try again later.
    """


class LogCleaningAbortedException(RequestError):
    """Cleaning of a partition was aborted, on request or because the log changed.

    The cleaner tries again later.
    """


class LogCleaningException(RequestError):
    """The cleaner failed on a partition.

    `__cause__` is the reason. Repair that first: the partition is not compacted until the directory is opened again.
    """


class LogDirLockedException(KafkaException):
    """Another process, such as a broker, or another store of this process holds the `.lock` of the log directory.

    Close it first, or open the directory with `read_only=True`.
    """


class BeingWrittenException(KafkaException):
    """Another process changed the files at every attempt to read them without a lock.

    Try again.
    """


class LogDirNotFoundException(RequestError, LookupError):
    """The manager does not have this log directory.

    Pass one of its directories.
    """


class ClosedChannelException(IllegalStateException):
    """The file is closed, because its log or segment was closed (java.nio.channels.ClosedChannelException).

    Open it again.
    """


class TooManyOpenFilesException(KafkaException):
    """The process cannot open more files, and kafkalog has no idle file to close.

    Nothing was done, and nothing is offline. Raise the limit (`ulimit -n`), or close logs and readers.
    """


class LogReadOnlyException(IllegalStateException):
    """The log is open read-only, and the call would write.

    Open it for writing.
    """


# --- the bytes are bad ----------------------------------------------------------------------------


class CorruptRecordException(BadBytesError):
    """A record batch has a wrong size, magic or CRC.

    Run `kafkalog verify`; salvage the records after it if you need them.
    """


class RecordDeserializationException(BadBytesError):
    """A record's key or value cannot be decoded in the requested format.

    Check the format, or skip the record.

    Attributes:
        topic: The record's topic, or None if it is not known.
        partition: The record's partition, or -1.
        offset: The record's offset, or -1.
        row: The record's row in the column to decode, or -1.
        last_row: The last row, if the error is about one of the rows from `row` to `last_row`, or -1.
    """

    topic: str | None = None
    partition: int = -1
    offset: int = -1
    row: int = -1
    last_row: int = -1


class CorruptIndexException(BadBytesError):
    """An index file cannot belong to its segment.

    Run `kafkalog reindex`, which rebuilds it from the log.
    """


class CorruptSnapshotException(BadBytesError):
    """A producer snapshot has a wrong version, layout or CRC.

    Opening the log for writing rebuilds the producers' state.
    """


class CorruptCheckpointException(BadBytesError):
    """A checkpoint or metadata file does not parse.

    The hint says whether it can be deleted.
    """


class SchemaException(BadBytesError):
    """A structured value does not parse: a transaction marker, a snapshot or a metadata record.

    Run `kafkalog verify`, which lists all damage of the directory.
    """


class UnknownRecordTypeException(BadBytesError):
    """A record of an internal topic has a type that this version does not know.

    Coordinators skip such records.

    Attributes:
        unknown_type: The number of the type.
    """

    unknown_type: int = -1


class UnknownRecordVersionException(SchemaException):
    """A record of an internal topic has a value of a version that this version does not know.

    Upgrade kafkalog.
    """


# --- the disk failed ------------------------------------------------------------------------------


OPEN_FILES_HINT = "raise the limit of open files (ulimit -n), or close logs and readers that you do not use"


class KafkaStorageException(DiskError, OSError):
    """An input or output operation failed, and the log directory is offline.

    The operating system's error is `__cause__`. Repair the disk, then open the directory again.

    Attributes:
        is_of_closed_log: Whether nothing failed, and the log did nothing because it is closed or about to be closed.
    """

    is_of_closed_log = False

    @classmethod
    def because_of(cls, error: Exception, message: str) -> Self:
        """Creates the error from an error of the operating system: its reason, its file and its `errno`.

        Args:
            error: The error of the operating system.
            message: The action of kafkalog that failed.

        Returns:
            The error to raise.
        """
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
        state = {**self.__dict__, "errno": self.errno, "strerror": self.strerror}  # not in OSError's __dict__
        return (_rebuild, (type(self), self.message, state))


class RemoteStorageException(KafkalogError):
    """The remote storage refused, did not answer, or returned wrong bytes.

    The message names the object.

    Nothing is lost locally, and copying continues later.
    """


class RemoteResourceNotFoundException(RemoteStorageException, FileNotFoundError):
    """The remote storage has no such object, or the metadata have no such segment.

    Check the address and the prefix.
    """


class CorruptManifestException(RemoteStorageException):
    """The manifest of a segment in the remote tier does not parse.

    This segment cannot be read, but others can.
    """


class RetriableRemoteStorageException(RemoteStorageException):
    """The remote storage failed for now.

    Try again: kafkalog itself also retries.
    """


class DiskFull(KafkaStorageException):
    """The disk or a quota has no space left.

    Free some space, then make the call again.

    The call was refused, and the bytes that it had written were taken back. Nothing is offline: reads continue, and the
    next write tries again.

    Attributes:
        log_dir: The log directory that has no space left.

    Example:
        >>> from kafkalog.errors import DiskFull
        >>> def append_later(topic, value, waiting):
        ...     try:
        ...         topic.append(value)
        ...     except DiskFull as error:
        ...         waiting.append(value)
        ...         print(error.log_dir, "is full")
    """

    log_dir: str = ""


class NoLiveLogDirException(KafkaStorageException):
    """Every log directory has failed, so nothing can be read or written.

    Kafka's broker stops its process in this case.

    Repair the disks, then open the directories again.
    """


def __dir__() -> list[str]:
    """Returns the public names, for completion and help(), without the names that this module imports."""
    return sorted(name for name in globals().keys() - _IMPORTED if not name.startswith("_"))
