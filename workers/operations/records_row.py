"""`status`: whether what changes in the catalog gets into its record log, and what waits for it if not."""

from collections.abc import Mapping
from typing import Final

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.catalog import SqlCatalog, open_catalog
from logstore.errors import CatalogOutdated, SextonError
from logstore.ports.catalog import Records
from workers.client.connections import run_with_client
from workers.client.waiting import innermost_failure_text
from workers.identity import compare_with_newest_manifest
from workers.settings import Settings
from workflows.records.values import FLUSH_RECORDS, FlushRecordsResult

RECORD_LOG: Final = "record log"
LATE_S: Final = 300.0
"""A change that is in no block for longer is worth an alarm."""

_ADVICE: Final = "`sexton records status`; runbook `flush-records`"


def records_row(settings: Settings) -> Mapping[str, object]:
    """How old the oldest change is that no manifest names, why flushes fail if they do, and how many deletions wait.

    A database that is older than its record log is not ok, whatever else holds.
    """
    try:
        with open_catalog(settings.database_url) as catalog:
            trouble, detail = _of_catalog(catalog.records)
            if settings.store_is_known:
                detail += _compared(settings, catalog)
    except CatalogOutdated as error:
        return {"name": RECORD_LOG, "ok": False, "detail": str(error)}
    except (SextonError, OSError) as error:
        return {"name": RECORD_LOG, "ok": False, "detail": f"cannot be told: {error}"}
    if failing := _failing(settings):
        trouble = [failing, *trouble]
    told = "; ".join([*trouble, detail])
    return {"name": RECORD_LOG, "ok": not trouble, "detail": f"{told}; {_ADVICE}" if trouble else told}


def _compared(settings: Settings, catalog: SqlCatalog) -> str:
    """Compare the database with the newest manifest; what to add to the row where the store cannot tell.

    Raises:
        CatalogOutdated: The database is older than its record log.
    """
    try:
        compare_with_newest_manifest(settings, catalog)
    except CatalogOutdated:
        raise
    except SextonError:
        return "; not compared with the newest manifest"  # another row tells why
    return ""


def _of_catalog(records: Records) -> tuple[list[str], str]:
    """Troubles, and how much is in no block."""
    from logstore.records.services.flushing import refused  # noqa: PLC0415 - start-up time

    state = records.state()
    if not state.outbox and not state.staged:
        return [], f"manifest {state.manifest} has all changes"
    left_out = refused(records)
    trouble = [f"no block can hold {len(left_out)} records: {left_out[0]}"] if left_out else []
    age_s = 0.0 if state.oldest_us is None else max(0, state.now_us - state.oldest_us) / 1_000_000
    if age_s > LATE_S:
        waiting = records.waiting_deletions()
        trouble.append(f"changes of the last {age_s:.0f} s would be lost with the database, {waiting} deletions wait")
    return trouble, f"manifest {state.manifest}, {state.outbox} changes since, the oldest {age_s:.0f} s ago"


def _failing(settings: Settings) -> str | None:
    """How `flush-records` fails, as Temporal knows it; nothing where it cannot be asked: another row tells that."""
    try:
        return run_with_client(settings, why_flushes_fail)
    except (RPCError, SextonError):
        return None


async def why_flushes_fail(client: Client) -> str | None:
    """The sentence of the last failure of `flush-records`; None while it runs well, and before its first run."""
    handle = client.get_workflow_handle(FLUSH_RECORDS.id(), result_type=FlushRecordsResult)
    try:
        found = await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    if found.status is WorkflowExecutionStatus.COMPLETED:  # it ends where a guard refuses
        refusal = (await handle.result()).refused
        return f"flushes are refused: {refusal.type}: {refusal.message}" if refusal else None
    for one in found.raw_description.pending_activities:
        if one.HasField("last_failure"):
            failure = innermost_failure_text(one.last_failure)
            return f"flushes fail, {one.attempt - 1} attempts so far{_last_attempt(one)}: {failure}"
    return None


def _last_attempt(pending: PendingActivityInfo) -> str:
    """When the last attempt began, or ended; "" if the server does not say: its zero is in 1970."""
    for name in ("last_started_time", "last_attempt_complete_time"):
        if pending.HasField(name):
            return f", the last one at {getattr(pending, name).ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return ""
