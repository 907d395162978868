"""The view of cursors and their changes: each rule of kafka-consumer-groups, on a store's directories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.coordinator.groups import GroupType, ListedMember
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.errors import (
    GroupIdNotFoundException,
    IllegalArgumentException,
    InvalidGroupIdException,
    LogDirLockedException,
    UnknownMemberIdException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox import cursor_csv
from kafkalog.toolbox.cursor_changes import (
    Aim,
    ChangePlan,
    carry_out,
    plan_deletion,
    plan_from_file,
    plan_offset_deletion,
    plan_reset,
)
from kafkalog.toolbox.cursors import ANOTHER_TOPIC, NOT_HERE, CursorLook, GroupCursors
from tests.unit.cursor_kit import NOW_MS, commit, leave_classic, leave_modern, offsets_of, store_home

FIRST, SECOND = ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
GONE = TopicPartition("gone", 4)
HOLDER = ProducerIdAndEpoch(77, 0)
START, END = 3, 10  # bounds of orders-0; orders-1 is empty


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def root(tmp_path: Path, clock: ManualClock) -> Path:
    """A record every second from NOW_MS on."""
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        orders = store.create_topic("orders", 2)
        for number in range(END):
            orders.append(b"%d" % number, partition=0, timestamp=NOW_MS + number * 1000)
        log = store.manager.get_log(FIRST)
        assert log is not None
        log.delete_records(START)
    return tmp_path / "data"


def look_at(
    *roots: Path, clock: ManualClock, cursors: Path | None = None, isolation: str = "read_uncommitted"
) -> CursorLook:
    return CursorLook([str(each) for each in roots], cursors and str(cursors), isolation=isolation, clock=clock)


Plan = Callable[[CursorLook], ChangePlan]


def changed(root: Path, clock: ManualClock, plan: Plan, *, members_gone: bool = False) -> CursorLook:
    """Planned and done; the look after."""
    look = look_at(root, clock=clock)
    carry_out(look, plan(look), members_gone=members_gone)
    return look_at(root, clock=clock)


def places(group: GroupCursors) -> dict[TopicPartition, int | None]:
    return {each.partition: None if each.committed is None else each.committed.offset for each in group.cursors}


# --- what is seen -----------------------------------------------------------------------------------------


def test_a_cursor_is_seen_with_the_end_the_lag_and_its_age(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: CommittedOffset(4, 7, "said")})
    clock.now_ms += 5000
    look = look_at(root, clock=clock)
    [cursor] = look.must("billing").cursors
    assert cursor.committed == CommittedOffset(4, 7, "said", NOW_MS)
    assert (cursor.partition, cursor.end, cursor.lag, cursor.age_ms) == (FIRST, END, END - 4, 5000)
    assert (cursor.pending, cursor.gone) == ((), None)
    assert look.must("billing").listed.state == "Empty"
    assert look.findings == []


def test_beside_the_store_that_writes(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
        assert places(look_at(root, clock=clock).must("billing")) == {FIRST: 4}
        commit(home, "billing", {FIRST: 5})
        assert places(look_at(root, clock=clock).must("billing")) == {FIRST: 5}


def test_what_open_transactions_committed_is_pending(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
        commit(home, "billing", {FIRST: 5, SECOND: 0}, HOLDER)
        found = {each.partition: each for each in look_at(root, clock=clock).must("billing").cursors}
    assert found[FIRST].pending == found[SECOND].pending == (77,)
    assert (found[FIRST].lag, found[SECOND].lag) == (END - 4, None)
    assert found[SECOND].committed is None


def test_a_topic_that_is_gone_or_another_one_now(root: Path, clock: ManualClock) -> None:
    other = "AAAAAAAAAAAAAAAAAAAABQ"
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {GONE: 3, FIRST: CommittedOffset(4, topic_id=other)})
    found = {each.partition: each for each in look_at(root, clock=clock).must("billing").cursors}
    assert found[GONE].gone == NOT_HERE
    assert found[FIRST].gone == ANOTHER_TOPIC
    assert [each.end for each in found.values()] == [None, None]
    own = topic_id_of(str(root / "orders-0"))
    assert own is not None
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: CommittedOffset(4, topic_id=own)})
    assert look_at(root, clock=clock).must("billing").cursors[1].gone is None


def test_read_committed_readers_see_the_end_before_an_open_transaction(root: Path, clock: ManualClock) -> None:
    with kafkalog.open_log(root, "orders-0", clock=clock) as log:
        txn = log.transaction("t")
        txn.begin()
        txn.append(b"open")
        with pytest.raises(UnknownTopicOrPartitionException):
            look_at(root, clock=clock).bounds(TopicPartition("other", 0))
        assert look_at(root, clock=clock).bounds(FIRST).end == END + 1
        assert look_at(root, clock=clock, isolation="read_committed").bounds(FIRST).end == END


def test_members_and_kinds_of_groups(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        leave_classic(home, "classic", "m2", "m1")
        leave_modern(home, "modern", "m3")
        leave_modern(home, "shared", "m4", share=True)
    groups = look_at(root, clock=clock).groups
    assert {name: each.listed.type for name, each in groups.items()} == {
        "classic": GroupType.CLASSIC, "modern": GroupType.CONSUMER, "shared": GroupType.SHARE,
    }  # fmt: skip
    assert groups["classic"].members == [
        ListedMember("m1", "client m1", "/10.0.0.1"), ListedMember("m2", "client m2", "/10.0.0.1"),
    ]  # fmt: skip
    assert groups["modern"].members == [ListedMember("m3", "client m3", "/h")]
    assert groups["classic"].listed.state == "Stable"


def test_several_directories(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "more").mkdir()
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4, SECOND: 0})
    shutil.move(root / "orders-0", tmp_path / "more" / "orders-0")
    assert [each.gone for each in look_at(root, clock=clock).must("billing").cursors] == [NOT_HERE, None]
    both = look_at(root, tmp_path / "more", clock=clock).must("billing")
    assert [each.gone for each in both.cursors] == [None, None]


def test_what_cannot_be_read_is_found_and_the_rest_is_shown(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        numbers = {offsets_of(home, name).log.place: name for name in ("a", "b")}
        assert len(numbers) == 2
        for name in numbers.values():
            commit(home, name, {FIRST: 4})
    broken = next(iter(numbers))
    path = next(Path(broken).glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    data_path = root / "orders-0" / f"{0:020}.log"
    data_path.write_bytes(data_path.read_bytes()[:-1] + b"\xff")
    look = look_at(root, clock=clock)
    [(name, group)] = look.groups.items()
    assert name == next(name for place, name in numbers.items() if place != broken)
    assert group.cursors[0].end == END - 1
    assert [place for each in look.findings for place in (broken, str(data_path)) if place in each] == [
        broken, str(data_path),
    ]  # fmt: skip


def test_a_directory_of_cursors_stands_in_front(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    own = tmp_path / "own"
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
        commit(home, "other", {FIRST: 6})
        assert places(look_at(root, clock=clock, cursors=own).must("billing")) == {FIRST: 4}
    with store_home(own, clock=clock) as home:
        commit(home, "billing", {FIRST: 9})
    look = look_at(root, clock=clock, cursors=own)
    assert places(look.must("billing")) == {FIRST: 9}
    assert places(look.must("other")) == {FIRST: 6}
    assert look.must("billing").cursors[0].lag == 1


# --- where cursors go -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aim", "new", "noted"),
    [
        (Aim("to-earliest"), START, False),
        (Aim("to-latest"), END, False),
        (Aim("to-current"), 5, False),
        (Aim("to-offset", 7), 7, False),
        (Aim("to-offset", END), END, False),
        (Aim("to-offset", END + 1), END, True),
        (Aim("to-offset", START - 1), START, True),
        (Aim("shift-by", 2), 7, False),
        (Aim("shift-by", -2), START, False),
        (Aim("shift-by", -3), START, True),
        (Aim("shift-by", -(1 << 62)), START, True),
        (Aim("shift-by", 100), END, True),
        (Aim("to-datetime", NOW_MS + 6000), 6, False),
        (Aim("to-datetime", NOW_MS + 5500), 6, False),
        (Aim("to-datetime", 0), START, False),
        (Aim("by-duration", NOW_MS + 9001), END, True),
    ],
)
def test_each_aim(root: Path, clock: ManualClock, aim: Aim, new: int, noted: bool) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 5})
    look = look_at(root, clock=clock)
    [change] = plan_reset(look, ["billing"], aim, [FIRST]).changes
    assert (change.old, change.new, change.note is not None) == (5, new, noted)
    after = changed(root, clock, lambda look: plan_reset(look, ["billing"], aim, [FIRST]))
    [cursor] = after.must("billing").cursors
    assert cursor.committed == CommittedOffset(
        new, commit_timestamp=NOW_MS, topic_id=topic_id_of(str(root / "orders-0")) or ""
    )


def test_what_was_never_committed(root: Path, clock: ManualClock) -> None:
    """A group need not be there; a shift needs an offset, and `current` is the end then."""
    look = look_at(root, clock=clock)
    with pytest.raises(IllegalArgumentException, match="orders-0: no offset is committed"):
        plan_reset(look, ["new"], Aim("shift-by", 1), ORDERS)
    after = changed(root, clock, lambda look: plan_reset(look, ["new"], Aim("to-current"), ORDERS))
    assert places(after.must("new")) == {FIRST: END, SECOND: 0}
    with kafkalog.open(root, clock=clock) as store:
        assert GROUP_METADATA_TOPIC in store
        assert store.describe_topic(GROUP_METADATA_TOPIC).partitions == 50


def test_without_a_scope_it_is_all_that_a_group_has(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {SECOND: 0, FIRST: 4})
        commit(home, "lost", {GONE: 4})
    look = look_at(root, clock=clock)
    assert [each.partition for each in plan_reset(look, ["billing"], Aim("to-latest"), None).changes] == ORDERS
    with pytest.raises(UnknownTopicOrPartitionException, match="gone-4"):
        plan_reset(look, ["lost"], Aim("to-latest"), None)


def test_several_groups_each_in_its_partition(root: Path, clock: ManualClock) -> None:
    names = [f"group-{number}" for number in range(8)]
    with store_home(root, clock=clock) as home:
        for name in names[:4]:
            commit(home, name, {FIRST: 4})
    told: list[str] = []
    look = look_at(root, clock=clock)
    carry_out(look, plan_reset(look, names, Aim("to-offset", 6), [FIRST]), done=told.append)
    assert sorted(told) == names
    after = look_at(root, clock=clock)
    assert {name: places(after.must(name)) for name in names} == {name: {FIRST: 6} for name in names}
    assert len({after.must(name).number for name in names}) > 1


def test_groups_with_members_are_refused_unless_they_are_gone(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        leave_classic(home, "classic", "m1")
        leave_modern(home, "modern", "m3")
        leave_modern(home, "shared", "m4", share=True)
    groups = ["classic", "modern", "shared", "new"]

    def plan(look: CursorLook) -> ChangePlan:
        return plan_reset(look, groups, Aim("to-earliest"), [FIRST])

    refused = plan(look_at(root, clock=clock)).refused
    assert set(refused) == {"classic", "modern", "shared"}
    assert "Stable, and its member uses" in refused["classic"]
    after = changed(root, clock, plan)
    assert places(after.must("new")) == {FIRST: START}
    assert (places(after.must("classic")), len(after.must("classic").members)) == ({}, 1)

    def gone(look: CursorLook) -> ChangePlan:
        return plan_reset(look, groups, Aim("to-earliest"), [FIRST], members_gone=True)

    assert not gone(after).refused
    after = changed(root, clock, gone, members_gone=True)
    for name in ("classic", "modern", "shared"):
        assert (places(after.must(name)), after.must(name).members) == ({FIRST: START}, [])
        assert after.must(name).listed.state == "Empty"


def test_members_who_came_after_the_plan_refuse_it(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
    look = look_at(root, clock=clock)
    plan = plan_reset(look, ["billing"], Aim("to-latest"), [FIRST])
    with store_home(root, clock=clock) as home:
        leave_classic(home, "billing", "m1")
    with pytest.raises(UnknownMemberIdException):
        carry_out(look, plan)
    assert places(look_at(root, clock=clock).must("billing")) == {FIRST: 4}


def test_a_store_that_is_open_is_left_alone(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
        look = look_at(root, clock=clock)
        for group in ("billing", "new"):
            with pytest.raises((LogDirLockedException, IllegalArgumentException)):
                carry_out(look, plan_reset(look, [group], Aim("to-latest"), [FIRST]))
        assert places(look_at(root, clock=clock).must("billing")) == {FIRST: 4}


def test_a_brokers_directory_gets_no_partition_that_it_does_not_know(root: Path, clock: ManualClock) -> None:
    (root / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    look = look_at(root, clock=clock)
    with pytest.raises(UnknownTopicOrPartitionException, match="no partition exists"):
        carry_out(look, plan_reset(look, ["new"], Aim("to-latest"), [FIRST]))
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
    (root / ".kafkalog_topics").unlink()  # a broker has none
    for number in range(50):  # that of billing is neither the last one, nor all
        if (root / f"{GROUP_METADATA_TOPIC}-{number}").exists():
            assert 0 < number < 49
    look = look_at(root, clock=clock)
    with pytest.raises(UnknownTopicOrPartitionException, match="1 of"):
        carry_out(look, plan_reset(look, ["new"], Aim("to-latest"), [FIRST]))
    carry_out(look, plan_reset(look, ["billing"], Aim("to-latest"), [FIRST]))
    assert places(look_at(root, clock=clock).must("billing")) == {FIRST: END}


def test_a_group_needs_a_name(root: Path, clock: ManualClock) -> None:
    with pytest.raises(InvalidGroupIdException):
        plan_reset(look_at(root, clock=clock), [""], Aim("to-latest"), ORDERS)


def test_a_directory_of_cursors_is_what_changes(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    """Next to the store that holds the logs, with or without members; unchanged cursors are copied along."""
    own = tmp_path / "own"
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4, SECOND: 0})
        leave_classic(home, "billing", "m1")
        look = look_at(root, clock=clock, cursors=own)
        plan = plan_reset(look, ["billing"], Aim("shift-by", 2), [FIRST])
        assert {each.partition: (each.old, each.new) for each in plan.changes} == {FIRST: (4, 6), SECOND: (0, 0)}
        assert plan_deletion(look, ["billing"]).refused
        assert plan_offset_deletion(look, "billing", [FIRST]).refused
        carry_out(look, plan)
        look = look_at(root, clock=clock, cursors=own)
        assert places(look.must("billing")) == {FIRST: 6, SECOND: 0}
        carry_out(look, plan_reset(look, ["billing"], Aim("to-latest"), [FIRST]))  # now it exists
        assert places(look_at(root, clock=clock, cursors=own).must("billing")) == {FIRST: END, SECOND: 0}
        assert places(look_at(root, clock=clock).must("billing")) == {FIRST: 4, SECOND: 0}
    look = look_at(root, clock=clock, cursors=own)
    carry_out(look, plan_deletion(look, ["billing"]))
    assert places(look_at(root, clock=clock, cursors=own).must("billing")) == {FIRST: 4, SECOND: 0}


# --- taking away ------------------------------------------------------------------------------------------


def test_offsets_are_deleted_in_transactions_too(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4, SECOND: 0, GONE: 9})
        commit(home, "billing", {FIRST: 5}, HOLDER)

    def plan(look: CursorLook) -> ChangePlan:
        return plan_offset_deletion(look, "billing", [FIRST, GONE, TopicPartition("never", 0)])

    assert [(each.partition, each.old, each.new) for each in plan(look_at(root, clock=clock)).changes] == [
        (GONE, 9, None), (FIRST, 4, None),
    ]  # fmt: skip
    after = changed(root, clock, plan)
    assert places(after.must("billing")) == {SECOND: 0}
    with pytest.raises(GroupIdNotFoundException):
        plan_offset_deletion(after, "never", [FIRST])


def test_groups_are_deleted(root: Path, clock: ManualClock) -> None:
    with store_home(root, clock=clock) as home:
        commit(home, "billing", {FIRST: 4})
        commit(home, "stays", {FIRST: 4})
        leave_classic(home, "busy", "m1")
    look = look_at(root, clock=clock)
    assert set(plan_deletion(look, ["billing", "busy"]).refused) == {"busy"}
    after = changed(root, clock, lambda look: plan_deletion(look, ["billing", "busy"]))
    assert set(after.groups) == {"stays", "busy"}
    after = changed(root, clock, lambda look: plan_deletion(look, ["busy"], members_gone=True), members_gone=True)
    assert set(after.groups) == {"stays"}
    with pytest.raises(GroupIdNotFoundException):
        plan_deletion(after, ["billing"])


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_says_where_each_group_goes(root: Path, clock: ManualClock) -> None:
    plans = {"a": {FIRST: 99, SECOND: 0}, "b": {FIRST: 4}}
    look = look_at(root, clock=clock)
    plan = plan_from_file(look, plans, ["a", "c"])
    assert [(each.partition, each.new) for each in plan.changes] == [(FIRST, END), (SECOND, 0)]
    assert plan.refused == {"c": "the file does not name this group"}
    with pytest.raises(UnknownTopicOrPartitionException):
        plan_from_file(look, {"a": {GONE: 1}}, ["a"])


def test_what_is_exported_is_read_again() -> None:
    places = {FIRST: 4, TopicPartition("a" * 40, 2): 1 << 62}
    for group in ('odd, "group"\u00e4', "plain", "with space"):
        text = "\n".join(cursor_csv.line(group, *each) for each in places.items())
        assert cursor_csv.read_plans(text + "\n\n", [], "f") == {group: places}
    text = "\n".join(cursor_csv.line(None, *each) for each in places.items())
    assert cursor_csv.read_plans(text, ["g"], "f") == {"g": places}


@pytest.mark.parametrize(
    ("group", "line"),
    [
        (None, "orders,0,5"),
        ("g", "g,orders,0,5"),
        ("a b", '"a b",orders,0,5'),
        ('a"b', '"a""b",orders,0,5'),
        ("a+b", '"a+b",orders,0,5'),
        ("a-b", "a-b,orders,0,5"),
        ("g" * 24, "g" * 24 + ",orders,0,5"),
        ("g" * 25, '"' + "g" * 25 + '",orders,0,5'),
    ],
)
def test_values_are_quoted_as_kafka_does(group: str | None, line: str) -> None:
    assert cursor_csv.line(group, FIRST, 5) == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file has no lines"),
        ("orders,0", "line 1: it has 2 values; expected topic,partition,offset or group"),
        ("orders,0,1\ng,orders,1,1", "line 2: it has 4 values; expected topic,partition,offset, as in the first line"),
        ("orders,x,1", "line 1: the value is 'x'; expected a whole number from 0"),
        ("orders,0,-1", "line 1: the value is '-1'"),
        ("orders,0,9223372036854775808", "line 1: the value is '9223372036854775808'"),
        ("orders,2147483648,1", "line 1: the value is '2147483648'"),
        ("orders,0,\u0661", "line 1: the value is '\u0661'"),
        ("orders,0,1\n\norders,0,2", "line 3: orders-0 of group 'g' occurs twice"),
    ],
)
def test_lines_that_are_none(text: str, said: str) -> None:
    with pytest.raises(IllegalArgumentException) as error:
        cursor_csv.read_plans(text, ["g"], "file.csv")
    assert said in str(error.value)
    assert "file.csv" in str(error.value)


def test_lines_without_a_group_want_one_group() -> None:
    for groups in ([], ["a", "b"]):
        with pytest.raises(IllegalArgumentException, match="it names no group"):
            cursor_csv.read_plans("orders,0,1", groups, "f")
