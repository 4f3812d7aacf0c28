"""Phase one in memory: which ledgers go, and the intents that stand in their place."""

from collections.abc import Sequence
from dataclasses import replace

from logstore.cursors import cursor_state as cursors
from logstore.deletion.intent_queue_rules import normalize_ids
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.deletion.retention import LedgerFacts, require_unneeded_ledgers, select_detachable_prefix, simulate_roll
from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog import (
    AuditCause,
    Claim,
    DetachedBatch,
    IntentTally,
    Topic,
    TopicState,
)
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import EndingOperation, is_durable
from tests.fakes.catalog.batches import Batches, spanning

_BEFORE_ANY = LedgerId(-1)


class FakePhaseOne(Batches):
    """The `PhaseOne` port."""

    def preview_detach(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        with self._catalog.lock:
            return self._doomed(topic_id, ledger_ids, force=force, rolled=rolled)[0]

    def detach_ledgers(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        request = (topic_id, None if ledger_ids is None else frozenset(ledger_ids), force, durable)
        with effect("catalog.detach"), self._catalog.lock:
            earlier = self.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            done = self._replace(topic_id, ledger_ids, batch_id, cause, force=force, durable=durable)
            return self.open_batch(done, claim, request, topic_id) if done.intents or ledger_ids is not None else done

    def _replace(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        batch_id: str,
        cause: AuditCause,
        *,
        force: bool = False,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """What a detach does."""
        ending = EndingOperation.RETENTION if ledger_ids is None else EndingOperation.DELETE
        gone, finished = self._doomed(topic_id, ledger_ids, force=force)
        before = set(self._catalog.intent_rows)
        intents = self.adopt(topic_id, ledger_ids, batch_id)
        if ledger_ids is None:
            intents += self._file(self._abandoned(topic_id), batch_id)
        intents += self._file(gone, batch_id)
        if ledger_ids is None:
            intents += self._catalog.offloads.take_away_abandoned(topic_id, batch_id)
        filed = self.decide(before, cause, durable=self._is_durable(ending, topic_id, durable))
        if gone:
            self._close_holes(topic_id)
            self._catalog.versions[topic_id] += 1
            self._catalog.audit("detach", cause, spanning(gone), run_id=batch_id)
        return DetachedBatch(
            batch_id=batch_id, ledgers=len(gone), intents=intents, finished=finished, filed_counts=filed
        )

    def _is_durable(self, ending: EndingOperation, topic_id: TopicId, asked: bool | None) -> bool:
        return is_durable(ending, topic_setting=self._catalog.topic(topic_id).durable_delete, command_setting=asked)

    def select_detachable_topics(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        with self._catalog.lock:
            return frozenset(one for one in topic_ids if one in self._catalog.topic_rows and self._is_promising(one))

    def _is_promising(self, topic_id: TopicId) -> bool:
        closed = [one for one in self._catalog.lists[topic_id] if self._facts(one).state is LedgerState.CLOSED]
        rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id]
        return bool(closed or self._abandoned(topic_id) or any(map(self.is_stalled, rows)))

    def detach_by_retention_into_batch(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        with effect("catalog.detach_into"), self._catalog.lock:
            found = self._counted(batch_id, topic_id)
            if found.intents:
                return found
            self._catalog.topic(topic_id)
            self._require_held(batch_id, claim)
            before = set(self._catalog.intent_rows)
            done = self._replace(topic_id, None, batch_id, cause)
            if done.intents:
                self._catalog.filed_for.setdefault(batch_id, set()).update(set(self._catalog.intent_rows) - before)
                self.open_batch(done, claim, "trim-topics")
            return replace(self._counted(batch_id, topic_id), filed_counts=done.filed_counts)

    def _require_held(self, batch_id: str, claim: Claim) -> None:
        run = self._catalog.runs.get(batch_id)
        if run and (run.finished_us is not None or run.holder != claim.workflow_id):
            raise ClaimHeld(f"batch {batch_id}: expected to be held by {claim.workflow_id}, found {run.holder}")

    def count_detached_batch(self, batch_id: str) -> DetachedBatch:
        with self._catalog.lock:
            return self._counted(batch_id)

    def _counted(self, batch_id: str, topic_id: TopicId | None = None) -> DetachedBatch:
        """Intents, and the ledgers of those that were filed for the batch and not taken up by it."""
        rows = [row for row in self._catalog.intent_rows.values() if row.batch_id == batch_id]
        mine = [row for row in rows if topic_id in {None, row.topic_id}]
        own = {row.ledger_id for row in mine if row.row_id in self._catalog.filed_for.get(batch_id, ())}
        return DetachedBatch(batch_id=batch_id, ledgers=len(own), intents=len(mine))

    def _doomed(
        self, topic_id: TopicId, asked: Sequence[LedgerId] | None, *, force: bool, rolled: LedgerId | None = None
    ) -> tuple[list[LedgerId], dict[str, int]]:
        """Listed ledgers that go, ascending, and how those ended that were asked for and are gone."""
        topic = self._catalog.topic(topic_id)
        listed = self._catalog.lists[topic_id]
        last = listed[-1] if listed and listed[-1] != rolled else _BEFORE_ANY
        marks = {row.name: row.state.mark_delete for row in self._catalog.cursors.list_cursors(topic_id)}
        if asked is None:
            now_us = self._catalog.now_us
            facts = (simulate_roll(self._facts(one), now_us) if one == rolled else self._facts(one) for one in listed)
            prefix = select_detachable_prefix(
                facts,
                mark_delete_by_subscription=marks,
                policy=topic.policy,
                total_bytes=sum(self._catalog.ledger_rows[one].size_bytes for one in listed),
                last=last,
                now_us=now_us,
            )
            return [ledger.ledger_id for ledger in prefix], {}
        wanted = normalize_ids("ledger ids", asked)
        found = [one for one in wanted if one in listed]
        finished = self._ended(topic_id, [one for one in wanted if one not in listed])
        require_unneeded_ledgers(
            topic.name, map(self._facts, found), last=last, mark_delete_by_subscription={} if force else marks
        )
        return found, finished

    def _ended(self, topic_id: TopicId, ids: list[LedgerId]) -> dict[str, int]:
        rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id and row.ledger_id in ids]
        unknown = set(ids) - {row.ledger_id for row in rows}
        if unknown:
            raise UnknownObject("ledger", expected="a ledger of the topic", found=min(unknown))
        outcomes = [(row.outcome or Outcome.RETRYING).value for row in rows if not self.is_stalled(row)]
        return {name: outcomes.count(name) for name in outcomes}

    def _facts(self, ledger_id: LedgerId) -> LedgerFacts:
        row = self._catalog.ledger_rows[ledger_id]
        tiered = self._catalog.copies[ledger_id].get(CopyKind.OFFLOADED_LEDGER)
        return LedgerFacts(
            ledger_id=ledger_id,
            state=row.state,
            entries=row.entries,
            size_bytes=row.size_bytes,
            closed_us=row.closed_us,
            is_offloading=tiered is not None
            and tiered.state is CopyState.WRITING
            and not self._catalog.offloads.is_abandoned(tiered),
        )

    def _abandoned(self, topic_id: TopicId) -> list[LedgerId]:
        """Newborn ledgers whose creator gave up or died."""
        before_us = self._catalog.until_us(-self._catalog.registration_timeout_s)
        return [
            row.ledger_id
            for row in self._catalog.ledger_rows.values()
            if (row.topic_id, row.state) == (topic_id, LedgerState.CREATING) and row.created_us < before_us
        ]

    def _file(self, ledgers: list[LedgerId], batch_id: str) -> int:
        return sum(self._catalog.file_intents(ledger_id, batch_id) for ledger_id in ledgers)

    def adopt(
        self, topic_id: TopicId, asked: Sequence[LedgerId] | None, batch_id: str, *, copy: CopyKind | None = None
    ) -> int:
        """Take up intents that nobody works on."""
        mine = [
            row
            for row in self._catalog.intent_rows.values()
            if row.topic_id == topic_id
            and self.is_stalled(row)
            and (asked is None or row.ledger_id in asked)
            and copy in {None, row.copy}
        ]
        for row in mine:
            self._catalog.intent_rows[row.row_id] = replace(row, batch_id=batch_id, handed_to=None)
        return len(mine)

    def _close_holes(self, topic_id: TopicId) -> None:
        spans = self._catalog.spans(topic_id)
        for row in self._catalog.cursors.list_cursors(topic_id):
            self._catalog.cursors._store(topic_id, row.name, cursors.advance_mark_delete(row.state, spans))

    def begin_topic_deletion(self, topic_id: TopicId, name: str, cause: AuditCause) -> int:
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

    def detach_whole_topic(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause, durable: bool | None = None
    ) -> DetachedBatch:
        request = f"all of topic {topic_id}"
        with effect("catalog.detach_topic"), self._catalog.lock:
            earlier, topic = self.earlier(batch_id, request), self._catalog.topic_rows.get(topic_id)
            if earlier:
                return earlier.detached
            if topic is None:
                return DetachedBatch(batch_id=batch_id, ledgers=0, intents=0)
            _require_deleting(topic)
            gone = self._ledgers(topic_id)
            intents, before = self.adopt(topic_id, None, batch_id), set(self._catalog.intent_rows)
            for ledger_id in gone:
                self._catalog.give_copy(ledger_id)
                intents += self._catalog.file_intents(ledger_id, batch_id)
            self.decide(before, cause, durable=self._is_durable(EndingOperation.DELETE, topic_id, durable))
            self._forget_names(topic_id)
            done = DetachedBatch(batch_id=batch_id, ledgers=len(gone), intents=intents)
            if gone:
                self._catalog.audit("detach", cause, spanning(gone), run_id=batch_id)
            return self.open_batch(done, claim, request, topic_id) if intents else done

    def remove_topic(self, topic_id: TopicId, cause: AuditCause, *, durable: bool | None = None) -> bool:
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

    def tally_topic_intents(self, topic_id: TopicId, *, since_us: int) -> IntentTally:
        with self._catalog.lock:
            rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id]
            return self.counted(row for row in rows if self._counts(row, since_us))

    def _counts(self, row: DeletionIntent, since_us: int) -> bool:
        return row.state is not DeletionState.DELETED or self._catalog.ended_us[row.row_id] >= since_us

    def _ledgers(self, topic_id: TopicId) -> list[LedgerId]:
        return sorted(row.ledger_id for row in self._catalog.ledger_rows.values() if row.topic_id == topic_id)

    def _forget_names(self, topic_id: TopicId) -> dict[str, int]:
        """Remove what names ledgers of the topic, and count it."""
        cursors = [key for key in self._catalog.cursor_rows if key[0] == topic_id]
        for key in cursors:
            del self._catalog.cursor_rows[key]
        removed = {"cursor": len(cursors), "schema_version": len(self._catalog.schema_rows.pop(topic_id, []))}
        return removed | {"delayed_bucket": 0}


def _require_deleting(topic: Topic) -> None:
    if topic.state is not TopicState.DELETING:
        raise PreconditionFailed(f"topic {topic.name}: expected state DELETING, found {topic.state.value}")
