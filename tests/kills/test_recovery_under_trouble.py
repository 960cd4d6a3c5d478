"""Deaths while other things go wrong: the database crashes in the middle, handlers hold the interpreter, TLS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import distribution, postgres
from kit.pool import Pool, alive, new_runtime_dir
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
NewPool = Callable[..., Pool]
SHORT = {"POOL_LEASE": "4", "POOL_RENEW_EVERY": "0.5"}


@pytest.mark.parametrize("round", range(3))
def test_a_database_that_crashes_during_the_recovery_delays_it_and_loses_nothing(
    new_pool: NewPool, store: Store, server: EmbeddedPostgres, tmp_path: Path, round: int
) -> None:
    pool = new_pool(workers=8, options={"POOL_LEASE": "30"}).start()
    wait_until(lambda: len(pool.worker_pids()) == 8, "eight workers")
    tasks = [pool.submit("block.fail", {"go": str(tmp_path / "never")}) for _ in range(8)]
    for task in tasks:
        pool.wait_for(task, "running")
    store.close()
    for pid in pool.worker_pids():
        os.kill(pid, signal.SIGKILL)
    server.stop("immediate")
    try:
        wait_until(lambda: "the database does not answer" in pool.log, "the supervisor notices")
    finally:
        server.start()
    for task in tasks:
        reason = pool.wait_for(task, "failed", deadline=30)["failure_reason"]
        assert reason == "process exited before worker completion (SIGKILL)"
    again = Store(store.settings)
    told = again.query("select task_id, count(*) as n from deadsure.events where event = 'recovered' group by task_id")
    again.close()
    assert {row["n"] for row in told} == {1}
    assert len(told) == 8
    assert pool.process is not None
    assert pool.process.poll() is None


def test_a_handler_that_holds_the_interpreter_longer_than_the_lease_keeps_its_task(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    pool = new_pool(options={"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"}).start()
    other = new_pool(options=SHORT).start()
    task = pool.submit("hold.interpreter", {"seconds": count(long=20, ci=5), "log": str(log)})
    done = pool.wait_for(task, "succeeded", "failed", "unknown", deadline=60)
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert len([line for line in log.read_text().splitlines() if line.startswith("start")]) == 1
    assert store.query("select 1 as one from deadsure.events") == []
    assert other.get("/readyz").status == 200


def test_a_supervisor_stopped_past_its_lease_settles_nobody_who_lives_and_comes_back_new(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool = new_pool(options={"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"}).start()
    other = new_pool(options=SHORT).start()
    task = pool.submit("block.unknown", {"go": str(tmp_path / "never")})
    pool.wait_for(task, "running")
    workers = pool.worker_pids()
    holder = store.query("select incarnation from deadsure.slots where cardinality(task_ids) = 1")[0]["incarnation"]
    stopped = pool if _incarnation_pid(store, holder) == pool.pid else other
    workers = stopped.worker_pids()
    os.kill(stopped.pid, signal.SIGSTOP)
    unknown = pool.wait_for(task, "unknown")["unknown"]
    assert (unknown["cause"], unknown["proof"]) == ("lease_expired", "lease")
    assert alive(workers[0])
    os.kill(stopped.pid, signal.SIGCONT)
    wait_until(lambda: not alive(workers[0]), "it kills its worker")
    wait_until(lambda: "the lease was refused" in stopped.log, "it learns it")
    wait_until(stopped.is_ready, "it comes back")
    told = store.query("select detail from deadsure.events where event = 'recovered'")
    assert [row["detail"]["proof"] for row in told] == ["lease"]  # type: ignore[index]


def _incarnation_pid(store: Store, incarnation: object) -> object:
    found = store.query("select pid from deadsure.incarnations where incarnation = :i", i=UUID(str(incarnation)))
    return found[0]["pid"]


def test_a_supervisor_stopped_for_less_than_its_lease_changes_nothing(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    task = pool.submit("block.unknown", {"go": str(tmp_path / "go")})
    pool.wait_for(task, "running")
    before = pool.worker_pids()
    os.kill(pool.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert pool.wait_for(task, "succeeded")["attempts"] == 1
    os.kill(pool.pid, signal.SIGCONT)
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")
    assert pool.worker_pids() == before


def test_a_death_after_the_finish_was_committed_changes_nothing(new_pool: NewPool, store: Store) -> None:
    pool = new_pool(options={"POOL_POLL_INTERVAL": "30"}).start()
    task = pool.submit("words", {"text": "a b"})
    pool.wait_for(task, "succeeded")
    before = store.row(UUID(task))
    victim = pool.worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: pool.worker_pids() not in ([], [victim]), "a replacement")
    assert store.row(UUID(task)) == before
    pool.wait_for(pool.submit("words", {"text": "c"}), "succeeded")


def test_ids_made_by_forked_workers_never_repeat(new_pool: NewPool) -> None:
    pool = new_pool(workers=8).start()
    wait_until(lambda: len(pool.worker_pids()) == 8, "eight workers")
    tasks = [pool.submit("ids", {"count": 625}) for _ in range(16)]
    results = [pool.wait_for(task, "succeeded")["result"] for task in tasks]
    for source in ("token", "uuid", "random"):
        made = [value for result in results for value in result[source]]
        assert len(made) == len(set(made)) == 10_000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, as the server's and as the root to trust."""
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_over_tls_every_process_has_its_own_session_and_kills_do_not_mix_them(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution.use(monkeypatch)  # the wheel's PostgreSQL is built without TLS
    with postgres.running_server(durable=True) as server:
        for name in ("cert.pem", "key.pem"):
            target = server.data / "pg" / name
            shutil.copy(certificate / name, target)
            os.chown(target, (server.data / "pg").stat().st_uid, (server.data / "pg").stat().st_gid)
            target.chmod(0o600)
        with postgres.admin(server) as session:
            for name, value in (("ssl_cert_file", "cert.pem"), ("ssl_key_file", "key.pem"), ("ssl", "on")):
                session.run(f"alter system set {name} = '{value}'")
            session.run("select pg_reload_conf()")
        address = postgres.fresh_database(server, tcp=True).replace("127.0.0.1", "localhost")
        address += f"?sslmode=verify-full&sslrootcert={certificate / 'cert.pem'}"
        _work_and_kill(db.Settings(dsn.parse(address)), address)
        log = postgres.server_log(server)
    assert "bad record mac" not in log
    assert "SSL error" not in log
    assert "unexpected" not in log


def _work_and_kill(settings: db.Settings, address: str) -> None:
    connection = db.connect(settings, "migrate")
    migrate.migrate(connection)
    pool = Pool(settings, new_runtime_dir(), workers=4, options={"DATABASE_DSN": address})
    try:
        pool.start()
        tasks = [pool.submit("note", {"seconds": 0.005}) for _ in range(400)]
        for _ in range(20):
            victim = wait_until(lambda: next(iter(pool.worker_pids()), None), "a worker")
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda victim=victim: victim not in pool.worker_pids(), "it is gone")  # type: ignore[misc]
        sessions = (
            "select ssl from pg_stat_activity join pg_stat_ssl using (pid) where application_name like 'deadsure%'"
        )
        wait_until(lambda: len(connection._driver.run(sessions)) >= 6, "supervisor, api and four workers have sessions")
        assert all(encrypted for (encrypted,) in connection._driver.run(sessions))
        for task in tasks:
            pool.wait_for(task, "succeeded", deadline=60)
        assert pool.stop() == 0
    finally:
        pool.close()
        shutil.rmtree(pool.runtime_dir)
        connection.close()
