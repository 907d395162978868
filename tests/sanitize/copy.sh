# To be sourced by bash: a copy of the tree below build/sanitize, its native modules built with KAFKALOG_SANITIZE=1, and
# the environment in which Python runs them.  Leaves the shell in the copy.  Needs gcc and a $PYTHON that has what
# `make build` installs.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
CC=${CC:-gcc}
copy=build/sanitize
mkdir -p "$copy"
rm -rf "$copy/tests"
# Times are kept, so that a second run compiles only what changed.
for part in kafkalog tests setup.py pyproject.toml README.md LICENSE NOTICE; do
    if [ -e "$part" ]; then cp -rp "$part" "$copy/"; fi
done
# Generated C is the same with and without sanitizers.
if [ -d build/cython ] && [ ! -d "$copy/build/cython" ]; then mkdir -p "$copy/build" && cp -rp build/cython "$copy/build/"; fi
cd "$copy"
# Modules of the ordinary build came along; ours stand in build/ too, from where --inplace copies them.
find kafkalog -name '*.so' -delete
KAFKALOG_SANITIZE=1 "$PYTHON" setup.py -q build_ext --inplace

# libstdc++ too: the runtime must find it first to see C++ exceptions of other packages.
export LD_PRELOAD="$("$CC" -print-file-name=libasan.so) $("$CC" -print-file-name=libstdc++.so)"
# Python keeps memory for good reasons: no leaks wanted.  Every object in a block of its own.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
