"""The transaction coordinator over logs in memory: the order of durable writes, errors, times, threads.

Also a crash after each append, and a record that cannot be decoded.
"""

from __future__ import annotations

import struct
import threading
import time

import pytest

from kafkalog.engine.coordinator.state_log import NO_RECORDS, parsed_batch, records_batch
from kafkalog.engine.coordinator.transaction_coordinator import TransactionSettings
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidPidMappingException,
    InvalidProducerEpochException,
    InvalidTxnStateException,
    InvalidTxnTimeoutException,
    KafkaStorageException,
    ProducerFencedException,
    SchemaException,
    TransactionAbortableException,
    TransactionalIdNotFoundException,
)
from tests.unit.coordinator_kit import Disk, Store, producer_id_for

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
ID = "biller"
TIMEOUT_MS = 60_000
DAY_MS = 24 * 3600 * 1000
VERSIONS = list(TransactionVersion)


def begun(store: Store, *, partitions: tuple[TopicPartition, ...] = (A, B), value: str = "v") -> ProducerIdAndEpoch:
    """A holder with a row in each partition."""
    holder = store.coordinator.init_producer_id(ID, TIMEOUT_MS)
    store.coordinator.add_partitions(ID, holder, partitions)
    for each in partitions:
        store.disk.partition(each).append(holder, f"{value} in {each}")
    return holder


def outcomes(disk: Disk) -> dict[str, str]:
    return {value: kind for data in disk.data.values() for value, kind in data.outcomes().items()}


def states(disk: Disk) -> list[str]:
    found = []
    for batch in disk.log(f"__transaction_state-{partition_for(ID, 3)}").batches:
        for record in parsed_batch(batch).records:
            metadata = decode_transaction(record.key, record.value)[1]
            found.append("-" if metadata is None else metadata.state.name)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_all_or_nothing(version: TransactionVersion, commit: bool) -> None:
    store = Store(Disk(), version=version)
    holder = begun(store)
    next_one = store.coordinator.end_transaction(ID, holder, commit=commit)
    kind = "COMMIT" if commit else "ABORT"
    assert outcomes(store.disk) == {"v in a-0": kind, "v in b-1": kind}
    assert next_one == holder._replace(epoch=1 if version is TransactionVersion.TV_2 else 0)
    assert states(store.disk) == ["EMPTY", "ONGOING", f"PREPARE_{kind}", f"COMPLETE_{kind}"]
    assert store.coordinator.end_transaction(ID, holder, commit=commit) == next_one  # asked again
    with pytest.raises(InvalidTxnStateException):
        store.coordinator.end_transaction(ID, holder, commit=not commit)
    assert len(states(store.disk)) == 4
    store.coordinator.add_partitions(ID, next_one, [A])
    assert store.coordinator.describe(ID).state == "Ongoing"


def test_what_is_made_durable_in_which_order() -> None:
    """Listed before a batch, batches before the decision, the decision before the markers, those before Complete."""
    disk = Disk()
    store = Store(disk)
    state = f"__transaction_state-{partition_for(ID, 3)}"
    seen: list[str] = []

    def look(name: str) -> None:
        unflushed = sorted(each.name for each in disk.logs.values() if each.flushed < len(each.batches))
        seen.append(f"{name}: {unflushed}")

    disk.before_append = look
    holder = begun(store)
    store.coordinator.end_transaction(ID, holder, commit=True)
    assert seen == [
        f"{state}: []",  # Empty
        f"{state}: []",  # Ongoing
        "a-0: []",
        "b-1: ['a-0']",
        f"{state}: []",  # PrepareCommit
        "a-0: []",
        "b-1: ['a-0']",
        f"{state}: []",  # CompleteCommit
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_behind_every_append(version: TransactionVersion, commit: bool) -> None:
    store = Store(Disk(), version=version)
    begun(store, value="first")
    holder = begun(store, value="second")  # takes over, and aborts the first
    store.coordinator.end_transaction(ID, holder, commit=commit)
    prepared = next(at for at, (name, _) in enumerate(store.disk.journal) if name.startswith("__") and at > 9)
    for appends in range(len(store.disk.journal) + 1):
        after = Store(store.disk.crashed(appends), version=version)
        after.reopen()
        found = outcomes(after.disk)
        assert "open" not in found.values(), appends
        assert {found[value] for value in found if value.startswith("first")} <= {"ABORT"}
        wanted = "COMMIT" if commit and appends > prepared else "ABORT"
        assert {found[value] for value in found if value.startswith("second")} <= {wanted}, appends
        before = len(after.disk.journal)
        after.reopen()
        assert len(after.disk.journal) == before  # nothing is left to be done
        if after.coordinator.list_transactions():
            again = after.coordinator.init_producer_id(ID, TIMEOUT_MS)
            after.coordinator.add_partitions(ID, again, [A])
            after.disk.partition(A).append(again, "third")
            with pytest.raises(InvalidProducerEpochException):
                after.disk.partition(A).append(again._replace(epoch=again.epoch - 1), "fenced")


def test_the_earlier_holder_is_fenced() -> None:
    store = Store(Disk())
    first = begun(store)
    second = store.coordinator.init_producer_id(ID, TIMEOUT_MS)
    assert second.epoch == first.epoch + 2  # one for the abort, one for the holder
    assert set(outcomes(store.disk).values()) == {"ABORT"}
    with pytest.raises(ProducerFencedException):
        store.coordinator.add_partitions(ID, first, [A])
    with pytest.raises(ProducerFencedException):
        store.coordinator.end_transaction(ID, first, commit=True)
    with pytest.raises(InvalidProducerEpochException):
        store.disk.partition(A).append(first, "late")
    with pytest.raises(InvalidPidMappingException):
        store.coordinator.add_partitions(ID, second._replace(producer_id=5), [A])


def test_who_goes_on_after_an_error_says_what_he_holds() -> None:
    store = Store(Disk())
    first = store.coordinator.init_producer_id(ID, TIMEOUT_MS)
    second = store.coordinator.init_producer_id(ID, TIMEOUT_MS, first)
    assert store.coordinator.init_producer_id(ID, TIMEOUT_MS, first) == second
    third = store.coordinator.init_producer_id(ID, TIMEOUT_MS, second)
    assert third.epoch == second.epoch + 1
    with pytest.raises(ProducerFencedException):
        store.coordinator.init_producer_id(ID, TIMEOUT_MS, first)


def test_unknown_ids_and_bad_requests() -> None:
    coordinator = Store(Disk()).coordinator
    with pytest.raises(InvalidPidMappingException, match="call init_producer_id again"):
        coordinator.add_partitions("nobody", ProducerIdAndEpoch(1, 0), [A])
    with pytest.raises(TransactionalIdNotFoundException):
        coordinator.describe("nobody")
    with pytest.raises(IllegalArgumentException):
        coordinator.init_producer_id("", TIMEOUT_MS)
    for timeout_ms in (0, -1, 15 * 60 * 1000 + 1):
        with pytest.raises(InvalidTxnTimeoutException, match=r"transaction\.max\.timeout\.ms"):
            coordinator.init_producer_id(ID, timeout_ms)
    with pytest.raises(IllegalArgumentException, match="expected 0 to 2"):
        coordinator.load([3])
    assert coordinator.list_transactions() == []
    holder = coordinator.init_producer_id(ID, TIMEOUT_MS)
    coordinator.add_partitions(ID, holder, [A])
    coordinator.verify_partitions(ID, holder, [A])
    with pytest.raises(TransactionAbortableException, match="b-1"):
        coordinator.verify_partitions(ID, holder, [A, B])


# --- offsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_part_of_it(commit: bool) -> None:
    store = Store(Disk())
    holder = begun(store)
    place = store.coordinator.add_offsets(ID, holder, "billing")
    assert place == TopicPartition("__consumer_offsets", partition_for("billing", 2))
    store.offsets(place).commit("billing", {A: CommittedOffset(42)}, holder)
    assert store.offsets(place).fetch("billing", A) is None
    store.coordinator.end_transaction(ID, holder, commit=commit)
    found = store.offsets(place).fetch("billing", A)
    assert (None if found is None else found.offset) == (42 if commit else None)
    assert store.offsets(place).pending("billing") == {}


# --- what fails --------------------------------------------------------------------------------------------


def test_a_decision_is_carried_out_by_the_next_call() -> None:
    """A disk that fails under the second marker: the first has its own, the decision stays, and is finished later."""
    store = Store(Disk())
    holder = begun(store)
    failing = True

    def fail(name: str) -> None:
        if failing and name == "a-0" and states(store.disk)[-1].startswith("PREPARE"):
            raise KafkaStorageException("the disk failed")

    store.disk.before_append = fail
    with pytest.raises(KafkaStorageException, match="the disk failed"):
        store.coordinator.end_transaction(ID, holder, commit=True)
    assert outcomes(store.disk) == {"v in a-0": "open", "v in b-1": "COMMIT"}
    assert store.coordinator.describe(ID).state == "PrepareCommit"
    with pytest.raises(KafkaStorageException):
        store.coordinator.init_producer_id(ID, TIMEOUT_MS)
    with pytest.raises(KafkaStorageException):
        store.coordinator.finish_prepared()
    failing = False
    assert store.coordinator.end_transaction(ID, holder, commit=True).epoch == 1
    assert set(outcomes(store.disk).values()) == {"COMMIT"}
    assert store.coordinator.finish_prepared() == []


def test_a_decision_that_was_not_written_is_none() -> None:
    store = Store(Disk())
    holder = begun(store)

    def fail(name: str) -> None:
        if name.startswith("__transaction_state"):
            raise KafkaStorageException("the disk failed")

    store.disk.before_append = fail
    with pytest.raises(KafkaStorageException):
        store.coordinator.end_transaction(ID, holder, commit=True)
    store.disk.before_append = lambda name: None
    assert store.coordinator.describe(ID).state == "Ongoing"
    store.coordinator.end_transaction(ID, holder, commit=False)
    assert set(outcomes(store.disk).values()) == {"ABORT"}


def test_an_error_behind_the_append_loses_nothing() -> None:
    """The next caller reads a record that was appended but not noted from the log again."""
    for at in range(1, 5):
        store = Store(Disk())
        count = 0

        def interrupt(name: str, at: int = at) -> None:
            nonlocal count
            if name.startswith("__transaction_state"):
                count += 1
                if count == at:
                    raise KeyboardInterrupt

        store.disk.after_append = interrupt
        with pytest.raises(KeyboardInterrupt):
            store.coordinator.end_transaction(ID, begun(store), commit=True)
        holder = ProducerIdAndEpoch(producer_id_for(ID, -1), 0)
        wanted = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"][at - 1]
        assert store.coordinator.describe(ID).state == wanted
        if at >= 3:
            assert store.coordinator.end_transaction(ID, holder, commit=True).epoch == holder.epoch + 1
            assert set(outcomes(store.disk).values()) == {"COMMIT"}


def test_a_deleted_topic_does_not_hold_a_transaction_up() -> None:
    store = Store(Disk())
    holder = begun(store)
    store.gone.add(B)
    store.coordinator.end_transaction(ID, holder, commit=True)
    assert outcomes(store.disk)["v in a-0"] == "COMMIT"
    assert store.coordinator.describe(ID).state == "CompleteCommit"


def test_a_partition_that_knows_of_somebody_newer_holds_it_up() -> None:
    store = Store(Disk())
    holder = begun(store)
    store.disk.partition(B).rows.append(("ABORT", holder.producer_id, 9, ""))
    with pytest.raises(InvalidProducerEpochException):
        store.coordinator.end_transaction(ID, holder, commit=True)
    assert store.coordinator.describe(ID).state == "PrepareCommit"
    assert outcomes(store.disk)["v in a-0"] == "COMMIT"


# --- times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_that_takes_too_long(version: TransactionVersion) -> None:
    store = Store(Disk(), version=version)
    holder = begun(store)
    store.clock.advance(TIMEOUT_MS)
    assert store.coordinator.abort_timed_out() == []
    store.clock.advance(1)
    assert store.coordinator.abort_timed_out() == [ID]
    assert set(outcomes(store.disk).values()) == {"ABORT"}
    with pytest.raises(ProducerFencedException, match="took too long"):
        store.coordinator.add_partitions(ID, holder, [A])
    with pytest.raises((ProducerFencedException, InvalidTxnStateException)):  # version 2: the last epoch but one
        store.coordinator.end_transaction(ID, holder, commit=True)
    assert store.coordinator.abort_timed_out() == []
    assert not store.coordinator.abort(ID)


def test_ids_that_nobody_uses_are_forgotten() -> None:
    store = Store(Disk())
    holder = begun(store)
    store.clock.advance(8 * DAY_MS)
    assert store.coordinator.remove_expired() == []  # it is open
    holder = store.coordinator.end_transaction(ID, holder, commit=True)
    store.clock.advance(7 * DAY_MS - 1)
    assert store.coordinator.remove_expired() == []
    store.clock.advance(1)
    assert store.coordinator.remove_expired() == [ID]
    assert states(store.disk)[-1] == "-"
    with pytest.raises(InvalidPidMappingException):
        store.coordinator.add_partitions(ID, holder, [A])
    again = Store(store.disk)
    again.reopen()
    assert again.coordinator.list_transactions() == []
    assert store.coordinator.init_producer_id(ID, TIMEOUT_MS).epoch == 0


def test_lists() -> None:
    store = Store(Disk())
    holder = begun(store)
    store.coordinator.init_producer_id("other", TIMEOUT_MS)
    listed = store.coordinator.list_transactions
    assert {each.transactional_id for each in listed()} == {ID, "other"}
    assert [each.transactional_id for each in listed(states={"Ongoing"})] == [ID]
    assert [each.transactional_id for each in listed(producer_ids=[holder.producer_id])] == [ID]
    assert [each.transactional_id for each in listed(pattern="o.*")] == ["other"]
    store.clock.advance(500)
    assert [each.transactional_id for each in listed(longer_than_ms=499, states=["Ongoing"])] == [ID]
    assert listed(longer_than_ms=500, states=["Ongoing"]) == []


# --- loading ------------------------------------------------------------------------------------------------


def row(state: TransactionState, **changed: object) -> tuple[bytes, bytes | None]:
    metadata = TransactionMetadata(7, 1, 1, state, {"t": (0,)}, 5)
    return encode_transaction(ID, metadata._replace(**changed))  # type: ignore[arg-type]


KEY, VALUE = row(TransactionState.ONGOING)
assert VALUE is not None
BAD = {
    "a null key": (None, VALUE),
    "a short key": (b"\0", VALUE),
    "an unknown state": (KEY, VALUE.replace(b"\0\0\0\1\1", b"\0\0\0\1\x09", 1)),
    "a state that is never written": row(TransactionState.DEAD),
    "no partitions": row(TransactionState.ONGOING, partitions=None),
    "a cut value": (KEY, VALUE[:-1]),
    "another transaction version": row(TransactionState.ONGOING, client_transaction_version=3),
    "no epoch": row(TransactionState.ONGOING, producer_epoch=-1),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_record_that_cannot_be_understood(bad: tuple[bytes, bytes | None]) -> None:
    disk = Disk()
    log = disk.log(f"__transaction_state-{partition_for(ID, 3)}")
    log.append(records_batch([(KEY, VALUE), bad], 5, NO_PRODUCER))
    coordinator = Store(disk).coordinator
    with pytest.raises(SchemaException, match=rf"/memory/{log.name}: the record at offset 1 "):
        coordinator.load(range(3))
    with pytest.raises(SchemaException):
        coordinator.init_producer_id(ID, TIMEOUT_MS)


def test_records_of_later_versions_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    rows: list[tuple[bytes, bytes | None]] = [(KEY, VALUE), (struct.pack(">h", 9) + b"x", b"y"), (KEY, b"\0\x09zz")]
    disk.log(f"__transaction_state-{partition_for(ID, 3)}").append(records_batch(rows, 5, NO_PRODUCER))
    store = Store(disk)
    store.coordinator.load(range(3))
    assert store.coordinator.describe(ID).state == "Ongoing"
    assert caplog.text.count("is skipped, as in Kafka") == 2


def test_a_control_batch_says_nothing_here() -> None:
    assert parsed_batch(bytes(records_batch([], 5, NO_PRODUCER) or records_batch([(KEY, None)], 5, NO_PRODUCER)))
    assert NO_RECORDS == ()


# --- threads, forks -----------------------------------------------------------------------------------------


def test_threads_that_take_over_from_each_other() -> None:
    """Each thread that takes an id over fences the one before; its records end one way in both partitions."""
    store = Store(Disk())
    guard, failures = threading.Lock(), []

    def work(number: int) -> None:
        for turn in range(15):
            try:
                holder = store.coordinator.init_producer_id(ID, TIMEOUT_MS)
                store.coordinator.add_partitions(ID, holder, [A, B])
                for each in (A, B):
                    with guard:
                        store.disk.partition(each).append(holder, f"{number}/{turn} in {each}")
                store.coordinator.end_transaction(ID, holder, commit=turn % 3 > 0)
            except (ProducerFencedException, InvalidProducerEpochException):
                continue
            except BaseException as error:
                failures.append(error)
                raise

    write = store.write
    store.write = lambda *args: guarded(guard, write, *args)  # type: ignore[method-assign]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    store.coordinator.init_producer_id(ID, TIMEOUT_MS)
    found = outcomes(store.disk)
    assert "open" not in found.values()
    for value, kind in found.items():
        other = value.replace("a-0", "b-1") if "a-0" in value else value.replace("b-1", "a-0")
        assert found.get(other, "ABORT") == kind or kind == "ABORT"
        if kind == "COMMIT":
            assert found[other] == "COMMIT"


def guarded(guard: threading.Lock, call: object, *args: object) -> None:
    with guard:
        call(*args)  # type: ignore[operator]


def test_a_handler_in_the_middle_of_a_call_is_refused() -> None:
    store = Store(Disk())
    holder = begun(store)
    refused = []

    def reenter(name: str) -> None:
        try:
            store.coordinator.end_transaction(ID, holder, commit=False)
        except IllegalStateException as error:
            refused.append(str(error))

    store.disk.before_append = reenter
    store.coordinator.end_transaction(ID, holder, commit=True)
    assert len(refused) == 4
    assert all("already in use by this thread" in each for each in refused)
    assert set(outcomes(store.disk).values()) == {"COMMIT"}


def test_settings_have_kafkas_defaults() -> None:
    settings = TransactionSettings()
    assert settings == (TransactionVersion.TV_2, 900_000, 604_800_000)


def test_who_waited_for_an_interrupted_call_sees_what_it_appended() -> None:
    """A decision was appended, and not noted, while another waited for the id: the waiter finds it."""
    store = Store(Disk())
    holder = begun(store)
    inside = threading.Event()
    answers: list[object] = []

    def wait(partitions: object) -> None:  # the id's lock is held, its partition's is not
        del store.flush  # type: ignore[method-assign]
        inside.set()
        time.sleep(0.1)  # until the other one waits for the lock of the id

    def interrupt(name: str) -> None:
        store.disk.after_append = lambda name: None
        raise KeyboardInterrupt

    def end() -> None:
        inside.wait(10)
        answers.append(store.coordinator.end_transaction(ID, holder, commit=True))

    other = threading.Thread(target=end)
    store.flush = wait  # type: ignore[method-assign]
    store.disk.after_append = interrupt
    other.start()
    with pytest.raises(KeyboardInterrupt):
        store.coordinator.end_transaction(ID, holder, commit=True)
    other.join()
    assert answers == [holder._replace(epoch=holder.epoch + 1)]
    assert states(store.disk) == ["EMPTY", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
