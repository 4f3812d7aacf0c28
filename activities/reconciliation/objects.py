"""Single objects that nothing refers to: decided upon, deleted in pages, confirmed per key."""

from collections.abc import Mapping
from pathlib import Path

from activities.deletion.rate import DeletionPace
from activities.heartbeats import Heartbeats
from activities.reconciliation import finding_fates
from activities.reconciliation.decisions import Kept, keep_objects, objects_kept
from activities.reconciliation.page_look import ask_objects
from logstore.deletion.intents import CopyVerdict as Found
from logstore.deletion.intents import StoredCopy
from logstore.deletion.services.absence import judge_deletion
from logstore.errors import StoreUnavailable
from logstore.failpoints import effect
from logstore.ports.catalog import Cause, Reconciliation
from logstore.ports.objects import ObjectStore
from logstore.reconciliation.files import Ended
from logstore.reconciliation.findings import Fate, Finding, FindingKind
from logstore.reconciliation.services.orphans import ENDED_UPLOAD, StoredOrphans

_PARTS_LEFT = "parts of the upload are left"


class ObjectDeletion:
    """Deletes orphaned segments and abandoned uploads of a page."""

    def __init__(self, *, reconciliation: Reconciliation, stored: StoredOrphans, objects: ObjectStore) -> None:
        """Take the catalog, which makes sure that no segment is registered any more, and the buckets."""
        self._catalog, self._stored, self._objects = reconciliation, stored, objects

    def delete(
        self,
        found: Mapping[int, Finding],
        *,
        folder: Path,
        page: int,
        before_us: int,
        cause: Cause,
        objects_per_s: float,
    ) -> int:
        """Delete what is still an orphan, keep a file of what became of each, and count the confirmed ones.

        Raises:
            StoreUnavailable: Storage did not answer for all; what was deleted is deleted again.
        """
        with Heartbeats(lambda: None) as heartbeats:
            self._stored.confirm()
            kept = objects_kept(folder, page)
            if kept is None:
                decided = self._decided(found, before_us, cause, heartbeats)
                with effect("reconciliation.decide_objects"):
                    kept = keep_objects(folder, page, decided)
            to_delete = {at: one for at, one in found.items() if at not in kept}
            done = self._segments(to_delete, objects_per_s, heartbeats) | self._uploads(
                to_delete, before_us, heartbeats
            )
            with effect("reconciliation.keep_objects"):
                finding_fates.object_files(folder).put(page, [*_kept(kept), *done.values()])
        return sum(one.fate is Fate.DELETED for one in done.values())

    def _decided(
        self, objects: Mapping[int, Finding], before_us: int, cause: Cause, heartbeats: Heartbeats
    ) -> dict[int, str]:
        """Return why findings must be kept; those not named may be deleted, now and later."""
        look = ask_objects(self._stored, objects, before_us, heartbeats.examined)
        if not look.segments:
            return dict(look.kept)
        return {**look.kept, **self._catalog.pass_over(look.segments, cause=cause)}

    def _segments(
        self, to_delete: Mapping[int, Finding], objects_per_s: float, heartbeats: Heartbeats
    ) -> dict[int, Ended]:
        segments = {
            number: finding for number, finding in to_delete.items() if finding.kind is FindingKind.ORPHAN_SEGMENT
        }
        pace = DeletionPace(objects_per_s)
        done: dict[int, Ended] = {}
        copies = {
            number: StoredCopy(verdict=Found.OWN, data_keys=(finding.key,)) for number, finding in segments.items()
        }
        for part in pace.parts(copies) if copies else ():
            pace.wait(part, heartbeats)
            with effect("reconciliation.delete_objects"):
                report = self._objects.delete([segments[number].key for number in part])
            heartbeats.deleted(len(report.deleted))
            for key in report.unanswered:
                raise StoreUnavailable(report.failed[key])
            remains = judge_deletion(self._objects, report, {number: (segments[number].key,) for number in part})
            for number in part:
                unconfirmed = remains[number]
                error = report.failed.get(segments[number].key) or (unconfirmed.first if unconfirmed else None)
                done[number] = _ended(number, segments[number], error)
        return done

    def _uploads(self, to_delete: Mapping[int, Finding], before_us: int, heartbeats: Heartbeats) -> dict[int, Ended]:
        done: dict[int, Ended] = {}
        for at, one in to_delete.items():
            if one.kind is FindingKind.ORPHAN_SEGMENT:
                continue
            heartbeats.examined()
            answer = self._stored.upload(one, before_us=before_us)
            if not isinstance(answer, str):
                with effect("reconciliation.abort_uploads"):
                    answer.abort_uploads(one.key)
                answer = self._stored.upload(one, before_us=before_us)
            if isinstance(answer, str) and answer != ENDED_UPLOAD:
                (done[at],) = _kept({at: answer})
            else:
                done[at] = _ended(at, one, None if answer == ENDED_UPLOAD else _PARTS_LEFT)
        return done


def _kept(kept: Kept) -> list[Ended]:
    return [Ended(number=at, fate=Fate.KEPT, reason=why) for at, why in sorted(kept.items())]


def _ended(at: int, finding: Finding, error: str | None) -> Ended:
    if error is not None:
        return Ended(number=at, fate=Fate.FAILED, reason=error)
    objects = 1 if finding.kind is FindingKind.ORPHAN_SEGMENT else 0
    return Ended(number=at, fate=Fate.DELETED, objects=objects, size_bytes=finding.size_bytes)
