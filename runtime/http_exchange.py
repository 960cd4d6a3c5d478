"""One HTTP request and its answer, under one deadline, and always with the knowledge whether anything was sent.

The usual clients do not fit. Their timeouts count anew with every packet, so a server that drips can hold a caller for
ever; they follow redirects, try again by themselves, and read proxies from the environment. Here the deadline covers
everything from the look-up of the host's name to the last byte, and nothing is sent twice.
"""

from __future__ import annotations

import io
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Protocol

from .errors import DeadsureError

#: Bytes of an answer, its head and body together.
LARGEST_ANSWER = 1024 * 1024
_PIECE = 64 * 1024


class Unsent(DeadsureError):
    """Not one byte of the request was sent."""


class Broken(DeadsureError):
    """No whole answer came, and the request was sent in part or whole."""


@dataclass(frozen=True, slots=True)
class Server:
    """Whom to ask. `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Deadline:
    """So many seconds from now, by this process's steady clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left. Raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


def exchange(server: Server, request: bytes, seconds: float, sent: Callable[[], None] = lambda: None) -> Answer:
    """Send `request` and read the answer, all within `seconds`; `sent` is called between the last byte and the first.

    Raises Unsent when nothing left, Broken when something did and no whole answer came.
    """
    deadline = Deadline(seconds)
    try:
        connection = _open(server, deadline)
    except (OSError, ValueError) as error:
        raise Unsent(f"cannot reach {server.host}:{server.port}: {_text(error)}; nothing was sent") from None
    with connection:
        try:
            _send(connection, request, deadline)
            sent()
            return _receive(connection, request.split(b" ", 1)[0].decode("ascii"), deadline)
        except (OSError, HTTPException, ValueError, _TooLong) as error:
            raise Broken(f"no whole answer from {server.host}:{server.port}: {_text(error)}") from None


def _open(server: Server, deadline: Deadline) -> socket.socket:
    addresses = _resolve(server.host, server.port, deadline)
    connection = _connect(addresses, deadline)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.tls is None:
            return connection
        connection.settimeout(deadline.left())
        return server.tls.wrap_socket(connection, server_hostname=server.host)  # the handshake has one time-out
    except BaseException:
        connection.close()
        raise


Address = tuple[int, int, int, str, Any]


def _resolve(host: str, port: int, deadline: Deadline) -> list[Address]:
    """The host's addresses. A name is looked up beside us, because that cannot be interrupted and may take minutes."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    found: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            found.put(error if isinstance(error, OSError) else OSError(str(error)))

    threading.Thread(target=look_up, daemon=True, name="look up a host's name").start()
    try:
        addresses = found.get(timeout=deadline.left())
    except queue.Empty:
        raise TimeoutError("its name was not found in time") from None
    if isinstance(addresses, OSError):
        raise addresses
    return addresses


def _connect(addresses: list[Address], deadline: Deadline) -> socket.socket:
    """The first address that answers; each gets an equal part of the time that is left."""
    problem: OSError = OSError("its name has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(deadline.left() / (len(addresses) - number))
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            problem = error
    raise problem


def _send(connection: socket.socket, request: bytes, deadline: Deadline) -> None:
    rest = memoryview(request)
    while rest:
        connection.settimeout(deadline.left())
        rest = rest[connection.send(rest[:_PIECE]) :]


def _receive(connection: socket.socket, method: str, deadline: Deadline) -> Answer:
    response = HTTPResponse(_Reader(connection, deadline), method=method)  # type: ignore[arg-type]
    with response:
        response.begin()
        if response.length is not None and response.length > LARGEST_ANSWER:
            raise _TooLong
        body = response.read(LARGEST_ANSWER + 1)
        if len(body) > LARGEST_ANSWER:
            raise _TooLong
        if response.length:
            raise HTTPException("the answer was cut off")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)


class _TooLong(Exception):
    def __str__(self) -> str:
        return f"the answer has more than {LARGEST_ANSWER} bytes"


class _Socket(Protocol):
    def settimeout(self, seconds: float | None, /) -> None: ...
    def recv_into(self, buffer: Any, /) -> int: ...


class _Reader(io.RawIOBase):
    """What HTTPResponse reads from: every read waits for what is left of the one deadline, and all are counted."""

    def __init__(self, connection: _Socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline
        self._room = LARGEST_ANSWER * 2  # a chunked body has more bytes on the wire than it says

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._deadline.left())
        count = self._connection.recv_into(buffer)
        self._room -= count
        if self._room < 0:
            raise _TooLong
        return count


def _text(error: BaseException) -> str:
    """In words, without what the server sent."""
    if isinstance(error, HTTPException) and str(error) != "the answer was cut off":
        return "it is no HTTP answer"
    return str(error) or type(error).__name__
