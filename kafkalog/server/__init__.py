"""Kafka's protocol before a store: `Server`, which `store.serve()` and `kafkalog serve` start.

    with kafkalog.open("shop") as store, store.serve("127.0.0.1:0") as server:
        print(server.bootstrap_servers)

The names are loaded on first use, so that an import of this package loads no module of a handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.server.server import Server as Server
    from kafkalog.server.settings import ServerSettings as ServerSettings
    from kafkalog.server.trial import TrialServer as TrialServer

__all__ = ["Server", "ServerSettings", "TrialServer"]

_HOME = {
    "Server": "kafkalog.server.server",
    "ServerSettings": "kafkalog.server.settings",
    "TrialServer": "kafkalog.server.trial",
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name):
        import importlib

        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
