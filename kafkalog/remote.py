"""Where a remote tier lies, and how: the `RemoteStorage` that `kafkalog.open` takes as `remote`.

    import kafkalog

    tier = kafkalog.RemoteStorage("tier")               # a folder, or s3://bucket/prefix
    settings = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
    with kafkalog.open("shop", remote=tier) as store:
        orders = store.create_topic("orders", 1, config=settings)
        for _ in range(8):
            orders.append(b"x" * 500_000)
        print(store.remote_log_manager.run_once())      # 3 segments were copied
    with kafkalog.open(tier, read_only=True) as store:  # the tier alone
        print(store.topic("orders").partition(0).end_offset)    # 6

A text is enough where nothing is to be said beside the address.  Credentials come from where the storage's own client
looks for them (the environment, `~/.aws`, the machine's role), or are given in `options`, which are never shown.
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
# `user:password@` behind the scheme; a secret may have a slash, and what is behind a colon is else a port.
_SECRETS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/@]*:[^/@]*@|[^/@\[]*:(?![0-9]*(/|$)).*@)")
_NO_BUCKET = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/*|(s3a?|gc?s|abfss?|az):///.*")
_WEB = re.compile(r"(https?://[^/]*)/*(.*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.")


def is_address(text: str) -> bool:
    """Whether it is a bucket's, and no path of this machine."""
    return _ADDRESS.match(text) is not None


def is_tier(path: str, prefix: str = "", files: Files = OS_FILES) -> bool:
    """Whether a folder of this machine has a remote tier's objects, and nothing of a log directory."""
    try:
        refuse_foreign(path, files)
    except IllegalArgumentException:
        from kafkalog.engine.remote.objects import Objects
        from kafkalog.engine.remote.opening import layout_of

        with suppress(MissingPackageException):
            return layout_of(Objects.at(path, files=files), prefix) is not None
    return False


def _address(url: Any) -> str:
    """An address as it is; a path, absolute."""
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise IllegalArgumentException(f"url: found {values.shown(url)}, expected an address, or the path of a folder")
    text = os.fsdecode(url)
    if _SECRETS.match(text):
        raise IllegalArgumentException(
            f"url: found a user and a password in an address of {text.partition(':')[0]}",
            hint="they belong in the options, or in the environment of the storage's client",
        )
    if _NO_BUCKET.fullmatch(text) or "\0" in text:
        raise IllegalArgumentException(f"url: found {text!r}, expected a bucket in it, such as s3://bucket/prefix")
    web = _WEB.fullmatch(text)
    if web is not None:  # such as that of MinIO: fsspec would read pages there
        endpoint, bucket = web.groups()
        raise IllegalArgumentException(
            f"url: found {text!r}, a server's address, expected a bucket's",
            hint=f"s3://{bucket or 'bucket/prefix'}, and the server as an option of the storage's client: "
            f'options={{"endpoint_url": "{endpoint}"}}, or --remote-option endpoint_url={endpoint}',
        )
    return text if is_address(text) else os.path.abspath(local_path(text, what="url"))


def _mapping(given: Any, what: str, expected: str) -> dict[str, Any]:
    """Its values are never shown."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise IllegalArgumentException(f"{what}: found a {type(given).__name__}, expected a mapping: {expected}")
    return {values.text(name, f"{what}, a name in it"): value for name, value in given.items()}


def _key_pairs(given: Any) -> dict[str, tuple[str, str]]:
    expected = "a key pair by its id: the paths of its public and of its private key"
    pairs = {}
    for name, pair in _mapping(given, "encryption", expected).items():
        paths = [] if isinstance(pair, str) or not isinstance(pair, Sequence) else pair
        if len(paths) != 2 or not all(isinstance(path, str | os.PathLike) for path in paths):
            raise IllegalArgumentException(
                f"encryption: found a {type(pair).__name__} for {name!r}, expected {expected}"
            )
        public, private = map(os.fsdecode, paths)
        if "\n" in public + private:  # and not shown, as the name of a file that is not there would be
            raise IllegalArgumentException(f"encryption: found the keys of {name!r} themselves, expected {expected}")
        pairs[name] = (public, private)
    return pairs


def _topic_ids(given: Any) -> dict[str, str]:
    ids = {}
    for topic, topic_id in _mapping(given, "topic_ids", "a topic's id by its name").items():
        try:
            ids[topic] = parse_uuid(values.text(topic_id, "id"))
        except IllegalArgumentException:
            found = values.shown(topic_id)
            raise IllegalArgumentException(
                f"topic_ids: found {found} for {topic!r}, expected a topic's id of 22 characters"
            ) from None
    return ids


class RemoteStorage(_shown.Shown):
    """The settings of a remote tier; they do not change.  Nothing is asked of the storage until it is opened.

    `url`: `s3://bucket/prefix`, `gs:`, `abfs:`, `file:///mnt/tier` or any other that fsspec knows.  `options` are those
    of fsspec's file system (`key`, `secret`, `endpoint_url`, `anon` ...).

    `layout` is how objects are named and packed: "local-tiered" (Kafka's LocalTieredStorage) or "aiven" (Aiven's
    plugin); None takes what lies there, and where nothing does "local-tiered", or "aiven" with a `prefix`, compression
    or encryption.  The rest counts for "aiven" alone:
    `prefix` (its `key.prefix`), `chunk_bytes` (`chunk.size`), `compression` (True, or "heuristic" for what is not
    compressed already), `encryption` (key pairs by id: paths of the public and of the private key as PEM) with
    `encryption_key` (the id of the one that wraps new data keys; the only one, if there is one),
    `custom_metadata` (`custom.metadata.fields.include`).

    `upload_bytes_per_s` and `download_bytes_per_s` limit all requests together.  `timeout_s` is for one request, which
    is tried `attempts` times, with growing pauses.  `cache_bytes` bounds what is kept in memory of what was read.
    `topic_ids` says which topic is meant where there are two of one name.

    IllegalArgumentException for what is none of this.
    """

    # More than eight parameters: each is a choice of its own that most callers leave out, and is given by its name.
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
        self._options = _mapping(options, "options", "those of fsspec's file system")
        self._prefix = values.text(prefix, "prefix")
        if {".", ".."} & {*self._prefix.split("/")}:
            raise IllegalArgumentException(
                f"prefix: found {prefix!r}, expected the beginning of keys, without . and .."
            )
        check_settings(chunk_bytes, compression, custom_metadata)
        self._chunk_bytes = chunk_bytes
        self._compression = compression
        self._custom_metadata = tuple(custom_metadata)
        self._encryption = _key_pairs(encryption)
        self._encryption_key = encryption_key or (next(iter(self._encryption)) if len(self._encryption) == 1 else None)
        if self._encryption_key not in (self._encryption or (None,)):
            known = ", ".join(self._encryption) or "none, for no key pair is given"
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
        """IllegalArgumentException where Aiven's settings are given for the other layout."""
        if layout == "local-tiered" and (self._prefix or self._encryption or self._compression):
            what = "encryption" if self._encryption else "compression" if self._compression else "prefix"
            raise IllegalArgumentException(
                f"{what}: found one for a tier in the layout 'local-tiered', expected it for 'aiven' alone",
                path=self.url,
                hint="leave it out, or name another place for a tier that has it",
            )

    @classmethod
    def of(cls, given: str | os.PathLike[str] | RemoteStorage) -> RemoteStorage:
        """What a caller gave, an address or settings."""
        return given if isinstance(given, RemoteStorage) else cls(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStorage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def with_layout(
        self, log_dirs: Sequence[str] = (), files: Files = OS_FILES, metadata: DirectoryMetadata | None = None
    ) -> RemoteStorage:
        """The same with the layout that lies there, so that nobody has to look again; IllegalArgumentException where
        nothing lies there.  `log_dirs`: where their metadata know a segment, it is looked for, and nothing listed;
        where they have tiered topics, and know none, an empty place is a tier to which nothing was copied yet.
        `metadata`: theirs, where somebody has read it."""
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
        """`with_layout`, and IllegalArgumentException where a tier lies there in another layout than the one that was
        named, or nothing of what the directories' metadata know, and for a topic's id that a bucket has not got.  What
        was checked is not checked again, here or where it is sent to.  A storage that does not answer is believed."""
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
            return self.checked(log_dirs, files, again)  # retention took them meanwhile
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
        """What reads and writes there.  `must_exist`, of who only reads: IllegalArgumentException where nothing lies
        there.  Who writes, and names no layout, is refused beside other things, unless it `may_have_others`.

        MissingPackageException where the client, or the package for encryption, is not installed.
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
        """The tier as a directory to be read: a `files` for whatever reads log directories, whose path is `url`.  Where
        the tier is a folder of this machine, it is read through the `files` given.  `only_listed`: see
        `ObjectSegments`."""
        from kafkalog.engine.remote.chunks import Chunks
        from kafkalog.engine.remote.object_segments import ObjectSegments
        from kafkalog.engine.remote.remote_files import RemoteFiles

        manager = self.checked(files=files).manager(must_exist=True, files=files)
        segments = ObjectSegments(manager, self.topic_ids, only_listed=only_listed)
        return RemoteFiles(self.url, manager, segments, chunks=Chunks(self.cache_bytes))

    def tiered_files(
        self, log_dirs: Sequence[str], files: Files = OS_FILES, *, only_listed: bool = False
    ) -> TieredFiles:
        """Directories that go on in the tier, to be read as one: what their `__remote_log_metadata` says of it counts,
        where they have it, else the objects.  `files`: what the directories are read through."""
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
