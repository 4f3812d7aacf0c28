"""`delete-ledgers`: every intent of one batch ends, or is handed to a `delete-ledger` of its own.

Destroys the objects of the batch's ledgers. Invariant: rows, claims and outcomes live in SQL; this workflow only
drives. To stop it, terminate it: unfinished rows stay listed, and the topic's next trim takes them up.

1. Asked for given ledgers: detach them (phase one). A trim has done so already.
2. Page by page, delete chunks of rows, `parallelism` at a time; hand failing rows to children of their own.
3. Certify: count the batch from its rows, close its run, write the audit row.

Source: PIP-186, second phase.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion import (
        Certificate,
        CertifyInput,
        ChunkInput,
        ChunkResult,
        DetachInput,
        DetachResult,
        IntentKey,
        LedgerDeletion,
        OneResult,
        Range,
        RangesInput,
        RangesPage,
    )
    from logstore.deletion import Outcome
    from workflows import delete_ledger, search_attributes
    from workflows.delete_ledger import DeleteLedger
    from workflows.values import (
        DeleteLedgerInput,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        DeletionPolicy,
        ExplicitDetach,
    )

_PAGE = 50  # ranges: some 500 events of history, then continue as new if the server suggests it
_MOST_ROWS = 1_000  # in all chunks at once: were every one of them to fail, each would start a child
_MOST_NAMED = 500  # where each row has a topic of its own: the names of a chunk travel, 200 characters each

_SQL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),  # phase one of 100,000 ledgers, with room
    heartbeat_timeout=timedelta(seconds=10),  # a killed worker is noticed within this
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)
_CHUNK = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # 100 ledgers of 1,000 segments at 30 objects a second
    heartbeat_timeout=timedelta(seconds=10),  # a killed worker is noticed within this
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=10),  # then row by row
)


def check_policy(policy: DeletionPolicy) -> None:
    """Refuse what could only hang: any SDK may have written it.

    Raises:
        ApplicationError: Of type `InvalidInput`, final.
    """
    least = {"parallelism": 1, "chunk": 1, "max_attempts": 1, "retry_interval_s": 0, "alone": 1}
    for name, lowest in least.items():
        found = getattr(policy, name)
        if found < lowest:
            message = f"policy.{name}: expected {lowest} or more, found {found}"
            raise ApplicationError(message, type="InvalidInput", non_retryable=True)


def workflow_id(batch_id: str) -> str:
    """`delete-ledgers/{batch}`."""
    return f"delete-ledgers/{batch_id}"


@workflow.defn(name="delete-ledgers")
class DeleteLedgers:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: DeleteLedgersInput) -> None:
        """Start from what an earlier run of this batch carried over."""
        self._request = request
        self._progress = request.carried
        self._window = asyncio.Semaphore(max(1, request.policy.parallelism))
        self._alone = 0
        self._most_rows = _MOST_ROWS if request.topic else _MOST_NAMED

    @workflow.run
    async def run(self, request: DeleteLedgersInput) -> Certificate:
        """Do the numbered steps."""
        check_policy(request.policy)
        search_attributes.ensure_topic(request.topic)
        if request.detach:
            await self._detach(request.detach)
        while (page := await self._next_page()).ranges:
            await asyncio.gather(*(self._delete(part) for part in page.ranges))
            full = self._alone >= self._request.policy.alone
            if not full:
                self._progress = replace(self._progress, after=page.ranges[-1].last)
            workflow.set_current_details(_table(self._progress))
            if full or workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, detach=None, carried=self._progress))
        return self._ended(self._stale() if page.stale else await self._certify())

    @workflow.query
    def progress(self) -> DeleteLedgersProgress:
        """How far the batch is."""
        return self._progress

    async def _detach(self, asked: ExplicitDetach) -> None:
        request = self._request
        detached: DetachResult = await workflow.execute_activity_method(
            LedgerDeletion.detach,
            DetachInput(
                topic_id=request.topic_id,
                batch_id=request.batch_id,
                batch_workflow_id=workflow.info().workflow_id,
                actor=request.actor,
                reason=request.reason,
                catalog_epoch=request.catalog_epoch,
                ledger_ids=asked.ledger_ids,
                force=asked.force,
            ),
            **_SQL,
        )
        self._progress = replace(
            self._progress, detached=detached.ledgers, intents=detached.intents, finished=detached.finished
        )

    async def _next_page(self) -> RangesPage:
        request = self._request
        page = RangesInput(
            batch_id=request.batch_id,
            catalog_epoch=request.catalog_epoch,
            after=self._progress.after,
            rows=min(request.policy.chunk, max(1, self._most_rows // request.policy.parallelism)),
            limit=_PAGE,
        )
        return await workflow.execute_activity_method(LedgerDeletion.next_ranges, page, **_SQL)

    async def _delete(self, part: Range) -> None:
        chunk = ChunkInput(
            batch_id=self._request.batch_id,
            chunk=part,
            catalog_epoch=self._request.catalog_epoch,
            many_topics=not self._request.topic,
        )
        async with self._window:
            if self._alone >= self._request.policy.alone:
                return  # left for the next run, which meets only what is unfinished
            result = await self._delete_or_hand_over(chunk)
            self._alone += len(result.alone)
        self._count(result)
        topics = result.topics or [self._request.topic] * len(result.alone)
        for key, topic in zip(result.alone, topics, strict=True):
            await self._start_alone(key, topic)

    async def _delete_or_hand_over(self, chunk: ChunkInput) -> ChunkResult:
        try:
            return await workflow.execute_activity_method(LedgerDeletion.delete_chunk, chunk, **_CHUNK)
        except ActivityError as error:
            held = isinstance(error.cause, ApplicationError) and error.cause.type == "ClaimHeld"
            if held or is_cancelled_exception(error):
                raise
            return await workflow.execute_activity_method(LedgerDeletion.hand_over_chunk, chunk, **_SQL)

    async def _start_alone(self, key: IntentKey, topic: str) -> None:
        """Give a row a workflow that an operator can open; abandoned, for it may retry longer than the batch lives."""
        policy = self._request.policy
        try:
            child = await workflow.start_child_workflow(
                DeleteLedger.run,
                DeleteLedgerInput(
                    key=key,
                    topic=topic,
                    catalog_epoch=self._request.catalog_epoch,
                    max_attempts=policy.max_attempts,
                    retry_interval_s=policy.retry_interval_s,
                ),
                id=delete_ledger.workflow_id(key),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=f"ledger {key.ledger_id} of {topic}",
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(search_attributes.TOPIC, topic),
                        SearchAttributePair(search_attributes.LEDGER_ID, key.ledger_id),
                        SearchAttributePair(search_attributes.RUN_ID, self._request.batch_id),
                    ]
                ),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("already at work alone: %s", key)
        else:
            child.add_done_callback(_heard)

    async def _certify(self) -> Certificate:
        request = self._request
        close = CertifyInput(batch_id=request.batch_id, actor=request.actor, reason=request.reason)
        return await workflow.execute_activity_method(LedgerDeletion.certify, close, **_SQL)

    def _stale(self) -> Certificate:
        """The catalog was rebuilt meanwhile: its own rows say what is left to do, under the new epoch."""
        progress = self._progress
        left = progress.intents - sum(progress.outcomes.values())
        return Certificate(
            batch_id=self._request.batch_id,
            outcomes=_added(progress.outcomes, {Outcome.STALE_CATALOG.value: left} if left > 0 else {}),
            objects=progress.objects,
            size_bytes=progress.size_bytes,
        )

    def _ended(self, certificate: Certificate) -> Certificate:
        outcomes = _added(certificate.outcomes, self._progress.finished)
        elsewhere = self._progress.intents - sum(certificate.outcomes.values())  # taken up by another batch
        whole = replace(
            certificate, outcomes=_added(outcomes, {Outcome.RETRYING.value: elsewhere} if elsewhere > 0 else {})
        )
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(sorted(whole.outcomes))])
        workflow.set_current_details(_table(whole))
        return whole

    def _count(self, result: ChunkResult) -> None:
        self._progress = replace(
            self._progress,
            outcomes=_added(self._progress.outcomes, result.outcomes),
            objects=self._progress.objects + result.objects,
            size_bytes=self._progress.size_bytes + result.size_bytes,
        )


def _heard(child: asyncio.Task[OneResult]) -> None:
    """Take note of how a child ended; its row says so, and nobody here waits for it."""
    if not child.cancelled():
        child.exception()


def _added(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}


def _table(done: DeleteLedgersProgress | Certificate) -> str:
    rows = "".join(f"| {name} | {count:,} |\n" for name, count in sorted(done.outcomes.items()))
    return f"{done.objects:,} objects, {done.size_bytes:,} bytes\n\n| outcome | copies |\n|---|---|\n{rows}"
