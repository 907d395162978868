"""The layers of the package: a file imports from its own directory and from layers below, and no directory has a cycle.

The layers are the intended ones; some of their modules do not exist yet.  The test walks every .py, .pyx and .pxd under
kafkalog/; imports of a function, of types alone, and cimports count like any other.  Another test limits functions to
eight parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "kafkalog"
# The classes that a user holds, and their parts: one layer without a cycle.
FACE = (
    *("_face", "store", "topic", "partition", "records", "reader", "group_reader", "queue", "producer"),
    *("transaction", "decoding"),
)
FLOORS = [  # lowest first; layers on one line are equal, and do not know each other
    ("_limits", "_renamed", "_shown"),
    ("errors",),
    ("config",),
    ("_native.codec",),
    ("_native.state",),
    ("engine.files",),
    ("engine.format",),
    ("metrics",),
    ("engine.segment",),
    ("engine.log",),
    ("engine.cleaner",),
    ("engine.host",),
    ("engine.coordinator",),
    ("engine.remote",),
    ("remote",),
    FACE,
    ("toolbox",),
    ("server",),
    ("spark",),
    ("report",),
    ("ui",),
    ("cli",),
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
DOORS = ("__init__", "__main__", "engine.__init__", "_native.__init__")  # they return names of every layer
PARAMETERS_MAX = 8
REASON = "More than eight parameters:"


def sources() -> list[Path]:
    return sorted(path for kind in ("*.py", "*.pyx", "*.pxd") for path in PACKAGE.rglob(kind))


def module_of(path: Path) -> str:
    """`_face.rows` of kafkalog/_face/rows.py; a .pyx and its .pxd are one."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_of(path) for path in sources()}


# --- imports ---------------------------------------------------------------------------------------------

CIMPORT = re.compile(r"^[ \t]*(?:from\s+([\w.]+)\s+)?c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


class Import(NamedTuple):
    """`from kafkalog._face import rows` is ("kafkalog._face", "rows"); `import kafkalog.errors` has no name."""

    module: str
    name: str


def python_imports(text: str, package: list[str]) -> Iterator[Import]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (Import(module, alias.name) for alias in node.names)


def cython_imports(text: str, package: list[str]) -> Iterator[Import]:
    for origin, listed in CIMPORT.findall(text):
        names = [entry.split()[0] for entry in re.sub(r"#.*", "", listed).strip("() \n").split(",") if entry.strip()]
        if not origin:
            yield from (Import(name, "") for name in names)
            continue
        level = len(origin) - len(origin.lstrip("."))
        base = package[: len(package) - level + 1] if level else []
        module = ".".join([*base, *filter(None, [origin.lstrip(".")])])
        yield from (Import(module, name) for name in names)


def imported(text: str, path: str) -> set[str]:
    """The modules of kafkalog that a file imports, anywhere in it; a package counts as its `__init__`."""
    package = ["kafkalog", *path.split("/")[:-1]]
    imports = python_imports if path.endswith(".py") else cython_imports
    found = set()
    for module, name in imports(text, package):
        if module.split(".")[0] != "kafkalog":
            continue
        inside = module.removeprefix("kafkalog").removeprefix(".")
        for candidate in (f"{inside}.{name}".strip("."), inside, f"{inside}.__init__".strip(".")):
            if candidate in MODULES:
                found.add(candidate)
                break
        else:
            raise AssertionError(f"{path} imports {module} {name}, which is not there")
    return found - {"__init__"}


def graph() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in sources():
        of = found.setdefault(module_of(path), set())
        of |= imported(path.read_text(), path.relative_to(PACKAGE).as_posix()) - {module_of(path)}
    return found


def room_of(module: str) -> str:
    first, *rest = module.split(".")
    if first in FACE:
        return FACE[0]
    return f"{first}.{rest[0]}" if first in ("engine", "_native") else first


def test_the_picture_shows_these_floors() -> None:
    """docs/pictures/layers.svg is drawn from LAYERS, highest first."""
    text = (PACKAGE.parent / "docs" / "_site" / "architecture_pictures.py").read_text()
    (table,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "LAYERS"
    )
    assert table is not None
    drawn = [packages for _, packages, _ in ast.literal_eval(table)]
    assert drawn == [floor if isinstance(floor, tuple) else (floor,) for floor in reversed(FLOORS)]


def test_every_part_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES} - set(DOORS) <= set(FLOOR_OF)


def goes_up(module: str, other: str) -> bool:
    here, there = room_of(module), room_of(other)
    return here != there and FLOOR_OF[there] >= FLOOR_OF[here]


def test_imports_go_down() -> None:
    edges = ((module, other) for module, others in graph().items() for other in others if module not in DOORS)
    assert not sorted(f"{module} imports {other}" for module, other in edges if goes_up(module, other))


def circles(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """One for each knot of modules that reach each other, shortest path first, as `a -> b -> a`."""
    found, seen = [], set()
    for start in sorted(edges):
        paths = [[start]]
        reached = {start}
        circle = None
        while paths and circle is None and start not in seen:
            path = paths.pop(0)
            for other in sorted(edges.get(path[-1], ())):
                if other == start:
                    circle = [*path, start]
                    break
                if other not in reached:
                    reached.add(other)
                    paths.append([*path, other])
        if circle is not None:
            seen.update(circle)
            found.append(" -> ".join(circle))
    return found


def test_no_folder_has_a_circle_inside() -> None:
    edges = {
        module: {other for other in others if room_of(other) == room_of(module)} for module, others in graph().items()
    }
    assert list(circles(edges)) == []


# A module that a lower layer imports by its name at run time, because it is above: who, what, and for which call.
REACHES_UP = {
    ("_face.plotting", "report.plots"),  # plot() of a partition, a topic and a store
    ("_face.serving", "server.server"),  # serve() of a store
    ("engine.host.log_contexts", "engine.remote.known_copies"),  # a deletion without a known tier
}


def test_who_reaches_up_by_name() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        for named in re.findall(r"import_module\(\s*\"kafkalog\.([\w.]+)\"", path.read_text()):
            if named in MODULES and goes_up(module, named):
                found.add((module, named))
    assert found == REACHES_UP


def test_the_look_finds_what_it_looks_for() -> None:
    text = "if TYPE_CHECKING:\n    from kafkalog.partition import Partition\ndef f():\n    from . import rows, X\n"
    assert imported(text, "_face/x.py") == {"partition", "_face.rows", "_face.__init__"}
    text = (
        "from kafkalog._native.codec cimport layout\nfrom .cursor cimport (take,\n  x)\n"
        "import kafkalog._native.codec.varint as v\n"
    )
    assert imported(text, "_native/codec/x.pyx") == {
        "_native.codec.layout", "_native.codec.cursor", "_native.codec.varint",
    }  # fmt: skip
    assert circles({"a": "b", "b": "c", "c": "ad", "d": "d", "e": "a"}) == ["a -> b -> c -> a", "d -> d"]
    assert goes_up("spark.source", "cli.app")
    assert goes_up("engine.log.append", "engine.host.directory")
    assert not goes_up("toolbox.verify", "partition")


def test_native_raises_no_domain_error_and_opens_no_file() -> None:
    for path in (PACKAGE / "_native").rglob("*.p[yx][xd]"):
        opens = r"|\bopen\(" if path.name != "folder.pyx" else ""
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)  # an example may open a store
        assert not re.search(rf"kafkalog\.errors{opens}|import os\b", code), path.name


def test_only_the_door_to_the_disk_opens_natively() -> None:
    """`folder.pyx` opens what it lists and reads in one call: for `files/` alone, which hands it on as its own."""
    knows = [path for path in sources() if re.search(r"_native\.state(\.| import )folder\b", path.read_text())]
    assert knows
    assert {path.parent for path in knows} == {PACKAGE / "engine" / "files"}


# --- parameters ------------------------------------------------------------------------------------------

CDEF = re.compile(
    r"^([ \t]*)(?:def|cdef|cpdef)\s+(?!class\b|extern\b|struct\b|enum\b)[^\n(=:]*?(\w+)\s*\(", re.MULTILINE
)

CLASS = re.compile(r"^(?:cdef )?class (\w+)", re.MULTILINE)


class Function(NamedTuple):
    name: str
    parameters: int
    told: str  # comments above it, in its head and below its docstring (which is for users; a native one counts too)


def python_functions(text: str) -> Iterator[Function]:
    lines = text.splitlines()

    def walk(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = child.args
                names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                count = len(names) - (names[:1] in (["self"], ["cls"])) + bool(given.vararg) + bool(given.kwarg)
                top = child.lineno - 1
                while top and lines[top - 1].lstrip().startswith(("#", "@")):
                    top -= 1
                first = child.body[0]
                head = [line for line in lines[top : first.lineno] if "#" in line]
                if ast.get_docstring(child) is not None:
                    behind = first.end_lineno or first.lineno
                    while behind < len(lines) and lines[behind].lstrip().startswith("#"):
                        head.append(lines[behind])
                        behind += 1
                yield Function(name, count, "\n".join(head))
            yield from walk(child, f"{name}." if isinstance(child, ast.ClassDef) else prefix)

    return walk(ast.parse(text), "")


def cython_functions(text: str) -> Iterator[Function]:
    """The functions with a body: a declaration repeats its definition."""
    for match in CDEF.finditer(text):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[end], 0)
            end += 1
        ending = re.match(r"[^\n:=]*:[ \t]*(?:#[^\n]*)?\n", text[end:])
        if ending is None:
            continue
        head = re.sub(r"#[^\n]*", "", text[match.end() : end - 1])
        while head != (head := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", head)):
            pass
        names = [entry.split("=")[0].split() for entry in head.split(",") if entry.strip() not in ("", "*", "/")]
        count = sum(words[-1] not in ("self", "cls") for words in names)
        above = re.search(r"(?:^[ \t]*[#@][^\n]*\n)*\Z", text[: match.start()], re.MULTILINE)
        below = re.match(r'(?:\s*#[^\n]*\n)*(?:\s*"""[\s\S]*?"""\n(?:\s*#[^\n]*\n)*)?', text[end + ending.end() :])
        assert above is not None
        assert below is not None
        inside = CLASS.findall(text[: match.start()]) if match[1] else []
        yield Function(".".join([*inside[-1:], match[2]]), count, above[0] + text[match.start() : end] + below[0])


def functions(text: str, path: str) -> Iterator[Function]:
    return python_functions(text) if path.endswith(".py") else cython_functions(text)


def forms(text: str, path: str) -> set[tuple[str, str]]:
    """The functions with too many parameters that do not say why."""
    return {
        (path, name) for name, count, told in functions(text, path) if count > PARAMETERS_MAX and REASON not in told
    }


def test_no_function_is_a_form_to_fill_in() -> None:
    found: set[tuple[str, str]] = set()
    for path in sources():
        found |= forms(path.read_text(), path.relative_to(PACKAGE).as_posix())
    # A command of the command line has its options as parameters: click hands each over by its name.
    found = {(path, name) for path, name in found if not (path.startswith("cli/") and name == "command")}
    assert found == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, b, c, d, /, e, f, *, g, h): pass\n", False),
        ("class A:\n    def f(self, a, b, c, d, e, f, g, *, h): pass\n", False),
        ("class A:\n    @classmethod\n    def f(cls, a, b, c, d, e, f, g, h, **i): pass\n", True),
        ("def g():\n    def f(a, b, c, d, e, f, g, h, *i): pass\n", True),
        ("# More than eight parameters: so it is.\ndef f(a, b, c, d, e, f, g, h, i): pass\n", False),
        ("def f(a, b, c, d, e, f, g, h, i):\n    # More than eight parameters: so it is.\n    pass\n", False),
        ('def f(a, b, c, d, e, f, g, h, i):\n    """So."""\n    # More than eight parameters: ...\n    pass\n', False),
        ('def f(a, b, c, d, e, f, g, h, i):\n    """So.\n\n    More than eight parameters: ..."""\n', True),
        ("def f(a, b, c, d, e, f, g, h, i):\n    pass\n    # More than eight parameters: too late.\n", True),
    ],
)
def test_who_counts_as_a_form(text: str, found: bool) -> None:
    assert bool(forms(text, "x.py")) == found
    if "class" not in text and "/" not in text and "def g" not in text and "So.\n" not in text:
        cython = text.replace("def f(a, b", "cdef int f(const uint8_t* a, (int, int) b=(1, 2)").replace(
            "pass", "return 1"
        )
        assert bool(forms(cython, "x.pyx")) == found


def test_declarations_are_no_forms() -> None:
    text = "cdef int f(int a, int b, int c, int d, int e, int f, int g, int h, int i) noexcept nogil\n"
    assert not forms(text, "x.pxd")
    assert forms(text.replace("nogil\n", "nogil:\n    return 1\n"), "x.pxd") == {("x.pxd", "f")}
