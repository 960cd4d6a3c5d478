"""Tokens: who may do what. The file holds only their SHA-256, so that reading it gives no access."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..runtime.errors import ConfigurationError

SCOPES = ("submit", "read", "cancel", "operate", "metrics")


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the tokens file. `name` is the actor in the audit."""

    name: str
    sha256: bytes
    scopes: frozenset[str]


#: Who asked, where no tokens are configured.
LOOPBACK = "loopback"


def parse(text: str) -> tuple[Token, ...]:
    """Parse a tokens file: on each line a name, the token's SHA-256 in hex, and its scopes with commas between.

    Empty lines and lines that begin with # are skipped. Raises ConfigurationError, which names the line and never
    shows the hash.
    """
    lines = ((number, line.split("#")[0].split()) for number, line in enumerate(text.splitlines(), 1))
    tokens = tuple(_token(number, words) for number, words in lines if words)
    if not tokens:
        raise ConfigurationError("the tokens file holds no token")
    if len({token.name for token in tokens}) < len(tokens):
        raise ConfigurationError("the tokens file names one token twice")
    return tokens


def find(tokens: Iterable[Token], presented: str) -> Token | None:
    """The token whose hash this is. Comparing hashes tells nothing useful to whoever measures the time."""
    digest = hashlib.sha256(presented.encode()).digest()
    return next((token for token in tokens if token.sha256 == digest), None)


def _token(number: int, words: list[str]) -> Token:
    where = f"line {number} of the tokens file"
    if len(words) != 3:
        raise ConfigurationError(f"{where} must be: NAME SHA256 SCOPE,SCOPE")
    name, digest, scopes = words
    if name == LOOPBACK:
        raise ConfigurationError(f"{where} names a token {LOOPBACK!r}, which stands for whoever asks without one")
    try:
        sha256 = bytes.fromhex(digest)
    except ValueError:
        sha256 = b""
    if len(sha256) != 32:
        raise ConfigurationError(f"{where} must hold a SHA-256 of 64 hexadecimal digits")
    granted = frozenset(scopes.split(","))
    if not granted <= set(SCOPES):
        raise ConfigurationError(f"{where} holds an unknown scope; known: {', '.join(SCOPES)}")
    return Token(name, sha256, granted)
