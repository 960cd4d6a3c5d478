"""Where the verbs are carried out, on the model and on the database: also those that stay open, and those that wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from deadsure.runtime import db
from deadsure.runtime.model import Claimed, Kind, Slot
from deadsure.runtime.sql import Statement
from deadsure.runtime.store import pool
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from .facts import Facts
from .kinds import KINDS
from .provider import Provider
from .rows import Blocked, Model, Refused, View
from .sessions import Failure, Session, Verb, Waiting

T = TypeVar("T")
_TABLES = ("decisions", "events", "unknowns", "scheduled", "ready", "slots", "incarnations", "tasks")
_BLOCKERS = Statement("blockers", "select unnest(pg_blocking_pids(cast(:pid as integer)))")
_SESSIONS = 4
#: Deleting is quicker, and leaves dead rows.
_TRUNCATE_EVERY = 20
#: How many transactions may be open at a time: one session is left for what runs now, and one for what waits.
_OPEN = 2


@dataclass(frozen=True)
class Manner:
    """How a verb is carried out. `hold`: its transaction is left open, if it has to wait for nobody.

    `ending`: where it has to wait, how the transaction ends that it waits for; `refused`: it waits in vain.
    """

    hold: bool = False
    ending: str = "commit"


NOW = Manner()
SELDOM = st.sampled_from([False, False, False, True])
MANNERS = st.builds(Manner, SELDOM, st.sampled_from(["commit", "rollback", "refused"]))
#: What becomes of a worker's statement: answered, carried out without an answer, or not carried out (yet).
FATES = st.sampled_from(["answered", "answered", "answered", "lost", "late"])
NUMBERS = st.integers(0, 23)


@dataclass
class Worker:
    """A worker as it sees itself. `doubt`: the statement whose answer it has lost."""

    slot: Slot
    incarnation: UUID
    kinds: tuple[Kind, ...]
    holding: list[Claimed] = field(default_factory=list)
    doubt: Verb | None = None
    gone: bool = False


@dataclass
class Open:
    """A transaction that is open: what was done in it, and who waits for its answer."""

    session: Session
    view: View
    verb: Verb
    answer: Any
    then: Callable[[Any], None]
    worker: Worker | None


class Arena:
    """One database with its sessions, for all examples."""

    def __init__(self, settings: db.Settings) -> None:
        self.judge = db.connect(settings, "judge")
        self.sessions = [Session(settings, number) for number in range(_SESSIONS)]
        pool.register_kinds(self.judge, KINDS)
        self.counted: Counter[str] = Counter()
        for table in _TABLES:  # it locks a table now and then, and nobody here waits for long
            self.judge.script(f"alter table deadsure.{table} set (autovacuum_enabled = false)")

    def clean(self) -> None:
        """As it was before the first example. Decisions are kept by a trigger, which this passes by."""
        for session in self.sessions:
            session.reset()
        if self.counted["examples"] % _TRUNCATE_EVERY == 0:
            how = f"truncate {', '.join(f'deadsure.{table}' for table in _TABLES)};"
        else:
            how = "".join(f"delete from deadsure.{table};" for table in _TABLES)
        self.counted["examples"] += 1
        self.judge.script(f"set session_replication_role = replica; {how} set session_replication_role = origin")

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.judge.close()


class Stage(RuleBasedStateMachine):
    """What the rules have in common."""

    arena: ClassVar[Arena]

    def __init__(self) -> None:
        super().__init__()
        self.arena.clean()
        self.model = Model()
        self.provider = Provider()
        self.facts = Facts()
        self.open: list[Open] = []
        self.workers: list[Worker] = []
        self.sent: list[Verb] = []
        self.aside: Session | None = None
        self.sound = True
        self._made = 0

    @invariant()
    def the_database_is_as_predicted(self) -> None:
        self.sound = False
        self.facts.look(self.arena.judge, self.model, self.provider)
        self.sound = True

    def do(
        self, verb: Verb, how: Manner = NOW, then: Callable[[Any], None] | None = None, worker: Worker | None = None
    ) -> None:
        """Carry the verb out, and hand its answer to `then` when it has one."""
        self.sound = False
        self.arena.counted["verbs"] += 1
        told = then or (lambda answer: None)
        view = View(self.model)
        try:
            expected = verb.predict(view)
        except Blocked:
            self._wait(verb, how, told)
            return
        except Refused as error:
            _agree(verb, self._session().run(verb), Failure(error.sqlstate))
            return
        session = self._session()
        hold = how.hold and len(self.open) < _OPEN
        answer = session.begin(verb) if hold else session.run(verb)
        _agree(verb, answer, expected)
        if hold:
            self.arena.counted["left open"] += 1
            self.model.open.append(view)
            self.open.append(Open(session, view, verb, answer, told, worker))
        else:
            self.model.merge(view)
            told(answer)

    def end(self, transaction: Open, how: str) -> None:
        """Commit an open transaction, or roll it back: then it surely was not done."""
        self.sound = False
        transaction.session.end(how)
        self.forget(transaction)
        if how == "commit":
            self.model.merge(transaction.view)
            transaction.then(transaction.answer)

    def forget(self, transaction: Open) -> None:
        self.open.remove(transaction)
        self.model.open.remove(transaction.view)

    def _wait(self, verb: Verb, how: Manner, then: Callable[[Any], None]) -> None:
        """The verb meets a row that an open transaction has locked."""
        self.arena.counted["had to wait"] += 1
        session = self._session()
        if how.ending == "refused":
            _agree(verb, session.run(verb), Failure("55P03"))
            return
        before = dict(self.model.rows)
        waiting = Waiting(session, verb)
        while not waiting.has_ended(0.001) and self.open:
            blockers = {row[0] for row in self.arena.judge.run(_BLOCKERS, pid=waiting.pid)}
            for transaction in [each for each in self.open if each.session.pid in blockers]:
                self.end(transaction, how.ending)
        answer = waiting.answer()
        view = View(self.model, before)
        try:
            expected = verb.predict(view)
        except Blocked as blocked:
            raise AssertionError(f"{verb} did not wait for {blocked}") from None
        except Refused as error:
            _agree(verb, answer, Failure(error.sqlstate))
            return
        _agree(verb, answer, expected)
        self.model.merge(view)
        then(answer)

    def _session(self) -> Session:
        busy = [self.aside, *(transaction.session for transaction in self.open)]
        return next(session for session in self.arena.sessions if session not in busy)

    def new_id(self) -> UUID:
        """An id that is above all earlier ones, and was made now."""
        self._made += 1
        return UUID(int=(time.time_ns() // 1_000_000) << 80 | 0x7 << 76 | 0b10 << 62 | self._made)

    def busy(self, worker: Worker) -> Open | None:
        """The open transaction whose answer the worker waits for."""
        return next((transaction for transaction in self.open if transaction.worker is worker), None)

    def free_workers(self) -> list[Worker]:
        """Those that can act: neither gone, nor in doubt, nor waiting."""
        return [each for each in self.workers if not (each.gone or each.doubt or self.busy(each))]

    @contextmanager
    def time_passes(self, *keys: tuple[str, UUID]) -> Iterator[None]:
        """Rows whose times are moved, as if time had passed. Nobody must have locked them."""
        assert not any(self.model.holds(key) for key in keys)
        yield
        self.model.touched |= set(keys)

    def can_pass(self, *keys: tuple[str, UUID]) -> bool:
        return not any(self.model.holds(key) for key in keys)

    def sql(self, text: str, **parameters: Any) -> None:
        self.arena.judge.run(Statement(text, text), **parameters)

    def teardown(self) -> None:
        for transaction in list(self.open):
            transaction.session.end("rollback")
            self.forget(transaction)


def choose(things: Sequence[T], number: int) -> T:
    """One of them. There must be one."""
    return things[number % len(things)]


def _agree(verb: Verb, answer: Any, expected: Any) -> None:
    shown = answer if isinstance(answer, Failure) else verb.shown(answer)
    assert shown == expected, f"{verb} answered {shown}, not {expected}"
