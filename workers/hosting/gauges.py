"""Gauges of the catalog: what is left to delete, and what the newest plan misses, read by each worker."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from temporalio.common import MetricMeter

from logstore.errors import SextonError
from logstore.ports.catalog import DelayedCounts, Inflight, ReconciliationRun, RunKind, TransactionCounts
from logstore.reconciliation.findings import FindingKind, PlanResult, plan_result
from logstore.transactions.transactions import TransactionState

_LOOKED_AT = 100  # of plans that failed or are at work, behind which none is looked for
EVERY_S = 15.0  # Prometheus' usual interval: each scrape sees a new value

_log = logging.getLogger(__name__)


class DeletionGauges:
    """`sexton_deletion_estimated_inflight` and `sexton_deletion_dead_lettered`, read from SQL.

    Every worker shows the same values, because they are the catalog's: take the maximum over workers, not the sum.
    A catalog that does not answer leaves the last ones; `sexton_deletion_read_timestamp_seconds` tells how old they
    are. Before the first answer there is no gauge at all, because a zero would say that all is deleted.
    """

    def __init__(self, meter: MetricMeter, inflight: Callable[[], Inflight]) -> None:
        """Take the meter of the process's runtime, and how to ask the catalog."""
        self._ask = inflight
        self._inflight = meter.create_gauge(
            "sexton_deletion_estimated_inflight", "Unfinished deletions, those waiting for a retry included"
        )
        self._dead = meter.create_gauge(
            "sexton_deletion_dead_lettered",
            "Dead letters that there are now, refusals included; a person must look at them. The counter"
            " sexton_deletion_reached_max_retries_total counts those of which every attempt failed",
        )
        self._oldest = meter.create_gauge(
            "sexton_deletion_oldest_pending_seconds",
            "Age of the oldest unfinished deletion; 0 where there is none",
            "s",
        )
        self._read_at = meter.create_gauge(
            "sexton_deletion_read_timestamp_seconds", "When the catalog last answered for the two gauges", "s"
        )

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The catalog does not answer.
        """
        found, now_us = self._ask(), time.time_ns() // 1000
        self._inflight.set(found.estimated_inflight)
        self._dead.set(found.dead_lettered)
        self._oldest.set(0 if found.oldest_us is None else max(0, now_us - found.oldest_us) // 1_000_000)
        self._read_at.set(now_us // 1_000_000)


class TransactionGauges:
    """Unfinished transactions by state, and how old the oldest are, read from SQL; take the maximum over workers."""

    def __init__(self, meter: MetricMeter, counts: Callable[[], TransactionCounts]) -> None:
        """Take the meter of the process's runtime, and how to ask the catalog."""
        self._ask = counts
        self._rows = meter.create_gauge("sexton_transactions_unfinished", "Transactions that are not over, by state")
        self._ages = {
            "open": meter.create_gauge("sexton_transactions_oldest_open_seconds", "Age of the oldest open one", "s"),
            "decided": meter.create_gauge(
                "sexton_transactions_oldest_decided_seconds",
                "Since when the oldest decided one has participants that are not told",
                "s",
            ),
        }
        self._hidden = meter.create_gauge(
            "sexton_transactions_hidden_bytes", "Bitmaps of markers and of aborted messages, in the catalog"
        )

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The catalog does not answer.
        """
        found, now_us = self._ask(), time.time_ns() // 1000
        for state in (TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.ABORTING):
            self._rows.set(found.states.get(state, 0), {"state": state.value})
        for name, since in (("open", found.oldest_open_us), ("decided", found.oldest_decided_us)):
            self._ages[name].set(0 if since is None else max(0, now_us - since) // 1_000_000)
        self._hidden.set(found.hidden_bytes)


class DelayedGauges:
    """Delayed messages of all topics, read from SQL: take the maximum over workers; and the memory of this one."""

    def __init__(self, meter: MetricMeter, counts: Callable[[], DelayedCounts], memory: Callable[[], int]) -> None:
        """Take the meter of the process's runtime.

        Args:
            meter: Where gauges are made.
            counts: Asks the catalog: `DelayedIndex.counts`.
            memory: Bytes that this process keeps of snapshots.
        """
        self._ask, self._kept = counts, memory
        self._memory = meter.create_gauge(
            "sexton_delayed_memory_bytes", "What the worker keeps of snapshots of buckets", "By"
        )
        self._buckets = meter.create_gauge("sexton_delayed_buckets", "Buckets of delayed messages")
        self._messages = meter.create_gauge(
            "sexton_delayed_messages", "Messages in buckets; those that were delivered go with their bucket"
        )
        self._unsealed = meter.create_gauge(
            "sexton_delayed_unsealed_messages", "Messages with a delivery time that no seal has looked at yet"
        )

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The catalog does not answer.
        """
        found = self._ask()
        self._buckets.set(found.buckets)
        self._messages.set(found.messages)
        self._unsealed.set(found.unsealed)
        self._memory.set(self._kept())


class CatalogGauges:
    """Reads gauges of the catalog again and again.

    Where the catalog does not answer, none is read until it does; one alone that cannot be read harms no other.
    """

    def __init__(self, *reads: Callable[[], None]) -> None:
        """Call these, which may raise what the catalog raises."""
        self._reads = reads
        self._told = False

    async def run(self) -> None:
        """Read every `EVERY_S` until cancelled."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(EVERY_S)

    def read(self) -> None:
        """Read once; a failure is logged once until all can be read again."""
        failed = False
        for read in self._reads:
            try:
                read()
            except SextonError as error:
                self._tell(error)
                return  # the others would wait for the same answer
            except Exception as error:  # noqa: BLE001 - a row that this build cannot read
                self._tell(error)
                failed = True
        self._told = failed

    def _tell(self, error: Exception) -> None:
        if not self._told:
            unexpected = not isinstance(error, SextonError)
            _log.warning("metrics: gauges keep their last values: %s", error, exc_info=unexpected)
        self._told = True


class PlanGauges:
    """`sexton_reconciliation_missing_data`, and when the newest plan that finished began.

    A loss that a plan found stands until a later plan has looked at rows at least as young: one that left out more for
    their age says nothing of it. Every worker shows the same values: take the maximum over workers. Before a plan
    finished there is no gauge at all, because a zero would say that nothing is missing.
    """

    def __init__(self, meter: MetricMeter, runs: Callable[..., Sequence[ReconciliationRun]]) -> None:
        """Take the meter of the process's runtime, and how to ask the catalog: `Reconciliation.runs`."""
        self._runs = runs
        self._missing = meter.create_gauge(
            "sexton_reconciliation_missing_data", "Findings of absent or short objects that no later plan refutes"
        )
        self._begun = meter.create_gauge(
            "sexton_reconciliation_plan_timestamp_seconds", "When the newest plan that finished began", "s"
        )

    def read(self) -> None:
        """Read once.

        Raises:
            SextonError: The catalog does not answer.
        """
        found = self._runs(RunKind.PLAN, limit=_LOOKED_AT)
        finished = [one for one in found if one.finished_us is not None]
        if finished:
            self._missing.set(_missing([plan_result(one.summary) for one in finished]))
            self._begun.set(finished[0].created_us // 1_000_000)


def _missing(plans: Sequence[PlanResult]) -> int:
    """The largest count of those plans, newest first, after which none has looked at rows as young as theirs."""
    missing, looked_us = 0, -1
    for plan in plans:
        before_us = plan.rows_before_us or plan.before_us
        if before_us > looked_us:
            missing = max(missing, plan.findings.get(FindingKind.MISSING_DATA.value, 0))
            looked_us = before_us
    return missing
