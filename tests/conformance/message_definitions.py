"""Kafka's definitions of requests and responses, from the JSON files in its jar to the tables of this project.

    python -m tests.conformance.message_definitions     rewrites kafkalog/engine/format/request_tables_*.py

`test_message_definitions` compares the tables with the jar.  AREAS says which module holds which API.  A field that
exists in no valid version is omitted, because neither side can see it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance import kafka_jars

PACKAGE = "kafkalog.engine.format"
JAR = re.compile(r"kafka-clients-[\d.]+\.jar")
WIDTH = 100
# The API keys of each module; the headers are in the first one.
AREAS: dict[str, list[int]] = {
    "cluster": [3, 10, 18, 43, 45, 46, 55, 57, 60, 64, 71, 72, 75, 80, 81, 94],
    "data": [0, 1, 2, 21, 23, 61],
    "groups": [8, 9, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69],
    "security": [17, 29, 30, 31, 36, 38, 39, 40, 41, 50, 51],
    "share": [76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92],
    "streams": [88, 89, 93],
    "topics": [19, 20, 32, 33, 34, 35, 37, 44, 48, 49, 74],
    "transactions": [22, 24, 25, 26, 27, 28, 65, 66],
}
HEADERS = ("RequestHeader", "ResponseHeader")
Versions = tuple[int, int]


def definitions(jar: Path) -> dict[str, dict[str, Any]]:
    """Returns the contents of the JSON files by the messages' names."""
    found = {}
    with zipfile.ZipFile(jar) as files:
        for name in files.namelist():
            if re.fullmatch(r"common/message/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", files.read(name).decode(), flags=re.MULTILINE)
                definition = json.loads(text)
                found[definition["name"]] = definition
    return found


def clients_jar(classpath: str) -> Path:
    return next(Path(part) for part in classpath.split(os.pathsep) if JAR.fullmatch(Path(part).name))


def tables(known: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Returns each area's table."""
    by_key: dict[int, list[dict[str, Any]]] = {}
    for definition in known.values():
        if definition["type"] in ("request", "response") and definition["validVersions"] != "none":
            by_key.setdefault(definition["apiKey"], []).append(definition)
    served = {key for key, pair in by_key.items() if any("broker" in each.get("listeners", []) for each in pair)}
    placed = sorted(key for keys in AREAS.values() for key in keys)
    assert placed == sorted(served), f"AREAS has {placed}, Kafka's brokers have {sorted(served)}"
    found = {}
    for area, keys in AREAS.items():
        lines: list[str] = []
        for name in HEADERS if area == next(iter(AREAS)) else ():
            lines += _message(known[name])
        for key in keys:
            for definition in sorted(by_key[key], key=lambda each: str(each["type"])):
                lines += _message(definition)
        found[area] = "\n" + "\n".join(lines) + "\n"
    return found


# --- a message ------------------------------------------------------------------------------------


def _versions(text: str, highest: int) -> Versions:
    """Parses 3, 1-2, 0+ or none; the last has no version."""
    if text == "none":
        return 1, 0
    first, _, last = text.removesuffix("+").partition("-")
    return int(first), highest if text.endswith("+") else int(last or first)


def _message(definition: dict[str, Any]) -> list[str]:
    valid = _versions(definition["validVersions"], 1 << 15)
    flexible = definition["flexibleVersions"]
    key = definition.get("apiKey")
    head = "" if key is None else f"{key} "
    head += f"{definition['name']} {valid[0]}" + ("" if valid[0] == valid[1] else f"-{valid[1]}")
    head += "" if flexible == "none" else f" flexible {flexible}"
    head += " unstable" if definition.get("latestVersionUnstable") else ""
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", [])}
    return [head, *_Struct(valid, common).lines(definition["fields"], valid, 1)]


class _Struct:
    """The lines of a message's structs; `common` has the structs that are not written out yet."""

    def __init__(self, valid: Versions, common: dict[str, list[dict[str, Any]]]) -> None:
        self.valid = valid
        self.common = common

    def lines(self, fields: list[dict[str, Any]], outer: Versions, depth: int, shared: bool = False) -> Iterator[str]:
        row = ""
        for field in fields:
            bounds = self.valid if shared else outer
            first, last = _versions(field["versions"], self.valid[1])
            span = max(first, bounds[0]), min(last, bounds[1])
            if span[0] > span[1]:
                continue
            text, name = self._field(field, span, outer), field["type"].removeprefix("[]")
            common = self.common.pop(name, None)
            inner = field.get("fields") or common
            if row and (inner is not None or len(row) + len(text) + 2 * depth > WIDTH):
                yield "  " * depth + row
                row = ""
            row += (", " if row else "") + text
            if inner is not None:
                yield "  " * depth + row
                row = ""
                yield from self.lines(inner, span, depth + 1, shared or common is not None)
        if row:
            yield "  " * depth + row

    def _field(self, field: dict[str, Any], span: Versions, outer: Versions) -> str:
        kind = field["type"]
        if field.get("flexibleVersions") == "none":
            assert kind == "string", field
            kind = "string16"
        text = f"{field['name'][0].lower()}{field['name'][1:]} "
        text += f"[{kind[2:]}]" if kind.startswith("[]") else kind
        null = _versions(field.get("nullableVersions", "none"), self.valid[1])
        null = max(null[0], span[0]), min(null[1], span[1])
        if null[0] <= null[1]:
            assert null[1] == span[1], field
            text += "?" if null[0] == span[0] else f"?{null[0]}"
        if not field.get("ignorable") and (span[0] > outer[0] or span[1] < outer[1]):
            text += "!"
        if span != outer:
            text += f" {span[0]}" + ("+" if span[1] == outer[1] else f"-{span[1]}")
        tag, default = field.get("tag"), str(field.get("default", "")).lower()
        default = "" if default in ("", "0", "false") or kind == "records" else f"={default}"
        return text + (f" #{tag}{default}" if tag is not None else f" {default}" if default else "")


def module_path(area: str) -> Path:
    found = importlib.util.find_spec(f"{PACKAGE}.request_tables_{area}")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def main() -> None:
    for area, table in tables(definitions(clients_jar(kafka_jars.driver().classpath))).items():
        path = module_path(area)
        before, _, _ = path.read_text().partition('TABLE = """')
        path.write_text(f'{before}TABLE = """{table}"""\n')


if __name__ == "__main__":
    main()
