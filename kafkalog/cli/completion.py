"""`kafkalog completion`: what makes a shell complete commands, options, paths, topics and partitions."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN
from kafkalog.cli.completing import SHELLS, script
from kafkalog.cli.console import emit


@click.command("completion", short_help="Print what completes command lines in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the script by which SHELL completes commands, options, paths, and behind a log directory the topics and
    partitions that are in it.

    \b
    bash: eval "$(kafkalog completion bash)" in ~/.bashrc, or the output in a file of
          ~/.local/share/bash-completion/completions, named kafkalog
    zsh:  the output in a file _kafkalog of a folder of $fpath; or eval "$(kafkalog completion zsh)" behind compinit
    fish: the output in ~/.config/fish/completions/kafkalog.fish
    """
    emit(script(shell).rstrip("\n"))
    return CLEAN
