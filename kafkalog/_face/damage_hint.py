"""An error at damage says in Python, beside the place, which argument reads on behind it.

The words of the error are the engine's, and often Kafka's; what to do is told by the door that somebody came in by.
Commands have an option of their own for that, and readers without `on_damage` have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafkalog._face.chunk_reader import UNREADABLE
from kafkalog.errors import CorruptIndexException, KafkalogError, RecordDeserializationException

SKIP_HINT = 'on_damage="skip" reads on behind it'


def helped(error: KafkalogError) -> KafkalogError:
    """The error, with what reads on behind the damage that it names; an index, or a value that is not what it was read
    as, is no such damage."""
    is_of_log = error.path is not None and error.position is not None
    if is_of_log and not isinstance(error, CorruptIndexException | RecordDeserializationException):
        hint = error.hint or "`kafkalog verify` lists the damage"
        error.hint = hint if SKIP_HINT in hint else f"{SKIP_HINT}; {hint}"
    return error


@contextmanager
def helping() -> Iterator[None]:
    """Errors of what is read meanwhile are `helped`."""
    try:
        yield
    except UNREADABLE as error:
        helped(error)
        raise
