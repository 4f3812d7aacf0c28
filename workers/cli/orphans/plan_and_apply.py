"""`orphans plan` and `orphans apply`: compare storage with the catalog, and remove orphans or preview their removal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.findings import STORE_KINDS, FindingKind
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_partial_failure, job_command, sort_counts
from workers.cli.orphans.plan_runs import RunId, answer_started_plan, mark_as_refused, orphans
from workers.cli.progress_bar import show_progress_bar
from workers.cli.shared_options import MAX_RATE, DryRun, Master, Reason, make_fraction_parser
from workers.human_readable_values import format_time_to_second
from workers.settings import parse_duration

if TYPE_CHECKING:
    from activities.reconciliation.apply_orphans import ApplyPreview
    from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
    from logstore.ports.catalog.reconciliation import ReconciliationRun
    from logstore.reconciliation.findings import PlanOrScrubResult
    from workflows.reconciliation.job_definitions import ApplyOrphansResult, ReconcileOrphansResult


_MAX_PATH_CHARS = 900  # maximum for the path as typed, so that the absolute path fits into a job's input


OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="Leave out what is younger; 1h or more.")]
UnsafeAge = Annotated[
    bool, typer.Option("--unsafe-age", help="Allow an age below 1h. Only if no process writes or offloads meanwhile.")
]
Inventory = Annotated[
    list[str] | None,
    typer.Option(
        "--inventory",
        metavar="PATH",
        help="The manifest.json of an S3 Inventory, a file that the workers can read: it stands in for listing its"
        " bucket. Repeatable.",
    ),
]
PLAN = "plan-8c1d5f0e9a3b"  # id in examples


@job_command(
    orphans, "plan", "", "--older-than 3d --json", "--inventory /srv/inventories/2026-11-20/manifest.json --no-wait"
)
def plan_orphans(
    context: CommandContext,
    *,
    older_than: OlderThan = "24h",
    unsafe_age: UnsafeAge = False,
    inventory: Inventory = None,
    master: Master = None,
) -> JobOrAnswer:
    """Compare storage with the catalog, and write findings for `orphans apply`. Storage and catalog do not change."""
    age_s = parse_duration(older_than, "older-than")
    plausibility_guards.require_min_age(age_s, unsafe=unsafe_age)
    context.require_store()
    inventories = [_check_and_absolutize_inventory_path(path) for path in inventory or ()]

    return CommandLineJob(
        lambda client: client.plan_orphans(
            older_than_s=age_s,
            unsafe_age=unsafe_age,
            inventories=inventories,
            master=master or "",
            actor=context.actor,
        ),
        "planning",
        _answer_plan,
        answer_started=answer_started_plan,
    )


def _check_and_absolutize_inventory_path(path: str) -> str:
    """Return the absolute path, because workers may have another working directory. Refuse a URL."""
    if "://" in path:
        expected = "the path of a manifest.json that the workers can read, its data files beside it, and no URL"
        raise InvalidInput("inventory", expected=expected, found=path)
    if (
        not 0 < len(path.strip()) <= _MAX_PATH_CHARS
        or not path.isprintable()
        or Path(path).name in {"", "."}
        or path.endswith(("/", ".."))
    ):
        raise InvalidInput("inventory", expected="the path of a manifest, in a folder that workers see", found=path)
    return str(Path(path).absolute())


def _answer_plan(workflow_id: str, result: "ReconcileOrphansResult") -> Answer:
    plan_result = result.found
    assert plan_result is not None, "a refusal was raised"
    if plan_result.findings.get(FindingKind.MISSING_DATA.value):
        print_note(f"data is missing: sexton orphans report {result.run_id} --kind {FindingKind.MISSING_DATA.value}")
    since = format_time_to_second(plan_result.rows_before_us)
    display = {
        "ledgers of the catalog": plan_result.ledgers,
        "too young to be judged": f"{plan_result.young:,} of them, created since {since}"
        if plan_result.young
        else "none of them",
        "objects judged": f"those written before {format_time_to_second(plan_result.before_us)}",
    }
    return make_plan_answer(
        result.run_id, plan_result, STORE_KINDS, facts={"workflow_id": workflow_id}, display=display
    )


def make_plan_answer(
    run_id: str,
    result: "PlanOrScrubResult",
    kinds: Sequence[FindingKind],
    *,
    facts: Mapping[str, object],
    display: Mapping[str, object],
) -> Answer:
    """Return the answer of a finished plan, with a table of its findings. `facts` are added to the document."""
    counts = {kind.value: int(result.findings.get(kind.value, 0)) for kind in kinds}
    sizes = {kind.value: int(result.size_bytes.get(kind.value, 0)) for kind in kinds}
    for sentence in result.left_out:
        print_note(f"not compared: {sentence}")
    print_note(f"look at it: sexton orphans report {run_id}")
    document: dict[str, object] = {
        "run_id": run_id,
        "findings": counts,
        "bytes": sizes,
        "report": result.report,
        "ledgers": result.ledgers,
        "young_ledgers": result.young,
        "before": format_time_to_second(result.before_us),
        "rows_before": format_time_to_second(result.rows_before_us) if result.rows_before_us else None,
        "left_out": list(result.left_out),
        **facts,
    }
    return Answer(document=document, display={"plan": run_id, **display}, sections=[make_findings_table(counts, sizes)])


def make_findings_table(counts: Mapping[str, int], sizes: Mapping[str, int]) -> Answer:
    rows = [{"kind": name, "findings": count, "bytes": sizes[name]} for name, count in counts.items() if count]
    return Answer(document=rows, title="findings", empty="nothing found")


MaxShare = Annotated[
    float,
    typer.Option(
        "--max-orphan-share",
        metavar="SHARE",
        parser=make_fraction_parser("max-orphan-share"),
        help="Refuse if more than this share of all ledgers would go; 0 to 1.",
    ),
]


ApplyLimit = Annotated[
    int,
    typer.Option(
        "--limit",
        min=0,
        max=2**31 - 1,
        help="Remove only so many of the oldest orphans that are left; 0: all. Only for a plan of a Pulsar cluster.",
    ),
]
IncludeUnconfirmed = Annotated[
    bool,
    typer.Option(
        "--include-unconfirmed",
        help="Also remove orphans that nothing confirms, such as uploads. Only for a plan of a cluster.",
    ),
]
IncludeIrreversible = Annotated[
    bool,
    typer.Option(
        "--include-irreversible",
        help="Also remove orphan objects, uploads and managed ledgers, for good. Only for a plan of a cluster.",
    ),
]


ApplyRate = Annotated[
    int,
    typer.Option(
        "--rate",
        min=0,
        max=MAX_RATE,
        help="Deletions a second from the start; 0: unlimited. `sexton deletion rate` changes it.",
    ),
]


@job_command(
    orphans,
    "apply",
    f"{PLAN} --dry-run",
    f'{PLAN} --reason "first clean-up"',
    f"{PLAN} --max-orphan-share 0.2 --no-wait --json",
)
def apply_orphans(
    context: CommandContext,
    run_id: RunId,
    *,
    max_orphan_share: MaxShare = plausibility_guards.MAX_ORPHAN_SHARE,
    limit: ApplyLimit = 0,
    include_unconfirmed: IncludeUnconfirmed = False,
    include_irreversible: IncludeIrreversible = False,
    rate: ApplyRate = 0,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Check the findings of a plan again, and remove the orphans. If the plan's apply is running, join it.

    Of a plan of a Pulsar cluster, the metadata of orphan ledgers are deleted; `sexton orphans undo` puts them back
    while bookies have the data. With --include-irreversible, orphan objects and uploads of offloads, and orphan
    managed ledgers, are removed, too: nothing puts these back.
    """
    from logstore.ports.catalog.reconciliation import RunKind  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.services.run_checks import require_appliable_cluster_plan  # noqa: PLC0415

    plan_run = context.catalog.reconciliation.get_run(run_id)
    if plan_run.kind is RunKind.CLUSTER_PLAN:
        from workers.cli.orphans import cluster_apply  # noqa: PLC0415 - it registers its commands with this module's

        if dry_run:
            return cluster_apply.preview_cluster_apply(
                context,
                plan_run,
                max_orphan_share=max_orphan_share,
                limit=limit,
                include_unconfirmed=include_unconfirmed,
                include_irreversible=include_irreversible,
            )
        require_appliable_cluster_plan(context.catalog.reconciliation, context.catalog.identities, run_id)
        return cluster_apply.apply_cluster_plan(
            context,
            run_id,
            max_orphan_share=max_orphan_share,
            limit=limit,
            include_unconfirmed=include_unconfirmed,
            include_irreversible=include_irreversible,
            rate=rate,
            reason=reason,
        )
    options = {
        "limit": limit,
        "include-unconfirmed": include_unconfirmed,
        "include-irreversible": include_irreversible,
    }
    if option := next((name for name, given in options.items() if given), ""):
        raise InvalidInput(option, expected="a plan of a Pulsar cluster with this option", found=run_id)
    if dry_run:
        return _preview_apply(context, plan_run, max_orphan_share)
    applied_at = _find_apply_time(context.catalog.reconciliation, run_id)
    if applied_at:
        print_note(f"this plan was applied by {applied_at}: nothing is done now; another plan finds what exists now")

    return CommandLineJob(
        lambda client: client.apply_orphans(
            run_id, max_orphan_share=max_orphan_share, rate=rate, reason=reason, actor=context.actor
        ),
        "applying",
        partial(_answer_apply, is_repeated=bool(applied_at)),
        answer_started=answer_started_plan,
    )


def _preview_apply(context: CommandContext, run: "ReconciliationRun", max_orphan_share: float) -> Answer:
    from logstore.reconciliation.services.run_checks import require_finished_plan  # noqa: PLC0415 - start-up time

    plan, applied_at = require_finished_plan(run), _find_apply_time(context.catalog.reconciliation, run.run_id)
    applied, sizes, skipped = dict.fromkeys(_REMOVABLE_KINDS, 0), dict.fromkeys(_REMOVABLE_KINDS, 0), dict[str, int]()
    if applied_at:
        print_note(f"this plan was applied by {applied_at}, nothing more would go: sexton orphans report {run.run_id}")
    else:
        with show_progress_bar(f"looking at the findings of {run.run_id}") as bar:
            preview: ApplyPreview = context.services.apply_preview(context.log)
            result = preview.preview_apply(
                run.run_id, lambda done, pages: bar.update(f"looking at page {done + 1} of {pages}", done, pages)
            )
        applied |= sort_counts(result.counts.applied)
        sizes |= sort_counts(result.size_bytes)
        skipped = sort_counts(result.counts.skipped)
    document: dict[str, object] = {
        "dry_run": True,
        "run_id": run.run_id,
        "applied": applied,
        "bytes": sizes,
        "skipped": skipped,
        "upper_bound": False,
    }
    reasons = [{"reason": reason, "findings": findings} for reason, findings in skipped.items()]
    answer = Answer(
        document=document,
        display={"plan": run.run_id},
        sections=[
            replace(make_findings_table(applied, sizes), title="would be applied", empty="nothing"),
            Answer(document=reasons, title="would be kept", empty="nothing"),
        ],
    )
    try:
        if not applied_at:
            plausibility_guards.check_orphan_share(plan.findings, plan.ledgers, max_orphan_share)
    except PreconditionFailed as refused:
        return mark_as_refused(answer, document, refused)
    return answer


_REMOVABLE_KINDS = [kind.value for kind in FindingKind if kind.is_removable]


def _find_apply_time(runs: "ReconciliationRuns", run_id: str) -> str | None:
    from logstore.reconciliation.services.run_checks import find_apply  # noqa: PLC0415 - start-up time

    apply_run = find_apply(runs, run_id)
    return None if apply_run is None or apply_run.finished_us is None else format_time_to_second(apply_run.finished_us)


def _answer_apply(workflow_id: str, result: "ApplyOrphansResult", *, is_repeated: bool) -> Answer:
    counts = result.done
    document: dict[str, object] = {
        "run_id": result.run_id,
        "already_applied": is_repeated,
        "applied": sort_counts(counts.applied),
        "skipped": sort_counts(counts.skipped),
        "failed": int(counts.failed),
        "objects": int(counts.objects),
        "bytes": int(counts.size_bytes),
        "workflow_id": workflow_id,
    }
    print_note(f"what became of each: sexton orphans report {result.run_id}")
    if not counts.failed:
        rest = {name: value for name, value in document.items() if name != "run_id"}
        return Answer(document=document, display={"plan": result.run_id, **rest})
    print_note("dead letters: sexton deletion list --state DEAD_LETTERED")
    failed = [{"id": int(number), "error": error} for number, error in counts.failures.items()]
    return answer_partial_failure({**document, "failed_count": int(counts.failed)}, failed)
