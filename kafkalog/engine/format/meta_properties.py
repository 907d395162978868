"""`meta.properties`: the cluster, node and directory id of a log directory.

Mirrors MetaProperties and PropertiesUtils (org.apache.kafka.metadata.properties).  Keys are written in the order of
Java's Properties.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kafkalog._native.codec.java_hash import hash_map_order, string_hash
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, parent_dir
from kafkalog.engine.format.java_text import (
    IllegalArgumentException,
    NumberFormatException,
    format_properties,
    parse_int,
    parse_properties,
    parse_uuid,
)
from kafkalog.engine.format.names import META_PROPERTIES_FILE
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.errors import CorruptCheckpointException

_WHAT_TO_DO = "restore the file from another directory of the same node, or format the directory with Kafka's tool"

__all__ = ["META_PROPERTIES_FILE", "MetaProperties", "read_meta_properties", "write_meta_properties"]


class MetaProperties(NamedTuple):
    """The file's content.  Version 1 must have a node id and a cluster id; version 0 calls the node id `broker.id`."""

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: str | None = None

    def to_properties(self) -> dict[str, str]:
        """Returns the keys and values in the order in which Java writes them."""
        values = {"version": str(self.version)}
        if self.cluster_id is not None:
            values["cluster.id"] = self.cluster_id
        if self.node_id is not None:
            values["broker.id" if self.version == 0 else "node.id"] = str(self.node_id)
        if self.directory_id is not None:
            values["directory.id"] = self.directory_id
        # Properties keeps its entries in a ConcurrentHashMap of 16 buckets.
        return {key: values[key] for key in hash_map_order(values, string_hash)}

    @staticmethod
    def from_properties(properties: dict[str, str], *, path: str | None = None) -> MetaProperties:
        """Parses the properties; raises CorruptCheckpointException if one is missing or has an invalid value."""

        def wrong(why: str) -> CorruptCheckpointException:
            return CorruptCheckpointException(why, path=path, hint=_WHAT_TO_DO)

        def number(key: str) -> int:
            text = properties.get(key)
            if text is None:
                raise wrong(f"Failed to find {key}")
            try:
                return parse_int(text)
            except NumberFormatException:
                raise wrong(f"Unable to read {key} as a base-10 number.") from None

        version_text = properties.get("version", "0")
        try:
            version = parse_int(version_text.strip())
        except NumberFormatException:
            raise wrong(f"Invalid meta.properties version string '{version_text}'") from None
        if version not in (0, 1):
            raise wrong(f"Unknown meta.properties version number {version}")
        if version == 0:
            node_id = number("broker.id") if "broker.id" in properties else None
        else:
            node_id = number("node.id")
        directory_id = properties.get("directory.id")
        if directory_id is not None:
            try:
                directory_id = parse_uuid(directory_id)
            except IllegalArgumentException as error:
                raise wrong(f"Unable to read directory.id as a Uuid: {error.message}") from None
        if version == 1 and "cluster.id" not in properties:
            raise wrong("cluster.id was not found.")
        return MetaProperties(version, properties.get("cluster.id"), node_id, directory_id)


def read_meta_properties(path: str, files: Files = OS_FILES) -> MetaProperties:
    """Returns the content of the file.  Raises CorruptCheckpointException and OSError."""
    try:
        properties = parse_properties(read_small(path, files, bytes_max=NOTE_BYTES_MAX, hint=_WHAT_TO_DO))
    except IllegalArgumentException as error:
        raise IllegalArgumentException(error.message, path=path, hint=_WHAT_TO_DO) from None
    return MetaProperties.from_properties(properties, path=path)


def write_meta_properties(
    path: str, properties: MetaProperties, files: Files = OS_FILES, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Replaces the file in one step and syncs it; a failure leaves no temporary file.  Raises OSError."""
    path = os.path.abspath(path)
    text = format_properties(properties.to_properties(), now_ms=clock.milliseconds())
    temporary = path + ".tmp"
    files.write_file(temporary, text.encode("utf-8"), sync=True)
    try:
        files.rename(temporary, path)
    except OSError:
        files.unlink_if_exists(temporary)
        raise
    files.sync_dir(parent_dir(path))
