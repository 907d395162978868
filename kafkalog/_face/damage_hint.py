"""Adds a hint to an error at damage: the Python argument that reads on after it.

The text of the error is the engine's, and often Kafka's. The hint depends on the entry point: commands have their own
option for it, and readers without `on_damage` have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafkalog._face.chunk_reader import UNREADABLE
from kafkalog.errors import CorruptIndexException, KafkalogError, RecordDeserializationException

SKIP_HINT = 'on_damage="skip" reads on after it'


def helped(error: KafkalogError) -> KafkalogError:
    """Returns the error with a hint how to read on after the damage. Errors about an index, or about a value that does
    not decode as requested, get none."""
    is_of_log = error.path is not None and error.position is not None
    if is_of_log and not isinstance(error, CorruptIndexException | RecordDeserializationException):
        hint = error.hint or "`kafkalog verify` lists the damage"
        error.hint = hint if SKIP_HINT in hint else f"{SKIP_HINT}; {hint}"
    return error


@contextmanager
def helping() -> Iterator[None]:
    """Passes errors of the block through `helped`."""
    try:
        yield
    except UNREADABLE as error:
        helped(error)
        raise
