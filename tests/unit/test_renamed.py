"""Names of the release before: each works as before, and its DeprecationWarning names the replacement."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._renamed import GONE_WITH
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.export import ExportOptions, ExportReport, Selection, export
from kafkalog.toolbox.history import history
from kafkalog.toolbox.latest import LatestOptions, latest, latest_records
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

pytest.importorskip("pyarrow")


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    with kafkalog.open_log(tmp_path, "orders-0") as log:
        for number in range(10):
            log.append(b"value-%d" % number, key=b"k%d" % (number % 2), timestamp=1_000 + number)
        log.append(None, key=b"k0", timestamp=2_000)
    return str(tmp_path)


@pytest.fixture
def view(log_dir: str) -> Iterator[PartitionView]:
    with PartitionView(log_dir, TopicPartition("orders", 0)) as opened:
        yield opened


def old(text: str) -> Any:
    return pytest.warns(
        DeprecationWarning, match=rf"{text}.* is deprecated and will be removed in kafkalog {GONE_WITH}: use "
    )


@pytest.mark.parametrize(
    "name",
    [
        *("window.Bound", "window.Near", "window.Range", "window.Time", "window.Window", "window.found_in"),
        *("search.Condition", "search.Match", "search.matching", "search.records_of"),
        *("past_damage.PastDamage", "past_damage.past_chunks"),
    ],
)
def test_a_name_that_moved(name: str) -> None:
    module, _, member = name.partition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the module as a whole, given once
        found = importlib.import_module(f"kafkalog.toolbox.{module}")
    with old(f"kafkalog.toolbox.{name}"):
        assert getattr(found, member) is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", ["window", "search", "past_damage"])
def test_a_name_that_never_was(module: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        importlib.import_module(f"kafkalog.toolbox.{module}").Nothing  # noqa: B018


def test_a_search(view: PartitionView) -> None:
    with old("kafkalog.toolbox.search.Match"):
        from kafkalog.toolbox.search import Match
    with old("kafkalog.toolbox.search.matching"):
        from kafkalog.toolbox.search import matching
    with old("kafkalog.toolbox.search.Condition"):
        from kafkalog.toolbox.search import Condition
    from kafkalog.reader import ChunkReader

    def offsets(match: object) -> list[int]:
        return [record.offset for record in matching(ChunkReader(view, 0), match)]

    assert offsets(Match([b"k1"])) == [1, 3, 5, 7, 9]
    assert offsets(Match(patterns=["value-[23]"], conditions=[Condition("offset", "greater", 2)])) == [3]
    assert offsets(Match(conditions=[Condition("timestamp", "greater_equal", 1_009)])) == [9, 10]
    assert offsets(Match(headers=[("trace", None)])) == []


def test_options_of_an_export(log_dir: str, tmp_path: Path) -> None:
    with old("window.Time"):
        from kafkalog.toolbox.window import Time
    with old("window.Window"):
        from kafkalog.toolbox.window import Window
    with old("ExportOptions"):
        options = ExportOptions(format="jsonl", window=Window(2, Time(1_005)), isolation="read_committed")
    report = export(log_dir, [TopicPartition("orders", 0)], tmp_path / "out.jsonl", options)
    assert (report.records, report.lost) == (3, [])
    with old("ExportOptions.window"):
        assert options.window == Window(2, Time(1_005))
    with old("ExportOptions.isolation"):
        assert options.isolation == "read_committed"
    with old("ExportOptions.skip_damage"):
        assert options.skip_damage is False
    assert not hasattr(ExportOptions, "window")
    with old("ExportOptions"), pytest.raises(kafkalog.errors.IllegalArgumentException, match="isolation"):
        ExportOptions(isolation="read_all")


def test_damage_that_an_export_passes_over(log_dir: str, tmp_path: Path) -> None:
    log = Path(log_dir, "orders-0", "00000000000000000000.log")
    data = bytearray(log.read_bytes())
    data[80] ^= 0xFF
    log.write_bytes(data)
    with old("ExportOptions"):
        options = ExportOptions(format="jsonl", skip_damage=True)
    for each in (options, ExportOptions(format="jsonl", selection=Selection(on_damage="skip"), force=True)):
        report = ExportReport()
        export(log_dir, [TopicPartition("orders", 0)], tmp_path / "out.jsonl", each, report=report)
        assert (report.records, len(report.lost)) == (10, 1)


def test_options_of_the_last_values(view: PartitionView) -> None:
    with old("LatestOptions"):
        options = LatestOptions(end=8, isolation="read_uncommitted")
    with old("LatestOptions.end"):
        assert options.end == 8
    with old("LatestOptions.isolation"):
        assert options.isolation == "read_uncommitted"
    assert [record.offset for record in latest_records(latest(view, options))] == [6, 7]
    found = latest(view, LatestOptions())
    assert [record.offset for record in latest_records(found)] == [9]
    with old("latest_records"):
        assert [record.offset for record in latest_records(found, tombstones=True)] == [9, 10]


def test_the_window_of_a_history(view: PartitionView) -> None:
    with old("window.Window"):
        from kafkalog.toolbox.window import Window
    with old("history"):
        by_name = [entry.record.offset for entry in history(view, b"k1", window=Window(3, 8))]
    with old("history"):
        by_place = [entry.record.offset for entry in history(view, b"k1", Window(3, 8))]
    assert by_name == by_place == [3, 5, 7]


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"skip_damage": "yes"}, "skip_damage is str 'yes'; expected True or False (use selection=Selection("),
    ({"skip_damage": None}, "skip_damage is NoneType; expected True or False (use selection=Selection("),
    ({"window": 5}, "window: found int 5, expected a Window (write selection=Selection(start, end))"),
    ({"selection": 5}, "selection: found int 5, expected a Selection (write selection=Selection(start, end))"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("given", "told"), WRONG_OPTIONS)
def test_wrong_options_of_an_export(given: dict[str, Any], told: str) -> None:
    with pytest.raises(IllegalArgumentException, match=re.escape(told)):
        ExportOptions(**given)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrong", [5, "x", b"", Selection(), (1, 2, 3)])
def test_a_wrong_window_of_a_history(view: PartitionView, wrong: Any) -> None:
    expected = r"window: found .*, expected a Window \(write asked=Selection\(start, end\)\)"
    with pytest.raises(IllegalArgumentException, match=expected):
        history(view, b"k1", window=wrong)
    if not isinstance(wrong, Selection):
        with pytest.raises(IllegalArgumentException, match=r"^asked: found .*, expected a Selection "):
            history(view, b"k1", wrong)
    assert len(list(history(view, b"k1", window=None))) == len(list(history(view, b"k1", None))) == 5
    for both in ((Selection(),), (None,)):
        with pytest.raises(TypeError, match=r"history\(\) got both window= and asked=, expected asked= alone"):
            history(view, b"k1", *both, window=None)


@pytest.mark.parametrize("bare", [True, False])
def test_a_bare_manager(tmp_path: Path, bare: bool) -> None:
    with pytest.raises(TypeError, match=rf"LogManager\(\) got bare={bare}, which was removed: leave it out, "):
        kafkalog.LogManager([tmp_path / "x"], bare=bare)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"LogManager\(\) got an unexpected keyword argument 'bear'"):
        kafkalog.LogManager([tmp_path / "x"], bear=True)  # type: ignore[call-arg]
    assert not (tmp_path / "x").exists()


def test_cat_to(log_dir: str, run: Run) -> None:
    found = run("cat", log_dir, "orders-0", "--to", "2")
    assert found.out == "value-0\nvalue-1\n"
    assert found.err == f"note: kafkalog {GONE_WITH} removes --to: write --until\n"
    both = run("cat", log_dir, "orders-0", "--to", "2", "--until", "3")
    assert both.code == 2
    assert "found both --to and --until" in both.err
    assert "--to " not in run("cat", "--help").out


def test_a_view_is_where_its_warning_says(view: PartitionView) -> None:
    """A function that accepts a view accepts no Partition."""
    with pytest.warns(DeprecationWarning, match=r"kafkalog\.engine\.log\.view\.PartitionView, which latest\(\) and "):
        assert kafkalog.PartitionView is PartitionView
    assert [it.record.value for it in history(view, b"k1")][-1] == b"value-9"
    assert latest(view, LatestOptions()).keys == 2


def test_an_import_of_an_old_name_is_told_once() -> None:
    code = "from kafkalog import Log; print(Log.__name__)"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "Partition\n"
    assert done.stderr.count("DeprecationWarning") == 1


def test_options_and_views_of_the_wrong_kind_are_refused_at_once(log_dir: str) -> None:
    with pytest.raises(
        kafkalog.errors.IllegalArgumentException, match=r"selection is int 10; .*use LatestOptions\(Selection\("
    ):
        LatestOptions(10)  # type: ignore[arg-type]
    told = r"PartitionView.*partition\.records\(key="
    with (
        kafkalog.open_log(log_dir, "orders-0", read_only=True) as log,
        pytest.raises(kafkalog.errors.IllegalArgumentException, match=told),
    ):
        history(log, b"k1")  # type: ignore[arg-type]


MOVED = {
    "cleaner.cleaner": "kafkalog.engine.cleaner.cleaner",
    "cleaner": "kafkalog.engine.cleaner",
    "coordinator.groups": "kafkalog.engine.coordinator.groups",
    "files": "kafkalog.engine.files",
    "files.clock": "kafkalog.engine.files.clock",
    "format": "kafkalog.engine.format",
    "format.batch": "kafkalog.engine.format.batch",
    "log": "kafkalog.engine.log",
    "log.view": "kafkalog.engine.log.view",
    "manager": "kafkalog.engine.host",
    "manager.log_manager": "kafkalog.engine.host.log_manager",
    "segment": "kafkalog.engine.segment",
    "topics": "kafkalog",
    "topics.store": "kafkalog.store",
    "topics.writer": "kafkalog",
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "always", "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("name", MOVED)
def test_a_module_that_moved(name: str) -> None:
    home = MOVED[name]
    done = python(f"import kafkalog.{name} as old\nimport {home} as new\nassert dir(old) == dir(new)\nprint(old)")
    assert done.returncode == 0, done.stderr
    told = (
        f"<string>:1: DeprecationWarning: kafkalog.{name} is deprecated and will be removed in kafkalog {GONE_WITH}: "
        f"use {home}\n"
    )
    assert told in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kafkalog.files import ManualClock", "kafkalog.engine.files import ManualClock"),
        ("kafkalog.manager.log_manager import LogManager", "kafkalog import LogManager"),
        ("kafkalog.format.names import TopicPartition", "kafkalog import TopicPartition"),
        ("kafkalog.topics import Store", "kafkalog import Store"),
        ("kafkalog.topics import open_store", "kafkalog.store import open_store"),
        ("kafkalog.topics import receive_message_set", "kafkalog.reader import receive_message_set"),
        ("kafkalog.topics.record_future import RecordFuture", "kafkalog.producer import RecordFuture"),
        ("kafkalog.topics.batching import Producer", "kafkalog import Producer"),
        ("kafkalog.topics.log import Log", "kafkalog import Partition"),
        ("kafkalog import files", "kafkalog.engine import files"),
    ],
)
def test_what_a_moved_module_has_is_the_same(old: str, new: str) -> None:
    def name(text: str) -> str:
        return text.rpartition(" ")[2]

    code = f"from {old} as old\nfrom {new} as new\n"
    code += "print(dir(old) == dir(new))" if name(old) == "files" else "print(old is new)"
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "DeprecationWarning" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("kafkalog.topics import RecordFuture", ["kafkalog.producer.RecordFuture"]),
        ("kafkalog.topics import Log, PartitionView", ["kafkalog.Partition", "kafkalog.engine.log.view.PartitionView"]),
        ("kafkalog.topics import open_store, Store", ["kafkalog.open", "kafkalog.Store"]),
        ("kafkalog.topics import receive_message_set", ["kafkalog.reader.receive_message_set"]),
        ("kafkalog.topics.store import Store", ["kafkalog.store.Store"]),
        ("kafkalog.files.clock import ManualClock", ["kafkalog.engine.files.clock.ManualClock"]),
    ],
)
def test_every_line_that_takes_a_name_is_told_where_it_is(old: str, told: list[str]) -> None:
    """Each place can be imported: every part but the last is a module, which has the last."""
    done = python(f"from {old}\n\nfrom {old}\n")
    lines = re.findall(r"<string>:(\d+): DeprecationWarning: \S+ is deprecated .* kafkalog \S+: use (\S+)", done.stderr)
    assert lines == [(line, each) for line in "13" for each in told], done.stderr
    for each in told:
        module, _, name = each.rpartition(".")
        assert getattr(importlib.import_module(module), name) is not None


def test_a_line_that_imports_an_old_module_of_the_toolbox() -> None:
    done = python("\nimport kafkalog.toolbox.past_damage\nfrom kafkalog.toolbox.window import Window\n")
    told = re.findall(r"<string>:(\d+): DeprecationWarning: kafkalog.toolbox.(\S+) is deprecated", done.stderr)
    assert told == [("2", "past_damage"), ("3", "window.Window")], done.stderr


@pytest.mark.parametrize(("module", "home"), [("manager", "engine.host"), ("files.clock", "engine.files.clock")])
def test_a_name_that_an_old_module_never_had(module: str, home: str) -> None:
    done = python(f"from kafkalog.{module} import NOPE")
    advice = f"kafkalog.{module} has no 'NOPE': kafkalog {GONE_WITH} removes kafkalog.{module}; its names are in "
    assert f"ImportError: {advice}kafkalog.{home}\n" in done.stderr


def test_a_moved_module_without_an_import() -> None:
    done = python("import kafkalog\nprint(kafkalog.files.ManualClock(5).milliseconds())")
    assert done.stdout == "5\n"
    assert "DeprecationWarning: kafkalog.files is deprecated" in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", ["nothing", "files.nothing", "topics.nothing", "topics.nothing.more", "engine.nothing"]
)
def test_a_module_that_never_was(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"kafkalog.{name}".replace(".more", "")):
        importlib.import_module(f"kafkalog.{name}")


def test_what_a_moved_module_never_had() -> None:
    with old("kafkalog.files"):
        sys.modules.pop("kafkalog.files", None)
        module = importlib.import_module("kafkalog.files")
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


def test_modules_are_found_last() -> None:
    done = python("import sys, kafkalog; print(sys.meta_path[-1].__qualname__, 'kafkalog._renamed' in sys.modules)")
    assert done.stdout == "_MovedModules False\n"
