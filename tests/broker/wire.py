"""Requests that clients do not make: any producer id, any epoch, any member, and the bare answer.

The module has a table of the messages, in the form of `kafkalog.engine.format.message_tables`, and one connection that
sends them one after the other.  The numbers are Kafka's API keys.
"""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType

from kafkalog.engine.format.messages import Schema, Values, parse_schemas

TABLE = """
8 OffsetCommitRequest 9 flexible 8+
  groupId string, generationIdOrMemberEpoch int32, memberId string, groupInstanceId string?
  topics [OffsetCommitRequestTopic]
    name string
    partitions [OffsetCommitRequestPartition]
      partitionIndex int32, committedOffset int64, committedLeaderEpoch int32, committedMetadata string?
8 OffsetCommitResponse 9 flexible 8+
  throttleTimeMs int32
  topics [OffsetCommitResponseTopic]
    name string
    partitions [OffsetCommitResponsePartition]
      partitionIndex int32, errorCode int16
10 FindCoordinatorRequest 4 flexible 3+
  keyType int8, coordinatorKeys [string]
10 FindCoordinatorResponse 4 flexible 3+
  throttleTimeMs int32
  coordinators [Coordinator]
    key string, nodeId int32, host string, port int32, errorCode int16, errorMessage string?
22 InitProducerIdRequest 5 flexible 2+
  transactionalId string?, transactionTimeoutMs int32, producerId int64, producerEpoch int16
22 InitProducerIdResponse 5 flexible 2+
  throttleTimeMs int32, errorCode int16, producerId int64, producerEpoch int16
24 AddPartitionsToTxnRequest 3-5 flexible 3+
  transactions [AddPartitionsToTxnTransaction] 4+
    transactionalId string, producerId int64, producerEpoch int16, verifyOnly bool
    topics [AddPartitionsToTxnTopic]
      name string, partitions [int32]
  v3AndBelowTransactionalId string 3-3, v3AndBelowProducerId int64 3-3, v3AndBelowProducerEpoch int16 3-3
  v3AndBelowTopics [OlderTopic] 3-3
    name string, partitions [int32]
24 AddPartitionsToTxnResponse 3-5 flexible 3+
  throttleTimeMs int32, errorCode int16 4+
  resultsByTransaction [AddPartitionsToTxnResult] 4+
    transactionalId string
    topicResults [AddPartitionsToTxnTopicResult]
      name string
      resultsByPartition [AddPartitionsToTxnPartitionResult]
        partitionIndex int32, partitionErrorCode int16
  resultsByTopicV3AndBelow [OlderTopicResult] 3-3
    name string
    resultsByPartition [OlderPartitionResult]
      partitionIndex int32, partitionErrorCode int16
25 AddOffsetsToTxnRequest 3 flexible 3+
  transactionalId string, producerId int64, producerEpoch int16, groupId string
25 AddOffsetsToTxnResponse 3 flexible 3+
  throttleTimeMs int32, errorCode int16
26 EndTxnRequest 4-5 flexible 3+
  transactionalId string, producerId int64, producerEpoch int16, committed bool
26 EndTxnResponse 4-5 flexible 3+
  throttleTimeMs int32, errorCode int16, producerId int64 5+, producerEpoch int16 5+
28 TxnOffsetCommitRequest 4 flexible 3+
  transactionalId string, groupId string, producerId int64, producerEpoch int16
  generationId int32, memberId string, groupInstanceId string?
  topics [TxnOffsetCommitRequestTopic]
    name string
    partitions [TxnOffsetCommitRequestPartition]
      partitionIndex int32, committedOffset int64, committedLeaderEpoch int32, committedMetadata string?
28 TxnOffsetCommitResponse 4 flexible 3+
  throttleTimeMs int32
  topics [TxnOffsetCommitResponseTopic]
    name string
    partitions [TxnOffsetCommitResponsePartition]
      partitionIndex int32, errorCode int16
65 DescribeTransactionsRequest 0 flexible 0+
  transactionalIds [string]
65 DescribeTransactionsResponse 0 flexible 0+
  throttleTimeMs int32
  transactionStates [TransactionState]
    errorCode int16, transactionalId string, transactionState string, transactionTimeoutMs int32
    transactionStartTimeMs int64, producerId int64, producerEpoch int16
    topics [TopicData]
      topic string, partitions [int32]
"""
NONE = 0
# Kafka's error codes by the exceptions' names.
ERRORS = {
    "CoordinatorNotAvailableException": 15,
    "NotCoordinatorException": 16,
    "UnknownMemberIdException": 25,
    "InvalidProducerEpochException": 47,
    "InvalidTxnStateException": 48,
    "InvalidPidMappingException": 49,
    "InvalidTxnTimeoutException": 50,
    "ConcurrentTransactionsException": 51,
    "GroupNotEmptyException": 68,
    "GroupIdNotFoundException": 69,
    "ProducerFencedException": 90,
    "TransactionalIdNotFoundException": 105,
    "TransactionAbortableException": 120,
}


def _schemas(suffix: str) -> dict[str, Schema]:
    return {each.name.removesuffix(suffix): each for each in parse_schemas(TABLE) if each.name.endswith(suffix)}


REQUESTS, RESPONSES = _schemas("Request"), _schemas("Response")


class Connection:
    """A connection to a broker; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._numbers = itertools.count()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, name: str, version: int, values: Values) -> Values:
        """The answer to a request of a flexible version."""
        schema, number = REQUESTS[name], next(self._numbers)
        client = b"wire"
        head = struct.pack(">hhih", schema.number, version, number, len(client)) + client + b"\0"
        body = head + schema.encode(values, version)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        answer = self._take(struct.unpack(">i", self._take(4))[0])
        # FindCoordinator and all others asked here: correlation id, then no tagged fields.
        assert struct.unpack_from(">ib", answer) == (number, 0), answer[:5]
        return RESPONSES[name].decode(answer, version, at=5)[0]

    def _take(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker hung up"
            found += more
        return bytes(found)
