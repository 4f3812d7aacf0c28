"""A meter that remembers what was counted."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from temporalio.common import (
    MetricAttributes,
    MetricCounter,
    MetricGauge,
    MetricGaugeFloat,
    MetricHistogramFloat,
    MetricMeter,
)

MetricSeries = tuple[str, tuple[tuple[str, str], ...]]


def metric_series(name: str, **labels: str) -> MetricSeries:
    """A metric with its labels."""
    return name, tuple(sorted(labels.items()))


class FakeMeter(MetricMeter):
    """`MetricMeter` in memory: `values` by metric and labels."""

    def __init__(self) -> None:
        self.values: Counter[MetricSeries] = Counter()
        self.labels: set[str] = set()
        self.recorded: dict[MetricSeries, list[float]] = {}

    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> MetricCounter:
        assert description, f"{name} says nothing about itself"
        return _Counter(self.values, name)

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        assert description, f"{name} says nothing about itself"
        return _Gauge(self.values, name)

    def create_gauge_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricGaugeFloat:
        """See `MetricMeter`; what it is set to is kept in whole units."""
        assert description, f"{name} says nothing about itself"
        return _GaugeFloat(self.values, name)

    def create_histogram_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramFloat:
        """See `MetricMeter`; every value is kept, in `recorded`."""
        assert description, f"{name} says nothing about itself"
        return _HistogramFloat(self.values, name, self.recorded)

    def total(self, name: str) -> int:
        """The metric summed over its labels."""
        return sum(value for (metric, _), value in self.values.items() if metric == name)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    create_histogram = create_histogram_timedelta = _unused

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricMeter:
        """The same meter: of the labels that Temporal adds only the names are kept."""
        self.labels |= set(additional_attributes)
        return self


class _FakeMetric:
    def __init__(self, values: Counter[MetricSeries], name: str) -> None:
        self._values = values
        self._name = name

    name = description = unit = property(lambda self: self._name)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> Any:
        """Not used here."""
        raise NotImplementedError

    def _key(self, labels: Mapping[str, Any] | None) -> MetricSeries:
        return metric_series(self._name, **{name: str(value) for name, value in (labels or {}).items()})


class _Counter(_FakeMetric, MetricCounter):
    def add(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        assert value >= 0, "a counter never goes back"
        self._values[self._key(additional_attributes)] += value


class _Gauge(_FakeMetric, MetricGauge):
    def set(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        self._values[self._key(additional_attributes)] = value


class _GaugeFloat(_FakeMetric, MetricGaugeFloat):
    def set(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        self._values[self._key(additional_attributes)] = round(value)


class _HistogramFloat(_FakeMetric, MetricHistogramFloat):
    def __init__(self, values: Counter[MetricSeries], name: str, recorded: dict[MetricSeries, list[float]]) -> None:
        super().__init__(values, name)
        self._recorded = recorded

    def record(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        assert value >= 0, "the SDK refuses it"
        self._recorded.setdefault(self._key(additional_attributes), []).append(value)
