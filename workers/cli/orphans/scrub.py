"""`scrub`: every stored segment and tiered copy read and compared with its digest."""

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.jobs import MIN_SCRUB_RATE
from workers.cli.command import group
from workers.cli.context import CommandContext
from workers.cli.job_commands import JobOrAnswer, JobRequest, job
from workers.cli.options import Master, Reason
from workers.cli.orphans.runs import by_kind
from workers.cli.output import Answer, note

if TYPE_CHECKING:
    from workflows.reconciliation.values import ScrubLedgersResult

scrubs = group("scrubs", "Scrubs.", path="")

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


@job(scrubs, "scrub", "", "--rate 100000000 --no-wait", 'TOPIC --reason "a disk failed" --json')
def scrub(
    context: CommandContext,
    names: Topics = None,
    *,
    rate: Rate = None,
    master: Master = None,
    reason: Reason = "",
) -> JobOrAnswer:
    """Read every stored segment and tiered copy, and compare their digests. Changes nothing.

    A scrub that was cancelled or that failed goes on where it was, once the same topics are scrubbed again.
    """
    topics = [context.get_topic(name) for name in names or ()]
    if len({topic.topic_id for topic in topics}) < len(topics):
        raise InvalidInput("topic", expected="each topic once", found=", ".join(names or ()))
    context.require_store()
    return JobRequest(
        lambda client: client.scrub_ledgers(
            topics or None,
            bytes_per_s=rate or context.settings.scrub_rate,
            master=master or "",
            reason=reason,
            actor=context.actor,
        ),
        "scrubbing",
        _scrubbed,
    )


def _scrubbed(workflow_id: str, result: "ScrubLedgersResult") -> Answer:
    found, read = result.found, result.progress
    assert found is not None, "a refusal was raised"
    counts = {kind.value: int(found.findings.get(kind.value, 0)) for kind in _KINDS}
    sizes = {kind.value: int(found.size_bytes.get(kind.value, 0)) for kind in _KINDS}
    for sentence in found.left_out:
        note(f"not read: {sentence}")
    if any(counts.values()):
        note(f"data is damaged: sexton orphans report {result.run_id}")
    document: dict[str, object] = {
        "run_id": result.run_id,
        "findings": counts,
        "bytes": sizes,
        "ledgers": int(found.ledgers),
        "objects": int(read.objects),
        "read_bytes": int(read.size_bytes),
        "report": found.report,
        "left_out": list(found.left_out),
        "workflow_id": workflow_id,
    }
    shown = {
        "scrub": result.run_id,
        "ledgers": found.ledgers,
        "objects read": read.objects,
        "bytes read": read.size_bytes,
    }
    return Answer(document=document, display=shown, sections=[by_kind(counts, sizes)])


_KINDS = (FindingKind.CORRUPT_DATA, FindingKind.MISSING_DATA)
