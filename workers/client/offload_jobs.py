"""`Sexton`'s jobs on tiered copies."""

from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair

from logstore.ports.catalog import Topic
from logstore.positions import LedgerId
from workers.client.connections import OwnJobs, of_topic
from workflows import search_attributes
from workflows.offload.values import (
    OFFLOAD_LEDGER,
    OFFLOAD_TOPIC,
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerResult,
    OffloadTopicInput,
    OffloadTopicResult,
)


class OffloadJobs(OwnJobs):
    """Copying ledgers to the tiered bucket."""

    async def offload_topic(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId] | None = None,
        delete_primary: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> WorkflowHandle[Any, OffloadTopicResult]:
        """Copy closed ledgers to the tiered bucket; what is asked of a topic twice is done one after the other.

        Args:
            topic: Whose.
            ledger_ids: Only these; None: every closed ledger.
            delete_primary: Afterwards, delete the primary copy of every one of them that has a tiered copy.
            reason: For the audit log, where something is deleted.
            actor: The person or program that asks.

        Raises:
            InvalidInput: None, or more than `MOST_OFFLOADED` ids.
        """
        ids = None if ledger_ids is None else sorted({int(one) for one in ledger_ids})
        ask = self.checked(OffloadAsk(actor=actor, reason=reason, ledger_ids=ids, delete_primary=delete_primary))
        request = OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, policy=self._offload_policy, deletion=self._policy
        )
        return await self.start(
            OFFLOAD_TOPIC,
            request,
            topic.topic_id,
            summary=f"offload {topic.name}",
            about=[of_topic(topic)],
            signal="ask",
            signal_args=[ask],
        )

    async def offload_ledger(self, topic: Topic, ledger_id: LedgerId) -> WorkflowHandle[Any, OffloadLedgerResult]:
        """Copy one closed ledger to the tiered bucket; joins a run that is at work on it."""
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=topic.name, policy=self._offload_policy)
        about = [of_topic(topic), SearchAttributePair(search_attributes.LEDGER_ID, ledger_id)]
        summary = f"ledger {ledger_id} of {topic.name}"
        return await self.start(OFFLOAD_LEDGER, request, ledger_id, summary=summary, about=about)
