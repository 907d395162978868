"""`python -m bench remote` or `python -m bench.remote`: a remote tier compared with the storage client that it uses.

First, segments of 64 MiB are uploaded, restored and read. Each operation is compared with the same client copying the
same files by `put_file` and `get_file`: in a directory, in moto's S3 server over HTTP, and over a simulated line. The
client alone syncs nothing, while kafkalog syncs everything. So the first rows of the directory compare with a plain
copy, which a power loss may destroy, and the second rows with a copy whose files are synced one by one. Then come scans
and point reads over the line, a file system with a latency for each request and a bandwidth for all requests together
(`Line`). Last, a broker (Apache Kafka 4.3.1 with its LocalTieredStorage) has a topic and keeps only its last segment on
its disk. The rest is read cold from the directory, and by the broker's consumer (librdkafka's, whose larger fetches are
no faster).

Each operation runs in a separate process, alternately for kafkalog and the other side; figures are medians, followed by
(least-most). Memory is the operation's peak above the process's memory at its start. Before a cold read, the directory
is dropped from the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

import kafkalog
from bench import data, machine
from bench.kept import BYTES_PER_S, KAFKALOG, LOWER, SECONDS, Results
from kafkalog.engine.format.names import TopicPartition
from kafkalog.remote import RemoteStorage
from kafkalog.toolbox import tiering

MIB = 1 << 20
COPY_AIM, LINE_AIM, MEMORY_AIM_MIB, RANGES_AIM, CONSUMER_AIM = 0.8, 0.8, 100, 2, 5
POINTS = 40


class Line(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Local files behind a simulated line: `latency_s` for each request, `bytes_per_s` for all of them together."""

    protocol = "line"
    cachable = False
    latency_s = 0.020
    bytes_per_s = 100e6
    requests = 0
    ranges = 0
    _lock = threading.Lock()
    _free_at = 0.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._there = LocalFileSystem()

    @classmethod
    def carry(cls, count: int) -> None:
        """Waits as long as a request with a body of `count` bytes takes."""
        time.sleep(cls.latency_s)
        with cls._lock:
            cls.requests += 1
            done = cls._free_at = max(cls._free_at, time.monotonic()) + count / cls.bytes_per_s
        time.sleep(max(0.0, done - time.monotonic()))

    def ls(self, path: str, detail: bool = True, **how: Any) -> Any:
        self.carry(0)
        return self._there.ls(path, detail, **how)

    def info(self, path: str, **how: Any) -> dict[str, Any]:
        self.carry(0)
        found: dict[str, Any] = self._there.info(path)
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: Any) -> bytes:
        found: bytes = self._there.cat_file(path, start, end)
        Line.ranges += path.endswith(".log")
        self.carry(len(found))
        return found

    def get_file(self, path: str, target: str, **how: Any) -> None:
        self.carry(os.path.getsize(path))
        self._there.get_file(path, target)

    def put_file(self, source: str, path: str, **how: Any) -> None:
        self.carry(os.path.getsize(source))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._there.put_file(source, path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **how: Any) -> None:
        self.carry(len(value))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._there.pipe_file(path, value)

    def open(self, path: str, mode: str = "rb", **how: Any) -> Any:
        assert mode == "wb"
        return _Upload(self, path)


class _Upload:
    """A file that is being written; the object appears when the file is closed."""

    closed = False

    def __init__(self, line: Line, path: str) -> None:
        self._line, self._path, self._data = line, path, bytearray()

    def write(self, part: Any) -> None:
        self._data += part

    def close(self) -> None:
        self._line.pipe_file(self._path, bytes(self._data))

    def discard(self) -> None:
        self._data.clear()


# --- operations, each in a separate process -------------------------------------------------------------------


def status_bytes(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def measured(work: Callable[[], Any]) -> dict[str, Any]:
    """Returns the elapsed and CPU seconds, and the bytes of the peak above the start."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, clock, processor = status_bytes("VmRSS"), time.perf_counter(), time.process_time()
    said = work()
    figures = {"s": time.perf_counter() - clock, "cpu_s": time.process_time() - processor}
    return {**figures, "peak_bytes": status_bytes("VmHWM") - before, **(said or {})}


def uploaded(source: Path, tier: RemoteStorage) -> dict[str, Any]:
    with kafkalog.open(source, remote=tier, maintenance=False) as store:
        store.alter_topic("orders", {"remote.storage.enable": "true"})
        return measured(lambda: {"segments": store.remote_log_manager.run_once()})


def client_uploaded(source: Path, tier: RemoteStorage, syncs: bool) -> dict[str, Any]:
    """Uploads the same files as `uploaded` does, by the client's calls."""
    fs, root = fsspec.core.url_to_fs(tier.url, **tier._options)
    logs = sorted((source / "orders-0").glob("*.log"))[:-1]
    paths = [log.with_suffix(suffix) for log in logs for suffix in (".log", ".index", ".timeindex")]
    fs.makedirs(f"{root}/plain", exist_ok=True)

    def work() -> None:
        for path in paths:
            fs.put_file(str(path), f"{root}/plain/{path.name}")
            if syncs:
                sync(Path(root) / "plain" / path.name)
        if syncs:
            sync(Path(root) / "plain")

    return measured(work)


def restored(tier: RemoteStorage, target: Path) -> dict[str, Any]:
    source = tier.read_only_files()
    partitions = [TopicPartition("orders", 0)]
    return measured(lambda: {"bytes": tiering.restore(source, str(target), partitions).bytes})


def client_restored(tier: RemoteStorage, target: Path, syncs: bool) -> dict[str, Any]:
    fs, root = fsspec.core.url_to_fs(tier.url, **tier._options)
    fs.invalidate_cache()
    (folder,) = fs.ls(f"{root}/kafka-tiered-storage", detail=False)
    target.mkdir()

    def work() -> None:
        for path in fs.ls(folder, detail=False):
            here = target / path.rpartition("/")[2]
            fs.get_file(path, str(here))
            if syncs:
                sync(here)
        if syncs:
            sync(target)

    return measured(work)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def scanned(tier: RemoteStorage, how: str) -> dict[str, Any]:
    """Reads all records, as Python objects or as Arrow."""
    with kafkalog.open(tier, read_only=True) as store:
        partition = store.topic("orders").partition(0)

        def work() -> dict[str, Any]:
            if how == "arrow":
                return {"records": sum(batch.num_rows for batch in partition.arrow_batches())}
            count = 0
            for _ in partition.records():
                count += 1
            return {"records": count}

        return measured(work)


def consumed(bootstrap: str, end: int) -> dict[str, Any]:
    """Reads all records before an offset, as the consumer's messages."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer
    from confluent_kafka import TopicPartition as Assigned

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.assign([Assigned("orders", 0, OFFSET_BEGINNING)])

    def work() -> dict[str, Any]:
        count = 0
        while count < end:
            count += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
        return {"records": count}

    found = measured(work)
    consumer.close()
    return found


def pointed(tier: RemoteStorage) -> dict[str, Any]:
    """Reads single records, each time with the indexes that an earlier read of the segment fetched, and nothing
    else."""
    files = tier.read_only_files()
    with kafkalog.open(tier.url, read_only=True, files=files) as store:
        partition = store.topic("orders").partition(0)
        folder = f"{tier.url}/orders-0"
        bases = [int(name[:20]) for name in files.list_dir(folder) if name.endswith(".log")]
        rng = random.Random(3)
        offsets = [rng.randrange(partition.end_offset) for _ in range(POINTS)]
        for base in bases:
            next(iter(partition.records(base + 1, base + 2)))
        waits, requests, ranges = [], [], []
        for offset in offsets:
            files.chunks.close()  # forgets what was read
            partition.refresh()  # reads where the last segment ends
            before, before_ranges, begin = Line.requests, Line.ranges, time.perf_counter()
            (record,) = partition.records(offset, offset + 1)
            assert record.offset == offset
            waits.append(time.perf_counter() - begin)
            time.sleep(0.3)  # read-ahead counts, too
            requests.append(Line.requests - before)
            ranges.append(Line.ranges - before_ranges)
    return {"ms": statistics.median(waits) * 1e3, "requests": max(requests), "ranges": max(ranges)}


def work(name: str, source: Path, url: str, options: dict[str, Any], target: Path) -> dict[str, Any]:
    fsspec.register_implementation("line", Line, clobber=True)
    Line.latency_s, Line.bytes_per_s = options.pop("latency_s", 0.0), options.pop("bytes_per_s", 1.0)
    end = options.pop("end", 0)
    tier = RemoteStorage(url, options=options)
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "upload": lambda: uploaded(source, tier),
        "client upload": lambda: client_uploaded(source, tier, False),
        "client upload, synced": lambda: client_uploaded(source, tier, True),
        "restore": lambda: restored(tier, target),
        "client restore": lambda: client_restored(tier, target, False),
        "client restore, synced": lambda: client_restored(tier, target, True),
        "arrow": lambda: scanned(tier, "arrow"),
        "records": lambda: scanned(tier, "records"),
        "points": lambda: pointed(tier),
        "consume": lambda: consumed(url, end),
    }
    return works[name]()


# --- the comparison -------------------------------------------------------------------------------------------


class Place:
    """A tier's address, and the operations on it."""

    def __init__(self, root: Path, source: Path, url: str, options: dict[str, Any]) -> None:
        self.root, self.source, self.url, self.options = root, source, url, options

    def run(self, name: str, url: str | None = None) -> dict[str, Any]:
        source, target = self.root / "copy", self.root / "target"
        for folder in (source, target):
            shutil.rmtree(folder, ignore_errors=True)
        if "upload" in name:
            shutil.copytree(self.source, source, copy_function=link_or_copy)
        os.sync()
        words = [name, str(source), url or self.url, json.dumps(self.options), str(target)]
        command = [sys.executable, "-m", "bench.remote", "--work", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} of {url or self.url} failed:\n{done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        shutil.rmtree(target, ignore_errors=True)
        return found

    def clear(self, url: str) -> None:
        """Removes a tier."""
        if self.url.startswith("s3:"):
            fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **self.options)
        else:
            fs, root = LocalFileSystem(), url.partition("://")[2] or url
        with contextlib.suppress(FileNotFoundError):
            fs.rm(root, recursive=True)


def link_or_copy(source: str, target: str) -> None:
    """Links log files, which an upload only reads, and copies others."""
    if source.endswith(".log") and "orders-" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def make_source(folder: Path, mib: int, segment_mib: int) -> int:
    """Creates a directory with a topic of `mib` MiB of closed segments, and returns their bytes."""
    rng = random.Random(1)
    with kafkalog.open(folder) as store:
        topic = store.create_topic("orders", 1, config={"segment.bytes": str(segment_mib * MIB), "retention.ms": "-1"})
        parts = [data.batch(rng, 156) for _ in range(64)]
        written, number = 0, 0
        while written < (mib + 1) * MIB:
            topic.partition(0).append_batches(parts[number % 64])
            written += len(parts[number % 64])
            number += 1
    return sum(path.stat().st_size for path in sorted((folder / "orders-0").glob("*.log"))[:-1])


def drop_cache(folder: Path) -> None:
    """Drops the files from the page cache, so that the next reader waits for the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Runs moto in a separate process and yields the options of a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = "from moto.server import main; main()"
    words = [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield options
    finally:
        server.kill()
        server.wait()


Runs = list[dict[str, Any]]


def mb_s(runs: Runs, size: int) -> str:
    rates = [size / run["s"] / 1e6 for run in runs]
    return f"{statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})"


def seconds(runs: Runs) -> float:
    return statistics.median(run["s"] for run in runs)


def verdict(found: float, aim: float | None, less: bool = False) -> str:
    if aim is None:
        return ""
    return f" (aim {aim:g})" if (found <= aim if less else found >= aim) else f" (BEYOND the aim of {aim:g})"


def row(
    what: str,
    runs: Runs,
    size: int,
    beside: str,
    ratio: float | None,
    aim: float | None,
    mib_aim: float | None = MEMORY_AIM_MIB,
) -> None:
    peak = statistics.median(run["peak_bytes"] for run in runs)
    shown = "-" if ratio is None else f"{ratio:.2f}x{verdict(ratio, aim)}"
    memory = f"{peak / MIB:.0f}{verdict(peak / MIB, mib_aim, less=True)}"
    print(f"| {what:34} | {mb_s(runs, size):>18} | {beside:>32} | {shown:>26} | {memory} |", flush=True)


def rates(runs: Runs, size: int) -> list[float]:
    return [size / run["s"] for run in runs]


def copies(results: Results, name: str, place: Place, size: int, rounds: int) -> None:
    """Measures uploads and restores; leaves a tier at the place's address."""
    syncs = ["client {}"] + (["client {}, synced"] if name == "folder" else [])
    for work_name in ("upload", "restore"):
        others = [each.format(work_name) for each in syncs]
        runs: dict[str, Runs] = {each: [] for each in [work_name, *others]}
        for number in range(rounds):
            for each in runs:
                spare = f"{place.url}-spare"
                is_upload = "upload" in each
                last = is_upload and each == work_name and number == rounds - 1
                runs[each].append(place.run(each, spare if is_upload and not last else None))
                if is_upload and not last:
                    place.clear(spare)
        for other in others:
            ratio = seconds(runs[other]) / seconds(runs[work_name])
            beside = f"{other[7:]} {mb_s(runs[other], size)}"
            row_name = f"{name}, {other[7:]}"
            aim = COPY_AIM if other == others[-1] else None
            row(row_name, runs[work_name], size, beside, ratio, aim)
        sides = {KAFKALOG: runs[work_name]} | {other.replace(f" {work_name}", ""): runs[other] for other in others}
        found = {f"storage {side}" if side != KAFKALOG else side: rates(each, size) for side, each in sides.items()}
        results.row("remote", f"{work_name}, {name}", BYTES_PER_S, found)


def scans(results: Results, place: Place, size: int, rounds: int, link_mb_s: float) -> None:
    for how in ("arrow", "records"):
        runs = [place.run(how) for _ in range(rounds)]
        ratio = size / seconds(runs) / 1e6 / link_mb_s
        beside = f"{runs[0]['records'] / seconds(runs) / 1e6:.2f} M records/s, the line {link_mb_s:.0f}"
        row(f"line, {how}", runs, size, beside, ratio, LINE_AIM, None)
        sides = {KAFKALOG: rates(runs, size), "the line": [link_mb_s * 1e6]}
        results.row("remote", f"read over a line, as {how}", BYTES_PER_S, sides)


def beside_consumer(results: Results, root: Path, mib: int, segment_mib: int, rounds: int) -> None:
    """Measures cold reads of a broker's tiered segments, by the broker's consumer and by kafkalog."""
    from bench.spark import Broker  # the operations, which run in separate processes, do not need it
    from tests.broker import clients, test_tiering

    (root / "node").mkdir()
    settings = test_tiering.tiering(root) | {"num.network.threads": "3", "num.io.threads": "8"}
    broker = Broker(root / "node", settings=settings, pom=test_tiering.POM, shares_metadata=True)
    broker.start()
    try:
        topic = {**test_tiering.SETTINGS, "segment.bytes": str(segment_mib * MIB)}
        clients.create_topics(broker.bootstrap, {"orders": (1, topic)})
        fill(broker.bootstrap, (mib + segment_mib) * MIB)
        ends = [-1]

        def is_tiered() -> bool:
            found = test_tiering.local_segments(broker)
            ends.append(found[0])
            return len(found) == 1 and ends[-2] == ends[-1] > 0

        test_tiering.until(is_tiered, f"local segments are {test_tiering.local_segments(broker)}")
        tier = root / "tier"
        size = sum(path.stat().st_size for path in tier.rglob("*.log"))
        place = Place(root, root / "none", f"file://{tier}", {"end": ends[-1]})
        runs: dict[str, Runs] = {"consume": [], "arrow": [], "records": []}
        for _ in range(rounds):
            for how, found in runs.items():
                drop_cache(tier)
                found.append(place.run(how, broker.bootstrap if how == "consume" else None))
                assert found[-1]["records"] >= ends[-1], (how, found[-1], ends)
    finally:
        broker.stop()
    rate = f"consumer {mb_s(runs['consume'], size)}, {ends[-1] / seconds(runs['consume']) / 1e6:.2f} M/s"
    for how, aim in (("arrow", CONSUMER_AIM), ("records", None)):
        what = f"cold, {how}, {ends[-1] / seconds(runs[how]) / 1e6:.2f} M records/s"
        row(what, runs[how], size, rate, seconds(runs["consume"]) / seconds(runs[how]), aim, None)
        sides = {KAFKALOG: rates(runs[how], size), "a broker's consumer": rates(runs["consume"], size)}
        results.row("remote", f"cold read of a tier, as {how}", BYTES_PER_S, sides)


def fill(bootstrap: str, size: int) -> None:
    """Writes records of about 100 bytes with librdkafka."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    parts = data.records(random.Random(1), 10_000)
    while size > 0:
        for timestamp, key, value, _ in parts:
            producer.produce("orders", value, key, partition=0, timestamp=timestamp)
            size -= len(key) + len(value) + 8
        while len(producer) > 100_000:
            producer.poll(0.1)
    assert producer.flush(120) == 0


def compare(
    results: Results, mib: int, line_mib: int, segment_mib: int, rounds: int, parts: list[str], line: dict[str, float]
) -> None:
    root = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    try:
        size = make_source(root / "full", mib, segment_mib)
        print(f"{size / MIB:.0f} MiB in segments of {segment_mib} MiB; median of {rounds} (least-most)\n")
        print(f"| {'':34} | {'kafkalog, MB/s':>18} | {'compared with, MB/s':>32} | {'ratio':>26} | peak, MiB |")
        print("|---|---|---|---|---|")
        if "folder" in parts:
            place = Place(root, root / "full", f"file://{root}/tier", {})
            copies(results, "folder", place, size, rounds)
            place.clear(place.url)
        if "s3" in parts:
            with s3_server() as options:
                copies(results, "s3", Place(root, root / "full", "s3://bucket/tier", options), size, rounds)
        if "line" in parts:
            size = make_source(root / "small", line_mib, segment_mib)
            place = Place(root, root / "small", f"line://{root}/line", dict(line))
            link = line["bytes_per_s"] / 1e6
            copies(results, "line", place, size, rounds)
            scans(results, place, size, rounds, link)
            found = place.run("points")
            results.row("remote", "point read over a line", SECONDS, {KAFKALOG: found["ms"] / 1e3}, better=LOWER)
            print(
                f"\nA point read with its indexes cached requests at most {found['ranges']} ranges"
                f"{verdict(found['ranges'], RANGES_AIM, less=True)}, {found['requests']} requests in all; it takes "
                f"{found['ms']:.0f} ms ({1e3 * line['latency_s']:.0f} ms each, {link:.0f} MB/s).\n"
            )
        if "broker" in parts:
            beside_consumer(results, root, line_mib, segment_mib, rounds)
    finally:
        shutil.rmtree(root)


def main(results: Results, words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts to run: folder, s3, line, broker; default: all")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--line-mib", type=int, default=256)
    parser.add_argument("--segment-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=20.0, help="the line's latency for each request")
    parser.add_argument("--mb-s", type=float, default=100.0, help="the line's bandwidth for all requests together")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.work:
        name, source, url, options, target = given.work
        print(json.dumps(work(name, Path(source), url, json.loads(options), Path(target))))
        return
    parts = given.parts or ["folder", "s3", "line", "broker"]
    line = {"latency_s": given.latency_ms / 1e3, "bytes_per_s": given.mb_s * 1e6}
    compare(results, given.mib, given.line_mib, given.segment_mib, given.rounds, parts, line)


if __name__ == "__main__":
    if "--work" not in sys.argv:
        machine.tell(Path(tempfile.gettempdir()))
    main(Results())
