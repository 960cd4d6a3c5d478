"""Identifiers: UUIDv7 for tasks (RFC 9562, section 5.7), random ones for everything that must never repeat.

All randomness comes from the operating system, so that two forked children never make the same id.
"""

from __future__ import annotations

import secrets
import time
from uuid import UUID, uuid4

__all__ = ["new_token", "uuid4", "uuid7"]


def uuid7() -> UUID:
    """A new task id: 48 bits of Unix time in milliseconds, then 74 random bits. Sorts by the time it was made."""
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & (2**62 - 1)
    return UUID(int=value)


def new_token() -> int:
    """A random number below 2**63 (a PostgreSQL bigint): the token a slot or a lease must show next."""
    return secrets.randbits(63)
