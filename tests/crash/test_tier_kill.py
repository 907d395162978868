"""kill -9 of processes that append, copy to a remote tier, expire, make topics and delete them, over and over.

`main` is the process that is killed.  A line each for what it promised: `attempt`, `done`, `aborted` with a topic and
numbers, `delete` and `deleted` with a topic.  The next start finds each record in one tier or the other, and after a
pass the objects are those that the metadata knows.  Another process that looks for orphans meanwhile, and deletes them,
takes nothing that is needed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog.remote import RemoteStorage
from kafkalog.toolbox import tiering
from tests.crash import harness
from tests.crash.tiered import (
    ABORTED,
    ATTEMPT,
    DELETE,
    DELETED,
    DONE,
    Driver,
    Story,
    judge_passes,
    open_tiered,
    retain_locally,
    temporaries,
)
from tests.sampling import LONG, draw

KILLS = 60 if LONG else 3
ROUNDS, LOOKS_S = 300 if LONG else 15, 60  # at the most: the writer makes each look take longer than the one before
KEEP_BYTES, KEPT = 30_000, 60  # remote retention, and the least number of records that it leaves
PROGRAM = "import sys; from tests.crash.test_tier_kill import main; main(*sys.argv[1:])"


def main(root: str, url: str, endpoint: str, seed: str) -> None:
    """Works forever on the topics that exist."""
    rng = random.Random(int(seed))
    store = open_tiered(os.path.join(root, "disk"), tier_at(url, endpoint), durability="os")
    lock = threading.Lock()

    def tell(label: str, value: object) -> None:
        if isinstance(value, tuple):
            topic, numbers = value
            value = " ".join([topic, *map(str, numbers)])
        with lock:
            os.write(1, f"{label} {value}\n".encode())

    def copy() -> None:
        while True:
            store.remote_log_manager.run_once()
            for topic in store.topics():
                retain_locally(store, topic)
            time.sleep(0.002)

    def change() -> None:
        for number in range(1 << 30):
            topic = f"gone{seed}-{number}"
            other = Driver(store, tell)
            other.create(topic)
            other.append(topic, rng.randint(1, 12))
            time.sleep(rng.random() * 0.05)
            other.delete(topic)

    driver = Driver(store, tell)
    driver.number = int(seed) * 1_000_000
    if "kept" not in store:
        driver.create("kept")
        store.alter_topic("kept", {"retention.bytes": str(KEEP_BYTES)})
    threads = [threading.Thread(target=target, daemon=True) for target in (copy, change)]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):
        driver.append("kept", 1, rng.randint(1, 3))
        if rng.random() < 0.1:
            rng.choice([driver.commit, driver.abort])("kept")


def tier_at(url: str, endpoint: str) -> RemoteStorage:
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint} if endpoint else {}
    return RemoteStorage(url, options=options, layout="local-tiered")


def note(story: Story, lines: list[str]) -> None:
    for line in lines:
        label, topic, *numbers = line.split()
        if label in (ATTEMPT, DONE, ABORTED):
            story.told(label, (topic, [int(each) for each in numbers]))
        else:
            assert label in (DELETE, DELETED), line
            story.told(label, topic)
    story.may_go = {"kept": set(story.done.get("kept", [])[:-KEPT])}


def check(root: Path, tier: RemoteStorage, story: Story, *, closes: bool) -> None:
    """Starts on the files after a kill, checks, runs a pass, checks again."""
    store = open_tiered(str(root / "disk"), tier, durability="os")
    try:
        judge_passes(store, story)
        if closes:
            store.close()
    finally:
        store._home.abandon()  # type: ignore[union-attr]


def run_kills(root: Path, url: str, endpoint: str, kills: int) -> Story:
    rng = draw(f"tier kills {url[:5]}")
    tier, story = tier_at(url, endpoint), Story()
    for seed in range(1, kills + 1):
        promises = rng.choice([5, 30, 100, 200, 300])
        note(story, harness.run_and_kill(PROGRAM, [str(root), url, endpoint, str(seed)], after_lines=promises))
        check(root, tier, story, closes=seed % 3 == 0)
    return story


def test_killed_with_a_folder() -> None:
    with harness.fast_dir() as root:
        story = run_kills(root, str(root / "bucket"), "", KILLS)
        assert not temporaries(str(root / "bucket"))
    print(f"{KILLS} processes killed, {len(story.done['kept'])} records, {len(story.deleted)} topics deleted")


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """An S3 server of this machine with a bucket named `tier`; its address."""
    program = shutil.which("moto_server", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("moto_server is not installed")
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)
        s3fs.S3FileSystem(key="k", secret="s", endpoint_url=endpoint).mkdir("tier")
        yield endpoint
    finally:
        server.kill()
        server.wait()


def test_killed_with_an_object_server() -> None:
    kills = KILLS // 3 or 1
    with harness.fast_dir() as root, object_server() as endpoint:
        story = run_kills(root, "s3://tier/kills", endpoint, kills)
    print(f"{kills} processes killed, {len(story.done['kept'])} records, {len(story.deleted)} topics deleted")


def test_orphans_beside_a_writer() -> None:
    """Another process lists orphans, and deletes them at once, while copies are in flight."""
    with harness.fast_dir() as root:
        url, disk = str(root / "bucket"), str(root / "disk")
        tier, story, lines = tier_at(url, ""), Story(), []
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM, str(root), url, "", "1"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)  # type: ignore[arg-type]
        reader.start()
        try:
            deadline = time.monotonic() + 60
            while len(lines) < 150:
                assert time.monotonic() < deadline, "the writer does not begin"
                assert process.poll() is None, "the writer ended before it was killed"
                time.sleep(0.01)
            seen, looks, until = 0, 0, time.monotonic() + LOOKS_S
            while looks < ROUNDS and time.monotonic() < until:
                looks += 1
                storage = tier.manager()
                metadata = tiering.known_segments([disk])
                assert metadata is not None
                found = tiering.orphans(storage, metadata)
                assert not [each for each in found if each.is_damaged], found
                seen += len(found)
                tiering.remove(storage, found, older_than_s=-60)
            for flags in ([], ["--yes"]):
                # With the layout, for a writer that copies too slowly has all that was copied expire.
                command = [sys.executable, "-m", "kafkalog", "tier", "orphans", disk, "--remote", url]
                command += ["--layout", "local-tiered"]
                done = subprocess.run(
                    [*command, "--older-than", "0", *flags], capture_output=True, text=True, check=False
                )
                assert done.returncode in (0, 1), done.stderr
            assert process.poll() is None, "the writer ended before it was killed"
        finally:
            process.kill()
            process.wait()
            reader.join(30)
            process.stdout.close()
        note(story, [line for line in lines if line.endswith("\n")])
        check(root, tier, story, closes=True)
        check(root, tier, story, closes=True)
    print(f"{looks} looks, {seen} orphans, {len(story.done['kept'])} records")
