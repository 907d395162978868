"""Merges an Avro schema and the schemas that it references into one text, since Spark's `from_avro` accepts only
one."""

from __future__ import annotations

import json
from typing import Any

from kafkalog._face.schemas import Schema
from kafkalog.errors import IllegalArgumentException

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "error", "enum", "fixed"))


def whole_schema(schema: Schema) -> str:
    """Returns the schema's text, with each referenced type defined where it is first used.

    Raises IllegalArgumentException if a schema is not JSON.
    """
    parsed = _parsed(schema.content, f"schema {schema.schema_id}")
    if not schema.named:
        return json.dumps(parsed)
    named: dict[str, Any] = {}
    for name, text in schema.named.items():
        found = _parsed(text, f"{name}, to which schema {schema.schema_id} refers,")
        named[name] = found
        if isinstance(found, dict) and found.get("type") in NAMED:
            named[_full_name(found, "")] = found
    return json.dumps(_whole(parsed, "", named, set()))


def _parsed(content: str | bytes, what: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise IllegalArgumentException(f"{what} is not an Avro schema: {error}", hint="expected JSON") from None


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name = str(schema.get("name", ""))
    if "." in name:
        return name
    space = schema.get("namespace", namespace)
    return f"{space}.{name}" if space else name


def _whole(schema: Any, namespace: str, named: dict[str, Any], defined: set[str]) -> Any:
    """Expands `schema`, which is a part of a schema, in a namespace; `defined` has the names that are defined
    already."""
    if isinstance(schema, list):
        return [_whole(each, namespace, named, defined) for each in schema]
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        if schema in PRIMITIVES or full in defined:
            return schema
        found = named.get(full, named.get(schema))
        if found is None or not isinstance(found, dict):
            return schema
        # A referenced schema without a namespace has none here either: it must not inherit one.
        own = found if "." in str(found.get("name", "")) or "namespace" in found else {**found, "namespace": ""}
        return own["name"] if _full_name(own, "") in defined else _whole(own, "", named, defined)
    if not isinstance(schema, dict):
        return schema
    kind, made = schema.get("type"), dict(schema)
    if kind in NAMED:
        full = _full_name(schema, namespace)
        defined.add(full)
        inner = full.rpartition(".")[0]
        if "fields" in schema:
            made["fields"] = [
                {**each, "type": _whole(each["type"], inner, named, defined)} for each in schema["fields"]
            ]
        return made
    for below in ("items", "values", "type"):
        if below in schema:
            made[below] = _whole(schema[below], namespace, named, defined)
    return made


__all__ = ["whole_schema"]


def __dir__() -> list[str]:
    return __all__
