"""Log lines name their partition and log directory: in the text, and as fields of the record."""

from __future__ import annotations

import ast
import gc
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES, ManualScheduler
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.errors import KafkaStorageException
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.log_kit import Kit, batch

PACKAGE = Path(kafkalog.__file__).parent
FLOORS = ("files", "format", "metrics", "segment", "log", "manager", "topics")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


class Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Everything that kafkalog logs."""
    logger, keep = logging.getLogger("kafkalog"), Keep()
    before = logger.level
    logger.addHandler(keep)
    logger.setLevel(logging.DEBUG)
    yield keep.records
    logger.removeHandler(keep)
    logger.setLevel(before)


def fields(record: logging.LogRecord) -> tuple[object, object]:
    return record.__dict__["topic_partition"], record.__dict__["log_dir"]


def check(records: list[logging.LogRecord], partition: str, log_dir: Path) -> set[str]:
    """Every record names both; the names of the loggers."""
    assert records
    for record in records:
        assert fields(record) == (partition, str(log_dir)), record.getMessage()
        assert record.getMessage().startswith(f"[partition={partition}, dir={log_dir}] ")
        assert record.name in {f"kafkalog.{floor}" for floor in FLOORS}
    return {record.name for record in records}


# --- the adapter -------------------------------------------------------------------------------------------


def test_a_line_names_what_it_is_about(records: list[logging.LogRecord]) -> None:
    Lines("kafkalog.log", "/data/50%d", "t-0").warning("%d bytes of %s", 3, "it", extra={"own": 1})
    Lines("kafkalog.log", "/data").info("no arguments, %%")
    Lines("kafkalog.log").error("about neither")
    first, second, third = records
    assert first.getMessage() == "[partition=t-0, dir=/data/50%d] 3 bytes of it"
    assert first.msg == "[partition=%s, dir=%s] %d bytes of %s"  # the same for all partitions
    assert first.__dict__["own"] == 1
    assert second.getMessage() == "[dir=/data] no arguments, %"
    assert fields(second) == (None, "/data")
    assert third.getMessage() == "about neither"
    assert fields(third) == (None, None)
    assert {record.filename for record in records} == {"test_log_lines.py"}  # the place of the logging call


def test_a_line_that_nobody_wants_is_not_made() -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    logger = Lines("kafkalog.log", "/data", "t-0")
    logger.debug("%s", Loud())


@pytest.mark.parametrize(
    ("folder", "partition"),
    [("/data/t-0", "t-0"), ("/data/t-0.0123456789abcdef0123456789abcdef-future", "t-0"), ("/data/stray", "stray")],
)
def test_a_folder_tells_the_partition(records: list[logging.LogRecord], folder: str, partition: str) -> None:
    lines_of_folder("kafkalog.segment", folder).warning("here")
    assert fields(records[0]) == (partition, "/data")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # leftovers of tests of interrupts may be collected here:
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_logs_otherwise() -> None:
    """All log through Lines, with the text of the message and its values as separate fields."""
    gc.collect()  # a finalizer in the middle of its work makes ast.parse of CPython 3.11 raise a SystemError
    found = []
    for path in (path for floor in FLOORS for path in (PACKAGE / floor).rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of = ast.unparse(node.func.value)
            if node.func.attr == "getLogger" and place != "engine/files/lines.py":
                found.append(f"{place}:{node.lineno} getLogger")
            if (
                node.func.attr in LEVELS
                and ("log" in of.lower().replace("catalog", "") or "lines" in of.lower())
                and place != "engine/files/lines.py"
            ):
                text = node.args[1 if node.func.attr == "log" else 0]
                if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                    found.append(f"{place}:{node.lineno} {ast.unparse(node)}")
                elif text.value.count("%s") + text.value.count("%d") + text.value.count("%r") != len(node.args) - 1 - (
                    node.func.attr == "log"
                ):
                    found.append(f"{place}:{node.lineno} arguments")
    assert found == []


# --- the engine --------------------------------------------------------------------------------------------


def test_the_life_of_a_partition(kit: Kit, records: list[logging.LogRecord]) -> None:
    log = kit.filled(20)
    log.update_high_watermark(log.log_end_offset)
    log.truncate_to(30)
    log.maybe_increment_log_start_offset(8)
    log.delete_old_segments()
    log.update_config(kit.context({"retention.ms": "0"}).config)
    kit.clock.advance(100_000)
    log.delete_old_segments()
    log.delete_old_segments()
    log.assign_epoch_start_offset(5, 35)
    log.append_as_follower(batch(offset=log.log_end_offset, epoch=9), 3)
    log.assign_epoch_start_offset(6, 20)
    log.append_as_leader(batch(producer_id=1, producer_epoch=3, sequence=0), 6)
    offset = log.log_end_offset
    log.append_as_follower(batch(offset=offset, epoch=6, producer_id=1, producer_epoch=2, sequence=0), 6)
    kit.scheduler.tick()
    kit.crash(log)
    assert check(records, "t-0", kit.root) == {"kafkalog.log"}
    text = "\n".join(record.getMessage() for record in records)
    for said in ("deleting segments as part of", "below high watermark", "log start offset", "leader epoch", "skipping",
                 "last seen epoch", "goes back"):  # fmt: skip
        assert said in text, said


def test_a_recovery(kit: Kit, records: list[logging.LogRecord]) -> None:
    kit.crash(kit.filled(12))
    kit.path("00000000000000000008.index").unlink()
    kit.path("00000000000000000000.timeindex.cleaned").write_bytes(b"")
    kit.path("00000000000000000099.index").write_bytes(b"")
    kit.path("00000000000000000008.snapshot").write_bytes(b"noise")
    active = kit.path("00000000000000000016.log")
    active.write_bytes(active.read_bytes()[:-7] + b"7 bytes")
    kit.open(clean=False, recovery_point=16)
    assert check(records, "t-0", kit.root) == {"kafkalog.log", "kafkalog.segment"}
    text = "\n".join(record.getMessage() for record in records)
    for said in ("no offset index", "orphaned", "Found invalid messages", "truncated ", "deleting 0"):
        assert said in text, said


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_index_that_is_not_there(kit: Kit, records: list[logging.LogRecord], is_empty: bool) -> None:
    log = kit.open()
    log.truncate_fully_and_start_at(5)
    if not is_empty:
        log.append_as_leader(batch(), 0, AppendOrigin.CLIENT)
    kit.crash(log)
    kit.path("00000000000000000005.index").unlink(missing_ok=True)
    records.clear()
    kit.open(clean=True)
    levels = [record.levelname for record in records if "no offset index" in record.getMessage()]
    assert levels == ["INFO" if is_empty else "ERROR"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_a_disk_that_fails(tmp_path: Path, records: list[logging.LogRecord], level: int) -> None:
    """The reason, in words; the place in this package is logged at DEBUG."""
    logging.getLogger("kafkalog").setLevel(level)
    files = FaultyFiles(OS_FILES)
    kit = Kit(tmp_path, files)
    log = kit.open()
    log.append_as_leader(batch(), 0, AppendOrigin.CLIENT)
    files.fault = Fault(files.count)
    with pytest.raises(KafkaStorageException):
        log.flush(True)
    assert check(records, "t-0", tmp_path) == {"kafkalog.files"}
    assert records[0].levelname == "ERROR"
    assert "Input/output error" in records[0].getMessage()
    assert (records[0].exc_info is not None) == (level == logging.DEBUG)


def test_a_directory(tmp_path: Path, records: list[logging.LogRecord]) -> None:
    kafkalog.open_log(tmp_path, "t-0").close()
    records.clear()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("")
    kafkalog.open_log(tmp_path, "t-0").close()
    of_directory = [record for record in records if record.name == "kafkalog.manager"]
    assert [fields(record) for record in of_directory] == [(None, str(tmp_path))]
    assert of_directory[0].getMessage().startswith(f"[dir={tmp_path}] ")


def test_the_scheduler_says_that_it_is_about_neither(records: list[logging.LogRecord], kit: Kit) -> None:
    scheduler = ManualScheduler(kit.clock)
    scheduler.schedule_once("fails", lambda: 1 // 0)
    scheduler.tick()
    assert [fields(record) for record in records] == [(None, None)]


@pytest.mark.parametrize("kind", ["store", "log"])
def test_a_young_store_that_was_killed_is_nothing_to_warn_of(
    tmp_path: Path, records: list[logging.LogRecord], kind: str
) -> None:
    """A warning is something to act on.  The checkpoints are as empty as the start has made them."""
    root = tmp_path / "living"
    if kind == "store":
        with kafkalog.open(root) as store:
            store.create_topic("t").append(b"value")
            with store.transaction("job") as transaction:
                transaction.append("t", b"in it")
            shutil.copytree(root, tmp_path / "killed")
    else:
        with kafkalog.open_log(root, "t-0", config={"retention.ms": "-1"}) as log:
            log.append(b"value")
            shutil.copytree(root, tmp_path / "killed")
    records.clear()
    if kind == "store":
        kafkalog.open(tmp_path / "killed").close()
    else:
        kafkalog.open_log(tmp_path / "killed", "t-0").close()
    assert [record.getMessage() for record in records if record.levelno >= logging.WARNING] == []


def test_a_directory_that_cannot_be_locked_is_told_in_a_line(tmp_path: Path, records: list[logging.LogRecord]) -> None:
    """A refusal is no bug: no traceback comes before the error."""
    (tmp_path / "logs" / ".lock").mkdir(parents=True)
    logging.getLogger("kafkalog").setLevel(logging.INFO)
    for door in (kafkalog.open, lambda path: kafkalog.open_log(path, "t-0"), kafkalog.LogManager):
        with pytest.raises(KafkaStorageException, match=r"logs.*Is a directory"):
            door(tmp_path / "logs")
    assert [record.exc_info for record in records if record.exc_info is not None] == []
