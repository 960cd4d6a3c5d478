"""Asking a deadsure server over HTTP, with the standard library alone and through no proxy.

An answer that was lost is told apart from a question that was never sent: the first may have been carried out.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..runtime.errors import ConfigurationError, DeadsureError
from . import layers
from .config import DEFAULT_URL, environment
from .layers import OptionError
from .options import load_config
from .secret_file import read_secret

#: Seconds for a connection, and for an answer that does not wait for anything.
_CONNECT, _ANSWER = 5.0, 15.0


class ServerUnavailable(DeadsureError):
    """The server cannot be reached, or cannot reach its database."""


class Refused(DeadsureError):
    """The server answered, and did not do what was asked. `status` is the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx answer: its JSON as text, exactly as it came, and decoded."""

    url: str
    text: str
    value: dict[str, Any]
    etag: str | None = None

    def task(self) -> dict[str, Any]:
        """The task that was asked for. Raises Refused when this is none."""
        if isinstance(self.value.get("id"), str) and isinstance(self.value.get("state"), str):
            return self.value
        raise Refused(200, _strange(self.url))

    def page(self, of: str) -> list[dict[str, Any]]:
        """The page of tasks or events that was asked for. Raises Refused when this is none."""
        entries = self.value.get(of)
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            return entries
        raise Refused(200, _strange(self.url))


@dataclass(frozen=True, slots=True)
class Client:
    """A server by its URL, and who we are to it."""

    url: str
    token: str | None = None

    def get(self, path: str, headers: dict[str, str] | None = None, wait: float = 0.0) -> Answer:
        return self._ask("GET", path, None, headers or {}, wait)

    def post(self, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        return self._ask("POST", path, body, headers or {}, 0.0)

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str], wait: float) -> Answer:
        """One request. Raises ServerUnavailable or Refused."""
        connection = self._connect()
        try:
            connection.sock.settimeout(_ANSWER + wait)
            sent = headers | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
            if body is not None:
                sent["Content-Type"] = "application/json"
            prefix = urlsplit(self.url).path.rstrip("/")
            connection.request(method, prefix + path, None if body is None else body.encode(), sent)
            response = connection.getresponse()
            return _read(self.url, response.status, response.read(), response.getheader("ETag"))
        except (OSError, http.client.HTTPException) as error:
            doubt = "" if method == "GET" else "; it may have been carried out"
            raise ServerUnavailable(f"the answer of {self.url} was lost ({_why(error)}){doubt}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_CONNECT, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_CONNECT)
        try:
            connection.connect()
        except OSError as error:
            raise ServerUnavailable(
                f"no server answers at {self.url} ({_why(error)}); nothing was sent. Start one with `deadsure up` or "
                "`deadsure serve`, or name it with --url or DEADSURE_URL"
            ) from None
        return connection


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help=f"the server; else DEADSURE_URL, else {DEFAULT_URL}")


def client_of(arguments: Namespace) -> Client:
    """The server: --url, else DEADSURE_URL, else where the configuration has the API listen.

    Raises OptionError or ConfigurationError.
    """
    variables = environment()
    url = arguments.url or layers.variable(variables, "DEADSURE_URL")
    if url is None:
        url = f"http://{load_config(arguments).http.address.reachable}"
    elif wrong := _wrong(url):
        raise OptionError(f"--url: {wrong}") if arguments.url else ConfigurationError(f"DEADSURE_URL: {wrong}")
    file = layers.variable(variables, "DEADSURE_TOKEN_FILE")
    return Client(url, None if file is None else _token(Path(file)))


def _wrong(url: str) -> str | None:
    """What is wrong with a URL. It is not shown: it could hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "this is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "expected http://HOST:PORT or https://HOST:PORT"
    if parts.username is not None or parts.query or parts.fragment:
        return "a URL of the server has no user, no query and no fragment; the token comes from DEADSURE_TOKEN_FILE"
    return None


def _token(file: Path) -> str:
    token = read_secret(file)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"the token in {file} must be one word of visible ASCII characters")
    return token


def _read(url: str, status: int, body: bytes, etag: str | None) -> Answer:
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        value = None
    if 200 <= status < 300 and isinstance(value, dict):
        return Answer(url, text, value, etag)
    problem = value if isinstance(value, dict) else {}
    detail = problem.get("detail") or problem.get("title") or _strange(url)
    named = f"; the task is {problem['task_id']}" if "task_id" in problem else ""
    said = f"{detail}{named} (HTTP {status})"
    raise ServerUnavailable(said) if status == 503 else Refused(status, said)


def _integer(digits: str) -> int | float:
    """Python reads no integer of more than 4,300 digits; jsonb has some, and the rest of the answer is wanted."""
    return int(digits) if len(digits.lstrip("-")) <= 4300 else float(digits)


def _strange(url: str) -> str:
    return f"{url} does not answer as deadsure does"


def _why(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "timed out"
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__
