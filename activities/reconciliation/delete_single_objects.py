"""Deletion of single objects that nothing refers to: decision, deletion in pages, confirmation of each key."""

from collections.abc import Mapping

from activities.deletion.deletion_pace import DeletionPace
from activities.heartbeats import ClaimRenewingHeartbeats
from activities.reconciliation.finding_fates import kept_fate
from activities.reconciliation.recheck_page import inspect_single_objects
from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
from logstore.deletion import intents
from logstore.deletion.intents import StoredCopy
from logstore.deletion.services.absence_proofs import sample_and_find_unconfirmed_keys
from logstore.errors import StoreUnavailable
from logstore.failpoints import effect
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.object_storage import ObjectStore
from logstore.reconciliation.findings import FateOfFinding, Finding, FindingFate, FindingKind
from logstore.reconciliation.services.orphan_inspection import ENDED_UPLOAD, OrphanInspector


class SingleObjectDeletion:
    """Deletion of a page's single objects. The catalog first ensures that no writer will register deleted segments."""

    def __init__(self, *, reconciliation: ReconciliationRuns, inspector: OrphanInspector, objects: ObjectStore) -> None:
        self._runs, self._inspector, self._objects = reconciliation, inspector, objects

    def delete_page_objects(
        self,
        findings: Mapping[int, Finding],
        *,
        run_id: str,
        page: int,
        before_us: int,
        cause: AuditCause,
        objects_per_s: float,
    ) -> int:
        """Delete objects that are still orphans, and store the fates. Return the number of confirmed deletions.

        `run_id` is the run of the apply. Raise `StoreUnavailable` if storage gave no answer about an object. A retry
        deletes the same objects again, except those whose deletion is stored.
        """
        with ClaimRenewingHeartbeats(lambda: None) as heartbeats:
            self._inspector.require_own_buckets()
            fates = self._runs.read_fates(run_id, page)
            if not findings.keys() <= fates.keys():
                answers = inspect_single_objects(self._inspector, findings, before_us, heartbeats.count_examined)
                fates = self._runs.decide_single_objects(run_id, page, answers, cause=cause)
            earlier = {number: fate for number in findings if (fate := fates[number]) is not None}
            to_delete = {
                number: finding
                for number, finding in findings.items()
                if number not in earlier or earlier[number].fate is FindingFate.FAILED
            }
            applied = self._delete_segments(to_delete, objects_per_s, heartbeats)
            applied |= self._abort_uploads(to_delete, before_us, heartbeats)
            self._runs.store_fates(run_id, page, applied.values())
        return sum(result.fate is FindingFate.DELETED for result in (earlier | applied).values())

    def _delete_segments(
        self, to_delete: Mapping[int, Finding], objects_per_s: float, heartbeats: ClaimRenewingHeartbeats
    ) -> dict[int, FateOfFinding]:
        segments = {
            number: finding for number, finding in to_delete.items() if finding.kind is FindingKind.ORPHAN_SEGMENT
        }
        pace = DeletionPace(objects_per_s)
        applied: dict[int, FateOfFinding] = {}
        copies = {
            number: StoredCopy(verdict=intents.CopyVerdict.OWN, data_keys=(finding.key,))
            for number, finding in segments.items()
        }
        for part in pace.split_copies(copies) if copies else ():
            pace.wait_for_rate(part, heartbeats)
            with effect("reconciliation.delete_objects"):
                report = self._objects.delete([segments[number].key for number in part])
            heartbeats.count_deleted(len(report.deleted))
            for key in report.unanswered:
                raise StoreUnavailable(report.failed[key])
            unconfirmed_by_row = sample_and_find_unconfirmed_keys(
                self._objects, report, {number: (segments[number].key,) for number in part}
            )
            for number in part:
                finding, unconfirmed = segments[number], unconfirmed_by_row[number]
                error = report.failed.get(finding.key) or (unconfirmed.first if unconfirmed else None)
                applied[number] = (
                    _failed_fate(number, error) if error is not None else _deleted_fate(number, finding, objects=1)
                )
        return applied

    def _abort_uploads(
        self, to_delete: Mapping[int, Finding], before_us: int, heartbeats: ClaimRenewingHeartbeats
    ) -> dict[int, FateOfFinding]:
        applied: dict[int, FateOfFinding] = {}
        for number, finding in to_delete.items():
            if finding.kind is FindingKind.ORPHAN_SEGMENT:
                continue
            heartbeats.count_examined()
            answer = self._inspector.inspect_upload(finding, before_us=before_us)
            if not isinstance(answer, str):
                with effect("reconciliation.abort_uploads"):
                    answer.abort_uploads(finding.key)
                answer = self._inspector.inspect_upload(finding, before_us=before_us)
            if answer == ENDED_UPLOAD:
                applied[number] = _deleted_fate(number, finding, objects=0)
            elif isinstance(answer, str):
                applied[number] = kept_fate(number, answer)
            else:
                applied[number] = _failed_fate(number, "parts of the upload are left")
        return applied


def _failed_fate(number: int, error: str) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.FAILED, reason=error)


def _deleted_fate(number: int, finding: Finding, *, objects: int) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.DELETED, objects=objects, size_bytes=finding.size_bytes)
