"""Secrets come from files, and are never shown."""

from __future__ import annotations

from pathlib import Path

from ..runtime.errors import ConfigurationError


def read_secret(file: Path) -> str:
    """A secret's text without the one newline that editors add. Raises ConfigurationError, without the secret."""
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read the secret in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the secret in {file} is not UTF-8 text") from None
    secret = text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
    if not secret:
        raise ConfigurationError(f"the secret in {file} is empty")
    return secret
