"""The fake, and what fate does to it."""

from dataclasses import replace

from logstore.log.ledgers import CopyKind, CopyState, LedgerState
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.world import Audited, Rows, World
from tests.fakes.catalog import Copy, FakeCatalog


class MemoryWorld(World):
    """The fake."""

    def __init__(self) -> None:
        """Begin with an empty catalog."""
        super().__init__()
        self._fake = FakeCatalog()

    @property
    def catalog(self) -> FakeCatalog:
        return self._fake

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        self._fake.set_state(topic_id, state)

    def intents(self) -> list[LedgerId]:
        return sorted(self._fake.pending_deletion)

    def rows(self) -> Rows:
        fake = self._fake
        return Rows(
            ledgers=sorted(fake.ledger_rows),
            copies=sorted(one for one, copies in fake.copies.items() for _ in copies),
            segments=sorted(row.ledger_id for rows in fake.segment_rows.values() for row in rows),
            versions=list(fake.versions.values()),
            runs=sorted(fake.runs),
        )

    def audited(self, act: str) -> list[Audited]:
        return [
            Audited(row.act, row.cause.actor, row.cause.reason, row.cause.workflow_id, row.detail)
            for row in self._fake.audited
            if row.act == act
        ]

    def start_ids_at(self, ledger_id: LedgerId) -> None:
        self._fake.next_ledger = ledger_id

    def age(self, ledger_id: LedgerId, *, seconds: int) -> None:
        row, us = self._fake.ledger_rows[ledger_id], seconds * 1_000_000
        closed_us = None if row.closed_us is None else row.closed_us - us
        self._fake.ledger_rows[ledger_id] = replace(row, created_us=row.created_us - us, closed_us=closed_us)

    def close_ledger(self, ledger_id: LedgerId) -> None:
        row = self._fake.ledger_rows[ledger_id]
        self._fake.ledger_rows[ledger_id] = replace(row, state=LedgerState.CLOSED, closed_us=self._fake.now_us)

    def add_copy(self, ledger_id: LedgerId, state: CopyState, **context: str) -> None:
        self._fake.copies[ledger_id][CopyKind.OFFLOADED_LEDGER] = Copy(state=state, context=context)

    def remove_copy(self, ledger_id: LedgerId, kind: CopyKind) -> None:
        del self._fake.copies[ledger_id][kind]

    def let_upload_end(self, ledger_id: LedgerId) -> None:
        self._fake.advance(seconds=86_400)

    def say_upload_ends(self, ledger_id: LedgerId, until: str) -> None:
        copies, kind = self._fake.copies[ledger_id], CopyKind.OFFLOADED_LEDGER
        copies[kind] = replace(copies[kind], context={**copies[kind].context, "until_us": until})

    def swell(self, row_id: int, *, segments: int) -> None:
        rows = self._fake.intent_rows
        rows[row_id] = replace(rows[row_id], segments=segments)

    def forge(self, row_id: int, ledger_id: LedgerId, copy: CopyKind, *, generation: int = 1, **context: str) -> None:
        rows = self._fake.intent_rows
        named = replace(rows[row_id], ledger_id=ledger_id, copy=copy)
        rows[row_id] = replace(named, generation=generation, context=context)

    def forget_intents(self) -> None:
        self._fake.intent_rows.clear()

    def left_of(self, topic_id: TopicId) -> dict[str, int]:
        fake = self._fake
        found = {
            "topic": int(topic_id in fake.topic_rows),
            "ledger_list": int(topic_id in fake.lists),
            "ledger": sum(row.topic_id == topic_id for row in fake.ledger_rows.values()),
            "cursor": sum(key[0] == topic_id for key in fake.cursor_rows),
            "producer_sequence": sum(key[0] == topic_id for key in fake.sequences),
            "schema_version": len(fake.schema_rows.get(topic_id, ())),
        }
        return {name: count for name, count in found.items() if count}

    def everything(self) -> object:
        fake = self._fake
        rows = (fake.ledger_rows, fake.lists, fake.versions, fake.intent_rows, fake.claim_until_us_by_row, fake.audited)
        return repr((rows, fake.runs))

    def lapse(self, batch_id: str) -> None:
        self._fake.runs[batch_id].until_us = 1

    def end_earlier(self, *, days: int) -> None:
        us = days * 86_400_000_000
        self._fake.ended_us = {row_id: ended_us - us for row_id, ended_us in self._fake.ended_us.items()}
        for run in self._fake.runs.values():
            run.finished_us = None if run.finished_us is None else run.finished_us - us

    def exhaust(self, row_id: int) -> None:
        self._fake.intent_rows[row_id] = replace(self._fake.intent_rows[row_id], attempts=10)

    def unlist(self, ledger_id: LedgerId) -> None:
        self._fake.lists[self._fake.ledger_rows[ledger_id].topic_id].remove(ledger_id)

    def remove_topic(self, topic_id: TopicId) -> None:
        del self._fake.topic_rows[topic_id]
