"""`orphans list`: plans and applies, newest first."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.reconciliation.findings import FindingKind
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.orphans.runs import orphans
from workers.cli.output import Answer
from workers.pages.texts import shown_s

if TYPE_CHECKING:
    from logstore.ports.catalog import ReconciliationRun

Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, newest first.")]


@command(orphans, "list", examples=["sexton orphans list", "sexton orphans list --limit 5 --json"])
def list_runs(context: CommandContext, *, limit: Limit = 20) -> Answer:
    """List plans and applies, newest first, by the run id that `report` and `apply` take."""
    from logstore.ports.catalog import RunKind  # noqa: PLC0415 - start-up time

    runs = context.catalog.reconciliation
    found = [one for kind in RunKind for one in runs.runs(kind, limit=limit)]
    newest = sorted(found, key=lambda one: one.created_us, reverse=True)[:limit]
    rows = [_row(one) for one in newest]
    columns = ("run_id", "kind", "state", "begun")
    shown = [{name: row[name] for name in columns} | {"counts": _told(row)} for row in rows]
    return Answer(document=rows, shown=shown, beneath=("counts",), empty="no plans; `sexton orphans plan` makes one")


def _row(run: "ReconciliationRun") -> dict[str, object]:
    from logstore.ports.catalog import RunKind  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.results import plan_run_id  # noqa: PLC0415

    is_plan = run.kind is RunKind.PLAN
    return {
        "run_id": run.run_id if is_plan else plan_run_id(run.run_id),
        "kind": "plan" if is_plan else "apply",
        "state": "unfinished" if run.finished_us is None else "finished",
        "begun": shown_s(run.created_us),
        "finished": None if run.finished_us is None else shown_s(run.finished_us),
        "actor": run.summary["actor"],
        "reason": run.summary["reason"],
        "counts": _counts(run, is_plan=is_plan) if run.finished_us is not None else {},
    }


def _counts(run: "ReconciliationRun", *, is_plan: bool) -> dict[str, int]:
    """Findings of a plan by kind, zeros too; of an apply what was done about them."""
    from logstore.reconciliation.results import apply_counts, plan_result  # noqa: PLC0415 - start-up time

    if is_plan:
        found = plan_result(run.summary).findings
        return {kind.value: found.get(kind.value, 0) for kind in FindingKind}
    done = apply_counts(run.summary)
    return {"applied": sum(done.applied.values()), "kept": sum(done.skipped.values()), "failed": done.failed}


def _told(row: Mapping[str, Any]) -> str:
    told = ", ".join(f"{rows:,} {name}" for name, rows in row["counts"].items() if rows)
    return told or ("at work, refused or failed" if row["finished"] is None else "nothing found")
