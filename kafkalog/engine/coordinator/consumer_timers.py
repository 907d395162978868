"""The keys of a consumer group's timers, in one partition."""

from __future__ import annotations


def session_key(group: str, member_id: str) -> str:
    """Returns the key of a session's timer."""
    return f"session-timeout-{group}-{member_id}"


def rebalance_key(group: str, member_id: str) -> str:
    """Returns the key of the timer of a member that must give up partitions."""
    return f"rebalance-timeout-{group}-{member_id}"


def join_key(group: str, member_id: str) -> str:
    """Returns the key of the timer of a member of the classic protocol that must join again."""
    return f"consumer-group-join-{group}-{member_id}"


def sync_key(group: str, member_id: str) -> str:
    """Returns the key of the timer of a member of the classic protocol that must ask for its assignment."""
    return f"consumer-group-sync-{group}-{member_id}"
