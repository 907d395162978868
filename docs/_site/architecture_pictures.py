"""The pictures of ARCHITECTURE.md and of docs/internals: packages, the paths of data, and the states of things.

`LAYERS` is the order of the packages; a test compares it with the rule that the tests enforce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drawing import Picture

# Highest first: (group, packages, what they do).  A package imports from itself and from packages below it.
LAYERS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("stable", ("cli",), "the command line"),
    ("stable", ("ui",), "live pages in a browser"),
    ("stable", ("report",), "surveys as tables, pictures and one page"),
    ("stable", ("spark",), "data source, functions, jobs"),
    ("stable", ("server",), "Kafka's protocol: sockets, requests, security"),
    ("stable", ("toolbox",), "the functions behind the commands"),
    (
        "stable",
        (
            "_face",
            "store",
            "topic",
            "partition",
            "records",
            "reader",
            "group_reader",
            "queue",
            "producer",
            "transaction",
            "decoding",
        ),
        "the public API; _face has its private parts",
    ),
    ("stable", ("remote",), "where a remote tier is stored, and how"),
    ("engine", ("engine.remote",), "the remote tier: segments as objects"),
    ("engine", ("engine.coordinator",), "transactions and groups"),
    ("engine", ("engine.host",), "LogManager: directories, locks, leases, moves"),
    ("engine", ("engine.cleaner",), "compaction"),
    ("engine", ("engine.log",), "UnifiedLog: one partition"),
    ("engine", ("engine.segment",), "a log file and its indexes"),
    ("stable", ("metrics",), "registry, meters, Prometheus"),
    ("engine", ("engine.format",), "the meaning of the bytes"),
    ("engine", ("engine.files",), "the only access to the disk and the clock"),
    ("private", ("_native.state",), "state that must change in one call (Cython)"),
    ("private", ("_native.codec",), "bytes to numbers and columns (Cython)"),
    ("stable", ("config",), "settings under Kafka's keys"),
    ("stable", ("errors",), "errors under Kafka's names"),
    ("private", ("_limits", "_renamed", "_shown"), "constants, deprecated names, text for people"),
)
KIND_OF_GROUP = {"stable": "main", "engine": "disk", "private": "warn"}


def layers() -> Picture:
    """The packages, highest first."""
    row, left, width = 32, 130, 700
    picture = Picture(860, 70 + row * len(LAYERS), "The packages of kafkalog as layers; imports go down only")
    for number, (group, packages, does) in enumerate(LAYERS):
        y = 16 + number * row
        picture.box(left, y, width, row - 4, (), KIND_OF_GROUP[group])
        names = " ".join(packages) if len(packages) < 4 else "store topic partition records reader ... _face"
        picture.text(left + 12, y + 19, names, "mono", "start")
        picture.text(left + width - 12, y + 19, does, "small", "end")
    bottom = 16 + row * len(LAYERS)
    picture.arrow([(104, 20), (104, bottom - 8)])
    picture.text(94, 40, "imports", "title", "end")
    picture.text(94, 58, "go down", "small", "end")
    for number, (group, says) in enumerate(
        (("stable", "stable: __all__"), ("engine", "engine: Kafka's classes"), ("private", "private"))
    ):
        x = left + number * 235
        picture.box(x, bottom + 10, 18, 18, (), KIND_OF_GROUP[group])
        picture.text(x + 26, bottom + 24, says, "small", "start")
    return picture


Step = tuple[str, str, str]  # the kind of the box, its title, and a line below it


def path_of(title: str, steps: Sequence[Step], notes: Sequence[tuple[int, int, str, str]]) -> Picture:
    """Steps from top to bottom, and brackets on the right: (first step, last step, two lines of text)."""
    high, gap = 52, 24
    picture = Picture(860, 32 + len(steps) * (high + gap), title)
    for number, (kind, head, line) in enumerate(steps):
        y = 16 + number * (high + gap)
        picture.box(20, y, 520, high, (head, line), kind)
        if number + 1 < len(steps):
            picture.arrow([(280, y + high), (280, y + high + gap)])
    for first, last, head, line in notes:
        top, end = 16 + first * (high + gap), 16 + last * (high + gap) + high
        picture.box(560, top, 6, end - top, ())
        picture.text(580, (top + end) / 2 - 2 if line else (top + end) / 2 + 5, head, "title", "start")
        if line:
            picture.text(580, (top + end) / 2 + 16, line, "small", "start")
    return picture


def append_path() -> Picture:
    """The steps of an append."""
    return path_of(
        "The path of an append, from Partition.append to the moved end of the log",
        (
            ("main", "Partition.append(value, key=...)", "a producer, a writer, a topic, a transaction, Spark's sink"),
            ("box", "Records become a batch", "_face/batch_maker.py: encode, compress, checksum"),
            ("box", "Admit and validate", "engine/log/append.py: sizes, offsets, timestamps, leader epoch"),
            ("box", "Roll, if the segment is full", "SegmentTail.must_roll decides, LocalLog.roll executes"),
            ("box", "Check the producer", "sequence numbers: duplicate, gap, fenced"),
            ("disk", "Write .log, .index, .timeindex, .txnindex", "a write that fails is truncated again"),
            ("main", "Move the log end and the high watermark", "producers and transactions; wake waiting readers"),
            ("disk", "Sync, with durability fsync", "threads that wait at the same time share one sync"),
        ),
        (
            (0, 1, "no lock held", "the caller's buffer is not changed"),
            (2, 4, "under UnifiedLog.lock", "all that can refuse comes first"),
            (5, 6, "one native call", "all of it, or nothing"),
            (7, 7, "no lock held", "then the append returns"),
        ),
    )


def read_path() -> Picture:
    """The steps of a read."""
    return path_of(
        "The path of a read, from Partition.records to records, columns or a socket",
        (
            ("main", "records(...), read_arrow(...), a reader", "the filters and the isolation level: Selection"),
            ("box", "Source", "EngineSource, or PartitionView for another process's directory"),
            ("box", "Find the segment", "the last one that begins at or before the offset"),
            ("disk", "Find the position", "an index entry, then batch headers up to the offset"),
            ("disk", "Read a slice of the .log file", "pread; for a remote segment, chunks of an object"),
            ("box", "Check the batch and decompress it", "checksum, sizes; damage raises with file and position"),
            ("main", "Records, Arrow columns, or bytes", "one native walk; send_to(socket) uses sendfile"),
        ),
        (
            (0, 0, "any thread", ""),
            (1, 3, "no lock held", "the list of segments is immutable"),
            (4, 4, "the reader holds the file", "deletion does not end the read"),
            (5, 6, "up to the isolation level", "aborted records are left out"),
        ),
    )


def recovery() -> Picture:
    """The steps from a crash to an open log."""
    return path_of(
        "Recovery: from the files that a crash left to a log that can be read and written",
        (
            (
                "warn",
                "Open: lock the directory, delete the clean-shutdown marker",
                "a crash during the open counts as a crash",
            ),
            (
                "box",
                "Finish or undo replaced and deleted segments",
                "the table load_cases.CASES: .cleaned, .swap, .deleted",
            ),
            ("box", "Open the segments", "missing indexes are rebuilt under another name first"),
            (
                "disk",
                "Scan the batches from the recovery point on",
                "only without a marker: framing, checksum, offsets",
            ),
            ("warn", "Truncate at the first damage", "on_damage reports it first, or refuses the open"),
            ("disk", "Sync what was kept", "so that no second crash removes records that were read"),
            ("box", "Rebuild leader epochs and producer state", "the latest usable snapshot, then a replay"),
            ("main", "End the transactions that a crash left open", "decided: completed; undecided: aborted"),
        ),
        (
            (0, 2, "each directory, each log", "several logs in parallel"),
            (3, 4, "skipped after a clean close", "the marker proves it"),
            (5, 6, "idempotent", "an interrupted recovery starts over"),
            (7, 7, "each store or directory", "then reads and writes begin"),
        ),
    )


def states(title: str, size: tuple[int, int], boxes: dict[str, tuple[float, float, str, str]]) -> Picture:
    """Boxes by name: x, y, kind, and a line below the name."""
    picture = Picture(*size, title)
    for name, (x, y, kind, line) in boxes.items():
        picture.box(x, y, 180, 56, (name, line), kind)
    return picture


def life_of_a_log() -> Picture:
    """The states of a UnifiedLog."""
    picture = states(
        "The states of a log: open, closing, closed; offline and forked",
        (860, 300),
        {
            "loading": (20, 40, "box", "LogLoader"),
            "open": (340, 40, "main", "reads and writes"),
            "closing": (660, 40, "warn", "flushes, writes snapshots"),
            "offline": (20, 200, "warn", "after an I/O error"),
            "forked": (340, 200, "box", "in a child process"),
            "closed": (660, 200, "disk", "files are released"),
        },
    )
    picture.arrow([(200, 68), (340, 68)], "load, recover")
    picture.arrow([(520, 68), (660, 68)], "close()")
    picture.arrow([(750, 96), (750, 200)], "done")
    picture.arrow([(430, 96), (430, 200)], "fork: disown()")
    picture.arrow([(370, 96), (200, 214)], "")
    picture.text(240, 150, "the disk failed", "small", "end")
    return picture


def life_of_a_directory() -> Picture:
    """The states of a log directory in a LogManager."""
    picture = states(
        "The states of a log directory: free, locked, running, offline, closing, clean",
        (860, 300),
        {
            "free": (20, 40, "box", "no process has .lock"),
            "starting": (340, 40, "warn", "marker deleted, logs load"),
            "running": (660, 40, "main", "logs are read and written"),
            "clean": (20, 200, "disk", "marker and checkpoints"),
            "closing": (340, 200, "warn", "logs close"),
            "offline": (660, 200, "warn", "the disk failed"),
        },
    )
    picture.arrow([(200, 68), (340, 68)], "lock .lock")
    picture.arrow([(520, 68), (660, 68)], "all logs loaded")
    picture.arrow([(690, 96), (520, 214)], "")
    picture.text(570, 160, "close()", "small", "end")
    picture.arrow([(770, 96), (770, 200)], "EIO")
    picture.arrow([(340, 228), (200, 228)], "no error")
    picture.arrow([(110, 200), (110, 96)], "unlock")
    picture.arrow([(400, 200), (190, 96)], "")
    picture.text(316, 150, "errors: no marker", "small", "start")
    return picture


def life_of_a_transaction() -> Picture:
    """The states of a transactional id."""
    picture = states(
        "The states of a transactional id: Empty, Ongoing, PrepareCommit, CompleteCommit and their counterparts",
        (860, 320),
        {
            "Empty": (20, 130, "box", "an id and an epoch"),
            "Ongoing": (250, 130, "main", "partitions are listed"),
            "PrepareCommit": (450, 20, "disk", "the decision is durable"),
            "PrepareAbort": (450, 240, "warn", "the decision is durable"),
            "CompleteCommit": (670, 20, "disk", "all markers are written"),
            "CompleteAbort": (670, 240, "warn", "all markers are written"),
        },
    )
    picture.arrow([(200, 158), (250, 158)])
    picture.text(225, 120, "add partitions", "small")
    picture.arrow([(340, 130), (340, 48), (450, 48)])
    picture.text(330, 76, "commit", "small", "end")
    picture.arrow([(340, 186), (340, 268), (450, 268)])
    picture.text(330, 232, "abort, timeout,", "small", "end")
    picture.text(330, 250, "fenced", "small", "end")
    picture.arrow([(630, 48), (670, 48)])
    picture.arrow([(630, 268), (670, 268)])
    picture.arrow([(760, 76), (760, 145), (430, 145)])
    picture.arrow([(760, 240), (760, 171), (430, 171)])
    picture.text(600, 162, "the id's next transaction", "small")
    return picture


def life_of_a_job() -> Picture:
    """The states of a write from Spark."""
    picture = states(
        "The states of a write from Spark: planned, staged, committing, committed, failed",
        (860, 320),
        {
            "planned": (20, 40, "box", "driver: options, topics"),
            "staged": (340, 40, "disk", "executors: files of batches"),
            "committing": (660, 40, "main", "driver: one transaction"),
            "failed": (20, 220, "warn", "nothing can be read"),
            "done before": (340, 220, "disk", "the cursor has the number"),
            "committed": (660, 220, "disk", "all rows, and the cursor"),
        },
    )
    picture.arrow([(200, 68), (340, 68)], "one task a share")
    picture.arrow([(520, 68), (660, 68)], "messages of tasks")
    picture.arrow([(770, 96), (770, 220)], "decided")
    picture.arrow([(690, 96), (500, 220)], "")
    picture.text(574, 166, "repeated", "small", "end")
    picture.arrow([(390, 96), (170, 220)], "")
    picture.text(262, 190, "a task failed, or the commit aborted", "small", "start")
    picture.arrow([(110, 220), (110, 96)], "")
    picture.text(100, 150, "Spark", "small", "end")
    picture.text(100, 168, "retries", "small", "end")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "layers": layers,
    "append": append_path,
    "read": read_path,
    "recovery": recovery,
    "life-of-a-log": life_of_a_log,
    "life-of-a-directory": life_of_a_directory,
    "life-of-a-transaction": life_of_a_transaction,
    "life-of-a-job": life_of_a_job,
}
