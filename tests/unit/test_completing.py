"""Completion of a command line by click's protocol; `tests/live/test_shells.py` tests the shells themselves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import kafkalog
import kafkalog.cli
from kafkalog.cli import completing
from kafkalog.cli.app import CLEAN, COMMANDS, USAGE, cli
from kafkalog.cli.completing import SHELLS, WORDS_BEFORE, answer, names_at, quick_names
from kafkalog.cli.shell import VARIABLE
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

Ask = Callable[..., list[str]]
FOLDERS = ("orders-0", "orders-1", "orders-10", "orders-eu-0", "payments-0", "payments-7", "x.y_z-3")
OTHERS = ("orders-0.abc-delete", "orders-0.abc-future", "notes", "-1", "a b-0", "orders-x", "meta.properties")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    for name in FOLDERS + OTHERS:
        (tmp_path / "logs" / name).mkdir(parents=True)
    return tmp_path / "logs"


@pytest.fixture
def ask(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Ask:
    def call(*words: object) -> list[str]:
        monkeypatch.setenv(VARIABLE, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["kafkalog", *map(str, words)]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert answer(lambda: cli) == 0
        monkeypatch.delenv(VARIABLE)
        out, err = capsysbinary.readouterr()
        assert err == b""
        return out.decode().split()

    return call


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", ["orders", "orders-eu", "payments", "x.y_z"]),
        ("o", ["orders", "orders-eu"]),
        ("orders", ["orders", "orders-eu", "orders-0", "orders-1", "orders-10"]),
        ("orders-", ["orders-eu", "orders-0", "orders-1", "orders-10", "orders-eu-0"]),
        ("orders-1", ["orders-1", "orders-10"]),
        ("orders-e", ["orders-eu", "orders-eu-0"]),
        ("p", ["payments", "payments-0", "payments-7"]),
        ("X", []),
        ("\udcff", []),
        ("[", []),
    ],
)
def test_names_of_folders(log_dir: Path, typed: str, expected: list[str]) -> None:
    found = names_at([str(log_dir)], typed)
    assert found == expected
    assert names_at([str(log_dir)], typed, expected) == []


@pytest.mark.parametrize("place", ["/nowhere", "", "\0", "s3://bucket/prefix", __file__, "~nobody-of-that-name"])
def test_places_without_names(place: str) -> None:
    assert names_at([place], "") == []


def test_home_and_variables(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(log_dir.parent))
    monkeypatch.setenv("LOGS", str(log_dir))
    for place in ("~/logs", "$LOGS", "${LOGS}/"):
        assert names_at([place], "x") == ["x.y_z", "x.y_z-3"]


def test_quick_or_not(log_dir: Path) -> None:
    def names(*args: object, typed: str = "x") -> list[str] | None:
        found = quick_names([str(each) for each in args], typed)
        return None if found is None else [each.value for each in found]

    both = ["x.y_z", "x.y_z-3"]
    assert names("cat", log_dir) == names("cat", log_dir, "orders") == names("append", log_dir) == both
    assert names("history", "key", log_dir) == names("salvage", log_dir, "target") == both
    assert names("transactions", log_dir) == names("transactions", "abort", log_dir) == both
    assert names("cat", log_dir, "x.y_z") == ["x.y_z-3"]
    for args in (
        (),
        ("cat",),
        ("history", log_dir),
        ("salvage", log_dir),
        ("transactions", "abort"),
        ("topics", log_dir),
        ("cat", log_dir, "--json"),
        ("nothing", log_dir),
    ):
        assert names(*args) is None
    assert names("cat", log_dir, typed="--") is None


def test_groups(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("orders").append(b"x")
        for name in ("billing", "audit"):
            with store.reader(name, topics=["orders"]) as reader:
                reader.read_arrow()
                reader.commit()
    place = tmp_path / "shop"
    assert ask("cursors", place, "--group", "") == ["plain,audit", "plain,billing"]
    assert ask("cursors", place, "--group", "b") == ["plain,billing"]
    assert ask("cursors", place, "--group", "audit", "--group", "") == ["plain,billing"]
    assert ask("cursors", place, "orders", "--group", "b") == ["plain,billing"]
    assert ask("cursors", tmp_path / "nowhere", "--group", "") == []
    monkeypatch.setattr(completing, "GROUPS_BYTES_MAX", 10)
    assert ask("cursors", place, "--group", "") == []


def test_the_table_is_the_commands() -> None:
    found = {}
    for name in COMMANDS:
        command = importlib.import_module(f"kafkalog.cli.{name.replace('-', '_')}").command
        commands = {name: command}
        if isinstance(command, click.Group):
            commands = {f"{name} {each}": one for each, one in getattr(command, "commands", {}).items()}
            default = getattr(command, "default", None)
            if default is not None:
                commands[name] = commands.pop(f"{name} {default}")
        for path, each in commands.items():
            arguments = [param.name for param in each.params if isinstance(param, click.Argument)]
            place = arguments[0] in ("log_dir", "source", "place", "key", "backup_dir")
            if arguments[-1] in ("partitions", "partition") and place and not path.startswith("tier "):
                found[path] = len(arguments) - 1
    assert found == WORDS_BEFORE


def test_what_click_says(ask: Ask, log_dir: Path) -> None:
    assert ask("desc") == ["plain,describe"]
    assert set(ask("")) == {f"plain,{name}" for name in COMMANDS}
    assert ask("tier", "l") == ["plain,list"]
    assert ask("spark", "ver") == ["plain,verify"]
    assert ask("transactions", "ab") == ["file,ab", "plain,abort"]
    assert ask("checkpoint", "set", log_dir / "recovery-point-offset-checkpoint", "x") == [
        "plain,x.y_z",
        "plain,x.y_z-3",
    ]
    assert ask("cat", log_dir, "--js") == ["plain,--json"]
    assert ask("transactions", "--js") == ["plain,--json"]
    assert ask("transactions", "abort", log_dir, "--start") == ["plain,--start-offset"]
    assert ask("cat", log_dir, "--json", "x.y_z-") == ["plain,x.y_z-3"]
    assert ask("cat", log_dir, "--topic", "x") == ["plain,x.y_z", "plain,x.y_z-3"]
    for command in ("topics", "du", "log-dirs", "checkpoint", "cursors"):
        assert ask(command, "/v") == ["file,/v"]
        assert ask(command, log_dir, "x") == ["file,x", "plain,x.y_z", "plain,x.y_z-3"]
        assert ask(command, log_dir, "x.y_z", "x") == ["file,x", "plain,x.y_z-3"]
        assert ask(command, log_dir, "/v") == ["file,/v"]
    assert ask("cursors", log_dir, "--topic", "x") == ["plain,x.y_z", "plain,x.y_z-3"]
    assert ask("salvage", log_dir, "/tm") == ["file,/tm"]
    assert ask("explain", "/v") == ["file,/v"]
    assert ask("cat", "s3://buck") == ["file,s3://buck"]
    assert ask("cat", "s3://bucket/prefix", "o") == []
    assert ask("cat", "s3://bucket/prefix", "--json", "o") == []
    assert ask("append", log_dir, "--compression", "s") == ["plain,snappy"]
    assert ask("export", log_dir, "--format", "par") == ["plain,parquet"]
    assert ask("export", log_dir, "--codec", "z") == ["plain,zstd"]
    assert ask("tier", "list", "x", "--layout", "a") == ["plain,aiven"]
    assert ask("retain", log_dir, "-X", "retention.b") == ["plain,retention.bytes="]
    assert ask("completion", "z") == ["plain,zsh"]
    assert ask("no-such", "x") == []


def test_no_error_reaches_the_shell(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(completing, "quick_names", fails)
    assert ask("cat", "x") == []


def test_what_a_command_holds_stays_as_it_is(ask: Ask, run: Run) -> None:
    """Types are set only while a shell asks; a command of this process is unaffected."""
    ask("append", "/nowhere", "--compression", "x")
    result = run("append", "/nowhere", "x-0", "--compression", "x")
    assert result.code == USAGE
    assert "unknown codec 'x'" in result.err


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(
    run: Run, shell: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("completion", shell)
    assert result.code == CLEAN
    assert f"{VARIABLE}={shell}_complete" in result.out
    assert re.search(r"%\(\w+\)s", result.out) is None
    monkeypatch.setenv(VARIABLE, f"{shell}_source")
    assert answer(lambda: cli) == 0
    assert capsysbinary.readouterr().out.strip() == result.octets.strip()


def test_no_such_shell(run: Run) -> None:
    result = run("completion", "tcsh")
    assert result.code == USAGE
    assert "'bash', 'zsh', 'fish'" in result.err


def test_the_entry_point_asks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fish_complete")
    monkeypatch.setenv("COMP_WORDS", "kafkalog topi")
    monkeypatch.setenv("COMP_CWORD", "topi")
    with pytest.raises(SystemExit) as left:
        kafkalog.cli.main()
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("plain,topics\tShow the topics")


def test_a_restore_takes_the_names_of_its_backup(tmp_path: Path) -> None:
    for name in ("log-dir-1/orders-0", "log-dir-2/orders-1", "log-dir-2/clicks-0"):
        (tmp_path / name).mkdir(parents=True)
    found = quick_names(["restore", str(tmp_path), "target"], "ord")
    assert found is not None
    assert [each.value for each in found] == ["orders", "orders-0", "orders-1"]
    assert quick_names(["restore", str(tmp_path)], "ord") is None  # the target
    assert quick_names(["restore", str(tmp_path / "nosuch"), "target"], "ord") == []
