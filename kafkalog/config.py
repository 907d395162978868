"""Settings under Kafka's keys: of topics, brokers, the cleaner and the producer state.

Each key is one row of a table: type, default, range, the broker's name for it, and its meaning. Values are parsed,
checked and refused as Kafka's ConfigDef does, with its messages. Only the hint of an error is kafkalog's. A settings
object never changes: a dynamic update creates a new one.

Mirrors LogConfig, ServerLogConfigs, CleanerConfig and ServerTopicConfigSynonyms of Apache Kafka 4.4.0. Opens no file
and reads no environment. The file is long because the two tables of keys are best read in one place, together with
their types.

Example:
    >>> from kafkalog.config import LogConfig
    >>> config = LogConfig.from_props({"retention.ms": "86400000", "cleanup.policy": "compact"})
    >>> config.retention_ms, config.compact, config.segment_bytes
    (86400000, True, 1073741824)
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from kafkalog import _shown
from kafkalog._limits import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from kafkalog.errors import ConfigException, IllegalArgumentException, InvalidConfigurationException

__all__ = [
    "BrokerLogConfig",
    "CleanerConfig",
    "ConfigKey",
    "LogConfig",
    "ProducerStateManagerConfig",
    "parse_topic_props",
    "topic_defaults_of_broker",
    "unknown_key_hint",
]

_IMPORTED = frozenset(globals())

_DOUBLE_MAX = 1.7976931348623157e308
_MS_PER_MINUTE, _MS_PER_HOUR = 60_000, 3_600_000

# BrokerCompressionType -> codec id; `producer` keeps the producer's codec.
_CODEC_IDS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4, "producer": None}

Check = Callable[[str, Any], None]


# --- one key ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting of Kafka.

    Args:
        name: Kafka's name of the key, such as `segment.bytes`.
        type: `INT`, `LONG`, `DOUBLE`, `BOOLEAN`, `STRING` or `LIST`.
        default: The default, as text or as a Python value.
        why: The meaning, with its unit, in a sentence or two.
        check: A function that raises ConfigException for a value out of range, or None.
        valid_values: The allowed values as Kafka prints them; empty if there is no limit.
        synonyms: The broker keys that set the default, in lookup order, each with the factor to this key's unit.
        internal: Whether Kafka hides the key from users.

    Example:
        >>> from kafkalog.config import TOPIC_KEYS
        >>> key = TOPIC_KEYS["segment.ms"]
        >>> key.type, key.default, key.valid_values
        ('LONG', 604800000, '[1,...]')
        >>> key.parse(" 1000 ")
        1000
    """

    name: str
    type: str
    default: object
    why: str
    check: Check | None = None
    valid_values: str = ""
    synonyms: tuple[tuple[str, int], ...] = ()  # broker keys in lookup order, each with its factor
    internal: bool = False

    @property
    def attribute(self) -> str:
        """The key as a Python name: `segment.bytes` is `segment_bytes`."""
        return self.name.replace(".", "_")

    def parse(self, value: object) -> Any:
        """Returns the typed value of a text or a Python value.

        Args:
            value: A text as in a properties file, or an int, float, bool, list or None.

        Returns:
            An int, float, bool, str, tuple of str, or None.

        Raises:
            ConfigException: The value has another type or is out of range.
        """
        parsed = _PARSERS[self.type](self.name, value)
        if self.check is not None:
            self.check(self.name, parsed)
        # Kafka's lists drop repeated values (with a warning).
        return tuple(dict.fromkeys(parsed)) if self.type == "LIST" and parsed is not None else parsed


def _invalid(name: str, value: object, why: str) -> ConfigException:
    return ConfigException(
        f"Invalid value {_java_text(value)} for configuration {name}: {why}", hint=_HINTS.get((name, why.split(" ")[0]))
    )


_UNITS = {
    ".ms": ("milliseconds", {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}),
    ".bytes": ("bytes", {f"{power}{end}": 1024**n for n, power in enumerate("kmgt", 1) for end in ("", "b", "ib")}),
}


def meant_by_unit(key: str, value: str) -> tuple[str, int] | None:
    """Converts a number with a unit, such as "7d", to the unit of a key.

    Args:
        key: The key. Its end says the unit: `.ms` or `.bytes`.
        value: The text.

    Returns:
        ("milliseconds" or "bytes", the number), or None if the text is not a number with a unit of that kind.

    Example:
        >>> from kafkalog.config import meant_by_unit
        >>> meant_by_unit("retention.ms", "7d")
        ('milliseconds', 604800000)
    """
    found = re.fullmatch(r"([0-9]{1,12}) ?([a-z]+)", value.lower()) if len(value) < 30 else None
    what, units = next((known for end, known in _UNITS.items() if key.endswith(end)), ("", {}))
    return None if found is None or found[2] not in units else (what, int(found[1]) * units[found[2]])


_HINTS = {  # by key and first word of Kafka's reason
    ("segment.bytes", "Value"): "in tests, internal.segment.bytes accepts less than 1 MiB",
    ("compression.type", "String"): "this setting says uncompressed instead of none",
}


def _java_text(value: object) -> str:
    """Returns a value as Java prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_java_text, value)) + "]"
    return str(value)


def _java_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        return text if "e" not in text else f"{value:f}".rstrip("0")
    mantissa, _, exponent = f"{value!r}".partition("e") if "e" in repr(value) else f"{value:.17g}".partition("e")
    if not exponent:  # repr wrote it plainly: move the point
        exponent = str(math.floor(math.log10(abs(value))))
        mantissa = repr(float(f"{value / 10 ** int(exponent):.16g}"))
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _java_class(value: object) -> str:
    if isinstance(value, bool):
        return "java.lang.Boolean"
    if isinstance(value, int):
        return "java.lang.Integer" if INT_MIN <= value <= INT_MAX else "java.lang.Long"
    if isinstance(value, float):
        return "java.lang.Double"
    return type(value).__name__


_INTEGER = re.compile(r"[+-]?\d+")  # digits of any script, as Character.digit
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_JAVA_SPACE = "".join(map(chr, range(0x21)))  # String.trim removes these


def _integer(name: str, value: object, low: int, high: int, kind: str, java_size: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip(_JAVA_SPACE)
        # The length limit keeps Python from parsing megabytes of digits in a hostile text.
        if _INTEGER.fullmatch(text) and len(text.lstrip("+-").lstrip("0")) < 20:
            number = int(text)
            if low <= number <= high:
                return number
        error, meant = _invalid(name, text, f"Not a number of type {kind}"), meant_by_unit(name, text)
        if meant is not None:
            error.hint = f'{text} is "{meant[1]}" in {meant[0]}; Kafka accepts only the number'
        raise error
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise _invalid(name, value, f"Expected value to be a {java_size}-bit integer, but it was a {_java_class(value)}")


def _parse_int(name: str, value: object) -> int | None:
    return _integer(name, value, INT_MIN, INT_MAX, "INT", 32)


def _parse_long(name: str, value: object) -> int | None:
    return _integer(name, value, LONG_MIN, LONG_MAX, "LONG", 64)


def _parse_double(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip(_JAVA_SPACE)
        if _FLOAT.fullmatch(text):
            return float(text if text.endswith(("NaN", "Infinity")) else text.rstrip("fFdD"))
        if _HEX_FLOAT.fullmatch(text):
            return float.fromhex(text if "p" not in text.lower() else re.sub(r"[fFdD]$", "", text))
        raise _invalid(name, text, "Not a number of type DOUBLE")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise _invalid(name, value, f"Expected value to be a double, but it was a {_java_class(value)}")


def _parse_boolean(name: str, value: object) -> bool:
    if isinstance(value, str):
        text = value.strip(_JAVA_SPACE)
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        value = text
    if isinstance(value, bool):
        return value
    raise _invalid(name, value, "Expected value to be either true or false")


def _parse_string(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip(_JAVA_SPACE)
    raise _invalid(name, value, f"Expected value to be a string, but it was a {_java_class(value)}")


def _parse_list(name: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip(_JAVA_SPACE)
        # Java's \s is ASCII.  An empty text has no entries; an empty entry is an entry, which most keys refuse.
        return tuple(re.split(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*", text)) if text else ()
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise _invalid(name, value, "Expected a comma separated list.")


_PARSERS: dict[str, Callable[[str, object], Any]] = {
    "INT": _parse_int,
    "LONG": _parse_long,
    "DOUBLE": _parse_double,
    "BOOLEAN": _parse_boolean,
    "STRING": _parse_string,
    "LIST": _parse_list,
}


def _range(low: int | None, high: int | None = None) -> tuple[Check, str]:
    def check(name: str, value: Any) -> None:
        if value is None:
            raise _invalid(name, value, "Value must be non-null")
        if low is not None and value < low:
            raise _invalid(name, value, f"Value must be at least {low}")
        if high is not None and value > high:
            raise _invalid(name, value, f"Value must be no more than {high}")

    return check, f"[{'' if low is None else low},...{'' if high is None else f',{high}'}]"


def _one_of(*allowed: str) -> tuple[Check, str]:
    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise _invalid(name, value, f"String must be one of: {', '.join(allowed)}")

    return check, f"[{', '.join(allowed)}]"


def _list_of(*allowed: str) -> tuple[Check, str]:
    def check(name: str, value: Any) -> None:
        if value is None:
            raise ConfigException(f"Configuration '{name}' values must not be null.")
        if "" in value:
            raise ConfigException(f"Configuration '{name}' values must not be empty.")
        for entry in value:
            if entry not in allowed:
                raise _invalid(name, entry, f"String must be one of: {', '.join(allowed)}")

    return check, f"[{', '.join(allowed)}]"


def _any_list(*, empty: bool, null: bool) -> tuple[Check, str]:
    def check(name: str, value: Any) -> None:
        if value is None:
            if null:
                return
            raise ConfigException(f"Configuration '{name}' values must not be null.")
        if not value and not empty:
            raise ConfigException(
                f"Configuration '{name}' must not be empty. Valid values include: any non-empty value"
            )
        if "" in value:
            raise ConfigException(f"Configuration '{name}' values must not be empty.")

    return check, ""


def _gzip_level(name: str, value: Any) -> None:
    if value is None or not (1 <= value <= 9 or value == -1):
        raise _invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def _throttled_replicas(name: str, value: Any) -> None:
    if value is None:
        raise _invalid(name, value, f"{name} must be a List but was null")
    entries = [str(entry).strip(_JAVA_SPACE) for entry in value]
    if not all(re.fullmatch(r"(?:[0-9]+:[0-9]+)?", entry) for entry in entries) and "".join(entries) != "*":
        raise _invalid(
            name,
            value,
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def _key(
    name: str,
    kind: str,
    default: object,
    rule: tuple[Check, str] | None,
    why: str,
    *synonyms: str | tuple[str, int],
    internal: bool = False,
) -> ConfigKey:
    check, valid_values = rule if rule is not None else (None, "")
    names = tuple((synonym, 1) if isinstance(synonym, str) else synonym for synonym in synonyms)
    return ConfigKey(name, kind, default, why, check, valid_values, names, internal)


_REPLICAS = (_throttled_replicas, "[partitionId]:[brokerId],[partitionId]:[brokerId],...")

# --- topic keys, in the order in which Kafka checks them ---------------------------------------------

TOPIC_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        _key("segment.bytes", "INT", 1 << 30, _range(1 << 20),
             "Largest size of a segment in bytes. Retention and compaction work on whole closed segments.",
             "log.segment.bytes"),
        _key("segment.ms", "LONG", 604800000, _range(1),
             "Age in ms at which a segment is closed even if it is not full, so that it can be deleted or compacted.",
             "log.roll.ms", ("log.roll.hours", _MS_PER_HOUR)),
        _key("segment.jitter.ms", "LONG", 0, _range(0),
             "A random time of up to this many ms is subtracted from segment.ms, so segments close at different times.",
             "log.roll.jitter.ms", ("log.roll.jitter.hours", _MS_PER_HOUR)),
        _key("segment.index.bytes", "INT", 10 << 20, _range(4),
             "Size in bytes to which each index is preallocated. A full index closes its segment.",
             "log.index.size.max.bytes"),
        _key("flush.messages", "LONG", LONG_MAX, _range(1),
             "An fsync follows after this many records. By default the operating system decides when to write.",
             "log.flush.interval.messages"),
        _key("flush.ms", "LONG", LONG_MAX, _range(0),
             "An fsync follows after this many ms. It is checked only every log.flush.scheduler.interval.ms, by "
             "default never: set ManagerSettings(flush_check_ms=1000) in a store.",
             "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        _key("retention.bytes", "LONG", -1, None,
             "The oldest segments are deleted if the rest still has at least this many bytes. Negative: no limit.",
             "log.retention.bytes"),
        _key("retention.ms", "LONG", 604800000, _range(-1),
             "Segments are deleted if their newest record is older than this many ms. -1: no limit.",
             "log.retention.ms", ("log.retention.minutes", _MS_PER_MINUTE), ("log.retention.hours", _MS_PER_HOUR)),
        _key("max.message.bytes", "INT", 1048588, _range(0),
             "Largest batch that an append may have, in bytes as stored.", "message.max.bytes"),
        _key("max.decompressed.message.bytes", "INT", 2147483639, _range(1, 2147483639),
             "Largest record in a compressed batch, in bytes after decompression.", "max.decompressed.message.bytes"),
        _key("index.interval.bytes", "INT", 4096, _range(0),
             "The index has an entry about every this many bytes. Smaller finds faster, larger saves space.",
             "log.index.interval.bytes"),
        _key("delete.retention.ms", "LONG", 86400000, _range(0),
             "Time in ms for which tombstones and transaction markers stay after compaction could drop them.",
             "log.cleaner.delete.retention.ms"),
        _key("min.compaction.lag.ms", "LONG", 0, _range(0),
             "Records younger than this many ms are not compacted.", "log.cleaner.min.compaction.lag.ms"),
        _key("max.compaction.lag.ms", "LONG", LONG_MAX, _range(1),
             "Records older than this many ms are compacted even if little is dirty.",
             "log.cleaner.max.compaction.lag.ms"),
        _key("file.delete.delay.ms", "LONG", 60000, _range(0),
             "Time in ms from the renaming of a file to .deleted to its removal, for readers that still use it.",
             "log.segment.delete.delay.ms"),
        _key("min.cleanable.dirty.ratio", "DOUBLE", 0.5, _range(0, 1),
             "Smallest share of bytes not yet compacted (0 to 1) at which a log is compacted.",
             "log.cleaner.min.cleanable.ratio"),
        _key("cleanup.policy", "LIST", "delete", _list_of("compact", "delete"),
             "delete: delete by age and size. compact: keep the last value of each key. Both or neither are allowed.",
             "log.cleanup.policy"),
        _key("unclean.leader.election.enable", "BOOLEAN", False, None,
             "Whether a replica that lags may lead. For brokers; no effect here.",
             "unclean.leader.election.enable"),
        _key("min.insync.replicas", "INT", 1, _range(1),
             "Number of replicas that must have a record. For brokers; no effect here.", "min.insync.replicas"),
        _key("compression.type", "STRING", "producer",
             _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
             "Codec of the stored batches. producer: the codec that the producer chose.", "compression.type"),
        _key("compression.gzip.level", "INT", -1, (_gzip_level, "[1,...,9] or -1"),
             "Level if compression.type is gzip. -1: zlib's default.", "compression.gzip.level"),
        _key("compression.lz4.level", "INT", 9, _range(1, 17),
             "Level if compression.type is lz4.", "compression.lz4.level"),
        _key("compression.zstd.level", "INT", 3, _range(-131072, 22),
             "Level if compression.type is zstd.", "compression.zstd.level"),
        _key("preallocate", "BOOLEAN", False, None,
             "Whether a new segment's file gets its full length at once.", "log.preallocate"),
        _key("message.timestamp.type", "STRING", "CreateTime", _one_of("CreateTime", "LogAppendTime"),
             "CreateTime: records keep the producer's timestamp. LogAppendTime: they get the append's time.",
             "log.message.timestamp.type"),
        _key("message.timestamp.before.max.ms", "LONG", LONG_MAX, _range(0),
             "Largest age in ms of a record's timestamp at the append (CreateTime only).",
             "log.message.timestamp.before.max.ms"),
        _key("message.timestamp.after.max.ms", "LONG", 3600000, _range(0),
             "Largest lead in ms of a record's timestamp over the append (CreateTime only).",
             "log.message.timestamp.after.max.ms"),
        _key("leader.replication.throttled.replicas", "LIST", (), _REPLICAS,
             "Replicas to throttle. For brokers; no effect here."),
        _key("follower.replication.throttled.replicas", "LIST", (), _REPLICAS,
             "Replicas to throttle. For brokers; no effect here."),
        _key("remote.storage.enable", "BOOLEAN", False, None,
             "Whether closed segments are copied to the remote tier."),
        _key("local.retention.ms", "LONG", -2, _range(-2),
             "Age limit in ms on the local disk with tiered storage. -2: as retention.ms.", "log.local.retention.ms"),
        _key("local.retention.bytes", "LONG", -2, _range(-2),
             "Size limit in bytes on the local disk with tiered storage. -2: as retention.bytes.",
             "log.local.retention.bytes"),
        _key("remote.log.copy.disable", "BOOLEAN", False, None,
             "Whether copying to the remote tier stops, so the tier is only read."),
        _key("remote.copy.lag.ms", "LONG", 0, _range(-1),
             "Age in ms from which a segment is copied to the remote tier. -1: as local.retention.ms.",
             "log.remote.copy.lag.ms"),
        _key("remote.copy.lag.bytes", "LONG", -1, _range(-1),
             "Distance from the log's end in bytes from which a segment is copied. -1: as local.retention.bytes.",
             "log.remote.copy.lag.bytes"),
        _key("remote.log.delete.on.disable", "BOOLEAN", False, None,
             "Whether disabling tiered storage deletes the topic's remote segments."),
        _key("errors.deadletterqueue.group.enable", "BOOLEAN", False, None,
             "Whether share groups may use the topic as their dead-letter queue. For brokers; no effect here."),
        _key("internal.segment.bytes", "INT", None, None,
             "Replaces segment.bytes, without its lower bound. For tests.", internal=True),
    )
}  # fmt: skip

_TOPIC_DEFAULTS: dict[str, Any] = {name: key.parse(key.default) for name, key in TOPIC_KEYS.items()}

_C = TypeVar("_C", bound="LogConfig")
_NO_OVERRIDES: Mapping[str, object] = {}


def parse_topic_props(props: Mapping[str, object]) -> dict[str, Any]:
    """Parses topic settings.

    Args:
        props: Values by key, as text or Python values. Unknown keys are ignored.

    Returns:
        The typed value of every topic key. A key that is not in `props` has its default.

    Raises:
        ConfigException: A value has the wrong type or is out of range. The first such key is reported.

    Example:
        >>> from kafkalog.config import parse_topic_props
        >>> parse_topic_props({"segment.bytes": "2097152"})["segment.bytes"]
        2097152
    """
    values = dict(_TOPIC_DEFAULTS)
    for name, key in TOPIC_KEYS.items():
        if name in props:
            values[name] = key.parse(props[name])
    return values


def unknown_key_hint(name: str, known: Iterable[str]) -> str | None:
    """Returns a hint for an unknown key: the topic's name of a broker key, or a key with a similar name.

    Args:
        name: The unknown key.
        known: The keys that exist.

    Returns:
        The hint, or None if no key is similar.

    Example:
        >>> from kafkalog.config import TOPIC_KEYS, unknown_key_hint
        >>> unknown_key_hint("segment_byte", TOPIC_KEYS)
        'did you mean segment.bytes?'
    """
    if name in _BY_SYNONYM:
        return f"this is a broker's key; the topic's key is {_BY_SYNONYM[name]}"
    candidates = list(known)
    dotted = name.strip().lower().replace("_", ".").replace("-", ".")
    near = [dotted] if dotted in candidates else difflib.get_close_matches(dotted, candidates, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else None


# A topic with these settings keeps every record: none is deleted by age, by size or by key.
KEEPS_ALL: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogConfig:
    """A topic's settings with types, and the values that Kafka derives from them.

    Create it with `from_props`. The attribute of the key `a.b.c` is `a_b_c`; `TOPIC_KEYS` has the meaning, unit and
    default of each key. Unknown keys are kept in `originals` and otherwise ignored, as in Kafka. `validate` refuses
    them.

    Attributes:
        originals: All settings as given, the defaults included.
        overridden_configs: The keys that the topic itself sets.
        segment_size: The largest size of a segment in bytes: `internal.segment.bytes` if it is set, else
            `segment.bytes`.
        max_segment_ms: The age in ms at which a segment is closed. `max.compaction.lag.ms` limits it if the topic is
            compacted.
        init_file_size: The size in bytes to which a new segment's file is preallocated; 0 without `preallocate`.
        max_index_size: The size in bytes to which an index is preallocated.
        compact: Whether `cleanup.policy` has `compact`.
        delete: Whether `cleanup.policy` has `delete`.
        compression_codec: The id of the codec, or None to keep the producer's.
        compression_level: The codec's level, or None if it has no levels or is the producer's.

    Example:
        >>> from kafkalog.config import LogConfig
        >>> config = LogConfig.from_props({"compression.type": "zstd", "segment.bytes": 1 << 20})
        >>> config.segment_size, config.compression_codec, config.compression_level
        (1048576, 4, 3)
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    flush_messages: int
    flush_ms: int
    retention_bytes: int
    retention_ms: int
    max_message_bytes: int
    max_decompressed_message_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    file_delete_delay_ms: int
    min_cleanable_dirty_ratio: float
    cleanup_policy: tuple[str, ...]
    unclean_leader_election_enable: bool
    min_insync_replicas: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    preallocate: bool
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    leader_replication_throttled_replicas: tuple[str, ...]
    follower_replication_throttled_replicas: tuple[str, ...]
    remote_storage_enable: bool
    local_retention_ms: int
    local_retention_bytes: int
    remote_log_copy_disable: bool
    remote_copy_lag_ms: int
    remote_copy_lag_bytes: int
    remote_log_delete_on_disable: bool
    errors_deadletterqueue_group_enable: bool
    internal_segment_bytes: int | None

    originals: Mapping[str, object]
    overridden_configs: frozenset[str]

    # Derived once: the append path reads them for every batch.
    segment_size: int = dataclasses.field(init=False)  # internal.segment.bytes if it is set
    max_segment_ms: int = dataclasses.field(init=False)
    init_file_size: int = dataclasses.field(init=False)
    max_index_size: int = dataclasses.field(init=False)
    compact: bool = dataclasses.field(init=False)
    delete: bool = dataclasses.field(init=False)
    compression_codec: int | None = dataclasses.field(init=False)  # None: the producer's
    compression_level: int | None = dataclasses.field(init=False)  # None: no levels, or the producer's

    def __post_init__(self) -> None:
        derive = object.__setattr__
        size = self.segment_bytes if self.internal_segment_bytes is None else self.internal_segment_bytes
        policies = {policy.lower() for policy in self.cleanup_policy}
        compact = "compact" in policies
        derive(self, "segment_size", size)
        derive(self, "compact", compact)
        derive(self, "delete", "delete" in policies)
        lagged = compact and self.max_compaction_lag_ms > 0
        derive(self, "max_segment_ms", min(self.max_compaction_lag_ms, self.segment_ms) if lagged else self.segment_ms)
        derive(self, "init_file_size", size if self.preallocate else 0)
        derive(self, "max_index_size", self.segment_index_bytes)
        derive(self, "compression_codec", _CODEC_IDS[self.compression_type])
        levels = {
            "gzip": self.compression_gzip_level, "lz4": self.compression_lz4_level, "zstd": self.compression_zstd_level
        }  # fmt: skip
        derive(self, "compression_level", levels.get(self.compression_type))

    @classmethod
    def from_props(
        cls: type[_C],
        defaults: LogConfig | Mapping[str, object] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> _C:
        """Creates settings from defaults and the topic's overrides.

        Args:
            defaults: A broker's topic defaults by key, or another LogConfig. None: Kafka's defaults.
            overrides: The topic's own settings by key, which replace the defaults. Values are text as in Kafka, or
                Python's int, float, bool and list. Unknown keys are ignored.

        Returns:
            The settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range.
        """
        base = defaults.originals if isinstance(defaults, LogConfig) else (defaults or _NO_OVERRIDES)
        own = overrides or _NO_OVERRIDES
        originals = {**base, **own}
        values = {TOPIC_KEYS[name].attribute: value for name, value in parse_topic_props(originals).items()}
        return cls(**values, originals=originals, overridden_configs=frozenset(own))

    def updated(self, overrides: Mapping[str, object]) -> LogConfig:
        """Returns settings with the same defaults and other overrides.

        Args:
            overrides: All overrides of the topic. They replace the previous overrides and are not merged with them.

        Returns:
            New settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range.

        Example:
            >>> from kafkalog.config import LogConfig
            >>> config = LogConfig.from_props({"segment.ms": 1000}, {"retention.ms": 5000})
            >>> config.updated({"flush.ms": 10}).retention_ms
            604800000
        """
        base = {key: value for key, value in self.originals.items() if key not in self.overridden_configs}
        return LogConfig.from_props(base, overrides)

    @staticmethod
    def validate_names(overrides: Iterable[str]) -> None:
        """Checks that every name is a topic key.

        Args:
            overrides: The names.

        Raises:
            InvalidConfigurationException: A name is not a topic key. The first such name is reported.
        """
        for name in overrides:
            if name not in TOPIC_KEYS:
                known = [key.name for key in TOPIC_KEYS.values() if not key.internal]
                raise InvalidConfigurationException(
                    f"Unknown topic config name: {name}", hint=unknown_key_hint(name, known)
                )

    @staticmethod
    def validate(
        overrides: Mapping[str, object],
        *,
        existing: Mapping[str, object] | None = None,
        configured: Mapping[str, object] | None = None,
        remote_storage_system_enabled: bool = False,
    ) -> None:
        """Checks a topic's settings as a broker does before it accepts them.

        Args:
            overrides: The topic's settings by key.
            existing: The topic's settings before, or None for a new topic. Used for the rules of tiered storage only.
            configured: The broker's defaults. The rules of tiered storage are checked only if these are given.
            remote_storage_system_enabled: Whether there is a remote tier.

        Raises:
            InvalidConfigurationException: A key is unknown, or two keys contradict each other.
            ConfigException: A value has the wrong type, is out of range, or breaks a rule of tiered storage.

        Example:
            >>> from kafkalog.config import LogConfig
            >>> LogConfig.validate({"flush.m": "1"})
            Traceback (most recent call last):
                ...
            kafkalog.errors.InvalidConfigurationException: Unknown topic config name: flush.m (did you mean flush.ms?)
        """
        LogConfig.validate_names(overrides)
        values = parse_topic_props({**(configured or {}), **overrides})
        low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
        if low > high:
            raise InvalidConfigurationException(
                f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
            )
        if configured:
            was_remote = str((existing or {}).get("remote.storage.enable", "false")).lower() == "true"
            _validate_remote(values, was_remote, remote_storage_system_enabled)

    def random_segment_jitter(self, rng: random.Random | None = None) -> int:
        """Returns a random time to subtract from `segment.ms` for one segment.

        Args:
            rng: The random generator, or None for Python's shared one.

        Returns:
            Milliseconds, less than `segment.jitter.ms` and less than `segment.ms`; 0 without `segment.jitter.ms`.
        """
        if self.segment_jitter_ms == 0:
            return 0
        number = (rng or random).randrange(INT_MIN, INT_MAX + 1)
        return (0 if number == INT_MIN else abs(number)) % min(self.segment_jitter_ms, self.segment_ms)

    @property
    def effective_local_retention_ms(self) -> int:
        """`local.retention.ms` in ms, or `retention.ms` if it is -2 (LogConfig.localRetentionMs)."""
        return self.retention_ms if self.local_retention_ms == -2 else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """`local.retention.bytes` in bytes, or `retention.bytes` if it is -2 (LogConfig.localRetentionBytes)."""
        return self.retention_bytes if self.local_retention_bytes == -2 else self.local_retention_bytes

    @property
    def effective_remote_copy_lag_ms(self) -> int:
        """`remote.copy.lag.ms` in ms, or the local retention if it is -1 (LogConfig.remoteCopyLagMs)."""
        return self.effective_local_retention_ms if self.remote_copy_lag_ms == -1 else self.remote_copy_lag_ms

    @property
    def effective_remote_copy_lag_bytes(self) -> int:
        """`remote.copy.lag.bytes` in bytes, or the local retention if it is -1 (LogConfig.remoteCopyLagBytes)."""
        return self.effective_local_retention_bytes if self.remote_copy_lag_bytes == -1 else self.remote_copy_lag_bytes

    def values(self) -> dict[str, object]:
        """Returns the typed value of every topic key.

        Returns:
            The values by key, in Kafka's order of keys.
        """
        return {name: getattr(self, key.attribute) for name, key in TOPIC_KEYS.items()}

    def __repr__(self) -> str:
        return f"LogConfig({_shown.cut(dict(self.originals), 300)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogConfig) and dict(self.originals) == dict(other.originals)

    def __hash__(self) -> int:
        return hash(frozenset((name, str(value)) for name, value in self.originals.items()))


def _validate_remote(values: Mapping[str, Any], was_remote: bool, system_enabled: bool) -> None:
    if not values["remote.storage.enable"]:
        if was_remote and not values["remote.log.delete.on.disable"]:
            raise InvalidConfigurationException(
                "It is invalid to disable remote storage without deleting remote data. "
                "If you want to keep the remote data and turn to read only, please set "
                "`remote.storage.enable=true,remote.log.copy.disable=true`. "
                "If you want to disable remote storage and delete all remote data, please set "
                "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
            )
        return
    if not system_enabled:
        raise ConfigException(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
            hint='open the store with its remote tier: remote="s3://bucket/prefix"',
        )
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise ConfigException(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
        )
    for unit, bounded in (("bytes", values["retention.bytes"] > -1), ("ms", values["retention.ms"] != -1)):
        key, whole = f"local.retention.{unit}", values[f"retention.{unit}"]
        local = values[key]
        if bounded and local != -2:
            if local == -1:
                raise _invalid(key, local, f"Value must not be -1 as retention.{unit} value is set as {whole}.")
            if local > whole:
                raise _invalid(key, local, f"Value must not be more than retention.{unit} property value: {whole}")
    for unit in ("bytes", "ms"):
        lag, local = values[f"remote.copy.lag.{unit}"], values[f"local.retention.{unit}"]
        local = values[f"retention.{unit}"] if local == -2 else local
        if lag > 0 and 0 <= local < lag:
            why = f"Value must not exceed local.retention.{unit} (effective value: {local})"
            raise _invalid(f"remote.copy.lag.{unit}", lag, why)
    if values["remote.log.copy.disable"]:
        for unit in ("bytes", "ms"):
            local = values[f"local.retention.{unit}"]
            if local not in (-2, values[f"retention.{unit}"]):
                raise InvalidConfigurationException(
                    f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and "
                    f"`retention.{unit}` must be set to the identical value because there will be no more logs copied "
                    "to the remote storage."
                )


_BY_SYNONYM = {
    synonym: key.name for key in TOPIC_KEYS.values() for synonym, _ in key.synonyms if synonym not in TOPIC_KEYS
}

# --- broker keys --------------------------------------------------------------------------------------

BROKER_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        _key("log.dir", "LIST", "/tmp/kafka-logs", _any_list(empty=False, null=False),
             "Log directories, if log.dirs is not set."),
        _key("log.dirs", "LIST", None, _any_list(empty=False, null=True),
             "Log directories, usually one for each disk."),
        _key("cordoned.log.dirs", "LIST", (), _any_list(empty=True, null=True),
             "Directories that get no new partitions. * alone: all directories."),
        _key("num.recovery.threads.per.data.dir", "INT", 2, _range(1),
             "Threads for each directory, for recovery at start and flushing at shutdown."),
        _key("log.retention.check.interval.ms", "LONG", 300000, _range(1),
             "Time in ms between two checks of retention."),
        _key("log.flush.scheduler.interval.ms", "LONG", LONG_MAX, None, "Time in ms between two checks of flush.ms."),
        _key("log.flush.offset.checkpoint.interval.ms", "INT", 60000, _range(0),
             "Time in ms between two checkpoints of the recovery points."),
        _key("log.flush.start.offset.checkpoint.interval.ms", "INT", 60000, _range(0),
             "Time in ms between two checkpoints of the log start offsets."),
        _key("log.initial.task.delay.ms", "LONG", 30000, _range(0),
             "Time in ms from the start to the first background task.", internal=True),
        _key("log.dir.failure.timeout.ms", "LONG", 30000, _range(1),
             "Time in ms to report a failed directory to the controller. For brokers; no effect here."),
        _key("log.cleaner.threads", "INT", 1, _range(0), "Number of threads that compact."),
        _key("log.cleaner.io.max.bytes.per.second", "DOUBLE", _DOUBLE_MAX, None,
             "Bytes that all compaction together may read and write in a second."),
        _key("log.cleaner.dedupe.buffer.size", "LONG", 134217728, None,
             "Memory of all key maps together, in bytes. More memory means fewer passes."),
        _key("log.cleaner.io.buffer.size", "INT", 524288, _range(0),
             "Memory of all I/O buffers of compaction, in bytes."),
        _key("log.cleaner.io.buffer.load.factor", "DOUBLE", 0.9, None,
             "Largest share of a key map that may be in use (0 to 1)."),
        _key("log.cleaner.backoff.ms", "LONG", 15000, _range(0), "Time in ms to wait if there is nothing to compact."),
        _key("log.cleaner.enable", "BOOLEAN", True, None, "Whether logs are compacted at all. Deprecated by Kafka."),
        _key("producer.id.expiration.ms", "INT", 86400000, _range(1),
             "An idle producer is forgotten after this many ms. Its sequence may then start anywhere."),
        _key("producer.id.expiration.check.interval.ms", "INT", 600000, _range(1),
             "Time in ms between two searches for idle producers.", internal=True),
        _key("transaction.partition.verification.enable", "BOOLEAN", True, None,
             "Whether a transaction must be known before its first record is accepted."),
        _key("transaction.max.timeout.ms", "INT", 900000, _range(1),
             "Longest timeout in ms that a transaction may have."),
        _key("replica.high.watermark.checkpoint.interval.ms", "LONG", 5000, None,
             "Time in ms between two checkpoints of the high watermarks."),
        _key("background.threads", "INT", 10, _range(1), "Number of threads of the scheduler."),
        _key("remote.log.storage.system.enable", "BOOLEAN", False, None,
             "Whether a broker has a remote tier. For brokers; a store has `remote=` for that."),
        _key("remote.log.index.file.cache.total.size.bytes", "LONG", 1073741824, _range(1),
             "Bytes for indexes of remote segments. For brokers; no effect here."),
        _key("metadata.log.segment.bytes", "INT", 1073741824, _range(8388608),
             "Segment size of the metadata log, in bytes."),
        _key("metadata.log.segment.ms", "LONG", 604800000, None, "Segment age of the metadata log, in ms."),
        _key("metadata.max.retention.bytes", "LONG", 104857600, None, "Size limit of the metadata log, in bytes."),
        _key("metadata.max.retention.ms", "LONG", 604800000, None, "Age limit of the metadata log, in ms."),
    )
}  # fmt: skip

# Broker keys that set a topic key, some in another unit, with their own bounds.
_TIME_SYNONYMS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        _key("log.roll.ms", "LONG", None, None, "As segment.ms."),
        _key("log.roll.hours", "INT", 168, _range(1), "As segment.ms, in hours."),
        _key("log.roll.jitter.ms", "LONG", None, None, "As segment.jitter.ms."),
        _key("log.roll.jitter.hours", "INT", 0, _range(0), "As segment.jitter.ms, in hours."),
        _key("log.retention.ms", "LONG", None, None, "As retention.ms."),
        _key("log.retention.minutes", "INT", None, None, "As retention.ms, in minutes."),
        _key("log.retention.hours", "INT", 168, None, "As retention.ms, in hours."),
        _key("log.flush.interval.ms", "LONG", None, None, "As flush.ms."),
    )
}


def topic_defaults_of_broker(props: Mapping[str, object]) -> dict[str, object]:
    """Returns the topic defaults that a broker's settings make (KafkaConfig.extractLogConfigMap).

    The first synonym of a key that is set counts. Hours and minutes become milliseconds, and any negative retention
    time becomes -1.

    Args:
        props: The broker's settings by key, as in `server.properties`.

    Returns:
        Typed values by topic key, without the keys that the broker does not set.

    Raises:
        ConfigException: A value has the wrong type or is out of range. The message names the broker's key.
        IllegalArgumentException: Kafka's `require` refuses a value.

    Example:
        >>> from kafkalog.config import topic_defaults_of_broker
        >>> topic_defaults_of_broker({"log.retention.hours": "24"})
        {'retention.ms': 86400000}
    """
    found: dict[str, object] = {}
    for key in TOPIC_KEYS.values():
        for synonym, factor in key.synonyms:
            value = props.get(synonym)
            if value is None:
                continue
            rule = _TIME_SYNONYMS.get(synonym) or dataclasses.replace(key, name=synonym)
            parsed = rule.parse(value)
            if parsed is None:
                continue
            if key.name == "retention.ms":
                _require(parsed != 0, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
                parsed = -1 if parsed < 0 else parsed
                factor = 1 if parsed < 0 else factor
            found[key.name] = value = parsed * factor if factor != 1 else parsed
            if key.name == "segment.ms":
                _require(value >= 1, "log.roll.ms must be greater than or equal to 1")
            if key.name == "segment.jitter.ms":
                _require(value >= 0, "log.roll.jitter.ms must be greater than or equal to 0")
            break
    return found


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise IllegalArgumentException(f"requirement failed: {why}")


@dataclasses.dataclass(frozen=True, slots=True)
class CleanerConfig:
    """Limits of the log cleaner (org.apache.kafka.storage.internals.log.CleanerConfig).

    `CleanerConfig()` has a broker's defaults. `CleanerConfig.for_tests()` has those of Kafka's constructor for tests.

    Args:
        num_threads: Number of threads that compact. Default 1.
        dedupe_buffer_size: Memory of all key maps together, in bytes. Default 128 MiB.
        dedupe_buffer_load_factor: Largest share of a key map that may be in use. Default 0.9.
        io_buffer_size: Memory of all I/O buffers, in bytes. Default 512 KiB.
        max_message_size: Size in bytes up to which an I/O buffer may grow for one batch. Default 1 MiB and 12 bytes.
        max_io_bytes_per_second: Bytes that all threads together may read and write in a second. Default: no limit.
        backoff_ms: Time in ms to wait if there is nothing to compact. Default 15 s.
        enable_cleaner: Whether logs are compacted at all. Default True.

    Example:
        >>> from kafkalog.config import CleanerConfig
        >>> CleanerConfig(num_threads=2).backoff_ms
        15000
    """

    num_threads: int = 1
    dedupe_buffer_size: int = 134217728
    dedupe_buffer_load_factor: float = 0.9
    io_buffer_size: int = 524288
    max_message_size: int = 1048588
    max_io_bytes_per_second: float = _DOUBLE_MAX
    backoff_ms: int = 15000
    enable_cleaner: bool = True

    HASH_ALGORITHM: ClassVar[str] = "MD5"

    @classmethod
    def for_tests(cls, enable_cleaner: bool = True) -> CleanerConfig:
        """Creates settings for tests: 4 MiB for keys, 1 MiB for I/O, batches of up to 32 MiB.

        Args:
            enable_cleaner: Whether logs are compacted at all.

        Returns:
            The settings.
        """
        return cls(1, 4 << 20, 0.9, 1 << 20, 32 << 20, _DOUBLE_MAX, 15000, enable_cleaner)

    @classmethod
    def from_props(cls, props: Mapping[str, object]) -> CleanerConfig:
        """Creates settings from a broker's settings.

        Args:
            props: The broker's settings by key, as in `server.properties`.

        Returns:
            The cleaner's settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range.
            IllegalArgumentException: Kafka's `require` refuses a value.
        """
        return BrokerLogConfig.from_props(props).cleaner


@dataclasses.dataclass(slots=True)
class ProducerStateManagerConfig:
    """Settings for the state of producers.

    They may change while they are in use.

    Args:
        producer_id_expiration_ms: Time in ms after which an idle producer is forgotten. Default 1 day.
        transaction_verification_enabled: Whether a transaction must be known before its first record. Default False.

    Example:
        >>> from kafkalog.config import ProducerStateManagerConfig
        >>> ProducerStateManagerConfig().producer_id_expiration_ms
        86400000
    """

    producer_id_expiration_ms: int = 86400000
    transaction_verification_enabled: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLogConfig:
    """A broker's settings that concern the log, and the topic defaults that its other settings make.

    Create it with `from_props`. The attribute of the key `a.b.c` is `a_b_c`; `BROKER_KEYS` has the meaning, unit and
    default of each key.

    Attributes:
        originals: All settings as given.
        topic_defaults: The topic defaults that the broker's settings make, by topic key.

    Example:
        >>> from kafkalog.config import BrokerLogConfig
        >>> config = BrokerLogConfig.from_props({"log.dirs": "/data/a,/data/b", "log.retention.hours": "1"})
        >>> config.effective_log_dirs
        ('/data/a', '/data/b')
        >>> config.log_config.retention_ms
        3600000
    """

    log_dir: tuple[str, ...]
    log_dirs: tuple[str, ...] | None
    cordoned_log_dirs: tuple[str, ...]
    num_recovery_threads_per_data_dir: int
    log_retention_check_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_dir_failure_timeout_ms: int
    log_cleaner_threads: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_backoff_ms: int
    log_cleaner_enable: bool
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    transaction_partition_verification_enable: bool
    transaction_max_timeout_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    background_threads: int
    remote_log_storage_system_enable: bool
    remote_log_index_file_cache_total_size_bytes: int
    metadata_log_segment_bytes: int
    metadata_log_segment_ms: int
    metadata_max_retention_bytes: int
    metadata_max_retention_ms: int

    originals: Mapping[str, object]
    topic_defaults: Mapping[str, object]

    @classmethod
    def from_props(cls, props: Mapping[str, object] | None = None) -> BrokerLogConfig:
        """Creates settings from `server.properties`.

        Args:
            props: The settings by key. Keys that do not concern the log are ignored. None: Kafka's defaults.

        Returns:
            The settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range.
            IllegalArgumentException: Kafka's `require` refuses a value.
        """
        given = dict(props or {})
        values = {key.attribute: key.parse(given.get(name, key.default)) for name, key in BROKER_KEYS.items()}
        if values["cordoned_log_dirs"] is None:
            values["cordoned_log_dirs"] = ()
        config = cls(**values, originals=given, topic_defaults=topic_defaults_of_broker(given))
        threads = config.log_cleaner_threads
        _require(
            threads == 0 or config.log_cleaner_dedupe_buffer_size // threads > 1 << 20,
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        )
        cordoned = config.cordoned_log_dirs
        _require(
            "*" not in cordoned or len(cordoned) == 1,
            "When cordoned.log.dirs is set to *, it must not contain other values",
        )
        missing = [entry for entry in cordoned if entry != "*" and entry not in config.effective_log_dirs]
        _require(
            not missing,
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}",
        )
        return config

    @property
    def effective_log_dirs(self) -> tuple[str, ...]:
        """The log directories: `log.dirs`, or `log.dir` if it is not set."""
        return self.log_dirs if self.log_dirs is not None else self.log_dir

    @property
    def log_config(self) -> LogConfig:
        """The defaults of every topic."""
        return LogConfig.from_props(self.topic_defaults)

    @property
    def cleaner(self) -> CleanerConfig:
        """The settings of the cleaner."""
        return CleanerConfig(
            self.log_cleaner_threads,
            self.log_cleaner_dedupe_buffer_size,
            self.log_cleaner_io_buffer_load_factor,
            self.log_cleaner_io_buffer_size,
            self.log_config.max_message_bytes,
            self.log_cleaner_io_max_bytes_per_second,
            self.log_cleaner_backoff_ms,
            self.log_cleaner_enable,
        )

    @property
    def producer_state(self) -> ProducerStateManagerConfig:
        """The settings of the producer state."""
        return ProducerStateManagerConfig(
            self.producer_id_expiration_ms, self.transaction_partition_verification_enable
        )


def __dir__() -> list[str]:
    """Returns the public names, for completion and help(), without the names that this module imports."""
    return sorted(name for name in globals().keys() - _IMPORTED if not name.startswith("_"))
