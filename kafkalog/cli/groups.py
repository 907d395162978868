"""Command groups: a wrong name is answered with the nearest one, and a group may have a default command.

This module knows no command, and imports only click, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from kafkalog.engine.files import OS_FILES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HELP = frozenset({"--help", "-h"})


class NamingGroup(click.Group):
    """A group that answers a wrong name with the nearest one, or with all names."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            if args[0] not in known:
                refuse_name(ctx, args[0], known)
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and command is not None:  # shell completion
            from kafkalog.cli.completing import prepared

            command = prepared(command)
        return name, command, rest


class TableGroup(NamingGroup):
    """A group whose commands are imported when they are used; `table` has their names and descriptions."""

    table: Mapping[str, str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.table.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes as a group does, but imports no command."""
        from click.shell_completion import CompletionItem

        known = [CompletionItem(name, help=self.table[name]) for name in sorted(self.table)]
        return [each for each in known if each.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )


class DefaultGroup(NamingGroup):
    """A group in which `group LOG_DIR` means `group show LOG_DIR`. Its help has the options of `show`. A directory with
    the name of a command is written `./name`."""

    default = "show"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not set(args) & _HELP:
            if _is_meant(args[0], self.commands) and not ctx.resilient_parsing:
                refuse_name(ctx, args[0], self.commands)
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = self.commands[self.default]
        options = [each for each in own.get_params(ctx) if isinstance(each, click.Option)]
        rows = [found for each in options if (found := each.get_help_record(ctx)) is not None]
        if rows:
            with formatter.section("Options"):
                formatter.write_dl(rows)
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.short_help or "") for name, each in self._others()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the names of commands, and the first word of the default command."""
        own = self.commands[self.default]
        found = own.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        first = next((each for each in own.params if isinstance(each, click.Argument)), None)
        if first is not None and not incomplete.startswith("-"):
            found = first.shell_complete(ctx, incomplete)
        own_names = [each for each in super().shell_complete(ctx, incomplete) if each.value != self.default]
        return found + own_names  # after a completion of type file a shell ignores those before it

    def _others(self) -> list[tuple[str, click.Command]]:
        return [(name, each) for name, each in sorted(self.commands.items()) if name != self.default]


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Returns the names that may have been meant, best first."""
    import difflib

    return difflib.get_close_matches(name, known)


def refuse_name(ctx: click.Context, name: str, known: Collection[str]) -> None:
    """Fails with the names that may have been meant."""
    near = nearest(name, known)
    expected = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(sorted(known))}"
    ctx.fail(f"no command {name!r}, {expected}")


def _is_meant(name: str, known: Collection[str]) -> bool:
    """Returns whether a word that is not a command is a mistyped one rather than a path."""
    is_word = name.isidentifier() and not OS_FILES.exists(name)
    return is_word and bool(nearest(name, known))
