"""Second look at candidates about offloads: at the objects in S3, and then at the managed ledger that should name them.

The candidates are those of `compare-offloads`. A broker writes the uuid of an offload before the upload. An object that
was listed before two scans, and to which none of them refers, therefore never gets a reference.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from infra.objects.s3_store import BucketAddress
from infra.pulsar.offload_store import OffloadStore, UnfinishedUpload, open_offload_store
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import ServiceFailed, StoreUnavailable
from logstore.pulsar.cluster_findings import CLUSTER, CONFIRMED, OWNER, PARTS, VERDICT, require_ledger_id
from logstore.pulsar.ledger_references import ManagedLedgerReferences, find_managed_ledger_references
from logstore.pulsar.offload_objects import (
    ManagedLedgerLookup,
    OffloadJudgement,
    OffloadKey,
    OffloadObject,
    OffloadRole,
    OffloadVerdict,
    find_stated_managed_ledger,
    judge_missing_objects,
    judge_unreferenced_offload,
    judge_unreferenced_upload,
)
from logstore.pulsar.plan_jobs import OFFLOAD_CLUSTER, OFFLOADS_BEFORE
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS
from logstore.reconciliation.findings import Finding, FindingKind

UNANSWERED: Final = "unanswered"
"""Reason of dropped candidates about which the store gave no answer, or refused one."""

_PARALLEL_REQUESTS: Final = 16
_MAX_UNANSWERED_IN_A_ROW: Final = 32  # then the store is away, and the other candidates are not asked for


@dataclass(frozen=True, slots=True)
class OffloadVerification:
    """Findings that are still true. A dropped candidate is no longer true, or cannot be proven."""

    findings: list[Finding]
    dropped: Counter[str]  # by verdict, or `UNANSWERED`


@dataclass(frozen=True, slots=True)
class _StoredAttempt:
    """Objects and uploads that the store has of one attempt."""

    objects: tuple[OffloadObject, ...] = ()
    uploads: tuple[UnfinishedUpload, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.objects) + sum(upload.size_bytes for upload in self.uploads)


def is_about_offload(candidate: Finding) -> bool:
    """Return whether a candidate of a plan for a cluster is about objects or uploads of an offload."""
    return bool(candidate.uuid)


class OffloadVerifier:
    """Second look at candidates about offloads.

    `cluster` is the name of the cluster in the metadata of its objects. Uploads must be older than `before_us`, by the
    store's clock.
    """

    def __init__(self, store: OffloadStore, reader: ZnodeReader, *, cluster: str, before_us: int) -> None:
        self._store, self._reader = store, reader
        self._cluster, self._before_us = cluster, before_us
        self._unanswered_in_a_row = 0

    def verify(self, candidates: Sequence[Finding]) -> OffloadVerification:
        """Return the candidates that are still true, in unchanged order.

        An object or an upload for which the store has no answer is neither present nor absent: its candidate is
        dropped and counted. Managed ledgers are read after the objects.

        Raises:
            StoreUnavailable: ZooKeeper does not answer.
        """
        with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="offloads") as threads:
            stored = list(threads.map(self._read_stored_attempt, candidates))
        owners = [self._find_owner(each, attempt) for each, attempt in zip(candidates, stored, strict=True)]
        names = sorted({owner for owner in owners if isinstance(owner, str) and owner})
        znodes = self._reader.read([f"{MANAGED_LEDGERS}/{name}" for name in names])
        lookups = {path.removeprefix(f"{MANAGED_LEDGERS}/"): look_up_managed_ledger(znode) for path, znode in znodes}
        judged = [
            self._judge(candidate, attempt, owner, lookups.__getitem__)
            for candidate, attempt, owner in zip(candidates, stored, owners, strict=True)
        ]
        return OffloadVerification(
            findings=[finding for finding in judged if isinstance(finding, Finding)],
            dropped=Counter(reason for reason in judged if isinstance(reason, str)),
        )

    def _read_stored_attempt(self, candidate: Finding) -> _StoredAttempt | None:
        """Return what the store has, or `None` without an answer."""
        if self._unanswered_in_a_row >= _MAX_UNANSWERED_IN_A_ROW:
            return None
        key = get_offload_key(candidate)
        try:
            if candidate.kind is FindingKind.ABANDONED_UPLOAD:
                attempt = _StoredAttempt(uploads=tuple(self._store.read_uploads(key)))
            else:
                objects = [self._store.read_object(replace(key, role=role)) for role in OffloadRole]
                attempt = _StoredAttempt(objects=tuple(each for each in objects if each is not None))
        except (StoreUnavailable, ServiceFailed):
            self._unanswered_in_a_row += 1
            return None
        self._unanswered_in_a_row = 0
        return attempt

    def _find_owner(self, candidate: Finding, attempt: _StoredAttempt | None) -> str | OffloadJudgement:
        """Return the name of the managed ledger that should name the attempt; "" if it is not known."""
        if attempt is None:
            return ""
        if candidate.kind is FindingKind.ORPHAN_OFFLOAD:
            return find_stated_managed_ledger(attempt.objects, self._cluster)
        return candidate.statement.get(OWNER, "").removeprefix(f"{MANAGED_LEDGERS}/")

    def _judge(
        self,
        candidate: Finding,
        attempt: _StoredAttempt | None,
        owner: str | OffloadJudgement,
        look_up: Callable[[str], ManagedLedgerLookup],
    ) -> Finding | str:
        """Return the finding, or the reason to drop the candidate."""
        if attempt is None:
            return UNANSWERED
        if isinstance(owner, OffloadJudgement):
            return owner.verdict.value
        kind = candidate.kind
        match kind:
            case FindingKind.ORPHAN_OFFLOAD:
                judgement = judge_unreferenced_offload(
                    attempt.objects,
                    look_up(owner),
                    listed_bytes=candidate.size_bytes,
                    listed_us=candidate.newest_us or 0,
                )
            case FindingKind.ABANDONED_UPLOAD:
                judgement = judge_unreferenced_upload(
                    candidate.uuid,
                    [upload.changed_us for upload in attempt.uploads],
                    look_up(owner) if owner else None,
                    before_us=self._before_us,
                )
            case _:
                judgement = judge_missing_objects(get_offload_key(candidate), attempt.objects, look_up(owner))
                kind = FindingKind.HAZARD if judgement.verdict is OffloadVerdict.DATA_ENDANGERED else kind
        if not judgement.verdict.is_finding:
            return judgement.verdict.value
        statement = {
            OWNER: f"{MANAGED_LEDGERS}/{owner}" if owner else "",
            VERDICT: judgement.verdict.value,
            CONFIRMED: str(kind is not FindingKind.ABANDONED_UPLOAD).lower(),  # nothing states its cluster
        }
        if kind in {FindingKind.ORPHAN_OFFLOAD, FindingKind.ABANDONED_UPLOAD}:
            parts = [each.to_part() for each in attempt.objects] + [upload.to_part() for upload in attempt.uploads]
            statement[PARTS] = json.dumps(parts)
        if kind is FindingKind.ORPHAN_OFFLOAD:
            statement[CLUSTER] = self._cluster
        return replace(
            candidate,
            kind=kind,
            statement={**candidate.statement, **statement},
            detail=judgement.reason,
            objects=len(attempt.objects) + len(attempt.uploads),
            size_bytes=attempt.size_bytes,
        )


def open_offload_verifier(
    address: BucketAddress | None, reader: ZnodeReader, compared: Mapping[str, str]
) -> OffloadVerifier:
    """Return the verifier of the candidates of `compare-offloads`. `compared` has the facts of its summary."""
    return OffloadVerifier(
        open_offload_store(address),
        reader,
        cluster=compared[OFFLOAD_CLUSTER],
        before_us=int(compared[OFFLOADS_BEFORE]),
    )


def get_offload_key(candidate: Finding) -> OffloadKey:
    return OffloadKey(candidate.uuid, require_ledger_id(candidate))


def look_up_managed_ledger(znode: Znode | None) -> ManagedLedgerLookup:
    if znode is None:
        return ManagedLedgerLookup(exists=False, references=ManagedLedgerReferences(()))
    try:
        return ManagedLedgerLookup(exists=True, references=find_managed_ledger_references(znode.data))
    except UnreadableMetadata:
        return ManagedLedgerLookup(exists=True, references=None)
