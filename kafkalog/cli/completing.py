"""Shell completion: commands, options, paths, and the names of topics and partitions.

click defines the protocol and the scripts for bash, zsh and fish (`kafkalog completion`). Names of partitions come from
directory names alone. If only such a name can follow (`kafkalog cat LOG_DIR or<TAB>`), no command is imported, so that
the answer is fast; otherwise click decides. Nothing here raises an error or uses a network.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from kafkalog.cli.shell import NAME, VARIABLE

# Command -> the number of words before its names of partitions.
WORDS_BEFORE = {
    "append": 1,
    "backup": 1,
    "cat": 1,
    "compact": 1,
    "compare": 2,
    "describe": 1,
    "explain": 1,
    "export": 1,
    "history": 2,
    "latest": 1,
    "recover": 1,
    "reindex": 1,
    "restore": 2,
    "retain": 1,
    "salvage": 2,
    "tail": 1,
    "transactions": 1,
    "transactions abort": 1,
    "verify": 1,
}
# Parameters that hold names of partitions, and parameters that hold the directory with these partitions.
_NAMES = frozenset({"partitions", "partition", "topics", "only"})
_PLACES = ("log_dir", "log_dirs", "source", "place", "file")
_FORMATS = frozenset({("export", "kind"), ("latest", "kind")})
GROUPS_BYTES_MAX = 64 << 20  # more takes too long to read
_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]{1,10})")


def answer(load: Callable[[], click.Command]) -> int:
    """Prints the completions for the words that the shell gave, and returns the exit code. `load` returns the command
    line."""
    shell, _, what = os.environ[VARIABLE].partition("_")
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        made = _SHELLS[shell](_Later(load), {}, NAME, VARIABLE)
        click.echo(made.source() if what == "source" else made.complete())
    return 0


def script(shell: str) -> str:
    """Returns the script that a shell reads to call `answer`."""
    made = _SHELLS[shell](click.Command(NAME), {}, NAME, VARIABLE)
    return ShellComplete.source(made)  # BashComplete.source would run bash


# --- the next word -------------------------------------------------------------------------------------------


class _Quick(ShellComplete):
    """Completes names of partitions without importing the command."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = quick_names(args, incomplete)
        if found is not None:
            return found
        if isinstance(self.cli, _Later):
            self.cli = self.cli.load()
        return super().get_completions(args, incomplete)


class _Bash(_Quick, BashComplete):
    pass


class _Zsh(_Quick, ZshComplete):
    pass


class _Fish(_Quick, FishComplete):
    pass


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
SHELLS = tuple(_SHELLS)


class _Later(click.Command):
    """Stands for the command line, which is imported when it is needed."""

    def __init__(self, load: Callable[[], click.Command]) -> None:
        super().__init__(NAME)
        self.load = load


def quick_names(args: Sequence[str], incomplete: str) -> list[CompletionItem] | None:
    """Returns the names that may come next, or None if click must decide."""
    if incomplete.startswith("-") or any(each.startswith("-") for each in args):
        return None
    command = next((len(words) for words in (args[:2], args[:1]) if " ".join(words) in WORDS_BEFORE), 0)
    words = args[command:]
    before = WORDS_BEFORE.get(" ".join(args[:command]), 0)
    if not before or len(words) < before:
        return None
    places = [words[0 if args[0] in ("restore", "salvage") else before - 1]]
    if args[0] == "restore":
        places = _log_dirs_of_backup(places[0])
    return [CompletionItem(name) for name in names_at(places, incomplete, words[before:])]


def _log_dirs_of_backup(place: str) -> list[str]:
    """Returns the log directories in a backup."""
    with contextlib.suppress(OSError, ValueError):
        folder = os.path.expanduser(os.path.expandvars(place))
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith("log-dir-")]
    return []


def names_at(places: Iterable[str], incomplete: str, given: Collection[str] = ()) -> list[str]:
    """Returns the topics of log directories that begin with `incomplete`, and the partitions of a topic that is
    complete or the only match, without those in `given`. It reads directory names only."""
    topics: dict[str, list[int]] = {}
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            for name in os.listdir(os.path.expanduser(os.path.expandvars(place))):
                folder = _FOLDER.fullmatch(name) if "-" in name else None
                if folder is not None:
                    topics.setdefault(folder[1], []).append(int(folder[2]))
    found = sorted(topic for topic in topics if topic.startswith(incomplete))
    whole = {topic for topic in topics if incomplete.startswith(topic)} | set(found if len(found) == 1 else ())
    for topic in sorted(whole):
        numbered = [f"{topic}-{number}" for number in sorted(topics[topic])]
        found += [name for name in numbered if name.startswith(incomplete)]
    return [name for name in found if name not in given]


# --- the parameters of a command ------------------------------------------------------------------------------


class PartitionName(click.types.StringParamType):
    """The name of an existing topic or partition."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = ctx.params.get(param.name or "") or ()
        given = given if isinstance(given, tuple) else ()
        return [CompletionItem(name) for name in names_at(_places(ctx), incomplete, given)]


class PlaceOrName(PartitionName):
    """A log directory, or a topic or partition in the given ones."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        folder = CompletionItem(incomplete, type="file")
        if "/" in incomplete or not ctx.params.get(param.name or ""):
            return [folder]
        return [folder, *super().shell_complete(ctx, param, incomplete)]


class GroupName(click.types.StringParamType):
    """A consumer group with offsets in the given directories, if these are quick to read."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from kafkalog.engine.files import OS_FILES
        from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, LOG_FILE_SUFFIX
        from kafkalog.engine.host.log_dirs import list_partitions
        from kafkalog.toolbox.cursors import CursorLook

        places = [place for place in _places(ctx) if OS_FILES.is_dir(place)]
        folders = [
            folder
            for place in places
            for partition, folder in list_partitions(place).items()
            if partition.topic == GROUP_METADATA_TOPIC
        ]
        logs = [(at, name) for at in folders for name in OS_FILES.list_dir(at) if name.endswith(LOG_FILE_SUFFIX)]
        if sum(OS_FILES.stat(os.path.join(*log)).size for log in logs) > GROUPS_BYTES_MAX:
            return []
        given = ctx.params.get(param.name or "") or ()
        found = CursorLook(places).groups
        return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete) and name not in given]


class SettingName(click.types.StringParamType):
    """A topic setting, `key=`."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from kafkalog.config import TOPIC_KEYS

        known = sorted(key.name for key in TOPIC_KEYS.values() if not key.internal)
        return [CompletionItem(f"{name}=", help="a topic setting") for name in known if name.startswith(incomplete)]


def _places(ctx: click.Context) -> list[str]:
    if ctx.params.get("backup_dir"):
        return _log_dirs_of_backup(ctx.params["backup_dir"])
    for name in _PLACES:
        value = ctx.params.get(name)
        if value:
            found = [value] if isinstance(value, str) else list(value)
            return [os.path.dirname(each) for each in found] if name == "file" else found
    return ctx.args  # after an option without its value click has not parsed them


def prepared(command: click.Command) -> click.Command:
    """Returns a copy of a command whose parameters can complete their values."""
    found = copy.copy(command)
    found.params = [copy.copy(param) for param in command.params]
    for param in found.params:
        kind = _kind(command.name, param)
        if kind is not None:
            param.type = kind
    return found


def _kind(command: str | None, param: click.Parameter) -> click.ParamType[Any] | None:
    if param.name == "log_dirs":
        return PlaceOrName()
    if param.name in _NAMES and isinstance(param.type, click.types.StringParamType):
        return PartitionName()
    if param.name == "groups":
        return GroupName()
    if param.name == "settings":
        return SettingName()
    if param.name == "place":
        return click.Path()
    if param.name in ("compression", "codec"):
        from kafkalog.engine.format import codecs

        return click.Choice(codecs.NAMES)
    if (command, param.name) in _FORMATS:
        from kafkalog.toolbox.export import FORMATS

        return click.Choice(FORMATS)
    return None
