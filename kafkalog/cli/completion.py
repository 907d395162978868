"""`kafkalog completion`: prints the script by which a shell completes commands, options, paths and partitions."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN
from kafkalog.cli.completing import SHELLS, script
from kafkalog.cli.console import emit


@click.command("completion", short_help="Print the completion script for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the script that makes SHELL complete commands, options, paths and, after a log directory, its topics and
    partitions.

    The command changes nothing. Install the script as follows.

    \b
    bash: put eval "$(kafkalog completion bash)" into ~/.bashrc, or save the
          output as ~/.local/share/bash-completion/completions/kafkalog
    zsh:  save the output as _kafkalog in a directory of $fpath, or put
          eval "$(kafkalog completion zsh)" after compinit into ~/.zshrc
    fish: save the output as ~/.config/fish/completions/kafkalog.fish
    """
    emit(script(shell).rstrip("\n"))
    return CLEAN
