#!/usr/bin/env bash
# Installs the built wheel into a new environment outside the source tree, and uses it.
set -euo pipefail
dist=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(ls "$dist"/kafkalog-*.whl)
python=${PYTHON:-python3}
"$python" - "$wheel" "$dist" <<'PY'
import sys, tarfile, zipfile
from pathlib import Path

wheel = zipfile.ZipFile(sys.argv[1])
names = wheel.namelist()
generated = [n for n in names if n.endswith((".c", ".cpp"))]
assert not generated, f"generated C in the wheel: {generated}"
for wanted in ("kafkalog/py.typed", "pyspark_kafkalog.py", "kafkalog/_native/codec/batches.pyi",
               "kafkalog/report/assets/page.html", "kafkalog/ui/assets/live.html"):
    assert wanted in names, f"{wanted} is missing from the wheel"
assert not [n for n in names if n.startswith("tests/")], "tests in the wheel"
shared = [n.partition(".data/data/share/")[2] for n in names if ".data/data/share/" in n]
for wanted in ("man/man1/kafkalog.1", "man/man1/kafkalog-verify.1", "bash-completion/completions/kafkalog",
               "zsh/site-functions/_kafkalog", "fish/vendor_completions.d/kafkalog.fish"):
    assert wanted in shared, f"share/{wanted} is missing from the wheel"
doubles = [n for n in names if n in ("kafkalog/files/testing.py", "kafkalog/files/disk_model.py")]
assert not doubles, f"test doubles in the wheel: {doubles}"
# ELF and Mach-O store the names of their sections as plain text.
native = [n for n in names if n.endswith(".so")]
assert native, "no native modules in the wheel"
described = [n for n in native if any(name in wheel.read(n) for name in (b".debug_info", b"__debug_info"))]
assert not described, f"debug information in the wheel: {described}"
(sdist,) = Path(sys.argv[2]).glob("*.tar.gz")
files = tarfile.open(sdist).getnames()
assert any(n.endswith("kafkalog/_native/codec/layout.pxd") for n in files), "the sdist lacks the .pxd files"
assert not [n for n in files if n.endswith(".c") and "/_native/src/" not in n], "generated C in the sdist"
native_bytes = sum(wheel.getinfo(n).file_size for n in native)
print(f"wheel: {len(names)} files, no generated C, {native_bytes:,} bytes of native code without debug information")
PY
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install -q "$wheel"
cd "$place"
"$place/venv/bin/python" -W error "$here/smoke.py" "$place/data"
# The command line is an extra: without it both ways to start it name the missing packages in one sentence.
for command in "$place/venv/bin/kafkalog" "$place/venv/bin/python -m kafkalog"; do
    code=0
    said=$($command --help 2>&1) || code=$?
    [ "$code" = 2 ] && [ "$said" = "kafkalog: the command line needs click and rich: pip install 'kafkalog[cli]'" ] ||
        { echo "$command without kafkalog[cli] exited with code $code: $said" >&2; exit 1; }
done
"$place/venv/bin/python" -m pip install -q "$wheel[cli]"
"$place/venv/bin/kafkalog" --help > /dev/null
grep -q "^.TH" "$place/venv/share/man/man1/kafkalog-verify.1"
bash -n "$place/venv/share/bash-completion/completions/kafkalog"
"$place/venv/bin/python" -W error "$here/smoke.py" "$place/commands"
# Pages are an extra: without it the command names the missing package, with it the wheel has all parts of a page.
said=$("$place/venv/bin/kafkalog" report "$place/commands" 2>&1) || code=$?
[[ $code = 2 && $said = *"pip install 'kafkalog[report]'"* ]] ||
    { echo "kafkalog report without kafkalog[report] exited with code $code: $said" >&2; exit 1; }
"$place/venv/bin/python" -m pip install -q "$wheel[report]"
"$place/venv/bin/kafkalog" report "$place/commands" -o "$place/report.html" > /dev/null
grep -q "Content-Security-Policy" "$place/report.html"
echo "wheel: smoke test passed"
