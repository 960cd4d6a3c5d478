"""Who may ask: the open loopback against browsers, and tokens with scopes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from deadsure.httpapi import tokens
from deadsure.runtime.errors import ConfigurationError
from kit.api import Api

TASK = {"kind": "plain", "payload": {}}
MISSING = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"


def line(name: str, secret: str, *scopes: str) -> str:
    return f"{name} {hashlib.sha256(secret.encode()).hexdigest()} {','.join(scopes)}\n"


TOKENS = (
    "# who may do what\n\n" + line("ci", "ci-secret", "submit", "read") + line("ops", "ops-secret", "cancel", "read")
)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8470", "127.0.0.1:1", "127.8.9.1", "[::1]:8470"])
def test_loopback_may_be_called_by_its_own_names(shared_api: Api, host: str) -> None:
    assert shared_api.ask("GET", "/livez", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "localhost.evil.example", "10.0.0.1", "[", ""])
def test_a_foreign_host_is_refused(shared_api: Api, host: str) -> None:
    for path in ("/livez", "/tasks"):
        assert shared_api.ask("GET", path, headers={"Host": host}).status == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"])
def test_a_page_of_another_site_is_refused(shared_api: Api, origin: str) -> None:
    headers = {"Host": f"localhost:{shared_api.port}", "Origin": origin}
    assert shared_api.ask("POST", "/tasks", TASK, headers).status == 403
    assert shared_api.ask("GET", "/tasks", headers=headers).status == 403


def test_a_page_of_this_very_server_may_ask(api: Api) -> None:
    host = f"localhost:{api.port}"
    assert api.ask("POST", "/tasks", TASK, {"Host": host, "Origin": f"http://{host}"}).status == 202


def test_without_a_valid_token_nobody_gets_in(new_api: Callable[..., Api]) -> None:
    api = new_api(tokens=TOKENS)
    for headers in ({}, bearer("wrong"), {"Authorization": "Basic Y2k6Y2ktc2VjcmV0"}, {"Authorization": "Bearer"}):
        for method, path in (("POST", "/tasks"), ("GET", "/tasks"), ("GET", f"/tasks/{MISSING}"), ("GET", "/workers")):
            answer = api.ask(method, path, TASK if method == "POST" else None, headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "ci-secret" not in api.log


def test_probes_need_no_token(new_api: Callable[..., Api]) -> None:
    api = new_api(tokens=TOKENS)
    assert api.ask("GET", "/livez").status == 200
    assert api.ask("GET", "/readyz").status == 503  # no worker is ready; it says so to everybody


def test_a_token_may_do_what_its_scopes_say_and_no_more(new_api: Callable[..., Api]) -> None:
    api = new_api(tokens=TOKENS)
    made = api.ask("POST", "/tasks", TASK, bearer("ci-secret"))
    assert made.status == 202
    path = f"/tasks/{made.body['id']}"
    assert api.ask("POST", f"{path}/cancel", headers=bearer("ci-secret")).status == 403
    assert api.ask("POST", "/tasks", TASK, bearer("ops-secret")).status == 403
    assert api.ask("POST", f"{path}/cancel", headers=bearer("ops-secret")).status == 202
    events = api.ask("GET", f"{path}/events", headers=bearer("ops-secret")).body["events"]
    assert events[0]["detail"]["actor"] == "ops"


def test_with_tokens_any_host_may_be_named(new_api: Callable[..., Api]) -> None:
    api = new_api(tokens=TOKENS)
    headers = {"Host": "tasks.example", "Origin": "https://tasks.example", **bearer("ci-secret")}
    assert api.ask("GET", "/tasks", headers=headers).status == 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody\n",
        "ci abc submit\n",
        "ci " + "0" * 64 + "\n",
        line("ci", "x", "submit", "everything"),
        line("ci", "x", "submit") + line("ci", "y", "read"),
    ],
)
def test_a_bad_tokens_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        tokens.parse(text)
