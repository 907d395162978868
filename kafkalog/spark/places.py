"""Finds the files of a path: the only module of the Spark source that knows which `Files` reads a log directory.

Driver and executors both use it, each for itself.  Only paths are sent between them, and the options that reach a
remote tier.  A path is a mounted directory, the same on each host, or a bucket's address.  With option `remote`, a
directory continues in a remote tier.  Options are sent with their values, and never shown.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.engine.files import OS_FILES, Files, OsFiles, local_path
from kafkalog.engine.files.mounts import mount as mount_files
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.files.mounts import unmount as unmount_files
from kafkalog.engine.format.names import TOPIC_CONFIGS_FILE
from kafkalog.errors import IllegalArgumentException, RemoteStorageException
from kafkalog.remote import RemoteStorage, is_address, is_tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata

REMOTE, OF_CLIENT = "remote.", "remote.option."
SETTINGS = (
    "remote", "remote.layout", "remote.prefix", "remote.keyPairs", "remote.key", "remote.manifests", "remote.topicIds",
)  # fmt: skip
# Settings of Hadoop's S3A client -> those of fsspec's.
_HADOOP = {
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "secret",
    "fs.s3a.session.token": "token",
    "fs.s3a.endpoint": "endpoint_url",
}
ROOT = "kafka-tiered-storage"  # the same as in engine/remote/local_tiered.py, which is imported only to read a tier
log = logging.getLogger("kafkalog.spark")
_SECRET = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")
_HADOOP_PREFIXES = ("fs.s3a.", "fs.gs.", "fs.azure.")
_SPARKS_OWN = ("fs.s3a.vectored.",)  # Spark 4.0 sets some in each session


class Place(NamedTuple):
    """A path that is read through a remote tier: an address, or a directory that continues there.

    `only_listed`: names and sizes of a bucket's objects are enough; otherwise the manifests of all segments are read,
    if the layout has them.
    """

    path: str
    storage: RemoteStorage
    is_bucket: bool
    only_listed: bool = False


_mounted: dict[str, Place] = {}
_lock = threading.Lock()
_holders: Counter[str] = Counter()  # running jobs by path; guarded by _lock


def files_of(log_dir: str) -> Files:
    """Returns the files of a log directory; raises IllegalArgumentException for a store that is not mounted."""
    local_path(log_dir, what="option path")
    return OS_FILES


def segment_of(path: str, *, check: bool = True) -> RemoteLogSegmentMetadata | None:
    """Returns the remote segment behind a .log file; None for a local file.

    Raises RemoteResourceNotFoundException for offsets that are missing, unless `check` is false.
    """
    files: Any = mounted(path)
    found: RemoteLogSegmentMetadata | None = None if files is None else files.metadata_of(path)
    if found is not None and check:
        from kafkalog.engine.remote.remote_files import check_there

        check_there(found, path)
    return found


def remote_files_of(path: str) -> RemoteFiles:
    """Returns the remote tier of a mounted path."""
    files: Any = mounted(path)
    assert files is not None, path
    found: RemoteFiles = getattr(files, "remote", files)
    return found


def look_again(log_dir: str) -> None:
    """Lists a remote tier again; does nothing for a local directory."""
    if mounted(log_dir) is not None:
        remote_files_of(log_dir).look_again()


def is_remote_option(name: str) -> bool:
    """Whether an option belongs to the remote tier, and not to the source itself."""
    return name.lower().startswith((OF_CLIENT, *_HADOOP_PREFIXES))


def places(given: Mapping[str, str], paths: Sequence[str], *, only_listed: bool = False) -> tuple[Place, ...]:
    """Returns the remote tiers of the options (names in lower case); mounts them here, and `mount` does on
    executors."""
    found = []
    storage = _storage(given["remote"], given) if "remote" in given else None
    prefix = given.get("remote.prefix", "")
    for path in paths:
        if _is_bucket(path, prefix) or (storage is not None and storage.url == path):
            alone = _storage(path, given)
            _check_alone(alone, storage)
            found.append(Place(path, alone, True, only_listed))
        elif storage is not None:
            found.append(Place(path, storage, False, only_listed))
        elif _has_tiered_topics(path):
            log.warning(
                "%s: its topics continue in a remote tier, but only the disk is read: set option remote to the tier's "
                "address",
                path,
            )
    return mounted_places(found, paths)


def _has_tiered_topics(path: str) -> bool:
    files = OsFiles()
    if not files.exists(os.path.join(path, TOPIC_CONFIGS_FILE)):
        return False
    from kafkalog.engine.remote.directory_segments import has_tiered_topics

    return has_tiered_topics([path], files)


def _is_bucket(path: str, prefix: str = "") -> bool:
    """Whether a path is a remote tier: an address, or a local directory with a tier.

    Raises IllegalArgumentException for a directory inside a tier.
    """
    tier, is_within, _ = path.partition(f"/{ROOT}")
    if is_within:
        raise IllegalArgumentException(
            "found a directory inside a remote tier, expected the tier's address",
            path=path,
            hint=f"write {tier}, and choose topics with option subscribe, subscribePattern or assign",
        )
    return is_address(path) or is_tier(path, prefix, OsFiles())


def _check_alone(tier: RemoteStorage, remote: RemoteStorage | None) -> None:
    """Raises IllegalArgumentException for a tier that is given together with another tier."""
    if remote is not None and remote.url.rstrip("/") != tier.url.rstrip("/"):
        raise IllegalArgumentException(
            f"found a remote tier, expected a log directory that continues in the remote tier {remote.url}",
            path=tier.url,
            hint="path is the log directory and remote its tier; to read only a tier, give just one of them",
        )


def places_of(
    spark: Any, given: Sequence[str | os.PathLike[str] | RemoteStorage], remote: str | RemoteStorage | None
) -> tuple[tuple[str, ...], tuple[Place, ...]]:
    """Returns the paths that a job is given, and the remote tiers among them.

    A tier that is given only by its address is reached with the session's settings of object stores.
    """
    paths: list[str] = []
    found = []
    options = None

    def storage_at(what: str | RemoteStorage) -> RemoteStorage:
        nonlocal options
        if isinstance(what, RemoteStorage):
            return what
        options = hadoop_options(spark) if options is None else options
        return _storage(what, options)

    for each in given:
        if isinstance(each, RemoteStorage) or _is_bucket(os.fspath(each)):
            storage = storage_at(each if isinstance(each, RemoteStorage) else os.fspath(each))
            _check_alone(storage, None if remote is None else storage_at(remote))
            paths.append(storage.url.rstrip("/"))
            found.append(Place(paths[-1], storage, True))
        else:
            paths.append(os.path.realpath(local_path(each, what="log_dirs")))
            if remote is not None:
                found.append(Place(paths[-1], storage_at(remote), False))
    return tuple(dict.fromkeys(paths)), mounted_places(found)


def mounted_places(found: Sequence[Place], paths: Sequence[str] = ()) -> tuple[Place, ...]:
    """Returns the places with their layouts, readable in this process; other `paths` are read from the disk only.

    Raises RemoteStorageException or IllegalArgumentException if there is no tier.
    """
    _take_away(paths, found)  # also if the tier cannot be reached
    made = tuple(each._replace(storage=_checked(each)) for each in found)
    mount(made)
    return made


def _take_away(paths: Iterable[str], found: Sequence[Place]) -> None:
    """Unmounts the tiers of other queries at paths where this query has none."""
    with _lock:
        _unmount(_mounted.keys() & {*paths} - {each.path for each in found})


def _unmount(paths: Iterable[str]) -> None:
    """Unmounts the paths that no job holds; the caller holds the lock."""
    for path in paths:
        if not _holders[path]:
            unmount_files(path)
            _mounted.pop(path, None)


def _checked(place: Place) -> RemoteStorage:
    try:
        return place.storage.checked(() if place.is_bucket else [place.path], OsFiles())
    except IllegalArgumentException as error:
        if not place.is_bucket:
            error.hint = f"{error.hint}; if the tier is still empty, set option remote.layout"
        raise
    except RemoteStorageException as error:
        if error.hint is not None and error.hint.startswith("give credentials"):
            error.hint += (
                " (remote.option.key ...), or set spark.hadoop.fs.s3a.* and call kafkalog.spark.source.register(spark)"
            )
        raise


@contextmanager
def held(found: Sequence[Place]) -> Iterator[None]:
    """Keeps places readable for a job until the last job with them ends: this process may also write there."""
    with _lock:
        _holders.update(each.path for each in found)
    try:
        yield
    finally:
        with _lock:
            _holders.subtract(each.path for each in found)
            _unmount({each.path for each in found})


def mounted_paths() -> list[str]:
    """Returns the paths that are read through a tier in this process."""
    return list(_mounted)


def mount(found: Sequence[Place], paths: Iterable[str] = ()) -> None:
    """Makes places readable in this process; other `paths` are read from the disk only."""
    _take_away(paths, found)
    for place in found:
        path = place.path
        if _mounted.get(path) == place:
            continue
        files: Files
        if place.is_bucket:
            files = place.storage.read_only_files(OsFiles(), only_listed=place.only_listed)
        else:
            files = place.storage.tiered_files([path], OsFiles(), only_listed=place.only_listed)
        mount_files(path, files)
        _mounted[path] = place


def _storage(url: str, given: Mapping[str, str]) -> RemoteStorage:
    if _SECRET.match(url):
        raise IllegalArgumentException(
            "found credentials in the address of a remote tier",
            hint="give them as options remote.option.*, which are never shown",
        )
    options: dict[str, Any] = {
        name[len(OF_CLIENT) :]: _value(text) for name, text in given.items() if name.startswith(OF_CLIENT)
    }
    for name, key in _HADOOP.items():
        text = given.get(name)
        if text is not None:
            if key == "endpoint_url" and "://" not in text:
                is_plain = given.get("fs.s3a.connection.ssl.enabled", "true").lower() == "false"
                text = f"{'http' if is_plain else 'https'}://{text}"
            options.setdefault(key, text)
    if (region := given.get("fs.s3a.endpoint.region")) is not None:
        options.setdefault("client_kwargs", {"region_name": region})
    if "AnonymousAWSCredentialsProvider" in given.get("fs.s3a.aws.credentials.provider", ""):
        options.setdefault("anon", True)
    pairs = {}
    for text in filter(None, given.get("remote.keypairs", "").split(",")):
        parts = text.split(":")
        if len(parts) != 3:
            raise IllegalArgumentException(
                f"option remote.keyPairs: found {text!r}, expected id:public.pem:private.pem"
            )
        pairs[parts[0]] = (parts[1], parts[2])
    topic_ids = {}
    for text in filter(None, given.get("remote.topicids", "").split(",")):
        topic, equals, topic_id = text.partition("=")
        if not equals:
            raise IllegalArgumentException(f"option remote.topicIds: found {text!r}, expected topic=id")
        topic_ids[topic] = topic_id
    layout = given.get("remote.layout")
    if pairs and layout is None:
        layout = "aiven"
    return RemoteStorage(
        url.replace("s3a://", "s3://", 1),
        options=options,
        layout=layout,
        prefix=given.get("remote.prefix", ""),
        encryption=pairs,
        encryption_key=given.get("remote.key"),
        topic_ids=topic_ids,
    )


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), text)


def hadoop_options(spark: Any) -> dict[str, str]:
    """Returns the session's settings of object stores (such as `spark.hadoop.fs.s3a.*`) as options of a reader.

    Spark does not pass these settings to sources in Python.

        spark.read.format("kafkalog").options(**hadoop_options(spark)).load("s3a://bucket/prefix")
    """
    prefix = "spark.hadoop."
    is_classic = getattr(spark, "_jsparkSession", None) is not None  # Spark Connect shows its server's settings
    found = dict(spark.sparkContext.getConf().getAll()) if is_classic else spark.conf.getAll
    settings = {name[len(prefix) :]: value for name, value in found.items() if name.startswith(prefix)}
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(_HADOOP_PREFIXES) and not name.startswith(_SPARKS_OWN)
    }
