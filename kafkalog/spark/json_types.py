"""Translates a JSON Schema (draft 4 to 2020-12) to the Spark type that reads such JSON, as DDL.

An object with properties becomes a struct, an object whose property names are data a map, an array an array.  A value
of several possible types becomes its JSON text, as Spark's `from_json` returns for a string.  Times stay text.  The
schema's other rules are not checked: `from_json` accepts each value that fits the type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafkalog._face.schemas import Schema
from kafkalog.errors import IllegalArgumentException

SIMPLE = {"integer": "bigint", "number": "double", "boolean": "boolean", "string": "string"}
DEPTH_MAX = 64


def spark_type(schema: Schema) -> str:
    """Returns DDL such as struct<`id`: bigint>.

    Raises IllegalArgumentException if the text is not a JSON Schema of an object or an array.
    """
    what = f"schema {schema.schema_id}"
    documents = {name: _parsed(text, f"{name}, to which {what} refers,") for name, text in schema.named.items()}
    documents[""] = _parsed(schema.content, what)
    found = _Types(documents, what).of(documents[""], "", ("#",))
    if not found.startswith(("struct<", "array<", "map<")):
        raise IllegalArgumentException(
            f"{what} describes the type {found}, expected a JSON Schema of an object or an array",
            hint="give the type as DDL: reader='id bigint, ...'",
        )
    return found


def _parsed(content: str | bytes, what: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise IllegalArgumentException(f"{what} is not a JSON Schema: {error}") from None


class _Types:
    def __init__(self, documents: Mapping[str, Any], what: str) -> None:
        self._documents = documents
        self._what = what

    def of(self, schema: Any, document: str, within: tuple[str, ...]) -> str:
        """Returns the type of a schema.

        `document` is the document whose definitions apply; `within` has the references that were followed to get here.
        """
        if not isinstance(schema, dict) or len(within) > DEPTH_MAX:
            return "string"
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), document, within)
        for words in ("oneOf", "anyOf"):
            if words in schema:
                return self._one_of(schema[words], document, within)
        if "allOf" in schema:
            return self._all_of(schema, document, within)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return self._one_of([{**schema, "type": kind} for kind in kinds], document, within)
        if kinds is None:
            kinds = self._guessed(schema)
        if kinds == "object":
            return self._object(schema, document, within)
        if kinds == "array":
            items = schema.get("items", {})
            return f"array<{self.of(items, document, within)}>"
        return SIMPLE.get(str(kinds), "string")

    @staticmethod
    def _guessed(schema: Mapping[str, Any]) -> str | None:
        """Guesses the type of a schema that does not name it."""
        if "properties" in schema:
            return "object"
        there = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if there and all(isinstance(each, bool) for each in there):
            return "boolean"
        if there and all(isinstance(each, int) and not isinstance(each, bool) for each in there):
            return "integer"
        return None

    def _object(self, schema: Mapping[str, Any], document: str, within: tuple[str, ...]) -> str:
        fields = schema.get("properties") or {}
        if fields:
            return _struct({name: self.of(below, document, within) for name, below in fields.items()})
        more = schema.get("additionalProperties")
        return f"map<string, {self.of(more, document, within)}>" if isinstance(more, dict) else "string"

    def _one_of(self, schemas: Any, document: str, within: tuple[str, ...]) -> str:
        """A type or null is that type; several types are text."""
        there = [each for each in schemas if not (isinstance(each, dict) and each.get("type") == "null")]
        found = {self.of(each, document, within) for each in there}
        if found == {"bigint", "double"}:
            return "double"
        return found.pop() if len(found) == 1 else "string"

    def _all_of(self, schema: Mapping[str, Any], document: str, within: tuple[str, ...]) -> str:
        """Joins the fields of all parts; text if one of them is not an object with properties."""
        own = {name: value for name, value in schema.items() if name != "allOf"}
        fields: dict[str, str] = {}
        for part in [*schema["allOf"], *([own] if "properties" in own else [])]:
            at = document
            while isinstance(part, dict) and "$ref" in part:
                part, at, within = self._resolved(str(part["$ref"]), at, within)
            if not (isinstance(part, dict) and part.get("properties")):
                return self.of(part, at, within) if len(schema["allOf"]) == 1 and "properties" not in own else "string"
            fields |= {name: self.of(below, at, within) for name, below in part["properties"].items()}
        return _struct(fields)

    def _referred(self, reference: str, document: str, within: tuple[str, ...]) -> str:
        found, place, inside = self._resolved(reference, document, within)
        return self.of(found, place, inside)

    def _resolved(self, reference: str, document: str, within: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
        """Returns the schema that a reference names, its document, and the references that were followed to it.

        A type that contains itself resolves to true, which means anything.
        """
        name, _, pointer = reference.partition("#")
        place = name or document
        whole = f"{place}#{pointer}"
        if whole in within:
            return True, place, within
        found = self._documents.get(place)
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            raise IllegalArgumentException(f"{self._what} refers to {reference!r}, which does not exist")
        return found, place, (*within, whole)


def _struct(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{quoted(name)}: {kind}' for name, kind in fields.items())}>"


def quoted(name: str) -> str:
    """Quotes a field's name for DDL."""
    return "`" + name.replace("`", "``") + "`"


__all__ = ["quoted", "spark_type"]


def __dir__() -> list[str]:
    return __all__
