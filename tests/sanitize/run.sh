#!/usr/bin/env bash
# The native tests under AddressSanitizer and UBSan.  Extra arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/copy.sh"

if "$PYTHON" -m tests.sanitize.canary >canary.log 2>&1; then
    echo "the sanitizer missed a planted over-read" >&2
    exit 1
fi
grep -q "heap-buffer-overflow" canary.log || { cat canary.log >&2; exit 1; }

# How long each entry point is called over bytes that change.
export KAFKALOG_CHURN_SECONDS=${KAFKALOG_CHURN_SECONDS:-2}
exec "$PYTHON" -m pytest -q tests/sanitize tests/unit/test_native_*.py tests/unit/test_survivors.py \
    tests/unit/test_offset_map.py tests/unit/test_latest.py tests/property/test_native_*.py "$@"
