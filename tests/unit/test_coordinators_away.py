"""Partitions of the coordinators whose directories are missing: they are refused, never created again.

A store of three directories is opened without one of them, or with an empty one in its place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kafkalog.errors import (
    IllegalStateException,
    KafkaStorageException,
    TransactionalIdNotFoundException,
)
from kafkalog.toolbox.cursors import CursorLook
from kafkalog.transaction import StoreTransaction
from tests.unit.store_kit import home_of, position, settled, state_of

Without = Callable[[list[str], str], list[str]]


def folders_of(directory: str, topic: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(topic))


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    """Three directories; the last one has the partitions of the coordinators, the others have the topic."""
    dirs = [str(tmp_path / name) for name in "123"]
    with kafkalog.open(dirs[:2]) as store:
        store.create_topic("t", partitions=8).append_many([b"%d" % each for each in range(8)])
    with kafkalog.open(dirs) as store:  # the third one has the fewest logs
        with store.reader("c", topics=["t"]) as reader:
            reader.poll(100)
            reader.commit()
        with store.transaction("x") as txn:
            txn.append("t", b"x", partition=0)
    assert [len(folders_of(each, "__")) for each in dirs] == [0, 0, 2]
    return dirs


def left_out(dirs: list[str], away: str) -> list[str]:
    return [each for each in dirs if each != away]


def used(txn: StoreTransaction) -> None:
    with txn:
        txn.append("t", b"x", partition=0)


def emptied(dirs: list[str], away: str) -> list[str]:
    os.rename(away, away + ".disk")
    os.mkdir(away)
    return dirs


def brought_back(away: str) -> None:
    if os.path.exists(away + ".disk"):
        shutil.rmtree(away)
        os.rename(away + ".disk", away)


@pytest.mark.parametrize("without", [left_out, emptied])
def test_cursors_and_transactions_are_refused(
    dirs: list[str], without: Without, caplog: pytest.LogCaptureFixture
) -> None:
    with kafkalog.open(without(dirs, dirs[2])) as store:
        (cursors,) = folders_of(dirs[2] + ".disk" if without is emptied else dirs[2], GROUP_METADATA_TOPIC)
        told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert any("1 partitions of __consumer_offsets are not in" in each for each in told)
        assert any("1 partitions of __transaction_state are not in" in each for each in told)
        with pytest.raises(KafkaStorageException, match=f"{cursors} has no directory"):
            store.reader("c", topics=["t"])
        with store.reader("c", partitions=["t-0"], start_offsets={"t-0": 0}) as reader:
            reader.poll(1)
            with pytest.raises(KafkaStorageException, match=f"{cursors} has no directory"):
                reader.commit()
        txn = store.transaction("z")
        txn.begin()
        txn.append("t", b"aborted", partition=0)
        with pytest.raises(KafkaStorageException, match=f"{cursors} has no directory"):
            txn.commit_offsets({"t-0": 1}, cursor="c")
        txn.abort()
        assert state_of(store, "z") == "CompleteAbort"
        assert settled(store, "t-0")
        for refused in (
            lambda: store.committed("c"),
            lambda: store.delete_cursor("c"),
            lambda: used(store.transaction("x")),
            lambda: store.abort_transaction("x"),
        ):
            with pytest.raises(
                KafkaStorageException, match=r"__(consumer_offsets|transaction_state)-\d+ has no directory"
            ):
                refused()
        with store.reader("other", topics=["t"]) as reader:  # its partition does not exist
            reader.poll(3)
            reader.commit()
        with pytest.raises(TransactionalIdNotFoundException):
            store.abort_transaction("another")
    brought_back(dirs[2])
    with kafkalog.open(dirs) as store:
        assert len(store.committed("c")) == 8
        new = [] if without is emptied else ["other"], [] if without is emptied else ["z"]  # went with the empty one
        assert [each.name for each in store.cursors()] == ["c", *new[0]]
        assert [each.transactional_id for each in store.transactions()] == ["x", *new[1]]


@pytest.mark.parametrize("without", [left_out, emptied])
def test_a_store_that_only_reads_refuses_as_well(dirs: list[str], without: Without, tmp_path: Path) -> None:
    with kafkalog.open(dirs) as store:
        whole = store.committed("c")
    own = str(tmp_path / "own")
    with kafkalog.open(dirs, read_only=True, cursors=own) as store, store.reader("mine", topics=["t"]) as reader:
        reader.poll(2)
        reader.commit()
    rest = without(dirs, dirs[2])
    for options in ({}, {"cursors": own}):
        with kafkalog.open(rest, read_only=True, **options) as store:  # type: ignore[arg-type]
            with pytest.raises(KafkaStorageException, match="has no directory"):
                store.reader("c", topics=["t"])
            with pytest.raises(KafkaStorageException, match="has no directory"):
                store.committed("c")
    with kafkalog.open(rest, read_only=True, cursors=own) as store, store.reader("mine", topics=["t"]) as reader:
        assert len(reader.poll(100)) == 7  # its own directory says where it is
    assert [each for each in CursorLook(rest).findings if "its cursors are not shown" in each]
    assert not CursorLook([*left_out(dirs, dirs[2]), dirs[2] + (".disk" if without is emptied else "")]).findings
    brought_back(dirs[2])
    with kafkalog.open(dirs, read_only=True) as store:
        assert store.committed("c") == whole


def test_an_end_of_a_transaction_makes_no_partition_anew(dirs: list[str]) -> None:
    """A start aborts open transactions; the partition's directory does not exist."""
    with kafkalog.open(dirs) as store:
        away = store.manager.get_log("t-0").parent_dir  # type: ignore[union-attr]
        (there,) = left_out(dirs[:2], away)
        near = next(each.removesuffix(".log") for each in sorted(os.listdir(there)) if each.startswith("t-"))
        txn = store.transaction("y")
        txn.begin()
        for each in ("t-0", near):
            txn.append("t", b"open", partition=int(each[2:]))
        for each in dirs:
            shutil.copytree(each, each + ".killed", ignore=shutil.ignore_patterns(".lock"))
        txn.abort()
    killed = [each + ".killed" for each in dirs]
    with kafkalog.open(left_out(killed, away + ".killed")) as store:
        assert not os.path.exists(f"{there}.killed/t-0")
        assert not os.path.exists(f"{killed[2]}/t-0")
        assert settled(store, near)
    with kafkalog.open(killed) as store:
        assert settled(store, "t-0", near)


def test_cursors_of_a_topic_that_is_deleted_meanwhile(dirs: list[str]) -> None:
    with kafkalog.open(left_out(dirs, dirs[2])) as store:
        store.delete_topic("t")
        store.create_topic("t", partitions=8).append_many([b"new"] * 3)
    with kafkalog.open(dirs) as store, store.reader("c", topics=["t"]) as reader:
        assert len(reader.poll(100)) == 3


def test_a_partition_that_is_lost_for_good_begins_anew(dirs: list[str]) -> None:
    (folder,) = folders_of(dirs[2], GROUP_METADATA_TOPIC)
    os.mkdir(f"{dirs[0]}/{folder}")  # as the error says
    with kafkalog.open(left_out(dirs, dirs[2])) as store, store.reader("c", topics=["t"]) as reader:
        assert len(reader.poll(100)) == 9
        reader.commit()


@pytest.mark.parametrize("topic", [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC])
def test_two_folders_of_one_partition(dirs: list[str], topic: str, tmp_path: Path) -> None:
    """An earlier version created one again and left two: the error says what to do, and then everything exists."""
    with kafkalog.open(dirs[0]) as store:  # knows nothing of the others' partitions
        home = home_of(store)
        store.create_topic("u").append(b"1")
        known = home.catalog._stored.known_of(topic)
        assert known is not None
        home.catalog._stored.set(topic, {}, known._replace(numbers=()))
        if topic == GROUP_METADATA_TOPIC:
            with store.reader("c", topics=["u"]) as reader:
                reader.poll(1)
                reader.commit()
        else:
            with store.transaction("x") as txn:
                txn.append("u", b"2")
    (folder,) = folders_of(dirs[0], topic)
    before = {each: sorted(os.listdir(f"{each}/{folder}")) for each in (dirs[0], dirs[2])}
    for _ in range(2):
        with pytest.raises(IllegalStateException, match=f"Duplicate log directories for {folder}: ") as raised:
            kafkalog.open(dirs)
        assert "delete neither" in str(raised.value)
        assert before.keys() == {each for each in dirs if folders_of(each, topic)}
    aside = tmp_path / "aside"
    aside.mkdir()
    os.rename(f"{dirs[0]}/{folder}", aside / folder)
    with kafkalog.open(dirs) as store:
        if topic == GROUP_METADATA_TOPIC:
            assert len(store.committed("c")) == 8
            assert [each.partition.topic for each in CursorLook([str(aside)]).groups["c"].cursors] == ["u"]
        else:
            assert [each.transactional_id for each in store.transactions()] == ["x"]


@pytest.mark.parametrize("hole", [None, 4])
def test_a_hole_in_a_brokers_offsets_is_refused(tmp_path: Path, hole: int | None) -> None:
    """A broker makes all partitions at once: one that is missing is away, or another broker's."""
    where = tmp_path / "data"
    with kafkalog.open(where) as store:
        store.create_topic("t").append(b"1")
    for number in range(10):
        if number != hole:
            (where / f"{GROUP_METADATA_TOPIC}-{number}").mkdir()
    (where / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    with kafkalog.open(where, take_over=True) as store:
        if hole is None:
            with store.reader("c", topics=["t"]) as reader:
                reader.poll(1)
                reader.commit()
            assert position(store, "c", "t-0") == 1
        else:
            with pytest.raises(KafkaStorageException, match="has no directory"):
                store.reader("c", topics=["t"])
    assert len(folders_of(str(where), GROUP_METADATA_TOPIC)) == (10 if hole is None else 9)


def test_what_was_made_is_checked_when_it_is_read(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        home_of(store).offsets("c", create=True)
    file = tmp_path / ".kafkalog_topics"
    content = json.loads(file.read_text())
    (number,) = content["known"][GROUP_METADATA_TOPIC]["numbers"]
    assert (tmp_path / f"{GROUP_METADATA_TOPIC}-{number}").is_dir()
    content["known"][GROUP_METADATA_TOPIC]["numbers"] = [50]
    file.write_text(json.dumps(content))
    with pytest.raises(kafkalog.errors.CorruptCheckpointException, match=r"numbers \[50\], expected a list of numbers"):
        kafkalog.open(tmp_path)
