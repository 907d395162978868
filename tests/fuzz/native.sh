#!/usr/bin/env bash
# The native fuzz target under AddressSanitizer and UBSan: a copy of the tree, built with KAFKALOG_SANITIZE=1.
#     tests/fuzz/native.sh --minutes 30
#     tests/fuzz/native.sh FILE.hex         # inputs again
# Arguments go to tests.fuzz.native_target.  Exit 99: a sanitizer had something to say; the input is in last_input.hex.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
CC=${CC:-gcc}
copy=build/sanitize
mkdir -p "$copy"
rm -rf "$copy/tests"
for part in kafkalog tests setup.py pyproject.toml README.md LICENSE NOTICE; do
    if [ -e "$part" ]; then cp -rp "$part" "$copy/"; fi
done
cd "$copy"
find kafkalog -name '*.so' -delete
KAFKALOG_SANITIZE=1 "$PYTHON" setup.py -q build_ext --inplace
export LD_PRELOAD="$("$CC" -print-file-name=libasan.so) $("$CC" -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
exec "$PYTHON" -m tests.fuzz.native_target --save last_input.hex "$@"
