#!/usr/bin/env bash
# Installs the built wheel into an environment of its own, away from the source tree, and uses it.
set -euo pipefail
dist=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(ls "$dist"/kafkalog-*.whl)
python=${PYTHON:-python3}
"$python" - "$wheel" "$dist" <<'PY'
import sys, tarfile, zipfile
from pathlib import Path

names = zipfile.ZipFile(sys.argv[1]).namelist()
generated = [n for n in names if n.endswith((".c", ".cpp"))]
assert not generated, f"generated C in the wheel: {generated}"
for wanted in ("kafkalog/py.typed", "pyspark_kafkalog.py", "kafkalog/_native/batches.pyi"):
    assert wanted in names, f"{wanted} is missing from the wheel"
assert not [n for n in names if n.startswith("tests/")], "tests in the wheel"
(sdist,) = Path(sys.argv[2]).glob("*.tar.gz")
files = tarfile.open(sdist).getnames()
assert any(n.endswith("kafkalog/_native/layout.pxd") for n in files), "the sdist lacks the .pxd files"
assert not [n for n in files if n.endswith(".c") and "/_native/src/" not in n], "generated C in the sdist"
print(f"wheel: {len(names)} files, no generated C")
PY
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install -q "$wheel"
cd "$place"
"$place/venv/bin/python" -W error "$here/smoke.py" "$place/data"
"$place/venv/bin/kafkalog" --help > /dev/null
echo "wheel: smoke test passed"
