"""The preview of an apply: progress by pages, the same refusals and requests as the apply, and no effect."""

from collections import Counter
from dataclasses import replace

import pytest

from logstore.errors import CatalogMismatch, PreconditionFailed, StaleCatalog
from logstore.failpoints import SimulatedCrash, arm
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.services import orphan_inspection
from tests.activities.reconciliation.plans import RUN, Plans
from tests.activities.reconciliation.test_planning import REFUSAL


def _mixed(plans: Plans) -> None:
    for ledger_id in range(3):
        plans.orphan_ledger(ledger_id)
    plans.orphan_offload(8)
    plans.abandoned_upload(9)
    plans.orphan_segment(5, 1)
    plans.row(FindingKind.UNREFERENCED_LEDGER, 10)
    plans.row(FindingKind.MISSING_DATA, 11)
    plans.plan(page=3)


def test_preview_tells_each_page_and_what_its_apply_does(plans: Plans) -> None:
    _mixed(plans)
    plans.runs.keeps = {1: "ledger 1: a row names it", 5: "segment 1 of ledger 5: a row names it"}
    pages: list[tuple[int, int]] = []
    result = plans.preview.preview_apply(RUN, lambda done, total: pages.append((done, total)))
    assert pages == [(0, 3), (1, 3), (2, 3)]
    done = plans.apply(pages=3)
    assert (result.counts.applied, result.counts.skipped) == (done.applied, done.skipped)
    assert result.size_bytes == {"orphan_ledger": 600, "orphan_offload": 200, "unreferenced_ledger": 0}


def test_preview_files_nothing_and_opens_no_run(plans: Plans) -> None:
    _mixed(plans)
    keys, uploads = dict.fromkeys(plans.warm.keys), set(plans.cold.unfinished)
    plans.preview.preview_apply(RUN)
    assert dict.fromkeys(plans.warm.keys) == keys
    assert set(plans.cold.unfinished) == uploads
    assert (plans.runs.filings, plans.runs.passed_over, plans.runs.causes) == ({}, [], [])
    assert plans.runs.list_runs(RunKind.APPLY, limit=9) == []


def test_preview_asks_storage_no_more_than_the_apply(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    _mixed(plans)
    looks: Counter[str] = Counter()
    look = orphan_inspection.inspect_orphan

    def count(*args: object) -> orphan_inspection.OrphanObjects:
        looks["looks"] += 1
        return look(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(orphan_inspection, "inspect_orphan", count)
    plans.preview.preview_apply(RUN)
    assert looks.pop("looks") == 5
    plans.apply(pages=3)
    assert looks["looks"] == 5


@pytest.mark.parametrize(
    "point", ["catalog.decide_objects.before", "catalog.decide_objects.after", "reconciliation.delete_objects.after"]
)
def test_preview_of_an_interrupted_apply_counts_what_it_has_decided(point: str, plans: Plans) -> None:
    """Of what has gone since, storage shows nothing any more."""
    plans.orphan_ledger(1)
    plans.orphan_segment(5, 1)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        plans.apply()
    plans.warm.delete([key for key in plans.warm.keys if "0000000000000001/" in key])
    result = plans.preview.preview_apply(RUN)
    assert result.counts.applied == {"orphan_ledger": 1, "orphan_segment": 1}
    assert plans.apply().applied == result.counts.applied


def test_preview_refuses_what_its_apply_refuses(plans: Plans) -> None:
    """And takes no bucket without a marker."""
    plans.orphan_ledger(1)
    plans.plan()
    plans.warm.refusal = REFUSAL
    with pytest.raises(CatalogMismatch):
        plans.preview.preview_apply(RUN)
    plans.warm.refusal = None
    plans.runs.state = replace(plans.runs.state, epoch=2)
    with pytest.raises(StaleCatalog):
        plans.preview.preview_apply(RUN)
    plans.identities.id = "another"
    with pytest.raises(PreconditionFailed, match="catalog another"):
        plans.preview.preview_apply(RUN)


def test_preview_without_the_folder_of_findings_is_refused(plans: Plans) -> None:
    plans.plan()
    plans.bulk.remove_run(RUN)
    with pytest.raises(PreconditionFailed, match="bulk_dir"):
        plans.preview.preview_apply(RUN)
