"""The floor of the hot path: the product's own statement, sent by something that does nothing else.

With pgbench, a C client, where it is installed; else with a bare loop over the driver. So a figure beside it tells what
the runtime around the statement costs, and not what PostgreSQL costs on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

from ..runtime import db, sql
from ..runtime.ids import new_token
from ..runtime.model import Claimed, LockIdentity, Outcome, Place, Slot, Wanted
from ..runtime.store import hot, pool
from . import app
from .serving import BenchFailed
from .site import Site

_HANDS = sql.statement("bench_hands")
_PACE = sql.statement("bench_pace")
_STEP = sql.statement("finish_and_claim")
Hand = tuple[Slot, Claimed]
#: pgbench knows no arrays and no JSON: of one place each it can make arrays out of single values, and the next task's
#: values must come one by one.
_PLAINER = {
    "cast(:queues as text[])": "array[cast(:queue as text)]",
    "cast(:priorities as integer[])": "array[cast(:priority as integer)]",
    "cast(:run_ats as timestamptz[])": "array[cast(:run_at as timestamptz)]",
    "cast(:ids as uuid[])": "array[cast(:id as uuid)]",
    "(select cast(to_json(c) as text) from claimed c) as claimed": (
        "c.id, c.fence, c.priority, c.run_at from (values (1)) one left join claimed c on true"
    ),
}


def single(site: Site, clients: int, tasks: int) -> tuple[str, float]:
    """What measured it, and tasks a second that `clients` sessions finish and claim, one at a time."""
    site.clear()
    site.fill("single", tasks + clients * 2)
    hands = _hands(site, clients)
    program = shutil.which("pgbench")
    if program is None:
        return "a bare driver loop", _bare(site, hands, tasks)
    rate = _pgbench(site, program, clients, tasks)
    over = site.connection.run(_PACE, kind=site.kind("single"))[0][0]
    if over != tasks // clients * clients:
        raise BenchFailed(f"pgbench has finished {over} of {tasks} tasks, so its rate says nothing")
    return "pgbench", rate


def _hands(site: Site, clients: int) -> list[Hand]:
    """So many slots under an incarnation of their own, each with a task in hand."""
    incarnation = uuid4()
    lock = LockIdentity(uuid4(), 0, 0, "bench")
    pool.register_incarnation(site.connection, incarnation, site.name, new_token(), 3600, lock, "bench", os.getpid())
    wanted = Wanted.from_queues([site.name], app.make(site.name).kinds)
    hands = []
    for number in range(clients):
        slot = Slot(uuid4(), new_token())
        pool.register_slot(site.connection, slot, incarnation, number)
        step = hot.claim(site.connection, slot, wanted)
        assert step.claimed is not None
        hands.append((step.slot, step.claimed))
    return hands


def _pgbench(site: Site, program: str, clients: int, tasks: int) -> float:
    script = site.folder / "pgbench.sql"
    script.write_text(_script(site))
    kinds = app.make(site.name).kinds
    fixed = {
        "begun": "0",
        "pool": site.name,
        "outcome": "succeeded",
        "result": '{"done": 1}',
        "reason": "-",
        "kinds": "{" + ",".join(kind.name for kind in kinds) + "}",
        "on_deaths": "{" + ",".join(kind.on_death for kind in kinds) + "}",
    }
    words = [word for name, value in fixed.items() for word in ("-D", f"{name}={value}")]
    command = [program, "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), "-t", str(tasks // clients)]
    done = subprocess.run(
        [*command, *words, "-f", str(script)], env=_libpq(site), capture_output=True, text=True, check=False
    )
    found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise BenchFailed(f"pgbench failed: {done.stderr.strip()[-2000:]}")
    return float(found.group(1))


def _script(site: Site) -> str:
    """One transaction of pgbench: what a worker sends for one task."""
    text = re.sub(r"--.*", "", _STEP.text)
    for ours, plain in _PLAINER.items():
        if ours not in text:
            raise BenchFailed(f"the statement has no {ours!r} any more, so pgbench would send another one")
        text = text.replace(ours, plain)
    begin = re.sub(r"--.*", "", _HANDS.text).replace(" order by s.number", " and s.number = :client_id")
    return f"\\if :begun = 0\n{begin} \\gset\n\\set begun 1\n\\endif\n{text.replace(':next_token', ':token')} \\gset\n"


def _libpq(site: Site) -> Mapping[str, str]:
    """The environment that makes pgbench connect as we do."""
    dsn = site.database.dsn
    host = dsn.hosts[0]
    ours = {
        "PGHOST": host.name,
        "PGPORT": str(host.port),
        "PGUSER": dsn.user,
        "PGDATABASE": dsn.database,
        "PGSSLMODE": dsn.sslmode,
        "PGOPTIONS": " ".join(f"-c {name}={value}" for name, value in db.PLANS.items()),
    }
    if dsn.password is not None:
        ours["PGPASSWORD"] = dsn.password
    if dsn.sslrootcert is not None:
        ours["PGSSLROOTCERT"] = str(dsn.sslrootcert)
    return {**site.variables, **ours}


def _bare(site: Site, hands: list[Hand], tasks: int) -> float:
    """The same from Python: a process for each slot."""
    share = tasks // len(hands)
    reading = [_forked(lambda hand=hand: _loop(site, hand, share)) for hand in hands]  # type: ignore[misc]
    rates = []
    for pid, pipe in reading:
        with os.fdopen(pipe, "rb") as rate:
            rates.append(rate.read())
        os.waitpid(pid, 0)
    if not all(rates):
        raise BenchFailed("the bare driver loop failed")
    return sum(float(rate) for rate in rates)


def _forked(work: Callable[[], float]) -> tuple[int, int]:
    """A process that does this and writes its answer: its pid, and where to read. This process has no threads."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(here, str(work()).encode())
        finally:
            os._exit(0)  # without a word to the server on the connections that it has inherited
    os.close(here)
    return pid, there


def _loop(site: Site, hand: Hand, tasks: int) -> float:
    slot, task = hand
    connection = db.connect(site.database, f"deadsure {site.name} floor")
    wanted = Wanted.from_queues([site.name], app.make(site.name).kinds)
    done = Outcome("succeeded", result='{"done": 1}')
    began = time.perf_counter()
    for _ in range(tasks):
        step = hot.finish_and_claim(connection, slot, task, done, wanted)
        if step.claimed is None:
            raise BenchFailed("there was no task left")
        slot, task = step.slot, step.claimed
        place = Place(site.name, task.priority, task.run_at.isoformat(), task.id)
        wanted = Wanted((place,), wanted.kinds)
    return tasks / (time.perf_counter() - began)
