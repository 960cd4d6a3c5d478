"""GET /metrics: the text that Prometheus reads, in the format that was asked for, written by its own client library.

The library writes every line anew, and of thousands of lines only the numbers differ from one scrape to the next. So
what it has written is kept as a form: as long as the series are the same, only their numbers are filled in, in the
library's own way of writing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from .collector import Collector, Seen, family, numbers

#: A number as the library writes it.
_number: Callable[[float], str] = floatToGoString


class Exposition:
    """The text of one collector's metrics."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._forms: dict[str, Form] = {}

    def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics as they are now, and the media type; OpenMetrics if `accept` asks for it."""
        encode, media_type = choose_encoder(accept)
        seen = self._collector.look()
        series = [labels for _, found in seen for labels in (None, *(labels for labels, _ in found))]
        form = self._forms.get(media_type)
        if form is None or form.series != series:
            form = self._forms[media_type] = Form(series, encode(_Once(seen)))
        filling = [number for metric, found in seen for _, values in found for number in numbers(metric, values)]
        return form.filled(filling), media_type


class Form:
    """What the library wrote for these series, with places for the numbers."""

    def __init__(self, series: Sequence[object], written: bytes) -> None:
        self.series = series
        self._parts: list[str] = [""]
        for line in written.decode().removesuffix("\n").split("\n"):  # a label may hold what splitlines splits at
            if line.startswith("#"):
                self._parts[-1] += f"{line}\n"
            else:
                before, _, _ = line.rpartition(" ")
                self._parts[-1] += f"{before} "
                self._parts.append("\n")

    def filled(self, values: Sequence[float]) -> bytes:
        """The text with these numbers: one for each line that is no comment, in their order."""
        *parts, last = self._parts
        written = [part + _number(value) for part, value in zip(parts, values, strict=True)]
        return ("".join(written) + last).encode()


class _Once:
    """A registry, as far as the library's encoders use one: what is collected is there already."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Family]:
        return (family(metric, series) for metric, series in self._seen)
