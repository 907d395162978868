"""The content list of a backup: `manifest.json`, which is written last and makes a directory a backup.

It names every file with its size and CRC-32C, so that a restore or a later backup detects every changed file.  For
files of closed segments it also has the source's inode, modification time and length, by which the next backup sees
that they are unchanged.  Everything that is read from a manifest is checked: no name leads out of the backup.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.host.backups import FORMAT, MANIFEST_BYTES_MAX, MANIFEST_FILE, is_backup
from kafkalog.errors import CorruptCheckpointException, KafkalogError, NoSuchFileException
from kafkalog.toolbox.report import Finding

__all__ = [
    "MANIFEST_FILE", "PARTIAL_SUFFIX", "BackedDirectory", "BackedFile", "BackedPartition", "BackedSegment", "Manifest",
    "is_backup", "newest_backup", "read_manifest",
]  # fmt: skip

PARTIAL_SUFFIX = ".kafkalog-partial"  # marks an incomplete directory; no other tool uses this suffix
VERSION = 1
UINT_MAX = (1 << 32) - 1
WHAT_TO_DO = "take another backup: the content of this one is unknown"


class BackedFile(NamedTuple):
    """A file of a backup.  `inode`, `mtime_ms` and `source_size` describe the source's file when it was copied."""

    size: int
    crc32c: int
    inode: int = 0
    mtime_ms: int = 0
    source_size: int = 0


class BackedSegment(NamedTuple):
    """A segment.  `end_offset` is the offset after its last batch, `newest_time_ms` its newest timestamp (-1: none),
    `leader_epoch` its last leader epoch.
    A closed segment was copied whole; in a sound one nothing is damaged."""

    base_offset: int
    end_offset: int
    newest_time_ms: int
    leader_epoch: int
    batches: int
    records: int
    is_closed: bool
    is_sound: bool


class BackedPartition(NamedTuple):
    """A partition: its offsets [log_start_offset, end_offset), its segments in order, and its files by name."""

    partition: TopicPartition
    topic_id: str | None
    log_start_offset: int
    end_offset: int
    segments: Sequence[BackedSegment]
    files: Mapping[str, BackedFile]


class BackedDirectory(NamedTuple):
    """A log directory: its `folder` in the backup, its path in the source, its own files, and its partitions."""

    folder: str
    source: str
    files: Mapping[str, BackedFile]
    partitions: Sequence[BackedPartition]


class Manifest(NamedTuple):
    """A whole backup.  Times are in ms since 1970; `findings` says what was wrong with the source."""

    tool: str
    begun_ms: int
    finished_ms: int
    directories: Sequence[BackedDirectory]
    findings: Sequence[Finding] = ()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(
            each.size
            for directory in self.directories
            for held in (directory.files, *(partition.files for partition in directory.partitions))
            for each in held.values()
        )

    def partitions(self) -> dict[TopicPartition, tuple[BackedDirectory, BackedPartition]]:
        """Returns all partitions, each with its directory."""
        return {each.partition: (directory, each) for directory in self.directories for each in directory.partitions}

    def encode(self) -> bytes:
        """Returns the bytes of the manifest file."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "tool": self.tool,
            "begunMs": self.begun_ms,
            "finishedMs": self.finished_ms,
            "directories": [_directory_fields(each) for each in self.directories],
            "findings": [
                {"path": each.path, "position": each.position, "length": each.length, "what": each.what}
                for each in self.findings
            ],
        }
        return json.dumps(content, separators=(",", ":")).encode("utf-8", "surrogateescape") + b"\n"


def _directory_fields(directory: BackedDirectory) -> dict[str, Any]:
    return {
        "folder": directory.folder,
        "source": directory.source,
        "files": _file_fields(directory.files),
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "topicId": each.topic_id,
                "logStartOffset": each.log_start_offset,
                "endOffset": each.end_offset,
                "segments": [
                    {
                        "baseOffset": segment.base_offset,
                        "endOffset": segment.end_offset,
                        "newestTimeMs": segment.newest_time_ms,
                        "leaderEpoch": segment.leader_epoch,
                        "batches": segment.batches,
                        "records": segment.records,
                        "closed": segment.is_closed,
                        "sound": segment.is_sound,
                    }
                    for segment in each.segments
                ],
                "files": _file_fields(each.files),
            }
            for each in directory.partitions
        ],
    }


def _file_fields(files: Mapping[str, BackedFile]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "size": each.size,
            "crc32c": f"{each.crc32c:08x}",
            "source": [each.inode, each.mtime_ms, each.source_size],
        }
        for name, each in sorted(files.items())
    ]


# --- reading ---------------------------------------------------------------------------------------------


def newest_backup(
    path: str,
    files: Files = OS_FILES,
    *,
    sources: Collection[str] | None = None,
    holds: Callable[[Manifest], int] = lambda manifest: 0,
) -> tuple[str, Manifest] | None:
    """Returns the backup at `path`, or the newest one in that directory (of one of these `sources`); None if there is
    none.

    A backup with a greater `holds(manifest)` is preferred to a newer one.  Raises NoSuchFileException,
    CorruptCheckpointException and OSError."""
    if not files.is_dir(path):
        raise NoSuchFileException(
            "the directory does not exist", path=path, hint="name a backup, or a directory of backups"
        )
    if is_backup(path, files):
        return path, read_manifest(path, files)
    newest: tuple[str, Manifest] | None = None
    best = (-1, -1)
    for name in files.list_dir(path):
        inside = os.path.join(path, name)
        if not is_backup(inside, files) or name.endswith(PARTIAL_SUFFIX):
            continue
        manifest = read_manifest(inside, files)
        is_of_them = sources is None or any(each.source in sources for each in manifest.directories)
        rank = (holds(manifest), manifest.finished_ms) if is_of_them else best
        if is_of_them and (newest is None or rank >= best):
            newest, best = (inside, manifest), rank
    return newest


def read_manifest(path: str, files: Files = OS_FILES) -> Manifest:
    """Reads the manifest of the backup at `path`.

    Raises NoSuchFileException if `path` is no backup, CorruptCheckpointException if the manifest is damaged, and
    OSError."""
    manifest = os.path.join(path, MANIFEST_FILE)
    try:
        data = read_small(manifest, files, bytes_max=MANIFEST_BYTES_MAX, hint=WHAT_TO_DO)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFileException(
            f"there is no {MANIFEST_FILE} here; expected a complete backup",
            path=path,
            hint="name a directory that `kafkalog backup --to` wrote; one that ends in .kafkalog-partial is unfinished",
        ) from None
    try:
        content = json.loads(data.decode("utf-8", "surrogateescape"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        found = Manifest(
            _text(content["tool"]),
            _whole(content["begunMs"]),
            _whole(content["finishedMs"]),
            [_directory(each) for each in content["directories"]],
            [
                Finding(_text(each["path"]), _whole(each["position"]), _whole(each["length"]), _text(each["what"]))
                for each in content["findings"]
            ],
        )
        if not found.directories:
            raise ValueError("it lists no directory")
        _each_once("the directory", (each.folder for each in found.directories))
        _each_once("the partition", (each.partition for every in found.directories for each in every.partitions))
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, KafkalogError) as error:
        raise CorruptCheckpointException(
            f"found {type(error).__name__}: {error}; expected {FORMAT!r}, version {VERSION}",
            path=manifest,
            hint=WHAT_TO_DO,
        ) from None


def _directory(fields: Any) -> BackedDirectory:
    folder = _name(fields["folder"])
    return BackedDirectory(
        folder, _text(fields["source"]), _files(fields["files"]), [_partition(each) for each in fields["partitions"]]
    )


def _partition(fields: Any) -> BackedPartition:
    topic = _text(fields["topic"])
    names.validate_topic_name(topic)
    topic_id = fields["topicId"]
    return BackedPartition(
        TopicPartition(topic, _whole(fields["partition"], high=INT_MAX)),
        None if topic_id is None else _text(topic_id),
        _whole(fields["logStartOffset"]),
        _whole(fields["endOffset"]),
        [
            BackedSegment(
                _whole(each["baseOffset"]),
                _whole(each["endOffset"]),
                _whole(each["newestTimeMs"], low=-1),
                _whole(each["leaderEpoch"], low=-1),
                _whole(each["batches"]),
                _whole(each["records"]),
                bool(each["closed"]),
                bool(each["sound"]),
            )
            for each in fields["segments"]
        ],
        _files(fields["files"]),
    )


def _files(listed: Any) -> dict[str, BackedFile]:
    found: dict[str, BackedFile] = {}
    for each in listed:
        crc32c = int(_text(each["crc32c"]), 16)
        inode, mtime_ms, source_size = each["source"]
        name = _name(each["name"])
        if name in found:
            raise ValueError(f"it lists the file {name} twice")
        found[name] = BackedFile(
            _whole(each["size"]),
            _whole(crc32c, high=UINT_MAX),
            _whole(inode, high=2 * LONG_MAX + 1),
            _whole(mtime_ms, low=-LONG_MAX),
            _whole(source_size),
        )
    return found


def _each_once(what: str, listed: Iterable[object]) -> None:
    seen = set()
    for each in listed:
        if each in seen:
            raise ValueError(f"it lists {what} {each} twice")
        seen.add(each)


def _name(value: Any) -> str:
    """Returns the name of a file or directory after checking that it stays in its directory."""
    text = _text(value)
    if not text or text in (os.curdir, os.pardir) or "/" in text or os.sep in text or "\0" in text:
        raise ValueError(f"the name is {text!r}, expected one that stays in its directory")
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r}, expected text")
    return value


def _whole(value: Any, *, low: int = 0, high: int = LONG_MAX) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r}, expected a whole number from {low} to {high}")
    return value


def __dir__() -> list[str]:
    return __all__
