"""The journals of the store's soak, and the oracle that checks them (see `tests.live.store_soak`).

A record's value begins with its code.  The code names the sender (a sender has one thread, and a new number in each
process that is started) and counts the sender's records.  Key and filler follow from the code, so that nothing unsent
can be taken for a record.  Codes of transactional workers contain the transaction's number.

Each worker writes a journal: acknowledgments, the records that a follower saw, and the commits and transactions that
began and ended.  An entry is one write to the worker's file, so that a killed process leaves whole entries.
`StoreOracle` reads them.  For each partition and offset it keeps the acknowledged code (or a range of codes, if one
call acknowledges many at once), the code that was seen, and the followers that saw it.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SENDER_SHIFT = 44
SLOTS = 64  # senders of one process
TXN_SHIFT = 12  # in a transactional worker's code: the bits of the number within the transaction
TRANSACTIONAL = (9, 10)  # the slots of transactional workers
KEYLESS = (3, 6)
NAMED = {7: "named-0", 8: "named-1"}  # idempotent writers, whose numbers continue from process to process
COMPACTED = "keyed"
KEYS = 61
_LENGTH = struct.Struct("<I")

Place = str  # "orders-0"


def code_of(process: int, slot: int, number: int) -> int:
    return (process * SLOTS + slot) << SENDER_SHIFT | number


def slot_of(code: int) -> int:
    return (code >> SENDER_SHIFT) % SLOTS


def key_of(code: int) -> bytes | None:
    if slot_of(code) in KEYLESS:
        return None
    number = (code & ((1 << SENDER_SHIFT) - 1)) % KEYS
    return b"%c%02d" % (b"ab"[number & 1], number)


def value_of(code: int) -> bytes:
    return b"%016x" % code + b"." * (code * 2_654_435_761 % 211)


def read_code(key: bytes | None, value: bytes | None) -> int:
    """AssertionError for a record that nobody sent."""
    assert value is not None, key
    assert len(value) >= 16, (key, value)
    code = int(value[:16], 16)
    assert value == value_of(code), f"damaged, or nobody's: {key!r} {value!r}"
    assert key == key_of(code), f"the key is another one's: {key!r} {value!r}"
    return code


class Journal:
    """One thread's."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *entry: object) -> None:
        data = pickle.dumps(entry)
        os.write(self._descriptor, _LENGTH.pack(len(data)) + data)


class Tail:
    """Reads a journal as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def entries(self) -> Iterable[tuple[Any, ...]]:
        with open(self.path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        at = 0
        while at + _LENGTH.size <= len(data):
            (size,) = _LENGTH.unpack_from(data, at)
            if at + _LENGTH.size + size > len(data):
                break
            yield pickle.loads(data[at + _LENGTH.size : at + _LENGTH.size + size])
            at += _LENGTH.size + size
        self._at += at


class Story:
    """The known facts about one partition, by offset; 0 means unknown."""

    def __init__(self) -> None:
        self.low = np.zeros(1024, np.int64)  # the codes of which one was acknowledged here
        self.high = np.zeros(1024, np.int64)
        self.seen = np.zeros(1024, np.int64)
        self.committed = np.zeros(1024, np.bool_)  # a read_committed reader saw it
        self.saw: dict[str, np.ndarray[Any, Any]] = {}  # by follower
        self.next: dict[str, int] = {}  # by follower: after the last record that it saw
        self.jumps: dict[str, list[tuple[int, int]]] = {}  # by follower: offsets that retention had deleted
        self.cursor: dict[str, int] = {}  # by follower: the last commit that returned

    def grow(self, size: int) -> None:
        if size <= len(self.low):
            return
        more = max(size, 2 * len(self.low)) - len(self.low)
        for name in ("low", "high", "seen", "committed"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self.saw = {name: np.pad(saw, (0, more)) for name, saw in self.saw.items()}

    def saw_of(self, follower: str) -> np.ndarray[Any, Any]:
        if follower not in self.saw:
            self.saw[follower] = np.zeros(len(self.low), np.bool_)
        return self.saw[follower]

    @property
    def there(self) -> np.ndarray[Any, Any]:
        """Where a record is known to have been."""
        return (self.low != 0) | (self.seen != 0)


class StoreOracle:
    """Reads journals, and checks at the end."""

    def __init__(self) -> None:
        self.stories: dict[Place, Story] = {}
        self.outcomes: dict[int, str] = {}  # by transaction: begun, ending, committed, aborted
        self.inputs: dict[int, list[tuple[Place, int]]] = {}  # read by transforming transactions
        self.counts: Counter[str] = Counter()
        self.is_committed: dict[str, bool] = {}  # by follower
        self.has_prefix: dict[str, bool] = {}

    def story(self, place: Place) -> Story:
        return self.stories.setdefault(place, Story())

    def take(self, entry: tuple[Any, ...]) -> None:
        getattr(self, f"_{entry[0]}")(*entry[1:])

    # --- what journals say -------------------------------------------------------------------------------

    def _counted(self, what: str, number: int) -> None:
        self.counts[what] += number

    def _acked(self, place: Place, offset: int, count: int, low: int, high: int | None) -> None:
        """Records from `low` on are at these offsets; or, with `high`, so many of those up to it."""
        story = self.story(place)
        story.grow(offset + count)
        part = slice(offset, offset + count)
        assert not story.low[part].any(), f"{place}: {offset} to {offset + count} were given twice"
        story.low[part] = np.arange(low, low + count) if high is None else low
        story.high[part] = story.low[part] if high is None else high
        self.counts["acknowledged"] += count

    def _follower(self, name: str, is_committed: bool, has_prefix: bool) -> None:
        self.is_committed[name], self.has_prefix[name] = is_committed, has_prefix

    def _saw(self, follower: str, place: Place, offsets_: bytes, codes_: bytes) -> None:
        story = self.story(place)
        offsets, codes = np.frombuffer(offsets_, np.int64), np.frombuffer(codes_, np.int64)
        assert (np.diff(offsets) > 0).all(), (follower, place, offsets)
        at = story.next.get(follower, 0)
        assert offsets[0] >= at, f"{follower}: {place} came to {at}, and shows {offsets[0]} again"
        story.grow(int(offsets[-1]) + 1)
        before = story.seen[offsets]
        assert ((before == 0) | (before == codes)).all(), f"{follower}: {place} shows something else at {offsets}"
        story.seen[offsets] = codes
        story.saw_of(follower)[offsets] = True
        if self.is_committed[follower]:
            story.committed[offsets] = True
        story.next[follower] = int(offsets[-1]) + 1
        self.counts[f"seen by {follower}"] += len(offsets)

    def _jumped(self, follower: str, place: Place, begin: int, end: int) -> None:
        self.story(place).jumps.setdefault(follower, []).append((begin, end))
        self.counts["retention before a follower"] += 1

    def _again(self, follower: str, place: Place, position: int) -> None:
        """The follower was created again, and continues there."""
        story = self.story(place)
        at = story.next.get(follower, 0)
        if position > at:  # control records, aborted ones and what a filter leaves out lie there, or nobody will see it
            story.grow(position)
        assert position >= story.cursor.get(follower, 0), (
            f"{follower}: {place} goes on at {position}, {story.cursor[follower]} was committed"
        )
        story.saw_of(follower)[position:] = False
        story.next[follower] = position
        self.counts["followers made again"] += 1

    def _cursor(self, follower: str, offsets: dict[Place, int]) -> None:
        for place, offset in offsets.items():
            story = self.story(place)
            assert offset >= story.cursor.get(follower, 0), (follower, place, offset, story.cursor)
            story.cursor[follower] = offset
        self.counts["commits of cursors"] += 1

    def _begun(self, txn: int, inputs: list[tuple[Place, int]]) -> None:
        self.outcomes[txn] = "begun"
        if inputs:
            self.inputs[txn] = inputs

    def _txn(self, txn: int, outcome: str) -> None:
        self.outcomes[txn] = outcome

    # --- the judgement -----------------------------------------------------------------------------------

    def positions(self) -> dict[str, dict[Place, int]]:
        """The position at which each follower continues."""
        found: dict[str, dict[Place, int]] = {name: {} for name in self.is_committed}
        for place, story in self.stories.items():
            for name, at in story.next.items():
                found[name][place] = at
        return found

    def judge(self, last: dict[Place, Last], cursors: dict[int, dict[Place, int]]) -> None:
        """`last` is what the store holds when all is over, `cursors` where those of the transactional workers are."""
        for place, end in last.items():
            self._take_last(place, end)
        self._judge_outcomes(last)
        for place, end in last.items():
            self._judge_senders(place)
            self._judge_last(place, end)
            for follower in self.is_committed:
                self._judge_follower(place, follower, end)
        self._judge_once()
        for slot, offsets in cursors.items():
            self._judge_exactly_once(slot, offsets)

    def _take_last(self, place: Place, last: Last) -> None:
        story = self.story(place)
        story.grow(last.end)
        assert (np.diff(last.offsets) > 0).all(), place
        before = story.seen[last.offsets]
        wrong = (before != 0) & (before != last.codes)
        assert not wrong.any(), f"{place} shows something else in the end at {last.offsets[wrong][:5]}"
        story.seen[last.offsets] = last.codes
        story.committed[last.committed] = True
        outside = (story.seen != 0) & (story.low != 0) & ((story.seen < story.low) | (story.seen > story.high))
        assert not outside.any(), f"{place} has others than were acknowledged at {np.flatnonzero(outside)[:5]}"
        beyond = np.flatnonzero(story.there[last.end :])
        assert not len(beyond), f"{place} ends at {last.end}, and had records at {beyond[:5] + last.end}"

    def _where(self, txn: int, last: Mapping[Place, Last]) -> dict[Place, list[str]]:
        """The transaction's records: offset, whether a reader of committed ones saw it, and who does in the end."""
        found: dict[Place, list[str]] = {}
        for place, story in self.stories.items():
            for offset in np.flatnonzero((story.seen >> TXN_SHIFT) == txn):
                end = last.get(place)
                states = ["committed" if story.committed[offset] else "hidden"]
                if end is not None and offset in end.offsets:
                    states.append("there in the end")
                if end is not None and offset in end.committed:
                    states.append("committed in the end")
                states += [who for who, saw in story.saw.items() if offset < len(saw) and saw[offset]]
                found.setdefault(place, []).append(f"{offset}: {', '.join(states)}")
        return found

    def _judge_outcomes(self, last: Mapping[Place, Last]) -> None:
        """If nobody knows how a transaction ended, readers decide it."""
        shown: set[int] = set()
        for story in self.stories.values():
            codes = story.seen[story.committed & (story.seen != 0)]
            shown.update(np.unique(codes[_is_transactional(codes)] >> TXN_SHIFT).tolist())
        for txn, outcome in self.outcomes.items():
            if outcome == "ending":
                self.outcomes[txn] = "committed" if txn in shown else "aborted"
                self.counts["transactions whose end was cut short"] += 1
            elif txn in shown:
                assert outcome == "committed", f"transaction {txn:x} ({outcome}) is visible: {self._where(txn, last)}"
            self.counts[f"transactions: {self.outcomes[txn]}"] += 1
        assert shown <= self.outcomes.keys(), [f"{txn:x}" for txn in shown - self.outcomes.keys()][:5]

    def _is_visible(self, story: Story) -> np.ndarray[Any, Any]:
        """To readers of committed records."""
        codes = np.where(story.seen != 0, story.seen, story.low)
        done = np.array([txn for txn, outcome in self.outcomes.items() if outcome == "committed"], np.int64)
        return ~_is_transactional(codes) | np.isin(codes >> TXN_SHIFT, done)

    def _judge_senders(self, place: Place) -> None:
        story = self.stories[place]
        offsets = np.flatnonzero(story.seen)
        codes = story.seen[offsets]
        by_sender = np.argsort(codes >> SENDER_SHIFT, kind="stable")
        offsets, codes = offsets[by_sender], codes[by_sender]
        steps = np.diff(codes)
        same = np.diff(codes >> SENDER_SHIFT) == 0
        back = np.flatnonzero(same & (steps <= 0))
        assert not len(back), f"{place}: out of order or twice at {offsets[back[:5] + 1]}"
        if place in NAMED.values():
            for at in np.flatnonzero(same & (steps > 1)):
                hidden = offsets[at + 1] - offsets[at] - 1 - np.count_nonzero(
                    story.seen[offsets[at] + 1 : offsets[at + 1]]
                )  # fmt: skip
                assert hidden >= steps[at] - 1, f"{place}: numbers are missing after offset {offsets[at]}"

    def _judge_last(self, place: Place, last: Last) -> None:
        """Checks that every required record exists and that committed readers saw what they must."""
        story = self.stories[place]
        is_there = np.zeros(len(story.low), np.bool_)
        is_there[last.offsets] = True
        is_committed = np.zeros(len(story.low), np.bool_)
        is_committed[last.committed] = True
        visible = self._is_visible(story)
        wrong = np.flatnonzero(is_committed != (is_there & visible))
        assert not len(wrong), f"{place}: committed readers see too much or too little at {wrong[:5]}"
        if place.startswith(COMPACTED):
            self._judge_keys(place, last, is_there, visible)
            return
        lost = np.flatnonzero(story.there & ~is_there)
        lost = lost[lost >= last.start]
        assert not len(lost), f"{place} begins at {last.start} and lacks {lost[:5]} of {len(lost)}"

    def _judge_keys(
        self, place: Place, last: Last, is_there: np.ndarray[Any, Any], visible: np.ndarray[Any, Any]
    ) -> None:
        story = self.stories[place]
        codes = np.where(story.seen != 0, story.seen, story.low)
        newest: dict[bytes | None, int] = {}
        for offset in np.flatnonzero(story.there & visible).tolist():
            newest[key_of(int(codes[offset]))] = offset
        for key, offset in newest.items():
            assert is_there[offset], f"{place}: the newest of {key!r}, at {offset}, is lost (start {last.start})"
        self.counts["keys in the end"] += len(newest)

    def _judge_follower(self, place: Place, follower: str, last: Last) -> None:
        """It has seen everything up to the end, but for what is not for it."""
        story = self.stories[place]
        wanted = story.there.copy()
        if self.is_committed[follower]:
            wanted &= self._is_visible(story)
        if self.has_prefix[follower]:
            wanted &= _has_prefix(story.seen)
        saw = story.saw_of(follower)
        if place.startswith(COMPACTED):
            wanted[: last.end] &= np.isin(np.arange(last.end), last.offsets)  # late ones may have been compacted
        for begin, end in story.jumps.get(follower, ()):
            wanted[begin:end] = False
        missed = np.flatnonzero(wanted & ~saw)
        assert not len(missed), f"{follower} has not seen {len(missed)} of {place}: {missed[:5]}, of {last}"
        assert not (saw & ~story.there).any()
        if self.is_committed[follower]:
            wrong = np.flatnonzero(saw & ~self._is_visible(story))
            assert not len(wrong), f"{follower} saw aborted records of {place}: {wrong[:5]}"

    def _judge_once(self) -> None:
        codes = np.concatenate([story.seen[story.seen != 0] for story in self.stories.values()])
        assert len(np.unique(codes)) == len(codes), "a record exists twice"
        self.counts["records"] = len(codes)

    def _judge_exactly_once(self, slot: int, cursor: dict[Place, int]) -> None:
        done: Counter[tuple[Place, int]] = Counter()
        for txn, inputs in self.inputs.items():
            if slot_of(txn << TXN_SHIFT) == slot and self.outcomes[txn] == "committed":
                done.update(inputs)
        twice = [each for each, times in done.items() if times > 1]
        assert not twice, f"worker {slot} has dealt with {twice[:5]} twice"
        expected = set()
        for place, offset in cursor.items():
            story = self.stories[place]
            there = np.flatnonzero((story.there & self._is_visible(story))[:offset]).tolist()
            expected.update((place, each) for each in there)
        gone = {
            (place, offset)
            for place in cursor
            for begin, end in self.stories[place].jumps.get(f"worker{slot}", ())
            for offset in range(begin, end)
        }
        left, more = expected - done.keys() - gone, done.keys() - expected
        assert not left, f"worker {slot} has left out {len(left)}: {sorted(left)[:5]}"
        assert not more, f"worker {slot} has dealt with what was not to be: {sorted(more)[:5]}"
        self.counts["transformed exactly once"] += len(expected)


class Last:
    """The final content of a partition: offsets and codes of its records, and the committed offsets."""

    def __init__(self, start: int, end: int, offsets: list[int], codes: list[int], committed: list[int]) -> None:
        self.start, self.end = start, end
        self.offsets, self.codes = np.array(offsets, np.int64), np.array(codes, np.int64)
        self.committed = np.array(committed, np.int64)

    def __repr__(self) -> str:
        return f"<{self.start} to {self.end}, {len(self.offsets)} records>"


def _is_transactional(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.isin((codes >> SENDER_SHIFT) % SLOTS, TRANSACTIONAL)


def _has_prefix(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whether keys begin with PREFIX."""
    numbers = (codes & ((1 << SENDER_SHIFT) - 1)) % KEYS
    return (codes != 0) & (numbers % 2 == 1) & ~np.isin((codes >> SENDER_SHIFT) % SLOTS, KEYLESS)


PREFIX = b"b"
