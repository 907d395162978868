"""Objects in any storage that fsspec knows (`file:`, `memory:`, `s3:`, `gs:`, `abfs:` ...), with retries and checks.

    objects = Objects.at("s3://bucket/prefix")
    objects.put("a/b.log", [b"..."]); objects.get("a/b.log", 0, 3)

An object exists completely or not at all: an upload is committed at its end, and a failed one is abandoned.  A failed
request is repeated, after growing random pauses, with a WARNING each.  It is not repeated if the object or the bucket
does not exist, access is denied, or the client refuses an option.  Data that are fetched must have the requested
length, and data that are put the given length.

Objects of `file:` are written like all durable files here: to a temporary file, synced, renamed, the directory synced.
For other storages, their own promise counts.  A request that waits longer than `timeout_s` has failed.  A part of an
upload to S3, Google or Azure has additional time for its bytes; other uploads wait as long as their client does.

fsspec is imported when an address is opened: `pip install kafkalog[remote]`, or an extra like `kafkalog[s3]`, which
includes a client.

The file is long because it is one class: every kind of request shares its retries, limits and messages.
"""

from __future__ import annotations

import copy
import ctypes
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from kafkalog.engine.files import OS_FILES, Buffer, File, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.remote import s3_streams
from kafkalog.engine.remote.clients import (
    BOUND,
    EXTRAS,
    NO_BUCKET,
    NO_CREDENTIALS,
    NO_GCS_BUCKET,
    PART_BYTES,
    ClientOptions,
    is_behind_end,
)
from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    MissingPackageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)

T = TypeVar("T")

GET_BYTES = 12 << 20  # bytes in one request, for an object that is copied
# bytes of a local file at once: larger pieces are new memory from the system each time, which costs more
READ_BYTES = 1 << 20
SIDE_BY_SIDE = 4  # parallel requests
PAGE_OBJECTS = 1000  # objects in a page of a listing, as in S3
_TEMPORARY = ".kafkalog_upload"
_log = Lines("kafkalog.remote")

_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
HASTY_ATTEMPTS, HASTY_TIMEOUT_S = 2, 7.0


class Retries(NamedTuple):
    """How often a request is tried, and the pauses between tries: a random part of a limit that doubles."""

    attempts: int = 6
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def pause_s(self, failed: int) -> float:
        """Returns the pause after so many failures."""
        doubled = self.first_pause_s * 2.0 ** min(failed - 1, 64)  # 2.0 ** 1024 overflows a float
        return random.uniform(0.5, 1.0) * min(self.longest_pause_s, doubled)


class RateLimit:
    """Limits the bytes a second over all threads: each waits until the bytes before it have had their time."""

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise IllegalArgumentException(
                f"the rate limit is {bytes_per_s} bytes a second; expected more than 0, or None"
            )
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int, given_up: threading.Event) -> bool:
        """Waits until `count` bytes may be sent.

        Returns False if the caller gives up before; its bytes then take no time from others.
        """
        if self.bytes_per_s is None:
            return True
        takes_s = count / self.bytes_per_s
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + takes_s
        if begins > now and given_up.wait(min(begins - now, threading.TIMEOUT_MAX)):
            with self._lock:
                self._free_at -= takes_s
            return False
        return True


class Object(NamedTuple):
    key: str
    size: int


class Objects:
    """The objects below one address.  Keys are relative to it, with `/` between their parts.  Thread-safe.

    `fs` is an fsspec file system and `root` the path in it.
    """

    # More than eight parameters: dependencies, passed by name.
    def __init__(
        self,
        fs: Any,
        root: str,
        *,
        url: str,
        retries: Retries | None = None,
        timeout_s: float = 60.0,
        upload_bytes_per_s: float | None = None,
        download_bytes_per_s: float | None = None,
        files: Files = OS_FILES,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.fs = fs
        self.root = root.rstrip("/")
        self._lead = f"{self.root}/" if self.root or fs.root_marker == "/" else ""  # the prefix of each path
        self.url = url.rstrip("/")
        self.retries = retries or Retries()
        self.timeout_s = timeout_s
        self._uploads = RateLimit(upload_bytes_per_s)
        self._downloads = RateLimit(download_bytes_per_s)
        self._files = files
        self._options = ClientOptions(options or {})
        self._given_up = threading.Event()  # set when nothing should wait any more
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self.is_local = protocol in ("file", "local")
        self._has_folders = self.is_local or protocol == "memory"
        self._is_s3, self._is_azure = protocol == "s3", protocol == "abfs"
        self._no_bucket = NO_GCS_BUCKET if protocol == "gs" else NO_BUCKET
        self._put_settings: dict[str, int] = {}
        if self._is_azure:
            self._put_settings = {"max_concurrency": SIDE_BY_SIDE}
        elif protocol == "gs":
            self._put_settings = {"chunksize": 2 * PART_BYTES}
        self._large = threading.Lock()  # uploads one file in parts at a time: it fills the connection, and the memory

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Objects:
        """Opens an address.  `options` are the file system's (`key`, `secret`, `endpoint_url` ...); they are never
        logged.

        Raises MissingPackageException if the scheme's client is not installed, and IllegalArgumentException for an
        unknown scheme.
        """
        try:
            import fsspec
        except ImportError as error:
            raise MissingPackageException(
                "the remote tier needs the package fsspec",
                hint="pip install 'kafkalog[remote]', or an extra with a client, such as kafkalog[s3]",
            ) from error
        given_scheme, colon, rest = url.partition("://")
        scheme = given_scheme.lower() if colon else "file"
        protocol = "abfs" if scheme == "abfss" else scheme  # the client of abfss always uses TLS
        if colon:
            url = f"{protocol}://{rest}"
        given = dict(options or {})
        if scheme in ("s3", "s3a"):
            timeout_s, attempts = settings.get("timeout_s", 60.0), (settings.get("retries") or Retries()).attempts
            # Attempts are counted here; the client's retry is for a part of an upload that fails once.
            own = {"connect_timeout": min(10, timeout_s), "retries": {"total_max_attempts": min(attempts, 2)}}
            # otherwise it requests the size of each object that is read completely
            given.setdefault("max_concurrency", 1)
            given.setdefault("config_kwargs", {"read_timeout": timeout_s, **own})
        if scheme != "file":
            given.setdefault("use_listings_cache", False)
        try:
            # `url_to_fs` would take a name with `::` for several addresses.
            try:
                client = fsspec.get_filesystem_class(protocol)
            except ValueError as error:
                raise IllegalArgumentException(
                    f"{url}: no storage client supports the scheme {scheme!r} ({error})",
                    hint="check the address; valid ones begin with s3://, gs://, abfs:// or file://, such as s3://bucket/prefix",
                ) from None
            fs, root = client(**{**client._get_kwargs_from_urls(url), **given}), client._strip_protocol(url)
        except ImportError as error:
            extra = EXTRAS.get(scheme, "remote")
            raise MissingPackageException(
                f"{scheme}:// needs a package that is not installed: {error}", hint=f"pip install 'kafkalog[{extra}]'"
            ) from error
        except IllegalArgumentException:
            raise
        except Exception as error:  # each client has error classes of its own
            told = _told(error, ClientOptions(given))
            if isinstance(error, (ValueError, TypeError)):
                raise IllegalArgumentException(f"{url}: {told}") from None
            raise RemoteStorageException(f"cannot reach the storage: {told}", path=url) from None
        if scheme in BOUND:
            BOUND[scheme](fs, settings.get("timeout_s", 60.0))
        return cls(fs, root, url=url, options=given, **settings)

    def hasty(self, attempts: int = HASTY_ATTEMPTS) -> Objects:
        """Returns a copy with short timeouts, for a check at the start or a caller that somebody waits for."""
        made = copy.copy(self)
        made.retries = self.retries._replace(attempts=min(self.retries.attempts, attempts))
        made.timeout_s = min(self.timeout_s, HASTY_TIMEOUT_S)
        return made

    def until(self, given_up: threading.Event) -> Objects:
        """Returns a copy that stops waiting for a rate limit or a retry once `given_up` is set."""
        made = copy.copy(self)
        made._given_up = given_up
        return made

    def path(self, key: str) -> str:
        """Returns a key as a path of the file system."""
        return self._lead + key

    def shown(self, key: str) -> str:
        """Returns the name of an object for messages."""
        return f"{self.url}/{key}"

    # --- writing -----------------------------------------------------------------------------------------

    def put(self, key: str, make_parts: Callable[[], Iterable[Buffer]], *, syncs_name: bool = True) -> int:
        """Puts an object, replacing one with that key; returns its size in bytes.

        `make_parts` is called again for each try.  Without `syncs_name`, a directory of this machine is not synced: the
        sync of a later put covers several names.
        """
        return self._tried("put", key, lambda: self._put(key, make_parts(), syncs_name))

    def put_file(self, key: str, source: str, size: int | None = None, *, syncs_name: bool = True) -> int:
        """Puts a local file as an object; returns its size in bytes.  `size` is the expected size, or None for any.

        Raises KafkaStorageException if the file cannot be read, or has another size.
        """
        found = self._source_size(source)
        if size is not None and found != size:
            raise KafkaStorageException(
                f"the file has {found} bytes, expected {size}: nothing is uploaded", path=source
            )
        # The client's own function is faster, but it would wait for the rate limit in the thread that serves all
        # requests.
        if self._uploads.bytes_per_s is not None:
            return self.put(key, lambda: self.parts_of(source, found), syncs_name=syncs_name)
        if self.is_local:
            return self._tried("put", key, lambda: self._copy(key, source, found, syncs_name))
        return self._tried("put", key, lambda: self._put_file(key, source, found))

    def _put_file(self, key: str, source: str, size: int) -> int:
        path = self.path(key)
        if size <= PART_BYTES:
            self.fs.put_file(source, path, **self._put_settings)
        elif self._is_s3 and size <= s3_streams.PUT_BYTES:
            with self._files.open(source, writable=False) as file:
                s3_streams.put(self.fs, path, file, size)
        else:
            with self._large, self._files.open(source, writable=False) as file:
                if self._given_up.is_set():
                    raise RetriableRemoteStorageException(
                        "the upload was given up while it waited for another one", path=self.shown(key)
                    )
                if self._is_s3:
                    s3_streams.put_in_parts(self.fs, path, file, size, self.side_by_side)
                else:
                    self.fs.put_file(source, path, **self._put_settings)
                    _give_back()
        return self._checked_put(key, path, size)

    def side_by_side(self, puts: Sequence[Callable[[], T]]) -> list[T]:
        """Runs puts in parallel if requests go over a network, and one after the other on this machine.

        Returns their results in order.  All have ended when it returns, or when it raises the first error.
        """
        if self.is_local:
            return [put() for put in puts]
        with ThreadPoolExecutor(SIDE_BY_SIDE, "kafkalog-remote-writer") as pool:
            begun = [pool.submit(put) for put in puts]
        return [each.result() for each in begun]

    def _source_size(self, source: str) -> int:
        try:
            return self._files.size_of(source)
        except OSError as error:
            raise KafkaStorageException.because_of(error, f"cannot read {source}") from error

    def parts_of(self, source: str, size: int, part_bytes: int = READ_BYTES, begin: int = 0) -> Iterator[bytes]:
        """Yields the bytes [begin, size) of a local file in parts; raises what `put_file` raises."""
        try:
            with self._files.open(source, writable=False) as file:
                yield from parts_of(file, size, part_bytes, begin)
        except OSError as error:
            if isinstance(error, KafkaStorageException):
                raise
            raise KafkaStorageException.because_of(error, f"cannot read {source}") from error

    def _put(self, key: str, parts: Iterable[Buffer], syncs_name: bool) -> int:
        path = self.path(key)
        if self.is_local:
            count = self._put_locally(path, lambda file: file.write_synced(self._limited(path, parts)), syncs_name)
        else:
            count = self._put_remotely(path, parts)
        return self._checked_put(key, path, count)

    def _checked_put(self, key: str, path: str, count: int) -> int:
        found = self._asked("info", path)["size"]
        if found != count:
            raise RetriableRemoteStorageException(
                f"the object has {found} bytes after it was put, expected {count}", path=self.shown(key)
            )
        return count

    def _put_remotely(self, path: str, parts: Iterable[Buffer]) -> int:
        file = self.fs.open(path, "wb", block_size=PART_BYTES)
        count = 0
        try:
            for part in self._limited(path, parts):
                file.write(part)
                count += len(part)
            file.close()  # only this creates the object
        except BaseException:
            with suppress(Exception):
                file.closed = True  # otherwise garbage collection would create the object
            with suppress(Exception):  # uploaded parts are garbage until the storage removes them
                file.discard()
            raise
        return count

    def _limited(self, path: str, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        for part in parts:
            self._take(self._uploads, len(part), path)
            yield part

    def _take(self, limit: RateLimit, count: int, path: str) -> None:
        if not limit.take(count, self._given_up):
            raise RetriableRemoteStorageException(
                f"the request was given up while it waited for the limit of {limit.bytes_per_s:g} bytes a second",
                path=path,
            )

    def _copy(self, key: str, source: str, size: int, syncs_name: bool) -> int:
        """Copies a local file to a directory, with the system's own call as far as that succeeds."""

        def write(file: File) -> int:
            done = 0
            with suppress(OSError), self._files.open(source, writable=False) as there:
                done = file.copy_from(there, size)
            return done + file.write_synced(self.parts_of(source, size, begin=done), done)

        path = self.path(key)
        return self._checked_put(key, path, self._put_locally(path, write, syncs_name))

    def _put_locally(self, path: str, write: Callable[[File], int], syncs_name: bool) -> int:
        files, folder = self._files, os.path.dirname(path)
        files.mkdirs_synced(folder)
        temporary = path + _TEMPORARY  # a deletion of the object removes it, too; no two puts of one key run at once
        try:
            with files.open(temporary, create=True) as file:
                file.truncate(0)
                count = write(file)
            files.rename(temporary, path)
            if syncs_name:
                files.sync_dir(folder)
        except BaseException:
            with suppress(OSError):
                files.unlink_if_exists(temporary)
            raise
        return count

    def delete(self, keys: Iterable[str], *, folders: int = 0) -> None:
        """Deletes objects; it is not an error if they do not exist.

        `folders` is how many levels of empty parent directories are removed, too.  In a bucket, a directory is only a
        prefix of keys.
        """
        above: dict[str, None] = {}
        for key in keys:
            self._tried("delete", key, lambda key=key: self._delete(self.path(key)))  # type: ignore[misc]
            above[key.rpartition("/")[0]] = None
        for folder in above if self._has_folders else ():
            with suppress(OSError):  # it is not empty
                for _ in range(folders):
                    (self._files if self.is_local else self.fs).rmdir(self.path(folder))
                    folder = folder.rpartition("/")[0]

    def _delete(self, path: str) -> None:
        if self.is_local:  # also what a killed upload left
            gone = [self._files.unlink_if_exists(each) for each in (path + _TEMPORARY, path)]
            if any(gone):
                self._files.sync_dir(os.path.dirname(path))
            return
        with suppress(FileNotFoundError):
            self._asked("rm_file", path)

    # --- reading -----------------------------------------------------------------------------------------

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes [start, end) of an object, which must have them; without `end`, all from `start` on."""
        if end is not None and end <= start:
            return b""
        data = self._tried("get", key, lambda: self._get(key, start, end))
        self._take(self._downloads, len(data), self.shown(key))
        return data

    def _get(self, key: str, start: int, end: int | None) -> bytes:
        # An empty object has no byte 0: some storages refuse a range of it, but return the whole object.
        begin = None if start == 0 and end is None else start
        try:
            found: bytes = self._asked("cat_file", self.path(key), start=begin, end=end)
        except Exception as error:
            if end is None or not is_behind_end(error):
                raise
            raise self._cut(key, 0, start, end) from error
        if end is not None and len(found) != end - start:
            raise self._cut(key, len(found), start, end)
        return found

    def _cut(self, key: str, found: int, start: int, end: int) -> RemoteStorageException:
        """Returns the error for an answer that is too short; it is final if the object itself is too short."""
        size = end
        with suppress(Exception):
            size = int(self._asked("info", self.path(key))["size"])
        if size < end:
            return RemoteStorageException(
                f"the object has {size} bytes, expected at least {end}",
                path=self.shown(key),
                hint="the object was damaged or replaced: restore the one that was copied",
            )
        return RetriableRemoteStorageException(
            f"the storage returned {found} bytes from byte {start} on, expected {end - start}", path=self.shown(key)
        )

    def each_part(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes [start, end) of an object as they arrive, for a caller that copies it.

        For S3 they come from one request, which is continued if it breaks off.
        """
        stream: s3_streams.Stream | None = None
        at = start

        def part() -> bytes:
            nonlocal stream
            if not self._is_s3:
                return self._get(key, at, min(at + GET_BYTES, end))
            try:
                if stream is None:
                    try:
                        stream = s3_streams.Stream(self.fs, self.path(key), at, end, self.timeout_s)
                    except Exception as error:
                        if not is_behind_end(error):
                            raise
                        raise self._cut(key, 0, at, end) from error
                    if stream.size != end - at:
                        raise self._cut(key, stream.size, at, end)
                data = stream.read(READ_BYTES)
                if not data:
                    raise self._cut(key, 0, at, end)
                return data
            except BaseException:
                if stream is not None:
                    stream.close()
                stream = None
                raise

        try:
            while at < end:
                data = self._tried("get", key, part)
                self._take(self._downloads, len(data), self.shown(key))
                at += len(data)
                yield data
        finally:
            if stream is not None:
                stream.close()

    def size(self, key: str) -> int:
        """Returns the size of an object in bytes; raises RemoteResourceNotFoundException."""
        return int(self._tried("look at", key, lambda: self._asked("info", self.path(key)))["size"])

    def check_put(self, key: str, size: int) -> None:
        """Checks an object that was put before others of its upload; RetriableRemoteStorageException if it no longer
        exists."""
        with suppress(RemoteResourceNotFoundException):
            if self.size(key) == size:
                return
        raise RetriableRemoteStorageException(
            f"expected an object of {size} bytes: it was deleted before its upload was complete",
            path=self.shown(key),
        )

    def folders(self, prefix: str = "") -> list[str]:
        """Returns the keys of the directories in a directory, in order."""
        return [key for key, size in self._listed(prefix) if size is None]

    def modified_s(self, key: str) -> float:
        """Returns when an object was put, in seconds since 1970; the current time if the storage does not say."""
        found = self._tried("look at", key, lambda: self._asked("info", self.path(key)))
        said = next(
            (found[name] for name in ("LastModified", "last_modified", "mtime", "created") if found.get(name)), None
        )
        if said is None:
            return time.time()
        return float(said.timestamp() if hasattr(said, "timestamp") else said)

    def within(self, prefix: str = "") -> list[Object]:
        """Returns the objects directly in a directory, by key, without what killed uploads left."""
        return sorted(set(self.each_within(prefix)))

    def each_within(self, prefix: str = "") -> Iterator[Object]:
        """Yields the objects of `within` unsorted.

        Listings of S3 and Azure are requested page by page, so that no long listing is in memory completely.  One that
        fails in the middle begins again and yields some objects twice.
        """
        folder = self.path(prefix).rstrip("/")
        pages: Iterator[list[Object]] | None = None
        taken = 0

        def page() -> list[Object]:
            nonlocal pages
            try:
                if pages is not None:
                    return next(pages, [])
                pages = self._pages(folder)
                return [each for found in islice(pages, taken + 1) for each in found]
            except BaseException:
                pages = None  # an error ends a generator
                raise

        while found := self._tried("list", prefix, page):
            taken += 1
            yield from found

    def left_behind(self, prefix: str = "") -> list[Object]:
        """Returns the temporary files that killed uploads left in a local directory."""
        return [
            Object(key, size) for key, size in self._listed(prefix) if size is not None and key.endswith(_TEMPORARY)
        ]

    def _listed(self, prefix: str) -> list[tuple[str, int | None]]:
        folder, cut = self.path(prefix).rstrip("/"), len(self._lead)
        found = self._tried("list", prefix, lambda: self._ls(folder))
        return sorted(
            (each["name"].rstrip("/")[cut:], None if each["type"] == "directory" else int(each["size"]))
            for each in found
            if each["name"].rstrip("/") != folder
        )

    def _ls(self, folder: str) -> list[dict[str, Any]]:
        # its client's listing also requests neighboring directories, and does not detect a missing container
        if self._is_azure:
            from fsspec.asyn import sync

            async def whole() -> list[dict[str, Any]]:
                return [each async for each in self._azure_listing(folder)]

            listed: list[dict[str, Any]] = sync(self.fs.loop, whole, timeout=self.timeout_s)
            return listed
        try:
            found: list[dict[str, Any]] = self._asked("ls", folder or self._lead, detail=True)
        except FileNotFoundError as error:
            if not self.is_local and self._no_bucket.search(f"{error} {error.__cause__ or ''}"):
                raise
            return []
        return found

    def _pages(self, folder: str) -> Iterator[list[Object]]:
        """Yields the objects of a directory in parts, none of them empty."""
        cut = len(self._lead)
        if self._is_s3 or self._is_azure:
            yield from self._client_pages(folder, cut)
            return
        if self.is_local:  # needs fewer system calls than the client's listing
            yield from self._local_pages(folder, cut)
            return
        found = [
            Object(each["name"].rstrip("/")[cut:], int(each["size"]))
            for each in self._ls(folder)
            if each["type"] != "directory" and each["name"].rstrip("/") != folder
        ]
        if found := [each for each in found if not each.key.endswith(_TEMPORARY)]:
            yield found

    def _local_pages(self, folder: str, cut: int) -> Iterator[list[Object]]:
        try:
            names = [name for name in self._files.listing(folder).files if not name.endswith(_TEMPORARY)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for at in range(0, len(names), PAGE_OBJECTS):
            found = []
            for name in names[at : at + PAGE_OBJECTS]:
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    found.append(Object(f"{folder}/{name}"[cut:], self._files.size_of(f"{folder}/{name}")))
            if found:
                yield found

    async def _azure_listing(self, folder: str) -> AsyncIterator[dict[str, Any]]:
        container, key, _ = self.fs.split_path(folder)
        async with self.fs.service_client.get_container_client(container) as client:
            begin = f"{key}/" if key else None
            async for each in client.walk_blobs(begin, include=["metadata"], results_per_page=PAGE_OBJECTS):
                metadata = getattr(each, "metadata", None) or {}
                is_folder = not hasattr(each, "size") or metadata.get("hdi_isfolder") == "true"
                kind, size = ("directory", None) if is_folder else ("file", each.size)
                yield {"name": f"{container}/{each.name}", "type": kind, "size": size}

    def _client_pages(self, folder: str, cut: int) -> Iterator[list[Object]]:
        from fsspec.asyn import sync

        bucket, key, _ = self.fs.split_path(folder)
        if self._is_s3:
            listed = self.fs._iterdir(bucket, prefix=f"{key}/" if key else "")
        else:
            listed = self._azure_listing(folder)

        async def page() -> list[Object]:
            found: list[Object] = []
            async for each in listed:
                if each["type"] != "directory" and each["name"].rstrip("/") != folder:
                    found.append(Object(each["name"][cut:], int(each["size"])))
                if len(found) == PAGE_OBJECTS:
                    break
            return found

        try:
            while found := sync(self.fs.loop, page, timeout=self.timeout_s):
                yield found
        except Exception as error:
            if type(error).__name__ != "ClientError":
                raise
            from s3fs.errors import translate_boto_error  # as its own listing does

            raise translate_boto_error(error) from error

    def open_local(self, key: str) -> File | None:
        """Opens the object as a file of this machine, to be read; returns None if it is elsewhere."""
        if not self.is_local:
            return None
        try:
            return self._files.open(self.path(key), writable=False)
        except FileNotFoundError as error:
            raise RemoteResourceNotFoundException("the object does not exist", path=self.shown(key)) from error

    # --- errors -------------------------------------------------------------------------------------------

    def _asked(self, request: str, path: str, **how: Any) -> Any:
        """Returns the file system's answer to one request; raises TimeoutError if it does not come in time."""
        if getattr(self.fs, "async_impl", False):
            from fsspec.asyn import sync

            return sync(self.fs.loop, getattr(self.fs, f"_{request}"), path, timeout=self.timeout_s, **how)
        return getattr(self.fs, request)(path, **how)

    def _tried(self, doing: str, key: str, request: Callable[[], T]) -> T:
        began, failed = time.monotonic(), 0
        while True:
            try:
                return request()
            except RetriableRemoteStorageException as error:
                last: Exception = error
            except KafkalogError:
                raise  # an error of the local file, or a final one
            except Exception as error:  # each client has error classes of its own
                last = error
                if type(error) is RuntimeError and isinstance(error.__cause__, Exception):
                    last = error.__cause__  # adlfs hides each failure in a part of an upload in a RuntimeError
                final = self._final(doing, key, last)
                if final is not None:
                    raise final from self._cause(last)
            failed += 1
            shown, told = self.shown(key), self._told(last)
            gives_up = failed >= self.retries.attempts or self._given_up.is_set()
            if not gives_up:
                pause_s = self.retries.pause_s(failed)
                _log.warning(
                    "%s of %s failed (attempt %d of %d), it is tried again in %.1f s: %s",
                    doing, shown, failed, self.retries.attempts, pause_s, told,
                )  # fmt: skip
                gives_up = self._given_up.wait(pause_s)
            if gives_up:
                tries = f"tried {failed} times in {time.monotonic() - began:.1f} s"
                message = f"cannot {doing} the object, {tries}: {told}"
                raise RetriableRemoteStorageException(message, path=shown) from self._cause(last)

    def _final(self, doing: str, key: str, error: Exception) -> KafkalogError | None:
        """Returns the error that another try would meet as well; None for a failure that may pass."""
        shown, told = self.shown(key), self._told(error)
        kind = type(error).__name__
        if not self.is_local and self._no_bucket.search(f"{error} {error.__cause__ or ''}"):
            bucket = self.root.lstrip("/").partition("/")[0]
            return RemoteStorageException(
                f"the bucket {bucket!r} does not exist",
                path=self.url,
                hint="create it, or correct the address, or the endpoint in the options",
            )
        if isinstance(error, FileNotFoundError):
            return RemoteResourceNotFoundException("the object does not exist", path=shown)
        if isinstance(error, (ValueError, TypeError, NameError, AttributeError)) or kind == "ParamValidationError":
            option = self._options.named_in(str(error))
            if option is not None:
                return IllegalArgumentException(f"{self.url}: the storage client refuses the option {option}: {told}")
            return RemoteStorageException(f"cannot {doing} the object: {told}", path=shown)
        if isinstance(error, _FINAL) or _is_forbidden(error):
            return RemoteStorageException(f"cannot {doing} the object: {told}", path=shown)
        if kind in NO_CREDENTIALS:
            return RemoteStorageException(
                f"cannot {doing} the object: {told}",
                path=shown,
                hint="give credentials by the storage client's environment variables, its files, or options",
            )
        return None

    def _told(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"{type(error).__name__}: no answer in {self.timeout_s:g} s"
        return _told(error, self._options)

    def _cause(self, error: Exception) -> Exception | None:
        """Returns the client's error, unless it shows a secret."""
        return error if self._options.hidden(str(error)) == str(error) else None

    def close(self) -> None:
        """Ends waiting for rate limits and retries; connections belong to the client."""
        self._given_up.set()


def _is_forbidden(error: Exception) -> bool:
    """Returns whether access is denied, which adlfs and gcsfs do not report as PermissionError."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return status in (401, 403) or (type(error) is OSError and str(error).startswith("Forbidden"))


def _told(error: BaseException, options: ClientOptions | None = None) -> str:
    if isinstance(error, RemoteStorageException):
        return error.message
    text = " ".join(str(error).split())
    text = (text if options is None else options.hidden(text))[:500]  # a client may print a whole page
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def parts_of(file: File, size: int, part_bytes: int = READ_BYTES, begin: int = 0) -> Iterator[bytes]:
    """Yields the bytes [begin, size) of a file in parts; raises KafkaStorageException if it has fewer."""
    for at in range(begin, size, part_bytes):
        want = min(part_bytes, size - at)
        part = file.pread(want, at)
        if len(part) != want:
            raise KafkaStorageException(f"the file has {at + len(part)} bytes, expected {size}", path=file.path)
        yield part


def _give_back() -> None:
    """Makes the allocator return free memory to the system.

    The last part of each upload leaves a hole into which no whole part fits.  Without this call, memory would grow by a
    part an object.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # a function of glibc
    if trim is not None:
        trim(0)
