"""Batch writes that are done once however often they are run: options txnAppId and txnVersion, as Delta Lake has them.

A version that was written before, or a lower one, is a no-op.  A topic is to this what a table is to Delta: the log
remembers for each topic the last version of an application that came into it, in a cursor `spark-app-<txnAppId>` that
the write's own transaction moves (see `committing`).  A query's cursor is `spark-<UUID>`, which cannot begin so.
Knows options and cursors; nothing of Spark, files or stores.
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
# Names of cursors are strings of Kafka's protocol, at most so many bytes of UTF-8.
APP_ID_BYTES_MAX = 32767 - len(CURSOR_PREFIX)


class AppVersion(NamedTuple):
    """What one write is called: its application, and the number that the application gave it."""

    app_id: str
    version: int

    @property
    def cursor(self) -> str:
        """The cursor that remembers the application, also the transactional id of its writes."""
        return CURSOR_PREFIX + self.app_id


def parse_app_version(given: Mapping[str, str]) -> AppVersion | None:
    """Of options with names in lower case; None without either.  IllegalArgumentException for one alone, for a version
    that is no whole number from 0 on, and for an application that no cursor can be named after."""
    app_id, text = given.get(APP_ID.lower()), given.get(VERSION.lower())
    if app_id is None and text is None:
        return None
    if app_id is None or text is None:
        found, missing = (APP_ID, VERSION) if text is None else (VERSION, APP_ID)
        raise IllegalArgumentException(
            f"found option {found} without option {missing}",
            hint="an idempotent write needs both: who writes, and the number of this write",
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
            hint="expected text: a cursor of the log is named after it",
        ) from None
    if not app_id.strip() or size > APP_ID_BYTES_MAX or not app_id.isprintable():
        shown = repr(app_id) if size <= 100 else f"{app_id[:50]!r}... of {size} bytes"
        raise IllegalArgumentException(
            f"option {APP_ID} is {shown}",
            hint=f"expected printable text of 1 to {APP_ID_BYTES_MAX} bytes: a cursor of the log is named after it",
        )


def metadata_of(app: AppVersion, topic_id: str) -> str:
    """What the cursor of a topic says of the last write.  The id is said here as well: of an offset that never expires
    Kafka's format has no field for it."""
    return json.dumps({VERSION: app.version, TOPIC_ID: topic_id})


def topics_done(
    cursor: Mapping[TopicPartition, CommittedOffset], app: AppVersion, topic_ids: Mapping[str, str]
) -> frozenset[str]:
    """Topics that have this version of the application, or a later one.  `topic_ids` are those of topics that are
    there: what the cursor says of an earlier topic of the same name counts no more."""
    done = set()
    for place, committed in cursor.items():
        topic_id, (version, said) = topic_ids.get(place.topic), _said(committed.metadata)
        its = said or committed.topic_id
        is_another = topic_id is None or (ZERO_UUID not in (topic_id, its) and topic_id != its)
        if not is_another and version >= app.version:
            done.add(place.topic)
    return frozenset(done)


def _said(metadata: str) -> tuple[int, str | None]:
    """The version, and the topic's id if it is said; -1 if somebody else has set the cursor."""
    try:
        found = json.loads(metadata)
        version, topic_id = found[VERSION], found.get(TOPIC_ID)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return -1, None
    return version if isinstance(version, int) else -1, topic_id
