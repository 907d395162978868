"""Topic configurations for random scripts: values so small that rolls, full indexes and retention happen at once."""

from __future__ import annotations

from tests.conformance.choosing import Chooser


def topic_config(choose: Chooser, *, compact: bool) -> dict[str, str]:
    """Small segments and indexes, and now and then each key that changes what happens."""
    config = {
        "internal.segment.bytes": choose.choice(("300", "700", "700", "2000", "10000")),
        "index.interval.bytes": choose.choice(("0", "1", "100", "100", "500", "4096")),
        "segment.index.bytes": choose.choice(("16", "24", "48", "100", "240", "240", "4096")),
        "segment.jitter.ms": "0",
    }
    maybe: list[tuple[float, str, tuple[str, ...]]] = [
        (0.25, "segment.ms", ("1000", "5000", "60000")),
        (0.3, "compression.type", ("uncompressed", "gzip", "lz4", "zstd", "producer", "lz4", "zstd")),
        (0.02, "compression.type", ("snappy",)),
        (0.2, "message.timestamp.type", ("LogAppendTime",)),
        (0.15, "max.message.bytes", ("100", "200", "400")),
        (0.1, "message.timestamp.before.max.ms", ("1000", "10000")),
        (0.1, "message.timestamp.after.max.ms", ("0", "1000", "10000")),
        (0.25, "cleanup.policy", ("compact", "compact,delete", "delete")),
        (0.3, "retention.ms", ("1000", "5000", "-1")),
        (0.25, "retention.bytes", ("0", "500", "1000", "2000")),
        (0.2, "flush.messages", ("1", "3", "10")),
        (0.15, "preallocate", ("true",)),
        (0.3, "file.delete.delay.ms", ("0", "1000")),
        (0.1, "compression.gzip.level", ("1", "9")),
        (0.1, "compression.lz4.level", ("9", "5")),
        (0.1, "compression.zstd.level", ("1", "9")),
        (0.08, "max.decompressed.message.bytes", ("200", "100", "1000")),
        (0.1, "delete.retention.ms", ("0", "1000")),
    ]
    for probability, key, values in maybe:
        if choose.chance(probability):
            config[key] = choose.choice(values)
    if compact:
        config["cleanup.policy"] = choose.choice(("compact", "compact", "compact,delete"))
        if choose.chance(0.5):
            config["delete.retention.ms"] = choose.choice(("1000", "0", "1", "5000", "60000"))
        if choose.chance(0.2):
            config["min.compaction.lag.ms"] = choose.choice(("1000", "60000"))
        if choose.chance(0.1):
            config["max.compaction.lag.ms"] = choose.choice(("60000", "100000"))
    return config
