"""`Sexton`'s offload jobs."""

from collections.abc import Sequence
from typing import TypeVar

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair, WorkflowIDConflictPolicy

from logstore.ports.catalog import Topic
from logstore.positions import LedgerId
from workers.client.connections import OwnJobs
from workers.client.requests import ascending, deletion_policy, of_topic
from workflows import limits, search_attributes
from workflows.limits import uploads_queue
from workflows.offload import offload_ledger, offload_topic
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic
from workflows.offload.values import (
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerResult,
    OffloadPolicy,
    OffloadTopicInput,
    OffloadTopicResult,
)

R = TypeVar("R")


class OffloadJobs(OwnJobs):
    """The offload jobs of a client: under which ids, with which policies."""

    async def offload_topic(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId] | None = None,
        delete_primary: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> WorkflowHandle[OffloadTopic, OffloadTopicResult]:
        """Copy closed ledgers to the tiered bucket; what is asked of a topic twice is done one after the other.

        Args:
            topic: Whose.
            ledger_ids: Only these; None: every closed ledger.
            delete_primary: Afterwards, delete the primary copy of every one of them that has a tiered copy.
            reason: For the audit log, where something is deleted.
            actor: Who asks.

        Raises:
            InvalidInput: None, or more than `MOST_OFFLOADED` ids.
        """
        ids = None if ledger_ids is None else ascending(ledger_ids)
        ask = self._checked(OffloadAsk(actor=actor, reason=reason, ledger_ids=ids, delete_primary=delete_primary))
        request = OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, policy=self._offload, deletion=deletion_policy(self._settings)
        )
        self._checked(request)
        return await (await self.ours()).start_workflow(
            OffloadTopic.run,
            request,
            id=offload_topic.workflow_id(topic.topic_id),
            task_queue=self._settings.task_queue,
            start_signal="ask",
            start_signal_args=[ask],
            static_summary=f"offload {topic.name}",
            static_details=request.details(),
            search_attributes=of_topic(topic),
        )

    async def offload_ledger(
        self, topic: Topic, ledger_id: LedgerId
    ) -> WorkflowHandle[OffloadLedger, OffloadLedgerResult]:
        """Copy one closed ledger to the tiered bucket; joins a run that is at work on it."""
        request = self._checked(OffloadLedgerInput(ledger_id=ledger_id, topic=topic.name, policy=self._offload))
        return await (await self.ours()).start_workflow(
            OffloadLedger.run,
            request,
            id=offload_ledger.workflow_id(ledger_id),
            task_queue=self._settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"ledger {ledger_id} of {topic.name}",
            static_details=request.details(),
            search_attributes=of_topic(topic).updated(SearchAttributePair(search_attributes.LEDGER_ID, ledger_id)),
        )

    def _checked(self, request: R) -> R:
        """The request, refused here where its job would refuse it."""
        limits.check(request, queue=self._settings.task_queue)
        return request

    @property
    def _offload(self) -> OffloadPolicy:
        settings = self._settings
        return OffloadPolicy(
            timeout_s=settings.offload_timeout,
            parallelism=settings.offload_parallelism,
            queue=uploads_queue(settings.task_queue),
        )
