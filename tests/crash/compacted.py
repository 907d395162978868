"""Compacted partitions under a LogManager, with an account of what was written: for crashes, faults and kills.

`Tale` says what a start may find of a partition: which of its lives, how far, and, for each possible end, the value of
each key.  After a power loss a record that was truncated may exist again until something after the truncation was
flushed, as in Kafka: `Tale` keeps this past too.  `House.turn` is one run of a cleaner in the caller's thread, with a
map so small that a pass takes several runs.  `Tale.judge` checks each partition:

    rows        each row was written at its offset, in this life; offsets grow
    state       the last committed value of each key is the one that the records up to the end imply
    checkpoint  below the checkpointed offset each key exists once: no work that a pass still has to do is skipped
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from kafkalog.config import CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition, parse_topic_partition_name
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.toolbox.verify import verify
from tests.crash import managed
from tests.crash.managed import DISKS, FAST
from tests.unit.cleaner_kit import Pair, Producer, keyed, latest, marker, rows

DELETE_RETENTION_MS = 1000
COMPACTED = {
    "cleanup.policy": "compact", "internal.segment.bytes": "600", "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS), "index.interval.bytes": "60", "segment.index.bytes": "4800",
    "max.message.bytes": "10000", "segment.jitter.ms": "0", "file.delete.delay.ms": "60000", "retention.ms": "-1",
}  # fmt: skip
NOBODY = replace(CleanerConfig.for_tests(), num_threads=0)
# The cleaner of a turn has room for 27 keys and for a few batches.
TURNS = CleanerConfig(1, 24 * 30, 0.9, 600, 10_000)
SETTINGS = ManagerSettings(
    LogConfig.from_props(None, COMPACTED),
    producers=ProducerSettings(ProducerStateManagerConfig(86_400_000, False)),
    cleaner=NOBODY,
    recovery_threads=1,
)

Row = tuple[int, str | None, str | None]


class Ended(NamedTuple):
    """A transaction: the offset of its marker, and the marker's kind; -1 if there is none yet."""

    marker: int = -1
    commit: bool = False


@dataclass
class Life:
    """One log of a partition, from its making to its deletion."""

    number: int
    written: dict[int, tuple[str | None, str | None, int]] = field(default_factory=dict)  # key, value, transaction
    transactions: dict[int, Ended] = field(default_factory=dict)
    appended: int = 0
    acknowledged: int = 0
    flushed: int = 0
    made: bool = False
    deleting: bool = False
    deleted: bool = False
    start_asked: int = 0
    start_kept: int = 0
    disks: set[int] = field(default_factory=set)
    past: Life | None = None  # before a truncation, while it may exist again
    past_ends: int = 0  # a flush up to this offset has overwritten the past
    is_cut: bool = False
    is_going: bool = False  # it is being truncated, and may end anywhere
    bounds: dict[str | None, int] = field(default_factory=dict)  # by key: below it, a pass may have dropped all of it

    def state(self, start: int, end: int) -> dict[str, str]:
        """The last committed value of each key of [start, end)."""
        return latest((offset, key, value) for offset, key, value in self.committed(start, end))

    def may_be(self, key: str | None, start: int, end: int) -> set[str | None]:
        """The possible last values of a key after a power loss, which may lose any part of the unflushed records."""
        rows = [row for row in self.committed(start, end) if row[1] == key]
        sure = [row for row in rows if row[0] < self.flushed]
        is_sure = bool(sure) and sure[-1][0] >= self.bounds.get(key, 0)
        return {value for _, _, value in (*sure[-1:], *rows[len(sure) :])} | (set() if is_sure else {None})

    def superseded(self, start: int, end: int) -> set[str]:
        """Keys of which all that is left may have been dropped for a record that was cut off since."""
        last = {key: offset for offset, key, _ in self.committed(start, end)}
        bounds = self.bounds | {row[0]: at for at, row in self.written.items() if at >= end and self.is_going}
        return {key for key, bound in bounds.items() if key is not None and last.get(key, -1) < bound}

    def decided(self, end: int) -> int:
        """Below it no transaction is open in a log that ends here."""
        open_ones = [offset for offset, row in self.written.items() if row[2] >= 0 and not self.is_ended(row[2], end)]
        return min([end, *[offset for offset in open_ones if offset < end]])

    def is_ended(self, transaction: int, end: int) -> bool:
        return 0 <= self.transactions.get(transaction, Ended()).marker < end

    def committed(self, start: int, end: int) -> list[Row]:
        found: list[Row] = []
        for offset in sorted(self.written):
            key, value, of = self.written[offset]
            ended = self.transactions.get(of, Ended())
            if start <= offset < end and (of < 0 or (ended.commit and ended.marker < end)):
                found.append((offset, key, value))
        return found


class Tale:
    """The promises made up to a point."""

    def __init__(self) -> None:
        self.lives: dict[str, list[Life]] = {}

    def told(self, label: str, value: object) -> None:
        assert isinstance(value, tuple)
        what, partition, *rest = value
        getattr(self, f"_{what}")(self.lives.setdefault(partition, []), label == "end", *rest)

    def _turns(self, lives: list[Life], done: bool) -> None:
        """Adds no promise: the records already imply the result of a cleaner's turn."""

    def _make(self, lives: list[Life], done: bool, disk: int) -> None:
        if done:
            lives[-1].made = True
        else:
            lives.append(Life(len(lives), disks={disk}))

    def _append(self, lives: list[Life], done: bool, offset: int, pairs: tuple[Pair, ...], of: int) -> None:
        life = lives[-1]
        life.appended = offset + len(pairs)
        if done:
            life.acknowledged = life.appended
        for number, (key, value) in enumerate(pairs):
            life.written[offset + number] = (key, value, of)

    def _end_txn(self, lives: list[Life], done: bool, offset: int, of: int, commit: bool) -> None:
        lives[-1].transactions[of] = Ended(offset, commit)
        lives[-1].appended = offset + 1
        if done:
            lives[-1].acknowledged = offset + 1

    def _flush(self, lives: list[Life], done: bool) -> None:
        life = lives[-1]
        if done:
            life.flushed = life.acknowledged
            if life.flushed > life.past_ends:
                life.past = None

    def _move(self, lives: list[Life], done: bool, disk: int) -> None:
        life = lives[-1]
        life.disks = {disk} if done else life.disks | {disk}
        if done:  # a move flushes what it copies
            self._flush(lives, True)
            life.past = None

    def _delete(self, lives: list[Life], done: bool) -> None:
        lives[-1].deleting, lives[-1].deleted = True, done

    def _cut(self, lives: list[Life], done: bool, offset: int, restarts: bool) -> None:
        life = lives[-1]
        life.is_cut = done
        if done:
            return
        life.past, life.past_ends = replace(copy.deepcopy(life), is_going=True), offset
        life.past.acknowledged = 0 if restarts else min(life.acknowledged, offset)
        life.past.flushed = 0 if restarts else min(life.flushed, offset)
        life.past.start_asked = max(life.start_asked, offset if restarts else 0)
        kept = {at: row for at, row in life.written.items() if at < offset and not restarts}
        life.bounds |= {row[0]: offset for at, row in life.written.items() if at >= offset}
        life.written = kept
        life.transactions = {of: ended for of, ended in life.transactions.items() if ended.marker < offset}
        life.acknowledged = life.appended = offset
        life.flushed = 0 if restarts else min(life.flushed, offset)
        if restarts:
            life.start_asked = life.start_kept = offset

    def _start(self, lives: list[Life], done: bool, offset: int) -> None:
        if done:
            lives[-1].start_kept = offset
        else:
            lives[-1].start_asked = offset

    # --- judging -------------------------------------------------------------------------------------

    def judge(self, manager: LogManager, *, process_only: bool = True, offline: frozenset[int] = frozenset()) -> None:
        """`offline`: disks that are out, with what lies there."""
        there = {str(log.topic_partition): log for log in manager.all_logs() if not log.is_future}
        for partition, lives in self.lives.items():
            log = there.pop(partition, None)
            last = lives[-1]
            if log is None:
                gone = last.deleting or not last.made or last.disks & offline
                assert gone, f"{partition} is gone: {last}"
                continue
            assert not log.refuses_changes, log
            self._judge(partition, lives, log, process_only)
            assert int(log.parent_dir[-1]) in last.disks or not last.made, f"{partition} is in {log.parent_dir}: {last}"
            judge_checkpoint(manager, log)
        assert not there, f"never made: {there}"

    def _judge(self, partition: str, lives: list[Life], log: UnifiedLog, process_only: bool) -> None:
        values = [value for _, _, value in rows(log) if value is not None]
        numbers = {int(value.split(".")[0]) for value in values} or {lives[-1].number}
        assert len(numbers) == 1, f"{partition} mixes lives: {numbers}"
        life = lives[numbers.pop()]
        last = lives[-1]
        assert life is last or (not last.made and not life.deleted), f"{partition} came back: {life}"
        assert not life.deleted, f"{partition} came back: {life}"
        errors = []
        present: Life | None = life
        while present is not None:
            try:
                judge_log(log, present, process_only)
                return
            except AssertionError as error:
                errors.append(error)
                may_be_past = not present.is_cut or not process_only
                present = present.past if may_be_past else None
        raise errors[0]


def judge_log(log: UnifiedLog, life: Life, process_only: bool) -> None:
    """Checks that the log holds a life: its rows, as far as they were promised, and the state of its keys."""
    name, end, start = log.topic_partition, log.log_end_offset, log.log_start_offset
    low = life.acknowledged if process_only else life.flushed
    if low > start or process_only:
        assert low <= end <= max(life.appended, start), f"{name} ends at {end}, promised {low} to {life.appended}"
    assert life.start_kept <= start <= max(life.start_asked, life.start_kept) or not process_only, (name, start, life)
    found = rows(log)
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), (name, offsets)
    for offset, key, value in found:
        assert life.written.get(offset, ("never",))[:2] == (key, value), (name, offset, key, value)
    seen = committed(log)
    for offset, key, _ in seen:
        of = life.written[offset][2]
        assert of < 0 or life.transactions.get(of, Ended()).commit, f"{name}: {key} of {offset} was aborted"
    stable, values = log.last_stable_offset, latest(seen)
    if process_only or end <= life.flushed:
        assert stable == life.decided(end), (name, stable, life)
        expected = life.state(start, stable)
        for key in life.superseded(start, stable):
            assert values.pop(key, None) in (expected.pop(key, None), None), (name, end, key, seen)
        assert values == expected, (name, end, seen)
        return
    assert stable >= life.decided(low), (name, stable, life)
    for key in {key for key, _, _ in life.written.values()} - life.superseded(start, stable):
        assert key is not None
        assert values.get(key) in life.may_be(key, start, stable), (name, end, key, seen)


def committed(log: UnifiedLog) -> list[Row]:
    """The records that a reader of committed records sees."""
    start, end = log.log_start_offset, log.log_end_offset
    aborted = log.collect_aborted_transactions(start, end)
    hidden: set[int] = set(range(log.last_stable_offset, end))
    for segment in log.log_segments():
        for header in segment.log.batches():
            if header.is_transactional and any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in aborted
            ):
                hidden.update(range(header.base_offset, header.next_offset))
    return [row for row in rows(log) if row[0] >= start and row[0] not in hidden]


def judge_checkpoint(manager: LogManager, log: UnifiedLog) -> None:
    """Checks that each key exists once below the checkpointed offset."""
    line = (manager.directories.read_cleaner_offsets(log.parent_dir) or {}).get(log.topic_partition, 0)
    clean = [key for offset, key, _ in rows(log) if log.log_start_offset <= offset < line]
    assert len(clean) == len(set(clean)), f"{log.topic_partition} is no cleaner than this below {line}: {rows(log)}"


class House(managed.House):
    """Managers of the same directories; the test runs their cleaner by hand."""

    def __init__(self, root: str | os.PathLike[str], files: Files = FAST, settings: ManagerSettings = SETTINGS) -> None:
        super().__init__(root, files, settings)
        self.story: Tale = Tale()  # type: ignore[assignment]
        self.transactions = 0

    def add(self, partition: str, *pairs: Pair, codec: int = 0, of: int = -1) -> None:
        """A batch of (key, text); the life and the offset become part of the value.  `of` a transaction."""
        log, life = self.log(partition), len(self.story.lives[partition]) - 1
        end = log.log_end_offset
        told = tuple(
            (key, None if value is None else f"{life}.{end + number}.{value}")
            for number, (key, value) in enumerate(pairs)
        )
        producer = Producer(1000 + of, transactional=True) if of >= 0 else None
        with self.telling("append", partition, end, told, of):
            log.append_as_leader(keyed(*told, codec=codec, producer=producer, ts=self.clock.milliseconds()), 0)

    def transaction(self, partition: str, *pairs: Pair, commit: bool, codec: int = 0) -> None:
        """Writes a transaction of a separate producer, with its marker."""
        self.transactions += 1
        of = self.transactions
        self.add(partition, *pairs, of=of, codec=codec)
        self.end(partition, of, commit=commit)

    def end(self, partition: str, of: int, *, commit: bool = True) -> None:
        """The marker of a transaction."""
        log = self.log(partition)
        data = marker(1000 + of, commit=commit, ts=self.clock.milliseconds())
        with self.telling("end_txn", partition, log.log_end_offset, of, commit):
            log.append_as_leader(data, 0, AppendOrigin.COORDINATOR, transaction_version=0)

    def fill(self, partition: str, rounds: int = 3, *, keys: int = 4) -> None:
        """Writes superseded keys, deletes, transactions of both kinds, and batches that a pass compresses again."""
        for number in range(rounds):
            self.add(partition, *((f"k{key}", "1" * 15) for key in range(keys)))
            self.add(partition, ("x", f"{number}" * 10), (f"gone{number % 2}", "there"), codec=(0, 4)[number % 2])
            self.add(partition, (f"gone{number % 2}", None), (f"only{number}", "once"))
            self.transaction(partition, ("k0", "aborted"), (f"only{number}", "aborted"), commit=False)
            self.transaction(
                partition, ("k1", "committed" * 2), (f"late{number}", None), commit=True, codec=4 * (number % 2)
            )

    def roll(self, partition: str) -> None:
        self.log(partition).roll()

    def cut(self, partition: str, offset: int) -> None:
        with self.telling("cut", partition, offset, False):
            self.manager.truncate_to({parse_topic_partition_name(partition): offset})

    def restart(self, partition: str, offset: int) -> None:
        with self.telling("cut", partition, offset, True):
            self.manager.truncate_fully_and_start_at(partition, offset)
            self.manager.checkpoint_log_starts()

    def turn(self) -> bool:
        """Whether something was cleaned."""
        cleaner = self.manager.cleaner
        assert cleaner is not None
        channel = self.manager.failure_channel
        thread = CleanerThread(0, TURNS, cleaner.manager, cleaner.throttler, channel)
        return thread.clean_filthiest_log()

    def turns(self, most: int = 40) -> int:
        """Until nothing is left to clean."""
        for number in range(most):
            if not self.turn():
                return number
        raise AssertionError("the cleaner comes to no end")

    def line(self, partition: str) -> int | None:
        log = self.log(partition)
        return (self.manager.directories.read_cleaner_offsets(log.parent_dir) or {}).get(
            TopicPartition(*_split(partition))
        )


def _split(partition: str) -> tuple[str, int]:
    return parse_topic_partition_name(partition).topic, parse_topic_partition_name(partition).partition


def check_start(root: str | Path, tale: Tale, *, process_only: bool = True, torn: str = "?") -> None:
    """Starts and checks; cleans until deletes are dropped, too; moves, writes and cleans again; ends, starts and checks
    again.

    `torn`: files of that name may stay as they are where nobody writes them.
    """
    house = House(root)
    house.story = copy.deepcopy(tale)
    try:
        manager = house.open()
        assert not manager.offline_log_dirs
        tale.judge(manager, process_only=process_only)
        left = [name for each in house.dirs for name in strangers(each)]
        assert not left, left
        before = states(manager)
        begin_anew(house, tale, before)
        for _ in range(3):
            house.turns()
            assert states(manager) == before
            house.later(60_000 + DELETE_RETENTION_MS)
            for log in manager.all_logs():
                judge_checkpoint(manager, log)
        assert manager.uncleanable_partitions() == []
        go_on(house, before)
        house.shut_down()
        for each in house.dirs:
            findings = [str(finding) for finding in verify(each, deep=True).findings]
            # A power loss may leave a producer snapshot that nobody needs any more without its bytes, as with Kafka.
            known = (torn,) if process_only else (torn, names.PRODUCER_SNAPSHOT_FILE_SUFFIX)
            assert all(any(name in found for name in known) for found in findings), findings[:3]
        again = house.open()
        assert states(again) == before
        for log in again.all_logs():
            judge_checkpoint(again, log)
        house.shut_down()
    finally:
        house.die()


def begin_anew(house: House, tale: Tale, before: dict[str, dict[str, str]]) -> None:
    """Recreates deleted partitions in the directory where they were; the new logs are never clean."""
    for partition, lives in tale.lives.items():
        if house.manager.get_log(partition) is None:
            where = house.dirs[max(lives[-1].disks)]
            log = house.manager.get_or_create_log(partition, is_new=True, log_dir=where)
            for _ in range(30):
                log.append_as_leader(keyed(("k0", "anew"), ("k1", "anew"), ts=house.clock.milliseconds()), 0)
            judge_checkpoint(house.manager, log)
            before[partition] = states(house.manager)[partition]


def go_on(house: House, before: dict[str, dict[str, str]]) -> None:
    """Each log moves, takes records and is cleaned to one record a key."""
    manager = house.manager
    for partition in before:
        log = house.log(partition)
        if log.last_stable_offset < log.log_end_offset:
            continue  # the open transaction stays undecided
        log = manager.move(partition, house.dirs[(int(log.parent_dir[-1]) + 1) % DISKS])
        end = log.log_end_offset
        log.append_as_leader(keyed(("k0", f"{end}.after"), ("deleted", "x"), ts=house.clock.milliseconds()), 0)
        log.append_as_leader(keyed(("deleted", None), ts=house.clock.milliseconds()), 0)
        before[partition]["k0"] = f"{end}.after"
        log.roll()
    for _ in range(3):
        house.turns()
        house.later(60_000 + DELETE_RETENTION_MS)
    assert states(manager) == before
    for partition in before:
        log = house.log(partition)
        if log.last_stable_offset == log.log_end_offset:
            keys = [key for _, key, _ in rows(log)]
            assert len(keys) == len(set(keys)), (partition, rows(log))


def states(manager: LogManager) -> dict[str, dict[str, str]]:
    return {str(log.topic_partition): latest(committed(log)) for log in manager.all_logs() if not log.is_future}


def strangers(log_dir: str) -> list[str]:
    """Leftover files of an exchange."""
    suffixes = (names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX)
    return [
        os.path.join(log_dir, folder, name)
        for folder in os.listdir(log_dir)
        if os.path.isdir(os.path.join(log_dir, folder)) and not names.is_delete_dir(folder)
        for name in os.listdir(os.path.join(log_dir, folder))
        if name.endswith(suffixes)
    ]
