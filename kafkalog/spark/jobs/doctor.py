"""doctor: whether a cluster can read log directories, and write to them: asked of every executor.

The driver looks first, and chooses samples of files; each executor looks in the same way (`probe`), and what it sees is
compared: versions, the same files under the same paths, permissions, clocks, room for what is staged.  A check that
fails says what to do.  Nothing is changed, but for a file of no bytes in the staging path if `writes` is asked for.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafkalog.engine.files import OS_FILES, local_path
from kafkalog.engine.format import names
from kafkalog.errors import KafkalogError, UnsupportedOperationException
from kafkalog.remote import is_address
from kafkalog.spark.jobs import probe
from kafkalog.spark.jobs.run import EXECUTOR_HINT, Dirs, _given, frame
from kafkalog.spark.places import held, places_of

SCHEMA = "place string, check string, ok boolean, found string, advice string"
SAMPLES = 16  # partitions of a directory whose files are compared
ROUNDS = 5
WAIT_S = 0.3
SKEW_S = 1.0
FREE_BYTES = 1 << 30
SAME_FILES = "mount the same directory at the same path on every host (docs/how-to/spark-cluster.md)"


class Check(NamedTuple):
    """One answer.  `place` is the driver, or an executor's host and process; `advice` says what to do if it failed."""

    place: str
    check: str
    ok: bool
    found: str
    advice: str = ""


def doctor(spark: Any, log_dirs: Dirs = (), *, staging: str | None = None, writes: bool = False) -> Any:
    """Check the Python, the files, the clocks and the room of every executor beside the driver's.

    A DataFrame with a row for each check: `place` ("driver", or host and process of an executor), `check`, `ok`,
    `found`, and `advice` if it failed.  `staging` is where a write puts its files (the first directory), whose free
    space is told; with `writes` each executor makes a file of no bytes there, which the driver looks for and removes.

        jobs.doctor(spark, "/var/kafka-logs").where("not ok").show(truncate=False)

    UnsupportedOperationException for a session of Spark Connect.
    """
    return frame(spark, [tuple(each) for each in examined(spark, log_dirs, staging=staging, writes=writes)], SCHEMA)


def examined(spark: Any, log_dirs: Dirs = (), *, staging: str | None = None, writes: bool = False) -> list[Check]:
    """The same, as a list."""
    try:
        context = spark.sparkContext
    except Exception:
        raise UnsupportedOperationException(
            "doctor needs a classic session, found one of Spark Connect",
            hint="run it where the cluster's driver runs",
        ) from None
    given = [os.fspath(each) if not hasattr(each, "url") else each.url for each in _given(log_dirs)]
    paths = tuple(os.path.realpath(local_path(each, what="log_dirs")) for each in given if not is_address(each))
    addresses = tuple(each.rstrip("/").replace("s3a://", "s3://", 1) for each in given if is_address(each))
    checks: list[Check] = []
    places: tuple[Any, ...] = ()
    if addresses:
        try:
            _, places = places_of(spark, [each for each in _given(log_dirs) if not isinstance(each, str | os.PathLike)
                                          or is_address(os.fspath(each))], None)  # fmt: skip
        except KafkalogError as error:
            checks.append(Check("driver", "remote tier", False, str(error), "mend what the message says"))
            addresses = ()
    if staging is None and paths:
        staging = paths[0]
    staging = None if staging is None else local_path(staging, what="staging")
    asked = probe.Asked(paths, _samples(paths), staging, writes, addresses, pickle.dumps(places))
    with held(places):
        mine = probe.look(asked)
        checks += _judged("driver", mine, mine)
        others, why = _others(context, asked)
        count = max(_executors(context), 1)
        found = f"{len(others)} of {count} answered" if why is None else why
        hint = EXECUTOR_HINT if why is not None else "start the others, or look in their logs why they take no tasks"
        checks.append(Check("cluster", "executors", why is None and len(others) >= count, found, hint))
        gone = _changed_meanwhile(asked)
        for each in others:
            place = f"{each['host']}/{each['executor']}"
            checks += _judged(place, each, mine, gone)
    return [_printable(each._replace(advice="" if each.ok else each.advice)) for each in checks]


def _printable(check: Check) -> Check:
    """Names of files may have bytes that are no text, and line ends."""
    return check._replace(place=_shown(check.place), check=_shown(check.check), found=_shown(check.found),
                          advice=_shown(check.advice))  # fmt: skip


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# --- asking -------------------------------------------------------------------------------------------


def _others(context: Any, asked: probe.Asked) -> tuple[list[dict[str, Any]], str | None]:
    """One answer of each executor, with its clock's distance; or why there is none."""
    from pyspark import cloudpickle

    found: dict[tuple[str, int], dict[str, Any]] = {}
    tasks = max(2 * context.defaultParallelism, 2)
    cloudpickle.register_pickle_by_value(probe)
    try:
        for _ in range(ROUNDS):
            spread = context.parallelize(range(tasks), tasks)
            sent = time.time()
            answers = spread.mapPartitions(partial(probe.looks, asked, WAIT_S)).collect()
            received = time.time()
            for each in answers:
                # Its clock stood at `began` after we had sent, and at `ended` before we received.
                each["skew"] = max(sent - each["began"], each["ended"] - received, 0.0)
                if (kept := found.setdefault((each["host"], each["executor"]), each)) is not each:
                    _remove_staged(each)
                    kept["skew"] = min(kept["skew"], each["skew"])
            if len(found) >= _executors(context):
                break
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        first = [line for line in lines if "Cannot run program" in line]
        told = [line for line in lines if "Error: " in line or "Exception: " in line]
        return list(found.values()), (first or told or lines)[-1][:300]
    finally:
        cloudpickle.unregister_pickle_by_value(probe)
    return [found[each] for each in sorted(found)], None


def _executors(context: Any) -> int:
    """How many there are now; in local mode the driver is one."""
    known = len(context._jsc.sc().statusTracker().getExecutorInfos())
    return max(known - 1, 1)


def _samples(paths: Sequence[str]) -> tuple[probe.Sampled, ...]:
    """Files of each directory, with the bytes that they have now: a log grows, and what it has stays."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            folders = sorted(name for name in OS_FILES.list_dir(path) if probe._is_partition(name))
            for name in folders[:: max(len(folders) // SAMPLES, 1)]:
                found += [probe.sample(each, OS_FILES.stat(each).size) for each in _logs(os.path.join(path, name))]
    return tuple(found)


def _logs(folder: str) -> list[str]:
    """The first and the last segment."""
    with contextlib.suppress(OSError):
        found = sorted(name for name in OS_FILES.list_dir(folder) if name.endswith(names.LOG_FILE_SUFFIX))
        return [os.path.join(folder, name) for name in dict.fromkeys([*found[:1], *found[-1:]])]
    return []


def _changed_meanwhile(asked: probe.Asked) -> set[str]:
    """Samples that retention or compaction has taken since: of those nobody is asked."""
    return {each.path for each in asked.samples if probe.sample(each.path, each.size).checksum != each.checksum}


def _remove_staged(seen: dict[str, Any]) -> bool:
    """Removes what a process has made in the staging path; False where the driver does not see it."""
    name = (seen["staging"] or {}).get("file")
    if name is None:
        return True
    try:
        return OS_FILES.unlink_if_exists(name)
    except OSError:
        return False


# --- judging ------------------------------------------------------------------------------------------


def _judged(
    place: str, seen: dict[str, Any], mine: dict[str, Any], gone: set[str] | frozenset[str] = frozenset()
) -> Iterator[Check]:
    is_driver = seen is mine
    minor = [".".join(each["python"].split(".")[:2]) for each in (seen, mine)]
    yield Check(
        place, "python", minor[0] == minor[1], f"{seen['python']} ({seen['executable']})",
        f"the driver has {mine['python']}: set spark.pyspark.python to one of the same minor version",
    )  # fmt: skip
    for name in probe.PACKAGES:
        version, expected = seen["versions"][name], mine["versions"][name]
        hint = f"the driver has {expected}: install it for {seen['executable']}"
        yield Check(place, name, version is not None and version == expected, version or "not installed", hint)
    yield Check(
        place, "natives", seen["broken"] is None, seen["broken"] or "loaded",
        f"`pip install --force-reinstall kafkalog[spark]` for {seen['executable']}",
    )  # fmt: skip
    yield Check(
        place, "data source", seen["is_source_found"], "found by itself" if seen["is_source_found"] else "not found",
        "install kafkalog so that the module pyspark_kafkalog is on the Python path; on the driver "
        "kafkalog.spark.source.register(spark) does it by hand",
    )  # fmt: skip
    if not is_driver:
        skew = seen["skew"]
        yield Check(
            place, "clock", skew <= SKEW_S, f"{skew:.1f} s off" if skew > 0.05 else "as the driver's",
            "set the clocks by NTP: timestamps of what is written, and of what is asked, are not comparable",
        )  # fmt: skip
    for path, folder in seen["folders"].items():
        yield from _judged_folder(place, path, folder, seen, mine, gone)
    for address, listed in seen["addresses"].items():
        expected = mine["addresses"][address].get("names")
        ok = listed.get("names") is not None and listed["names"] == expected
        yield Check(
            place, address, ok, listed.get("why") or f"{len(listed['names'])} partitions",
            "the executors reach the store by the same options and credentials as the driver: is it reachable from "
            "there, and is its fsspec package (s3fs ...) installed?",
        )  # fmt: skip
    if seen["staging"] is not None:
        yield from _judged_staging(place, seen)


def _judged_folder(
    place: str, path: str, folder: dict[str, Any], seen: dict[str, Any], mine: dict[str, Any], gone: Any
) -> Iterator[Check]:
    if "why" in folder:
        user = f"uid {seen['uid']}"
        same = "give the path of a log directory" if seen is mine else SAME_FILES
        hint = f"{same}; it must be readable for {user}" if folder["why"] != "Permission denied" else (
            f"let {user} read it, or run the executors as its owner"
        )  # fmt: skip
        yield Check(place, path, False, folder["why"], hint)
        return
    expected = mine["folders"][path].get("names", [])
    missing, more = sorted({*expected} - {*folder["names"]}), sorted({*folder["names"]} - {*expected})
    found = f"{len(folder['names'])} partitions"
    found += f", not {', '.join(missing[:5])}" if missing else ""
    found += f", also {', '.join(more[:5])}" if more else ""
    yield Check(place, path, not missing and not more, found, SAME_FILES)
    if folder["closed"]:
        yield Check(
            place, f"{path}: permissions", False, f"uid {seen['uid']} may not read {', '.join(folder['closed'][:5])}",
            f"let uid {seen['uid']} read it, or run the executors as its owner",
        )  # fmt: skip
    if seen is mine:
        return
    mine_of = {each.path: each for each in mine["samples"]}
    compared = [each for each in seen["samples"] if each.path.startswith(f"{path}/") and each.path not in gone]
    other = [each for each in compared if each.checksum is None or each.checksum != mine_of[each.path].checksum]
    found = f"{len(compared)} files are the same"
    hint = SAME_FILES
    if other:
        found = f"{len(other)} of {len(compared)} are not, such as {other[0].path}: {other[0].why or 'other bytes'}"
        if other[0].why == "Permission denied":
            hint = f"let uid {seen['uid']} read it, or run the executors as its owner"
    yield Check(place, f"{path}: files", not other, found, hint)


def _judged_staging(place: str, seen: dict[str, Any]) -> Iterator[Check]:
    staging = seen["staging"]
    if "why" in staging:
        hint = f"writes need a folder that uid {seen['uid']} may write to, on every host: option stagingPath"
        yield Check(place, "staging", False, staging["why"], hint)
        return
    free = staging["free"]
    yield Check(
        place, "staging: free space", free >= FREE_BYTES, f"{free / (1 << 30):.1f} GiB",
        "a write needs its own size there, compressed: make room, or choose another stagingPath",
    )  # fmt: skip
    if "file" in staging:
        is_seen = _remove_staged(seen)
        yield Check(
            place, "staging: writes", is_seen, "the driver sees them" if is_seen else "the driver does not see them",
            "the staging path is one folder, shared by all hosts: mount it there, or choose another stagingPath",
        )  # fmt: skip
