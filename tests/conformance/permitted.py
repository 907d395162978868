"""Where kafkalog differs from Apache Kafka on purpose when files are damaged: each difference has a name, a reason and
a rule that detects it, so that a fuzzer can continue.  A difference that no rule knows is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalog._native.codec import batches as native
from tests.conformance.compare import Difference
from tests.conformance.fuzz_scripts import INT_MAX, Line

if TYPE_CHECKING:
    from tests.conformance.fuzz import Outcome

FULL_INDEX = "Attempt to append to a full "
ALREADY_OFFLINE = "is already offline due to a previous IO exception"
ILLEGAL = "IllegalArgumentException"
OPENS = ("open", "lm_open")
AT_AN_OPEN = re.compile(r"\((lm_)?open\), field error$")
BASE_OFFSET_BYTES = 8


def _torn_base_offset(difference: Difference, outcome: Outcome) -> bool:
    if AT_AN_OPEN.search(difference.place) is None:
        return _beside_a_torn_base_offset(difference, outcome)
    return (
        re.search(r"actual   (\(missing\)|InconsistentTopicIdException)\n", difference.detail) is not None
        and re.search(
            "Split operation is only permitted for segments with overflow|Found record size", difference.detail
        )
        is not None
        and any(map(_may_have_batch_out_of_range, outcome.lines))
    )


def _beside_a_torn_base_offset(difference: Difference, outcome: Outcome) -> bool:
    """Both managers refused because of another partition, and this one's directory shows which of them truncated it."""
    torn = [
        Path(line["file"]).parent.name
        for line in outcome.lines
        if _may_have_batch_out_of_range(line)
        and (line["op"] == "fs_write" or 0 <= line.get("offset", -1) < BASE_OFFSET_BYTES)
    ]
    return (
        any(result["op"] == "lm_open" and "error" in result for result in outcome.results)
        and re.search(r"\((dump|lm_open)\), field |^file", difference.place) is not None
        and any(re.search(rf"[./ ]{re.escape(folder)}[./]", difference.place) is not None for folder in torn)
    )


def _may_have_batch_out_of_range(line: Line) -> bool:
    if line["op"] == "fs_corrupt":
        return bool(line["file"].endswith(".log"))
    base = re.search(r"/(\d{20})\.log$", line.get("file", ""))
    if line["op"] != "fs_write" or base is None:
        return False
    headers, _, _ = native.headers(bytes.fromhex(line["hex"]), framing=native.FRAMING_FILE)
    return any(not 0 <= header.last_offset - int(base[1]) <= INT_MAX for header in headers)


def _count_without_memory(difference: Difference, outcome: Outcome) -> bool:
    return (
        "expected OutOfMemoryError" in difference.detail
        and re.search(r"actual   (IOException|KafkaStorageException)\n", difference.detail) is not None
        and re.search(r"\((open|fs_read)\), field error$", difference.place) is not None
        and any(line.get("file", "").endswith("checkpoint") for line in outcome.lines)
    )


def _message_without_memory(difference: Difference, outcome: Outcome) -> bool:
    return "expected OutOfMemoryError" in difference.detail and difference.place.endswith("(clean), field error")


def _two_checkpoints(difference: Difference, outcome: Outcome) -> bool:
    return (
        difference.place.endswith("(lm_clean), field error")
        and "expected said: IllegalStateException: Duplicate key " in difference.detail
        and "actual   (missing)" in difference.detail
    )


def _line_of_another_directory(difference: Difference, outcome: Outcome) -> bool:
    """A partition's directory was moved away by hand, and the partition created again in another directory."""
    named = r"cleaner-offset-checkpoint(\.\w+)?$|\(lm_clean\), field passes"
    return re.search(named, difference.place) is not None and any(
        line["op"] == "fs_rename" and re.search(r"[^/]+-\d+$", line["from"]) is not None for line in outcome.lines
    )


def _deleted_while_offline(difference: Difference, outcome: Outcome) -> bool:
    """Both refuse to delete a partition of a failed directory, of which the manager does not know."""
    kafka, ours = (
        {line["line"] for line in results if line["op"] == "lm_delete" and ALREADY_OFFLINE in line.get("message", "")}
        for results in (outcome.kafka_results, outcome.results)
    )
    return bool(kafka & ours) and re.search(r"cleaner-offset-checkpoint(\.\w+)?$", difference.place) is not None


def _unfinished_index(difference: Difference, outcome: Outcome) -> bool:
    refused = {
        (result["line"], result["error"])
        for result in outcome.kafka_results
        if result["op"] in OPENS and FULL_INDEX in result.get("message", "")
    } & {(result["line"], result.get("error")) for result in outcome.results if FULL_INDEX in result.get("message", "")}
    if not refused:
        return False
    if AT_AN_OPEN.search(difference.place) is not None:  # the next open: Kafka's continues, perhaps to other damage
        said = difference.detail.partition("actual said: ")[2]
        return said.startswith(ILLEGAL) and FULL_INDEX in said
    name = re.search(r"(\d{20}\.index)$", difference.place)
    left = [path for result in outcome.results for path in result.get("files", {})]
    return (
        name is not None
        and any(word in difference.detail for word in ("actual   (missing)", "actual   (no such file)"))
        and any(path.endswith(f"{name[1]}.cleaned") for path in left)
    )


def _entries_that_were_cut_off(difference: Difference, outcome: Outcome) -> bool:
    """A log was truncated, and nobody trimmed its indexes before it was opened as after a clean shutdown."""
    at_open = re.match(r"line (\d+) \(open\), field (error|state)", difference.place)
    if at_open is None:
        return False
    number = int(at_open[1])
    if not _closed_by_its_handle(number, outcome):
        return at_open[2] == "state" and _not_recovered(number, outcome) and _but_for_producers(number, outcome)
    if at_open[2] == "error":
        said = difference.detail.partition("actual said: ")[2]
        return "expected said: CorruptRecordException: Found record size" in difference.detail and (
            "actual   (missing)" in difference.detail or (said.startswith(ILLEGAL) and FULL_INDEX in said)
        )
    # Kafka finds no batch where the entry points, and takes the segment for empty.
    state = _state_at(number, outcome.kafka_results)
    return bool(state) and state["segments"][-1][1] > 0 and state["leo"] == state["segments"][-1][0]


def _entry_into_a_batch(difference: Difference, outcome: Outcome) -> bool:
    """A script changed a segment's index, or moved its batches, and the end of that segment is read."""
    changed = {str(line.get("file"))[-6:] for line in outcome.lines if line["op"].startswith("fs_")}
    if difference.place.endswith("(segments), field error"):
        return (
            ".index" in changed
            and "expected said: CorruptRecordException: Found record size" in difference.detail
            and "actual   (missing)" in difference.detail
        )
    # Kafka finds no batch behind the entry, and takes the segment for empty.
    ends = re.search(r"expected (\d+)\n\s+actual   (\d+)", difference.detail)
    return (
        re.search(r"\(segments\), field result\[\d+\]\.next_offset$", difference.place) is not None
        and any(each.endswith((".index", ".log")) for each in changed)
        and ends is not None
        and int(ends[1]) < int(ends[2])
    )


def _closed_by_its_handle(number: int, outcome: Outcome) -> bool:
    """Closed without a manager, which would have trimmed its indexes."""
    before = [line for line in outcome.lines[: number - 1] if line.get("log", "main") == "main"]
    untrimmed = [at for at, line in enumerate(before) if line["op"] == "close" and not line.get("broker_style", True)]
    return bool(untrimmed) and any(line["op"].startswith("truncate_") for line in before[: untrimmed[-1]])


def _not_recovered(number: int, outcome: Outcome) -> bool:
    """It was lost in a crash after the truncation; each open since was refused, one for the size of its indexes, which
    had the file cut, or grown, to that size."""
    mine = {at for at, line in enumerate(outcome.lines[: number - 1], 1) if line.get("log", "main") == "main"}
    opens = [each for each in outcome.kafka_results if each["op"] == "open" and each["line"] in mine]
    last = max([each["line"] for each in opens if "error" not in each], default=0)
    since = [outcome.lines[at - 1]["op"] for at in sorted(mine) if at > last]
    return (
        outcome.lines[number - 1].get("clean_shutdown", True)
        and "crash" in since
        and any(op.startswith("truncate_") for op in since[: since.index("crash")])
        and any(FULL_INDEX in each.get("message", "") for each in opens if each["line"] > last)
    )


def _but_for_producers(number: int, outcome: Outcome) -> bool:
    """Kafka finds the end all the same, and knows no producers without a snapshot; an index is rebuilt with them."""
    expected, found = _state_at(number, outcome.kafka_results), _state_at(number, outcome.results)
    differs = {name for name in expected if expected[name] != found.get(name)}
    return (
        bool(found)
        and differs <= {"producers", "first_unstable", "lso"}
        and expected["producers"] == 0 < found["producers"]
    )


def _state_at(number: int, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next((result.get("state", {}) for result in results if result["line"] == number), {})


def _smaller_than_its_header(difference: Difference, outcome: Outcome) -> bool:
    return (
        difference.place.endswith("field error")
        and "expected (missing)" in difference.detail
        and "smaller than minimum record overhead (49)" in difference.detail
    )


def _below_its_segment(difference: Difference, outcome: Outcome) -> bool:
    """A follower's batch is below the base of the segment that a roll beyond the log's end has opened."""
    base = -1
    below = False
    for line in outcome.lines:
        if line["op"] == "roll":
            base = max(base, int(line.get("expected_next_offset", -1)))
        elif line["op"] == "append_follower":
            below = below or any(_first_offset(batch) < base for batch in line.get("batches", ()))
    return below and (
        re.search(r"\d{20}\.timeindex(\.sha256)?$", difference.place) is not None
        or (
            difference.place.endswith("(open), field error")
            and re.search("Split operation is only permitted|Found record size", difference.detail) is not None
        )
        or (
            "expected IllegalStateException" in difference.detail
            and re.search(r"said: IllegalStateException: \d+ entries but file position in index is", difference.detail)
            is not None
        )
    )


def _first_offset(batch: Line) -> int:
    if "raw_hex" in batch:
        return int.from_bytes(bytes.fromhex(batch["raw_hex"][:16]), "big", signed=True)
    offsets = [record.get("offset", 0) for record in batch.get("records", ())]
    return min([batch.get("base_offset", 0), *offsets])


def _closed_beside_its_manager(difference: Difference, outcome: Outcome) -> bool:
    has_manager = False
    closed: set[str] = set()
    failed = {result["line"] for result in outcome.kafka_results if result.get("error") == "KafkaStorageException"}
    for number, line in enumerate(outcome.lines, 1):
        has_manager = has_manager or line["op"] == "lm_open"
        # A switch that fails at the old log's directory closes that log, which the handle still names.
        is_closed = line["op"] in ("close", "crash") or (line["op"] == "lm_move" and number in failed)
        if has_manager and is_closed:
            closed.add(line.get("log", "main"))
    said = re.search("is already closed|the file was closed|NullPointerException", difference.detail)
    if closed and ALREADY_OFFLINE in difference.detail:
        # An earlier call came to the closed file: Kafka takes that for the disk's error, and refuses this one for it.
        at = re.match(r"line (\d+) ", difference.place)
        if at is not None and outcome.lines[int(at[1]) - 1].get("log", "main") in closed:
            return True
    return bool(closed) and (said is not None or any(f"/{name}/" in difference.place for name in closed))


def _late_epochs(difference: Difference, outcome: Outcome) -> bool:
    """Tasks are run by hand, and one of a log that is closed was due when it was open again."""
    by_hand = any(line.get("scheduler") == "manual" for line in outcome.lines)
    ops = [line["op"] for line in outcome.lines]
    reopened = "close" in ops and "open" in ops[ops.index("close") :]
    return by_hand and reopened and re.search("latest_epoch|epoch_cache|leader-epoch", difference.place) is not None


def _file_in_the_way(difference: Difference, outcome: Outcome) -> bool:
    if "(lm_move), field error" in difference.place:
        return "Not a directory" in difference.detail
    # Kafka's move continued, and failed later: the leftovers of each show later.
    stopped = {
        result["line"]
        for result in outcome.results
        if result["op"] == "lm_move" and "Not a directory" in result.get("cause", "")
    }
    names = {line["topic_partition"] for number, line in enumerate(outcome.lines, 1) if number in stopped}
    return any(re.search(rf"[./ ]{re.escape(name)}([./]|$)", difference.place) is not None for name in names)


@dataclass(frozen=True)
class Named:
    """A difference on purpose: why, and how it is known.  `needs_damage`: only where a script changes files."""

    reason: str
    applies: Callable[[Difference, Outcome], bool]
    needs_damage: bool = True


NAMED = {
    "below its segment": Named(
        "After a roll beyond the log's end a follower's batch may lie below the base of its segment.  Kafka writes the "
        "timestamp of its time index entry before it finds that the offset does not fit, and leaves that half, which "
        "the next entry stumbles over; after a crash it takes the batch for an overflow, finds none to split, and "
        "refuses the log for good.",
        _below_its_segment,
        needs_damage=False,
    ),
    "closed beside its manager": Named(
        "A log that was closed by its handle while its manager still has it, or by a move that failed in its switch, "
        "refuses everything; Kafka's finds out when it comes to a closed file, and some answers need none.",
        _closed_beside_its_manager,
        needs_damage=False,
    ),
    "entries that were cut off": Named(
        "A truncation leaves the bytes of the entries that it takes out of an index, and a close of the log alone (no "
        "manager's), or a crash, does not trim them: where the log is then opened as after a clean shutdown they "
        "count again.  Kafka goes by the last one to nonsense, and refuses the log, takes it for empty, or finds its "
        "end by luck; kafkalog sees that it names no batch, and builds the index anew, and with it what is known of "
        "the producers, or says that segment.index.bytes is too small for it.",
        _entries_that_were_cut_off,
        needs_damage=False,
    ),
    "file in the way": Named(
        "Where a plain file has the name of the folder to which a future log is renamed, Kafka deletes that file and "
        "goes on; kafkalog deletes no file that is not its own, and the directory is offline as for any other error.",
        _file_in_the_way,
    ),
    "count without memory": Named(
        "A checkpoint that promises two billion lines: Kafka makes room for them before it reads the first and dies of "
        "OutOfMemoryError; kafkalog counts what is there and names the file.",
        _count_without_memory,
    ),
    "late epochs": Named(
        "A task that was to write the leader epochs of a log that is closed by now: Kafka's writes what that log knew "
        "over what the one that is open there has written since; kafkalog writes at the close what is due, no more.",
        _late_epochs,
        needs_damage=False,
    ),
    "message without memory": Named(
        "A message in a compressed one of magic 0 or 1 whose size was damaged: Kafka makes room for it before it finds "
        "that so many bytes are not there, and dies of OutOfMemoryError; kafkalog looks first.",
        _message_without_memory,
    ),
    "torn base offset": Named(
        "A batch whose base offset (no CRC covers it) lies outside its segment is cut off by recovery like any other "
        "torn batch; Kafka takes it for an overflow, finds none to split, and refuses the log for good.",
        _torn_base_offset,
    ),
    "smaller than its header": Named(
        "A batch that declares fewer bytes than its own header has: Kafka's walks take the next batch's bytes for the "
        "missing ones until a CRC is asked for; kafkalog says that the batch is corrupt.",
        _smaller_than_its_header,
    ),
    "deleted while offline": Named(
        "A partition of a directory that is offline cannot be deleted.  Kafka has written the cleaner's checkpoint "
        "there before it finds out; kafkalog leaves a failed directory as it is.",
        _deleted_while_offline,
        needs_damage=False,
    ),
    "line of another directory": Named(
        "A line of the cleaner's checkpoint counts for the log that lies in the same directory; for Kafka's cleaner "
        "also for one that was made anew in another, which it then takes for cleaned as far.",
        _line_of_another_directory,
    ),
    "two checkpoints": Named(
        "Where the cleaner checkpoints of two directories have a line of one partition, Kafka's cleaner cannot put "
        "them into one map, and its thread dies; kafkalog takes the line of the directory with the log.",
        _two_checkpoints,
    ),
    "entry into a batch": Named(
        "An index entry that points into a batch: Kafka reads on from there and takes the bytes for a header; or "
        "finds none; kafkalog sees that no batch begins there, and searches from the segment's start.",
        _entry_into_a_batch,
    ),
    "unfinished index": Named(
        "Where both refuse to open because a rebuilt index does not fit segment.index.bytes, kafkalog leaves what it "
        "has built as `.index.cleaned`, which the next load deletes and builds again; Kafka leaves it under the "
        "index's own name, and the next load trusts it, and half of a transaction index with it.",
        _unfinished_index,
        needs_damage=False,
    ),
}


def name_of(outcome: Outcome) -> str | None:
    """The name of the outcome's difference; None where no rule knows it."""
    difference = outcome.difference
    if difference is None:
        return None
    damaged = any(line["op"].startswith("fs_") for line in outcome.lines)
    rules = {name: rule for name, rule in NAMED.items() if damaged or not rule.needs_damage}
    return next((name for name, rule in rules.items() if rule.applies(difference, outcome)), None)
