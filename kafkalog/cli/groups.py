"""Commands that have commands: a wrong name is told with the nearest one, and one of them may go without its name.

Knows no command; imports click alone, so that the command line starts quickly.
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
    """A wrong name is told with the nearest one, or with all there are."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            if args[0] not in known:
                refuse_name(ctx, args[0], known)
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and command is not None:  # a shell asks how a line may go on
            from kafkalog.cli.completing import prepared

            command = prepared(command)
        return name, command, rest


class TableGroup(NamingGroup):
    """Commands by name, each imported when it is asked for; `table` says what they do."""

    table: Mapping[str, str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.table.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As a group's, but it imports none."""
        from click.shell_completion import CompletionItem

        known = [CompletionItem(name, help=self.table[name]) for name in sorted(self.table)]
        return [each for each in known if each.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )


class DefaultGroup(NamingGroup):
    """`group LOG_DIR` is `group show LOG_DIR`, and its help has the options of `show`; a folder with the name of one of
    the commands is `./name`."""

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
        """The commands, and what the default may begin with."""
        own = self.commands[self.default]
        found = own.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        first = next((each for each in own.params if isinstance(each, click.Argument)), None)
        if first is not None and not incomplete.startswith("-"):
            found = first.shell_complete(ctx, incomplete)
        own_names = [each for each in super().shell_complete(ctx, incomplete) if each.value != self.default]
        return found + own_names  # a shell that is told of files forgets what came before

    def _others(self) -> list[tuple[str, click.Command]]:
        return [(name, each) for name, each in sorted(self.commands.items()) if name != self.default]


def nearest(name: str, known: Collection[str]) -> list[str]:
    """The names that somebody may have meant, best first."""
    import difflib

    return difflib.get_close_matches(name, known)


def refuse_name(ctx: click.Context, name: str, known: Collection[str]) -> None:
    """Fails, with what may have been meant."""
    near = nearest(name, known)
    expected = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(sorted(known))}"
    ctx.fail(f"no command {name!r}, {expected}")


def _is_meant(name: str, known: Collection[str]) -> bool:
    """Whether a word that is no command is rather one that was mistyped than a path."""
    is_word = name.isidentifier() and not OS_FILES.exists(name)
    return is_word and bool(nearest(name, known))
