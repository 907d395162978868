"""Ctrl-C at the lines, and after the calls, of everything that a store does with topics (see `interrupts`).

Each place gets a fresh copy of two directories.  The state that a kill -9 at that moment leaves is copied for later.
Then another thread continues.  Each topic must be in its old or its new state, the same step works, every partition
accepts records, and the store closes and releases everything.  Both states are opened again and checked.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from tests.crash.stored import FAST, Shelf, check_start
from tests.live.cases import HAS_ALTAIR
from tests.live.interrupts import CALLS, LINES, Tracer, interrupted
from tests.live.oracle import copy_moving, in_a_thread, no_descriptors_below
from tests.sampling import LONG, sampled

LIMIT = 300 if LONG else 6
_numbers = itertools.count()
Step = Callable[[Shelf], object]


class Case(NamedTuple):
    """`act` is traced, `again` is what the next one does, when the topic is as it was, perhaps."""

    name: str
    act: Step
    opens: bool = False
    clean: bool = True

    def __str__(self) -> str:
        return self.name


def block(shelf: Shelf) -> None:
    with kafkalog.open(shelf.dirs, files=FAST) as store:
        shelf._store = store
        shelf.append("t", 0)


def append_many(shelf: Shelf) -> None:
    topic_id = shelf.state("t").topic_id.encode()
    shelf.store.topic("t").append_many([(topic_id, b"%d" % number) for number in range(20)])


def append_async(shelf: Shelf) -> None:
    topic_id = shelf.state("t").topic_id.encode()
    asyncio.run(shelf.store.topic("t").append_async(topic_id))


def append_many_async(shelf: Shelf) -> None:
    topic_id = shelf.state("t").topic_id.encode()
    asyncio.run(shelf.store.topic("t").append_many_async([topic_id] * 5))


def open_again(shelf: Shelf) -> None:
    again = kafkalog.open(shelf.dirs, files=FAST)
    assert again.manager is shelf.store.manager


def close_one_of_two(shelf: Shelf) -> None:
    with kafkalog.open(shelf.dirs, files=FAST) as other:
        assert other.topics() == shelf.store.topics()
    assert other.closed


CASES = [
    Case("create", lambda shelf: shelf.create("u", 3, retention_ms="-1")),
    Case("create-exist-ok", lambda shelf: shelf.store.create_topic("t", exist_ok=True)),
    Case("add-partitions", lambda shelf: shelf.add("t", 5)),
    Case("alter", lambda shelf: shelf.alter("t", flush_ms="1000000000", retention_ms=None)),
    Case("delete", lambda shelf: shelf.delete("t")),
    Case("append", lambda shelf: shelf.append("t", 0, 2)),
    Case("append-many", append_many),
    Case("append-async", append_async),
    Case("append-many-async", append_many_async),
    Case("describe-contents", lambda shelf: (shelf.store.describe(sample_rows=2), shelf.store.topic("t").describe())),
    *([Case("plot", lambda shelf: (shelf.store.plot("topics"), shelf.store.topic("t").plot()))] if HAS_ALTAIR else []),
    Case("describe", lambda shelf: (shelf.state("t"), shelf.store.topics(), shelf.store.topic("t").partitions)),
    Case("open", lambda shelf: shelf.open(), opens=True),
    Case("open-and-recover", lambda shelf: shelf.open(), opens=True, clean=False),
    Case("open-again", open_again),
    Case("close-one-of-two", close_one_of_two),
    Case("block", block, opens=True),
    Case("close", lambda shelf: shelf.close()),
]


def prepare(place: Path, *, clean: bool) -> Shelf:
    shelf = Shelf(place)
    shelf.open()
    shelf.create("t", 3, retention_ms="-1")
    shelf.append("t", 0, 1, 1, 2)
    shelf.create("gone", 2)
    shelf.delete("gone")
    if clean:
        shelf.close()
    else:
        shelf.die()
    return shelf


def once(base: Path, template: Shelf, case: Case, tracer: Tracer) -> None:
    place = base / f"run{next(_numbers)}"
    shutil.copytree(Path(template.dirs[0]).parent, place)
    shelf = Shelf(place)
    shelf.story = copy.deepcopy(template.story)
    aside = f"{place}.killed"
    try:
        if not case.opens:
            shelf.open()
        leaks = interrupted(lambda: case.act(shelf), tracer)
        story = copy.deepcopy(shelf.story)
        copy_moving(place, aside)
        in_a_thread(lambda: go_on(case, shelf, leaks), seconds=30)
        shutil.rmtree(place)
        os.rename(aside, place)
        for disk in shelf.dirs:
            if case.name not in ("close", "block"):
                Path(disk, ".kafka_cleanshutdown").unlink(missing_ok=True)
        in_a_thread(lambda: check_start(place, story), seconds=30)
    finally:
        shelf.die()
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def go_on(case: Case, shelf: Shelf, leaks: bool) -> None:
    if case.opens:
        if shelf._store is not None:
            shelf.close()
        shelf._store = None
        gc.collect()  # one that was never returned
    elif case.name == "close":
        shelf.close()
    else:
        store = shelf.store
        for topic, choices in shelf.story.states.items():
            found = shelf.state(topic) if topic in store else None
            assert found in choices, (topic, found, choices)
            shelf.story.states[topic] = [found]
        for topic, [state] in list(shelf.story.states.items()):
            if state is None:
                shelf.create(topic, 4)
            else:
                shelf.alter(topic, max_message_bytes="70000")
                shelf.add(topic, state.partitions + 2)
            shelf.append(topic, *range(shelf.state(topic).partitions))
        shelf.story.judge(store, process_only=True)
        shelf.close()
    root = os.path.dirname(shelf.dirs[0])
    if no_descriptors_below(root):
        gc.collect()
    left = no_descriptors_below(root)
    assert not left or leaks, f"left open: {left}"
    for disk in shelf.dirs:
        lock = os.path.join(disk, ".lock")
        if os.path.exists(lock):
            OS_FILES.lock(lock).release()  # the file of a release that was interrupted: nobody has it
    check_start(root, copy.deepcopy(shelf.story))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_store_is_interrupted(
    case: Case, kind: str, base: Path, count: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")
    template = prepare(base / "template", clean=case.clean)
    for _ in range(2):  # imports and lazy initialization are not places of the operation
        tracer = Tracer(kind)
        once(base, template, case, tracer)
    numbers = sampled(tracer.places, LIMIT)
    count("places of stores known", len(tracer.places))
    count("interrupts of stores", len(numbers))
    failures = []
    for number in numbers:
        file, line, function = tracer.places[number]
        try:
            once(base, template, case, Tracer(kind, number))
        except BaseException as error:
            failures.append(f"{file}:{line} {function} (#{number}): {type(error).__name__}: {error}"[:700])
    shown = "\n".join(failures[:20])
    assert not failures, f"{len(failures)} of {len(numbers)} places:\n{shown}"
