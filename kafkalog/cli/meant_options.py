"""Options that a command does not have, by what they are called there: names of Python's questions, and of other tools.

click names the option that is spelled most alike, which is another one: `--start` is no `--last`.
"""

from __future__ import annotations

import click

# What it is called; several: the first that the command has.
_CALLED = {
    "--start": ("--from",), "--start-time": ("--from",), "--start-offset": ("--from",), "--since": ("--from",),
    "--end": ("--until",), "--end-time": ("--until",), "--end-offset": ("--until",),
    "--isolation": ("--committed",), "--isolation-level": ("--committed",), "--read-committed": ("--committed",),
    "--limit": ("--limit", "--last"), "--tail": ("--last",), "--max-messages": ("--limit", "--last"),
    "--keys": ("--key",), "--headers": ("--header",), "--filter": ("--where",),
    "--on-damage": ("--skip-damage",), "--columns": ("--format",),
}  # fmt: skip
_TOLD = {
    "--committed": "--committed (which is read_committed)",
    "--skip-damage": "--skip-damage (which is on_damage='skip')",
}
_OF_COMMANDS = {
    ("cat", "--columns"): "-f '%o %k %s' prints what it names, and --json all",
    (
        "export",
        "--columns",
    ): "a file has all columns; --headers adds the headers, and Python's read_arrow takes columns=",
    (
        "export",
        "--by",
    ): "it splits by partitions: --to DIR/; a file a day is --from DAY --until DAY --to FILE, in a loop",
    (
        "export",
        "--partition-by",
    ): "it splits by partitions: --to DIR/; a file a day is --from DAY --until DAY --to FILE",
}


def told(error: click.NoSuchOption) -> str:
    """The error's text, with the option that was meant, if that is known."""
    name = error.option_name.replace("_", "-")
    command = error.ctx.command if error.ctx is not None else None
    if command is None:
        return error.format_message()
    if (command.name or "", name) in _OF_COMMANDS:
        return f"No such option {error.option_name!r}: {_OF_COMMANDS[command.name or '', name]}."
    known = {option for param in command.params for option in param.opts}
    for option in (name, *_CALLED.get(name, ())):
        if option in known:
            return f"No such option {error.option_name!r}. Did you mean {_TOLD.get(option, option)}?"
    return error.format_message()
