"""A server keeps ACLs, credentials, quotas of clients, and settings of brokers and groups in a file next to the data.

Kafka keeps these in its metadata log, which a directory without a broker does not have.  Here they are one small file,
`.kafkalog_server`, JSON that a person can read, in every live directory.  A broker skips plain files there.  Each
change replaces the file in one step, with a revision that grows; at a start the highest revision counts, and is copied
to the other directories.  A directory that comes from a broker has no such file yet: then the broker's metadata log is
read once (`imported`).

The file has what proves a password (not the password), so only its owner can read it (0600), whatever the umask is.
Thread-safe.  Source: AclControlManager, ScramControlManager, ClientQuotaControlManager (4.4.0).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalog.engine.files import Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.names import SERVER_STATE_FILE
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import CorruptCheckpointException, KafkaStorageException, PolicyViolationException
from kafkalog.server.resource_configs import INITIAL, ConfigsByResource, ConfigType
from kafkalog.server.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType, StandardAcl
from kafkalog.server.security.quotas import QuotaEntity
from kafkalog.server.security.scram import ScramCredential, ScramMechanism

VERSION = 0
BYTES_MAX = 64 << 20
_HINT = "restore the file from a backup, or delete it: users, ACLs, quotas and settings must then be created again"

ScramCredentials = Mapping[tuple[str, ScramMechanism], ScramCredential]
ClientQuotas = Mapping[QuotaEntity, Mapping[str, float]]


class ServerState(NamedTuple):
    """Everything that is kept.  Never changed, only replaced."""

    acls: frozenset[StandardAcl] = frozenset()
    scram: ScramCredentials = {}
    quotas: ClientQuotas = {}
    configs: ConfigsByResource = INITIAL

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return self == ServerState()


def to_json(state: ServerState, revision: int) -> bytes:
    """Returns the file's content."""
    acls = [
        {
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name,
            "permissionType": acl.permission_type.name,
            "resourceType": acl.resource_type.name,
            "patternType": acl.pattern_type.name,
            "resourceName": acl.resource_name,
        }
        for acl in sorted(state.acls)
    ]
    scram = [
        {
            "name": name,
            "mechanism": mechanism.mechanism_name,
            "iterations": each.iterations,
            "salt": _text(each.salt),
            "storedKey": _text(each.stored_key),
            "serverKey": _text(each.server_key),
        }
        for (name, mechanism), each in sorted(state.scram.items())
    ]
    quotas = [
        {"entity": {key: name or None for key, name in entity_parts(entity)}, "values": dict(sorted(values.items()))}
        for entity, values in sorted(state.quotas.items(), key=lambda item: tuple(map(repr, item[0])))
    ]
    lines = [f'{{"version": {VERSION}, "revision": {revision}']
    configs = [
        {"type": kind.name, "name": name, "values": dict(sorted(values.items()))}
        for (kind, name), values in sorted(state.configs.items())
    ]
    tables = (("acls", acls), ("scramCredentials", scram), ("clientQuotas", quotas), ("configs", configs))
    for key, rows in tables:
        body = ",\n  ".join(json.dumps(row) for row in rows)
        lines.append(f'"{key}": [' + (f"\n  {body}\n" if rows else "") + "]")
    return (",\n".join(lines) + "}\n").encode()


def entity_parts(entity: QuotaEntity) -> list[tuple[str, str]]:
    """Returns Kafka's types and the names that a quota's entity has; the name of a default is empty."""
    found = (("user", entity.user), ("client-id", entity.client_id), ("ip", entity.ip))
    return [(key, name) for key, name in found if name is not None]


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Returns the entity of Kafka's types and names; None is a default."""
    found = {key.replace("-", "_"): name or "" for key, name in parts}
    return QuotaEntity(**found)


def from_json(data: bytes, path: str) -> tuple[ServerState, int]:
    """Returns the state and the revision of a file's content.  Raises CorruptCheckpointException."""
    try:
        found = json.loads(data)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']!r}")
        acls = frozenset(map(_acl, found["acls"]))
        scram = {
            (row["name"], ScramMechanism.named(row["mechanism"])): _scram(row) for row in found["scramCredentials"]
        }
        quotas = {
            entity_of(row["entity"].items()): {str(key): float(value) for key, value in row["values"].items()}
            for row in found["clientQuotas"]
        }
        configs = {
            (ConfigType[row["type"]], str(row["name"])): {str(key): str(value) for key, value in row["values"].items()}
            for row in found["configs"]
        }
        return ServerState(acls, scram, quotas, configs), int(found["revision"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise CorruptCheckpointException(
            f"found no table of ACLs, credentials, quotas and settings: {type(error).__name__}: {error}",
            path=path,
            hint=_HINT,
        ) from error


def _acl(row: Mapping[str, Any]) -> StandardAcl:
    return StandardAcl(
        ResourceType[row["resourceType"]],
        str(row["resourceName"]),
        PatternType[row["patternType"]],
        str(row["principal"]),
        str(row["host"]),
        AclOperation[row["operation"]],
        AclPermissionType[row["permissionType"]],
    )


def _scram(row: Mapping[str, Any]) -> ScramCredential:
    salt, stored, server = (base64.b64decode(row[key], validate=True) for key in ("salt", "storedKey", "serverKey"))
    return ScramCredential(salt, stored, server, int(row["iterations"]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def is_kept(log_dirs: Sequence[str], files: Files) -> bool:
    """Returns whether a directory has the file."""
    return any(files.exists(os.path.join(log_dir, SERVER_STATE_FILE)) for log_dir in log_dirs)


class StateFile:
    """The state, and its file in each directory.

    Args:
        log_dirs: The live directories.
        files: The disk.
        imported: Returns the state of a broker's metadata, asked once if there is no file.

    Raises:
        CorruptCheckpointException: No directory has a file that can be read, but one has a damaged one.
        KafkaStorageException: The disk failed.
    """

    def __init__(
        self, log_dirs: Sequence[str], files: Files, *, imported: Callable[[], ServerState] = ServerState
    ) -> None:
        self._paths = [os.path.join(log_dir, SERVER_STATE_FILE) for log_dir in log_dirs]
        self._files = files
        self._lock = threading.Lock()
        self._watchers: list[Callable[[ServerState], None]] = []  # guarded by _lock
        self._revision = 0
        self.state = ServerState()
        try:
            self._read(imported)
        except OSError as error:
            raise KafkaStorageException.because_of(error, f"cannot read {SERVER_STATE_FILE}") from error

    def _read(self, imported: Callable[[], ServerState]) -> None:
        found: list[tuple[int, bytes, ServerState]] = []
        damage: CorruptCheckpointException | None = None
        missing = False
        for path in self._paths:
            try:
                data = read_small(path, self._files, bytes_max=BYTES_MAX, hint=_HINT)
                state, revision = from_json(data, path)
                found.append((revision, data, state))
                self._make_private(path)  # an earlier version, or a copy, may have left it open to others
            except FileNotFoundError:
                missing = True
            except CorruptCheckpointException as error:
                damage = error
        if not found:
            if damage is not None:
                raise damage
            self.state = imported()
            if not self.state.is_empty:
                self._write(to_json(self.state, self._revision + 1))
            return
        self._revision, newest, self.state = max(found, key=lambda each: each[0])
        if missing or damage is not None or any(data != newest for _, data, _ in found):
            self._write_all(newest)

    def _make_private(self, path: str) -> None:
        try:
            self._files.make_private(path)
        except PermissionError:
            Lines("kafkalog.server").warning("%s belongs to another user, so its mode cannot be changed to 0600", path)

    def watch(self, watcher: Callable[[ServerState], None]) -> None:
        """Calls `watcher` with the state now, and after each change, before the change is answered."""
        with self._lock:
            self._watchers.append(watcher)
            watcher(self.state)

    def change(self, change: Callable[[ServerState], ServerState]) -> None:
        """Replaces the state durably.

        Args:
            change: Returns the new state from the current one.

        Raises:
            KafkaStorageException: The disk failed; the state is as before.
            PolicyViolationException: The state would be too large to be read again.
        """
        with self._lock:
            state = change(self.state)
            if state == self.state:
                return
            data = to_json(state, self._revision + 1)
            if len(data) > BYTES_MAX:
                raise PolicyViolationException(
                    f"users, ACLs, quotas and settings would take {len(data):,} bytes; {BYTES_MAX:,} can be kept"
                )
            try:
                self._write(data)
            except OSError as error:
                raise KafkaStorageException.because_of(error, f"cannot write {SERVER_STATE_FILE}") from error
            self.state = state
            for watcher in self._watchers:
                watcher(state)

    def _write(self, data: bytes) -> None:
        self._revision += 1
        self._write_all(data)

    def _write_all(self, data: bytes) -> None:
        """Writes every directory's file.  One that cannot be written fails the change only if none could."""
        failed: OSError | None = None
        written = 0
        for path in self._paths:
            try:
                self._files.write_atomic(path, data, private=True)
                written += 1
            except OSError as error:
                failed = error
        if failed is not None and not written:
            raise failed
