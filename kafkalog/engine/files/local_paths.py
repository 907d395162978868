"""The one check of a path that somebody gives: whether it is of this machine's disk.

`s3a://bucket/logs` is a good name for a new folder, too, and so every door asks here before it makes or reads anything.
A scheme begins a text (`s3a:`); a colon further on, behind a slash, is a part of a name.
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
    """The local path that is meant: what is given, or what `file:/x`, `file:///x` or `file://localhost/x` names
    (percent-decoded).  IllegalArgumentException for another scheme or a NUL, TypeError for what is no path.

    A folder that is there under a name with a colon (`2026:11`) is itself; one called `s3a:` is `./s3a:`.
    """
    text = os.fsdecode(given)
    if "\0" in text:
        raise IllegalArgumentException(f"{what}: found {text!r}, expected a path, which has no NUL")
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
        hint=f"mount the store, or copy the files here; for a local folder of this name write ./{text}",
    )


def _of_file_uri(text: str, rest: str, what: str) -> str:
    from urllib.parse import unquote_to_bytes

    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host.lower() not in _LOCAL_HOSTS or not path.startswith("/"):
        raise IllegalArgumentException(
            f"{what}: found {text}, expected an absolute path behind file:, such as file:///disk1/kafka-logs",
            hint="leave file: out for a path that begins in the working directory",
        )
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))
