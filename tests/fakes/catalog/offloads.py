"""Tiered copies in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import CorruptData, Unsupported
from logstore.failpoints import effect
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState, require_named_topic
from logstore.offload.tiered_copy import (
    CopyLengths,
    UploadStart,
    context_after_upload,
    decide_upload_start,
    upload_requests_end_us,
)
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.log import TopicState
from logstore.ports.catalog.offload import OffloadStart, OffloadStartOutcome, PublishedTieredCopy, ReadableCopies
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.batch_runs import audit_detail_of_ledgers
from tests.fakes.catalog.unsupported_ports import UnsupportedPort

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import Copy, FakeCatalog

_TIERED = CopyKind.OFFLOADED_LEDGER


class FakeOffloads(UnsupportedPort):
    """The `Offloads` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        super().__init__("such calls of offloads")
        self._catalog = catalog

    def begin_offload(
        self,
        ledger_id: LedgerId,
        *,
        uuid: str,
        driver_metadata: Mapping[str, str],
        timeout_s: float,
        topic: str | None = None,
    ) -> OffloadStart:
        with effect("catalog.begin_offload"), self._catalog.lock:
            ledger_row = self._catalog.ledger_rows.get(ledger_id)
            if (
                ledger_row
                and ledger_row.component is not Component.MANAGED_LEDGER
                and ledger_row.state is LedgerState.CLOSED
            ):
                raise Unsupported(
                    f"ledger {ledger_id}: expected a ledger of messages, found one of {ledger_row.component}"
                )
            if not self._is_listed(ledger_id):
                return OffloadStart(answer=OffloadStartOutcome.GONE)
            row, statement = self._catalog.ledger_rows[ledger_id], self._catalog.statements[ledger_id]
            require_named_topic(ledger_id, self._catalog.topic(row.topic_id, must_be_active=True).name, topic)
            tiered, primary = (self._catalog.copies[ledger_id].get(kind) for kind in (_TIERED, CopyKind.LEDGER))
            found_tiered = (tiered.state.value, tiered.context) if tiered else None
            found_primary = primary.state.value if primary else None
            upload_start = decide_upload_start(
                ledger_id, uuid, tiered=found_tiered, ledger_state=row.state, read_primary_state=lambda: found_primary
            )
            if upload_start is UploadStart.ANEW or not tiered:
                tiered = self._add_tiered_copy(ledger_id, {**driver_metadata, "uuid": uuid}, timeout_s)
            answer = OffloadStartOutcome.ALREADY if upload_start is UploadStart.ALREADY else OffloadStartOutcome.BEGUN
            return OffloadStart(answer=answer, statement=statement, entries=row.entries, context=tiered.context)

    def _add_tiered_copy(self, ledger_id: LedgerId, driver_metadata: dict[str, str], timeout_s: float) -> "Copy":
        row, copies = self._catalog.ledger_rows[ledger_id], self._catalog.copies[ledger_id]
        if _TIERED in copies:
            self._catalog.replace_copy_by_intent(ledger_id, _TIERED, "")
        tiered_copy = replace(
            copies[CopyKind.LEDGER],
            state=CopyState.WRITING,
            context=driver_metadata | {"until_us": str(self._catalog.until_us(timeout_s))},
        )
        self._catalog.copies[ledger_id][_TIERED] = tiered_copy
        self._catalog.versions[row.topic_id] += 1
        return tiered_copy

    def publish_tiered_copy(self, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None) -> bool:
        with effect("catalog.publish_offload"), self._catalog.lock:
            copy = self._find_tiered_copy(ledger_id, uuid)
            if copy and copy.state is CopyState.LIVE:
                return True
            row = self._catalog.ledger_rows.get(ledger_id)
            if copy is None or row is None or self._catalog.topic(row.topic_id).state is not TopicState.ACTIVE:
                self._end_upload(ledger_id, uuid, None)
                return False
            context = context_after_upload(copy.context, None) | (lengths.to_context() if lengths else {})
            live = replace(copy, state=CopyState.LIVE, context=context)
            self._catalog.copies[ledger_id][_TIERED] = live
            self._catalog.versions[row.topic_id] += 1
            return True

    def abandon_offload(self, ledger_id: LedgerId, uuid: str) -> None:
        with effect("catalog.abandon_offload"), self._catalog.lock:
            self._end_upload(ledger_id, uuid, self._catalog.now_us)

    def find_readable_copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        with self._catalog.lock:
            if not self._is_listed(ledger_id):
                return None
            copies = self._catalog.copies[ledger_id]
            live = {kind: copy.context for kind, copy in copies.items() if copy.state is CopyState.LIVE}
            return ReadableCopies(primary=CopyKind.LEDGER in live, tiered=live.get(_TIERED))

    def list_offload_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        with self._catalog.lock:
            listed = [ledger_id for ledger_id in self._select_closed_ledgers(topic_id, ledger_ids) if ledger_id > after]
            return [
                ledger_id
                for ledger_id in listed
                if self._catalog.ledger_rows[ledger_id].entries and not self._has_live_primary_and_tiered(ledger_id)[1]
            ][:limit]

    def list_removable_primaries(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[PublishedTieredCopy]:
        with self._catalog.lock:
            removable_ids = [
                ledger_id
                for ledger_id in self._select_closed_ledgers(topic_id, ledger_ids)
                if ledger_id > after and all(self._has_live_primary_and_tiered(ledger_id))
            ]
            return [
                PublishedTieredCopy(
                    statement=self._catalog.statements[ledger_id],
                    entries=self._catalog.ledger_rows[ledger_id].entries,
                    context=self._catalog.copies[ledger_id][_TIERED].context,
                )
                for ledger_id in removable_ids[:limit]
            ]

    def detach_primary_copies(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        proved_uuid_by_ledger: Mapping[LedgerId, str],
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
    ) -> DetachedBatch:
        request = ("primaries", topic_id, None if ledger_ids is None else frozenset(ledger_ids))
        with effect("catalog.remove_primaries"), self._catalog.lock:
            earlier = self._catalog.deletions.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            detachable_ids = [
                listed_id
                for listed_id in self._select_closed_ledgers(topic_id, ledger_ids)
                if all(self._has_live_primary_and_tiered(listed_id))
                and self._catalog.copies[listed_id][_TIERED].context.get("uuid")
                == proved_uuid_by_ledger.get(listed_id, "")
            ]
            earlier_row_ids = set(self._catalog.intent_rows)
            taken_over_count = self._catalog.phase_one.adopt(topic_id, ledger_ids, batch_id, copy=CopyKind.LEDGER)
            for ledger_id in detachable_ids:
                self._catalog.replace_copy_by_intent(ledger_id, CopyKind.LEDGER, batch_id)
            filed = self._catalog.phase_one.decide(earlier_row_ids, cause)
            detached = DetachedBatch(
                batch_id=batch_id,
                ledgers=len(detachable_ids),
                intents=len(detachable_ids) + taken_over_count,
                filed_counts=filed,
            )
            if detachable_ids:
                self._catalog.versions[topic_id] += 1
                self._catalog.audit("remove-primaries", cause, audit_detail_of_ledgers(detachable_ids))
            return (
                self._catalog.phase_one.open_batch(detached, claim, request, topic_id) if detached.intents else detached
            )

    def now_us(self) -> int:
        return self._catalog.now_us

    def is_abandoned(self, copy: "Copy") -> bool:
        """Whether nobody will publish the copy."""
        try:
            ends_us = upload_requests_end_us(copy.context)
        except CorruptData:
            return False
        return copy.state is CopyState.WRITING and ends_us is not None and ends_us <= self._catalog.now_us

    def file_abandoned_copies(self, topic_id: TopicId, batch_id: str) -> int:
        """File intents for abandoned copies, and count them."""
        abandoned_ids = [
            listed_id
            for listed_id in self._catalog.lists[topic_id]
            if (copy := self._catalog.copies[listed_id].get(_TIERED)) and self.is_abandoned(copy)
        ]
        for ledger_id in abandoned_ids:
            self._catalog.replace_copy_by_intent(ledger_id, _TIERED, batch_id)
        self._catalog.versions[topic_id] += bool(abandoned_ids)
        return len(abandoned_ids)

    def _is_listed(self, ledger_id: LedgerId) -> bool:
        return any(ledger_id in listed for listed in self._catalog.lists.values())

    def _select_closed_ledgers(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None) -> list[LedgerId]:
        """Closed ledgers of the list, of those asked for."""
        self._catalog.topic(topic_id)
        listed_rows = [self._catalog.ledger_rows[ledger_id] for ledger_id in self._catalog.lists[topic_id]]
        ids = [row.ledger_id for row in listed_rows if row.state is LedgerState.CLOSED]
        return [ledger_id for ledger_id in ids if ledger_ids is None or ledger_id in ledger_ids]

    def _has_live_primary_and_tiered(self, ledger_id: LedgerId) -> tuple[bool, bool]:
        copies = self._catalog.copies[ledger_id]
        live = {kind for kind, copy in copies.items() if copy.state is CopyState.LIVE}
        return CopyKind.LEDGER in live, _TIERED in live

    def _find_tiered_copy(self, ledger_id: LedgerId, uuid: str) -> "Copy | None":
        copy = self._catalog.copies.get(ledger_id, {}).get(_TIERED)
        return copy if copy and copy.context.get("uuid") == uuid else None

    def _end_upload(self, ledger_id: LedgerId, uuid: str, until_us: int | None) -> None:
        copy = self._find_tiered_copy(ledger_id, uuid)
        if copy is None:
            self._end_upload_in_intents(ledger_id, uuid, until_us)
        elif copy.state is CopyState.WRITING:
            self._catalog.copies[ledger_id][_TIERED] = replace(
                copy, context=context_after_upload(copy.context, until_us)
            )
            self._catalog.replace_copy_by_intent(ledger_id, _TIERED, "")
            self._catalog.versions[self._catalog.ledger_rows[ledger_id].topic_id] += 1

    def _end_upload_in_intents(self, ledger_id: LedgerId, uuid: str, until_us: int | None) -> None:
        rows = self._catalog.intent_rows
        rows_of_upload = [row for row in rows.values() if (row.ledger_id, row.context.get("uuid")) == (ledger_id, uuid)]
        ends_us = upload_requests_end_us(rows_of_upload[-1].context) if rows_of_upload else None
        if ends_us is None:
            return
        last_row, context = rows_of_upload[-1], context_after_upload(rows_of_upload[-1].context, until_us)
        if last_row.state is DeletionState.PENDING and ends_us > self._catalog.now_us:
            rows[last_row.row_id] = replace(last_row, context=context)
        else:
            self._file_next_generation(last_row, context)

    def _file_next_generation(self, ended: DeletionIntent, context: Mapping[str, str]) -> None:
        rows, row = self._catalog.intent_rows, self._catalog.ledger_rows.get(ended.ledger_id)
        generations = [intent.generation for intent in rows.values() if intent.ledger_id == ended.ledger_id]
        generation = max([*generations, row.generation if row else 0]) + 1
        next_intent = replace(ended, row_id=self._catalog.next_row, batch_id="", generation=generation, context=context)
        pending_intent = replace(
            next_intent, state=DeletionState.PENDING, outcome=None, attempts=0, last_error=None, handed_to=None
        )
        rows[self._catalog.next_row] = pending_intent
        self._catalog.next_row += 1
        if row:
            self._catalog.ledger_rows[ended.ledger_id] = replace(row, generation=generation)
