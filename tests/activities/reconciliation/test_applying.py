"""An apply: each finding looked at again, each effect repeatable, counts of confirmations alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from activities.deletion.deletion_pace import DeletionPace
from logstore import failpoints
from logstore.deletion.intents import Outcome
from logstore.errors import (
    CatalogMismatch,
    PreconditionFailed,
    StaleCatalog,
    StoreUnavailable,
    UnknownObject,
)
from logstore.failpoints import SimulatedCrash
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.ports.catalog.reconciliation import RunKind
from logstore.ports.object_storage import DeleteReport, ObjectInfo, ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.bulk_job_inputs_and_results import VerifyFindingsJob
from logstore.reconciliation.findings import FateOfFinding, Finding, FindingFate, FindingKind
from logstore.reconciliation.plausibility_guards import reason_to_keep_segment
from logstore.reconciliation.services import orphan_inspection
from tests.activities.reconciliation.plans import BATCH, RUN, Plans
from tests.activities.reconciliation.test_planning import REFUSAL
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation


def fates(plans: Plans, page: int = 0) -> dict[int, tuple[FindingFate, str]]:
    stored = plans.runs.read_fates(f"apply-{RUN}", page)
    return {number: (fate.fate, fate.reason) for number, fate in stored.items() if fate}


def fates_recorded(plans: Plans) -> dict[int, tuple[FindingFate, str]]:
    plans.record()
    return fates(plans)


# -- guards


def test_plan_that_does_not_exist_or_did_not_finish_is_refused(plans: Plans) -> None:
    """Nothing is opened."""
    with pytest.raises(UnknownObject):
        plans.begin_apply()
    plans.begin()
    with pytest.raises(PreconditionFailed, match="no summary"):
        plans.begin_apply()
    assert plans.runs.list_runs(RunKind.APPLY, limit=9) == []


def test_plan_of_another_catalog_or_epoch_is_refused(plans: Plans) -> None:
    """What it says is not of these rows."""
    plans.plan()
    plans.runs.state = type(plans.runs.state)(now_us=1, epoch=2, next_ledger_id=1)
    with pytest.raises(StaleCatalog):
        plans.begin_apply()
    plans.identities.id = "another"
    with pytest.raises(PreconditionFailed, match="catalog another"):
        plans.begin_apply()
    assert plans.runs.list_runs(RunKind.APPLY, limit=9) == []


def test_another_plan_s_findings_are_refused(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files must hold what the summary counts."""
    plans.orphan_ledger(7)
    plans.plan()
    plans.orphan_ledger(8)
    plans.begin("plan-2")
    plans.do(VerifyFindingsJob.name, run_id="plan-2")
    theirs = plans.bulk.find_published_summary("plan-2", VerifyFindingsJob.name)
    monkeypatch.setattr(plans.bulk, "find_published_summary", lambda _run_id, _name: theirs)
    with pytest.raises(PreconditionFailed, match="expected its findings"):
        plans.begin_apply(max_orphan_share=1.0)


def test_plan_of_a_build_that_knew_fewer_kinds_is_applied(plans: Plans) -> None:
    """Its summary has no count of the kinds that it did not know."""
    plans.orphan_ledger(7)
    plans.plan()
    summary = dict(plans.runs.get_run(RUN).summary)
    summary["result"] = {**summary["result"], "findings": {"orphan_ledger": 1}}
    plans.runs._runs[RUN].run = replace(plans.runs.get_run(RUN), summary=summary)
    assert plans.begin_apply(max_orphan_share=1.0).findings == 1


def test_findings_that_this_worker_does_not_see_are_refused(plans: Plans) -> None:
    """Every worker must see the folder of bulk output."""
    plans.plan()
    plans.bulk.remove_run(RUN)
    with pytest.raises(PreconditionFailed, match="folder of bulk output"):
        plans.begin_apply()


def test_more_orphans_than_may_be_are_refused(plans: Plans) -> None:
    """One in five is no leak but a mistake, until a person says otherwise."""
    plans.orphan_ledger(7)
    plans.plan()
    with pytest.raises(PreconditionFailed, match=r"max-orphan-share 0\.2 "):
        plans.begin_apply()
    assert plans.begin_apply(max_orphan_share=0.2).findings == 1


def test_more_orphaned_offloads_than_may_be_are_refused(plans: Plans) -> None:
    """A catalog that has lost its contexts names no tiered copy, though its ledgers overlap with storage as ever."""
    plans.orphan_offload(8)
    plans.plan()
    with pytest.raises(PreconditionFailed, match=r"max-orphan-share 0\.2 "):
        plans.begin_apply()
    assert plans.begin_apply(max_orphan_share=0.2).findings == 1


def test_plan_that_was_applied_answers_what_it_came_to_whatever_the_share(plans: Plans) -> None:
    """Nothing more goes, so that there is nothing to refuse."""
    plans.orphan_ledger(7)
    plans.plan()
    done = plans.apply()
    assert plans.begin_apply(max_orphan_share=0.0).done == done


def test_another_catalog_s_bucket_is_refused_at_each_step(plans: Plans) -> None:
    """Also if it changed hands in the middle."""
    plans.orphan_ledger(7)
    plans.orphan_segment(3, 9)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    plans.warm.refusal = REFUSAL
    for step in (plans.begin_apply, plans.file, plans.delete):
        with pytest.raises(CatalogMismatch):
            step(max_orphan_share=1.0) if step == plans.begin_apply else step()
    assert segment_key(LedgerId(3), 9) in plans.warm.keys
    assert plans.runs.filings == {}


def test_catalog_that_was_restored_meanwhile_is_refused_at_each_step(plans: Plans) -> None:
    """A restored catalog has forgotten what was passed over: a writer may have registered that segment since."""
    plans.orphan_ledger(7)
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    plans.runs.state = replace(plans.runs.state, epoch=2)
    for step in (plans.file, plans.delete):
        with pytest.raises(StaleCatalog):
            step()
    assert segment in plans.warm.keys
    assert (plans.runs.filings, plans.runs.passed_over) == ({}, [])


def test_restore_between_the_decision_and_the_deletion_keeps_the_segment(plans: Plans) -> None:
    """A restore to a later moment has the decision, and not every row that made it true."""
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    failpoints.arm("catalog.decide_objects.after", "crash")
    try:
        with pytest.raises(SimulatedCrash):
            plans.delete()
    finally:
        failpoints.disarm_all_and_take_hits()
    plans.runs.state = replace(plans.runs.state, epoch=2)
    with pytest.raises(StaleCatalog):
        plans.delete()
    assert segment in plans.warm.keys


# -- what is done


def test_every_kind_that_apply_acts_upon_is_applied_and_the_rest_left_alone(plans: Plans) -> None:
    """Missing data, mismatches and foreign objects are only reported."""
    plans.orphan_ledger(7)
    plans.orphan_offload(8)
    upload, segment = plans.abandoned_upload(9), plans.orphan_segment(3, 9)
    plans.row(FindingKind.UNREFERENCED_LEDGER, 10)
    plans.row(FindingKind.STALLED_DELETION, 11, row_id=11)
    for kind in (FindingKind.MISSING_DATA, FindingKind.MISMATCH, FindingKind.FOREIGN):
        plans.row(kind, 12)
    plans.plan()
    done = plans.apply()
    expected = {"orphan_ledger": 1, "orphan_offload": 2, "orphan_segment": 1}
    assert done.applied == expected | {"unreferenced_ledger": 1, "stalled_deletion": 1}
    assert (done.skipped, done.failed) == ({}, 0)
    assert done.objects == 4 * 3 + 1
    assert segment not in plans.warm.keys
    assert upload not in plans.cold.unfinished
    assert plans.runs.passed_over == [{3: (LedgerId(3), 9)}]
    assert sorted(fates(plans)) == [0, 1, 2, 3, 4, 5]


def test_what_is_filed_bears_who_and_why(plans: Plans) -> None:
    """For the audit log."""
    plans.orphan_ledger(7)
    plans.plan()
    plans.file()
    (cause,) = plans.runs.causes
    assert (cause.actor, cause.reason, cause.workflow_id) == ("tests", "a test", f"delete-ledgers/{BATCH}")


def test_finding_that_is_not_true_any_more_is_kept_with_its_reason(plans: Plans) -> None:
    """Storage and catalog are both asked again."""
    plans.orphan_ledger(7)
    plans.orphan_ledger(8)
    plans.orphan_segment(3, 9)
    plans.orphan_segment(3, 10)
    plans.plan()
    plans.warm.put_if_absent(segment_key(LedgerId(7), 5), b"x", metadata=plans.statement(7).to_metadata())
    plans.runs.keeps = {1: "a row names it", 3: "a row names the segment"}
    done = plans.apply()
    assert done.applied == {"orphan_segment": 1}
    assert done.skipped == {orphan_inspection.YOUNG: 1, "a row names it": 1, "a row names the segment": 1}
    assert segment_key(LedgerId(3), 10) in plans.warm.keys
    assert fates(plans)[0] == (FindingFate.KEPT, orphan_inspection.YOUNG)


def test_reasons_count_together_whatever_they_name(plans: Plans) -> None:
    """The files have the whole sentence."""
    for number in range(3):
        plans.orphan_segment(3, number)
    plans.plan()
    plans.runs.keeps = {at: f"segment {at} of ledger 3: a row names it" for at in range(2)}
    plans.runs.keeps[2] = "ledger 3: deletion 12: the deletion of this copy is PENDING"
    plans.delete()
    assert plans.record().skipped == {"a row names it": 2, "the deletion of this copy is PENDING": 1}
    assert fates(plans)[1] == (FindingFate.KEPT, "segment 1 of ledger 3: a row names it")


def test_reasons_keep_the_numbers_that_they_state(plans: Plans) -> None:
    """A bound is part of the reason; only the ledger, segment or deletion that it is about is left out."""
    plans.orphan_segment(3, 80)
    plans.plan()
    why = reason_to_keep_segment(LedgerState.OPEN, last_segment=5, has_primary_copy=True, number=80)
    plans.runs.keeps = {0: f"segment 80 of ledger 3: {why}"}
    plans.delete()
    assert plans.record().skipped == {"it is more than 64 above 5, the highest of an open ledger": 1}


def test_pages_are_summed_up(plans: Plans) -> None:
    """Of files alone, so that a page that is done twice counts once."""
    for ledger_id in range(5):
        plans.orphan_ledger(ledger_id)
    plans.plan(page=2)
    assert plans.begin_apply(max_orphan_share=1.0).pages == 3
    done = plans.apply(pages=3)
    assert done.applied == {"orphan_ledger": 5}
    assert plans.begin_apply(max_orphan_share=1.0).done == done


def test_apply_of_which_a_page_is_missing_is_not_finished(plans: Plans) -> None:
    """Its sum would be too small."""
    plans.orphan_ledger(0)
    plans.orphan_ledger(1)
    plans.plan(page=1)
    with pytest.raises(PreconditionFailed, match="page 1"):
        plans.apply(pages=1)
    assert plans.begin_apply(max_orphan_share=1.0).done is None


@pytest.mark.parametrize(
    ("outcome", "kind", "fate", "reason"),
    [
        (Outcome.ALREADY_GONE, FindingKind.ORPHAN_LEDGER, FindingFate.DELETED, ""),
        (Outcome.RETRYING, FindingKind.ORPHAN_LEDGER, FindingFate.FAILED, "RETRYING: storage kept a key"),
        (None, FindingKind.ORPHAN_LEDGER, FindingFate.FAILED, "RETRYING: storage kept a key"),
        (
            Outcome.METADATA_MISMATCH,
            FindingKind.ORPHAN_LEDGER,
            FindingFate.FAILED,
            "METADATA_MISMATCH: storage kept a key",
        ),
        (Outcome.RETRYING, FindingKind.STALLED_DELETION, FindingFate.STARTED, ""),
        (Outcome.DEAD_LETTERED, FindingKind.STALLED_DELETION, FindingFate.FAILED, "DEAD_LETTERED: storage kept a key"),
        (Outcome.DELETED, FindingKind.STALLED_DELETION, FindingFate.DELETED, ""),
    ],
)
def test_fate_of_a_copy_is_that_of_its_row(
    outcome: Outcome | None, kind: FindingKind, fate: FindingFate, reason: str, plans: Plans
) -> None:
    """Rows that are tried again by workflows of their own have failed so far; a stalled one was started."""
    if kind is FindingKind.ORPHAN_LEDGER:
        plans.orphan_ledger(7)
    else:
        plans.row(kind, 7, row_id=7)
    plans.plan()
    plans.runs.outcome = outcome
    done = plans.apply()
    assert fates(plans) == {0: (fate, reason)}
    assert done.failed == (fate is FindingFate.FAILED)
    assert done.failures == ({"0": reason} if fate is FindingFate.FAILED else {})


@pytest.mark.parametrize("kind", [FindingKind.ORPHAN_LEDGER, FindingKind.STALLED_DELETION])
def test_deletion_that_a_sweep_took_over_has_been_started(kind: FindingKind, plans: Plans) -> None:
    """The worker was away for so long that a sweep found the page's rows: they are neither kept nor confirmed."""
    plans.orphan_ledger(7)
    plans.row(FindingKind.STALLED_DELETION, 8, row_id=8)
    plans.plan()
    filed = plans.file()
    number = 0 if kind is FindingKind.ORPHAN_LEDGER else 1
    plans.runs.rows[BATCH] = [row for row in plans.runs.rows[BATCH] if (row.row_id == 8) != bool(number)]
    done = plans.record(intents=filed.intents)
    fate, reason = fates(plans)[number]
    assert (fate, "another batch took its deletion over" in reason) == (FindingFate.STARTED, True)
    assert fates(plans)[1 - number] == (FindingFate.DELETED, "")
    assert (done.skipped, done.failed) == ({}, 0)


def test_ledger_of_which_a_sweep_took_one_copy_over_is_not_said_to_be_gone(plans: Plans) -> None:
    """Its other copy's row tells nothing of that one (promise 2)."""
    plans.row(FindingKind.UNREFERENCED_LEDGER, 7)
    plans.plan()
    plans.file()
    assert plans.record(intents=1).applied == {"unreferenced_ledger": 1}
    assert fates(plans) == {0: (FindingFate.DELETED, "")}
    plans.record(intents=2)
    assert fates(plans)[0][0] is FindingFate.STARTED


def test_row_of_another_finding_of_the_same_ledger_counts_once(plans: Plans) -> None:
    """A ledger that nothing names may have an offload that nothing names: each has its own confirmations."""
    plans.row(FindingKind.UNREFERENCED_LEDGER, 7)
    plans.orphan_offload(7)
    plans.plan()
    filed = plans.file()
    plans.runs.rows[BATCH] = [
        replace(row, outcome=Outcome.DEAD_LETTERED, objects=1) if row.uuid else row for row in plans.runs.rows[BATCH]
    ]
    done = plans.record(intents=filed.intents)
    assert (done.applied, done.failed, done.objects) == ({"unreferenced_ledger": 1}, 1, 4)
    assert fates(plans)[0] == (FindingFate.DELETED, "")


def test_copy_that_a_plan_names_twice_counts_once(plans: Plans) -> None:
    """The catalog files the first one."""
    plans.orphan_ledger(7)
    plans.findings.append(plans.findings[0])
    plans.plan()
    plans.runs.keeps = {1: "ledger 7: the plan names this copy twice"}
    done = plans.apply()
    assert (done.applied, done.skipped) == ({"orphan_ledger": 1}, {"the plan names this copy twice": 1})


def test_long_reasons_that_begin_alike_are_counted_together(plans: Plans) -> None:
    """None of them is lost where they are cut."""
    plans.orphan_segment(3, 9)
    plans.orphan_segment(3, 10)
    plans.plan()
    plans.runs.keeps = {at: "x" * 200 + chr(97 + at) for at in range(2)}
    plans.delete()
    assert plans.record().skipped == {"x" * 200: 2}


class _Silent(FakeObjectStore):
    """A bucket that can answer nothing but 404."""

    silent = False

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        return None if self.silent else super().head(key)

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        return None if self.silent else super().get_range(key, start, length, expected_metadata=expected_metadata)

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        return iter(()) if self.silent else super().list(prefix, start_after=start_after, first_page=first_page)

    def require_ownership_now(self) -> None:
        super().require_ownership_now()
        if self.silent:
            raise REFUSAL


@pytest.mark.parametrize("step", ["file", "delete"])
def test_orphan_is_not_said_to_be_gone_by_a_bucket_whose_marker_is_gone_too(
    step: str, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket was the catalog's when the look began: what it answers after that is not taken for absence."""
    plans.warm = _Silent()
    plans.rewire()
    plans.orphan_ledger(7)
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    real = orphan_inspection.inspect_orphan

    def fall_silent(store: ObjectStore, finding: Finding) -> orphan_inspection.OrphanObjects:
        plans.warm.silent = True  # type: ignore[attr-defined]
        return real(store, finding)

    with monkeypatch.context() as patched:
        patched.setattr(orphan_inspection, "inspect_orphan", fall_silent)
        with pytest.raises(CatalogMismatch):
            getattr(plans, step)()
    plans.warm.silent = False
    assert plans.apply().skipped == {}
    assert segment not in plans.warm.keys


def test_orphan_that_storage_hides_is_kept_and_asks_for_another_plan(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer shows an object that stands: the apply deleted nothing of it, and does not say that it is gone."""
    plans.orphan_ledger(7)
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    before = plans.warm.keys
    with monkeypatch.context() as patched:
        patched.setattr(plans.warm, "list", lambda _prefix, **_more: iter(()))
        for method in ("head", "get_range"):
            patched.setattr(plans.warm, method, lambda *_, **_more: None)
        done = plans.apply()
    assert (done.applied, done.failed, done.objects) == ({}, 0, 0)
    assert done.skipped == {"storage shows none of the objects that the plan listed; plan again": 2}
    assert {fate for fate, _ in fates(plans).values()} == {FindingFate.KEPT}
    assert plans.warm.keys == before
    assert segment in before


# -- done twice, at any distance


def test_page_that_is_filed_again_after_phase_two_keeps_what_was_filed(plans: Plans) -> None:
    """Its answer may have been lost for so long that nothing is left in storage (PIP-186, idempotency)."""
    plans.orphan_ledger(7)
    plans.plan()
    first = plans.file()
    plans.warm.delete(plans.warm.keys)
    assert plans.file() == first
    assert plans.record().applied == {"orphan_ledger": 1}


def test_page_of_which_two_attempts_overlap_is_filed_as_the_first_one_saw_it(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later attempt finds less in storage. The catalog returns the first result (dust-tt/dust#4272)."""
    plans.orphan_ledger(7)
    plans.orphan_ledger(8)
    plans.plan()
    real = plans.runs.find_filed_batch

    def overtake(batch_id: str) -> DetachedBatch | None:
        found = real(batch_id)
        with monkeypatch.context() as patched:
            patched.setattr(plans.runs, "find_filed_batch", real)
            assert plans.file().intents == 2
        plans.warm.delete(plans.warm.keys)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(plans.runs, "find_filed_batch", overtake)
        assert plans.file().intents == 2
    assert plans.record(intents=2).applied == {"orphan_ledger": 2}


@pytest.mark.parametrize(
    "point",
    [
        "catalog.decide_objects",
        "reconciliation.delete_objects",
        "catalog.store_fates",
        "reconciliation.abort_uploads",
    ],
)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_objects_are_counted_once_whenever_the_process_died(point: str, moment: str, plans: Plans) -> None:
    """What was decided is written down before the first delete would change the answer."""
    plans.orphan_segment(3, 9)
    plans.orphan_segment(3, 10)
    plans.abandoned_upload(9)
    plans.plan()
    failpoints.arm(f"{point}.{moment}", "crash")
    try:
        with pytest.raises(SimulatedCrash):
            plans.delete()
    finally:
        failpoints.disarm_all_and_take_hits()
    plans.delete()
    plans.delete()
    counts = plans.record()
    assert counts.applied == {"orphan_segment": 2, "orphan_offload": 1}
    assert (counts.objects, counts.skipped, counts.failed) == (2, {}, 0)


def test_attempt_that_decides_late_takes_the_word_of_the_first(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began before the other had decided, and found in storage what that one had left of it."""
    plans.orphan_segment(3, 9)
    plans.plan()
    real = plans.runs.read_fates

    def late(run_id: str, page: int) -> Mapping[int, FateOfFinding | None]:
        found = real(run_id, page)
        monkeypatch.setattr(plans.runs, "read_fates", real)
        assert plans.delete() == 1
        return found

    monkeypatch.setattr(plans.runs, "read_fates", late)
    assert plans.delete() == 1
    assert plans.record().applied == {"orphan_segment": 1}
    assert len(plans.runs.passed_over) == 1


def test_upload_that_is_not_looked_at_any_more_is_kept_and_not_counted(plans: Plans) -> None:
    """The worker that goes on has settings with another tiered bucket: nothing confirms that the parts are gone."""
    upload = plans.abandoned_upload(9)
    plans.plan()
    failpoints.arm("catalog.decide_objects.after", "crash")
    try:
        with pytest.raises(SimulatedCrash):
            plans.delete()
    finally:
        failpoints.disarm_all_and_take_hits()
    plans.stored._driver_metadata["bucket"] = "colder"
    assert plans.delete() == 0
    assert upload in plans.cold.unfinished
    assert fates_recorded(plans) == {0: (FindingFate.KEPT, orphan_inspection.OTHER_BUCKET)}


@pytest.mark.parametrize("step", ["begin_apply", "file", "delete", "record", "conclude_apply", "preview"])
def test_unfinished_apply_of_a_build_that_decided_in_files_is_refused_at_each_step(step: str, plans: Plans) -> None:
    """Its decisions are not in the catalog: a repeated step could contradict them. A new plan finds what is left."""
    plans.orphan_ledger(7)
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    plans.begin_apply(max_orphan_share=1.0)
    run_id = f"apply-{RUN}"
    plans.runs.store_summary(run_id, {**plans.runs.get_run(run_id).summary, "folder": "/bulk/plan-1"})
    steps: Mapping[str, Callable[[], object]] = {
        "begin_apply": partial(plans.begin_apply, max_orphan_share=1.0),
        "file": plans.file,
        "delete": plans.delete,
        "record": plans.record,
        "conclude_apply": plans.conclude_apply,
        "preview": partial(plans.preview.preview_apply, RUN),
    }
    with pytest.raises(PreconditionFailed, match=r"in files of an earlier build\..*Plan again"):
        steps[step]()
    assert segment in plans.warm.keys
    assert (plans.runs.filings, plans.runs.passed_over) == ({}, [])


def test_finished_apply_of_a_build_that_decided_in_files_still_answers(plans: Plans) -> None:
    plans.orphan_ledger(7)
    plans.plan()
    done = plans.apply()
    claimed = plans.runs._runs[f"apply-{RUN}"]
    claimed.run = replace(claimed.run, summary={**claimed.run.summary, "folder": "/bulk/plan-1"})
    assert plans.begin_apply(max_orphan_share=1.0).done == done


def test_page_without_decisions_is_not_recorded(plans: Plans) -> None:
    plans.orphan_ledger(7)
    plans.orphan_segment(3, 9)
    plans.plan()
    plans.file()
    with pytest.raises(PreconditionFailed, match="expected page 0 to be applied"):
        plans.record()
    plans.delete()
    assert sum(plans.record().applied.values()) == 2


def test_deletion_that_is_stored_is_not_repeated(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = plans.orphan_segment(3, 9), plans.orphan_segment(3, 10)
    plans.plan()
    plans.warm.plan(
        Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key == kept)
    )
    assert plans.delete() == 1
    requested, real = list[str](), plans.warm.delete

    def delete(keys: Sequence[str]) -> DeleteReport:
        requested.extend(keys)
        return real(keys)

    monkeypatch.setattr(plans.warm, "delete", delete)
    assert (plans.delete(), requested) == (2, [kept])


def test_object_that_storage_keeps_has_failed(plans: Plans) -> None:
    """A delete counts when the store confirms it, key by key (apache/pulsar#14693)."""
    kept, gone = plans.orphan_segment(3, 9), plans.orphan_segment(3, 10)
    plans.plan()
    plans.warm.plan(
        Fault(
            operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key == kept, times=9
        )
    )
    assert plans.delete() == 1
    counts = plans.record()
    assert (counts.applied, counts.failed, counts.objects) == ({"orphan_segment": 1}, 1, 1)
    assert "InternalError" in counts.failures["0"]
    assert kept in plans.warm.keys
    assert gone not in plans.warm.keys


def test_object_that_storage_confirms_and_keeps_has_failed(plans: Plans) -> None:
    """What a store says that it deleted is looked at again, by sample."""
    segment = plans.orphan_segment(3, 9)
    plans.plan()
    plans.warm.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.LOST))
    done = plans.apply()
    assert (done.applied, done.failed) == ({}, 1)
    assert "the store confirmed its deletion and still has it" in done.failures["0"]
    assert segment in plans.warm.keys


def test_storage_that_goes_away_is_waited_for(plans: Plans) -> None:
    """Silence is no refusal of a key."""
    plans.orphan_segment(3, 9)
    plans.plan()
    plans.warm.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        plans.delete()
    assert plans.delete() == 1


def test_deletes_of_single_objects_are_paced(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more keys in one request than the rate allows a second, and a wait behind each."""
    for number in range(5):
        plans.orphan_segment(3, number)
    plans.plan()
    now, pages, real = [0.0], list[int](), plans.warm.delete

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def delete(keys: Sequence[str]) -> DeleteReport:
        pages.append(len(keys))
        return real(keys)

    pace = partial(DeletionPace, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("activities.reconciliation.apply_orphans.DeletionPace", pace)
    monkeypatch.setattr(plans.warm, "delete", delete)
    assert plans.delete(objects_per_s=2.0) == 5
    assert pages == [2, 2, 1]
    assert now == [2.5]


def test_kinds_of_reasons_and_samples_are_bounded(plans: Plans) -> None:
    """What travels in a payload stays small; files have all of it."""
    for number in range(150):
        plans.orphan_segment(3, number)
    plans.plan()
    plans.runs.keeps = {at: f"reason {chr(65 + at)}" for at in range(30)}
    plans.warm.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, times=999))
    plans.delete()
    counts = plans.record()
    assert len(counts.skipped) == 21
    assert counts.skipped["other reasons"] == 10
    assert (counts.failed, len(counts.failures)) == (120, 100)
    assert sum(fate is FindingFate.KEPT for fate, _ in fates(plans).values()) == 30
