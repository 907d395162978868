"""`kafkalog cursors`: shows how far each consumer group has read, and sets or deletes offsets with the options of
kafka-consumer-groups."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

import click

from kafkalog._face.named import is_glob, names_partition
from kafkalog._face.times import SECONDS
from kafkalog._limits import LONG_MAX
from kafkalog.cli import choosing
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Number, Usage
from kafkalog.cli.console import (
    counted,
    emit,
    emit_json,
    fields,
    named_partitions,
    note,
    paint,
    parse_time_ms,
    some,
    time_words,
)
from kafkalog.cli.places import LOCAL_PLACES_AND_NAMES, log_dirs_at, places_and_names
from kafkalog.cli.tables import Cell, Column, print_table
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import read_small
from kafkalog.toolbox import cursor_csv
from kafkalog.toolbox.cursor_changes import (
    Aim,
    Change,
    ChangePlan,
    carry_out,
    plan_deletion,
    plan_from_file,
    plan_offset_deletion,
    plan_reset,
)
from kafkalog.toolbox.cursors import Cursor, CursorLook, GroupCursors, GroupLag
from kafkalog.toolbox.words import span

COLUMNS = (
    Column("GROUP"),
    Column("TOPIC"),
    Column("PARTITION", right=True),
    Column("POSITION", right=True, drop=1),
    Column("LOG END", right=True, drop=2),
    Column("LAG", right=True),
    Column("AGE", right=True),
    Column("STATE", right=True, drop=3),
    Column("MEMBERS", right=True, drop=5),
    Column("PENDING", right=True, drop=4),
    Column("METADATA", right=True, drop=6),
)
LAG_COLUMNS = (
    Column("LAG OF GROUP"),
    Column("PARTITIONS", right=True, drop=2),
    Column("LAG", right=True),
    Column("LARGEST", right=True, drop=1),
    Column("OF PARTITION", drop=1),
)
CHANGE_HEADERS = ("GROUP", "TOPIC", "PARTITION", "POSITION", "NEW OFFSET")
NONE = "-"

_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?=.)(?:(?P<d>[+-]?\d+)D)?(?:T(?=.)(?:(?P<h>[+-]?\d+)H)?(?:(?P<m>[+-]?\d+)M)?"
    r"(?:(?P<s>[+-]?\d+)(?:[.,](?P<f>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


@click.command("cursors", short_help="Show consumer group offsets and lag; set and delete offsets.")
@LOCAL_PLACES_AND_NAMES
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A consumer group.  Repeatable.")
@click.option("--all-groups", is_flag=True, help="When offsets change: every group.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="A topic or partition, as in PARTITIONS, or orders:0,1.  Repeatable.",
)
@click.option(
    "--all-topics", is_flag=True, help="When offsets change: every partition in which the group has committed."
)
@click.option(
    "--cursors",
    "cursors_dir",
    type=LocalPath(),
    metavar="DIR",
    help="A directory with the cursors of a process that only reads.",
)
@click.option("--committed", is_flag=True, help="Show log ends and lags as read_committed readers see them.")
@click.option("--reset-offsets", is_flag=True, help="Set offsets.  Implied by each of the next eight options.")
@click.option("--to-offset", type=Number(0, LONG_MAX), metavar="OFFSET", help="Set to this offset.")
@click.option("--to-earliest", is_flag=True, help="Set to the log start.")
@click.option("--to-latest", is_flag=True, help="Set to the log end.")
@click.option("--to-current", is_flag=True, help="Set to the committed offset, or to the log end if there is none.")
@click.option(
    "--to-datetime", metavar="TIME", help="Set to the first record at or after a time: ISO 8601 (UTC), or @ms."
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="Set to the first record within a duration before now, such as PT1H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="Move by N offsets; backwards if negative.")
@click.option("--only-committed", is_flag=True, help="Change only committed offsets: create no cursor and no group.")
@click.option(
    "--from-file", type=LocalPath(), metavar="FILE", help="Set to the offsets in a file that --export printed."
)
@click.option("--export", is_flag=True, help="Print the offsets that would be set, as CSV for --from-file.")
@click.option("--delete-offsets", is_flag=True, help="Delete what a group has committed for topics.")
@click.option("--delete", is_flag=True, help="Delete groups with all their offsets.")
@click.option("--new-group", is_flag=True, help="Create the group even if another has a similar name.")
@click.option("--members-gone", is_flag=True, help="Change a group with members, which must never come back.")
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", "--execute", "yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: groups, cursors and changes.")
def command(
    log_dirs: tuple[str, ...],
    groups: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    cursors_dir: str | None,
    committed: bool,
    reset_offsets: bool,
    to_offset: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    only_committed: bool,
    from_file: str | None,
    export: bool,
    delete_offsets: bool,
    delete: bool,
    new_group: bool,
    members_gone: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Show the cursors (committed offsets of consumer groups) in LOG_DIRS, or only for the named PARTITIONS (topic-0, a
    topic, or a glob).

    Name all log directories of the broker or store. Without one of the options that change offsets, the command changes
    nothing, takes no lock, and works while a broker is running.

    The position of a share group is its start offset. Its lag leaves out records after it that are done.

    Each row shows the position, the log end, the lag, the age of the commit, the group's state and members, producers
    with a pending offset in an open transaction, and metadata. If a group has several cursors, a table with its total
    lag follows. If a topic was deleted, or deleted and created again, its offset has no log end, and a note says so. An
    offset below the log start is noted too; as in Kafka, its lag counts deleted records.

    With --cursors the cursors in that directory replace those of the same group in LOG_DIRS. Changes are then made
    there, and LOG_DIRS are only read.

    \b
    Changes follow the options and rules of kafka-consumer-groups, and of
    kafka-share-groups for share groups:
      --reset-offsets   for --group or --all-groups, and --topic or --all-topics;
                        or with --from-file
      --delete-offsets  for one --group, and --topic
      --delete          for --group or --all-groups

    Without --yes a change is only reported. With --yes the directory that holds the group must not be in use (exit 3).
    An offset out of range is moved into the range of its partition, and noted. If a group has no cursor for a
    partition, it gets one, also with --to-current, unless --only-committed is given. A group that does not exist is
    created; if another group has a similar name, this needs --new-group. A group with members is refused, unless
    --members-gone says that they will never commit again.

    Exit 1 if something could not be read, or if a group of --all-groups was not changed.
    """
    aims = {
        "to-offset": to_offset,
        "to-earliest": to_earliest or None,
        "to-latest": to_latest or None,
        "to-current": to_current or None,
        "to-datetime": to_datetime,
        "by-duration": by_duration,
        "shift-by": shift_by,
        "from-file": from_file,
    }
    given = {how: value for how, value in aims.items() if value is not None}
    action = _action(reset_offsets or bool(given), delete_offsets, delete)
    where, named = places_and_names(log_dirs)
    topics = (*topics, *named)
    _check(action, given, groups, all_groups=all_groups, topics=topics, all_topics=all_topics)
    only_changes = {
        "--yes": yes,
        "--new-group": new_group,
        "--members-gone": members_gone,
        "--dry-run": dry_run,
        "--all-topics": all_topics,
    }
    if only_committed and (action != "reset" or from_file is not None):
        raise Usage("--only-committed: expected options that set offsets, such as --to-current --topic orders")
    if export and action != "reset":
        raise Usage("--export: expected options that set offsets, such as --to-current")
    if export and as_json:
        raise Usage("found --export and --json, expected one of them")
    for option, is_given in only_changes.items():
        if is_given and action == "list":
            raise Usage(
                f"{option}: expected an option that changes offsets: --to-offset ..., --delete-offsets or --delete"
            )
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
    look = CursorLook(log_dirs_at(where), cursors_dir, isolation=choosing.isolation(committed))
    for text in look.findings:
        _finding(text, as_json)
    if action == "list":
        _check_words(look, topics)
        _list(look, groups, topics, as_json)
        return FINDINGS if look.findings else CLEAN
    wanted = [*look.groups] if all_groups else list(groups)
    if action == "reset":
        plan = _reset(look, wanted, given, topics, all_topics, members_gone, only_committed, all_groups)
    elif action == "delete":
        plan = plan_deletion(look, wanted, members_gone=members_gone)
    else:
        scope = _partitions(look, topics, [each.partition for each in look.must(wanted[0]).cursors])
        plan = plan_offset_deletion(look, wanted[0], scope, members_gone=members_gone)
    if plan.refused and not all_groups:
        raise Usage(_refusal(plan))
    for name, why in plan.refused.items():
        note(f"note: group {name!r} is not changed: {why}")
    act = yes and not dry_run
    near = {} if new_group else {name: other for name in plan.begun if (other := look.nearest_group(name))}
    if act and near:
        name, other = next(iter(near.items()))
        raise Usage(
            f"--group {name}: found no such group, but {other} with a similar name: nothing is changed; did you mean "
            f"{other}?  --new-group creates {name}"
        )
    if export:
        for each in plan.changes:
            assert each.new is not None
            emit(cursor_csv.line(None if len(wanted) == 1 and groups else each.group, each.partition, each.new))
    for name in plan.begun:
        hint = f"; did you mean {near[name]}?  --new-group --yes creates it" if name in near else ""
        note(f"note: group {name!r} is new: it has no committed offsets{hint}")
    does_it = "--new-group --yes" if near else "--yes"
    _tell_and_do(look, plan, act, members_gone, does_it, shows="" if export else "json" if as_json else "text")
    return FINDINGS if plan.refused or look.findings else CLEAN


def _check_words(look: CursorLook, topics: Sequence[str]) -> None:
    """Raises Usage or UnknownTopicOrPartitionException for a word that names no partition: a group, or a misspelled
    name."""
    known = look.known_partitions()
    for topic, _ in map(_topic, topics if known else ()):
        if topic in look.groups and not any(names_partition(topic, each) for each in known):
            raise Usage(f"{topic}: found a group instead of a topic, expected --group {topic}")
        named_partitions(known, (topic,), ", ".join(look.log_dirs))


# --- the command line -------------------------------------------------------------------------------------


def _action(reset: bool, delete_offsets: bool, delete: bool) -> str:
    wanted = {"reset": reset, "delete-offsets": delete_offsets, "delete": delete}
    chosen = [action for action, is_wanted in wanted.items() if is_wanted]
    if len(chosen) > 1:
        raise Usage("expected one of setting offsets, --delete-offsets and --delete")
    return chosen[0] if chosen else "list"


def _check(
    action: str,
    given: Mapping[str, object],
    groups: Sequence[str],
    *,
    all_groups: bool,
    topics: Sequence[str],
    all_topics: bool,
) -> None:
    """Raises Usage if it is not clear what to change."""
    if groups and all_groups:
        raise Usage("found --group and --all-groups, expected one of them")
    if action == "list":
        if all_groups:
            raise Usage("--all-groups: expected an option that changes offsets; without --group all groups are listed")
        return
    if not groups and not all_groups:
        raise Usage(
            "no group given, expected --group NAME" + ("" if action == "delete-offsets" else " or --all-groups")
        )
    if topics and all_topics:
        raise Usage("found --topic and --all-topics, expected one of them")
    if action == "delete":
        if topics or all_topics:
            raise Usage("--delete deletes whole groups; --delete-offsets deletes offsets of topics")
    elif action == "delete-offsets":
        if len(groups) != 1 or not topics:
            raise Usage("--delete-offsets: expected one --group and --topic, which may be given several times")
    elif len(given) != 1:
        found = ", ".join(f"--{how}" for how in given) or "none"
        raise Usage(
            f"found {found}, expected one of --to-offset, --to-earliest, --to-latest, --to-current, --to-datetime, "
            "--by-duration, --shift-by and --from-file"
        )
    elif "from-file" in given:
        if topics or all_topics:
            raise Usage("found --from-file and a scope, expected one of them: the file names the partitions")
    elif not topics and not all_topics:
        raise Usage("no scope given, expected --topic TOPIC, --topic TOPIC:0,1 or --all-topics")


def _reset(
    look: CursorLook,
    groups: list[str],
    given: Mapping[str, object],
    topics: Sequence[str],
    all_topics: bool,
    members_gone: bool,
    only_committed: bool,
    all_groups: bool,
) -> ChangePlan:
    [(how, value)] = given.items()
    if how == "from-file":
        path = str(value)
        plans = cursor_csv.read_plans(_text_of(path), groups, path)
        if all_groups:  # the file does not name the others
            unnamed = [name for name in groups if name not in plans]
            if unnamed:
                note(f"note: {path} does not name {some(unnamed)}: not changed")
            groups = [name for name in groups if name in plans]
        return plan_from_file(look, plans, groups, members_gone=members_gone)
    committed = {each for name in groups if name in look.groups for each in look.groups[name].committed}
    scope = None if all_topics else _partitions(look, topics, sorted(committed))
    return plan_reset(look, groups, _aim(how, value), scope, members_gone=members_gone, only_committed=only_committed)


def _text_of(path: str) -> str:
    if not OS_FILES.exists(path) or OS_FILES.is_dir(path):
        raise Usage(f"{path}: no such file, expected lines as --export prints them")
    try:
        return read_small(path).decode()
    except UnicodeDecodeError as error:
        raise Usage(f"{path}: not UTF-8 at byte {error.start}, expected lines as --export prints them") from None


def _aim(how: str, value: object) -> Aim:
    if how == "to-datetime":
        at_ms = parse_time_ms(str(value), or_offset=False)
        if str(value).startswith("@") and at_ms in SECONDS:
            note(
                f"note: --to-datetime {value} is {time_words(at_ms)}: @ is followed by milliseconds (@{at_ms}000 if "
                "these are seconds)"
            )
        return Aim(how, at_ms)
    if how == "by-duration":
        return Aim(how, SYSTEM_CLOCK.milliseconds() - duration_ms(str(value)))
    return Aim(how, value if isinstance(value, int) else 0)


def duration_ms(text: str) -> int:
    """Parses a duration as Java's Duration.parse, such as "P1DT2H30M5.5S", to ms. Raises Usage for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise Usage(f"--by-duration: found {text!r}, expected days, hours, minutes, seconds such as P1D or PT1H30M")
    days, hours, minutes, seconds = (int(found[part] or 0) for part in ("d", "h", "m", "s"))
    fraction = int((found["f"] or "").ljust(9, "0")[:9])
    if (found["s"] or "").startswith("-"):
        fraction = -fraction
    total_ns = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000_000 + fraction
    return -(total_ns // 1_000_000) if found["sign"] == "-" else total_ns // 1_000_000


def _partitions(
    look: CursorLook, topics: Sequence[str], with_cursors: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """Returns the partitions that --topic names: all existing ones of a topic, and those in which the groups have
    cursors, even if they are not here."""
    found: dict[TopicPartition, None] = {}
    for text in topics:
        topic, numbers = _topic(text)
        if numbers is not None:
            found.update(dict.fromkeys(TopicPartition(topic, each) for each in numbers))
            continue
        known = look.partitions_of(topic)
        known += [each for each in with_cursors if names_partition(topic, each)]
        if not known and is_glob(topic):
            raise Usage(f"--topic: no topic matches {topic!r} in {', '.join(look.log_dirs)}")
        if not known:
            named_partitions(
                look.known_partitions(), (topic,), ", ".join(look.log_dirs)
            )  # passes for one that was deleted
            look.bounds(TopicPartition(topic, 0))  # raises for a topic that does not exist
        found.update(dict.fromkeys(sorted(known)))
    return list(found)


def _topic(text: str) -> tuple[str, list[int] | None]:
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    if not topic or is_glob(topic) or not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*", numbers):
        raise Usage(f"--topic: found {text!r}, expected a topic, or a topic and partitions such as orders:0,1")
    return topic, [int(each) for each in numbers.split(",")]


def _refusal(plan: ChangePlan) -> str:
    said = "; ".join(f"group {name!r}: {why}" for name, why in plan.refused.items())
    hint = " (--members-gone changes it anyway)" if "members" in said else ""
    return f"nothing is changed: {said}{hint}"


# --- output -----------------------------------------------------------------------------------------------


def _finding(text: str, as_json: bool) -> None:
    if as_json:
        emit_json({"kind": "finding", "what": text})
    else:
        emit(paint(text, "red"))


def _list(look: CursorLook, groups: Sequence[str], topics: Sequence[str], as_json: bool) -> None:
    scopes = [_topic(text) for text in topics]
    found = look.named(groups) if groups else list(look.groups.values())
    rows: list[Sequence[object]] = []
    lags: list[Sequence[object]] = []
    is_empty, is_summed = True, False
    for group in found:
        cursors = [each for each in group.cursors if not scopes or _is_in(each.partition, scopes)]
        if scopes and not cursors and not groups:
            continue
        is_empty = False
        if as_json:
            _list_json(group, cursors)
            continue
        rows += [_row(group, each) for each in cursors] or [_row(group, None)]
        lags += [_lag_row(group, cursors)] if cursors else []
        is_summed |= len(cursors) > 1
        for each in cursors:
            if each.gone is not None:
                note(f"note: {group.listed.group}: {each.partition} is {each.gone}")
            elif each.deleted and each.committed is not None:
                note(
                    f"note: {group.listed.group}: {each.partition}: its next offset {each.committed.offset} was "
                    f"deleted; the log starts at {each.start}, so "
                    f"{counted(each.deleted, 'offset')} can no longer be read"
                )
        for member in group.members:
            has = f": {', '.join(map(str, member.assignment))}" if member.assignment else ""
            note(
                f"note: {group.listed.group}: member {member.member_id} of {member.client_id} at "
                f"{member.client_host}{has}"
            )
    if is_empty and (also := [topic for topic, _ in scopes if topic in look.groups]):
        note(f"no cursors into the topic {also[0]}; but a group has this name: --group {also[0]} lists its cursors")
    elif as_json:
        return
    elif rows:
        print_table(COLUMNS, rows)
        if is_summed:
            emit("")
            print_table(LAG_COLUMNS, lags)
    else:
        note(
            "no cursors in __consumer_offsets: no reader has committed one yet, or they are elsewhere (name all log "
            "directories, or --cursors DIR)"
        )


def _is_in(partition: TopicPartition, scopes: Sequence[tuple[str, list[int] | None]]) -> bool:
    return any(
        names_partition(topic, partition)
        if numbers is None
        else topic == partition.topic and partition.partition in numbers
        for topic, numbers in scopes
    )


def _row(group: GroupCursors, cursor: Cursor | None) -> Sequence[object]:
    about = [group.listed.state, len(group.members)]
    if cursor is None:
        return [group.listed.group, *[NONE] * 6, *about, NONE, NONE]
    committed = cursor.committed
    return [
        group.listed.group,
        *cursor.partition,
        NONE if committed is None else committed.offset,
        Cell("missing", "red") if cursor.gone is not None else NONE if cursor.end is None else cursor.end,
        NONE if cursor.lag is None else cursor.lag,
        NONE if cursor.age_ms is None else span(cursor.age_ms),
        *about,
        Cell(",".join(map(str, cursor.pending)), "yellow") if cursor.pending else NONE,
        NONE if committed is None else repr(committed.metadata) if committed.metadata else NONE,
    ]


def _lag_row(group: GroupCursors, cursors: Sequence[Cursor]) -> Sequence[object]:
    sums = GroupLag.of(cursors)
    lag: object = sums.lag
    if sums.unknown:
        lag = Cell("unknown" if sums.unknown == len(cursors) else f"{sums.lag} and unknown", "yellow")
    largest = sums.largest
    return [
        group.listed.group,
        len(cursors),
        lag,
        NONE if largest is None else largest.lag,
        NONE if largest is None else largest.partition,
    ]


def _list_json(group: GroupCursors, cursors: Sequence[Cursor]) -> None:
    listed, sums = group.listed, GroupLag.of(cursors)
    emit_json(
        {
            "kind": "group",
            "group": listed.group,
            "state": listed.state,
            "type": listed.type.value,
            "protocolType": listed.protocol_type,
            "members": [fields(each) | {"assignment": list(map(str, each.assignment))} for each in group.members],
            "logDir": group.log_dir,
            "offsetsPartition": group.number,
            "cursors": len(cursors),
            "lag": sums.lag,
            "lagKnown": not sums.unknown,
            "largestLag": 0 if sums.largest is None else sums.largest.lag,
        }
    )
    for each in cursors:
        committed = each.committed
        emit_json(
            {
                "kind": "cursor",
                "group": listed.group,
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "offset": None if committed is None else committed.offset,
                "logStartOffset": each.start,
                "logEndOffset": each.end,
                "lag": each.lag,
                "complete": each.complete,
                "commitTimestamp": None if committed is None else committed.commit_timestamp,
                "commitTime": None if committed is None else time_words(committed.commit_timestamp),
                "ageMs": each.age_ms,
                "leaderEpoch": None if committed is None else committed.leader_epoch,
                "metadata": None if committed is None else committed.metadata,
                "pendingProducerIds": list(each.pending),
                "gone": each.gone,
            }
        )


def _tell_and_do(
    look: CursorLook, plan: ChangePlan, act: bool, members_gone: bool, does_it: str, *, shows: str
) -> None:
    for each in plan.changes:
        if each.note is not None:
            note(f"note: {each.group}: {each.partition}: {each.note}")
    if shows == "text":
        _print_changes(plan)
    if not act:
        if shows == "json":
            for group in plan.groups:
                _changes_json(plan, group, False)
        elif shows == "text" and plan.groups:
            emit(f"{_summary(plan)} would be {_doing(plan)} ({does_it} does it)")
        return

    def tell(group: str) -> None:
        if shows == "json":
            _changes_json(plan, group, True)

    carry_out(look, plan, members_gone=members_gone, done=tell)
    if shows == "text" and plan.groups:
        emit(f"{_summary(plan)} {_doing(plan)}")


def _print_changes(plan: ChangePlan) -> None:
    rows = [_change_row(each) for each in plan.changes]
    with_offsets = {each.group for each in plan.changes}
    rows += [[name, NONE, NONE, NONE, "deleted"] for name in plan.deleted if name not in with_offsets]
    if rows:
        print_table(CHANGE_HEADERS, rows, left=2)
    else:
        emit("nothing to change: nothing is committed there")


def _change_row(each: Change) -> list[object]:
    return [
        each.group,
        *each.partition,
        NONE if each.old is None else each.old,
        "deleted" if each.new is None else each.new,
    ]


def _summary(plan: ChangePlan) -> str:
    return f"in all: {counted(len(plan.changes), 'offset')} of {counted(len(plan.groups), 'group')}"


def _doing(plan: ChangePlan) -> str:
    if plan.deleted:
        return "deleted, and the groups"
    return "deleted" if any(each.new is None for each in plan.changes) else "set"


def _changes_json(plan: ChangePlan, group: str, done: bool) -> None:
    for each in plan.of_group(group):
        emit_json(
            {
                "kind": "change",
                "group": each.group,
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "old": each.old,
                "new": each.new,
                "note": each.note,
                "done": done,
            }
        )
    if group in plan.deleted:
        emit_json({"kind": "deletedGroup", "group": group, "done": done})
