"""A scrape, as numbers by series."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

#: A series: its name, and its labels in the order of their names.
Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    """Every sample of one scrape, and the type of each."""

    values: dict[Key, float]
    types: dict[Key, str] = field(default_factory=dict)

    def get(self, name: str, **labels: str) -> float:
        """The one series with exactly these labels."""
        return self.values[name, tuple(sorted(labels.items()))]

    def sum(self, name: str, **labels: str) -> float:
        """Over all series of this name with (at least) these labels."""
        return sum(self.by(name, **labels).values())

    def by(self, name: str, *names: str, **labels: str) -> dict[tuple[str, ...], float]:
        """By the values of these labels, of series with (at least) those labels; zeros are left out."""
        found: dict[tuple[str, ...], float] = {}
        for (series, pairs), value in self.values.items():
            own = dict(pairs)
            if series == name and labels.items() <= own.items() and value:
                key = tuple(own[label] for label in names)
                found[key] = found.get(key, 0) + value
        return found

    @property
    def counters(self) -> dict[Key, float]:
        """What must never go back: counters, and the parts of histograms."""
        return {key: value for key, value in self.values.items() if self.types[key] in ("counter", "histogram")}


def parse(text: str) -> Scrape:
    """What stands in a scrape's text."""
    values: dict[Key, float] = {}
    types: dict[Key, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in values, f"{key} is there twice"
            values[key], types[key] = sample.value, family.type
    return Scrape(values, types)


def scrape(port: int, timeout: float = 20) -> Scrape:
    """One scrape of the API on this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=timeout) as answer:
        return parse(answer.read().decode())


@dataclass
class Watcher:
    """Scrapes again and again, and notes every counter that has gone back."""

    port: int
    scrapes: int = 0
    backwards: list[str] = field(default_factory=list)
    _last: dict[Key, float] = field(default_factory=dict)

    def look(self) -> None:
        try:
            found = scrape(self.port).counters
        except (OSError, HTTPException):
            return  # the api child is being replaced
        self.scrapes += 1
        gone = [key for key in self._last if key not in found]
        less = [key for key, value in found.items() if value < self._last.get(key, 0)]
        self.backwards += [f"{key}: {self._last[key]} -> {found.get(key)}" for key in gone + less]
        self._last = found


@contextmanager
def watching(port: int, every: float = 0.1) -> Iterator[Watcher]:
    """A watcher at work for the length of a block."""
    watcher, stop = Watcher(port), threading.Event()

    def look() -> None:
        while not stop.wait(every):
            watcher.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watcher
    finally:
        stop.set()
        thread.join()
