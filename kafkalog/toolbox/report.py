"""The results of checks: findings with their positions, and counts of what was checked.  Not thread-safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog.errors import CorruptManifestException, KafkalogError, RemoteResourceNotFoundException
from kafkalog.toolbox.losses import LostRange

if TYPE_CHECKING:
    import numpy as np

SECOND_LOOK_S = 0.05  # by then a running write, roll or deletion is done
MOST_FINDINGS = 100  # the most of one kind, in one slice of a log or in one index
TOO_LARGE = f"expected at most {SEGMENT_FILE_BYTES_MAX} in one file of a segment"


class Finding(NamedTuple):
    """Something wrong: `length` bytes from `position` of `path`, or the whole file if `length` is 0."""

    path: str
    position: int
    length: int
    what: str

    def __str__(self) -> str:
        place = f"{self.path}: bytes {self.position} to {self.position + self.length}" if self.length else self.path
        return f"{place}: {self.what}"


@dataclass
class Report:
    """The result of a verification.  `ok` is True if nothing is wrong; `notes` are remarks that are no findings."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0  # as the batch headers say; legacy batches count as one
    bytes: int = 0
    lost: list[LostRange] = field(default_factory=list)  # the lost records of the findings

    @property
    def ok(self) -> bool:
        return not self.findings

    def add(self, path: str, position: int, length: int, what: str) -> None:
        self.findings.append(Finding(path, position, length, what))

    def take(self, other: Report) -> None:
        """Adds another report."""
        self.findings += other.findings
        self.notes += other.notes
        self.lost += other.lost
        self.partitions += other.partitions
        self.segments += other.segments
        self.batches += other.batches
        self.records += other.records
        self.bytes += other.bytes

    def add_row(self, path: str, row: np.void, what: str) -> None:
        """Adds a finding about a batch, by its row in a scan's table."""
        self.add(path, int(row["position"]), int(row["size"]), what)


def told(error: KafkalogError) -> str:
    """Returns what is wrong, and with which object, if it is about one."""
    if isinstance(error, RemoteResourceNotFoundException | CorruptManifestException):
        return f"{error.message} ({error.path})"
    return error.message if error.hint is None else f"{error.message} ({error.hint})"
