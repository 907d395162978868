#!/usr/bin/env bash
# The fuzzer of damaged directories under AddressSanitizer and UBSan.
#     tests/damage/fuzz.sh --minutes 30 --seed 1
# Arguments go to tests.damage.fuzz.  What a sanitizer says ends a child, and is a complaint with its text.
set -euo pipefail
source "$(dirname "$0")/../sanitize/copy.sh"

exec "$PYTHON" -m tests.damage.fuzz "$@"
