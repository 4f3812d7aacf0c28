"""How far an apply is, what a guard refused, and what an operator is shown of both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from temporalio.exceptions import ActivityError

from logstore import errors
from logstore.deletion.intents import GuardRefusal
from logstore.reconciliation.findings import ApplyCounts, FindingKind, PlanResult, together
from logstore.reconciliation.jobs import CompareSides, ListStorage, ReadReferences
from workflows.reconciliation.values import ApplyOrphansProgress, ReconcileOrphansProgress, ScrubLedgersProgress
from workflows.refusals import find_refusal

GUARDS: Final = frozenset(
    kind.__name__
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PreconditionFailed | errors.InvalidInput)
)
_WORDS: Final = {
    (ListStorage.name, "objects"): "objects of ledgers in storage",
    (ListStorage.name, "strange"): "other objects in storage",
    (ListStorage.name, "uploads"): "unfinished uploads in storage",
    (ReadReferences.name, "ledgers"): "ledgers in the catalog",
    (CompareSides.name, "young"): "ledgers too young to be judged",
    (CompareSides.name, "candidates"): "differences, each of which is looked at once more",
}
"""What an operator reads of the counts of bulk jobs; the others are for the guards."""


def refused(error: ActivityError) -> GuardRefusal | None:
    """What a guard of a plan or an apply refused; None where it failed for another reason."""
    return find_refusal(error, GUARDS)


def with_page(progress: ApplyOrphansProgress, counts: ApplyCounts) -> ApplyOrphansProgress:
    """The progress once one more page has ended so."""
    whole = together(progress.counts, counts)
    applied, skipped = sum(whole.applied.values()), sum(whole.skipped.values())
    done = applied + skipped + whole.failed
    return replace(
        progress,
        pages_done=progress.pages_done + 1,
        outcomes={"applied": applied, "skipped": skipped, "failed": whole.failed},
        objects=whole.objects,
        size_bytes=whole.size_bytes,
        done=done,
        left=max(0, progress.intents - done),
        counts=whole,
    )


def plan_shown(progress: ReconcileOrphansProgress, told: str) -> str:
    """Markdown for an operator: where the plan is, and how much it has looked at."""
    done = "".join(
        f"- {progress.counts[job][name]:,} {words}\n"
        for (job, name), words in _WORDS.items()
        if name in progress.counts.get(job, ())
    )
    return f"run `{progress.run_id}`: **{progress.step}**\n\n{done}\n{told}"


def findings_shown(found: PlanResult) -> str:
    """Markdown for an operator: kinds of which something was found, and what was left out."""
    rows = "".join(
        f"- **{kind.value}** — {found.findings[kind.value]:,}, {found.size_bytes.get(kind.value, 0):,} bytes\n"
        for kind in FindingKind
        if found.findings.get(kind.value)
    )
    return (rows or "- nothing found\n") + "".join(f"- not compared: {sentence}\n" for sentence in found.left_out)


def scrub_shown(progress: ScrubLedgersProgress, doing: str, told: str = "") -> str:
    """Markdown for an operator: where the scrub is, and how much it has read."""
    paused = "**paused** before the next page, " if progress.paused else ""
    return (
        f"run `{progress.run_id}`: {paused}{doing}\n\n"
        f"- {progress.pages_done:,} of {progress.pages:,} pages\n"
        f"- {progress.objects:,} of {progress.all_objects:,} segments and tiered copies\n"
        f"- {progress.size_bytes:,} of {progress.all_bytes:,} bytes\n"
        f"- {progress.findings:,} findings\n\n{told}"
    )


def shown(progress: ApplyOrphansProgress, doing: str) -> str:
    """Markdown for an operator."""
    rate = [f"at most {progress.rate:,} objects a second"] if progress.rate else []
    orders = [*(["**paused** before the next page"] if progress.paused else []), *rate]
    told = [f"{progress.pages_done:,} of {progress.pages:,} pages", f"{progress.objects:,} objects", *orders, doing]
    counts = progress.counts
    failed = {"findings": counts.failed} if counts.failed else {}
    return (
        ", ".join(filter(None, told))
        + "\n\n"
        + _rows("applied", counts.applied)
        + _rows("kept", counts.skipped)
        + _rows("failed", failed)
    )


def _rows(what: str, counts: Mapping[str, int]) -> str:
    return "".join(f"- {what}: **{name}** — {rows:,}\n" for name, rows in sorted(counts.items()))
