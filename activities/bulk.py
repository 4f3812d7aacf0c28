"""Bulk jobs as activities run them: cancelled with their workflow, their output marked as this catalog's."""

from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Final

from activities.heartbeats import raise_if_cancelled, renewing_many
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Identities
from logstore.reconciliation.jobs import BulkJob, BulkProgress, BulkSummary
from logstore.whole_files import create_or_read

RUN_CLAIM_S: Final = 86_400.0
"""Of a run, renewed by each step: it only keeps the run from being forgotten, which comes to what died a day later."""


def owner_file(folder: Path) -> Path:
    """The file in a run's folder that holds the id of its catalog: several may keep output under one `bulk_dir`."""
    return folder / "catalog"


class OwnedBulkOutput:
    """The output of this catalog's bulk jobs."""

    def __init__(self, *, bulk: BulkJobs, identities: Identities) -> None:
        """Take the bulk jobs, and the port that knows this catalog's id."""
        self._bulk, self._identities = bulk, identities

    def owner(self, run_id: str) -> str | None:
        """Which catalog's the output of a run is, as far as it was said."""
        mark = owner_file(self._bulk.folder(run_id))
        return mark.read_text(encoding="utf-8") if mark.exists() else None

    def require(self, run_id: str) -> None:
        """Refuse a run of which another catalog keeps output here.

        Raises:
            PreconditionFailed: It does.
        """
        self._require(run_id, self.owner(run_id))

    def mark(self, run_id: str) -> None:
        """Say that the output of the run is this catalog's; the run's row must be there.

        Raises:
            PreconditionFailed: It is another catalog's.
        """
        with effect("reconciliation.mark_output"):  # a folder that is marked and of no run is forgotten: the run first
            owner = create_or_read(owner_file(self._bulk.folder(run_id)), self._identities.catalog_id())
        self._require(run_id, owner)

    def _require(self, run_id: str, owner: str | None) -> None:
        if owner not in {None, self._identities.catalog_id()}:
            raise PreconditionFailed(
                f"run {run_id}: expected an id that no other catalog uses in this folder of bulk output,"
                f" found one of catalog {owner}; give another id, or each catalog a bulk_dir of its own"
            )

    def published_summary(self, run_id: str, name: str) -> BulkSummary:
        """What a job of the run has published.

        Raises:
            PreconditionFailed: Nothing, as far as this worker sees.
        """
        found = self._bulk.published_summary(run_id, name)
        if found is None:
            raise PreconditionFailed(f"run {run_id}: expected {name} to be published; every worker must see its output")
        return found

    def forget(self, run_id: str) -> None:
        """Remove it."""
        with effect("reconciliation.forget_output"):
            self._bulk.forget(run_id)


def run_bulk_job(
    bulk: BulkJobs,
    name: str,
    make: Callable[[], BulkJob],
    *,
    master: str = "",
    renew: Callable[[], object] = lambda: None,
) -> BulkSummary:
    """Run a job until its output is published; heartbeats tell its progress, a cancellation ends all of it.

    Args:
        bulk: Who runs it.
        name: The job's.
        make: Makes it, while heartbeats are sent already.
        master: The cluster; empty: that of the settings.
        renew: Called with heartbeats, every 15 s: it renews claims of what the job works on.
    """
    seen = BulkProgress(stage=name, done=0, tasks=0)

    def progress(found: BulkProgress) -> None:
        nonlocal seen
        seen = found
        stop()

    stop = _in_this_context(raise_if_cancelled)
    with renewing_many(renew, lambda: (seen.stage, seen.done, seen.tasks)):
        job = make()
        with effect("reconciliation.run_bulk"):
            return bulk.run(job, progress, master=master)


def _in_this_context(call: Callable[[], None]) -> Callable[[], None]:
    """The call as of the activity that runs here, for a thread that knows of none."""
    context = copy_context()
    return lambda: context.run(call)
