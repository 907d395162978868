"""Recognizes backups, so that nothing opens a log directory of a backup to write to it.

A backup's `manifest.json` names every file with its checksum, and backups share files by hard links.  A process that
writes to a log directory of a backup damages that backup, and perhaps others; a restore then refuses it.
`kafkalog.toolbox.backup_manifest` reads and writes the whole manifest; this module only tells whether there is one.
"""

from __future__ import annotations

import os

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import IllegalArgumentException, KafkalogError

MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 4 << 30  # a file takes some hundred bytes
FORMAT = "kafkalog backup"


def is_backup(path: str, files: Files = OS_FILES) -> bool:
    """Returns whether a directory has a manifest.  Only a complete backup has one."""
    return files.exists(os.path.join(path, MANIFEST_FILE))


def refuse_in_backup(log_dir: str, files: Files) -> None:
    """Raises IllegalArgumentException if a log directory is part of a backup.

    Costs one check of a file if there is no manifest.
    """
    above, folder = os.path.split(os.path.realpath(log_dir))
    if not files.is_dry and is_backup(above, files) and folder in _folders(above, files):
        raise IllegalArgumentException(
            "found a directory of a backup, expected another: writing to it changes what the backup holds, and "
            "earlier and later backups may share its files",
            path=log_dir,
            hint=f"first run `kafkalog restore {above} NEW_DIR --yes`, then write to the copy; read_only=True and the "
            "commands that only read can open the backup",
        )


def _folders(path: str, files: Files) -> list[object]:
    """Returns the names of a backup's log directories; none if the manifest is missing or is another program's."""
    import json  # an open does not need it

    try:
        content = json.loads(read_small(os.path.join(path, MANIFEST_FILE), files, bytes_max=MANIFEST_BYTES_MAX))
        return [each["folder"] for each in content["directories"]] if content["format"] == FORMAT else []
    except (KafkalogError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
