"""`sweep-deletions`: deletions that no workflow works on go on, and what ended long ago is forgotten; of all topics.

Destroys the objects of ledgers that were detached before, and of newborn ledgers that were not attached; forgets
finished rows, dead letters never. Invariant: each row is in one batch, which has one workflow. To stop it, cancel
or terminate it: batches that it started go on, and what it took up without starting them is found by the next one.

1. Adopt a page of stalled intents and newborn ledgers into a batch of its own; repeat from here until none is left.
2. Run `delete-ledgers` on that batch, and wait for it, but not for long: it may be paused.
3. Forget finished rows older than `finished_retention`, page by page.

Source: PIP-186, whose unacknowledged deletions are delivered again; apache/pulsar#350 for newborn ledgers.
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.deletion.upkeep import DeletionUpkeep
    from activities.deletion.values import AdoptInput, ForgetDeletionsInput, ForgetDeletionsResult
    from logstore.deletion.intents import BatchCertificate
    from workflows import options
    from workflows.deletion import batches
    from workflows.deletion.values import (
        DELETE_LEDGERS,
        SweepDeletionsInput,
        SweepDeletionsResult,
    )

_MOST_ADOPTED = 10_000  # rows of one batch: a transaction of a quarter of a second
_MOST_FORGOTTEN = 5_000  # rows of one page: writers wait a tenth of a second for it


@workflow.defn(name="sweep-deletions", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SweepDeletions:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: SweepDeletionsInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: SweepDeletionsInput) -> SweepDeletionsResult:  # noqa: ARG002 - taken by `__init__`
        """Do the numbered steps."""
        while await self._adopt():
            self._continue_if_long()
        while await self._forget():
            self._continue_if_long()
        return self._result

    @workflow.query
    def progress(self) -> SweepDeletionsResult:
        """What the sweep found and did so far."""
        return self._result

    def _continue_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(replace(self._request, carried=self._result))

    async def _adopt(self) -> bool:
        """Whether there was anything; then its phase two has ended, or goes on by itself."""
        batch_id = f"sweep-{workflow.uuid4().hex[:12]}"
        adopted = await workflow.execute_activity_method(
            DeletionUpkeep.adopt,
            AdoptInput(batch_id=batch_id, batch_workflow_id=DELETE_LEDGERS.id(batch_id), limit=_MOST_ADOPTED),
            **options.CATALOG,
        )
        if adopted.intents:
            found = self._result
            self._result = replace(
                found,
                batches=found.batches + 1,
                intents=found.intents + adopted.intents,
                newborn=found.newborn + adopted.ledgers,
            )
            summary = f"{adopted.intents} copies that no workflow worked on"
            patience_s = self._request.patience_s
            self._add(
                await batches.run_phase_two(self._request, batch_id, adopted, summary=summary, patience_s=patience_s)
            )
        return adopted.intents > 0

    async def _forget(self) -> bool:
        request = self._request
        page = ForgetDeletionsInput(limit=_MOST_FORGOTTEN, actor=request.actor, reason=request.reason)
        gone: ForgetDeletionsResult = await workflow.execute_activity_method(
            DeletionUpkeep.forget, page, **options.CATALOG
        )
        forgotten, runs = self._result.forgotten + gone.rows, self._result.forgotten_runs + gone.runs
        self._result = replace(self._result, forgotten=forgotten, forgotten_runs=runs)
        return _MOST_FORGOTTEN in {gone.rows, gone.runs}

    def _add(self, done: BatchCertificate | None) -> None:
        before = self._result
        if done is None:
            self._result = replace(before, uncertified=before.uncertified + 1)
            return
        self._result = batches.add_certificate(before, done)
        workflow.set_current_details(f"{self._result.intents:,} copies taken up, {self._result.deleted:,} deleted")
