"""Protobuf schemas as Spark's `from_protobuf` needs them.

That is a descriptor set, a message's full name, and the bytes with which a value of that message begins in a registry's
wire format.  A registry returns a file's descriptor ("serialized"), or its .proto text, which needs protoc.  Needs the
package protobuf.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkalog._face.schemas import Schema
from kafkalog.errors import IllegalArgumentException, MissingPackageException

SECONDS_MAX = 60
SET_HINT = "give a descriptor set: protoc --include_imports --descriptor_set_out=ID.desc FILE.proto"


@dataclass(frozen=True)
class Proto:
    """A compiled schema.

    `descriptors` is the serialized FileDescriptorSet.  `messages` maps the full name of each message in the main file
    to its indexes, in the file's order.
    """

    schema_id: int
    descriptors: bytes
    messages: Mapping[str, tuple[int, ...]]

    def full_name(self, message: str | None) -> str:
        """Returns the full name of a message, given by full name or last part; the first message for None.

        Raises IllegalArgumentException if no message, or more than one, has the name.
        """
        there = [*self.messages]
        found = [each for each in there if message in (None, each)] or [
            each for each in there if each.rpartition(".")[2] == message
        ]
        if not found or (len(found) > 1 and message is not None):
            raise IllegalArgumentException(
                f"message: found {message!r}, expected one of schema {self.schema_id}: {', '.join(there) or 'none'}"
            )
        return found[0]


def proto_of(schema: Schema) -> Proto:
    """Compiles a schema.

    Raises IllegalArgumentException if it is not a Protobuf schema, and MissingPackageException if protobuf is missing,
    or protoc for .proto text.
    """
    pb2 = _descriptor_pb2()
    what = f"schema {schema.schema_id}"
    if isinstance(schema.content, bytes):
        files = _of_set(pb2, schema.content, what)
    else:
        main = _of_serialized(pb2, schema.content)
        if main is None:
            files = _of_set(pb2, compiled(schema.content, schema.named, what), what)
        else:
            main.name = "main.proto"
            files = []
            for name, text in schema.named.items():
                found = _of_serialized(pb2, text)
                if found is None:
                    raise IllegalArgumentException(f"{what} refers to {name}, which is not the descriptor of a file")
                found.name = name
                files.append(found)
            files = [*_imported(pb2, [*files, main], what), *files, main]
    if not files:
        raise IllegalArgumentException(f"{what} is a descriptor set without files", hint=SET_HINT)
    made = pb2.FileDescriptorSet(file=files)
    return Proto(schema.schema_id, made.SerializeToString(), dict(_messages(files[-1])))


def prefixes(indexes: tuple[int, ...]) -> tuple[bytes, ...]:
    """Returns all encodings of message indexes: their count and each as zigzag varints; also one zero for (0,)."""
    written = b"".join(_varint(each << 1) for each in (len(indexes), *indexes))
    return (b"\0", written) if indexes == (0,) else (written,)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _descriptor_pb2() -> Any:
    try:
        return importlib.import_module("google.protobuf.descriptor_pb2")
    except ModuleNotFoundError:
        raise MissingPackageException(
            "Protobuf schemas need the package protobuf, which is not installed", hint="pip install protobuf"
        ) from None


def _of_set(pb2: Any, data: bytes, what: str) -> list[Any]:
    try:
        return [*pb2.FileDescriptorSet.FromString(data).file]
    except Exception as error:  # the module of protobuf's DecodeError changes between versions
        raise IllegalArgumentException(f"{what} is not a descriptor set: {error}", hint=SET_HINT) from None


def _of_serialized(pb2: Any, text: str) -> Any:
    """Returns a file's descriptor from base64; None for anything else, such as .proto text."""
    try:
        return pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None
    except Exception:  # protobuf's DecodeError
        return None


def _messages(file: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    def below(messages: Any, space: str, indexes: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        for place, each in enumerate(messages):
            name = f"{space}.{each.name}" if space else each.name
            if not each.options.map_entry:
                yield name, (*indexes, place)
            yield from below(each.nested_type, name, (*indexes, place))

    return below(file.message_type, file.package, ())


def _imported(pb2: Any, files: list[Any], what: str) -> list[Any]:
    """Returns the descriptors of imported files that are not among `files`.

    They come from Python packages, such as google/protobuf/timestamp.proto.
    """
    known = {file.name for file in files}
    made: list[Any] = []

    def add(name: str, by: str) -> None:
        if name in known:
            return
        known.add(name)
        module = name.removesuffix(".proto").replace("/", ".").replace("-", "_") + "_pb2"
        try:
            data = importlib.import_module(module).DESCRIPTOR.serialized_pb
        except (ImportError, AttributeError):
            raise IllegalArgumentException(
                f"{what}: {by} imports {name}, which is neither a reference nor the Python module {module}",
                hint=SET_HINT,
            ) from None
        found = pb2.FileDescriptorProto.FromString(data)
        for each in found.dependency:
            add(each, name)
        made.append(found)

    for file in files:
        for each in file.dependency:
            add(each, file.name)
    return made


def compiled(text: str, named: Mapping[str, str], what: str) -> bytes:
    """Returns the descriptor set of .proto text, compiled by protoc from the package grpcio-tools or from the
    system."""
    command = _protoc()
    with tempfile.TemporaryDirectory(prefix="kafkalog-proto-") as place:
        root = Path(place)
        for name, content in {**named, "main.proto": text}.items():
            path = (root / name).resolve()
            if not path.is_relative_to(root.resolve()):
                raise IllegalArgumentException(f"{what} refers to {name!r}, which is not the name of a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        out = root / "main.desc"
        done = subprocess.run(
            [*command, f"-I{root}", "--include_imports", f"--descriptor_set_out={out}", "main.proto"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            cwd=root,
        )
        if done.returncode != 0:
            lines = done.stderr.replace(f"{root}{os.sep}", "").strip().splitlines()
            raise IllegalArgumentException(f"{what} is not a Protobuf schema: {' '.join(lines[-3:])}")
        return out.read_bytes()


def _protoc() -> list[str]:
    try:
        tools = importlib.import_module("grpc_tools")
    except ModuleNotFoundError:
        found = shutil.which("protoc")
        if found is None:
            raise MissingPackageException(
                "a Protobuf schema is .proto text, which needs protoc, and protoc is not installed",
                hint=f"pip install grpcio-tools, or {SET_HINT}",
            ) from None
        return [found]
    protos = Path(next(iter(tools.__path__))) / "_proto"
    return [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}"]


__all__ = ["Proto", "compiled", "prefixes", "proto_of"]


def __dir__() -> list[str]:
    return __all__
