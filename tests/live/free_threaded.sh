#!/usr/bin/env bash
# The live lane on a free-threaded Python, in an environment and a copy of the tree of its own (build/live-t); with --tsan
# the native modules' threads under ThreadSanitizer (build/live-tsan).  Further arguments go to pytest.
#     PYTHON_T=/opt/python3.14t/bin/python3.14t tests/live/free_threaded.sh
#     KAFKALOG_APT=1 tests/live/free_threaded.sh          # as root: builds such a Python from Debian's source first
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
kind=t
if [ "${1:-}" = --tsan ]; then kind=tsan; shift; fi

python=${PYTHON_T:-}
if [ -z "$python" ]; then
    if [ -x "build/python-$kind/bin/python3" ]; then
        python=$PWD/build/python-$kind/bin/python3
    elif [ $kind = t ] && command -v python3.14t >/dev/null; then
        python=$(command -v python3.14t)
    elif [ "${KAFKALOG_APT:-}" = 1 ]; then
        bash "$here/build_python_t.sh" "build/python-$kind" $([ $kind = tsan ] && echo --tsan)
        python=$PWD/build/python-$kind/bin/python3
    else
        what="a free-threaded Python"
        if [ $kind = tsan ]; then what="$what that was built with --with-thread-sanitizer"; fi
        echo "The live lane needs $what, and python3.14t is not here: name one by PYTHON_T=/path/to/python," \
            "or let KAFKALOG_APT=1 build one from Debian's source (root, some minutes)." >&2
        exit 1
    fi
fi
export TSAN_OPTIONS=report_bugs=0
"$python" -c 'import sys, sysconfig; sys.exit(0 if sysconfig.get_config_var("Py_GIL_DISABLED") else f"{sys.executable} has the lock: it is not free-threaded")'
python_flags=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CONFIG_ARGS"))')
if [ $kind = tsan ] && [[ $python_flags != *with-thread-sanitizer* ]]; then
    echo "$python was not built with --with-thread-sanitizer" >&2
    exit 1
fi

copy=build/live-$kind
mkdir -p "$copy"
rm -rf "$copy/tests"
# Times are kept, so that a second run compiles only what changed.
for part in kafkalog tests setup.py pyproject.toml README.md LICENSE NOTICE pyspark_kafkalog.py; do
    if [ -e "$part" ]; then cp -rp "$part" "$copy/"; fi
done
# C code that the ordinary build made is as good here, and Cython is slow under ThreadSanitizer.
if [ -d build/cython ]; then mkdir -p "$copy/build" && cp -rp build/cython "$copy/build/"; fi
cd "$copy"
find kafkalog -name '*.so' -delete
if [ ! -x venv/bin/python ]; then "$python" -m venv venv; fi
# What the registry has no wheel of is built here.  PyO3 has given 3.13t up, and with it cramjam (its stand-in knows
# snappy) and hypothesis since it has Rust in it.
venv/bin/python - >wanted.txt <<'PY'
import sys, tomllib

project = tomllib.load(open("pyproject.toml", "rb"))
for line in (
    project["project"]["dependencies"]
    + project["project"]["optional-dependencies"]["cli"]
    + project["dependency-groups"]["test"]
):
    if sys.version_info < (3, 14):
        line = {"cramjam": "", "hypothesis": "hypothesis<6.156"}.get(line.partition(">")[0], line)
    print(line)
PY
venv/bin/python -m pip install -q --prefer-binary -r wanted.txt
python=$PWD/venv/bin/python
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 14))'; then
    echo "Before 3.14t there is no cramjam: snappy comes from tests/live/stand_in" >&2
    export PYTHONPATH=$PWD:$PWD/tests/live/stand_in
fi

if [ $kind = tsan ]; then
    CC=${CC:-clang-16} LDSHARED="${CC:-clang-16} -shared" KAFKALOG_SANITIZE=thread "$python" setup.py -q build_ext --inplace
    # Libraries of others are not instrumented: what they do without us is theirs.  Reports go into files, for pytest
    # keeps what passing tests print.
    rm -f report.*
    export TSAN_OPTIONS="suppressions=$PWD/tests/live/tsan.supp:ignore_noninstrumented_modules=1:exitcode=66:history_size=4:log_path=$PWD/report"
    export KAFKALOG_LIVE_ROUNDS=${KAFKALOG_LIVE_ROUNDS:-3}
    status=0
    "$python" -m pytest -q -p no:xdist tests/live/test_native_threads.py "$@" || status=$?
    cat report.* >&2 2>/dev/null && exit 66
    exit $status
fi

"$python" setup.py -q build_ext --inplace
# Whoever switches the lock on is a library of ours or of others: then the lane would prove nothing.
"$python" -c 'import sys, kafkalog; sys.exit("importing kafkalog brought the lock back" if sys._is_gil_enabled() else 0)'
exec "$python" -m pytest -q tests/live "$@"
