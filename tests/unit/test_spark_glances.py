"""A stream's trigger checks all partitions at a glance: it misses no change, and it reads nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES, OsFiles, SystemClock
from kafkalog.engine.files.api import GLANCE_FIELDS
from kafkalog.engine.files.mounts import mount, unmount
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import PartitionMetadata
from kafkalog.engine.log.checkpoint_lines import RESTS_MS
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import CorruptRecordException, IllegalStateException, UnknownTopicOrPartitionException
from kafkalog.spark import followed, glances
from kafkalog.spark.followed import FollowedPartitions
from kafkalog.spark.offsets import Conversions
from kafkalog.spark.options import parse_options
from tests.reference.legacy import build_batch

PARTITIONS = 6
IDS = ["AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"]
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "500"}
T = [TopicPartition("t", number) for number in range(PARTITIONS + 3)]


def append(root: Path, partition: TopicPartition, count: int = 3, **config: str) -> None:
    with kafkalog.open_log(root, str(partition), config={**SMALL, **config}) as log:
        for _ in range(count):
            log.append(b"x" * 100, timestamp=log.end_offset)


def newest(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def rest() -> None:
    """Waits until a change is old enough to be trusted: a recent one is not."""
    time.sleep((RESTS_MS + 10) / 1000)


def options(root: Path | str, **more: Any) -> Any:
    given = {"path": str(root), "subscribePattern": ".*", "failOnDataLoss": "false", **more}
    return parse_options(given, streaming=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(PARTITIONS):
        append(tmp_path, T[number], 20 + number)
        (tmp_path / f"t-{number}" / "partition.metadata").write_bytes(PartitionMetadata(0, IDS[0]).encode())
    rest()
    return tmp_path


class Looks:
    """A stream's partitions, the number of full searches, and the views that were created or refreshed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.options = options(root, **more)
        self.followed = FollowedPartitions(self.options)
        self.whole = 0
        self.refreshed: list[TopicPartition] = []
        self._patch = monkeypatch
        self.root = root

    def look(self, known: Any = ()) -> Any:
        self.whole, self.refreshed = 0, []
        find, refresh = followed.find_partitions, PartitionView.refresh

        def found(*given: Any) -> Any:
            self.whole += 1
            return find(*given)

        def refreshed(view: PartitionView) -> None:
            self.refreshed.append(view.topic_partition)
            refresh(view)

        with self._patch.context() as patch:
            patch.setattr(followed, "find_partitions", found)
            patch.setattr(PartitionView, "refresh", refreshed)
            return self.followed.look(known)

    def check(self, known: Any = ()) -> Any:
        """Compares a check with that of a new reader."""
        ends = self.look(known)
        fresh = FollowedPartitions(self.options)
        assert ends == fresh.look(self.followed._known)
        starts = {each: view.log_start_offset for each, view in self.followed.views.items()}
        assert starts == {each: view.log_start_offset for each, view in fresh.views.items()}
        return ends

    def rest(self) -> None:
        """Until a look finds nothing new."""
        rest()
        self.check()
        before = self.look()
        assert (self.whole, self.refreshed) == (0, [])
        assert self.look() is before


@pytest.fixture
def looks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    made = Looks(root, monkeypatch)
    assert len(made.check()) == PARTITIONS
    assert made.whole == 1
    made.rest()
    return made


# --- nothing else -------------------------------------------------------------------------------------------


def test_an_append_costs_one_partition(looks: Looks) -> None:
    before = looks.look()
    append(looks.root, T[3], 1)
    ends = looks.look()
    assert (looks.whole, looks.refreshed) == (0, [T[3]])
    assert ends == {**before, T[3]: before[T[3]] + 1} == looks.check()


def test_a_checkpoint_that_says_the_same_costs_nothing(looks: Looks) -> None:
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        data = (looks.root / name).read_bytes()
        (looks.root / f"{name}.tmp").write_bytes(data)
        os.replace(looks.root / f"{name}.tmp", looks.root / name)
    looks.look()
    assert (looks.whole, looks.refreshed) == (0, [])


# --- nothing is missed --------------------------------------------------------------------------------------


def test_deleted_records(looks: Looks) -> None:
    with kafkalog.open_log(looks.root, "t-2") as log:
        log.delete_records(5)
    looks.check()
    assert looks.followed.views[T[2]].log_start_offset == 5
    assert looks.whole == 0


def test_the_checkpoint_of_log_starts_alone(looks: Looks) -> None:
    path = looks.root / "log-start-offset-checkpoint"
    path.write_text("0\n1\nt 4 7\n")
    looks.check()
    assert looks.followed.views[T[4]].log_start_offset == 7
    assert (looks.whole, looks.refreshed[:1]) == (0, [T[4]])
    looks.rest()
    path.unlink()
    looks.check()
    assert looks.followed.views[T[4]].log_start_offset == 0


def test_a_truncation(looks: Looks) -> None:
    path = newest(looks.root / "t-1")
    before = looks.look()[T[1]]
    os.truncate(path, path.stat().st_size // 2)
    assert looks.check()[T[1]] < before
    assert looks.whole == 0


def test_a_write_into_a_preallocated_file_within_a_tick_of_the_clock(looks: Looks) -> None:
    path = newest(looks.root / "t-1")
    size, then = path.stat().st_size, path.stat().st_mtime_ns
    more = looks.root / "more"
    shutil.copytree(looks.root / "t-1", more / "t-1")
    append(more, T[1], 1)
    data = newest(more / "t-1").read_bytes()
    assert len(data) > size
    shutil.rmtree(more)
    os.truncate(path, 1 << 16)
    os.utime(path, ns=(then, then))
    rest()
    before = looks.check()[T[1]]
    rest()
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(path.stat().st_atime_ns, looks.followed.views[T[1]].segments[-1].mtime_ms * 10**6))
    assert looks.check()[T[1]] == before + 1
    assert looks.whole == 0


def test_what_is_new_is_looked_at_again(looks: Looks) -> None:
    """A file that is written to after the look, by the same tick of the file system's clock."""
    path = newest(looks.root / "t-5")
    append(looks.root, T[5], 1)
    now = path.stat().st_mtime_ns
    before = looks.check()[T[5]]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))  # as long as before
    os.utime(path, ns=(now, now))
    assert looks.check()[T[5]] < before


def test_new_segments_and_retention(looks: Looks) -> None:
    append(looks.root, T[0], 40)
    looks.check()
    looks.rest()
    folder = looks.root / "t-0"
    first = min(folder.glob("*.log"))
    for each in folder.glob(f"{first.stem}.*"):
        each.unlink()
    looks.check()
    assert looks.followed.views[T[0]].log_start_offset > 0
    assert looks.whole == 0
    looks.rest()
    append(looks.root, T[0], 1)  # to the last segment, of which the glance knows the name by now
    looks.check()
    assert looks.whole == 0


def test_a_segment_that_takes_the_place_of_another(looks: Looks) -> None:
    folder = looks.root / "t-0"
    path = newest(folder)
    then, data = path.stat().st_mtime_ns, path.read_bytes()
    (folder / "other").write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    os.utime(folder / "other", ns=(then, then))
    folder_then = folder.stat().st_mtime_ns
    os.replace(folder / "other", path)
    os.utime(folder, ns=(folder_then, folder_then))
    before = looks.followed._ends[T[0]]
    assert looks.check()[T[0]] < before  # by its inode alone


def test_a_topic_that_was_made_again(looks: Looks) -> None:
    for number in (1, 2):
        shutil.rmtree(looks.root / f"t-{number}")
    append(looks.root, T[1], 21)  # as many as before
    append(looks.root, T[2], 22)
    (looks.root / "t-1" / "partition.metadata").write_bytes(PartitionMetadata(0, IDS[1]).encode())
    (looks.root / "t-2" / "partition.metadata").write_bytes(PartitionMetadata(0, IDS[0]).encode())
    looks.check()
    assert looks.followed.take_remade() == {T[1]}


def test_a_topic_id_that_comes_later(looks: Looks) -> None:
    append(looks.root, T[6])
    looks.check()
    looks.rest()
    for topic_id in IDS:
        (looks.root / "t-6" / "new").write_bytes(PartitionMetadata(0, topic_id).encode())
        os.replace(looks.root / "t-6" / "new", looks.root / "t-6" / "partition.metadata")
        looks.check()
        looks.rest()
    assert looks.followed.take_remade() == {T[6]}


def test_folders_that_come_and_go(looks: Looks) -> None:
    append(looks.root, T[7])
    assert len(looks.check()) == PARTITIONS + 1
    looks.rest()
    (looks.root / "t-7").rename(looks.root / f"t-7.{'0' * 32}-delete")
    assert T[7] not in looks.check()
    looks.rest()
    shutil.rmtree(looks.root / "t-0")
    assert len(looks.check()) == PARTITIONS - 1
    assert looks.whole == 1
    (looks.root / "t-1").rename(looks.root / "t-0")
    assert {T[0], T[1]} & set(looks.check()) == {T[0]}


def test_a_folder_becomes_a_partition_later_or_is_none_any_more(looks: Looks) -> None:
    other = looks.root / "t-8"
    other.mkdir()
    (other / "notes.txt").write_text("somebody else's")
    looks.check()
    looks.rest()
    (other / "notes.txt").unlink()
    shutil.copytree(looks.root / "t-3", other, dirs_exist_ok=True)
    assert looks.check()[T[8]] == looks.look()[T[3]]
    looks.rest()
    for each in other.iterdir():
        each.unlink()
    (other / "notes.txt").write_text("somebody else's")
    looks.check()


def test_a_directory_that_went_away(looks: Looks) -> None:
    looks.root.rename(looks.root.with_name("away"))
    try:
        with pytest.raises(UnknownTopicOrPartitionException):
            looks.look()
    finally:
        looks.root.with_name("away").rename(looks.root)
    looks.check()


def test_partitions_that_are_missing_by_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t", partitions=2)
    looks = Looks(tmp_path, monkeypatch, failOnDataLoss="true")
    looks.check()
    looks.rest()
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("u", partitions=2)
    (tmp_path / "u-1").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(IllegalStateException, match="topic u has 2 partitions, found no directory of u-1"):
            looks.look()
    (tmp_path / "away").rename(tmp_path / "u-1")
    assert len(looks.check()) == 4
    looks.rest()


def test_damage_is_told_at_each_look(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(root, monkeypatch, failOnDataLoss="true")
    looks.look()
    looks.rest()
    path = newest(root / "t-3")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(CorruptRecordException):
            looks.look()


def test_what_a_plan_has_refreshed_is_no_longer_as_it_was(looks: Looks) -> None:
    before = looks.look()[T[0]]
    append(looks.root, T[0], 1)
    rest()
    looks.followed.refresh(T[0])
    assert looks.check()[T[0]] == before + 1


# --- both ways are one --------------------------------------------------------------------------------------


def changes(root: Path, rng: random.Random) -> list[Callable[[Path], object]]:
    """Changes of a partition's directory.  Batches are written by hand: no engine opens a truncated log."""

    def end_of(folder: Path) -> int:
        with PartitionView(root, folder.name) as view:
            return view.log_end_offset

    def batch(base: int, count: int = 1) -> bytes:
        return build_batch([(base + n, None, b"x" * rng.randrange(200), []) for n in range(count)], base_offset=base)

    def cut(folder: Path) -> None:
        path = newest(folder)
        os.truncate(path, rng.randrange(path.stat().st_size + 1))

    def grow(folder: Path) -> None:
        os.truncate(newest(folder), newest(folder).stat().st_size + rng.choice([1, 300, 5000]))

    def drop(folder: Path) -> None:
        segments = sorted(folder.glob("*.log"))
        if len(segments) > 1:
            segments[0].unlink()

    def start(folder: Path) -> None:
        lines = [f"{folder.name.rpartition('-')[0]} {number} {rng.randrange(30)}" for number in range(PARTITIONS)]
        (root / "log-start-offset-checkpoint").write_text(f"0\n{len(lines)}\n" + "\n".join(lines) + "\n")

    def remake(folder: Path) -> None:
        shutil.rmtree(folder)
        new = root / rng.choice([folder.name, "t-7", "u-0"])
        new.mkdir(exist_ok=True)
        (new / f"{0:020}.log").write_bytes(batch(0, rng.randrange(1, 9)))

    def write(folder: Path) -> None:
        with PartitionView(root, folder.name) as view:
            end, position = view.log_end_offset, view.snapshot.end_position
        with open(newest(folder), "r+b") as file:
            file.seek(position)  # into the room that there may be
            file.write(batch(end))

    def roll(folder: Path) -> None:
        (folder / f"{end_of(folder):020}.log").write_bytes(batch(end_of(folder), rng.randrange(1, 4)))

    return [cut, grow, drop, start, remake, write, write, roll]


@pytest.mark.parametrize("seed", range(4))
def test_looks_are_the_same_after_any_change(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("kafkalog.engine.log.view.SECOND_LOOK_S", 0)
    rng = random.Random(seed)
    looks = Looks(root, monkeypatch, isolation=("read_uncommitted", "read_committed")[seed % 2])
    quick = 0
    for _ in range(25):
        for folder in rng.sample(sorted(root.glob("?-*")), rng.choice([0, 1, 1, 2])):
            if next(folder.glob("*.log"), None):
                rng.choice(changes(root, rng))(folder)
        if rng.random() < 0.5:
            rest()
        looks.check(looks.followed._known)
        quick += not looks.whole
    assert quick > 5


@pytest.mark.parametrize("has_glances", [True, False])
def test_times_of_whole_seconds(root: Path, monkeypatch: pytest.MonkeyPatch, has_glances: bool) -> None:
    """A segment comes in the same second as another change of its directory, and nothing else shows it."""
    if not has_glances:
        monkeypatch.setattr(OsFiles, "glances", lambda *given: None)
    path, folder = newest(root / "t-3"), root / "t-3"
    (root / "recovery-point-offset-checkpoint").unlink()
    os.replace(path, root / "aside")
    in_one_second(monkeypatch)
    (folder / "other").touch()
    looks = Looks(root, monkeypatch)
    before = looks.check()[T[3]]
    looks.check()
    os.replace(root / "aside", path)
    assert looks.check()[T[3]] > before


def in_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """All happens in the middle of one second; times are whole ones, as FAT, sshfs and some NFS have them."""
    second = int(time.time())
    stat, look_into, rows_of = OsFiles.stat, OsFiles.look_into, OsFiles.glances
    monkeypatch.setattr(SystemClock, "milliseconds", lambda clock: second * 1000 + 500)
    monkeypatch.setattr(glances.time, "time_ns", lambda: second * 10**9 + 500 * 10**6)

    def whole(found: Any) -> Any:
        return found and found._replace(mtime_ms=min(found.mtime_ms // 1000, second) * 1000)

    def inside(files: OsFiles, path: str, suffix: str) -> Any:
        found = whole(look_into(files, path, suffix))
        return found and found._replace(stats={name: whole(each) for name, each in found.stats.items()})

    def rows(files: OsFiles, place: str, names: bytes) -> bytes | None:
        found = rows_of(files, place, names)
        if found is None:
            return None
        made = np.frombuffer(found, np.int64).reshape(-1, len(GLANCE_FIELDS)).copy()
        made[:, :2] = np.minimum(made[:, :2] // 10**9, second) * 10**9
        return made.tobytes()

    monkeypatch.setattr(OsFiles, "stat", lambda files, path: whole(stat(files, path)))
    monkeypatch.setattr(OsFiles, "look_into", inside)
    if OsFiles.glances(OS_FILES, ".", b"") is not None:
        monkeypatch.setattr(OsFiles, "glances", rows)


def test_without_such_a_call_each_partition_is_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFiles, "glances", lambda *given: None)
    looks = Looks(root, monkeypatch)
    for _ in range(2):
        looks.check()
        assert looks.whole == 1


# --- the call -----------------------------------------------------------------------------------------------


def test_a_glance_is_a_stat(root: Path) -> None:
    listed = [".", "t-0", "t-0/leader-epoch-checkpoint", "missing", "t-0/leader-epoch-checkpoint/x", "t-1"]
    found = OS_FILES.glances(str(root), "".join(f"{name}\0" for name in listed).encode())
    assert found is not None
    rows = np.frombuffer(found, np.int64).reshape(-1, len(GLANCE_FIELDS))
    for name, row in zip(listed, rows.tolist(), strict=True):
        try:
            stat = os.stat(root / name)
        except OSError:
            assert row == [0] * len(GLANCE_FIELDS)
        else:
            assert row == [stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_dev, stat.st_mode]
    assert OS_FILES.glances(str(root), b"") == b""
    assert OS_FILES.glances(str(root), b"no end") is None
    assert OS_FILES.glances(str(root / "missing"), b"x\0") is None
    assert OS_FILES.glances("a\0b", b"x\0") is None


def test_a_mount_has_no_such_call(root: Path) -> None:
    class Other(OsFiles):
        pass

    for place in (str(root), str(root / "t-0")):
        mount(place, Other())
        try:
            assert OS_FILES.glances(str(root), b".\0") is None
        finally:
            unmount(place)
    assert OS_FILES.glances(str(root), b".\0") is not None


def test_conversions_are_kept() -> None:
    conversions = Conversions()
    text = '{"t":{"0":5,"1":7}}'
    first = conversions.flat(json.loads(text))
    assert conversions.flat(json.loads(text)) is first == {T[0]: 5, T[1]: 7}
    assert conversions.nested(dict(first)) is conversions.nested(first)
    assert json.dumps(conversions.nested(first), separators=(",", ":")) == text
    for n in range(5):
        assert conversions.nested({T[0]: n}) == {"t": {"0": n}}
        assert conversions.flat({"t": {"0": n}}) == {T[0]: n}
    assert conversions.flat(json.loads(text)) == first
