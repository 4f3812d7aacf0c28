"""`trim-topics`: every ledger of any topic that retention does not keep is out of its list and being deleted.

Destroys ledgers that every subscription has acknowledged and no limit keeps. Invariant: what goes of a topic is a
prefix of its list, decided under its lock. To stop it, cancel or terminate it: a started `delete-ledgers` goes on, and
what was detached without one is taken up by the next trim.

1. Page by page of ACTIVE topics: roll what is idle and detach what may go (phase one), all into one batch. A topic
   that fails is skipped, and so is a page.
2. Run `delete-ledgers` on the batch (phase two), and wait for it, but not for long: it may be paused.

Source: PIP-186; Pulsar's retention; YahooArchive/bookkeeper#17 for what one bad topic may not do.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion.trimming import (
        CountBatchInput,
        NextPagesInput,
        NextPagesResult,
        TopicIdRange,
        Trimming,
        TrimPageInput,
        TrimPageResult,
    )
    from logstore.deletion.intents import BatchCertificate
    from workflows import options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.values import DELETE_LEDGERS, TrimTopicsInput, TrimTopicsResult

_PAGES = 40  # read at once: some 250 events of history
_TROUBLES = 10  # kept as a sample

_TRIM = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # 50 topics with 100,000 ledgers each, or contended for 60 s each
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=5),  # then the page is skipped: the next trim meets it again
)


@workflow.defn(name="trim-topics", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TrimTopics:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: TrimTopicsInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._result = request.carried
        self._batch_id = request.batch_id or f"trim-{workflow.uuid4().hex[:12]}"

    @workflow.run
    async def run(self, request: TrimTopicsInput) -> TrimTopicsResult:
        """Do the numbered steps."""
        after = request.after
        size = max(1, request.page)
        while True:
            asked = NextPagesInput(after=after, topics=size, limit=_PAGES)
            found: NextPagesResult = await workflow.execute_activity_method(
                Trimming.next_pages, asked, **options.CATALOG
            )
            pages = found.pages
            if not pages:
                break
            for page in pages:
                await self._trim(page)
            after = pages[-1].last
            if workflow.info().is_continue_as_new_suggested():
                more = replace(request, batch_id=self._batch_id, after=after, carried=self._result)
                workflow.continue_as_new(more)
        batch = CountBatchInput(batch_id=self._batch_id)
        detached = await workflow.execute_activity_method(Trimming.count_batch, batch, **options.CATALOG)
        self._note(detached=detached.ledgers)
        if detached.intents:
            summary = f"{detached.intents} copies of many topics"
            done = await batches.run_phase_two(
                request, self._batch_id, detached, summary=summary, patience_s=request.patience_s
            )
            self._certify(done)
        return self._result

    @workflow.query
    def progress(self) -> TrimTopicsResult:
        """How far the trim is."""
        return self._result

    async def _trim(self, page: TopicIdRange) -> None:
        """One page; one that fails as a whole is counted and passed over."""
        request = TrimPageInput(
            page=page,
            batch_id=self._batch_id,
            batch_workflow_id=DELETE_LEDGERS.id(self._batch_id),
            actor=self._request.actor,
            reason=self._request.reason,
        )
        try:
            done = await workflow.execute_activity_method(Trimming.trim_page, request, **_TRIM)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("topics %s to %s are not trimmed now: %s", page.first, page.last, error.cause)
            trouble = f"topics {page.first} to {page.last}: {error.cause}"
            done = TrimPageResult(topics=page.topics, failed=page.topics, troubles=[trouble])
        before = self._result
        self._note(
            topics=before.topics + done.topics,
            failed=before.failed + done.failed,
            detached=before.detached + done.ledgers,
            troubles=[*before.troubles, *done.troubles][:_TROUBLES],
        )

    def _certify(self, done: BatchCertificate | None) -> None:
        if done is None:
            self._note(uncertified=True)
            return
        self._note(outcomes=done.outcomes, deleted=done.deleted, objects=done.objects, size_bytes=done.size_bytes)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(sorted(done.outcomes))])

    def _note(self, **changes: object) -> None:
        self._result = replace(self._result, **changes)  # type: ignore[arg-type]
        done = self._result
        workflow.set_current_details(
            f"{done.topics:,} topics, {done.failed:,} of them skipped, {done.detached:,} ledgers detached, "
            f"{done.deleted:,} copies deleted, {done.objects:,} objects\n\n"
            + "".join(f"- {trouble}\n" for trouble in done.troubles)
        )
