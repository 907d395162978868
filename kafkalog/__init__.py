"""Apache Kafka's log storage engine as a Python package: the same files, the same rules, the same errors.

    import kafkalog

    with kafkalog.open_log("/data/logs", "orders-0") as log:
        log.append(b"value", key=b"key")
        for record in log:
            print(record.offset, record.value)

Doors, which `from kafkalog import *` gives; help(kafkalog.open) says more:
    open(dirs)               a Store of topics, with cursors and transactions
    open_log(dir, name)      one partition, as a Log
    list_partitions(dir)     what is in a directory
    verify(dirs)             every batch, every index entry
    to_confluent(record)     a record as confluent-kafka has it

Classes that they hand out:
    Store, Topic, Producer, Writer, Transaction, Record, RecordMetadata
    Log, ChunkReader, PartitionView, MessageSetSend, MultiMessageSetSend, CompactionStats
    LogManager, ManagerSettings, LogConfig, TopicPartition    the engine: many partitions on many disks
    KafkalogError                                             every error is one

Modules, loaded when they are first named:
    errors, config, files (clocks, the disk), format, metrics, topics, toolbox, spark

`import kafkalog` alone pulls in neither numpy nor pyarrow, pyspark, click or rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# The doors alone: they are what `import *` should bring, and what help() shows in full.
__all__ = ["open", "open_log", "list_partitions", "verify", "to_confluent"]

if TYPE_CHECKING:
    # A name that is imported as itself is public for type checkers; nothing else is.
    from kafkalog import config as config
    from kafkalog import errors as errors
    from kafkalog import files as files
    from kafkalog import format as format
    from kafkalog import metrics as metrics
    from kafkalog import spark as spark
    from kafkalog import toolbox as toolbox
    from kafkalog import topics as topics
    from kafkalog.cleaner.compaction import CompactionStats as CompactionStats
    from kafkalog.config import LogConfig as LogConfig
    from kafkalog.errors import KafkalogError as KafkalogError
    from kafkalog.format.names import TopicPartition as TopicPartition
    from kafkalog.manager.log_manager import LogManager as LogManager
    from kafkalog.manager.settings import ManagerSettings as ManagerSettings
    from kafkalog.toolbox.verify import verify
    from kafkalog.topics import ChunkReader as ChunkReader
    from kafkalog.topics import Log as Log
    from kafkalog.topics import MessageSetSend as MessageSetSend
    from kafkalog.topics import MultiMessageSetSend as MultiMessageSetSend
    from kafkalog.topics import PartitionView as PartitionView
    from kafkalog.topics import Producer as Producer
    from kafkalog.topics import Record as Record
    from kafkalog.topics import RecordMetadata as RecordMetadata
    from kafkalog.topics import Store as Store
    from kafkalog.topics import Topic as Topic
    from kafkalog.topics import Transaction as Transaction
    from kafkalog.topics import Writer as Writer
    from kafkalog.topics import list_partitions, open_log, to_confluent
    from kafkalog.topics import open_store as open

_MODULES = ("config", "errors", "files", "format", "metrics", "spark", "toolbox", "topics")
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

if not TYPE_CHECKING:  # to a type checker a module with a __getattr__ has every name

    def __getattr__(name):
        import importlib

        if name in _MODULES:
            return importlib.import_module(f"kafkalog.{name}")
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'kafkalog' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), _THERE.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """What is public, for completion and help(); not what happens to be loaded."""
    of_modules = (name for name, value in globals().items() if name.startswith("__") and not callable(value))
    return sorted({*of_modules, *_HOME, *_MODULES} - {"__all__"})
