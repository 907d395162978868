"""The server of the live page: its addresses, its threads, and its end.

Reading runs in READERS threads at a time; other requests wait, which costs little memory.  The page asks for new
records once a second while it is looked at.  Such a request ends at once, so a client that is slow, hidden or gone
holds nothing, as it would with a stream of events.  A download holds one thread; more than
DOWNLOADS at a time are refused.  The threads are daemons: they only read, so the process may end while they work.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from kafkalog.errors import BadBytesError, DiskError, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.ui import api
from kafkalog.ui.downloads import (
    MEDIA_TYPES,
    Download,
    Downloads,
    Pipe,
    check_format,
    file_name,
    run,
    write_records,
)
from kafkalog.ui.guard import App, Guard, Receive, Scope, Send, is_address
from kafkalog.ui.schemas import Schemas
from kafkalog.ui.views import Views
from kafkalog.ui.watch import Watch

T = TypeVar("T")

READERS = 2
DOWNLOADS = 2
GONE_S = 0.5  # how often a download that has found nothing yet looks whether its client is still there
FIRST_S = 1.0  # how long a request waits for the first survey
CONNECTIONS_MAX = 256
HEAD_BYTES_MAX = 64 << 10
HEAD_S = 10.0  # how long a request may take to come
LOOPBACK = "127.0.0.1"
JSON = "application/json"


class Live:
    """The state that requests share: the views of the directories, and the survey.

    `make_survey` returns the survey as JSON.  `page` has the files of the page by name, each with its media type.
    `empty` is a survey of nothing, which the page shows until there is one.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        make_survey: Callable[[], bytes],
        page: Mapping[str, tuple[str, bytes]],
        schemas: Schemas | None = None,
        empty: Mapping[str, Any] | None = None,
    ) -> None:
        self.views = Views(log_dirs)
        self.watch = Watch(log_dirs, make_survey)
        self.page = page
        self.empty = {} if empty is None else empty
        self.schemas = Schemas() if schemas is None else schemas
        self.downloads = Downloads()
        self.downloading = asyncio.Semaphore(DOWNLOADS)
        self._reading = asyncio.Semaphore(READERS)

    def close(self) -> None:
        """Ends the survey's thread and closes the views."""
        self.watch.close()
        self.views.close()

    async def read(self, request: Request, call: Callable[[], T]) -> T | None:
        """Returns the result of a call in a thread; None if the client is gone before its turn."""
        async with self._reading:
            if await request.is_disconnected():
                return None
            return await in_thread(call)


async def in_thread(call: Callable[[], T]) -> T:
    """Returns the result of a call in a daemon thread.  A request that is cancelled does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        try:
            result, error = call(), None
        except BaseException as problem:
            result, error = None, problem
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the server has ended
            return

    threading.Thread(target=work, name="kafkalog-ui", daemon=True).start()
    return await done


def status_of(error: BaseException) -> int:
    """Returns the HTTP status for an error."""
    if isinstance(error, UnknownTopicOrPartitionException):
        return 404
    if isinstance(error, (BadBytesError, DiskError)) or not isinstance(error, KafkalogError):
        return 500
    return 400


def problem(error: KafkalogError | OSError) -> Response:
    """Returns an error as words for the page."""
    hint = error.hint if isinstance(error, KafkalogError) else None
    text = error.message if isinstance(error, KafkalogError) else str(error)
    where = {"path": error.path, "position": error.position} if isinstance(error, KafkalogError) else {}
    answer = {"error": " ".join(text.split()), "hint": hint, **where}
    return Response(api.as_json(answer), status_of(error), media_type=JSON)


def application(live: Live) -> Starlette:
    """Returns the application without its guard."""

    def answering(ask: Callable[[Request], Mapping[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                found = await live.read(request, lambda: api.as_json(ask(request)))
            except (KafkalogError, OSError) as error:
                return problem(error)
            return Response(b"" if found is None else found, media_type=JSON)

        return endpoint

    async def survey(request: Request) -> Response:
        seen = live.watch.latest()
        if seen.survey is None and seen.error is None:
            seen = await in_thread(functools.partial(live.watch.first, FIRST_S))
        if seen.error is not None:
            # A page that was just loaded has no survey that it could go on showing.
            answer = {"error": seen.error} | ({} if "if-none-match" in request.headers else {"empty": live.empty})
            return Response(api.as_json(answer), 503, media_type=JSON)
        if seen.survey is None or seen.tag is None:
            return Response(api.as_json({"reading": True, "empty": live.empty}), 202, media_type=JSON)
        headers = {"ETag": seen.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == seen.tag:
            return Response(status_code=304, headers=headers)
        return Response(seen.survey, headers=headers, media_type=JSON)

    async def file(request: Request) -> Response:
        found = live.page.get(request.path_params.get("name", "page.html"))
        if found is None:
            return Response("Not found.\n", 404, media_type="text/plain")
        media_type, content = found
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    async def download_state(request: Request) -> Response:
        found = live.downloads.get(request.query_params.get("name", ""))
        return Response(api.as_json({"state": "unknown"} if found is None else found.as_row()), media_type=JSON)

    async def records_file(request: Request) -> Response:
        params = request.query_params
        try:
            kind = check_format(params.get("format"))
            question = await in_thread(lambda: api.question_of(live.views, params))
            last = api.number_of(params, "last-records")
        except (KafkalogError, OSError) as error:
            return problem(error)
        told = live.downloads.begin(params.get("name", "")[:100])
        pipe = Pipe(asyncio.get_running_loop(), told)

        def work() -> None:
            write_records(live.views, question.partitions, question.selection, kind, pipe, told, last=last)

        name = file_name(question.topic, ending=kind)
        return await streamed(request, live, pipe, functools.partial(run, work, pipe, told), name, MEDIA_TYPES[kind])

    async def bytes_file(request: Request) -> Response:
        params = request.query_params
        told = Download()
        pipe = Pipe(asyncio.get_running_loop(), told)

        def work() -> None:
            pipe.write(api.octets_asked(live.views, params))

        name = file_name(
            params.get("topic", ""), params.get("partition", ""), params.get("offset", ""), params.get("of", ""),
            ending="bin",
        )  # fmt: skip
        media_type = "application/octet-stream"
        return await streamed(request, live, pipe, functools.partial(run, work, pipe, told), name, media_type)

    routes = [
        Route("/", file),
        Route("/page/{name}", file),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/api/survey", survey),
        Route("/api/topics", answering(lambda request: api.topics(live.views))),
        Route("/api/records", answering(lambda request: api.records(live, request.query_params))),
        Route("/api/record", answering(lambda request: api.record(live, request.query_params))),
        Route("/api/place", answering(lambda request: api.place(live.views, request.query_params))),
        Route("/api/download", download_state),
        Route("/download/records", records_file),
        Route("/download/bytes", bytes_file),
    ]
    return Starlette(routes=routes)


async def streamed(
    request: Request, live: Live, pipe: Pipe, work: Callable[[], None], name: str, media_type: str
) -> Response:
    """Returns a file that a thread writes while it is sent; it is for saving only."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if request.method == "HEAD":  # nothing is read for it
        pipe.told.state = "cancelled"
        return Response(headers=headers, media_type=media_type)
    if live.downloading.locked():
        text = f"{DOWNLOADS} downloads are running already: try again when one has ended"
        pipe.told.state, pipe.told.said = "failed", text
        return Response(api.as_json({"error": text}), 503, media_type=JSON)
    await live.downloading.acquire()
    begun = False
    try:
        threading.Thread(target=work, name="kafkalog-download", daemon=True).start()
        waiting = asyncio.ensure_future(pipe.first())
        while not (await asyncio.wait({waiting}, timeout=GONE_S))[0]:
            if await request.is_disconnected():
                waiting.cancel()
                return Response(status_code=204)  # to nobody
        first = waiting.result()
        begun = True
    except (KafkalogError, OSError) as error:
        return problem(error)
    finally:
        if not begun:
            pipe.cancelled = True
            live.downloading.release()
    return _File(live, pipe, first, headers=headers, media_type=media_type)


class _File(StreamingResponse):
    """Sends the pieces of a download, whose place it frees at the end, even if sending never began."""

    def __init__(self, live: Live, pipe: Pipe, first: bytes | None, **more: Any) -> None:
        super().__init__(pipe.pieces(first), **more)
        self._live, self._pipe = live, pipe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pipe.cancelled = True
            self._live.downloading.release()


def guarded(live: Live, token: str, port: int, listen: str = LOOPBACK) -> App:
    """Returns the application that answers only who has the token."""
    own = {listen.lower(), "localhost", LOOPBACK, "::1"} if is_loopback(listen) else None
    return Guard(application(live), token, port, None if own is None else frozenset(own))


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches an address."""
    import ipaddress

    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; port 0 takes a free one.  Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=128)
    found.setblocking(False)
    return found


def address(host: str, port: int, token: str) -> str:
    """Returns the address to open in a browser."""
    shown = LOOPBACK if host in ("0.0.0.0", "::", "") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={token}"


def new_token() -> str:
    """Returns a random token."""
    return secrets.token_urlsafe(24)


class _Server(uvicorn.Server):
    """Ends at once when it is interrupted: its requests only read."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.should_exit = self.force_exit = True
        logging.getLogger("uvicorn.error").disabled = True  # a request that ends now is no error


class _Protocol(H11Protocol):
    """Ends a connection on which no whole request has come for HEAD_S seconds, so that such ones do not use up
    CONNECTIONS_MAX."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S, self._end)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._late.cancel()
        self._late = self.loop.call_later(HEAD_S, self._end)

    def _end(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def serve(app: App, at: socket.socket, ready: Callable[[], None] | None = None) -> None:
    """Serves until interrupted, which is the ordinary end."""
    config = uvicorn.Config(
        app, http=_Protocol, ws="none", loop="asyncio", lifespan="off", log_level="error", access_log=False,
        server_header=False, limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=5,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX, log_config=None,
    )  # fmt: skip
    if ready is not None:
        ready()
    try:
        _Server(config).run(sockets=[at])
    except KeyboardInterrupt:
        return
    finally:
        at.close()
