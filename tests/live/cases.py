"""The operations that are interrupted: those of the public API, and those of the UnifiedLog below it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.log.types import LogStartOffsetIncrementReason
from kafkalog.errors import RecordTooLargeException
from tests.live.interrupts import NEIGHBOUR, NOW_MS, PARTITION, Case, World, value_of
from tests.live.oracle import FAST, append_one, look

TRANSACTIONAL_ID = "job"
HAS_DUCKDB = importlib.util.find_spec("duckdb") is not None
HAS_ALTAIR = importlib.util.find_spec("altair") is not None


def batch_of(idents: list[bytes], *, base_offset: int = 0, epoch: int = -1) -> bytes:
    """One batch as a producer, or a leader, would send it."""
    builder = MemoryRecordsBuilder(base_offset=base_offset, partition_leader_epoch=epoch)
    for ident in idents:
        builder.append(NOW_MS, None, value_of(ident), ())
    return bytes(builder.build())


# --- preparations --------------------------------------------------------------------------------------


def some(world: World) -> None:
    """Three segments."""
    for _ in range(10):
        world.append(2, filler=100)


def one(world: World) -> None:
    world.append(1)


def nearly_full(world: World) -> None:
    """The next append of more than a few bytes rolls."""
    segments = world.engine.number_of_segments
    while world.engine.number_of_segments == segments:
        world.append(2, filler=200)
    while world.engine.active_segment.size < 1500:
        world.append(1, filler=60)


def with_transactions(world: World) -> None:
    """A committed one, an aborted one, an idempotent writer's records, plain ones."""
    world.append(2)
    for number, end in ((1, "commit"), (2, "abort")):
        transaction = world.opened.transaction(TRANSACTIONAL_ID)
        transaction.begin()
        world.append_in(transaction, number, 2)
        with world.oracle.ending(number, end):
            getattr(transaction, end)()
    write_numbered(world)
    write_numbered(world)
    world.append(2)


def left_open(world: World) -> None:
    """A transaction that its process left open."""
    with_transactions(world)
    transaction = world.opened.transaction("other")
    transaction.begin()
    world.append_in(transaction, 7, 2)
    world.oracle.ends[7] = "aborted"  # the next open aborts it


def with_neighbour(world: World) -> None:
    from kafkalog import open_log

    some(world)
    with open_log(
        world.path,
        NEIGHBOUR,
        config=world.config,
        files=FAST,
        scheduler=world.scheduler,
    ) as other:
        other.append(b"8.1")


# --- appends -------------------------------------------------------------------------------------------


def append_columns(world: World) -> None:
    idents = world.idents(8)
    unit = world.oracle.attempt(*idents)
    world.oracle.acknowledge(unit, world.opened.append_columns([value_of(ident) for ident in idents]))


def append_refused(world: World) -> None:
    """Several batches, the last of which is too large: none of them exists afterwards."""
    values = [value_of(ident, 300) for ident in world.idents(8)]
    with contextlib.suppress(RecordTooLargeException):
        world.opened.append_many([*values, bytes(2000)])
        raise AssertionError("it was not refused")
    with contextlib.suppress(RecordTooLargeException):
        world.opened.append_columns([*values, bytes(2000)])
        raise AssertionError("it was not refused")


def append_ready(world: World) -> None:
    idents = world.idents(3)
    unit = world.oracle.attempt(*idents)
    world.oracle.acknowledge(unit, world.opened.append_batches(batch_of(idents)))


def append_follower(world: World) -> None:
    idents = world.idents(3)
    unit = world.oracle.attempt(*idents)
    end = world.engine.log_end_offset
    info = world.engine.append_as_follower(batch_of(idents, base_offset=end, epoch=3), 3)
    world.oracle.acknowledge(unit, range(end, info.last_offset + 1))


def follow(world: World) -> None:
    """A follower's high watermark is its leader's word."""
    world.engine.maybe_update_high_watermark(world.engine.log_end_offset)


def write_numbered(world: World) -> None:
    """One record of an idempotent writer; the same one again when it was interrupted."""
    pending = world.extra.get("pending")
    writer = world.opened.writer("importer")
    if pending is None:
        ident = world.idents()[0]
        pending = world.extra["pending"] = (world.oracle.attempt(ident), writer.next_sequence)
    unit, sequence = pending
    offset = writer.append(value_of(unit.names[0]), sequence=sequence)
    if offset is None:
        offset = next(record.offset for record in world.opened if record.value == value_of(unit.names[0]))
    world.oracle.acknowledge(unit, offset)
    assert writer.next_sequence == sequence + 1
    del world.extra["pending"]


def write_again(world: World) -> None:
    """Repeats the interrupted call: the log must have its records once."""
    if "pending" in world.extra:
        write_numbered(world)
    write_numbered(world)


# --- transactions --------------------------------------------------------------------------------------


def begin(world: World) -> None:
    world.transaction = world.opened.transaction(TRANSACTIONAL_ID)
    world.transaction.begin()


def begin_and_append(world: World) -> None:
    begin(world)
    append_in_transaction(world)


def append_in_transaction(world: World) -> None:
    assert world.transaction is not None
    world.append_in(world.transaction, 5, 2)


def end_with(how: str) -> Callable[[World], None]:
    def end(world: World) -> None:
        assert world.transaction is not None
        with world.oracle.ending(5, how):
            getattr(world.transaction, how)()

    return end


def end_again(how: str) -> Callable[[World], None]:
    def end(world: World) -> None:
        if world.transaction is not None and world.transaction.active:
            end_with(how)(world)
        assert world.oracle.ends.get(5) in (how, {"commit": "committed", "abort": "aborted"}[how])
        seen = look(world.opened)
        world.oracle.judge(seen)
        again(world)

    return end


def again(world: World) -> None:
    """A whole transaction under the same id."""
    with world.opened.transaction(TRANSACTIONAL_ID) as transaction:
        number = 100 + len(world.oracle.ends)
        world.append_in(transaction, number)
        world.oracle.ends[number] = "commit"
    world.oracle.ends[number] = "committed"


def abort_if_begun(world: World) -> None:
    if world.transaction is not None and world.transaction.active:
        end_with("abort")(world)
    else:
        world.oracle.ends[5] = "abort"
    again(world)


def block(world: World) -> None:
    """The whole block, as users write it."""
    world.oracle.ends[5] = "commit"
    with world.opened.transaction(TRANSACTIONAL_ID) as transaction:
        world.append_in(transaction, 5, 2)
        world.append_in(transaction, 5, 1)
    world.oracle.ends[5] = "committed"


# --- cuts ----------------------------------------------------------------------------------------------


def truncate(offset: int) -> Callable[[World], None]:
    def cut(world: World) -> None:
        with world.oracle.cutting("truncate", offset):
            world.opened.truncate(offset)

    return cut


def abort_one(world: World) -> None:
    number = 200 + len(world.oracle.ends)
    with contextlib.suppress(LookupError), world.opened.transaction(TRANSACTIONAL_ID) as transaction:
        world.append_in(transaction, number)
        world.oracle.ends[number] = "aborted"
        raise LookupError("ends it")


def aborted(world: World) -> None:
    """In this process: a transaction index that was opened again has forgotten where its last record ends."""
    abort_one(world)
    world.extra["end"] = world.opened.end_offset
    abort_one(world)


def truncate_aborted(world: World) -> None:
    truncate(world.extra["end"])(world)


def truncate_fully(world: World) -> None:
    with world.oracle.cutting("truncate", 0):
        world.engine.truncate_fully_and_start_at(world.engine.log_end_offset)


def delete_records(world: World) -> None:
    with world.oracle.cutting("delete", 9):
        assert world.opened.delete_records(9) == 9


def late(world: World) -> None:
    """The clock has gone on: everything is older than the retention."""
    world.clock.advance(10 * 86_400_000)


def later_and_a_new_one(world: World) -> None:
    late(world)
    world.append(1)


def away(world: World) -> None:
    """No file of the log is open: the next operation opens its own again."""
    OS_FILES.pool.trim(0)


def begin_append_and_away(world: World) -> None:
    begin_and_append(world)
    away(world)


def append_and_away(world: World) -> None:
    world.append(2)
    away(world)


def expect_and_away(world: World) -> None:
    expect(world)
    away(world)


def retain(world: World) -> None:
    world.opened.delete_old_segments()


# --- life ----------------------------------------------------------------------------------------------


def open_it(world: World) -> None:
    world.open()


def open_read_only(world: World) -> None:
    world.extra["reader"] = world.log  # stays open
    other = __import__("kafkalog").open_log(world.path, PARTITION, read_only=True)
    world.extra["other"] = other
    other.refresh()
    assert len(list(other)) == len(world.extra["expected"])
    other.close()


def expect(world: World) -> None:
    world.extra["expected"] = look(world.opened).records


def read_again(world: World) -> None:
    other = world.extra.pop("other", None)
    if other is not None:
        other.refresh()
        if not other.closed:
            assert len(list(other)) == len(world.extra["expected"])
        other.close()
    assert look(world.opened).records == world.extra["expected"]


def read_all(world: World) -> None:
    assert len(list(world.opened.records(isolation="read_committed"))) <= len(world.extra["expected"])
    assert world.opened.offset_for_time(NOW_MS) is not None


def keyed(world: World) -> None:
    """Several values of each key, in several segments; one of an aborted transaction."""
    for _ in range(8):
        idents = world.idents(4)
        unit = world.oracle.attempt(*idents)
        records = [(value_of(ident, 100), b"k%d" % number) for number, ident in enumerate(idents)]
        world.oracle.acknowledge(unit, world.opened.append_many(records))
    abort_one(world)


def latest(world: World) -> None:
    table = world.opened.latest(batch_rows=3).read_all()
    assert table["key"].to_pylist() == [b"k%d" % number for number in range(4)]
    assert table["value"].to_pylist() == [record.value for record in world.opened.records(28, 32)]


def read_filtered(world: World) -> None:
    """By key, condition, pattern, time: as records and as Arrow."""
    log = world.opened
    wanted = [record for record in log.records() if record.key == b"k2"]
    assert list(log.records(key="k2", where="value is not null", grep=r"\.", start_time=0)) == wanted
    table = log.read_arrow(key_prefix="k2", columns=["offset", "value"], on_damage="skip")
    assert table["offset"].to_pylist() == [record.offset for record in wanted]
    assert log.read_arrow(key="k2", last=1, values="text")["offset"].to_pylist() == [wanted[-1].offset]


def latest_filtered(world: World) -> None:
    (row,) = world.opened.latest(key="k2", columns=["offset", "key"]).read_all().to_pylist()
    assert row == {"offset": 30, "key": b"k2"}


def streamed(world: World) -> None:
    """As an Arrow consumer takes it."""
    assert world.opened.arrow_reader().read_all().num_rows == len(world.extra["expected"])


def into_duckdb(world: World) -> None:
    """A table exists whole, or not at all."""
    import duckdb

    with duckdb.connect() as connection:
        try:
            world.opened.to_duckdb(connection, "t")
        finally:
            there = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 't'").fetchone()
            assert there is not None
            if there[0]:
                rows = connection.execute("SELECT count(*) FROM t").fetchone()
                assert rows == (len(world.extra["expected"]),)


def describe(world: World) -> None:
    assert world.opened.describe(sample_rows=2, exact=True).end_offset == world.opened.end_offset


def plot(world: World) -> None:
    assert world.opened.plot("segments").to_dict()["datasets"]["segments"]


def await_offsets(world: World) -> None:
    end = world.opened.end_offset
    assert world.opened.await_offset(end - 1, timeout_ms=10_000)
    assert not world.opened.await_offset(end, isolation="read_committed", timeout_ms=2)


def close(world: World) -> None:
    world.opened.close()


def delete(world: World) -> None:
    world.engine.delete()


def delete_finish(world: World) -> None:
    """If deleted again, the directory no longer exists, and the name can be reused."""
    folder = os.path.join(world.path, PARTITION)
    if os.path.exists(folder):
        world.engine.delete()
    assert not os.path.exists(folder)
    log = world.opened
    try:
        log.close()
    except Exception:  # the files no longer exist: a close has nothing to flush, and may say so
        assert log.closed
    world.oracle.units.clear()
    world.oracle.ends.clear()
    again = world.open()
    assert again.end_offset == 0
    append_one(again, world.oracle)
    world.oracle.judge(look(again))
    again.close()


RENAMED = "t-7"


def rename(world: World) -> None:
    world.engine.rename_dir(RENAMED, True)


def rename_finish(world: World) -> None:
    """The log knows where it is; a second try brings it to the new name."""
    engine = world.engine
    engine.rename_dir(RENAMED, True)
    assert engine.dir == os.path.join(os.path.realpath(world.path), RENAMED)
    assert os.listdir(world.path).count(RENAMED) == 1
    world.oracle.judge(look(world.opened))
    append_one(world.opened, world.oracle)
    world.oracle.judge(look(world.opened))
    engine.flush(True)
    engine.close()


def engine_call(name: str, *args: Any) -> Callable[[World], None]:
    def call(world: World) -> None:
        getattr(world.engine, name)(*args)

    return call


def update_config(world: World) -> None:
    from kafkalog.config import LogConfig

    world.engine.update_config(LogConfig.from_props(None, {**world.config, "max.message.bytes": "1200"}))


def assign_epoch(world: World) -> None:
    world.engine.assign_epoch_start_offset(4, world.engine.log_end_offset)


def raise_watermark(world: World) -> None:
    world.engine.maybe_increment_high_watermark(world.engine.log_end_offset)


def raise_start(world: World) -> None:
    """The caller or the close writes the checkpoint: a kill undoes it."""
    world.engine.maybe_increment_log_start_offset(7, LogStartOffsetIncrementReason.CLIENT_RECORD_DELETION)


def load_producers(world: World) -> None:
    world.engine.load_producer_state(world.engine.log_end_offset)


LZ4 = {"compression.type": "lz4"}
NOW_GONE = {"file.delete.delay.ms": "0"}
KEPT = {"retention.ms": str(86_400_000)}
FSYNC = {"durability": "fsync"}

CASES = [
    Case("append", some, lambda world: world.append(1)),
    Case("append-first", lambda world: None, lambda world: world.append(1)),
    Case("append-many", some, lambda world: world.append(6)),
    Case("append-batches", some, lambda world: world.append(40, filler=80, whole=False)),
    Case("append-columns", some, append_columns),
    Case("append-refused", some, append_refused),
    Case("append-ready", some, append_ready),
    Case("append-lz4", some, lambda world: world.append(6), config=LZ4),
    Case("append-recompressed", some, append_ready, config=LZ4),
    Case("append-log-time", some, append_ready, config={"message.timestamp.type": "LogAppendTime"}),
    Case("append-fsync", some, lambda world: world.append(2), options=FSYNC),
    Case("append-rolls", nearly_full, lambda world: world.append(3, filler=400)),
    Case("append-rolls-fsync", nearly_full, lambda world: world.append(3, filler=400), options=FSYNC),
    Case("append-away", some, lambda world: world.append(1), before=away),
    Case("append-rolls-away", nearly_full, lambda world: world.append(3, filler=400), before=away),
    Case("append-flush-messages", some, lambda world: world.append(2), config={"flush.messages": "1"}),
    Case("append-follower", some, append_follower, after=follow),
    Case("append-follower-rolls", nearly_full, append_follower, after=follow),
    Case("append-idempotent", with_transactions, write_numbered, after=write_again),
    Case("append-idempotent-first", some, write_numbered, after=write_again),
    Case("append-transactional", with_transactions, append_in_transaction, before=begin, after=abort_if_begun),
    Case("append-transactional-more", some, append_in_transaction, before=begin_and_append, after=abort_if_begun),
    Case("begin", with_transactions, begin, after=abort_if_begun),
    Case("commit", with_transactions, end_with("commit"), before=begin_and_append, after=end_again("commit")),
    Case("commit-fsync", some, end_with("commit"), before=begin_and_append, after=end_again("commit"), options=FSYNC),
    Case("abort", with_transactions, end_with("abort"), before=begin_and_append, after=end_again("abort")),
    Case("abort-away", some, end_with("abort"), before=begin_append_and_away, after=end_again("abort")),
    Case("transaction-block", with_transactions, block, after=again),
    Case("truncate", some, truncate(14)),
    Case("truncate-segments", some, truncate(4)),
    Case("truncate-away", some, truncate(4), before=away),
    Case("truncate-transactions", with_transactions, truncate(9)),
    Case("truncate-aborted", some, truncate_aborted, before=aborted, after=abort_one),
    Case("truncate-now", some, truncate(4), config=NOW_GONE),
    Case("truncate-fully", some, truncate_fully),
    Case("delete-records", some, delete_records),
    Case("retention", some, retain, before=late, config=KEPT, retention=True),
    Case("retention-now", some, retain, before=later_and_a_new_one, config={**KEPT, **NOW_GONE}, retention=True),
    Case("retention-size", some, retain, config={"retention.bytes": "1500"}, retention=True),
    Case("roll", with_transactions, engine_call("roll")),
    Case("roll-fsync", some, engine_call("roll"), options=FSYNC),
    Case("roll-empty", one, engine_call("roll"), before=engine_call("roll")),
    Case("flush", some, engine_call("flush", True), before=lambda world: world.append(2)),
    Case("flush-away", some, engine_call("flush", True), before=append_and_away),
    Case("close", some, close, closes=True),
    Case("close-away", some, close, before=append_and_away, closes=True),
    Case("close-written", with_transactions, close, before=lambda world: world.append(2), closes=True),
    Case("close-transaction", some, close, before=begin_and_append, closes=True, after=lambda world: None),
    Case("close-fsync", some, close, before=lambda world: world.append(2), closes=True, options=FSYNC),
    Case("open-new", lambda world: None, open_it, opens=True),
    Case("open-clean", with_transactions, open_it, opens=True),
    Case("open-unclean", with_transactions, open_it, opens=True, clean=False),
    Case("open-left-open", left_open, open_it, opens=True, clean=False),
    Case("open-neighbour", with_neighbour, open_it, opens=True, clean=False, marked=False),
    Case("read", with_transactions, read_all, before=expect, after=read_again),
    Case("latest", keyed, latest, before=expect, after=read_again),
    Case("latest-away", keyed, latest, before=expect_and_away, after=read_again),
    Case("read-filtered", keyed, read_filtered, before=expect, after=read_again),
    Case("latest-filtered", keyed, latest_filtered, before=expect, after=read_again),
    Case("read-stream", keyed, streamed, before=expect, after=read_again),
    *([Case("read-duckdb", keyed, into_duckdb, before=expect, after=read_again)] if HAS_DUCKDB else []),
    Case("describe", keyed, describe, before=expect, after=read_again),
    *([Case("plot", keyed, plot, before=expect, after=read_again)] if HAS_ALTAIR else []),
    Case("read-away", with_transactions, read_all, before=expect_and_away, after=read_again),
    Case("await-offset", with_transactions, await_offsets, before=expect, after=read_again),
    Case("read-only", some, open_read_only, before=expect, after=read_again),
    Case("load-producer-state", with_transactions, load_producers),
    Case("take-producer-snapshot", with_transactions, engine_call("take_producer_snapshot")),
    Case("remove-expired-producers", with_transactions, engine_call("remove_expired_producers", NOW_MS * 2)),
    Case("update-config", some, update_config),
    Case("assign-epoch", some, assign_epoch),
    Case("increment-high-watermark", some, raise_watermark),
    Case("increment-log-start", some, raise_start, retention=True),
    Case("rename-dir", some, rename, finish=rename_finish),
    Case("delete", some, delete, finish=delete_finish),
]

# The same appends once more, by the general way alone.
GENERAL = ("append", "append-many", "append-lz4", "append-fsync", "append-rolls", "append-idempotent")
GENERAL += ("append-flush-messages", "append-transactional-more", "transaction-block")
CASES += [replace(case, name=f"{case.name}-general", short=False) for case in CASES if case.name in GENERAL]
