"""Memory and descriptors of the product's processes, while it goes on: what a leak would show in."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from .pools import Role, SoakPool, age

#: When, in parts of the kills; at the end everything has come to rest.
WHEN = (0.0, 0.25, 0.5, 0.75, 1.0)
ROLES: tuple[Role, ...] = get_args(Role)
#: Seconds for which a process of a role is waited for, and between two looks for the oldest.
_PATIENCE = 5.0
_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One process: megabytes that only it holds (USS), open descriptors, seconds since it was started."""

    pid: int
    uss: float
    descriptors: int
    age: float


_NOBODY = Figure(0, 0.0, 0, 0.0)


@dataclass(slots=True)
class Figures:
    """What was seen, by when and role."""

    pools: Sequence[SoakPool]
    seen: dict[float, dict[Role, list[Figure]]] = field(default_factory=dict)
    _oldest: dict[Role, Figure] = field(default_factory=dict)
    _again_at: float = 0.0

    def look_if_due(self, part: float) -> None:
        """Look, when this part of the kills is done and has not been looked at; and now and then for the oldest."""
        for when in WHEN:
            if part >= when and when not in self.seen:
                self.seen[when] = {role: self._of(role) for role in ROLES}
        if time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + _EVERY
            for role in ROLES:
                self._living(role)

    def lines(self) -> list[str]:
        """As a table: medians per role, and of each role the oldest process that was seen."""
        found = ["          " + "".join(f"{role:>28}" for role in ROLES)]
        for when, by_role in sorted(self.seen.items()):
            cells = (f"{_median(f.uss for f in by_role[r]):.1f} MB, {_median(f.descriptors for f in by_role[r]):.0f} fd"
                     for r in ROLES)  # fmt: skip
            found.append(f"  at {when:4.0%} " + "".join(f"{cell:>28}" for cell in cells))
        for role, old in self._oldest.items():
            found.append(f"  oldest {role}: {old.uss:.1f} MB, {old.descriptors} fd, {old.age:.0f} s old")
        return found

    def _of(self, role: Role) -> list[Figure]:
        """Those that live; where there are none, because all have just been killed, as soon as there is one."""
        until = time.monotonic() + _PATIENCE
        while not any(pool.living(role) for pool in self.pools) and time.monotonic() < until:
            time.sleep(0.05)
        return self._living(role)

    def _living(self, role: Role) -> list[Figure]:
        found: list[Figure] = []
        for pool in self.pools:
            for pid in pool.living(role):
                with suppress(OSError, IndexError, ValueError):  # killed meanwhile
                    found.append(_figure(pid))
        self._oldest[role] = max([*found, self._oldest.get(role, _NOBODY)], key=lambda figure: figure.age)
        return found


def _figure(pid: int) -> Figure:
    folder = Path(f"/proc/{pid}")
    rollup = (folder / "smaps_rollup").read_text().splitlines()
    uss = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024
    return Figure(pid, uss, len(os.listdir(folder / "fd")), age(pid))


def _median(values: object) -> float:
    found = list(values)  # type: ignore[call-overload]
    return statistics.median(found) if found else 0.0
