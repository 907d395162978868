"""The tables of groups and lags: how far each consumer group is, and how far behind it was at each of its commits.

Groups are those of `kafkalog cursors`.  Lags over time come from the commits that `__consumer_offsets` still has, and
from the partition's times: the log's end at a commit is the first offset with a later time.  A commit in a transaction
counts once its marker is there.  Without depth, only the newest part of each log of offsets is read.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.group_records import CommittedOffset, OffsetKey, decode_group_record
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.cursors import CursorLook, GroupCursors
from kafkalog.toolbox.open_transactions import newest_part

if TYPE_CHECKING:
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.report.tables import Survey

LAGS_MAX = 300  # rows of one partition of one group
LAGS_OF_SURVEY_MAX = 20_000
PARTITION_BYTES_MAX = 4 << 20  # without depth: the newest part of a partition of __consumer_offsets that is read
SURVEY_BYTES_MAX = 32 << 20  # the same, of all of them together
GROUPS_MAX = 20_000  # rows of groups
MEMBERS_MAX = 3  # named in a row

Commit = tuple[int, int]  # (time, offset)


def add_groups(
    survey: Survey,
    log_dirs: Sequence[str],
    *,
    takes: Callable[[TopicPartition], bool] = lambda partition: True,
    files: Files = OS_FILES,
) -> None:
    """Adds the rows of groups and lags.  `takes` says which partitions are surveyed.  The fact `groupFindings` lists
    errors of reading."""
    look = CursorLook(log_dirs, files=files)
    if look.findings:
        survey.facts["groupFindings"] = look.findings
    rows: list[dict[str, Any]] = []
    for name, group in look.groups.items():
        listed, member = group.listed, _members(group)
        if not group.cursors:
            rows.append({"group": name, "state": listed.state, "member": member})
        for cursor in group.cursors:
            if not takes(cursor.partition):
                continue
            topic, partition = cursor.partition
            committed = cursor.committed
            rows.append(
                {
                    "group": name,
                    "state": listed.state,
                    "topic": topic,
                    "partition": partition,
                    "offset": None if committed is None else committed.offset,
                    "end": cursor.end,
                    "lag": cursor.lag,
                    "commitTimestamp": None if committed is None else committed.commit_timestamp,
                    "member": member,
                    "gone": cursor.gone,
                }
            )
    if len(rows) > GROUPS_MAX:  # the largest lags stay, and what has none although it has an offset
        survey.leave_out("groups", len(rows) - GROUPS_MAX)
        rows = heapq.nlargest(GROUPS_MAX, rows, key=_weight)
    for row in rows:
        survey.tables["groups"].add(**row)
    survey.facts["groups"] = len(look.groups)
    if look.groups:
        _add_lags(survey, look, takes, files)


def _weight(row: Mapping[str, Any]) -> float:
    lag: int | None = row.get("lag")
    return float(lag) if lag is not None and lag >= 0 else -1.0 if row.get("offset") is None else math.inf


def _members(group: GroupCursors) -> str | None:
    if not group.members:
        return None
    names = [f"{each.client_id} at {each.client_host}" for each in group.members[:MEMBERS_MAX]]
    more = len(group.members) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


class _Of(NamedTuple):
    """A partition of a group."""

    partition: TopicPartition
    group: str


def _add_lags(survey: Survey, look: CursorLook, takes: Callable[[TopicPartition], bool], files: Files) -> None:
    known = {
        _Of(cursor.partition, name): cursor.committed
        for name, group in look.groups.items()
        for cursor in group.cursors
        if cursor.gone is None and cursor.end is not None and cursor.committed is not None and takes(cursor.partition)
    }
    commits = _commits(survey, look, known, files)
    rows_max = max(2, min(LAGS_MAX, LAGS_OF_SURVEY_MAX // max(1, len(commits))))
    shown = sorted(commits, key=lambda of: -len(commits[of]))[: LAGS_OF_SURVEY_MAX // rows_max]
    checkpoints: dict[str, CheckpointLines] = {}
    by_partition: dict[TopicPartition, list[_Of]] = defaultdict(list)
    for of in sorted(shown):
        by_partition[of.partition].append(of)
    table = survey.tables["lags"]
    left_out = sum(map(len, commits.values())) - sum(len(commits[of]) for of in shown)
    for partition, groups in by_partition.items():
        log_dir = look.homes[partition]
        lines = checkpoints.setdefault(log_dir, CheckpointLines(log_dir, files, keeps_ms=KEEPS_MS))
        chosen = {of: thinned(commits[of], rows_max) for of in groups}
        left_out += sum(len(commits[of]) - len(chosen[of]) for of in groups)
        times = sorted({time_ms for some in chosen.values() for time_ms, _ in some})
        try:
            with PartitionView(log_dir, partition, files=files, checkpoints=lines) as view:
                ends = dict(zip(times, view.over(partial(_ends_at, times)), strict=True))
        except KafkalogError:  # damage is reported elsewhere; without the log, its ends are unknown
            continue
        for of in groups:
            for time_ms, offset in chosen[of]:
                # A record's time is its producer's: a committed offset shows that the log had more by then.
                end = max(ends[time_ms], offset)
                table.add(
                    group=of.group,
                    topic=partition.topic,
                    partition=partition.partition,
                    time=time_ms,
                    offset=offset,
                    end=end,
                    lag=end - offset,
                )
    survey.leave_out("lags", left_out)


def thinned(commits: Sequence[Commit], rows_max: int) -> Sequence[Commit]:
    """Returns at most so many, evenly chosen, with the first and the last."""
    if len(commits) <= rows_max:
        return commits
    step = (len(commits) - 1) / (rows_max - 1)
    return [commits[round(number * step)] for number in range(rows_max)]


def _ends_at(times: Sequence[int], seen: Snapshot) -> list[int]:
    """Returns where the log ended at each of some times, which are in order."""
    after, ends = seen.log_start_offset, []
    for time_ms in times:
        found = seen.offset_for_time(time_ms + 1, after) if after < seen.log_end_offset else None
        after = seen.log_end_offset if found is None else found
        ends.append(after)
    return ends


def _commits(
    survey: Survey, look: CursorLook, known: dict[_Of, CommittedOffset], files: Files
) -> dict[_Of, list[Commit]]:
    """Returns the commits that the logs of offsets still have, in order of time, for cursors that exist."""
    found: dict[_Of, list[Commit]] = defaultdict(list)
    places = sorted({(group.log_dir, group.number) for group in look.groups.values()})
    read_bytes, is_part = 0, False
    for log_dir, number in places:
        partition = TopicPartition(GROUP_METADATA_TOPIC, number)
        left = None if survey.deep else max(0, min(PARTITION_BYTES_MAX, SURVEY_BYTES_MAX - read_bytes))
        try:
            with PartitionView(log_dir, partition, files=files) as view:
                seen = view.snapshot
                place, position, start = newest_part(seen, left)
                read_bytes += sum(map(seen.readable_bytes, seen.segments[place:])) - position
                is_part |= start > view.log_start_offset
                for of, commit in _told(SourceStateLog(view, view.directory), start):
                    if of in known:
                        found[of].append(commit)
        except KafkalogError:  # CursorLook reports it
            continue
    if is_part:
        survey.facts["lagsReadInPart"] = True
    for of, committed in known.items():  # the newest, also if its record is not in the part that was read
        if committed.commit_timestamp >= 0:
            found[of].append((committed.commit_timestamp, committed.offset))
    return {of: sorted(set(commits)) for of, commits in found.items()}


def _told(log: SourceStateLog, start: int) -> Iterator[tuple[_Of, Commit]]:
    pending: dict[int, list[tuple[_Of, Commit]]] = defaultdict(list)
    for batch in log.read(start):
        if batch.marker is not None:
            of_transaction = pending.pop(batch.producer_id, [])
            if batch.marker is ControlRecordType.COMMIT:
                yield from of_transaction
            continue
        for record in batch.records:
            try:
                key, value = decode_group_record(record.key, record.value)
            except KafkalogError:
                continue
            if not isinstance(key, OffsetKey) or not isinstance(value, CommittedOffset) or value.commit_timestamp < 0:
                continue
            told = _Of(TopicPartition(key.topic, key.partition), key.group), (value.commit_timestamp, value.offset)
            if batch.producer_id < 0:
                yield told
            else:
                pending[batch.producer_id].append(told)
