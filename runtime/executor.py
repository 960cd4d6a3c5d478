"""Running one handler, and turning whatever it does into an outcome that can be stored."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, timedelta
from types import CoroutineType
from typing import Any

import msgspec

from . import payload
from .errors import NotStorable
from .handlers import App, Canceled, Context, Registered
from .model import Claimed, Outcome

#: A result's JSON text may have this many bytes, as a request body may.
MAX_RESULT = 1024 * 1024
#: A failure reason is cut after this many characters.
MAX_REASON = 2000
#: Of so many exceptions in a group the reason tells.
_MOST_INNER = 5

#: A class's own name; a metaclass cannot come between.
_TYPE_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=msgspec.to_builtins)
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def execute(app: App, task: Claimed, asks_to_stop: Callable[[], bool]) -> Outcome:
    """Run the task's handler to its end. Never raises: what the handler raises is the outcome.

    SystemExit and KeyboardInterrupt are a handler's failure like any other: a worker's end is the supervisor's
    business.
    """
    registered = app.handler(task.kind)
    deadline = None
    if task.timeout is not None:
        deadline = task.started_at.astimezone(UTC) + timedelta(seconds=task.timeout)
    context = Context(str(task.id), task.kind, task.attempt, task.fence, deadline, asks_to_stop)
    try:
        value = payload_of(registered, task.payload)
        result = call(registered, value, context) if registered.takes_context else call(registered, value)
    except Canceled as error:
        return Outcome("canceled", reason=reason_of(error))
    except BaseException as error:  # noqa: BLE001  whatever the handler raises is its failure
        return failure(registered, task, error)
    try:
        return Outcome("succeeded", result=encode_result(result))
    except NotStorable as error:
        return Outcome("failed", reason=str(error))


def failure(registered: Registered, task: Claimed, error: BaseException) -> Outcome:
    """What an attempt that raised comes to: tried again if its author allowed more than one attempt, else failed."""
    if registered.kind.max_attempts == 1:
        return Outcome("failed", reason=reason_of(error))
    return Outcome("retry", reason=reason_of(error), delay=registered.backoff.delay(task.attempt))


def payload_of(registered: Registered, text: str) -> Any:
    """The payload as the handler wants it. Raises msgspec.ValidationError for one that does not fit."""
    value = json.loads(text)
    if registered.payload_type is None:
        return value
    return msgspec.convert(value, registered.payload_type)


def call(registered: Registered, *arguments: Any) -> Any:
    """What the handler returns; a coroutine is run to its end, in a loop of its own."""
    result = registered.handler(*arguments)
    # By its type: what the user's object says about its own class may raise.
    return asyncio.run(result) if issubclass(type(result), CoroutineType) else result


def encode_result(result: Any) -> str:
    """A result as JSON text that jsonb takes. Raises NotStorable, whose text begins with `result_not_storable`."""
    try:
        return encoded(result)
    except NotStorable as error:
        raise NotStorable(f"result_not_storable: {error}") from None


def encoded(value: Any) -> str:
    """Any object as JSON text that jsonb takes and everybody can read back. Raises NotStorable, which says why not.

    dataclasses, Structs and what else msgspec knows become JSON; a name that is a number becomes a text.
    """
    try:
        text = _ENCODER.encode(value)
        raw = text.encode("utf-8")
    except BaseException as error:  # noqa: BLE001  a __repr__ or a generator of the user's may raise anything
        raise NotStorable(reason_of(error)) from None
    if len(raw) > MAX_RESULT:
        raise NotStorable(f"it has {len(raw)} bytes of JSON, at most {MAX_RESULT} are kept")
    if payload.too_deep(raw):
        raise NotStorable(f"lists and objects in it nest deeper than {payload.MAX_DEPTH}")
    if "\\u0000" in text and _NUL.search(text):
        raise NotStorable("a text in it holds the character NUL")
    return text


def reason_of(error: BaseException) -> str:
    """An exception as one text that can always be stored: its type and message, cleaned and cut.

    Of a group also what is in it: that is where the reason stands.
    """
    try:
        text = _told(error)
    except BaseException:  # noqa: BLE001  a __str__ of the user's may raise anything
        text = f"{_TYPE_NAME(type(error))}: (its text cannot be shown)"
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return clean if len(clean) <= MAX_REASON else clean[: MAX_REASON - 1] + "…"


def _told(error: BaseException) -> str:
    # str() may return a subclass of str, which could do anything later; this makes a plain one.
    message = str.__str__(str(error))[:MAX_REASON]
    if isinstance(error, BaseExceptionGroup):
        message += f" [{'; '.join(reason_of(inner) for inner in error.exceptions[:_MOST_INNER])}]"
    name = _TYPE_NAME(type(error))
    return f"{name}: {message}" if message else name
