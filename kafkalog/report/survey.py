"""The survey of log directories: every table of a report, from one reading.

It goes through the partitions once.  For each it opens one `PartitionView` and gives it to the parts that fill the
tables; each part is a module with functions that take a `Survey` and add rows.  It only reads, takes no lock, and works
while a broker is running.  A partition that cannot be read is a row of `findings`, and the others are still read.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Files
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.files.usage import file_system
from kafkalog.engine.format import names
from kafkalog.engine.format.index_entries import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines, Told
from kafkalog.engine.log.contents import Contents, headers_at_ends
from kafkalog.engine.log.snapshot import SegmentView, Snapshot, Transactions
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError, UnknownTopicOrPartitionException
from kafkalog.report.batch_sums import BatchSums
from kafkalog.report.damage import add_damage
from kafkalog.report.groups import add_groups
from kafkalog.report.keys import TOP, key_text
from kafkalog.report.missing import COMPACTED_TEXT, DAMAGED_TEXT, GAPS_MAX, MISSING_TEXT
from kafkalog.report.oddities import add_odd
from kafkalog.report.partition_look import DAMAGED, Limits, PartitionLook, look_at_batches
from kafkalog.report.rates import Rates
from kafkalog.report.states import add_producers, add_transactional_ids, add_transactions
from kafkalog.report.tables import Survey, if_known
from kafkalog.report.treemap import places
from kafkalog.toolbox.compact import compact, left_alone
from kafkalog.toolbox.disk_usage import DIRECTORY, DiskUsage, Sum, active_ends, disk_usage
from kafkalog.toolbox.explain import Explained, Explanation, explain, tell_compaction
from kafkalog.toolbox.folders import folders_of, named_folders
from kafkalog.toolbox.glance import KnownEnd, known_end
from kafkalog.toolbox.segment_facts import PartitionFacts, facts_in
from kafkalog.toolbox.segment_headers import SegmentHeaders

__all__ = ["survey"]

# Without `deep`, the sum over all partitions together:
HEADER_BYTES_MAX = 256 << 20  # logs of which all headers are read
REMOTE_BYTES_MAX = 32 << 20  # the same, in a remote tier
FOLLOW_BYTES_MAX = 1 << 30  # logs after producer snapshots, which are read for transactions
FOLLOWED_AT_LEAST = 8  # partitions that get equal parts of it
HEADERS_MAX = 4096  # the sample of other headers
RAW_BATCHES_OF_ALL = 4096  # compressed batches that are decompressed
# and of one segment, and of one codec of a partition:
HEADERS_OF_SEGMENT_MAX = 64
RAW_BATCHES_MAX = 16
MANY = 200  # above so many partitions, rates and codecs are summed up by topic
SEGMENT_ROWS_MAX, GAP_ROWS_MAX, RATE_ROWS_MAX = 20_000, 5_000, 20_000
STRETCHES_MAX = 200
PLACES_MAX = 200  # topics that have a place in the treemap
SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass
class _Part:
    """Everything that was read of one partition."""

    log_dir: str
    seen: Snapshot
    facts: PartitionFacts
    contents: Contents
    transactions: Transactions | None  # None: it would have taken too long
    explained: Explanation | None
    found: PartitionLook
    index_bytes: list[int] = field(default_factory=list)
    gain_bytes: int | None = None

    @property
    def of(self) -> dict[str, Any]:
        return self.facts.partition._asdict()

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.seen.segments)

    @property
    def readable_bytes(self) -> int:
        return sum(segment.size for segment in self.facts.segments)

    @property
    def offsets(self) -> int:
        return self.facts.log_end_offset - self.facts.log_start_offset

    def segment_rows(self, now_ms: int) -> Iterator[dict[str, Any]]:
        """Yields the rows of `segments`, without the columns of the partition."""
        for place, (segment, fact) in enumerate(zip(self.seen.segments, self.facts.segments, strict=True)):
            told = None if self.explained is None else self.explained.segments[place]
            yield {
                "baseOffset": segment.base_offset,
                "endOffset": fact.end_offset,
                "size": segment.size,
                "indexBytes": self.index_bytes[place],
                "held": None if told is None else _held(told),
                "goesAtMs": None if told is None else now_ms if told.goes else told.until_ms,
                "remote": self.seen.may_overlap(segment),
                **_of_headers(self.found.headers.get(segment.base_offset), fact.record_timestamp),
            }


@dataclass
class _Topic:
    """The sums of a topic.  `rates` has those of each partition, or of all together if there are many."""

    partitions: int = 0
    segments: int = 0
    records: int = 0
    size: int = 0
    contents: Contents = field(default_factory=Contents)
    sums: BatchSums = field(default_factory=BatchSums)
    rates: dict[int | None, Rates] = field(default_factory=dict)
    keys: list[tuple[int, bytes, int, int]] = field(default_factory=list)  # records, key, partition, bytes
    keyed: int = 0  # records with a key

    def take(self, part: _Part, *, is_one_of_many: bool) -> None:
        """Adds a partition."""
        number, found = part.facts.partition.partition, part.found
        self.partitions += 1
        self.segments += len(part.seen.segments)
        self.records += part.offsets
        self.size += part.size
        self.contents.add(part.contents)
        if is_one_of_many:
            self.sums.take(found.sums)
        self.rates.setdefault(None if is_one_of_many else number, Rates()).take(found.rates)
        self.keys += [(count, key, number, size) for key, count, size in found.keys.top()]
        self.keyed += found.keys.records
        self.keys = sorted(self.keys, key=lambda entry: -entry[0])[:TOP]


def survey(
    log_dirs: Sequence[str],
    partitions: Collection[str] = (),
    *,
    deep: bool = False,
    settings: TopicSettings | None = None,
    now_ms: int | None = None,
    progress: Callable[[int], None] | None = None,
    files: Files = OS_FILES,
) -> Survey:
    """Looks at log directories, and fills every table of a report.

    Args:
        log_dirs: The log directories.
        partitions: Topics, partitions or globs; empty means everything.
        deep: Reads all records, not only indexes and headers.
        settings: The topics' settings; those of the directories by default.
        now_ms: The time from which ages are computed, in ms since 1970.
        progress: Called with the number of log bytes just passed. With `deep` each byte is passed twice: it is read,
            and then verified.
        files: The file system; for tests.

    Returns:
        A `Survey`.

    Example:
        >>> from kafkalog.report.survey import survey
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders", partitions=2).append_many([b"one", b"two"])
        >>> found = survey(["shop"])
        >>> found.facts["topics"], found.facts["partitions"], found.facts["records"]
        (1, 2, 2)
    """
    began = time.monotonic()
    now_ms = SYSTEM_CLOCK.milliseconds() if now_ms is None else now_ms
    made = Survey(list(log_dirs), now_ms, deep)
    look = _Look(made, partitions, settings, files, progress or (lambda size_bytes: None))
    look.run()
    made.facts["tookMs"] = int(1000 * (time.monotonic() - began))
    return made


class _Look:
    """One survey while it runs."""

    def __init__(
        self,
        made: Survey,
        asked: Collection[str],
        settings: TopicSettings | None,
        files: Files,
        progress: Callable[[int], None],
    ) -> None:
        self.made = made
        self.asked = asked
        self.files = files
        self.progress = progress
        self.topics: dict[str, _Topic] = {}
        self.settings = TopicSettings(made.log_dirs, files=files) if settings is None else settings
        self.header_bytes, self.remote_bytes = HEADER_BYTES_MAX, REMOTE_BYTES_MAX  # left
        self.follow_bytes = FOLLOW_BYTES_MAX
        self.followed: tuple[TopicPartition, bool] | None = None  # the last decision of `follows`
        self.headers, self.raw_batches = HEADERS_MAX, RAW_BATCHES_OF_ALL
        self.partitions = self.left = 0  # how many there are, and are still to be read
        self.read_bytes = self.log_bytes = self.sampled_headers = self.undecoded = 0
        self.keys_are_exact = True
        self.ends: dict[str, dict[TopicPartition, KnownEnd]] = defaultdict(dict)  # by log directory
        self.active_ends: dict[str, int] = {}  # the sum over all partitions
        self.unlisted: set[str] = set()  # log directories
        self.unread: set[tuple[str, str]] = set()  # findings of this module: path, and what is wrong

    def run(self) -> None:
        found: dict[str, Mapping[TopicPartition, str]] = {}
        for log_dir in self.made.log_dirs:
            try:
                found[log_dir] = named_folders(folders_of(log_dir, self.files), self.asked).logs
            except (KafkalogError, OSError) as error:
                self.found_unread(log_dir, error)
                self.unlisted.add(log_dir)
        self.partitions = self.left = sum(len(each) for each in found.values())
        for log_dir, partitions in found.items():
            checkpoints = CheckpointLines(log_dir, self.files, keeps_ms=KEEPS_MS)
            for partition in partitions:
                try:
                    self.partition(log_dir, partition, checkpoints)
                except UnknownTopicOrPartitionException:
                    pass  # deleted meanwhile
                except (KafkalogError, OSError) as error:
                    self.unread_partition(log_dir, partition, error)
                self.left -= 1
        self.sum_up(self.disks(found))
        self.add_other_parts(found)

    def add_other_parts(self, found: Mapping[str, Mapping[TopicPartition, str]]) -> None:
        """Adds groups and damage, which are of whole directories, and what is odd in all the tables."""
        made, files = self.made, self.files
        chosen = {partition for partitions in found.values() for partition in partitions}
        takes = chosen.__contains__ if self.asked else lambda partition: True
        with self.reporting(made.log_dirs[0] if found else ""):
            add_groups(made, list(found), takes=takes, files=files)
        for log_dir, partitions in found.items():
            with self.reporting(log_dir):
                whole, ends = not self.asked, self.ends[log_dir]
                add_damage(made, log_dir, partitions, whole=whole, ends=ends, progress=self.progress, files=files)
        with self.reporting(made.log_dirs[0] if found else ""):
            add_transactional_ids(made, files=files)
        self.add_damage_of_partitions()
        add_odd(made, self.asked, settings=self.settings, files=files)

    @contextmanager
    def reporting(self, path: str, partition: TopicPartition | None = None) -> Iterator[None]:
        """Makes a finding of an error."""
        try:
            yield
        except (KafkalogError, OSError) as error:
            self.found_unread(path, error, partition)

    def add_damage_of_partitions(self) -> None:
        """Fills the column `damage` of partitions that have findings."""
        texts: dict[tuple[str, int], list[str]] = defaultdict(list)
        for row in self.made.tables["findings"].rows(("topic", "partition", "what")):
            if row["topic"] is not None:
                texts[row["topic"], row["partition"]].append(row["what"])
        columns = self.made.tables["partitions"].columns
        for at, of in enumerate(zip(columns["topic"], columns["partition"], strict=True)):
            if found := texts.get(of):
                columns["damage"][at] = found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")

    @property
    def is_many(self) -> bool:
        """Whether only sums by topic are kept of rates and codecs."""
        return self.partitions > MANY

    # --- what cannot be read -----------------------------------------------------------------------

    def found_unread(self, path: str, error: Exception, partition: TopicPartition | None = None) -> None:
        """Adds a finding about something that cannot be read; a lack of descriptors stops the survey."""
        if is_shortage(error):
            raise error
        where = os.fsdecode(getattr(error, "path", None) or getattr(error, "filename", None) or path)
        what = " ".join(str(error).split())
        if where in self.unlisted or (where, what) in self.unread:  # such as settings that no topic can be read with
            return
        self.unread.add((where, what))
        self.made.tables["findings"].add(
            topic=None if partition is None else partition.topic,
            partition=None if partition is None else partition.partition,
            path=where,
            position=getattr(error, "position", None) or 0,
            length=0,
            what=what,
        )

    def unread_partition(self, log_dir: str, partition: TopicPartition, error: Exception) -> None:
        self.found_unread(os.path.join(log_dir, str(partition)), error, partition)
        self.topics.setdefault(partition.topic, _Topic()).partitions += 1
        self.made.tables["partitions"].add(
            topic=partition.topic,
            partition=partition.partition,
            logDir=log_dir,
            damage=" ".join(str(error).split()),
        )

    # --- directories -------------------------------------------------------------------------------

    def disks(self, found: Mapping[str, Mapping[TopicPartition, str]]) -> DiskUsage:
        tables = self.made.tables
        usage = DiskUsage()
        with self.reporting(next(iter(found), "")):
            usage = disk_usage(list(found), self.made.now_ms, self.asked, ends=self.active_ends)
        for finding in usage.unread:
            tables["findings"].add(
                path=finding.path, position=finding.position, length=finding.length, what=finding.what
            )
        for log_dir, partitions in found.items():
            used, free, size = usage.by_log_dir.get(log_dir, Sum()), None, None
            with suppress(OSError):  # an address has none
                _, free, size = file_system(log_dir)
            tables["disks"].add(
                logDir=log_dir,
                partitions=len(partitions),
                files=used.files,
                size=used.size,
                allocated=used.allocated,
                diskBytes=size,
                freeBytes=free,
            )
        for kind, used in usage.by_kind.items():
            tables["kinds"].add(kind=kind, files=used.files, size=used.size, allocated=used.allocated)
        return usage

    # --- a partition -------------------------------------------------------------------------------

    def partition(self, log_dir: str, partition: TopicPartition, checkpoints: CheckpointLines) -> None:
        watermark = checkpoints.told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
        with PartitionView(log_dir, partition, files=self.files, checkpoints=checkpoints) as view:
            # Nothing is added before all is read: if a file was deleted meanwhile, the next snapshot is read.
            self.add(view.over(lambda seen: self.read(log_dir, seen, watermark)))
            if self.follows(view.snapshot):
                with self.reporting(view.directory, partition):
                    add_transactions(self.made, log_dir, view, files=self.files)
            with self.reporting(view.directory, partition):
                add_producers(self.made, log_dir, view, files=self.files)

    def follows(self, seen: Snapshot) -> bool:
        """Returns whether the transactions of a partition are followed.  For this the log is read from the newest
        producer snapshot to its end, which may be most of the log."""
        if self.made.deep or (seen.tail_is_plain and len(seen.segments) == 1):
            return True
        if self.followed is None or self.followed[0] is not seen.topic_partition:
            size = seen.unfollowed_bytes()
            does = size <= self.follow_bytes // max(1, min(self.left, FOLLOWED_AT_LEAST))
            self.followed = seen.topic_partition, does
            self.follow_bytes -= size * does
            if not does:
                self.made.facts["transactionsUnknown"] = self.made.facts.get("transactionsUnknown", 0) + 1
        return self.followed[1]

    def read(self, log_dir: str, seen: Snapshot, watermark: Told) -> _Part:
        limits = Limits(
            self.made.deep,
            self.header_bytes // max(1, self.left),
            self.remote_bytes // max(1, self.left),
            max(1, min(HEADERS_OF_SEGMENT_MAX, self.headers // max(1, self.left * len(seen.segments)))),
            max(1, min(RAW_BATCHES_MAX, self.raw_batches // max(1, self.left))),
        )
        facts = facts_in(seen, watermark)
        passed = 0

        def advance(size_bytes: int) -> None:
            nonlocal passed
            passed += size_bytes
            self.progress(size_bytes)

        explained = self.explain(log_dir, facts, seen)
        found = look_at_batches(seen, limits, advance)
        transactions = seen.transactions if self.follows(seen) else None
        part = _Part(log_dir, seen, facts, headers_at_ends(seen), transactions, explained, found)
        part.index_bytes = [_index_bytes(segment) for segment in seen.segments]
        if self.made.deep and explained is not None and explained.compaction is not None:
            part.gain_bytes = self.gain(log_dir, seen)
        self.progress(max(0, part.size - passed))
        return part

    def explain(self, log_dir: str, facts: PartitionFacts, seen: Snapshot) -> Explanation | None:
        """Returns what retention does to a partition; None if the topic's settings cannot be read.  How far it is
        compacted is unknown if its transactions had to be followed for that, and are not."""
        try:
            config = self.settings.of(facts.partition.topic)
        except KafkalogError as error:
            self.found_unread(log_dir, error)
            return None
        now_ms, files = self.made.now_ms, self.files
        told = explain(log_dir, facts.partition, config, now_ms, files=files, facts=facts)
        if config.compact and (seen.is_stable_before_last() or self.follows(seen)):
            tell_compaction(told, log_dir, config, now_ms, seen=seen, files=files)
        return told

    def gain(self, log_dir: str, seen: Snapshot) -> int | None:
        """Returns how many bytes a compaction of the partition would gain; None if it must not be compacted."""
        partition = seen.topic_partition
        try:
            if left_alone(log_dir, [partition], self.settings, files=self.files):
                return None
            (result,) = compact(log_dir, {partition: seen.directory}, self.settings, act=False, files=self.files)
        except (KafkalogError, OSError):  # is a finding already
            return None
        return None if result.stats is None else result.stats.bytes_gained

    def add(self, part: _Part) -> None:
        """Adds what was read of a partition to the tables and sums."""
        found, of = part.found, part.of
        self.header_bytes = max(0, self.header_bytes - (found.read_bytes - found.remote_bytes))
        self.remote_bytes = max(0, self.remote_bytes - found.remote_bytes)
        self.headers = max(0, self.headers - found.sampled_headers)
        self.raw_batches = max(0, self.raw_batches - RAW_BATCHES_MAX)
        self.read_bytes += found.read_bytes
        self.log_bytes += part.readable_bytes
        self.sampled_headers += found.sampled_headers
        self.undecoded += found.undecoded
        self.keys_are_exact &= found.keys.is_exact
        if (end := known_end(part.seen)) is not None:
            self.ends[part.log_dir][part.facts.partition] = end
        if part.facts.partition.topic != names.CLUSTER_METADATA_TOPIC:
            self.active_ends.update(active_ends(part.seen))
        tables = self.made.tables
        explained = [] if part.explained is None else part.explained.segments
        compaction = None if part.explained is None else part.explained.compaction
        damage = part.seen.unreadable_end
        tables["partitions"].add(
            **of,
            logDir=part.log_dir,
            logStartOffset=part.facts.log_start_offset,
            highWatermark=part.facts.high_watermark,
            lastStableOffset=None if part.transactions is None else part.transactions.stable,
            logEndOffset=part.facts.log_end_offset,
            records=part.offsets,
            missing=found.missing.offsets,
            segments=len(part.seen.segments),
            size=part.size,
            firstTime=if_known(part.contents.first_timestamp),
            lastTime=if_known(part.contents.last_timestamp),
            openTransactions=None if part.transactions is None else len(part.transactions.open),
            dueBytes=sum(each.segment.size for each in explained if each.goes) if part.explained else None,
            nextDueMs=min((each.until_ms for each in explained if each.until_ms is not None), default=None),
            cleanBytes=None if compaction is None else compaction.clean_bytes,
            dirtyBytes=None if compaction is None else compaction.dirty_bytes,
            gainBytes=part.gain_bytes,
            damage=None if damage is None else f"{damage.path} at byte {damage.position}: {damage.what}",
        )
        rows = list(part.segment_rows(self.made.now_ms))
        kept = rows[-self.rows_of(SEGMENT_ROWS_MAX) :]
        self.made.leave_out("segments", len(rows) - len(kept))
        for row in kept:
            tables["segments"].add(**of, **row)
        gaps = list(found.missing.largest(min(GAPS_MAX, self.rows_of(GAP_ROWS_MAX))))
        self.made.leave_out("gaps", found.missing.gaps - len(gaps))
        why_missing = self.why_missing(part) if gaps else ""
        for first, last, why in gaps:
            text = DAMAGED_TEXT if why == DAMAGED else why_missing
            tables["gaps"].add(**of, firstOffset=first, lastOffset=last, offsets=last - first + 1, why=text)
        topic = self.topics.setdefault(part.facts.partition.topic, _Topic())
        topic.take(part, is_one_of_many=self.is_many)
        if not self.is_many:
            for name, sums in (("codecs", found.sums.by_codec()), ("batches", found.sums.by_size())):
                for row in sums:
                    tables[name].add(**of, **row)

    def why_missing(self, part: _Part) -> str:
        if part.explained is not None and self.settings.of(part.facts.partition.topic).compact:
            return COMPACTED_TEXT
        if CheckpointLines(part.log_dir, self.files).line(names.CLEANER_OFFSET_CHECKPOINT_FILE, part.facts.partition):
            return COMPACTED_TEXT
        return MISSING_TEXT

    def rows_of(self, rows_max: int) -> int:
        """Returns how many rows of a table each partition may have."""
        return max(1, rows_max // max(1, self.partitions))

    # --- sums --------------------------------------------------------------------------------------

    def sum_up(self, usage: DiskUsage) -> None:
        tables = self.made.tables
        known = {topic: self.topics.get(topic, _Topic()) for topic in dict.fromkeys([*self.topics, *usage.by_topic])}
        known.pop(DIRECTORY, None)
        for topic, sums in sorted(known.items(), key=lambda entry: (-entry[1].size, entry[0])):
            used = usage.by_topic.get(topic)
            tables["topics"].add(
                topic=topic,
                partitions=sums.partitions,
                segments=sums.segments,
                records=sums.records,
                size=sums.size,
                files=None if used is None else used.files,
                allocated=None if used is None else used.allocated,
                firstTime=if_known(sums.contents.first_timestamp),
                lastTime=if_known(sums.contents.last_timestamp),
                **self.settings_of(topic),
            )
            self.add_rates(topic, sums)
            self.add_keys(topic, sums)
            if self.is_many:
                for name, rows in (("codecs", sums.sums.by_codec()), ("batches", sums.sums.by_size())):
                    for row in rows:
                        tables[name].add(topic=topic, **row)
        self.add_places()
        self.add_facts(usage)

    def add_rates(self, topic: str, sums: _Topic) -> None:
        """Adds rates, the sum over all partitions of a topic with the same stretches of time."""
        most = STRETCHES_MAX if self.is_many else max(24, min(STRETCHES_MAX, self.rows_of(RATE_ROWS_MAX)))
        together = Rates()
        for rates in sums.rates.values():
            together.take(rates)
        together.fit(most)
        for partition, rates in sums.rates.items():
            rates.widen(together.step)
            for row in rates.rows():
                self.made.tables["rates"].add(topic=topic, partition=partition, **row)

    def add_keys(self, topic: str, sums: _Topic) -> None:
        for records, key, partition, size in sums.keys:
            self.made.tables["keys"].add(
                topic=topic,
                partition=partition,
                key=key_text(key),
                records=records,
                bytes=size,
                share=round(records / sums.keyed, 6),
            )

    def add_places(self) -> None:
        """Adds the places of the largest topics in the treemap; the table has them first."""
        columns = self.made.tables["topics"].columns
        sizes = [size for size in columns["size"][:PLACES_MAX] if size]
        rest = sum(columns["size"][len(sizes) :])
        for row, place in enumerate(places(sizes + [rest] * (rest > 0), 2.0, 1.0)[: len(sizes)]):
            for name, value in zip(("x", "y", "x2", "y2"), place, strict=True):
                columns[name][row] = round(value, 5)

    def add_facts(self, usage: DiskUsage) -> None:
        total = Contents()
        for sums in self.topics.values():
            total.add(sums.contents)
        self.made.facts.update(
            version=kafkalog.__version__,
            topics=len(self.topics),
            partitions=sum(each.partitions for each in self.topics.values()),
            segments=sum(each.segments for each in self.topics.values()),
            records=sum(each.records for each in self.topics.values()),
            size=sum(each.size for each in self.topics.values()),
            files=usage.total.files,
            fileBytes=usage.total.size,
            allocated=usage.total.allocated,
            preallocated=usage.preallocated.allocated,
            firstTime=if_known(total.first_timestamp),
            lastTime=if_known(total.last_timestamp),
            headerBytes=self.read_bytes,
            logBytes=self.log_bytes,
            sampledHeaders=self.sampled_headers,
            sampled=self.read_bytes < self.log_bytes,
            undecodedBatches=self.undecoded,
            keysAreExact=self.keys_are_exact,
            byTopic=self.is_many,
            cleanShutdown={
                log_dir: CheckpointLines(log_dir, self.files).is_closed_cleanly() for log_dir in self.made.log_dirs
            },
        )

    def settings_of(self, topic: str) -> dict[str, Any]:
        try:
            found = self.settings.described(topic, SETTINGS)
        except (KafkalogError, OSError):
            return {}
        values = [value for value, _ in found.values()]
        return dict(zip(("cleanupPolicy", "retentionMs", "retentionBytes"), map(_shown, values), strict=True))


def _shown(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _index_bytes(segment: SegmentView) -> int:
    """Returns the bytes of a segment's entries, without preallocated space."""
    return len(segment.offset_entries) * OFFSET_ENTRY.size + len(segment.time_entries) * TIME_ENTRY.size


def _held(told: Explained) -> str:
    """Returns why a segment is kept, in words, without rules that are off or about older segments."""
    if told.goes is not None:
        return f"the next pass deletes it ({told.goes.value})"
    reasons = [each for each in told.reasons if each.what != "logStart"] or told.reasons
    acting = [each for each in reasons if each.until_ms is not None or each.after_bytes is not None]
    return "; ".join(each.text for each in acting or reasons)


def _of_headers(found: SegmentHeaders | None, record_timestamp: int) -> dict[str, Any]:
    """Returns the columns of a segment that come from its headers."""
    if found is None:
        return {"maxTimestamp": if_known(record_timestamp)}
    codecs = found.codecs_by_name()
    return {
        "batches": found.batches,
        "records": found.records,
        "minTimestamp": if_known(found.min_timestamp),
        "maxTimestamp": if_known(found.max_timestamp),
        "codec": max(codecs, key=codecs.__getitem__, default=None),
    }
