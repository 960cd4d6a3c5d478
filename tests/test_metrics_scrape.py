"""GET /metrics of an api child: what is there, in which format, for whom, and how much it can grow."""

from __future__ import annotations

import hashlib
import http.client
import random
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from deadsure.metrics import catalogue
from deadsure.metrics.catalogue import CATALOGUE, Metric
from deadsure.runtime.dsn import Host
from deadsure.runtime.model import ExitProof
from deadsure.runtime.store import recover
from kit.api import Api
from kit.fault_proxy import FaultProxy
from kit.fault_rules import Fault
from kit.metrics import Scrape, parse, scrape
from kit.postgres import free_port
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

#: Labels whose values are not known before somebody has come with one.
UNKNOWN_BEFORE = {"kind", "provider", "route", "queue", "table", "part"}
LATER = {"deadsure_database_up", "deadsure_oldest_transaction_seconds"}


def _sample_names(metric: Metric) -> tuple[str, ...]:
    suffixes = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
    return tuple(metric.name + suffix for suffix in suffixes)


def test_every_series_whose_labels_are_known_is_there_from_the_first_scrape(api: Api) -> None:
    found = scrape(api.port)
    names = {name for name, _ in found.values}
    known = [m for m in CATALOGUE if not UNKNOWN_BEFORE & set(m.labels) and m.name not in LATER]
    assert [name for metric in known for name in _sample_names(metric) if name not in names] == []
    for metric in known:
        closed = [label for label in metric.labels if label not in ("pool", "process", "version")]
        for label, values in zip(closed, metric.values, strict=True):
            shown = {dict(pairs)[label] for name, pairs in found.values if name == _sample_names(metric)[-1]}
            assert shown == set(values), metric.name


def test_a_scrape_shows_nothing_that_is_not_in_the_catalogue(api: Api) -> None:
    api.submit()
    told = {name for metric in CATALOGUE for name in _sample_names(metric)}
    assert {name for name, _ in scrape(api.port).values} <= told


def test_the_format_is_what_was_asked_for(api: Api) -> None:
    plain = api.ask("GET", "/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain; version=")
    asked = api.ask("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert asked.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert asked.body.endswith(b"# EOF\n")
    assert api.ask("HEAD", "/metrics").status == 200
    assert api.ask("POST", "/metrics", {}).status == 405


def test_promtool_finds_nothing_to_say_about_it(api: Api) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    api.submit()
    said = subprocess.run(
        ["promtool", "check", "metrics"], input=api.ask("GET", "/metrics").body, capture_output=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


def test_with_tokens_it_needs_its_scope(new_api: Callable[..., Api]) -> None:
    tokens = "\n".join(f"{scope} {hashlib.sha256(scope.encode()).hexdigest()} {scope}" for scope in ("metrics", "read"))
    api = new_api(tokens=tokens)
    assert api.ask("GET", "/metrics").status == 401
    assert api.ask("GET", "/metrics", headers={"Authorization": "Bearer read"}).status == 403
    assert api.ask("GET", "/metrics", headers={"Authorization": "Bearer metrics"}).status == 200


# --- without a database


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    made = FaultProxy(store.settings.dsn.hosts[0])
    yield made
    made.close()


def test_a_scrape_needs_no_database(new_api: Callable[..., Api], store: Store) -> None:
    here = replace(store.settings, dsn=replace(store.settings.dsn, hosts=(Host("127.0.0.1", free_port()),)))
    api = new_api(here)
    assert api.ask("GET", "/tasks").status == 503
    found = _quick_scrape(api)
    assert found.get("deadsure_database_up", process="api-1") == 0


def test_a_scrape_takes_no_connection_while_all_of_them_hang(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(proxy.through(store.settings), db_connections=1, request_budget=4.0)
    assert api.ask("GET", "/tasks").status == 200
    assert scrape(api.port).get("deadsure_database_up", process="api-1") == 1
    proxy.blackhole(new="silent")
    slow = _connection(api)
    slow.request("GET", "/tasks")
    wait_until(lambda: scrape(api.port, 1).get("deadsure_db_pool_in_use", process="api-1") == 1, "it hangs")
    found = _quick_scrape(api)
    assert found.get("deadsure_db_pool_size", process="api-1") == 1
    assert slow.getresponse().status == 503
    slow.close()
    wait_until(lambda: scrape(api.port).get("deadsure_db_pool_in_use", process="api-1") == 0, "it was given back")
    assert scrape(api.port).get("deadsure_database_up", process="api-1") == 0


def _quick_scrape(api: Api) -> Scrape:
    """The quickest of a few: a busy machine can be slow once, a database that does not answer is slow every time."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        found = scrape(api.port)
        took.append(time.monotonic() - began)
    assert min(took) < 0.8, took
    return found


def test_waiting_for_a_connection_in_vain_is_counted(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(proxy.through(store.settings), db_connections=1, request_budget=1.0)
    assert api.ask("GET", "/tasks").status == 200
    proxy.blackhole(new="silent")
    connections = [_connection(api) for _ in range(8)]
    for connection in connections:
        connection.request("GET", "/tasks")
    problems = [connection.getresponse().read().decode() for connection in connections]
    for connection in connections:
        connection.close()
    in_vain = sum("every database connection is in use" in problem for problem in problems)
    assert in_vain > 0, problems
    found = scrape(api.port)
    assert found.get("deadsure_db_pool_timeouts_total", process="api-1") == in_vain
    assert found.get("deadsure_db_pool_wait_seconds_count", process="api-1") == 1 + len(connections)


# --- how much it can grow


def test_nothing_that_clients_send_makes_new_series(api: Api) -> None:
    api.submit()
    dice = random.Random(7)
    connection = _connection(api)
    _ask(connection, "GET", f"/tasks/{uuid.uuid4()}")
    _ask(connection, "GET", "/nowhere")
    _ask(connection, "BREW", "/tasks")
    _ask(connection, "POST", "/tasks", b'{"kind": "nobody has it", "payload": {}}')
    before = _series(api)
    for number in range(count(5000)):
        _ask(connection, "GET", f"/{dice.randbytes(8).hex()}/{number}")
        _ask(connection, "GET", f"/tasks/{uuid.UUID(int=dice.getrandbits(128))}")
    for number in range(count(200)):
        _ask(connection, f"BREW{number}", dice.choice(["/tasks", "/nowhere", "/metrics", "/livez"]))
    for number in range(count(500)):
        _ask(connection, "POST", "/tasks", b'{"kind": "kind-%d", "payload": {}}' % number)
        _ask(connection, "POST", "/tasks", b'{"kind": "plain", "payload": {}, "queue": "queue-%d"}' % number)
    connection.close()
    # Answers that nobody had given before: a 405 or 404 for each of the paths that were tried.
    new = _series(api) - before
    of_answers = {*_sample_names(catalogue.HTTP_REQUESTS), *_sample_names(catalogue.HTTP_REQUEST)}
    assert {name for name, _ in new} <= of_answers
    assert len({dict(pairs)["route"] for _, pairs in new}) <= 4
    assert len({pairs for name, pairs in new if name == "deadsure_http_requests_total"}) <= 6


def test_routes_are_told_by_their_template_and_strangers_together(api: Api) -> None:
    task = api.submit()
    api.ask("GET", f"/tasks/{task['id']}")
    api.ask("GET", f"/tasks/{task['id']}/nothing")
    api.ask("GET", "/%2e%2e/etc")
    found = scrape(api.port).by("deadsure_http_requests_total", "route", "method", "code")
    assert found == {
        ("/tasks", "POST", "202"): 1,
        ("/tasks/{id}", "GET", "200"): 1,
        ("unmatched", "GET", "404"): 2,
    }


def test_what_a_guard_refuses_is_counted_too(api: Api) -> None:
    assert api.ask("GET", "/tasks", headers={"Host": "evil.example"}).status == 403
    assert scrape(api.port).sum("deadsure_http_requests_total", code="403") == 1


def _series(api: Api) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return set(scrape(api.port).values)


def _connection(api: Api) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> None:
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    connection.getresponse().read()


# --- cancels and decisions


def test_a_cancel_of_a_queued_task_is_counted_once(api: Api) -> None:
    task = api.submit("plain")
    for _ in range(2):
        assert api.ask("POST", f"/tasks/{task['id']}/cancel").status == 202
    assert scrape(api.port).by("deadsure_tasks_finished_total", "kind", "state") == {("plain", "canceled"): 1}


@pytest.mark.parametrize("statement", ["cancel", "tasks"])
def test_a_cancel_whose_answer_was_lost_is_counted_once(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy, statement: str
) -> None:
    api = new_api(proxy.through(store.settings))
    task = api.submit("plain")
    proxy.add(statement, Fault.ANSWER_LOST, times=1)
    assert api.ask("POST", f"/tasks/{task['id']}/cancel").status == 202
    assert scrape(api.port).by("deadsure_tasks_finished_total", "kind", "state") == {("plain", "canceled"): 1}


def test_a_decision_is_counted_once_however_often_it_is_sent(api: Api, store: Store) -> None:
    task = api.submit("plain")
    worker = store.worker()
    assert worker.claim() is not None
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    tag = api.ask("GET", f"/tasks/{task['id']}").headers["ETag"]
    for _ in range(2):
        decided = api.ask(
            "POST", f"/tasks/{task['id']}/resolution", {"state": "failed", "evidence": "seen"},
            {"If-Match": tag, "Idempotency-Key": "one"},
        )  # fmt: skip
        assert decided.status == 200, decided
    found = scrape(api.port)
    assert found.by("deadsure_resolutions_total", "state") == {("failed",): 1}
    assert found.by("deadsure_tasks_finished_total", "kind", "state") == {("plain", "failed"): 1}


# --- the seats


def test_workers_are_told_by_what_their_seats_say(api: Api) -> None:
    def told() -> tuple[dict[tuple[str, ...], float], float]:
        found: Scrape = parse(api.ask("GET", "/metrics").body.decode())
        return found.by("deadsure_workers", "state"), found.get("deadsure_pool_saturation_ratio", pool="default")

    assert told() == ({}, 0)
    api.worker("HANDLING", seat=0)
    assert told() == ({("busy",): 1}, 1)
    api.worker("FINISHING", seat=0)
    api.worker("IDLE", seat=1, pid=2)
    assert told() == ({("busy",): 1, ("idle",): 1}, 1)
    api.worker("STARTING", seat=0)
    assert told() == ({("starting",): 1, ("idle",): 1}, 0)
