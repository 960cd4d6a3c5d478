"""The store without processes: workers are connections with a slot, so that a test can say who does what when."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

from deadsure.runtime import db, sql
from deadsure.runtime.ids import new_token, uuid7
from deadsure.runtime.model import Claimed, Kind, LockIdentity, Outcome, Slot, Step, Wanted
from deadsure.runtime.parameters import Value, encode
from deadsure.runtime.states import OnDeath
from deadsure.runtime.store import hot, pool, submit

KINDS = (
    Kind("plain", OnDeath.UNKNOWN),
    Kind("failing", OnDeath.FAIL),
    Kind("harmless", OnDeath.REQUEUE, max_attempts=3),
)
WANTED = Wanted.from_queues(("default",), KINDS)
LOCK = LockIdentity(uuid4(), 1, 2, "boot")


@dataclass
class WorkerRow:
    """A worker as the database sees it: a session, and a slot whose token moves with every step."""

    connection: db.Connection
    slot: Slot

    def claim(self, wanted: Wanted = WANTED) -> Claimed | None:
        return self._took(hot.claim(self.connection, self.slot, wanted)).claimed

    def finish(self, task: Claimed, outcome: Outcome) -> Step:
        return self._took(hot.finish(self.connection, self.slot, task, outcome))

    def _took(self, step: Step) -> Step:
        self.slot = step.slot
        return step


class Store:
    """One incarnation in a fresh database. Everything it opens is closed at the end of the test."""

    def __init__(self, settings: db.Settings) -> None:
        self.settings = settings
        self._open: list[db.Connection] = []
        self.connection = self.connect()
        self.incarnation = self.new_incarnation()
        pool.register_kinds(self.connection, KINDS)

    def connect(self, name: str = "test") -> db.Connection:
        connection = db.connect(self.settings, name)
        self._open.append(connection)
        return connection

    def new_incarnation(self, lease: float = 60.0, lock: LockIdentity = LOCK) -> UUID:
        made = uuid4()
        pool.register_incarnation(self.connection, made, "default", new_token(), lease, lock, "here", 1)
        return made

    def worker(self, incarnation: UUID | None = None) -> WorkerRow:
        slot = Slot(uuid4(), new_token())
        connection = self.connect()
        connection.identify(sql.statement("backend_identity"))
        assert pool.register_slot(connection, slot, incarnation or self.incarnation, 1)
        return WorkerRow(connection, slot)

    def submit(self, kind: str = "plain", payload: str = "{}", **fields: object) -> UUID:
        made = uuid7()
        asked = submit.Submission(made, kind, payload, **fields)  # type: ignore[arg-type]
        (verdict,) = submit.submit(self.connection, [asked])
        assert isinstance(verdict, submit.Accepted), verdict
        return made

    def register(self, *names: str) -> None:
        """Have further kinds registered, each with the defaults."""
        pool.register_kinds(self.connection, [Kind(name) for name in names])

    def row(self, id: UUID) -> dict[str, object]:
        """The task's whole row, as a plain SELECT on another session sees it."""
        return self.query("select * from deadsure.tasks where id = :id", id=id)[0]

    def query(self, text: str, **parameters: Value) -> list[dict[str, object]]:
        driver = self.connection._driver
        rows = driver.run(text, **{k: encode(v) for k, v in parameters.items()})
        return [dict(zip([c["name"] for c in driver.columns], row, strict=True)) for row in rows or []]

    def waits_for_a_lock(self, name: str) -> bool:
        """Whether the session of that name is blocked by another one, as the server says."""
        waiting = "select 1 as one from pg_stat_activity where application_name = :name and wait_event_type = 'Lock'"
        return bool(self.query(waiting, name=name))

    def close(self) -> None:
        for connection in self._open:
            connection.close()
