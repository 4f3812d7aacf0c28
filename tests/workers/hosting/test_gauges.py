"""Gauges of the catalog, and what they do when it is away."""

import logging
import time

import pytest

from logstore.errors import StoreUnavailable
from logstore.ports.catalog import Inflight
from tests.fakes.meter import FakeMeter, series
from workers.hosting.gauges import DeletionGauges

_NAMES = ("sexton_deletion_estimated_inflight", "sexton_deletion_dead_lettered")


class _Catalog:
    def __init__(self) -> None:
        self.found = Inflight(estimated_inflight=7, dead_lettered=2)
        self.away = False

    def inflight(self) -> Inflight:
        """See `Deletions`."""
        if self.away:
            raise StoreUnavailable("the database is away")
        return self.found


def _shown(meter: FakeMeter) -> list[int]:
    return [meter.values[series(name)] for name in _NAMES]


def test_gauges_show_what_the_catalog_says() -> None:
    """Both numbers, and when they were read."""
    meter, catalog = FakeMeter(), _Catalog()
    gauges = DeletionGauges(meter, catalog)
    assert not meter.values, "a zero before the first answer would say that all is deleted"
    earliest = int(time.time())
    gauges.read()
    assert _shown(meter) == [7, 2]
    assert earliest <= meter.values[series("sexton_deletion_read_timestamp_seconds")] <= time.time()
    catalog.found = Inflight(estimated_inflight=0, dead_lettered=0)
    gauges.read()
    assert _shown(meter) == [0, 0]


def test_gauges_keep_their_values_while_the_catalog_is_away_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """No scrape reads a zero that nobody counted, and a long outage does not fill the log."""
    meter, catalog = FakeMeter(), _Catalog()
    gauges = DeletionGauges(meter, catalog)
    gauges.read()
    read_at = meter.values[series("sexton_deletion_read_timestamp_seconds")] = 1
    catalog.away = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            gauges.read()
        assert _shown(meter) == [7, 2]
        assert meter.values[series("sexton_deletion_read_timestamp_seconds")] == read_at
        assert len(caplog.records) == 1
        catalog.away = False
        gauges.read()
        catalog.away = True
        gauges.read()
    assert len(caplog.records) == 2, "a second outage is told again"
