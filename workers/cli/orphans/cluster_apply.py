"""`orphans apply` and `orphans undo` for plans of a Pulsar cluster."""

from collections import Counter
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.ports.pulsar_cluster import Restoration, StoredData
from logstore.pulsar.cluster_findings import PARTS, VERSION, parse_parts
from logstore.pulsar.znode_names import MAX_LEDGER_ID
from logstore.reconciliation.findings import STOPPED, FindingKind
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.exit_codes import ExitCode
from workers.cli.job_commands import (
    CommandLineJob,
    JobOrAnswer,
    answer_partial_failure,
    answer_partial_failure_if_any,
    job_command,
    sort_counts,
)
from workers.cli.orphans.plan_runs import RunId, answer_started_plan, mark_as_refused, orphans
from workers.cli.shared_options import Reason
from workers.human_readable_values import format_time_to_second

if TYPE_CHECKING:
    from logstore.ports.catalog.reconciliation import JournaledLedger, ReconciliationRun
    from logstore.reconciliation.findings import Finding
    from workflows.pulsar.job_definitions import ApplyPulsarResult, UndoPulsarResult

_CLUSTER_PLAN = "pulsar-8c1d5f0e9a3b"  # id in examples
_UNREFERENCED: Final = (
    "a ledger that is back has its metadata again, so that bookies keep its entries. Nothing in Pulsar reads it until"
    " something refers to it: sexton pulsar explain LEDGER_ID. The next plan finds it as an orphan again"
)
_IRREVERSIBLE: Final = "objects, uploads and managed ledgers do not come back: no undo restores them"
_WITHOUT_DATA: Final = "no bookie has entries of it: the metadata are back, and each read of the ledger fails"
_WITHOUT_DATA_AND_OPEN: Final = "no bookie has entries of it, and nobody has closed it: it may have had none"
_OCCUPIED: Final = "it was there with another value, and was not changed"


def apply_cluster_plan(
    context: CommandContext,
    run_id: str,
    *,
    max_orphan_share: float,
    limit: int,
    include_unconfirmed: bool,
    include_irreversible: bool,
    rate: int,
    reason: str,
) -> JobOrAnswer:
    return CommandLineJob(
        lambda client: client.apply_pulsar(
            run_id,
            max_orphan_share=max_orphan_share,
            limit=limit,
            include_unconfirmed=include_unconfirmed,
            include_irreversible=include_irreversible,
            rate=rate,
            reason=reason,
            actor=context.actor,
        ),
        "applying",
        _answer_apply,
        answer_started=answer_started_plan,
    )


def preview_cluster_apply(
    context: CommandContext,
    run: "ReconciliationRun",
    *,
    max_orphan_share: float,
    limit: int,
    include_unconfirmed: bool,
    include_irreversible: bool,
) -> Answer:
    """Answer with the exact paths and keys that an apply would remove, oldest first. The cluster is not asked."""
    from activities.pulsar.apply_guards import require_apply_allowed  # noqa: PLC0415 - start-up time
    from activities.pulsar.orphan_selection import (  # noqa: PLC0415
        RemovalScope,
        iterate_orphans_to_remove,
        select_oldest,
    )
    from activities.reconciliation.finding_fates import page_fate_files  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.services import run_checks  # noqa: PLC0415

    runs = context.catalog.reconciliation
    plan, _ = run_checks.require_appliable_cluster_plan(runs, context.catalog.identities, run.run_id)
    apply_run = run_checks.find_apply(runs, run.run_id)
    fate_files = page_fate_files(Path(apply_run.summary["folder"])) if apply_run else None
    files = run_checks.open_finding_files(plan, run.run_id)
    has_ended = apply_run is not None and apply_run.finished_us is not None
    scope = RemovalScope(
        include_unconfirmed=include_unconfirmed,
        include_irreversible=include_irreversible,
        has_offload_bucket=bool(context.settings.pulsar_offload_bucket),
        is_offload_bucket_exclusive=context.settings.pulsar_offload_bucket_exclusive,
        has_admin_api=bool(context.settings.pulsar_admin_url),
    )
    remaining: list[tuple[int, Finding]] = []
    if not has_ended:
        remaining += iterate_orphans_to_remove(files, fate_files, plan, scope)
    chosen = select_oldest(remaining, limit or len(remaining))
    rows = [_make_path_row(finding) for _, finding in chosen]
    counts, sizes = dict.fromkeys(scope.kinds, 0), dict.fromkeys(scope.kinds, 0)
    for _, finding in chosen:
        counts[finding.kind] += 1
        sizes[finding.kind] += finding.size_bytes
    document = {
        "dry_run": True,
        "run_id": run.run_id,
        "applied": {kind.value: count for kind, count in counts.items()},
        "bytes": {kind.value: size for kind, size in sizes.items()},
        "paths": rows,
        "left": len(remaining) - len(rows),
    }
    table = Answer(document=rows, title="would be removed", columns_below=("path", "owner", "parts"), empty="nothing")
    display = {
        "plan": run.run_id,
        "orphans": len(rows),
        "bytes": sum(sizes.values()),
        "left for later": len(remaining) - len(rows),
    }
    if len(rows) > counts[FindingKind.ORPHAN_LEDGER]:
        print_note(_IRREVERSIBLE)
    answer = Answer(document=document, display=display, sections=[table])
    if apply_run and has_ended:
        stopped = apply_run.summary.get(STOPPED)
        reason = f"was stopped: {stopped}" if stopped else "has ended"
        print_note(f"the apply of this plan {reason}; nothing more would go: sexton orphans report {run.run_id}")
        return answer
    is_exclusive = context.settings.pulsar_bookkeeper_exclusive
    try:
        require_apply_allowed(
            plan, files, scope, max_orphan_share=max_orphan_share, is_bookkeeper_exclusive=is_exclusive
        )
    except PreconditionFailed as refusal:
        return mark_as_refused(answer, document, refusal)
    return answer


def _make_path_row(finding: "Finding") -> dict[str, Any]:
    """Return what would be removed: the path of a znode, or a key, and each object or upload of an offload."""
    statement = finding.statement
    version = statement.get(VERSION)
    return {
        "kind": finding.kind.value,
        "ledger_id": finding.ledger_id,
        "path": finding.key,
        "version": None if version is None else int(version),
        "changed": format_time_to_second(finding.newest_us or 0),
        "bytes": finding.size_bytes,
        "verdict": statement["verdict"],
        "owner": f"/{statement['owner']}" if statement["owner"] else None,
        "bucket": finding.bucket or None,
        "parts": _list_parts(finding),
    }


def _list_parts(finding: "Finding") -> list[str]:
    """Return the exact keys of an offload, with the version or the upload that would go, as S3 names them."""
    if PARTS not in finding.statement:
        return []
    names = []
    for part in parse_parts(finding):
        if upload_id := part.get("upload_id"):
            names.append(f"{part['key']}?uploadId={upload_id}")
        else:
            names.append(f"{part['key']}?versionId={part['version_id']}" if part["version_id"] else str(part["key"]))
    return names


def _answer_apply(workflow_id: str, result: "ApplyPulsarResult") -> Answer:
    counts = result.done
    document: dict[str, object] = {
        "run_id": result.run_id,
        "applied": sort_counts(counts.applied),
        "skipped": sort_counts(counts.skipped),
        "failed": int(counts.failed),
        "bytes": int(counts.size_bytes),
        "stopped": result.stopped or None,
        "certificate": result.certificate or None,
        "workflow_id": workflow_id,
    }
    print_note(f"what became of each: sexton orphans report {result.run_id}")
    print_note(f"what the cluster says of it: sexton pulsar verify {result.run_id}")
    print_note(f"to put the ledgers back while bookies have their data: sexton orphans undo {result.run_id}")
    if counts.applied.keys() - {FindingKind.ORPHAN_LEDGER.value}:
        print_note(_IRREVERSIBLE)
    rest = {name: value for name, value in document.items() if name != "run_id"}
    if counts.failed and not result.stopped:
        failed = [{"id": int(number), "error": error} for number, error in counts.failures.items()]
        return answer_partial_failure({**document, "failed_count": int(counts.failed)}, failed)
    code = ExitCode.REFUSED if result.stopped else ExitCode.DONE
    return Answer(document=document, display={"plan": result.run_id, **rest}, code=code)


def _check_ledger_ids(ledger_ids: list[int] | None) -> list[int] | None:
    if ledger_ids:
        from logstore.field_bounds import MAX_LEDGER_IDS  # noqa: PLC0415 - start-up time

        if len(ledger_ids) > MAX_LEDGER_IDS:
            raise InvalidInput("ledger", expected=f"at most {MAX_LEDGER_IDS:,} ledgers", found=len(ledger_ids))
    return ledger_ids


_LedgerIds = Annotated[
    list[int] | None,
    typer.Option(
        "--ledger",
        metavar="LEDGER_ID",
        min=0,
        max=MAX_LEDGER_ID,
        callback=_check_ledger_ids,
        help="Only this ledger. Repeatable.",
    ),
]


@job_command(orphans, "undo", _CLUSTER_PLAN, f"{_CLUSTER_PLAN} --ledger 1234 --json")
def undo_apply(
    context: CommandContext, run_id: RunId, *, ledger: _LedgerIds = None, reason: Reason = ""
) -> JobOrAnswer:
    """Put back the ledgers that an apply of a plan of a Pulsar cluster has deleted.

    A ledger is readable again as long as bookies have its entries: until their next garbage collection, which runs
    every 15 minutes by default. The answer says for each ledger whether a bookie still has entries. If a ledger has
    lost its entries, or is there with another value, the exit code is 5. If no bookie answers for a ledger, it is 4. If
    the catalog was lost, the ledgers come from the records bucket. What an apply with --include-irreversible has
    removed does not come back: the answer counts it.
    """
    _require_journal(context, run_id)
    return CommandLineJob(
        lambda client: client.undo_pulsar(run_id, ledger_ids=ledger or (), reason=reason, actor=context.actor),
        "undoing",
        partial(_answer_undo, context, ledger),
        answer_started=answer_started_plan,
    )


def _require_journal(context: CommandContext, run_id: str) -> None:
    """Refuse an apply that neither the catalog nor the records bucket knows. Later checks are those of the job."""
    from activities.pulsar.journal_copies import JournalCopies  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import apply_run_id  # noqa: PLC0415
    from logstore.reconciliation.services.run_checks import find_apply  # noqa: PLC0415

    is_in_catalog = find_apply(context.catalog.reconciliation, run_id) is not None
    if not is_in_catalog and not JournalCopies(context.log.record_objects).has_copies(apply_run_id(run_id)):
        raise UnknownObject("run_id", expected="a plan whose apply has deleted ledgers", found=run_id)


def _answer_undo(
    context: CommandContext, ledger_ids: list[int] | None, workflow_id: str, result: "UndoPulsarResult"
) -> Answer:
    from logstore.catalog.reconciliation.cluster_journal import iterate_journal, iterate_removals  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import apply_run_id  # noqa: PLC0415

    journal, run_id = context.catalog.cluster_journal, apply_run_id(result.run_id)
    rows: list[dict[str, object]] = []
    failures: list[dict[str, object]] = []
    for each in iterate_journal(journal, run_id, ledger_ids=ledger_ids or None):
        rows.append(
            {"ledger_id": each.ledger_id, "path": each.path, "znode": each.restoration, "data": each.stored_data}
        )
        if problem := _find_undo_problem(each):
            failures.append({"id": each.ledger_id, "error": problem})
    irreversible = sum(removal.removed_us is not None for removal in iterate_removals(journal, run_id))
    document = {
        "run_id": result.run_id,
        "counts": sort_counts(result.counts),
        "irreversible": irreversible,
        "ledgers": rows,
        "workflow_id": workflow_id,
    }
    print_note(_UNREFERENCED)
    if irreversible:
        print_note(_IRREVERSIBLE)
    for problem, number in Counter(map(itemgetter("error"), failures)).items():
        print_note(f"not as before: {number:,} ledgers. Each: {problem}")
    answer = answer_partial_failure_if_any(document, failures)
    if not failures and any(row["data"] == StoredData.UNKNOWN.value for row in rows):
        answer = replace(answer, code=ExitCode.UNREACHABLE)
    table = Answer(document=rows, title="ledgers", empty="nothing was deleted")
    display = {"plan": result.run_id, **sort_counts(result.counts), "does not come back": irreversible}
    return replace(answer, display=display, sections=[table, *answer.sections])


def _find_undo_problem(ledger: "JournaledLedger") -> str:
    """Return why a ledger is not as it was before its deletion, or ""."""
    from logstore.pulsar.ledger_metadata import (  # noqa: PLC0415 - start-up time
        BookKeeperLedgerState,
        parse_ledger_metadata,
    )

    if ledger.restoration == Restoration.OCCUPIED.value:
        return _OCCUPIED
    if ledger.stored_data != StoredData.GONE.value:
        return ""
    is_closed = parse_ledger_metadata(ledger.data).state is BookKeeperLedgerState.CLOSED
    return _WITHOUT_DATA if is_closed else _WITHOUT_DATA_AND_OPEN
