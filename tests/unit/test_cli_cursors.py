"""`kafkalog cursors`: what it prints, which options go together, exit codes; dry unless --yes is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import Usage
from kafkalog.cli.cursors import duration_ms
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from tests.unit.cli_kit import Run, run
from tests.unit.cursor_kit import commit, leave_classic, store_home
from tests.unit.store_kit import as_killed

__all__ = ["run"]

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
GONE = TopicPartition("gone", 4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    now_ms = SYSTEM_CLOCK.milliseconds()
    with kafkalog.open(root) as store:
        orders = store.create_topic("orders", 2)
        for number in range(10):
            orders.append(b"%d" % number, partition=0, timestamp=now_ms - (10 - number) * 3_600_000)
    with store_home(root) as home:
        commit(home, "billing", {FIRST: CommittedOffset(4, 0, "said\n"), SECOND: 0})
        commit(home, "billing", {SECOND: 0}, ProducerIdAndEpoch(77, 0))
        commit(home, "audit", {GONE: 3})
        leave_classic(home, "busy", "m1", "m2")
    return root


def test_the_table(run: Run, root: Path) -> None:
    result = run("cursors", root)
    assert result.code == 0
    head, rows = result.lines[0].split(), [line.split() for line in result.rows]
    assert head[:4] == ["GROUP", "TOPIC", "PARTITION", "POSITION"]
    assert [row[:6] for row in rows] == [
        ["audit", "gone", "4", "3", "missing", "-"],
        ["billing", "orders", "0", "4", "10", "6"],
        ["billing", "orders", "1", "0", "0", "0"],
        ["busy", "-", "-", "-", "-", "-"],
    ]
    assert [row[-4:] for row in rows] == [
        ["Empty", "0", "-", "-"],
        ["Empty", "0", "-", r"'said\n'"],
        ["Empty", "0", "77", "-"],
        ["Stable", "2", "-", "-"],
    ]
    assert "audit: gone-4 is not in these directories" in result.err
    assert "busy: member m1 of client m1 at /10.0.0.1" in result.err


def test_json(run: Run, root: Path) -> None:
    entries = [json.loads(line) for line in run("cursors", root, "--json").lines]
    groups = {each["group"]: each for each in entries if each["kind"] == "group"}
    cursors = {(each["group"], each["topic"], each["partition"]): each for each in entries if each["kind"] == "cursor"}
    assert set(groups) == {"audit", "billing", "busy"}
    assert [each["memberId"] for each in groups["busy"]["members"]] == ["m1", "m2"]
    assert groups["billing"]["logDir"] == str(root)
    found = cursors["billing", "orders", 0]
    assert (found["offset"], found["logEndOffset"], found["lag"], found["metadata"]) == (4, 10, 6, "said\n")
    assert 0 <= found["ageMs"] < 600_000
    assert cursors["billing", "orders", 1]["pendingProducerIds"] == [77]
    assert cursors["audit", "gone", 4]["gone"] == "not in these directories"


def test_lags_of_groups_are_summed(run: Run, root: Path) -> None:
    with store_home(root) as home:
        commit(home, "billing", {GONE: 3})
        commit(home, "copy", {FIRST: 1, SECOND: 0})
        commit(home, "ahead", {FIRST: 99, SECOND: 0})
    result = run("cursors", root)
    lags = [line.split() for line in result.lines[len(result.rows) + 2 :]]
    assert lags == [
        ["LAG", "OF", "GROUP", "PARTITIONS", "LAG", "LARGEST", "OF", "PARTITION"],
        ["ahead", "2", "0", "-", "-"],  # beyond the end
        ["audit", "1", "unknown", "-", "-"],
        ["billing", "3", "6", "and", "unknown", "6", "orders-0"],
        ["copy", "2", "9", "9", "orders-0"],
    ]
    groups = [json.loads(line) for line in run("cursors", root, "--json").lines]
    assert [
        [each[name] for name in ("group", "cursors", "lag", "lagKnown", "largestLag")]
        for each in groups
        if each["kind"] == "group"
    ] == [
        ["ahead", 2, 0, True, 0],
        ["audit", 1, 0, False, 0],
        ["billing", 3, 6, False, 6],
        ["busy", 0, 0, True, 0],
        ["copy", 2, 9, True, 9],
    ]


def test_the_sum_is_of_what_is_shown(run: Run, root: Path) -> None:
    with store_home(root) as home:
        commit(home, "copy", {FIRST: 1, SECOND: 0, GONE: 3})
    assert run("cursors", root, "--group", "copy", "--topic", "orders").lines[-1].split()[:3] == ["copy", "2", "9"]
    for argv in (("--topic", "orders:0"), ("--group", "audit"), ("--group", "busy")):  # its row has all
        assert "LAG OF GROUP" not in run("cursors", root, *argv).out


def test_what_was_deleted_before_it_was_read_is_told(run: Run, root: Path) -> None:
    with store_home(root) as home:
        log = home.manager.get_log(FIRST)
        assert log is not None
        log.delete_records(4)  # billing continues here
    result = run("cursors", root, "--group", "billing")
    assert "was deleted" not in result.err
    with store_home(root) as home:
        log = home.manager.get_log(FIRST)
        assert log is not None
        log.delete_records(7)
    result = run("cursors", root, "--group", "billing")
    said = "its next offset 4 was deleted; the log starts at 7, so 3 offsets can no longer be read"
    assert f"note: billing: orders-0: {said}" in result.err
    assert result.err.count("was deleted") == 1
    assert result.lines[1].split()[3:6] == ["4", "10", "6"]  # Kafka's lag
    entries = [json.loads(line) for line in run("cursors", root, "--json").lines]
    starts = {
        (each["group"], each["partition"]): each["logStartOffset"] for each in entries if each["kind"] == "cursor"
    }
    assert starts == {("billing", 0): 7, ("billing", 1): 0, ("audit", 4): None}


def test_filters(run: Run, root: Path) -> None:
    def shown(*argv: object) -> list[tuple[str, ...]]:
        result = run("cursors", root, *argv)
        assert result.code == 0
        return [tuple(line.split()[:3]) for line in result.rows]

    assert shown("--group", "billing") == [("billing", "orders", "0"), ("billing", "orders", "1")]
    assert shown("--topic", "orders:1") == [("billing", "orders", "1")]
    assert shown("--topic", "gone", "--topic", "orders:0,7") == [("audit", "gone", "4"), ("billing", "orders", "0")]
    result = run("cursors", root, "--group", "billin")
    assert result.code == 2
    assert "no group 'billin'" in result.err


def test_a_topic_that_has_the_name_of_a_group(run: Run, root: Path) -> None:
    with kafkalog.open(root) as store:
        store.create_topic("billing")
    for more in ([], ["--json"]):
        result = run("cursors", root, "billing", *more)
        assert (result.code, result.lines) == (0, [])
        assert "no cursors into the topic billing; but a group has this name: --group billing lists" in result.err
    assert "too: --group" not in run("cursors", root, "--group", "billing", "--topic", "billing").err


def test_a_reset_makes_no_group_by_a_typo(run: Run, root: Path) -> None:
    argv = ("cursors", root, "--group", "biling", "--topic", "orders", "--to-earliest")
    told = run(*argv)
    assert told.code == 0
    new = "note: group 'biling' is new: it has no committed offsets"
    assert f"{new}; did you mean billing?  --new-group --yes creates it" in told.err
    assert told.lines[-1] == "in all: 2 offsets of 1 group would be set (--new-group --yes does it)"
    refused = run(*argv, "--yes")
    assert (refused.code, refused.lines) == (2, [])
    assert "--group biling: found no such group, but billing with a similar name: nothing is changed" in refused.err
    assert "--new-group creates biling" in refused.err
    assert "no group 'biling'" in run("cursors", root, "--group", "biling").err
    assert "did you mean" not in run(*argv, "--new-group").err
    done = run(*argv, "--new-group", "--yes")
    assert (done.code, done.lines[-1]) == (0, "in all: 2 offsets of 1 group set")
    assert new in done.err
    far = run("cursors", root, "--group", "zzz", "--topic", "orders", "--to-earliest", "--yes")
    assert (far.code, "group 'zzz' is new" in far.err) == (0, True)
    argv = ("cursors", root, "--group", "billing", "--topic", "orders", "--to-earliest")
    assert "is new" not in run(*argv, "--yes").err
    assert (
        "--new-group: expected an option that changes offsets"
        in run("cursors", root, "--group", "billing", "--new-group").err
    )


def test_a_reset_ends_no_transaction(run: Run, tmp_path: Path) -> None:
    """Resets an existing group and new ones, with the partition of the cursors' topic present or missing."""
    with kafkalog.open(tmp_path / "alive") as store:
        store.create_topic("a").append(b"0")
        with store.reader("g", topics=["a"]) as reader:
            reader.poll(1)
            reader.commit()
        txn = store.transaction("long")
        txn.begin()
        txn.append("a", b"1")
        root = as_killed(tmp_path / "alive", tmp_path / "killed")
    for group in ("g", "new1", "new2", "new3"):
        assert run("cursors", root, "--group", group, "--topic", "a", "--to-earliest", "--new-group", "--yes").code == 0
        with kafkalog.open(root, read_only=True) as store:
            assert store.committed(group)[TopicPartition("a", 0)].offset == 0
            partition = store.topic("a").partition(0)
            assert [each.value for each in partition.records(isolation="read_committed")] == [b"0"]
            assert partition.end_offset == 2  # no marker


def test_execute_is_yes_as_in_kafkas_tool(run: Run, root: Path) -> None:
    argv = ("cursors", root, "--group", "reader", "--topic", "orders", "--to-earliest", "--execute")
    assert run(*argv).code == run(*argv).code == 0
    with kafkalog.open(root, read_only=True) as store:
        assert {each.offset for each in store.committed("reader").values()} == {0}
    told = run(*argv[:-2], "--to-datetime", "42").err
    assert "'42' is not a time, expected 2026-11-21, 2026-11-21T09:00:00Z or @1700000000000" in told


def test_digits_of_a_day_are_told(run: Run, root: Path) -> None:
    result = run("cursors", root, "--group", "billing", "--topic", "orders:0", "--to-offset", "20261120")
    assert (
        "20261120 is after the log end, so the log end is used (for the day, use --to-datetime 2026-11-20)"
        in result.err
    )


@pytest.mark.parametrize(("at", "is_noted"), [("@1773100800", True), ("@1773100800000", False), ("1970-01-21", False)])
def test_a_time_in_seconds_is_noted(run: Run, root: Path, at: str, is_noted: bool) -> None:
    result = run("cursors", root, "--group", "billing", "--topic", "orders:0", "--to-datetime", at)
    said = "note: --to-datetime @1773100800 is 1970-01-21T12:31:40.800Z: @ is followed by milliseconds (@1773100800000"
    assert (result.code, said in result.err) == (0, is_noted)


def test_no_cursors_is_said(run: Run, tmp_path: Path) -> None:
    kafkalog.open_log(tmp_path, "t-0").close()
    result = run("cursors", tmp_path)
    assert (result.code, result.lines) == (0, [])
    assert "no cursors" in result.err


def test_committed_asks_for_the_stable_end(run: Run, root: Path) -> None:
    with kafkalog.open_log(root, "orders-0") as log:
        txn = log.transaction("t")
        txn.begin()
        txn.append(b"open")
        ends = [
            run("cursors", root, "--topic", "orders:0", *more).lines[1].split()[4] for more in ((), ("--committed",))
        ]
    assert ends == ["11", "10"]


def test_damage_is_found(run: Run, root: Path) -> None:
    path = root / "orders-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    result = run("cursors", root, "--group", "billing")
    assert result.code == 1
    assert result.lines[0].startswith(str(path))
    assert result.lines[2].split()[4] == "9"
    kinds = [json.loads(line)["kind"] for line in run("cursors", root, "--json", "--group", "billing").lines]
    assert kinds == ["finding", "group", "cursor", "cursor"]


# --- changes ----------------------------------------------------------------------------------------------


def test_dry_unless_it_is_told(run: Run, root: Path) -> None:
    asked = ("cursors", root, "--group", "billing", "--topic", "orders:0", "--reset-offsets", "--to-offset", 7)
    for more in ((), ("--dry-run",), ("--yes", "--dry-run")):
        result = run(*asked, *more)
        assert (result.code, result.lines[1].split()) == (0, ["billing", "orders", "0", "4", "7"])
        assert "would be set (--yes does it)" in result.lines[-1]
        assert run("cursors", root, "--topic", "orders:0").lines[1].split()[3] == "4"
    result = run(*asked, "--yes")
    assert result.lines[-1] == "in all: 1 offset of 1 group set"
    assert run("cursors", root, "--topic", "orders:0").lines[1].split()[3] == "7"
    [change] = [json.loads(line) for line in run(*asked[:-1], 99, "--yes", "--json").lines]
    assert change == {
        "kind": "change", "group": "billing", "topic": "orders", "partition": 0, "old": 7, "new": 10,
        "note": "99 is after the log end, so the log end is used", "done": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("aim", "new"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "3"), 7),
        (("--by-duration", "PT4H30M"), 6),
        (("--by-duration", "P1D"), 0),
        (("--to-datetime", "2020-01-01T00:00:00.000"), 0),
        (("--to-datetime", "@1"), 0),
    ],
)
def test_where_to(run: Run, root: Path, aim: tuple[str, ...], new: int) -> None:
    result = run("cursors", root, "--group", "billing", "--topic", "orders:0", *aim)
    assert result.code == 0, result.err
    assert result.lines[1].split() == ["billing", "orders", "0", "4", str(new)]


def test_an_export_is_read_again(run: Run, root: Path, tmp_path: Path) -> None:
    scope = ("--topic", "orders", "--to-current", "--export")
    one = run("cursors", root, "--group", "billing", *scope)
    assert one.lines == ["orders,0,4", "orders,1,0"]
    both = run("cursors", root, "--group", "billing", "--group", "new", *scope)
    assert both.lines == ["billing,orders,0,4", "billing,orders,1,0", "new,orders,0,10", "new,orders,1,0"]
    path = tmp_path / "plan.csv"
    path.write_bytes(one.octets + b"\n")  # println ends Kafka's with one more
    result = run("cursors", root, "--group", "copy", "--from-file", path, "--yes")
    assert result.code == 0, result.err
    path.write_bytes(both.octets)
    result = run("cursors", root, "--all-groups", "--from-file", path, "--yes")
    assert (result.code, result.err) == (0, f"note: {path} does not name audit, busy, copy: not changed\n")
    rows = [line.split()[:4] for line in run("cursors", root, "--topic", "orders").rows]
    assert rows == [
        [name, "orders", number, at] for name in ("billing", "copy") for number, at in (("0", "4"), ("1", "0"))
    ]


def test_members_refuse_unless_they_are_gone(run: Run, root: Path) -> None:
    asked = ("cursors", root, "--topic", "orders:0", "--to-latest", "--yes")
    result = run(*asked, "--group", "busy", "--group", "billing")
    assert result.code == 2
    assert "nothing is changed: group 'busy': it is Stable, and its 2 members" in result.err
    assert "--members-gone" in result.err
    assert run("cursors", root, "--topic", "orders:0").lines[1].split()[3] == "4"
    result = run(*asked, "--all-groups")
    assert result.code == 1
    assert "group 'busy' is not changed" in result.err
    assert run("cursors", root, "--topic", "orders:0", "--group", "billing").lines[1].split()[3] == "10"
    assert run(*asked, "--group", "busy", "--members-gone").code == 0
    row = run("cursors", root, "--group", "busy").lines[1].split()
    assert (row[3], row[-4], row[-3]) == ("10", "Empty", "0")


def test_deletions(run: Run, root: Path) -> None:
    result = run("cursors", root, "--group", "audit", "--delete-offsets", "--topic", "gone")
    assert "would be deleted" in result.lines[-1]
    assert run("cursors", root, "--group", "audit", "--delete-offsets", "--topic", "gone", "--yes").code == 0
    assert run("cursors", root, "--group", "audit").lines[1].split()[1] == "-"
    result = run("cursors", root, "--group", "audit", "--delete-offsets", "--topic", "gone:4", "--yes")
    assert result.lines == ["nothing to change: nothing is committed there"]
    for act in ((), ("--yes",)):
        result = run("cursors", root, "--group", "billing", "--group", "audit", "--delete", *act)
        assert result.code == 0
    groups = {json.loads(line)["group"] for line in run("cursors", root, "--json").lines}
    assert groups == {"busy"}


def test_of_a_process_that_only_reads(run: Run, root: Path, tmp_path: Path) -> None:
    own = ("--cursors", tmp_path / "own")
    with kafkalog.open(root):  # it holds the lock
        result = run("cursors", root, "--group", "mine", "--topic", "orders", "--to-offset", 3, "--yes")
        assert result.code in (2, 3)
        result = run("cursors", root, *own, "--group", "mine", "--topic", "orders", "--to-offset", 3, "--yes")
        assert result.code == 0, result.err
        assert [line.split()[:4] for line in run("cursors", root, *own, "--group", "mine").rows] == [
            ["mine", "orders", "0", "3"], ["mine", "orders", "1", "0"],
        ]  # fmt: skip
    assert run("cursors", root, "--group", "mine").code == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--to-latest", "no group given"),
        ("--group g --to-latest", "no scope given"),
        ("--group g --reset-offsets --all-topics", "found none, expected one of --to-offset"),
        ("--group g --topic orders --to-latest --shift-by 1", "found --to-latest, --shift-by, expected one"),
        ("--group g --topic orders --all-topics --to-latest", "--topic and --all-topics"),
        ("--group g --all-groups --topic orders --to-latest", "--group and --all-groups"),
        ("--group g --topic orders --from-file f", "found --from-file and a scope"),
        ("--group g --from-file nowhere.csv", "nowhere.csv: no such file"),
        ("--group g --delete --to-latest", "expected one of setting offsets"),
        ("--group g --delete --topic orders", "--delete deletes whole groups"),
        ("--group g --delete-offsets", "expected one --group and --topic"),
        ("--group g --group h --delete-offsets --topic orders", "expected one --group"),
        ("--delete", "no group given"),
        ("--group billing --yes", "--yes: expected an option that changes offsets"),
        ("--members-gone", "--members-gone: expected an option that changes offsets"),
        ("--all-topics", "--all-topics: expected an option that changes offsets"),
        ("--all-groups", "--all-groups: expected an option that changes offsets"),
        ("--export", "--export: expected options that set offsets"),
        ("--group g --topic orders --to-latest --export --json", "--export and --json"),
        ("--group g --topic orders:x --to-latest", "found 'orders:x'"),
        ("--group g --topic :1 --to-latest", "found ':1'"),
        ("--group g --topic nowhere --to-latest", "no topic or partition 'nowhere'"),
        ("--group g --topic orders:2 --to-latest", "no partition orders-2"),
        ("--group g --topic order --to-earliest", "did you mean orders?"),
        ("--group g --topic order --to-earliest", "no topic or partition 'order'"),
        ("--group g --topic gone --to-earliest", "no partition gone-0"),
        ("--group audit --all-topics --to-latest", "no partition gone-4"),
        ("--group g --topic orders --shift-by 1", "no offset is committed, so it cannot be shifted"),
        ("--group g --topic orders --to-offset -1", "--to-offset"),
        ("--group g --topic orders --by-duration 1h", "--by-duration: found '1h'"),
        ("--group g --topic orders --to-datetime yesterday", "'yesterday' is not a time"),
        ("--group nobody --delete", "no group 'nobody'"),
        ("--group biling --delete", "did you mean billing?"),
        ("billing", "found a group instead of a topic, expected --group billing"),
        ("ordrs", "no topic or partition 'ordrs'"),
        ("ordrs", "did you mean orders?"),
        ("--topic ordrs", "did you mean orders?"),
        ("another-dir", "no directory of that name"),
    ],
)
def test_what_makes_no_sense(run: Run, root: Path, argv: str, said: str) -> None:
    result = run("cursors", root, *argv.split())
    assert result.code == 2
    assert said in result.err
    assert len(result.err.splitlines()) == 1
    assert not result.lines


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT1S", 86_401_000),
        ("pt0.5s", 500),
        ("PT1,5S", 1500),
        ("-PT1H", -3_600_000),
        ("PT-1H", -3_600_000),
        ("PT-1.5S", -1500),
        ("P-1DT24H", 0),
        ("PT36H", 129_600_000),
    ],
)
def test_durations_are_javas(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "P1H", "PT1D", "P1W", "PT1.5H", "PT1M1H", "PT\u0661H"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Usage, match="--by-duration"):
        duration_ms(text)


@pytest.mark.parametrize("scope", [["--all-topics"], ["--topic", "orders:0,4"], ["--topic", "orders"], ["orders"]])
def test_a_partition_with_a_cursor_that_is_not_here_is_never_left_out(run: Run, root: Path, scope: list[str]) -> None:
    away = TopicPartition("orders", 4)
    with store_home(root) as home:
        commit(home, "billing", {away: 3})
    words = [scope[0]] if scope == ["orders"] else []
    options = [] if words else scope
    result = run("cursors", root, *words, "--group", "billing", "--to-earliest", *options, "--yes")
    assert (result.code, result.out) == (2, "")
    assert f"no partition orders-4 in {root} (name all log directories; " in result.err
    assert run("cursors", root, "--group", "billing", "--to-earliest", "--topic", "orders:0").code == 0
    assert run("cursors", root, "--group", "audit", "--to-earliest", "--topic", "orders").code == 0  # no cursor there


def test_only_what_is_committed(run: Run, root: Path, tmp_path: Path) -> None:
    """Kafka's --to-current gives a group a cursor at the end where it has none."""
    asked = ("cursors", root, "--all-groups", "--topic", "orders", "--to-current", "--members-gone")
    assert "audit,orders,0,10" in run(*asked, "--export").lines
    assert run(*asked, "--only-committed", "--export").lines == ["billing,orders,0,4", "billing,orders,1,0"]
    nobody = run("cursors", root, "--group", "new", "--topic", "orders", "--to-earliest", "--only-committed", "--yes")
    assert nobody.code == 2
    assert "no group 'new'" in nobody.err
    for wrong in ([], ["--group", "audit", "--delete"], ["--group", "audit", "--from-file", tmp_path / "x"]):
        told = run("cursors", root, *wrong, "--only-committed")
        assert (told.code, "--only-committed: expected" in told.err) == (2, True)
