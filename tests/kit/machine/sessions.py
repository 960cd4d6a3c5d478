"""Real sessions: statements that are answered, transactions that are left open, statements that wait for them."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from deadsure.runtime import db, sql
from deadsure.runtime.db import Connection
from deadsure.runtime.errors import StatementRefused, StoreError

from .rows import View

#: How long a statement waits for a lock that nobody is going to free.
_IMPATIENT = "20ms"
_DEADLINE = 10.0


class Verb(Protocol):
    """One verb of the store, with its arguments."""

    def send(self, connection: Connection) -> Any:
        """Call the store. Raises what the store raises."""

    def shown(self, answer: Any) -> Any:
        """What of the store's answer is compared with the expected one."""
        return answer

    def predict(self, view: View) -> Any:
        """Do the same to the model; the expected answer. Raises Blocked or Refused."""


@dataclass(frozen=True)
class Failure:
    """The database refused the statement."""

    sqlstate: str


class Session:
    """One session. It waits for no lock, except where it is told to be patient."""

    def __init__(self, settings: db.Settings, number: int) -> None:
        self._settings = settings
        self._name = f"session {number}"
        self._open()

    def _open(self) -> None:
        self.connection = db.connect(self._settings, self._name)
        self.connection.identify(sql.statement("backend_identity"))
        self.connection.script("set idle_in_transaction_session_timeout = 0")
        self.be_patient(False)

    @property
    def pid(self) -> int:
        assert self.connection.backend is not None
        return self.connection.backend.pid

    def be_patient(self, patient: bool) -> None:
        self.connection.script(f"set lock_timeout = '{'0' if patient else _IMPATIENT}'")

    def run(self, verb: Verb) -> Any:
        """Carry it out; the answer, or a Failure."""
        try:
            return verb.send(self.connection)
        except StatementRefused as error:
            return Failure(error.sqlstate)

    def begin(self, verb: Verb) -> Any:
        """Carry it out and leave its transaction open."""
        self.connection._simple("begin")
        self.connection.transaction = nullcontext  # type: ignore[method-assign,assignment]
        try:
            answer = self.run(verb)
        finally:
            del self.connection.transaction
        if isinstance(answer, Failure):
            self.connection._simple("rollback")
        return answer

    def end(self, how: str) -> None:
        self.connection._simple(how)

    def is_gone(self) -> bool:
        """Whether somebody has ended this session; then there is a new one."""
        try:
            self.connection.run(sql.statement("ping"))
        except StoreError:
            self._open()
            return True
        return False

    def reset(self) -> None:
        """Whatever the example before has left: no transaction is open, nobody is patient."""
        if not self.is_gone():
            self.connection._simple("rollback")
            self.be_patient(False)

    def close(self) -> None:
        self.connection.close()


class Waiting:
    """A verb that waits for a lock, in a thread of its own."""

    def __init__(self, session: Session, verb: Verb) -> None:
        self._session = session
        self._answer: Any = None
        session.be_patient(True)
        self._thread = threading.Thread(target=self._run, args=(verb,), daemon=True)
        self._thread.start()

    def _run(self, verb: Verb) -> None:
        self._answer = self._session.run(verb)

    def has_ended(self, patience: float) -> bool:
        self._thread.join(patience)
        return not self._thread.is_alive()

    def answer(self) -> Any:
        """Its answer. Fails when there is none after a time that catches a hang."""
        assert self.has_ended(_DEADLINE), "a statement still waits for a lock that nobody holds"
        self._session.be_patient(False)
        return self._answer

    @property
    def pid(self) -> int:
        return self._session.pid
