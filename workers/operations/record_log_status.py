"""Row `record log` of `status`: whether changes of the catalog reach its record log."""

from collections.abc import Mapping
from typing import Final

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from logstore.catalog import Catalog, open_catalog
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogOutdated, SextonError
from workers.catalog_match import refuse_outdated_catalog
from workers.client.temporal_connection import run_with_client
from workers.client.wait_for_job import format_innermost_failure
from workers.settings import Settings
from workflows.records.job_definitions import FLUSH_RECORDS, FlushRecordsResult

RECORD_LOG: Final = "record log"
MAX_CHANGE_AGE_S: Final = 300.0
"""Age above which a change that is in no block is reported as a problem."""

_ADVICE: Final = "`sexton records status`; runbook `flush-records`"


def check_flushes_as_row(settings: Settings) -> Mapping[str, object]:
    """Return a row with the age of the oldest unflushed change. `ok` means that flushes succeed and the age is low."""
    try:
        with open_catalog(settings.database_url) as catalog:
            problems, detail = _find_outbox_problems_and_detail(catalog.records)
            if settings.has_object_store:
                detail += _refuse_outdated_or_note_unanswered(settings, catalog)
    except CatalogOutdated as error:
        return {"name": RECORD_LOG, "ok": False, "detail": str(error)}
    except (SextonError, OSError) as error:
        return {"name": RECORD_LOG, "ok": False, "detail": f"cannot be told: {error}"}
    if flush_failure := _ask_flush_failure(settings):
        problems = [flush_failure, *problems]
    text = "; ".join([*problems, detail])
    return {"name": RECORD_LOG, "ok": not problems, "detail": f"{text}; {_ADVICE}" if problems else text}


def _refuse_outdated_or_note_unanswered(settings: Settings, catalog: Catalog) -> str:
    try:
        refuse_outdated_catalog(settings, catalog)
    except CatalogOutdated:
        raise
    except SextonError:
        return "; not compared with the newest manifest"  # the object store's row in `status` has the reason
    return ""


def _find_outbox_problems_and_detail(records: RecordOutbox) -> tuple[list[str], str]:
    from logstore.records.services.flusher import find_unrecordable  # noqa: PLC0415 - start-up time

    state = records.read_state()
    if not state.outbox_changes and not state.staged_blocks:
        return [], f"manifest {state.manifest} has all changes"
    refused_records = find_unrecordable(records)
    problems = [f"no block can hold {len(refused_records)} records: {refused_records[0]}"] if refused_records else []
    age_s = 0.0 if state.oldest_change_us is None else max(0, state.now_us - state.oldest_change_us) / 1_000_000
    if age_s > MAX_CHANGE_AGE_S:
        waiting = records.count_unflushed_deletions()
        problems.append(f"changes of the last {age_s:.0f} s would be lost with the database, {waiting} deletions wait")
    return problems, f"manifest {state.manifest}, {state.outbox_changes} changes since, the oldest {age_s:.0f} s ago"


def _ask_flush_failure(settings: Settings) -> str | None:
    try:
        return run_with_client(settings, find_flush_failure)
    except (RPCError, SextonError):
        return None  # Temporal's row in `status` has the reason


async def find_flush_failure(client: Client) -> str | None:
    """Return the last failure of `flush-records` as a sentence, or `None` if the job has not failed."""
    handle = client.get_workflow_handle(FLUSH_RECORDS.id(), result_type=FlushRecordsResult)
    try:
        description = await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    if description.status is WorkflowExecutionStatus.COMPLETED:  # the workflow completes only if a guard refuses
        refusal = (await handle.result()).refused
        return f"flushes are refused: {refusal.type}: {refusal.message}" if refusal else None
    for activity in description.raw_description.pending_activities:
        if activity.HasField("last_failure"):
            failure = format_innermost_failure(activity.last_failure)
            attempts = f"{activity.attempt - 1} attempts so far{_describe_last_attempt(activity)}"
            return f"flushes fail, {attempts}: {failure}"
    return None


def _describe_last_attempt(activity: PendingActivityInfo) -> str:
    for name in ("last_started_time", "last_attempt_complete_time"):
        if activity.HasField(name):
            return f", the last one at {getattr(activity, name).ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return ""
