"""Judgement: every invariant by the facts, each by itself. Pure.

A verdict is true, false or unknown. What goes wrong in a check is unknown, and never a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..checker import Value
from . import claims, effects, outcomes, promises
from .facts import Facts
from .outcomes import Outcomes
from .violations import Violation

Check = Callable[[Facts], Iterator[Violation]]

#: By the numbers of docs/invariants.md.
CHECKS: dict[int, Check] = {
    1: claims.one_worker_per_fence,
    2: claims.a_stale_finish_changes_nothing,
    3: claims.no_result_without_succeeded,
    4: claims.no_recovery_without_proof,
    5: claims.queued_survives,
    6: promises.nothing_acknowledged_is_lost,
    7: effects.one_effect_per_key,
    8: effects.no_rerun_without_contract,
    9: claims.attempts_within_budget,
    10: promises.a_cancel_is_kept,
    11: promises.trouble_is_503,
    12: promises.decisions_name_their_evidence,
    13: effects.no_transaction_beside_a_run,
}
_NOTHING = Outcomes(Counter(), (), (), Counter())


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdicts` by invariant, 0 for the outcomes of interrupted tasks; `why` says what is unknown, and why."""

    value: Value
    verdicts: Mapping[int, Value]
    violations: tuple[Violation, ...]
    outcomes: Outcomes
    why: tuple[str, ...] = ()

    def count(self, sort: str) -> int:
        """How many violations there are of this sort."""
        return sum(found.times for found in self.violations if found.sort == sort)


def judge(facts: Facts, checks: Mapping[int, Check] = CHECKS) -> Judgement:
    """Whether every sentence holds. One that fails leaves the others their verdict."""
    verdicts: dict[int, Value] = {}
    found: list[Violation] = []
    why = list(facts.doubts)
    for number, check in checks.items():
        try:
            these = list(check(facts))
        except Exception as error:  # noqa: BLE001  an error in here must not pass for a verdict
            verdicts[number] = "unknown"
            why.append(f"invariant {number} could not be judged: {type(error).__name__}: {error}")
        else:
            verdicts[number] = not these
            found += these
    ended = _NOTHING
    try:
        ended = outcomes.of(facts)
        verdicts[0] = not (ended.wrong or ended.needless)
    except Exception as error:  # noqa: BLE001  as above
        verdicts[0] = "unknown"
        why.append(f"the outcomes could not be judged: {type(error).__name__}: {error}")
    found += [*ended.wrong, *ended.needless]
    return Judgement(_together(verdicts, why), verdicts, tuple(found), ended, tuple(why))


def _together(verdicts: Mapping[int, Value], why: list[str]) -> Value:
    if False in verdicts.values():
        return False
    return "unknown" if why or "unknown" in verdicts.values() else True
