"""The moves of one manager: runs those of a partition one at a time, and switches a partition to its future log.

A move (`moves.Move`) copies, and requests the switch from its manager; a switch can also come without a move.  The
switch renames the future directory to the plain name, changes the registry, and renames the current directory
`-delete`, which then waits in `doomed`.  If the disk refuses the first rename, the partition stays where it is.  Notes
next to the directories (`move_notes`) say at each moment which one counts.  Mirrors
LogManager.replaceCurrentWithFutureLog (4.4.0).

Locks, outermost first: a partition's turn in `_turns`, held for all of a move; `Changes.lock`, which the caller of
`replace` holds (it is a change of `Changes`, and may run twice); the current log's lock.  The partition's cleaning is
paused before the log's lock is acquired: a move has paused it from its beginning, and calls `replace` with that lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kafkalog._native.state.log_end import PartitionLock
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import move_notes
from kafkalog.engine.host.changes import inside
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.leftovers import Leftovers
from kafkalog.engine.host.log_contexts import LogContexts
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.moves import Move, MoveProgress
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, KafkalogError, KafkaStorageException, TooManyOpenFilesException


class Moves:
    def __init__(
        self,
        directories: LogDirectories,
        registry: LogRegistry,
        cleaning: Cleaning,
        doomed: DoomedLogs,
        leftovers: Leftovers,
        contexts: LogContexts,
    ) -> None:
        self._contexts = contexts
        self._directories = directories
        self._files = directories.files
        self._failure_channel = directories.failure_channel
        self._registry = registry
        self._cleaning = cleaning
        self._doomed = doomed
        self._leftovers = leftovers
        self._turns: dict[TopicPartition, PartitionLock] = {}  # moves of one partition run one after the other
        belongs_here(self)

    def disown(self) -> None:
        """Resets the turns in a forked child: the thread that had one may not exist there."""
        self._turns = {}

    def run(self, move: Move, progress: Callable[[MoveProgress], object] | None) -> UnifiedLog:
        """Runs a move when it is its turn.  Returns the partition's log in its new place.

        Raises IllegalStateException if it is called from inside another move of the partition.
        """
        turn = self._turns.setdefault(move.partition, PartitionLock())
        if turn.is_mine():  # both moves would write the same copy
            raise inside(f"moving {move.partition}")
        with turn, self._cleaning.pause(move.partition) as pause:
            pause.begin()
            return move.run(progress)

    # --- the switch ----------------------------------------------------------------------------------

    def replace(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        """Puts the destination in the partition's place, and renames the source's directory to `given_up`."""
        self._leftovers.settle(source.topic_partition.topic)
        with self._cleaning.pause(source.topic_partition) as pause:
            pause.begin()
            self._switch(source, destination, given_up)

    def _switch(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        partition = source.topic_partition
        with source.lock:
            source.refuse_changes()  # a record that is appended from now on would be lost
            source.lock.busy = False  # a Move's claim: from here on the refusal suffices, and the directory is renamed
            if self._registry.get(partition) is source:
                try:
                    self._prepare_replacing(source, destination)
                    destination.rename_dir(names.log_dir_name(partition), True)
                    self._contexts.when_ready(destination)
                except (KafkalogError, OSError):
                    self._stay(source, destination)
                    raise
                destination.update_high_watermark(source.high_watermark)
            self._registry.promote(destination)
            source.wake_waiters()  # they continue with the new log
        self._cleaning.moved(partition, source.parent_dir, destination.parent_dir)
        try:
            self._give_up(source, destination, given_up)
        except (DiskFull, TooManyOpenFilesException) as error:  # the partition has moved, and a note says so
            source.context.logger.info("the directory that the move left will be renamed later: %s", error)
            self._leftovers.add(partition, partial(self._give_up, source, destination, given_up), source)
        except KafkaStorageException:
            source.close_quietly()  # no other code will: it is in no map any more
            raise

    def _give_up(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        """Removes the log that a move left, and its notes."""
        source.rename_dir(given_up, True)
        self._doomed.add(source)
        move_notes.forget(destination, source, self._files, self._failure_channel)
        with suppress(KafkaStorageException):  # a note next to no directory has no effect
            move_notes.remove(source, self._files, self._failure_channel)
        for log_dir in (source.parent_dir, destination.parent_dir):
            self._directories.checkpoint(log_dir, self._registry)

    def _prepare_replacing(self, source: UnifiedLog, destination: UnifiedLog) -> None:
        if source.topic_id is not None:  # it may have been assigned after the copy was created
            destination.assign_topic_id(source.topic_id)
            destination.maybe_flush_metadata_file()
        # A crash after the renames must not bring back records that were deleted before.
        if not self._directories.checkpoint(destination.parent_dir, self._registry, raises=True):
            destination.context.check_online()
        move_notes.forget(source, destination, self._files, self._failure_channel)
        move_notes.write(source, destination, self._files, self._failure_channel)

    def _stay(self, source: UnifiedLog, destination: UnifiedLog) -> None:
        self._note_that_it_stays(source, destination)
        source.accept_changes()
        if not destination.is_future:  # a listener refused the new log: give it the old one again
            with suppress(KafkalogError):
                destination.rename_dir(names.log_future_dir_name(source.topic_partition), True)
            with suppress(KafkalogError):
                self._contexts.when_ready(source)

    def _note_that_it_stays(self, source: UnifiedLog, destination: UnifiedLog) -> None:
        """Notes that the partition stays because the other disk failed.

        A note on the other disk may say otherwise, and this note contradicts it.
        """
        try:
            move_notes.write_stay(source, destination, self._files, self._failure_channel)
        except KafkaStorageException:
            source.context.logger.warning("the partition stays here, but no note says so")
