"""All jobs of this build, by name. `workers/hosting/temporal_workers.py` lists their workflows."""

from collections.abc import Mapping
from typing import Any, Final

from workflows.delayed import job_definitions as delayed
from workflows.deletion import job_definitions as deletion
from workflows.job_definition import JobDefinition
from workflows.offload import job_definitions as offload
from workflows.pulsar import job_definitions as pulsar
from workflows.reconciliation import job_definitions as reconciliation
from workflows.records import job_definitions as records
from workflows.transactions import job_definitions as transactions

JOB_BY_NAME: Final[Mapping[str, JobDefinition[Any, Any]]] = {
    job.name: job
    for module in (deletion, offload, reconciliation, pulsar, transactions, delayed, records)
    for job in vars(module).values()
    if isinstance(job, JobDefinition)
}
SCHEDULED_JOBS: Final = tuple(job for job in JOB_BY_NAME.values() if job.schedule)
