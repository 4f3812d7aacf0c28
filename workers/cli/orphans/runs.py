"""`orphans plan`: storage compared with the catalog; and what all commands about orphans share."""

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
from workers.cli.jobs import finished, started
from workers.cli.options import Master, Wait
from workers.cli.output import Answer, note
from workers.pages.texts import shown_s
from workers.settings import parse_duration

if TYPE_CHECKING:
    from workers.client import Sexton

orphans = group("orphans", "What storage holds and nothing refers to: find it, look at it, remove it.")

_LONGEST_PATH = 900  # as it is typed; made whole, it is within what a job takes
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def known_run(run_id: str) -> str:
    """A run id, if it can be one."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput("run id", expected="that of a plan, as `orphans list` shows it", found=run_id)
    return run_id


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
RunId = Annotated[
    str, typer.Argument(metavar="RUN_ID", callback=known_run, help="Of a plan, as `orphans list` shows it.")
]
PLAN = "plan-8c1d5f0e9a3b"  # of examples


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
            return begun(client, handle)
        return _planned(await finished(client, handle, "planning"), handle.id)

    return context.with_client(work)


def begun(client: "Sexton", handle: Any) -> Answer:  # noqa: ANN401 - Temporal's handle, of any result
    """What was started. People see the plan's id apart from Temporal's run, whose id none of these commands takes."""
    document, plan_id = started(client, handle), handle.id.partition("/")[2]
    note(f"once it has ended: sexton orphans report {plan_id}")
    shown = {"plan": plan_id, "workflow": handle.id, "Temporal's run": document["run_id"]}
    return Answer(document={**document, "plan": plan_id}, shown=shown)


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
        "before": shown_s(found.before_us),
        "rows_before": shown_s(found.rows_before_us),
        "left_out": list(found.left_out),
        "workflow_id": workflow_id,
    }
    since = shown_s(found.rows_before_us)
    shown = {
        "plan": result.run_id,
        "ledgers of the catalog": found.ledgers,
        "too young to be judged": f"{found.young:,} of them, created since {since}" if found.young else "none of them",
        "objects judged": f"those written before {shown_s(found.before_us)}",
    }
    return Answer(document=document, shown=shown, more=[by_kind(counts, sizes)])


def by_kind(counts: Mapping[str, int], sizes: Mapping[str, int]) -> Answer:
    """A row for each kind of which something was found."""
    rows = [{"kind": name, "findings": found, "bytes": sizes[name]} for name, found in counts.items() if found]
    return Answer(document=rows, title="findings", empty="nothing found")
