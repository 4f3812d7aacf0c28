"""Which catalog a namespace of Temporal serves: workflow ids and schedules carry no other name of it.

A paused schedule that never runs says so in its memo. It is put by one atomic call that any client may make, also
where nobody may change the namespace itself (Temporal Cloud), and it stays as long as the namespace.
"""

from datetime import timedelta
from typing import Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.converter import PayloadConverter
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import CatalogMismatch

SCHEDULE: Final = "sexton-catalog"
_CATALOG: Final = "catalog_id"


async def require(client: Client, catalog_id: str) -> None:
    """See that the namespace is this catalog's; one that is nobody's becomes so, and of several catalogs one wins.

    Repeating it is harmless.

    Raises:
        CatalogMismatch: It is another catalog's.
    """
    if await compare(client, catalog_id):
        return
    try:
        # never encrypted: the id is no secret, and is to be read when today's keys are gone
        (plain,) = PayloadConverter.default.to_payloads([catalog_id])
        await client.create_schedule(SCHEDULE, _sign(catalog_id), memo={_CATALOG: plain})
    except ScheduleAlreadyRunningError:  # another process came first
        await compare(client, catalog_id)


async def compare(client: Client, catalog_id: str) -> bool:
    """Whether the namespace is known to be this catalog's; False where it is nobody's yet.

    Raises:
        CatalogMismatch: It is another catalog's.
    """
    try:
        found = (await (await client.get_schedule_handle(SCHEDULE).describe()).memo()).get(_CATALOG)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    if found != catalog_id:
        raise CatalogMismatch(
            f"temporal namespace {client.namespace}",
            expected=f"that of catalog {catalog_id}",
            found=f"that of catalog {found}",
            advice=f"give each catalog a namespace of its own; schedule {SCHEDULE} says whose this one is",
        )
    return True


def _sign(catalog_id: str) -> Schedule:
    """One that never runs; if somebody triggers it by hand, no worker polls its queue and it ends at once."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            SCHEDULE, id=SCHEDULE, task_queue=SCHEDULE, execution_timeout=timedelta(seconds=1)
        ),
        spec=ScheduleSpec(),
        state=ScheduleState(paused=True, note=f"never runs: it says that this namespace serves catalog {catalog_id}"),
    )
