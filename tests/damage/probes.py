"""Runs everything that reads or opens a directory on a damaged one; returns complaints, never raises.

Complaints are:

- an exception that is not kafkalog's;
- a traceback or an unknown exit code of the command line;
- a call that does not end;
- good data that is lost without a message;
- a second recovery that differs from the first.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from kafkalog import list_partitions, open_log, verify
from kafkalog.cli.app import invoke
from kafkalog.config import LogConfig
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.errors import KafkalogError
from kafkalog.partition import Partition
from tests.damage.directories import (
    NOW_MS,
    PARTITIONS,
    SETTINGS,
    GoodBatch,
    Row,
    Tree,
    good_batches,
    partition_of,
    read_tree,
    write_tree,
)
from tests.damage.mutations import Damage

REFUSED = (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENOTDIR)
PROBE_SECONDS_MAX = 20
ISOLATIONS = ("read_uncommitted", "read_committed")


class Hang(BaseException):
    """A probe took too long."""


@dataclass
class Complaints:
    found: list[str] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        self.found.append(f"{where}: {what}")

    @contextlib.contextmanager
    def watching(self, where: str) -> Iterator[None]:
        """Ours pass; others, and calls that do not end, are complaints."""

        def ring(number: int, frame: FrameType | None) -> None:
            raise Hang

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, PROBE_SECONDS_MAX)
        try:
            yield
        except KafkalogError as error:
            str(error)
        except OSError as error:
            # Errors of the operating system, under its name for them; opens turn them into ours.
            if error.filename is None or error.errno not in REFUSED or "open of" in where:
                self.add(where, f"{type(error).__name__}: {error} {_place(error.__traceback__)}")
        except Hang:
            self.add(where, f"did not end: {_place(sys.exc_info()[2])}")
        except BaseException as error:
            self.add(where, f"{type(error).__name__}: {str(error)[:200]} {_place(error.__traceback__)}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _place(trace: Any) -> str:
    frames = [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)[-3:]]
    return " < ".join(reversed(frames))


def probe(damage: Damage, root: str, *, clean: bool) -> list[str]:
    """Runs all probes on one damaged directory; `root` is an empty directory to work in."""
    complaints = Complaints()
    source = os.path.join(root, "logs")
    os.makedirs(source)
    write_tree(damage.tree, source)
    probe_folder(source, complaints, damage, clean=clean)
    return complaints.found


def probe_folder(source: str, complaints: Complaints, damage: Damage | None = None, *, clean: bool = True) -> None:
    """Runs all probes on an existing directory; it is only read, opens work on copies."""
    root = os.path.dirname(source)
    before = _listing(source)
    found: list[str] = []
    with complaints.watching("list_partitions"):
        found = [str(tp) for tp in list_partitions(source)]
    if damage is not None:  # undamaged partitions are left alone
        hurt = {partition_of(path) for path in damage.spans}
        found = [name for name in found if name in hurt or "" in hurt]
    for name in found:
        read_only(source, name, complaints, damage, clean=clean)
    toolbox(source, found, complaints, damage)
    if _listing(source) != before:
        complaints.add("readers", "changed the directory")
    for number, name in enumerate(found):
        for shut in (True, False):
            copy = os.path.join(root, f"{number}-{'clean' if shut else 'unclean'}")
            subprocess.run(["cp", "-a", source, copy], check=True)  # pipes and holes too
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(copy, ".kafka_cleanshutdown"))
            if shut:
                with contextlib.suppress(OSError), open(os.path.join(copy, ".kafka_cleanshutdown"), "wb") as file:
                    file.write(b'{"version":0,"brokerEpoch":-1}')
            # A clean open trusts what it finds, and misplaced batches with a right CRC are kept, both as in Kafka.
            strict = not shut and (damage is None or not damage.right_crc)
            engine(copy, name, complaints, clean=shut, strict=strict)
            shutil.rmtree(copy, ignore_errors=True)


def _listing(folder: str) -> list[tuple[str, int, int]]:
    listed = []
    for where, folders, files in os.walk(folder):
        for name in files + folders:
            stat = os.lstat(os.path.join(where, name))
            listed.append((os.path.join(where, name), stat.st_size, stat.st_mtime_ns))
    return sorted(listed)


# --- reading ---------------------------------------------------------------------------------------------


def rows_of(log: Partition, into: list[Row], isolation: str = "read_uncommitted") -> None:
    for record in log.records(isolation=isolation):
        into.append((record.offset, record.timestamp, record.key, record.value, tuple(record.headers)))


def read_only(source: str, name: str, complaints: Complaints, damage: Damage | None, *, clean: bool) -> None:
    for isolation in ISOLATIONS:
        rows: list[Row] = []
        ended = False
        where = f"read-only {name} {isolation}"
        with complaints.watching(where), open_log(source, name, read_only=True) as log:
            rows_of(log, rows, isolation)
            ended = True
        if damage is not None and name in PARTITIONS and isolation == "read_uncommitted":
            _nothing_lost(where, rows, ended, name, damage, complaints, clean=clean)
        whole = False
        table: Any = None
        with complaints.watching(f"{where} as Arrow"), open_log(source, name, read_only=True) as log:
            table = log.read_arrow(isolation=isolation)
            table.validate(full=True)
            whole = True
        if whole and ended:
            if table["offset"].to_pylist() != [row[0] for row in rows]:
                complaints.add(where, "Arrow has other offsets than records()")
            elif table["key"].to_pylist() != [row[2] for row in rows]:
                complaints.add(where, "Arrow has other keys than records()")
            elif table["value"].to_pylist() != [row[3] for row in rows]:
                complaints.add(where, "Arrow has other values than records()")
        elif whole != ended:
            complaints.add(where, f"records() {'ends' if ended else 'raises'}, Arrow {'ends' if whole else 'raises'}")
        _last_values(source, name, isolation, rows, where, complaints, ended=ended)
    with complaints.watching(f"read-only {name}, by time"), open_log(source, name, read_only=True) as log:
        for when in (-1, 0, NOW_MS, NOW_MS + 5000, 2**63 - 1):
            log.offset_for_time(when)
        for start in (log.log_start_offset, log.end_offset - 1, log.end_offset // 2):
            with contextlib.suppress(KafkalogError):
                next(iter(log.records(start)), None)


def _nothing_lost(
    where: str, rows: list[Row], ended: bool, name: str, damage: Damage, complaints: Complaints, *, clean: bool
) -> None:
    """Checks that the data before the first damage exists, and that the data after it does or an error was raised."""
    if any(path.startswith(f"{name}/") and path.endswith((".swap", ".cleaned")) for path in damage.spans):
        return
    if damage.spans.get("log-start-offset-checkpoint", []) != []:
        return  # the start that it names decides what there is
    logs = [path for path in damage.tree if path.startswith(f"{name}/") and path.endswith(".log")]
    if any(path not in {batch.path for batch in good_batches(name, clean=clean)} for path in logs):
        return  # a segment more, or one with another name: the place of the error may vary
    got = set(rows)
    batches = good_batches(name, clean=clean)
    last_log = max(logs, default="")
    seen_damage = False
    for number, batch in enumerate(batches):
        if _touched(batch, damage):
            seen_damage = True
        before = batches[number - 1] if number else batch
        if before.path != batch.path and damage.touched(before.path, before.position + before.size, 1 << 40):
            seen_damage = True  # the segment before has bytes after its last batch
        if seen_damage and (not ended or damage.right_crc or batch.path == last_log):
            break
        if _touched(batch, damage):
            continue
        missing = [row for row in batch.rows if row not in got]
        if missing:
            complaints.add(
                where,
                f"{len(missing)} good records lost, such as {missing[0][0]} of {batch.path} at {batch.position} "
                f"({'in front of' if not seen_damage else 'behind'} the damage; reading {'ended' if ended else 'raised'})",
            )
            return


def _touched(batch: GoodBatch, damage: Damage) -> bool:
    return damage.touched(batch.path, batch.position, batch.size)


# --- the toolbox -----------------------------------------------------------------------------------------


def command(complaints: Complaints, *argv: str) -> tuple[int, str]:
    """One command line in this process: (exit code, stdout)."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    code = -1
    where = "kafkalog " + " ".join(os.path.basename(word) if "/" in word else word for word in argv)
    with complaints.watching(where), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = invoke(argv)
    for stream in (out, err):
        with contextlib.suppress(ValueError):
            stream.flush()
    said = err.buffer.getvalue().decode("utf-8", "replace")
    if code not in (0, 1, 2, 3, -1):
        complaints.add(where, f"exit code {code}")
    if "Traceback" in said:
        complaints.add(where, "a traceback")
    return code, out.buffer.getvalue().decode("utf-8", "replace")


def toolbox(source: str, found: list[str], complaints: Complaints, damage: Damage | None) -> None:
    for argv in (
        ("describe",),
        ("describe", "--segments"),
        ("describe", "--json"),
        ("verify",),
        ("verify", "--deep", "--json"),
    ):
        command(complaints, argv[0], source, *argv[1:])
    for name in found:
        command(complaints, "cat", source, name, "--json")
        command(complaints, "cat", source, name, "--committed", "--from", f"@{NOW_MS + 3000}", "-f", "%o %k %h %s\\n")
        command(complaints, "cat", source, name, "--last", "3", "--grep", "[0-9]", "--json")
        command(complaints, "transactions", source, name, "--json")
        with tempfile.TemporaryDirectory() as place:
            command(complaints, "export", source, name, "--to", f"{place}/x.jsonl", "--headers", "--skip-damage")
        folder = os.path.join(source, name)
        for path in sorted(os.listdir(folder)):
            if not _worth_dumping(f"{name}/{path}", damage):
                continue
            command(complaints, "dump", "--print-data-log", os.path.join(folder, path))
            if path.endswith(("index", ".log")):
                command(complaints, "dump", "--json", "--deep-iteration", os.path.join(folder, path))
                command(complaints, "dump", "--verify-index-only", os.path.join(folder, path))
    for path in sorted(os.listdir(source)):
        if os.path.isfile(os.path.join(source, path)) and _worth_dumping(path, damage):
            command(complaints, "dump", os.path.join(source, path))
    if damage is not None:
        _verify_sees(source, complaints, damage)


def _worth_dumping(path: str, damage: Damage | None) -> bool:
    """Damaged, or an index of a damaged log."""
    return damage is None or path.split(".")[0] in {touched.split(".")[0] for touched in damage.spans}


def _verify_sees(source: str, complaints: Complaints, damage: Damage) -> None:
    """Bytes under a CRC that changed are a finding, and no finding covers a batch that is good."""
    report = None
    with complaints.watching("verify()"):
        report = verify(source)
    if report is None or damage.right_crc:
        return
    for name in PARTITIONS:
        for batch in good_batches(name, clean=True):
            path = os.path.join(source, batch.path)
            spans = damage.spans.get(batch.path, [])
            if spans is None:
                continue
            covered_from = batch.position + (21 if batch.magic >= 2 else 16)
            cut = len(damage.tree[batch.path]) < batch.position + batch.size
            hurt = any(begin < batch.position + batch.size and end > covered_from for begin, end in spans)
            if hurt and not cut and report.ok and _differs(batch, damage):
                complaints.add("verify()", f"no finding for {batch.path} at {batch.position}: {damage.notes}")
            if not _touched(batch, damage) and not cut:
                for finding in report.findings:
                    if (
                        finding.path == path
                        and finding.position <= batch.position
                        and finding.position + finding.length >= batch.position + batch.size
                        and "do not fit" not in finding.what
                        and "leader epoch" not in finding.what
                    ):
                        complaints.add("verify()", f"calls a good batch bad: {finding}")


def _differs(batch: GoodBatch, damage: Damage) -> bool:
    good = next(b for b in _originals(batch.path) if b[0] == batch.position)[1]
    return damage.tree[batch.path][batch.position : batch.position + batch.size] != good


def _originals(path: str) -> list[tuple[int, bytes]]:
    from tests.damage.directories import good_tree

    tree: Tree = good_tree(clean=True)
    return [
        (batch.position, tree[path][batch.position : batch.position + batch.size])
        for batch in good_batches(path.split("/")[0], clean=True)
        if batch.path == path
    ]


# --- opening ---------------------------------------------------------------------------------------------


def open_writable(root: str, name: str) -> Partition:
    clock = ManualClock(NOW_MS + 1_000_000)
    return open_log(
        root,
        name,
        config=LogConfig.from_props(None, SETTINGS),
        clock=clock,
        scheduler=ManualScheduler(clock),
        take_over=True,
    )


def engine(root: str, name: str, complaints: Complaints, *, clean: bool, strict: bool) -> None:
    """Open, read, append, close; after an unclean open, once more without a close in between."""
    where = f"{'clean' if clean else 'unclean'} open of {name}"
    tree_after: Tree | None = None
    with complaints.watching(where):
        log = open_writable(root, name)
        try:
            ends = (log.log_start_offset, log.end_offset)
            if not clean:
                tree_after = read_tree(root)
            rows: list[Row] = []
            _reads(log, where, complaints, rows)
            assert not clean or tree_after is None
            with complaints.watching(f"{where}, then append"):
                offset = log.append(b"after the damage")
                if offset < ends[1]:
                    complaints.add(where, f"appended at {offset}, below the end {ends[1]}")
                last = [record.value for record in log.records(offset)]
                if last != [b"after the damage"] and strict:
                    complaints.add(where, f"what was appended at {offset} reads as {last[:3]}")
            with complaints.watching(f"{where}, then a transaction"), log.transaction("probe") as txn:
                txn.append(b"x")
            with complaints.watching(f"{where}, then retention"):
                log.delete_old_segments()
        finally:
            with complaints.watching(f"{where}, then close"):
                log.close()
        # A .swap.swap needs a second open to be what it says.
        again = not os.path.islink(os.path.join(root, name))
        if strict and again and tree_after is not None and not any(path.endswith(".swap") for path in tree_after):
            _again(root, name, tree_after, ends, where, complaints)


def _last_values(
    source: str, name: str, isolation: str, rows: list[Row], where: str, complaints: Complaints, *, ended: bool
) -> None:
    """Compares the last values with those of records() if it came to its end; otherwise expects the same error."""
    wanted = {key: (offset, value) for offset, _, key, value, _ in rows if key is not None}
    whole = False
    found: dict[Any, Any] = {}
    with complaints.watching(f"{where}, last values"), open_log(source, name, read_only=True) as log:
        for batch in log.latest(isolation=isolation, tombstones=True, batch_rows=5, memory_bytes=1 << 16):
            found.update({row["key"]: (row["offset"], row["value"]) for row in batch.to_pylist()})
        whole = True
    if whole != ended:
        complaints.add(where, f"records() {'ends' if ended else 'raises'}, latest() {'ends' if whole else 'raises'}")
    elif whole and found != wanted:  # records() yields the first records of a batch whose count is too large
        complaints.add(where, f"latest() has {len(found)} keys, other ones than the {len(wanted)} of records()")


def _reads(log: Partition, where: str, complaints: Complaints, rows: list[Row]) -> None:
    for isolation in ISOLATIONS:
        found: list[Row] = []
        with complaints.watching(f"{where}, then read"):
            rows_of(log, found, isolation)
        if isolation == "read_uncommitted":
            rows.extend(found)
        with complaints.watching(f"{where}, then Arrow"):
            log.read_arrow(isolation=isolation)
        with complaints.watching(f"{where}, then the last values"):
            log.latest(isolation=isolation).read_all()
    with complaints.watching(f"{where}, then by time"):
        log.offset_for_time(NOW_MS + 2000)


def _again(root: str, name: str, after: Tree, ends: tuple[int, int], where: str, complaints: Complaints) -> None:
    """The files as the first recovery left them, recovered once more: nothing may change."""
    copy = root + "-again"
    write_tree({path: data for path, data in after.items() if path != ".lock"}, copy)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(copy, ".kafka_cleanshutdown"))
    done = False
    with complaints.watching(f"{where}, again"):
        log = open_writable(copy, name)
        try:
            done = True
            if (log.log_start_offset, log.end_offset) != ends:
                complaints.add(
                    where, f"recovered again: [{log.log_start_offset}, {log.end_offset}) after [{ends[0]}, {ends[1]})"
                )
            changed = {
                path
                for path, data in read_tree(copy).items()
                if path.startswith(f"{name}/") and path.endswith(".log") and after.get(path) != data
            }
            if changed:
                complaints.add(where, f"recovered again: {sorted(changed)} changed")
        finally:
            with complaints.watching(f"{where}, again, then close"):
                log.close()
    if not done:
        complaints.add(where, "the second recovery is refused")
    shutil.rmtree(copy, ignore_errors=True)


Probe = Callable[..., None]
