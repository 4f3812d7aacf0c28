"""Removal of objects and unfinished uploads of offloads that nothing refers to. Nobody can put them back.

A broker writes the uuid of an offload into the managed ledger of the ledger before it uploads anything. So only this
managed ledger, and the shadow topics that repeat its offloads, can name the uuid. Both are read right before a removal.

Source: Pulsar's offloader for blob stores, and Amazon's notes on AbortMultipartUpload: a part that is on its way may
outlive an abort.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from infra.pulsar.offload_store import OffloadStore
from infra.pulsar.offload_verification import get_offload_key, look_up_managed_ledger
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable, UnexpectedClusterState, UnreadableClusterState
from logstore.failpoints import effect
from logstore.ports.pulsar_cluster import RemovalLook, RemovalResult
from logstore.pulsar.cluster_findings import CLUSTER, OWNER, RemovalPart, parse_parts, require_ledger_id
from logstore.pulsar.ledger_metadata import PulsarComponent, find_stated_owner, parse_ledger_metadata
from logstore.pulsar.offload_objects import (
    ManagedLedgerLookup,
    OffloadJudgement,
    OffloadObject,
    OffloadRole,
    OffloadVerdict,
    find_stated_managed_ledger,
    judge_managed_ledger_lookup,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, format_ledger_path
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from logstore.stop_checks import raise_if_stopped

_PARALLEL_REQUESTS: Final = 16
_MAX_ABORTS: Final = 3
_MAX_REASON_CHARS: Final = 200


class OffloadRemoval:
    """Looks at orphan offloads and abandoned uploads, and their removal.

    `shadow_topics` are the managed ledgers of the cluster that repeat offloads of other topics.
    """

    def __init__(
        self, store: OffloadStore, reader: ZnodeReader, ledgers_root: str, shadow_topics: Collection[str]
    ) -> None:
        self._store, self._reader, self._root = store, reader, ledgers_root
        self._shadow_paths = [f"{MANAGED_LEDGERS}/{name}" for name in sorted(shadow_topics)]

    def look(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalLook]:
        """Return what is left of findings. For errors see `ClusterChanges.look`."""
        self._require_planned_bucket(findings)
        read = self._read_objects if kind is FindingKind.ORPHAN_OFFLOAD else self._read_uploads
        with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="offloads") as threads:
            looks = [RemovalLook(parts=tuple(parts)) for parts in threads.map(read, findings)]
        present = [finding for finding, look in zip(findings, looks, strict=True) if look.parts]
        self._require_unreferenced(present)
        return looks

    def delete_objects(self, looks: Sequence[RemovalLook]) -> list[RemovalResult]:
        """Delete objects in the versions that were read, and look that none is left. The answer names each key.

        Raises:
            StoreUnavailable: The store has not answered for a key. Some objects may be deleted.
        """
        with effect("pulsar.delete_offloads"):
            report = self._store.delete([part for look in looks for part in look.parts])
        if report.unanswered:
            key = min(report.unanswered)
            raise StoreUnavailable(f"{key}: expected an answer about its deletion, found {report.failed[key]}")
        results = []
        for look in looks:
            keys = [str(part["key"]) for part in look.parts]
            refusals = [f"{key}: {report.failed[key]}" for key in keys if key in report.failed]
            remaining = [str(part["key"]) for part in look.parts if not refusals and self._store.has_part(part)]
            contradictions = [f"{key}: the store confirmed its deletion, and still has it" for key in remaining]
            results.append(_make_result(refusals + contradictions))
        return results

    def abort_uploads(self, looks: Sequence[RemovalLook]) -> list[RemovalResult]:
        """Abort uploads by their ids, and look that no part of them is left.

        Raises:
            StoreUnavailable: The store does not answer. Some uploads may be aborted.
        """
        results = []
        for look in looks:
            raise_if_stopped()
            results.append(_make_result([problem for part in look.parts if (problem := self._abort(part))]))
        return results

    def _require_planned_bucket(self, findings: Sequence[Finding]) -> None:
        """Raise `UnreadableClusterState` for another bucket: there, each object would seem to be gone."""
        for finding in findings:
            if finding.bucket != self._store.bucket:
                found = f"pulsar_offload_bucket {self._store.bucket}. Correct the setting"
                raise UnreadableClusterState(f"{finding.key}: expected bucket {finding.bucket}, found {found}")

    def _read_objects(self, finding: Finding) -> list[RemovalPart]:
        key = get_offload_key(finding)
        found = [self._store.read_object(replace(key, role=role)) for role in OffloadRole]
        objects = [each for each in found if each is not None]
        if not objects:
            return []
        parts = _require_planned(finding, [each.to_part() for each in objects])
        for each in objects:
            self._require_one_version(each)
        owner = find_stated_managed_ledger(objects, finding.statement[CLUSTER])
        if isinstance(owner, OffloadJudgement):
            expected = "expected an object of this cluster"
            raise UnexpectedClusterState(f"{finding.key}: {expected}, found that {owner.reason}")
        if f"{MANAGED_LEDGERS}/{owner}" != finding.statement[OWNER]:
            raise UnexpectedClusterState(f"{finding.key}: expected {finding.statement[OWNER]}, found {owner}")
        return parts

    def _read_uploads(self, finding: Finding) -> list[RemovalPart]:
        uploads = self._store.read_uploads(get_offload_key(finding))
        return _require_planned(finding, [upload.to_part() for upload in uploads])

    def _require_one_version(self, stored: OffloadObject) -> None:
        """Raise `UnexpectedClusterState` for older versions: an offload writes each of its keys once."""
        if stored.version_id is None:
            return
        version_ids = self._store.list_version_ids(stored.key)
        if version_ids != [stored.version_id]:
            expected = f"expected the version {stored.version_id} only"
            raise UnexpectedClusterState(f"{stored.key}: {expected}, found {', '.join(version_ids) or 'none'}")

    def _require_unreferenced(self, findings: Sequence[Finding]) -> None:
        owner_by_key = {finding.key: finding.statement.get(OWNER, "") for finding in findings}
        unstated = [finding for finding in findings if not owner_by_key[finding.key]]
        owner_by_key |= self._find_owners_of_ledgers(unstated)
        paths = sorted({*filter(None, owner_by_key.values()), *(self._shadow_paths if findings else ())})
        lookups = {path: look_up_managed_ledger(znode) for path, znode in self._reader.read(paths)}
        for finding in findings:
            for path in filter(None, [owner_by_key[finding.key], *self._shadow_paths]):
                _require_unnamed(finding, path, lookups[path])

    def _find_owners_of_ledgers(self, findings: Sequence[Finding]) -> Mapping[str, str]:
        """Return the managed ledger of each upload's ledger, by key, or "". An upload states nothing itself."""
        paths = {finding.key: f"{self._root}/{format_ledger_path(require_ledger_id(finding))}" for finding in findings}
        znodes = dict(self._reader.read(sorted(set(paths.values()))))
        owners = {}
        for key, path in paths.items():
            znode = znodes[path]
            try:
                owner = find_stated_owner(parse_ledger_metadata(znode.data)) if znode else None
            except UnreadableMetadata as error:
                raise UnreadableClusterState(f"/{path}: it may state the owner of {key}. {error}") from error
            is_topic = owner is not None and owner.component is PulsarComponent.MANAGED_LEDGER and not owner.is_cursor
            owners[key] = owner.path if owner and is_topic else ""
        return owners

    def _abort(self, part: RemovalPart) -> str:
        """Abort an upload until nothing of it is left. Return the problem, or ""."""
        for _ in range(_MAX_ABORTS):
            with effect("pulsar.abort_upload"):
                self._store.abort_upload(part)
            if not self._store.has_upload(part):
                return ""
        return f"{part['key']}: the store confirmed the abort of upload {part['upload_id']}, and still has it"


def _require_planned(finding: Finding, parts: list[RemovalPart]) -> list[RemovalPart]:
    """Return the parts. Raise `UnexpectedClusterState` for one that differs from the plan."""
    planned = parse_parts(finding)
    for part in parts:
        if part not in planned:
            same = [each for each in planned if each["key"] == part["key"]]
            raise UnexpectedClusterState(f"{part['key']}: expected {same or 'no such object or upload'}, found {part}")
    return parts


def _require_unnamed(finding: Finding, path: str, lookup: ManagedLedgerLookup) -> None:
    judgement = judge_managed_ledger_lookup(finding.uuid, lookup)
    if judgement.verdict is OffloadVerdict.OWNER_UNREADABLE:
        raise UnreadableClusterState(f"/{path}: it may refer to {finding.key}, and cannot be read")
    if judgement.verdict is OffloadVerdict.REFERENCED:
        raise UnexpectedClusterState(f"{finding.key}: expected no reference, found one in /{path}")


def _make_result(problems: Sequence[str]) -> RemovalResult:
    if not problems:
        return RemovalResult(fate=FindingFate.DELETED)
    return RemovalResult(fate=FindingFate.FAILED, reason="; ".join(problems)[:_MAX_REASON_CHARS])
