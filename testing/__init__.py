"""For the tests of an application: run a handler without a database, and a provider that only counts.

    from deadsure.testing import Ledger, run

    outcome = run(app, "report.build", {"month": 3})
    assert outcome.state == "succeeded"
"""

from .ledger import Ledger
from .running import Outcome, run

__all__ = ["Ledger", "Outcome", "run"]
