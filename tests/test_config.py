"""The configuration: four layers, and mistakes that are named instead of being guessed around."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from deadsure.cli import config, runtime_dir, wiring
from deadsure.cli.address import Address, parse_address
from deadsure.cli.config import Config
from deadsure.cli.layers import OptionError
from deadsure.cli.secret_file import read_secret
from deadsure.runtime.errors import ConfigurationError

ROOT = Path(__file__).parents[1]
DSN = "postgresql://app@db:5432/app"


class Place:
    """Where a configuration is loaded: an environment of its own, and a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "deadsure.toml"
        self._monkeypatch = monkeypatch

    def variables(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def load(self, toml: str | None = None, options: Mapping[str, str | None] | None = None) -> Config:
        if toml is None:
            return config.load(None, options)
        self.file.write_text(toml)
        return config.load(str(self.file), options)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in list(os.environ):
        if name.startswith(("DEADSURE_", "XDG_", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, monkeypatch)


def test_nothing_at_all_is_a_configuration(place: Place) -> None:
    assert place.load() == Config()


def test_an_option_wins_over_the_environment_and_that_over_the_file(place: Place) -> None:
    toml = "[pool]\nworkers = 2\nlease = 20\nname = 'file'"
    place.variables(DEADSURE_POOL_WORKERS="3", DEADSURE_POOL_LEASE="30.5")
    found = place.load(toml, {"pool.workers": "5", "http.bind": None})
    assert (found.pool.workers, found.pool.lease, found.pool.name, found.pool.renew_every) == (5, 30.5, "file", 5.0)


def test_the_file_can_be_named_by_a_variable(place: Place) -> None:
    place.file.write_text("app = 'shop:app'")
    place.variables(DEADSURE_CONFIG=str(place.file))
    assert place.load().app == "shop:app"


def test_a_drain_that_ends_in_time_is_accepted(place: Place) -> None:
    place.variables(DEADSURE_POOL_STOP_TIMEOUT="49")
    assert place.load().pool.stop_timeout == 49.0


def test_a_list_in_a_variable_has_commas(place: Place) -> None:
    place.variables(DEADSURE_POOL_QUEUES="urgent, default")
    assert place.load().pool.queues == ("urgent", "default")


def test_texts_that_look_like_nothing_stay_texts(place: Place) -> None:
    place.variables(DEADSURE_APP="null", DEADSURE_POOL_QUEUES="1,true", DEADSURE_AUTH_TOKENS_FILE="/null")
    found = place.load(options={"app_dir": "null"})
    assert (found.app, found.pool.queues, found.app_dir.name) == ("null", ("1", "true"), "null")
    assert found.auth.tokens_file == Path("/null")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("worker = 3", "unknown key worker"),
        ("[pool]\nworker = 3", "unknown key pool.worker; did you mean pool.workers?"),
        ("[pools]\nworkers = 3", "unknown key pools"),
        ("pool = 3", "pool must be a section, [pool]"),
        ("[pool]\nworkers = '3'", "pool.workers: expected int, got str"),
        ("[pool]\nworkers = true", "pool.workers: expected int, got bool"),
        ("[pool]\nworkers = 0", "pool.workers: expected int >= 1"),
        ("[pool]\nworkers = 513", "pool.workers: expected int <= 512"),
        ("[pool]\nlease = -1", "pool.lease: expected float > 0.0"),
        ("[pool]\nlease = nan", "pool.lease: expected float > 0.0"),
        ("[pool]\nlease = inf", "pool.lease: expected float <= 86400.0"),
        ("[pool]\nlease = 5", "pool.renew_every (5 s) must be less than pool.lease (5 s)"),
        ("[pool]\nstop_timeout = 48", "pool.stop_timeout (48 s) is too short for pool.drain_timeout (30 s)"),
        ("[pool]\nstop_timeout = 50\n[database]\ndsn = 'postgresql://a@b,c,d/e'", "stopping can take 52 s"),
        ("[pool]\nqueues = []", "pool.queues is empty"),
        ("[pool]\nqueues = ['a', 'a']", "pool.queues names 'a' twice"),
        ("[pool]\nqueues = ['']", "a queue's name has 1 to 200 printable characters"),
        ("[pool]\nname = '../x'", "pool.name: expected str matching"),
        ("[http]\nbind = '::1:8470'", "http.bind: expected ADDRESS:PORT"),
        ("[http]\nbind = '127.0.0.1:70000'", "http.bind: the port '70000' is not a number"),
        ("[http]\nbind = 'example.org:80'", "http.bind: 'example.org' is not an IP address"),
        ("[log]\nlevel = 'loud'", "log.level: invalid enum value 'loud'"),
        ("[database]\npassword_file = ''", "database.password_file: expected a path"),
        ("[database]\ndsn = 'mysql://x'\npassword_file = 'p'", "must begin with postgresql://"),
        ("[pool", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(place: Place, toml: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        place.load(toml)


def test_a_file_that_is_not_there_is_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the configuration nowhere\.toml: No such file"):
        config.load("nowhere.toml")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DEADSURE_POOL_WORKERS", "many", "DEADSURE_POOL_WORKERS: expected int, got str"),
        ("DEADSURE_POOL_WORKERS", "", "the variable DEADSURE_POOL_WORKERS is set but empty"),
        ("DEADSURE_CONFIG", "", "the variable DEADSURE_CONFIG is set but empty"),
        ("DEADSURE_DRILLS_ENABLED", "perhaps", "DEADSURE_DRILLS_ENABLED: expected bool, got str"),
    ],
)
def test_a_mistake_in_a_variable_is_named(place: Place, name: str, value: str, said: str) -> None:
    place.variables(**{name: value})
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        place.load()


def test_a_mistake_in_an_option_is_the_callers(place: Place) -> None:
    with pytest.raises(OptionError, match="--workers: expected int >= 1"):
        place.load(options={"pool.workers": "0"})


def test_an_unknown_variable_is_warned_of_without_its_value(place: Place) -> None:
    place.variables(DEADSURE_POOL_WORKER="s3cret", DEADSURE_URL="http://x:1")
    [warning] = config.unknown_variables()
    assert warning.startswith("the variable DEADSURE_POOL_WORKER is not known and is ignored; did you mean")
    assert warning.endswith("DEADSURE_POOL_WORKERS?")


def test_relative_paths_are_seen_from_the_file_or_from_here(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "d.toml").write_text("app_dir = 'apps'\n[auth]\ntokens_file = 'tokens'")
    place.variables(DEADSURE_APP_DIR="here")
    found = config.load(str(folder / "d.toml"))
    assert (found.app_dir, found.auth.tokens_file) == (tmp_path / "here", folder / "tokens")


def test_the_example_shows_every_key_with_its_default() -> None:
    text = (ROOT / "examples" / "deadsure.toml").read_text()
    found = config.load(str(ROOT / "examples" / "deadsure.toml"))
    assert (found.pool, found.http) == (config.Pool(), config.Http())
    assert (found.log, found.drills) == (config.Log(), config.Drills())
    missing = [key for key in config.KEYS if not re.search(rf"^(# )?{key.rpartition('.')[2]} = ", text, re.MULTILINE)]
    assert missing == []


# --- secrets


@pytest.mark.parametrize(
    ("content", "secret"), [("pw\n", "pw"), ("pw\r\n", "pw"), (" p w \n\n", " p w \n"), ("pw", "pw")]
)
def test_one_newline_at_the_end_is_not_of_the_secret(tmp_path: Path, content: str, secret: str) -> None:
    (tmp_path / "s").write_bytes(content.encode())
    assert read_secret(tmp_path / "s") == secret


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        read_secret(tmp_path / "s")


def test_the_password_comes_from_its_file_and_shows_nowhere(place: Place, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("s3cret\n")
    settings = wiring.database_settings(place.load(f"[database]\ndsn = '{DSN}'\npassword_file = 'pw'"))
    assert settings.dsn.password == "s3cret"
    assert "s3cret" not in repr(settings) + str(settings.dsn)


def test_the_password_can_be_a_credential_of_systemd(place: Place, tmp_path: Path) -> None:
    (tmp_path / "database_password").write_text("s3cret")
    place.variables(CREDENTIALS_DIRECTORY=str(tmp_path), DEADSURE_DATABASE_DSN=DSN)
    assert wiring.database_settings(place.load()).dsn.password == "s3cret"


def test_a_password_that_is_given_twice_is_refused_without_being_shown(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="given twice") as caught:
        place.load("[database]\ndsn = 'postgresql://app:s3cret@db/app'\npassword_file = 'pw'")
    assert "s3cret" not in str(caught.value)


def test_without_a_dsn_there_is_no_database_to_guess(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="no database is configured"):
        wiring.database_settings(place.load())


# --- who may ask


@pytest.mark.parametrize("bind", ["0.0.0.0:8470", "[::]:8470", "192.0.2.1:8470"])
def test_an_open_address_without_tokens_is_refused(place: Place, bind: str) -> None:
    place.variables(DEADSURE_HTTP_BIND=bind)
    with pytest.raises(ConfigurationError, match="can be reached from other machines, and there are no tokens"):
        wiring.tokens_of(place.load())


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::1]:8470", "localhost:8470", "127.9.9.9:1"])
def test_loopback_needs_no_tokens(place: Place, bind: str) -> None:
    place.variables(DEADSURE_HTTP_BIND=bind)
    assert wiring.tokens_of(place.load()) == ()


def test_with_tokens_any_address_will_do(place: Place, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"ada {'0' * 64} read,submit\n")
    place.variables(DEADSURE_HTTP_BIND="0.0.0.0:8470", DEADSURE_AUTH_TOKENS_FILE="tokens")
    assert [token.name for token in wiring.tokens_of(place.load())] == ["ada"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("[::1]:0", Address("::1", 0)),
        ("localhost:1", Address("127.0.0.1", 1)),
    ],
)
def test_an_address_is_numeric(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":80", "80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "[::1", "1.2:80", "[]:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected ADDRESS:PORT|is not a number"):
        parse_address(text)


# --- the service manager


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_counts_only_when_it_is_meant_for_us(variables: dict[str, str], seconds: float | None) -> None:
    assert wiring.watchdog(variables) == seconds


def test_the_pool_is_told_where_the_service_manager_listens(place: Place, tmp_path: Path) -> None:
    place.variables(NOTIFY_SOCKET="/run/systemd/notify", DEADSURE_DATABASE_DSN=DSN, DEADSURE_APP="shop:app")
    place.variables(DEADSURE_POOL_RUNTIME_DIR=str(tmp_path / "run"), DEADSURE_HTTP_PROCESSES="2")
    settings = wiring.pool_settings(place.load())
    assert (settings.notify_socket, settings.api_processes) == ("/run/systemd/notify", 2)
    assert settings.runtime_dir.is_dir()


# --- the runtime directory


def test_the_runtime_directory_follows_the_conventions(tmp_path: Path) -> None:
    of = runtime_dir.default_runtime_dir
    assert of({"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/run/a")
    assert of({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "deadsure"
    private = Path("/run/deadsure") if os.geteuid() == 0 else Path(f"/tmp/deadsure-{os.geteuid()}")
    assert of({"XDG_RUNTIME_DIR": "relative"}).name == private.name
    assert of({}).name == private.name


def test_a_new_runtime_directory_is_closed_to_others(tmp_path: Path) -> None:
    assert runtime_dir.prepare_runtime_dir(tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_runtime_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others can write"):
        runtime_dir.prepare_runtime_dir(tmp_path)


def test_a_link_as_a_runtime_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="a link to one is refused"):
        runtime_dir.prepare_runtime_dir(tmp_path / "link")


def test_a_file_as_a_runtime_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is not a folder"):
        runtime_dir.prepare_runtime_dir(tmp_path / "file")


def test_a_runtime_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    foreign = Path("/usr")  # of root
    if os.geteuid() == 0:
        os.chown(foreign := tmp_path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="belongs to the user"):
        runtime_dir.prepare_runtime_dir(foreign)
