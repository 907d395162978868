"""A REPL and a notebook show one short line, a small table, no markup from a record, and no error."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import _shown
from kafkalog.config import LogConfig
from kafkalog.errors import IllegalStateException
from kafkalog.records import Record
from tests.file_doubles import UnsyncedFiles

FAST = UnsyncedFiles()
SCRIPT = "<script>alert('x')</script>&\"<img src=x onerror=y>"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        assert "src" not in str(attrs)
        assert "on" not in [name[:2] for name, _ in attrs]  # type: ignore[attr-defined]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(thing: Any) -> str:
    """Its line."""
    line = repr(thing)
    assert "\n" not in line
    assert len(line) < 500, line
    assert " object at 0x" not in line
    return line


def page(thing: Any) -> str:
    """Its table, as text."""
    text = thing._repr_html_()
    assert isinstance(text, str)
    assert "http" not in text
    for style in re.findall(r'style="([^"]*)"', text):  # the notebook's theme decides on colours
        assert {each.strip() for each in style.split(";") if "color" in each or "background" in each} <= {
            "background:transparent",
            "color:inherit",
        }
    found = Tags(text)
    assert found.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "div"}
    return " | ".join(found.texts)


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "None"),
        (b"", "''"),
        (b"customer-7", "'customer-7'"),
        ("größe €".encode(), "'größe €'"),
        (b"\xff\xfe", r"b'\xff\xfe'"),
        (b"a\nb\x00", r"'a\nb\x00'"),
        (b"x" * 60, "'" + "x" * 60 + "'"),
        (b"x" * 61, "'" + "x" * 60 + "...' (61 bytes)"),
        (b"x" * 1_000_000, "'" + "x" * 60 + "...' (1,000,000 bytes)"),
        ("€".encode() * 61, "'" + "€" * 60 + "...' (183 bytes)"),
        (b"\xe2\x82", r"b'\xe2\x82'"),  # truncated in the middle of a character
        ("\u202eevil".encode(), r"'\u202eevil'"),  # reverses the direction of the line
        (b"\xff" * 100, "b'" + r"\xff" * 15 + "...' (100 bytes)"),
        (5, "5"),
        ("text", "'text'"),
    ],
)
def test_keys_and_values(data: Any, told: str) -> None:
    assert _shown.octets(data) == told
    assert len(_shown.octets(data)) < 120


def test_what_cannot_be_shown() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError

    assert _shown.octets(Bad()) == "<Bad>"
    assert "<Bad>" in _shown.record_row(Record("t", 0, -1, 5, -1, 0, Bad(), None, ()))[2]  # type: ignore[arg-type]
    for time, told in ((-1, "no time"), (0, "1970-01-01T00:00:00.000Z"), (1 << 62, f"@{1 << 62}"), ("x", "no time")):
        assert _shown.moment(time) == told
    for fields in ((Bad(), Bad(), 0, Bad(), Bad(), 0, b"", b"", 5), (None,) * 9):
        record = Record(*fields)  # type: ignore[arg-type]
        assert repr(record).startswith("<Record")
        assert record._repr_html_() is None or "<table" in str(record._repr_html_())


def test_a_table_is_cut_and_escaped() -> None:
    text = _shown.table(SCRIPT, [SCRIPT], ([SCRIPT] for _ in range(10_000)), SCRIPT)
    assert "<script" not in text
    assert "<img" not in text
    assert len(text) < 20_000
    assert "the first 50 are shown" in text


# --- objects ---------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """One of each kind, of a store with hostile records."""
    with ExitStack() as stack:
        store = stack.enter_context(kafkalog.open(tmp_path / "store", files=FAST))
        topic = store.create_topic("orders", 2)
        topic.append(SCRIPT.encode(), key=SCRIPT.encode(), headers=[(SCRIPT, SCRIPT.encode())], partition=0)
        topic.append(b"\xff\xfe" * 500_000, key=b"\xff", partition=0)
        reader = stack.enter_context(store.reader("billing", topics=["orders"]))
        producer = stack.enter_context(store.producer(linger_ms=60_000))
        future = producer.send("orders", b"x", partition=1)
        records = reader.poll()
        reader.commit(metadata=SCRIPT)
        txn = store.transaction("job")
        log = topic.partition(0)
        chunks = log.reader(0)
        yield {
            "store": store, "topic": topic, "log": log, "reader": reader, "producer": producer, "future": future,
            "records": records, "record": records[0], "large": records[1], "cursors": store.cursors(),
            "cursor": store.cursors()[0], "txn": txn, "of_log": log.transaction("t"), "writer": topic.writer("w"),
            "chunks": chunks, "chunk": next(iter(log.reader(0))), "info": topic.info, "manager": store.manager,
            "look": stack.enter_context(kafkalog.open(tmp_path / "store", read_only=True)),
            "described": topic.describe(), "of_partition": log.describe(), "of_store": store.describe(sample_rows=1),
            "settings": kafkalog.ManagerSettings(), "config": LogConfig.from_props({"retention.ms": "5"}),
            "tiering": kafkalog.RemoteLogManagerConfig(), "tier": kafkalog.RemoteStorage("s3://bucket/x"),
            "metrics": kafkalog.metrics.MetricsRegistry(), "metadata": topic.append(b"y", partition=0),
        }  # fmt: skip


def test_lines(world: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "store"
    told = {name: shown(each) for name, each in world.items() if name != "records"}
    assert told["store"] == f"<Store of {place}, open: 1 topic>"
    assert told["topic"] == "<Topic orders: 2 partitions, up to 3 records>"
    assert told["log"].startswith("<Partition orders-0 [0, ")
    assert told["log"].endswith(f" of {str(place)!r}, open>")
    assert told["reader"] == f"<StoreReader 'billing' of {place}, open, at orders-0@2, orders-1@0>"
    assert told["future"] == "<RecordFuture of orders-1, on its way>"
    assert told["cursor"] == "<CursorInfo 'billing', state Empty: 2 partitions, lag 0>"
    assert told["record"].startswith("<Record orders-0@0 20")
    assert "key '<script>alert(" in told["record"]
    assert told["record"].endswith(", 1 header>")
    assert "key b'\\xff', value b'" in told["large"]
    assert told["large"].endswith("...' (1,000,000 bytes)>")
    assert told["config"] == "LogConfig({'retention.ms': '5'})"
    assert told["settings"] == "ManagerSettings()"
    assert repr(kafkalog.ManagerSettings(maintenance=False)) == "ManagerSettings(maintenance=False)"
    assert told["writer"] == "<Writer 'w' of orders-0, open>"
    world["producer"].flush()
    assert shown(world["future"]) == "<RecordFuture of orders-1, offset 0>"


def test_tables(world: dict[str, Any]) -> None:
    assert "orders | 2 | up to " in page(world["store"])
    assert "orders-1 | 0 | " in page(world["topic"])
    assert "orders-0 | 0 | " in page(world["log"])
    assert "<script>alert" in page(world["record"])
    assert "1,000,000 bytes" in page(world["records"])
    assert "billing | Empty | 2 | 0" in page(world["cursors"])
    assert "<script>" in page(world["cursor"])
    assert "position | offsets" in page(world["chunk"])
    assert "orders | 2" in page(world["look"])
    assert "orders-0 | 2 | " in page(world["reader"])
    assert page(world["reader"]).startswith("StoreReader 'billing' of ")
    assert "linger_ms | 60000" in page(world["producer"])
    assert "aborted after | " in page(world["txn"])
    assert "aborted after | " in page(world["of_log"])
    assert "producer id | " in page(world["writer"])
    assert "isolation | 'read_uncommitted'" in page(world["chunks"])
    assert "orders | partitions | 2 | topic id | " in page(world["info"])
    with world["txn"] as txn:
        txn.append("orders", b"x", partition=1)
        assert "has written to | 'orders-1'" in page(txn)
    for name in ("described", "of_partition", "of_store"):
        assert "<script>alert" in page(world[name]), name


def test_every_object_that_users_hold_has_a_table(world: dict[str, Any]) -> None:
    without = {name for name, each in world.items() if not hasattr(type(each), "_repr_html_")}
    assert without == {
        "future",
        "manager",
        "settings",
        "config",
        "tiering",
        "tier",
        "metrics",
        "metadata",
    }  # a line is all
    for name in world.keys() - without:
        assert "<table" in (world[name]._repr_html_() or ""), name


def test_a_table_of_transactions(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, files=FAST) as store:
        store.create_topic("orders", 6)
        assert page(store.transactions()).startswith("0 transactional ids")
        with store.transaction(SCRIPT) as txn:
            for number in range(6):
                txn.append("orders", b"v", partition=number)
            assert "orders-0, orders-1, orders-2, orders-3, ..." in page(store.transactions())
        told = page(store.transactions())
        assert "<script>alert" in told
        assert "CompleteCommit" in told
        assert page(store.transactions()[0]) == told


def test_of_what_is_closed_deleted_and_forked(world: dict[str, Any]) -> None:
    store = world["store"]
    store.create_topic("gone")
    gone, of_gone = store.topic("gone"), store.topic("gone").partition(0)
    store.delete_topic("gone")
    assert shown(gone) == "<Topic gone, deleted>"
    assert gone._repr_html_() is None
    assert shown(of_gone).startswith("<Partition gone-0")
    assert of_gone._repr_html_() is None
    store.close()
    assert shown(store).endswith(", closed>")
    assert shown(world["topic"]) == "<Topic orders, closed>"
    assert shown(world["log"]).endswith(", closed>")
    for name in ("store", "topic", "log"):
        assert world[name]._repr_html_() is None, name
    for name in ("reader", "producer", "writer"):
        assert "closed" in shown(world[name]), name
    for each in world.values():
        repr(each)
        getattr(each, "_repr_html_", str)()
    assert "1,000,000 bytes" in page(world["records"])  # the read records stay


def test_in_a_forked_child(world: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            told = [repr(each) for each in world.values()]
            assert told[0].endswith("closed: of another process>"), told[0]
            assert world["store"]._repr_html_() is None
            assert world["topic"]._repr_html_() is None
            for each in world.values():
                getattr(each, "_repr_html_", str)()
            assert "on its way" in repr(world["future"])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_line_waits_for_no_lock(world: dict[str, Any]) -> None:
    """All that a store has is held by another thread."""
    store, log = world["store"], world["store"].manager.get_log("orders-0")
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with store._home.catalog.changing, log.lock:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    told: list[str] = []
    asks = threading.Thread(target=lambda: told.extend(repr(each) for each in world.values()), daemon=True)
    asks.start()
    asks.join(10)
    over.set()
    thread.join()
    assert len(told) == len(world)


def test_damage_shows_no_error(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"x")
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-3])
    with kafkalog.open(tmp_path, read_only=True) as look:
        topic = look.topic("t")
        partition = topic.partition(0)
        assert "t-0" in page(topic)
        assert shown(topic)
        assert shown(partition)
        path.unlink()
        (tmp_path / "t-0" / "00000000000000000000.index").unlink()
        for each in (look, topic, partition):
            assert shown(each)
            each._repr_html_()
        assert topic.describe().records == 0


def test_a_reader_says_where_it_stands(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 6)
        for number in range(6):
            topic.partition(number).append_many([b"v"] * 3)
        reader = store.reader(topics=["orders"])
        start = f"<StoreReader of {tmp_path}, open, at "
        assert repr(reader) == f"{start}orders-0@0, orders-1@0, orders-2@0, orders-3@0 and 2 more>"
        for record in reader:
            assert f"orders-{record.partition}@{record.offset + 1}" in repr(reader) or record.partition > 3
            assert reader.position((record.topic, record.partition)) == record.offset + 1
        assert "orders-3@3 and 2 more" in repr(reader)
        one = store.reader("billing", partitions=["orders-5"], start="latest")
    assert repr(one) == f"<StoreReader 'billing' of {tmp_path}, closed, at orders-5@3>"
    with pytest.raises(IllegalStateException, match="the store of"):
        one.poll()


def test_a_question_says_what_is_asked() -> None:
    from kafkalog._face.selection import Selection
    from kafkalog._face.window import Near, Window

    assert repr(Selection()) == "Selection()"
    assert repr(Selection(3, 9, key=b"k")) == "Selection(start=3, end=9, key=b'k')"
    asked = Selection("2026-03-01", end_time=1_772_409_600_000, isolation="read_committed", on_damage="skip")
    assert repr(asked) == (
        "Selection(start='2026-03-01T00:00:00.000Z', end='2026-03-02T00:00:00.000Z', isolation='read_committed', "
        "on_damage='skip')"
    )
    assert repr(Selection(1).within(Window(Near(4)))) == "Selection(start=Near(offset=4))"
    assert len(repr(Selection(key=[b"x" * 1000] * 100, key_prefix=SCRIPT))) < 300
    assert repr(Selection(on_damage=print)).startswith("Selection(on_damage=<built-in")
