"""doctor: checks on every executor whether the cluster can read log directories and write to them.

The driver runs the checks first and chooses sample files.  Each executor runs the same checks (`probe`), and the
results are compared: versions, the same files under the same paths, permissions, clocks, room for staged files.  A
check that fails says what to do.  Nothing is changed, except that `writes` creates an empty file in the staging path.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafkalog.engine.files import OS_FILES, OsFiles, local_path
from kafkalog.engine.format import names
from kafkalog.errors import KafkalogError, UnsupportedOperationException
from kafkalog.remote import is_address, is_tier
from kafkalog.spark.jobs import probe
from kafkalog.spark.jobs.run import EXECUTOR_HINT, Dirs, _given, frame
from kafkalog.spark.places import held, places_of
from kafkalog.toolbox.words import counted

SCHEMA = "place string, check string, ok boolean, found string, advice string"
SAMPLES = 16  # partitions of each directory whose files are compared
ROUNDS = 5
WAIT_S = 0.3
SKEW_S = 1.0
FREE_BYTES = 1 << 30
SAME_FILES = 'mount the same directory at the same path on every host (the page "Run on a cluster" says how)'
EMPTY = (
    "give the directory that has the partitions (such as orders-0), or the directory or address of a tier; for a place "
    "that is still empty, write a record first"
)


class Check(NamedTuple):
    """The result of one check.  `place` is the driver, or host and process of an executor; `advice` is for a failed
    check."""

    place: str
    check: str
    ok: bool
    found: str
    advice: str = ""


def doctor(spark: Any, log_dirs: Dirs = (), *, staging: str | None = None, writes: bool = False) -> Any:
    """Checks the Python, files, clocks and disk room of every executor against the driver's.

    Args:
        spark: The session.  It must be a classic session, not one of Spark Connect.
        log_dirs: The path of a log directory, or a list of them; also tiers (a directory, or `s3://bucket/prefix`).
        staging: The directory in which a write stages its files; its free room is reported.  Default: the first of
            `log_dirs`.
        writes: Whether each executor also creates an empty file in `staging`, which the driver finds and removes.

    Returns:
        A DataFrame with a row for each check: `place` ("driver", or host and process of an executor), `check`, `ok`,
        `found`, and `advice` if it failed.

    Raises:
        UnsupportedOperationException: The session is one of Spark Connect.

    Example:
        Show the checks that fail:

            jobs.doctor(spark, "/var/kafka-logs").where("not ok").show(truncate=False)
    """
    return frame(spark, [tuple(each) for each in examined(spark, log_dirs, staging=staging, writes=writes)], SCHEMA)


def examined(spark: Any, log_dirs: Dirs = (), *, staging: str | None = None, writes: bool = False) -> list[Check]:
    """Does the work of `doctor`, and returns a list of checks."""
    try:
        context = spark.sparkContext
    except Exception:
        raise UnsupportedOperationException(
            "doctor needs a classic session, found one of Spark Connect",
            hint="run it where the cluster's driver runs",
        ) from None
    given = [os.fspath(each) if not hasattr(each, "url") else each.url for each in _given(log_dirs)]
    tiers = {each: _tier(each) for each in given}
    paths = tuple(os.path.realpath(local_path(each, what="log_dirs")) for each in given if tiers[each] is None)
    addresses = tuple(each for each in tiers.values() if each is not None)
    checks: list[Check] = []
    places: tuple[Any, ...] = ()
    if addresses:
        try:
            _, places = places_of(spark, [each for each in _given(log_dirs) if not isinstance(each, str | os.PathLike)
                                          or tiers[os.fspath(each)] is not None], None)  # fmt: skip
        except KafkalogError as error:
            checks.append(Check("driver", "remote tier", False, str(error), "correct what the message names"))
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
        hint = (
            EXECUTOR_HINT
            if why is not None
            else "start the missing executors, or read in their logs why they run no tasks"
        )
        checks.append(Check("cluster", "executors", why is None and len(others) >= count, found, hint))
        gone = _changed_meanwhile(asked)
        for each in others:
            place = f"{each['host']}/{each['executor']}"
            checks += _judged(place, each, mine, gone)
    return [_printable(each._replace(advice="" if each.ok else each.advice)) for each in checks]


def _tier(given: str) -> str | None:
    """Returns the address of a tier, or the absolute path of one in a local directory; None for a log directory."""
    if is_address(given):
        return given.rstrip("/").replace("s3a://", "s3://", 1)
    path = os.path.abspath(local_path(given, what="log_dirs"))
    return path if is_tier(path, files=OsFiles()) else None


def _printable(check: Check) -> Check:
    """Escapes bytes that are not text, and line ends, which names of files may have."""
    return check._replace(place=_shown(check.place), check=_shown(check.check), found=_shown(check.found),
                          advice=_shown(check.advice))  # fmt: skip


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# --- running the checks -------------------------------------------------------------------------------


def _others(context: Any, asked: probe.Asked) -> tuple[list[dict[str, Any]], str | None]:
    """Returns one answer of each executor, with the difference of its clock; or the reason why there is none."""
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
                # Its clock read `began` after we had sent, and `ended` before we received.
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
    """Returns the number of executors now; in local mode the driver is the only one."""
    known = len(context._jsc.sc().statusTracker().getExecutorInfos())
    return max(known - 1, 1)


def _samples(paths: Sequence[str]) -> tuple[probe.Sampled, ...]:
    """Chooses files of each directory, with their current sizes: a log grows, but its old bytes stay."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            folders = sorted(name for name in OS_FILES.list_dir(path) if probe._is_partition(name))
            for name in folders[:: max(len(folders) // SAMPLES, 1)]:
                found += [probe.sample(each, OS_FILES.stat(each).size) for each in _logs(os.path.join(path, name))]
    return tuple(found)


def _logs(folder: str) -> list[str]:
    """Returns the first and the last segment of a partition."""
    with contextlib.suppress(OSError):
        found = sorted(name for name in OS_FILES.list_dir(folder) if name.endswith(names.LOG_FILE_SUFFIX))
        return [os.path.join(folder, name) for name in dict.fromkeys([*found[:1], *found[-1:]])]
    return []


def _changed_meanwhile(asked: probe.Asked) -> set[str]:
    """Returns the samples that retention or compaction has changed meanwhile; they are not compared."""
    return {each.path for each in asked.samples if probe.sample(each.path, each.size).checksum != each.checksum}


def _remove_staged(seen: dict[str, Any]) -> bool:
    """Removes the file that a process created in the staging path; returns False if the driver does not see it."""
    name = (seen["staging"] or {}).get("file")
    if name is None:
        return True
    try:
        return OS_FILES.unlink_if_exists(name)
    except OSError:
        return False


# --- comparing with the driver ------------------------------------------------------------------------


def _judged(
    place: str, seen: dict[str, Any], mine: dict[str, Any], gone: set[str] | frozenset[str] = frozenset()
) -> Iterator[Check]:
    is_driver = seen is mine
    minor = [".".join(each["python"].split(".")[:2]) for each in (seen, mine)]
    yield Check(
        place, "python", minor[0] == minor[1], f"{seen['python']} ({seen['executable']})",
        f"the driver has {mine['python']}: set spark.pyspark.python to a Python of the same minor version",
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
        place, "data source", seen["is_source_found"], "found" if seen["is_source_found"] else "not found",
        "install kafkalog so that the module pyspark_kafkalog is on the Python path; on the driver "
        "kafkalog.spark.source.register(spark) registers it by hand",
    )  # fmt: skip
    if not is_driver:
        skew = seen["skew"]
        yield Check(
            place, "clock", skew <= SKEW_S, f"{skew:.1f} s off" if skew > 0.05 else "as the driver's",
            "set the clocks by NTP: otherwise timestamps of writes and of queries cannot be compared",
        )  # fmt: skip
    for path, folder in seen["folders"].items():
        yield from _judged_folder(place, path, folder, seen, mine, gone)
    for address, listed in seen["addresses"].items():
        expected = mine["addresses"][address].get("names")
        ok = listed.get("names") is not None and listed["names"] == expected
        if ok and not listed["names"]:
            yield Check(place, address, False, "0 partitions", EMPTY)
            continue
        yield Check(
            place, address, ok, listed.get("why") or counted(len(listed['names']), 'partition'),
            "executors use the same options and credentials as the driver: check that the object store is reachable "
            "from there, and that its fsspec package (such as s3fs) is installed",
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
    found = counted(len(folder["names"]), "partition")
    found += f", not {', '.join(missing[:5])}" if missing else ""
    found += f", also {', '.join(more[:5])}" if more else ""
    is_empty = not folder["names"] and not expected
    yield Check(place, path, not (missing or more or is_empty), found, EMPTY if is_empty else SAME_FILES)
    if folder["closed"]:
        yield Check(
            place, f"{path}: permissions", False, f"uid {seen['uid']} may not read {', '.join(folder['closed'][:5])}",
            f"let uid {seen['uid']} read it, or run the executors as its owner",
        )  # fmt: skip
    if seen is mine or is_empty:
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
        hint = f"writes need a directory that uid {seen['uid']} may write to, on every host: option stagingPath"
        yield Check(place, "staging", False, staging["why"], hint)
        return
    free = staging["free"]
    yield Check(
        place, "staging: free space", free >= FREE_BYTES, f"{free / (1 << 30):.1f} GiB",
        "a write needs room for all its rows, compressed: make room, or choose another stagingPath",
    )  # fmt: skip
    if "file" in staging:
        is_seen = _remove_staged(seen)
        yield Check(
            place, "staging: writes", is_seen, "the driver sees them" if is_seen else "the driver does not see them",
            "all hosts must share the staging directory: mount it on each, or choose another stagingPath",
        )  # fmt: skip
