"""Runs the code blocks of the documentation, and compares what they print with what the page shows.

A page is run from top to bottom in one empty directory.  The kind of a block says what happens to it:

    ```python                   runs in this process; all blocks of a page share their names
    ```python title="app.py"    is written to that file; so is a block of any language whose title is a file name
    ```text title="Output"      is what the block before it printed
    ```console                  `$ ` lines run in bash, the other lines are what they printed
    ```sh                       sets up a machine: only `pip install` and `make`, which are checked and not run
    ```text, ```json, ```sql    is shown to the reader only

A line `...` stands for any number of lines, and `...` in a line for any characters.  Times of today, durations and
rates may differ.  `<!-- setup: NAME -->` at the head of a page runs a function of `setups.py` first, and
`<!-- run: CODE -->` runs a line of Python that readers do not see.  `<!-- needs: jq -->` names
programs without which the page is left out.

`python -m tests.pages PAGE ...` runs pages, and with `--write` puts what the blocks print into them.
"""

from tests.pages.page import Block, Page, pages
from tests.pages.running import Mismatch, run

__all__ = ["Block", "Mismatch", "Page", "pages", "run"]
