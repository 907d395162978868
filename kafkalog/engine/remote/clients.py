"""The clients of object stores that fsspec knows (s3fs, gcsfs, adlfs).

This module knows which package contains a client, the names of its errors, which of its options are not secret, and how
to limit its waiting.  By default, the clients wait without end for a server that does not answer, and retry several
times for each of our attempts.  `BOUND` has the function that limits each scheme's client; their settings cover little
of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PART_BYTES = 8 << 20  # size of a part of a multipart upload
SLOWEST_BYTES_PER_S = 64 << 10  # the slowest accepted upload; a part gets this time in addition to a request's timeout
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")  # user name and password
# The extra of kafkalog that installs the client of a scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
# Options whose values are not secret.
_SHOWN = {"endpoint_url", "endpoint", "region_name", "profile", "project", "account_name", "container_name"}
# Names of the clients' errors (botocore, google-auth, azure-identity) for missing credentials, for which a retry is
# useless.
NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
    "DefaultCredentialsError", "ClientAuthenticationError", "AzureSigningError",
}  # fmt: skip
NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|No such container|(bucket|container) does(n't| not) exist", re.IGNORECASE
)
# the errors of gcsfs contain only the request's path
NO_GCS_BUCKET = re.compile(r"(^|/)b/[^/\s]+/o(\?name=\S*)?(\s|$)")


def is_behind_end(error: BaseException) -> bool:
    """Returns whether a storage refuses a range of bytes because it begins after the object's end (HTTP 416).

    Each client stores the status in another attribute, and some chain it to another error.
    """
    seen: BaseException | None = error
    while seen is not None:
        told: Any = getattr(seen, "response", None)
        told = told.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(told, Mapping) else None
        if 416 in (told, *(getattr(seen, name, None) for name in ("status", "status_code", "code"))):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class ClientOptions:
    """The options of a storage's client: finds the option that an error names, and hides secrets in a text."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._leaves = list(_leaves(options))

    def named_in(self, text: str) -> str | None:
        """Returns the option that a client's error names, by its name or its value."""
        for path, value in self._leaves:
            name = path.rpartition(".")[2]
            if f"'{name}'" in text or f'"{name}"' in text or (name in _SHOWN and str(value) in text):
                return path
        return None

    def hidden(self, text: str) -> str:
        for path, value in self._leaves:
            if isinstance(value, str) and len(value) > 3 and path.rpartition(".")[2] not in _SHOWN:
                text = text.replace(value, "***")
        return _IN_ADDRESS.sub("***@", text)


def _leaves(options: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{lead}{name}.")
        else:
            yield f"{lead}{name}", value


def _bound_s3(fs: Any, timeout_s: float) -> None:
    """Limits how long s3fs waits, and how often it retries.

    It would wait without end for a server that does not accept a part of an upload, and retry several times for each of
    our attempts.  Each `Objects` that shares a file system limits it again.
    """
    import asyncio

    from fsspec.asyn import sync_wrapper

    async def call(method: str, *args: Any, **how: Any) -> Any:
        limit_s = timeout_s + len(how["Body"]) / SLOWEST_BYTES_PER_S if "Body" in how else None
        return await asyncio.wait_for(type(fs)._call_s3(fs, method, *args, **how), limit_s)

    fs.retries = 1
    fs._call_s3, fs.call_s3 = call, sync_wrapper(call, fs)


def _bound_gcs(fs: Any, timeout_s: float) -> None:
    """Limits gcsfs likewise; it keeps one retry of its own, for a part of an upload that fails once."""
    import asyncio
    from types import MethodType

    from fsspec.asyn import sync_wrapper
    from gcsfs.retry import retry_request

    async def call(method: str, path: str, *args: Any, **how: Any) -> Any:
        data = how.get("data") or b""
        size = data.getbuffer().nbytes if hasattr(data, "getbuffer") else len(data)
        limit_s = timeout_s + size / SLOWEST_BYTES_PER_S
        return await asyncio.wait_for(type(fs)._call(fs, method, path, *args, **how), limit_s)

    fs._request = MethodType(retry_request(retries=2)(type(fs)._request.__wrapped__), fs)
    fs._call, fs.call = call, sync_wrapper(call, fs)


def _bound_azure(fs: Any, timeout_s: float) -> None:
    """Limits adlfs likewise.

    Its client has no settings for that, so its policies and its transport are changed.  A file is uploaded in parts,
    because the client would otherwise hold up to 64 MiB of it in memory.
    """
    import asyncio

    client = fs.service_client
    transport = client._pipeline._transport

    async def send(request: Any, **how: Any) -> Any:
        limit_s = timeout_s + int(request.headers.get("Content-Length") or 0) / SLOWEST_BYTES_PER_S
        return await asyncio.wait_for(type(transport).send(transport, request, **how), limit_s)

    transport.send = send
    config = client._config
    retry = config.retry_policy  # only one retry of its own, after 0 to 2 s
    retry.total_retries, retry.initial_backoff, retry.increment_base, retry.random_jitter_range = 1, 0, 1, 1
    config.max_single_put_size = config.max_block_size = PART_BYTES


BOUND = {"s3": _bound_s3, "s3a": _bound_s3, "gs": _bound_gcs, "gcs": _bound_gcs}
BOUND |= dict.fromkeys(("abfs", "abfss", "az"), _bound_azure)
