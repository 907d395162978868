"""Files for a system's `share` directory: man pages, and completions for bash, zsh and fish.

`python -m kafkalog.cli.shared_files DIRECTORY` writes them below DIRECTORY/share, where `man` and the shells look.  A
wheel contains them, so `pip install 'kafkalog[cli]'` installs them below the environment's prefix.
"""

from __future__ import annotations

import sys

from kafkalog.cli.completing import script
from kafkalog.cli.man_pages import write_man_pages, write_text

__all__ = ["write_shared_files"]

COMPLETIONS = {
    "bash": ("share/bash-completion/completions", "kafkalog"),
    "zsh": ("share/zsh/site-functions", "_kafkalog"),
    "fish": ("share/fish/vendor_completions.d", "kafkalog.fish"),
}


def write_shared_files(directory: str) -> list[str]:
    """Writes the man pages and the completions, and returns their paths.

    Args:
        directory: The directory that gets `share`; it is created if it does not exist.

    Raises:
        OSError: A file cannot be written.
    """
    root = directory.rstrip("/")
    pages = write_man_pages(f"{root}/share/man/man1")
    return pages + [write_text(f"{root}/{place}", name, script(shell)) for shell, (place, name) in COMPLETIONS.items()]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kafkalog.cli.shared_files DIRECTORY")
    print(f"{len(write_shared_files(sys.argv[1]))} files below {sys.argv[1]}/share")
