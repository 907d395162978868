"""A really full disk: a small tmpfs, which root may mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import DiskFull
from kafkalog.store import Store
from tests.unit.test_full_disk import SMALL


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of 1 MiB, or with the options that the test gives."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("left out: a full disk needs root for its mount")
    options = getattr(request, "param", "size=1m")
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("left out: this machine does not allow mounting a small tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)


def test_a_store_on_a_full_disk(small_disk: Path) -> None:
    root = small_disk / "store"
    settings = {**SMALL, "internal.segment.bytes": "20000", "retention.ms": "-1"}
    compacted = {**settings, "cleanup.policy": "compact"}
    expected: list[bytes] = []

    def values(store: Store, topic: str = "t") -> list[bytes]:
        with store.reader(topics=[topic], start="earliest", isolation="read_committed") as reader:
            return [bytes(record.value or b"") for record in reader]

    with kafkalog.open(root, maintenance=False) as store:
        store.create_topic("t", config=settings)
        store.create_topic("c", config=compacted)
        for number in range(200):
            store.topic("c").append(b"v" * 100 + b"%d" % number, key=b"key")
        store.topic("t").append(b"first")
        expected.append(b"first")
        reader = store.reader("cursor", topics=["t"], start="earliest")
        assert len(reader.poll()) == 1
        reader.commit()
        transaction = store.transaction("job")
        transaction.begin()
        transaction.append("t", b"in a transaction")
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

        def refuse(name: str, call: Callable[[], object], times: int) -> None:
            """A page that has room takes some more; a full disk refuses then."""

            def calls() -> None:
                for _ in range(times):
                    call()

            with pytest.raises(DiskFull) as caught:
                calls()
            assert caught.value.log_dir == str(root), name

        def append() -> None:
            store.topic("t").append(b"x" * 3000)
            expected.append(b"x" * 3000)

        refuse("append", append, 10)
        refuse("create", lambda: store.create_topic("new", 4), 1)
        refuse("alter", lambda: store.alter_topic("t", {"retention.ms": "7"}), 1)
        log = store.manager.get_log("c-0")
        assert log is not None
        refuse("append to c", lambda: store.topic("c").append(b"w" * 3000, key=b"key"), 20)
        assert "new" not in store.topics()
        assert store.describe_topic("t").overrides["retention.ms"] == "-1"
        assert values(store) == expected[:1]  # records after an open transaction wait for it
        assert store.manager.failure_channel.offline_log_dirs == []
        ballast.unlink()
        append()
        transaction.commit()
        expected.insert(1, b"in a transaction")
        assert values(store) == expected
        assert len(reader.poll()) > 0
        reader.commit()
        reader.close()
        store.create_topic("new", 4)
        log.roll()
    with kafkalog.open(root, maintenance=False) as store:
        assert values(store) == expected
        assert "new" in store.topics()


@pytest.mark.parametrize("small_disk", ["size=4m,nr_inodes=60"], indirect=True)
def test_a_store_closes_without_a_free_inode(small_disk: Path) -> None:
    """A close that cannot write raises one of our errors that names the directory; the records are kept."""
    root = small_disk / "store"
    store = kafkalog.open(root, maintenance=False)
    store.create_topic("t", config=SMALL)
    store.topic("t").append(b"value")
    with contextlib.suppress(OSError):
        for number in range(100):
            (small_disk / f"ballast-{number}").touch()
    with pytest.raises(DiskFull, match=str(root)) as caught:
        store.close()
    assert caught.value.log_dir == str(root)
    for ballast in small_disk.glob("ballast-*"):
        ballast.unlink()
    with kafkalog.open(root) as store, store.reader(topics=["t"], start="earliest") as reader:
        assert [record.value for record in reader.poll()] == [b"value"]
    assert kafkalog.verify(root).ok
