"""The modules that an import loads, and the error if an extra is missing: each in its own Python process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import USAGE
from tests.unit.test_cat import log_dir
from tests.unit.test_public_names import INNER, MODULES, PUBLIC, WRONG

__all__ = ["log_dir"]

ROOT = Path(__file__).parents[2]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_is_there_without_an_import_of_its_own(module: str) -> None:
    done = python(f"import kafkalog; print(kafkalog.{module}.__name__)")
    assert done.stdout == f"kafkalog.{module}\n", done.stderr


@pytest.mark.parametrize("name", [*WRONG, *INNER])
def test_a_wrong_name_is_refused(name: str) -> None:
    done = python(f"import kafkalog; kafkalog.{name}")
    assert done.returncode == 1
    assert f"module 'kafkalog' has no attribute '{name}'" in done.stderr


def test_a_type_checker_sees_what_is_there(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = ["import kafkalog"]
    for name in ("__version__", *PUBLIC, *WRONG):
        verdict = "there" if hasattr(kafkalog, name) else "wrong"
        lines += [f"kafkalog.{name}  # {verdict}", f"from kafkalog import {name} as _{len(lines)}  # {verdict}"]
    lines += [
        "kafkalog.errors.KafkalogError  # there",
        "kafkalog.errors.KafkalogEror  # wrong",
        "kafkalog.errors.os  # wrong",
    ]
    uses = tmp_path / "uses.py"
    uses.write_text("\n".join(lines))
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "--follow-imports=silent",
            f"--cache-dir={ROOT / '.mypy_cache' / 'names'}", str(uses),
        ],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    told = {number for number, line in enumerate(lines, 1) if line.endswith("wrong")}
    assert {lines[number - 1] for number in found ^ told} == set(), done.stdout + done.stderr


def test_import_pulls_in_nothing_large() -> None:
    code = (
        "import sys, kafkalog; kafkalog.open_log; "
        "bad = {'pyarrow', 'pyspark', 'rich', 'click', 'pandas'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys, kafkalog\n"
        "sys.modules['pyarrow'] = None\n"
        f"with kafkalog.open_log({str(tmp_path)!r}, 't-0') as log:\n"
        "    log.append_columns([b'1'], timestamps=[5])\n"
        "    class Column(list):\n"
        "        def __arrow_c_array__(self): raise AssertionError\n"
        "    for call in (log.read_arrow, log.arrow_batches, log.latest, log.__arrow_c_stream__,\n"
        "                 lambda: log.append_columns(Column([b'x']))):\n"
        "        try:\n"
        "            call()\n"
        "        except ImportError as error:\n"
        "            assert \"pip install 'kafkalog[arrow]'\" in str(error), error\n"
        "            assert isinstance(error, kafkalog.KafkalogError)\n"
        "        else:\n"
        "            raise AssertionError(call)\n"
        "    assert log.end_offset == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_needs_pyarrow_says_so(log_dir: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; from kafkalog.cli.app import invoke; "
        f"sys.exit(invoke(['cat', {str(log_dir)!r}, 't-0', *sys.argv[1:]]))"
    )
    line = [sys.executable, "-c", code]
    for words in (["--last", "2"], ["--key", "k"]):
        assert subprocess.run([*line, *words], capture_output=True).returncode == 0
    done = subprocess.run([*line, "--grep", "k"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "pip install 'kafkalog[arrow]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_imports_neither_numpy_nor_rich() -> None:
    code = (
        "import sys; from kafkalog.cli.app import invoke; invoke(['--help']); "
        "bad = {'numpy', 'rich', 'pyarrow', 'pyspark'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_command_line_is_an_extra() -> None:
    """Without click and rich both ways in say in one sentence what to install; the package works."""
    without = "import sys; sys.modules.update(click=None, rich=None); "
    for entry in ("import runpy; runpy.run_module('kafkalog')", "from kafkalog.cli import main; main()"):
        done = subprocess.run([sys.executable, "-c", without + entry, "--help"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "kafkalog: the command line needs click and rich: pip install 'kafkalog[cli]'\n"


def test_without_the_package_it_is_said_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from kafkalog.metrics import MetricsRegistry, PrometheusCollector\n"
        "try:\n    PrometheusCollector(MetricsRegistry())\n"
        "except ImportError as error:\n"
        "    assert \"pip install 'kafkalog[metrics]'\" in str(error), error\n"
        "else:\n    raise SystemExit('it was there')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_core_does_without_it() -> None:
    script = (
        "import sys, kafkalog, kafkalog.metrics, kafkalog._face\n"
        "assert not any(name.startswith('prometheus') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
