"""`orphans apply`: what a plan found is removed, or counted."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.reconciliation import rules
from logstore.reconciliation.findings import FindingKind
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.jobs import counted, finished, in_part
from workers.cli.options import DryRun, Reason, Wait
from workers.cli.orphans.runs import PLAN, RunId, begun, by_kind, orphans
from workers.cli.output import Answer, note
from workers.pages.texts import shown_s

if TYPE_CHECKING:
    from logstore.ports.catalog import Reconciliation, ReconciliationRun
    from workers.client import Sexton


def _known_share(text: str) -> float:
    """A share; one that is given in percent, or as what is no number, is refused."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidInput("max-orphan-share", expected="a number from 0 to 1", found=text)
    return share


MaxShare = Annotated[
    float,
    typer.Option(
        "--max-orphan-share",
        metavar="SHARE",
        parser=_known_share,
        help="Refuse if more than this share of all ledgers would go; 0 to 1.",
    ),
]


@command(
    orphans,
    "apply",
    examples=[
        f"sexton orphans apply {PLAN} --dry-run",
        f'sexton orphans apply {PLAN} --reason "first clean-up"',
        f"sexton orphans apply {PLAN} --max-orphan-share 0.2 --no-wait --json",
    ],
)
def apply(
    context: CommandContext,
    run_id: RunId,
    *,
    max_orphan_share: MaxShare = rules.MAX_ORPHAN_SHARE,
    reason: Reason = "",
    dry_run: DryRun = False,
    wait: Wait = True,
) -> Answer:
    """Remove what a plan found, after another look at each finding. The same plan applied again is joined."""
    found = context.catalog.reconciliation.run(run_id)
    if dry_run:
        return _preview(context.catalog.reconciliation, found, max_orphan_share)

    async def work(client: "Sexton") -> Answer:
        handle = await client.apply_orphans(
            run_id, max_orphan_share=max_orphan_share, reason=reason, actor=context.actor
        )
        if not wait:
            return begun(client, handle)
        return _applied(await finished(client, handle, "applying"), handle.id)

    return context.with_client(work)


def _preview(runs: "Reconciliation", run: "ReconciliationRun", max_orphan_share: float) -> Answer:
    """What the plan would have applied, each after another look; what a guard would refuse is counted too."""
    from logstore.reconciliation.services.runs import apply_of, finished_plan  # noqa: PLC0415 - start-up time

    result, applied = finished_plan(run), apply_of(runs, run.run_id)
    going = {kind.value: result.findings.get(kind.value, 0) for kind in FindingKind if kind.applied}
    if applied is not None and applied.finished_us is not None:
        going = dict.fromkeys(going, 0)
        at = shown_s(applied.finished_us)
        note(f"this plan was applied by {at}, nothing more would go: sexton orphans report {run.run_id}")
    sizes = {name: result.size_bytes.get(name, 0) if rows else 0 for name, rows in going.items()}
    document: dict[str, object] = {"dry_run": True, "run_id": run.run_id, "applied": going, "bytes": sizes}
    answer = Answer(
        document=document,
        shown={"plan": run.run_id},
        more=[replace(by_kind(going, sizes), title="would be applied", empty="nothing")],
    )
    try:
        rules.check_share(going, result.ledgers, max_orphan_share)
    except PreconditionFailed as refused:
        note(f"it would be refused: {refused}")
        error = {"type": type(refused).__name__, "message": str(refused)}
        return replace(answer, document={**document, "error": error}, code=ExitCode.REFUSED)
    return answer


def _applied(result: Any, workflow_id: str) -> Answer:  # noqa: ANN401 - the workflow's own type
    done = result.done
    document: dict[str, object] = {
        "run_id": result.run_id,
        "applied": counted(done.applied),
        "skipped": counted(done.skipped),
        "failed": int(done.failed),
        "objects": int(done.objects),
        "bytes": int(done.size_bytes),
        "workflow_id": workflow_id,
    }
    note(f"what became of each: sexton orphans report {result.run_id}")
    if not done.failed:
        rest = {name: value for name, value in document.items() if name != "run_id"}
        return Answer(document=document, shown={"plan": result.run_id, **rest})
    note("dead letters: sexton deletion list --state DEAD_LETTERED")
    failed = [{"id": int(number), "error": why} for number, why in done.failures.items()]
    return in_part({**document, "failed_count": int(done.failed)}, failed)
