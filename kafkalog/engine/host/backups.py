"""What makes a folder a backup, for all who write to log directories: into one of a backup nobody does.

A backup's `manifest.json` names every file with its checksum, and backups share files by hard links: who opens a log
directory of one to write makes that one, and perhaps others, what a restore calls damaged.  The whole manifest is
`kafkalog.toolbox.backup_manifest`'s; here is how one is known.
"""

from __future__ import annotations

import os

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import IllegalArgumentException, KafkalogError

MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 4 << 30  # some hundred bytes a file
FORMAT = "kafkalog backup"


def is_backup(path: str, files: Files = OS_FILES) -> bool:
    """Whether a folder has a manifest: only a backup that is whole has."""
    return files.exists(os.path.join(path, MANIFEST_FILE))


def refuse_in_backup(log_dir: str, files: Files) -> None:
    """IllegalArgumentException if a log directory is a backup's.  One look, where there is no manifest."""
    above, folder = os.path.split(os.path.realpath(log_dir))
    if not files.is_dry and is_backup(above, files) and folder in _folders(above, files):
        raise IllegalArgumentException(
            "found a directory of a backup, expected another: what writes to it changes what the backup holds, and "
            "earlier and later backups may share its files",
            path=log_dir,
            hint=f"first `kafkalog restore {above} NEW_DIR --yes`, then do it there; read_only=True and the commands "
            "that only read look at it as it is",
        )


def _folders(path: str, files: Files) -> list[object]:
    """The log directories of a backup; none where the manifest is somebody else's, or none."""
    import json  # which an open does not need

    try:
        content = json.loads(read_small(os.path.join(path, MANIFEST_FILE), files, bytes_max=MANIFEST_BYTES_MAX))
        return [each["folder"] for each in content["directories"]] if content["format"] == FORMAT else []
    except (KafkalogError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
