"""Idempotent batch writes: options txnAppId and txnVersion, as in Delta Lake.

Writing a version again, or a lower one, does nothing.  A topic takes the place of Delta's table.  For each topic the
log remembers the last version of an application in a cursor, `spark-app-<txnAppId>`, which the write's own transaction
moves (see `committing`).  A streaming query's cursor is `spark-<UUID>`, which never begins with `spark-app-`.  This
module knows options and cursors, but not Spark, files or stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException

APP_ID = "txnAppId"
VERSION = "txnVersion"
TOPIC_ID = "topicId"
CURSOR_PREFIX = "spark-app-"
# A cursor's name is a string of Kafka's protocol, with at most this many bytes of UTF-8.
APP_ID_BYTES_MAX = 32767 - len(CURSOR_PREFIX)


class AppVersion(NamedTuple):
    """The identity of one write: its application, and the number that the application gave it."""

    app_id: str
    version: int

    @property
    def cursor(self) -> str:
        """Returns the cursor that remembers the application; it is also the transactional id of its writes."""
        return CURSOR_PREFIX + self.app_id


def parse_app_version(given: Mapping[str, str]) -> AppVersion | None:
    """Parses the two options, whose names are in lower case; returns None if neither is given.

    Raises IllegalArgumentException if only one is given, if the version is not a whole number from 0 on, or if the
    application's name cannot be the name of a cursor.
    """
    app_id, text = given.get(APP_ID.lower()), given.get(VERSION.lower())
    if app_id is None and text is None:
        return None
    if app_id is None or text is None:
        found, missing = (APP_ID, VERSION) if text is None else (VERSION, APP_ID)
        raise IllegalArgumentException(
            f"found option {found} without option {missing}",
            hint="an idempotent write needs both: the application that writes, and the number of this write",
        )
    digits = re.fullmatch(r"0*([0-9]{1,19})", text.strip())
    if digits is None or int(digits[1]) > LONG_MAX:
        shown = repr(text) if len(text) <= 100 else f"{text[:50]!r}... of {len(text)} characters"
        raise IllegalArgumentException(
            f"option {VERSION} is {shown}", hint=f"expected a whole number from 0 to {LONG_MAX}"
        )
    _check_app_id(app_id)
    return AppVersion(app_id, int(digits[1]))


def _check_app_id(app_id: str) -> None:
    try:
        size = len(app_id.encode())
    except UnicodeEncodeError as error:
        raise IllegalArgumentException(
            f"option {APP_ID} is {app_id!r}: character {error.start} is half a surrogate pair",
            hint="expected valid text, since a cursor of the log gets this name",
        ) from None
    if not app_id.strip() or size > APP_ID_BYTES_MAX or not app_id.isprintable():
        shown = repr(app_id) if size <= 100 else f"{app_id[:50]!r}... of {size} bytes"
        raise IllegalArgumentException(
            f"option {APP_ID} is {shown}",
            hint=f"expected printable text of 1 to {APP_ID_BYTES_MAX} bytes, since a cursor of the log gets this name",
        )


def metadata_of(app: AppVersion, topic_id: str) -> str:
    """Returns the metadata of a topic's cursor after a write.

    It includes the topic id, since Kafka's format has no field for the id in an offset that never expires.
    """
    return json.dumps({VERSION: app.version, TOPIC_ID: topic_id})


def topics_done(
    cursor: Mapping[TopicPartition, CommittedOffset], app: AppVersion, topic_ids: Mapping[str, str]
) -> frozenset[str]:
    """Returns the topics that have this version of the application, or a later one.

    `topic_ids` has the topics that exist.  A cursor entry for an earlier topic of the same name does not count.
    """
    done = set()
    for place, committed in cursor.items():
        topic_id, (version, said) = topic_ids.get(place.topic), _said(committed.metadata)
        its = said or committed.topic_id
        is_another = topic_id is None or (ZERO_UUID not in (topic_id, its) and topic_id != its)
        if not is_another and version >= app.version:
            done.add(place.topic)
    return frozenset(done)


def _said(metadata: str) -> tuple[int, str | None]:
    """Returns the version, and the topic id if the metadata has it; -1 if the metadata is not the sink's."""
    try:
        found = json.loads(metadata)
        version, topic_id = found[VERSION], found.get(TOPIC_ID)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return -1, None
    return version if isinstance(version, int) else -1, topic_id
