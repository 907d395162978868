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
from typing import TYPE_CHECKING, Any

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import values
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.storage import RemoteStorageManager

__all__ = ["RemoteStorage"]

CACHE_BYTES = 64 << 20
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.")


def is_address(text: str) -> bool:
    """Whether it is a bucket's, and no path of this machine."""
    return _ADDRESS.match(text) is not None


class RemoteStorage:
    """The settings of a remote tier; they do not change.  Nothing is asked of the storage until it is opened.

    `url`: `s3://bucket/prefix`, `gs:`, `abfs:`, `file:///mnt/tier` or any other that fsspec knows.  `options` are those
    of fsspec's file system (`key`, `secret`, `endpoint_url`, `anon` ...).

    `layout` is how objects are named and packed: "local-tiered" (Kafka's LocalTieredStorage) or "aiven" (Aiven's
    plugin); None takes what lies there, and "local-tiered" where nothing does.  The rest counts for "aiven" alone:
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
        if layout not in (None, "local-tiered", "aiven"):
            raise IllegalArgumentException(f"layout: found {layout!r}, expected 'local-tiered', 'aiven' or None")
        text = os.fsdecode(url)
        if not text:
            raise IllegalArgumentException("url: found '', expected an address, or the path of a folder")
        self.url = text if "://" in text else os.path.abspath(text)
        self.layout = layout
        self._options = dict(options or {})
        self._prefix = prefix
        self._chunk_bytes = values.whole(chunk_bytes, "chunk_bytes", low=1, expected="bytes")
        self._compression = compression
        self._encryption = {name: (os.fspath(a), os.fspath(b)) for name, (a, b) in (encryption or {}).items()}
        self._encryption_key = encryption_key or (next(iter(self._encryption)) if len(self._encryption) == 1 else None)
        if self._encryption and self._encryption_key is None:
            raise IllegalArgumentException("encryption_key: several key pairs are given, expected the id of one")
        self._custom_metadata = tuple(custom_metadata)
        self._limits = {"upload_bytes_per_s": upload_bytes_per_s, "download_bytes_per_s": download_bytes_per_s}
        self._timeout_s = timeout_s
        self._attempts = values.whole(attempts, "attempts", low=1, expected="tries")
        self.cache_bytes = values.whole(cache_bytes, "cache_bytes", expected="bytes")
        self.topic_ids = dict(topic_ids or {})

    @classmethod
    def of(cls, given: str | os.PathLike[str] | RemoteStorage) -> RemoteStorage:
        """What a caller gave, an address or settings."""
        return given if isinstance(given, RemoteStorage) else cls(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStorage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def with_layout(self) -> RemoteStorage:
        """The same with the layout that lies there, so that nobody has to look again; IllegalArgumentException where
        nothing lies there."""
        if self.layout is not None:
            return self
        from kafkalog.engine.remote.aiven import AivenTieredStorage

        made = copy.copy(self)
        made.layout = "aiven" if isinstance(self.manager(must_exist=True), AivenTieredStorage) else "local-tiered"
        return made

    def __repr__(self) -> str:
        return f"RemoteStorage({self.url!r}, layout={self.layout!r})"

    def manager(self, *, must_exist: bool = False, files: Files = OS_FILES) -> RemoteStorageManager:
        """What reads and writes there.  `must_exist`: IllegalArgumentException where nothing lies there.

        MissingPackageException where the client, or the package for encryption, is not installed.
        """
        from kafkalog.engine.remote.objects import Objects, Retries
        from kafkalog.engine.remote.opening import layout_of, storage_at

        retries = Retries(self._attempts)
        objects = Objects.at(
            self.url, self._options, retries=retries, timeout_s=self._timeout_s, files=files, **self._limits
        )
        layout = self.layout or layout_of(objects, self._prefix) or (None if must_exist else "local-tiered")
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
        elif self._encryption or self._compression:
            raise IllegalArgumentException("compression and encryption are of the layout 'aiven'", hint="name it")
        return storage_at(objects, layout, prefix=self._prefix, settings=settings)

    def read_only_files(self, files: Files = OS_FILES) -> RemoteFiles:
        """The tier as a directory to be read: a `files` for whatever reads log directories, whose path is `url`.  Where
        the tier is a folder of this machine, it is read through the `files` given."""
        from kafkalog.engine.remote.chunks import Chunks
        from kafkalog.engine.remote.object_segments import ObjectSegments
        from kafkalog.engine.remote.remote_files import RemoteFiles

        manager = self.manager(must_exist=True, files=files)
        return RemoteFiles(self.url, manager, ObjectSegments(manager, self.topic_ids), chunks=Chunks(self.cache_bytes))


def __dir__() -> list[str]:
    return __all__
