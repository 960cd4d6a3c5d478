"""A TCP proxy before PostgreSQL that loses statements or answers, delivers a statement late, or falls silent.

It reads the protocol: a rule names one of the product's statements (runtime/sql), or begin, commit, rollback, and what
becomes of it. Everything happens in one thread, and everything that happens is written down, so that a test can wait
for it and count it.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from deadsure.runtime import db
from deadsure.runtime.dsn import Host

from .fault_rules import Fault, Happening, Held, Rule, Session
from .protocol import Answer, Exchange
from .relay import New, Relay


class FaultProxy(Relay):
    """Listens on `address` and forwards to `target`, until it is closed. Without a rule it only passes on."""

    def __init__(self, target: Host, address: str = "127.0.0.1", seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._rules: list[Rule] = []
        self._held: list[Held] = []
        self._met: set[bytes] = set()
        self._happened: list[Happening] = []
        self._something = threading.Condition()
        super().__init__(target, address)

    # --- what a test says

    def through(self, settings: db.Settings) -> db.Settings:
        """The same database, through this proxy."""
        return replace(settings, dsn=replace(settings.dsn, hosts=(Host(self.address, self.port),)))

    def add(self, statement: str, fault: Fault, **more: Any) -> Rule:
        """A rule from now on; the first that takes a statement counts."""
        rule = Rule(statement, fault, **more)
        self.order(lambda: self._rules.append(rule))
        return rule

    def no_more_faults(self) -> None:
        """Forget the rules, and let new connections pass. What is held, cut or silent stays so."""

        def forget() -> None:
            self._rules.clear()
            self.new = "pass"

        self.order(forget)

    def blackhole(self, application: str = "", new: New = "pass") -> int:
        """This application's sessions fall silent in both directions for ever. Returns how many; `new`: later ones."""

        def silence() -> int:
            self.new = new
            chosen = [s for s in self.sessions if not s.silent and s.front.application.startswith(application)]
            for session in chosen:
                session.silent = True
            return len(chosen)

        return self.order(silence)

    def silent_and_kept(self) -> int:
        """How many silent sessions have not been given up by their clients."""
        return self.order(lambda: sum(s.silent and not s.client_gone for s in self.sessions))

    def held(self) -> int:
        """How many statements are still on their way."""
        return self.order(lambda: len(self._held))

    def happened(self, what: str, statement: str = "") -> list[Happening]:
        """What happened in this way, to that statement or to any."""
        with self._something:
            return [h for h in self._happened if h.what == what and statement in ("", h.statement)]

    def wait(self, what: str, times: int = 1, deadline: float = 20.0) -> None:
        """Wait until this has happened so many times. Fails the test after `deadline` seconds."""
        with self._something:
            there = self._something.wait_for(lambda: sum(h.what == what for h in self._happened) >= times, deadline)
            assert there, f"waited {deadline} s in vain for {times} x {what}: {self._happened[-20:]}"

    # --- from the client

    def from_client(self, session: Session, data: bytes) -> None:
        if not data:
            self.lose_client(session, "close")
            busy = session.losing or session.delivering or any(held.session is session for held in self._held)
            if not session.silent and not busy:
                self.drop(session)
            return
        if session.silent:
            return
        for exchange in session.front.feed(data):
            if session.server is not None and not session.silent and not session.client_gone:
                self._dispatch(session, exchange)

    def _dispatch(self, session: Session, exchange: Exchange) -> None:
        names = session.names(exchange)
        self._may_release(session, exchange, names, sent=True)
        rule = next((r for r in self._rules if self._applies(r, session, exchange, names)), None)
        if rule is None:
            self._send(session, exchange, names)
            return
        rule.times -= 1
        self._met |= names
        match rule.fault:
            case Fault.ANSWER_LOST:
                session.losing = (exchange, rule)
                self._send(session, exchange, names)
            case Fault.DROPPED:
                self._happen(rule.fault.value, session, exchange, rule)
                self.cut(session, rule.cut)
            case Fault.LATE | Fault.DELAYED:
                self._hold(session, exchange, names, rule)

    def _hold(self, session: Session, exchange: Exchange, names: set[bytes], rule: Rule) -> None:
        held = Held(session, exchange, names, rule)
        self._held.append(held)
        self._happen(rule.fault.value, session, exchange, rule)
        if rule.fault is Fault.LATE:
            self.lose_client(session, rule.cut)
        if not rule.until:
            self._set_due(held)

    def _applies(self, rule: Rule, session: Session, exchange: Exchange, names: set[bytes]) -> bool:
        return rule.takes(session, exchange, self._dice.random()) and not (rule.once and names & self._met)

    def _send(self, session: Session, exchange: Exchange, names: set[bytes]) -> None:
        if exchange.answered:
            session.open.append((exchange, names))
        session.note(exchange)
        assert session.server is not None
        with suppress(OSError):  # the end of the stream will tell
            session.server.sendall(exchange.raw)

    # --- from the server

    def from_server(self, session: Session, data: bytes) -> None:
        if not data:
            self._server_went(session)
            return
        answers = list(session.back.feed(data))
        if session.client is not None and not session.silent and session.losing is None:
            with suppress(OSError):
                session.client.sendall(data)
        for answer in answers:
            self._answered(session, answer)

    def _answered(self, session: Session, answer: Answer) -> None:
        exchange, names = session.open.popleft() if session.open else (None, set())  # none: the server's welcome
        if session.script:
            self._send(session, session.script.pop(0), set())
        if exchange is None:
            return
        if session.losing is not None and session.losing[0] is exchange:
            self._happen(Fault.ANSWER_LOST.value, session, exchange, session.losing[1], answer)
            self.cut(session, session.losing[1].cut)
        elif session.delivering is not None and session.delivering[0] is exchange:
            self._happen("delivered", session, *session.delivering, answer)
            session.delivering = None
            if session.client_gone:
                self.drop(session)
        self._may_release(session, exchange, names, sent=False)

    def _server_went(self, session: Session) -> None:
        for held in [h for h in self._held if h.session is session and not h.rule.fresh]:
            self._held.remove(held)
            self._happen("never delivered", session, held.exchange, held.rule)
        if session.delivering is not None:
            self._happen("never delivered", session, *session.delivering)
            session.delivering = None
        if session.silent:
            self.close_end(session, "server")
        else:
            self.drop(session)

    # --- late ones

    def due(self) -> float | None:
        return min((held.due for held in self._held if held.due is not None), default=None)

    def on_time(self) -> None:
        for held in [h for h in self._held if h.due is not None and h.due <= time.monotonic()]:
            self._held.remove(held)
            self._deliver(held)

    def _may_release(self, session: Session, exchange: Exchange, names: set[bytes], *, sent: bool) -> None:
        for held in self._held:
            rule = held.rule
            follows = exchange.statement == rule.until and sent == rule.when_sent and held.due is None
            if follows and held.session is not session and names & held.names:
                self._set_due(held)

    def _set_due(self, held: Held) -> None:
        held.due = time.monotonic() + held.rule.delay * self._dice.random()

    def _deliver(self, held: Held) -> None:
        session = held.session
        if held.rule.fresh:
            self._deliver_anew(held)
        elif session.server is None or session not in self.sessions:
            self._happen("never delivered", session, held.exchange, held.rule)
        else:
            session.delivering = (held.exchange, held.rule)
            self._send(session, held.exchange, held.names)

    def _deliver_anew(self, held: Held) -> None:
        """Say on a new connection what the client had said: its first words, the preparation, the statement."""
        front = held.session.front
        session = Session(None, client_gone=True, front=front)
        session.script = [Exchange(front.preparations[held.exchange.handle]), held.exchange]
        session.delivering = (held.exchange, held.rule)
        if self.connect(session):
            self._send(session, Exchange(front.startup, answered=False), set())
        else:
            self._happen("never delivered", session, held.exchange, held.rule)

    def _happen(
        self, what: str, session: Session, exchange: Exchange, rule: Rule, answer: Answer | None = None
    ) -> None:
        with self._something:
            self._happened.append(Happening(what, exchange.statement, session.front.application, rule, answer))
            self._something.notify_all()
