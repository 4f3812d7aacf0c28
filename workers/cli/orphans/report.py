"""`orphans report` and `orphans list`: a plan as rows or as a page, with what became of each finding; and all plans."""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.reconciliation.findings import FindingKind
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.orphans.page import Reported, write_page
from workers.cli.orphans.runs import PLAN, RunId, orphans
from workers.cli.output import Answer, note
from workers.cli.result_files import check_result_file
from workers.pages.texts import format_time_s

if TYPE_CHECKING:
    from logstore.ports.catalog import Reconciliation, ReconciliationRun


Kind = Annotated[FindingKind | None, typer.Option("--kind", case_sensitive=False, help="Only findings of this kind.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The most rows to show.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write one page with charts there; it needs no other file.")
]


@command(orphans, "report", f"{PLAN}", f"{PLAN} --kind missing_data --json", f"{PLAN} --html orphans.html")
def report(
    context: CommandContext, run_id: RunId, *, kind: Kind = None, limit: Limit = 1_000, html: Html = None
) -> Answer:
    """Show what a plan found and, once it was applied, what became of each finding."""
    found = _reported(context.catalog.reconciliation, run_id)
    if html is not None:
        return _as_page(found, kind, limit, html)
    rows = list(islice(found.rows(kind), limit + 1))
    if len(rows) > limit:
        note(f"there are more: shown are the first {limit:,}; --limit shows as many as you say")
    rows = rows[:limit]
    shown = [_shown(row, applied=found.applied is not None) for row in rows]
    table = Answer(document=rows, display=shown, columns_below=("detail", "reason"), empty="no findings")
    return Answer(document=rows, display=found.summary(), wide_display=found.summary(), sections=[table])


def _reported(runs: "Reconciliation", run_id: str) -> Reported:
    from logstore.reconciliation.services.runs import apply_of, finished_findings, open_report  # noqa: PLC0415

    plan = runs.run(run_id)
    result = finished_findings(plan)
    return Reported(plan=plan, result=result, files=open_report(result, run_id), applied=apply_of(runs, run_id))


def _shown(row: dict[str, object], *, applied: bool) -> dict[str, object]:
    """A row as people see it: why it was found, and why apply did what it did, stand on lines of their own."""
    return {
        "id": row["id"],
        "kind": row["kind"],
        "where": row["key"]
        or (f"deletion {row['row_id']}" if row["row_id"] is not None else f"ledger {row['ledger_id']}"),
        "objects": row["objects"],
        "bytes": row["size_bytes"],
        **({"fate": row["fate"]} if applied else {}),
        "detail": row["detail"],
        "reason": f"{row['fate']}: {row['reason']}" if row["reason"] else "",
    }


def _as_page(found: Reported, kind: FindingKind | None, limit: int, html: str) -> Answer:
    check_result_file("html", html)
    path, rows = write_page(found, html, kind=kind, limit=limit)
    document: dict[str, object] = {"html": str(path), "findings": rows}
    return Answer(document={"run_id": found.plan.run_id, **document}, display={"plan": found.plan.run_id, **document})


MostRuns = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most plans to show, newest first.")]


@command(orphans, "list", "", "--limit 5 --json")
def list_runs(context: CommandContext, *, limit: MostRuns = 20) -> Answer:
    """List plans, applies and scrubs, newest first, by the run id that `report` and `apply` take."""
    from logstore.ports.catalog import RunKind  # noqa: PLC0415 - start-up time

    runs = context.catalog.reconciliation
    found = [run for kind in (RunKind.PLAN, RunKind.APPLY, RunKind.SCRUB) for run in runs.runs(kind, limit=limit)]
    newest = sorted(found, key=lambda one: one.created_us, reverse=True)[:limit]
    rows = [_run_row(one) for one in newest]
    columns = ("run_id", "kind", "state", "begun")
    shown = [{name: row[name] for name in columns} | {"counts": _counts_shown(row)} for row in rows]
    return Answer(
        document=rows, display=shown, columns_below=("counts",), empty="no plans; `sexton orphans plan` makes one"
    )


def _run_row(run: "ReconciliationRun") -> dict[str, object]:
    from logstore.ports.catalog import RunKind  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import plan_run_id  # noqa: PLC0415

    is_apply = run.kind is RunKind.APPLY
    return {
        "run_id": plan_run_id(run.run_id) if is_apply else run.run_id,
        "kind": {RunKind.PLAN: "plan", RunKind.APPLY: "apply"}.get(run.kind, "scrub"),
        "state": "unfinished" if run.finished_us is None else "finished",
        "begun": format_time_s(run.created_us),
        "finished": None if run.finished_us is None else format_time_s(run.finished_us),
        "actor": run.summary["actor"],
        "reason": run.summary["reason"],
        "counts": _counts(run, is_apply=is_apply) if run.finished_us is not None else {},
    }


def _counts(run: "ReconciliationRun", *, is_apply: bool) -> dict[str, int]:
    """Findings of a plan or a scrub by kind, zeros too; of an apply what was done about them."""
    from logstore.reconciliation.findings import apply_counts, plan_result  # noqa: PLC0415 - start-up time

    if not is_apply:
        found = plan_result(run.summary).findings
        return {kind.value: found.get(kind.value, 0) for kind in FindingKind}
    done = apply_counts(run.summary)
    return {"applied": sum(done.applied.values()), "kept": sum(done.skipped.values()), "failed": done.failed}


def _counts_shown(row: Mapping[str, Any]) -> str:
    told = ", ".join(f"{rows:,} {name}" for name, rows in row["counts"].items() if rows)
    return told or ("at work, refused or failed" if row["finished"] is None else "nothing found")
