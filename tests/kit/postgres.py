"""A real PostgreSQL for the tests: one server per pytest process, one database per test.

The server is a child of pytest and shuts down with it, also when pytest is killed; its folder is then removed by the
next run. The database's name is new every time, so that nothing of one test can be seen by another.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pg8000.native
from deadsure.cli.embedded import EmbeddedError, EmbeddedPostgres
from deadsure.runtime import db
from deadsure.runtime.dsn import parse
from deadsure.runtime.store import migrate

_PREFIX = "deadsure-tests-"
FAST = {"fsync": "off", "full_page_writes": "off"}
TIDY = {"dynamic_shared_memory_type": "mmap"}  # in the folder: a killed server leaves nothing in /dev/shm
_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30
_SHARED = "TESTS_SERVER"  # not DEADSURE_: the commands warn of a name that they do not know


@contextmanager
def running_server(*, durable: bool = False, settings: Mapping[str, str] = {}) -> Iterator[EmbeddedPostgres]:
    """A server with a socket and a TCP port, in a fresh folder; gone, with the folder, at the end.

    `durable` keeps fsync on and the folder on the disk, for tests that are about what survives.
    """
    remove_leftovers()
    with scratch_folder(on_disk=durable) as folder:
        server = _started(folder, TIDY | ({} if durable else FAST) | dict(settings))
        try:
            yield server
        finally:
            server.stop("immediate")


@contextmanager
def session_server() -> Iterator[EmbeddedPostgres]:
    """The server of another process that was shared with this one, or one of our own."""
    told = os.environ.get(_SHARED)
    if told is None:
        with running_server() as server:
            yield server
    else:
        port, data, socket_folder = told.split(os.pathsep)
        yield _Shared(Path(data), int(port), Path(socket_folder))


def shared(server: EmbeddedPostgres) -> tuple[str, str]:
    """The variable that lets the tests of another process use this server, and its value. They cannot stop it."""
    return _SHARED, os.pathsep.join((str(server.port), str(server.data), str(server.socket)))


class _Shared(EmbeddedPostgres):
    """A server that another process started and will stop."""

    def __init__(self, data: Path, port: int, socket_folder: Path) -> None:
        super().__init__(data, port=port)
        self._socket = socket_folder

    def alive(self) -> bool:
        return True

    def start(self, deadline: float = 30.0) -> None:
        raise AssertionError("a shared server is nobody's to start or to stop")

    def stop(self, mode: str = "fast", deadline: float = 30.0) -> None:
        self.start()


def fresh_database(server: EmbeddedPostgres, *, tcp: bool = False, template: str = "template0") -> str:
    """The DSN of a new database, empty or as `template` is, through the socket or (`tcp`) through 127.0.0.1."""
    name = f"t_{uuid.uuid4().hex}"
    with admin(server) as session:
        session.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    return with_database(server.tcp_dsn() if tcp else server.dsn(), name)


def drop_database(server: EmbeddedPostgres, dsn: str) -> None:
    """Drop what `fresh_database` made, and end the sessions that are still in it."""
    with admin(server) as session:
        session.run(f"DROP DATABASE IF EXISTS {database_name(dsn)} WITH (FORCE)")


def migrated_template(server: EmbeddedPostgres) -> str:
    """The name of a database with exactly this schema, made at the first call: to copy it is faster than to migrate.

    A shared server may have others, of processes that test another schema.
    """
    name = f"migrated_{hashlib.sha256(migrate.script().encode()).hexdigest()[:32]}"
    with admin(server) as session:
        if session.run("SELECT 1 FROM pg_database WHERE datname = :name", name=name):
            return name
        dsn = fresh_database(server)
        connection = db.connect(db.Settings(parse(dsn), statement_timeout=10.0), "migrate")
        migrate.migrate(connection)
        connection.close()
        try:
            session.run(f"ALTER DATABASE {database_name(dsn)} RENAME TO {name}")
        except pg8000.native.DatabaseError:  # another process was faster
            drop_database(server, dsn)
    return name


@contextmanager
def database(server: EmbeddedPostgres, *, tcp: bool = False, template: str = "template0") -> Iterator[str]:
    """A fresh database's DSN, dropped at the end; a server that the test left dead is started again for that."""
    dsn = fresh_database(server, tcp=tcp, template=template)
    try:
        yield dsn
    finally:
        if not server.alive():
            server.start()
        drop_database(server, dsn)


@contextmanager
def session(server: EmbeddedPostgres, name: str = "deadsure") -> Iterator[pg8000.native.Connection]:
    """A plain driver session in the database `name`, through the socket, beside whatever is tested."""
    file = f"{server.socket}/.s.PGSQL.{server.port or 5432}"
    connection = pg8000.native.Connection("deadsure", unix_sock=file, database=name)
    try:
        yield connection
    finally:
        with suppress(pg8000.native.InterfaceError, OSError):  # the test may have killed the server
            connection.close()


@contextmanager
def admin(server: EmbeddedPostgres) -> Iterator[pg8000.native.Connection]:
    """A session that stands in no test's database."""
    with session(server, "postgres") as connection:
        yield connection


def server_log(server: EmbeddedPostgres) -> str:
    """Everything that the server said so far: deadlocks, lock waits, refused statements, crashes."""
    return server.log.read_text(errors="replace")


def database_name(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    return urlsplit(dsn)._replace(path=f"/{name}").geturl()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def scratch_folder(*, on_disk: bool = False) -> Iterator[Path]:
    """A folder for clusters, which every user can enter; in memory, where there is room and programs may run.

    A database is 300 files, and ext4 looks at every inode that was deleted lately before it takes one for a new file:
    on such a disk CREATE DATABASE takes 0.5 s after a few tests, in memory 0.05 s.
    """
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=None if on_disk else _memory()))
    hidden.chmod(0o755)
    with _locked(hidden):  # before it has a name that remove_leftovers() looks for
        folder = hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of killed runs: those whose lock died with its pytest."""
    for parent in {Path(tempfile.gettempdir()), _MEMORY}:
        for folder in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError), _locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder's lock, held until the end or our death. BlockingIOError when another process has it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _memory() -> Path | None:
    if not _MEMORY.is_dir():
        return None
    state = os.statvfs(_MEMORY)
    roomy = state.f_bavail * state.f_frsize > _ROOM
    return _MEMORY if roomy and not state.f_flag & os.ST_NOEXEC else None


def _started(folder: Path, settings: Mapping[str, str]) -> EmbeddedPostgres:
    """Started on a free port; on another one when somebody was faster."""
    for _ in range(5):
        server = EmbeddedPostgres(folder, port=free_port(), settings=settings)
        try:
            server.start()
        except EmbeddedError as error:
            if "Address already in use" not in str(error):
                raise
        else:
            return server
    raise EmbeddedError("no free TCP port in five attempts")
