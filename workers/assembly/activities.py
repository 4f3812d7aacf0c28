"""Every activity of this build over the ports of one log store, and which of them each task queue is served with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from activities.deletion import DeletionUpkeep, LedgerDeletion
from activities.deletion.topic_deletion import TopicDeletion
from activities.deletion.trimming import Retention, Trimming
from activities.offload import LedgerOffload
from logstore.ports.owners import Owners
from workers.assembly.log import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """What a worker hosts."""

    deletion: LedgerDeletion
    upkeep: DeletionUpkeep
    topics: TopicDeletion
    retention: Retention
    trimming: Trimming
    offload: LedgerOffload

    def of_owners(self) -> Sequence[Callable[..., Any]]:
        """Those that run at a topic's owner."""
        one = self.deletion
        return [one.detach, one.delete_chunk, one.hand_over_chunk, one.delete_one, one.dead_letter, one.certify]

    def of_uploads(self) -> Sequence[Callable[..., Any]]:
        """Those of the queue of uploads."""
        return [self.offload.upload]

    def all(self) -> Sequence[Callable[..., Any]]:
        """Every one."""
        return [
            *self.of_owners(),
            *self.of_uploads(),
            self.deletion.next_ranges,
            self.upkeep.adopt,
            self.upkeep.forget,
            self.upkeep.hold_batch,
            self.upkeep.pause_batch,
            self.retention.roll_idle,
            self.topics.set_deleting,
            self.topics.detach_all,
            self.topics.remove,
            self.offload.publish,
            self.offload.candidates,
            self.offload.remove_primaries,
            self.trimming.next_pages,
            self.trimming.trim_page,
            self.trimming.count_batch,
        ]


def activities_over(log: LogStore, owners: Owners) -> Activities:
    """The activities of a worker that knows `owners`."""
    catalog = log.catalog
    deletions, ledgers, topics = catalog.deletions, catalog.ledgers, catalog.topics
    retention = Retention(topics=topics, roller=log.managed, settler=log.subscriptions)
    return Activities(
        deletion=LedgerDeletion(
            phase_one=catalog.phase_one,
            deletions=deletions,
            ledgers=ledgers,
            topics=topics,
            storages=log.storages,
            owners=owners,
        ),
        upkeep=DeletionUpkeep(
            upkeep=catalog.upkeep,
            deletions=deletions,
            ledgers=ledgers,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        topics=TopicDeletion(phase_one=catalog.phase_one, ledgers=ledgers),
        retention=retention,
        trimming=Trimming(
            topics=topics, phase_one=catalog.phase_one, deletions=deletions, ledgers=ledgers, idle=retention
        ),
        offload=LedgerOffload(
            uploader=log.offloader,
            offloads=catalog.offloads,
            ledgers=ledgers,
            topics=topics,
            new_uuid=log.policies.new_uuid,
        ),
    )
