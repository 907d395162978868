"""Apache Kafka's log storage engine as a Python package: the same files, the same rules, the same errors.

    import kafkalog

    with kafkalog.open_log("/data/logs", "orders-0") as log:
        log.append(b"value", key=b"key")
        for record in log:
            print(record.offset, record.value)

`kafkalog.open` opens a store of topics, with cursors and transactions; `open_log` one partition.

Everything here is loaded when it is first used: `import kafkalog` pulls in neither numpy nor pyarrow, pyspark, click
or rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kafkalog.cleaner.compaction import CompactionStats
    from kafkalog.config import LogConfig
    from kafkalog.errors import KafkalogError
    from kafkalog.format.names import TopicPartition
    from kafkalog.manager.log_manager import LogManager
    from kafkalog.manager.settings import ManagerSettings
    from kafkalog.toolbox.verify import verify
    from kafkalog.topics import (
        ChunkReader,
        Log,
        MessageSetSend,
        MultiMessageSetSend,
        PartitionView,
        Producer,
        Record,
        RecordMetadata,
        Store,
        Topic,
        Transaction,
        Writer,
        list_partitions,
        open_log,
        to_confluent,
    )
    from kafkalog.topics import open_store as open

_HOME = {
    "ChunkReader": "kafkalog.topics",
    "CompactionStats": "kafkalog.cleaner.compaction",
    "KafkalogError": "kafkalog.errors",
    "Log": "kafkalog.topics",
    "LogConfig": "kafkalog.config",
    "LogManager": "kafkalog.manager.log_manager",
    "ManagerSettings": "kafkalog.manager.settings",
    "MessageSetSend": "kafkalog.topics",
    "MultiMessageSetSend": "kafkalog.topics",
    "PartitionView": "kafkalog.topics",
    "Producer": "kafkalog.topics",
    "Record": "kafkalog.topics",
    "RecordMetadata": "kafkalog.topics",
    "Store": "kafkalog.topics",
    "Topic": "kafkalog.topics",
    "TopicPartition": "kafkalog.format.names",
    "Transaction": "kafkalog.topics",
    "Writer": "kafkalog.topics",
    "list_partitions": "kafkalog.topics",
    "open_log": "kafkalog.topics",
    "to_confluent": "kafkalog.topics",
    "open": "kafkalog.topics",
    "verify": "kafkalog.toolbox.verify",
}
_THERE = {"open": "open_store"}  # what it is called at home

__all__ = [
    "ChunkReader",
    "CompactionStats",
    "KafkalogError",
    "Log",
    "LogConfig",
    "LogManager",
    "ManagerSettings",
    "MessageSetSend",
    "MultiMessageSetSend",
    "PartitionView",
    "Producer",
    "Record",
    "RecordMetadata",
    "Store",
    "Topic",
    "TopicPartition",
    "Transaction",
    "Writer",
    "__version__",
    "list_partitions",
    "open",
    "open_log",
    "to_confluent",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kafkalog' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), _THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
