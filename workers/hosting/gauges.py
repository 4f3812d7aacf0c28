"""Gauges of the catalog: how much is left to delete, read by each worker and shown beside its own counters."""

import asyncio
import logging
import time
from typing import Protocol

from temporalio.common import MetricMeter

from logstore.errors import SextonError
from logstore.ports.catalog import Inflight

EVERY_S = 15.0  # Prometheus' usual interval: each scrape sees a new value

_log = logging.getLogger(__name__)


class InflightCounts(Protocol):
    """The part of `Deletions` that is asked."""

    def inflight(self) -> Inflight:
        """Unfinished and dead-lettered intents."""


class DeletionGauges:
    """`sexton_deletion_estimated_inflight` and `sexton_deletion_dead_lettered`, read from SQL.

    Every worker shows the same values, for they are the catalog's: take the maximum over workers, not the sum.
    A catalog that does not answer leaves the last ones; `sexton_deletion_read_timestamp_seconds` tells how old they
    are. Before the first answer there is no gauge at all, for a zero would say that all is deleted.
    """

    def __init__(self, meter: MetricMeter, deletions: InflightCounts) -> None:
        """Take the meter of the process's runtime, and whom to ask."""
        self._deletions = deletions
        self._inflight = meter.create_gauge(
            "sexton_deletion_estimated_inflight", "Unfinished deletions, those waiting for a retry included"
        )
        self._dead = meter.create_gauge(
            "sexton_deletion_dead_lettered", "Deletions that a person must look at, with their reason"
        )
        self._read_at = meter.create_gauge(
            "sexton_deletion_read_timestamp_seconds", "When the catalog last answered for the two gauges", "s"
        )
        self._told = False

    async def run(self) -> None:
        """Read every `EVERY_S` until cancelled."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(EVERY_S)

    def read(self) -> None:
        """Read once; a failure is logged once until the catalog answers again."""
        try:
            found = self._deletions.inflight()
        except SextonError as error:
            if not self._told:
                _log.warning("metrics: the gauges keep their last values, for the catalog does not answer: %s", error)
            self._told = True
            return
        self._told = False
        self._inflight.set(found.estimated_inflight)
        self._dead.set(found.dead_lettered)
        self._read_at.set(int(time.time()))
