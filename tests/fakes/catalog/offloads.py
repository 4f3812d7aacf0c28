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
from logstore.ports.catalog import (
    AuditCause,
    Claim,
    DetachedBatch,
    OffloadStart,
    OffloadStartOutcome,
    PublishedTieredCopy,
    ReadableCopies,
    TopicState,
)
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.absent import Absent
from tests.fakes.catalog.batches import spanning

if TYPE_CHECKING:
    from tests.fakes.catalog.state import Copy, FakeCatalog

_TIERED = CopyKind.OFFLOADED_LEDGER


class FakeOffloads(Absent):
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
            found = self._catalog.ledger_rows.get(ledger_id)
            if found and found.component is not Component.MANAGED_LEDGER and found.state is LedgerState.CLOSED:
                raise Unsupported(f"ledger {ledger_id}: expected a ledger of messages, found one of {found.component}")
            if not self._is_listed(ledger_id):
                return OffloadStart(answer=OffloadStartOutcome.GONE)
            row, statement = self._catalog.ledger_rows[ledger_id], self._catalog.statements[ledger_id]
            require_named_topic(ledger_id, self._catalog.topic(row.topic_id, active=True).name, topic)
            tiered, primary = (self._catalog.copies[ledger_id].get(kind) for kind in (_TIERED, CopyKind.LEDGER))
            found_tiered = (tiered.state.value, tiered.context) if tiered else None
            found_primary = primary.state.value if primary else None
            how = decide_upload_start(
                ledger_id, uuid, tiered=found_tiered, ledger_state=row.state, read_primary_state=lambda: found_primary
            )
            if how is UploadStart.ANEW or not tiered:
                tiered = self._write(ledger_id, {**driver_metadata, "uuid": uuid}, timeout_s)
            answer = OffloadStartOutcome.ALREADY if how is UploadStart.ALREADY else OffloadStartOutcome.BEGUN
            return OffloadStart(answer=answer, statement=statement, entries=row.entries, context=tiered.context)

    def _write(self, ledger_id: LedgerId, driver_metadata: dict[str, str], timeout_s: float) -> "Copy":
        row, copies = self._catalog.ledger_rows[ledger_id], self._catalog.copies[ledger_id]
        if _TIERED in copies:
            self._catalog.file_copy_intent(ledger_id, _TIERED, "")
        made = replace(
            copies[CopyKind.LEDGER],
            state=CopyState.WRITING,
            context=driver_metadata | {"until_us": str(self._catalog.until_us(timeout_s))},
        )
        self._catalog.copies[ledger_id][_TIERED] = made
        self._catalog.versions[row.topic_id] += 1
        return made

    def publish_tiered_copy(self, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None) -> bool:
        with effect("catalog.publish_offload"), self._catalog.lock:
            copy = self._copy(ledger_id, uuid)
            if copy and copy.state is CopyState.LIVE:
                return True
            row = self._catalog.ledger_rows.get(ledger_id)
            if copy is None or row is None or self._catalog.topic(row.topic_id).state is not TopicState.ACTIVE:
                self._end(ledger_id, uuid, None)
                return False
            context = context_after_upload(copy.context, None) | (lengths.to_context() if lengths else {})
            live = replace(copy, state=CopyState.LIVE, context=context)
            self._catalog.copies[ledger_id][_TIERED] = live
            self._catalog.versions[row.topic_id] += 1
            return True

    def abandon_offload(self, ledger_id: LedgerId, uuid: str) -> None:
        with effect("catalog.abandon_offload"), self._catalog.lock:
            self._end(ledger_id, uuid, self._catalog.now_us)

    def find_readable_copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        with self._catalog.lock:
            if not self._is_listed(ledger_id):
                return None
            found = self._catalog.copies[ledger_id]
            live = {kind: copy.context for kind, copy in found.items() if copy.state is CopyState.LIVE}
            return ReadableCopies(primary=CopyKind.LEDGER in live, tiered=live.get(_TIERED))

    def list_offload_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        with self._catalog.lock:
            listed = [one for one in self._asked(topic_id, ledger_ids) if one > after]
            return [one for one in listed if self._catalog.ledger_rows[one].entries and not self._live(one)[1]][:limit]

    def list_removable_primaries(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[PublishedTieredCopy]:
        with self._catalog.lock:
            asked = [one for one in self._asked(topic_id, ledger_ids) if one > after and all(self._live(one))]
            return [
                PublishedTieredCopy(
                    statement=self._catalog.statements[one],
                    entries=self._catalog.ledger_rows[one].entries,
                    context=self._catalog.copies[one][_TIERED].context,
                )
                for one in asked[:limit]
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
            ids = [
                one
                for one in self._asked(topic_id, ledger_ids)
                if all(self._live(one))
                and self._catalog.copies[one][_TIERED].context.get("uuid") == proved_uuid_by_ledger.get(one, "")
            ]
            before = set(self._catalog.intent_rows)
            stalled = self._catalog.phase_one.adopt(topic_id, ledger_ids, batch_id, copy=CopyKind.LEDGER)
            for ledger_id in ids:
                self._catalog.file_copy_intent(ledger_id, CopyKind.LEDGER, batch_id)
            filed = self._catalog.phase_one.decide(before, cause)
            done = DetachedBatch(batch_id=batch_id, ledgers=len(ids), intents=len(ids) + stalled, filed_counts=filed)
            if ids:
                self._catalog.versions[topic_id] += 1
                self._catalog.audit("remove-primaries", cause, spanning(ids))
            return self._catalog.phase_one.open_batch(done, claim, request, topic_id) if done.intents else done

    def now_us(self) -> int:
        return self._catalog.now_us

    def is_abandoned(self, copy: "Copy") -> bool:
        """Whether nobody will publish the copy."""
        try:
            ends_us = upload_requests_end_us(copy.context)
        except CorruptData:
            return False
        return copy.state is CopyState.WRITING and ends_us is not None and ends_us <= self._catalog.now_us

    def take_away_abandoned(self, topic_id: TopicId, batch_id: str) -> int:
        """File intents for abandoned copies, and count them."""
        dead = [
            one
            for one in self._catalog.lists[topic_id]
            if (copy := self._catalog.copies[one].get(_TIERED)) and self.is_abandoned(copy)
        ]
        for ledger_id in dead:
            self._catalog.file_copy_intent(ledger_id, _TIERED, batch_id)
        self._catalog.versions[topic_id] += bool(dead)
        return len(dead)

    def _is_listed(self, ledger_id: LedgerId) -> bool:
        return any(ledger_id in listed for listed in self._catalog.lists.values())

    def _asked(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None) -> list[LedgerId]:
        """Closed ledgers of the list, of those asked for."""
        self._catalog.topic(topic_id)
        closed = [self._catalog.ledger_rows[one] for one in self._catalog.lists[topic_id]]
        ids = [row.ledger_id for row in closed if row.state is LedgerState.CLOSED]
        return [one for one in ids if ledger_ids is None or one in ledger_ids]

    def _live(self, ledger_id: LedgerId) -> tuple[bool, bool]:
        copies = self._catalog.copies[ledger_id]
        live = {kind for kind, copy in copies.items() if copy.state is CopyState.LIVE}
        return CopyKind.LEDGER in live, _TIERED in live

    def _copy(self, ledger_id: LedgerId, uuid: str) -> "Copy | None":
        copy = self._catalog.copies.get(ledger_id, {}).get(_TIERED)
        return copy if copy and copy.context.get("uuid") == uuid else None

    def _end(self, ledger_id: LedgerId, uuid: str, until_us: int | None) -> None:
        copy = self._copy(ledger_id, uuid)
        if copy is None:
            self._end_intents(ledger_id, uuid, until_us)
        elif copy.state is CopyState.WRITING:
            self._catalog.copies[ledger_id][_TIERED] = replace(
                copy, context=context_after_upload(copy.context, until_us)
            )
            self._catalog.file_copy_intent(ledger_id, _TIERED, "")
            self._catalog.versions[self._catalog.ledger_rows[ledger_id].topic_id] += 1

    def _end_intents(self, ledger_id: LedgerId, uuid: str, until_us: int | None) -> None:
        rows = self._catalog.intent_rows
        ours = [row for row in rows.values() if (row.ledger_id, row.context.get("uuid")) == (ledger_id, uuid)]
        ends_us = upload_requests_end_us(ours[-1].context) if ours else None
        if ends_us is None:
            return
        last, context = ours[-1], context_after_upload(ours[-1].context, until_us)
        if last.state is DeletionState.PENDING and ends_us > self._catalog.now_us:
            rows[last.row_id] = replace(last, context=context)
        else:
            self._file_again(last, context)

    def _file_again(self, ended: DeletionIntent, context: Mapping[str, str]) -> None:
        rows, row = self._catalog.intent_rows, self._catalog.ledger_rows.get(ended.ledger_id)
        known = [one.generation for one in rows.values() if one.ledger_id == ended.ledger_id]
        generation = max([*known, row.generation if row else 0]) + 1
        again = replace(ended, row_id=self._catalog.next_row, batch_id="", generation=generation, context=context)
        fresh = replace(again, state=DeletionState.PENDING, outcome=None, attempts=0, last_error=None, handed_to=None)
        rows[self._catalog.next_row] = fresh
        self._catalog.next_row += 1
        if row:
            self._catalog.ledger_rows[ended.ledger_id] = replace(row, generation=generation)
