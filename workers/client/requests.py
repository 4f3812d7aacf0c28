"""What requests of jobs have in common."""

from collections.abc import Sequence

from temporalio.common import SearchAttributePair, TypedSearchAttributes

from logstore.ports.catalog import Topic
from logstore.positions import LedgerId
from workers.settings import Settings
from workflows import search_attributes
from workflows.deletion.values import DeletionPolicy


def deletion_policy(settings: Settings) -> DeletionPolicy:
    """How phase two works, as the settings say."""
    return DeletionPolicy(
        parallelism=settings.deletion_parallelism,
        chunk=settings.deletion_chunk,
        max_attempts=settings.deletion_max_attempts,
        retry_interval_s=settings.deletion_retry_interval,
    )


def ascending(ledger_ids: Sequence[LedgerId]) -> list[int]:
    """The ids, ascending and unique."""
    return sorted({int(ledger_id) for ledger_id in ledger_ids})


def of_topic(topic: Topic, batch_id: str | None = None) -> TypedSearchAttributes:
    """Attributes of a job of one topic, and of one batch if there is one."""
    batch = [SearchAttributePair(search_attributes.RUN_ID, batch_id)] if batch_id else []
    return TypedSearchAttributes([SearchAttributePair(search_attributes.TOPIC, topic.name), *batch])
