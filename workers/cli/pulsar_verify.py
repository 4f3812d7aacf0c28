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

    Every reference of the cluster is read. If a reference names a deleted ledger that is absent, the exit code is 1:
    put the ledger back with `orphans undo`. It is also 1 if the certificate of the apply was changed. If something
    cannot be read, the exit code is 4.

    Bytes are those that the metadata of the deleted ledgers state, times their replicas. reclaimed: no bookie has the
    ledger any more. awaiting_collection: a bookie has it until its next garbage collection. unknown: a bookie does not
    answer. A ledger that nobody has closed states no bytes. The command changes nothing, and only needs read access.
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
    document = _make_document(run_id, result, certificate)
    return Answer(
        document=document,
        display=_make_display(document),
        sections=_make_sections(document),
        code=_choose_exit_code(result, certificate),
    )


def _make_document(run_id: str, result: "ApplyVerification", certificate: dict[str, object] | None) -> dict[str, Any]:
    from infra.pulsar.apply_verification import DeletedLedgerState, SpaceState  # noqa: PLC0415 - start-up time

    space_bytes = _count_by_state(SpaceState, result.space_bytes)
    return {
        "run_id": run_id,
        "missing_referenced": result.missing.count,
        "orphans_left": result.orphans_left,
        "reclaimed_bytes": space_bytes[SpaceState.RECLAIMED.value],
        "bytes": space_bytes,
        "ledgers": _count_by_state(SpaceState, result.space_ledgers),
        "unstated_ledgers": result.unstated_ledgers,
        "journal": _count_by_state(DeletedLedgerState, result.ledgers),
        "references": result.references,
        "dangling": {"planned": result.planned_dangling, "new": result.new_dangling.count},
        "complete": not result.problems.count,
        "certificate": certificate,
        "missing": list(map(_make_reference_row, result.missing.samples)),
        "new_dangling": list(map(_make_reference_row, result.new_dangling.samples)),
        "problem_count": result.problems.count,
        "problems": [{"path": f"/{each.path}", "reason": each.reason} for each in result.problems.samples],
    }


def _make_display(document: dict[str, Any]) -> dict[str, object]:
    left, unreadable, dangling = document["orphans_left"], document["problem_count"], document["dangling"]
    ledgers = ", ".join(f"{count:,} {name}" for name, count in document["journal"].items() if count)
    certificate = document["certificate"] or {}
    return {
        "plan": document["run_id"],
        "missing, but referenced": document["missing_referenced"],
        "orphans left": "unknown: the plan has left the catalog" if left is None else left,
        "ledgers of the journal": ledgers or "none",
        "references": document["references"],
        "dangling references": f"{dangling['planned']:,} of the plan, {dangling['new']:,} new",
        "complete": f"no: {unreadable:,} values are unreadable" if unreadable else "yes",
        **{f"certificate {name}": value for name, value in certificate.items() if value is not None},
    }


def _make_sections(document: dict[str, Any]) -> list[Answer]:
    space = [
        {"space": name, "bytes": document["bytes"][name], "ledgers": document["ledgers"][name], "meaning": meaning}
        for name, meaning in _MEANING_BY_SPACE.items()
    ]
    return [
        Answer(document=space, title="space of the absent ledgers", columns_below=("meaning",)),
        Answer(
            document=document["missing"], title="missing, but referenced", empty="nothing refers to a deleted ledger"
        ),
        Answer(
            document=document["new_dangling"],
            title="other dangling references since the plan",
            empty="no others dangle",
        ),
        Answer(document=document["problems"], title="unreadable", empty="every reference was read"),
    ]


def _choose_exit_code(result: "ApplyVerification", certificate: dict[str, object] | None) -> ExitCode:
    if result.missing.count or (certificate and certificate["intact"] is False):
        return ExitCode.FAILED
    is_read = not result.problems.count and not (certificate and certificate["error"])
    return ExitCode.DONE if is_read else ExitCode.UNREACHABLE


def _count_by_state(states: type[State], counts: "Counter[State]") -> dict[str, int]:
    return {state.value: counts[state] for state in states}


def _make_reference_row(reference: "ScannedReference") -> dict[str, Any]:
    return {"ledger_id": reference.ledger_id, "path": f"/{reference.path}", "field": reference.source}
