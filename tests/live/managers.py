"""Ctrl-C in a LogManager: the operations that are interrupted, and what must hold then (see `tests.live.interrupts`).

A case runs once to count its places, then once for each chosen place, in a fresh copy of three prepared directories.
The state that a kill -9 at that moment leaves is copied for later.  Then another thread continues.  Every promise must
be kept: logs are created, written and moved, the manager shuts down, each directory is marked and unlocked, and no file
is open.  Last, a manager is started on the copy.
"""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import moves
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkaStorageException
from tests.crash.managed import DISKS, House, check_start, value_of
from tests.live.interrupts import Interrupted, Outcome, Tracer, interrupted
from tests.live.oracle import copy_moving, in_a_thread, no_descriptors_below
from tests.sampling import sampled
from tests.unit.log_kit import batch

Step = Callable[[House], object]
_numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """`before` runs on each copy, whose manager is open unless `act` opens one; `act` is traced; `after` goes on."""

    name: str
    act: Step
    before: Step = lambda house: None
    after: Step = lambda house: None
    clean: bool = True
    opens: bool = False
    ends: bool = False  # the manager is of no use afterwards
    marked: bool = True  # all directories are, at the end

    def __str__(self) -> str:
        return self.name


class Runner:
    """Runs cases below `base`, a directory in memory."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def run(self, case: Case, kind: str, limit: int | None) -> Outcome:
        template = House(self.base / f"template{next(_numbers)}")
        template.open()
        for number in range(DISKS):
            template.make(f"t-{number}", number)
            template.append(f"t-{number}", 9)
        template.delete_records("t-1", 3)
        if case.clean:
            template.shut_down()
        else:
            template.die()
        outcome = Outcome()
        for _ in range(2):  # imports and lazy initialization are not places of the operation
            places = self._once(case, template, Tracer(kind), outcome, "not interrupted")
            if outcome.failures:
                return outcome
        wanted = sampled(places, limit)
        outcome.known, outcome.tried = len(places), len(wanted)
        for number in wanted:
            file, line, function = places[number]
            label = f"{file}:{line} {function} (#{number})"
            self._once(case, template, Tracer(kind, number), outcome, label)
        shutil.rmtree(template.root)
        return outcome

    def _once(
        self, case: Case, template: House, tracer: Tracer, outcome: Outcome, label: str
    ) -> list[tuple[str, int, str]]:
        place = self.base / f"run{next(_numbers)}"
        shutil.copytree(template.root, place)
        house = House(place)
        house.story = copy.deepcopy(template.story)
        house.clock.advance_to(template.clock.milliseconds())
        aside = str(place) + ".killed"
        try:
            leaks = self._interrupt(case, house, tracer)
            story = copy.deepcopy(house.story)
            copy_moving(place, aside)
            in_a_thread(lambda: go_on(case, house, leaks), seconds=30)
            shutil.rmtree(place)
            os.rename(aside, place)
            for disk in house.dirs:
                marker = os.path.join(disk, names.CLEAN_SHUTDOWN_FILE)
                if os.path.exists(marker) and not case.ends:
                    os.unlink(marker)
            in_a_thread(lambda: check_start(place, story), seconds=30)
        except BaseException as error:
            outcome.failures.append(f"{label}: {_short(error)}")
        finally:
            house.die()
            shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(aside, ignore_errors=True)
        return tracer.places

    @staticmethod
    def _interrupt(case: Case, house: House, tracer: Tracer) -> bool:
        """Whether the frames that the interrupt left may hold files."""
        if not case.opens:
            house.open()
        case.before(house)
        return interrupted(lambda: case.act(house), tracer)


def go_on(case: Case, house: House, leaks: bool) -> None:
    case.after(house)
    if case.ends or case.opens:
        if house.has_manager:
            house.manager.shutdown()
        check_let_go(house, leaks)
    else:
        manager = house.manager
        house.story.judge(manager)
        for partition in list(house.story.lives):
            log = manager.get_log(partition)
            if log is not None:
                house.append(partition)
                house.move(partition, (int(log.parent_dir[-1]) + 1) % DISKS)
                house.append(partition)
        house.make("z-0", 0 if house.dirs[0] in manager.live_log_dirs else 1)
        house.append("z-0")
        house.story.judge(manager)
        house.later(120_000)
        house.story.judge(manager)
        house.shut_down()
        check_let_go(house, leaks)
        if case.marked:
            assert all(os.path.exists(os.path.join(each, names.CLEAN_SHUTDOWN_FILE)) for each in house.dirs)
    check_start(house.root, house.story)


def check_let_go(house: House, leaks: bool) -> None:
    house.scheduler.clear()  # with the files of `.deleted` segments that it was to delete later
    left = no_descriptors_below(house.root)
    if left:
        gc.collect()
        left = no_descriptors_below(house.root)
    assert not left or leaks, f"left open: {left}"
    for disk in house.dirs:
        lock = os.path.join(disk, ".lock")
        if os.path.exists(lock):
            OS_FILES.lock(lock).release()  # the file of a release that was interrupted: nobody has it


def _short(error: BaseException) -> str:
    import traceback

    frames = [f"{os.path.basename(it.filename)}:{it.lineno}" for it in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {error} at {' '.join(frames[-6:])}".replace("\n", " | ")[:900]


# --- operations ----------------------------------------------------------------------------------------


def future_of(house: House) -> UnifiedLog:
    return house.manager.get_or_create_log("t-0", is_future=True, log_dir=house.dirs[1])


def with_future(house: House) -> None:
    future = future_of(house)
    future.append_as_follower(batch(1, value=value_of("t-0", 0, 0), epoch=0), 0)


def delete_all(house: House) -> None:
    house.mark("begin", ("delete", "t-0"))
    house.mark("begin", ("delete", "t-2"))
    house.manager.async_delete_all([TopicPartition("t", 0), TopicPartition("t", 2)])
    house.mark("end", ("delete", "t-0"))
    house.mark("end", ("delete", "t-2"))


def truncate(house: House) -> None:
    with house.telling("truncate", "t-0", 4):
        house.manager.truncate_to({TopicPartition("t", 0): 4})


def truncate_fully(house: House) -> None:
    with house.telling("restart", "t-0", 50):
        house.manager.truncate_fully_and_start_at("t-0", 50)


def all_is_old(house: House) -> None:
    house.manager.update_topic_config("t", {"retention.ms": "1"})
    house.clock.advance_to(house.clock.milliseconds() + 1_000_000)


def retention(house: House) -> None:
    for partition in ("t-0", "t-1", "t-2"):
        house.mark("begin", ("start", partition, house.log(partition).log_end_offset))
    house.manager.cleanup_logs()


def kept_again(house: House) -> None:
    house.manager.update_topic_config("t", {})


def disk_fails(house: House) -> None:
    message = "Error while testing"
    house.manager.failure_channel.maybe_add_offline_log_dir(house.dirs[1], message, OSError(errno.EIO, "refused"))


def handle_failure(house: House) -> None:
    house.manager.handle_log_dir_failure(house.dirs[1])


def failure_is_handled(house: House) -> None:
    """Checks the other two directories; the rest of the story is reported by hand."""
    manager = house.manager
    handle_failure(house)
    assert manager.offline_log_dirs == [house.dirs[1]]
    assert manager.get_log("t-1") is None
    for partition in ("t-0", "t-2"):
        house.append(partition)
    house.move("t-0", 2)
    house.append("t-0")
    try:
        manager.get_or_create_log("t-1")
    except KafkaStorageException:
        pass
    else:
        raise AssertionError("made while it may be offline")
    manager.shutdown()
    assert not os.path.exists(os.path.join(house.dirs[1], names.CLEAN_SHUTDOWN_FILE))


def move_in_pieces(house: House) -> None:
    before, moves.COPY_BYTES, moves.SWITCH_BYTES = (moves.COPY_BYTES, moves.SWITCH_BYTES), 300, 600
    try:
        house.move("t-0", 2)
    finally:
        moves.COPY_BYTES, moves.SWITCH_BYTES = before


def start(house: House) -> None:
    house.open()


def block(house: House) -> None:
    with LogManager(
        house.dirs, house.settings, scheduler=house.scheduler, clock=house.clock, files=house.files
    ) as manager:
        house.adopt(manager)
        house.append("t-0")


def left_between_the_renames(house: House) -> None:
    """A move whose process died when the partition had two whole directories."""
    house.open()
    moved = house.manager.get_log("t-0")
    assert moved is not None
    rename = UnifiedLog.rename_dir

    def die(log: UnifiedLog, name: str, reinit: bool) -> None:
        if name.endswith(names.DELETE_DIR_SUFFIX):
            raise Interrupted
        rename(log, name, reinit)

    UnifiedLog.rename_dir = die  # type: ignore[method-assign]
    try:
        house.move("t-0", 1)
    except Interrupted:
        pass
    finally:
        UnifiedLog.rename_dir = rename  # type: ignore[method-assign]
        house.die()
        moved.close_quietly()  # the manager had handed it over; the mover died before it took it


def call(name: str, *args: Any) -> Step:
    return lambda house: getattr(house.manager, name)(*args)


CASES = [
    Case("make", lambda house: house.make("u-0", 1)),
    Case("make-future", future_of),
    Case("move", lambda house: house.move("t-0", 1)),
    Case("move-in-pieces", move_in_pieces),
    Case("move-on", lambda house: house.move("t-0", 1), before=with_future),
    Case("move-elsewhere", lambda house: house.move("t-0", 2), before=with_future),
    Case("delete", lambda house: house.delete("t-0"), before=with_future),
    Case("delete-all", delete_all, before=with_future),
    Case("truncate", truncate),
    Case("truncate-fully", truncate_fully),
    Case("set-topic-config", lambda house: house.configure("t", max_message_bytes="70000")),
    Case("checkpoint-recovery-points", call("checkpoint_recovery_points")),
    Case("checkpoint-log-starts", call("checkpoint_log_starts")),
    Case("checkpoint-high-watermarks", call("checkpoint_high_watermarks")),
    Case("retention", retention, before=all_is_old, after=kept_again),
    Case("flush-dirty", call("flush_dirty_logs")),
    Case("disk-fails", handle_failure, before=disk_fails, after=failure_is_handled, ends=True),
    Case("shutdown", call("shutdown"), ends=True),
    Case("abandon", call("abandon"), ends=True, clean=False),
    Case("start", start, opens=True),
    Case("start-and-recover", start, opens=True, clean=False),
    Case("start-and-mend", start, before=left_between_the_renames, opens=True),
    Case("block", block, opens=True),
]
