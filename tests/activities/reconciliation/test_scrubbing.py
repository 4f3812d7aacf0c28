"""The activities of a scrub: which run they go on with, what is read again, and what the summary counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from activities.reconciliation.inputs_and_results import (
    BeginScrubInput,
    CutScrubInput,
    ScrubCounts,
    ScrubPageInput,
    ScrubRunId,
)
from logstore.errors import CatalogMismatch, ClaimHeld, PreconditionFailed, UnknownObject
from logstore.positions import LedgerId
from logstore.reconciliation.bulk_job_inputs_and_results import CutScrubIntoPagesJob, ScrubPageJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind, PlanOrScrubResult
from tests.activities.activity_world import run
from tests.activities.reconciliation.plans import Plans

_WORKFLOW = "scrub-ledgers"


def _begin(plans: Plans, run_id: str = "scrub-1", *, topics: tuple[int, ...] = (), by: str = _WORKFLOW) -> str:
    asked = BeginScrubInput(run_id=run_id, actor="tests", topic_ids=list(topics))
    return run(plans.scrubbing.begin_or_continue_scrub, asked, workflow_id=by).run_id


def _cut(plans: Plans, run_id: str = "scrub-1") -> ScrubCounts:
    return run(plans.scrubbing.cut_scrub_into_pages, CutScrubInput(run_id=run_id, bytes_per_s=9), workflow_id=_WORKFLOW)


def _read(plans: Plans, page: int, run_id: str = "scrub-1") -> ScrubCounts:
    asked = ScrubPageInput(run_id=run_id, page=page, bytes_per_s=7)
    return run(plans.scrubbing.scrub_page, asked, workflow_id=_WORKFLOW)


def _conclude(plans: Plans, run_id: str = "scrub-1") -> PlanOrScrubResult:
    return run(plans.scrubbing.conclude_scrub, ScrubRunId(run_id=run_id), workflow_id=_WORKFLOW)


def _corrupt(ledger_id: int) -> Finding:
    return Finding(kind=FindingKind.CORRUPT_DATA, ledger_id=LedgerId(ledger_id), size_bytes=5, detail="read twice")


def test_scrub_counts_the_findings_of_every_page_once(plans: Plans) -> None:
    """However often it is concluded."""
    plans.bulk.damaged = {0: [_corrupt(1)], 1: [_corrupt(2), _corrupt(3)]}
    plans.bulk.facts = {"left out: copies": "they stand elsewhere"}
    assert _begin(plans) == "scrub-1"
    assert _cut(plans) == ScrubCounts(pages=2, objects=20, size_bytes=1_000)
    assert _read(plans, 0) == ScrubCounts(objects=10, size_bytes=500, findings=1)
    assert _read(plans, 1).findings == 2
    result = _conclude(plans)
    assert (result.findings["corrupt_data"], result.size_bytes["corrupt_data"], result.ledgers) == (3, 15, 2)
    assert result.left_out == ["copies: they stand elsewhere"]
    assert [one.ledger_id for _, one in FindingFiles(Path(result.report)).iterate_findings()] == [1, 2, 3]
    assert _conclude(plans) == result


def test_page_that_was_read_is_not_read_again(plans: Plans) -> None:
    _begin(plans)
    _cut(plans)
    assert _read(plans, 0) == _read(plans, 0)
    assert plans.bulk.ran == [
        CutScrubIntoPagesJob(run_id="scrub-1", topics=(), next_ledger_id=100, bytes_per_s=9),
        ScrubPageJob(run_id="scrub-1", page=0, bytes_per_s=7),
    ]


def test_unfinished_scrub_of_the_same_topics_goes_on(plans: Plans) -> None:
    """In whatever order they are named; one that is finished does not."""
    assert _begin(plans, "scrub-1", topics=(2, 1)) == "scrub-1"
    assert _begin(plans, "scrub-2", topics=(1, 2)) == "scrub-1"
    assert _begin(plans, "scrub-3") == "scrub-3"
    _cut(plans)
    _read(plans, 0)
    _read(plans, 1)
    _conclude(plans)
    assert _begin(plans, "scrub-4", topics=(1, 2)) == "scrub-4"


def test_scrub_of_an_earlier_epoch_or_another_catalog_is_not_gone_on_with(plans: Plans) -> None:
    """Ranges of its ids say nothing of these ledgers."""
    _begin(plans, "scrub-1")
    plans.runs.state = replace(plans.runs.state, epoch=2)
    assert _begin(plans, "scrub-2") == "scrub-2"


def test_scrub_whose_output_was_lost_is_not_gone_on_with(plans: Plans) -> None:
    """It could never end."""
    plans.bulk.damaged = {0: [_corrupt(1)]}
    _begin(plans)
    _cut(plans)
    _read(plans, 0)
    published = plans.bulk.find_published_summary("scrub-1", "scrub-page-000000")
    assert published is not None
    (Path(published.folder) / "findings-0.parquet").unlink()
    assert _begin(plans, "scrub-2") == "scrub-2"


def test_scrub_that_another_workflow_works_on_is_refused(plans: Plans) -> None:
    _begin(plans)
    with pytest.raises(ClaimHeld):
        _begin(plans, "scrub-2", by="scrub-ledgers-2026-11-23T00:00:00Z")


def test_scrub_that_lacks_a_page_is_not_concluded(plans: Plans) -> None:
    """Nobody may take silence about a page for its being sound."""
    _begin(plans)
    _cut(plans)
    _read(plans, 0)
    with pytest.raises(PreconditionFailed, match="expected scrub-page-000001 to be published"):
        _conclude(plans)
    assert plans.runs.get_run("scrub-1").finished_us is None


def test_bucket_that_became_anothers_ends_the_scrub(plans: Plans) -> None:
    """What it lacks is not missing."""
    _begin(plans)
    _cut(plans)
    plans.cold.refusal = CatalogMismatch("bucket", expected="ours", found="theirs", advice="look")
    with pytest.raises(CatalogMismatch):
        _read(plans, 0)
    with pytest.raises(CatalogMismatch):
        _conclude(plans)


def test_run_that_was_forgotten_is_not_opened_again(plans: Plans) -> None:
    """A rebuilt catalog knows nothing of it."""
    with pytest.raises(UnknownObject):
        _cut(plans, "scrub-9")
