"""Tables on a terminal of any width, in a pipe, with and without colours; foreign text never controls the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import invoke
from kafkalog.cli.console import Progress, emit, paint
from kafkalog.cli.harmless import harmless, harmless_cell, harmless_json
from kafkalog.cli.tables import Cell, Column, When, ago_words, print_table
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

WIDTHS = (60, 80, 120, 200)
SGR = re.compile(r"\x1b\[[0-9;]*m")
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


class Stream(io.StringIO):
    """The output of a command; a terminal if `watched`."""

    def __init__(self, watched: bool) -> None:
        super().__init__()
        self.watched = watched

    def isatty(self) -> bool:
        return self.watched

    @property
    def plain(self) -> list[str]:
        return SGR.sub("", self.getvalue()).splitlines()


Watch = Callable[..., Stream]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Standard output is a terminal of so many columns; None: no terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def begin(width: int | None, **environ: str) -> Stream:
        stream = Stream(width is not None)
        monkeypatch.setattr(sys, "stdout", stream)
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return stream

    with monkeypatch.context():
        yield begin


COLUMNS = (Column("NAME"), Column("ID", drop=2), Column("SIZE", right=True), Column("WHEN", right=True, drop=1))


def rows(now_ms: int) -> list[list[object]]:
    return [
        ["orders", "maMz-CNyRueZwdeX6HdRHA", "1.2 GiB", When(now_ms - 55 * HOUR_MS)],
        [Cell("payments-of-all-customers-everywhere-and-for-ever", "red"), "-", "3 B", When(-1)],
    ]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("kafkalog.cli.tables.time.time_ns", lambda: NOW_MS * 1_000_000)
    return NOW_MS


def test_a_wide_terminal_has_all_columns_and_both_times(watch: Watch, now: int) -> None:
    out = watch(200)
    print_table(COLUMNS, rows(now))
    head, first, _ = out.plain
    assert head.split() == ["NAME", "ID", "SIZE", "WHEN"]
    assert first.endswith("1.2 GiB  2023-11-12T15:13:20.000Z (2.3 d ago)")
    assert "\x1b[31mpayments" in out.getvalue()
    assert "\x1b[1mNAME\x1b[0m" in out.getvalue()


def test_times_get_shorter_before_a_column_goes(watch: Watch, now: int) -> None:
    out = watch(100)
    print_table(COLUMNS, rows(now))
    assert out.plain[0].split() == ["NAME", "ID", "SIZE", "WHEN"]
    assert out.plain[1].endswith("1.2 GiB  2.3 d ago")


def test_columns_go_by_their_order_and_are_named(watch: Watch, now: int) -> None:
    out = watch(75)
    print_table(COLUMNS, rows(now))
    assert out.plain[0].split() == ["NAME", "SIZE", "WHEN"]
    assert out.plain[-1] == "not shown: ID (the terminal is too narrow; a pipe shows all columns)"


def test_a_cell_wraps_where_nothing_else_can_go(watch: Watch, now: int) -> None:
    out = watch(30)
    print_table(COLUMNS, rows(now))
    lines = out.plain
    assert max(map(len, lines)) <= 30
    name = "".join(line[:21].strip() for line in lines[2:5])
    assert name == "payments-of-all-customers-everywhere-and-for-ever"


@pytest.mark.parametrize("width", [1, 5, 12, *WIDTHS])
def test_no_line_is_wider_than_the_terminal(watch: Watch, width: int) -> None:
    out = watch(width)
    print_table((Column("NAME"), Column("SIZE", right=True)), [["x" * 300, 1], ["a b c " * 40, 2]])
    assert max(map(len, out.plain)) <= max(width, 4)  # two columns and the gap
    assert sum(line.count("x") for line in out.plain) == 300


def test_wide_characters_take_two_columns(watch: Watch) -> None:
    out = watch(80)
    print_table(("NAME", "N"), [["注文" * 3, 1], ["orders", 22]])
    assert out.plain == ["NAME           N", "注文注文注文   1", "orders        22"]


def test_a_pipe_gets_plain_text_whatever_the_width(watch: Watch, now: int) -> None:
    out = watch(None, COLUMNS="20")
    print_table(COLUMNS, rows(now))
    assert "\x1b" not in out.getvalue()
    assert out.plain == [
        "NAME                                               ID                         SIZE                      WHEN",
        "orders                                             maMz-CNyRueZwdeX6HdRHA  1.2 GiB  2023-11-12T15:13:20.000Z",
        "payments-of-all-customers-everywhere-and-for-ever  -                           3 B                         -",
    ]


@pytest.mark.parametrize(
    ("width", "environ", "is_coloured"),
    [
        (200, {}, True),
        (200, {"NO_COLOR": "1"}, False),
        (200, {"NO_COLOR": ""}, True),
        (200, {"TERM": "dumb"}, False),
        (200, {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        (None, {}, False),
        (None, {"FORCE_COLOR": "1"}, True),
        (None, {"FORCE_COLOR": "0"}, False),
        (None, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_who_gets_colours(
    watch: Watch, now: int, width: int | None, environ: dict[str, str], is_coloured: bool
) -> None:
    out = watch(width, **environ)
    print_table(COLUMNS, rows(now))
    emit(f"{paint('gone', 'red')} it is")
    assert ("\x1b" in out.getvalue()) is is_coloured
    assert out.plain[-1] == "gone it is"
    with_both = out.plain[1].endswith("(2.3 d ago)")
    assert with_both is (width is not None), "colours do not decide the layout"


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [
        (0, "now"),
        (999, "now"),
        (-999, "now"),
        (90_000, "1.5 min ago"),
        (-90_000, "in 1.5 min"),
        (55 * HOUR_MS, "2.3 d ago"),
    ],
)
def test_times_in_words(age_ms: int, words: str) -> None:
    assert ago_words(NOW_MS - age_ms, NOW_MS) == words


def test_a_time_that_no_calendar_has(watch: Watch) -> None:
    out = watch(200)
    print_table(("N", "WHEN"), [["a", When((1 << 63) - 1)], ["b", When(-1, "~")]])
    assert "@9223372036854775807" in out.getvalue()
    assert out.plain[2].endswith("~-")


HOSTILE = "a\x1b]0;title\x07\x9b31m\u202eb\u2066c\nd\re\u2028f\x7f\ufeff\u200f"


def is_harmless(text: str) -> bool:
    return not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", SGR.sub("", text)
    )


def test_hostile_text_is_shown_as_escapes() -> None:
    assert harmless(HOSTILE) == r"a\x1b]0;title\x07\x9b31m\u202eb\u2066c\nd\re\u2028f\x7f\ufeff\u200f"
    assert harmless("a\tb") == "a\tb"
    assert harmless_cell("a\tb") == r"a\tb"
    assert harmless("orders-0 ünïcode 注文 \udcff") == "orders-0 ünïcode 注文 \udcff"
    line = json.dumps({"name": HOSTILE, "other": "ü"}, ensure_ascii=False)
    assert is_harmless(harmless_json(line))
    assert json.loads(harmless_json(line)) == json.loads(line)


@pytest.mark.parametrize("width", [None, 80])
def test_hostile_cells(watch: Watch, width: int | None) -> None:
    out = watch(width)
    print_table(("NAME", "N"), [[Cell(HOSTILE, "red"), 1], [HOSTILE, 2]])
    assert is_harmless(out.getvalue())
    assert len(out.plain) == 3


def test_a_hostile_line_cannot_paint(watch: Watch) -> None:
    out = watch(80)
    emit(f"{HOSTILE} {paint(HOSTILE, 'yellow')} \x1b[31mred")
    assert is_harmless(out.getvalue())
    assert SGR.findall(out.getvalue()) == ["\x1b[33m", "\x1b[0m"]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    with kafkalog.open(root) as store:
        for name in ("orders", "a-topic-with-a-rather-long-name-for-invoices-and-reminders"):
            store.create_topic(name, 2).append(b"x", partition=0, timestamp=NOW_MS - HOUR_MS)
    return root


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["topics", "du", "checkpoint", "describe"])
def test_commands_fit(watch: Watch, log_dir: Path, command: str, width: int) -> None:
    out = watch(width)
    assert invoke([command, str(log_dir)]) == 0
    lines = out.plain
    if command == "describe":  # after the table are sentences, which a terminal wraps
        lines = [line for line in lines if "cleanup.policy" not in line]
    table = [line for line in lines if not line.startswith(("/", "  ", "not there", "preallocated", "in all"))]
    assert max(map(len, table)) <= width
    assert "orders" in out.getvalue()


def test_utc_on_a_terminal(watch: Watch, log_dir: Path) -> None:
    out = watch(200)
    assert invoke(["describe", str(log_dir), "orders-0", "--utc"]) == 0
    assert out.plain[1].endswith(" 2023-11-14T21:13:20.000Z")


def test_the_last_record_is_not_the_file(run: Run, log_dir: Path) -> None:
    os.utime(log_dir / "orders-0" / f"{0:020}.log", (1, 1))
    head, first, second, *_ = run("describe", log_dir, "orders").lines
    assert head.split() == ["PARTITION", "START", "END", "SEGMENTS", "SIZE", "LAST", "RECORD"]
    assert first.split()[-1] == "2023-11-14T21:13:20.000Z"
    assert second.split()[-1] == "-", "an empty partition has none"


def test_the_last_record_of_an_empty_last_segment_is_the_one_before(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "200"}) as log:
        for number in range(5):
            log.append(b"x" * 100, timestamp=NOW_MS + number * 1000)
        log.engine.roll()
    assert run("describe", tmp_path).lines[1].split()[-1] == "2023-11-14T22:13:24.000Z"


def test_the_last_record_without_a_time_index(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"x", timestamp=NOW_MS)
    for path in (tmp_path / "t-0").glob("*index"):
        path.write_bytes(b"\xff" * 11)
    assert run("describe", tmp_path).lines[1].split()[-1] == "2023-11-14T22:13:20.000Z"


def test_a_damaged_end_is_told_with_the_command_that_looks(run: Run, log_dir: Path) -> None:
    log = log_dir / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    result = run("describe", log_dir, "orders-0")
    assert f"note: orders-0: damaged at its end: {log} at byte 0: a bad CRC" in result.err
    assert f"next: kafkalog verify {log_dir} orders-0" in result.err


def test_a_folder_with_a_hostile_name(watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evil = "x\x1b[31m\u202ey\nz"
    kafkalog.open_log(tmp_path, "t-0").close()
    folder = tmp_path / f"{evil}-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(b"")
    for argv in (["topics"], ["describe"], ["du"], ["checkpoint"], ["verify"], ["describe", "--json"]):
        out, err = watch(80), Stream(True)
        monkeypatch.setattr(sys, "stderr", err)
        invoke([argv[0], str(tmp_path), *argv[1:]])
        assert is_harmless(out.getvalue()), argv
        assert is_harmless(err.getvalue()), argv
    err = Stream(True)
    monkeypatch.setattr(sys, "stderr", err)
    assert invoke(["describe", str(tmp_path), evil + "q"]) == 2
    assert is_harmless(err.getvalue())


def test_progress_that_counts_waits_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[object, ...]] = []

    class Bar:
        def update(self, task: int, completed: int) -> None:
            drawn.append((task, completed))

        def stop(self) -> None:
            drawn.append(("stop",))

    monkeypatch.setattr(sys, "stderr", Stream(True))
    monkeypatch.setattr("kafkalog.cli.console._bar", lambda *about: drawn.append(about) or Bar())
    clock = [0.0]
    with Progress(10, "looked at", counts="partitions", clock=lambda: clock[0]) as bar:
        clock[0] = 0.9
        bar.advance(3)
        assert not drawn
        clock[0] = 1.1
        bar.advance(1)
    assert drawn == [("looked at", 10, "partitions"), (0, 4), ("stop",)]


def test_progress_in_lines_says_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    with Progress(10, "looked at", force=True, counts="partitions", clock=lambda: clock[0]) as bar:
        clock[0] = 2.0
        bar.advance(4)
    assert capsys.readouterr().err == "looked at: 4 partitions of 10 partitions, 2 partitions/s, 3 s left\n"
