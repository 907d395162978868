"""The fuzzer of damaged directories: each seed damages a directory, and every reader of it must cope.

    python -m tests.damage.fuzz --minutes 30 --seed 1     # seeds from 1 on, in a process of bounded memory
    python -m tests.damage.fuzz --seed 4711 --count 1 -v  # one seed again
    python -m tests.damage.fuzz --seed 4711 --keep DIR    # writes the damaged directory there

The exit code is 1 if there are complaints.  A seed's work runs in a child process with a limit on its address space.  A
crash, a hang in native code or a huge allocation then costs one child, and is a complaint too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.damage import directories, mutations, probes

MEMORY_BYTES = 1 << 30  # beyond what the process has when it starts
SEED_SECONDS_MAX = 120


def work_base() -> str | None:
    """Memory-backed where there is such a place: opens sync a lot."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def damage_of(seed: int) -> tuple[mutations.Damage, bool]:
    """The damage of a seed, and whether the directory had been closed."""
    rng = random.Random(seed)
    clean = rng.random() < 0.6
    return mutations.damaged(rng, directories.good_tree(clean=clean)), clean


def run_seed(seed: int) -> tuple[list[str], list[str]]:
    """(notes, complaints)"""
    damage, clean = damage_of(seed)
    with tempfile.TemporaryDirectory(prefix="kafkalog-damage-", dir=work_base()) as root:
        return damage.notes, probes.probe(damage, root, clean=clean)


def limit_memory() -> None:
    """Limits the process to its current memory and MEMORY_BYTES more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def child(first: int, count: int, seconds: float) -> None:
    """Runs seeds and writes one JSON line each, before and after."""
    import faulthandler

    import pyarrow  # noqa: F401  (its memory is no find)

    directories.good_tree(clean=True)
    run_seed(0)
    if sys.platform == "linux":
        limit_memory()
    end = time.monotonic() + seconds
    for seed in range(first, first + count):
        if time.monotonic() > end:
            break
        print(json.dumps({"begin": seed}), flush=True)
        faulthandler.dump_traceback_later(SEED_SECONDS_MAX, exit=True)
        notes, found = run_seed(seed)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"seed": seed, "notes": notes, "complaints": found}), flush=True)


def fuzz(first: int, *, count: int = 10**9, seconds: float = 10**9) -> tuple[int, list[tuple[int, list[str], str]]]:
    """Runs seeds; returns their number and [(seed, the damage, complaint)]."""
    done = 0
    complaints: list[tuple[int, list[str], str]] = []
    end = time.monotonic() + seconds
    while done < count and time.monotonic() < end:
        left = min(seconds, end - time.monotonic())
        begun = -1
        process = subprocess.run(
            [
                sys.executable, "-m", "tests.damage.fuzz", "--child", "--seed", str(first + done), "--count",
                str(count - done), "--minutes", str(left / 60),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        answered = 0
        for line in process.stdout.splitlines():
            said = json.loads(line)
            if "begin" in said:
                begun = said["begin"]
                continue
            answered += 1
            complaints += [(said["seed"], said["notes"], text) for text in said["complaints"]]
        done += answered
        if process.returncode != 0:
            notes = damage_of(begun)[0].notes if begun >= 0 else []
            complaints.append((begun, notes, f"the process died ({process.returncode}): {process.stderr[-1500:]}"))
            done += 1
            if begun < 0:
                break
    return done, complaints


def signature(complaint: str) -> str:
    return re.sub(r"\d+", "N", complaint)[:160]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--count", type=int, default=None, help="seeds (default: as many as the minutes allow, or 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the damaged directory of the seed here and do nothing else")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args(argv)
    count = args.count if args.count is not None else 10**9 if args.minutes is not None else 200
    seconds = args.minutes * 60 if args.minutes is not None else 10**9
    if args.child:
        child(args.seed, count, seconds)
        return 0
    if args.keep is not None:
        directories.write_tree(damage_of(args.seed)[0].tree, str(args.keep))
        return 0
    began = time.monotonic()
    done, found = fuzz(args.seed, count=count, seconds=seconds)
    kinds = Counter(signature(text) for _, _, text in found)
    shown: set[str] = set()
    for seed, notes, text in found:
        if args.verbose or signature(text) not in shown:
            shown.add(signature(text))
            print(f"--- seed {seed}, {'; '.join(notes)}\n    {text}")
    for kind, number in kinds.most_common():
        print(f"{number:5}  {kind}")
    print(f"{done} directories from seed {args.seed}: {len(found)} complaints, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
