"""schemathesis with every check it has: the API does what GET /openapi.json says, also while PostgreSQL is away.

It runs in a process of its own against a real api child: it makes requests that fit the document and requests that do
not, follows one call with another, and holds each answer against the document.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.model import Kind
from deadsure.runtime.states import OnDeath
from deadsure.runtime.store import pool
from kit.api import Api, fresh_store, running
from kit.pool import ROOT, SOURCE
from kit.postgres import free_port
from kit.scale import count
from kit.store import Store

pytestmark = pytest.mark.faults

SEED = 20261130
#: The systematic cases (coverage) cost the most; in CI one run has all phases, and each of the others what is its own.
LONG, ALL = bool(count(1, 0)), "coverage,fuzzing,stateful"
SECRET = "the-secret-of-a-test"
TOKENS = f"tester {hashlib.sha256(SECRET.encode()).hexdigest()} submit,read,cancel,operate,metrics\n"

#: No check is left out. A decision that fits may beside the defaults get 412, since no document knows which version a
#: task has, and one without If-Match with 428, which was made for that (RFC 6585) but is not in the check's own list.
CONFIG = """
[generation]
database = "none"

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx"{and_503}]

[dictionaries.ids]
values = {ids}

[dictionaries.versions]
values = ['"1"', '"2"']

[parameters]
"path.id" = {{ dictionary = "ids", probability = 0.8 }}
"header.If-Match" = {{ dictionary = "versions", probability = 0.5 }}

[[operations]]
include-path = "/tasks/{{id}}/resolution"
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 429, "5xx"]
checks.missing_required_header.expected-statuses = [428]
"""

AUTH = f"""
[auth.openapi.token]
bearer = "{SECRET}"
"""


@pytest.mark.parametrize("door", ["open", "with tokens"])
def test_the_api_does_what_its_document_says(server: EmbeddedPostgres, tmp_path: Path, door: str) -> None:
    settings, auth = ({}, "") if door == "open" else ({"tokens": TOKENS}, AUTH)
    with fresh_store(server) as store, running(store.settings, tmp_path, **settings) as api:
        api.worker("IDLE")
        phases = ALL if door == "open" or LONG else "fuzzing,stateful"
        report = run(api, tmp_path, ids=tasks_in_every_state(store), phases=phases, auth=auth)
    assert report["test_cases"]["generated"] >= (count(3000, 300) if door == "open" else count(2500, 50))


def test_without_a_database_the_api_still_does_what_its_document_says(tmp_path: Path) -> None:
    nowhere = db.Settings(dsn.parse(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"))
    with running(nowhere, tmp_path) as api:
        report = run(api, tmp_path, ids=[MISSING], phases=ALL if LONG else "coverage", and_503=', "503"')
    assert report["test_cases"]["generated"] >= count(3000, 300)


MISSING = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"


def run(api: Api, folder: Path, *, ids: list[str], phases: str, and_503: str = "", auth: str = "") -> Any:
    """Run it to its end and return its report. Fails the test when a check failed, with what it printed."""
    config, report = folder / "schemathesis.toml", folder / "report.json"
    config.write_text(CONFIG.format(ids=json.dumps(ids), and_503=and_503) + auth)
    command = [
        Path(sys.executable).with_name("schemathesis"), "--config-file", config,
        "run", f"http://127.0.0.1:{api.port}/openapi.json", "--checks", "all", "--seed", SEED, "--no-color",
        "--phases", phases, "--max-examples", count(400, 8), "--report-json-path", report,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}:{ROOT / 'tests'}", "SCHEMATHESIS_HOOKS": "kit.cases"}
    ended = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    found = json.loads(report.read_text())
    print({name: found[name] for name in ("seed", "test_cases", "running_time")})
    return found


def tasks_in_every_state(store: Store) -> list[str]:
    """The ids of tasks in every state; many are unknown, since every decision uses one up."""
    contract = {"lookup": True, "dedups_by_key": True, "key_retention": 60.0, "settle_after": 0.0}
    pool.register_kinds(
        store.connection,
        [
            Kind("any", OnDeath.REQUEUE, max_attempts=2**31 - 1),
            Kind("pay", provider="bank", contract=contract),
        ],
    )
    unknown = [store.submit(kind) for kind in ("plain", "pay") for _ in range(20)]
    store.query(UNKNOWN)
    others = [store.submit() for _ in range(4)]
    for state, task in zip(("succeeded", "failed", "canceled"), others, strict=False):
        store.query(ENDED, id=task, state=state)
    store.worker().claim()
    return [str(id) for id in (*unknown, *others, store.submit())] + [MISSING]


UNKNOWN = """
with gone as (delete from deadsure.ready returning id),
doubtful as (
  update deadsure.tasks set state = 'unknown', unknown_cause = 'ambiguous_answer', unknown_needs = 'decision',
         unknown_since = clock_timestamp(), attempts = 1
   where state = 'queued' returning id, kind, provider, unknown_since
)
insert into deadsure.unknowns (id, kind, provider, needs, since) select id, kind, provider, 'decision', unknown_since
  from doubtful
"""
ENDED = """
with gone as (delete from deadsure.ready where id = cast(:id as uuid))
update deadsure.tasks
   set state = :state, finished_at = clock_timestamp(), attempts = 1,
       result = case when :state = 'succeeded' then cast('{"a": 1}' as jsonb) end,
       failure_reason = case when :state = 'failed' then 'ValueError: it did' end
 where id = cast(:id as uuid)
"""
