"""The options of the source: names, defaults, JSON and errors of Spark's Kafka source, plus `path` and splits.

Names are case-insensitive.  An option that only makes sense with a broker is accepted and ignored, so a job moves over
with another `format` and a `path`.  Values are checked here, on the driver, before anything is opened.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kafkalog._limits import LONG_MIN
from kafkalog.engine.files import OsFiles, local_path
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.remote import is_address, is_tier
from kafkalog.spark.changes import check_options
from kafkalog.spark.java_patterns import BLANKS, java_pattern
from kafkalog.spark.json_values import checked_ddl
from kafkalog.spark.kafka_options import REFUSED_BY_SOURCE, refuse_kafka_options
from kafkalog.spark.path_lists import array_of_paths, listed_paths
from kafkalog.spark.places import SETTINGS, Place, is_remote_option, mount, places
from kafkalog.spark.question import NAMES, NOTHING_ASKED, Question, parse_question

log = logging.getLogger("kafkalog.spark")

LEADER, LONGEST, ALL_COPIES = "leader", "longest", "all"
REPLICAS = (LEADER, LONGEST, ALL_COPIES)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = -1
EARLIEST = -2
MAX_BYTES_PER_PARTITION = 128 << 20
STRATEGIES = ("assign", "subscribe", "subscribepattern")

KNOWN = (
    "path",
    "content",
    "paths",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "kafka.isolation.level",
    "kafka.exclude.internal.topics",
    "columns",
    "valueSchema",
    "latest",
    "changes",
    "pushDownPredicate",
    "replicas",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    *NAMES,
    "isolation",
    *SETTINGS,
)
# Options of Spark's Kafka source that have no meaning without a broker.
IGNORED = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)


class Bound(NamedTuple):
    """Where to start or stop, given in exactly one way.

    `word` is EARLIEST or LATEST for all partitions, and `timestamp_ms` a time for all.  `offsets` and `timestamps_ms`
    have a value for each partition, or for a whole topic under its name (partition None).
    """

    word: int | None = None
    timestamp_ms: int | None = None
    offsets: dict[tuple[str, int | None], int] | None = None
    timestamps_ms: dict[tuple[str, int | None], int] | None = None

    @property
    def is_time(self) -> bool:
        return self.word is None and self.offsets is None


@dataclass(frozen=True)
class SourceOptions:
    """Checked options.  Exactly one of `assign`, `subscribe` and `pattern` is given."""

    paths: tuple[str, ...]
    assign: tuple[TopicPartition, ...] | None
    subscribe: tuple[str, ...] | None
    pattern: str | None  # Java's syntax; matches no internal topics if `excludes_internal`
    start: Bound
    end: Bound
    latest_when_no_offset_matches: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation: str = "read_uncommitted"
    excludes_internal: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = MAX_BYTES_PER_PARTITION
    columns: tuple[str, ...] | None = None
    value_schema: str | None = None  # DDL of the fields of JSON values
    latest: bool = False
    changes: bool = False  # implies the plan of `latest`
    question: Question = NOTHING_ASKED
    parallelism: int | None = None  # the cluster's cores, known if the source was registered by hand
    push_down_predicate: bool | None = None  # None: only if this Spark applies it correctly
    remote: tuple[Place, ...] = field(default=(), repr=False)
    replicas: str = LEADER  # which copy is read if several brokers have one
    to_log_end: bool = False  # whether records after the high watermark are read too

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes remote tiers readable in the process that loads the options."""
        self.__dict__.update(state)
        mount(self.remote, self.paths)


def parse_options(options: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Parses the options of a batch read, a stream, or (None) either of them.

    Raises IllegalArgumentException with the messages of Spark's Kafka source.
    """
    given = {name.lower(): value for name, value in options.items()}
    _refuse_misspelled(options)
    refuse_kafka_options(given, REFUSED_BY_SOURCE)
    _note_unknown(options)
    paths = _paths(given)
    assign, subscribe, pattern = _strategy(given)
    start = _bound(given, "starting", LATEST if streaming else EARLIEST)
    to_log_end = given.get("endingoffsets", "").strip().lower() == "logend"
    end = _bound({**given, "endingoffsets": "latest"} if to_log_end else given, "ending", LATEST)
    if streaming:
        _refuse_end(given)
    elif streaming is False:
        _check_batch_bounds(start, end)
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise IllegalArgumentException(
            f"Illegal startingOffsetsByTimestampStrategy value: {strategy!r}", hint="expected error or latest"
        )
    isolation = _isolation(given)
    changes = _boolean(given, "changes", False)
    if changes:
        check_options(given, latest=_boolean(given, "latest", False), streaming=streaming is True)
    return SourceOptions(
        paths=paths,
        assign=assign,
        subscribe=subscribe,
        pattern=pattern,
        start=start,
        end=end,
        latest_when_no_offset_matches=strategy == "latest",
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        include_headers=_boolean(given, "includeHeaders", False),
        isolation=isolation,
        excludes_internal=_boolean(given, "kafka.exclude.internal.topics", True),
        min_partitions=positive(given, "minPartitions"),
        max_records_per_partition=positive(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=positive(given, "maxBytesPerPartition") or MAX_BYTES_PER_PARTITION,
        columns=_listed(given, "columns"),
        value_schema=checked_ddl(given),
        latest=changes or _boolean(given, "latest", False),
        changes=changes,
        question=parse_question(given, _time_ms),
        push_down_predicate=_boolean(given, "pushDownPredicate", False) if "pushdownpredicate" in given else None,
        # The names of objects do not show aborted transactions, last times and overlaps.
        remote=places(
            given,
            paths,
            only_listed=isolation == "read_uncommitted"
            and not (start.is_time or end.is_time or _boolean(given, "remote.manifests", False)),
        ),
        replicas=_replicas(given, streaming=bool(streaming)),
        to_log_end=to_log_end,
    )


def _replicas(given: Mapping[str, str], *, streaming: bool) -> str:
    found = given.get("replicas", LEADER).strip().lower()
    if found not in REPLICAS:
        raise IllegalArgumentException(f"option replicas is {found!r}", hint=f"expected {', '.join(REPLICAS)}")
    if found == ALL_COPIES and streaming:
        raise IllegalArgumentException(
            "option replicas=all is not valid in streaming queries: a checkpoint has one offset for each partition",
            hint="read batches, or set replicas=leader",
        )
    if found == ALL_COPIES and "minpartitions" in given:
        raise IllegalArgumentException(
            "options replicas=all and minPartitions are both given", hint="lower maxBytesPerPartition for more tasks"
        )
    if found == ALL_COPIES and given.get("changes", "").strip().lower() == "true":
        raise IllegalArgumentException(
            "options replicas=all and changes are both given", hint="leave replicas out: changes are read from one copy"
        )
    return found


def _isolation(given: Mapping[str, str]) -> str:
    """Reads `kafka.isolation.level`, or `isolation`, its name in the rest of kafkalog."""
    found = {name: given[name].strip().lower() for name in ("kafka.isolation.level", "isolation") if name in given}
    for name, word in found.items():
        if word not in ("read_uncommitted", "read_committed"):
            raise IllegalArgumentException(
                f"option {name} is {word!r}", hint="expected read_uncommitted or read_committed"
            )
    if len(set(found.values())) > 1:
        raise IllegalArgumentException(
            "options isolation and kafka.isolation.level have different values", hint="leave one of them out"
        )
    return next(iter(found.values()), "read_uncommitted")


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the log directories of `path`; or of `paths`, where Spark stores a list given to `load`, as JSON."""
    listed = listed_paths(given.get("path", ""))
    text = given.get("paths")
    if text is not None:
        if listed:
            raise IllegalArgumentException(
                "options path and paths are both given", hint="pass all directories to load(...)"
            )
        listed = array_of_paths(text, "paths")
    if not listed and given.get("remote", "").strip():
        return (_path(given["remote"], "option remote", given),)  # only the tier
    if not listed:
        raise IllegalArgumentException(
            "option path is missing",
            hint="expected the log directory, as .load(dir), .load([dir, dir]) or .option('path', 'dir,dir')",
        )
    return tuple(_path(part, "option path", given) for part in listed)


def _path(part: str, what: str, given: Mapping[str, str]) -> str:
    """Returns an address without a slash at its end, or a local path; the path of a tier is absolute, as its files'."""
    part = part.strip().replace("s3a://", "s3://", 1)
    if is_address(part):
        return part.rstrip("/")
    path = local_path(part, what=what)
    absolute = os.path.abspath(path)
    return absolute if absolute != path and is_tier(absolute, given.get("remote.prefix", ""), OsFiles()) else path


def _listed(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = given.get(name.lower())
    if text is None:
        return None
    listed = tuple(part.strip() for part in text.split(",") if part.strip())
    if not listed or len(set(listed)) < len(listed):
        raise IllegalArgumentException(
            f"option {name} is {text!r}", hint="expected names with commas between them, each once, such as key,offset"
        )
    return listed


# Options that choose records or columns.  If one is misspelled, the job reads other records and still looks right.
_CHOOSING = (
    *NAMES,
    "isolation",
    "latest",
    "changes",
    "columns",
    "valueSchema",
    "replicas",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "kafka.isolation.level",
    "kafka.exclude.internal.topics",
)


def _refuse_misspelled(options: Mapping[str, str]) -> None:
    """Raises IllegalArgumentException for a name that is close to an option that chooses records."""
    refuse_near(
        options,
        (*KNOWN, *IGNORED),
        {name: name for name in _CHOOSING} | {"isolationLevel": "isolation"},
        "if it were ignored, the job would read other records",
    )


def refuse_near(options: Mapping[str, str], known: Sequence[str], meant: Mapping[str, str], otherwise: str) -> None:
    """Raises IllegalArgumentException for a name that is not in `known` and is closest to one of `meant`.

    `meant` maps spellings to the option's name.  Blanks, underscores and hyphens do not count.  `otherwise` says what
    ignoring the option would do.
    """
    names = {name.lower() for name in known}
    spelled = {spelling.lower(): name for spelling, name in meant.items()}
    for name in options:
        lowered = name.lower()
        if lowered in names or is_remote_option(lowered):
            continue
        # Kafka's clients have a hundred settings, so a close name may be another one that exists.
        of_kafka = lowered.startswith("kafka.")
        plain = lowered.translate(_NO_LETTERS)
        cutoff = 0.75 if len(plain) <= _SHORT_NAME else 0.8
        candidates = [each for each in sorted(names | spelled.keys()) if each.startswith("kafka.") == of_kafka]
        nearest = difflib.get_close_matches(plain, candidates, n=1, cutoff=cutoff)
        if nearest and nearest[0] in spelled:
            raise IllegalArgumentException(
                f"unknown option {name}, did you mean {spelled[nearest[0]]}?", hint=otherwise
            )


_NO_LETTERS = {ord(character): None for character in "_- "}
_SHORT_NAME = 4


def _note_unknown(
    options: Mapping[str, str], names: Sequence[str] = KNOWN, without_meaning: Sequence[str] = IGNORED
) -> None:
    known = {name.lower() for name in names}
    ignored = {name.lower() for name in without_meaning}
    for name in options:
        lowered = name.lower()
        if lowered in known:
            continue
        if is_remote_option(lowered):
            continue
        if lowered in ignored or lowered.startswith("kafka."):
            log.info("option %s has no meaning without a broker and is ignored", name)
            continue
        near = difflib.get_close_matches(lowered, sorted(known), n=1)
        spelled = next((known_name for known_name in names if near and known_name.lower() == near[0]), None)
        log.warning("unknown option %s is ignored%s", name, f" (did you mean {spelled}?)" if spelled else "")


def _strategy(
    given: Mapping[str, str],
) -> tuple[tuple[TopicPartition, ...] | None, tuple[str, ...] | None, str | None]:
    found = [name for name in STRATEGIES if name in given]
    if not found:
        raise IllegalArgumentException(
            "One of the following options must be specified for the kafkalog source: "
            "subscribe, subscribePattern, assign.",
            hint=("option topic is for writes; for a read write " if "topic" in given else "such as ")
            + ".option('subscribe', 'orders')",
        )
    if len(found) > 1:
        raise IllegalArgumentException(
            "Only one of the following options can be specified for the kafkalog source: "
            "subscribe, subscribePattern, assign.",
            hint=f"found {', '.join(found)}: leave all but one out",
        )
    value = given[found[0]].strip(BLANKS)
    if found[0] == "assign":
        return _assigned(value), None, None
    if found[0] == "subscribe":
        topics = tuple(topic.strip() for topic in value.split(",") if topic.strip())
        if not topics:
            raise IllegalArgumentException(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'",
                hint="expected topics with commas between them, such as orders,payments",
            )
        return None, topics, None
    if not value:
        raise IllegalArgumentException(
            "Pattern to subscribe is empty as specified value for option 'subscribePattern'",
            hint="expected a regular expression of java.util.regex, such as orders-.*",
        )
    java_pattern(value)
    return None, None, value


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    expected = f'option assign: Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}'
    parsed = _json(text, expected)
    listed = []
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not all(_is_int(number) and number >= 0 for number in partitions):
            raise IllegalArgumentException(expected)
        listed += [TopicPartition(topic, number) for number in partitions]
    if not listed:
        raise IllegalArgumentException(expected)
    return tuple(listed)


def _json(text: str, expected: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        raise IllegalArgumentException(expected) from None
    if not isinstance(parsed, dict):
        raise IllegalArgumentException(expected)
    return parsed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bound(given: Mapping[str, str], side: str, default: int) -> Bound:
    """Parses a bound: `startingTimestamp` wins over `startingOffsetsByTimestamp`, and that over `startingOffsets`.

    The same order applies to `ending`.
    """
    text = given.get(f"{side}timestamp")
    if text is not None:
        return Bound(timestamp_ms=_time_ms(text.strip(), f"{side}Timestamp"))
    text = given.get(f"{side}offsetsbytimestamp")
    if text is not None:
        name = f"{side}OffsetsByTimestamp"
        expected = f'option {name}: Expected e.g. {{"topicA": {{"0": 123456789, "1": 123456789}}}}, got {text}'
        return Bound(timestamps_ms=_per_partition(text, expected, lambda value: _time_ms(value, name)))
    text = given.get(f"{side}offsets")
    if text is None:
        return Bound(word=default)
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(word=EARLIEST if word == "earliest" else LATEST)
    expected = f'option {side}Offsets: Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}'

    def offset(value: object) -> int:
        if value in ("earliest", "latest"):
            return EARLIEST if value == "earliest" else LATEST
        if not _is_int(value) or int(str(value)) < EARLIEST:
            raise IllegalArgumentException(expected)
        return int(str(value))

    return Bound(offsets=_per_partition(text, expected, offset))


def _per_partition(text: str, expected: str, convert: Any) -> dict[tuple[str, int | None], int]:
    found: dict[tuple[str, int | None], int] = {}
    for topic, value in _json(text, expected).items():
        if not isinstance(value, dict):
            found[(topic, None)] = convert(value)
            continue
        for number, entry in value.items():
            if not (number.isascii() and number.isdigit()):
                raise IllegalArgumentException(expected)
            found[(topic, int(number))] = convert(entry)
    return found


def _time_ms(value: object, name: str) -> int:
    """Returns milliseconds since 1970 from a number, its text, or an ISO time (UTC unless it says otherwise).

    A fraction of a millisecond rounds up, for both ends: records have whole milliseconds, and the records from this
    time on are wanted.
    """
    if _is_int(value) and int(str(value)) >= 0:
        return int(str(value))
    if isinstance(value, str):
        if re.fullmatch(r"\d+", value):
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
            finer = re.search(r"[.,]\d{6}(\d+)", value)  # than the microseconds of a datetime
            if finer is not None and int(finer[1]):
                since += timedelta.resolution
            return -(-since // timedelta(milliseconds=1))
    raise IllegalArgumentException(
        f"Expected a timestamp for option {name}, got {value!r}",
        hint="write milliseconds since 1970, or a time such as 2026-11-21T09:00:00Z",
    )


def _refuse_end(given: Mapping[str, str]) -> None:
    if "endingoffsets" in given:
        raise IllegalArgumentException(
            "ending offset not valid in streaming queries", hint="leave endingOffsets out: a stream has no end"
        )
    if "endingoffsetsbytimestamp" in given or "endingtimestamp" in given:
        raise IllegalArgumentException(
            "ending timestamp not valid in streaming queries",
            hint="leave endingTimestamp and endingOffsetsByTimestamp out: a stream has no end",
        )
    if _boolean(given, "latest", False):
        raise IllegalArgumentException(
            "option latest is not valid in streaming queries: the last value of a key is known only at the end",
            hint="group the stream by key, or read in batches",
        )


def _check_batch_bounds(start: Bound, end: Bound) -> None:
    if start.word == LATEST:
        raise IllegalArgumentException(
            "starting offset can't be latest for batch queries on Kafka",
            hint="set startingOffsets to earliest, or to the first offsets as JSON",
        )
    if end.word == EARLIEST:
        raise IllegalArgumentException(
            "ending offset can't be earliest for batch queries on Kafka",
            hint="set endingOffsets to latest, or to the end offsets as JSON",
        )
    for (topic, number), offset in (start.offsets or {}).items():
        if offset == LATEST:
            raise IllegalArgumentException(
                f"startingOffsets for {_shown(topic, number)} can't be latest for batch queries on Kafka",
                hint="-1 means latest: give the first offset to read, or -2 for earliest",
            )
    for (topic, number), offset in (end.offsets or {}).items():
        if offset == EARLIEST:
            raise IllegalArgumentException(
                f"ending offset for {_shown(topic, number)} can't be earliest for batch queries on Kafka",
                hint="-2 means earliest: give the end offset, or -1 for latest",
            )
    _check_order(start, end)


def _check_order(start: Bound, end: Bound) -> None:
    """Raises IllegalArgumentException if a start is after the end of the same kind: offsets, or times."""
    for name, starts, ends, least in (
        ("offset", start.offsets, end.offsets, 0),  # negative values are words
        ("timestamp", _times(start), _times(end), LONG_MIN),
    ):
        if starts is None or ends is None:
            continue
        for key in {**starts, **ends}:
            first, behind = _bound_of(starts, key), _bound_of(ends, key)
            if first is not None and behind is not None and least <= behind < first:
                raise IllegalArgumentException(
                    f"The specified start {name} {first} is greater than the end {name} {behind}{_place(key)}.",
                    hint=f"expected the start {name} at or before the end {name}",
                )


def _times(bound: Bound) -> dict[tuple[str, int | None], int] | None:
    """Returns times by partition, or under ("", None) one for all."""
    return bound.timestamps_ms if bound.timestamp_ms is None else {("", None): bound.timestamp_ms}


def _bound_of(values: Mapping[tuple[str, int | None], int], key: tuple[str, int | None]) -> int | None:
    """Returns the value for a partition: its own, that of its topic, or that of all."""
    return next((values[each] for each in (key, (key[0], None), ("", None)) if each in values), None)


def _place(key: tuple[str, int | None]) -> str:
    topic, number = key
    return (f" for topic {topic}" if topic else "") + ("" if number is None else f" partition {number}")


def _shown(topic: str, number: int | None) -> str:
    return topic if number is None else f"{topic}-{number}"


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise IllegalArgumentException(f"option {name} is {text!r}", hint="expected true or false")
    return text.strip().lower() == "true"


def positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()) or int(text) <= 0:
        raise IllegalArgumentException(f"option {name} is {text!r}", hint="expected a whole number above 0")
    return int(text)
