"""The address and settings of a remote tier: `RemoteStorage`, which `kafkalog.open` accepts as `remote`.

A plain text is enough if only the address is needed. Credentials come from the places where the storage's own client
looks for them (the environment, `~/.aws`, the machine's role), or from `options`, which are never shown.

Example:
    >>> import os, tempfile
    >>> import kafkalog
    >>> place = tempfile.mkdtemp()
    >>> tier = kafkalog.RemoteStorage(os.path.join(place, "tier"))  # a directory, or s3://bucket/prefix
    >>> settings = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
    >>> with kafkalog.open(os.path.join(place, "shop"), remote=tier) as store:
    ...     orders = store.create_topic("orders", 1, config=settings)
    ...     for _ in range(8):
    ...         _ = orders.append(b"x" * 500_000)
    ...     copied = store.remote_log_manager.run_once()  # the number of segments copied
    >>> with kafkalog.open(tier, read_only=True) as store:  # the tier alone
    ...     store.topic("orders").partition(0).end_offset
    6
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafkalog import _shown
from kafkalog.engine.files import OS_FILES, Files, local_path
from kafkalog.engine.format import values
from kafkalog.engine.format.java_text import parse_uuid
from kafkalog.engine.host.log_dirs import refuse_foreign
from kafkalog.errors import IllegalArgumentException, MissingPackageException, RetriableRemoteStorageException

if TYPE_CHECKING:
    from kafkalog.engine.remote.directory_segments import DirectoryMetadata
    from kafkalog.engine.remote.objects import Objects
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.storage import RemoteStorageManager
    from kafkalog.engine.remote.tiered_files import TieredFiles

__all__ = ["RemoteStorage"]

CACHE_BYTES = 64 << 20
# `user:password@` after the scheme. A secret may have a slash; digits after a colon are a port.
_SECRETS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/@]*:[^/@]*@|[^/@\[]*:(?![0-9]*(/|$)).*@)")
_NO_BUCKET = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/*|(s3a?|gc?s|abfss?|az):///.*")
_WEB = re.compile(r"(https?://[^/]*)/*(.*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.")


def is_address(text: str) -> bool:
    """Returns whether a text is the address of a bucket, not a path of this machine."""
    return _ADDRESS.match(text) is not None


def is_tier(path: str, prefix: str = "", files: Files = OS_FILES) -> bool:
    """Returns whether a directory of this machine has a remote tier's objects, and nothing of a log directory."""
    try:
        refuse_foreign(path, files)
    except IllegalArgumentException:
        from kafkalog.engine.remote.objects import Objects
        from kafkalog.engine.remote.opening import layout_of

        with suppress(MissingPackageException):
            return layout_of(Objects.at(path, files=files), prefix, is_sure=False) is not None
    return False


def _address(url: Any) -> str:
    """Returns an address unchanged, and a path as an absolute path."""
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise IllegalArgumentException(f"url: found {values.shown(url)}, expected an address or a directory's path")
    text = os.fsdecode(url)
    if _SECRETS.match(text):
        raise IllegalArgumentException(
            f"url: found a user and a password in an address of {text.partition(':')[0]}",
            hint="pass them in the options, or in the environment of the storage's client",
        )
    if _NO_BUCKET.fullmatch(text) or "\0" in text:
        raise IllegalArgumentException(
            f"url: found {text!r}, expected an address with a bucket, such as s3://bucket/prefix"
        )
    web = _WEB.fullmatch(text)
    if web is not None:  # such as MinIO's: fsspec would read web pages there
        endpoint, bucket = web.groups()
        raise IllegalArgumentException(
            f"url: found {text!r}, the address of a server, expected that of a bucket",
            hint=f"s3://{bucket or 'bucket/prefix'}, with the server as an option of the storage's client: "
            f'options={{"endpoint_url": "{endpoint}"}}, or --remote-option endpoint_url={endpoint}',
        )
    return text if is_address(text) else os.path.abspath(local_path(text, what="url"))


def _mapping(given: Any, what: str, expected: str) -> dict[str, Any]:
    """Returns a checked copy of a mapping. Errors never show its values."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise IllegalArgumentException(f"{what}: found a {type(given).__name__}, expected a mapping: {expected}")
    return {values.text(name, f"{what}: a name"): value for name, value in given.items()}


def _key_pairs(given: Any) -> dict[str, tuple[str, str]]:
    expected = "key pairs by id: the paths of the public and of the private key"
    pairs = {}
    for name, pair in _mapping(given, "encryption", expected).items():
        paths = [] if isinstance(pair, str) or not isinstance(pair, Sequence) else pair
        if len(paths) != 2 or not all(isinstance(path, str | os.PathLike) for path in paths):
            raise IllegalArgumentException(
                f"encryption: found a {type(pair).__name__} for {name!r}, expected {expected}"
            )
        public, private = map(os.fsdecode, paths)
        if "\n" in public + private:  # not shown, unlike the name of a missing file
            raise IllegalArgumentException(f"encryption: found the text of the keys of {name!r}, expected {expected}")
        pairs[name] = (public, private)
    return pairs


def _topic_ids(given: Any) -> dict[str, str]:
    ids = {}
    for topic, topic_id in _mapping(given, "topic_ids", "topic ids by topic name").items():
        try:
            ids[topic] = parse_uuid(values.text(topic_id, "id"))
        except IllegalArgumentException:
            found = values.shown(topic_id)
            raise IllegalArgumentException(
                f"topic_ids: found {found} for {topic!r}, expected a topic id of 22 characters"
            ) from None
    return ids


class RemoteStorage(_shown.Shown):
    """The settings of a remote tier.

    They do not change. Nothing is requested from the storage before it is opened.

    Args:
        url: `s3://bucket/prefix`, `gs:`, `abfs:`, `file:///mnt/tier` or another address that fsspec knows, or the path
            of a directory.
        options: Options of fsspec's file system, such as `key`, `secret`, `endpoint_url` or `anon`. Default: none.
        layout: How objects are named and packed: "local-tiered" (Kafka's LocalTieredStorage) or "aiven" (Aiven's
            plugin). None takes the layout of the existing tier. A new tier gets "aiven" if it has a `prefix`,
            compression or encryption, else "local-tiered".
        prefix: The start of all object keys (`key.prefix`). For "aiven" only. Default: none.
        chunk_bytes: Size of a chunk in bytes (`chunk.size`). For "aiven" only. Default 4 MiB.
        compression: Whether chunks are compressed. "heuristic" compresses segments that are not compressed yet. For
            "aiven" only. Default False.
        encryption: Key pairs by id: the paths of the public and of the private key as PEM. For "aiven" only. Default:
            none.
        encryption_key: The id of the key pair that wraps new data keys. Default: the only key pair.
        custom_metadata: Names of fields to store (`custom.metadata.fields.include`). For "aiven" only. Default: none.
        upload_bytes_per_s: Limit of all uploads together, in bytes per second. Default: no limit.
        download_bytes_per_s: Limit of all downloads together, in bytes per second. Default: no limit.
        timeout_s: Time limit of one request, in seconds. Default 60.
        attempts: How often a request is tried, with growing pauses. Default 6.
        cache_bytes: Memory for data that was read, in bytes. Default 64 MiB.
        topic_ids: Topic ids by topic name, to choose one of two topics of the same name in the tier. Default: none.

    Raises:
        IllegalArgumentException: An argument has a wrong value.

    Attributes:
        url: The address; a path is absolute.
        layout: As given.
        cache_bytes: As given.
        topic_ids: As given.

    Example:
        >>> import kafkalog
        >>> kafkalog.RemoteStorage("s3://bucket/tier", options={"anon": True}, layout="aiven")
        RemoteStorage('s3://bucket/tier', layout='aiven')
    """

    # More than eight parameters: each is optional and independent, and is passed by name.
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        layout: str | None = None,
        prefix: str = "",
        chunk_bytes: int = 4 << 20,
        compression: bool | str = False,
        encryption: Mapping[str, tuple[str | os.PathLike[str], str | os.PathLike[str]]] | None = None,
        encryption_key: str | None = None,
        custom_metadata: Sequence[str] = (),
        upload_bytes_per_s: float | None = None,
        download_bytes_per_s: float | None = None,
        timeout_s: float = 60.0,
        attempts: int = 6,
        cache_bytes: int = CACHE_BYTES,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        from kafkalog.engine.remote.aiven import check_settings

        self.url = _address(url)
        if layout not in (None, "local-tiered", "aiven"):
            raise IllegalArgumentException(f"layout: found {layout!r}, expected 'local-tiered', 'aiven' or None")
        self.layout = layout
        self._options = _mapping(options, "options", "options of fsspec's file system")
        self._prefix = values.text(prefix, "prefix")
        if {".", ".."} & {*self._prefix.split("/")}:
            raise IllegalArgumentException(
                f"prefix: found {prefix!r}, expected the start of object keys, without . and .."
            )
        check_settings(chunk_bytes, compression, custom_metadata)
        self._chunk_bytes = chunk_bytes
        self._compression = compression
        self._custom_metadata = tuple(custom_metadata)
        self._encryption = _key_pairs(encryption)
        self._encryption_key = encryption_key or (next(iter(self._encryption)) if len(self._encryption) == 1 else None)
        if self._encryption_key not in (self._encryption or (None,)):
            known = ", ".join(self._encryption) or "none, because no key pair is given"
            raise IllegalArgumentException(
                f"encryption_key: found {values.shown(self._encryption_key)}, expected the id of a key pair ({known})"
            )
        rates = {"upload_bytes_per_s": upload_bytes_per_s, "download_bytes_per_s": download_bytes_per_s}
        self._limits = {
            name: None if rate is None else values.positive(rate, name, "bytes a second, or None")
            for name, rate in rates.items()
        }
        self._timeout_s = values.positive(timeout_s, "timeout_s", "seconds")
        self._attempts = values.count(attempts, "attempts", low=1, expected="tries")
        self.cache_bytes = values.count(cache_bytes, "cache_bytes", expected="bytes")
        self.topic_ids = _topic_ids(topic_ids)
        self._is_checked = False
        self._refuse_aivens(layout)

    def _refuse_aivens(self, layout: str | None) -> None:
        """Raises IllegalArgumentException if settings for the layout "aiven" are given for the other layout."""
        if layout == "local-tiered" and (self._prefix or self._encryption or self._compression):
            what = "encryption" if self._encryption else "compression" if self._compression else "prefix"
            raise IllegalArgumentException(
                f"{what}: found a value for the layout 'local-tiered', but only 'aiven' has this setting",
                path=self.url,
                hint="omit it, or give another address for a tier that has it",
            )

    @classmethod
    def of(cls, given: str | os.PathLike[str] | RemoteStorage) -> RemoteStorage:
        """Returns settings for a given address, and given settings unchanged.

        Args:
            given: An address, a path, or settings.

        Returns:
            Settings.

        Raises:
            IllegalArgumentException: The address is wrong.
        """
        return given if isinstance(given, RemoteStorage) else cls(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStorage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def with_layout(
        self, log_dirs: Sequence[str] = (), files: Files = OS_FILES, metadata: DirectoryMetadata | None = None
    ) -> RemoteStorage:
        """Returns these settings with the layout of the existing tier, so that it need not be found again.

        If the metadata in `log_dirs` know a segment, that segment is requested, and nothing is listed. If the log
        directories have tiered topics and their metadata know no segment, an empty place is a tier to which nothing was
        copied yet.

        Args:
            log_dirs: The log directories of the store, or none to read the tier alone.
            files: The file system for `log_dirs`.
            metadata: The metadata in `log_dirs`, if they were read already.

        Returns:
            Settings with a layout.

        Raises:
            IllegalArgumentException: There is no tier at the address.
        """
        if self.layout is not None:
            return self
        from kafkalog.engine.remote.directory_segments import DirectoryMetadata, has_tiered_topics
        from kafkalog.engine.remote.opening import layout_with

        metadata = metadata or DirectoryMetadata(log_dirs, files)
        known = next(metadata.copied(), None)
        made = copy.copy(self)
        made.layout = None if known is None else layout_with(self._objects(files).hasty(), known, self._prefix)
        if made.layout is None:
            may_be_empty = known is None and (metadata.is_there or has_tiered_topics(log_dirs, files))
            manager = self.manager(must_exist=not may_be_empty, files=files)
            made.layout = manager.layout
        return made

    def checked(
        self, log_dirs: Sequence[str] = (), files: Files = OS_FILES, metadata: DirectoryMetadata | None = None
    ) -> RemoteStorage:
        """Returns `with_layout` after a check that the tier fits.

        A storage that does not answer is accepted.

        Settings that were checked are not checked again, even in another process.

        Args:
            log_dirs: The log directories of the store, or none to read the tier alone.
            files: The file system for `log_dirs`.
            metadata: The metadata in `log_dirs`, if they were read already.

        Returns:
            Checked settings with a layout.

        Raises:
            IllegalArgumentException: The tier has another layout than the given one, it has no segment that the
                metadata in `log_dirs` know, or it has no topic with an id of `topic_ids`.
        """
        if self._is_checked:
            return self
        from kafkalog.engine.remote.directory_segments import DirectoryMetadata
        from kafkalog.engine.remote.object_segments import ObjectSegments
        from kafkalog.engine.remote.opening import check_layout, lost_in

        metadata = metadata or DirectoryMetadata(log_dirs, files)
        copied = list(metadata.copied())
        try:
            made = copy.copy(self.with_layout(log_dirs, files, metadata))
            storage = made.manager(files=files)
            with suppress(RetriableRemoteStorageException):
                if self.layout is not None and not copied:
                    check_layout(storage, self._prefix)
                lost_in(storage, copied, self.url)
                if not log_dirs:
                    ObjectSegments(storage, self.topic_ids).check_topic_ids()
        except IllegalArgumentException:
            again = DirectoryMetadata(log_dirs, files)
            if list(again.copied()) == copied:
                raise
            return self.checked(log_dirs, files, again)  # retention deleted them meanwhile
        made._is_checked = True
        return made

    def _objects(self, files: Files) -> Objects:
        from kafkalog.engine.remote.objects import Objects, Retries

        retries = Retries(self._attempts)
        return Objects.at(
            self.url, self._options, retries=retries, timeout_s=self._timeout_s, files=files, **self._limits
        )

    def __repr__(self) -> str:
        return f"RemoteStorage({self.url!r}, layout={self.layout!r})"

    def manager(
        self, *, must_exist: bool = False, may_have_others: bool = False, files: Files = OS_FILES
    ) -> RemoteStorageManager:
        """Returns the object that reads and writes the tier.

        Args:
            must_exist: Whether a missing tier is an error. For callers that only read.
            may_have_others: Whether a new tier without a given layout may be next to other objects.
            files: The file system of this machine.

        Returns:
            The storage manager of the tier's layout.

        Raises:
            IllegalArgumentException: There is no tier although it `must_exist`, or there are other objects at the
                address.
            MissingPackageException: The storage's client, or the package for encryption, is not installed.
        """
        from kafkalog.engine.remote.opening import check_others, layout_of, storage_at

        objects = self._objects(files)
        first = objects.hasty()
        is_aivens = bool(self._prefix or self._encryption or self._compression)
        layout = self.layout or layout_of(first, self._prefix)
        if layout is None and not must_exist:
            layout = "aiven" if is_aivens else "local-tiered"
            if not may_have_others:
                check_others(first, self._prefix)
        settings: dict[str, Any] = {}
        if layout == "aiven":
            settings = {
                "chunk_bytes": self._chunk_bytes,
                "compression": self._compression,
                "custom_metadata": self._custom_metadata,
                "files": files,
            }
            if self._encryption:
                from kafkalog.engine.remote.aiven_keys import KeyRing

                assert self._encryption_key is not None
                settings["keys"] = KeyRing.read(self._encryption, self._encryption_key, files)
        else:
            self._refuse_aivens(layout)
        return storage_at(objects, layout, prefix=self._prefix, settings=settings)

    def read_only_files(self, files: Files = OS_FILES, *, only_listed: bool = False) -> RemoteFiles:
        """Returns the tier as a directory to read.

        Its path is `url`.

        Args:
            files: The file system of this machine, for a tier in a directory.
            only_listed: As in `ObjectSegments`.

        Returns:
            A file system for code that reads log directories.

        Raises:
            IllegalArgumentException: There is no tier at the address, or it does not fit these settings.
        """
        from kafkalog.engine.remote.chunks import Chunks
        from kafkalog.engine.remote.object_segments import ObjectSegments
        from kafkalog.engine.remote.remote_files import RemoteFiles

        manager = self.checked(files=files).manager(must_exist=True, files=files)
        segments = ObjectSegments(manager, self.topic_ids, only_listed=only_listed)
        return RemoteFiles(self.url, manager, segments, chunks=Chunks(self.cache_bytes))

    def tiered_files(
        self, log_dirs: Sequence[str], files: Files = OS_FILES, *, only_listed: bool = False
    ) -> TieredFiles:
        """Returns log directories together with the part of their logs that is in the tier.

        The directories' `__remote_log_metadata` says what is in the tier if they have it; otherwise the objects do.

        Args:
            log_dirs: The log directories.
            files: The file system through which they are read.
            only_listed: As in `DirectorySegments`.

        Returns:
            A file system for code that reads log directories.

        Raises:
            IllegalArgumentException: There is no tier at the address, or it does not fit these settings.
        """
        from kafkalog.engine.remote.chunks import Chunks
        from kafkalog.engine.remote.directory_segments import DirectoryMetadata, DirectorySegments
        from kafkalog.engine.remote.remote_files import RemoteFiles
        from kafkalog.engine.remote.tiered_files import TieredFiles

        metadata = DirectoryMetadata(log_dirs, files)
        manager = self.checked(log_dirs, files, metadata).manager(must_exist=True, files=files)
        segments = DirectorySegments(
            log_dirs, manager, files, self.topic_ids, only_listed=only_listed, metadata=metadata
        )
        remote = RemoteFiles(self.url, manager, segments, chunks=Chunks(self.cache_bytes))
        return TieredFiles(remote, log_dirs, files)


def __dir__() -> list[str]:
    return __all__
