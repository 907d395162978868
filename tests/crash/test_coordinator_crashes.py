"""Crash states of transactions over partitions: after any step, of a process or of the machine, each ended one way.

Two data partitions, a group's offsets and the coordinator's log are recorded on one disk.  With syncs, acknowledged
transactions survive a power loss.  Without them, the death of a process loses nothing, and the order of writes alone
still makes every transaction whole.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from tests.crash import harness
from tests.crash.harness import ACKNOWLEDGED, APPENDED, CrashState
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG
from tests.unit.coordinator_logs import LogStore

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID, GROUP = "biller", "g"
PLACE = TopicPartition("__consumer_offsets", partition_for(GROUP, 2))
SMALL = {"segment.index.bytes": "480", "internal.segment.bytes": "900"}
SAMPLE = None if LONG else 110


def workload(files: RecordingFiles, root: Path, version: TransactionVersion, *, syncs: bool) -> None:
    """Transactions 1 to 6: all are committed, except for the third, which is aborted, and the fifth, whose holder is
    fenced."""
    store = LogStore(root, files=files, version=version, syncs=syncs, overrides=SMALL)
    holder = store.coordinator.init_producer_id(ID, 60_000)
    for number in range(1, 7):
        files.mark(APPENDED, number)
        write(store, holder, number)
        if number == 5:
            holder = store.coordinator.init_producer_id(ID, 60_000)
        else:
            holder = store.coordinator.end_transaction(ID, holder, commit=number != 3)
        if number not in (3, 5):
            files.mark(ACKNOWLEDGED, number)
    for log in store.logs.values():
        log.close_quietly()


def write(store: LogStore, holder: ProducerIdAndEpoch, number: int) -> None:
    store.coordinator.add_partitions(ID, holder, [A, B])
    for each in (A, B):
        store.write(each, holder, b"%d" % number + b"." * 100)
    store.coordinator.add_offsets(ID, holder, GROUP)
    store.offsets(PLACE).commit(GROUP, {A: CommittedOffset(number)}, holder)


def check(place: str, version: TransactionVersion, recording: RecordingFiles, state: CrashState) -> None:
    root = Path(place) / "disk"
    os.makedirs(root, exist_ok=True)
    store = LogStore(root, files=UnsyncedFiles(), version=version, overrides=SMALL)
    store.reopen()
    seen = [[int(value.split(b".")[0]) for value in store.committed(each)] for each in (A, B)]
    assert seen[0] == seen[1], seen
    found = store.offsets(PLACE).fetch(GROUP, A)
    assert (0 if found is None else found.offset) == max(seen[0], default=0), (found, seen)
    assert store.offsets(PLACE).pending(GROUP) == {}
    for each in (A, B):
        assert store.log(each).last_stable_offset == store.log(each).log_end_offset
    made = harness.promises(recording, state.op_count)
    assert seen[0] == sorted(set(seen[0])) and not {3, 5} & set(seen[0])  # noqa: PT018
    assert set(made.acknowledged) <= set(seen[0]) <= set(made.appended), (made, seen)
    again = store.coordinator.init_producer_id(ID, 60_000)
    write(store, again, 9)
    store.coordinator.end_transaction(ID, again, commit=True)
    assert [int(value.split(b".")[0]) for value in store.committed(B)] == [*seen[1], 9]
    for log in store.logs.values():
        log.close_quietly()


@pytest.mark.parametrize("version", list(TransactionVersion))
@pytest.mark.parametrize("syncs", [True, False])
def test_crashes(tmp_path: Path, version: TransactionVersion, syncs: bool) -> None:
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        workload(recording, root / "disk", version, syncs=syncs)
    kinds = harness.KINDS if syncs else ("kill", "torn")
    count = harness.check_crashes(
        recording,
        lambda place, state: check(place, version, recording, state),
        sample=SAMPLE,
        kinds=kinds,
        torn_step=4096,
        keep=tmp_path / "failed",
    )
    assert count > 100
