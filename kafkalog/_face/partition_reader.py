"""One partition of a StoreReader: the batches that were read ahead, and the position up to which they were returned.

A ChunkReader whose chunks are returned batch by batch to code that reads several partitions round-robin. `position` is
the offset that a cursor commits. Everything below it was returned, or is not for the caller (control records, aborted
records, filtered records). It moves over a batch when the next one is requested.

A reader may have an `end`: an offset, or a time. Later readers of the cursor get the records behind it, so `to_commit`
stays at the first of them. Timestamps may be in any order: a record that comes later and has a time before the end is
returned, and comes again after a commit.

An interrupt at any point loses nothing and repeats nothing: if it came while a chunk was read, that chunk is dropped
and read again from `position`. Not thread-safe.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog._face.chunk_reader import UNREADABLE, Chunk, ChunkReader
from kafkalog._face.damage_hint import helped
from kafkalog._face.times import ALL_TIMES
from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format import values
from kafkalog.engine.format.group_records import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog._face.followed_damage import FollowedPastDamage
    from kafkalog._face.selection import Tell
    from kafkalog._face.times import Times
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.group_records import CommittedOffset
    from kafkalog.engine.log.source import Source
    from kafkalog.errors import KafkalogError
    from kafkalog.records import Record


class PartitionReader(ChunkReader):
    """`reset` says where to continue if the log does not have the position: ChunkReader's `out_of_range`. `tell` is
    called with each range that is left out at damage; None: damage raises an error."""

    def __init__(
        self,
        source: Source,
        position: int,
        *,
        topic_id: str,
        isolation: str,
        reset: str,
        times: Times = ALL_TIMES,
        end_offset: int | None = None,
        tell: Tell | None = None,
    ) -> None:
        super().__init__(source, position, isolation=isolation, out_of_range=reset, end_offset=end_offset)
        self.topic_id = topic_id
        self.position = self.begun_at = self.offset
        self.begun_with: CommittedOffset | None = None  # the cursor's committed offset at that time
        self.leader_epoch = NO_LEADER_EPOCH  # the one of the last record below the position, if known
        self.paused = False
        self.given: BatchHeader | None = None  # the batch that a walk is in
        self.is_checked = False  # whether the log's end was checked for damage
        self._times = times
        self._behind = end_offset  # the first offset behind the end of what is to be read; None if not known
        self._from = self.position  # where reading began, or was set to by `move`
        self._tell = tell
        self._past: FollowedPastDamage | None = None  # the source after damage was met
        self._held: tuple[Chunk, list[BatchHeader], int] | None = None  # and the end of the chunk
        self._next = 0  # index of the next batch
        self._is_reading = False  # a read has begun and may have been interrupted
        self._dry: int | None = None  # the visible end at which there was nothing

    # --- reading -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Drops what an interrupted read has read."""
        if self._is_reading:
            self.seek(self.position)

    def may_have_more(self) -> bool:
        """Returns whether reading the log may find more, without reading anything."""
        end = self.source.visible_end(self.isolation)
        return end not in (self.offset, self._dry) or self._is_reading

    def is_beyond(self) -> bool:
        """Returns whether the position is after the visible end: the log was truncated, or a transaction is open."""
        return self.offset > self.source.visible_end(self.isolation)

    def lag(self) -> int:
        """Returns the number of offsets from the position to the end that this reader sees."""
        return max(0, self.source.visible_end(self.isolation) - max(self.to_commit(), self.source.log_start_offset))

    def current(self) -> tuple[Chunk, BatchHeader] | None:
        """Returns the next batch of those that were read ahead."""
        held = self._held
        if held is None:
            return None
        chunk, headers, end = held
        if self._next < len(headers):
            return chunk, headers[self._next]
        self._move_to(end)
        self._held = None
        return None

    def read(self) -> bool:
        """Reads ahead, after `current` has returned None. Returns whether there is a batch now."""
        self.settle()
        self._is_reading = True
        end = self.source.visible_end(self.isolation)
        while (chunk := self.read_chunk()) is not None:
            headers = self.data_headers(chunk)
            if headers:
                self._look_for_end(chunk, headers)
                self._next = 0
                self._held = chunk, headers, self.offset
                self._is_reading = False
                return True
            self._move_to(self.offset)
        if self.offset < end:
            ChunkReader.seek(self, end)  # no visible record is between the two
        self._move_to(self.offset)
        self._dry = end
        self._is_reading = False
        return False

    def data_headers(self, chunk: Chunk) -> list[BatchHeader]:
        found = super().data_headers(chunk)
        if self._times.first == LONG_MIN:
            return found
        return [each for each in found if each.magic < 2 or each.max_timestamp >= self._times.first]

    def _look_for_end(self, chunk: Chunk, headers: list[BatchHeader]) -> None:
        """Finds the first record at or after the end's time, if it is in these batches."""
        last = self._times.last
        if last == LONG_MAX or self._behind is not None:
            return
        for header in headers:
            if header.magic >= 2 and header.max_timestamp <= last:
                continue
            with suppress(*UNREADABLE):  # it is reported when the records are read
                for record in super().plain_records(chunk, header):
                    if record.timestamp > last:
                        self._behind = record.offset
                        return

    # --- damage --------------------------------------------------------------------------------------

    def pass_over(self, error: KafkalogError, behind: int = 0) -> None:
        """Continues after damage and reports it, or raises the error again. The damage is treated like returned
        records. `behind`: everything below was returned already. If `tell` raises an error, the damage is reported
        again."""
        if self._tell is None:
            raise helped(error)
        from kafkalog._face.followed_damage import FollowedPastDamage

        position, leader_epoch = max(self.position, behind), self.leader_epoch
        past = self._past or FollowedPastDamage(self.source)
        lost = past.skip(self, error)
        try:
            self.source = self._past = past
            if lost is not None:
                self._tell(lost._replace(first_offset=max(lost.first_offset, position)))
        except BaseException:
            self.seek(position)
            self.leader_epoch = leader_epoch
            raise

    def plain_records(self, chunk: Chunk, header: BatchHeader) -> Iterator[Record]:
        behind = 0
        try:
            for record in super().plain_records(chunk, header):
                yield record
                behind = record.offset + 1
        except UNREADABLE as error:
            self.pass_over(error, behind)

    def let_go(self) -> None:
        """Ends the reader and closes all files."""
        self.close()
        if self._past is not None:
            self._past.close()

    # --- position ------------------------------------------------------------------------------------

    def to_commit(self, position: int | None = None) -> int:
        """Returns the position that is shown and committed, for the current position or another one: not behind the
        first record after the reader's end."""
        if position is None:
            position = self.position
        behind = self._behind
        return position if behind is None or position <= behind else min(position, max(behind, self._from))

    def epoch_to_commit(self) -> int:
        """Returns the leader epoch of the last record below `to_commit`; -1 if it is not known."""
        return self.leader_epoch if self.to_commit() == self.position else NO_LEADER_EPOCH

    def _move_to(self, offset: int) -> None:
        first, position = max(self.first_offset, offset), max(self.position, offset)
        self.first_offset, self.position = first, position  # no signal comes between the two assignments

    def told(self, offset: int, leader_epoch: int) -> None:
        """Notes that the records below `offset` of the current batch were returned."""
        if self.given is not None and offset > self.position:
            self._move_to(offset)
            self.leader_epoch = leader_epoch

    def passed(self, header: BatchHeader) -> None:
        """Notes that the whole current batch was returned."""
        if self.given is header:
            self._move_to(header.last_offset + 1)
            self.leader_epoch = header.leader_epoch
            self.given = None
            self._next += 1
            self.current()

    def chunk_passed(self, chunk: Chunk) -> None:
        """Notes that the whole held chunk was returned."""
        held = self._held
        if held is not None and held[0] is chunk:
            self._move_to(held[2])  # first: an interrupted poll is undone only if the position has moved
            self.leader_epoch = held[1][-1].leader_epoch
            self._next = len(held[1])
            self.given = None
            self.current()

    def seek(self, offset: int) -> None:
        """Continues at another offset, and drops what was read ahead."""
        offset = values.offset(offset, low=0)
        self._is_reading = True
        self.given = self._held = self._dry = None
        self.leader_epoch = NO_LEADER_EPOCH
        self.position = offset
        super().seek(offset)
        self._is_reading = False

    def rewind(self, committed: CommittedOffset | None) -> None:
        """Goes back to the offset committed since it began, or to where it began if none was."""
        if committed is None or committed == self.begun_with:
            self.move(self.begun_at)
            return
        self.move(committed.offset)
        self.leader_epoch = committed.leader_epoch

    def move(self, offset: int) -> None:
        """Continues at an offset that the user has chosen."""
        self.seek(offset)
        self._begin_at(offset)

    def _begin_at(self, offset: int) -> None:
        if self._times.last != LONG_MAX:
            self._behind = None  # the first one behind the end's time may be another one now
        self._from = offset

    def _reset_offset(self) -> int:
        self.position = found = super()._reset_offset()
        self.leader_epoch = NO_LEADER_EPOCH
        self._begin_at(found)
        return found
