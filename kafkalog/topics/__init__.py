"""The face for services: a partition's log as an object, its records, its readers and writers."""

from __future__ import annotations

from kafkalog.log.view import PartitionView
from kafkalog.manager.log_dirs import list_partitions
from kafkalog.topics.batching import Producer
from kafkalog.topics.log import Log
from kafkalog.topics.opening import open_log
from kafkalog.topics.reader import ChunkReader, MessageSetSend, MultiMessageSetSend, receive_message_set
from kafkalog.topics.record_future import RecordFuture
from kafkalog.topics.records import Record, to_confluent
from kafkalog.topics.store import Store, open_store
from kafkalog.topics.topic import RecordMetadata, Topic
from kafkalog.topics.writer import Transaction, Writer

__all__ = [
    "ChunkReader",
    "Log",
    "MessageSetSend",
    "MultiMessageSetSend",
    "PartitionView",
    "Producer",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "Store",
    "Topic",
    "Transaction",
    "Writer",
    "list_partitions",
    "open_log",
    "open_store",
    "receive_message_set",
    "to_confluent",
]


def __dir__() -> list[str]:
    return __all__
