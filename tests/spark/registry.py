"""A Schema Registry in a separate process: a real HTTP server that answers GET as Confluent's does.

    with running({"orders-value": [Entry(1, text), Entry(2, text)]}) as registry:
        registry.address, registry.requests()

`python registry.py FILE` serves the JSON of FILE and prints its port.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Entry:
    """A version of a subject.  `serialized`: base64 of a Protobuf file's descriptor."""

    id: int
    schema: str
    schema_type: str = "AVRO"
    references: list[dict[str, Any]] = field(default_factory=list)
    serialized: str | None = None
    deleted: bool = False


@dataclass
class Running:
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def running(subjects: Mapping[str, Sequence[Entry]], *, user_info: str | None = None) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as place:
        given, log = Path(place) / "given.json", Path(place) / "requests"
        entries = {name: [asdict(each) for each in versions] for name, versions in subjects.items()}
        given.write_text(json.dumps({"subjects": entries, "user_info": user_info, "log": str(log)}))
        log.touch()
        with subprocess.Popen([sys.executable, __file__, str(given)], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield Running(int(process.stdout.readline()), log)
            finally:
                process.kill()


class _Handler(BaseHTTPRequestHandler):
    given: dict[str, Any]

    def do_GET(self) -> None:
        pieces = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(pieces.query).items()}
        authorization = self.headers.get("Authorization")
        with open(self.given["log"], "a") as log:
            log.write(json.dumps({"path": self.path, "authorization": authorization}) + "\n")
        if pieces.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.end_headers()
            return
        user_info = self.given["user_info"]
        if user_info and authorization != "Basic " + base64.b64encode(user_info.encode()).decode():
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            return
        parts = [unquote(part) for part in pieces.path.strip("/").split("/")]
        self._answer(*self._found(parts, asked))

    def _found(self, parts: list[str], asked: Mapping[str, str]) -> tuple[int, Any]:
        subjects = self.given["subjects"]
        if parts[:2] == ["schemas", "ids"]:
            all_entries = (entry for versions in subjects.values() for entry in versions)
            entry = next((each for each in all_entries if each["id"] == int(parts[2])), None)
            if entry is None:
                return 404, {"error_code": 40403, "message": f"Schema {parts[2]} not found"}
            return 200, self._shown(entry, asked)
        if parts == ["odd", "schemas", "ids", "9"]:
            return 200, {"id": 9}
        if parts[0] == "broken":
            return 500, {"error_code": 50001, "message": "Error in the backend datastore"}
        name = parts[1]
        versions = dict(enumerate(subjects.get(name, ()), 1))
        if asked.get("deleted") != "true":
            versions = {number: entry for number, entry in versions.items() if not entry["deleted"]}
        if not versions:
            return 404, {"error_code": 40401, "message": f"Subject '{name}' not found."}
        if len(parts) == 3:
            return 200, [*versions]
        number = int(parts[3])
        if number not in versions:
            return 404, {"error_code": 40402, "message": f"Version {number} not found."}
        entry = versions[number]
        return 200, {"subject": name, "version": number, "id": entry["id"], **self._shown(entry, asked)}

    @staticmethod
    def _shown(entry: Mapping[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
        is_serialized = asked.get("format") == "serialized" and entry["serialized"] is not None
        shown = {"schema": entry["serialized"] if is_serialized else entry["schema"]}
        if entry["schema_type"] != "AVRO":  # a registry omits it
            shown["schemaType"] = entry["schema_type"]
        if entry["references"]:
            shown["references"] = entry["references"]
        return shown

    def _answer(self, code: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(path: str) -> None:
    _Handler.given = json.loads(Path(path).read_text())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1])
