"""The floors of the house: a file imports from its own floor and from those below, never upward.

Walks every .py, .pyx and .pxd under kafkalog/, function-level imports included.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kafkalog"
FLOORS = [
    ("limits",),
    ("errors",),
    ("config",),
    ("_native",),
    ("files",),
    ("format",),
    ("segment",),
    ("log",),
    ("cleaner",),
    ("manager",),
    ("topics", "reader", "writer", "record", "toolbox"),
    ("spark", "cli"),
]
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}
CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.MULTILINE)


def sources() -> list[Path]:
    return sorted(path for kind in ("*.py", "*.pyx", "*.pxd") for path in PACKAGE.rglob(kind))


def imported(path: Path) -> set[str]:
    """The dotted names of kafkalog modules that a file imports, anywhere in it."""
    text = path.read_text()
    if path.suffix != ".py":
        names = {a or b for a, b in CIMPORT.findall(text)}
    else:
        names = set()
        package = ["kafkalog", *path.relative_to(PACKAGE).parts[:-1]]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                module = ".".join(part for part in (base, node.module or "") if part)
                names.add(module)
                names.update(f"{module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.split(".")[0] == "kafkalog"}


def floor_of(dotted: str) -> int | None:
    parts = dotted.split(".")
    return FLOOR_OF.get(parts[1]) if len(parts) > 1 else None


def test_every_part_has_a_floor() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in sources()}
    assert parts - {"__init__", "__init__.pxd", "__main__"} <= set(FLOOR_OF)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py").removesuffix(".pxd")
    if own in ("__init__", "__main__"):
        return  # the package's own door hands out names of every floor
    for name in imported(path):
        floor = floor_of(name)
        assert floor is None or floor <= FLOOR_OF[own], f"{own} (floor {FLOOR_OF[own]}) imports {name} (floor {floor})"
        # Front doors stand side by side and do not know each other.
        assert floor != len(FLOORS) - 1 or name.split(".")[1] == own, f"{own} imports {name}"


def test_native_raises_no_domain_error_and_opens_no_file() -> None:
    for path in (PACKAGE / "_native").glob("*.pyx"):
        assert not re.search(r"kafkalog\.errors|\bopen\(|import os\b", path.read_text()), path.name
