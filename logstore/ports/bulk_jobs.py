"""Port of bulk jobs, which run on a cluster. The output of a job is published completely or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, BulkJobProgress, BulkJobSummary


class BulkJobRunner(Protocol):
    """Runner of bulk jobs. Each pair of run id and job name has one output.

    Idempotency: any call may be repeated. A job with published output does not run again. Attempts may overlap, because
    each attempt has its own folder. The first complete attempt is published, and later attempts are discarded.
    """

    def run_job(
        self, job: BulkJob, on_progress: Callable[[BulkJobProgress], None], *, master: str = ""
    ) -> BulkJobSummary:
        """Run the job until its output is published. Return the summary of the job.

        `on_progress` is called about once a second. If `on_progress` raises, this attempt is cancelled, and the
        exception is raised within seconds. A hanging thread of the job is not ended, but publishes nothing. `master`
        is the address of the Spark cluster. The empty text selects the cluster of the settings.

        Raises:
            InvalidInput: The job refuses its input. Nothing is published.
            PreconditionFailed: The cluster does not see the output folder. Nothing is published.
            StoreUnavailable: An object store, the database or the cluster did not answer.
            ServiceFailed: Java cannot start a session, or the cluster cannot be reached or refuses the connection.
        """

    def find_published_summary(self, run_id: str, name: str) -> BulkJobSummary | None: ...

    def list_run_ids(self) -> list[str]:
        """Return the ids of runs that have output or a folder, ascending."""

    def create_run_folder(self, run_id: str) -> Path:
        """Return the run's folder, which is beside the output of the run's jobs. Create the folder if it is missing."""

    def remove_run(self, run_id: str) -> None: ...
