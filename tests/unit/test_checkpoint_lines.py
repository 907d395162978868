"""Checkpoints as views see them: the current content of the file, parsed once for all views."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import RECOVERY_POINT_CHECKPOINT_FILE, TopicPartition
from kafkalog.engine.log.checkpoint_lines import RECENT_MOST, CheckpointLines
from kafkalog.errors import CorruptCheckpointException

NAME = RECOVERY_POINT_CHECKPOINT_FILE
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def write(place: Path, lines: dict[TopicPartition, int]) -> None:
    OffsetCheckpointFile(str(place / NAME), OS_FILES).write(lines)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the checkpoints that were parsed."""
    parsed: list[str] = []
    decode = OffsetCheckpointFile.decode

    def counted(self: OffsetCheckpointFile, data: bytes) -> object:
        parsed.append(self.path)
        return decode(self, data)

    monkeypatch.setattr(OffsetCheckpointFile, "decode", counted)
    return parsed


def test_what_is_replaced_is_read_again(tmp_path: Path, parses: list[str]) -> None:
    lines, alone = CheckpointLines(str(tmp_path)), CheckpointLines(str(tmp_path), only=FIRST)
    for offset in range(5, 50):
        write(tmp_path, {FIRST: offset, SECOND: 1})
        assert lines.line(NAME, FIRST) == alone.line(NAME, FIRST) == offset
        assert (lines.line(NAME, SECOND), alone.line(NAME, SECOND)) == (1, None)
    assert len(parses) == 45
    (tmp_path / NAME).unlink()
    assert lines.line(NAME, FIRST) is alone.line(NAME, FIRST) is None


def test_many_with_lines_of_their_own_parse_once(tmp_path: Path, parses: list[str]) -> None:
    write(tmp_path, {TopicPartition("t", number): number for number in range(100)})
    for number in range(100):
        partition = TopicPartition("t", number)
        assert CheckpointLines(str(tmp_path), only=partition).line(NAME, partition) == number
    assert len(parses) == 1


def test_directories_do_not_mix(tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in range(RECENT_MOST + 2)]
    for number, place in enumerate(places):
        place.mkdir()
        write(place, {FIRST: number})
    for _ in range(2):
        assert [CheckpointLines(str(place), only=FIRST).line(NAME, FIRST) for place in places] == [*range(len(places))]


def test_damage_is_told_each_time_and_ends_with_a_good_file(tmp_path: Path) -> None:
    write(tmp_path, {FIRST: 7})
    assert CheckpointLines(str(tmp_path)).line(NAME, FIRST) == 7
    (tmp_path / NAME).write_bytes(b"0\n9\nt 0 7\n")
    for _ in range(2):
        told = CheckpointLines(str(tmp_path)).told(NAME, FIRST)
        assert told.offset is None
        assert isinstance(told.problem, CorruptCheckpointException)
    write(tmp_path, {FIRST: 8})
    assert CheckpointLines(str(tmp_path)).line(NAME, FIRST) == 8


@pytest.mark.parametrize(("data", "is_blank"), [(b"", True), (b"0\n", True), (b"0\n0\n", False)])
def test_a_blank_file_is_told(tmp_path: Path, data: bytes, is_blank: bool) -> None:
    (tmp_path / NAME).write_bytes(data)
    found = CheckpointLines(str(tmp_path)).told(NAME, FIRST)
    assert found.is_blank is is_blank or found.problem is not None
