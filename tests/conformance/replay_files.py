"""Looking at a script's files, and damaging them: plain operating-system calls, on purpose not kafkalog's."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import read_meta_properties
from kafkalog.errors import CorruptCheckpointException
from tests.conformance.replay_session import Op, ScriptError, Session

Result = dict[str, Any]


class RuntimeException(Exception):
    """Kafka's error for a meta.properties that lacks a value."""


def _with_parent(session: Session, relative: str) -> Path:
    path = session.path(relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _dump(session: Session, op: Op, result: Result) -> None:
    root = session.path(op["path"]) if "path" in op else Path(session.handle(op).log.dir)
    result["files"] = {}
    if not root.exists():
        raise FileNotFoundError(str(root))
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if path.is_file() and path.name != ".lock":
            data = path.read_bytes()
            name = path.relative_to(root).as_posix()
            result["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _truncate(session: Session, op: Op, result: Result) -> None:
    path = session.path(op["file"])
    before = path.stat().st_size
    size = op["size"] if "size" in op else max(0, before - op["drop_bytes"])
    if size < before:  # a truncation never makes a file grow, as with Java's FileChannel.truncate
        os.truncate(path, size)
    result["size"] = path.stat().st_size


def _corrupt(session: Session, op: Op, result: Result) -> None:
    mask = bytes.fromhex(op["xor_hex"])
    with session.path(op["file"]).open("r+b") as file:
        file.seek(op["offset"], os.SEEK_END if op["offset"] < 0 else os.SEEK_SET)
        position = file.tell()
        found = file.read(len(mask))
        file.seek(position)
        file.write(bytes(a ^ b for a, b in zip(found, mask, strict=False)))


def _write(session: Session, op: Op, result: Result) -> None:
    data = bytes.fromhex(op["hex"]) if "hex" in op else op["text"].encode()
    _with_parent(session, op["file"]).write_bytes(data)


def _append(session: Session, op: Op, result: Result) -> None:
    path = session.path(op["file"])
    if not path.exists():
        raise FileNotFoundError(str(path))
    with path.open("ab") as file:
        file.write(bytes.fromhex(op["hex"]))


def _remove(path: Path) -> None:
    """Removes a file or an empty directory, as Java's Files.delete."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()


def _delete(session: Session, op: Op, result: Result) -> None:
    _remove(session.path(op["file"]))


def _place_to_replace(session: Session, op: Op) -> tuple[Path, Path]:
    """`from` and `to`, of which the latter is gone, as with Java's REPLACE_EXISTING."""
    source, target = session.path(op["from"]), _with_parent(session, op["to"])
    if not source.exists():
        raise FileNotFoundError(str(source))
    if target.exists() and not target.samefile(source):
        _remove(target)
    return source, target


def _copy(session: Session, op: Op, result: Result) -> None:
    source, target = _place_to_replace(session, op)
    if target.exists():
        return
    if source.is_dir():
        target.mkdir()  # an empty directory, without the content
    else:
        shutil.copyfile(source, target)


def _rename(session: Session, op: Op, result: Result) -> None:
    source, target = _place_to_replace(session, op)
    source.rename(target)


def _mtime(session: Session, op: Op, result: Result) -> None:
    nanoseconds = op["ms"] * 1_000_000
    os.utime(session.path(op["file"]), ns=(nanoseconds, nanoseconds))


def _read(session: Session, op: Op, result: Result) -> None:
    """Reads a file of a log directory with kafkalog's readers."""
    path, kind = session.path(op["file"]), op["kind"]
    try:
        if kind == "offsets":
            offsets = OffsetCheckpointFile(str(path)).read()
            result["result"] = {f"{at.topic} {at.partition}": offset for at, offset in offsets.items()}
        elif kind == "clean":
            result["result"] = CleanShutdownFile(str(path.parent)).read()
        elif kind == "meta":
            result["result"] = list(read_meta_properties(str(path)))
        else:
            raise ScriptError(f"unknown kind {kind}")
    except CorruptCheckpointException as error:
        if type(error) is not CorruptCheckpointException:
            raise
        # Kafka's plain words for a file that does not parse.
        raise (OSError if kind == "offsets" else RuntimeException)(str(error)) from error


OPERATIONS = {
    "dump": _dump,
    "fs_read": _read,
    "fs_truncate": _truncate,
    "fs_corrupt": _corrupt,
    "fs_write": _write,
    "fs_append": _append,
    "fs_delete": _delete,
    "fs_copy": _copy,
    "fs_rename": _rename,
    "fs_mtime": _mtime,
}
