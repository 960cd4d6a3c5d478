"""Who asks, and whether they may."""

from __future__ import annotations

from starlette.requests import Request

from . import tokens
from .problems import Problem
from .tokens import Token

#: The actor of every request where no tokens are configured.
LOOPBACK = "loopback"


def authorise(request: Request, known: tuple[Token, ...], scope: str | None) -> str:
    """The actor's name. Raises Problem: 401 without a valid token, 403 when it lacks the scope. None: open to all."""
    if not known or scope is None:
        return LOOPBACK
    scheme, _, presented = request.headers.get("authorization", "").partition(" ")
    token = tokens.find(known, presented.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise Problem(401, "unauthorized", "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
    if scope not in token.scopes:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        raise Problem(403, "forbidden", f"this token lacks the scope {scope!r}", {"WWW-Authenticate": challenge})
    return token.name
