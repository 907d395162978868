"""The table of oddities: from the finished other tables, in words, each with the command that mends or explains it.

A row says only what the tables, the names in a directory and its checkpoints show.  The limits below say from when on
something is odd, so that a healthy directory has no rows.  Commands change nothing unless they are given `--yes`, with
one exception: `salvage` writes a new directory.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog import _shown
from kafkalog._face.missing import missing_partitions, whole_topics
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OS_FILES, Files, OsFiles
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError
from kafkalog.report.missing import MISSING_TEXT
from kafkalog.toolbox.checkpoint_table import Extent, checkpoint_table
from kafkalog.toolbox.cursors import ANOTHER_TOPIC, NOT_HERE
from kafkalog.toolbox.folders import folders_of, named_folders
from kafkalog.toolbox.gaps import NOT_COMPACTED, NOT_TRIMMED
from kafkalog.toolbox.words import command_line, counted, span

if TYPE_CHECKING:
    from kafkalog.report.tables import Survey

ERROR, WARNING, NOTE = "error", "warning", "note"
_SEVERITIES = (ERROR, WARNING, NOTE)
ROWS_OF_KIND_MAX = 20

OPEN_MS, HELD_RECORDS = 60_000, 10_000  # an open transaction is odd from both on
LAG, LAG_SHARE = 100_000, 0.5  # a lag, from both on; the share of the partition's offsets
NEARLY_FULL, FULL = 0.10, 0.02  # free share of a disk
FUTURE_MS = 3_600_000  # clocks differ
DIRTY_BYTES, DIRTY_SHARE = 64 << 20, 0.5  # not yet compacted, from both on
SKEW_PARTITIONS, SKEW_BYTES, SKEW_TIMES = 3, 64 << 20, 3.0
UNCOMPRESSED_BYTES, UNCOMPRESSED_SHARE = 256 << 20, 0.9
TINY_BATCHES, TINY_BATCH_BYTES = 10_000, 256
TINY_SEGMENTS, TINY_SEGMENT_BYTES = 100, 1 << 20
PREALLOCATED_BYTES = 1 << 30
CLOCK_BACK_MS = 3_600_000

Row = Mapping[str, Any]


class Oddity(NamedTuple):
    """A row of the table `odd`.  Within one severity and kind, the largest `weight` comes first."""

    severity: str
    text: str
    command: str
    partition: TopicPartition | None = None
    topic: str | None = None
    weight: float = 0


def add_odd(
    survey: Survey,
    asked: Collection[str] = (),
    *,
    settings: TopicSettings | None = None,
    files: Files = OS_FILES,
) -> None:
    """Fills the table `odd` from the others, which must be complete.  `asked` has the topics, partitions or globs that
    are surveyed; empty means everything."""
    look = _Oddities(survey, asked, settings or TopicSettings(survey.log_dirs, files=files), files)
    found: list[tuple[int, int, float, Oddity]] = []
    for kind, find in enumerate(look.kinds()):
        rows = sorted(find, key=lambda each: (_SEVERITIES.index(each.severity), -each.weight))
        if len(rows) > ROWS_OF_KIND_MAX:
            last = rows[ROWS_OF_KIND_MAX - 1]
            more = len(rows) - ROWS_OF_KIND_MAX + 1
            rows[ROWS_OF_KIND_MAX - 1 :] = [
                Oddity(last.severity, f"{last.text} (and {more - 1} more such)", last.command)
            ]
        found += [(_SEVERITIES.index(each.severity), kind, -each.weight, each) for each in rows]
    for _, _, _, each in sorted(found, key=lambda entry: entry[:3]):
        partition = each.partition
        survey.tables["odd"].add(
            severity=each.severity,
            topic=each.topic if partition is None else partition.topic,
            partition=None if partition is None else partition.partition,
            text=each.text,
            command=each.command,
        )


def _partition(row: Row) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


class _Oddities:
    def __init__(self, survey: Survey, asked: Collection[str], settings: TopicSettings, files: Files) -> None:
        self.survey = survey
        self.asked = asked
        self.settings = settings
        self.files = files
        self.partitions = {_partition(row): row for row in survey.tables["partitions"].rows()}
        self.homes = {partition: row["logDir"] for partition, row in self.partitions.items()}
        self.all_homes: dict[TopicPartition, list[str]] = defaultdict(list)
        for row in survey.tables["partitions"].rows(("topic", "partition", "logDir")):
            self.all_homes[_partition(row)].append(row["logDir"])
        self.twice = [partition for partition, homes in self.all_homes.items() if len(homes) > 1]
        self.segments: dict[TopicPartition, list[Row]] = defaultdict(list)
        for row in survey.tables["segments"].rows():
            self.segments[_partition(row)].append(row)
        self.damaged = {_partition(row) for row in survey.tables["findings"].rows() if row["topic"] is not None}

    def kinds(self) -> Iterator[Iterable[Oddity]]:
        """Yields the oddities of each kind; within a severity, the most serious kind comes first."""
        yield self.damage()
        yield self.missing()
        yield self.in_two_directories()
        yield self.gaps()
        yield self.hanging()
        yield self.holding()
        yield self.unknown_transactions()
        yield self.groups()
        yield self.unclean()
        yield self.disks()
        yield self.future()
        yield self.uncompacted()
        yield self.checkpoints()
        yield self.folders()
        yield self.unknown_settings()
        yield self.backward()
        yield self.skew()
        yield self.uncompressed()
        yield self.tiny_batches()
        yield self.tiny_segments()
        yield self.preallocated()

    def rows(self, table: str) -> Iterator[Row]:
        return iter(self.survey.tables[table].rows())

    def of(self, *words: object, partition: TopicPartition) -> str:
        """Returns the command about a partition: its name, the log directory, the partition."""
        return command_line(*words, self.homes.get(partition, self.survey.log_dirs[0]), partition)

    def at(self, *words: object, partition: TopicPartition) -> str:
        """Returns the same for a command that takes the partition's directory."""
        return command_line(*words, os.path.join(self.homes.get(partition, self.survey.log_dirs[0]), str(partition)))

    # --- damage ------------------------------------------------------------------------------------

    def damage(self) -> Iterator[Oddity]:
        findings: dict[TopicPartition | None, list[Row]] = defaultdict(list)
        for row in self.rows("findings"):
            findings[None if row["topic"] is None else _partition(row)].append(row)
        saved: dict[TopicPartition, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        lost: dict[TopicPartition, int] = defaultdict(int)
        for row in self.rows("damage"):
            if row["topic"] is not None:
                saved[_partition(row)][row["state"]] += row["bytes"]
                lost[_partition(row)] += row["bytes"] if row["state"] == "lost" else 0
        for row in findings.pop(None, ()):
            log_dir = self._dir_of(row["path"])
            name = os.path.basename(row["path"])
            verb = "checkpoint" if name in names.OFFSET_CHECKPOINT_FILES else "verify"
            yield Oddity(ERROR, f"{row['path']}: {row['what']}", command_line(verb, log_dir))
        for partition, rows in findings.items():
            if partition is None:
                continue
            sums = saved[partition]
            first = max(rows, key=lambda row: (row["path"].endswith(names.LOG_FILE_SUFFIX), row["length"] > 0))
            text = f"{partition} is damaged: {counted(len(rows), 'finding')}, the first "
            text += f"in {first['path']}: {first['what']}"
            if "cut" in sums and sums["cut"] > sums["lost"]:
                text += f".  A recovery would cut {_shown.size(sums['cut'])}; salvage loses {_shown.size(sums['lost'])}"
            yield Oddity(ERROR, text, self._mends(partition, rows, sums), partition, weight=lost[partition] + len(rows))
        for text in self.survey.facts.get("otherFindings", ()):
            yield Oddity(WARNING, text, command_line("verify", self._dir_of(text)))
        for text in self.survey.facts.get("groupFindings", ()):
            if not any(str(each) in text for each in (*self.damaged, *self.twice)):
                yield Oddity(WARNING, text, command_line("cursors", *self.survey.log_dirs))

    def _dir_of(self, path: str) -> str:
        """Returns the log directory that a path, or a text that begins with a path, is in."""
        dirs = self.survey.log_dirs
        return next(
            (each for each in dirs if path == each or path.startswith((os.path.join(each, ""), f"{each}:"))), dirs[0]
        )

    def _mends(self, partition: TopicPartition, rows: list[Row], sums: Mapping[str, int]) -> str:
        log_dir = self.homes.get(partition) or self._dir_of(rows[0]["path"])
        place = os.path.dirname(os.path.dirname(rows[0]["path"]))
        if mounted(log_dir) is not None and not (place == log_dir and OsFiles().is_dir(f"{log_dir}/{partition}")):
            return command_line("verify", "--deep", place, partition)  # an object of a tier: nothing mends it
        logs = [row for row in rows if row["path"].endswith(names.LOG_FILE_SUFFIX)]
        if any(row["length"] for row in logs):
            if "cut" in sums and sums["cut"] <= sums.get("lost", 0):  # salvage keeps no more than a recovery
                return command_line("recover", log_dir, partition)
            return command_line("salvage", log_dir, f"{log_dir.rstrip('/')}-salvaged", partition)
        if all(names.is_index_file(row["path"]) for row in rows) and not any(
            row["what"].endswith((NOT_COMPACTED, NOT_TRIMMED)) or ".log file" in row["what"] for row in rows
        ):
            return command_line("reindex", log_dir, partition)
        return command_line("verify", log_dir, partition)

    # --- what is missing ---------------------------------------------------------------------------

    def missing(self) -> Iterator[Oddity]:
        try:
            found = missing_partitions(self.survey.log_dirs, whole_topics(self.asked), files=self.files)
        except (KafkalogError, OSError):  # an unreadable file is among the findings
            return
        for each in found:
            if each.is_certain:
                yield Oddity(
                    ERROR,
                    each.text,
                    command_line("topics", *self.survey.log_dirs, each.topic),
                    topic=each.topic,
                    weight=len(each.numbers),
                )

    def in_two_directories(self) -> Iterator[Oddity]:
        for partition in self.twice:
            first, second = self.all_homes[partition][:2]
            yield Oddity(
                ERROR,
                f"{partition} is in {first} and in {second}: a broker does not start with both",
                command_line("compare", first, second, partition),
                partition,
            )

    def gaps(self) -> Iterator[Oddity]:
        gaps: dict[TopicPartition, list[Row]] = defaultdict(list)
        for row in self.rows("gaps"):
            if row["why"] == MISSING_TEXT and _partition(row) not in self.damaged:
                gaps[_partition(row)].append(row)
        for partition, rows in gaps.items():
            total, widest = sum(row["offsets"] for row in rows), max(rows, key=lambda row: row["offsets"])
            where = f"{'' if len(rows) == 1 else 'most of them '}from {widest['firstOffset']} to {widest['lastOffset']}"
            yield Oddity(
                NOTE,  # `verify` finds it, if the settings say that the topic was never compacted
                f"{partition} lacks {counted(total, 'offset')}, {where}, and nothing says that its topic is compacted: "
                "an earlier compaction or a salvage left the gap, or files are missing",
                self.of("describe", partition=partition),
                partition,
                weight=total,
            )

    # --- transactions ------------------------------------------------------------------------------

    def _held(self, row: Row) -> str:
        whose = f"transactional id {row['transactionalId']!r}, " if row["transactionalId"] is not None else ""
        held = row["heldRecords"]
        return f"{whose}producer {row['producerId']}, from offset {row['firstOffset']}" + (
            "" if held is None else f"; it holds back {counted(held, 'record')}"
        )

    def hanging(self) -> Iterator[Oddity]:
        for row in self.rows("transactions"):
            if row["state"] == "hanging":
                partition = _partition(row)
                yield Oddity(
                    ERROR,
                    f"a transaction hangs in {partition} for {span(row['ageMs'])}: {self._held(row)}",
                    f"{self.of('transactions', 'abort', partition=partition)} --start-offset {row['firstOffset']}",
                    partition,
                    weight=row["heldRecords"] or 0,
                )

    def holding(self) -> Iterator[Oddity]:
        for row in self.rows("transactions"):
            if row["state"] == "open" and row["ageMs"] >= OPEN_MS and (row["heldRecords"] or 0) >= HELD_RECORDS:
                partition = _partition(row)
                yield Oddity(
                    WARNING,
                    f"a transaction is open in {partition} for {span(row['ageMs'])}: {self._held(row)}",
                    self.of("transactions", partition=partition),
                    partition,
                    weight=row["heldRecords"],
                )

    def unknown_transactions(self) -> Iterator[Oddity]:
        for log_dir in self.survey.log_dirs if self.survey.facts.get("transactionsUnknown") else ():
            of = [
                each
                for each, row in self.partitions.items()
                if row["logDir"] == log_dir and row["openTransactions"] is None and row["segments"]
            ]
            if of:
                some = ", ".join(map(str, of[:3])) + (" ..." if len(of) > 3 else "")
                yield Oddity(
                    NOTE,
                    f"the transactions of {counted(len(of), 'partition')} are unknown: the log after the newest "
                    f"producer snapshot is too long to be read without --deep: {some}",
                    command_line("transactions", log_dir, *(of if len(of) == 1 else self.asked)),
                    of[0] if len(of) == 1 else None,
                    weight=len(of),
                )

    # --- groups ------------------------------------------------------------------------------------

    def groups(self) -> Iterator[Oddity]:
        away: dict[str, list[TopicPartition]] = defaultdict(list)
        for row in self.rows("groups"):
            if row["topic"] is None:
                continue
            partition, group, offset = _partition(row), row["group"], row["offset"]
            about = self.partitions.get(partition, {})
            if row["gone"] == ANOTHER_TOPIC:
                yield self._group(WARNING, row, f"has an offset in {partition} {ANOTHER_TOPIC}")
            elif row["gone"] == NOT_HERE:
                away[group].append(partition)
            elif offset is None or row["end"] is None:
                continue
            elif offset > row["end"]:
                yield self._group(ERROR, row, f"is at offset {offset} of {partition}, after its end {row['end']}")
            elif about.get("logStartOffset") is not None and offset < about["logStartOffset"]:
                behind = about["logStartOffset"] - offset
                what = f"is at offset {offset} of {partition}, before its start {about['logStartOffset']}: it can no "
                yield self._group(WARNING, row, f"{what}longer read {counted(behind, 'offset')}", behind)
            elif row["lag"] >= LAG and row["lag"] >= LAG_SHARE * (about.get("records") or 0):
                what = f"is {counted(row['lag'], 'record')} behind the end of {partition}"
                yield self._group(WARNING, row, what, row["lag"])
        if self.settings.is_of_cluster:
            return  # other brokers may have them
        for group, partitions in away.items():
            some = ", ".join(map(str, partitions[:3])) + (" ..." if len(partitions) > 3 else "")
            text = f"group {group!r} has offsets in partitions that are {NOT_HERE}: {some}"
            yield Oddity(WARNING, text, command_line("cursors", *self.survey.log_dirs, "--group", group))

    def _group(self, severity: str, row: Row, what: str, weight: float = 0) -> Oddity:
        command = command_line("cursors", *self.survey.log_dirs, "--group", row["group"])
        return Oddity(severity, f"group {row['group']!r} {what}", command, _partition(row), weight=weight)

    # --- directories -------------------------------------------------------------------------------

    def unclean(self) -> Iterator[Oddity]:
        for log_dir in self.survey.log_dirs:
            homes = [partition for partition, home in self.homes.items() if home == log_dir]
            if not homes or mounted(log_dir) is not None or CleanShutdownFile(log_dir, self.files).exists():
                continue
            path = os.path.join(log_dir, names.RECOVERY_POINT_CHECKPOINT_FILE)
            points = OffsetCheckpointFile(path, self.files, create=False).read_or_empty()
            total, is_all = 0, True
            for partition in homes:
                point, rows = points.get(partition, 0), self.segments[partition]
                is_all &= len(rows) == self.partitions[partition]["segments"]
                place = max((number for number, row in enumerate(rows) if row["baseOffset"] <= point), default=0)
                total += sum(row["size"] for row in rows[place:])
            size = f"{'' if is_all else 'at least '}{_shown.size(total)}"
            yield Oddity(
                NOTE,
                f"{log_dir} was not closed cleanly, or is open now: if its process ended, the next start reads {size} "
                "of its logs",
                command_line("recover", log_dir),
                weight=total,
            )

    def disks(self) -> Iterator[Oddity]:
        for row in self.rows("disks"):
            if row["diskBytes"] and row["freeBytes"] is not None and row["freeBytes"] < NEARLY_FULL * row["diskBytes"]:
                free = row["freeBytes"] / row["diskBytes"]
                yield Oddity(
                    ERROR if free < FULL else WARNING,
                    f"the file system of {row['logDir']} has {_shown.size(row['freeBytes'])} of "
                    f"{_shown.size(row['diskBytes'])} left ({100 * free:.1f} %)",
                    command_line("du", row["logDir"]),
                    weight=-free,
                )

    def folders(self) -> Iterator[Oddity]:
        for log_dir in self.survey.log_dirs:
            try:
                found = named_folders(folders_of(log_dir, self.files), self.asked)
            except (KafkalogError, OSError):
                continue
            told = (
                (WARNING, found.strays, "stray directories, which no broker reads or deletes"),
                (NOTE, found.future, "copies of partitions that are being moved, or were left by an unfinished move"),
                (NOTE, found.deleted, "deleted partitions, which are removed after a delay or by the next start"),
                (WARNING, found.other_names, "directories that a broker takes for partitions, and kafkalog does not"),
                (WARNING, set(found.foreign_folders) - set(found.other_names), "directories with names that are not "
                 "Kafka's: a broker does not start with them"),
            )  # fmt: skip
            for severity, paths, what in told:
                if paths:
                    some = ", ".join(sorted(map(os.path.basename, paths))[:3]) + (" ..." if len(paths) > 3 else "")
                    yield Oddity(
                        severity, f"{log_dir} has {what}: {some}", command_line("du", log_dir), weight=len(paths)
                    )

    def checkpoints(self) -> Iterator[Oddity]:
        for log_dir in self.survey.log_dirs:
            extents = {}
            for partition, row in self.partitions.items():
                rows = self.segments[partition]
                if row["logDir"] == log_dir and row["logEndOffset"] is not None and 0 < len(rows) == row["segments"]:
                    extents[partition] = Extent(rows[0]["baseOffset"], rows[-1]["baseOffset"], row["logEndOffset"])
            try:
                table = checkpoint_table(log_dir, self.asked, extents=extents, files=self.files)
            except (KafkalogError, OSError):
                continue
            for each in table.rows:
                if each.partition in self.damaged or (each.extent is None and each.partition in self.partitions):
                    continue
                for what in each.findings:
                    yield Oddity(
                        WARNING,
                        f"{each.partition}: {what}",
                        command_line("checkpoint", log_dir, each.partition),
                        each.partition,
                    )

    def preallocated(self) -> Iterator[Oddity]:
        size = self.survey.facts.get("preallocated") or 0
        if size >= PREALLOCATED_BYTES:
            text = f"{_shown.size(size)} of the disk are preallocated, after the ends of active segments"
            yield Oddity(NOTE, text, command_line("du", *self.survey.log_dirs), weight=size)

    # --- topics ------------------------------------------------------------------------------------

    def unknown_settings(self) -> Iterator[Oddity]:
        unknown = []
        for row in self.rows("topics"):
            topic = row["topic"]
            if topic in names.INTERNAL_TOPICS or topic == names.CLUSTER_METADATA_TOPIC:
                continue
            try:
                if not self.settings.is_known(topic, "cleanup.policy"):
                    unknown.append(topic)
            except (KafkalogError, OSError):  # an unreadable file is among the findings
                continue
        if unknown:
            some = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
            why = self.settings.why_unknown(unknown[0])
            why += " with --config" if why.endswith(" not given") else ""
            yield Oddity(
                NOTE,
                f"settings of {counted(len(unknown), 'topic')} are unknown ({why}), so Kafka's defaults are shown: "
                f"{some}",
                command_line("topics", *self.survey.log_dirs),
                topic=unknown[0] if len(unknown) == 1 else None,
            )

    def future(self) -> Iterator[Oddity]:
        topics = {row["topic"]: row for row in self.rows("topics")}
        for partition, rows in self.segments.items():
            about = topics.get(partition.topic, {})
            is_deleted = "delete" in (about.get("cleanupPolicy") or "") and (about.get("retentionMs") or -1) >= 0
            late = max(rows, key=lambda row: row["maxTimestamp"] or -1, default=None)
            if not is_deleted or late is None:
                continue
            ahead = (late["maxTimestamp"] or -1) - self.survey.now_ms
            if ahead > FUTURE_MS:
                behind = sum(row["baseOffset"] > late["baseOffset"] for row in rows)
                also = f" and the {counted(behind, 'segment')} after it" if behind else ""
                yield Oddity(
                    WARNING,
                    f"{partition} has a record that is {span(ahead)} in the future: until then retention.ms does not "
                    f"delete segment {late['baseOffset']}{also}",
                    self.at("explain", partition=partition),
                    partition,
                    weight=ahead,
                )

    def uncompacted(self) -> Iterator[Oddity]:
        for partition, row in self.partitions.items():
            clean, dirty = row["cleanBytes"], row["dirtyBytes"]
            if clean is None or dirty is None or dirty < DIRTY_BYTES or dirty <= DIRTY_SHARE * (clean + dirty):
                continue
            yield Oddity(
                WARNING,
                f"{partition} is compacted, but {_shown.size(dirty)} of {_shown.size(clean + dirty)} are not compacted "
                "yet: its cleaner is behind, or has stopped",
                self.at("explain", partition=partition),
                partition,
                weight=dirty,
            )

    def skew(self) -> Iterator[Oddity]:
        sizes: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, row in self.partitions.items():
            if partition.topic not in names.INTERNAL_TOPICS and row["size"] is not None:
                sizes[partition.topic][partition] = row["size"]
        for topic, of in sizes.items():
            mean = sum(of.values()) / len(of)
            largest = max(of, key=lambda partition: of[partition])
            if len(of) >= SKEW_PARTITIONS and of[largest] >= max(SKEW_BYTES, SKEW_TIMES * mean):
                yield Oddity(
                    NOTE,
                    f"{largest} has {_shown.size(of[largest])}, {of[largest] / mean:.1f} times the mean of its "
                    f"{len(of)} partitions",
                    command_line("describe", self.homes[largest], topic),
                    largest,
                    weight=of[largest],
                )

    def _codecs(self) -> dict[str, dict[str, dict[str, int]]]:
        found: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
        for row in self.rows("codecs"):
            for column in ("batches", "records", "bytes"):
                found[row["topic"]][row["codec"]][column] += row[column] or 0
        return found

    def uncompressed(self) -> Iterator[Oddity]:
        for topic, of in self._codecs().items():
            total, plain = sum(each["bytes"] for each in of.values()), of["none"]["bytes"] if "none" in of else 0
            if topic in names.INTERNAL_TOPICS or plain < max(UNCOMPRESSED_BYTES, UNCOMPRESSED_SHARE * total):
                continue
            yield Oddity(
                NOTE,
                f"{_shown.size(plain)} of topic {topic} are not compressed",
                command_line("describe", self._home_of(topic), topic),
                topic=topic,
                weight=plain,
            )

    def tiny_batches(self) -> Iterator[Oddity]:
        for topic, of in self._codecs().items():
            batches, size = (sum(each[column] for each in of.values()) for column in ("batches", "bytes"))
            records = sum(each["records"] for each in of.values())
            if topic in names.INTERNAL_TOPICS or batches < TINY_BATCHES or size > batches * TINY_BATCH_BYTES:
                continue
            yield Oddity(
                NOTE,
                f"batches of topic {topic} are small: {size / batches:.0f} bytes and {records / batches:.1f} records "
                f"on average, and {RECORD_BATCH_OVERHEAD} bytes of each are its header",
                command_line("describe", self._home_of(topic), topic),
                topic=topic,
                weight=batches,
            )

    def _home_of(self, topic: str) -> str:
        return next((home for of, home in self.homes.items() if of.topic == topic), self.survey.log_dirs[0])

    def tiny_segments(self) -> Iterator[Oddity]:
        for partition, row in self.partitions.items():
            count, size = row["segments"] or 0, row["size"] or 0
            if count < TINY_SEGMENTS or size > count * TINY_SEGMENT_BYTES:
                continue
            yield Oddity(
                NOTE,
                f"{partition} has {count} segments of {_shown.size(size // count)} on average: each has open files and "
                "preallocated indexes",
                self.at("explain", partition=partition),
                partition,
                weight=count,
            )

    def backward(self) -> Iterator[Oddity]:
        for partition, rows in self.segments.items():
            if partition in self.twice:  # the segments of both
                continue
            newest, worst, where = -1, 0, -1
            for row in rows:
                if row["minTimestamp"] is not None and newest >= 0 and newest - row["minTimestamp"] > worst:
                    worst, where = newest - row["minTimestamp"], row["baseOffset"]
                if row["maxTimestamp"] is not None and row["maxTimestamp"] <= self.survey.now_ms + FUTURE_MS:
                    newest = max(newest, row["maxTimestamp"])
            if worst > CLOCK_BACK_MS and partition.topic not in names.INTERNAL_TOPICS:
                yield Oddity(
                    NOTE,
                    f"times in {partition} go back by {span(worst)} in segment {where}: a producer's clock jumped, or "
                    "it writes records of earlier times",
                    self.of("describe", partition=partition),
                    partition,
                    weight=worst,
                )
