"""Runs pages, each in a directory of its own; `--write` puts what their blocks print into them."""

import sys
import tempfile
from pathlib import Path

from tests.pages import Mismatch, Page, run

write = "--write" in sys.argv
failed = 0
for name in sys.argv[1:]:
    if name.startswith("--"):
        continue
    with tempfile.TemporaryDirectory() as place:
        try:
            run(Page(Path(name).resolve()), Path(place).resolve(), write=write)
            print(f"{name}: ok")
        except Mismatch as error:
            failed += 1
            print(error)
sys.exit(failed)
