"""A provider for an API that was not made for deadsure: one like Stripe's, with keys and without a lookup by key.

    PAYMENTS_URL=https://api.payments.example PAYMENTS_SECRET_FILE=/etc/shop/payments PAYMENTS_ACCOUNT=acct_17 \
      deadsure up --app examples.stripe_like:app

What is promised about such an API is the whole point: see docs/effects.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from deadsure import Ambiguous, App, Call, Contract, Intent, NotSent, Receipt, Rejected, Unavailable

HOUR = 3600.0
#: It refuses to do one key twice, and answers a repeat with its first answer: for a day, of which we use less, because
#: our clock for it starts a little before its own. There is no lookup that could say "no such charge" with authority:
#: its search lags behind, so what it does not find may be there.
CONTRACT = Contract(lookup=False, dedups_by_key=True, key_retention=23 * HOUR, settle_after=0.0)
LARGEST_ANSWER = 1024 * 1024


class StripeLike:
    """A Provider. `secret` is asked for at every call, so that it can be changed; `account` is whose charges they are.

    Keys are remembered per account. So the account belongs to the identity: under another one the same key is new.
    """

    contract = CONTRACT

    def __init__(self, url: str, account: str, secret: Callable[[], str], *, name: str = "payments") -> None:
        self.name = name
        self.timeout = 30.0
        self.identity = f"{url} {account}"
        self._url = urlsplit(url)
        self._account = account
        self._secret = secret

    def perform(self, call: Call) -> Receipt:
        """Charge. Every answer is one of three: it is done, it is not done, or nobody knows."""
        status, answer = self._post("/v1/charges", _form(call), call)
        error = answer.get("error", {})
        if status == 200 and answer.get("status") == "succeeded":
            return _receipt(answer)
        if status == 200 and answer.get("status") == "failed":
            raise Rejected(f"the charge failed: {answer.get('failure_code')}")
        if error.get("type") == "idempotency_error":
            # The key is known with another request. So there WAS one, and what became of it is not said.
            raise Ambiguous("the key was used before with other parameters")
        if status == 401:
            # Nothing was done, and with the right secret another attempt can be made.
            raise NotSent("the secret was refused")
        if status in (400, 402, 403, 404):
            raise Rejected(f"refused with {status}: {error.get('code')}")
        # 409: the same key is under way. 429 and 5xx: it may have been done. 200 with "pending": it is not over.
        raise Ambiguous(f"the answer was {status}, {answer.get('status')}")

    def lookup(self, call: Call) -> Receipt | None:
        """Never called, since the contract does not offer it."""
        raise Unavailable("charges cannot be looked up by their key")

    def _post(self, path: str, form: str, call: Call) -> tuple[int, dict[str, Any]]:
        # It does not know our not-after time, so at least we do not begin past it.
        if datetime.now(UTC) >= call.not_after:
            raise NotSent("it was too late to begin; nothing was sent")
        try:
            secret = self._secret()
        except OSError as error:
            raise NotSent(f"the secret cannot be read: {error.strerror}; nothing was sent") from None
        headers = {
            "Authorization": f"Bearer {secret}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Idempotency-Key": call.key,
            "Account": self._account,
        }
        connection = self._connect(call.timeout)
        # From here on the request may have left. This client repeats nothing, follows nothing, and knows no proxy.
        try:
            connection.request("POST", path, form, headers)
            response = connection.getresponse()
            return response.status, _json(response.read(LARGEST_ANSWER))
        except (OSError, HTTPException) as error:
            raise Ambiguous(f"no whole answer: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connect(self, timeout: float) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(host, port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            raise NotSent(f"cannot reach {host}: {error}; nothing was sent") from None
        return connection


def _form(call: Call) -> str:
    """The request: of the stored intent and the key alone, so that it is the same in every attempt."""
    fields = {name: str(value) for name, value in sorted(call.intent.items())}
    ours = {"metadata[deadsure_key]": call.key, "metadata[deadsure_fingerprint]": call.fingerprint}
    return urlencode(fields | ours)


def _receipt(charge: dict[str, Any]) -> Receipt:
    """What the API says it has done, in its own words: nothing in here comes from what we asked for."""
    metadata = charge.get("metadata", {})
    fields = {name: charge.get(name) for name in ("amount", "currency", "customer")}
    return Receipt(
        charge.get("id", ""), metadata.get("deadsure_key", ""), metadata.get("deadsure_fingerprint", ""), fields
    )


def _json(body: bytes) -> dict[str, Any]:
    """The answer's object; an empty one when it is something else, which then says nothing."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _secret() -> str:
    return Path(os.environ["PAYMENTS_SECRET_FILE"]).read_text().strip()


app = App()
payments = StripeLike(
    os.environ.get("PAYMENTS_URL", "https://api.payments.example"), os.environ.get("PAYMENTS_ACCOUNT", ""), _secret
)


@dataclass
class Charge:
    """What `charge` takes: so much from this customer, in the currency's smallest unit."""

    customer: str
    amount: int
    currency: str = "eur"


# The timeout ends an attempt that a server holds by dripping: the client's own is for each packet.
@app.effect("charge", provider=payments, max_attempts=3, timeout=120)
def charge(payload: Charge) -> Intent:
    """What is to be done, and nothing else happens in here."""
    if payload.amount <= 0:
        raise ValueError("amount must be positive")
    return Intent(customer=payload.customer, amount=payload.amount, currency=payload.currency)
