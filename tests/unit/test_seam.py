"""The one module for disk access: outside `files/` no code asks the system about a path or opens one.

Calls that bypass it are not seen by a recording, faulty or overlaid disk: a dry run then works on the real one.  The
test walks every .py and .pyx under kafkalog/, and pyspark_kafkalog.py.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kafkalog"
# Text, or facts about the process.
TEXT = {
    "PathLike", "fspath", "fsdecode", "fsencode", "sep", "curdir", "pardir", "environ", "environ.get", "getpid",
    "getuid", "cpu_count", "register_at_fork", "strerror", "path", "path.abspath", "path.basename", "path.commonpath",
    "path.dirname",
    "path.isabs", "path.join", "path.normpath", "path.relpath", "path.sep", "path.split", "path.splitext",
}  # fmt: skip
# The modules that may bypass it, with their calls and the reason.
ALLOWED = {
    ("engine/host/backups.py", "path.realpath"): "what a link leads to, whose parent says that it is a backup's",
    ("engine/host/directory.py", "path.realpath"): "one directory is one whatever it is called; nothing is read of it",
    ("engine/host/log_directories.py", "path.realpath"): "two names of one directory; nothing is read of it",
    ("engine/host/move_notes.py", "path.realpath"): "whether the note means this directory, whatever it is called",
    ("toolbox/backup_places.py", "path.realpath"): "whether a target lies in what is read, whatever they are called",
    ("toolbox/backup_places.py", "path.ismount"): "a folder that nobody can rename; nothing is read of it",
    ("toolbox/move.py", "path.realpath"): "whether the two directories are one, whatever they are called",
    ("_face/remote_tier.py", "path.realpath"): "whether tier and directory are apart, whatever they are called",
    ("_face/store_handles.py", "path.realpath"): "whether a store is open already, whatever its directories are called",
    ("_face/topic_settings.py", "path.realpath"): "whether a broker's file means these directories, by any name",
    ("toolbox/recovery.py", "path.realpath"): "the same name for a directory that the table of open ones uses",
    **{
        (f"spark/jobs/{name}.py", "path.realpath"): "executors are told one name, whatever the driver's folder"
        for name in ("doctor", "exporting", "importing", "run", "shared")
    },
    ("_face/changes.py", "tempfile"): "values before the start, in a file of the task's own",
    **{
        ("_face/proto_schemas.py", use): "protoc and the files that it reads, in a folder of their own"
        for use in ("pathlib", "shutil", "tempfile")
    },
    **{
        ("spark/jobs/probe.py", use): "is sent to executors whose Python may have no kafkalog; doctor shares its walk"
        for use in (
            "R_OK",
            "X_OK",
            "access",
            "builtin open",
            "close",
            "fstat",
            "getppid",
            "path.isdir",
            "scandir",
            "statvfs",
            "tempfile",
        )
    },
    **{
        ("spark/jobs/shared.py", use): "a task's own temporary folder, with a link to the partition's"
        for use in ("shutil", "symlink", "tempfile")
    },
    **{
        ("server/security/tls.py", use): "the ssl module reads a key only from a file, which is gone at once"
        for use in ("fdopen", "tempfile")
    },
    ("spark/places.py", "path.realpath"): "as the jobs: executors are told one name",
    ("engine/remote/aiven_keys.py", "urandom"): "keys and nonces",
    ("engine/remote/read_only.py", "write"): "to the socket of who asked",
    ("spark/jobs/shuffle.py", "tempfile"): "bits, in a file of the task's own",
    ("cli/tables.py", "shutil"): "the terminal's width; no file",
    **{
        ("cli/completing.py", use): "names, for a shell that asks; nothing of the engine is imported for them"
        for use in ("listdir", "path.expanduser", "path.expandvars")
    },
    **{
        ("cli/app.py", use): "the null device, in place of standard streams that are closed"
        for use in ("open", "builtin open", "close", "dup2", "devnull", "O_RDWR", "O_WRONLY")
    },
}
MODULES = {"pathlib", "shutil", "tempfile", "glob", "fcntl", "posix"}


def sources() -> list[Path]:
    found = [path for kind in ("*.py", "*.pyx") for path in PACKAGE.rglob(kind)]
    found = [path for path in found if path.relative_to(PACKAGE).parts[:2] != ("engine", "files")]
    return [*sorted(found), ROOT / "pyspark_kafkalog.py"]


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def uses(path: Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".pyx":
        return set(re.findall(r"\bos\.((?:path\.)?\w+)", text))
    return uses_in(text)


def uses_in(text: str) -> set[str]:
    """The uses of `os`, without the `os.`; `open` and modules that know paths under their names."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and dotted(node).startswith("os."):
            found.add(dotted(node).removeprefix("os."))
        elif isinstance(node, ast.Call) and dotted(node.func) in ("open", "io.open", "codecs.open", "io.FileIO"):
            found.add("builtin open")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.split(".")[0] in MODULES:
                found.add(node.module)
            elif node.module in ("os", "os.path"):
                found |= {f"{node.module}.{alias.name}".removeprefix("os.") for alias in node.names}
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_way_past_the_door(path: Path) -> None:
    name = str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else path.name
    past = {use for use in uses(path) - TEXT if (name, use) not in ALLOWED}
    assert not past, f"{name} goes past kafkalog.engine.files: {', '.join(sorted(past))}"


def test_what_is_allowed_is_needed() -> None:
    for name, use in ALLOWED:
        assert use in uses(PACKAGE / name), (name, use)


def test_the_ways_past_are_known() -> None:
    """The search itself, on the calls that it is for."""
    probe = (
        "import os, shutil\nfrom os import path\nos.path.isdir('a')\nos.access('a', 4)\nopen('a')\nos.path.join('a')\n"
    )
    assert uses_in(probe) - TEXT == {"path.isdir", "access", "builtin open", "shutil"}
