#!/usr/bin/env bash
# Builds an sdist, and a wheel from the unpacked sdist, in dist/, but does not compile again: the tree's native modules
# are copied, as if an earlier build had left them.  `make wheel` builds everything from scratch.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
rm -rf dist build/sdist
mkdir dist
"$PYTHON" -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >build/sdist.log 2>&1 || { cat build/sdist.log >&2; exit 1; }
mkdir -p build/sdist
tar -xf dist/*.tar.gz -C build/sdist --strip-components=1
# Times are kept, so that a module older than its source is compiled nevertheless.
mkdir -p build/sdist/build && cp -Rp build/cython build/sdist/build/
into=build/sdist/$("$PYTHON" -c '
from setuptools.command.build import build
from setuptools.dist import Distribution
command = build(Distribution({"ext_modules": [None]}))
command.ensure_finalized()
print(command.build_lib)')
find kafkalog/_native -name '*.so' | while read -r module; do
    mkdir -p "$into/$(dirname "$module")" && cp -p "$module" "$into/$module"
done
before=$(find "$into" -name '*.so' -exec cksum {} + | sort)
"$PYTHON" -m pip wheel -q --no-build-isolation --no-deps --wheel-dir dist ./build/sdist
[ "$before" = "$(find "$into" -name '*.so' -exec cksum {} + | sort)" ] || echo "some native modules were compiled again" >&2
rm -rf build/sdist
