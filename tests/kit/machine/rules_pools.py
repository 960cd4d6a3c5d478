"""Rules: what supervisors do, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from deadsure.runtime.ids import new_token
from deadsure.runtime.model import ExitProof, LockIdentity, Slot
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from .kinds import KINDS, OTHERWISE
from .pools import EndIncarnation, Promote, Register, RegisterSlot, Renew
from .recoveries import RecoverPool, RecoverWorker, Sweep
from .stage import MANNERS, NOW, NUMBERS, SELDOM, Manner, Stage, Worker, choose

_ACTS = (
    *["its lease ends", "sweep"] * 2,
    *["take the pool lock", "stop", "renew", "renew as a stranger", "register a slot again"],
)
_BOOT = LockIdentity(uuid4(), 1, 2, "boot")


@dataclass
class Supervisor:
    """A supervisor as it sees itself: its incarnation, the lock it holds, the tokens it may show."""

    id: UUID
    lock: LockIdentity
    tokens: tuple[int, ...]


class PoolRules(Stage):
    """Leases, slots, deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = [_BOOT, replace(_BOOT, id=uuid4())]
        self.supervisors: list[Supervisor] = []

    @initialize()
    def one_pool(self) -> None:
        self.new_supervisor(number=0)
        for _ in range(2):
            self.new_worker(number=0, otherwise=False)

    @precondition(lambda self: len(self.alive()) < 2)
    @rule(number=NUMBERS)
    def new_supervisor(self, number: int) -> None:
        lock = self.locks[number % 2]
        made = Supervisor(self.new_id(), lock, (new_token(),))
        self.do(Register(made.id, made.tokens[0], lock))
        self.supervisors.append(made)

    @precondition(lambda self: self.alive() and len([worker for worker in self.workers if not worker.gone]) < 4)
    @rule(number=NUMBERS, otherwise=SELDOM, how=MANNERS)
    def new_worker(self, number: int, otherwise: bool, how: Manner = NOW) -> None:
        supervisor = choose(self.alive(), number)
        worker = Worker(Slot(self.new_id(), new_token()), supervisor.id, OTHERWISE if otherwise else KINDS)

        def told(mine: bool) -> None:
            if mine:
                self.workers.append(worker)

        self.do(RegisterSlot(worker.slot, supervisor.id), how, told)

    @precondition(lambda self: self.workers)
    @rule(number=NUMBERS, senders_gone=st.booleans(), how=MANNERS)
    def a_worker_dies(self, number: int, senders_gone: bool, how: Manner) -> None:
        living = [worker for worker in self.workers if not worker.gone]
        worker = choose(living if living and number % 4 else self.workers, number)
        worker.gone = True
        self.do(RecoverWorker(worker.slot.id, ExitProof("SIGKILL", evidence={"senders_gone": senders_gone})), how)

    @rule(number=NUMBERS, what=st.sampled_from(_ACTS), how=MANNERS)
    def a_supervisor_acts(self, number: int, what: str, how: Manner) -> None:
        supervisor = choose(self.supervisors, number)
        match what:
            case "its lease ends":
                self.a_lease_is_over(supervisor)
            case "sweep":
                self.do(Sweep(supervisor.id), how)
            case "take the pool lock":
                self.do(RecoverPool(supervisor.id, supervisor.lock), how)
            case "stop":
                self.do(EndIncarnation(supervisor.id), how)
            case "register a slot again":
                worker = choose(self.workers, number)
                self.do(RegisterSlot(worker.slot, worker.incarnation), how)
            case _:
                self._renew(supervisor, what == "renew as a stranger", how)

    def _renew(self, supervisor: Supervisor, stranger: bool, how: Manner) -> None:
        following = new_token()
        tokens = (new_token(),) if stranger else supervisor.tokens

        def told(renewed: bool) -> None:
            supervisor.tokens = (following,) if renewed else supervisor.tokens

        if not stranger:
            supervisor.tokens = (*supervisor.tokens, following)
        self.do(Renew(supervisor.id, tokens, following), how, told)

    @precondition(lambda self: self.model.all("scheduled"))
    @rule(number=NUMBERS, moves=st.booleans(), how=MANNERS)
    def a_task_comes_due(self, number: int, moves: bool, how: Manner) -> None:
        self.comes_due(choose(self.model.all("scheduled"), number).id)
        if moves:
            self.do(Promote(), how)

    @precondition(lambda self: self.model.all("scheduled"))
    @rule(how=MANNERS)
    def promote(self, how: Manner) -> None:
        self.do(Promote(), how)

    @precondition(lambda self: self.open)
    @rule(number=NUMBERS, how=st.sampled_from(["commit", "commit", "rollback"]))
    def a_transaction_ends(self, number: int, how: str) -> None:
        self.end(choose(self.open, number), how)

    def alive(self) -> list[Supervisor]:
        """The supervisors whose incarnation has not ended."""
        return [each for each in self.supervisors if self.model.rows[("incarnation", each.id)].ended_by is None]

    def a_lease_is_over(self, supervisor: Supervisor) -> None:
        key = ("incarnation", supervisor.id)
        if self.can_pass(key):
            with self.time_passes(key):
                self.sql(
                    "update deadsure.incarnations set lease_until = clock_timestamp() - interval '1 second'"
                    " where incarnation = cast(:id as uuid)",
                    id=supervisor.id,
                )
            self.model.rows[key] = replace(self.model.rows[key], over=True)

    def comes_due(self, id: UUID) -> None:
        keys = (("scheduled", id), ("task", id))
        # What is due already stays where it is: it may be a left-over, whose task no longer changes with it.
        if self.can_pass(*keys) and not self.model.rows[keys[0]].due:
            with self.time_passes(*keys):
                self.sql(
                    "with due as (update deadsure.scheduled set run_at = clock_timestamp()"
                    " where id = cast(:id as uuid) returning id, run_at)"
                    " update deadsure.tasks t set run_at = due.run_at from due"
                    " where t.id = due.id and t.state = 'queued'",
                    id=id,
                )
            self.model.rows[keys[0]] = replace(self.model.rows[keys[0]], due=True)
