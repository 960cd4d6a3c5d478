"""The layers of a configuration: the file, the environment, the options. Each gives values by key, already converted.

A key is `name` or `section.name`. A layer that holds a mistake is refused whole, and the message names the layer, so
that it is known where to mend it. No message shows a value: it could be a secret in the wrong place.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec

from ..runtime.errors import ConfigurationError

PREFIX = "DEADSURE_"


class OptionError(Exception):
    """An option of the command line has a value that cannot be meant; nothing was started."""


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be configured."""

    path: str
    type: Any

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    def check(self, value: object) -> None:
        """Raises ValueError for a value that its type alone allows."""
        for meta in getattr(self.type, "__metadata__", ()):
            if meta.extra:
                meta.extra["check"](value)

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple


def keys(top: type[msgspec.Struct], sections: Mapping[str, type[msgspec.Struct]]) -> dict[str, Key]:
    """Every key by its path, from the fields of the structs."""
    found = [Key(f.name, _given(f.type)) for f in msgspec.structs.fields(top) if f.name not in sections]
    for section, struct in sections.items():
        found += [Key(f"{section}.{f.name}", _given(f.type)) for f in msgspec.structs.fields(struct)]
    return {key.path: key for key in found}


def _given(type: Any) -> Any:
    """The type of a value that is given: no layer can give None, and the text "null" must not become it."""
    given = [part for part in get_args(type) if part is not NoneType]
    return reduce(or_, given) if NoneType in get_args(type) else type


def read_file(file: Path, known: Mapping[str, Key]) -> dict[str, Any]:
    """The TOML file's values; relative paths in it are seen from its folder. Raises ConfigurationError."""
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {file}: {error.strerror}") from None
    except ValueError as error:  # TOML that is none, or not UTF-8
        raise ConfigurationError(f"{file} is not TOML: {error}") from None
    sections = {path.partition(".")[0] for path in known if "." in path}
    found: dict[str, Any] = {}
    for path, value in _flat(file, content, sections):
        if path not in known:
            raise ConfigurationError(f"{file}: unknown key {path}{_meant(path, known)}")
        found[path] = _converted(f"{file}: {path}", known[path], value, strict=True, base=file.absolute().parent)
    return found


def read_variables(variables: Mapping[str, str], known: Mapping[str, Key]) -> dict[str, Any]:
    """The values of all variables that are keys. Raises ConfigurationError."""
    texts = ((key, variable(variables, key.variable)) for key in known.values())
    return {
        key.path: _converted(key.variable, key, _listed(key, text), strict=False, base=Path.cwd())
        for key, text in texts
        if text is not None
    }


def read_options(options: Mapping[str, str | None], known: Mapping[str, Key]) -> dict[str, Any]:
    """The values of the options that were given. Raises OptionError."""
    found: dict[str, Any] = {}
    for path, text in options.items():
        if text is not None:
            option = "--" + path.partition(".")[2] if "." in path else "--" + path.replace("_", "-")
            try:
                value = _listed(known[path], text)
                found[path] = _converted(option, known[path], value, strict=False, base=Path.cwd())
            except ConfigurationError as error:
                raise OptionError(str(error)) from None
    return found


def variable(variables: Mapping[str, str], name: str) -> str | None:
    """A variable's text, None when it is not set. Raises ConfigurationError when it is empty.

    An empty variable is nearly always a substitution that went wrong; going on with a default would be a guess.
    """
    text = variables.get(name)
    if text == "":
        raise ConfigurationError(f"the variable {name} is set but empty: give it a value, or unset it")
    return text


def unknown_variables(variables: Mapping[str, str], known: Mapping[str, Key], others: Iterable[str]) -> list[str]:
    """A sentence about each variable with our prefix that means nothing here."""
    meant = {key.variable for key in known.values()} | set(others)
    strange = sorted(name for name in variables if name.startswith(PREFIX) and name not in meant)
    return [f"the variable {name} is not known and is ignored{_meant(name, meant)}" for name in strange]


def _flat(file: Path, content: Mapping[str, Any], sections: set[str]) -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if name not in sections:
            yield name, value
        elif not isinstance(value, dict):
            raise ConfigurationError(f"{file}: {name} must be a section, [{name}]")
        else:
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())


def _listed(key: Key, text: str) -> object:
    return [part.strip() for part in text.split(",")] if key.is_list else text


def _converted(where: str, key: Key, value: object, *, strict: bool, base: Path) -> Any:
    """The value as its key's type; relative paths are seen from `base`."""

    def decode(_: Any, raw: Any) -> Path:
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise ValueError("expected a path")
        return base / raw

    try:
        found = msgspec.convert(value, key.type, strict=strict, dec_hook=decode)
        key.check(found)
        return found
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"{where}: {_plain(str(error))}") from None


def _plain(text: str) -> str:
    """msgspec's sentence without its type names in backquotes."""
    return text[:1].lower() + text[1:].replace("`", "")


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
