"""Azure's and Google's object storage on this machine, by HTTP: Azurite (from npm), and PyPI's gcp-storage-emulator.

Each is a separate process, with its objects in memory, and an empty bucket `bucket`; `stopped` makes it answer nothing.
Where an emulator or a client is missing, tests are left out and say so.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# gcsfs requests a bucket's kind by gRPC, which the emulator lacks.  It reads this variable at its import.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

AZURITE = "3.35.0"
AZURITE_PLACE = Path(__file__).parents[2] / "build" / f"azurite-{AZURITE}"
ACCOUNT = "devstoreaccount1"
# The key of Azurite's one account: public, and no secret.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Cloud:
    def __init__(self, scheme: str, process: subprocess.Popen[bytes], options: dict[str, Any]) -> None:
        self.scheme = scheme
        self.options = options
        self._process = process

    def url(self, path: str) -> str:
        return f"{self.scheme}://{path}"

    def client(self) -> Any:
        """fsspec's, for the tests' requests that bypass kafkalog"""
        import fsspec

        return fsspec.filesystem(self.scheme, use_listings_cache=False, skip_instance_cache=True, **self.options)

    def keys(self, path: str) -> list[str]:
        return sorted(name.partition("/")[2] for name in self.client().find(path))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # until it has stopped
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def left_out(reason: str) -> None:
    pytest.skip(f"left out: there is {reason}")


def _need(*modules: str, extra: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            left_out(f"no {module} (pip install {extra})")


def _azurite() -> list[str]:
    """The command, which npm installs once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        left_out("no Azurite, which needs `node` and `npm` on the PATH")
    program = AZURITE_PLACE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    AZURITE_PLACE.mkdir(parents=True, exist_ok=True)
    with (AZURITE_PLACE / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = AZURITE_PLACE / ".installed"
        if not done.exists():
            install = [
                str(npm),
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(AZURITE_PLACE),
                f"azurite@{AZURITE}",
            ]
            ran = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                left_out(f"no Azurite, for npm cannot install it: {ran.stderr[-500:]}")
            done.touch()
    return [str(node), str(program)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            assert process.poll() is None, f"{command} has ended"
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < until, f"{command} does not listen"
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def azure() -> Iterator[Cloud]:
    _need("adlfs", extra="kafkalog[azure]")
    port = _free_port()
    command = [
        *_azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port),
        "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with _running(command, port) as process:
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"
        cloud = Cloud("abfs", process, {"connection_string": text})
        cloud.client().mkdir("bucket")
        yield cloud


@contextmanager
def google() -> Iterator[Cloud]:
    _need("gcsfs", "gcp_storage_emulator", extra="kafkalog[gcs] gcp-storage-emulator")
    port = _free_port()
    command = [
        sys.executable, "-m", "gcp_storage_emulator", "start",
        "--host", "127.0.0.1", "--port", str(port), "--in-memory", "--quiet",
    ]  # fmt: skip
    with _running(command, port) as process:
        endpoint = f"http://127.0.0.1:{port}"
        made = urllib.request.Request(
            f"{endpoint}/storage/v1/b", b'{"name": "bucket"}', {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(made).close()
        yield Cloud("gs", process, {"endpoint_url": endpoint, "token": "anon"})
