"""Metric families as they are put together for a scrape: each sample once, whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)


@dataclass(frozen=True, slots=True)
class Described:
    """A metric that a server may give. `docs/metrics.md` has the same, and a test compares them."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


@dataclass(slots=True)
class Families:
    """The samples of one scrape. Where two have the same labels the later one counts: names of tables can be alike."""

    described: Mapping[str, Described]
    _values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)
    _histograms: dict[str, dict[tuple[str, ...], tuple[list[tuple[str, float]], float]]] = field(default_factory=dict)

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """A sample of a counter or gauge; none where its value is not known."""
        assert len(labels) == len(self.described[name].labels), name
        if value is not None:
            self._values.setdefault(name, {})[labels] = float(value)

    def count(self, name: str, value: float, *labels: str) -> None:
        """Add to a sample: several parts may be shown under the same labels."""
        found = self._values.setdefault(name, {})
        found[labels] = found.get(labels, 0.0) + value

    def histogram(self, name: str, buckets: list[tuple[str, float]], seconds: float, *labels: str) -> None:
        """A histogram."""
        self._histograms.setdefault(name, {})[labels] = buckets, seconds

    def collect(self) -> Sequence[Metric]:
        """All metrics, in the order in which they are described."""
        return [self._metric(each) for each in self.described.values() if each.name in self._values | self._histograms]

    def _metric(self, each: Described) -> Metric:
        if each.kind == "histogram":
            histogram = HistogramMetricFamily(each.name, each.meaning, labels=each.labels)
            for labels, (buckets, seconds) in self._histograms[each.name].items():
                histogram.add_metric(labels, buckets, seconds)
            return histogram
        kind = CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily
        family = kind(each.name, each.meaning, labels=each.labels)
        for labels, value in self._values[each.name].items():
            family.add_metric(labels, value)
        return family
