"""The machine's files, together with mounted ones.

An address such as `s3://bucket/prefix`, or a local directory that continues in a remote tier, is served by another
`Files`:

    mount("s3://bucket/prefix", files)
    OS_FILES.list_dir("s3://bucket/prefix/orders-0")

A mount belongs to this process, and stays until it is removed.  Commands and Spark's workers, which read one place and
end, mount it first.  A program that embeds kafkalog passes `files` instead.  Without mounts, a path costs one check of
an empty list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.engine.files.os_files import OsFiles

if TYPE_CHECKING:
    from kafkalog.engine.files.api import File, FileLock, Files, FileStat, Listing, Looked

_mounts: list[tuple[str, Files]] = []  # replaced whole


def mount(place: str, files: Files) -> None:
    """Serves all paths below `place` with `files` from now on; replaces an earlier mount there."""
    global _mounts
    place = place.rstrip("/")
    _mounts = [(place, files), *((at, each) for at, each in _mounts if at != place)]


def unmount(place: str) -> None:
    """Removes a mount, if it exists."""
    global _mounts
    place = place.rstrip("/")
    _mounts = [(at, each) for at, each in _mounts if at != place]


def mounted(path: str) -> Files | None:
    """Returns the mounted files that serve a path; None if the machine does."""
    for place, files in _mounts:
        if path == place or path.startswith(place + "/"):
            return files
    return None


class MountedFiles(OsFiles):
    """The operating system's files, except for mounted paths."""

    __slots__ = ()

    def _is_alone(self, path: str) -> bool:
        return type(self) is MountedFiles and not (_mounts and mounted(path) is not None)

    def owns(self, path: str) -> bool:
        found = mounted(path)
        return found is not None and found.owns(path)

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:  # type: ignore[override]
        if _mounts and (other := mounted(path)) is not None:
            return other.open(path, writable=writable, create=create, exclusive=exclusive)
        return super().open(path, writable=writable, create=create, exclusive=exclusive)

    def open_sized(self, path: str, *, writable: bool = True, create: bool = False) -> tuple[File, int]:  # type: ignore[override]
        if _mounts and (other := mounted(path)) is not None:
            return other.open_sized(path, writable=writable, create=create)
        return super().open_sized(path, writable=writable, create=create)

    def exists(self, path: str) -> bool:
        if _mounts and (other := mounted(path)) is not None:
            return other.exists(path)
        return super().exists(path)

    def is_dir(self, path: str) -> bool:
        if _mounts and (other := mounted(path)) is not None:
            return other.is_dir(path)
        return super().is_dir(path)

    def is_link(self, path: str) -> bool:
        if _mounts and (other := mounted(path)) is not None:
            return other.is_link(path)
        return super().is_link(path)

    def is_readable(self, path: str) -> bool:
        if _mounts and (other := mounted(path)) is not None:
            return other.is_readable(path)
        return super().is_readable(path)

    def stat(self, path: str) -> FileStat:
        if _mounts and (other := mounted(path)) is not None:
            return other.stat(path)
        return super().stat(path)

    def glance(self, path: str) -> FileStat:
        if _mounts and (other := mounted(path)) is not None:
            return other.glance(path)
        return super().glance(path)

    def may_overlap(self, path: str) -> bool:
        return bool(_mounts) and (other := mounted(path)) is not None and other.may_overlap(path)

    def size_of(self, path: str) -> int:
        if _mounts and (other := mounted(path)) is not None:
            return other.size_of(path)
        return super().size_of(path)

    def list_dir(self, path: str) -> list[str]:
        if _mounts and (other := mounted(path)) is not None:
            return other.list_dir(path)
        return super().list_dir(path)

    def names_in(self, path: str) -> list[str]:
        if _mounts and (other := mounted(path)) is not None:
            return other.names_in(path)
        return super().names_in(path)

    def listing(self, path: str) -> Listing:
        if _mounts and (other := mounted(path)) is not None:
            return other.listing(path)
        return super().listing(path)

    def look_into(self, path: str, suffix: str) -> Looked | None:
        if _mounts and (other := mounted(path)) is not None:
            return other.look_into(path, suffix)
        return super().look_into(path, suffix)

    def glances(self, place: str, names: bytes) -> bytes | None:
        if any(at.startswith(place + "/") for at, _ in _mounts):
            return None
        if _mounts and (other := mounted(place)) is not None:
            return other.glances(place, names)
        return super().glances(place, names)

    def content(self, path: str, bytes_max: int) -> bytes | None:
        if _mounts and (other := mounted(path)) is not None:
            return other.content(path, bytes_max)
        return super().content(path, bytes_max)

    def has_inside(self, folder: str, name: str) -> bool:
        if _mounts and (other := mounted(folder)) is not None:
            return other.has_inside(folder, name)
        return super().has_inside(folder, name)

    def rename(self, src: str, dst: str) -> None:
        if _mounts and (other := mounted(src) or mounted(dst)) is not None:
            other.rename(src, dst)
        else:
            super().rename(src, dst)

    def link(self, src: str, dst: str) -> None:
        if _mounts and (other := mounted(src) or mounted(dst)) is not None:
            other.link(src, dst)
        else:
            super().link(src, dst)

    def unlink(self, path: str) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.unlink(path)
        else:
            super().unlink(path)

    def mkdirs(self, path: str) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.mkdirs(path)
        else:
            super().mkdirs(path)

    def rmdir(self, path: str) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.rmdir(path)
        else:
            super().rmdir(path)

    def sync_dir(self, path: str) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.sync_dir(path)
        else:
            super().sync_dir(path)

    def make_private(self, path: str) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.make_private(path)
        else:
            super().make_private(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        if _mounts and (other := mounted(path)) is not None:
            other.set_mtime_ms(path, mtime_ms)
        else:
            super().set_mtime_ms(path, mtime_ms)

    def read_bytes(self, path: str) -> bytes:
        if _mounts and (other := mounted(path)) is not None:
            return other.read_bytes(path)
        return super().read_bytes(path)

    def lock(self, path: str) -> FileLock:
        if _mounts and (other := mounted(path)) is not None:
            return other.lock(path)
        return super().lock(path)


OS_FILES = MountedFiles()
