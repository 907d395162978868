"""Random scripts over log managers: several directories, many partitions, starts, stops, moves and damage.

A `ManagerWriter` keeps a rough idea of what is open and lets a `PartitionWriter` (the writer of single partitions, with
a handle) choose what happens to one log.  Damage to files needs to know the files: real Kafka runs the script so far,
and `write_damage` continues from the files of its last dump.  Names with a random part are never touched again, as the
two engines have different ones.
"""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.choosing import Chooser, SeededChooser
from tests.conformance.compare import RANDOM_PART
from tests.conformance.fuzz_configs import topic_config
from tests.conformance.fuzz_scripts import COMPACTION_STEPS, RECORDS, START_MS, STEPS, TOPIC_IDS, Line, ScriptWriter

LOG_DIRS = ("d1", "d2", "d3", "deep/er/d4")
# Topics of one hash.  Not nine: if Java makes a tree of a bucket, it orders equal hashes by identity hashes.
SAME_HASH = tuple(f"{a}{b}{c}" for a in ("Aa", "BB") for b in ("Aa", "BB") for c in ("Aa", "BB"))
# Partitions of several hashes and one bucket: nine of them make the maps grow, ten or more are a tree.
ONE_BUCKET = tuple(128 * number for number in range(13))
TOPICS = ("foo", "bar", "Ab", "Bb", "Cb", "Db", "x.y", "under_score", "a-1", "zeta", "__consumer_offsets")
LONG_TOPIC = "long" * 60
FIXED_ID = "0123456789abcdef0123456789abcdef"
OTHER_ID = "fedcba9876543210fedcba9876543210"
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
MARKER = ".kafka_cleanshutdown"
NOT_A_MANAGERS = ("reopen", "crash_and_reopen", "clean")
PARTITION_STEPS = {name: weight for name, weight in STEPS.items() if name not in NOT_A_MANAGERS}
COMPACTED_PARTITION_STEPS = {name: weight for name, weight in COMPACTION_STEPS.items() if name not in NOT_A_MANAGERS}
FOLDER = re.compile(r"^(?P<root>.+)/(?P<folder>[^/]+-\d+(\.[0-9a-f]{32}-(delete|stray|future))?)/(?P<name>[^/]+)$")

MANAGER_STEPS: dict[str, float] = {
    "get": 14, "of_a_partition": 70, "checkpoint": 5, "advance_clock": 9, "delete": 3, "truncate": 4, "move": 4,
    "future": 4, "dump": 3, "beside": 1, "obstacle": 0.6, "second_open": 0.6, "restart": 5,
}  # fmt: skip
# With a cleaner.  A file that its handle has closed below it takes the directory offline in Kafka: no `beside`.
CLEANER_STEPS: dict[str, float] = {
    name: weight for name, weight in MANAGER_STEPS.items() if name not in ("beside", "obstacle")
} | {"clean": 22, "advance_clock": 6}


class PartitionWriter(ScriptWriter):
    """Writes the operations on one partition, by its handle."""

    def __init__(self, manager: ManagerWriter, handle: str) -> None:
        self.manager = manager
        self.handle = handle
        super().__init__(manager.choose, compact=manager.compact)
        self.lines = manager.lines

    @property
    def now(self) -> int:
        return self.manager.now

    @now.setter
    def now(self, value: int) -> None:
        self.manager.now = max(self.manager.now, value)

    def add(self, op: str, **fields: Any) -> None:
        self.manager.add(op, **({} if op == "advance_clock" else {"log": self.handle}), **fields)

    def batch(self, magic: int | None = None) -> Line:
        """Without snappy: batches of another size would be rolled, moved and deleted at other times."""
        batch = super().batch(magic)
        if batch["codec"] == "snappy":
            batch["codec"] = "lz4" if batch.get("magic", 2) == 2 else "none"
        return batch

    def new_config(self) -> None:
        self.add("update_config", config=self.manager.some_config())

    def clean(self) -> None:
        """By its manager's cleaner."""
        self.manager.clean()

    def rare(self) -> None:
        kind = self.choose.choice(("flush", "flush", "snapshot", "expire", "topic id", "empty"))
        if kind == "flush":
            self.add("flush", force_active=self.chance(0.5))
        elif kind == "snapshot":
            self.add("take_producer_snapshot")
        elif kind == "expire":
            self.add("remove_expired_producers")
        elif kind == "topic id":
            self.add("assign_topic_id", topic_id=self.choose.choice(TOPIC_IDS))
        else:
            self.add("append_leader", raw_hex="", leader_epoch=self.leader_epoch)

    def step(self) -> None:
        steps = COMPACTED_PARTITION_STEPS if self.compact else PARTITION_STEPS
        getattr(self, self.choose.weighted(list(steps), list(steps.values())))()


class ManagerWriter:
    """One script in the making."""

    def __init__(self, choose: Chooser, *, compact: bool = False) -> None:
        self.choose = choose
        self.compact = compact  # with a cleaner
        self.lines: list[Line] = []
        self.now = START_MS
        self.rounds = choose.weighted((0, 1, 2), (2, 5, 3))  # rounds of damage
        self.dirs = list(LOG_DIRS[: choose.weighted((1, 2, 3), (2, 4, 3))])
        self.config = self.some_config()
        self.same_hash = choose.chance(0.15)
        self.one_bucket = choose.chance(0.12)
        self.topics = [*choose.choice((TOPICS[:3], TOPICS, TOPICS[2:6])), *(SAME_HASH if self.same_hash else ())]
        if choose.chance(0.05):
            self.topics.append(LONG_TOPIC)
        self.partitions_max = choose.choice((0, 1, 3))
        self.topic_configs = {topic: self.some_overrides() for topic in self.topics[:12] if choose.chance(0.3)}
        self.times = self.some_times()
        self.is_open = False
        self.handles: dict[str, PartitionWriter] = {}
        self.seen: dict[str, PartitionWriter] = {}
        self.roots: dict[str, set[str]] = {}  # the log directories with each partition directory, by the latest dump
        self.futures: set[str] = set()

    @classmethod
    def of_seed(cls, seed: int, *, compact: bool = False) -> ManagerWriter:
        return cls(SeededChooser(seed), compact=compact)

    def chance(self, probability: float) -> bool:
        return self.choose.chance(probability)

    def add(self, op: str, **fields: Any) -> None:
        self.lines.append({"op": op, **fields})

    # --- settings -----------------------------------------------------------------------------------

    def some_config(self) -> dict[str, str]:
        config = topic_config(self.choose, compact=self.compact and self.chance(0.9))
        if self.compact:
            config["min.cleanable.dirty.ratio"] = self.choose.choice(("0", "0.01", "0.5"))
        if config.get("compression.type") == "snappy":
            del config["compression.type"]
        return config

    def some_overrides(self) -> dict[str, str]:
        maybe = {
            "retention.ms": ("1000", "5000", "-1"),
            "retention.bytes": ("0", "500", "2000"),
            "cleanup.policy": ("compact", "delete", "compact,delete"),
            "file.delete.delay.ms": ("0", "1000", "120000"),
            "internal.segment.bytes": ("300", "700", "2000"),
            "flush.ms": ("1000", "0"),
            "compression.type": ("gzip", "uncompressed"),
        }
        return {key: self.choose.choice(values) for key, values in maybe.items() if self.chance(0.35)}

    def some_cleaner(self) -> Line:
        """Maps of a key or few, and buffers that have to grow, of memory that Kafka's settings allow."""
        return {
            "load_factor": self.choose.choice((0.9, 0.9, 0.00002, 0.00004, 0.0001)),
            "io_buffer": self.choose.choice((1 << 17, 1 << 17, 2, 100, 600)),
            "max_message": self.choose.choice((1 << 20, 1 << 20, 100, 300)),
        }

    def some_times(self) -> Line:
        times: Line = {}
        if self.chance(0.3):
            times["initial_task_delay_ms"] = self.choose.choice((0, 1, 1000, 60_000))
        if self.chance(0.3):
            times["retention_check_ms"] = self.choose.choice((5000, 60_000))
        if self.chance(0.2):
            times["flush_recovery_checkpoint_ms"] = self.choose.choice((7000, 20_000))
        if self.chance(0.2):
            times["flush_start_checkpoint_ms"] = self.choose.choice((7000, 20_000))
        return times

    # --- the whole ----------------------------------------------------------------------------------

    def write(self) -> list[Line]:
        """Writes the first part of a manager's script; `write_damage` continues it."""
        self.open()
        for _ in range(self.choose.choice((1, 3, 6, 14, 20)) if not (self.same_hash or self.one_bucket) else 26):
            self.get(is_new=True)
        for _ in range(self.choose.integer(10, 40)):
            self.step()
        self.end()
        return self.lines

    def write_damage(self, files: dict[str, Any]) -> list[Line]:
        """Writes another part, after damage; `files` are those of the work directory with their sizes."""
        self.rounds -= 1
        self.roots = {}
        for folder in self._folders(files):
            self.roots.setdefault(folder.rpartition("/")[2], set()).add(folder.rpartition("/")[0])
        repairs: list[Line] = []
        # Kafka meets directories that are renamed under an open manager in the order of its maps' buckets.
        for _ in range(0 if self.is_open else self.choose.weighted((0, 1, 2, 4), (1, 3, 3, 1))):
            repairs += self.damage(files)
        self.open()
        if repairs and self.chance(0.7):
            self.end_manager()
            for line in repairs:
                self.lines.append(line)
            self.open()
        self.known_again(files)
        if self.compact and self.chance(0.6):
            self.damage_below_the_cleaner(files)
        for _ in range(self.choose.integer(4, 20)):
            self.step()
        self.end()
        return self.lines

    def end(self) -> None:
        """The manager's end, or none: the next one is refused then."""
        if self.is_open and not self.chance(0.03):
            self.end_manager()
        if self.chance(0.3):
            self.advance_clock()
        self.add("dump", path=".")

    def end_manager(self) -> None:
        if self.chance(0.6):
            self.add("lm_shutdown", **({"broker_epoch": self.choose.integer(0, 9)} if self.chance(0.5) else {}))
        else:
            self.add("lm_crash")
        self.is_open = False
        self.handles = {}
        self.futures = set()

    def open(self) -> None:
        if self.chance(0.25):
            self.dirs = self.other_dirs()
        if self.chance(0.2):
            self.config = self.some_config()
        if self.chance(0.2):
            self.times = self.some_times()
        if self.compact:
            self.times["cleaner"] = self.some_cleaner()
        self.add(
            "lm_open",
            dirs=self.dirs,
            config=self.config,
            topic_configs=self.topic_configs,
            now_ms=self.now,
            **self.times,
        )
        self.is_open = True

    def other_dirs(self) -> list[str]:
        kind = self.choose.choice(("more", "fewer", "turned", "new", "twice", "twice", "a file"))
        dirs = list(self.dirs)
        if kind == "more":
            dirs = [*dirs, *(each for each in LOG_DIRS if each not in dirs)][: len(dirs) + 1]
        elif kind == "fewer" and len(dirs) > 1:
            dirs.pop(self.choose.integer(0, len(dirs) - 1))
        elif kind == "turned":
            dirs.reverse()
        elif kind == "new":
            dirs = list(LOG_DIRS[: self.choose.integer(1, 4)])
        elif kind == "twice":
            self.add("lm_open", dirs=[*dirs, f"{dirs[0]}/../{dirs[0]}"], config=self.config, now_ms=self.now)
            self.dump()
        elif kind == "a file":
            self.add("fs_write", file="plain", text="x")
            dirs.insert(self.choose.integer(0, len(dirs)), "plain")
        return list(dict.fromkeys(dirs))

    def known_again(self, files: dict[str, Any]) -> None:
        """Handles of the partitions found in the directories."""
        names = sorted({self._folder(name)[1] for name in files if self._folder(name) is not None} - {None})
        for name in names:
            if "." + FIXED_ID not in name and RANDOM_PART.search(name) is None and self.chance(0.6):
                self.get(name=name)

    @staticmethod
    def _folder(path: str) -> Any:
        found = FOLDER.match(path)
        return None if found is None else (found["root"], found["folder"], found["name"])

    # --- steps --------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = CLEANER_STEPS if self.compact else MANAGER_STEPS
        getattr(self, self.choose.weighted(list(steps), list(steps.values())))()

    def some_name(self) -> str:
        topic = self.choose.choice(self.topics)
        if self.one_bucket and self.chance(0.8):
            return f"foo-{self.choose.choice(ONE_BUCKET)}"
        return f"{topic}-{self.choose.integer(0, self.partitions_max)}"

    def some_known(self) -> str:
        known = sorted(self.handles)
        return self.choose.choice(known) if known and self.chance(0.9) else self.some_name()

    def get(self, *, is_new: bool | None = None, name: str | None = None) -> None:
        name = name or (self.some_known() if self.chance(0.2) else self.some_name())
        fields: Line = {"topic_partition": name, "log": name}
        if self.chance(0.8) if is_new is None else is_new:
            fields["is_new"] = True
        if self.chance(0.4):
            fields["topic_id"] = TOPIC_IDS[0] if self.chance(0.95) else TOPIC_IDS[1]
        self.add("lm_get", **fields)
        if self.is_open:
            writer = self.seen.setdefault(name, PartitionWriter(self, name))
            self.handles[name] = writer

    def of_a_partition(self) -> None:
        if not self.handles:
            self.get()
            return
        self.handles[self.choose.choice(sorted(self.handles))].step()

    def checkpoint(self) -> None:
        self.add("lm_checkpoint")
        if self.chance(0.5):
            self.dump()

    def clean(self) -> None:
        """Some turns of the cleaner's thread, after which some logs have something to clean."""
        for name in sorted(self.handles):
            if self.chance(0.4):
                writer = self.handles[name]
                writer.add("update_high_watermark", hw=writer.leo)
                if self.chance(0.4):
                    writer.add("roll")
        self.add("lm_clean", **({} if self.chance(0.3) else {"turns": self.choose.integer(1, 5)}))
        if self.chance(0.4):
            self.dump()

    def damage_below_the_cleaner(self, files: dict[str, Any]) -> None:
        """Other bytes in old segments of logs that are open, and the turns that come to them."""
        for folder, names in sorted(self._folders(files).items()):
            segments = sorted(name for name in names if name.endswith(".log"))
            if len(segments) < 2 or not self.chance(0.5):
                continue
            name = self.choose.choice(segments[:-1])
            size = names[name]["size"]
            if size > RECORDS:
                # Leaves out the first batch's time, which Kafka has read once and remembers.
                at, mask = self.choose.integer(RECORDS, size - 1), self.choose.data(1).hex()
                self.add("fs_corrupt", file=f"{folder}/{name}", offset=at, xor_hex=mask)
        self.clean()
        self.dump()

    def dump(self) -> None:
        self.add("dump", path=self.choose.choice((".", *(each for each in self.dirs if each in LOG_DIRS))))

    def advance_clock(self) -> None:
        by = self.choose.choice((1, 1000, 5000, 30_000, 60_000, 60_001, 90_000, 300_000, 400_000))
        self.now += by
        self.add("advance_clock", by_ms=by)

    def delete(self) -> None:
        name = self.some_known()
        future = self.chance(0.2)
        self.add("lm_delete", topic_partition=name, log=name, **({"future": True} if future else {}))
        if future:
            self.handles.pop(f"{name}~", None)
        elif self.chance(0.9):
            self.handles.pop(name, None)
            self.seen.pop(name, None)
        if self.chance(0.5):
            self.dump()

    def truncate(self) -> None:
        name = self.some_known()
        leo = self.handles[name].leo if name in self.handles else 3
        offset = self.choose.integer(-1 if self.chance(0.1) else 0, leo + 1)
        future = self.chance(0.2)
        self.add("lm_truncate", topic_partition=name, log=name, offset=offset, **({"future": True} if future else {}))
        if not future and name in self.handles:
            self.handles[name].leo = max(0, min(leo, offset))

    def future(self) -> None:
        """A future log that stays one, perhaps not whole."""
        name = self.some_known()
        fields: Line = {"topic_partition": name, "dir": self.choose.choice(self.dirs), "log": f"{name}~"}
        if self.chance(0.4):
            fields["max_batches"] = self.choose.integer(0, 3)
        self.add("lm_future", **fields)
        if self.chance(0.3):
            for op in ("segments", "producers", "epoch_cache", "dump"):
                self.add(op, log=f"{name}~")
        if self.chance(0.2):
            self.add("roll", log=f"{name}~")
        self.futures.add(name)

    def move(self) -> None:
        ready = sorted(self.futures & self.handles.keys())
        name = self.choose.choice(ready) if ready and self.chance(0.5) else self.some_known()
        where = self.choose.choice(self.dirs) if self.chance(0.97) else "nowhere"
        self.add("lm_move", topic_partition=name, dir=where, log=name)
        self.futures.discard(name)
        if self.chance(0.5):
            self.dump()

    def beside(self) -> None:
        """Closes a log without its manager."""
        name = self.some_known()
        op = self.choose.choice(("close", "close", "crash"))
        self.add(op, log=name, **({"broker_style": self.chance(0.5)} if op == "close" else {}))
        self.handles.pop(name, None)

    def obstacle(self) -> None:
        """Writes a file in the place of a partition's directory."""
        topic = self.choose.choice(self.topics)
        name = f"{topic}-9"
        self.add("fs_write", file=f"{self.choose.choice(self.dirs)}/{name}", text="x")
        self.get(is_new=True, name=name)
        self.get(is_new=self.chance(0.5))

    def second_open(self) -> None:
        self.add("lm_open", dirs=self.dirs, config=self.config, now_ms=self.now)

    def restart(self) -> None:
        self.end_manager()
        if self.chance(0.1):
            for op in ("lm_checkpoint", "lm_shutdown", "lm_crash"):
                self.add(op)
            self.add("lm_get", topic_partition="foo-0")
        if self.chance(0.2):
            self.marker()
        if self.chance(0.15):
            self.alone()
        if self.chance(0.3):
            self.now += self.choose.choice((1, 60_000, 1_000_000))
        self.open()
        for name in sorted(self.seen):
            if self.chance(0.5):
                self.get(name=name, is_new=False)

    def alone(self) -> None:
        """A partition's log is opened without a manager meanwhile."""
        places = [each for each in self.dirs if each in LOG_DIRS]
        if not places:
            return
        names = [name for name in sorted(self.seen) if not name.endswith("-9")]  # there may be a file of that name
        name = self.choose.choice(names) if names else "foo-0"
        writer = PartitionWriter(self, "alone")
        clean = self.chance(0.5)
        self.add(
            "open",
            dir=self.choose.choice(places),
            topic_partition=name,
            config=self.config,
            clean_shutdown=clean,
            log="alone",
        )
        for _ in range(self.choose.integer(0, 4)):
            writer.step()
        self.add(self.choose.choice(("close", "crash")), log="alone")

    # --- damage -------------------------------------------------------------------------------------

    def damage(self, files: dict[str, Any]) -> list[Line]:
        """One kind of damage; what would undo it where it may keep a manager from starting."""
        kinds = {
            "in_a_folder": 8, "checkpoints": 4, "marker": 2, "meta_properties": 1, "partition_metadata": 2,
            "foreign_folder": 1, "plain_file": 1, "copy_folder": 3, "rename_folder": 4, "lock": 0.3,
        }  # fmt: skip
        kind = self.choose.weighted(list(kinds), list(kinds.values()))
        if kind in ("in_a_folder", "partition_metadata", "copy_folder", "rename_folder"):
            folders = self._folders(files)
            if not folders:
                return []
            folder = self.choose.choice(sorted(folders))
            return getattr(self, kind)(folder, folders[folder]) or []
        return getattr(self, kind)() or []

    def _folders(self, files: dict[str, Any]) -> dict[str, dict[str, Any]]:
        folders: dict[str, dict[str, Any]] = {}
        for path, entry in files.items():
            found = self._folder(path)
            if found is not None and RANDOM_PART.search(path) is None:
                folders.setdefault(f"{found[0]}/{found[1]}", {})[found[2]] = entry
        return folders

    def in_a_folder(self, folder: str, names: dict[str, Any]) -> None:
        writer = ScriptWriter(self.choose)
        writer.lines = self.lines
        for _ in range(self.choose.integer(1, 3)):
            writer.damage_one(names, folder)

    def partition_metadata(self, folder: str, names: dict[str, Any]) -> list[Line]:
        path = f"{folder}/partition.metadata"
        kind = self.choose.choice(("delete", "other", "other", "garbage", "empty"))
        undo = [{"op": "fs_delete", "file": path}]
        if kind == "delete":
            self.add("fs_delete", file=path)
            return []
        text = {"other": f"version: 0\ntopic_id: {TOPIC_IDS[1]}", "garbage": "version: x\n", "empty": ""}[kind]
        self.add("fs_write", file=path, text=text)
        return undo

    def checkpoints(self) -> None:
        names = (*CHECKPOINTS, CLEANER_CHECKPOINT, CLEANER_CHECKPOINT) if self.compact else CHECKPOINTS
        root = self.choose.choice(self.dirs)
        path = f"{root}/{self.choose.choice(names)}"
        known = sorted(self.seen)
        if path.endswith(CLEANER_CHECKPOINT):  # Kafka uses lines next to other directories' logs, kafkalog does not
            known = [name for name in known if self.roots.get(name, {root}) == {root}]
        lines = "".join(
            f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {self.choose.integer(0, 12)}\n" for name in known
        )
        count = len(known)
        text = self.choose.choice(
            (f"0\n{count}\n{lines}", f"0\n{count}\n{lines}", f"1\n{count}\n{lines}", f"0\n{count + 1}\n{lines}",
             "", "x", "0\n1\nfoo 0\n", f"0\n{count}\n{lines}more\n", "0\n2\nfoo 0 -1\nfoo 0 3\n",
             "0\n1\nfoo 0 x\n", "0\n1\nfoo 0 99999999999999999999\n", "0\n-1\n")
        )  # fmt: skip
        if self.compact:
            # A file that does not parse makes the directory offline, which a manager alone (no broker that would tell
            # it) does not know of: Kafka's cleaner goes on there, kafkalog's does not.
            text = f"0\n{count}\n{lines}"
        if self.chance(0.2):
            self.add("fs_delete", file=path)
        else:
            self.add("fs_write", file=path, text=text)

    def marker(self) -> None:
        path = f"{self.choose.choice(self.dirs)}/{MARKER}"
        if self.chance(0.5):
            self.add("fs_delete", file=path)
        else:
            self.add("fs_write", file=path, text=self.choose.choice(('{"version":0,"brokerEpoch":3}', "", "x")))

    def meta_properties(self) -> list[Line]:
        path = f"{self.choose.choice(self.dirs)}/meta.properties"
        good = "version=1\ncluster.id=abc\nnode.id=1\ndirectory.id=tsDuJeWYQtGGKyEZ5BYZcA\n"
        text = self.choose.choice(
            (good, good, "version=0\nbroker.id=1\n", "", "version=7\n", "version=x\n", good + "directory.id=x\n")
        )
        self.add("fs_write", file=path, text=text)
        return [{"op": "fs_delete", "file": path}]

    def foreign_folder(self) -> list[Line]:
        root = self.choose.choice(self.dirs)
        name = self.choose.choice(("lost+found", "notes", "foo", "foo-", "-0", "foo-x", "foo-0.abc-delete", "foo--1"))
        if self.chance(0.3):
            name = self.choose.choice(("__cluster_metadata-0", "remote-log-index-cache", "foo-00", "foo-+7"))
        self.add("fs_write", file=f"{root}/{name}/a", text="x")
        return [{"op": "fs_rename", "from": f"{root}/{name}", "to": f"gone/{len(self.lines)}"}]

    def plain_file(self) -> None:
        self.add("fs_write", file=f"{self.choose.choice(self.dirs)}/{self.some_name()}", text="x")

    def lock(self) -> list[Line]:
        root = self.choose.choice(self.dirs)
        self.add("fs_delete", file=f"{root}/.lock")  # a crash leaves one, or not
        self.add("fs_write", file=f"{root}/.lock/a", text="x")
        return [{"op": "fs_rename", "from": f"{root}/.lock", "to": f"gone/{len(self.lines)}"}]

    def other_name(self, folder: str) -> str:
        """Renames the directory to that of another partition, or to another name of the same one."""
        root, _, name = folder.rpartition("/")
        plain = RANDOM_PART.split(f"{name}")[0]
        kind = self.choose.choice(("delete", "stray", "future", "future", "same", "other"))
        elsewhere = self.choose.choice((*self.dirs, "d3"))
        if self.compact and kind == "same":
            elsewhere = root  # as above: what was cleaned of it is told beside the other directory
        if kind in ("delete", "stray", "future"):
            where = root if self.chance(0.6) else elsewhere
            return f"{where}/{plain}.{self.choose.choice((FIXED_ID, OTHER_ID))}-{kind}"
        return f"{elsewhere}/{plain}" if kind == "same" else f"{root}/{self.some_name()}"

    def copy_folder(self, folder: str, names: dict[str, Any]) -> list[Line]:
        to = self.other_name(folder)
        if to == folder:
            return []
        for name in sorted(names):
            self.add("fs_copy", **{"from": f"{folder}/{name}", "to": f"{to}/{name}"})
        return [{"op": "fs_rename", "from": to, "to": f"gone/{len(self.lines)}"}]

    def rename_folder(self, folder: str, names: dict[str, Any]) -> list[Line]:
        to = self.other_name(folder)
        if to != folder:
            self.add("fs_rename", **{"from": folder, "to": to})
        return [{"op": "fs_rename", "from": to, "to": f"gone/{len(self.lines)}"}]
