"""Bulk jobs in activities. A mark in the folder of a run names the catalog to which the run's output belongs."""

from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Final

from activities.heartbeats import raise_if_cancelled, send_heartbeats_during_renewals
from logstore.atomic_files import create_or_read_text
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.catalog.identity import CatalogIdentity
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, BulkJobProgress, BulkJobSummary

RUN_CLAIM_S: Final = 86_400.0
"""Duration in seconds of the claim of a plan, an apply or a topic build. Old runs without a live claim are removed."""


def catalog_id_file(folder: Path) -> Path:
    """Return the file with the catalog's id in the folder of a run. Several catalogs may share one `bulk_dir`."""
    return folder / "catalog"


class OwnedBulkOutput:
    def __init__(self, *, bulk: BulkJobRunner, identities: CatalogIdentity) -> None:
        self._bulk, self._identities = bulk, identities

    def read_catalog_id_mark(self, run_id: str) -> str | None:
        path = catalog_id_file(self._bulk.create_run_folder(run_id))
        return path.read_text(encoding="utf-8") if path.exists() else None

    def require_not_of_other_catalog(self, run_id: str) -> None:
        """Raise `PreconditionFailed` if another catalog has output of a run with this id."""
        self._require_own_or_unmarked(run_id, self.read_catalog_id_mark(run_id))

    def mark_as_own(self, run_id: str) -> None:
        """Mark the output with this catalog's id. Raise `PreconditionFailed` if the output has another catalog's id.

        The row of the run must exist, because each new plan removes the marked folders of runs without a row.
        """
        with effect("reconciliation.mark_output"):
            marked_catalog_id = create_or_read_text(
                catalog_id_file(self._bulk.create_run_folder(run_id)), self._identities.catalog_id()
            )
        self._require_own_or_unmarked(run_id, marked_catalog_id)

    def _require_own_or_unmarked(self, run_id: str, marked_catalog_id: str | None) -> None:
        if marked_catalog_id not in {None, self._identities.catalog_id()}:
            raise PreconditionFailed(
                f"run {run_id}: expected an id that no other catalog uses in this folder of bulk output,"
                f" found one of catalog {marked_catalog_id}; give another id, or each catalog a bulk_dir of its own"
            )

    def require_published_summary(self, run_id: str, name: str) -> BulkJobSummary:
        """Return the published summary of job `name`. Raise `PreconditionFailed` if this worker sees no summary."""
        summary = self._bulk.find_published_summary(run_id, name)
        if summary is None:
            raise PreconditionFailed(f"run {run_id}: expected {name} to be published; every worker must see its output")
        return summary

    def remove_run_output(self, run_id: str) -> None:
        with effect("reconciliation.forget_output"):
            self._bulk.remove_run(run_id)


def run_bulk_job(
    bulk: BulkJobRunner,
    name: str,
    create_job: Callable[[], BulkJob],
    *,
    master: str = "",
    renew_claims: Callable[[], object] = lambda: None,
) -> BulkJobSummary:
    """Run a job until its output is published. Heartbeats carry the progress, and a cancellation ends the job.

    Heartbeats are also sent while `create_job` runs. `renew_claims` is called every 15 s. An empty `master` selects
    the Spark cluster of the settings.
    """
    progress = BulkJobProgress(stage=name, done=0, tasks=0)
    context = copy_context()  # context of the activity, for the thread that calls `on_progress`

    def on_progress(new_progress: BulkJobProgress) -> None:
        nonlocal progress
        progress = new_progress
        context.run(raise_if_cancelled)

    with send_heartbeats_during_renewals(renew_claims, lambda: (progress.stage, progress.done, progress.tasks)):
        job = create_job()
        with effect("reconciliation.run_bulk"):
            return bulk.run_job(job, on_progress, master=master)
