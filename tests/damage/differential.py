"""The damage of `mutations` on real Kafka and on kafkalog: the same results, errors and files after the open.

    python -m tests.damage.differential --count 1000 --seed 1
    python -m tests.damage.differential --count 1 --seed 4711 --shrink      # one seed again, made small

Each script runs for a while and ends (closed or crashed).  One to three files of its partition are changed, inside
batches with lengths and CRCs corrected.  Then it is opened clean or unclean, and continues.  Last, a file of the log
directory (checkpoints, the clean-shutdown marker, meta.properties) is changed and read by both.

`tests.conformance.fuzz --damage` does the same with blind changes.  The exit code is 1 if there are differences that no
rule of `tests.conformance.permitted` explains.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import permitted
from tests.conformance.fuzz import Engines, Outcome, save, shrink, signature, work_folder
from tests.conformance.fuzz_scripts import DIR, PARTITION, Line, ScriptWriter
from tests.conformance.ways import WAYS_HELP, Ways
from tests.damage.directories import Tree
from tests.damage.mutations import Damage, damaged

# A log directory's own files, and who reads them.
ROOT = "root"
ROOT_FILES: dict[str, tuple[str, bytes]] = {
    "recovery-point-offset-checkpoint": ("offsets", b"0\n3\nfoo 0 17\ncodecs 1 9223372036854775807\nx-y 10 0\n"),
    "log-start-offset-checkpoint": ("offsets", b"0\n1\nfoo 0 3\n"),
    "replication-offset-checkpoint": ("offsets", b"0\n2\nfoo 0 12\nfoo 1 0\n"),
    "cleaner-offset-checkpoint": ("offsets", b"0\n0\n"),
    ".kafka_cleanshutdown": ("clean", b'{"version":0,"brokerEpoch":42}'),
    "meta.properties": (
        "meta",
        b"#\n#Tue Nov 14 22:13:20 UTC 2023\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\nversion=1\ncluster.id=c\n",
    ),
}


@dataclass
class Script:
    """The lines of a seed, and what was damaged, in words."""

    lines: list[Line]
    notes: list[str] = field(default_factory=list)


# --- scripts ---------------------------------------------------------------------------------------------


def scripts_of(engines: Engines, seeds: Sequence[int]) -> list[Script]:
    """Scripts of these seeds; real Kafka runs the part before the damage, for the files to be damaged."""
    writers = [ScriptWriter.of_seed(seed) for seed in seeds]
    randoms = [random.Random(seed) for seed in seeds]
    for writer, rng in zip(writers, randoms, strict=True):
        writer.write(closed=False)
        writer.add("crash" if rng.random() < 0.5 else "close")
    root = engines.work / f"first{engines.runs}"
    engines.run_kafka([writer.lines for writer in writers], root)
    scripts = []
    for number, (writer, rng) in enumerate(zip(writers, randoms, strict=True)):
        script = Script(writer.lines)
        scripts.append(script)
        tree = tree_of(root / f"{number}.work" / DIR)
        if tree:
            add_damage(script, tree, damaged(rng, tree), DIR)
        writer.open(clean=rng.random() < 0.4, **writer._checkpoints())
        writer.look()
        for _ in range(rng.randint(1, 6)):
            writer.step()
        writer.look()
        writer.finish()
        damage_root(script, rng)
    shutil.rmtree(root, ignore_errors=True)
    return scripts


def tree_of(root: Path) -> Tree:
    folder = root / PARTITION
    if not folder.is_dir():
        return {}
    # The next pass deletes files that wait for deletion.
    return {
        f"{PARTITION}/{path.name}": path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix != ".deleted"
    }


def add_damage(script: Script, before: Tree, damage: Damage, root: str) -> list[str]:
    """Writes what was changed as lines; answers the names of the changed files that are there."""
    changed = []
    for path in sorted(before.keys() | damage.tree.keys()):
        data = damage.tree.get(path)
        if data is None:
            script.lines.append({"op": "fs_delete", "file": f"{root}/{path}"})
        elif data != before.get(path):
            script.lines.append({"op": "fs_write", "file": f"{root}/{path}", "hex": data.hex()})
            changed.append(path)
    script.notes += [note for note in damage.notes if not note.endswith("(no change)")]
    return changed


def damage_root(script: Script, rng: random.Random) -> None:
    tree = {name: data for name, (_, data) in ROOT_FILES.items()}
    changed = add_damage(script, tree, damaged(rng, tree), ROOT)
    for name in changed:
        if name in ROOT_FILES:
            script.lines.append({"op": "fs_read", "kind": ROOT_FILES[name][0], "file": f"{ROOT}/{name}"})


def kind_of(note: str) -> str:
    """`field_right foo-0/00000000000000000003.log` -> `.log field_right`."""
    change, _, path = note.partition(" ")
    name = path.rsplit("/", 1)[-1]
    return f"{name[name.rfind('.') :] if re.match(r'[0-9]{20}[.]', name) else name} {change}"


# --- the run ---------------------------------------------------------------------------------------------


@dataclass
class Found:
    """A script that differs, and the rule that says why it may."""

    seed: int
    notes: list[str]
    outcome: Outcome
    named: str | None

    @property
    def kind(self) -> str:
        """The parts that make two of them the same: place, errors, and the words of Kafka's message without its
        numbers."""
        assert self.outcome.difference is not None
        said = re.findall(r"(?:expected|actual) said: (.*)", self.outcome.difference.detail)
        words = "; ".join(re.sub(r"\S*/\S*|\d+", "N", text)[:80] for text in said)
        return f"{signature(self.outcome.difference)} {words}".strip()


def fuzz(
    engines: Engines,
    count: int,
    seed: int,
    *,
    batch: int = 50,
    forget: bool = True,
    damages: Counter[str] | None = None,
) -> Iterator[Found]:
    """Yields every script that differs, on purpose or not; counts the damages by kind."""
    for start in range(seed, seed + count, batch):
        seeds = range(start, min(start + batch, seed + count))
        scripts = scripts_of(engines, seeds)
        outcomes = engines.run([script.lines for script in scripts])
        if forget:
            engines.forget()
        for number, script, outcome in zip(seeds, scripts, outcomes, strict=True):
            if damages is not None:
                damages.update(map(kind_of, script.notes))
            if outcome.difference is not None:
                named = permitted.name_of(outcome)
                yield Found(number, script.notes, outcome, named)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="scripts (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first script (default 1); the next add one")
    parser.add_argument("--batch", type=int, default=50, help="scripts a process (default 50)")
    parser.add_argument("--keep", type=Path, help="run in this folder and leave everything there")
    parser.add_argument("--shrink", action="store_true", help="shrink the first of each kind")
    parser.add_argument("--save", type=Path, help="save shrunk scripts as scenarios below this folder")
    parser.add_argument("--ways", type=Ways.parse, default=Ways(), help=WAYS_HELP)
    args = parser.parse_args(argv)
    began = time.monotonic()
    damages: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    named: Counter[str] = Counter()
    with work_folder(args.keep) as work:
        engines = Engines(work, args.ways)
        for found in fuzz(engines, args.count, args.seed, batch=args.batch, forget=args.keep is None, damages=damages):
            if found.named is not None:
                named[found.named] += 1
                continue
            kinds[found.kind] += 1
            if kinds[found.kind] > 1:
                continue
            print(f"--- seed {found.seed}, {'; '.join(found.notes)}\n{found.outcome.difference}", flush=True)
            if args.shrink or args.save is not None:
                small = shrink(Engines(work / "shrunk"), found.outcome)
                print(f"    shrunk to {len(small.lines)} lines: {small.difference}")
                for line in small.lines:
                    print(f"    {str(line)[:300]}")
                if args.save is not None:
                    print(f"    saved in {save(small, f'damage_{found.seed}', args.save)}")
    files: Counter[str] = Counter()
    for kind, number in damages.items():
        files[kind.split()[0]] += number
    print("damages:", ", ".join(f"{number} {file}" for file, number in files.most_common()))
    print("of", ", ".join(f"{number} {kind}" for kind, number in sorted(damages.items())))
    for name, number in named.most_common():
        print(f"{number:5}  on purpose: {name}. {permitted.NAMED[name].reason}")
    for kind, number in kinds.most_common():
        print(f"{number:5}  DIFFERENT: {kind}")
    total = sum(kinds.values())
    print(
        f"{args.count} scripts from seed {args.seed}, {sum(damages.values())} damages: {total} differ, "
        f"{sum(named.values())} on purpose; {time.monotonic() - began:.0f} s"
    )
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
