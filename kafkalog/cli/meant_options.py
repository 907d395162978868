"""Suggests the right option for names from Python's API and from other tools.

click suggests the option with the most similar spelling, which may be a wrong one: `--last` for `--start`.
"""

from __future__ import annotations

import click

# The right names; the first one that the command has is suggested.
_CALLED = {
    "--start": ("--from",), "--start-time": ("--from",), "--start-offset": ("--from",), "--since": ("--from",),
    "--end": ("--until",), "--end-time": ("--until",), "--end-offset": ("--until",),
    "--isolation": ("--committed",), "--isolation-level": ("--committed",), "--read-committed": ("--committed",),
    "--limit": ("--limit", "--last"), "--tail": ("--last",), "--max-messages": ("--limit", "--last"),
    "--keys": ("--key",), "--headers": ("--header",), "--filter": ("--where",),
    "--on-damage": ("--skip-damage",), "--columns": ("--format",),
}  # fmt: skip
_TOLD = {
    "--committed": "--committed (isolation level read_committed)",
    "--skip-damage": "--skip-damage (on_damage='skip' in Python)",
}
_LISTS = "without an option that changes offsets the command lists groups, offsets and lag: `kafkalog cursors"
_OF_COMMANDS = {
    ("cursors", "--list"): f"{_LISTS} LOG_DIR`",
    ("cursors", "--describe"): f"{_LISTS} LOG_DIR --group NAME` shows one group",
    ("cat", "--columns"): "-f '%o %k %s' prints the fields that it names, and --json prints all",
    (
        "export",
        "--columns",
    ): "a file has all columns; --headers adds the headers, and Python's read_arrow accepts columns=",
    (
        "export",
        "--by",
    ): "it writes a file per partition: --to DIR/; for a file per day repeat --from DAY --until DAY --to FILE",
    (
        "export",
        "--partition-by",
    ): "it writes a file per partition: --to DIR/; for a file per day repeat --from DAY --until DAY --to FILE",
}


def told(error: click.NoSuchOption) -> str:
    """Returns the text of the error, with the option that was meant, if that is known."""
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
