"""Tables of the reference that are made from the code: `<!-- table: NAME -->` in a page is replaced by one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from kafkalog import config, errors
from kafkalog._limits import LONG_MAX
from kafkalog.config import CleanerConfig, ConfigKey
from kafkalog.engine.format.requests import apis
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.remote.remote_log_manager import RemoteLogManagerConfig
from kafkalog.server.api import Apis
from kafkalog.store import open_store

UNITS = {"ms": [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")]}
UNITS["bytes"] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]


def table(columns: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [columns.split("|"), ["---"] * (columns.count("|") + 1), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.replace('|', '&#124;').split()) for cell in row)} |" for row in lines
    )


def shown(name: str, value: object) -> str:
    """A default as a reader wants it: the value to write, and the same in larger units."""
    if value is None or value == ():
        return "none"
    if isinstance(value, int | float) and value >= LONG_MAX:
        return "no limit"
    units = next((units for end, units in UNITS.items() if re.search(rf"[._]{end}\b|_{end}_", name)), [])
    larger = [
        f" ({value // size} {unit})" for size, unit in units if isinstance(value, int) and value and value % size == 0
    ]
    return f"`{value}`{larger[0] if larger else ''}"


# --- settings --------------------------------------------------------------------------------------------


def _allowed(key: ConfigKey) -> str:
    found = re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\]", key.valid_values)
    if found:
        return f"{found[1]} to {found[2]}" if found[2] else f"{found[1]} or more"
    words = re.fullmatch(r"\[([\w, ]+)\]", key.valid_values)
    return words[1] if words else key.valid_values or ("true, false" if key.type == "BOOLEAN" else "")


def _keys(keys: Iterable[ConfigKey]) -> str:
    rows = []
    for key in keys:
        default = str(key.default).lower() if isinstance(key.default, bool) else key.default
        allowed = f" Allowed: {_allowed(key)}." if _allowed(key) else ""
        synonyms = ", ".join(f"`{name}`" for name, _ in key.synonyms)
        broker = f"<br>Broker setting: {synonyms}" if synonyms else ""
        name = f"`{key.name}`{{#{key.name}}}<br>default: {shown(key.name, default)}"
        rows.append([name, f"{key.why}{allowed}{broker}"])
    return table("setting|meaning", rows)


def entries(thing: Any) -> dict[str, str]:
    """The entries of a docstring's Args, by name."""
    args = re.search(r"^Args:\n(.*?)(?=^\w|\Z)", inspect.getdoc(thing) or "", re.M | re.S)
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", args[1] if args else "", re.M | re.S)
    return dict(found)


def _arguments(thing: Any, names: str) -> str:
    defaults = {name: each.default for name, each in inspect.signature(thing).parameters.items()}
    rows = []
    for name, text in entries(thing).items():
        value = defaults[name]
        if value is inspect.Parameter.empty:
            default = "required"
        elif value is None or type(value) in (bool, int, float, tuple):
            default = shown(name, value)
        else:
            default = f'`"{value}"`' if isinstance(value, str) else f"a `{type(value).__name__}`"
        rows.append([f"`{name}`<br>{default if default == 'required' else f'default: {default}'}", text])
    return table(f"{names}|meaning", rows)


# --- errors ----------------------------------------------------------------------------------------------


def family_of(kind: type) -> type:
    families = (errors.RemoteStorageException, errors.BadBytesError, errors.DiskError, errors.RequestError)
    return next((each for each in families if issubclass(kind, each)), errors.KafkalogError)


def _errors(family: type) -> str:
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        if family_of(kind) is not family:
            continue
        text, *sections = re.split(r"^(\w+):$", inspect.getdoc(kind) or "", flags=re.M)
        when, _, what = text.strip().partition("\n\n")
        if "Attributes" in sections:
            found = re.findall(r"^    (\w+): ", sections[sections.index("Attributes") + 1], re.M)
            what += f" Attributes: {', '.join(f'`{each}`' for each in found)}."
        python = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins" and base.__name__ not in
                  ("object", "BaseException", "Exception", "ImportError", "OSError", "LookupError")]  # fmt: skip
        also = f"<br>is also {'an' if python[0][0] in 'AEIOU' else 'a'} {python[0]}" if python else ""
        rows.append([f"`{name}`{{#{name}}}{also}", f"{when}<br>{what}"])
    return table("error|when it comes, and what to do", rows)


def _requests() -> str:
    known = {each.key: each for each in apis().values()}
    rows = [
        [f"`{known[each['apiKey']].name}`", str(each["apiKey"]), f"{each['minVersion']} to {each['maxVersion']}"]
        for each in Apis().api_versions()
    ]
    return table("request|key|versions", rows)


TABLES: dict[str, Callable[[], str]] = {
    "topic-settings": lambda: _keys(config.TOPIC_KEYS.values()),
    "broker-settings": lambda: _keys(config.BROKER_KEYS.values()),
    "requests": _requests,
    "open": lambda: _arguments(open_store, "argument"),
    "manager-settings": lambda: _arguments(ManagerSettings, "setting"),
    "cleaner-settings": lambda: _arguments(CleanerConfig, "setting"),
    "tiering-settings": lambda: _arguments(RemoteLogManagerConfig, "setting"),
    "request-errors": lambda: _errors(errors.RequestError),
    "bytes-errors": lambda: _errors(errors.BadBytesError),
    "disk-errors": lambda: _errors(errors.DiskError),
    "remote-errors": lambda: _errors(errors.RemoteStorageException),
}


def filled(markdown: str) -> str:
    """The text of a page with its tables."""
    return re.sub(r"<!-- table: ([\w-]+) -->", lambda found: TABLES[found[1]](), markdown)
