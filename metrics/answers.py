"""An api child's answers, counted by route, method and code.

The series are added to a table in the order in which they are first met; only the routes of ours, the usual methods and
three-digit codes have series of their own, so that no request can make more than there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import cells
from .catalogue import HTTP_REQUEST, OTHER, UNMATCHED

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Series beyond this are counted together, as the last one.
MOST = 512
_WIDTH = 1 + cells.width(HTTP_REQUEST)
_ROUTES = 64


class Answers:
    """The table of one api child: a cell with the number of series, then for each its key and its histogram."""

    SIZE = (1 + MOST * _WIDTH) * 8

    def __init__(self, memory: memoryview, offset: int) -> None:
        self._cells: memoryview[int] = memory[offset : offset + self.SIZE].cast("Q")
        self._known: dict[int, int] = {}
        self.routes: tuple[str, ...] = ()

    def take_over(self, routes: tuple[str, ...]) -> None:
        """Go on counting under these routes; every process that reads must be told the same ones, in one order."""
        self.routes = routes[: _ROUTES - 1]
        self._known = {self._cells[at]: at for at in self._places()}

    def count(self, route: str | None, method: str, code: int, seconds: float) -> None:
        """Count one answer. `route` None: none of ours."""
        at = self._place(self._key(route, method, code))
        for index, n in cells.observed(HTTP_REQUEST, at + 1, seconds):
            self._cells[index] += n

    def series(self) -> Iterator[tuple[tuple[str, str, str], list[int]]]:
        """Each series so far: route, method and code, and the cells of its histogram."""
        for at in self._places():
            key = self._cells[at]
            route, method, code = key >> 16, key >> 12 & 15, key & 0xFFF
            name = self.routes[route] if route < len(self.routes) else (OTHER if route == _ROUTES else UNMATCHED)
            labels = (name, METHODS[method] if method < len(METHODS) else OTHER, f"{code:03}" if code else OTHER)
            yield labels, self._cells[at + 1 : at + _WIDTH].tolist()

    def _places(self) -> list[int]:
        return [1 + number * _WIDTH for number in range(self._cells[0])]

    def _key(self, route: str | None, method: str, code: int) -> int:
        place = self.routes.index(route) if route in self.routes else _ROUTES - 1
        known = METHODS.index(method) if method in METHODS else len(METHODS)
        return place << 16 | known << 12 | (code if 100 <= code <= 999 else 0)

    def _place(self, key: int) -> int:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._add(key)
        return found

    def _add(self, key: int) -> int:
        """The key first, the count afterwards: a series that was not counted in never was."""
        number = self._cells[0]
        if number == MOST:
            return 1 + (MOST - 1) * _WIDTH
        at: int = 1 + number * _WIDTH
        self._cells[at] = key if number < MOST - 1 else _ROUTES << 16 | len(METHODS) << 12
        self._cells[0] = number + 1
        return at
