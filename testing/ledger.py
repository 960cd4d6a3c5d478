"""A provider in memory that counts what it was asked, to stand in for a real one in tests."""

from __future__ import annotations

import threading
from collections import Counter

from ..runtime.effects import Ambiguous, Call, Contract, Receipt, Unavailable

FULL = Contract(lookup=True, dedups_by_key=True, key_retention=86400.0, settle_after=0.0)


class Ledger:
    """A Provider: does each effect by noting it.

    `calls` counts performs per key, `effects` what was really done per key, `lookups` the questions. `lose_answers`
    makes performs happen and then raise Ambiguous; `unavailable` makes lookups raise Unavailable.
    """

    def __init__(self, name: str = "ledger", contract: Contract | None = FULL) -> None:
        self.name = name
        self.contract = contract
        self.timeout = 10.0
        self.calls: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.lookups: Counter[str] = Counter()
        self.requests: dict[str, list[bytes]] = {}
        self.lose_answers = False
        self.unavailable = False
        self._receipts: dict[str, Receipt] = {}
        self._lock = threading.Lock()

    def perform(self, call: Call) -> Receipt:
        """Do it, or with `dedups_by_key` show the first receipt again."""
        with self._lock:
            self.calls[call.key] += 1
            self.requests.setdefault(call.key, []).append(call.request)
            known = self._receipts.get(call.key)
            if known is None or self.contract is None or not self.contract.dedups_by_key:
                self.effects[call.key] += 1
                known = Receipt(f"r-{len(self._receipts) + 1}", call.key, call.fingerprint, dict(call.intent))
                self._receipts[call.key] = known
        if self.lose_answers:
            raise Ambiguous("the answer was lost")
        return known

    def lookup(self, call: Call) -> Receipt | None:
        """The receipt under this key, None for none."""
        self.lookups[call.key] += 1
        if self.unavailable:
            raise Unavailable("no answer now")
        return self._receipts.get(call.key)

    def forget(self) -> None:
        """Remember no key any more, as a provider does past its retention."""
        self._receipts.clear()
