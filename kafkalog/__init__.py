"""Apache Kafka's log storage engine for Python, without a broker.

    store = kafkalog.open("data")           # a Store; created if missing
    orders = store.create_topic("orders", partitions=4, exist_ok=True)
    orders.append(b"value", key=b"key")     # append_many, append_async
    for record in store.reader("billing", topics=["orders"]): ...
    server = store.serve("127.0.0.1:9092")  # for any client of Kafka
    kafkalog.open("data", read_only=True)   # while another process writes
    kafkalog.open_log("logs", "orders-0")   # a single Partition
    kafkalog.verify("logs")                 # checks batches and indexes

help(kafkalog.open), help(kafkalog.Topic) ... say more.  KafkalogError is
the base class of all errors.  dir(kafkalog) lists all names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

_DOORS = ["open", "open_log", "list_partitions", "verify", "to_confluent"]  # the names of `import *`

if TYPE_CHECKING:
    __all__ = ["open", "open_log", "list_partitions", "verify", "to_confluent"]
    # For type checkers, only a name that is imported as itself is public.
    from kafkalog import config as config
    from kafkalog import decoding as decoding
    from kafkalog import engine as engine
    from kafkalog import errors as errors
    from kafkalog import group_reader as group_reader
    from kafkalog import metrics as metrics
    from kafkalog import partition as partition
    from kafkalog import producer as producer
    from kafkalog import queue as queue
    from kafkalog import reader as reader
    from kafkalog import records as records
    from kafkalog import remote as remote
    from kafkalog import report as report
    from kafkalog import server as server
    from kafkalog import spark as spark
    from kafkalog import store as store
    from kafkalog import toolbox as toolbox
    from kafkalog import topic as topic
    from kafkalog import transaction as transaction
    from kafkalog._face.chunk_reader import ChunkReader as ChunkReader
    from kafkalog._face.chunk_reader import MessageSetSend as MessageSetSend
    from kafkalog._face.chunk_reader import MultiMessageSetSend as MultiMessageSetSend
    from kafkalog._face.decoded import Decoding as Decoding
    from kafkalog._face.opening import open_log
    from kafkalog._face.readable import Reading as Reading
    from kafkalog._face.selection import Filters as Filters
    from kafkalog._face.writer import Writer as Writer
    from kafkalog.config import LogConfig as LogConfig
    from kafkalog.engine.cleaner.passes import CompactionStats as CompactionStats
    from kafkalog.engine.format.names import TopicPartition as TopicPartition
    from kafkalog.engine.host.log_dirs import list_partitions
    from kafkalog.engine.host.log_manager import LogManager as LogManager
    from kafkalog.engine.host.settings import ManagerSettings as ManagerSettings
    from kafkalog.engine.remote.remote_log_manager import RemoteLogManagerConfig as RemoteLogManagerConfig
    from kafkalog.errors import KafkalogError as KafkalogError
    from kafkalog.group_reader import GroupReader as GroupReader
    from kafkalog.partition import Partition as Partition
    from kafkalog.producer import Producer as Producer
    from kafkalog.queue import Queue as Queue
    from kafkalog.queue import QueueRecord as QueueRecord
    from kafkalog.reader import StoreReader as StoreReader
    from kafkalog.records import Record as Record
    from kafkalog.records import to_confluent
    from kafkalog.remote import RemoteStorage as RemoteStorage
    from kafkalog.store import Store as Store
    from kafkalog.store import open_store as open
    from kafkalog.toolbox.verify import verify
    from kafkalog.topic import RecordMetadata as RecordMetadata
    from kafkalog.topic import Topic as Topic
    from kafkalog.transaction import Transaction as Transaction

_MODULES = (
    "config", "decoding", "engine", "errors", "group_reader", "metrics", "partition", "producer", "queue", "reader",
    "records", "remote", "report", "server", "spark", "store", "toolbox", "topic", "transaction",
)  # fmt: skip
# Modules of earlier releases that the next one removes: `_renamed.MODULES` says where each is now.
_MOVED = ("cleaner", "coordinator", "files", "format", "log", "manager", "segment", "topics")
_HOME = {
    "ChunkReader": "kafkalog._face.chunk_reader",
    "CompactionStats": "kafkalog.engine.cleaner.passes",
    "Decoding": "kafkalog._face.decoded",
    "Filters": "kafkalog._face.selection",
    "GroupReader": "kafkalog.group_reader",
    "KafkalogError": "kafkalog.errors",
    "LogConfig": "kafkalog.config",
    "LogManager": "kafkalog.engine.host.log_manager",
    "ManagerSettings": "kafkalog.engine.host.settings",
    "MessageSetSend": "kafkalog._face.chunk_reader",
    "MultiMessageSetSend": "kafkalog._face.chunk_reader",
    "Partition": "kafkalog.partition",
    "Producer": "kafkalog.producer",
    "Queue": "kafkalog.queue",
    "QueueRecord": "kafkalog.queue",
    "Reading": "kafkalog._face.readable",
    "Record": "kafkalog.records",
    "RemoteLogManagerConfig": "kafkalog.engine.remote.remote_log_manager",
    "RemoteStorage": "kafkalog.remote",
    "RecordMetadata": "kafkalog.topic",
    "Store": "kafkalog.store",
    "StoreReader": "kafkalog.reader",
    "Topic": "kafkalog.topic",
    "TopicPartition": "kafkalog.engine.format.names",
    "Transaction": "kafkalog.transaction",
    "Writer": "kafkalog._face.writer",
    "list_partitions": "kafkalog.engine.host.log_dirs",
    "open_log": "kafkalog._face.opening",
    "to_confluent": "kafkalog.records",
    "open": "kafkalog.store",
    "verify": "kafkalog.toolbox.verify",
}
_THERE = {"open": "open_store"}  # names that differ in their modules
# Names of earlier releases that the next one removes: where each is now, and what to use instead.
_OLD = {
    "Log": ("kafkalog.partition", "Partition", "kafkalog.Partition"),
    "PartitionView": (
        "kafkalog.engine.log.view", "PartitionView",
        "kafkalog.open_log(..., read_only=True), which returns a Partition, or kafkalog.engine.log.view.PartitionView, "
        "which latest() and history() of the toolbox accept",
    ),
}  # fmt: skip


def _asks_for_import() -> bool:
    """Returns whether the import system reads the name; it checks whether the name exists, then reads it again."""
    import sys

    return sys._getframe(2).f_code.co_filename == "<frozen importlib._bootstrap>"


if not TYPE_CHECKING:  # a type checker believes that a module with a __getattr__ has every name

    def __getattr__(name):
        import importlib

        if name == "__all__":
            # pydoc prints every listed object in full, which would be ten screens after the text above.
            import sys

            asks = sys._getframe(1).f_code.co_filename.replace("\\", "/")
            return [] if asks.endswith("/pydoc.py") else list(_DOORS)
        if name in _MODULES:
            return importlib.import_module(f"kafkalog.{name}")
        if name in _OLD:
            from kafkalog._renamed import warn

            home, there, instead = _OLD[name]
            if not _asks_for_import():
                warn(f"kafkalog.{name}", instead)
            return getattr(importlib.import_module(home), there)
        home = _HOME.get(name)
        if home is None:
            if name in _MOVED and not _asks_for_import():  # an import finds the module without this
                return importlib.import_module(f"kafkalog.{name}")
            raise AttributeError(f"module 'kafkalog' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), _THERE.get(name, name))
        globals()[name] = value
        return value


class _MovedModules:
    """Finds modules of earlier releases; it is the last finder that `import` asks."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        package, _, rest = name.partition(".")
        if package != "kafkalog" or rest.partition(".")[0] not in _MOVED:
            return None
        from kafkalog._renamed import spec_of

        return spec_of(name)


def _find_moved_modules() -> None:
    import sys

    others = [each for each in sys.meta_path if getattr(each, "__qualname__", "") != "_MovedModules"]  # not twice
    sys.meta_path[:] = [*others, _MovedModules]


_find_moved_modules()


def __dir__() -> list[str]:
    """Returns the public names for completion and help(), whether they are loaded or not."""
    of_modules = (name for name, value in globals().items() if name.startswith("__") and not callable(value))
    return sorted({*of_modules, *_HOME, *_MODULES})
