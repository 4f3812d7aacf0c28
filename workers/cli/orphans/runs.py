"""`orphans plan` and `orphans apply`: storage compared with the catalog, and what was found removed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from logstore.reconciliation import rules
from logstore.reconciliation.findings import FindingKind
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import counted, finished, in_part, started
from workers.cli.options import DryRun, Reason, Wait
from workers.cli.output import Answer, note
from workers.cli.texts import shown_us
from workers.settings import checked_master, parse_duration

if TYPE_CHECKING:
    from workers.client import Sexton

orphans = group("orphans", "What storage holds and nobody refers to: find it, look at it, remove it.")

_LONGEST_PATH = 900  # as it is typed; made whole, it is within what a job takes
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def known_run(run_id: str) -> str:
    """A run id, if it can be one."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput("run_id", expected="that of a plan, as `orphans plan` printed it", found=run_id)
    return run_id


def _known_master(master: str | None) -> str:
    return "" if master is None else checked_master(master)


def _known_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise InvalidInput("max-orphan-share", expected="0 to 1", found=share)
    return share


OlderThan = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Leave out what is younger, by the store's own clock.")
]
UnsafeAge = Annotated[
    bool, typer.Option("--unsafe-age", help="Take an age below 1h: nobody writes to the store, nor offloads.")
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
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        callback=_known_master,
        help="A Spark cluster; by default that of the workers' settings.",
    ),
]
RunId = Annotated[
    str, typer.Argument(metavar="RUN_ID", callback=known_run, help="Of a plan, as `orphans plan` printed it.")
]
MaxShare = Annotated[
    float,
    typer.Option(
        "--max-orphan-share",
        metavar="SHARE",
        callback=_known_share,
        help="Refuse to remove more of all ledgers; 0 to 1.",
    ),
]
_PLAN = "plan-8c1d5f0e9a3b"


@command(
    orphans,
    "plan",
    examples=[
        "sexton orphans plan",
        "sexton orphans plan --older-than 3d --json",
        "sexton orphans plan --inventory /srv/inventories/2026-11-20/manifest.json --no-wait",
    ],
)
def plan(
    context: CommandContext,
    *,
    older_than: OlderThan = "24h",
    unsafe_age: UnsafeAge = False,
    inventory: Inventory = None,
    master: Master = None,
    wait: Wait = True,
) -> Answer:
    """Compare what storage holds with what the catalog says. Changes neither; `orphans apply` does."""
    age_s = parse_duration(older_than, "older-than")
    rules.check_age(age_s, unsafe=unsafe_age)
    context.require_store()
    inventories = [_seen_by_workers(one) for one in inventory or ()]

    async def work(client: "Sexton") -> Answer:
        handle = await client.plan_orphans(
            older_than_s=age_s,
            unsafe_age=unsafe_age,
            inventories=inventories,
            master=master or "",
            actor=context.actor,
        )
        if not wait:
            return Answer(document={**started(client, handle), "plan": handle.id.partition("/")[2]})
        return _planned(await finished(client, handle, "planning"), handle.id)

    return context.with_client(work)


def _seen_by_workers(path: str) -> str:
    """A path of this machine is made whole: workers have another working directory. They load no URL."""
    if "://" in path:
        expected = "the path of a manifest.json that the workers can read, its data files beside it, and no URL"
        raise InvalidInput("inventory", expected=expected, found=path)
    if (
        not 0 < len(path.strip()) <= _LONGEST_PATH
        or not path.isprintable()
        or Path(path).name in {"", "."}
        or path.endswith(("/", ".."))
    ):
        raise InvalidInput("inventory", expected="the path of a manifest, in a folder that workers see", found=path)
    return str(Path(path).absolute())


def _planned(result: Any, workflow_id: str) -> Answer:  # noqa: ANN401 - the workflow's own type
    found = result.found
    counts = {kind.value: int(found.findings.get(kind.value, 0)) for kind in FindingKind}
    sizes = {kind.value: int(found.size_bytes.get(kind.value, 0)) for kind in FindingKind}
    for sentence in found.left_out:
        note(f"not compared: {sentence}")
    if counts[FindingKind.MISSING_DATA.value]:
        note(f"data is missing: sexton orphans report {result.run_id} --kind {FindingKind.MISSING_DATA.value}")
    note(f"look at it: sexton orphans report {result.run_id}")
    document: dict[str, object] = {
        "run_id": result.run_id,
        "findings": counts,
        "bytes": sizes,
        "report": found.report,
        "ledgers": found.ledgers,
        "young_ledgers": found.young,
        "before": shown_us(found.before_us),
        "rows_before": shown_us(found.rows_before_us),
        "left_out": list(found.left_out),
        "workflow_id": workflow_id,
    }
    shown = {
        "run id": result.run_id,
        "ledgers of the catalog": found.ledgers,
        "too young to be judged": f"{found.young:,} of them, created since {shown_us(found.rows_before_us)}",
        "objects judged": f"those written before {shown_us(found.before_us)}",
    }
    return Answer(document=document, shown=shown, more=[_by_kind(counts, sizes)])


def _by_kind(counts: Mapping[str, int], sizes: Mapping[str, int]) -> Answer:
    """A row for each kind of which something was found."""
    rows = [{"kind": name, "findings": found, "bytes": sizes[name]} for name, found in counts.items() if found]
    return Answer(document=rows, title="findings", empty="nothing found")


@command(
    orphans,
    "apply",
    examples=[
        f"sexton orphans apply {_PLAN} --dry-run",
        f'sexton orphans apply {_PLAN} --reason "first clean-up"',
        f"sexton orphans apply {_PLAN} --max-orphan-share 0.2 --no-wait --json",
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
        return _preview(found, max_orphan_share)

    async def work(client: "Sexton") -> Answer:
        handle = await client.apply_orphans(
            run_id, max_orphan_share=max_orphan_share, reason=reason, actor=context.actor
        )
        if not wait:
            return Answer(document=started(client, handle))
        return _applied(await finished(client, handle, "applying"), handle.id)

    return context.with_client(work)


def _preview(run: Any, max_orphan_share: float) -> Answer:  # noqa: ANN401 - the port's own type
    """What the plan would have applied, each after another look; guards refuse as they would."""
    from logstore.reconciliation.services.runs import finished_plan  # noqa: PLC0415 - start-up time

    result = finished_plan(run)
    rules.check_share(result.findings, result.ledgers, max_orphan_share)
    going = {kind.value: result.findings.get(kind.value, 0) for kind in FindingKind if kind.applied}
    sizes = {name: result.size_bytes.get(name, 0) for name in going}
    return Answer(document={"dry_run": True, "run_id": run.run_id, "applied": going, "bytes": sizes})


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
        return Answer(document=document)
    note("dead letters: sexton deletion list --state DEAD_LETTERED")
    failed = [{"id": int(number), "error": why} for number, why in done.failures.items()]
    return in_part({**document, "failed_count": int(done.failed)}, failed)
