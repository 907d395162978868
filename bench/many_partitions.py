"""`python -m bench.many_partitions [COUNT]`: commands that need only indexes and headers, on a directory of COUNT
partitions (default 10,000) with a few records each. The target is one second for each command.

A store writes one topic's partitions; the others are copies of them under other names. The directory is in memory
(/dev/shm if it exists). Each command runs in a separate process, and its output is discarded. Its modules are already
compiled, as in an installed package: each command runs once before, on a directory of one partition.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kafkalog
from bench import kept
from bench.machine import as_installed
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition

PARTITIONS_OF_TOPIC = 100
RECORDS = 3  # in each partition
COMMANDS = (
    ("topics", "{}"),
    ("describe", "{}"),
    ("log-dirs", "{}"),
    ("du", "{}"),
    ("checkpoint", "{}"),
    ("explain", "{}/topic_0001-7"),
    ("cursors", "{}"),
    ("transactions", "{}"),
    ("retain", "{}", "-X", "retention.ms=86400000"),
)


def make(root: Path, count: int, topic_partitions: int = PARTITIONS_OF_TOPIC) -> None:
    """Creates a log directory of `count` partitions in topics of `topic_partitions`, closed cleanly, and as many
    cursors, all in the first topic."""
    with kafkalog.open(root) as store:
        first = store.create_topic("topic_0000", topic_partitions)
        for partition in range(topic_partitions):
            first.append_many([b"value %d" % number for number in range(RECORDS)], partition=partition)
        ends = {TopicPartition("topic_0000", partition): RECORDS for partition in range(topic_partitions)}
        for group in range(count // topic_partitions):
            with store.reader(f"group_{group:04}", topics=["topic_0000"]) as reader:
                reader.commit(ends)
    folders = {
        number: _files_of(root / str(TopicPartition("topic_0000", number))) for number in range(topic_partitions)
    }
    added = []
    for number in range(topic_partitions, count):
        topic, partition = divmod(number, topic_partitions)
        added.append(TopicPartition(f"topic_{topic:04}", partition))
        folder = os.path.join(root, str(added[-1]))
        os.mkdir(folder)
        for name, data in folders[partition].items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
    for name, offset in (
        (names.RECOVERY_POINT_CHECKPOINT_FILE, RECORDS),
        (names.LOG_START_OFFSET_CHECKPOINT_FILE, 0),
        (names.HIGH_WATERMARK_CHECKPOINT_FILE, RECORDS),
    ):
        checkpoint = OffsetCheckpointFile(str(root / name), OS_FILES)
        checkpoint.write({**checkpoint.read_or_empty(), **dict.fromkeys(added, offset)})


def _files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files to copy: all but the one with the topic's id, which is unique."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != names.PARTITION_METADATA_FILE}


def _compiled(folder: Path) -> dict[str, str]:
    """Returns the environment of `as_installed`, after each command has run once."""
    found = as_installed(folder)
    make(folder / "small", 0, 8)
    for command, *words in COMMANDS:
        _run(command, [word.format(folder / "small").replace("topic_0001", "topic_0000") for word in words], found)
    return found


def _run(command: str, words: list[str], environment: dict[str, str]) -> int:
    line = [sys.executable, "-m", "kafkalog", command, *words]
    return subprocess.run(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=False
    ).returncode


def _processor_s() -> float:
    """Returns the CPU time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("count", nargs="?", type=int, default=10_000)
    asked.add_argument("--only", metavar="COMMAND", action="append", help="run only this command; may be repeated")
    asked.add_argument("--keep", type=Path, metavar="DIR", help="create the data in DIR if it is missing, and keep it")
    asked.add_argument("--run", help="keep the results in bench/results/ under this name")
    asked.add_argument("--turns", type=int, default=3)
    args = asked.parse_args()
    results = kept.Results()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    made = Path(tempfile.mkdtemp(prefix="kafkalog-many-", dir=memory))
    root = args.keep or made / "data"
    try:
        if not root.exists():
            make(root, args.count)
        environment = _compiled(made)
        for command, *words in COMMANDS:
            if args.only and command not in args.only:
                continue
            taken = []
            for _ in range(args.turns):
                begin, before = time.perf_counter(), _processor_s()
                code = _run(command, [word.format(root) for word in words], environment)
                clock, processor = time.perf_counter() - begin, _processor_s() - before
                taken.append(clock)
                print(f"{command:14} {clock:7.2f} s  processor {processor:7.2f} s  exit {code}", flush=True)
            name = f"`kafkalog {command}`, {args.count:,} partitions"
            results.row("commands", name, kept.SECONDS, {kept.KAFKALOG: taken}, better=kept.LOWER)
        if args.run:
            kept.append(kept.made(args.run, results, made))
    finally:
        shutil.rmtree(made)


if __name__ == "__main__":
    main()
