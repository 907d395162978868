"""Loads the schemas of a registry's ids, for `functions.from_registry`: from a map, a directory, or a Schema Registry.

A `Schema` is text as a registry stores it, with the schemas that it references; `avro_schemas`, `proto_schemas` and
`json_types` convert it for Spark's functions.  A registry is read with GET only, on the driver, while the column is
built.  Its credentials go into one header, to the host that they are for, and into no message and no plan.  This module
does not depend on pyspark.
"""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.values import shown
from kafkalog.errors import (
    IllegalArgumentException,
    KafkaStorageException,
    NoSuchFileException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
)

FORMATS = ("avro", "protobuf", "json")
ENDINGS: Mapping[str, tuple[str, ...]] = {"avro": (".avsc",), "json": (".json",), "protobuf": (".desc", ".proto")}
KINDS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
USER_INFO, TOKEN = "basic.auth.user.info", "bearer.auth.token"  # Confluent's names
SECONDS_MAX = 30
ID_MAX = (1 << 32) - 1
ANSWER_BYTES_MAX = 64 << 20
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class Schema:
    """One schema: its text, or a Protobuf descriptor set.

    `named` has the schemas that it references, by the names that it uses, each after the ones that it needs.
    """

    schema_id: int
    content: str | bytes
    named: Mapping[str, str] = field(default_factory=dict)


def load_schemas(
    schemas: object,
    kind: str,
    *,
    ids: Iterable[int] | None = None,
    subject: str | Iterable[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> list[Schema]:
    """Returns the given schemas, the newest last: the highest id, or the last version of the last subject.

    Raises IllegalArgumentException for arguments that are not valid, NoSuchFileException or KafkaStorageException for a
    directory, RemoteResourceNotFoundException for an id or a subject that the registry does not have, and
    RemoteStorageException if it does not answer.
    """
    wanted = None if ids is None else [_id(each, "ids") for each in ids]
    subjects = None if subject is None else [subject] if isinstance(subject, str) else [*subject]
    if wanted == [] or subjects == []:
        name = "ids" if wanted == [] else "subject"
        raise IllegalArgumentException(
            f"{name}: found none, expected at least one", hint=f"leave {name} out to load all"
        )
    if isinstance(schemas, str) and _ADDRESS.match(schemas):
        return _of_registry(Registry(schemas, options or {}), kind, wanted, subjects)
    if subjects is not None:
        raise IllegalArgumentException(
            "subject is given without a registry's address", hint='give the address: schemas="http://registry:8081"'
        )
    if isinstance(schemas, Mapping):
        found = {_id(number, "schemas"): _content(content, number) for number, content in schemas.items()}
    elif isinstance(schemas, str | os.PathLike):
        found = _of_folder(os.fspath(schemas), kind)
    else:
        raise IllegalArgumentException(
            f"schemas: found {shown(schemas)}, expected a map of ids to schemas, a directory, or a registry's address"
        )
    if wanted is not None:
        missing = [number for number in wanted if number not in found]
        if missing:
            raise IllegalArgumentException(
                f"ids: found {missing[0]}, which is not among the schemas", hint=f"expected some of {listed(found)}"
            )
        found = {number: found[number] for number in wanted}
    if not found:
        raise IllegalArgumentException("schemas: found none, expected at least one")
    return [Schema(number, found[number]) for number in sorted(found)]


def listed(ids: Iterable[int]) -> str:
    """Formats ids for a message; of many, only the first ones."""
    numbers = sorted(ids)
    return ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")


def _id(number: object, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= ID_MAX:
        raise IllegalArgumentException(f"{what}: found {shown(number)}, expected a schema's id, 0 to {ID_MAX}")
    return number


def _content(content: object, number: object) -> str | bytes:
    if isinstance(content, str | bytes):
        return content
    if isinstance(content, Mapping | list):
        return json.dumps(content)  # it was parsed already
    raise IllegalArgumentException(
        f"schemas: found {shown(content)} for {number}, expected the schema's text, or the bytes of a descriptor set"
    )


def _of_folder(folder: str, kind: str) -> dict[int, str | bytes]:
    """Reads {id}.avsc, {id}.json, {id}.proto or {id}.desc; a .desc wins over a .proto."""
    endings = ENDINGS[kind]
    expected = f"expected files {', '.join('{id}' + ending for ending in endings)}"
    try:
        names = sorted(OS_FILES.list_dir(folder))
        found: dict[int, str | bytes] = {}
        for ending in reversed(endings):
            for name in names:
                stem, dot = os.path.splitext(name)
                if dot == ending and re.fullmatch(r"[0-9]+", stem):
                    path = os.path.join(folder, name)
                    with OS_FILES.open(path, writable=False) as file:
                        data = file.pread(file.size(), 0)
                    found[_id(int(stem), name)] = data if ending == ".desc" else _text(data, path)
    except FileNotFoundError:
        raise NoSuchFileException("no such directory of schemas", path=folder, hint=expected) from None
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the schemas") from error
    if not found:
        raise IllegalArgumentException(f"no schemas in {folder}", hint=expected)
    return found


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IllegalArgumentException(f"{path} is not UTF-8 text, expected a schema") from None


# --- a registry -------------------------------------------------------------------------------------------


class Registry:
    """A Schema Registry, which is only read.

    `address` is one address or several with commas; each is tried if the one before does not answer.  `options` may
    have USER_INFO ("user:password", which may also be in an address) or TOKEN.
    """

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        self._bases: list[tuple[str, str | None]] = []  # each with its Authorization header
        for part in filter(None, (part.strip() for part in address.split(","))):
            pieces = urlsplit(part)
            if not _ADDRESS.match(part) or not pieces.hostname:
                raise IllegalArgumentException(
                    f"schemas: found {_harmless(part)!r} among the registry's addresses, expected http://host:port"
                )
            base = f"{pieces.scheme}://{pieces.netloc.rpartition('@')[2]}{pieces.path.rstrip('/')}"
            given = f"{unquote(pieces.username)}:{unquote(pieces.password or '')}" if pieces.username else None
            self._bases.append((base, _authorization(given, options)))

    def __repr__(self) -> str:
        return f"Registry({', '.join(base for base, _ in self._bases)})"

    def get(self, path: str, missing: str) -> Any:
        """Returns the parsed answer.  `missing` says in an error what does not exist (404)."""
        problem: Exception | None = None
        for base, authorization in self._bases:
            request = urllib.request.Request(base + path, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
            if authorization is not None:
                # A redirect to another host does not get it.
                request.add_unredirected_header("Authorization", authorization)
            try:
                with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                    data = answer.read(ANSWER_BYTES_MAX)
                return json.loads(data)
            except urllib.error.HTTPError as error:
                said = _said(error)
                if error.code == 404:
                    raise RemoteResourceNotFoundException(f"{missing} in the registry {base}: {said}") from None
                if error.code in (401, 403):
                    raise RemoteStorageException(
                        f"the registry {base} refuses access: {said}",
                        hint=f"give credentials in the address, or in options as {USER_INFO} or {TOKEN}",
                    ) from None
                problem = RemoteStorageException(f"the registry {base} answers {said} to GET {path}")
            except (OSError, ValueError) as error:  # no connection, or not JSON
                why = getattr(error, "reason", None) or error
                problem = RemoteStorageException(f"the registry {base} does not answer GET {path}: {why}")
        assert problem is not None
        raise problem


def _authorization(user_info: str | None, options: Mapping[str, str]) -> str | None:
    user_info, token = user_info or options.get(USER_INFO), options.get(TOKEN)
    if user_info and token:
        raise IllegalArgumentException(f"found both a user and {TOKEN} for the registry", hint="leave one of them out")
    if user_info:
        return "Basic " + base64.b64encode(user_info.encode()).decode()
    return f"Bearer {token}" if token else None


def _harmless(address: str) -> str:
    """Returns an address without the credentials before the @."""
    head, _, rest = address.rpartition("@")
    return f"...@{rest}" if head else address


def _said(error: urllib.error.HTTPError) -> str:
    try:
        message = json.loads(error.read(1 << 16)).get("message")
    except (OSError, ValueError, AttributeError):
        message = None
    return f"{error.code} {message or error.reason}"


def _of_registry(
    registry: Registry, kind: str, ids: Sequence[int] | None, subjects: Sequence[str] | None
) -> list[Schema]:
    if (ids is None) == (subjects is None):
        raise IllegalArgumentException(
            "neither subject nor ids says which schemas of the registry to load"
            if ids is None
            else "both ids and subject are given",
            hint='give either subject="orders-value", for all its versions, or ids=[1, 2]; '
            "select(schema_id('value')).distinct() finds the ids of a DataFrame",
        )
    more = "format=serialized" if kind == "protobuf" else ""
    if ids is not None:
        query = f"?{more}" if more else ""
        answers = [
            (number, registry.get(f"/schemas/ids/{number}{query}", f"no schema {number}"))
            for number in sorted(dict.fromkeys(ids))
        ]
    else:
        answers = []
        for subject in subjects or ():
            # Deleted versions too: records that were written with them may still exist.
            path, missing = f"/subjects/{quote(subject, safe='')}/versions", f"no subject {subject!r}"
            for version in sorted(registry.get(f"{path}?deleted=true", missing)):
                query = "&".join(filter(None, ("deleted=true", more)))
                found = registry.get(f"{path}/{version}?{query}", f"no version {version} of {subject!r}")
                answers.append((int(found["id"]), found))
    newest_first = dict(answers[::-1])  # several versions may have one id
    return [_of_answer(registry, kind, number, answer, more) for number, answer in [*newest_first.items()][::-1]]


def _of_answer(registry: Registry, kind: str, number: int, answer: Mapping[str, Any], more: str) -> Schema:
    _text_of(registry, answer, f"schema {number}")
    found = KINDS.get(answer.get("schemaType") or "AVRO")
    if found != kind:
        raise IllegalArgumentException(
            f"schema {number} is {answer.get('schemaType') or 'AVRO'} in the registry, but format is {kind}",
            hint=f"expected one of {', '.join(FORMATS)}"
            if found is None
            else f'use from_registry(..., format="{found}")',
        )
    named: dict[str, str] = {}
    _follow(registry, answer, named, more)
    return Schema(number, _text_of(registry, answer, f"schema {number}"), named)


def _text_of(registry: Registry, answer: Any, what: str) -> str:
    text = answer.get("schema") if isinstance(answer, Mapping) else None
    if not isinstance(text, str):
        raise RemoteStorageException(
            f"{registry} answers without the text of {what}", hint="the address may not be a Schema Registry"
        )
    return text


def _follow(registry: Registry, answer: Mapping[str, Any], named: dict[str, str], more: str) -> None:
    """Fetches the schemas that a schema references, and first those that they reference."""
    for reference in answer.get("references") or ():
        name, subject, version = reference["name"], reference["subject"], reference["version"]
        if name in named:
            continue
        query = "&".join(filter(None, ("deleted=true", more)))
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?{query}"
        found = registry.get(path, f"no version {version} of {subject!r}, which a schema references as {name!r}")
        _follow(registry, found, named, more)
        named[name] = _text_of(registry, found, name)


__all__ = ["FORMATS", "Registry", "Schema", "listed", "load_schemas"]


def __dir__() -> list[str]:
    return __all__
