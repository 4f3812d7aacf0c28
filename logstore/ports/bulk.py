"""Bulk jobs as Sexton needs them: run on a cluster, published as a whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from logstore.reconciliation.jobs import BulkJob, BulkProgress, BulkSummary


class BulkJobs(Protocol):
    """Runs bulk jobs, one output a (run id, job name).

    A job that was published before is not run again: its summary is answered. Attempts may overlap: each writes to a
    folder of its own, and the first that is complete is published; a later one is thrown away. So any call may be
    repeated, after a crash between any two effects too.
    """

    def run(self, job: BulkJob, on_progress: Callable[[BulkProgress], None], *, master: str = "") -> BulkSummary:
        """Run the job until its output is published, and answer its summary.

        Args:
            job: What to do.
            master: The cluster that does it; empty: that of the settings.
            on_progress: Called about once a second; what it raises cancels this attempt, with all that it would submit
                later, and is raised within seconds. A job whose thread hangs is left behind, and publishes nothing.

        Raises:
            InvalidInput, PreconditionFailed: The job refuses its input, or the cluster does not see the folder of bulk
                output; nothing is published.
            StoreUnavailable: A store, the database or the cluster did not answer.
            ServiceFailed: Java or the cluster cannot be reached, or refuses us.
        """

    def published_summary(self, run_id: str, name: str) -> BulkSummary | None:
        """The summary of a job of the run, or None if it was not published."""

    def list_runs(self) -> list[str]:
        """Ids of the runs that have output or a folder, ascending."""

    def folder(self, run_id: str) -> Path:
        """A folder of the run beside the output of its jobs, made when it is first asked for; `forget` removes it."""

    def forget(self, run_id: str) -> None:
        """Remove all output of the run, and its folder; one that has none is no error."""
