"""The Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header), and the rules every key obeys."""

from __future__ import annotations

import re

from starlette.requests import Request

from .problems import Problem

#: 1 to 255 visible ASCII characters; in the header without quotes, or in a pair of them.
BARE = "^[!-~]{1,255}$"
HEADER = '^([!#-~]{1,255}|"[!#-~]{1,255}")$'
_BARE = re.compile(BARE)
_HEADER = re.compile(HEADER)
RULE = "an idempotency key has 1 to 255 visible ASCII characters"


def of(request: Request) -> str | None:
    """The request's key, None without one. Raises Problem (400) for a bad one, or two.

    The draft's form is a quoted string; bare text is taken as it stands.
    """
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise Problem(400, "malformed-header", "Idempotency-Key must be given once")
    text = values[0].strip(" \t")
    if not _HEADER.fullmatch(text):
        raise Problem(400, "malformed-header", f"Idempotency-Key: {RULE}, without quotes inside")
    return text.strip('"')


def check(key: str | None, where: str) -> str | None:
    """A key from a body. Raises Problem (422), which names the field."""
    if key is not None and not _BARE.fullmatch(key):
        raise Problem(422, "invalid-request", f"{RULE} - at `{where}`")
    return key
