"""JSON-RPC over HTTP: POST / for calls, a WebSocket at / for calls and subscriptions, on one port.

The interface holds keys, so everybody else who can reach the port is a danger, above all web pages in the operator's
browser, which can send requests to any address. But the browser says where the page comes from (Origin) and which name
it used (Host), so DNS rebinding, which makes a name of the page's own mean 127.0.0.1, is noticed. And before it sends
application/json, a browser asks for permission, which nobody here gives. Programs other than browsers are kept out by
the token.

When there is no room, the oldest connection that has not passed these checks is dropped, never one that has.
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from mailserver.api.caller import Call, Caller
from mailserver.api.dispatch import BATCH_TIMEOUT_S, CALL_TIMEOUT_S, MAX_TEXT_BYTES, Dispatcher
from mailserver.errors import ConnectionLost, StartupError
from mailserver.net.loopback import is_loopback_only, names_loopback

MAX_CONNECTIONS = 64
"""Maximum number of connections, including WebSockets. Each may hold an incoming text and outgoing answers."""

MAX_CALLS_AT_ONCE = 4
"""How many texts of one WebSocket are handled at once. No more are read meanwhile. With more than one, a long proof of
work does not hold up other calls."""

MAX_HEADERS = 64
MAX_HEADER_BYTES = 4096
"""Maximum number of header lines of a request, and maximum length of each and of the request line. Browsers send some
twenty."""

BODY_TIMEOUT_S = 10.0
"""How long the body of a request may take to arrive."""

WRITE_TIMEOUT_S = 20.0
"""How long a caller may take to read an answer before its connection is cut."""

IDLE_TIMEOUT_S = 30.0
"""How long a connection may be open without a complete request."""

PING_INTERVAL_S = 30.0
"""How often a WebSocket is pinged. Proxies close connections that are silent for a minute."""

SILENCE_TIMEOUT_S = BATCH_TIMEOUT_S + CALL_TIMEOUT_S
"""How long a WebSocket may be silent before it is pinged and then has half as long to answer. While MAX_CALLS_AT_ONCE
texts are being handled and more are waiting, nothing is read, not even a pong."""

LINGER_S = 1.0
"""How long the body of a refused request is read and discarded, so that the refusal arrives."""

STOP_TIMEOUT_S = 0.25
"""How long callers have to receive our close frame, how long calls have to end on their own, and how long they have to
end when cancelled."""

BACKLOG = MAX_CONNECTIONS
JSON_TYPE = "application/json"


class _NotTheirFaults(logging.Filter):
    """Drops log lines about malformed HTTP, which is the sender's fault: strangers must not fill our log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger(__name__)
http_log = logging.getLogger(f"{__name__}.http")
http_log.addFilter(_NotTheirFaults())

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Refused(asyncio.Protocol):
    """Closes a connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all methods of asyncio.Transport, but do not derive from it.
        cast(asyncio.Transport, transport).abort()


class RpcServer:
    """Listens, checks callers, and passes their texts to the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, *, token: str | None) -> None:
        """Prepare to listen.

        Args:
            token: what callers must send as `Authorization: Bearer ..`; None lets in every process of this machine.
        """
        self._dispatcher = dispatcher
        self._token = None if token is None else token.encode()
        self._server: asyncio.Server | None = None
        self._is_loopback = True
        self._strangers: dict[web.RequestHandler, None] = {}  # not yet checked, oldest first; some may have gone
        self._sockets: dict[web.WebSocketResponse, asyncio.Transport | None] = {}
        app = web.Application(client_max_size=MAX_TEXT_BYTES, middlewares=[self._check])
        app.router.add_post("/", self._on_post)
        app.router.add_get("/", self._on_get, allow_head=False)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_log,
            handler_cancellation=True,  # no proof of work is sought for a caller that has hung up
            shutdown_timeout=STOP_TIMEOUT_S,
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=LINGER_S,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            auto_decompress=False,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is `port` unless that is 0.

        Raises:
            StartupError: others can reach the address, and there is no token.
            OSError: the address cannot be used.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._on_accept, host, port, backlog=BACKLOG, start_serving=False)
        except OSError:
            await self._runner.cleanup()
            raise
        self._is_loopback = is_loopback_only(self._server.sockets)
        if self._token is None and not self._is_loopback:
            await self.stop()
            raise StartupError(f"JSON-RPC on {host} can be reached from other machines: that needs a token")
        await self._server.start_serving()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop accepting, close WebSockets, and end all calls, within three times STOP_TIMEOUT_S."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(self._close(socket) for socket in list(self._sockets)))
        await self._runner.cleanup()

    async def _close(self, socket: web.WebSocketResponse) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the mailserver is stopping")
                return
        _cut(self._sockets.get(socket))

    # Who may call.

    def _on_accept(self) -> asyncio.Protocol:
        http = self._runner.server
        assert http is not None
        connected = http.connections
        if len(self._strangers) >= 2 * MAX_CONNECTIONS:  # forget those that have gone
            self._strangers = {stranger: None for stranger in self._strangers if stranger in connected}
        if len(connected) >= MAX_CONNECTIONS and not self._drop_stranger(connected):
            return _Refused()
        protocol = http()
        self._strangers[protocol] = None
        return protocol

    def _drop_stranger(self, connected: list[web.RequestHandler]) -> bool:
        """Drop the oldest connection that has not passed the checks; return whether there was one."""
        for stranger in list(self._strangers):
            del self._strangers[stranger]
            if stranger in connected:
                stranger.force_close()
                return True
        return False

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let only permitted callers through."""
        problem = self._origin_problem(request)
        if problem is not None:
            raise web.HTTPForbidden(text=problem)
        if not self._is_authorized(request):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"}, text="a bearer token is required")
        self._strangers.pop(request.protocol, None)
        return await handler(request)

    def _origin_problem(self, request: web.Request) -> str | None:
        host = request.headers.get("Host", "")
        if self._is_loopback and not names_loopback(host):
            return "Host is not localhost, 127.0.0.1 or [::1]"
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{host}".lower():
            return "requests from web pages are refused"
        return None

    def _is_authorized(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # The comparison takes a time that does not reveal how much of the token is right.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)

    # Calls.

    async def _on_post(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != JSON_TYPE or "Content-Encoding" in request.headers:
            raise web.HTTPUnsupportedMediaType(text=f"send {JSON_TYPE}, uncompressed")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError as error:
            raise web.HTTPRequestTimeout(text=f"no complete request within {BODY_TIMEOUT_S:g} s") from error
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text="the body is malformed") from error
        answer = await self._dispatcher.answer(body, Call(Caller()))
        # 200 even if there is no answer: clients accept nothing else in reply to a notification.
        response = web.Response(body=(answer or "").encode(), content_type=JSON_TYPE)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            _cut(request.transport)
        return response

    async def _on_get(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            timeout=STOP_TIMEOUT_S, heartbeat=SILENCE_TIMEOUT_S, compress=False, max_msg_size=MAX_TEXT_BYTES
        )
        if not socket.can_prepare(request):
            raise web.HTTPUpgradeRequired(text="POST calls here, or open a WebSocket")
        await socket.prepare(request)
        self._sockets[socket] = request.transport
        caller = Caller(lambda text: self._send(socket, text))
        try:
            async with asyncio.TaskGroup() as calls:
                await self._receive(socket, caller, calls)
        finally:
            del self._sockets[socket]
            await caller.end()
        return socket

    async def _receive(self, socket: web.WebSocketResponse, caller: Caller, calls: asyncio.TaskGroup) -> None:
        """Read texts and answer each in a task of its own, until the WebSocket closes."""
        room = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        tasks = {calls.create_task(self._ping(socket))}

        async def answer(text: str) -> None:
            call = Call(caller)
            try:
                answer = await self._dispatcher.answer(text, call)
                if answer is not None:
                    with contextlib.suppress(ConnectionLost):
                        await self._send(socket, answer)
                call.answered.set()
            finally:
                room.release()

        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    await socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"text messages only")
                    return
                await room.acquire()
                task = calls.create_task(answer(message.data))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:  # nobody is left to receive the answers
                task.cancel()

    async def _ping(self, socket: web.WebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(PING_INTERVAL_S)
                await socket.ping()

    async def _send(self, socket: web.WebSocketResponse, text: str) -> None:
        """Send a text. Wait while the caller does not read; cut its connection if that takes too long.

        Raises:
            ConnectionLost: the connection has ended.
        """
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await socket.send_str(text)
        except TimeoutError as error:
            _cut(self._sockets.get(socket))
            raise ConnectionLost(None, "the caller does not read") from error
        except ConnectionError as error:
            raise ConnectionLost(None, "the caller is gone") from error


def _cut(transport: asyncio.Transport | None) -> None:
    """End the connection of a caller that does not read."""
    if transport is not None:
        log.debug("caller cut address=%s", (transport.get_extra_info("peername") or "?")[0])
        transport.abort()
