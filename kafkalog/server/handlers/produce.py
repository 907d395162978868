"""Produce: a client's batches go to the logs as they came.

The handler runs on the I/O thread and appends there.  It never touches a record: one native call checks a batch and
writes it.  Only what must wait leaves the thread: the sync of a store with durability "fsync", and the coordinator's
confirmation of a transactional batch in such a store.  A request with much to decompress is handled in the pool, one
such request at a time.

A transactional batch needs a verified partition (KIP-890).  The partition gives a guard, the coordinator confirms that
the partition is in the transaction (or adds it, for clients of transaction version 2), and the append shows the guard.
The batches after the first one of a transaction need nothing of this.

Source: KafkaApis.handleProduceRequest, ProduceRequest, ReplicaManager.handleProduceAppend and appendRecords,
AddPartitionsToTxnManager (4.4.0).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD, MemoryRecords
from kafkalog.engine.format.codecs import ZSTD, likely_bytes
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.errors import (
    CorruptRecordException,
    InvalidPidMappingException,
    InvalidRecordException,
    InvalidTxnStateException,
    KafkalogError,
    KafkaStorageException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    RecordValidationException,
    UnknownTopicOrPartitionException,
    UnsupportedCompressionTypeException,
)
from kafkalog.server.data_plane import data_of
from kafkalog.server.dispatcher import CloseConnection
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import Pending, Request, Values, merged
from kafkalog.server.verification import confirm

if TYPE_CHECKING:
    from kafkalog.engine.log.types import LogAppendInfo
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.server.broker import Broker
    from kafkalog.server.data_plane import DataPlane
    from kafkalog.server.hosted import HostedTopic

ADMIN_CLIENT_ID = "__admin_client"
VERSION_WITH_IDS = 13
VERSION_WITH_ZSTD = 7
VERSION_OF_ABORTABLE = 11  # from here on a client knows TRANSACTION_ABORTABLE
VERSION_THAT_ADDS = 12  # from here on a produce request adds its partitions to the transaction
LARGE_BYTES = 32768  # a larger batch is written from the caller's bytes, which must not change
# A request with more compressed bytes, or whose compressed batches may give more, is handled in the pool.
HEAVY_BYTES, HEAVY_CONTENT_BYTES = 256 << 10, 4 << 20
SENTINEL = VerificationGuard.SENTINEL
# Where a batch has its length, magic and attributes, and its producer.
_HEAD = struct.Struct(">8xi4xb4xh")
_PRODUCER = struct.Struct(">43xqhi")
_HEAD_BYTES, _PRODUCER_BYTES, _OVERHEAD = 23, 57, 12
_CODEC_AT = 22
_TRANSACTIONAL, _CODEC = 0x10, 0x07
# Errors that Kafka answers without the log's start.
_PLAIN = (
    UnknownTopicOrPartitionException,
    RecordTooLargeException,
    RecordBatchTooLargeException,
    CorruptRecordException,
    KafkaStorageException,
)
# Errors that Kafka counts as a failure of its own: those that it does not expect.
_BUGS = frozenset({Errors.UNKNOWN_SERVER_ERROR, Errors.INVALID_PRODUCER_EPOCH, Errors.INVALID_TXN_STATE})
_RETRIED = (
    Errors.NETWORK_EXCEPTION,
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_COORDINATOR,
)

Guards = dict[tuple[str, int], VerificationGuard]
Refused = dict[tuple[str, int], Errors]


def _told(index: int, error: Errors, *, log_start: int = -1, text: str | None = None) -> Values:
    return {
        "index": index,
        "errorCode": int(error),
        "baseOffset": -1,
        "logAppendTimeMs": -1,
        "logStartOffset": log_start,
        "errorMessage": text,
    }


# --- checks of the bytes --------------------------------------------------------------------------------


def _first_attributes(records: Any) -> int:
    """Returns the attributes of the first batch; 0 if there is none.  CorruptRecordException as Kafka's iterator."""
    if len(records) >= _HEAD_BYTES:
        length, magic, attributes = _HEAD.unpack_from(records)
        if magic == 2 and length + _OVERHEAD == len(records):
            return int(attributes)
    batches = MemoryRecords(records).batches()
    return int(batches[0].attributes) if batches and batches[0].magic >= 2 else 0


def validate_records(version: int, records: Any) -> None:
    """ProduceRequest.validateRecords: one batch of the current format, compressed as the version allows."""
    if len(records) >= _HEAD_BYTES:
        length, magic, attributes = _HEAD.unpack_from(records)
        if (
            magic == 2
            and length + _OVERHEAD == len(records)
            and (version >= VERSION_WITH_ZSTD or attributes & 7 != ZSTD)
        ):
            return
    batches = MemoryRecords(records).batches()
    if not batches:
        raise InvalidRecordException(
            f"Produce requests with version {version} must have at least one record batch per partition"
        )
    if batches[0].magic != 2:
        raise InvalidRecordException(
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2"
        )
    if version < VERSION_WITH_ZSTD and batches[0].codec == ZSTD:
        raise UnsupportedCompressionTypeException(
            f"Produce requests with version {version} are not allowed to use ZStandard compression"
        )
    if len(batches) > 1:
        raise InvalidRecordException(
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per "
            "partition"
        )


# --- one request ----------------------------------------------------------------------------------------


class _Produce:
    """One request while it is handled."""

    __slots__ = (
        "acks",
        "broker",
        "bytes",
        "data",
        "has_error",
        "logs",
        "messages",
        "request",
        "topics",
        "verifies",
        "version",
    )

    def __init__(self, broker: Broker, data: DataPlane, request: Request) -> None:
        self.broker = broker
        self.data = data
        self.request = request
        self.version = request.api_version
        self.acks: int = request.body["acks"]
        self.has_error = False
        self.verifies = False  # whether transactions are checked
        self.messages = self.bytes = 0  # that were appended to the current topic
        self.logs: list[UnifiedLog] = []  # that were appended to
        # Each topic with its partitions: the hosted one, the request's, and an error that all its partitions have.
        self.topics: list[tuple[HostedTopic | None, Values, Errors]] = []

    def find_topics(self) -> None:
        """Looks up the topics and asks whether the client may write to them."""
        broker, request = self.broker, self.request
        hosted = self.data.hosted
        has_ids = self.version >= VERSION_WITH_IDS
        rows = request.body["topicData"]
        if len(rows) > 1:
            rows = merged(rows, itemgetter("topicId" if has_ids else "name"), "partitionData")
        for asked in rows:
            if not asked["partitionData"]:
                continue  # it is not answered
            topic = hosted.with_id(asked["topicId"]) if has_ids else hosted.named(asked["name"])
            error = Errors.NONE
            if topic is None and has_ids:
                error = Errors.UNKNOWN_TOPIC_ID
            elif broker.authorizer.is_on and not broker.authorizer.authorize(
                request, "WRITE", "TOPIC", asked["name"] if topic is None else topic.name
            ):
                error = Errors.TOPIC_AUTHORIZATION_FAILED
            elif topic is None:
                error = Errors.UNKNOWN_TOPIC_OR_PARTITION
            self.topics.append((topic, asked, error))

    def check_records(self) -> None:
        """Raises KafkalogError if a partition that exists gets no records.  Kafka fails then, and never answers."""
        for topic, asked, error in self.topics:
            if topic is None or error:
                continue
            for each in asked["partitionData"]:
                if each["records"] is None and 0 <= each["index"] < topic.partitions:
                    raise KafkalogError("a partition without records")

    def append(self, guards: Guards, refused: Refused) -> list[Values]:
        """Appends everything.  Returns the answer's topics."""
        if self.request.is_in_pool:  # the bells wake the I/O thread
            with self.data.heavy:
                return self._append_all(guards, refused)
        rung = self.data.waiting.rung
        rung.hush()
        try:
            return self._append_all(guards, refused)
        finally:
            self.data.after_appends()

    def _append_all(self, guards: Guards, refused: Refused) -> list[Values]:
        return [
            {
                "name": asked["name"],
                "topicId": asked["topicId"],
                "partitionResponses": self._append_to(topic, asked, error, guards, refused),
            }
            for topic, asked, error in self.topics
        ]

    def _append_to(
        self, topic: HostedTopic | None, asked: Values, error: Errors, guards: Guards, refused: Refused
    ) -> list[Values]:
        partitions = asked["partitionData"]
        if len(partitions) > 1:
            by_index = {each["index"]: each for each in partitions}
            if len(by_index) < len(partitions):  # the last one of a partition counts
                partitions = list(by_index.values())
        told = []
        self.messages = self.bytes = 0
        version, is_refused = self.version, bool(refused)
        count = topic.partitions if topic is not None else 0
        for each in partitions:
            index, records = each["index"], each["records"]
            if error:
                self.has_error = True
                told.append(_told(index, error))
                continue
            if not 0 <= index < count:
                self.has_error = True
                told.append(_told(index, Errors.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            assert topic is not None
            try:
                validate_records(version, records)
            except KafkalogError as problem:
                self.has_error = True
                told.append(_told(index, code_of(problem)))
                continue
            if is_refused and (why := refused.get((topic.name, index))) is not None:
                self.has_error = True
                told.append(self._not_verified(index, why))
                continue
            if self.acks not in (-1, 0, 1):
                self.has_error = True
                told.append(_told(index, Errors.INVALID_REQUIRED_ACKS))
                continue
            guard = guards.get((topic.name, index), SENTINEL) if self.verifies else None
            told.append(self._append_one(topic, index, records, guard))
        traffic = self.data.traffic
        if traffic is not None and topic is not None and not error:
            failed = sum(each["errorCode"] in _BUGS for each in told) if self.has_error else 0
            counts = (self.messages, self.bytes, len(told), failed)
            if self.request.is_in_pool:  # the I/O thread owns the meters
                name = topic.name
                self.broker.call_soon(lambda: traffic.of(name).produced(*counts))
            else:
                traffic.of(topic.name).produced(*counts)
        return told

    def _append_one(self, topic: HostedTopic, index: int, records: Any, guard: VerificationGuard | None) -> Values:
        log = None
        try:
            if topic.is_internal:
                if self.request.client_id != ADMIN_CLIENT_ID:
                    self.has_error = True
                    return _told(index, Errors.INVALID_TOPIC_EXCEPTION)
                log = topic.made_log(index)
            else:
                log = topic.log(index)
                assert log is not None, (topic.name, index)
            if len(records) > LARGE_BYTES and type(records) is not bytes:
                records = bytes(records)
            try:
                info = _append(log, records, guard)
            except KafkaStorageException:
                moved = self.data.hosted.log_now(log.topic_partition)
                if moved is None or (moved is log and not moved.refuses_changes):
                    raise
                log = moved
                info = _append(log, records, guard)
        except Exception as error:
            self.has_error = True
            return self._refusal(index, error, log)
        if self.data.syncs is not None:
            self.logs.append(log)
        self.messages += info.last_offset - info.first_offset + 1
        self.bytes += len(records)
        return {
            "index": index,
            "errorCode": 0,
            "baseOffset": info.first_offset,
            "logAppendTimeMs": info.log_append_time,
            "logStartOffset": info.log_start_offset,
        }

    def _refusal(self, index: int, error: Exception, log: UnifiedLog | None) -> Values:
        if isinstance(error, _PLAIN):
            return _told(index, code_of(error))
        start = -1 if log is None else log.log_start_offset
        if isinstance(error, RecordValidationException):
            told = _told(index, code_of(error.invalid_exception), log_start=start, text=error.invalid_exception.message)
            refused: list[Any] = error.record_errors
            told["recordErrors"] = [
                {"batchIndex": each.batch_index, "batchIndexErrorMessage": each.message} for each in refused
            ]
            return told
        if not isinstance(error, KafkalogError):
            raise error
        return _told(index, code_of(error), log_start=start)

    def _not_verified(self, index: int, error: Errors) -> Values:
        """Returns the answer for a partition whose transaction could not be confirmed."""
        if error is Errors.INVALID_TXN_STATE:
            return _told(index, error, text="Partition was not added to the transaction")
        if error in _RETRIED or (error is Errors.CONCURRENT_TRANSACTIONS and self.version < VERSION_THAT_ADDS):
            text = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
            return _told(index, Errors.NOT_ENOUGH_REPLICAS, text=text)
        return _told(index, error)

    # --- transactions --------------------------------------------------------------------------------

    def transactional(self) -> tuple[ProducerIdAndEpoch | None, dict[tuple[str, int], tuple[HostedTopic, int]]]:
        """Returns the producer of the transactional batches, and the partitions of these with their first sequence."""
        producers = set()
        sequences: dict[tuple[str, int], tuple[HostedTopic, int]] = {}
        for topic, asked, error in self.topics:
            if error or topic is None:
                continue
            for each in asked["partitionData"]:
                records = each["records"]
                if not 0 <= each["index"] < topic.partitions or not _is_transactional(self.version, records):
                    continue
                producer_id, epoch, sequence = _PRODUCER.unpack_from(records)
                if producer_id >= 0:
                    producers.add((producer_id, epoch))
                    sequences[topic.name, each["index"]] = (topic, sequence)
        if len(producers) > 1:
            raise InvalidPidMappingException("Transactional records contained more than one producer ID")
        return (ProducerIdAndEpoch(*producers.pop()) if producers else None), sequences

    def guard(
        self, producer: ProducerIdAndEpoch, sequences: dict[tuple[str, int], tuple[HostedTopic, int]]
    ) -> tuple[Guards, Refused]:
        """Asks the partitions which of them must be verified."""
        guards: Guards = {}
        refused: Refused = {}
        bumps = self.version >= VERSION_THAT_ADDS
        for (name, index), (topic, sequence) in sequences.items():
            try:
                log = topic.made_log(index) if topic.is_internal else topic.log(index)
                assert log is not None, (name, index)
                guard = log.maybe_start_transaction_verification(producer.producer_id, sequence, producer.epoch, bumps)
            except KafkalogError as error:
                refused[name, index] = code_of(error)
            else:
                if guard is not SENTINEL:
                    guards[name, index] = guard
        return guards, refused

    def confirm(self, producer: ProducerIdAndEpoch, guards: Guards) -> Refused:
        """Asks the coordinator to add these partitions to the transaction, or whether they are in it."""
        errors = confirm(
            self.broker.home.coordinators.transactions,
            self.request.body["transactionalId"],
            producer,
            [TopicPartition(*each) for each in guards],
            adds=self.version >= VERSION_THAT_ADDS,
            knows_abortable=self.version >= VERSION_OF_ABORTABLE,
        )
        return {(each.topic, each.partition): error for each, error in errors.items()}

    # --- the answer ------------------------------------------------------------------------------------

    def answer(self, topics: list[Values]) -> Values | None:
        """Returns the answer; None for a client that wants none.  CloseConnection if such a client had an error."""
        if self.acks == 0:
            if self.has_error:
                raise CloseConnection(
                    f"error during produce request with correlation id {self.request.correlation_id} from client id "
                    f"{self.request.client_id} with acks=0"
                )
            self.broker.quotas.produce(self.request, self.request.size)
            return None
        throttle_ms = self.broker.quotas.produce(self.request, self.request.size)
        return {"responses": topics, "throttleTimeMs": throttle_ms}


def _append(log: UnifiedLog, records: Any, guard: VerificationGuard | None) -> LogAppendInfo:
    """Appends a batch; a transactional one only if its guard holds, or its transaction has begun in the partition."""
    epoch = log.leader_epoch_cache.latest_epoch or 0
    if guard is None or not _HEAD.unpack_from(records)[2] & _TRANSACTIONAL:
        return log.append_as_leader(records, epoch)
    with log.lock:  # the transaction may not end between the check and the append
        _check_guard(log, records, guard)
        return log.append_as_leader(records, epoch)


def _check_guard(log: UnifiedLog, records: Any, guard: VerificationGuard) -> None:
    producer_id, epoch, _ = _PRODUCER.unpack_from(records)
    if log.has_ongoing_transaction(producer_id, epoch) or log.verification_guard(producer_id).verify(guard):
        return
    entry = log.producer_state_manager.last_entry(producer_id)
    if entry is not None:
        header = MemoryRecords(records).batches()[0]
        if epoch < entry.producer_epoch or entry.find_duplicate_batch(header) is not None:
            return  # the log has the right answer
    raise InvalidTxnStateException("Record was not part of an ongoing transaction")


def _is_transactional(version: int, records: Any) -> bool:
    """Returns whether a batch that may be appended is transactional."""
    if not _first_attributes(records) & _TRANSACTIONAL or len(records) < _PRODUCER_BYTES:
        return False
    try:
        validate_records(version, records)
    except KafkalogError:
        return False
    return True


def _has_transactional(topics: list[Values]) -> bool:
    for topic in topics:
        for each in topic["partitionData"]:
            records = each["records"]
            if records is not None and _first_attributes(records) & _TRANSACTIONAL:
                return True
    return False


def handle_produce(broker: Broker, request: Request) -> Values | Pending | None:
    """Appends the batches of a request."""
    data = data_of(broker)
    body = request.body
    try:
        has_transactional = _has_transactional(body["topicData"])
        if has_transactional:
            transactional_id = body["transactionalId"]
            if transactional_id is None or not broker.authorizer.authorize(
                request, "WRITE", "TRANSACTIONAL_ID", transactional_id
            ):
                return _failed(request, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        produce = _Produce(broker, data, request)
        produce.find_topics()
        produce.check_records()
        if has_transactional:
            return _produce_transactional(data, produce)
    except KafkalogError:
        if body["acks"] == 0:
            raise CloseConnection("error during produce request with acks=0") from None
        raise
    return _finish(data, produce, produce.append({}, {}))


def _produce_transactional(data: DataPlane, produce: _Produce) -> Values | Pending | None:
    producer, sequences = produce.transactional()
    guards: Guards = {}
    refused: Refused = {}
    produce.verifies = data.verifies
    if producer is not None and produce.verifies:
        guards, refused = produce.guard(producer, sequences)
    if not guards:
        return _finish(data, produce, produce.append({}, refused))
    assert producer is not None
    if data.syncs is None or produce.request.is_in_pool:
        refused |= produce.confirm(producer, guards)
        return _finish(data, produce, produce.append(guards, refused))
    pending = Pending()

    def confirm() -> None:
        _completed(pending, lambda: produce.confirm(producer, guards), append)

    def append(more: Refused) -> None:
        produce.broker.call_soon(lambda: _completed(pending, lambda: _appended(more), pending.complete))

    def _appended(more: Refused) -> Values | None:
        topics = produce.append(guards, refused | more)
        if produce.logs:
            _when_durable(data, produce, topics, pending)
            raise _Later
        return produce.answer(topics)

    produce.broker.submit(confirm)
    return pending


class _Later(Exception):
    """The answer comes later."""


def _completed(pending: Pending, make: Callable[[], Any], then: Callable[[Any], Any]) -> None:
    try:
        found = make()
    except _Later:
        return
    except Exception as error:
        pending.fail(error)
        return
    then(found)


def _finish(data: DataPlane, produce: _Produce, topics: list[Values]) -> Values | Pending | None:
    if not produce.logs or produce.acks == 0:
        return produce.answer(topics)
    pending = Pending()
    _when_durable(data, produce, topics, pending)
    return pending


def _when_durable(data: DataPlane, produce: _Produce, topics: list[Values], pending: Pending) -> None:
    """Answers once the appended records are on the disk."""
    assert data.syncs is not None

    def done(error: BaseException | None) -> None:
        if error is not None:
            _take_back(topics, Errors.KAFKA_STORAGE_ERROR)
            produce.has_error = True
        _completed(pending, lambda: produce.answer(topics), pending.complete)

    data.syncs.when_durable(produce.logs, done)


def _take_back(topics: list[Values], error: Errors) -> None:
    """Makes an error of each success: nobody knows which of the records are on the disk."""
    for topic in topics:
        for each in topic["partitionResponses"]:
            if not each["errorCode"]:
                each |= _told(each["index"], error)


def _failed(request: Request, error: Errors) -> Values:
    found = error_response(request, error)
    if found is None:
        raise CloseConnection("error during produce request with acks=0")
    return found


def is_heavy(request: Request) -> bool:
    """Returns whether so much is to be decompressed that others should not wait for it."""
    size = content = 0
    for topic in request.body["topicData"]:
        for each in topic["partitionData"]:
            records = each["records"]
            if records is None or len(records) <= RECORD_BATCH_OVERHEAD or not records[_CODEC_AT] & _CODEC:
                continue
            size += len(records)
            if size > HEAVY_BYTES:
                return True
            content += likely_bytes(records[_CODEC_AT] & _CODEC, records[RECORD_BATCH_OVERHEAD:])
            if content > HEAVY_CONTENT_BYTES:
                return True
    return False


HANDLERS = {ApiKeys.PRODUCE: handle_produce}
BLOCKING_IF = {ApiKeys.PRODUCE: is_heavy}
