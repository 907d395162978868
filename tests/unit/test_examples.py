"""Every example of docstrings runs in an empty directory; tests/pages runs those of pages.

An example may use objects that the text before it introduces: `GIVEN` has them.  Examples for Spark run in
`tests/spark`.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import socket
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kafkalog
from kafkalog._face.store_handles import _PLACES
from kafkalog._native.state.blocks import Closing

# Spark's and the command line's run in separate tests.
ELSEWHERE = ("kafkalog.spark", "kafkalog.cli", "kafkalog.__main__", "kafkalog._native", "kafkalog.engine")
# Parts of the server, whose lines show how the next part uses them.
ELSEWHERE += tuple(
    f"kafkalog.server.{name}" for name in ("connection", "dispatcher", "hosted", "security.", "transport")
)
MODULES = [
    each.name for each in pkgutil.walk_packages(kafkalog.__path__, "kafkalog.") if not each.name.startswith(ELSEWHERE)
]


class Example(NamedTuple):
    place: str
    code: str

    def __str__(self) -> str:
        return self.place


def docstrings(module: Any) -> Iterator[tuple[str, str]]:
    yield module.__name__, module.__doc__ or ""
    for name, thing in vars(module).items():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        yield f"{module.__name__}.{name}", inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            for inner, member in vars(thing).items():
                yield f"{module.__name__}.{name}.{inner}", inspect.getdoc(member) or "" if callable(member) else ""


def of_docstrings() -> Iterator[Example]:
    """Blocks that are indented by four columns and are Python."""
    for name in ["kafkalog", *MODULES]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # warnings warnings of modules that moved
            module = importlib.import_module(name)
        for place, text in docstrings(module):
            for found in re.finditer(r"(?:^|\n\n)((?:    .*\n?|\n(?=    ))+)", text):
                code = textwrap.dedent(found[1])
                try:
                    tree = ast.parse(code)
                except SyntaxError:
                    continue
                if any(isinstance(node, (ast.Call, ast.With)) for node in ast.walk(tree)):
                    yield Example(place, code)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


WIRE = """
import kafkalog, pyarrow as pa
topic = kafkalog.open("data").create_topic("orders")
topic.append(b"\\0\\0\\0\\0\\1\\x0e")  # schema 1, and 7 as Avro writes it
"""
BACKUP = """
import kafkalog, kafkalog.toolbox.backup
kafkalog.open_log("shop", "orders-0").close()
kafkalog.toolbox.backup.backup("shop", "backups/2026-11-26")
"""

# Objects that an example has from the text before it, as code.
GIVEN = {
    "kafkalog.toolbox.abort_transactions.plan_abort": """
import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.abort_transactions import Aimed, abort, plan_abort
from tests.client_transaction import client_transaction
with kafkalog.open_log("kafka-logs", "orders-0") as log:
    log.append_many([b"before"] * 38)
    client_transaction(log, "lost").append(b"open")
""",
    "kafkalog.transaction": """
import kafkalog
store = kafkalog.open("data")
for name in ("orders", "payments"):
    store.create_topic(name)
reader = store.reader("biller", topics=["orders"])
""",
    "kafkalog.decoding": WIRE + "decode = lambda schema_id, payloads: payloads",
    "kafkalog.decoding.wire_format": WIRE
    + """
import io, json, fastavro
from kafkalog.decoding import wire_format
from types import SimpleNamespace
reader = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
columns = pa.schema({"id": pa.int64()})
registry = SimpleNamespace(get_schema=lambda schema_id: SimpleNamespace(schema_str=json.dumps(reader)))
""",
    "kafkalog.toolbox.compare.compare": """
import kafkalog
for place in ("shop", "backups/2026-11-27/log-dir-1"):
    with kafkalog.open_log(place, "orders-0") as log:
        log.append(b"{}")
""",
    "kafkalog._face.value_columns": """
import pyarrow as pa
from kafkalog._face import value_columns
sample_batch = pa.record_batch({"value": pa.array([b'{"id": 1, "paid": true}'])})
batches = [sample_batch]
""",
    "kafkalog.toolbox.backup.backup": BACKUP,
    "kafkalog.toolbox.restore.restore": BACKUP + "kafkalog.toolbox.backup.backup('shop', 'backups/2026-11-27')",
    "kafkalog": "import kafkalog",
    "kafkalog._face.store_handles": "import kafkalog",
    "kafkalog.reader.StoreReader.rewind": """
import kafkalog
store = kafkalog.open("data")
for name in ("orders", "payments"):
    store.create_topic(name).append(b"one")
""",
    "kafkalog.producer": """
import kafkalog
store = kafkalog.open("data")
store.create_topic("orders")
""",
    "kafkalog.store": "import kafkalog",
    "kafkalog.errors.DiskFull": """
import kafkalog
topic = kafkalog.open("data").create_topic("orders")
""",
    "kafkalog.metrics": "import kafkalog, prometheus_client",
    "kafkalog.queue": """
import kafkalog
send = print
with kafkalog.open("data") as store:
    store.create_topic("outbox").append(b"one")
""",
    "kafkalog.reader": "import kafkalog",
    "kafkalog.group_reader": """
import kafkalog
from functools import cache
from types import SimpleNamespace
store = kafkalog.open("data")
store.create_topic("orders", partitions=4).append(b"one")
run = cache(cache)  # the work runs once, in this thread
threading = SimpleNamespace(Thread=lambda target: SimpleNamespace(start=run(target)))
""",
    "kafkalog.server": "import kafkalog",
    "kafkalog.server.server": "import kafkalog",
    "kafkalog.server.settings": "from kafkalog.server import ServerSettings",
    "kafkalog.server.trial": """
from kafkalog.server import TrialServer
folder = "trial"
""",
    "kafkalog._face.producer_ids": """
from kafkalog._face.producer_ids import ProducerIds
from kafkalog.engine.files import OS_FILES
import os
os.mkdir("data")
place, files, known_ids = lambda: ["data"], OS_FILES, lambda: iter(())
""",
    "kafkalog._face.writer": """
import kafkalog
from types import SimpleNamespace
log = kafkalog.open_log("data", "orders-0")
source = SimpleNamespace(lines_from=lambda number: enumerate([b"one", b"two"], number))
""",
}


EXAMPLES = [each for each in of_docstrings() if "spark." not in each.code]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10
    assert sum("kafkalog.open(" in each.code for each in EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_example_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = example.code.replace("9404", str(free_port()))
    space: dict[str, Any] = {}
    exec(GIVEN.get(example.place.partition(":")[0], ""), space)
    try:
        exec(compile(code, example.place, "exec"), space)
    finally:
        for each in [*space.values()]:
            if isinstance(each, Closing):
                each.close()
        space.clear()
        if any(each.store() is not None for each in [*_PLACES.values()]):
            gc.collect()  # one that no name held any more: its warning is not the next test's
