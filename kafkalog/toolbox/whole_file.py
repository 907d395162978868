"""A file that gets its name once all of it is written and on disk, so that a failure leaves nothing half done.

Knows nothing of the contents.  Not thread-safe.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import Files, parent_dir
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from typing_extensions import Buffer


class WholeFile:
    """A file that gets its name once all of it is written and on disk; a context manager.

    It accepts bytes inside the block.  At the end of the block the file exists; after an error the temporary file is
    removed."""

    def __init__(self, files: Files, path: str, *, force: bool) -> None:
        self._files = files
        self._force = force
        self.path = path
        self.temporary = os.path.join(parent_dir(path), f".{os.path.basename(path)}.{os.getpid()}.tmp")
        self.size = 0
        self.crc32c = 0  # covers everything written
        self.closed = False

    def __enter__(self) -> WholeFile:
        self._file = self._files.open(self.temporary, create=True)
        if self._file.size():
            self._file.truncate(0)  # left by a killed process with the same id
        return self

    def write(self, data: Buffer) -> int:
        """Writes bytes.  After a failure, what a library still writes is ignored."""
        view = memoryview(data).cast("B")
        if not self.closed:
            try:
                self._file.pwrite(view, self.size)
            except BaseException:
                self.closed = True
                raise
            self.size += len(view)
            self.crc32c = crc32c(view, self.crc32c)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: no bytes are held back."""

    def close(self) -> None:
        """Does nothing: the end of the block closes the file."""

    def __exit__(self, kind: object, error: object, at: object) -> None:
        done = False
        try:
            if kind is None:
                self._file.sync()
                self._file.close()
                refuse_existing(self._files, self.path, force=self._force)
                self._files.rename(self.temporary, self.path)
                done = True
                self._files.sync_dir(parent_dir(self.path))
        finally:
            self.closed = True
            if not done:
                self._file.close()
                with contextlib.suppress(OSError):
                    self._files.unlink(self.temporary)


def refuse_existing(files: Files, path: str, *, force: bool) -> None:
    """Raises IllegalArgumentException if the name is taken, unless it may be replaced; a directory never may."""
    if files.is_dir(path):
        raise IllegalArgumentException("a directory has the file's name", path=path, hint="choose another target")
    if not force and (files.exists(path) or files.is_link(path)):
        raise IllegalArgumentException("the file exists already", path=path, hint="use --force to replace it")
