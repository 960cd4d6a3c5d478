"""Requests that are refused before anybody looks at what they ask."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from . import problems
from .problems import Problem
from .settings import ApiSettings

#: Bytes of a request's target and headers. The server reads a little more before it gives up by itself.
LARGEST_HEAD = 16 * 1024
MOST_HEADERS = 100

_ABSOLUTE = re.compile(rb"(?i:https?)://([^/]*)(/.*)?")


class Guard:
    """Middleware: what two servers could read differently, what is too large, and browsers from another site.

    An open API on loopback is reachable by every page that this machine's browser shows: by a cross-site request
    (its Origin tells), or by a name that its owner lets point here (DNS rebinding; the Host tells). With tokens
    neither is of use, and a proxy in front may use any name.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._open = not settings.tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http":
            scope = _in_origin_form(scope)
            headers = Headers(scope=scope)
            problem = _malformed(scope, headers) or (self._foreign(headers) if self._open else None)
            if problem is not None:
                await problems.respond(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign(self, headers: Headers) -> Problem | None:
        host = headers.get("host")
        if host is not None and not _is_loopback(host):
            return Problem(403, "foreign-host", "this API is open on loopback only, and Host names something else")
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != (host or "").lower():
            return Problem(403, "cross-site-request", "a page from another site may not call this API")
        return None


def _malformed(scope: Scope, headers: Headers) -> Problem | None:
    """After these the connection cannot be trusted any more."""
    close = {"Connection": "close"}
    if not scope["http_version"].startswith("1."):
        return Problem(400, "malformed-request", "this server speaks HTTP/1.1 and HTTP/1.0", close)
    if "transfer-encoding" in headers and "content-length" in headers:
        # RFC 9112, section 6.1: an attempt at smuggling.
        detail = "Content-Length and Transfer-Encoding exclude each other"
        return Problem(400, "malformed-request", detail, close)
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in headers.raw)
    if size > LARGEST_HEAD or len(headers.raw) > MOST_HEADERS:
        detail = f"target and headers may have {LARGEST_HEAD} bytes, and the headers be {MOST_HEADERS}"
        return Problem(431, "headers-too-large", detail, close)
    return None


def _in_origin_form(scope: Scope) -> Scope:
    """A target may be a whole URL, and then its authority counts instead of Host (RFC 9112, section 3.2.2)."""
    found = _ABSOLUTE.fullmatch(scope["raw_path"])
    if found is None:
        return scope
    path = found[2] or b"/"
    headers = [(b"host", found[1]), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
