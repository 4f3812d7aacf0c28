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
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch, IntentTally
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import EndingOperation, is_durable
from tests.fakes.catalog.batch_runs import FakeBatchRuns, audit_detail_of_ledgers

_NO_LEDGER = LedgerId(-1)


class FakePhaseOne(FakeBatchRuns):
    """The `PhaseOne` port."""

    def preview_detach(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        with self._catalog.lock:
            return self._select_ledgers_to_detach(topic_id, requested_ids, force=force, rolled=rolled)[0]

    def detach_ledgers(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        request = (topic_id, None if requested_ids is None else frozenset(requested_ids), force, durable)
        with effect("catalog.detach"), self._catalog.lock:
            earlier = self.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            detached = self._detach_and_file(topic_id, requested_ids, batch_id, cause, force=force, durable=durable)
            return (
                self.open_batch(detached, claim, request, topic_id)
                if detached.intents or requested_ids is not None
                else detached
            )

    def _detach_and_file(
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
        detached_ids, finished = self._select_ledgers_to_detach(topic_id, ledger_ids, force=force)
        earlier_row_ids = set(self._catalog.intent_rows)
        intents = self.adopt(topic_id, ledger_ids, batch_id)
        if ledger_ids is None:
            intents += self._file_ledgers(self._list_abandoned_newborns(topic_id), batch_id)
        intents += self._file_ledgers(detached_ids, batch_id)
        if ledger_ids is None:
            intents += self._catalog.offloads.file_abandoned_copies(topic_id, batch_id)
        filed = self.decide(earlier_row_ids, cause, durable=self._is_durable(ending, topic_id, durable))
        if detached_ids:
            self._advance_mark_deletes(topic_id)
            self._catalog.versions[topic_id] += 1
            self._catalog.audit("detach", cause, audit_detail_of_ledgers(detached_ids), run_id=batch_id)
        return DetachedBatch(
            batch_id=batch_id, ledgers=len(detached_ids), intents=intents, finished=finished, filed_counts=filed
        )

    def _is_durable(self, ending: EndingOperation, topic_id: TopicId, command_setting: bool | None) -> bool:
        return is_durable(
            ending, topic_setting=self._catalog.topic(topic_id).durable_delete, command_setting=command_setting
        )

    def select_detachable_topics(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        with self._catalog.lock:
            return frozenset(
                topic_id
                for topic_id in topic_ids
                if topic_id in self._catalog.topic_rows and self._has_work_for_detach(topic_id)
            )

    def _has_work_for_detach(self, topic_id: TopicId) -> bool:
        closed = [
            ledger_id
            for ledger_id in self._catalog.lists[topic_id]
            if self._ledger_facts(ledger_id).state is LedgerState.CLOSED
        ]
        rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id]
        return bool(closed or self._list_abandoned_newborns(topic_id) or any(map(self.is_stalled, rows)))

    def detach_by_retention_into_batch(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        with effect("catalog.detach_into"), self._catalog.lock:
            earlier_count = self._count_batch_intents(batch_id, topic_id)
            if earlier_count.intents:
                return earlier_count
            self._catalog.topic(topic_id)
            self._require_batch_held_by(batch_id, claim)
            earlier_row_ids = set(self._catalog.intent_rows)
            detached = self._detach_and_file(topic_id, None, batch_id, cause)
            if detached.intents:
                self._catalog.filed_rows_by_batch.setdefault(batch_id, set()).update(
                    set(self._catalog.intent_rows) - earlier_row_ids
                )
                self.open_batch(detached, claim, "trim-topics")
            return replace(self._count_batch_intents(batch_id, topic_id), filed_counts=detached.filed_counts)

    def _require_batch_held_by(self, batch_id: str, claim: Claim) -> None:
        run = self._catalog.runs.get(batch_id)
        if run and (run.finished_us is not None or run.holder != claim.workflow_id):
            raise ClaimHeld(f"batch {batch_id}: expected to be held by {claim.workflow_id}, found {run.holder}")

    def count_detached_batch(self, batch_id: str) -> DetachedBatch:
        with self._catalog.lock:
            return self._count_batch_intents(batch_id)

    def _count_batch_intents(self, batch_id: str, topic_id: TopicId | None = None) -> DetachedBatch:
        """Intents, and the ledgers of those that were filed for the batch and not taken up by it."""
        rows = [row for row in self._catalog.intent_rows.values() if row.batch_id == batch_id]
        topic_rows = [row for row in rows if topic_id in {None, row.topic_id}]
        filed_ledgers = {
            row.ledger_id for row in topic_rows if row.row_id in self._catalog.filed_rows_by_batch.get(batch_id, ())
        }
        return DetachedBatch(batch_id=batch_id, ledgers=len(filed_ledgers), intents=len(topic_rows))

    def _select_ledgers_to_detach(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool, rolled: LedgerId | None = None
    ) -> tuple[list[LedgerId], dict[str, int]]:
        """Listed ledgers that go, ascending, and how those ended that were asked for and are gone."""
        topic = self._catalog.topic(topic_id)
        listed = self._catalog.lists[topic_id]
        last_ledger = listed[-1] if listed and listed[-1] != rolled else _NO_LEDGER
        marks = {row.name: row.state.mark_delete for row in self._catalog.cursors.list_cursors(topic_id)}
        if ledger_ids is None:
            now_us = self._catalog.now_us
            facts = (
                simulate_roll(self._ledger_facts(ledger_id), now_us)
                if ledger_id == rolled
                else self._ledger_facts(ledger_id)
                for ledger_id in listed
            )
            prefix = select_detachable_prefix(
                facts,
                mark_delete_by_subscription=marks,
                policy=topic.policy,
                total_bytes=sum(self._catalog.ledger_rows[ledger_id].size_bytes for ledger_id in listed),
                last=last_ledger,
                now_us=now_us,
            )
            return [ledger.ledger_id for ledger in prefix], {}
        requested_ids = normalize_ids("ledger ids", ledger_ids)
        listed_ids = [ledger_id for ledger_id in requested_ids if ledger_id in listed]
        outcome_counts = self._count_outcomes_of_detached(
            topic_id, [ledger_id for ledger_id in requested_ids if ledger_id not in listed]
        )
        require_unneeded_ledgers(
            topic.name,
            map(self._ledger_facts, listed_ids),
            last=last_ledger,
            mark_delete_by_subscription={} if force else marks,
        )
        return listed_ids, outcome_counts

    def _count_outcomes_of_detached(self, topic_id: TopicId, ids: list[LedgerId]) -> dict[str, int]:
        rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id and row.ledger_id in ids]
        unknown = set(ids) - {row.ledger_id for row in rows}
        if unknown:
            raise UnknownObject("ledger", expected="a ledger of the topic", found=min(unknown))
        outcomes = [(row.outcome or Outcome.RETRYING).value for row in rows if not self.is_stalled(row)]
        return {name: outcomes.count(name) for name in outcomes}

    def _ledger_facts(self, ledger_id: LedgerId) -> LedgerFacts:
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

    def _list_abandoned_newborns(self, topic_id: TopicId) -> list[LedgerId]:
        """Newborn ledgers whose creator gave up or died."""
        before_us = self._catalog.until_us(-self._catalog.registration_timeout_s)
        return [
            row.ledger_id
            for row in self._catalog.ledger_rows.values()
            if (row.topic_id, row.state) == (topic_id, LedgerState.CREATING) and row.created_us < before_us
        ]

    def _file_ledgers(self, ledgers: list[LedgerId], batch_id: str) -> int:
        return sum(self._catalog.replace_ledger_by_intents(ledger_id, batch_id) for ledger_id in ledgers)

    def adopt(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, batch_id: str, *, copy: CopyKind | None = None
    ) -> int:
        """Take up intents that nobody works on."""
        stalled_rows = [
            row
            for row in self._catalog.intent_rows.values()
            if row.topic_id == topic_id
            and self.is_stalled(row)
            and (ledger_ids is None or row.ledger_id in ledger_ids)
            and copy in {None, row.copy}
        ]
        for row in stalled_rows:
            self._catalog.intent_rows[row.row_id] = replace(row, batch_id=batch_id, handed_to=None)
        return len(stalled_rows)

    def _advance_mark_deletes(self, topic_id: TopicId) -> None:
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
            detached_ids = self._list_all_ledgers(topic_id)
            intents, earlier_row_ids = self.adopt(topic_id, None, batch_id), set(self._catalog.intent_rows)
            for ledger_id in detached_ids:
                self._catalog.restore_primary_copy(ledger_id)
                intents += self._catalog.replace_ledger_by_intents(ledger_id, batch_id)
            self.decide(earlier_row_ids, cause, durable=self._is_durable(EndingOperation.DELETE, topic_id, durable))
            self._remove_cursors_and_schemas(topic_id)
            detached = DetachedBatch(batch_id=batch_id, ledgers=len(detached_ids), intents=intents)
            if detached_ids:
                self._catalog.audit("detach", cause, audit_detail_of_ledgers(detached_ids), run_id=batch_id)
            return self.open_batch(detached, claim, request, topic_id) if intents else detached

    def remove_topic(self, topic_id: TopicId, cause: AuditCause, *, durable: bool | None = None) -> bool:
        with effect("catalog.remove_topic"), self._catalog.lock:
            topic = self._catalog.topic_rows.get(topic_id)
            if topic is None:
                return True
            _require_deleting(topic)
            if self._list_all_ledgers(topic_id):
                return False
            removed = self._remove_cursors_and_schemas(topic_id)
            for producer in [key for key in self._catalog.sequences if key[0] == topic_id]:
                del self._catalog.sequences[producer]
            del self._catalog.lists[topic_id], self._catalog.topic_rows[topic_id]
            self._catalog.audit("remove-topic", cause, removed)
            return True

    def tally_topic_intents(self, topic_id: TopicId, *, since_us: int) -> IntentTally:
        with self._catalog.lock:
            rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id]
            return self.counted(row for row in rows if self._counts_since(row, since_us))

    def _counts_since(self, row: DeletionIntent, since_us: int) -> bool:
        return row.state is not DeletionState.DELETED or self._catalog.ended_us[row.row_id] >= since_us

    def _list_all_ledgers(self, topic_id: TopicId) -> list[LedgerId]:
        return sorted(row.ledger_id for row in self._catalog.ledger_rows.values() if row.topic_id == topic_id)

    def _remove_cursors_and_schemas(self, topic_id: TopicId) -> dict[str, int]:
        """Remove what names ledgers of the topic, and count it."""
        cursors = [key for key in self._catalog.cursor_rows if key[0] == topic_id]
        for key in cursors:
            del self._catalog.cursor_rows[key]
        removed = {"cursor": len(cursors), "schema_version": len(self._catalog.schema_rows.pop(topic_id, []))}
        return removed | {"delayed_bucket": 0}


def _require_deleting(topic: Topic) -> None:
    if topic.state is not TopicState.DELETING:
        raise PreconditionFailed(f"topic {topic.name}: expected state DELETING, found {topic.state.value}")
