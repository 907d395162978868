"""The damage of a seed: the changes to a directory, and the bytes of each file that they touched.

Some changes are blind (flip, cut, zero, double, drop, transplant, noise).  Others know the structure: a header field, a
varint, an index entry, a snapshot's field or a line of text gets an edge value.  Mostly the CRC is then corrected, so
that the layers after it are reached.  The same seed gives the same damage.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kafkalog._native.codec import batches as native
from kafkalog._native.codec.crc32c import crc32c
from tests.damage.directories import Tree
from tests.fuzz.native_seeds import EDGES_32, EDGES_64, FIELDS, LEGACY_FIELDS, VARINTS

Span = tuple[int, int]
NUMBERS = (
    b"-1", b"0", b"1", b"3", b"2147483647", b"2147483648", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775808", b"99999999999999999999", b"9" * 5000, b"", b" ", b"x", b"0x10", b"1e3", b"1_0", b"+1", b"\xd9\xa3",
    b"\xc2\xb2", b"\xff\xfe", b"\x00", b"NaN",
)  # fmt: skip


@dataclass
class Damage:
    """The damage in words, and its places: changed spans by file; None if the file's layout moved or the file is
    deleted."""

    tree: Tree
    notes: list[str] = field(default_factory=list)
    spans: dict[str, list[Span] | None] = field(default_factory=dict)
    right_crc: bool = False  # some change got a right CRC again: contents may differ, and no reader can know

    def touch(self, path: str, span: Span | None) -> None:
        if span is None or self.spans.get(path, []) is None:
            self.spans[path] = None
        else:
            spans = self.spans.setdefault(path, [])
            assert spans is not None
            spans.append(span)

    def touched(self, path: str, position: int, size: int) -> bool:
        spans = self.spans.get(path, [])
        return spans is None or any(begin < position + size and end > position for begin, end in spans)


def damaged(rng: random.Random, tree: Tree) -> Damage:
    """One to three changes, all in one partition or its directory."""
    damage = Damage(dict(tree))
    names = sorted(damage.tree)
    first = rng.choice(names)
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        near = [name for name in sorted(damage.tree) if name.split("/")[0] == first.split("/")[0]]
        # Logs have most of the bytes and of the rules.
        logs = [name for name in near if name.endswith(".log")]
        path = first if number == 0 else rng.choice(near or names)
        if logs and rng.random() < 0.35:
            path = rng.choice(logs)
        # Few partitions have aborted transactions.
        rare = [name for name in near if name.endswith(".txnindex")]
        if rare and rng.random() < 0.25:
            path = rng.choice(rare)
        if path not in damage.tree:
            continue
        change = rng.choice(changes_for(path))
        before = damage.tree[path]
        change(rng, damage, path)
        damage.notes.append(f"{change.__name__} {path}" + ("" if damage.tree.get(path) != before else " (no change)"))
    return damage


Change = Callable[[random.Random, Damage, str], None]


def changes_for(path: str) -> tuple[Change, ...]:
    name = path.split("/")[-1]
    suffix = name[name.rfind(".") :]
    own: tuple[Change, ...]
    if suffix == ".log":
        own = (
            field_right,
            field_right,
            field_right,
            field_odd,
            field_wrong,
            varint_right,
            varint_right,
            batch_move,
            batch_move,
        )
    elif suffix in (".index", ".timeindex", ".txnindex"):
        own = (entry_field, entry_field, entry_field, from_other_file)
    elif suffix == ".snapshot":
        own = (snapshot_field, snapshot_field, snapshot_count)
    else:
        own = (line_number, line_number, line_change, line_change, text_noise)
    return (*own, flip, flip, overwrite, cut, grow, rename, remove)


# --- blind -----------------------------------------------------------------------------------------------


def _put(damage: Damage, path: str, at: int, data: bytes) -> None:
    old = damage.tree[path]
    damage.tree[path] = old[:at] + data + old[at + len(data) :]
    damage.touch(path, (at, at + len(data)))


def flip(rng: random.Random, damage: Damage, path: str) -> None:
    data = damage.tree[path]
    if data:
        at = rng.randrange(len(data))
        _put(damage, path, at, bytes([data[at] ^ rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))]))


def overwrite(rng: random.Random, damage: Damage, path: str) -> None:
    data = damage.tree[path]
    if data:
        at = rng.randrange(len(data))
        length = min(len(data) - at, rng.choice((1, 4, 8, 17, 61, 200, 512)))
        _put(damage, path, at, rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length))))


def cut(rng: random.Random, damage: Damage, path: str) -> None:
    data = damage.tree[path]
    at = rng.choice((0, max(0, len(data) - rng.randrange(1, 80)), rng.randrange(len(data) + 1)))
    damage.tree[path] = data[:at]
    damage.touch(path, (at, max(len(data), at + 1)))


def grow(rng: random.Random, damage: Damage, path: str) -> None:
    data = damage.tree[path]
    length = rng.choice((1, 11, 12, 17, 18, 61, 4096))
    at = rng.choice((len(data), rng.randrange(len(data) + 1)))
    noise = rng.choice((bytes(length), rng.randbytes(length), data[:length]))
    damage.tree[path] = data[:at] + noise + data[at:]
    damage.touch(path, (at, at + len(noise)) if at == len(data) else None)


def rename(rng: random.Random, damage: Damage, path: str) -> None:
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    new = rng.choice(
        (
            name + ".swap", name + ".cleaned", name + ".deleted", name + ".swap.swap", "." + suffix, suffix,
            f"{rng.choice((0, 1, 7, 2**31, 2**63 - 1, 2**63, 10**20 - 1)):020d}{dot}{suffix}", "-1" + dot + suffix,
            "٣" * 20 + dot + suffix, "²" * 20 + dot + suffix, stem, stem + dot + "log", stem + dot + "snapshot",
            f"{stem}x{dot}{suffix}", "5" + dot + suffix, "+5" + dot + suffix,
        )
    )  # fmt: skip
    target = folder + slash + new
    if new in ("", ".", "..") or any(name.startswith(target + "/") for name in damage.tree):
        return
    if rng.random() < 0.6:
        damage.tree[target] = damage.tree.pop(path)
    else:
        damage.tree[target] = damage.tree[path]
    damage.touch(path, None)
    damage.touch(target, None)
    damage.right_crc = True


def remove(rng: random.Random, damage: Damage, path: str) -> None:
    del damage.tree[path]
    damage.touch(path, None)
    damage.right_crc = True


def from_other_file(rng: random.Random, damage: Damage, path: str) -> None:
    suffix = path[path.rfind(".") :]
    others = [name for name in sorted(damage.tree) if name.endswith(suffix) and name != path]
    if others:
        damage.tree[path] = damage.tree[rng.choice(others)]
        damage.touch(path, None)


# --- logs ------------------------------------------------------------------------------------------------


def _batches(data: bytes) -> list[tuple[int, int]]:
    return [(header.position, header.size) for header in native.headers(data, framing=native.FRAMING_FILE)[0]]


def _modern(data: bytes | bytearray, at: int) -> bool:
    return 2 <= data[at + 16] < 0x80  # a signed byte


def _edge(rng: random.Random, width: int) -> bytes:
    value = rng.choice(EDGES_64 if width == 8 else EDGES_32) if rng.random() < 0.7 else rng.randrange(64)
    return (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def _change_field(rng: random.Random, damage: Damage, path: str) -> tuple[int, int] | None:
    data = damage.tree[path]
    found = _batches(data)
    if not found:
        return None
    at, size = rng.choice(found)
    fields = FIELDS if _modern(data, at) else LEGACY_FIELDS
    offset, width = rng.choice(sorted(fields.items()))
    width = min(width, size - offset)
    if width > 0:
        _put(damage, path, at + offset, _edge(rng, width))
    return at, size


def field_wrong(rng: random.Random, damage: Damage, path: str) -> None:
    _change_field(rng, damage, path)


def field_right(rng: random.Random, damage: Damage, path: str) -> None:
    place = _change_field(rng, damage, path)
    if place is not None:
        fix_crc(damage, path, place[0])


def field_odd(rng: random.Random, damage: Damage, path: str) -> None:
    """Damage that single edge values seldom hit: an unknown codec, a record more or less, a time 2^63 ms away; CRC
    mended."""
    data = damage.tree[path]
    found = [(at, size) for at, size in _batches(data) if size >= 61 and _modern(data, at)]
    if not found:
        return
    at, _ = rng.choice(found)
    kind = rng.randrange(3)
    if kind == 0:
        _put(damage, path, at + 22, bytes([data[at + 22] & ~7 | rng.randrange(5, 8)]))
    elif kind == 1:
        count = int.from_bytes(data[at + 57 : at + 61], "big", signed=True) + rng.choice((-2, -1, 1, 2))
        _put(damage, path, at + 57, struct.pack(">i", max(-1, min(count, 0x7FFFFFFF))))
    else:
        for field in rng.choice(((27,), (35,), (27, 35))):
            _put(damage, path, at + field, bytes([damage.tree[path][at + field] ^ 0x80]))
    fix_crc(damage, path, at)


def fix_crc(damage: Damage, path: str, at: int) -> None:
    data = bytearray(damage.tree[path])
    for begin, size in _batches(bytes(data)):
        if begin == at:
            place = at + (17 if _modern(data, at) else 12)
            data[place : place + 4] = struct.pack(">I", native.compute_crc(data, at, size))
            damage.tree[path] = bytes(data)
            damage.touch(path, (at, at + size))
            damage.right_crc = True


def varint_right(rng: random.Random, damage: Damage, path: str) -> None:
    """Something in the records of an uncompressed batch, or in what is compressed, with length and CRC mended."""
    data = damage.tree[path]
    found = _batches(data)
    if not found:
        return
    at, size = rng.choice(found)
    head = 61 if _modern(data, at) else 26
    body = bytearray(data[at + head : at + size])
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(body) + 1) if rng.random() < 0.5 else min(len(body), rng.randrange(12))
        body[place : place + rng.choice((0, 1, 1, 4))] = rng.choice((*VARINTS, struct.pack(">i", rng.choice(EDGES_32))))
    changed = bytearray(data[:at] + data[at : at + head] + body + data[at + size :])
    changed[at + 8 : at + 12] = struct.pack(">i", head - 12 + len(body))
    damage.tree[path] = bytes(changed)
    damage.touch(path, (at, at + size) if len(body) + head == size else None)
    fix_crc(damage, path, at)


def batch_move(rng: random.Random, damage: Damage, path: str) -> None:
    """A batch is doubled, dropped, swapped with its neighbour, or comes from elsewhere."""
    data = damage.tree[path]
    found = _batches(data)
    if not found:
        return
    number = rng.randrange(len(found))
    at, size = found[number]
    kind = rng.randrange(4)
    if kind == 0:
        data = data[:at] + data[at : at + size] + data[at:]
    elif kind == 1:
        data = data[:at] + data[at + size :]
    elif kind == 2 and number + 1 < len(found):
        after, more = found[number + 1]
        data = data[:at] + data[after : after + more] + data[at : at + size] + data[after + more :]
    else:
        others = [name for name in sorted(damage.tree) if name.endswith(".log") and _batches(damage.tree[name])]
        other = damage.tree[rng.choice(others)]
        begin, length = rng.choice(_batches(other))
        data = data[:at] + other[begin : begin + length] + data[at:]
    damage.tree[path] = data
    damage.touch(path, None)
    damage.right_crc = True


# --- the other files -------------------------------------------------------------------------------------

ENTRY_FIELDS = {
    ".index": (8, (4, 4)),
    ".timeindex": (12, (8, 4)),
    ".txnindex": (34, (2, 8, 8, 8, 8)),
}


def entry_field(rng: random.Random, damage: Damage, path: str) -> None:
    size, widths = ENTRY_FIELDS[path[path.rfind(".") :]]
    count = len(damage.tree[path]) // size
    if count:
        which = rng.randrange(len(widths))
        _put(damage, path, rng.randrange(count) * size + sum(widths[:which]), _edge(rng, widths[which]))


def snapshot_field(rng: random.Random, damage: Damage, path: str) -> None:
    data = bytearray(damage.tree[path])
    count = (len(data) - 10) // 46
    if count > 0:
        widths = (8, 2, 4, 8, 4, 8, 4, 8)
        which = rng.randrange(len(widths))
        at = 10 + rng.randrange(count) * 46 + sum(widths[:which])
        data[at : at + widths[which]] = _edge(rng, widths[which])
        _snapshot_crc(damage, path, data)


def snapshot_count(rng: random.Random, damage: Damage, path: str) -> None:
    data = bytearray(damage.tree[path])
    if len(data) >= 10:
        data[6:10] = _edge(rng, 4)
        _snapshot_crc(damage, path, data)


def _snapshot_crc(damage: Damage, path: str, data: bytearray) -> None:
    data[2:6] = struct.pack(">I", crc32c(bytes(data[6:])))
    damage.tree[path] = bytes(data)
    damage.touch(path, None)


def _lines(damage: Damage, path: str) -> list[bytes]:
    return damage.tree[path].split(b"\n")


def line_number(rng: random.Random, damage: Damage, path: str) -> None:
    """A word of a text file becomes a number that it should not be."""
    lines = _lines(damage, path)
    number = rng.randrange(len(lines))
    for sep in (b" ", b":", b"="):
        words = lines[number].split(sep)
        if len(words) > 1 or sep == b"=":
            words[rng.randrange(len(words))] = rng.choice(NUMBERS)
            lines[number] = sep.join(words)
            break
    damage.tree[path] = b"\n".join(lines)
    damage.touch(path, None)


def line_change(rng: random.Random, damage: Damage, path: str) -> None:
    lines = _lines(damage, path)
    number = rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[number]
    elif kind == 1:
        lines.insert(number, lines[number])
    elif kind == 2:
        rng.shuffle(lines)
    elif kind == 3:
        lines[number] = lines[number].replace(b"-", b"").replace(b"codecs", b"..").replace(b" ", b"  ")
    else:
        lines[number] = rng.randbytes(20)
    damage.tree[path] = rng.choice((b"\n", b"\r\n", b"\r")).join(lines)
    damage.touch(path, None)


def text_noise(rng: random.Random, damage: Damage, path: str) -> None:
    damage.tree[path] = rng.choice(
        (
            b"", b"\n", b"\0" * 100, b"0\n2147483647\n", b"0\n-1\n", b"[" * 100_000, b'{"version":' + b"9" * 5000 + b"}",
            b'{"version":0,"brokerEpoch":1e400}', b"\xef\xbb\xbf0\n0\n", b"0\n1\n" + b"a" * 70_000 + b" 0 0\n", b"\xff" * 30,
            b"0\n1\n../../x 0 0\n", b"\\u12", b"a=\\u00zz\n", b"version=1\n" * 3, b"null", b"[]", b'"',
        )
    )  # fmt: skip
    damage.touch(path, None)
