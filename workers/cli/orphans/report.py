"""`orphans report`: the findings of a plan as rows or as a page, and what became of each."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.reconciliation.findings import FindingKind
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.orphans.reported import Reported
from workers.cli.orphans.runs import PLAN, RunId, orphans
from workers.cli.output import Answer, note

if TYPE_CHECKING:
    from logstore.ports.catalog import Reconciliation

Kind = Annotated[FindingKind | None, typer.Option("--kind", case_sensitive=False, help="Only findings of this kind.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most so many rows.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write one page with charts there; it needs no other file.")
]


@command(
    orphans,
    "report",
    examples=[
        f"sexton orphans report {PLAN}",
        f"sexton orphans report {PLAN} --kind missing_data --json",
        f"sexton orphans report {PLAN} --html orphans.html",
    ],
)
def report(
    context: CommandContext, run_id: RunId, *, kind: Kind = None, limit: Limit = 1_000, html: Html = None
) -> Answer:
    """Show what a plan found and, once it was applied, what became of each finding."""
    found = _reported(context.catalog.reconciliation, run_id)
    if html is not None:
        return _page(found, kind, limit, html)
    rows = list(islice(found.rows(kind), limit + 1))
    if len(rows) > limit:
        note(f"there are more: shown are the first {limit:,}; --limit shows as many as you say")
    rows = rows[:limit]
    shown = [_shown(row, applied=found.applied is not None) for row in rows]
    table = Answer(document=rows, shown=shown, beneath=("detail", "reason"), empty="no findings")
    return Answer(document=rows, shown=found.summary(), wide=found.summary(), more=[table])


def _reported(runs: "Reconciliation", run_id: str) -> Reported:
    from logstore.reconciliation.files import FindingFiles  # noqa: PLC0415
    from logstore.reconciliation.services.runs import apply_of, finished_plan  # noqa: PLC0415

    plan = runs.run(run_id)
    result = finished_plan(plan)
    folder = Path(result.report)
    if not folder.is_dir():
        where = "run this where the folder of bulk output is, the setting bulk_dir"
        raise PreconditionFailed(f"plan {run_id}: expected its findings in {folder}, found no such folder; {where}")
    return Reported(plan=plan, result=result, files=FindingFiles(folder), applied=apply_of(runs, run_id))


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


def _page(found: Reported, kind: FindingKind | None, limit: int, html: str) -> Answer:
    from workers.cli.orphans.page import write_page  # noqa: PLC0415 - start-up time

    path = Path(html).absolute()
    if not html.isprintable() or not path.parent.is_dir() or path.is_dir():
        raise InvalidInput("html", expected="a file in a folder that exists", found=html)
    rows = write_page(found, path, kind=kind, limit=limit)
    document: dict[str, object] = {"html": str(path), "findings": rows}
    return Answer(document={"run_id": found.plan.run_id, **document}, shown={"plan": found.plan.run_id, **document})
