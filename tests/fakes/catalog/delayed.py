"""Lists of buckets in memory."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logstore.delayed.buckets import NOWHERE, Bucket, BucketLimits, BucketList
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog import BucketSwitch, Claim, DelayedCounts, Ledger, TopicState, Unsealed
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog

_PASSED_MS = 60_000


@dataclass(slots=True)
class _Row:
    """A topic's list, how many delayed entries lie behind it, and who works on it."""

    found: BucketList = field(default_factory=BucketList)
    unsealed: int = 0
    changed_us: int | None = None
    holder: str | None = None
    until_us: int = 0


class FakeDelayedIndex:
    """The `DelayedIndex` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog
        self._rows: dict[TopicId, _Row] = {}

    def listed(self, topic_id: TopicId) -> BucketList:
        with self._catalog.lock:
            return self._rows[topic_id].found if topic_id in self._rows else BucketList()

    def unsealed(self, topic_id: TopicId) -> Unsealed:
        with self._catalog.lock:
            row, rows = self._rows.get(topic_id, _Row()), self._data(topic_id)
            return Unsealed(
                entries=self._behind(topic_id, row.found.sealed_to),
                ledgers=sum(one.entries > 0 and one.span.last > row.found.sealed_to for one in rows),
                changed_us=row.changed_us,
            )

    def counts(self) -> DelayedCounts:
        with self._catalog.lock:
            buckets = [bucket for row in self._rows.values() for bucket in row.found.buckets]
            return DelayedCounts(
                buckets=len(buckets),
                messages=sum(one.messages for one in buckets),
                unsealed=sum(row.unsealed for row in self._rows.values()),
            )

    def holder(self, topic_id: TopicId) -> str | None:
        with self._catalog.lock:
            row = self._rows.get(topic_id, _Row())
            return row.holder if row.until_us > self._catalog.now_us else None

    def due(self, limits: BucketLimits, *, after: TopicId, limit: int) -> list[TopicId]:
        with self._catalog.lock:
            return [one for one in sorted(self._rows) if one > after and self._is_due(one, limits)][:limit]

    def _is_due(self, topic_id: TopicId, limits: BucketLimits) -> bool:
        row, now_us, topic = self._rows[topic_id], self._catalog.now_us, self._catalog.topic_rows.get(topic_id)
        if (row.holder and row.until_us > now_us) or topic is None or topic.state is not TopicState.ACTIVE:
            return False
        idle = row.changed_us is not None and row.changed_us <= now_us - round(limits.idle_s * 1_000_000)
        long_enough = idle or self.unsealed(topic_id).ledgers >= limits.ledgers
        to_seal = row.unsealed >= limits.messages or (row.unsealed > 0 and long_enough)
        return to_seal or len(row.found.buckets) > limits.buckets or bool(self.passed(topic_id))

    def passed(self, topic_id: TopicId) -> list[LedgerId]:
        with self._catalog.lock:
            return [one.bucket_id for one in self.listed(topic_id).buckets if self._is_passed(topic_id, one)]

    def _is_passed(self, topic_id: TopicId, bucket: Bucket) -> bool:
        marks = [one.state.mark_delete for key, one in self._catalog.cursor_rows.items() if key[0] == topic_id]
        within = range(bucket.first.ledger_id, bucket.last.ledger_id + 1)
        return (
            bucket.last_ms <= self.now_ms() - _PASSED_MS
            or (bool(marks) and min(marks) >= bucket.last)
            or not any(one.ledger_id in within for one in self._data(topic_id))
        )

    def claim(self, topic_id: TopicId, claim: Claim) -> bool:
        with effect("catalog.claim_buckets"), self._catalog.lock:
            topic = self._catalog.topic_rows.get(topic_id)
            if topic is None or topic.state is not TopicState.ACTIVE:
                return False
            row = self._row(topic_id)
            if row.holder not in {None, claim.workflow_id} and row.until_us > self._catalog.now_us:
                return False
            row.holder, row.until_us = claim.workflow_id, self._catalog.until_us(claim.ttl_s)
            return True

    def renew(self, claim: Claim) -> int:
        with self._catalog.lock:
            mine = [row for row in self._rows.values() if row.holder == claim.workflow_id]
            for row in mine:
                row.until_us = self._catalog.until_us(claim.ttl_s)
            return len(mine)

    def release(self, topic_id: TopicId, workflow_id: str) -> None:
        with effect("catalog.release_buckets"), self._catalog.lock:
            if topic_id in self._rows and self._rows[topic_id].holder == workflow_id:
                self._rows[topic_id].holder = None

    def switch(self, switch: BucketSwitch) -> bool:
        with effect("catalog.switch_buckets"), self._catalog.lock:
            newborn = [self._catalog.components._born(one.bucket.bucket_id) for one in switch.born]
            topic = self._catalog.topic_rows.get(switch.topic_id)
            if topic is None:
                return False
            row = self._row(switch.topic_id)
            listed = {one.bucket_id for one in row.found.buckets}
            wanted = [one.bucket.bucket_id for one in switch.born]
            if row.found.reflects(expected=switch.expected, gone=switch.gone, born=wanted, sealed_to=switch.sealed_to):
                return True
            unlisted = [one for one in newborn if one is not None and one.state is LedgerState.CREATING]
            follows = row.found.version == switch.expected and set(switch.gone) <= listed
            if not follows or len(unlisted) < len(switch.born) or topic.state is not TopicState.ACTIVE:
                for one in unlisted:
                    self._catalog.file_intents(one.ledger_id, "")
                return False
            self._change(switch.topic_id, switch.gone, [one.bucket for one in switch.born], switch.sealed_to)
            for made, ledger in zip(switch.born, unlisted, strict=True):
                self._catalog.components._publish(ledger, made.size_bytes, made.sha256)
            for ledger_id in switch.gone:
                self._catalog.components._retire(ledger_id, switch.reason)
            return True

    def clear(self, topic_id: TopicId, *, reason: str) -> int:
        with effect("catalog.clear_buckets"), self._catalog.lock:
            self._catalog.topic(topic_id, active=True)
            gone = [one.bucket_id for one in self._row(topic_id).found.buckets]
            self._change(topic_id, gone, [], NOWHERE)
            for ledger_id in gone:
                self._catalog.components._retire(ledger_id, reason)
            return len(gone)

    def now_ms(self) -> int:
        return self._catalog.now_us // 1000

    def count(self, topic_id: TopicId, entries: int) -> None:
        """Entries with a delivery time were registered."""
        row = self._row(topic_id)
        row.unsealed += entries
        row.changed_us = self._catalog.now_us

    def move_back(self, topic_id: TopicId, *, us: int) -> None:
        """Let the newest delayed entry have been registered so much earlier."""
        row = self._rows[topic_id]
        row.changed_us = None if row.changed_us is None else row.changed_us - us

    def recount(self, topic_id: TopicId) -> None:
        """Ledgers have left the topic."""
        if topic_id in self._rows:
            self._rows[topic_id].unsealed = self._behind(topic_id, self._rows[topic_id].found.sealed_to)

    def forget(self, topic_id: TopicId) -> int:
        """Remove the list of a topic that is being deleted, and say how many buckets it had."""
        return len(self._rows.pop(topic_id, _Row()).found.buckets)

    def is_known(self, topic_id: TopicId) -> bool:
        """There is a list, perhaps an empty one."""
        return topic_id in self._rows

    def _row(self, topic_id: TopicId) -> _Row:
        return self._rows.setdefault(topic_id, _Row())

    def _change(
        self, topic_id: TopicId, gone: Collection[LedgerId], born: Collection[Bucket], sealed_to: Position | None
    ) -> None:
        row = self._row(topic_id)
        row.found = row.found.changed(gone=gone, born=born, sealed_to=sealed_to)
        if sealed_to is not None:
            row.unsealed = self._behind(topic_id, sealed_to)

    def _data(self, topic_id: TopicId) -> list[Ledger]:
        return [self._catalog.ledger_rows[one] for one in self._catalog.lists.get(topic_id, [])]

    def _behind(self, topic_id: TopicId, position: Position) -> int:
        rows = [one for ledger in self._data(topic_id) for one in self._catalog.segment_rows.get(ledger.ledger_id, [])]
        return sum(one.delayed or 0 for one in rows if Position(one.ledger_id, one.first_entry) > position)
