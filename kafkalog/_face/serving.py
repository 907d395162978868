"""`Store.serve`: starts the server, which is above this layer and imported by its name at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from kafkalog.engine.format import values

if TYPE_CHECKING:
    from kafkalog._face.home import Home


class RunningServer(Protocol):
    """The part of a `kafkalog.server.Server` that callers of `Store.serve` need."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for a client's `bootstrap.servers`."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and the port of each listener."""
        ...

    @property
    def port(self) -> int:
        """The port of the first listener."""
        ...

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that clients see."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def close(self) -> None:
        """Stops accepting, answers what is in flight for a moment, and closes the connections."""

    def __enter__(self) -> RunningServer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def served(home: Home, listen: object, settings: Mapping[str, Any], *, allow_anonymous: object) -> RunningServer:
    """Returns the running server.  Errors as `Store.serve`."""
    allow = values.flag(allow_anonymous, "allow_anonymous")
    above = importlib.import_module("kafkalog.server.server")  # an upper layer has it
    return cast("RunningServer", above.serve(home, listen, settings, allow_anonymous=allow))
