"""The tables of a survey: their columns, once for the page, for CSV, for pictures and for tests.

A table holds the numbers of one kind of thing, such as segments.  Pictures are drawn from these tables and have no
other data.  A column has the name that the commands' `--json` gives the same number.  Knows neither files nor HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["KINDS", "Column", "Survey", "Table", "TableKind"]

# How a column's values are shown, sorted and aligned.
TEXT, COUNT, BYTES, OFFSET, TIME, DURATION, SHARE, RATIO, FLAG, COMMAND = (
    "text", "count", "bytes", "offset", "time", "duration", "share", "ratio", "flag", "command",
)  # fmt: skip
"""TIME is in ms since 1970 and DURATION in ms; SHARE is between 0 and 1; None is an unknown value of any kind."""


class Column(NamedTuple):
    """One column: its name in data, its title on a page, and how its values are shown.

    `kind` is "text", "count", "bytes", "offset", "time" (ms since 1970), "duration" (ms), "share" (0 to 1), "ratio",
    "flag" or "command".  A value of any kind may be None, if it is unknown.
    """

    name: str
    title: str
    kind: str = COUNT


class TableKind(NamedTuple):
    """The columns of one table, its title, and a sentence that says what a row is.

    `scope` says which pages show its rows: those of a "directory", of one "topic", or of one "partition".  The rows of
    a topic have a column `topic`, those of a partition also a column `partition`, which is a number.
    """

    name: str
    title: str
    about: str
    scope: str
    columns: tuple[Column, ...]


class Table:
    """The rows of one `TableKind`, column by column."""

    def __init__(self, kind: TableKind) -> None:
        self.kind = kind
        self.columns: dict[str, list[Any]] = {column.name: [] for column in kind.columns}

    def add(self, **row: Any) -> None:
        """Adds a row.

        Args:
            **row: The values by column; a column that is not named is None.  An unknown column raises KeyError.
        """
        unknown = row.keys() - self.columns.keys()
        if unknown:
            raise KeyError(f"{self.kind.name}: found {sorted(unknown)}, expected {list(self.columns)}")
        for name, values in self.columns.items():
            values.append(row.get(name))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, names: Sequence[str] | None = None) -> Iterable[dict[str, Any]]:
        """Yields the rows.

        Args:
            names: The columns; all by default.

        Yields:
            A row as a dict.

        Example:
            >>> from kafkalog.report.survey import survey
            >>> with kafkalog.open("shop") as store:
            ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
            >>> list(survey(["shop"]).tables["partitions"].rows(["topic", "partition", "logEndOffset"]))
            [{'topic': 'orders', 'partition': 0, 'logEndOffset': 2}]
        """
        chosen = {name: self.columns[name] for name in names or self.columns}
        for values in zip(*chosen.values(), strict=True):
            yield dict(zip(chosen, values, strict=True))


def if_known(number: int) -> int | None:
    """Returns a number, or None for -1, which means unknown in the engine."""
    return None if number < 0 else number


_TOPIC = Column("topic", "Topic", TEXT)
_PARTITION = Column("partition", "Partition")
_OF_PARTITION = (_TOPIC, _PARTITION)

KINDS: Mapping[str, TableKind] = {
    kind.name: kind
    for kind in (
        TableKind("odd", "What is odd", "A row is something that needs attention, most serious first.", "directory", (
            Column("severity", "Severity", TEXT),  # "error", "warning" or "note"
            _TOPIC, _PARTITION,
            Column("text", "What", TEXT),
            Column("command", "The command that helps", COMMAND),
        )),
        TableKind("disks", "Log directories", "A row is a log directory and its file system.", "directory", (
            Column("logDir", "Log directory", TEXT),
            Column("partitions", "Partitions"),
            Column("files", "Files"),
            Column("size", "Size", BYTES),
            Column("allocated", "On disk", BYTES),
            Column("diskBytes", "File system", BYTES),
            Column("freeBytes", "Free", BYTES),
        )),
        TableKind("kinds", "Kinds of files", "A row is a kind of file, as `kafkalog du` names it.", "directory", (
            Column("kind", "Kind", TEXT),
            Column("files", "Files"),
            Column("size", "Size", BYTES),
            Column("allocated", "On disk", BYTES),
        )),
        TableKind("topics", "Topics", "A row is a topic: the sums of its partitions.", "directory", (
            _TOPIC,
            Column("partitions", "Partitions"),
            Column("segments", "Segments"),
            Column("records", "Offsets"),  # log end - log start, summed up
            Column("size", "Size of logs", BYTES),
            Column("files", "Files"),
            Column("allocated", "On disk", BYTES),
            Column("firstTime", "Oldest record", TIME),
            Column("lastTime", "Newest record", TIME),
            Column("cleanupPolicy", "cleanup.policy", TEXT),
            Column("retentionMs", "retention.ms", DURATION),
            Column("retentionBytes", "retention.bytes", BYTES),
            Column("x", "x", RATIO), Column("y", "y", RATIO),  # the topic's place in the treemap, which is 2 by 1
            Column("x2", "x2", RATIO), Column("y2", "y2", RATIO),
        )),
        TableKind("partitions", "Partitions", "A row is a partition.", "topic", (
            *_OF_PARTITION,
            Column("logDir", "Log directory", TEXT),
            Column("logStartOffset", "Start", OFFSET),
            Column("highWatermark", "High watermark", OFFSET),
            Column("lastStableOffset", "Last stable", OFFSET),
            Column("logEndOffset", "End", OFFSET),
            Column("records", "Offsets"),
            Column("missing", "Offsets missing"),  # between and in batches; of the segments whose headers were read
            Column("segments", "Segments"),
            Column("size", "Size", BYTES),
            Column("firstTime", "Oldest record", TIME),
            Column("lastTime", "Newest record", TIME),
            Column("openTransactions", "Open transactions"),
            Column("dueBytes", "Retention deletes now", BYTES),
            Column("nextDueMs", "Retention deletes next", TIME),
            Column("cleanBytes", "Compacted", BYTES),
            Column("dirtyBytes", "Not yet compacted", BYTES),
            Column("gainBytes", "Compaction would gain", BYTES),  # only in depth
            Column("damage", "Damage", TEXT),
        )),
        TableKind("rates", "Records and bytes an hour", "A row is what was written in one stretch of time.", "topic", (
            *_OF_PARTITION,  # a directory of many partitions has only sums by topic: partition is then None
            Column("fromTime", "From", TIME),
            Column("toTime", "To", TIME),
            Column("records", "Records"),
            Column("bytes", "Bytes", BYTES),
            Column("recordsPerHour", "Records an hour", RATIO),
            Column("bytesPerHour", "Bytes an hour", BYTES),
        )),
        TableKind("codecs", "Codecs", "A row is a codec of a partition, and what it saves.", "topic", (
            *_OF_PARTITION,
            Column("codec", "Codec", TEXT),
            Column("batches", "Batches"),
            Column("records", "Records"),
            Column("bytes", "Bytes", BYTES),
            Column("rawBytes", "Uncompressed", BYTES),  # the size of decompressed batches, scaled up to all
            Column("savedBytes", "Saved", BYTES),
            Column("sampled", "Sampled", FLAG),  # whether it was scaled up from a sample of batches
        )),
        TableKind("segments", "Segments", "A row is a segment.", "partition", (
            *_OF_PARTITION,
            Column("baseOffset", "Base offset", OFFSET),
            Column("endOffset", "End", OFFSET),
            Column("size", "Size", BYTES),
            Column("indexBytes", "Indexes", BYTES),
            Column("batches", "Batches"),  # None if only a sample of its headers was read
            Column("records", "Records"),
            Column("minTimestamp", "Oldest record", TIME),
            Column("maxTimestamp", "Newest record", TIME),
            Column("codec", "Codec", TEXT),  # that of most of its batches
            Column("held", "Why it is kept", TEXT),
            Column("goesAtMs", "Deleted at", TIME),
            Column("remote", "In the tier", FLAG),
        )),
        TableKind("batches", "Sizes of batches", "A row is a group of batches of similar size.", "partition", (
            *_OF_PARTITION,
            Column("codec", "Codec", TEXT),
            Column("fromBytes", "From", BYTES),  # sizes are grouped by powers of two
            Column("toBytes", "To", BYTES),
            Column("batches", "Batches"),
            Column("records", "Records"),
            Column("bytes", "Bytes", BYTES),
            Column("rawBytes", "Uncompressed", BYTES),
            Column("ratio", "Compression ratio", RATIO),
            Column("recordsPerBatch", "Records a batch", RATIO),
            Column("sampled", "Sampled", FLAG),
        )),
        TableKind("keys", "Keys", "A row is one of the keys with the most records (only in depth).", "topic", (
            *_OF_PARTITION,
            Column("key", "Key", TEXT),
            Column("records", "Records"),
            Column("bytes", "Bytes", BYTES),
            Column("share", "Share", SHARE),
        )),
        TableKind("gaps", "Gaps", "A row is a range of offsets that the log no longer has.", "partition", (
            *_OF_PARTITION,
            Column("firstOffset", "First", OFFSET),
            Column("lastOffset", "Last", OFFSET),
            Column("offsets", "Offsets"),
            Column("why", "Why", TEXT),
        )),
        TableKind("transactions", "Transactions", "A row is a transaction of a producer in a partition.", "partition", (
            *_OF_PARTITION,
            Column("state", "State", TEXT),  # "hanging", "open", "committed", "aborted"
            Column("transactionalId", "Transactional id", TEXT),
            Column("producerId", "Producer id", OFFSET),
            Column("producerEpoch", "Epoch"),
            Column("firstOffset", "First", OFFSET),
            Column("lastOffset", "Last", OFFSET),
            Column("startTimestamp", "Began", TIME),
            Column("lastTimestamp", "Ended or last record", TIME),
            Column("records", "Records"),
            Column("ageMs", "Age", DURATION),
            Column("heldRecords", "Records held back"),
        )),
        TableKind("producers", "Producers", "A row is a producer with an id in a partition.", "partition", (
            *_OF_PARTITION,
            Column("producerId", "Producer id", OFFSET),
            Column("producerEpoch", "Epoch"),
            Column("transactionalId", "Transactional id", TEXT),
            Column("lastSequence", "Last sequence"),
            Column("lastOffset", "Last offset", OFFSET),
            Column("lastTimestamp", "Last record", TIME),
            Column("coordinatorEpoch", "Coordinator epoch"),
            Column("currentTxnFirstOffset", "Open transaction from", OFFSET),
        )),
        TableKind("groups", "Groups", "A row is a partition of a consumer group or cursor.", "topic", (
            Column("group", "Group", TEXT),
            Column("state", "State", TEXT),
            *_OF_PARTITION,
            Column("offset", "Committed", OFFSET),
            Column("end", "End", OFFSET),
            Column("lag", "Lag"),
            Column("commitTimestamp", "Committed at", TIME),
            Column("member", "Member", TEXT),
            Column("gone", "Missing", TEXT),
        )),
        TableKind("lags", "Lag over time", "A row is the lag that one commit left.", "topic", (
            Column("group", "Group", TEXT),
            *_OF_PARTITION,
            Column("time", "Time", TIME),
            Column("offset", "Committed", OFFSET),
            Column("end", "End at that time", OFFSET),
            Column("lag", "Lag"),
        )),
        TableKind("findings", "Findings", "A row is something wrong with a file.", "directory", (
            *_OF_PARTITION,
            Column("path", "File", TEXT),
            Column("position", "First byte", OFFSET),
            Column("length", "Bytes", BYTES),
            Column("what", "What is wrong", TEXT),
        )),
        TableKind("damage", "Map of damaged files", "A row is a stretch of bytes of a damaged file.", "directory", (
            *_OF_PARTITION,
            Column("path", "File", TEXT),
            Column("size", "Size of the file", BYTES),
            Column("way", "What happens", TEXT),  # "now", "recovery", "salvage": one bar each
            Column("state", "State", TEXT),  # "good", "damaged", "kept", "cut", "saved", "lost"
            Column("fromByte", "From byte", OFFSET),
            Column("toByte", "To byte", OFFSET),
            Column("bytes", "Bytes", BYTES),
            Column("records", "Records"),
        )),
    )
}  # fmt: skip


@dataclass
class Survey:
    """The result of a survey.

    `tables` has the tables by name, with the columns of `KINDS`.  `facts` has what is shown once: sums, and how much
    was read.  Not thread-safe while it is being filled.
    """

    log_dirs: list[str]
    now_ms: int
    deep: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=lambda: {name: Table(kind) for name, kind in KINDS.items()})

    def leave_out(self, table: str, rows: int) -> None:
        """Counts rows that a table does not show, because there are too many.

        Args:
            table: The table's name.
            rows: How many rows.
        """
        left_out = self.facts.setdefault("leftOut", {})
        if rows > 0:
            left_out[table] = left_out.get(table, 0) + rows

    def to_json(self) -> dict[str, Any]:
        """Returns the facts, and each table as lists by column.

        Returns:
            A dict that JSON can hold.

        Example:
            >>> from kafkalog.report.survey import survey
            >>> with kafkalog.open("shop") as store:
            ...     _ = store.create_topic("orders").append(b"one")
            >>> found = survey(["shop"]).to_json()
            >>> found["tables"]["topics"]["topic"]
            ['orders']
        """
        return {
            "logDirs": self.log_dirs,
            "nowMs": self.now_ms,
            "deep": self.deep,
            "facts": self.facts,
            "tables": {name: table.columns for name, table in self.tables.items()},
        }
