"""Command `pulsar verify`."""

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.exit_codes import ExitCode
from workers.cli.orphans.certificates import check_certificate
from workers.cli.orphans.plan_runs import RunId
from workers.cli.progress_bar import show_progress_bar
from workers.cli.pulsar import pulsar

if TYPE_CHECKING:
    from infra.pulsar.apply_verification import ApplyVerification
    from infra.pulsar.scan_facts import ScannedReference

State = TypeVar("State", bound=StrEnum)

_MEANING_BY_SPACE: Final = {
    "reclaimed": "no bookie has the ledgers any more; disks are free once entry logs are compacted",
    "awaiting_collection": "bookies have the ledgers until their next garbage collection",
    "unknown": "bookies do not answer",
}


@command(pulsar, "verify", "pulsar-8c1d5f0e9a3b", "pulsar-8c1d5f0e9a3b --json")
def verify_apply(context: CommandContext, run_id: RunId) -> Answer:
    """Read the cluster again after `orphans apply`: is anything missing, what is left, and what did bookies give back?

    Every reference of the cluster is read. If one names a ledger that the apply has deleted, and that is absent, the
    exit code is 1: put the ledger back with `orphans undo`. So it is if the certificate of the apply was changed. If
    something cannot be read, the exit code is 4.

    Bytes are those that the metadata of the deleted ledgers state, times their replicas. reclaimed: no bookie has the
    ledger any more. awaiting_collection: a bookie has it until its next garbage collection. unknown: a bookie does not
    answer. A ledger that nobody has closed states no bytes. The command changes nothing, and needs read access alone.
    """
    from logstore.reconciliation.services import run_checks  # noqa: PLC0415 - start-up time

    plan, apply_run = run_checks.require_applied_cluster_plan(context.catalog.reconciliation, run_id)
    findings = run_checks.open_finding_files(plan, run_id) if plan else None
    with show_progress_bar("reading all references of the cluster"):
        result = context.services.verify_pulsar_apply(
            context.settings, apply_run, context.catalog.cluster_journal, findings
        )
    return _make_answer(run_id, result, check_certificate(context, run_id))


def _make_answer(run_id: str, result: "ApplyVerification", certificate: dict[str, object] | None) -> Answer:
    from infra.pulsar.apply_verification import DeletedLedgerState, SpaceState  # noqa: PLC0415 - start-up time

    problems = result.problems
    missing, new_dangling = (
        list(map(_make_reference_row, each.samples)) for each in (result.missing, result.new_dangling)
    )
    unread = [{"path": f"/{problem.path}", "reason": problem.reason} for problem in problems.samples]
    space_bytes = _count_by_state(SpaceState, result.space_bytes)
    space_ledgers = _count_by_state(SpaceState, result.space_ledgers)
    deleted = _count_by_state(DeletedLedgerState, result.ledgers)
    document: dict[str, object] = {
        "run_id": run_id,
        "missing_referenced": result.missing.count,
        "orphans_left": result.orphans_left,
        "reclaimed_bytes": space_bytes[SpaceState.RECLAIMED.value],
        "bytes": space_bytes,
        "ledgers": space_ledgers,
        "unstated_ledgers": result.unstated_ledgers,
        "journal": deleted,
        "references": result.references,
        "dangling": {"planned": result.planned_dangling, "new": result.new_dangling.count},
        "complete": not problems.count,
        "certificate": certificate,
        "missing": missing,
        "new_dangling": new_dangling,
        "problem_count": problems.count,
        "problems": unread,
    }
    display: dict[str, object] = {
        "plan": run_id,
        "missing, but referenced": result.missing.count,
        "orphans left": "unknown: the plan has left the catalog"
        if result.orphans_left is None
        else result.orphans_left,
        "ledgers of the journal": ", ".join(f"{count:,} {name}" for name, count in deleted.items() if count) or "none",
        "references": result.references,
        "dangling references": f"{result.planned_dangling:,} of the plan, {result.new_dangling.count:,} new",
        "complete": f"no: {problems.count:,} values are unreadable" if problems.count else "yes",
    }
    if certificate:
        display |= {f"certificate {name}": value for name, value in certificate.items() if value is not None}
    space = [
        {"space": name, "bytes": space_bytes[name], "ledgers": space_ledgers[name], "meaning": meaning}
        for name, meaning in _MEANING_BY_SPACE.items()
    ]
    sections = [
        Answer(document=space, title="space of the absent ledgers", columns_below=("meaning",)),
        Answer(document=missing, title="missing, but referenced", empty="nothing refers to a deleted ledger"),
        Answer(document=new_dangling, title="other dangling references since the plan", empty="no others dangle"),
        Answer(document=unread, title="unreadable", empty="every reference was read"),
    ]
    return Answer(document=document, display=display, sections=sections, code=_choose_exit_code(result, certificate))


def _choose_exit_code(result: "ApplyVerification", certificate: dict[str, object] | None) -> ExitCode:
    if result.missing.count or (certificate and certificate["intact"] is False):
        return ExitCode.FAILED
    is_read = not result.problems.count and not (certificate and certificate["error"])
    return ExitCode.DONE if is_read else ExitCode.UNREACHABLE


def _count_by_state(states: type[State], counts: "Counter[State]") -> dict[str, int]:
    return {state.value: counts[state] for state in states}


def _make_reference_row(reference: "ScannedReference") -> dict[str, Any]:
    return {"ledger_id": reference.ledger_id, "path": f"/{reference.path}", "field": reference.source}
