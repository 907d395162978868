"""The guard of the server checks each request before it is answered, and gives every answer its headers.

An answer needs the token: from the address once, which sets a cookie, and from the cookie afterwards.  The Host header
must name the address that is listened on, so that no name of another site leads here.  Only GET and HEAD are answered,
and no other origin may read an answer.  The policy lets a page run only this server's own scripts.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN = "token"
OTHERS = ("cross-site", "same-site")  # another port of the same host is of the same site
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "connect-src 'self'", "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
    )
)  # fmt: skip
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
NO_TOKEN = (
    "This page needs its token. Open the address that `kafkalog ui` has printed, with ?token=... at its end. "
    "Another start of the command has another token.\n"
)
NO_HOST = "This server does not answer for that host name. Open the address that `kafkalog ui` has printed.\n"
NO_METHOD = "This server only reads: it answers GET and HEAD.\n"
NO_ORIGIN = "Another site may not ask this server.\n"


class Guard:
    """An ASGI application that lets through only who has the token.

    `hosts` are the names in Host that are accepted, without ports; None accepts every address, but no name other than
    localhost.  `port` is in the name of the cookie, since a browser sends cookies to every port of a host.
    """

    def __init__(self, app: App, token: str, port: int, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self.cookie = f"kafkalog-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_host(headers.get(b"host", "")):
            await _refuse(send, 421, NO_HOST)
        elif scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, NO_METHOD, (b"allow", b"GET, HEAD"))
        elif headers.get(b"sec-fetch-site", "none") in OTHERS and headers.get(b"sec-fetch-mode") != "navigate":
            await _refuse(send, 403, NO_ORIGIN)
        else:
            await self._with_token(scope, receive, send, headers.get(b"cookie", ""))

    async def _with_token(self, scope: Scope, receive: Receive, send: Send, cookies: str) -> None:
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in pairs if name == TOKEN]
        if given:
            if not self._is_token(given[0]):
                await _refuse(send, 401, NO_TOKEN)
                return
            rest = urlencode([pair for pair in pairs if pair[0] != TOKEN])
            place = quote("/" + scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
            cookie = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, b"", (b"location", place.encode()), (b"set-cookie", cookie.encode()))
            return
        if not self._is_token(self._of_cookie(cookies)):
            await _refuse(send, 401, NO_TOKEN)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *HEADERS,
                    *(() if b"cache-control" in own else ((b"cache-control", b"no-store"),)),
                ]
            await send(message)

        await self._app(scope, receive, guarded)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token.encode())

    def _of_cookie(self, cookies: str) -> str:
        # Not by http.cookies: that drops every cookie if another server of this host has set one that it cannot read.
        found = dict(pair.strip().partition("=")[::2] for pair in cookies.split(";"))
        return found.get(self.cookie, "")

    def _is_host(self, host: str) -> bool:
        name = host_name(host)
        if self._hosts is not None:
            return name in self._hosts
        return name == "localhost" or is_address(name)


def host_name(host: str) -> str:
    """Returns the name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def is_address(name: str) -> bool:
    """Returns whether a name is an IP address, which no other site's name can be."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    await _answer(send, status, text.encode(), (b"content-type", b"text/plain; charset=utf-8"), *headers)


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [length, (b"cache-control", b"no-store"), *headers, *HEADERS],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
