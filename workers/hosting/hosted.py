"""The activities that a worker hosts, over the ports of its log store; by queue."""

from collections.abc import Callable, Sequence
from typing import Any

from activities.deletion import DeletionUpkeep, LedgerDeletion
from activities.deletion.retention import Retention
from activities.deletion.topic_deletion import TopicDeletion
from activities.deletion.trimming import Trimming
from activities.offload import LedgerOffload
from activities.ownership import Ownership
from logstore.ports.owners import Owners
from workers.assembly import LogStore


def upload_activities(log: LogStore) -> Sequence[Callable[..., Any]]:
    """Activities of the queue of uploads."""
    return [_offload(log).upload]


def _offload(log: LogStore) -> LedgerOffload:
    return LedgerOffload(
        uploader=log.offloader, offloads=log.catalog.offloads, ledgers=log.catalog.ledgers, topics=log.catalog.topics
    )


def owner_activities(log: LogStore, owners: Owners) -> Sequence[Callable[..., Any]]:
    """Activities that run at a topic's owner."""
    deletion = _deletion(log, owners)
    return [
        deletion.detach,
        deletion.delete_chunk,
        deletion.hand_over_chunk,
        deletion.delete_one,
        deletion.dead_letter,
        deletion.certify,
    ]


def _deletion(log: LogStore, owners: Owners) -> LedgerDeletion:
    return LedgerDeletion(
        deletions=log.catalog.deletions,
        ledgers=log.catalog.ledgers,
        topics=log.catalog.topics,
        storages=log.storages,
        owners=owners,
    )


def all_activities(log: LogStore, owners: Owners) -> Sequence[Callable[..., Any]]:
    """Every activity of this build, over the log's ports."""
    deletion = _deletion(log, owners)
    retention = Retention(topics=log.catalog.topics, roller=log.managed, settler=log.subscriptions)
    topics = TopicDeletion(topics=log.catalog.topic_deletions, ledgers=log.catalog.ledgers)
    upkeep = DeletionUpkeep(
        sweeps=log.catalog.sweeps,
        deletions=log.catalog.deletions,
        ledgers=log.catalog.ledgers,
        finished_retention_s=log.finished_retention_s,
    )
    offload = _offload(log)
    trimming = Trimming(
        topics=log.catalog.topics,
        trims=log.catalog.topic_trims,
        deletions=log.catalog.deletions,
        ledgers=log.catalog.ledgers,
        idle=retention,
    )
    return [
        *owner_activities(log, owners),
        deletion.next_ranges,
        upkeep.adopt,
        upkeep.forget,
        upkeep.hold_batch,
        upkeep.pause_batch,
        retention.roll_idle,
        topics.set_deleting,
        topics.detach_all,
        topics.remove,
        offload.upload,
        offload.publish,
        offload.candidates,
        offload.remove_primaries,
        trimming.next_pages,
        trimming.trim_page,
        trimming.count_batch,
        Ownership(owners=owners).look_up,
    ]
