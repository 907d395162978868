"""Backups and restores: the files that are copied, linked or refused, and damage of every kind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import PARTITION_METADATA_FILE, TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    BadBytesError,
    BeingWrittenException,
    CorruptCheckpointException,
    CorruptRecordException,
    IllegalArgumentException,
    LogDirLockedException,
    NoSuchFileException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox import backup as backup_module
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.backup_manifest import MANIFEST_FILE, newest_backup, read_manifest
from kafkalog.toolbox.recovery import recover
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.file_doubles import UnsyncedFiles
from tests.unit.store_kit import NOW_MS, open_store

CONFIG = {
    "internal.segment.bytes": "700",
    "index.interval.bytes": "150",
    "message.timestamp.before.max.ms": str(1 << 60),
}
LOG = "00000000000000000000.log"
FAST = UnsyncedFiles()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two partitions of a few segments, a cursor, a transaction; closed."""
    root = tmp_path / "shop"
    with open_store(root, files=FAST) as store:
        orders = store.create_topic("orders", 2, config=CONFIG)
        for number in range(24):
            orders.append(b"%d" % number * 40, partition=number % 2, timestamp=NOW_MS + number)
        store.create_topic("out", config=CONFIG)
        with store.reader("biller", topics=["orders"]) as reader, store.transaction("biller") as txn:
            txn.append_many("out", [record.value for record in reader.poll(10)])
            txn.commit_offsets(reader)
    return root


def values(root: Path, topic: str = "orders") -> list[tuple[int, int, bytes | None]]:
    with kafkalog.open(root, read_only=True) as store, store.reader(topics=[topic]) as reader:
        return sorted((record.partition, record.offset, record.value) for record in reader)


def copy_of(path: Path) -> Path:
    return path / "log-dir-1"


def files_in(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


# --- what is taken ----------------------------------------------------------------------------------------


def test_a_backup_reads_as_the_source_and_restores_to_it(shop: Path, tmp_path: Path) -> None:
    before = files_in(shop)
    report = backup(shop, tmp_path / "saved", files=FAST)
    assert files_in(shop) == before  # it is only read
    assert (report.partitions, report.findings, report.notes) == (5, [], [])
    assert report.records > 24 + 10
    assert report.copied == report.bytes == read_manifest(str(tmp_path / "saved")).size
    assert values(copy_of(tmp_path / "saved")) == values(shop)
    assert verify(copy_of(tmp_path / "saved"), deep=True).ok
    assert not (copy_of(tmp_path / "saved") / ".kafka_cleanshutdown").exists()
    told: list[int] = []
    restored = restore(tmp_path / "saved", tmp_path / "again", files=FAST, progress=told.append)
    assert sum(told) == restored.bytes == report.bytes
    assert restored.records == report.records
    assert restored.directories == {str(shop): str(tmp_path / "again")}
    with open_store(tmp_path / "again", files=FAST) as store:
        with kafkalog.open(shop, read_only=True) as source:
            assert store.describe_topic("orders") == source.describe_topic("orders")
        assert [info.name for info in store.cursors()] == ["biller"]
        assert store.topic("orders").append(b"more", partition=0).offset == 12
    assert sorted(os.listdir(tmp_path)) == ["again", "saved", "shop"]


SERVER = {
    ".kafkalog_cluster": b"AAAAAAAAAAAAAAAAAAAABQ\n",
    ".kafkalog_producer_ids": b"0\n%d\n" % (1 << 48 | 2000),
    ".kafkalog_server": b'{"version": 0, "revision": 7}',
}


def test_what_a_server_keeps_is_in_a_backup(shop: Path, tmp_path: Path) -> None:
    for name, data in SERVER.items():
        (shop / name).write_bytes(data)
    backup(shop, tmp_path / "saved", files=FAST)
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    salvage(shop, tmp_path / "salvaged", kafkalog.list_partitions(shop), files=FAST)
    for copy in (copy_of(tmp_path / "saved"), tmp_path / "salvaged", tmp_path / "again"):
        for name, data in SERVER.items():
            if copy.name != "again" or name != ".kafkalog_producer_ids":
                assert (copy / name).read_bytes() == data
        assert stat.S_IMODE((copy / ".kafkalog_server").stat().st_mode) == 0o600
    first_free = int((tmp_path / "again" / ".kafkalog_producer_ids").read_bytes().split()[1])
    assert first_free >= (1 << 48 | 2000) + 1000  # ids that were given since the backup are not given again
    assert verify(tmp_path / "again").ok


def test_users_are_not_in_a_copy_of_some_partitions(shop: Path, tmp_path: Path) -> None:
    for name, data in SERVER.items():
        (shop / name).write_bytes(data)
    backup(shop, tmp_path / "whole", files=FAST)
    backup(shop, tmp_path / "some", partitions=["orders-0"], files=FAST)
    restore(tmp_path / "whole", tmp_path / "again", partitions=["orders-0"], files=FAST)
    one = {each: path for each, path in kafkalog.list_partitions(shop).items() if each == ("orders", 0)}
    salvage(shop, tmp_path / "salvaged", one, files=FAST)
    found = {
        copy.name: sorted(SERVER.keys() & set(os.listdir(copy)))
        for copy in (copy_of(tmp_path / "some"), tmp_path / "again", tmp_path / "salvaged")
    }
    others = [".kafkalog_cluster", ".kafkalog_producer_ids"]
    assert found == {"log-dir-1": others, "again": others, "salvaged": []}


def test_checkpoints_say_no_more_than_what_is_there(shop: Path, tmp_path: Path) -> None:
    partition = TopicPartition("orders", 0)
    with open_store(shop, files=FAST) as store:
        store.topic("orders").partition(0).delete_records(5)
    for name in ("replication-offset-checkpoint", "cleaner-offset-checkpoint"):
        OffsetCheckpointFile(str(shop / name), FAST).write({partition: 1000, TopicPartition("gone", 0): 7})
    backup(shop, tmp_path / "saved", files=FAST)
    lines = {
        name: OffsetCheckpointFile(str(copy_of(tmp_path / "saved") / name), FAST).read()
        for name in os.listdir(copy_of(tmp_path / "saved"))
        if name.endswith("-checkpoint")
    }
    assert lines["recovery-point-offset-checkpoint"][partition] == 12
    assert lines["log-start-offset-checkpoint"] == {partition: 5}
    assert lines["replication-offset-checkpoint"] == lines["cleaner-offset-checkpoint"] == {partition: 12}
    assert PartitionView(copy_of(tmp_path / "saved"), partition).log_start_offset == 5


def test_an_open_store_backs_itself_up(shop: Path, tmp_path: Path) -> None:
    """In the same process, with a transaction open: it is aborted in the copy, and continues here."""
    with open_store(shop, files=FAST) as store:
        with store.transaction("other") as txn:
            txn.append("orders", b"half", partition=0)
            backup(shop, tmp_path / "saved", files=FAST)
            txn.append("out", b"the other half")
        restore(tmp_path / "saved", tmp_path / "restored", files=FAST)
        with open_store(tmp_path / "restored", files=FAST) as copy:
            log = copy.manager.get_log("orders-0")
            assert log is not None
            assert log.last_stable_offset == log.log_end_offset
            with copy.reader(topics=["orders", "out"], isolation="read_committed") as reader:
                assert b"half" not in [record.value for record in reader]
        with store.reader(topics=["orders", "out"], isolation="read_committed") as reader:
            assert {b"half", b"the other half"} <= {record.value for record in reader}


def test_some_partitions_and_some_of_them_back(shop: Path, tmp_path: Path) -> None:
    report = backup(shop, tmp_path / "saved", partitions=["orders-1", TopicPartition("out", 0)], files=FAST)
    assert report.partitions == 3  # and the one of __transaction_state
    restore(tmp_path / "saved", tmp_path / "again", partitions=["orders-1"], files=FAST)
    states = {name for name in os.listdir(shop) if name.startswith("__transaction_state")}
    there = {name for name in os.listdir(tmp_path / "again") if (tmp_path / "again" / name).is_dir()}
    assert there == {"orders-1"} | states
    assert (
        "out" not in json.loads((tmp_path / "again" / ".kafkalog_topics").read_text().split("\n}")[0] + "}")["topics"]
    )
    for asked in (
        lambda: backup(shop, tmp_path / "no", partitions=["nothing-0"], files=FAST),
        lambda: restore(tmp_path / "saved", tmp_path / "no", partitions=["orders-0"], files=FAST),
    ):
        with pytest.raises(UnknownTopicOrPartitionException):
            asked()
    assert not (tmp_path / "no").exists()


def test_several_directories(tmp_path: Path) -> None:
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    with open_store(roots, files=FAST) as store:
        store.create_topic("orders", 4, config=CONFIG).append_many([b"%d" % number for number in range(40)])
        with store.transaction("x") as txn:
            txn.append_many("orders", [b"in a transaction"] * 8)
    report = backup(roots, tmp_path / "saved", files=FAST)
    restored = restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    assert (report.partitions, restored.partitions) == (5, 5)
    again = list(restored.directories.values())
    assert again == [str(tmp_path / "again" / name) for name in ("log-dir-1", "log-dir-2")]
    with kafkalog.open(again, read_only=True) as store, store.reader(topics=["orders"]) as reader:
        assert sum(1 for _ in reader) == 48
    with pytest.raises(IllegalArgumentException, match="once"):
        backup([roots[0], roots[0]], tmp_path / "no")
    shutil.copytree(roots[0], tmp_path / "disk3")
    with pytest.raises(IllegalArgumentException, match="two of the directories"):
        backup([roots[0], tmp_path / "disk3"], tmp_path / "no")
    with pytest.raises(IllegalArgumentException, match="found none"):
        backup([], tmp_path / "no")


# --- linked, cloned -----------------------------------------------------------------------------------------


def test_what_did_not_change_is_linked_from_the_base(shop: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "saved" / "1", tmp_path / "saved" / "2"
    backup(shop, first, files=FAST)
    with open_store(shop, files=FAST) as store:
        store.topic("orders").append(b"more", partition=0)
    report = backup(shop, second, base=tmp_path / "saved", files=FAST)
    assert report.base == str(first)
    assert report.kept > report.copied / 2
    closed = sorted((copy_of(second) / "orders-0").glob("*.log"))
    assert [os.stat(path).st_nlink for path in closed] == [2] * (len(closed) - 1) + [1]
    assert values(copy_of(second)) == values(shop)
    shutil.rmtree(first)
    assert restore(second, tmp_path / "again", files=FAST).records == report.records


def test_the_same_bytes_under_other_names_are_linked_too(shop: Path, tmp_path: Path) -> None:
    """A directory that was copied to another disk."""
    backup(shop, tmp_path / "1", files=FAST)
    shutil.copytree(shop, tmp_path / "moved")
    report = backup(tmp_path / "moved", tmp_path / "2", base=tmp_path / "1", files=FAST)
    logs = sum(path.stat().st_size for path in shop.glob("orders-?/*.log"))
    assert logs * 0.6 < report.kept < logs


@pytest.mark.parametrize("change", ["compacted", "other topic", "base was cut", "base is damaged"])
def test_what_is_not_the_same_is_taken_anew(shop: Path, tmp_path: Path, change: str) -> None:
    backup(shop, tmp_path / "1", files=FAST)
    log = shop / "orders-0" / LOG
    held = copy_of(tmp_path / "1") / "orders-0" / LOG
    if change == "compacted":
        data = log.read_bytes()
        log.unlink()
        log.write_bytes(data[: len(data) // 2 // 110 * 110] or data)
        shutil.copytree(shop / "orders-1", tmp_path / "aside")
        log.write_bytes((tmp_path / "aside" / LOG).read_bytes())
    elif change == "other topic":
        (shop / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    elif change == "base was cut":
        held.write_bytes(held.read_bytes()[:-1])
    else:
        data = bytearray(held.read_bytes())
        data[-1] ^= 1
        held.write_bytes(data)
    backup(shop, tmp_path / "2", base=tmp_path / "1", files=FAST)
    taken = copy_of(tmp_path / "2") / "orders-0" / LOG
    if change == "base is damaged":  # not looked for: a restore tells
        with pytest.raises(CorruptRecordException, match="CRC-32C"):
            restore(tmp_path / "2", tmp_path / "again", act=False)
    else:
        assert taken.read_bytes() == log.read_bytes()
        assert os.stat(taken).st_nlink == 1


def test_links_to_the_source_are_made_on_request_alone(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "1", files=FAST)
    report = backup(shop, tmp_path / "2", link=True, files=FAST)
    assert report.linked > 0
    for name in ("1", "2"):
        logs = sorted((copy_of(tmp_path / name) / "orders-0").iterdir())
        same = {path.name for path in logs if os.path.samefile(path, shop / "orders-0" / path.name)}
        closed = {path.name for path in logs if path.suffix == ".log"} - {
            max(p.name for p in logs if p.suffix == ".log")
        }
        assert same == (closed if name == "2" else set())
    assert values(copy_of(tmp_path / "2")) == values(shop)


class Elsewhere(UnsyncedFiles):
    """Another file system: no links."""

    def link(self, src: str, dst: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src)


def test_where_the_file_system_links_nothing_it_copies_and_says_so(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "1", files=FAST)
    report = backup(shop, tmp_path / "2", link=True, base=tmp_path / "1", files=Elsewhere())
    assert report.linked == report.kept == 0
    assert len([text for text in report.notes if "the file system cannot link them" in text]) == 1
    assert values(copy_of(tmp_path / "2")) == values(shop)


class Cloned(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        pass

    def clone_from(self, source: object) -> bool:
        data = source.pread(1 << 20, 0)  # type: ignore[attr-defined]
        self.pwrite(data, 0)
        return True


class Cloning(UnsyncedFiles):
    """A file system that has reflinks (whole files, as FICLONE)."""

    file_class = Cloned  # type: ignore[assignment]


def test_reflinks_come_first_and_are_cut_where_the_log_ends(shop: Path, tmp_path: Path) -> None:
    last = max((shop / "orders-0").glob("*.log"))
    whole = last.read_bytes()
    last.write_bytes(whole + whole[: len(whole) // 2][:40])  # a batch that is being written
    (shop / ".kafka_cleanshutdown").unlink()
    report = backup(shop, tmp_path / "saved", link=True, files=Cloning())
    assert report.cloned > 0
    assert report.linked == 0
    assert (copy_of(tmp_path / "saved") / "orders-0" / last.name).read_bytes() == whole
    assert restore(tmp_path / "saved", tmp_path / "again", files=Cloning()).records == report.records


# --- damage -------------------------------------------------------------------------------------------------


def flip(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["closed", "last", "index", "epochs", "snapshot"])
def test_damage_is_told_and_copied_as_it_is(shop: Path, tmp_path: Path, which: str) -> None:
    folder = shop / "orders-0"
    logs = sorted(folder.glob("*.log"))
    path = {
        "closed": logs[0],
        "last": logs[-1],
        "index": folder / LOG.replace(".log", ".timeindex"),
        "epochs": folder / "leader-epoch-checkpoint",
        "snapshot": max(folder.glob("*.snapshot")),
    }[which]
    if which == "epochs":
        path.write_text("0\n2\n0 0\n")
    elif which == "last":
        with open_store(shop, files=FAST) as store:
            store.topic("orders").append(b"behind", partition=0)
        flip(path, 70)
    else:
        flip(path)
    report = backup(shop, tmp_path / "saved", files=FAST)
    assert str(path) in {finding.path for finding in report.findings}
    assert {Path(finding.path).stem for finding in report.findings} == {path.stem}
    assert (copy_of(tmp_path / "saved") / "orders-0" / path.name).read_bytes() == path.read_bytes()
    held = read_manifest(str(tmp_path / "saved"))
    assert held.findings == report.findings
    assert restore(tmp_path / "saved", tmp_path / "again", files=FAST).findings == report.findings
    again = backup(shop, tmp_path / "2", base=tmp_path / "saved", files=FAST)  # it is reported each time
    assert again.findings == report.findings
    if which in ("closed", "last"):
        points = OffsetCheckpointFile(
            str(copy_of(tmp_path / "saved") / "recovery-point-offset-checkpoint"), FAST
        ).read()
        assert points[TopicPartition("orders", 0)] <= 13
    with pytest.raises(CorruptRecordException) as met:
        backup(shop, tmp_path / "strict", strict=True, files=FAST)
    assert met.value.path == str(path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("strict")]


def test_settings_that_cannot_be_read_are_kept_as_they_are(shop: Path, tmp_path: Path) -> None:
    (shop / ".kafkalog_topics").write_text("{")
    report = backup(shop, tmp_path / "saved", files=FAST)
    assert [finding.path for finding in report.findings] == [str(shop / ".kafkalog_topics")]
    assert (copy_of(tmp_path / "saved") / ".kafkalog_topics").read_text() == "{"


def test_an_empty_partition_and_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    assert backup(tmp_path / "logs", tmp_path / "1", files=FAST).partitions == 1
    assert backup(tmp_path / "empty", tmp_path / "2", files=FAST).partitions == 0
    restore(tmp_path / "1", tmp_path / "again", files=FAST)
    restore(tmp_path / "2", tmp_path / "again2", files=FAST)
    with kafkalog.open_log(tmp_path / "again", "orders-0") as log:
        assert log.append(b"1") == 0


def test_folders_on_their_way_are_left_and_named(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "orders-0", shop / f"orders-0.{'0' * 32}-delete")
    report = backup(shop, tmp_path / "saved", files=FAST)
    (note,) = report.notes
    assert "-delete" in note
    assert not list(copy_of(tmp_path / "saved").glob("*-delete"))


# --- what changes meanwhile ---------------------------------------------------------------------------------


class Meanwhile(UnsyncedFiles):
    """Does something, once or always, after the n-th new file below a directory."""

    def __init__(self, place: Path, number: int, do: Callable[[], object], *, always: bool = False) -> None:
        super().__init__()
        self.place, self.number, self.do, self.always = str(place), number, do, always
        self.made = 0

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        file = super().open(path, writable=writable, create=create, exclusive=exclusive)
        if exclusive and path.startswith(self.place):
            self.made += 1
            if self.made == self.number or (self.always and self.made > self.number):
                self.do()
        return file


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("what", ["delete", "truncate", "rewrite", "append"])
def test_what_changes_while_it_is_copied(shop: Path, tmp_path: Path, what: str, number: int) -> None:
    """Each new file of the copy is a place where the source may change."""
    store = open_store(shop, files=FAST)
    partition = store.topic("orders").partition(0)

    def change() -> None:
        if what == "delete":
            partition.delete_records(7)
            partition.delete_old_segments()
        elif what == "append":
            partition.append(b"more")
        else:
            partition.truncate(3)
            if what == "rewrite":
                for count in range(3, 12):
                    partition.append(b"%d" % count * 41, timestamp=NOW_MS)

    files = Meanwhile(tmp_path / "saved.kafkalog-partial" / "log-dir-1" / "orders-0", number, change)
    report = backup(shop, tmp_path / "saved", files=files)
    assert not report.findings
    assert verify(copy_of(tmp_path / "saved"), deep=True).ok
    with kafkalog.open_log(copy_of(tmp_path / "saved"), "orders-0", read_only=True) as log:
        copied = [(record.offset, record.value) for record in log]
    old = [(count, b"%d" % (2 * count) * 40) for count in range(12)]
    new = {
        "delete": [row for row in old if row[0] >= 7],
        "truncate": old[:3],
        "rewrite": [*old[:3], *((count, b"%d" % count * 41) for count in range(3, 12))],
        "append": [*old, (12, b"more")],
    }[what]
    assert copied in (old, new, new[:-1] if what == "append" else new)
    store.close()


def test_a_partition_that_never_rests(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.backup_partition.REST_S", 0)
    path = shop / "orders-0" / LOG

    def touch() -> None:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)

    files = Meanwhile(tmp_path / "saved.kafkalog-partial" / "log-dir-1" / "orders-0", 0, touch, always=True)
    with pytest.raises(BeingWrittenException, match="orders-0"):
        backup(shop, tmp_path / "saved", files=files)
    assert sorted(os.listdir(tmp_path)) == ["shop"]


def test_what_seems_wrong_somewhere_else_at_each_look_is_looked_at_again(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same happens if a writer truncates the log and continues, again and again, within one tick of the file
    system's clock."""
    monkeypatch.setattr("kafkalog.toolbox.backup_partition.REST_S", 0)
    path = shop / "orders-0" / LOG
    data, times = path.read_bytes(), os.stat(path)
    looks = 0

    class Lying(UnsyncedFiles):
        def open(self, path_: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
            nonlocal looks
            if exclusive and path_.endswith(f"orders-0/{LOG}"):
                looks += 1
                seen = bytearray(data)
                if looks < 4:
                    seen[len(data) - 100 * looks] ^= 1
                path.write_bytes(seen)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            return super().open(path_, writable=writable, create=create, exclusive=exclusive)

    report = backup(shop, tmp_path / "saved", files=Lying())
    assert report.findings == []
    assert looks == 4
    assert verify(copy_of(tmp_path / "saved"), deep=True).ok


def test_a_partition_that_goes_away(shop: Path, tmp_path: Path) -> None:
    files = Meanwhile(
        tmp_path / "saved.kafkalog-partial" / "log-dir-1" / "orders-0", 2, lambda: shutil.rmtree(shop / "orders-0")
    )
    report = backup(shop, tmp_path / "saved", files=files)
    assert report.partitions == 4
    assert any("orders-0 was deleted" in text for text in report.notes)
    assert not (copy_of(tmp_path / "saved") / "orders-0").exists()


def committed(root: Path, topic: str = "orders") -> list[list[bytes | None]]:
    """By partition, of a store that is opened to write: its coordinator ends what was open."""
    with open_store(root, files=FAST) as store:
        held = [store.topic(topic).partition(number) for number in range(store.topic(topic).partitions)]
        return [[each.value for each in partition.records(isolation="read_committed")] for partition in held]


@pytest.mark.parametrize("is_decided", [True, False])
@pytest.mark.parametrize("when", ["between looks", "while it copies"])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_transaction_of_an_id_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_decided: bool, when: str, is_first: bool
) -> None:
    """Its partition of __transaction_state is created after the first listing."""
    with open_store(tmp_path / "shop", files=FAST) as store:
        store.create_topic("orders", 3)
        for number in range(3):
            store.topic("orders").append(b"plain", partition=number)
        if not is_first:
            with store.transaction("zebra-7") as txn:
                txn.append("orders", b"old", partition=0)
        begun: list[kafkalog.Transaction] = []

        def begin(*_: object) -> None:
            if not begun:
                begun.append(store.transaction("first"))
                begun[0].begin()
                for number in range(3):
                    begun[0].append("orders", b"new", partition=number)
                if is_decided:
                    begun[0].commit()

        def view(log_dir: str, partition: TopicPartition, **more: object) -> PartitionView:
            if partition == TopicPartition("orders", 1):
                begin()
            return PartitionView(log_dir, partition, **more)  # type: ignore[arg-type]

        if when == "between looks":
            monkeypatch.setattr("kafkalog.toolbox.backup.PartitionView", view)
            backup(tmp_path / "shop", tmp_path / "saved", files=FAST)
        else:
            backup(tmp_path / "shop", tmp_path / "saved", files=FAST, progress=begin)
        if not is_decided:
            begun[0].commit()
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    is_in = is_decided and when == "between looks"
    old = [[b"plain"] + [b"old"] * (number == 0 and not is_first) for number in range(3)]
    assert committed(tmp_path / "again") == [each + [b"new"] * is_in for each in old]
    with open_store(tmp_path / "again", files=FAST) as store, store.transaction("first") as txn:
        txn.append("orders", b"next", partition=2)
    assert committed(tmp_path / "again")[2][-1] == b"next"


def test_states_that_are_made_at_each_look(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.backup.LOOKS_MAX", 1)
    monkeypatch.setattr("kafkalog.toolbox.backup.STATE_LOOKS_MAX", 3)
    real, made = backup_module.moment_of, iter(range(50))

    def moment_of(*args: object) -> object:
        (shop / f"__transaction_state-{50 + next(made)}").mkdir()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("kafkalog.toolbox.backup.moment_of", moment_of)
    with pytest.raises(BeingWrittenException, match="__transaction_state were created during each of 3 attempts"):
        backup(shop, tmp_path / "saved", files=FAST)
    assert sorted(os.listdir(tmp_path)) == ["shop"]


def test_topics_that_are_made_all_the_time_end_no_backup(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = backup_module.moment_of, iter(range(50))

    def moment_of(*args: object) -> object:
        (shop / f"new-{next(made)}").mkdir()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("kafkalog.toolbox.backup.moment_of", moment_of)
    report = backup(shop, tmp_path / "saved", files=FAST)
    assert 5 < report.partitions <= 5 + next(made)
    assert values(copy_of(tmp_path / "saved")) == values(shop)


@pytest.mark.parametrize("again", ["", "with an id", "without an id"])
def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path, again: str) -> None:
    """Also where one of its partitions was copied before, and where there is another one of that name since."""
    with open_store(tmp_path / "shop", files=FAST) as store:
        for topic in ("a", "z"):
            store.create_topic(topic, 2)
            for number in range(2):
                store.topic(topic).append(topic.encode(), partition=number)
        told: list[int] = []

        def delete(size: int) -> None:
            told.append(size)
            if len(told) == 3:  # z-0 was just taken
                store.delete_topic("z")
                if again:
                    store.create_topic("z", 2)
                if again == "without an id":
                    for log in store.manager.logs_by_topic("z"):
                        log.maybe_flush_metadata_file()  # a task does this, sooner or later
                        os.remove(os.path.join(log.dir, PARTITION_METADATA_FILE))

        report = backup(tmp_path / "shop", tmp_path / "saved", files=FAST, progress=delete)
    assert report.notes[-1] == "the topic z was deleted during the backup: it is left out, with its settings"
    assert report.findings == []
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    assert sorted(path.name for path in (tmp_path / "again").glob("?-?")) == ["a-0", "a-1"]
    with open_store(tmp_path / "again", files=FAST) as store:
        assert list(store.topics()) == ["a"]
        assert [record.value for record in store.records()] == [b"a", b"a"]
        store.create_topic("z")
        assert store.topic("z").append(b"new") is not None


@pytest.mark.parametrize("what", ["a topic", "a state partition"])
def test_settings_are_of_the_time_of_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    real = backup_module.folders_of
    with open_store(tmp_path / "shop", files=FAST) as store:
        store.create_topic("a").append(b"v")

        def behind(*args: object) -> object:
            if what == "a topic":
                store.create_topic("late")
            else:
                with store.transaction("first") as txn:
                    txn.append("a", b"late")
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr("kafkalog.toolbox.backup.folders_of", behind)
        backup(tmp_path / "shop", tmp_path / "saved", files=FAST)
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    assert committed(tmp_path / "again", "a") == [[b"v"]]
    with open_store(tmp_path / "again", files=FAST) as store:
        assert list(store.topics()) == ["a"]
        with store.transaction("first") as txn:
            txn.append("a", b"now")


def test_some_partitions_come_back_without_the_states_that_stay_away(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "all", files=FAST)
    restore(tmp_path / "all", tmp_path / "1", partitions=["out-0"], files=FAST)
    backup(shop, tmp_path / "some", partitions=["out-0"], files=FAST)
    restore(tmp_path / "some", tmp_path / "2", files=FAST)
    for path in (tmp_path / "1", tmp_path / "2"):
        with open_store(path, files=FAST) as store:
            assert list(store.topics()) == ["out"]
            with store.transaction("biller") as txn:
                txn.append("out", b"now")


def test_a_partition_that_moves_to_another_directory_meanwhile(tmp_path: Path) -> None:
    for name, partition in (("d1", "a-0"), ("d1", "b-0"), ("d2", "c-0")):
        with kafkalog.open_log(tmp_path / name, partition, files=FAST) as log:
            log.append(partition.encode())
    told: list[int] = []

    def move(size: int) -> None:
        if not told:
            (tmp_path / "d1" / "b-0").rename(tmp_path / "d2" / "b-0")
        told.append(size)

    report = backup([tmp_path / "d1", tmp_path / "d2"], tmp_path / "saved", files=FAST, progress=move)
    assert (report.partitions, report.notes) == (3, [])
    with kafkalog.open_log(tmp_path / "saved" / "log-dir-2", "b-0", read_only=True) as log:
        assert [record.value for record in log] == [b"b-0"]


# --- refusals -------------------------------------------------------------------------------------------------


def test_places_that_are_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "file").write_text("x")
    backup(shop, tmp_path / "saved", files=FAST)
    for dest in (shop, shop / "inside", tmp_path, tmp_path / "full", tmp_path / "file", tmp_path / "saved"):
        with pytest.raises(IllegalArgumentException):
            backup(shop, dest, files=FAST)
    for target in (tmp_path / "full", tmp_path / "file", tmp_path / "saved", tmp_path / "saved" / "in", shop, tmp_path):
        with pytest.raises(IllegalArgumentException):
            restore(tmp_path / "saved", target, files=FAST)
    for wrong in (tmp_path / "nothing", tmp_path / "full", shop, tmp_path / "file"):
        with pytest.raises(NoSuchFileException):
            restore(wrong, tmp_path / "again", files=FAST)
    with pytest.raises(NoSuchFileException):
        backup(shop, tmp_path / "again", base=tmp_path / "nothing", files=FAST)
    assert not (tmp_path / "again").exists()


def test_symbolic_links_are_no_targets(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "saved", files=FAST)
    (tmp_path / "empty").mkdir()
    (tmp_path / "to-empty").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nothing")
    before = sorted(os.listdir(tmp_path))
    for name in ("to-empty", "dangling"):
        told: list[int] = []
        with pytest.raises(IllegalArgumentException, match=f"{name}: dest is a symbolic link"):
            backup(shop, tmp_path / name, files=FAST, progress=told.append)
        with pytest.raises(IllegalArgumentException, match=f"{name}: target_dir is a symbolic link"):
            restore(tmp_path / "saved", tmp_path / name, files=FAST, progress=told.append)
        assert told == []
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "empty") == []


def test_log_directories_are_no_place_for_another(shop: Path, tmp_path: Path) -> None:
    """Also a closed one, a partition's directory in it, a link to it, and an existing empty directory."""
    backup(shop, tmp_path / "saved", files=FAST)
    with kafkalog.open_log(tmp_path / "other", "t-0", files=FAST) as log:
        log.append(b"1")
    (tmp_path / "link").symlink_to("shop/orders-0")
    (tmp_path / "other" / "empty").mkdir()
    for inside in ("other/new", "other/t-0/new", "other/t-0/new/deep", "other/empty"):
        with pytest.raises(IllegalArgumentException, match=r"other has .*, so it is a log directory"):
            backup(shop, tmp_path / inside, files=FAST)
    for inside in ("other/new", "other/empty", "shop/new", "shop/orders-0/new", "link/new"):
        for act in (False, True):
            with pytest.raises(IllegalArgumentException, match="so it is a log directory"):
                restore(tmp_path / "saved", tmp_path / inside, act=act, files=FAST)
    assert not list(tmp_path.rglob("new*"))


def test_a_base_that_is_a_log_directory(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "saved", files=FAST)
    for base in (shop, copy_of(tmp_path / "saved")):
        with pytest.raises(IllegalArgumentException, match="so it is a log directory; expected a backup"):
            backup(shop, tmp_path / "2", base=base, files=FAST)
    assert sorted(os.listdir(tmp_path)) == ["saved", "shop"]


def test_names_of_partitions(shop: Path, tmp_path: Path) -> None:
    """One by itself is that one; pairs of every kind; none is refused."""
    backup(shop, tmp_path / "saved", files=FAST)
    one: tuple[Any, ...] = ("orders-0", TopicPartition("orders", 0), [("orders", 0)], {"orders-0"})
    for number, wanted in enumerate(one):
        assert backup(shop, tmp_path / f"b{number}", partitions=wanted, files=FAST).partitions == 2
        ends = restore(tmp_path / "saved", tmp_path / f"r{number}", partitions=wanted, files=FAST).ends
        assert {each.topic: each.partition for each in ends}["orders"] == 0
        assert {each.topic for each in ends} == {"orders", "__transaction_state"}
    wrong: tuple[Any, ...] = ([], (), 3, [3], [("orders", "0")], [("orders",)], b"orders-0", [None])
    for partitions in wrong:
        with pytest.raises(IllegalArgumentException, match="partitions is"):
            backup(shop, tmp_path / "new", partitions=partitions, files=FAST)
        with pytest.raises(IllegalArgumentException, match="partitions is"):
            restore(tmp_path / "saved", tmp_path / "new", partitions=partitions, files=FAST)
    assert not list(tmp_path.glob("new*"))


def test_paths_with_a_nul(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "saved", files=FAST)
    nul = str(tmp_path / "a\0b")
    with pytest.raises(IllegalArgumentException, match="dest: found"):
        backup(shop, nul, files=FAST)
    with pytest.raises(IllegalArgumentException, match="base: found"):
        backup(shop, tmp_path / "2", base=nul, files=FAST)
    with pytest.raises(IllegalArgumentException, match="backup_dir: found"):
        restore(nul, tmp_path / "2", files=FAST)
    with pytest.raises(IllegalArgumentException, match="target_dir: found"):
        restore(tmp_path / "saved", nul, files=FAST)


def test_targets_that_are_held(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "saved", files=FAST)
    with FAST.lock(str(tmp_path / "2.kafkalog-partial.lock")), pytest.raises(LogDirLockedException):
        backup(shop, tmp_path / "2", files=FAST)
    (tmp_path / "again").mkdir()
    with FAST.lock(str(tmp_path / "again" / ".lock")), pytest.raises(LogDirLockedException):
        restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    (tmp_path / "again" / ".lock").write_text("")  # left by a process that died
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    assert values(tmp_path / "again") == values(shop)


def test_what_a_killed_one_left_is_removed(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "saved.kafkalog-partial" / "log-dir-1").mkdir(parents=True)
    (tmp_path / "saved.kafkalog-partial" / "log-dir-1" / "junk").write_text("x")
    (tmp_path / "saved.kafkalog-partial.lock").write_text("")
    (tmp_path / "saved").mkdir()  # an empty directory may exist
    backup(shop, tmp_path / "saved", files=FAST)
    assert not list((tmp_path / "saved").rglob("junk"))
    assert sorted(os.listdir(tmp_path)) == ["saved", "shop"]


@pytest.mark.parametrize("where", ["log", "index", "missing", "longer", "manifest"])
def test_a_backup_that_is_not_as_its_manifest_says_is_not_restored(shop: Path, tmp_path: Path, where: str) -> None:
    backup(shop, tmp_path / "saved", files=FAST)
    path = copy_of(tmp_path / "saved") / "orders-0" / LOG
    if where == "log":
        flip(path)
    elif where == "index":
        path = path.with_suffix(".timeindex")
        flip(path)
    elif where == "missing":
        path.unlink()
    elif where == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        path = tmp_path / "saved" / MANIFEST_FILE
        path.write_text(path.read_text().replace('"version":1', '"version":2'))
    for act in (False, True):
        with pytest.raises((BadBytesError, NoSuchFileException)) as met:
            restore(tmp_path / "saved", tmp_path / "again", act=act, files=FAST)
        assert met.value.path == str(path)
        assert sorted(os.listdir(tmp_path)) == ["saved", "shop"]


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda content: [1],
    "another format": lambda content: {**content, "format": "x"},
    "no directories": lambda content: {key: value for key, value in content.items() if key != "directories"},
    "a folder elsewhere": lambda content: _in_directory(content, "folder", "../../etc"),
    "a folder of no name": lambda content: _in_directory(content, "folder", ""),
    "a file elsewhere": lambda content: _in_file(content, "name", "../passwd"),
    "a size below zero": lambda content: _in_file(content, "size", -1),
    "a size of text": lambda content: _in_file(content, "size", "1"),
    "a checksum of text": lambda content: _in_file(content, "crc32c", "no"),
    "a checksum too large": lambda content: _in_file(content, "crc32c", "100000000"),
    "no source": lambda content: _in_file(content, "source", [1]),
    "a topic elsewhere": lambda content: _in_partition(content, "topic", "../x"),
    "a partition of text": lambda content: _in_partition(content, "partition", "0"),
    "an offset too large": lambda content: _in_partition(content, "endOffset", 1 << 70),
    "no directory": lambda content: {**content, "directories": []},
    "a directory twice": lambda content: {**content, "directories": [*content["directories"], *content["directories"]]},
    "a partition twice": lambda content: _in_directory(
        content, "partitions", [*content["directories"][0]["partitions"]] * 2
    ),
    "a file twice": lambda content: _in_directory(content, "files", [*content["directories"][0]["files"]] * 2),
    "a partition too large": lambda content: _in_partition(content, "partition", 1 << 40),
    "segments that are none": lambda content: _in_partition(content, "segments", [3]),
}


def _in_directory(content: dict, name: str, value: object) -> dict:
    content["directories"][0][name] = value
    return content


def _in_partition(content: dict, name: str, value: object) -> dict:
    content["directories"][0]["partitions"][0][name] = value
    return content


def _in_file(content: dict, name: str, value: object) -> dict:
    content["directories"][0]["files"][0][name] = value
    return content


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_manifests(tmp_path: Path, how: str) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0", files=FAST) as log:
        log.append(b"1")
    backup(tmp_path / "logs", tmp_path / "saved", files=FAST)
    path = tmp_path / "saved" / MANIFEST_FILE
    path.write_text(json.dumps(HOSTILE[how](json.loads(path.read_text()))))
    with pytest.raises(CorruptCheckpointException) as met:
        read_manifest(str(tmp_path / "saved"))
    assert met.value.path == str(path)
    with pytest.raises(CorruptCheckpointException):
        backup(tmp_path / "logs", tmp_path / "2", base=tmp_path / "saved", files=FAST)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptCheckpointException):
        restore(tmp_path / "saved", tmp_path / "again", files=FAST)


def test_the_newest_of_a_folder(shop: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    assert newest_backup(str(folder)) is None
    assert backup(shop, folder / "b", base=folder, files=FAST).base is None
    backup(shop, folder / "a", files=FAST)
    shutil.copytree(folder / "a", folder / "c.kafkalog-partial")
    found = newest_backup(str(folder))
    assert found is not None
    assert found[0] == str(folder / "a")
    assert newest_backup(str(folder), sources=["/another"]) is None


@pytest.mark.parametrize("option", ["link", "strict"])
def test_wrong_types(shop: Path, tmp_path: Path, option: str) -> None:
    with pytest.raises(IllegalArgumentException):
        backup(shop, tmp_path / "saved", **{option: "yes"})  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentException):
        backup(shop, tmp_path / "saved", progress=3)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentException):
        backup(3, tmp_path / "saved")  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentException):
        restore(tmp_path, tmp_path / "again", act="no")  # type: ignore[arg-type]
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_an_end_that_is_known_to_be_missing(shop: Path, tmp_path: Path, how: str) -> None:
    """Readers see a shorter log; the bytes after it are kept, and reported."""
    last = max((shop / "orders-0").glob("*.log"))
    if how == "flipped":
        flip(last, 70)
    else:
        last.write_bytes(last.read_bytes()[:50])
    report = backup(shop, tmp_path / "saved", files=FAST)
    assert str(last) in {finding.path for finding in report.findings}
    assert (copy_of(tmp_path / "saved") / "orders-0" / last.name).read_bytes() == last.read_bytes()


def test_a_log_that_is_a_symbolic_link_is_copied_where_links_are_asked_for(shop: Path, tmp_path: Path) -> None:
    """A second name of it would be a link to the source's file: nothing of the backup would be there without that."""
    log = shop / "orders-0" / LOG
    (tmp_path / "elsewhere").mkdir()
    log.rename(tmp_path / "elsewhere" / LOG)
    log.symlink_to(tmp_path / "elsewhere" / LOG)
    expected = values(shop)
    backup(shop, tmp_path / "saved", link=True, files=FAST)
    assert not [path for path in (tmp_path / "saved").rglob("*") if path.is_symlink()]
    # One that somebody put into a base stays there.
    (copy_of(tmp_path / "saved") / "orders-0" / LOG).unlink()
    (copy_of(tmp_path / "saved") / "orders-0" / LOG).symlink_to(tmp_path / "elsewhere" / LOG)
    report = backup(shop, tmp_path / "next", base=tmp_path / "saved", files=FAST)
    assert report.findings == []
    shutil.rmtree(tmp_path / "elsewhere")
    assert values(copy_of(tmp_path / "next")) == expected
    assert restore(tmp_path / "next", tmp_path / "again", files=FAST).records == report.records


def test_partitions_of_the_base_that_are_not_there_are_told(shop: Path, tmp_path: Path) -> None:
    """A disk that is not mounted looks like a directory without them."""
    backup(shop, tmp_path / "saved", files=FAST)
    shutil.rmtree(shop / "orders-1")
    report = backup(shop, tmp_path / "next", base=tmp_path / "saved", files=FAST)
    (note,) = report.notes
    assert note.startswith(f"missing since {tmp_path / 'saved'}: orders-1. Were they deleted, or is a disk not")
    assert backup(shop, tmp_path / "some", partitions=["orders-0"], base=tmp_path / "saved", files=FAST).notes == []


def test_nobody_opens_a_backup_to_write(shop: Path, tmp_path: Path) -> None:
    """It stays restorable, also through a link; reading still works."""
    backup(shop, tmp_path / "saved", files=FAST)
    inside = copy_of(tmp_path / "saved")
    (tmp_path / "link").symlink_to(inside)
    before = files_in(tmp_path / "saved")
    told = r"a directory of a backup.*kafkalog restore .*saved NEW_DIR.*read_only=True"
    for place in (inside, tmp_path / "link"):
        for call in (
            lambda place=place: kafkalog.open(place),
            lambda place=place: kafkalog.open([tmp_path / "other", place]),
            lambda place=place: kafkalog.open(tmp_path / "again", read_only=True, cursors=place),
            lambda place=place: kafkalog.open_log(place, "orders-0"),
            lambda place=place: kafkalog.open_log(place, "new-0"),
            lambda place=place: kafkalog.LogManager([str(place)]).startup(),
        ):
            with pytest.raises(IllegalArgumentException, match=told):
                call()
    assert files_in(tmp_path / "saved") == before
    assert not (tmp_path / "other").exists()
    with kafkalog.open(inside, read_only=True) as store, kafkalog.open_log(inside, "orders-0", read_only=True) as log:
        assert "orders" in store
        assert log.end_offset
    with pytest.raises(IllegalArgumentException):  # the backup itself is no log directory
        kafkalog.open(tmp_path / "saved")
    restore(tmp_path / "saved", tmp_path / "again", files=FAST)
    with kafkalog.open(tmp_path / "again") as store:
        assert "orders" in store


@pytest.mark.parametrize("content", ["{}", "", "[1]", '{"format": "kafkalog backup"}', "[" * 100_000, "\0\xff"])
def test_a_manifest_of_something_else_refuses_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    kafkalog.open(tmp_path / "log-dir-1").close()
    kafkalog.open_log(tmp_path / "log-dir-1", "orders-0").close()


def test_a_recovery_does_not_cut_what_backups_share(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "first", files=FAST)
    backup(shop, tmp_path / "second", base=tmp_path / "first", files=FAST)
    inside, partition = copy_of(tmp_path / "second"), TopicPartition("orders", 0)
    assert (inside / "orders-0" / LOG).stat().st_nlink == 2
    before = files_in(tmp_path / "first")
    with pytest.raises(IllegalArgumentException, match=r"a directory of a backup.*kafkalog restore .*second NEW_DIR"):
        list(recover(str(inside), [partition], act=True, from_start=True))
    assert [each.error for each in recover(str(inside), [partition], act=False, from_start=True)] == [None]
    assert files_in(tmp_path / "first") == before
    restore(tmp_path / "second", tmp_path / "again", files=FAST)
    assert [each.error for each in recover(str(tmp_path / "again"), [partition], act=True)] == [None]
    (tmp_path / "manifest.json").write_text("{}")  # another program's
    assert [each.error for each in recover(str(tmp_path / "again"), [partition], act=True)] == [None]


def test_the_base_is_the_newest_that_has_what_is_taken(shop: Path, tmp_path: Path) -> None:
    saved = tmp_path / "bases"
    saved.mkdir()
    backup(shop, saved / "1-whole", files=FAST)
    some = next(each for each in read_manifest(str(saved / "1-whole")).partitions() if each.topic[0] != "_")
    time.sleep(0.005)
    backup(shop, saved / "2-some", partitions=[some], files=FAST)
    assert backup(shop, tmp_path / "a", base=saved, files=FAST).base == str(saved / "1-whole")
    assert backup(shop, tmp_path / "b", partitions=[some], base=saved, files=FAST).base == str(saved / "2-some")
