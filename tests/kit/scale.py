"""How often: the long run's count, or a tenth of it in CI and at a desk."""

from __future__ import annotations

import os


def count(long: int, ci: int | None = None) -> int:
    """`long` with DEADSURE_LONG=1 (`make soak`), else `ci`, else a tenth of it and never fewer than 5."""
    if os.environ.get("DEADSURE_LONG") == "1":
        return long
    return ci if ci is not None else max(5, long // 10)
