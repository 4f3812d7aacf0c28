"""Activities of offload: upload a tiered copy, publish it, find candidates, remove primary copies."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from activities.deletion import metrics
from activities.deletion.claims_and_causes import detach_arguments
from activities.heartbeats import define_activity, send_heartbeats
from activities.owner_routing import is_valid_topic_name, require_topic_name_if_known
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import SextonError, UnknownObject
from logstore.offload.services.tiered_copy_upload import CopyEvidence, UploadAttemptResult
from logstore.offload.tiered_copy import CopyLengths
from logstore.ports.catalog.offload import OffloadStartOutcome, PublishedTieredCopy
from logstore.positions import LedgerId, TopicId
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasBatch, HasLedger, HasLedgers, HasLedgersAfter, HasSubject, HasTopic, Subject

_SAMPLE = 20  # maximum number of doubts in a result


class CopyUploader(Protocol):
    def upload_and_prove(
        self, ledger_id: LedgerId, uuid: str, *, timeout_s: float, topic: str | None
    ) -> UploadAttemptResult: ...

    def prove(self, copy: PublishedTieredCopy) -> CopyEvidence: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadCopyInput(HasLedger, HasTopic):
    ledger_id: int
    timeout_s: float  # afterwards nothing more is sent
    topic: str = ""  # encoded name that the ledger's topic must have; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadCopyResult(HasSubject):
    answer: OffloadStartOutcome  # BEGUN: the copy is stored and proved, and must be published
    uuid: str = ""
    entries: int = 0
    size_bytes: int = 0
    sha256: str = ""
    index_bytes: int = 0  # 0: not known

    def subject(self) -> Subject:
        return Subject(outcome=self.answer.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCopyInput(HasLedger):
    ledger_id: int
    uuid: str
    size_bytes: int = 0  # of the data object; 0: not known
    index_bytes: int = 0  # of the index object; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersToOffloadInput(HasLedgersAfter, HasTopic):
    topic_id: int
    after: int  # ledger id, exclusive
    limit: int
    ledger_ids: list[int] | None = None  # at most `limit`; None: all of the topic
    check: bool = False  # count requested ids that are not listed, and refuse ledgers that cannot be offloaded
    topic: str = ""  # encoded name that the topic must have; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersToOffload(HasLedgers):
    """Ledgers to offload, ascending. If the input names no ledgers, a topic's last page is empty."""

    ledger_ids: list[int]  # at most `LedgersToOffloadInput.limit`
    gone: int = 0  # requested ledgers that are in no list of the topic; counted only with `check`


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachPrimariesInput(HasLedgersAfter, HasBatch):
    topic_id: int
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    actor: str
    reason: str
    ledger_ids: list[int] | None = None  # at most `limit`; None: all of the topic
    after: int = -1  # ledger id, exclusive
    limit: int = 500  # ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachPrimariesResult:
    ledgers: int
    intents: int
    catalog_epoch: int
    unproved: int = 0  # ledgers that keep their primary copy, because storage did not prove their tiered copy
    doubts: dict[int, str] = field(default_factory=dict)  # reason by unproved ledger, at most 20
    next_after: int | None = None  # `after` of the next page; None: this was the last page


class LedgerOffloadActivities:
    def __init__(
        self,
        *,
        catalog: Catalog,
        uploader: CopyUploader,
        new_uuid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._offloads, self._ledgers, self._topics = catalog.offloads, catalog.ledgers, catalog.topics
        self._uploader, self._new_uuid = uploader, new_uuid

    @define_activity(name="offload.upload")
    @send_heartbeats()
    def upload_and_prove_copy(self, request: UploadCopyInput) -> UploadCopyResult:
        """Write a ledger's tiered copy, and read it back to prove that storage has it (apache/pulsar#22839).

        Idempotency: each attempt has its own uuid. Each attempt first files an intent for an unpublished copy of an
        earlier attempt. Overlapping attempts never write the same object.
        Heartbeat: while the activity runs.
        Raises: InvalidInput, PreconditionFailed, MissingData, CorruptData (terminal); UploadTimedOut, UploadUnproven,
        StoreUnavailable, CatalogBusy, OutcomeUnknown, ServiceRefused (retry).
        """
        ledger_id, attempt_uuid = LedgerId(request.ledger_id), self._new_uuid()
        topic = request.topic if is_valid_topic_name(request.topic) else None
        uploaded = self._uploader.upload_and_prove(ledger_id, attempt_uuid, timeout_s=request.timeout_s, topic=topic)
        if uploaded.evidence is None:
            return UploadCopyResult(answer=uploaded.answer)
        return UploadCopyResult(
            answer=uploaded.answer,
            uuid=uploaded.evidence.uuid,
            entries=uploaded.evidence.entries,
            size_bytes=uploaded.evidence.size_bytes,
            sha256=uploaded.evidence.sha256,
            index_bytes=uploaded.evidence.index_bytes,
        )

    @define_activity(name="offload.publish")
    @send_heartbeats()
    def publish_copy(self, request: PublishCopyInput) -> OffloadStartOutcome:
        """Publish a proved copy. If another attempt or a deletion came first, the copy is deleted instead.

        The result is ALREADY if the copy is LIVE, GONE if no list has the ledger, or BEGUN if a new attempt is needed.

        Idempotency: keyed by uuid.
        Raises: CatalogBusy, StoreUnavailable (retry).
        """
        ledger_id = LedgerId(request.ledger_id)
        has_lengths = request.size_bytes > 0 and request.index_bytes > 0
        lengths = CopyLengths(data_bytes=request.size_bytes, index_bytes=request.index_bytes) if has_lengths else None
        if self._offloads.publish_tiered_copy(ledger_id, request.uuid, lengths=lengths):
            return OffloadStartOutcome.ALREADY
        return (
            OffloadStartOutcome.GONE
            if self._offloads.find_readable_copies(ledger_id) is None
            else OffloadStartOutcome.BEGUN
        )

    @define_activity(name="offload.candidates")
    @send_heartbeats()
    def list_ledgers_to_offload(self, request: LedgersToOffloadInput) -> LedgersToOffload:
        """Find the next ledgers of a topic to offload.

        Idempotency: reads only.
        Raises: InvalidInput (terminal); PreconditionFailed (terminal): with `check`, a ledger cannot be offloaded.
        """
        require_topic_name_if_known(self._topics, request.topic_id, request.topic)
        topic_id, requested_ids = TopicId(request.topic_id), _parse_ledger_ids(request.ledger_ids)
        missing_ids = (
            self._offloads.find_unlisted_ledgers(topic_id, requested_ids)
            if request.check and requested_ids is not None
            else []
        )
        after = LedgerId(request.after)
        candidate_ids = self._offloads.list_offload_candidates(
            topic_id, requested_ids, after=after, limit=request.limit
        )
        return LedgersToOffload(ledger_ids=[int(ledger_id) for ledger_id in candidate_ids], gone=len(missing_ids))

    @define_activity(name="offload.remove_primaries")
    @send_heartbeats()
    def prove_and_detach_primaries(self, request: DetachPrimariesInput) -> DetachPrimariesResult:
        """For each ledger whose LIVE tiered copy is proved now, detach the primary copy and file an intent.

        A tiered copy may be lost after its publication, so it is proved again (apache/pulsar#22839). A ledger whose
        tiered copy is not proved keeps its primary copy and does not block other ledgers.

        Idempotency: keyed by `batch_id`. A repeated call returns the counts of the first call, and `request.after` as
        `next_after`.
        Heartbeat: while the activity runs.
        Raises: UnknownObject (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        topic_id, requested_ids = TopicId(request.topic_id), _parse_ledger_ids(request.ledger_ids)
        try:
            page = self._offloads.list_removable_primaries(
                topic_id, requested_ids, after=LedgerId(request.after), limit=request.limit
            )
        except UnknownObject:
            page = []  # the topic may have been deleted since an earlier call, whose batch has the result
        doubts = self._find_unproved_ledgers(page)
        detached = self._offloads.detach_primary_copies(
            topic_id,
            requested_ids,
            proved_uuid_by_ledger={
                _ledger_id(copy): copy.context["uuid"] for copy in page if _ledger_id(copy) not in doubts
            },
            **detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason),
        )
        metrics.count_filed_intents(detached.filed_counts)
        result = DetachPrimariesResult(
            ledgers=detached.ledgers, intents=detached.intents, catalog_epoch=self._ledgers.catalog_epoch()
        )
        if detached.ledgers and not detached.filed_counts:  # detached by an earlier call, with an unknown page
            return replace(result, next_after=request.after)
        last_ledger_id = int(_ledger_id(page[-1])) if len(page) == request.limit else None
        sample = {int(ledger_id): doubt for ledger_id, doubt in list(doubts.items())[:_SAMPLE]}
        return replace(result, unproved=len(doubts), doubts=sample, next_after=last_ledger_id)

    def _find_unproved_ledgers(self, page: Sequence[PublishedTieredCopy]) -> dict[LedgerId, str]:
        """Prove each tiered copy of `page`. Return an error text for each ledger whose tiered copy is not proved."""
        doubts: dict[LedgerId, str] = {}
        for copy in page:
            raise_if_stopped()
            try:
                self._uploader.prove(copy)
            except SextonError as error:
                doubts[_ledger_id(copy)] = f"{type(error).__name__}: {error}"[:500]
        return doubts


def _ledger_id(copy: PublishedTieredCopy) -> LedgerId:
    return copy.statement.ledger_id


def _parse_ledger_ids(ledger_ids: list[int] | None) -> list[LedgerId] | None:
    return None if ledger_ids is None else [LedgerId(ledger_id) for ledger_id in ledger_ids]
