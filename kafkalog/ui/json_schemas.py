"""Checks of JSON Schema for hostile values: each check takes bounded time, and none asks another host.

A pattern is matched by RE2, in time that is linear in the text, since one of Python's `re` may take years and stops
all threads meanwhile.  `uniqueItems` takes linear time too.  The other keywords stop after CHECK_SECONDS.  References
lead into the schema itself and nowhere else.
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafkalog.errors import IllegalArgumentException

CHECK_SECONDS = 1.0

Keyword = Callable[..., Iterator[Any] | None]


def first_error(document: Any) -> Callable[[Any], Any]:
    """Returns a function that returns the first error of a value, or None.

    Raises whatever `jsonschema` raises if the document is no schema.
    """
    jsonschema: Any = importlib.import_module("jsonschema")
    import referencing

    kind: Any = jsonschema.validators.validator_for(document)
    kind.check_schema(document)
    if _has(document, "unevaluatedProperties") and _has(document, "patternProperties"):
        raise IllegalArgumentException("unevaluatedProperties together with patternProperties is not supported here")
    until = threading.local()

    def bounded(call: Keyword) -> Keyword:
        def keyword(*asked: Any) -> Iterator[Any] | None:
            if time.monotonic() > until.time:
                raise TimeoutError(f"the check takes longer than {CHECK_SECONDS:g} s")
            return call(*asked)

        return keyword

    own: dict[str, Keyword] = {
        "pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items,
        "additionalProperties": _additional_properties,
    }  # fmt: skip
    keywords = {name: bounded(own.get(name, call)) for name, call in kind.VALIDATORS.items()}
    # Where a reference leads to a schema that names its dialect, the library would use its own keywords.
    validator: Any = jsonschema.validators.extend(kind, keywords)(
        _without_dialects(document), registry=referencing.Registry()
    )

    def check(value: Any) -> Any:
        until.time = time.monotonic() + CHECK_SECONDS
        return next(validator.iter_errors(value), None)

    return check


def _matches(pattern: str, text: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text for Arrow
    return bool(pc.match_substring_regex(pa.array([text], pa.string()), pattern)[0].as_py())


def _wrong(text: str) -> Any:
    return importlib.import_module("jsonschema").ValidationError(text)


def _pattern(validator: Any, wanted: str, value: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "string") and not _matches(wanted, value):
        yield _wrong(f"{value!r:.200} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Mapping[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "object"):
        for pattern, of_it in wanted.items():
            for name, each in value.items():
                if _matches(pattern, name):
                    yield from validator.descend(each, of_it, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, each in value.items():
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if validator.is_type(wanted, "object"):
            yield from validator.descend(each, wanted, path=name)
        elif not wanted:
            yield _wrong(f"the property {name!r:.200} was not expected")


def _unique_items(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterator[Any]:
    is_array = wanted and validator.is_type(value, "array")
    if is_array and len({json.dumps(each, sort_keys=True) for each in value}) < len(value):
        yield _wrong("the items are not unique")


def _has(document: Any, name: str) -> bool:
    if isinstance(document, dict):
        return name in document or any(_has(each, name) for each in document.values())
    return isinstance(document, list) and any(_has(each, name) for each in document)


def _without_dialects(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            name: _without_dialects(each)
            for name, each in document.items()
            if not (name == "$schema" and isinstance(each, str))
        }
    return [_without_dialects(each) for each in document] if isinstance(document, list) else document
