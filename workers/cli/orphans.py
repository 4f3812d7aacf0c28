"""Groups `orphans` and `scrub`: plans compare storage with the catalog, applies remove orphans, scrubs read all."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import MIN_SCRUB_RATE
from logstore.reconciliation.findings import (
    STORE_KINDS,
    FindingKind,
)
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer
from workers.cli.output import Answer, Row, print_note
from workers.cli.shared_options import Master, Reason
from workers.human_readable_values import format_time_to_second, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from logstore.reconciliation.findings import PlanOrScrubResult
    from workflows.reconciliation.job_definitions import ReconcileOrphansResult, ScrubLedgersResult


orphans = create_command_group(
    "orphans",
    order="plan apply report list undo",
)

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def check_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput("run id", expected="that of a plan, as `orphans list` shows it", found=run_id)
    return run_id


RunId = Annotated[
    str, typer.Argument(metavar="RUN_ID", callback=check_run_id, help="Of a plan, as `orphans list` shows it.")
]


def answer_started_plan(run: Mapping[str, object]) -> Answer:
    plan_id = str(run["workflow_id"]).partition("/")[2]
    print_note(f"once it has ended: sexton orphans report {plan_id}")
    display = {"plan": plan_id, "workflow": run["workflow_id"], "Temporal's run": run["run_id"]}
    return Answer(document={**run, "plan": plan_id}, display=display)


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


@command(
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
    facts = {"workflow_id": workflow_id}
    return make_plan_answer(result.run_id, plan_result, STORE_KINDS, facts=facts, display=display)


def make_plan_answer(
    run_id: str, result: "PlanOrScrubResult", kinds: Sequence[FindingKind], *, facts: Row, display: Row
) -> Answer:
    """Return the answer of a finished plan, with a table of its findings. `facts` are added to the document."""
    counts, sizes = count_by_kind(result.findings, kinds), count_by_kind(result.size_bytes, kinds)
    for sentence in result.left_out:
        print_note(f"not compared: {sentence}")
    print_note(f"look at it: sexton orphans report {run_id}")
    document: dict[str, object] = {
        "run_id": run_id,
        "findings": counts,
        "bytes": sizes,
        **select_fields(result, "report ledgers young_ledgers=young"),
        "before": format_time_to_second(result.before_us),
        "rows_before": format_time_to_second(result.rows_before_us) if result.rows_before_us else None,
        "left_out": result.left_out,
        **facts,
    }
    return Answer(document=document, display={"plan": run_id, **display}, sections=[make_findings_table(counts, sizes)])


def count_by_kind(counts: Mapping[Any, int], kinds: Iterable[StrEnum]) -> dict[str, int]:
    """Return the counts of `kinds`, with zeros. The keys of `counts` are enum values or their texts."""
    return {kind.value: counts.get(kind.value, 0) for kind in kinds}


def make_findings_table(
    counts: Mapping[str, int], sizes: Mapping[str, int], *, title: str = "findings", empty: str = "nothing found"
) -> Answer:
    rows = [{"kind": name, "findings": count, "bytes": sizes[name]} for name, count in counts.items() if count]
    return Answer(document=rows, title=title, empty=empty)


scrubs = create_command_group("scrubs", path="")

_SCRUB_KINDS = (FindingKind.CORRUPT_DATA, FindingKind.MISSING_DATA)

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Only ledgers of these; by default of every topic.", show_default=False),
]
Rate = Annotated[
    int | None,
    typer.Option(
        "--rate",
        metavar="BYTES",
        min=MIN_SCRUB_RATE,
        max=1 << 40,
        help="The most bytes to read a second, of all tasks together; by default the setting scrub_rate.",
        show_default=False,
    ),
]


@command(scrubs, "scrub", "", "--rate 100000000 --no-wait", 'TOPIC --reason "a disk failed" --json')
def scrub_ledgers(
    context: CommandContext,
    names: Topics = None,
    *,
    rate: Rate = None,
    master: Master = None,
    reason: Reason = "",
) -> JobOrAnswer:
    """Read every stored segment and tiered copy, and compare their digests. The job changes nothing.

    If a scrub was cancelled or has failed, a scrub of the same topics continues it.
    """
    topics = [context.get_topic(name) for name in names or ()]
    if len({topic.topic_id for topic in topics}) < len(topics):
        raise InvalidInput("topic", expected="each topic once", found=", ".join(names or ()))
    context.require_store()
    return CommandLineJob(
        lambda client: client.scrub_ledgers(
            topics or None,
            bytes_per_s=rate or context.settings.scrub_rate,
            master=master or "",
            reason=reason,
            actor=context.actor,
        ),
        "scrubbing",
        _answer_scrub,
    )


def _answer_scrub(workflow_id: str, result: "ScrubLedgersResult") -> Answer:
    scrub_result, progress = result.found, result.progress
    assert scrub_result is not None, "a refusal was raised"
    counts = count_by_kind(scrub_result.findings, _SCRUB_KINDS)
    sizes = count_by_kind(scrub_result.size_bytes, _SCRUB_KINDS)
    for sentence in scrub_result.left_out:
        print_note(f"not read: {sentence}")
    if any(counts.values()):
        print_note(f"data is damaged: sexton orphans report {result.run_id}")
    document: dict[str, object] = {
        "run_id": result.run_id,
        "findings": counts,
        "bytes": sizes,
        "ledgers": scrub_result.ledgers,
        **select_fields(progress, "objects read_bytes=size_bytes"),
        **select_fields(scrub_result, "report left_out"),
        "workflow_id": workflow_id,
    }
    display = select_fields(document, "scrub=run_id ledgers")
    display |= {"objects read": progress.objects, "bytes read": progress.size_bytes}
    return Answer(document=document, display=display, sections=[make_findings_table(counts, sizes)])
