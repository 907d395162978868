"""Settings: what Apache Kafka 4.4.0 answers for the same values (texts recorded from its LogConfig)."""
# ruff: noqa: E501  (recorded texts stay in one piece)

from __future__ import annotations

import dataclasses
import math
import pickle
import random
from pathlib import Path

import pytest

import kafkalog
from kafkalog.config import (
    BROKER_KEYS,
    LONG_MAX,
    TOPIC_KEYS,
    BrokerLogConfig,
    CleanerConfig,
    LogConfig,
    ProducerStateManagerConfig,
    topic_defaults_of_broker,
)
from kafkalog.errors import ConfigException, IllegalArgumentException, InvalidConfigurationException

REPLICAS = (
    " must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],"
    "[partitionId]:[brokerId],..."
)
CODECS = "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"

# key, value, what follows `Invalid value V for configuration K: `
REFUSED = [
    ("segment.bytes", "100", "Value must be at least 1048576"),
    ("segment.bytes", "abc", "Not a number of type INT"),
    ("segment.bytes", "", "Not a number of type INT"),
    ("segment.bytes", "1.5", "Not a number of type INT"),
    ("segment.bytes", "99999999999", "Not a number of type INT"),
    ("segment.bytes", "2_000_000", "Not a number of type INT"),
    ("segment.bytes", "9" * 10_000, "Not a number of type INT"),
    ("segment.ms", "0", "Value must be at least 1"),
    ("segment.index.bytes", "3", "Value must be at least 4"),
    ("retention.ms", "1x", "Not a number of type LONG"),
    ("retention.ms", "-2", "Value must be at least -1"),
    ("flush.messages", "0", "Value must be at least 1"),
    ("index.interval.bytes", "-1", "Value must be at least 0"),
    ("max.compaction.lag.ms", "0", "Value must be at least 1"),
    ("max.decompressed.message.bytes", "0", "Value must be at least 1"),
    ("max.decompressed.message.bytes", "2147483640", "Value must be no more than 2147483639"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("local.retention.ms", "-3", "Value must be at least -2"),
    ("remote.copy.lag.ms", "-2", "Value must be at least -1"),
    ("preallocate", "yes", "Expected value to be either true or false"),
    ("preallocate", "", "Expected value to be either true or false"),
    ("preallocate", 5, "Expected value to be either true or false"),
    ("min.cleanable.dirty.ratio", "abc", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "-0.5", "Value must be at least 0"),
    ("compression.type", "foo", CODECS),
    ("compression.type", "GZIP", CODECS),
    ("compression.type", 5, "Expected value to be a string, but it was a java.lang.Integer"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("compression.gzip.level", "10", "Value must be between 1 and 9 or equal to -1"),
    ("compression.lz4.level", "0", "Value must be at least 1"),
    ("compression.lz4.level", "18", "Value must be no more than 17"),
    ("compression.zstd.level", "23", "Value must be no more than 22"),
    ("compression.zstd.level", "-131073", "Value must be at least -131072"),
    ("cleanup.policy", "Delete", "String must be one of: compact, delete"),
    ("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ("cleanup.policy", 5, "Expected a comma separated list."),
    ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ("message.timestamp.type", "", "String must be one of: CreateTime, LogAppendTime"),
    ("internal.segment.bytes", "x", "Not a number of type INT"),
    ("segment.bytes", 5_000_000_000, "Expected value to be a 32-bit integer, but it was a java.lang.Long"),
    ("retention.ms", 1.5, "Expected value to be a 64-bit integer, but it was a java.lang.Double"),
]
# key, value, the whole message
REFUSED_OTHERWISE = [
    ("segment.bytes", True, "Invalid value true for configuration segment.bytes: Expected value to be a 32-bit integer, "
                            "but it was a java.lang.Boolean"),
    ("segment.bytes", None, "Invalid value null for configuration segment.bytes: Value must be non-null"),
    ("segment.bytes", " x ", "Invalid value x for configuration segment.bytes: Not a number of type INT"),
    ("cleanup.policy", "delete,", "Configuration 'cleanup.policy' values must not be empty."),
    ("cleanup.policy", ",", "Configuration 'cleanup.policy' values must not be empty."),
    ("cleanup.policy", None, "Configuration 'cleanup.policy' values must not be null."),
    ("cleanup.policy", "delete,foo", "Invalid value foo for configuration cleanup.policy: "
                                     "String must be one of: compact, delete"),
    ("min.cleanable.dirty.ratio", "2", "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: "
                                       "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "1e400", "Invalid value Infinity for configuration min.cleanable.dirty.ratio: "
                                           "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "12345678", "Invalid value 1.2345678E7 for configuration min.cleanable.dirty.ratio: "
                                              "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "-1e-5", "Invalid value -1.0E-5 for configuration min.cleanable.dirty.ratio: "
                                           "Value must be at least 0"),
    ("leader.replication.throttled.replicas", "a:b", "Invalid value [a:b] for configuration leader.replication.throttled"
                                                     ".replicas: leader.replication.throttled.replicas" + REPLICAS),
    ("follower.replication.throttled.replicas", "1:2,*", "Invalid value [1:2, *] for configuration follower.replication."
                                                "throttled.replicas: follower.replication.throttled.replicas" + REPLICAS),
]  # fmt: skip
TAKEN = [
    ("segment.bytes", " 2000000 ", 2_000_000),
    ("segment.bytes", "+2000000", 2_000_000),
    ("segment.bytes", "٣٣٣٣٣٣٣٣", 33_333_333),
    ("segment.bytes", 2_000_000, 2_000_000),
    ("segment.bytes", "00000000000000000000000002000000", 2_000_000),
    ("retention.bytes", "-9223372036854775808", -(1 << 63)),
    ("preallocate", "TRUE", True),
    ("preallocate", " false ", False),
    ("preallocate", True, True),
    ("min.cleanable.dirty.ratio", "0x1p-1", 0.5),
    ("min.cleanable.dirty.ratio", "0.5d", 0.5),
    ("min.cleanable.dirty.ratio", "5.e-1f", 0.5),
    ("min.cleanable.dirty.ratio", "+.5", 0.5),
    ("min.cleanable.dirty.ratio", "1e-999", 0.0),
    ("min.cleanable.dirty.ratio", 1, 1.0),
    ("compression.type", " gzip ", "gzip"),
    ("cleanup.policy", "compact, delete ", ("compact", "delete")),
    ("cleanup.policy", "delete,compact,delete", ("delete", "compact")),
    ("cleanup.policy", "", ()),
    ("cleanup.policy", " ", ()),
    ("cleanup.policy", ["compact"], ("compact",)),
    ("leader.replication.throttled.replicas", " 1:2 , 3:4 ", ("1:2", "3:4")),
    ("leader.replication.throttled.replicas", "*", ("*",)),
    ("leader.replication.throttled.replicas", "1:2,", ("1:2", "")),
    ("internal.segment.bytes", "10", 10),
]


@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(ConfigException) as refused:
        LogConfig.validate({key: value})
    assert refused.value.message == f"Invalid value {value} for configuration {key}: {why}"
    with pytest.raises(ConfigException):
        LogConfig.from_props({}, {key: value})


@pytest.mark.parametrize(("key", "value", "message"), REFUSED_OTHERWISE)
def test_refused_otherwise(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        LogConfig.validate({key: value})
    assert refused.value.message == message


@pytest.mark.parametrize(("key", "value", "parsed"), TAKEN)
def test_taken(key: str, value: object, parsed: object) -> None:
    LogConfig.validate({key: value})
    config = LogConfig.from_props({}, {key: value})
    assert getattr(config, TOPIC_KEYS[key].attribute) == parsed
    assert config.values()[key] == parsed


def test_not_a_number_is_a_ratio() -> None:
    assert math.isnan(LogConfig.from_props({}, {"min.cleanable.dirty.ratio": "-NaN"}).min_cleanable_dirty_ratio)


def test_the_first_wrong_key_in_kafkas_order_is_named() -> None:
    with pytest.raises(ConfigException, match=r"configuration segment\.bytes"):
        LogConfig.from_props({}, {"segment.ms": "0", "segment.bytes": "1"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("segmnt.bytes", "did you mean segment.bytes?"),
        ("segment_bytes", "did you mean segment.bytes?"),
        ("Retention.Ms", "did you mean retention.ms?"),
        ("log.segment.bytes", "this is a broker's key; the topic's key is segment.bytes"),
        ("log.roll.hours", "this is a broker's key; the topic's key is segment.ms"),
        ("xyzzy", None),
    ],
)
def test_unknown_keys(key: str, hint: str | None) -> None:
    with pytest.raises(InvalidConfigurationException) as refused:
        LogConfig.validate({"segment.ms": "5", key: "1"})
    assert refused.value.message == f"Unknown topic config name: {key}"
    assert refused.value.hint == hint
    config = LogConfig.from_props({}, {key: "1"})  # as Kafka: kept, not used
    assert config.originals[key] == "1"


def test_contradictions() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    with pytest.raises(InvalidConfigurationException) as refused:
        LogConfig.validate(lags)
    assert refused.value.message == (
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    )
    assert LogConfig.from_props({}, lags).max_compaction_lag_ms == 5


REMOTE = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cleanup.policy": "compact"}, "Remote log storage only supports topics with cleanup.policy=delete or"),
        ({"retention.ms": "5", "local.retention.ms": "-1"}, "Value must not be -1 as retention.ms value is set as 5."),
        (
            {"retention.ms": "5", "local.retention.ms": "6"},
            "Value must not be more than retention.ms property value: 5",
        ),
        ({"retention.bytes": "5", "local.retention.bytes": "6"}, "not be more than retention.bytes property value: 5"),
        ({"retention.ms": "5", "remote.copy.lag.ms": "6"}, "must not exceed local.retention.ms (effective value: 5)"),
        (
            {"remote.log.copy.disable": "true", "local.retention.bytes": "6"},
            "`local.retention.bytes` and `retention.byt",
        ),
        ({}, None),
        ({"cleanup.policy": ""}, None),
        ({"local.retention.ms": "6"}, None),
    ],
)
def test_tiered_storage_rules(overrides: dict[str, str], message: str | None) -> None:
    broker = {"segment.ms": "5"}

    def validate(enabled: bool) -> None:
        LogConfig.validate({**REMOTE, **overrides}, configured=broker, remote_storage_system_enabled=enabled)

    with pytest.raises(ConfigException, match="Tiered Storage functionality is disabled in the broker"):
        validate(False)
    LogConfig.validate({**REMOTE, **overrides})  # without the broker's settings none of this is checked
    if message is None:
        validate(True)
    else:
        with pytest.raises(ConfigException) as refused:
            validate(True)
        assert message in refused.value.message


def test_tiered_storage_is_not_left_by_accident() -> None:
    with pytest.raises(InvalidConfigurationException, match="invalid to disable remote storage without deleting"):
        LogConfig.validate({}, existing=REMOTE, configured={"segment.ms": "5"})
    LogConfig.validate({"remote.log.delete.on.disable": "true"}, existing=REMOTE, configured={"segment.ms": "5"})


def test_every_key_has_an_attribute_a_type_and_a_reason() -> None:
    fields = [field.name for field in dataclasses.fields(LogConfig) if field.init]
    assert fields == [key.attribute for key in TOPIC_KEYS.values()] + ["originals", "overridden_configs"]
    broker = [field.name for field in dataclasses.fields(BrokerLogConfig)]
    assert broker == [key.attribute for key in BROKER_KEYS.values()] + ["originals", "topic_defaults"]
    for key in [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]:
        assert key.why.endswith("."), key
        key.parse(key.default)


def test_defaults_and_what_follows_from_them() -> None:
    config = LogConfig.from_props()
    assert (config.segment_size, config.max_segment_ms, config.init_file_size) == (1 << 30, 604800000, 0)
    assert (config.compact, config.delete) == (False, True)
    assert (config.compression_codec, config.compression_level) == (None, None)
    assert config.max_index_size == 10485760
    assert config.flush_messages == LONG_MAX
    assert config.overridden_configs == frozenset()
    assert config == LogConfig.from_props({})


def test_derived() -> None:
    config = LogConfig.from_props(
        {"segment.ms": "700", "retention.ms": "9"},
        {
            "internal.segment.bytes": "100",
            "preallocate": "true",
            "cleanup.policy": "compact,delete",
            "max.compaction.lag.ms": "500",
            "compression.type": "zstd",
            "compression.zstd.level": "-5",
        },
    )
    assert (config.segment_size, config.init_file_size, config.segment_bytes) == (100, 100, 1 << 30)
    assert (config.compact, config.delete, config.max_segment_ms) == (True, True, 500)
    assert (config.compression_codec, config.compression_level) == (4, -5)
    assert "segment.ms" not in config.overridden_configs
    assert config.effective_local_retention_ms == 9
    assert config.effective_remote_copy_lag_bytes == -1
    for name, codec in {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3}.items():
        assert LogConfig.from_props({}, {"compression.type": name}).compression_codec == codec


def test_an_update_replaces_the_overrides() -> None:
    config = LogConfig.from_props({"segment.ms": "7", "retention.ms": "9"}, {"retention.ms": "1", "flush.ms": "2"})
    updated = config.updated({"flush.ms": "3"})
    assert (updated.segment_ms, updated.flush_ms) == (7, 3)
    assert updated.overridden_configs == {"flush.ms"}
    assert (config.flush_ms, config.retention_ms) == (2, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.flush_ms = 4  # type: ignore[misc]
    over = LogConfig.from_props(config, {"flush.ms": "8"})
    assert (over.retention_ms, over.flush_ms, over.overridden_configs) == (1, 8, {"flush.ms"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({config, updated, LogConfig.from_props(config)}) == 2


def test_jitter() -> None:
    assert LogConfig.from_props({}).random_segment_jitter() == 0
    config = LogConfig.from_props({}, {"segment.ms": "50", "segment.jitter.ms": "1000"})
    rng = random.Random(3)
    drawn = {config.random_segment_jitter(rng) for _ in range(500)}
    assert drawn == set(range(50))


@pytest.mark.parametrize(
    ("broker", "topic"),
    [
        ({}, {}),
        ({"log.roll.hours": "2"}, {"segment.ms": 7_200_000}),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, {"segment.ms": 5}),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, {"retention.ms": 120_000}),
        ({"log.retention.hours": "-7"}, {"retention.ms": -1}),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, {"retention.ms": -1}),
        ({"log.flush.scheduler.interval.ms": "9"}, {"flush.ms": 9}),
        (
            {"message.max.bytes": "77", "log.index.size.max.bytes": "88"},
            {"segment.index.bytes": 88, "max.message.bytes": 77},
        ),
        ({"log.cleanup.policy": "compact"}, {"cleanup.policy": ("compact",)}),
        ({"log.cleaner.min.cleanable.ratio": "0.1"}, {"min.cleanable.dirty.ratio": 0.1}),
        ({"broker.id": "1", "retention.ms": "5"}, {}),
    ],
)
def test_broker_settings_become_topic_defaults(broker: dict[str, str], topic: dict[str, object]) -> None:
    assert topic_defaults_of_broker(broker) == topic
    assert LogConfig.from_props(BrokerLogConfig.from_props(broker).topic_defaults).originals == topic


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        (
            {"log.segment.bytes": "1"},
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        ({"log.roll.hours": "0"}, "Invalid value 0 for configuration log.roll.hours: Value must be at least 1"),
        ({"log.retention.ms": "0"}, "failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        (
            {"log.retention.hours": "0"},
            "failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        ),
        (
            {"log.roll.ms": "-5", "log.roll.hours": "3"},
            "requirement failed: log.roll.ms must be greater than or equal to 1",
        ),
        ({"log.roll.jitter.ms": "-1"}, "requirement failed: log.roll.jitter.ms must be greater than or equal to 0"),
        (
            {"log.cleaner.dedupe.buffer.size": "1000"},
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per",
        ),
        ({"cordoned.log.dirs": "zz"}, "must be present in log.dirs or log.dir. Missing entries : zz"),
        ({"cordoned.log.dirs": "*,/tmp/kafka-logs"}, "When cordoned.log.dirs is set to *, it must not contain other"),
        ({"log.dirs": ""}, "Configuration 'log.dirs' must not be empty. Valid values include: any non-empty value"),
        ({"log.dirs": "a,,b"}, "Configuration 'log.dirs' values must not be empty."),
        ({"num.recovery.threads.per.data.dir": "0"}, "Value must be at least 1"),
    ],
)
def test_broker_settings_refused(broker: dict[str, str], message: str) -> None:
    with pytest.raises((ConfigException, IllegalArgumentException)) as refused:
        BrokerLogConfig.from_props(broker)
    assert isinstance(refused.value, IllegalArgumentException) == ("requirement failed" in refused.value.message)
    assert message in refused.value.message


def test_broker_settings() -> None:
    config = BrokerLogConfig.from_props({"log.dirs": " a , b,a", "log.cleaner.threads": "3", "message.max.bytes": "9"})
    assert config.effective_log_dirs == ("a", "b")
    assert BrokerLogConfig.from_props({"log.dir": "x"}).effective_log_dirs == ("x",)
    assert config.cleaner == CleanerConfig(num_threads=3, max_message_size=9)
    assert config.cleaner.HASH_ALGORITHM == "MD5"
    assert CleanerConfig.for_tests().dedupe_buffer_size == 4 << 20
    assert config.producer_state == ProducerStateManagerConfig(86400000, True)
    assert config.log_config.max_message_bytes == 9
    assert config.log_retention_check_interval_ms == 300000


def test_where_kafka_has_two_words_for_it_the_other_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match=r"at least 1048576 \(in tests, internal\.segment\.bytes accepts less"):
        kafkalog.open_log(tmp_path, "t-0", config={"segment.bytes": "1000"})
    with pytest.raises(ConfigException, match="says uncompressed instead of none"):
        kafkalog.open_log(tmp_path, "t-0", config={"compression.type": "none"})
    with pytest.raises(ConfigException, match=r"Not a number of type INT$"):
        kafkalog.open_log(tmp_path, "t-0", config={"segment.bytes": "x"})
    kafkalog.open_log(
        tmp_path, "t-0", config={"internal.segment.bytes": "1000", "compression.type": "uncompressed"}
    ).close()
