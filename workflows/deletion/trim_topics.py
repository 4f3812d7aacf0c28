"""`trim-topics`: delete those ledgers of all topics that neither retention nor a subscription needs.

Destroys ledgers that every subscription has acknowledged and no limit of retention keeps. Invariant: the detached
ledgers of a topic are a prefix of the topic's list, selected under the list's lock. To stop it, cancel or terminate it.
A `delete-ledgers` that has started continues. If ledgers were detached and no `delete-ledgers` was started, the next
trim of each topic takes over the topic's intents.

1. For each page of ACTIVE topics, roll idle ledgers and detach unneeded ledgers (phase one). All intents are in one
   batch. A topic or a page that fails is skipped.
2. Run `delete-ledgers` on the batch (phase two). Wait a limited time, because the batch may be paused.

Source: PIP-186; Pulsar's retention; YahooArchive/bookkeeper#17, where one bad topic stops all others.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion.trim_by_retention import (
        CountBatchInput,
        NextTopicPagesInput,
        NextTopicPagesResult,
        TopicIdRange,
        TrimAllTopicsActivities,
        TrimPageInput,
        TrimPageResult,
    )
    from logstore.deletion.intents import BatchCertificate
    from workflows import activity_options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import DELETE_LEDGERS, TrimTopicsInput, TrimTopicsResult

_PAGES_PER_READ = 40  # some 250 events of history
_MAX_TROUBLES = 10

_TRIM = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # 50 topics with 100,000 ledgers each, or contended for 60 s each
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=5),  # then the page is skipped until the next trim
)


@workflow.defn(name="trim-topics", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TrimTopics:
    @workflow.init
    def __init__(self, request: TrimTopicsInput) -> None:
        self._request = request
        self._result = request.carried
        self._batch_id = request.batch_id or f"trim-{workflow.uuid4().hex[:12]}"

    @workflow.run
    async def run(self, request: TrimTopicsInput) -> TrimTopicsResult:
        after = request.after
        while True:
            next_pages = NextTopicPagesInput(after=after, topics=max(1, request.page), limit=_PAGES_PER_READ)
            next_pages_result: NextTopicPagesResult = await workflow.execute_activity_method(
                TrimAllTopicsActivities.list_next_topic_pages, next_pages, **activity_options.CATALOG
            )
            if not next_pages_result.pages:
                break
            for page in next_pages_result.pages:
                await self._roll_and_detach_page(page)
            after = next_pages_result.pages[-1].last
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, batch_id=self._batch_id, after=after, carried=self._result))
        count_input = CountBatchInput(batch_id=self._batch_id)
        detached = await workflow.execute_activity_method(
            TrimAllTopicsActivities.count_batch, count_input, **activity_options.CATALOG
        )
        self._change_and_show_result(detached=detached.ledgers)
        if detached.intents:
            summary = f"{detached.intents} copies of many topics"
            certificate = await batches.run_phase_two(
                request, self._batch_id, detached, summary=summary, patience_s=request.patience_s
            )
            self._set_phase_two_counts(certificate)
        return self._result

    @workflow.query
    def progress(self) -> TrimTopicsResult:
        """Return the numbers of topics visited, ledgers detached and copies deleted so far."""
        return self._result

    async def _roll_and_detach_page(self, page: TopicIdRange) -> None:
        request = TrimPageInput(
            page=page,
            batch_id=self._batch_id,
            batch_workflow_id=DELETE_LEDGERS.id(self._batch_id),
            actor=self._request.actor,
            reason=self._request.reason,
        )
        try:
            result = await workflow.execute_activity_method(TrimAllTopicsActivities.trim_page, request, **_TRIM)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("topics %s to %s are not trimmed now: %s", page.first, page.last, error.cause)
            trouble = f"topics {page.first} to {page.last}: {error.cause}"
            result = TrimPageResult(topics=page.topics, failed=page.topics, troubles=[trouble])
        before = self._result
        self._change_and_show_result(
            topics=before.topics + result.topics,
            failed=before.failed + result.failed,
            detached=before.detached + result.ledgers,
            troubles=[*before.troubles, *result.troubles][:_MAX_TROUBLES],
        )

    def _set_phase_two_counts(self, certificate: BatchCertificate | None) -> None:
        if certificate is None:
            self._change_and_show_result(uncertified=True)
            return
        self._change_and_show_result(
            outcomes=certificate.outcomes,
            deleted=certificate.deleted,
            objects=certificate.objects,
            size_bytes=certificate.size_bytes,
        )
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(sorted(certificate.outcomes))])

    def _change_and_show_result(self, **changes: object) -> None:
        self._result = replace(self._result, **changes)  # type: ignore[arg-type]
        result = self._result
        workflow.set_current_details(
            f"{result.topics:,} topics, {result.failed:,} of them skipped, {result.detached:,} ledgers detached, "
            f"{result.deleted:,} copies deleted, {result.objects:,} objects\n\n"
            + "".join(f"- {trouble}\n" for trouble in result.troubles)
        )
