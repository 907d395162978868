#!/usr/bin/env bash
# The native fuzz target under AddressSanitizer and UBSan.
#     tests/fuzz/native.sh --minutes 30
#     tests/fuzz/native.sh FILE.hex         # inputs again
# Arguments go to tests.fuzz.native_target.  Exit 99: a sanitizer had something to say; the input is in last_input.hex.
set -euo pipefail
source "$(dirname "$0")/../sanitize/copy.sh"

exec "$PYTHON" -m tests.fuzz.native_target --save last_input.hex "$@"
