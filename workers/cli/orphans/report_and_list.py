"""`orphans report`: findings of a plan as rows or as a page. `orphans list`: plans, applies and scrubs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.reconciliation.findings import CLUSTER_KINDS, FATES_FOLDER, STORE_KINDS, FindingKind
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.orphans.certificates import describe_certificate
from workers.cli.orphans.plan_and_apply import PLAN
from workers.cli.orphans.plan_report import PlanFindingsReport, write_report_page_and_count_findings
from workers.cli.orphans.plan_runs import RunId, orphans
from workers.cli.result_files import check_result_file
from workers.human_readable_values import format_time_to_second

if TYPE_CHECKING:
    from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
    from logstore.reconciliation.findings import FateOfFinding


Kind = Annotated[FindingKind | None, typer.Option("--kind", case_sensitive=False, help="Only findings of this kind.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The most rows to show.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write one page with charts there; it needs no other file.")
]


@command(orphans, "report", f"{PLAN}", f"{PLAN} --kind missing_data --json", f"{PLAN} --html orphans.html")
def report_findings(
    context: CommandContext, run_id: RunId, *, kind: Kind = None, limit: Limit = 1_000, html: Html = None
) -> Answer:
    """Show the findings of a plan and, after an apply, the fate of each finding."""
    plan_report = _open_findings_report(context, run_id)
    if html is not None:
        return _write_html(plan_report, kind, limit, html)
    rows = list(islice(plan_report.iterate_rows(kind), limit + 1))
    if len(rows) > limit:
        print_note(f"there are more: shown are the first {limit:,}; --limit shows as many as you say")
    rows = rows[:limit]
    display = [_make_finding_display_row(row, is_applied=plan_report.applied is not None) for row in rows]
    table = Answer(document=rows, display=display, columns_below=("detail", "reason"), empty="no findings")
    summary = plan_report.summarize_plan()
    return Answer(document=rows, display=summary, wide_display=summary, sections=[table])


def _open_findings_report(context: CommandContext, run_id: str) -> PlanFindingsReport:
    from logstore.reconciliation.services.run_checks import (  # noqa: PLC0415
        find_apply,
        open_finding_files,
        require_finished_plan_or_scrub,
    )

    runs = context.catalog.reconciliation
    plan, applied = runs.get_run(run_id), find_apply(runs, run_id)
    result = require_finished_plan_or_scrub(plan)
    files = open_finding_files(result, run_id)
    read_fates = _find_fates_reader(context, applied)
    report = PlanFindingsReport(plan=plan, result=result, files=files, applied=applied, read_fates=read_fates)
    return (
        replace(report, certificate=describe_certificate(context, run_id)) if report.is_of_applied_cluster else report
    )


def _find_fates_reader(
    context: CommandContext, applied: "ReconciliationRun | None"
) -> "Callable[[int], Mapping[int, FateOfFinding | None]]":
    """Return a function that reads the fates of a page. They are in files for a cluster, and for earlier builds."""
    from activities.reconciliation.finding_fates import page_fate_files  # noqa: PLC0415 - start-up time

    if applied is None:
        return lambda _page: {}
    if FATES_FOLDER in applied.summary:
        files = page_fate_files(Path(applied.summary[FATES_FOLDER]))
        return lambda page: files.read_page(page) or {}
    return partial(context.catalog.reconciliation.read_fates, applied.run_id)


def _make_finding_display_row(row: dict[str, object], *, is_applied: bool) -> dict[str, object]:
    return {
        "id": row["id"],
        "kind": row["kind"],
        **_make_cluster_display_fields(row),
        "where": row["key"]
        or (f"deletion {row['row_id']}" if row["row_id"] is not None else f"ledger {row['ledger_id']}"),
        "objects": row["objects"],
        "bytes": row["size_bytes"],
        **({"fate": row["fate"]} if is_applied else {}),
        "detail": row["detail"],
        "reason": f"{row['fate']}: {row['reason']}" if row["reason"] else "",
    }


def _make_cluster_display_fields(row: dict[str, object]) -> dict[str, object]:
    """Return what `pulsar explain` takes, as text without separators, and whether an orphan is confirmed."""
    if "confirmed" not in row:
        return {}
    return {"ledger": "" if row["ledger_id"] is None else str(row["ledger_id"]), "confirmed": row["confirmed"]}


def _write_html(report: PlanFindingsReport, kind: FindingKind | None, limit: int, html: str) -> Answer:
    check_result_file("html", html)
    path, findings = write_report_page_and_count_findings(report, html, kind=kind, limit=limit)
    run_id, document = report.plan.run_id, {"html": str(path), "findings": findings}
    return Answer(document={"run_id": run_id, **document}, display={"plan": run_id, **document})


MaxRuns = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most plans to show, newest first.")]


@command(orphans, "list", "", "--limit 5 --json")
def list_reconciliation_runs(context: CommandContext, *, limit: MaxRuns = 20) -> Answer:
    """List plans, applies and scrubs, newest first, with the run ids for `report` and `apply`.

    A plan of a Pulsar cluster has the kind `cluster-plan`. If only orphans are left of it that an apply keeps without
    --include-unconfirmed or --include-irreversible, its apply has the state `finished`.
    """
    runs = context.catalog.reconciliation
    candidates = [run for kind in _kind_labels() for run in runs.list_runs(kind, limit=limit)]
    newest = sorted(candidates, key=lambda run: run.created_us, reverse=True)[:limit]
    rows = [_make_run_row(run) for run in newest]
    columns = ("run_id", "kind", "state", "begun")
    display = [{name: row[name] for name in columns} | {"counts": _format_counts(row)} for row in rows]
    return Answer(
        document=rows, display=display, columns_below=("counts",), empty="no plans; `sexton orphans plan` makes one"
    )


def _make_run_row(run: "ReconciliationRun") -> dict[str, object]:
    from logstore.ports.catalog.reconciliation import RunKind  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import RESULT, STOPPED, plan_result, plan_run_id  # noqa: PLC0415

    is_apply, left = run.kind is RunKind.APPLY, _find_left_orphans(run)
    stopped = (run.summary.get(STOPPED) or None) if is_apply else None
    is_over = run.finished_us is not None or (left is not None and not left["removable"] and not stopped)
    return {
        "run_id": plan_run_id(run.run_id) if is_apply else run.run_id,
        "kind": _kind_labels()[run.kind],
        "state": "finished" if is_over else "unfinished",
        "begun": format_time_to_second(run.created_us),
        "finished": None if run.finished_us is None else format_time_to_second(run.finished_us),
        "actor": run.summary["actor"],
        "reason": run.summary["reason"],
        "complete": None if is_apply or run.finished_us is None else not plan_result(run.summary).incomplete,
        "left": left,
        "stopped": stopped,
        "counts": _count_findings_of_run(run, is_apply=is_apply) if RESULT in run.summary else {},
    }


def _find_left_orphans(run: "ReconciliationRun") -> dict[str, int] | None:
    """Return what a later apply of a plan of a cluster may remove. `None`: nothing.

    An apply that is at work has no outcome.
    """
    from logstore.reconciliation.findings import LEFT, LEFT_HELD_BACK  # noqa: PLC0415 - start-up time

    if run.finished_us is not None or LEFT not in run.summary:
        return None
    held_back = run.summary[LEFT_HELD_BACK]
    return {"removable": run.summary[LEFT] - held_back, "held_back": held_back}


def _kind_labels() -> "dict[RunKind, str]":
    from logstore.ports.catalog.reconciliation import RunKind  # noqa: PLC0415 - start-up time

    return {
        RunKind.PLAN: "plan",
        RunKind.APPLY: "apply",
        RunKind.SCRUB: "scrub",
        RunKind.CLUSTER_PLAN: "cluster-plan",
    }


def _count_findings_of_run(run: "ReconciliationRun", *, is_apply: bool) -> dict[str, int]:
    from logstore.ports.catalog.reconciliation import RunKind  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import apply_counts, plan_result  # noqa: PLC0415

    if not is_apply:
        findings = plan_result(run.summary).findings
        kinds = CLUSTER_KINDS if run.kind is RunKind.CLUSTER_PLAN else STORE_KINDS
        return {kind.value: findings.get(kind.value, 0) for kind in kinds}
    counts = apply_counts(run.summary)
    return {"applied": sum(counts.applied.values()), "kept": sum(counts.skipped.values()), "failed": counts.failed}


def _format_counts(row: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in row["counts"].items() if count)
    if row["left"] or row["stopped"]:
        rest = f"stopped: {row['stopped']}" if row["stopped"] else _format_left(row["left"])
        return "; ".join(filter(None, (counts, rest)))
    phrase = counts or ("at work, refused or failed" if row["finished"] is None else "nothing found")
    return f"incomplete: {phrase}" if row["complete"] is False else phrase


def _format_left(left: Mapping[str, int]) -> str:
    if left["removable"]:
        return f"{left['removable'] + left['held_back']:,} left: apply again"
    return f"{left['held_back']:,} left for an apply with --include-unconfirmed or --include-irreversible"
