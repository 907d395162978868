"""Where objects lie: any storage that fsspec knows (`file:`, `memory:`, `s3:`, `gs:`, `abfs:` ...), made dependable.

    objects = Objects.at("s3://bucket/prefix")
    objects.put("a/b.log", [b"..."]); objects.get("a/b.log", 0, 3)

An object is there whole or not at all: an upload is committed at its end, and one that fails is given up.  A request
that fails is tried again, with growing random pauses and a WARNING each, unless the answer is that there is no such
object, no such bucket, no right to it, or that the client takes no such option.  What comes back must have the length
that was asked for, and what was put the length that was given.

Objects of `file:` are written as all durable files here: beside, synced, renamed, the folder synced.  Of the others the
storage's own promise counts.  A request waits `timeout_s` at the most, then it counts as failed; a part of an upload to
S3, Google or Azure as long, and what its bytes take; other uploads wait as long as their client does.  fsspec is
imported when a place is opened: `pip install kafkalog[remote]`, or `kafkalog[s3]` and the like for a client with it.
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

GET_BYTES = 12 << 20  # of an object that is copied
READ_BYTES = 1 << 20  # of a local file: larger pieces are new memory of the system's each time, which costs more
SIDE_BY_SIDE = 4  # requests
PAGE_OBJECTS = 1000  # of a listing, as S3 has them
_TEMPORARY = ".kafkalog_upload"
_log = Lines("kafkalog.remote")

_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
HASTY_ATTEMPTS, HASTY_TIMEOUT_S = 2, 7.0


class Retries(NamedTuple):
    """How often a request is tried, and the pauses between: a random part of one that doubles."""

    attempts: int = 6
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def pause_s(self, failed: int) -> float:
        """After so many failures."""
        doubled = self.first_pause_s * 2.0 ** min(failed - 1, 64)  # a float ends at 2.0 ** 1023
        return random.uniform(0.5, 1.0) * min(self.longest_pause_s, doubled)


class RateLimit:
    """At most so many bytes a second, over all threads: each waits until the bytes before it have had their time."""

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise IllegalArgumentException(f"found {bytes_per_s} bytes a second, expected more than 0, or None")
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int, given_up: threading.Event) -> bool:
        """Waits until so many bytes may go; False where they are given up before, and take no time of the others'."""
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

    # More than eight parameters: what it stands on, and they are named.
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
        self._lead = f"{self.root}/" if self.root or fs.root_marker == "/" else ""  # what each path begins with
        self.url = url.rstrip("/")
        self.retries = retries or Retries()
        self.timeout_s = timeout_s
        self._uploads = RateLimit(upload_bytes_per_s)
        self._downloads = RateLimit(download_bytes_per_s)
        self._files = files
        self._options = ClientOptions(options or {})
        self._given_up = threading.Event()  # nobody waits any more
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
        self._large = threading.Lock()  # one file at a time is on its way in parts: they fill the line, and the memory

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Objects:
        """`options` are the file system's own (`key`, `secret`, `endpoint_url` ...); they are never logged.

        MissingPackageException where the scheme's client is not installed, IllegalArgumentException for a scheme that
        nobody knows.
        """
        try:
            import fsspec
        except ImportError as error:
            raise MissingPackageException(
                "the remote tier wants fsspec", hint="pip install 'kafkalog[remote]', or kafkalog[s3] and the like"
            ) from error
        given_scheme, colon, rest = url.partition("://")
        scheme = given_scheme.lower() if colon else "file"
        protocol = "abfs" if scheme == "abfss" else scheme  # whose client always uses TLS
        if colon:
            url = f"{protocol}://{rest}"
        given = dict(options or {})
        if scheme in ("s3", "s3a"):
            timeout_s, attempts = settings.get("timeout_s", 60.0), (settings.get("retries") or Retries()).attempts
            # Attempts are ours; the client's own are for a part of an upload that meets a hiccup.
            own = {"connect_timeout": min(10, timeout_s), "retries": {"total_max_attempts": min(attempts, 2)}}
            given.setdefault("max_concurrency", 1)  # else it asks for the size of each object that is read whole
            given.setdefault("config_kwargs", {"read_timeout": timeout_s, **own})
        if scheme != "file":
            given.setdefault("use_listings_cache", False)
        try:
            # Not `url_to_fs`, which takes a name with `::` for several addresses.
            try:
                client = fsspec.get_filesystem_class(protocol)
            except ValueError as error:
                raise IllegalArgumentException(
                    f"{url}: no storage client has the scheme {scheme!r} ({error})",
                    hint="check the address; s3://bucket/prefix is one, as are gs://, abfs:// and file://",
                ) from None
            fs, root = client(**{**client._get_kwargs_from_urls(url), **given}), client._strip_protocol(url)
        except ImportError as error:
            extra = EXTRAS.get(scheme, "remote")
            raise MissingPackageException(
                f"{scheme}:// wants a package that is not installed: {error}", hint=f"pip install 'kafkalog[{extra}]'"
            ) from error
        except IllegalArgumentException:
            raise
        except Exception as error:  # each client has errors of its own
            told = _told(error, ClientOptions(given))
            if isinstance(error, (ValueError, TypeError)):
                raise IllegalArgumentException(f"{url}: {told}") from None
            raise RemoteStorageException(f"cannot reach the storage: {told}", path=url) from None
        if scheme in BOUND:
            BOUND[scheme](fs, settings.get("timeout_s", 60.0))
        return cls(fs, root, url=url, options=given, **settings)

    def hasty(self, attempts: int = HASTY_ATTEMPTS) -> Objects:
        """The same for who asks first, or is waited for: a storage that does not answer is soon given up."""
        made = copy.copy(self)
        made.retries = self.retries._replace(attempts=min(self.retries.attempts, attempts))
        made.timeout_s = min(self.timeout_s, HASTY_TIMEOUT_S)
        return made

    def until(self, given_up: threading.Event) -> Objects:
        """The same for who may give up: from then on nobody waits for a limit, nor for another try."""
        made = copy.copy(self)
        made._given_up = given_up
        return made

    def path(self, key: str) -> str:
        """A key as the file system has it."""
        return self._lead + key

    def shown(self, key: str) -> str:
        """As messages name an object."""
        return f"{self.url}/{key}"

    # --- writing -----------------------------------------------------------------------------------------

    def put(self, key: str, make_parts: Callable[[], Iterable[Buffer]], *, syncs_name: bool = True) -> int:
        """Puts an object, in the place of one of that key; its bytes.  `make_parts` is called anew for each try.
        Without `syncs_name` a folder of this machine is not synced: one sync, that of a later put, does for several."""
        return self._tried("put", key, lambda: self._put(key, make_parts(), syncs_name))

    def put_file(self, key: str, source: str, size: int | None = None, *, syncs_name: bool = True) -> int:
        """Puts a local file as an object; its bytes.  `size`: how many it must have; None for what it has.

        KafkaStorageException where the file cannot be read, or is another one.
        """
        found = self._source_size(source)
        if size is not None and found != size:
            raise KafkaStorageException(f"found {found} bytes, expected {size}: nothing is uploaded", path=source)
        # A client's own way is the faster one, but would wait for the limit in the thread that serves all requests.
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
                    raise RetriableRemoteStorageException("given up while it waited for its turn", path=self.shown(key))
                if self._is_s3:
                    s3_streams.put_in_parts(self.fs, path, file, size, self.side_by_side)
                else:
                    self.fs.put_file(source, path, **self._put_settings)
                    _give_back()
        return self._checked_put(key, path, size)

    def side_by_side(self, puts: Sequence[Callable[[], T]]) -> list[T]:
        """Does some puts at once, where requests wait for a line; on this machine one after the other.  What each
        returned, in order.  All have ended when it returns, or raises what the first that failed did."""
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
        """The bytes [begin, size) of a local file, in parts; errors as `put_file`."""
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
                f"found {found} bytes of an object that was put, expected {count}", path=self.shown(key)
            )
        return count

    def _put_remotely(self, path: str, parts: Iterable[Buffer]) -> int:
        file = self.fs.open(path, "wb", block_size=PART_BYTES)
        count = 0
        try:
            for part in self._limited(path, parts):
                file.write(part)
                count += len(part)
            file.close()  # only this makes it an object
        except BaseException:
            with suppress(Exception):
                file.closed = True  # else it becomes one when it is collected
            with suppress(Exception):  # the parts that came there are garbage until the storage clears them away
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
                f"given up while it waited for the limit of {limit.bytes_per_s:g} bytes a second", path=path
            )

    def _copy(self, key: str, source: str, size: int, syncs_name: bool) -> int:
        """A put of a local file to a folder: by the system's own call, as far as that goes."""

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
        temporary = path + _TEMPORARY  # whoever deletes the object knows it, and no two ever put the same one at once
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
        """Removes objects; fine where there are none.  `folders`: so many folders above them go, too, once they are
        empty; in a bucket a folder is nothing but the beginning of keys."""
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
        if self.is_local:  # and what an upload that was killed left
            gone = [self._files.unlink_if_exists(each) for each in (path + _TEMPORARY, path)]
            if any(gone):
                self._files.sync_dir(os.path.dirname(path))
            return
        with suppress(FileNotFoundError):
            self._asked("rm_file", path)

    # --- reading -----------------------------------------------------------------------------------------

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes [start, end) of an object, all of which it must have; without `end` all from `start` on."""
        if end is not None and end <= start:
            return b""
        data = self._tried("get", key, lambda: self._get(key, start, end))
        self._take(self._downloads, len(data), self.shown(key))
        return data

    def _get(self, key: str, start: int, end: int | None) -> bytes:
        # An object of no bytes has no byte 0: some storages refuse a range of it, yet give all of it.
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
        """Of an answer that is too short: final where the object is."""
        size = end
        with suppress(Exception):
            size = int(self._asked("info", self.path(key))["size"])
        if size < end:
            return RemoteStorageException(
                f"found {size} bytes in all, expected at least {end}",
                path=self.shown(key),
                hint="the object was damaged, or replaced: put the one that was copied in its place",
            )
        return RetriableRemoteStorageException(
            f"found {found} bytes from byte {start} on, expected {end - start}", path=self.shown(key)
        )

    def each_part(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end) of an object as they come, for who copies it.  Those of S3 are one request's, which
        goes on where it broke off."""
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
        """An object's bytes; RemoteResourceNotFoundException."""
        return int(self._tried("look at", key, lambda: self._asked("info", self.path(key)))["size"])

    def check_put(self, key: str, size: int) -> None:
        """An object that was put before others of its upload: RetriableRemoteStorageException where it is gone."""
        with suppress(RemoteResourceNotFoundException):
            if self.size(key) == size:
                return
        raise RetriableRemoteStorageException(
            f"expected {size} bytes of an object that was put: somebody deleted it before its upload was whole",
            path=self.shown(key),
        )

    def folders(self, prefix: str = "") -> list[str]:
        """The keys of the folders in a folder, in order."""
        return [key for key, size in self._listed(prefix) if size is None]

    def modified_s(self, key: str) -> float:
        """When an object was put, in seconds since 1970; now, where the storage does not say."""
        found = self._tried("look at", key, lambda: self._asked("info", self.path(key)))
        said = next(
            (found[name] for name in ("LastModified", "last_modified", "mtime", "created") if found.get(name)), None
        )
        if said is None:
            return time.time()
        return float(said.timestamp() if hasattr(said, "timestamp") else said)

    def within(self, prefix: str = "") -> list[Object]:
        """The objects in a folder (not in those below it), by key.  What an upload that was killed left is none."""
        return sorted(set(self.each_within(prefix)))

    def each_within(self, prefix: str = "") -> Iterator[Object]:
        """The same as they come.  Those of S3 and Azure are asked for page by page, so that no long listing is in
        memory as a whole; one that fails in the middle begins anew, and names some objects twice."""
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
                pages = None  # it has ended with its error
                raise

        while found := self._tried("list", prefix, page):
            taken += 1
            yield from found

    def left_behind(self, prefix: str = "") -> list[Object]:
        """What uploads to a local folder that were killed left there."""
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
        if self._is_azure:  # its client's own listing asks for the folders beside, too, and knows no missing container
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
        """The objects of a folder in parts, none of them empty."""
        cut = len(self._lead)
        if self._is_s3 or self._is_azure:
            yield from self._client_pages(folder, cut)
            return
        if self.is_local:  # asked for less than the client's listing tells of each file
            found = []
            try:
                for name in self._files.listing(folder).files:
                    with suppress(FileNotFoundError):  # it was deleted meanwhile
                        found.append(Object(f"{folder}/{name}"[cut:], self._files.size_of(f"{folder}/{name}")))
            except (FileNotFoundError, NotADirectoryError):
                return
        else:
            found = [
                Object(each["name"].rstrip("/")[cut:], int(each["size"]))
                for each in self._ls(folder)
                if each["type"] != "directory" and each["name"].rstrip("/") != folder
            ]
        if found := [each for each in found if not each.key.endswith(_TEMPORARY)]:
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
        """The object as a file of this machine, to be read; None where it lies elsewhere."""
        if not self.is_local:
            return None
        try:
            return self._files.open(self.path(key), writable=False)
        except FileNotFoundError as error:
            raise RemoteResourceNotFoundException("there is no such object", path=self.shown(key)) from error

    # --- what goes wrong ---------------------------------------------------------------------------------

    def _asked(self, request: str, path: str, **how: Any) -> Any:
        """The file system's answer to one request; TimeoutError where it does not come in time."""
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
                raise  # of the file that is to be put, or final
            except Exception as error:  # each client has errors of its own
                last = error
                if type(error) is RuntimeError and isinstance(error.__cause__, Exception):
                    last = error.__cause__  # adlfs has all that fails in a part of an upload behind one
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
        """What another try would meet as well; None for what may pass."""
        shown, told = self.shown(key), self._told(error)
        kind = type(error).__name__
        if not self.is_local and self._no_bucket.search(f"{error} {error.__cause__ or ''}"):
            bucket = self.root.lstrip("/").partition("/")[0]
            return RemoteStorageException(
                f"the bucket {bucket!r} does not exist",
                path=self.url,
                hint="create it, or mend the address, or the endpoint in the options",
            )
        if isinstance(error, FileNotFoundError):
            return RemoteResourceNotFoundException("there is no such object", path=shown)
        if isinstance(error, (ValueError, TypeError, NameError, AttributeError)) or kind == "ParamValidationError":
            option = self._options.named_in(str(error))
            if option is not None:
                return IllegalArgumentException(f"{self.url}: the storage's client refuses the option {option}: {told}")
            return RemoteStorageException(f"cannot {doing} the object: {told}", path=shown)
        if isinstance(error, _FINAL) or _is_forbidden(error):
            return RemoteStorageException(f"cannot {doing} the object: {told}", path=shown)
        if kind in NO_CREDENTIALS:
            return RemoteStorageException(
                f"cannot {doing} the object: {told}",
                path=shown,
                hint="give credentials: the storage client's environment, its files, or options",
            )
        return None

    def _told(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"{type(error).__name__}: no answer in {self.timeout_s:g} s"
        return _told(error, self._options)

    def _cause(self, error: Exception) -> Exception | None:
        """The client's error, unless it shows what is hidden."""
        return error if self._options.hidden(str(error)) == str(error) else None

    def close(self) -> None:
        """From now on nobody waits for a limit, nor for another try; connections are the client's."""
        self._given_up.set()


def _is_forbidden(error: Exception) -> bool:
    """adlfs and gcsfs have no PermissionError."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return status in (401, 403) or (type(error) is OSError and str(error).startswith("Forbidden"))


def _told(error: BaseException, options: ClientOptions | None = None) -> str:
    if isinstance(error, RemoteStorageException):
        return error.message
    text = " ".join(str(error).split())
    text = (text if options is None else options.hidden(text))[:500]  # a client may print a page
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def parts_of(file: File, size: int, part_bytes: int = READ_BYTES, begin: int = 0) -> Iterator[bytes]:
    """The bytes [begin, size) of a file, in parts; KafkaStorageException where it has fewer."""
    for at in range(begin, size, part_bytes):
        want = min(part_bytes, size - at)
        part = file.pread(want, at)
        if len(part) != want:
            raise KafkaStorageException(f"found {at + len(part)} bytes, expected {size}", path=file.path)
        yield part


def _give_back() -> None:
    """Has the allocator give free memory back to the system: the last part of each upload leaves a hole where no whole
    part fits in, and with them memory would grow by a part an object."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
