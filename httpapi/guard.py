"""Requests that are refused before anybody looks at what they ask."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from . import problems
from .problems import Problem
from .settings import ApiSettings


class Guard:
    """Middleware: framing that two servers could read differently, and browsers that came from another site.

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
            problem = self._problem(Headers(scope=scope))
            if problem is not None:
                await problems.respond(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        if "transfer-encoding" in headers and "content-length" in headers:
            # RFC 9112, section 6.1: an attempt at smuggling. The connection cannot be trusted any more.
            detail = "Content-Length and Transfer-Encoding exclude each other"
            return Problem(400, "malformed-request", detail, {"Connection": "close"})
        if not self._open:
            return None
        host = headers.get("host")
        if host is not None and not _is_loopback(host):
            return Problem(403, "foreign-host", "this API is open on loopback only, and Host names something else")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != (host or "").lower():
            return Problem(403, "cross-site-request", "a page from another site may not call this API")
        return None


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
