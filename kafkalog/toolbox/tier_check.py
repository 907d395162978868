"""Checks the copies in a directory's remote tier, and names the objects that findings are about.

A reader of both tiers reads a segment from the disk as long as the disk has it, and reads few or none of the small
objects of a segment.  A damaged copy in the tier is all that is left once the disk deletes the segment.  So every
segment that the metadata have (or that is stored, if only the tier is read) is checked in the tier.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from kafkalog.engine.files import OsFiles
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.snapshots import decode_snapshot
from kafkalog.engine.remote.object_segments import THREADS
from kafkalog.engine.remote.remote_files import RemoteFiles
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    CorruptManifestException,
    KafkalogError,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from kafkalog.toolbox.report import SECOND_LOOK_S, Finding, Report
from kafkalog.toolbox.segment_check import SegmentCheck, is_of_object

if TYPE_CHECKING:
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
    from kafkalog.engine.remote.storage import FoundSegment, RemoteStorageManager
    from kafkalog.engine.remote.tiered_files import TieredFiles

    _Segments = Callable[[TopicIdPartition], dict[str, FoundSegment]]

SMALL_OBJECTS = {
    IndexType.LEADER_EPOCH: ".leader_epoch_checkpoint",
    IndexType.PRODUCER_SNAPSHOT: names.PRODUCER_SNAPSHOT_FILE_SUFFIX,
}
_SHOWN = (names.LEADER_EPOCH_CHECKPOINT_FILE, names.PRODUCER_SNAPSHOT_FILE_SUFFIX)


def check_tier(
    root: str, partitions: Iterable[TopicPartition], files: RemoteFiles | TieredFiles, report: Report
) -> None:
    """Adds what is wrong in the tier to the report of a check of `root`, which is read through `files`.  Segments in
    both tiers were counted when the disk was checked.  Raises errors of a storage that does not answer."""
    remote = files if isinstance(files, RemoteFiles) else files.remote
    local, extra = OsFiles(), Report()
    segments = cache(lambda partition: {each.id: each for each in remote.storage.segments_of(partition)})
    # The small objects of all segments are checked below, including those that a directory shows.
    findings = [each for each in report.findings if not each.path.endswith(_SHOWN) or local.exists(each.path)]
    sizes: list[Finding] = []
    lost: list[Finding] = []
    for partition in partitions:
        folder, place = os.path.join(root, str(partition)), f"{remote.root}/{partition}"
        _check_partition(folder, place, files, remote, segments, extra, sizes, lost)
    told_once = [each for each in [*findings, *extra.findings] if not any(one.path in each.what for one in lost)]
    report.findings = [_with_object(each, files, remote, segments) for each in told_once] + lost
    report.findings += [each for each in sizes if not any(each.path in other.what for other in report.findings)]
    report.notes += extra.notes


def _check_partition(
    folder: str,
    place: str,
    files: RemoteFiles | TieredFiles,
    remote: RemoteFiles,
    segments: _Segments,
    report: Report,
    sizes: list[Finding],
    lost: list[Finding],
) -> None:
    """Checks one partition.  `sizes` gets objects of a wrong size, which count unless something else about them was
    found; `lost` gets missing small objects, and manifests."""
    if not remote.is_dir(place):
        return
    there = segments(remote.partition_at(place))
    damaged = damaged_in(remote, place, there)
    lost += damaged.values()
    listed = (names.segment_base(name) for name in remote.list_dir(place))
    bases = sorted(base for base in listed if base is not None)
    checker = SegmentCheck(place, remote, report)
    for base, following in zip_longest(bases, bases[1:]):
        path = names.log_file(place, base)
        if files is not remote and files.metadata_of(names.log_file(folder, base)) is None:  # the disk has it too
            checker.check(base, following)
        metadata = remote.metadata_of(path)
        if metadata is None or metadata.is_missing:
            continue
        found = there.get(metadata.remote_log_segment_id.id)
        if found is None or found.id in damaged:  # or its log does not exist either
            continue
        sizes += _of_other_size(found, metadata, remote) if found.is_whole else []
        lost += _lost(found, path, metadata, remote)
        for kind in SMALL_OBJECTS:
            key = _key(found, SMALL_OBJECTS[kind])
            if key is None and can_be_read(remote.storage, found):
                continue  # it is reported as lost
            _check_small(kind, path, path if key is None else f"{remote.root}/{key}", metadata, remote, report)


def can_be_read(storage: RemoteStorageManager, found: FoundSegment) -> bool:
    """Returns whether the existing objects suffice to read the log of a segment that metadata have."""
    return names.LOG_FILE_SUFFIX not in found.lacks and (found.is_whole or not storage.has_manifests)


def damaged_manifests(
    storage: RemoteStorageManager, found: Iterable[FoundSegment]
) -> dict[str, CorruptManifestException]:
    """Returns what is wrong with the manifests of complete segments, by the segments' ids."""
    asked = [each for each in found if each.is_whole and storage.has_manifests]
    with ThreadPoolExecutor(THREADS, "kafkalog-remote-manifests") as pool:
        errors = pool.map(partial(_of_manifest, storage), asked)
        return {each.id: error for each, error in zip(asked, errors, strict=True) if error is not None}


def _of_manifest(storage: RemoteStorageManager, found: FoundSegment) -> CorruptManifestException | None:
    for ask in (storage.metadata_of, partial(storage.object_bytes, metadata=None)):  # the second one needs no keys
        try:
            ask(found)
            return None
        except CorruptManifestException as error:
            return error
        except RetriableRemoteStorageException:
            raise
        except RemoteResourceNotFoundException:  # it was deleted meanwhile
            return None
        except RemoteStorageException:
            continue
    return None


def damaged_in(remote: RemoteFiles, place: str, there: Mapping[str, FoundSegment]) -> dict[str, Finding]:
    """Returns findings about the manifests of a partition's segments, by the segments' ids; only of those that metadata
    have, if there are metadata."""
    if remote.has_metadata:
        logs = (f"{place}/{name}" for name in remote.list_dir(place) if name.endswith(names.LOG_FILE_SUFFIX))
        known = {each.remote_log_segment_id.id for each in map(remote.metadata_of, logs) if each is not None}
        there = {each: found for each, found in there.items() if each in known}
    findings = {}
    for segment_id, error in damaged_manifests(remote.storage, there.values()).items():
        found = there[segment_id]
        of = f"the segment of {found.partition.topic_partition} from offset {found.base_offset} cannot be read"
        findings[segment_id] = Finding(str(error.path), 0, 0, f"{error.message}; {of}")
    return findings


def _lost(found: FoundSegment, path: str, metadata: RemoteLogSegmentMetadata, remote: RemoteFiles) -> list[Finding]:
    """Returns missing small objects of a segment whose log can be read.  If the log cannot be read, reading it reports
    that."""
    if not found.lacks or not can_be_read(remote.storage, found):
        return []
    time.sleep(SECOND_LOOK_S)
    remote.look_again()
    now, partition = remote.metadata_of(path), metadata.topic_id_partition
    again = next((each for each in remote.storage.segments_of(partition) if each.id == found.id), None)
    is_same = now is not None and now.remote_log_segment_id == metadata.remote_log_segment_id
    if not is_same or again is None or not can_be_read(remote.storage, again):
        return []
    stem, _ = os.path.splitext(found.objects[0])
    what = f"the object is missing; it is of the segment of {partition.topic_partition} from offset {found.base_offset}"
    return [Finding(f"{remote.root}/{stem}{suffix}", 0, 0, what) for suffix in again.lacks]


def _of_other_size(found: FoundSegment, metadata: RemoteLogSegmentMetadata, remote: RemoteFiles) -> list[Finding]:
    try:
        copied = remote.storage.object_bytes(found, metadata)
    except RetriableRemoteStorageException:
        raise
    except KafkalogError:  # about the manifest: opening the log reports it
        return []
    if copied in (None, found.object_bytes):
        return []
    what = f"the object has {found.object_bytes} bytes; {copied} were copied"
    return [Finding(f"{remote.root}/{_key(found, names.LOG_FILE_SUFFIX)}", 0, 0, what)]


def _check_small(
    kind: IndexType,
    path: str,
    shown: str,
    metadata: RemoteLogSegmentMetadata,
    remote: RemoteFiles,
    report: Report,
) -> None:
    if _problem(kind, shown, metadata, remote) is None:
        return
    time.sleep(SECOND_LOOK_S)
    remote.look_again()
    problem, now = _problem(kind, shown, metadata, remote), remote.metadata_of(path)
    if problem is not None and now is not None and now.remote_log_segment_id == metadata.remote_log_segment_id:
        partition, base = metadata.topic_id_partition.topic_partition, metadata.start_offset
        report.add(shown, 0, 0, f"the {kind.value} of the segment of {partition} from offset {base}: {problem}")


def _problem(kind: IndexType, shown: str, metadata: RemoteLogSegmentMetadata, remote: RemoteFiles) -> str | None:
    try:
        data = remote.storage.fetch_index(metadata, kind)
        if kind is IndexType.PRODUCER_SNAPSHOT:
            decode_snapshot(data)
            return None
        entries = LeaderEpochCheckpointFile(shown, create=False).decode(data)
    except KafkalogError as error:
        if isinstance(error, RemoteStorageException) and not is_of_object(error):
            raise
        return error.message
    is_empty = not data or (metadata.segment_leader_epochs and not entries)
    return "it has no leader epochs; expected those up to the segment's end" if is_empty else None


def _with_object(
    finding: Finding, files: RemoteFiles | TieredFiles, remote: RemoteFiles, segments: _Segments
) -> Finding:
    """Adds the name of the object to a finding about a file of a tier's segment."""
    shown = object_of(finding.path, remote if remote.owns(finding.path) else files, segments)
    return finding if shown is None else finding._replace(what=f"{finding.what}; its object is {remote.root}/{shown}")


def object_of(path: str, files: RemoteFiles | TieredFiles, segments: _Segments) -> str | None:
    """Returns the key of the object with a log or an index of a tier's segment; None for any other file."""
    is_of_next = path.endswith(names.PRODUCER_SNAPSHOT_FILE_SUFFIX)
    segment = None if is_of_next else files.metadata_of(path)
    if segment is None:
        return None
    found = segments(segment.topic_id_partition).get(segment.remote_log_segment_id.id)
    return _key(found, os.path.splitext(path)[1])


def _key(found: FoundSegment | None, suffix: str) -> str | None:
    keys = () if found is None else found.objects
    return next((key for key in keys if key.endswith((suffix, ".indexes"))), None)
