"""The id of the cluster that a store's server says it is.

It is that of a broker's `meta.properties`, if a directory has one, so that clients see the same cluster before and
after.  Otherwise it is made once, and kept next to the data in `.kafkalog_cluster`, which a broker ignores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import IllegalArgumentException, new_uuid, parse_uuid
from kafkalog.engine.format.meta_properties import read_meta_properties
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import CorruptCheckpointException, KafkalogError

_HINT = "delete the file to get a new cluster id"
_BYTES_MAX = 1000


def cluster_id_of(log_dirs: Sequence[str], files: Files) -> str:
    """Returns the id, which is made and stored if there is none.  KafkaStorageException; CorruptCheckpointException if
    a file that has it cannot be read."""
    for log_dir in log_dirs:
        with contextlib.suppress(FileNotFoundError):
            found = read_meta_properties(os.path.join(log_dir, names.META_PROPERTIES_FILE), files).cluster_id
            if found:
                return found
    for log_dir in log_dirs:
        kept = _kept(os.path.join(log_dir, names.CLUSTER_ID_FILE), files)
        if kept is not None:
            return kept
    made = new_uuid()
    _keep(os.path.join(log_dirs[0], names.CLUSTER_ID_FILE), made, files)
    return made


def _kept(path: str, files: Files) -> str | None:
    try:
        text = read_small(path, files, bytes_max=_BYTES_MAX, hint=_HINT).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    try:
        return parse_uuid(text)
    except (IllegalArgumentException, KafkalogError):
        raise CorruptCheckpointException(f"found {text[:40]!r}, expected a Uuid", path=path, hint=_HINT) from None


def _keep(path: str, cluster_id: str, files: Files) -> None:
    temporary = path + ".tmp"
    files.write_file(temporary, f"{cluster_id}\n".encode(), sync=True)
    try:
        files.rename(temporary, path)
    except OSError:
        files.unlink_if_exists(temporary)
        raise
