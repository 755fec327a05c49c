"""A small HTTP/1.1 server on asyncio streams: keep-alive, JSON in, JSON or server-sent events out.

Enough for a load generator and no more; it answers local clients only. It is used instead of a web framework because
the emulator writes thousands of events a second beside a scheduler that must keep time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MAX_HEAD_BYTES = 65536
MAX_BODY_BYTES = 64 * 2**20
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 411: "Length Required", 413: "Content Too Large"}
REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}
EMULATED_HEADER = b"X-Tonnage-Emulated: true\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body."""

    method: str
    path: str
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises ValueError."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = "application/json"

    @classmethod
    def of(cls, data: Any, status: int = 200) -> Response:
        """JSON."""
        return cls(status, json.dumps(data).encode())


class EventStream:
    """A chunked answer of server-sent events, written as they come."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._started = False

    @property
    def closed(self) -> bool:
        """Whether the client has gone."""
        return self._writer.is_closing()

    def send(self, data: bytes) -> None:
        """Write one event."""
        if self.closed:
            return
        event = b"data: " + data + b"\n\n"
        head = b""
        if not self._started:
            self._started = True
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
                + EMULATED_HEADER
                + b"Transfer-Encoding: chunked\r\n\r\n"
            )
        self._writer.write(head + f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def end(self) -> None:
        """Write the last chunk."""
        if not self.closed:
            self._writer.write(b"0\r\n\r\n")


Handler = Callable[[Request, EventStream], Awaitable[Response | None]]


async def _read_request(reader: asyncio.StreamReader) -> Request | Response | None:
    """The next request, an error to answer with, or None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        return Response.of({"error": "head too large"}, 413)
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3:
        return Response.of({"error": "malformed request line"}, 400)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        return Response.of({"error": "send a content length"}, 411)
    length = headers.get("content-length", "0")
    if not length.isdigit():
        return Response.of({"error": "malformed content length"}, 400)
    if int(length) > MAX_BODY_BYTES:
        return Response.of({"error": "body too large"}, 413)
    body = await reader.readexactly(int(length))
    return Request(parts[0], parts[1].partition("?")[0], body)


def _write_response(writer: asyncio.StreamWriter, response: Response) -> None:
    head = f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Unknown')}\r\n"
    head += f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
    writer.write(head.encode() + EMULATED_HEADER + b"\r\n" + response.body)


async def serve(host: str, port: int, handler: Handler) -> asyncio.Server:
    """Listen; raises OSError when the port cannot be bound."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader)) is not None:
                if isinstance(request, Response):
                    _write_response(writer, request)
                    break
                response = await handler(request, EventStream(writer))
                if response is not None:
                    _write_response(writer, response)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(connection, host, port, limit=MAX_HEAD_BYTES, backlog=1024)
