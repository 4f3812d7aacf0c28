"""`scrub`: read every stored segment and tiered copy, and compare digests."""

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from logstore.reconciliation.bulk_job_inputs_and_results import MIN_SCRUB_RATE
from logstore.reconciliation.findings import FindingKind
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, job_command
from workers.cli.orphans.plan_and_apply import make_findings_table
from workers.cli.shared_options import Master, Reason

if TYPE_CHECKING:
    from workflows.reconciliation.job_definitions import ScrubLedgersResult

scrubs = create_command_group("scrubs", "Scrubs.", path="")

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


@job_command(scrubs, "scrub", "", "--rate 100000000 --no-wait", 'TOPIC --reason "a disk failed" --json')
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
    counts = {kind.value: int(scrub_result.findings.get(kind.value, 0)) for kind in _SCRUB_KINDS}
    sizes = {kind.value: int(scrub_result.size_bytes.get(kind.value, 0)) for kind in _SCRUB_KINDS}
    for sentence in scrub_result.left_out:
        print_note(f"not read: {sentence}")
    if any(counts.values()):
        print_note(f"data is damaged: sexton orphans report {result.run_id}")
    document: dict[str, object] = {
        "run_id": result.run_id,
        "findings": counts,
        "bytes": sizes,
        "ledgers": int(scrub_result.ledgers),
        "objects": int(progress.objects),
        "read_bytes": int(progress.size_bytes),
        "report": scrub_result.report,
        "left_out": list(scrub_result.left_out),
        "workflow_id": workflow_id,
    }
    display = {
        "scrub": result.run_id,
        "ledgers": scrub_result.ledgers,
        "objects read": progress.objects,
        "bytes read": progress.size_bytes,
    }
    return Answer(document=document, display=display, sections=[make_findings_table(counts, sizes)])


_SCRUB_KINDS = (FindingKind.CORRUPT_DATA, FindingKind.MISSING_DATA)
