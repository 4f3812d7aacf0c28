"""`Sexton`'s reconciliation jobs."""

import uuid
from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair

from logstore.reconciliation import rules
from workers.client.connections import OwnJobs
from workflows import limits, search_attributes
from workflows.reconciliation.values import (
    APPLY_ORPHANS,
    RECONCILE_ORPHANS,
    ApplyOrphansInput,
    ApplyOrphansResult,
    ReconcileOrphansInput,
    ReconcileOrphansResult,
)


class ReconciliationJobs(OwnJobs):
    """Plans, and the apply of one."""

    async def plan_orphans(
        self,
        *,
        older_than_s: float = 86_400,
        unsafe_age: bool = False,
        inventories: Sequence[str] = (),
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> WorkflowHandle[Any, ReconcileOrphansResult]:
        """Compare storage with the catalog and write down what differs; changes neither.

        Args:
            older_than_s: Objects and rows that are younger are left out.
            unsafe_age: An age below the floor is meant: no process writes.
            inventories: Manifests that stand in for listings, as the workers see them.
            master: A Spark cluster; empty: that of the workers' settings.
            reason: Kept in the run.
            actor: Who asks.

        Raises:
            InvalidInput: A negative age, or what can be no manifest or cluster.
            PreconditionFailed: An age below the floor.
        """
        rules.check_age(older_than_s, unsafe=unsafe_age)
        run_id = f"plan-{uuid.uuid4().hex[:12]}"
        request = ReconcileOrphansInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            unsafe_age=unsafe_age,
            inventories=list(inventories),
            master=master,
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        summary = "compare storage with the catalog"
        return await self.start(RECONCILE_ORPHANS, request, run_id, summary=summary, about=_of_run(run_id))

    async def apply_orphans(
        self,
        run_id: str,
        *,
        max_orphan_share: float = rules.MAX_ORPHAN_SHARE,
        reason: str = "",
        actor: str = "",
    ) -> WorkflowHandle[Any, ApplyOrphansResult]:
        """Remove what a finished plan found, after another look; joins an apply of the same plan.

        What a guard refuses is in the result's `refused`; `result_of` raises it.

        Raises:
            InvalidInput: A run id or a share that can be none.
        """
        request = ApplyOrphansInput(
            run_id=run_id, actor=actor, reason=reason, max_orphan_share=max_orphan_share, policy=self._policy
        )
        return await self.start(APPLY_ORPHANS, request, run_id, summary=f"apply {run_id}", about=_of_run(run_id))


def _of_run(run_id: str) -> list[SearchAttributePair[str]]:
    return [SearchAttributePair(search_attributes.RUN_ID, run_id)]
