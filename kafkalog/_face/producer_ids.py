"""Producer ids for clients of the protocol: from a counter that is kept next to the data, in blocks of a thousand.

    ids = ProducerIds(place, files, known_ids)
    ids.next()

A broker takes blocks from its controller, whose metadata remembers them.  Here the file `.kafkalog_producer_ids` in
every live directory names the first id that was never taken.  It is on the disk before an id of a block is given, so a
crash loses ids and never gives one twice.  At the first use the highest file counts, and no id at or below one that the
data knows is given, in case the files are lost.

The ids begin at 2^48.  A broker that has the directory later, or had it before, counts from 0, and the store's own
transactions have ids from 2^61 on, so that nobody meets the ids of another.  Thread-safe.

A backup has the counter of its time.  Clients may have got later ids since, and those of a store that was restored are
others: `counter_after` goes on behind all of them.
Source: ProducerIdManager, ProducerIdsBlock (4.4.0).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafkalog._face.transactional_ids import FIRST_STORE_PRODUCER_ID
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.names import PRODUCER_IDS_FILE
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.errors import BadBytesError, KafkaStorageException

if TYPE_CHECKING:
    from kafkalog.engine.files import Files

BLOCK_SIZE = 1000
FIRST_PRODUCER_ID = 1 << 48
VERSION = 0


class ProducerIds:
    """The counter of one store."""

    def __init__(
        self, directories: Callable[[], Iterable[str]], files: Files, known: Callable[[], Iterable[int]]
    ) -> None:
        """`directories` returns the live ones; `known` the producer ids that the data knows."""
        self._directories = directories
        self._files = files
        self._known = known
        self._lock = threading.RLock()
        self._next = self._end = 0  # guarded by _lock: the block in use

    def next(self) -> int:
        """Returns an id that nobody has or had.  KafkaStorageException if no directory can remember it."""
        with self._lock:
            if self._next == self._end:
                self._take_block()
            found = self._next
            self._next += 1
            return found

    def accepts(self, producer_id: int) -> bool:
        """Returns whether a client may hold an id: one of this counter, or of a broker."""
        return 0 <= producer_id < FIRST_STORE_PRODUCER_ID

    def _take_block(self) -> None:
        first = self._end or self._first_free()
        end = first + BLOCK_SIZE
        self._write(end)
        self._next, self._end = first, end

    def _first_free(self) -> int:
        ours = range(FIRST_PRODUCER_ID, FIRST_STORE_PRODUCER_ID)
        known = 1 + max((each for each in self._known() if each in ours), default=FIRST_PRODUCER_ID - 1)
        return max([known, *map(self._read, self._directories())])

    def _read(self, directory: str) -> int:
        path = os.path.join(directory, PRODUCER_IDS_FILE)
        try:
            first_free = _parsed(read_small(path, self._files, bytes_max=NOTE_BYTES_MAX))
        except FileNotFoundError:
            return FIRST_PRODUCER_ID
        except (OSError, ValueError, BadBytesError):
            Lines("kafkalog.coordinator").warning("%s cannot be read: the data tells which ids are in use", path)
            return FIRST_PRODUCER_ID
        return max(first_free, FIRST_PRODUCER_ID)

    def _write(self, first_free: int) -> None:
        failed: OSError | None = None
        written = False
        for directory in self._directories():
            try:
                self._files.write_atomic(os.path.join(directory, PRODUCER_IDS_FILE), _content(first_free))
                written = True
            except OSError as error:
                failed = error
        if not written:
            raise KafkaStorageException.because_of(
                failed or OSError("no directory is online"), "cannot write the first free producer id"
            )


def counter_after(data: bytes, elapsed_ms: int) -> bytes:
    """Returns a counter's file that gives no id which may have been given in the time since `data` was read.

    No server gives more ids than a block in a millisecond.  A file that cannot be read stays as it is.
    """
    try:
        return _content(_parsed(data) + BLOCK_SIZE * (max(elapsed_ms, 0) + 1))
    except ValueError:
        return data


def _parsed(data: bytes) -> int:
    """Returns the first free id of a file's content.  ValueError."""
    version, first_free = (int(each) for each in data.split())
    if version != VERSION:
        raise ValueError(version)
    return first_free


def _content(first_free: int) -> bytes:
    return b"%d\n%d\n" % (VERSION, first_free)
