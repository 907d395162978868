"""A disk that is full until files of segments are unlinked."""

from __future__ import annotations

import errno
from collections.abc import Callable

from kafkalog.engine.files import Files
from kafkalog.engine.format.names import DELETED_FILE_SUFFIX, LOG_FILE_SUFFIX
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles


class FullFiles(FaultyFiles):
    """Has no room until `logs` segments' logs are unlinked; `paths`: whose writes are refused (all by default)."""

    def __init__(
        self,
        logs: int,
        paths: Callable[[str], bool] | None = None,
        inner: Files | None = None,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(inner or UnsyncedFiles(), fault or Fault(0, errno.ENOSPC, paths=paths))
        self.logs = logs

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if path.removesuffix(DELETED_FILE_SUFFIX).endswith(LOG_FILE_SUFFIX):
            self.logs -= 1
            if self.logs <= 0:
                self.fault = None
