"""A partition seen without touching it: no lock, no write, beside a running broker and on damaged folders.

The log ends behind the last whole valid batch that is seen; nothing is recovered, no index is created or trusted
where it disagrees with the log.  `refresh` looks again.  Mirrors nothing of Kafka: its brokers own what they read.
One object a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkalog.errors import KafkaStorageException, OffsetOutOfRangeException, UnknownTopicOrPartitionException
from kafkalog.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, LogDirFailureChannel, ManualScheduler
from kafkalog.format import names
from kafkalog.log.local_log import LocalLog
from kafkalog.log.types import FetchIsolation
from kafkalog.segment.log_segment import LogSegment
from kafkalog.segment.log_segments import LogSegments
from kafkalog.segment.types import FetchDataInfo, LogOffsetMetadata, TimestampAndOffset

if TYPE_CHECKING:
    from kafkalog.config import LogConfig


class ReadOnlyLog:
    """The readable part of a UnifiedLog.  `high_watermark` is the log end: there is nobody here to ask."""

    def __init__(
        self,
        dir: str | os.PathLike[str],
        config: LogConfig,
        *,
        log_start_offset: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = OS_FILES,
    ) -> None:
        self.dir = os.path.abspath(os.fspath(dir))
        self.topic_partition = names.parse_topic_partition_name(self.dir)
        self.config = config
        self._clock = clock
        self._files = files
        self._log_start_checkpoint = log_start_offset
        self.log_start_offset = log_start_offset
        self._local = self._load()

    def _load(self) -> LocalLog:
        if not self._files.is_dir(self.dir):
            raise UnknownTopicOrPartitionException("There is no such partition", path=self.dir)
        segments = LogSegments(self.topic_partition)
        try:
            segments.add_all(self._open_segments())
            end, bytes_valid = self._find_end(segments)
        except OSError as error:
            segments.close_quietly()
            raise KafkaStorageException(f"Cannot read {self.dir}") from error
        except BaseException:
            segments.close_quietly()
            raise
        first = segments.first_segment_base_offset
        self.log_start_offset = max(self._log_start_checkpoint, 0 if first is None else first)
        last = segments.last_segment
        metadata = LogOffsetMetadata(end, -1 if last is None else last.base_offset, bytes_valid)
        # A channel and a scheduler of its own: a read that fails takes no directory offline, and nothing is scheduled.
        return LocalLog(
            self.dir, self.config, segments, end, metadata, ManualScheduler(self._clock), self._clock,
            self.topic_partition, LogDirFailureChannel(), files=self._files,
        )  # fmt: skip

    def _open_segments(self) -> Iterable[LogSegment]:
        for name in self._files.list_dir(self.dir):
            if not names.is_log_file(name):
                continue
            try:
                yield LogSegment.open(
                    self.dir, names.offset_from_filename(name), self.config, self._clock, self._files,
                    file_already_exists=True, read_only=True,
                )  # fmt: skip
            except FileNotFoundError:
                continue  # the broker deleted it since the folder was listed

    @staticmethod
    def _find_end(segments: LogSegments) -> tuple[int, int]:
        """The offset behind the last valid batch of the last segment, and its position."""
        segment = segments.last_segment
        if segment is None:
            return 0, 0
        start = segment.translate_offset(segment.offset_index.last_offset)
        if start is not None and start.position > 0:
            end, position = _scan(segment, start.position)
            if position > start.position:
                return end, position
        return _scan(segment, 0)  # no index, or damage where its last entry points

    def refresh(self) -> None:
        """Looks at the folder again: new batches, new and deleted segments."""
        fresh = self._load()
        self.close()
        self._local = fresh

    @property
    def log_end_offset(self) -> int:
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._local.log_end_offset

    @property
    def size(self) -> int:
        return self._local.segments.size_in_bytes

    def log_segments(self) -> list[LogSegment]:
        return list(self._local.segments.values())

    def read(
        self,
        start_offset: int,
        max_length: int,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
        min_one_message: bool = True,
    ) -> FetchDataInfo:
        """As UnifiedLog.read; TXN_COMMITTED adds the aborted transactions, but sees up to the log end."""
        if start_offset < self.log_start_offset:
            raise OffsetOutOfRangeException(
                f"Received request for offset {start_offset} for partition {self.topic_partition}, "
                f"but we only have log segments starting from offset: {self.log_start_offset}."
            )
        return self._local.read(
            start_offset,
            max_length,
            min_one_message,
            self._local.next_offset_metadata,
            isolation is FetchIsolation.TXN_COMMITTED,
        )

    def fetch_offset_by_timestamp(self, target_timestamp: int) -> TimestampAndOffset | None:
        """The first record at or above a timestamp in ms (no special values)."""
        for segment in self._local.segments.values():
            if segment.largest_timestamp >= target_timestamp:
                return segment.find_offset_by_timestamp(
                    target_timestamp, self.log_start_offset, self.config.max_decompressed_message_bytes
                )
        return None

    def close(self) -> None:
        self._local.close_quietly()

    def __enter__(self) -> ReadOnlyLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scan(segment: LogSegment, start: int) -> tuple[int, int]:
    """Offset and position behind the last valid batch from `start` on; (base offset, start) when there is none."""
    end, position = segment.base_offset, start
    for table, _, _ in segment.log.scan(start):
        end = int(table["last_offset"][-1]) + 1
        position = int(table["position"][-1]) + int(table["size"][-1])
    return end, position
