"""Reading a request's body: bounded in size and time, before anything else of ours is taken for the request."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..runtime import payload
from .problems import Problem
from .settings import ApiSettings

T = TypeVar("T")

_PLAIN = {
    "`float` that's a multiple of 1.0": "a whole number",
    "`float`": "a number",
    "`float | null`": "a number or null",
    "`str`": "a string",
    "`str | null`": "a string or null",
}
_WHOLE = re.compile(r"\b(\d+)\.0\b")


async def read(request: Request, settings: ApiSettings) -> bytes:
    """The whole body of a JSON request. Raises Problem: 408 too slow, 413 too large, 415 not JSON."""
    _require_json(request)
    if int(request.headers.get("content-length", "0")) > settings.max_body:
        raise _too_large(settings.max_body)
    try:
        async with asyncio.timeout(settings.body_timeout):
            return await _collect(request, settings.max_body)
    except TimeoutError:
        raise Problem(408, "body-too-slow", f"the body did not come in {settings.body_timeout:g} s") from None
    except ClientDisconnect:
        raise Problem(400, "malformed-request", "the body ended early") from None


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the decoder's type. Raises Problem: 400 for what is not JSON, 422 for a wrong field, by its path."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid-request", _in_json_words(str(error))) from None
    except msgspec.DecodeError as error:
        raise Problem(400, "malformed-json", f"the body is not JSON: {payload.flaw(error, body)}") from None
    except RecursionError:
        raise Problem(400, "malformed-json", "the body nests too deep") from None


def _in_json_words(text: str) -> str:
    """The decoder's message in the words of JSON: a client knows nothing of a float, nor that 1.0 stands for 1.

    What the client has named itself, an unknown field or the place, stays as it is.
    """
    said, at, place = text.partition(" - at ")
    if not said.startswith("Expected "):
        return text
    for word, plain in _PLAIN.items():
        said = said.replace(word, plain)
    return _WHOLE.sub(r"\1", said) + at + place


async def _collect(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _require_json(request: Request) -> None:
    # A browser sends JSON to another site only after asking (CORS), so this is also a guard of the open loopback.
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "unsupported-media-type", "the body must be sent as Content-Type: application/json")
    if "content-encoding" in request.headers:
        raise Problem(415, "unsupported-media-type", "a Content-Encoding is not supported")


def _too_large(limit: int) -> Problem:
    return Problem(413, "content-too-large", f"the body may have at most {limit} bytes")
