"""Files about a whole log directory: its clean-shutdown marker, its topics' settings, the names of its directories."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kafkalog
from kafkalog import LogManager
from kafkalog.cli.app import invoke
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.checkpoints import CleanShutdownFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import topic_configs
from kafkalog.engine.host.topic_configs import KnownTopic, StoredTopicConfigs, stored_content, stored_overrides
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
)
from kafkalog.toolbox import move
from kafkalog.toolbox.salvage import salvage
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles, UnsyncedFiles

FILE = ".kafkalog_topics"
ID = "AAAAAAAAAAAAAAAAAAAAAQ"
HEX = "0123456789abcdef" * 2


def fill(root: Path, name: str, count: int = 10, **options: Any) -> None:
    with kafkalog.open_log(root, name, **options) as log:
        for number in range(count):
            log.append(b"%d" % number * 100)


def content(root: Path, name: str) -> list[bytes | None]:
    with kafkalog.open_log(root, name, read_only=True) as log:
        return [record.value for record in log]


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = invoke([str(each) for each in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


# --- the clean-shutdown marker -----------------------------------------------------------------------------------


def torn_copy(tmp_path: Path) -> tuple[Path, Path]:
    """A partition in one directory, in the other an unfinished copy of which a power loss left the first batch."""
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, "t-0")
    manager = LogManager([old, new])
    manager.startup()
    copy = manager.get_or_create_log("t-0", is_future=True, is_new=True, log_dir=new)
    source = manager.get_log("t-0")
    assert source is not None
    copy.append_as_follower(source.read(0, 1 << 20).records.to_bytes(), 0)
    manager.abandon()
    (log,) = new.glob("*-future/*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    log.write_bytes(data)
    return old, new


@pytest.mark.parametrize("how", ["open_log", "recover"])
def test_a_copy_that_nobody_recovered_is_not_believed(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = torn_copy(tmp_path)
    fill(new, "u-0", 1)
    if how == "recover":
        code, out, err = run(capsys, "recover", new, "--yes", "--json")
        (name,) = [path.name for path in new.glob("*-future")]
        assert (code, json.loads(out.splitlines()[-1])["notRecovered"]) == (0, [str(new / name)])
        code, out, err = run(capsys, "recover", new, "--yes")
        assert code == 0
        assert name in err
    assert not CleanShutdownFile(str(new)).exists()
    with LogManager([old, new]) as manager:
        copy = manager.get_log("t-0", is_future=True)
        assert copy is not None
        assert 0 < copy.log_end_offset < 10  # the torn tail is truncated
        manager.move("t-0", new)
    assert content(new, "t-0") == [b"%d" % number * 100 for number in range(10)]


@pytest.mark.parametrize("suffix", ["future", "delete", "stray"])
def test_the_marker_speaks_for_folders_in_transit_too(suffix: str, tmp_path: Path) -> None:
    fill(tmp_path, "t-0")
    (tmp_path / "u-0").mkdir()
    (tmp_path / "u-0").rename(tmp_path / f"u-0.{HEX}-{suffix}")
    fill(tmp_path, "t-0")
    assert CleanShutdownFile(str(tmp_path)).exists()  # it was clean before, with that directory
    CleanShutdownFile(str(tmp_path)).delete()
    fill(tmp_path, "t-0")
    assert not CleanShutdownFile(str(tmp_path)).exists()


def test_a_brokers_metadata_log_needs_no_marker(tmp_path: Path) -> None:
    """No start of LogManager loads it: Kafka's controller recovers it at each of its starts."""
    (tmp_path / "__cluster_metadata-0").mkdir()
    fill(tmp_path, "t-0", take_over=True)
    assert CleanShutdownFile(str(tmp_path)).exists()


# --- topics' settings --------------------------------------------------------------------------------------------


def kept(*dirs: Path) -> StoredTopicConfigs:
    def failed(log_dir: str, message: str, error: OSError) -> None:
        raise error

    return StoredTopicConfigs(list(map(str, dirs)), OS_FILES, failed)


def test_settings_reach_a_directory_that_comes_later(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with LogManager([first]) as manager:
        manager.set_topic_config("t", {"retention.ms": "-1"})
    with LogManager([first, second]) as manager:
        manager.get_or_create_log("t-0", log_dir=second)
    with LogManager([second]) as manager:
        log = manager.get_log("t-0")
        assert log is not None
        assert log.config.retention_ms == -1


def test_settings_reach_a_directory_that_was_away(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for each in dirs:
        each.mkdir()
    kept(*dirs).set("t", {"retention.ms": "1"})
    kept(*dirs).set("u", {"retention.ms": "1"})
    alone = kept(dirs[1])
    alone.set("t", {"retention.ms": "2"})
    alone.set("u", {})
    for order in (dirs, dirs[::-1]):
        assert kept(*order).topics == {"t": {"retention.ms": "2"}}  # nothing comes back
    assert kept(dirs[0]).topics == {"t": {"retention.ms": "2"}}
    assert (dirs[0] / FILE).read_bytes() == (dirs[1] / FILE).read_bytes()


def test_settings_of_directories_that_were_apart_are_all_kept(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for each in dirs:
        each.mkdir()
    kept(dirs[0]).set("t", {"retention.ms": "1"})
    kept(dirs[1]).set("t", {"retention.ms": "2"})
    kept(dirs[1]).set("u", {"retention.ms": "3"})
    kept(dirs[0]).set("v", {"retention.ms": "4"})
    kept(dirs[0]).set("v", {"retention.ms": "5"})
    every = {"t": {"retention.ms": "1"}, "u": {"retention.ms": "3"}, "v": {"retention.ms": "5"}}
    assert kept(*dirs).topics == every
    for each in dirs:
        assert kept(each).topics == every


def known_topic(number: int) -> KnownTopic:
    return KnownTopic(1 + number % 3, ID, made=None if number % 2 else 0)


def filled(*dirs: Path, count: int) -> StoredTopicConfigs:
    """So many topics, each with settings."""
    for each in dirs:
        each.mkdir(exist_ok=True)
    configs = kept(*dirs)
    for number in range(count):
        configs.set(f"t{number}", {"retention.ms": str(number)}, known_topic(number))
    return configs


def test_settings_of_many_topics_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed, set again and forgotten: a read returns the last settings, and each directory has them."""
    monkeypatch.setattr(topic_configs, "WHOLE_BYTES", 1000)
    dirs = [tmp_path / "a", tmp_path / "b"]
    configs = filled(*dirs, count=60)
    for number in range(0, 60, 7):
        configs.set(f"t{number}", {})
    for number in range(0, 60, 11):
        configs.forget(f"t{number}")
    configs.set("t1", {"retention.ms": "7"}, durable=False)
    assert b'\n}\n{"' in (dirs[0] / FILE).read_bytes()
    assert (dirs[0] / FILE).read_bytes() == (dirs[1] / FILE).read_bytes()
    for each in (kept(dirs[0]), kept(*dirs)):
        assert (each.topics, each.known) == (configs.topics, configs.known)
    topics, known = stored_content(map(str, dirs), OS_FILES)
    assert known == configs.known
    assert {topic for topic, overrides in topics.items() if overrides} == set(configs.topics)


@pytest.mark.slow
def test_settings_lines_that_were_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the last line counts whole or not at all, and the next line is read again."""
    monkeypatch.setattr(topic_configs, "WHOLE_BYTES", 1000)
    configs = filled(tmp_path / "a", count=30)
    file = tmp_path / "a" / FILE
    before = configs.known
    size = file.stat().st_size
    configs.set("last", {"retention.ms": "1"}, KnownTopic(5, ID))
    after, data = configs.known, file.read_bytes()
    assert data[:size] + data[size:] == data
    assert len(data) - size < 200, "it is a line"
    for length in range(size, len(data) + 1):
        for filler in (b"", bytes(len(data) - length), bytes(len(data) - length)[:-1] + b"\n"):
            cut = data[:length] + filler
            file.write_bytes(cut[: len(data)])
            again = kept(tmp_path / "a")
            assert again.known == (after if cut[: len(data)] == data else before), (length, filler)
            again.set("next", {"retention.ms": "2"}, KnownTopic(6, ID))
            assert kept(tmp_path / "a").known == again.known
    broken = data.replace(b'"topic": "t29"', b'"topic": "t2\x00"')
    assert broken != data
    file.write_bytes(broken)
    with pytest.raises(CorruptCheckpointException, match="expected JSON"):
        kept(tmp_path / "a")


def test_settings_lines_never_stand_behind_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_configs, "WHOLE_BYTES", 1000)
    configs = filled(tmp_path / "a", count=30)
    file = tmp_path / "a" / FILE
    file.unlink()
    configs.set("t1", {}, known_topic(1))
    assert kept(tmp_path / "a").known == configs.known
    configs.set("t2", {}, known_topic(2))
    file.write_bytes(file.read_bytes() + b"\n")
    configs.set("t3", {}, known_topic(3))
    assert kept(tmp_path / "a").known == configs.known


@pytest.mark.slow
def test_settings_cost_the_same_for_each_topic(tmp_path: Path) -> None:
    """In bytes that are written, of more topics as of fewer."""

    def written(count: int) -> float:
        root = tmp_path / str(count)
        root.mkdir()
        files = RecordingFiles(str(root), UnsyncedFiles())
        configs = StoredTopicConfigs([str(root)], files, lambda *failed: None)
        for number in range(count):
            configs.set(f"topic{number:05}", {"retention.ms": "-1"}, KnownTopic(1, ID, made=0))
            configs.set(f"topic{number:05}", {"retention.ms": "-1"}, KnownTopic(1, ID))
        return sum(len(op.data) for op in files.ops if op.kind == "write") / count

    few, many = written(1000), written(3000)
    assert many < few * 1.2 + 500, (few, many)


def test_a_disk_that_refuses_the_settings_at_the_start_is_offline(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for each in dirs:
        each.mkdir()
    kept(dirs[0]).set("t", {"retention.ms": "1"})
    (dirs[1] / f"{FILE}.tmp").mkdir()  # in the way
    with LogManager(dirs) as manager:
        assert manager.offline_log_dirs == [str(dirs[1])]
        assert manager.topic_configs.overrides("t") == {"retention.ms": "1"}
        manager.set_topic_config("t", {"retention.ms": "2"})
    assert kept(dirs[0]).topics == {"t": {"retention.ms": "2"}}


def test_an_offline_move_takes_the_topics_settings_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, "t-0")
    fill(new, "u-0")
    kept(old).set("t", {"retention.ms": "-1"})
    kept(old).set("u", {"retention.ms": "7"})
    kept(new).set("w", {"retention.ms": "5"})
    _, out, _ = run(capsys, "move", old / "t-0", new)
    assert f"settings of t: retention.ms=-1, as in {old}" in out
    assert stored_overrides(str(new), "t", OS_FILES) is None
    run(capsys, "move", old / "t-0", new, "--yes")
    assert kept(new).topics == {"t": {"retention.ms": "-1"}, "w": {"retention.ms": "5"}}
    kept(new).set("t", {"retention.ms": "9"})
    _, out, _ = run(capsys, "move", new / "t-0", old)
    assert f"settings of t: retention.ms=-1, as {old} has them; not retention.ms=9, as in {new}" in out
    _, out, _ = run(capsys, "move", new / "t-0", old, "--json")
    told = json.loads(out)
    assert (told["sourceSettings"], told["targetSettings"]) == ({"retention.ms": "9"}, {"retention.ms": "-1"})
    assert told["settings"] == {"retention.ms": "-1"}
    run(capsys, "move", new / "t-0", old, "--yes")
    assert kept(old).overrides("t") == {"retention.ms": "-1"}


def test_a_target_that_lost_the_topics_settings_on_purpose_keeps_the_defaults(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, "t-0")
    new.mkdir()
    kept(old, new).set("t", {"retention.ms": "-1"})
    kept(new).set("t", {})
    plan = move.plan_move(str(old), TopicPartition("t", 0), str(new))
    assert (plan.source_settings, plan.target_settings, plan.settings) == ({"retention.ms": "-1"}, {}, {})
    move.carry_out(plan)
    assert kept(new).topics == {}


def test_salvage_takes_the_topics_settings_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    fill(source, "t-0")
    kept(source).set("t", {"retention.ms": "-1"})
    there = kafkalog.list_partitions(source)
    assert not salvage(source, tmp_path / "saved", there).lost
    assert kept(tmp_path / "saved").topics == {"t": {"retention.ms": "-1"}}
    (source / FILE).write_bytes(b"torn")
    report = salvage(source, tmp_path / "again", there)
    assert [each.path for each in report.lost] == [str(source / FILE)]
    assert report.records == 10


# --- folders of another name -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t-00", "t-+0", "t-\u0660"])
def test_a_folder_of_another_name_hides_no_partition(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root, saved = tmp_path / "logs", tmp_path / "saved"
    fill(root, "t-0")
    (root / name).mkdir()
    assert kafkalog.list_partitions(root) == {TopicPartition("t", 0): str(root / "t-0")}
    assert f"skipped {root / name}, which a broker reads as t-0" in caplog.text
    code, out, _ = run(capsys, "verify", root)
    assert (code, f"{root / name}" in out, "a broker takes it for t-0" in out, "10 records" in out) == (1, *[True] * 3)
    assert salvage(root, saved, kafkalog.list_partitions(root)).records == 10
    code, out, _ = run(capsys, "topics", root)
    assert (code, "a broker takes it for t-0" in out) == (1, True)
    with pytest.raises(IllegalStateException, match="Duplicate log directories for t-0 are found in both"):
        LogManager(root).startup()  # as Kafka


@pytest.mark.parametrize("name", ["t-0x", "t-99999999999", "t--", "-0", "t-0.x", "t-"])
def test_folders_of_no_name_are_no_partitions(name: str, tmp_path: Path) -> None:
    fill(tmp_path, "t-0")
    (tmp_path / name).mkdir()
    assert list(kafkalog.list_partitions(tmp_path)) == [TopicPartition("t", 0)]


# --- topic ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["bad", "A" * 22, "A" * 25, "", 5, b"AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAA\ud800"]
)
def test_what_is_no_topic_id_is_refused_before_anything_is_made(bad: Any, tmp_path: Path) -> None:
    with LogManager(tmp_path) as manager:
        log = manager.get_or_create_log("other-0")
        with pytest.raises(IllegalArgumentException, match=r"^topic_id: "):
            manager.get_or_create_log("t-0", topic_id=bad)
        with pytest.raises(IllegalArgumentException, match=r"^topic_id: "):
            log.assign_topic_id(bad)
        assert log.topic_id is None
    with pytest.raises(IllegalArgumentException, match=r"^topic_id: "):
        kafkalog.open_log(tmp_path, "t-0", topic_id=bad)
    assert list(kafkalog.list_partitions(tmp_path)) == [TopicPartition("other", 0)]
    with LogManager(tmp_path) as manager:
        assert manager.offline_log_dirs == []


def test_a_topic_id_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    with LogManager(tmp_path) as manager:
        for text in ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAQ==", "AAAAAAAAAAAAAAAAAAAAAR"):
            log = manager.get_or_create_log("t-0", topic_id=text)
            log.assign_topic_id(text)
            assert log.topic_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    with kafkalog.open_log(tmp_path, "t-0", topic_id="AAAAAAAAAAAAAAAAAAAAAQ==") as log:
        assert log.engine.topic_id == "AAAAAAAAAAAAAAAAAAAAAQ"


# --- small files of our own with anything in them ----------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([0, 1, 10**19, 10**400, 1e308 * 10, "t", "retention.ms", "-1", "compact", "\ud800", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["t", "retention.ms", "cleanup.policy", "x", "", "\ud800"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
CONTENTS = st.fixed_dictionaries(
    {}, optional={"version": st.just(0) | VALUES, "revision": st.just(1) | VALUES, "topics": VALUES}
)
ANYTHING = st.binary(max_size=60) | (CONTENTS | VALUES).map(lambda value: json.dumps(value).encode())


@settings(deadline=None)
@given(data=ANYTHING)
@example(data=b'{"version":0,"revision":1e999,"topics":{}}')
@example(data=b'{"version":0,"revision":true,"topics":{}}')
@example(data=b'{"version":0,"revision":1,"topics":{"t":{"retention.ms":1e999}}}')
@example(data=b"[" * 100_000)
def test_any_settings_file_is_read_or_refused_by_name(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(data)
        problem: CorruptCheckpointException | None = None
        try:
            stored_overrides(folder, "t", OS_FILES)
        except CorruptCheckpointException as error:
            problem = error
        if problem is None:
            kept(Path(folder)).set("u", {"retention.ms": "1"})  # it can be written again
            assert kept(Path(folder)).overrides("u") == {"retention.ms": "1"}
        else:
            assert problem.path == os.path.join(folder, FILE)


@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=40) | st.binary(max_size=8).map(lambda tail: b"/" + tail))
@example(data=b"")
@example(data=b"\0" * 20)
@example(data=b"/" + b"x" * 5000)
@example(data=b"stays\n")
def test_any_note_of_a_move_is_believed_or_passed_over(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with LogManager(folder) as manager:
            manager.get_or_create_log("t-0")
        (Path(folder) / "t-0.kafkalog_move").write_bytes(data)
        with LogManager(folder) as manager:
            assert manager.get_log("t-0") is not None
            assert manager.offline_log_dirs == []


def test_a_torn_note_is_told_and_means_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both directories have the partition, and an empty note is not the directory that we happen to be in."""
    for name in ("a", "b"):
        fill(tmp_path / name, "t-0")
    (tmp_path / "b" / "t-0.kafkalog_move").write_bytes(b"")
    with contextlib.chdir(tmp_path / "a"), pytest.raises(IllegalStateException, match="Duplicate log directories"):
        LogManager([tmp_path / "a", tmp_path / "b"]).startup()
    assert "t-0.kafkalog_move: found b'', expected the path of a log directory" in caplog.text


# --- long names --------------------------------------------------------------------------------------------------


def test_a_long_name_takes_no_disk_offline(tmp_path: Path) -> None:
    """A topic may have 249 characters; the name of a move's copy has 40 more than the partition's."""
    one, other = tmp_path / "one", tmp_path / "other"
    legal = "x" * 220 + "-0"
    with LogManager([one, other]) as manager:
        manager.get_or_create_log(legal, log_dir=one)
        for doing in (
            lambda: manager.move(legal, other),
            lambda: manager.get_or_create_log(legal, is_future=True, is_new=True, log_dir=other),
            lambda: manager.get_or_create_log("x" * 249 + "-100000"),
        ):
            with pytest.raises(InvalidTopicException, match="characters, expected at most 255"):
                doing()
        longest = "y" * 249 + "-10000"
        manager.get_or_create_log(longest, log_dir=one)
        for number, is_stray in enumerate((False, True)):
            manager.get_or_create_log("z" * 249 + f"-{number}", log_dir=one)
            manager.async_delete("z" * 249 + f"-{number}", is_stray=is_stray)
        assert manager.failure_channel.offline_log_dirs == []
    with LogManager([one, other]) as manager:
        assert {str(log.topic_partition) for log in manager.all_logs()} == {legal, longest}
        assert manager.offline_log_dirs == []
    with pytest.raises(InvalidTopicException, match="characters, expected at most 255"):
        move.plan_move(str(one), TopicPartition("x" * 220, 0), str(other))
    with pytest.raises(InvalidTopicException, match="characters, expected at most 255"):
        kafkalog.open_log(other, "x" * 249 + "-100000")
    with kafkalog.open_log(one, longest) as log:
        log.append(b"1")


def test_a_file_system_of_shorter_names_is_not_offline_for_them(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    with LogManager(tmp_path, files=files) as manager:
        files.fault = Fault(0, errno.ENAMETOOLONG, paths=lambda path: "/long-0" in path)
        with pytest.raises(InvalidTopicException, match="Error while creating log for long-0"):
            manager.get_or_create_log("long-0")
        files.fault = None
        assert manager.failure_channel.offline_log_dirs == []
        manager.get_or_create_log("t-0")
