"""Group `pulsar`: a real Pulsar cluster with BookKeeper. The commands of this group only read."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.exit_codes import ExitCode
from workers.human_readable_values import format_time_to_second, select_fields

if TYPE_CHECKING:
    from infra.pulsar.ledger_explanation import LedgerExplanation

pulsar = create_command_group("pulsar", "A Pulsar cluster: ledgers that nothing refers to.")

_LedgerId = Annotated[
    int, typer.Argument(metavar="LEDGER_ID", min=0, max=(1 << 63) - 1, help="Id of a BookKeeper ledger.")
]
_MAX_REFERENCES_SHOWN: Final = 20


@command(pulsar, "check", "", "--json")
def check(context: CommandContext) -> Answer:
    """Check what a plan needs of the cluster in the setting pulsar_zookeeper, and print the cluster's identity.

    The checks are: layout of the ledgers, managed ledgers, bookies with addresses. If a check fails, the exit code is
    4. The command changes nothing.
    """
    result = context.services.check_pulsar_cluster(context.settings)
    rows = [select_fields(each, "name ok detail") for each in result.capabilities]
    document = {"ok": result.ok, "cluster": result.cluster, "identity": result.identity, "capabilities": rows}
    return Answer(
        document=document,
        display=rows,
        sections=(Answer(document={}, text=f"cluster {result.cluster or '(no name)'}, identity {result.identity}\n"),),
        code=ExitCode.DONE if result.ok else ExitCode.UNREACHABLE,
    )


@command(pulsar, "explain", "1234", "1234 --json")
def explain(context: CommandContext, ledger_id: _LedgerId) -> Answer:
    """Explain a ledger: its owner, every znode that refers to it, its bookies, its age, and a verdict with a reason.

    The verdict on a ledger with a reference is `referenced`. Without one it is `young`, `replicated` or `doubtful`
    (something cannot be read that may refer to it), or it says what is wrong with the owner: `owner_absent`,
    `owner_not_listing`, `owner_unstated`, `owner_unreadable` or `owner_foreign`. It is that of one look at all
    references of one cluster. Do not delete the ledger because of it: a reference may be on its way. The command
    changes nothing.
    """
    explanation = context.services.explain_pulsar_ledger(context.settings, ledger_id)
    document = _make_document(explanation)
    references = explanation.references
    shown = [f"/{each.path} ({each.source})" for each in references[:_MAX_REFERENCES_SHOWN]]
    if len(references) > _MAX_REFERENCES_SHOWN:
        shown.append(f"and {len(references) - _MAX_REFERENCES_SHOWN:,} more")
    facts = {
        "ledger": ledger_id,
        "owner": document["owner"] and document["owner"]["path"],
        "references": "\n".join(shown) or None,
        **(document["metadata"] or {}),
        "verdict": explanation.verdict.value,
        "reason": explanation.reason,
    }
    problems = Answer(document=document["problems"], empty="everything that may refer to a ledger was read")
    display = [{"fact": name, "value": value} for name, value in facts.items()]
    return Answer(document=document, display=display, sections=(problems,))


def _make_document(explanation: "LedgerExplanation") -> dict[str, Any]:
    ledger, owner, metadata = explanation.ledger, explanation.owner, explanation.ledger.metadata
    return {
        "ledger_id": ledger.ledger_id,
        "metadata": {
            "state": metadata.state.value,
            "bytes": metadata.size_bytes,
            "bookies": sorted(metadata.bookie_ids),
            "created": format_time_to_second(ledger.znode.created_ms * 1_000),
            "version": ledger.znode.version,
        }
        if metadata
        else None,
        "owner": {"component": owner.component.value, "path": f"/{owner.path}"} if owner else None,
        "references": [{"path": f"/{each.path}", "field": each.source} for each in explanation.references],
        "verdict": explanation.verdict.value,
        "reason": explanation.reason,
        "problems": [{"path": f"/{each.path}", "reason": each.reason} for each in explanation.problems],
    }
