"""As much of FastAPI as the examples of docs/how-to/processes.md ask for, where it is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class FastAPI:
    def __init__(self, lifespan: Callable[[Any], Any]) -> None:
        self.lifespan = lifespan
        self.state = SimpleNamespace()
        self.routes: dict[str, Callable[..., Any]] = {}

    def get(self, path: str) -> Callable[[Any], Any]:
        return lambda function: self.routes.setdefault(f"GET {path}", function)

    def post(self, path: str) -> Callable[[Any], Any]:
        return lambda function: self.routes.setdefault(f"POST {path}", function)


class Request:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def body(self) -> bytes:
        return self._content


def put_up() -> None:
    """`import fastapi` finds this."""
    if "fastapi" not in sys.modules and importlib.util.find_spec("fastapi") is None:
        module = ModuleType("fastapi")
        module.FastAPI, module.Request = FastAPI, Request  # type: ignore[attr-defined]
        sys.modules["fastapi"] = module
