"""Index of delayed messages in SQL. Lock order: topic, ledger list of the index, row of the list of index buckets."""

from collections.abc import Sequence

from sqlalchemy import Connection

from logstore.catalog import tables as t
from logstore.catalog.delayed.bucket_rows import (
    change_bucket_list,
    claim_bucket_list,
    find_bucket_list_holder,
    lock_bucket_list,
    read_bucket_list,
    release_bucket_list_claim,
    renew_bucket_list_claims,
)
from logstore.catalog.delayed.index_work_queries import (
    count_delayed_totals,
    count_unsealed_entries,
    find_droppable_buckets,
    find_topics_with_index_work,
)
from logstore.catalog.deletion.intent_rows import reopen_newborn_intent, replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.component_ledgers import read_newborn_or_reopen_intent, retire_component_ledger
from logstore.catalog.log.ledger_rows import lock_component_list, publish_component_ledger
from logstore.catalog.log.topic_rows import read_topic, share_lock_active_topic
from logstore.delayed.index_buckets import IndexBucketList, SealAndMergeLimits
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.delayed import CatalogDelayedMessageCounts, IndexBucketSwitch, UnsealedEntryCounts
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import EARLIEST, LedgerId, TopicId


class DelayedIndex(CatalogAdapter):
    """Lists of index buckets. Every change checks and raises the list version."""

    def get_bucket_list(self, topic_id: TopicId) -> IndexBucketList:
        """Return the topic's list of index buckets. For an unknown topic the list is empty."""
        return self._db.read(lambda connection: read_bucket_list(connection, topic_id))

    def count_unsealed_entries(self, topic_id: TopicId) -> UnsealedEntryCounts:
        return self._db.read(lambda connection: count_unsealed_entries(connection, topic_id))

    def count_delayed_messages(self) -> CatalogDelayedMessageCounts:
        return self._db.read(count_delayed_totals)

    def find_claim_holder(self, topic_id: TopicId) -> str | None:
        """Return the id of the workflow that has a live claim on the topic's list of index buckets."""
        return self._db.read(
            lambda connection: find_bucket_list_holder(connection, topic_id, now_us=self._db.now_us(connection))
        )

    def list_topics_with_work(self, limits: SealAndMergeLimits, *, after: TopicId, limit: int) -> list[TopicId]:
        """Return unclaimed topics with ids above `after` that need a seal, a merge or a drop, ascending.

        An index bucket is dropped in three cases:

        1. All messages of the index bucket have been due for a minute.
        2. The topic has subscriptions, and all of them have acknowledged the range of the index bucket.
        3. All ledgers in the range of the index bucket were trimmed.
        """
        return self._db.read(
            lambda c: find_topics_with_index_work(c, limits, after=after, limit=limit, now_us=self._db.now_us(c)),
        )

    def list_droppable_buckets(self, topic_id: TopicId) -> list[LedgerId]:
        """Return the topic's index buckets to drop, by the rule of `list_topics_with_work`."""
        return self._db.read(lambda c: find_droppable_buckets(c, topic_id, now_us=self._db.now_us(c)))

    @in_write_transaction("catalog.claim_buckets")
    def claim_bucket_list(self, connection: Connection, topic_id: TopicId, claim: Claim) -> bool:
        """Claim a topic's list of index buckets, or renew the claim. Return whether the workflow has the claim now.

        The claim is refused if another workflow has a live claim, or if the topic does not exist or is not ACTIVE.
        Claims only avoid duplicate work. List versions decide which changes are published.
        """
        try:
            share_lock_active_topic(connection, topic_id)
        except (UnknownObject, PreconditionFailed):
            return False
        return claim_bucket_list(connection, topic_id, claim, now_us=self._db.now_us(connection))

    def renew_claims(self, claim: Claim) -> int:
        renewed, page = 0, [TopicId(-1)]
        while page:
            after = page[-1]
            page = self._db.write(lambda c: renew_bucket_list_claims(c, claim, after=after, now_us=self._db.now_us(c)))  # noqa: B023 - called here
            renewed += len(page)
        return renewed

    @in_write_transaction("catalog.release_buckets")
    def release_claim(self, connection: Connection, topic_id: TopicId, workflow_id: str) -> None:
        release_bucket_list_claim(connection, topic_id, workflow_id)

    @in_write_transaction("catalog.switch_buckets")
    def switch_buckets(self, connection: Connection, switch: IndexBucketSwitch) -> bool:
        """Change the list in one transaction. Return whether the list has the change now, also after a repeated call.

        The ledgers of added index buckets become listed and CLOSED. For each removed ledger an intent is filed. The
        change is refused if the list version is not `expected`, if a removed index bucket is not listed, or if the
        topic is not ACTIVE. A refused change files intents for the ledgers of added index buckets. If index buckets
        would overlap or end after the sealed range, the method raises `InvalidInput` and changes nothing.
        """
        added_ids = [new.bucket.bucket_id for new in switch.added]
        try:
            topic = read_topic(connection, switch.topic_id, share_lock=True)
        except UnknownObject:
            for ledger_id in added_ids:
                reopen_newborn_intent(connection, ledger_id)
            return False
        list_id = lock_component_list(connection, switch.topic_id, Component.DELAYED_INDEX, {})
        row_by_id = {
            bucket_id: row
            for bucket_id in added_ids
            if (row := read_newborn_or_reopen_intent(connection, bucket_id, list_id)) is not None
        }
        current = lock_bucket_list(connection, switch.topic_id)
        if current.includes_change(
            expected=switch.expected, removed=switch.removed, added=added_ids, sealed_to=switch.sealed_to
        ):
            return True
        now = self._db.now_us(connection)
        unlisted = [bucket_id for bucket_id, row in row_by_id.items() if row.place is None]
        listed = {bucket.bucket_id for bucket in current.buckets}
        is_successor = current.version == switch.expected and listed.issuperset(switch.removed)
        if not is_successor or len(unlisted) < len(added_ids) or topic.state is not TopicState.ACTIVE:
            replace_ledgers_by_intents(
                connection, is_one_of(connection, t.ledger.c.ledger_id, unlisted), batch_id="", now_us=now
            )
            return False
        buckets = [new.bucket for new in switch.added]
        # The result is not needed. The call raises `InvalidInput` if buckets overlap.
        current.next_version(removed=switch.removed, added=buckets, sealed_to=switch.sealed_to)
        change_bucket_list(
            connection, switch.topic_id, removed=switch.removed, added=buckets, sealed_to=switch.sealed_to
        )
        for new in switch.added:
            row = row_by_id[new.bucket.bucket_id]
            publish_component_ledger(connection, row, size_bytes=new.size_bytes, sha256=new.sha256, now_us=now)
        _retire_buckets(connection, switch.removed, topic, switch.reason, now)
        return True

    @in_write_transaction("catalog.clear_buckets")
    def retire_all_buckets(self, connection: Connection, topic_id: TopicId, *, reason: str) -> int:
        """Remove all index buckets from the list and file intents for them. Return the number of removed index buckets.

        The sealed range is reset, so that the log is sealed again. The list version rises, so that the switches of
        running seals and merges are refused. A refused switch files intents for its newborn ledgers.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """
        topic = share_lock_active_topic(connection, topic_id)
        lock_component_list(connection, topic_id, Component.DELAYED_INDEX, {})
        removed = [bucket.bucket_id for bucket in lock_bucket_list(connection, topic_id).buckets]
        change_bucket_list(connection, topic_id, removed=removed, added=(), sealed_to=EARLIEST)
        _retire_buckets(connection, removed, topic, reason, self._db.now_us(connection))
        return len(removed)

    def now_ms(self) -> int:
        """Return the time of the catalog's clock, in milliseconds since 1970."""
        return self._db.read(self._db.now_us) // 1000


def _retire_buckets(
    connection: Connection, removed: Sequence[LedgerId], topic: Topic, reason: str, now_us: int
) -> None:
    for ledger_id in removed:
        retire_component_ledger(connection, ledger_id, topic, reason=reason, now_us=now_us)
