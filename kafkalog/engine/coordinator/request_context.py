"""The client that sent a request to a coordinator, and the version of the request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

# Returns those of the topics that the client may see.
Describable = Callable[[Collection[str]], Collection[str]]


class RequestContext(NamedTuple):
    """`client_host` is written as Kafka writes it, with a slash: "/127.0.0.1". `principal` is like "User:alice"."""

    client_id: str = ""
    client_host: str = "/127.0.0.1"
    api_version: int = 0
    principal: str = "User:ANONYMOUS"
    describable: Describable | None = None  # which topics the client may see; None: all
