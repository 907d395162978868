"""The clients of object stores that fsspec knows (s3fs, gcsfs, adlfs): which package has one, the words of its errors,
what of its options may be shown, and how long it may wait.

Left to themselves they wait without end for a server that says nothing, and try again several times for each of our
tries.  `BOUND` has for each scheme what bounds its client, which has settings for little of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PART_BYTES = 8 << 20  # of a multipart upload
SLOWEST_BYTES_PER_S = 64 << 10  # of an upload's part, beyond the time that each request has
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")  # who asks, and a password
# Whose client package a scheme wants.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
# Options whose values are no secrets.
_SHOWN = {"endpoint_url", "endpoint", "region_name", "profile", "project", "account_name", "container_name"}
# Names of clients' errors (botocore, google-auth, azure-identity): nobody comes with credentials meanwhile.
NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
    "DefaultCredentialsError", "ClientAuthenticationError", "AzureSigningError",
}  # fmt: skip
NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|No such container|(bucket|container) does(n't| not) exist", re.IGNORECASE
)
NO_GCS_BUCKET = re.compile(r"(^|/)b/[^/\s]+/o(\?name=\S*)?(\s|$)")  # gcsfs has nothing but the request's path


def is_behind_end(error: BaseException) -> bool:
    """Whether a storage refuses a range of bytes because it begins behind the object's end (HTTP 416).  Each client
    has the status elsewhere, and some behind an error of their own."""
    seen: BaseException | None = error
    while seen is not None:
        told: Any = getattr(seen, "response", None)
        told = told.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(told, Mapping) else None
        if 416 in (told, *(getattr(seen, name, None) for name in ("status", "status_code", "code"))):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class ClientOptions:
    """The options of a storage's client: which of them an error is about, and a text without what they hide."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._leaves = list(_leaves(options))

    def named_in(self, text: str) -> str | None:
        """The option that a client's error names, by its name or what it was set to."""
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
    """Clients would wait without end for a server that is to take a part of an upload and says nothing; and try again
    by themselves, several times for each of ours.  A file system is bound anew for each `Objects` that share it."""
    import asyncio

    from fsspec.asyn import sync_wrapper

    async def call(method: str, *args: Any, **how: Any) -> Any:
        limit_s = timeout_s + len(how["Body"]) / SLOWEST_BYTES_PER_S if "Body" in how else None
        return await asyncio.wait_for(type(fs)._call_s3(fs, method, *args, **how), limit_s)

    fs.retries = 1
    fs._call_s3, fs.call_s3 = call, sync_wrapper(call, fs)


def _bound_gcs(fs: Any, timeout_s: float) -> None:
    """The same for gcsfs, which keeps one more try of its own: for a part of an upload that meets a hiccup."""
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
    """The same for adlfs, whose client has no settings for it: its policies and its transport are changed.  And a file
    goes in parts, where the client would have up to 64 MiB of it in memory at once."""
    import asyncio

    client = fs.service_client
    transport = client._pipeline._transport

    async def send(request: Any, **how: Any) -> Any:
        limit_s = timeout_s + int(request.headers.get("Content-Length") or 0) / SLOWEST_BYTES_PER_S
        return await asyncio.wait_for(type(transport).send(transport, request, **how), limit_s)

    transport.send = send
    config = client._config
    retry = config.retry_policy  # of its own only one more try, after 0 to 2 s
    retry.total_retries, retry.initial_backoff, retry.increment_base, retry.random_jitter_range = 1, 0, 1, 1
    config.max_single_put_size = config.max_block_size = PART_BYTES


BOUND = {"s3": _bound_s3, "s3a": _bound_s3, "gs": _bound_gcs, "gcs": _bound_gcs}
BOUND |= dict.fromkeys(("abfs", "abfss", "az"), _bound_azure)
