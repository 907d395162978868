"""One native call reads a directory and a small file, in place of many system calls: commands answer the same.

The tests try any content of the directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native.state import folder
from kafkalog.engine.files import OS_FILES, OsFiles
from kafkalog.engine.files import usage as usages
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log import checkpoint_lines
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.checkpoint_table import checkpoint_table
from kafkalog.toolbox.disk_usage import disk_usage
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.log_dirs import log_dirs
from kafkalog.toolbox.open_transactions import look_for_transactions
from kafkalog.toolbox.topics import topics

LOG = "00000000000000000000.log"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A directory with whole, damaged, odd, foreign and linked partitions."""
    root = tmp_path / "logs"
    with kafkalog.open(root) as store:
        topic = store.create_topic("t", 12)
        for number in range(12):
            topic.append_many([b"value"] * (number + 1), partition=number)
        with store.transaction("tx") as transaction:
            transaction.append("t", b"of a transaction", partition=3)

    def log(number: int) -> Path:
        return root / f"t-{number}" / LOG

    data = log(0).read_bytes()
    log(0).write_bytes(data[:-5])
    log(1).write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    log(2).write_bytes(log(2).read_bytes() + bytes(5000))
    log(4).write_bytes(b"")
    log(5).unlink()
    log(6).rename(f"{log(6)}.deleted")
    log(7).rename(root / "elsewhere")
    log(7).symlink_to(root / "elsewhere")
    log(8).unlink()
    log(8).symlink_to("nowhere")
    log(9).unlink()
    log(9).mkdir()
    log(10).with_suffix(".log.swap").write_bytes(log(10).read_bytes())
    log(11).unlink()
    log(11).symlink_to(LOG)
    (root / "t-11" / names.LEADER_EPOCH_CHECKPOINT_FILE).unlink()
    (root / "linked-0").symlink_to(root / "t-3")
    (root / "nowhere-0").symlink_to("nowhere")
    (root / "file-0").write_bytes(b"")
    (root / "empty-0").mkdir()
    (root / "foreign-0").mkdir()
    (root / "foreign-0" / "a.txt").write_bytes(b"")
    (root / "t-00").mkdir()
    (root / "t-4.abc-delete").mkdir()
    (root / "odd-0" / names.LEADER_EPOCH_CHECKPOINT_FILE).mkdir(parents=True)
    os.mkdir(os.fsencode(root) + b"/\xff-0")
    (root / "pipe-0").mkdir()
    os.mkfifo(root / "pipe-0" / LOG)
    return root


def answers(root: Path) -> list[object]:
    told: list[object] = []

    def ask(question: Callable[[], object]) -> None:
        try:
            told.append(question())
        except (KafkalogError, OSError) as error:
            told.append((type(error), str(error)))

    ask(lambda: folders_of(str(root)))
    ask(lambda: topics([str(root)]))
    ask(lambda: log_dirs([str(root)]))
    ask(lambda: checkpoint_table(str(root)))
    ask(lambda: disk_usage([str(root)], 1 << 50))
    for partition in folders_of(str(root)).partitions:
        ask(lambda partition=partition: look_for_transactions(str(root), partition, 1 << 50))  # type: ignore[misc]
    return told


def test_answers_are_the_same(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.second_look.REST_S", 0.0)
    monkeypatch.setattr("kafkalog.toolbox.checkpoint_table.SECOND_LOOK_S", 0.0)
    (odd / "t-10" / f"{LOG}.swap").unlink()  # the two ways' listings agree in no other order of names
    fast = answers(odd)
    with monkeypatch.context() as slow:
        slow.setattr(OsFiles, "look_into", lambda self, path, suffix: None)
        slow.setattr(OsFiles, "content", lambda self, path, bytes_max: None)
        slow.setattr(OsFiles, "has_inside", lambda self, folder, name: False)
        slow.setattr(usages.folder, "listing", lambda path, end, follow: None)
        for module in ("topics", "log_dirs", "checkpoint_table", "disk_usage"):
            slow.setattr(f"kafkalog.toolbox.{module}.KEEPS_MS", 0)
        assert answers(odd) == fast
    assert len(fast) > 15


def test_a_folder_is_what_it_is_one_by_one(odd: Path) -> None:
    for path in (odd, *sorted(odd.glob("t-*")), odd / "linked-0"):
        looked = OS_FILES.look_into(str(path), names.LOG_FILE_SUFFIX)
        assert looked is not None
        assert looked.mtime_ms == OS_FILES.stat(str(path)).mtime_ms
        assert looked.names == OS_FILES.names_in(str(path))
        for name in looked.names:
            inside = str(path / name)
            if name in looked.stats:
                assert looked.stats[name] == OS_FILES.stat(inside)
            else:
                assert not name.endswith(names.LOG_FILE_SUFFIX) or not OS_FILES.exists(inside)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
def test_a_small_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (size // 256 + 1))
    os.truncate(path, size)
    assert folder.content(str(path), size) == path.read_bytes()
    assert folder.content(str(path), size + 1) == path.read_bytes()
    if size:
        assert folder.content(str(path), size - 1) is None


def test_what_is_not_ordinary_is_left_to_who_asks(odd: Path) -> None:
    for path in ("missing", "file-0/x", "nowhere-0", "a\0b", f"pipe-0/{LOG}", "\udcff" * 300):
        assert folder.content(str(odd / path), 9) is None
        assert folder.listing(str(odd / path), "", True) is None
    assert folder.content(str(odd), 9) is None
    assert folder.listing(str(odd / "file-0"), "", True) is None
    assert not OS_FILES.has_inside(str(odd / "file-0"), "x")
    for wrong in (b"bytes", None, 7):
        with pytest.raises(TypeError):
            folder.listing(wrong, "", True)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            folder.content(wrong, 9)  # type: ignore[arg-type]


def test_a_class_that_answers_in_its_own_way_is_asked(odd: Path) -> None:
    class Own(OsFiles):
        asked: list[str] = []

        def list_dir(self, path: str) -> list[str]:
            self.asked.append(path)
            return super().list_dir(path)

    files = Own()
    assert files.look_into(str(odd), "") is None
    assert files.content(str(odd / "file-0"), 9) is None
    with PartitionView(odd, "t-3", files=files):
        assert files.asked == [str(odd / "t-3")]


def test_lines_are_kept_for_a_while(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(checkpoint_lines.time, "monotonic", lambda: now[0])
    path = odd / names.RECOVERY_POINT_CHECKPOINT_FILE
    lines = CheckpointLines(str(odd), keeps_ms=10)
    known = lines.line(path.name, TopicPartition("t", 2))
    assert lines.was_closed_cleanly()
    path.write_text("0\n1\nt 2 1\n")
    (odd / names.CLEAN_SHUTDOWN_FILE).unlink()
    assert lines.line(path.name, TopicPartition("t", 2)) == known != 1
    assert lines.was_closed_cleanly()
    assert not lines.is_closed_cleanly()
    now[0] += 0.011
    assert lines.line(path.name, TopicPartition("t", 2)) == 1
    path.unlink()
    assert lines.forget()
    assert lines.line(path.name, TopicPartition("t", 2)) is None
    assert not CheckpointLines(str(odd)).forget()


def test_damage_goes_by_lines_of_now(odd: Path) -> None:
    path = odd / names.RECOVERY_POINT_CHECKPOINT_FILE
    (odd / names.CLEAN_SHUTDOWN_FILE).unlink()
    path.write_text("0\n1\nt 4 7\n")
    lines = CheckpointLines(str(odd), keeps_ms=60_000)
    assert lines.line(path.name, TopicPartition("t", 4)) == 7
    with PartitionView(odd, "t-4", checkpoints=lines) as view:
        assert view.snapshot.unreadable_end is not None
    path.write_text("0\n0\n")  # it was truncated
    with PartitionView(odd, "t-4", checkpoints=lines) as view:
        assert view.snapshot.unreadable_end is None


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_empty_index(odd: Path) -> None:
    index = odd / "t-3" / "00000000000000000000.index"
    index.write_bytes(b"")
    index.chmod(0)
    with pytest.raises(PermissionError):
        disk_usage([str(odd)], 1 << 50)
