#!/usr/bin/env bash
# Builds a free-threaded CPython from Debian's source package.  Needs root for what it is built with, gcc or clang, and
# some minutes.
#     tests/live/build_python_t.sh build/python-t            # ordinary
#     tests/live/build_python_t.sh build/python-tsan --tsan  # with ThreadSanitizer, by clang
# Debian's own packages are built with the lock.  3.14 is taken where the mirror has its source, else 3.13.
set -euo pipefail
prefix=$(mkdir -p "$1" && cd "$1" && pwd)
tsan=${2:-}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
jobs=${JOBS:-1}

needed=(build-essential libssl-dev zlib1g-dev libffi-dev libsqlite3-dev libbz2-dev liblzma-dev)
if [ "$tsan" = --tsan ]; then needed+=(clang-16); fi
apt-get install -y -q "${needed[@]}" >/dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial"
for suite in sid forky trixie; do echo "deb-src $mirror $suite main"; done >"$work/sources.list"
apt=(apt-get -q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
    -o APT::Sandbox::User=root)
"${apt[@]}" update >/dev/null
cd "$work"
found=
for wanted in python3.14 python3.13 python3.13/trixie; do
    if "${apt[@]}" source --download-only "$wanted" >/dev/null 2>&1; then found=$wanted; break; fi
done
if [ -z "$found" ]; then
    echo "$mirror has the source of neither python3.14 nor python3.13; name a free-threaded Python by PYTHON_T" >&2
    exit 1
fi
tar xf python3.*.orig.tar.*
cd [Pp]ython*/
options=(--disable-gil "--prefix=$prefix" -q)
if [ "$tsan" = --tsan ]; then
    options+=(--with-thread-sanitizer)
    export CC=clang-16 CXX=clang++-16
fi
nice -n 19 ./configure "${options[@]}" >/dev/null
export TSAN_OPTIONS=report_bugs=0
nice -n 19 make -s -j "$jobs" >make.log 2>&1 || { tail -n 30 make.log >&2; exit 1; }
nice -n 19 make -s install >make.log 2>&1 || { tail -n 30 make.log >&2; exit 1; }
"$prefix"/bin/python3 -VV
