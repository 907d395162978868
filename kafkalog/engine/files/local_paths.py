"""Checks that a path from a caller is on this machine's disk.

`s3a://bucket/logs` is also a valid name for a new directory, so every public function checks here before it creates or
reads anything.  A scheme is at the beginning (`s3a:`); a colon after a slash is part of a name.
"""

from __future__ import annotations

import os
import re

from kafkalog.engine.files.api import Files
from kafkalog.engine.files.mounts import OS_FILES
from kafkalog.errors import IllegalArgumentException

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LOCAL_HOSTS = ("", "localhost")


def local_path(given: str | os.PathLike[str], *, what: str = "path", files: Files = OS_FILES) -> str:
    """Returns the local path for a caller's path or `file:` URI.

    `file:/x`, `file:///x` and `file://localhost/x` are percent-decoded.  An existing relative path with a colon
    (`2026:11`) is taken as it is; for a new one called `s3a:` write `./s3a:`.

    Args:
        given: A path, or a `file:` URI.
        what: The name of the argument, for errors.
        files: The file operations to use.

    Returns:
        The path as text.

    Raises:
        IllegalArgumentException: The path has another scheme, or a NUL.
        TypeError: `given` is no path.

    Example:
        >>> from kafkalog.engine.files import local_path
        >>> local_path("file:///disk1/kafka%20logs")
        '/disk1/kafka logs'
    """
    text = os.fsdecode(given)
    if "\0" in text:
        raise IllegalArgumentException(f"{what}: found {text!r}, expected a path without a NUL")
    found = _SCHEME.match(text)
    if found is None:
        return text
    scheme, rest = found[1], text[found.end() :]
    if scheme.lower() == "file" and not files.owns(text):
        return _of_file_uri(text, rest, what)
    if files.owns(text) or (not rest.startswith("/") and files.exists(text)):
        return text
    raise IllegalArgumentException(
        f"{what}: found {text}, expected a mounted directory, a path of this machine, not the scheme {scheme}:",
        hint=f"mount the store, or copy the files here; for a local directory of this name write ./{text}",
    )


def _of_file_uri(text: str, rest: str, what: str) -> str:
    from urllib.parse import unquote_to_bytes

    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host.lower() not in _LOCAL_HOSTS or not path.startswith("/"):
        raise IllegalArgumentException(
            f"{what}: found {text}, expected an absolute path after file:, such as file:///disk1/kafka-logs",
            hint="omit file: for a path that is relative to the working directory",
        )
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))
