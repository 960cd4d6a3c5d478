"""What a fault proxy is told to do to which statement, and what it says that it did."""

from __future__ import annotations

import re
import socket
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from .protocol import Answer, Backend, Exchange, Frontend

#: close: FIN, reset: RST, silent: neither; the client has to give up by itself.
Cut = Literal["close", "reset", "silent"]
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Fault(Enum):
    """DROPPED: it never reaches the server. ANSWER_LOST: the server carries it out, and nobody hears of it. LATE: its
    client is cut off, and it reaches the server afterwards. DELAYED: it reaches the server after a while, and its
    client may have given up by then.
    """

    DROPPED = "dropped"
    ANSWER_LOST = "answer lost"
    LATE = "late"
    DELAYED = "delayed"


@dataclass(eq=False, slots=True)
class Rule:
    """Which statements meet which fault.

    `holding`: a text in one of its parameters, or for a commit in one of its transaction's. `after`: for a commit, a
    statement of its transaction. `chance`: how likely each of them is hit; `times` at most.
    A late or delayed one goes on within `delay` seconds, at random; from when `until` has been answered in another
    session, a statement that names the same thing (they share a UUID), or `when_sent` already. `fresh`: a late one
    is carried out in a session of its own, which its client does not know and cannot end. `once`: nothing that shares
    a UUID with what was hit before is hit again.
    """

    statement: str
    fault: Fault
    times: int = 1_000_000
    chance: float = 1.0
    holding: bytes = b""
    application: str = ""
    after: str = ""
    cut: Cut = "close"
    until: str = ""
    when_sent: bool = False
    delay: float = 0.0
    fresh: bool = False
    once: bool = False

    def takes(self, session: Session, exchange: Exchange, dice: float) -> bool:
        """Whether this statement meets the fault. `dice` is from 0 to 1."""
        said = session.said if exchange.statement == "commit" else exchange.parameters
        return (
            self.times > 0
            and exchange.statement == self.statement
            and session.front.application.startswith(self.application)
            and (not self.after or self.after in session.transaction)
            and (not self.holding or any(self.holding in value for value in said))
            and dice < self.chance
        )


@dataclass(frozen=True, slots=True)
class Happening:
    """What the proxy did: a fault by its name, and for a late or delayed statement how it went on.

    That is `delivered` with the server's answer, or `never delivered`, when its session had ended by then.
    """

    what: str
    statement: str
    application: str
    rule: Rule
    answer: Answer | None = None


@dataclass(eq=False, slots=True)
class Session:
    """A client, a server, and what stands between them. `open`: what the server has not answered yet, with its names.

    `losing` and `delivering` are such exchanges, with what befell them; `script` is what the proxy will say next.
    """

    client: socket.socket | None
    server: socket.socket | None = None
    silent: bool = False
    client_gone: bool = False
    front: Frontend = field(default_factory=Frontend)
    back: Backend = field(default_factory=Backend)
    open: deque[tuple[Exchange, set[bytes]]] = field(default_factory=deque)
    transaction: list[str] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)
    losing: tuple[Exchange, Rule] | None = None
    delivering: tuple[Exchange, Rule] | None = None
    script: list[Exchange] = field(default_factory=list)

    def names(self, exchange: Exchange) -> set[bytes]:
        """The UUIDs that it is about; of a commit those of its whole transaction."""
        said = self.said if exchange.statement == "commit" else exchange.parameters
        return {found for value in said for found in _UUID.findall(value)}

    def note(self, exchange: Exchange) -> None:
        """Remember what is done in its transaction."""
        if exchange.statement in ("begin", "commit", "rollback"):
            self.transaction, self.said = [], []
        elif exchange.statement:
            self.transaction.append(exchange.statement)
            self.said += exchange.parameters


@dataclass(eq=False, slots=True)
class Held:
    """A statement on its way. `due` (time.monotonic) is known once its rule's `until` has happened."""

    session: Session
    exchange: Exchange
    names: set[bytes]
    rule: Rule
    due: float | None = None
