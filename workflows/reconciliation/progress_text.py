"""Progress of plans, scrubs and applies as Markdown for operators, and refusals by guards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from temporalio.exceptions import ActivityError

from logstore.deletion.intents import RequestRefusal
from logstore.pulsar.plan_jobs import FIRST_SCAN, SECOND_SCAN, CompareScansJob
from logstore.reconciliation.bulk_job_inputs_and_results import (
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
)
from logstore.reconciliation.findings import ApplyCounts, FindingKind, PlanOrScrubResult, add_apply_counts
from workflows.guard_refusal_results import refusal_from_error
from workflows.reconciliation.job_definitions import (
    GUARDS,
    ApplyOrphansProgress,
    PlanProgress,
    ScrubLedgersProgress,
)

_LABEL_BY_COUNT: Final = {
    (ListStorageJob.name, "objects"): "objects of ledgers in storage",
    (ListStorageJob.name, "strange"): "other objects in storage",
    (ListStorageJob.name, "uploads"): "unfinished uploads in storage",
    (ReadLedgersAndIntentsJob.name, "ledgers"): "ledgers in the catalog",
    (CompareStorageWithCatalogJob.name, "young"): "ledgers too young to be judged",
    (CompareStorageWithCatalogJob.name, "candidates"): "differences, each of which is looked at once more",
    (FIRST_SCAN, "ledgers"): "ledgers in the first scan",
    (FIRST_SCAN, "references"): "references to ledgers in the first scan",
    (FIRST_SCAN, "problems"): "values that the first scan could not read",
    (SECOND_SCAN, "ledgers"): "ledgers in the second scan",
    (SECOND_SCAN, "references"): "references to ledgers in the second scan",
    (SECOND_SCAN, "problems"): "values that the second scan could not read",
    (CompareScansJob.name, "young"): "ledgers without references that are too young to be judged",
}
"""Labels of those counts of bulk jobs that operators see. All other counts are for guards."""


def find_guard_refusal(error: ActivityError) -> RequestRefusal | None:
    return refusal_from_error(error, GUARDS)


def add_page_counts(progress: ApplyOrphansProgress, counts: ApplyCounts) -> ApplyOrphansProgress:
    total = add_apply_counts(progress.counts, counts)
    applied, skipped = sum(total.applied.values()), sum(total.skipped.values())
    findings_with_fate = applied + skipped + total.failed
    return replace(
        progress,
        pages_done=progress.pages_done + 1,
        outcomes={"applied": applied, "skipped": skipped, "failed": total.failed},
        objects=total.objects,
        size_bytes=total.size_bytes,
        done=findings_with_fate,
        left=max(0, progress.intents - findings_with_fate),
        counts=total,
    )


def format_plan(progress: PlanProgress, findings: str) -> str:
    counts = "".join(
        f"- {progress.counts[job][name]:,} {label}\n"
        for (job, name), label in _LABEL_BY_COUNT.items()
        if name in progress.counts.get(job, ())
    )
    return f"run `{progress.run_id}`: **{progress.step}**\n\n{counts}\n{findings}"


def format_findings(result: PlanOrScrubResult) -> str:
    """Return the number and size of the findings by kind, and sentences about what was not compared or not read."""
    rows = "".join(
        f"- **{kind.value}** — {result.findings[kind.value]:,}, {result.size_bytes.get(kind.value, 0):,} bytes\n"
        for kind in FindingKind
        if result.findings.get(kind.value)
    )
    sentences = [f"not compared: {sentence}" for sentence in result.left_out]
    sentences += [f"**incomplete**: {reason}" for reason in result.incomplete]
    return (rows or "- nothing found\n") + "".join(f"- {sentence}\n" for sentence in sentences)


def format_scrub(progress: ScrubLedgersProgress, step: str, findings: str = "") -> str:
    paused = "**paused** before the next page, " if progress.paused else ""
    return (
        f"run `{progress.run_id}`: {paused}{step}\n\n"
        f"- {progress.pages_done:,} of {progress.pages:,} pages\n"
        f"- {progress.objects:,} of {progress.all_objects:,} segments and tiered copies\n"
        f"- {progress.size_bytes:,} of {progress.all_bytes:,} bytes\n"
        f"- {progress.findings:,} findings\n\n{findings}"
    )


def format_apply(progress: ApplyOrphansProgress, step: str) -> str:
    phrases = [
        f"{progress.pages_done:,} of {progress.pages:,} pages",
        f"{progress.objects:,} objects",
        "**paused** before the next page" if progress.paused else "",
        f"at most {progress.rate:,} objects a second" if progress.rate else "",
        step,
    ]
    counts = progress.counts
    failed = {"findings": counts.failed} if counts.failed else {}
    return (
        ", ".join(filter(None, phrases))
        + "\n\n"
        + _format_rows("applied", counts.applied)
        + _format_rows("kept", counts.skipped)
        + _format_rows("failed", failed)
    )


def _format_rows(fate: str, counts: Mapping[str, int]) -> str:
    return "".join(f"- {fate}: **{name}** — {rows:,}\n" for name, rows in sorted(counts.items()))
