"""Reports what one Python process sees: its versions, its clock, and the files of log directories.

`kafkalog spark doctor` sends this module to the executors by value, since their Python may not have kafkalog.  It
therefore imports only the standard library until it checks for kafkalog.  Answers are plain values.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import platform
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

SAMPLE_BYTES = 64 << 10  # from each end of a file
PACKAGES = ("pyspark", "pyarrow", "kafkalog")
MODULES = ("kafkalog.spark.tasks", "kafkalog.spark.staging", "kafkalog.decoding")  # these import all native modules


class Sampled(NamedTuple):
    """The first `size` bytes of a file, of which only the ends are read; `checksum` is None if the file is missing."""

    path: str
    size: int
    checksum: int | None = None
    why: str | None = None


class Asked(NamedTuple):
    """The checks for a process.  `places` is a pickle, which only a Python with kafkalog can load."""

    folders: tuple[str, ...]
    samples: tuple[Sampled, ...]
    staging: str | None
    writes: bool
    addresses: tuple[str, ...] = ()
    places: bytes = b""


def look(asked: Asked, wait_s: float = 0.0) -> dict[str, Any]:
    """Runs all checks in one process.  `wait_s` keeps the task busy, so that the next one goes to another executor."""
    began = time.time()
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "executor": os.getppid(),  # all workers of an executor have one parent process
        "began": began,
        "python": platform.python_version(),
        "executable": sys.executable,
        "uid": os.getuid() if hasattr(os, "getuid") else None,
        "versions": {name: _version(name) for name in PACKAGES},
        "broken": _broken(),
        "is_source_found": _is_source_found(),
        "folders": {path: _folder(path) for path in asked.folders},
        "samples": [sample(each.path, each.size) for each in asked.samples],
        "staging": None if asked.staging is None else _staging(asked.staging, asked.writes),
        "addresses": _addresses(asked),
    }
    time.sleep(max(0.0, began + wait_s - time.time()))
    found["ended"] = time.time()
    return found


def looks(asked: Asked, wait_s: float, tasks: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Runs `look` in a Spark task."""
    for _ in tasks:
        yield look(asked, wait_s)


def sample(path: str, size: int) -> Sampled:
    """Computes the checksum of both ends of a file's first `size` bytes.

    It is compared between hosts, where inode numbers and times say nothing.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(min(size, SAMPLE_BYTES))
            file.seek(max(size - SAMPLE_BYTES, 0))
            last = file.read(min(size, SAMPLE_BYTES))
            there = os.fstat(file.fileno()).st_size
    except OSError as error:
        return Sampled(path, size, None, error.strerror or str(error))
    if there < size:
        return Sampled(path, there, None, f"it has {there} bytes")
    return Sampled(path, size, zlib.crc32(last, zlib.crc32(first)))


def _version(package: str) -> str | None:
    try:
        return str(importlib.import_module(package).__version__)
    except Exception:
        return None


def _broken() -> str | None:
    """Says why kafkalog does not work here, such as a missing module or a native module of another build."""
    try:
        for name in MODULES:
            importlib.import_module(name)
        crc32c = importlib.import_module("kafkalog._native.codec.crc32c").crc32c
        if crc32c(b"123456789") != 0xE3069283:
            return "its native checksums are wrong"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _is_source_found() -> bool:
    """Whether Spark finds the source: it looks for modules named pyspark_*."""
    try:
        return importlib.util.find_spec("pyspark_kafkalog") is not None
    except (ImportError, ValueError):
        return False


def _folder(path: str) -> dict[str, Any]:
    try:
        with os.scandir(path) as listed:
            names = sorted(each.name for each in listed)
    except OSError as error:
        return {"why": error.strerror or str(error)}
    closed = []
    for name in names:
        inner = os.path.join(path, name)
        if os.path.isdir(inner) and not os.access(inner, os.R_OK | os.X_OK):
            closed.append(name)
    return {"names": [name for name in names if _is_partition(name)], "closed": closed}


def _is_partition(name: str) -> bool:
    return name.rpartition("-")[2].isdigit()


def _staging(path: str, writes: bool) -> dict[str, Any]:
    try:
        about = os.statvfs(path)
        found: dict[str, Any] = {"free": about.f_bavail * about.f_frsize}
        if writes:
            descriptor, name = tempfile.mkstemp(prefix=".kafkalog_staged.doctor.", dir=path)
            os.close(descriptor)
            found["file"] = name
    except OSError as error:
        return {"why": error.strerror or str(error)}
    return found


def _addresses(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for address in asked.addresses:
        try:
            from kafkalog.engine.files.mounts import mounted
            from kafkalog.engine.host.log_dirs import list_partitions
            from kafkalog.spark.places import mount

            mount(pickle.loads(asked.places))
            files = mounted(address)
            found[address] = {"names": sorted(map(str, list_partitions(address, files=files)))}  # type: ignore[arg-type]
        except Exception as error:
            found[address] = {"why": f"{type(error).__name__}: {error}"}
    return found
