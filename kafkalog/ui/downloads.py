"""Downloads: a selection of records as Parquet or JSON lines, and one value as it is.

A thread writes what `toolbox.export_files` writes, piece by piece, and waits while the client is slow.  So a download
takes bounded memory.  It ends after RECORDS_MAX records or BYTES_MAX bytes; since a file cannot say so, the page asks
how a download ended.  A download that fails breaks the connection, so that no browser takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalog._face.selected import batches_in, selected_range
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.export import COLUMNS, FORMATS

if TYPE_CHECKING:
    from kafkalog._face.selection import Selection
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.ui.views import Views

RECORDS_MAX = 1_000_000
BYTES_MAX = 1 << 30
PIECE_BYTES = 256 << 10
PIECES = 8  # that wait for a slow client
ROWS, ROWS_BYTES = 65_536, 8 << 20
KEPT = 100  # downloads whose end is remembered
MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "jsonl": "application/x-ndjson"}


@dataclass
class Download:
    """The state of a download, for the page."""

    state: str = "running"  # "done", "cut", "failed", "cancelled"
    records: int = 0
    bytes: int = 0
    said: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Returns the state as JSON."""
        return {"state": self.state, "records": self.records, "bytes": self.bytes, "said": self.said}


class Downloads:
    """The last downloads by the names that the page gives them.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Download] = OrderedDict()  # guarded by _lock

    def begin(self, name: str) -> Download:
        """Returns a new download of that name."""
        made = Download()
        with self._lock:
            self._known[name] = made
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return made

    def get(self, name: str) -> Download | None:
        """Returns the download of that name, if it is known."""
        with self._lock:
            return self._known.get(name)


class Cancelled(Exception):
    """The client is gone."""


class Pipe:
    """A file for a writer in a thread, whose pieces an asynchronous reader takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Download) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(PIECES)
        self._held = bytearray()
        self.told = told
        self.cancelled = False
        self.closed = False
        self.size = 0

    def write(self, data: Any) -> int:
        """Takes bytes; waits while the client is slow.  Raises Cancelled if it is gone."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._held += view[start : start + PIECE_BYTES]
            if len(self._held) >= PIECE_BYTES:
                self._put(bytes(self._held))
                self._held.clear()
        self.size += len(view)
        self.told.bytes = self.size
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: a piece is sent when it is full."""

    def close(self) -> None:
        """Does nothing: `end` ends the file."""

    def end(self, error: BaseException | None = None) -> None:
        """Sends what is left, then the end or an error."""
        if error is None and self._held:
            self._put(bytes(self._held))
        self._put(error)

    def check(self, read: int = 0) -> None:
        """Raises Cancelled if the client is gone."""
        if self.cancelled:
            raise Cancelled

    def _put(self, piece: bytes | BaseException | None) -> None:
        self.check()
        try:
            waiting = asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop)
        except RuntimeError:  # the server has ended
            raise Cancelled from None
        while True:
            try:
                waiting.result(1.0)
                return
            except concurrent.futures.TimeoutError:
                if self.cancelled:
                    waiting.cancel()
                    raise Cancelled from None

    async def first(self) -> bytes | None:
        """Returns the first piece; raises the error of the writer."""
        piece = await self._queue.get()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    async def pieces(self, first: bytes | None) -> AsyncIterator[bytes]:
        """Yields the pieces, the given first one before the others."""
        piece = first
        try:
            while piece is not None:
                yield piece
                piece = await self.first()
        finally:
            self.cancelled = True


def file_name(*parts: object, ending: str) -> str:
    """Returns a name for a file: letters, digits and a few signs, whatever the parts are."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(map(str, parts))).strip("._-")[:120]
    return f"{text or 'records'}.{ending}"


def check_format(kind: str | None) -> str:
    """Returns the format.  Raises IllegalArgumentException for others."""
    if kind not in MEDIA_TYPES:
        raise IllegalArgumentException(f"format: found {kind!r:.40}, expected {' or '.join(MEDIA_TYPES)}")
    return kind


def write_records(
    views: Views,
    partitions: Sequence[TopicPartition],
    selection: Selection,
    kind: str,
    pipe: Pipe,
    told: Download,
    *,
    last: int | None = None,
) -> None:
    """Writes the selected records to a pipe, up to the limits."""
    from kafkalog._face import arrow
    from kafkalog.toolbox.export_files import writer

    out = writer(kind, pipe, arrow.schema(COLUMNS), FORMATS[kind][0], in_base64=False)
    gathered = arrow.Gathered(ROWS, ROWS_BYTES)
    read_bytes = 0

    def whole() -> Iterator[Any]:
        nonlocal read_bytes
        for partition in partitions:
            with views.lent(partition) as view:
                place = selected_range(lambda view=view: view, selection, last, lenient=True)  # type: ignore[misc]
                batches = batches_in(
                    lambda view=view: view, selection, place, COLUMNS, ROWS, batch_bytes=ROWS_BYTES,  # type: ignore[misc]
                    progress=pipe.check,
                )  # fmt: skip
                for batch in batches:
                    room = RECORDS_MAX - told.records
                    if batch.num_rows > room or read_bytes > BYTES_MAX:
                        batch = batch.slice(0, max(room, 0) if read_bytes <= BYTES_MAX else 0)
                        where = f"{partition}"
                        if batch.num_rows:
                            where += f" after offset {batch.column('offset')[batch.num_rows - 1]}"
                        told.said = f"The file ends at the limit, in {where}."
                        told.state = "cut"
                    told.records += batch.num_rows
                    read_bytes += batch.nbytes
                    yield from gathered.add(batch) if batch.num_rows else ()
                    if told.state == "cut":
                        return

    for batch in whole():
        out.write(batch)
    for batch in gathered.rest():
        out.write(batch)
    out.close()


def run(work: Callable[[], None], pipe: Pipe, told: Download) -> None:
    """Does the work of a download's thread, and says how it ended."""
    try:
        work()
        told.state = "done" if told.state == "running" else told.state
        pipe.end()
    except Cancelled:
        told.state = "cancelled"
    except BaseException as error:
        told.state, told.said = "failed", " ".join(str(error).split())
        try:
            pipe.end(error)
        except Cancelled:
            return
