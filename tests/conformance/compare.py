"""Compares the results of two runs of a script: finds the first difference, and describes it for a human.

It knows result lines and Kafka's file formats well enough to name the batch, the entry and the field.  It does not use
kafkalog's decoding, because that is under test (except for the records of snappy batches, see below).

    python -m tests.conformance.compare EXPECTED.jsonl ACTUAL.jsonl [EXPECTED_DIR ACTUAL_DIR]

Snappy is the one place where bytes may differ: another implementation of the same format may find other matches. A
run whose bytes differ is compared again with `Snappy.LENIENT`, which leaves out sizes, positions and digests, and
compares records instead of bytes.  If another size moves a roll, the two runs differ from there on: only the part
before it is compared.
"""

from __future__ import annotations

import enum
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Fields that inform only: texts, and what each engine does inside.
NOT_COMPARED = frozenset({"message", "cause", "tasks_run", "task_errors", "input_hex", "note", "written", "met"})
# The directory of a deleted partition has a random part in its name.
RANDOM_PART = re.compile(r"\.[0-9a-f]{32}-(?=(delete|future|stray)(/|$))")
# A broker whose log directories are all gone halts; any error says so.
HALTED = "halt: "
# The fields that change with the compressed size.
SIZE_DEPENDENT = frozenset(
    {
        "size", "sha256", "position", "valid_bytes", "clean_bytes", "cleanable_bytes", "total_bytes",
        "cleanable_ratio", "bytes_read", "bytes_written", "segments", "index_entries", "index_last_offset",
        "time_entries", "time_last_ts", "time_last_offset", "would_be_picked",
    }
)  # fmt: skip


class Snappy(enum.Enum):
    STRICT = "strict"
    LENIENT = "lenient"


@dataclass(frozen=True)
class Difference:
    """Where two runs part: `place` names the line or file, `detail` the field and both values."""

    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place}\n  {self.detail}"


# --- result lines -----------------------------------------------------------------------------------


def load_results(path: Path) -> list[dict[str, Any]]:
    # Not splitlines: Java leaves U+0085 and U+2028 in its strings as they are.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def compare_results(
    expected: list[dict[str, Any]], actual: list[dict[str, Any]], snappy: Snappy = Snappy.STRICT
) -> Difference | None:
    """The first result line that differs, and the field in it."""
    for want, got in zip(expected, actual, strict=False):
        if want.get("message", "").startswith(HALTED) and "error" in got:
            continue
        difference = _compare_value(_comparable(want, snappy), _comparable(got, snappy), "")
        if difference is not None:
            field, left, right = difference
            said = "".join(
                f"\n  {who} said: {line.get('error')}: {line.get('message')}"
                for who, line in (("expected", want), ("actual", got))
                if "error" in line
            )
            place = f"line {want.get('line')} ({want.get('op')}), field {field or '(whole)'}"
            return Difference(place, f"expected {_short(left)}\n  actual   {_short(right)}{said}")
    if len(expected) != len(actual):
        return Difference("number of result lines", f"expected {len(expected)}\n  actual   {len(actual)}")
    return None


def _comparable(line: Mapping[str, Any], snappy: Snappy) -> dict[str, Any]:
    kept = {key: value for key, value in line.items() if key not in NOT_COMPARED}
    op = str(line.get("op"))
    if op == "lm_crash" or (op.startswith("fs_") and op != "fs_read"):
        return {"op": op}
    if "files" in kept:
        files = {name: {"size": entry["size"], "sha256": entry["sha256"]} for name, entry in kept["files"].items()}
        kept["files"] = without_random_parts(files, json.dumps)
    if "loaded" in kept:
        kept["loaded"] = without_random_parts(kept["loaded"], json.dumps)
    if snappy is Snappy.LENIENT:
        kept = _without(kept, SIZE_DEPENDENT)
    return kept


def without_random_parts(found: Mapping[str, T], shown: Callable[[T], Any]) -> dict[str, T]:
    """Names with `<uuid>` for what is random in them; folders that are the same then are told apart by content."""
    folders: dict[str, dict[str, list[str]]] = {}
    for name in found:
        match = RANDOM_PART.search(name)
        if match is not None:
            folder = name[: match.start()] + ".<uuid>-" + match[1]
            folders.setdefault(folder, {}).setdefault(name[: match.end(1)], []).append(name)
    named = {name: value for name, value in found.items() if RANDOM_PART.search(name) is None}
    for folder, real in folders.items():
        contents = sorted(
            (sorted((name[len(each) :], shown(found[name])) for name in of), each, of) for each, of in real.items()
        )
        for number, (_, each, of) in enumerate(contents):
            for name in of:
                named[f"{folder}{f'#{number}' if number else ''}{name[len(each) :]}"] = found[name]
    return named


def _without(value: Any, fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, fields) for key, item in value.items() if key not in fields}
    if isinstance(value, list):
        return [_without(item, fields) for item in value]
    return value


_MISSING = "(missing)"


def _compare_value(want: Any, got: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(want, dict) and isinstance(got, dict):
        # An error is the most telling difference, then what the call answered, then the state.
        names = sorted(want.keys() | got.keys(), key=lambda name: (name != "error", name == "state", name))
        for name in names:
            found = _compare_value(want.get(name, _MISSING), got.get(name, _MISSING), f"{path}.{name}".lstrip("."))
            if found is not None:
                return found
        return None
    if isinstance(want, list) and isinstance(got, list):
        for i, (left, right) in enumerate(zip(want, got, strict=False)):
            found = _compare_value(left, right, f"{path}[{i}]")
            if found is not None:
                return found
        return None if len(want) == len(got) else (f"{path} (length)", len(want), len(got))
    # JSON knows no bool-int equality, Python does.
    same = want == got and isinstance(want, bool) == isinstance(got, bool)
    return None if same else (path, want, got)


def _short(value: Any, limit: int = 400) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else text[:limit] + "..."


# --- files ------------------------------------------------------------------------------------------


def tree(root: Path) -> dict[str, Path]:
    """Relative name (random parts replaced) -> file; locks, and what cannot be equal, left out."""
    skipped = {".lock", "meta.properties"}
    found = {
        path.relative_to(root).as_posix(): path
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in skipped
    }
    return without_random_parts(found, Path.read_bytes)


def compare_trees(expected: Path, actual: Path, snappy: Snappy = Snappy.STRICT) -> Difference | None:
    """The first file that differs, and where in it."""
    want, got = tree(expected), tree(actual)
    for name in sorted(want.keys() | got.keys()):
        if name not in got:
            return Difference(f"file {name}", f"expected {want[name].stat().st_size} bytes\n  actual   (no such file)")
        if name not in want:
            return Difference(f"file {name}", f"expected (no such file)\n  actual   {got[name].stat().st_size} bytes")
        left, right = want[name].read_bytes(), got[name].read_bytes()
        if left != right:
            detail = _describe(name, left, right, snappy)
            if detail is not None:
                return Difference(f"file {name}", detail)
    return None


def _describe(name: str, left: bytes, right: bytes, snappy: Snappy) -> str | None:
    kind = name.rsplit("/", 1)[-1].removesuffix(".deleted").removesuffix(".cleaned").removesuffix(".swap")
    suffix = kind.rsplit(".", 1)[-1]
    if snappy is Snappy.LENIENT:
        if suffix == "log":
            return _first_item(_log_records(left), _log_records(right), "batch")
        if suffix in ("index", "timeindex"):
            return None
    items = {
        "log": _batches,
        "index": _rows(">ii", "relative_offset position", "entry"),
        "timeindex": _rows(">qi", "timestamp relative_offset", "entry"),
        "txnindex": _rows(">hqqqq", "version producer_id first_offset last_offset last_stable_offset", "entry"),
        "snapshot": _snapshot,
    }.get(suffix, _lines)
    return _first_item(items(left), items(right), "item") or _first_byte(left, right)


def _first_item(
    left: Iterable[tuple[str, dict[str, Any]]], right: Iterable[tuple[str, dict[str, Any]]], what: str
) -> str | None:
    ours, theirs = list(left), list(right)
    for (place, want), (_, got) in zip(ours, theirs, strict=False):
        if want != got:
            fields = [field for field in want if want.get(field) != got.get(field)] or sorted(got.keys() - want.keys())
            shown = "".join(f"\n    {f}: expected {_short(want.get(f))}, actual {_short(got.get(f))}" for f in fields)
            return f"{place} differs in {', '.join(fields)}{shown}"
    if len(ours) != len(theirs):
        extra = (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))]
        who = "expected" if len(ours) > len(theirs) else "actual"
        return f"expected {len(ours)} {what}s, actual {len(theirs)}; first only in {who}: {extra[0]} {_short(extra[1])}"
    return None


def _first_byte(left: bytes, right: bytes) -> str:
    common = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return (
        f"sizes {len(left)} and {len(right)}, first different byte at {common}: "
        f"expected {left[common : common + 16].hex()}, actual {right[common : common + 16].hex()}"
    )


_HEADER = struct.Struct(">qiibIhiqqqhii")
_FIELDS = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip


def _batches(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each batch's header fields and its payload; bytes that are no whole batch come last, unchanged."""
    position = number = 0
    while len(data) - position >= 17:
        base, length = struct.unpack_from(">qi", data, position)
        magic = data[position + 16]
        size = length + 12
        if length < 14 or position + size > len(data) or (magic >= 2 and size < _HEADER.size):
            break
        if magic >= 2:
            fields: dict[str, Any] = dict(zip(_FIELDS, _HEADER.unpack_from(data, position), strict=True))
            fields["payload"] = data[position + _HEADER.size : position + size].hex()
        else:
            fields = {"base_offset": base, "length": length, "magic": magic}
            fields["payload"] = data[position + 12 : position + size].hex()
        yield f"batch {number} at byte {position} (base offset {base})", fields
        position += size
        number += 1
    if position < len(data):
        yield f"the rest from byte {position}", {"size": len(data) - position, "bytes": data[position:].hex()}


def _log_records(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `_batches`, with records in place of compressed bytes (decoded by kafkalog)."""
    from kafkalog._native.codec import batches as native
    from kafkalog.engine.format.records import records
    from kafkalog.errors import KafkalogError

    headers, _, _ = native.headers(data)
    for number, (header, (place, fields)) in enumerate(zip(headers, _batches(data), strict=False)):
        kept = {k: v for k, v in fields.items() if k not in ("length", "crc", "payload")}
        try:
            found = records(data, header, at=header.position)
            kept["records"] = repr([(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found])
        except KafkalogError as error:  # a follower accepts records that nobody can read
            kept["records"] = f"{error} {fields['payload']}"
        yield f"batch {number} (base offset {header.base_offset}), {place}", kept


def _rows(layout: str, names: str, what: str) -> Any:
    row = struct.Struct(layout)

    def rows(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        whole = len(data) - len(data) % row.size
        for number, values in enumerate(row.iter_unpack(data[:whole])):
            yield f"{what} {number}", dict(zip(names.split(), values, strict=True))
        if whole < len(data):
            yield "the rest", {"bytes": data[whole:].hex()}

    return rows


def _snapshot(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    head = struct.Struct(">hIi")
    if len(data) < head.size:
        yield "snapshot", {"bytes": data.hex()}
        return
    version, crc, count = head.unpack_from(data)
    # The checksum follows from the rest: it comes last, so that the field that matters is named first.
    names = "producer_id epoch last_sequence last_offset offset_delta timestamp coordinator_epoch first_offset_in_txn"
    yield "snapshot", {"version": version, "count": count}
    yield from _rows(">qhiqiqiq", names, "producer")(data[head.size :])
    yield "snapshot", {"crc": crc}


def _lines(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        yield f"line {number}", {"text": line.decode("utf-8", "backslashreplace")}


# --- both -------------------------------------------------------------------------------------------


def compare_runs(
    expected: list[dict[str, Any]],
    actual: list[dict[str, Any]],
    expected_files: Path | None = None,
    actual_files: Path | None = None,
    *,
    uses_snappy: bool = False,
) -> Difference | None:
    """Results first, then files; a script that uses snappy may differ in bytes, not in records."""
    for snappy in (Snappy.STRICT, Snappy.LENIENT) if uses_snappy else (Snappy.STRICT,):
        moved = _moved_roll(expected, actual) if snappy is Snappy.LENIENT else None
        found = compare_results(expected[:moved], actual[:moved], snappy)
        if found is None and moved is None and expected_files is not None and actual_files is not None:
            found = compare_trees(expected_files, actual_files, snappy)
        if found is None:
            return None
    return found


def _moved_roll(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> int | None:
    """The line at which the log rolled in one run only, after an append that became larger in one than in the other."""
    sizes_differ = False
    for number, (want, got) in enumerate(zip(expected, actual, strict=False)):
        left, right = want.get("state"), got.get("state")
        if left and right:
            by_append = want.get("op") == "append_leader" and want.get("append") == got.get("append")
            sizes_differ |= by_append and left["size"] != right["size"]
            if sizes_differ and [base for base, _ in left["segments"]] != [base for base, _ in right["segments"]]:
                return number
    return None


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 4):
        print(__doc__, file=sys.stderr)
        return 2
    dirs = [Path(arg) for arg in argv[2:]]
    found = compare_runs(load_results(Path(argv[0])), load_results(Path(argv[1])), *dirs)
    print(found or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
