"""A topic's deletion in memory."""

from collections import Counter
from typing import TYPE_CHECKING

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.ports.catalog import Cause, Claim, Detached, Tally, Topic, TopicContents, TopicState
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.phase_one import Run

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


class FakeTopicDeletions:
    """The `TopicDeletions` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def contents(self, topic_id: TopicId) -> TopicContents:
        """See the port."""
        with self._catalog.lock:
            self._catalog.topic(topic_id)
            rows = [self._catalog.ledger_rows[one] for one in self._ledgers(topic_id)]
            copies: dict[str, Counter[str]] = {}
            for row in rows:
                kinds = Counter(kind.value for kind in self._catalog.copies[row.ledger_id])
                copies[row.component.value] = copies.get(row.component.value, Counter()) + kinds
            return TopicContents(
                ledgers=Counter(row.component.value for row in rows),
                copies=copies,
                subscriptions=len(self._catalog.cursors.all(topic_id)),
            )

    def begin(self, topic_id: TopicId, name: str, cause: Cause) -> int:
        """See the port."""
        with effect("catalog.begin_topic_deletion"), self._catalog.lock:
            topic, begun_us = self._catalog.topic_rows.get(topic_id), self._catalog.begun_us.get(topic_id)
            if topic is None and begun_us is None:
                raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
            if topic and topic.name != name:
                raise PreconditionFailed(f"topic {topic_id}: expected the name {name}, found {topic.name}")
            if begun_us is None:
                begun_us = self._catalog.begun_us[topic_id] = self._catalog.now_us
                self._catalog.set_state(topic_id, TopicState.DELETING)
                self._catalog.audit("delete-topic", cause, {})
            return begun_us

    def detach_all(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """See the port."""
        request, deletions = f"all of topic {topic_id}", self._catalog.deletions
        with effect("catalog.detach_topic"), self._catalog.lock:
            earlier, topic = deletions.earlier(batch_id, request), self._catalog.topic_rows.get(topic_id)
            if earlier:
                return earlier.detached
            if topic is None:
                return Detached(batch_id=batch_id, ledgers=0, intents=0)
            _require_deleting(topic)
            gone = self._ledgers(topic_id)
            intents, before = deletions.adopt(topic_id, None, batch_id), set(self._catalog.intent_rows)
            for ledger_id in gone:
                self._catalog.give_copy(ledger_id)
                intents += self._catalog.file_intents(ledger_id, batch_id)
            deletions.decide(before, cause)
            self._forget_names(topic_id)
            done = Detached(batch_id=batch_id, ledgers=len(gone), intents=intents)
            if gone:
                detail = {"ledgers": len(gone), "first": gone[0], "last": gone[-1], "sample": gone[:20]}
                self._catalog.audit("detach", cause, detail, run_id=batch_id)
            if intents:
                until_us = self._catalog.until_us(claim.ttl_s)
                self._catalog.runs[batch_id] = Run(
                    topic_id=topic_id,
                    request=request,
                    detached=done,
                    holder=claim.workflow_id,
                    until_us=until_us,
                    holder_run=claim.run_id,
                )
            return done

    def remove(self, topic_id: TopicId, cause: Cause) -> bool:
        """See the port."""
        with effect("catalog.remove_topic"), self._catalog.lock:
            topic = self._catalog.topic_rows.get(topic_id)
            if topic is None:
                return True
            _require_deleting(topic)
            if self._ledgers(topic_id):
                return False
            removed = self._forget_names(topic_id)
            for producer in [key for key in self._catalog.sequences if key[0] == topic_id]:
                del self._catalog.sequences[producer]
            del self._catalog.lists[topic_id], self._catalog.topic_rows[topic_id]
            self._catalog.audit("remove-topic", cause, removed)
            return True

    def tally(self, topic_id: TopicId, *, since_us: int) -> Tally:
        """See the port."""
        with self._catalog.lock:
            rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id]
            counted = [row for row in rows if self._counts(row, since_us)]
            ends = [self._catalog.confirmed.get(row.row_id, (0, 0)) for row in counted]
        return Tally(
            outcomes=Counter((row.outcome or Outcome.RETRYING).value for row in counted),
            objects=sum(objects for objects, _ in ends),
            size_bytes=sum(size for _, size in ends),
        )

    def _counts(self, row: DeletionIntent, since_us: int) -> bool:
        return row.state is not DeletionState.DELETED or self._catalog.ended_us[row.row_id] >= since_us

    def _ledgers(self, topic_id: TopicId) -> list[LedgerId]:
        return sorted(row.ledger_id for row in self._catalog.ledger_rows.values() if row.topic_id == topic_id)

    def _forget_names(self, topic_id: TopicId) -> dict[str, int]:
        """Remove what names ledgers of the topic, and count it."""
        cursors = [key for key in self._catalog.cursor_rows if key[0] == topic_id]
        for key in cursors:
            del self._catalog.cursor_rows[key]
        return {"cursor": len(cursors), "schema_version": len(self._catalog.schema_rows.pop(topic_id, []))}


def _require_deleting(topic: Topic) -> None:
    if topic.state is not TopicState.DELETING:
        raise PreconditionFailed(f"topic {topic.name}: expected state DELETING, found {topic.state.value}")
