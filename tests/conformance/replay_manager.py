"""The operations on a log manager, and cleaner passes, on kafkalog."""

from __future__ import annotations

from typing import Any

from tests.conformance.replay_session import Op, Session

Result = dict[str, Any]


def _not_built(session: Session, op: Op, result: Result) -> None:
    raise NotImplementedError(f"{op.name} is not built yet")


NAMES = ("clean", "lm_open", "lm_get", "lm_checkpoint", "lm_delete", "lm_truncate", "lm_shutdown", "lm_crash")
OPERATIONS = dict.fromkeys(NAMES, _not_built)
