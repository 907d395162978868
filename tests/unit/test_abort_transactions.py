"""`kafkalog transactions abort`: open transactions ended offline, and the cases that it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, FINDINGS, IO, USAGE
from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.coordinator.transaction_metadata import PREPARE_COMMIT
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    InvalidTxnStateException,
    TransactionalIdNotFoundException,
)
from kafkalog.toolbox import abort_transactions
from kafkalog.toolbox.abort_transactions import Aimed, abort, plan_abort
from kafkalog.toolbox.known_transactions import KnownTransactions
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

NOW_MS = 1_700_000_000_000
T0 = TopicPartition("t", 0)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def values(root: Path, name: str = "t-0") -> list[bytes | None]:
    with kafkalog.open_log(root, name, read_only=True) as log:
        return [record.value for record in log.records(isolation="read_committed")]


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A log with a transaction that no coordinator knows, and a record after it."""
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        log.append(b"before", timestamp=NOW_MS)
        txn = client_transaction(log, "lost")
        txn.begin()
        txn.append_many([(b"a", None, (), NOW_MS), (b"b", None, (), NOW_MS)])
        log.append(b"behind", timestamp=NOW_MS)
    return tmp_path / "logs"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A store as a crash leaves it in a transaction over two partitions and a cursor."""
    with kafkalog.open(tmp_path / "store") as store:
        for topic in ("in", "out"):
            store.create_topic(topic, partitions=2)
        store.topic("in").partition(0).append(b"input")
        with store.transaction("job") as txn:
            txn.append("out", b"first", partition=0)
        txn = store.transaction("job")
        txn.begin()
        txn.append("out", b"lost", partition=0)
        txn.append("out", b"lost", partition=1)
        txn.commit_offsets({TopicPartition("in", 0): 1}, cursor="readers")
        store.topic("out").partition(0).append(b"behind")
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
        txn.abort()
    return tmp_path / "crashed"


# --- hanging ones ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [["--start-offset", "1"], ["--producer-id", "{}", "--producer-epoch", "0"]])
def test_a_hanging_one_gets_a_marker(run: Run, hanging: Path, how: list[str]) -> None:
    (found,) = (json.loads(line) for line in run("transactions", hanging, "--json").lines)
    producer_id = found["open"][0]["producerId"]
    argv = ["transactions", "abort", hanging, "t-0", *(each.format(producer_id) for each in how)]
    assert values(hanging) == [b"before"]
    before = files_of(hanging)
    told = run(*argv)
    assert told.code == CLEAN, told.err
    assert told.lines == [
        f"t-0: producer {producer_id} epoch 0, 2 records from offset 1 on: would be aborted (--yes does it)"
    ]
    assert run(*argv, "--yes", "--dry-run").lines == told.lines
    assert files_of(hanging) == before
    done = run(*argv, "--yes")
    assert done.code == CLEAN, done.err
    assert done.lines == [
        f"t-0: producer {producer_id} epoch 0, 2 records from offset 1 on: aborted; the last stable offset is 5"
    ]
    assert values(hanging) == [b"before", b"behind"]
    assert verify(hanging, deep=True).ok
    (after,) = (json.loads(line) for line in run("transactions", hanging, "--json").lines)
    assert (after["open"], after["aborted"], after["lastStableOffset"]) == ([], 1, 5)
    again = run(*argv, "--yes")
    assert again.code == USAGE
    assert "is open in t-0" in again.err


def test_the_markers_bytes(hanging: Path) -> None:
    clock = ManualClock(NOW_MS + 5)
    (txn,) = (plan := plan_abort(str(hanging), [T0], Aimed(start_offset=1), clock=clock)).open.values()
    path = hanging / "t-0" / f"{0:020}.log"
    before = path.read_bytes()
    assert abort(plan, clock=clock) == {T0: 5}
    marker = TransactionMarker(txn.producer_id, txn.producer_epoch, ControlRecordType.ABORT, 0, 0)
    expected = bytearray(marker.batch(NOW_MS + 5, 0))
    expected[:8] = (4).to_bytes(8, "big")  # no checksum is over the offset
    assert path.read_bytes() == before + bytes(expected)


def test_the_coordinator_epoch_that_the_partition_knows(hanging: Path) -> None:
    """A marker with an older one would be refused: as Kafka's tool, the last one that is known is sent again."""
    with kafkalog.open_log(hanging, "t-0", abort_left_open=False) as log:
        assert log.engine is not None
        txn = client_transaction(log, "lost")
        producer_id = txn.producer_id
        ended = TransactionMarker(producer_id, 0, ControlRecordType.ABORT, 7, 0)
        UnifiedStateLog(log.engine, syncs=False).append_marker(ended, NOW_MS)
        txn.begin()
        txn.append(b"lost again")
    plan = plan_abort(str(hanging), [T0], Aimed(producer_id=producer_id))
    abort(plan)
    with kafkalog.open_log(hanging, "t-0") as log:
        assert log.engine is not None
        entry = log.engine.producer_state_manager.last_entry(producer_id)
        assert entry is not None
        assert entry.coordinator_epoch == 7


def test_a_directory_that_a_real_kafka_left(run: Run, tmp_path: Path) -> None:
    root = of_kafka("recover_torn_tail", tmp_path)
    assert run("transactions", root, "foo-0").code == FINDINGS
    done = run("transactions", "abort", root, "foo-0", "--producer-id", 9, "--yes", "--json")
    assert done.code == CLEAN, done.err
    (told,) = map(json.loads, done.lines)
    assert (told["kind"], told["firstOffset"], told["done"], told["coordinated"]) == ("abort", 38, True, False)
    assert told["lastStableOffset"] == 41
    assert run("transactions", root, "foo-0").code == CLEAN


# --- what a coordinator has under way ------------------------------------------------------------------------


def test_a_coordinators_ends_in_all_its_partitions(run: Run, crashed: Path) -> None:
    rows = [json.loads(line) for line in run("transactions", crashed, "out", "--json").lines]
    assert [(each["transactionalId"], each["coordinatorState"]) for row in rows for each in row["open"]] == [
        ("job", "Ongoing"),
        ("job", "Ongoing"),
    ]
    shown = run("transactions", crashed, "out", "--hanging-after", "0ms")
    assert "transactional id 'job' (Ongoing), producer" in shown.lines[0]
    argv = ("transactions", "abort", crashed, "out-1", "--transactional-id", "job")
    told = run(*argv)
    assert told.code == CLEAN, told.err
    assert told.lines[-1] == "transactional id 'job': Ongoing would become CompleteAbort"
    assert sorted(line.split(":")[0] for line in told.lines[:-1] if not line.startswith("__")) == ["out-0", "out-1"]
    done = run(*argv, "--yes")
    assert done.code == CLEAN, done.err
    assert done.lines[-1] == "transactional id 'job': Ongoing has become CompleteAbort"
    assert (values(crashed, "out-0"), values(crashed, "out-1")) == ([b"first", b"behind"], [])
    assert run("transactions", crashed, "__*", "out").code == CLEAN
    assert KnownTransactions(str(crashed)).by_id["job"].state == "CompleteAbort"
    assert verify(crashed, deep=True).ok
    cursors = run("cursors", crashed, "--json")
    assert not [line for line in cursors.lines if json.loads(line)["kind"] == "cursor"]
    with kafkalog.open(crashed) as store, store.transaction("job") as txn:
        txn.append("out", b"next", partition=1)
    assert values(crashed, "out-1") == [b"next"]


def test_an_abort_that_was_decided_is_carried_out(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_abort(str(crashed), [TopicPartition("out", 0)], Aimed(transactional_id="job"))
    with monkeypatch.context() as patch:
        patch.setattr(
            "kafkalog.engine.coordinator.partition_logs.LogMarkers.write",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            abort(plan)
    assert KnownTransactions(str(crashed)).by_id["job"].state == "PrepareAbort"
    with pytest.raises(InvalidTxnStateException, match=r"has changed since .*: its state is now PrepareAbort"):
        abort(plan)
    again = plan_abort(str(crashed), [TopicPartition("out", 0)], Aimed(transactional_id="job"))
    assert set(again.partitions) == set(plan.partitions)
    abort(again)
    assert KnownTransactions(str(crashed)).by_id["job"].state == "CompleteAbort"
    assert (values(crashed, "out-0"), values(crashed, "out-1")) == ([b"first", b"behind"], [])


def test_a_commit_that_was_decided_is_no_abort(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = KnownTransactions(str(crashed))
    (holder,) = read.by_id.values()
    before = holder.known.metadata
    metadata = before._replace(state=PREPARE_COMMIT, producer_epoch=before.producer_epoch + 1)
    read.by_id["job"] = read._by_producer[metadata.producer_id] = holder._replace(
        known=holder.known._replace(metadata=metadata)
    )
    monkeypatch.setattr(abort_transactions, "KnownTransactions", lambda *_, **__: read)
    for aimed in (Aimed(transactional_id="job"), Aimed(producer_id=metadata.producer_id)):
        with pytest.raises(InvalidTxnStateException, match=r"is already committed \(PrepareCommit\) and cannot"):
            plan_abort(str(crashed), [TopicPartition("out", 0)], aimed)


def test_partitions_that_are_away(run: Run, crashed: Path) -> None:
    shutil.move(crashed / "out-1", crashed.parent / "out-1")
    result = run("transactions", "abort", crashed, "out-0", "--transactional-id", "job", "--yes")
    assert result.code == USAGE
    assert "is also open in out-1" in result.err
    assert "ends in all of its partitions together" in result.err
    assert KnownTransactions(str(crashed)).by_id["job"].state == "Ongoing"


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "found none, expected one of --transactional-id, --producer-id, --start-offset"),
        (["--producer-id", "1", "--start-offset", "1"], "found --producer-id and --start-offset, expected one of"),
        (["--transactional-id", "x", "--producer-epoch", "1"], "--producer-epoch: expected --producer-id with it"),
        (
            ["--transactional-id", "x"],
            "id 'x' was never used in this directory (the directory has no transactional ids)",
        ),
        (["--producer-id", "77"], "no transaction of producer id 77 is open in t-0"),
        (["--producer-id", "-1"], "-1 is not in the range"),
        (
            ["--start-offset", "2"],
            "that starts at offset 2 is open in t-0 (open transactions: t-0: producer",
        ),
        (["--start-offset", "x"], "found 'x', expected a whole number"),
    ],
)
def test_what_is_not_open(run: Run, hanging: Path, argv: list[str], said: str) -> None:
    before = files_of(hanging)
    result = run("transactions", "abort", hanging, "t-0", *argv, "--yes")
    assert result.code == USAGE
    assert said in result.err
    assert files_of(hanging) == before


def test_an_offset_is_of_one_partition(run: Run, hanging: Path) -> None:
    with kafkalog.open_log(hanging, "t-1"):
        pass
    result = run("transactions", "abort", hanging, "--start-offset", 1)
    assert result.code == USAGE
    assert "found t-0, t-1, expected the one partition" in result.err
    assert run("transactions", "abort", hanging, "*-0", "--start-offset", 1).code == CLEAN


def test_of_an_earlier_epoch(hanging: Path) -> None:
    (txn,) = plan_abort(str(hanging), [T0], Aimed(start_offset=1)).open.values()
    with pytest.raises(InvalidTxnStateException, match="with epoch 3 is open in t-0"):
        plan_abort(str(hanging), [T0], Aimed(producer_id=txn.producer_id, producer_epoch=3))


def test_beside_who_writes(run: Run, hanging: Path) -> None:
    with kafkalog.open_log(hanging, "t-0", abort_left_open=False):
        assert run("transactions", "abort", hanging, "t-0", "--start-offset", 1).code == CLEAN
        result = run("transactions", "abort", hanging, "t-0", "--start-offset", 1, "--yes")
        assert result.code in (IO, USAGE)
        assert "open already" in result.err
    assert values(hanging) == [b"before"]


def test_one_that_ended_meanwhile(hanging: Path) -> None:
    plan = plan_abort(str(hanging), [T0], Aimed(start_offset=1))
    abort(plan)
    after = files_of(hanging)
    with pytest.raises(InvalidTxnStateException, match="has ended, or a new one has begun"):
        abort(plan)
    assert files_of(hanging)["t-0/00000000000000000000.log"] == after["t-0/00000000000000000000.log"]


def test_the_state_of_an_id_that_has_ended(run: Run, crashed: Path) -> None:
    argv = ("transactions", "abort", crashed)
    elsewhere = run(*argv, "in", "--transactional-id", "job")
    assert elsewhere.code == USAGE
    assert "'job' is not open in in-0, in-1 (its state is Ongoing, and it is in " in elsewhere.err
    assert "out-0, out-1)" in elsewhere.err
    assert run(*argv, "--transactional-id", "job", "--yes").code == CLEAN
    for partitions in ((), ("in",), ("out-0",)):
        ended = run(*argv, *partitions, "--transactional-id", "job")
        assert ended.code == USAGE
        assert "no transaction of the transactional id 'job' is open: its state is CompleteAbort" in ended.err


def test_a_brokers_directory(run: Run, hanging: Path) -> None:
    (hanging / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\n")
    argv = ("transactions", "abort", hanging, "t-0", "--start-offset", 1)
    kafkas = "kafka-transactions.sh --bootstrap-server HOST:9092 abort --topic t --partition 0 --start-offset 1"
    told = run(*argv)
    assert told.code == CLEAN
    assert "is a Kafka broker's: other replicas do not get this marker" in told.err
    assert kafkas in told.err
    assert told.lines[0].endswith(": would be aborted (--take-over --yes does it)")
    assert run(*argv, "--take-over").lines[0].endswith(": would be aborted (--yes does it)")
    refused = run(*argv, "--yes")
    assert refused.code == USAGE
    assert "--take-over writes to it in place of its broker" in refused.err
    assert "read_only=True" not in refused.err
    assert "take_over=True" not in refused.err
    assert values(hanging) == [b"before"]
    shown = run("transactions", hanging, "--hanging-after", "1h")
    assert f"  to end it: kafkalog transactions abort {hanging} t-0 --start-offset 1 --take-over" in shown.lines
    assert f"  while the broker runs: {kafkas}" in shown.lines
    assert run(*argv, "--yes", "--take-over").code == CLEAN
    assert values(hanging) == [b"before", b"behind"]


def test_damage(hanging: Path) -> None:
    path = hanging / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordException, match="bad CRC"):
        plan_abort(str(hanging), [T0], Aimed(start_offset=1))


def test_states_that_cannot_be_read(run: Run, crashed: Path) -> None:
    state = next(crashed.glob(f"{TRANSACTION_STATE_TOPIC}-*"))
    path = state / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    shown = run("transactions", crashed, "out")
    assert "transactional ids of this partition are not known" in shown.err
    result = run("transactions", "abort", crashed, "out-0", "--transactional-id", "job", "--yes")
    assert result.code in (FINDINGS, USAGE)
    assert "Traceback" not in result.err


def test_any_path_will_do(hanging: Path) -> None:
    clock = ManualClock(NOW_MS + 5)
    by_path = plan_abort(hanging, [T0], Aimed(start_offset=1), clock=clock)
    assert by_path == plan_abort(str(hanging), [T0], Aimed(start_offset=1), clock=clock)
    assert by_path.log_dir == str(hanging)
    assert abort_transactions.other_replicas(hanging, [T0]) is None
    with pytest.raises(TypeError):
        plan_abort(3, [T0], Aimed(start_offset=1))  # type: ignore[arg-type]
    assert abort(by_path) == {T0: 5}


def test_aims_that_name_none_or_several(hanging: Path) -> None:
    with pytest.raises(TransactionalIdNotFoundException):
        plan_abort(str(hanging), [T0], Aimed(transactional_id=""))
    for aimed in (Aimed(), Aimed(transactional_id="x", producer_id=1)):
        with pytest.raises(IllegalArgumentException, match="expected one of transactional_id, producer_id and start"):
            plan_abort(str(hanging), [T0], aimed)
    with pytest.raises(IllegalArgumentException, match="start_offset was given with 2 partitions"):
        plan_abort(str(hanging), [T0, TopicPartition("t", 1)], Aimed(start_offset=1))
    plan = plan_abort(str(hanging), [T0], Aimed(start_offset=1))
    (hanging / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\n")
    with pytest.raises(IllegalArgumentException, match="found the directory of a Kafka broker"):
        abort(plan)


def test_a_partition_that_cannot_be_read_hides_no_other(run: Run, hanging: Path) -> None:
    with kafkalog.open_log(hanging, "a-0") as log:
        log.append(b"1")
    (path,) = (hanging / "a-0").glob("*.log")
    path.unlink()
    path.mkdir()  # no permission would do, but not for root
    told = run("transactions", hanging, "--hanging-after", "1s")
    assert told.code == FINDINGS
    assert "t-0: hanging for " in told.out
    assert f"{path}: cannot be read: " in told.out
    assert "what is open in a-0 is not known" in told.out
    found = [json.loads(line) for line in run("transactions", hanging, "--json").lines]
    assert [each["kind"] for each in found] == ["partition", "finding"]
    for act in ([], ["--yes"]):
        ended = run("transactions", "abort", hanging, "--producer-id", found[0]["open"][0]["producerId"], *act)
        assert ended.code == FINDINGS
        assert "t-0: producer " in ended.out
        assert f"{path}: cannot be read: " in ended.out
        assert "it is unknown whether the transaction is open in a-0" in ended.out
    assert values(hanging) == [b"before", b"behind"]
    gone = run("transactions", "abort", hanging, "--producer-id", 7)
    assert gone.code == IO, gone.err  # it may be in the one that cannot be read
    assert str(path) in gone.err
