"""`orphans apply`, `orphans undo` and `pulsar verify`: removals of the orphans that a plan has found."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput, PreconditionFailed, SextonError, UnknownObject
from logstore.ports.catalog.reconciliation import RunKind
from logstore.ports.pulsar_cluster import Restoration, StoredData
from logstore.pulsar.cluster_findings import PARTS, VERSION, parse_parts
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, parse_ledger_metadata
from logstore.pulsar.znode_names import MAX_LEDGER_ID
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.findings import STOPPED, FindingKind, apply_run_id
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode
from workers.cli.command_registration import command
from workers.cli.job_commands import CommandLineJob, JobOrAnswer
from workers.cli.orphans import (
    PLAN,
    RunId,
    answer_started_plan,
    count_by_kind,
    make_findings_table,
    orphans,
)
from workers.cli.output import (
    Answer,
    Row,
    answer_partial_failure,
    answer_partial_failure_if_any,
    print_note,
    show_progress_bar,
    sort_counts,
)
from workers.cli.pulsar import pulsar
from workers.cli.shared_options import MAX_RATE, DryRun, Reason, make_fraction_parser
from workers.human_readable_values import format_time_to_second, select_fields

if TYPE_CHECKING:
    from activities.reconciliation.apply_orphans import ApplyPreview
    from infra.pulsar.apply_verification import ApplyVerification
    from infra.pulsar.scan_facts import ScannedReference
    from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
    from logstore.ports.catalog.reconciliation import JournaledLedger, ReconciliationRun
    from logstore.reconciliation.findings import ApplyCounts, Finding
    from workflows.pulsar.job_definitions import ApplyPulsarResult, UndoPulsarResult
    from workflows.reconciliation.job_definitions import ApplyOrphansResult


_CLUSTER_PLAN = "pulsar-8c1d5f0e9a3b"  # id in examples
_UNREFERENCED: Final = (
    "a ledger that is back has its metadata again, so that bookies keep its entries. Nothing in Pulsar reads it until"
    " something refers to it: sexton pulsar explain LEDGER_ID. The next plan finds it as an orphan again"
)
_IRREVERSIBLE: Final = "objects, uploads and managed ledgers do not come back: no undo restores them"
_WITHOUT_DATA: Final = "no bookie has entries of it: the metadata are back, and each read of the ledger fails"
_WITHOUT_DATA_AND_OPEN: Final = "no bookie has entries of it, and nobody has closed it: it may have had none"
_OCCUPIED: Final = "it was there with another value, and was not changed"


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


@command(
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
    from logstore.reconciliation.services.run_checks import require_appliable_cluster_plan  # noqa: PLC0415

    runs = context.catalog.reconciliation
    plan_run = runs.get_run(run_id)
    cluster_options: dict[str, Any] = {
        "limit": limit,
        "include_unconfirmed": include_unconfirmed,
        "include_irreversible": include_irreversible,
    }
    if plan_run.kind is RunKind.CLUSTER_PLAN:
        if dry_run:
            return _preview_cluster_apply(context, run_id, max_orphan_share=max_orphan_share, **cluster_options)
        require_appliable_cluster_plan(runs, context.catalog.identities, run_id)
        return CommandLineJob(
            lambda client: client.apply_pulsar(
                run_id,
                max_orphan_share=max_orphan_share,
                **cluster_options,
                rate=rate,
                reason=reason,
                actor=context.actor,
            ),
            "applying",
            _answer_cluster_apply,
            answer_started=answer_started_plan,
        )
    if option := next((name.replace("_", "-") for name, value in cluster_options.items() if value), ""):
        raise InvalidInput(option, expected="a plan of a Pulsar cluster with this option", found=run_id)
    if dry_run:
        return _preview_apply(context, plan_run, max_orphan_share)
    applied_at = _find_apply_time(runs, run_id)
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
    kinds = [kind for kind in FindingKind if kind.is_removable]
    applied, sizes, skipped = count_by_kind({}, kinds), count_by_kind({}, kinds), dict[str, int]()
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
            make_findings_table(applied, sizes, title="would be applied", empty="nothing"),
            Answer(document=reasons, title="would be kept", empty="nothing"),
        ],
    )
    try:
        if not applied_at:
            plausibility_guards.check_orphan_share(plan.findings, plan.ledgers, max_orphan_share)
    except PreconditionFailed as refused:
        return _mark_as_refused(answer, document, refused)
    return answer


def _find_apply_time(runs: "ReconciliationRuns", run_id: str) -> str | None:
    from logstore.reconciliation.services.run_checks import find_apply  # noqa: PLC0415 - start-up time

    apply_run = find_apply(runs, run_id)
    return None if apply_run is None or apply_run.finished_us is None else format_time_to_second(apply_run.finished_us)


def _answer_apply(workflow_id: str, result: "ApplyOrphansResult", *, is_repeated: bool) -> Answer:
    document = {
        "run_id": result.run_id,
        "already_applied": is_repeated,
        **_count_fates(result.done),
        **select_fields(result.done, "failed objects bytes=size_bytes"),
        "workflow_id": workflow_id,
    }
    answer = _make_apply_answer(document, result.done)
    if result.done.failed:
        print_note("dead letters: sexton deletion list --state DEAD_LETTERED")
    return answer


def _count_fates(counts: "ApplyCounts") -> dict[str, dict[str, int]]:
    return {"applied": sort_counts(counts.applied), "skipped": sort_counts(counts.skipped)}


def _make_apply_answer(document: Row, counts: "ApplyCounts", *, code: ExitCode = ExitCode.DONE) -> Answer:
    """Return the answer of an ended apply. If findings have failed and `code` is `DONE`, it is a partial failure."""
    print_note(f"what became of each: sexton orphans report {document['run_id']}")
    if counts.failed and code is ExitCode.DONE:
        failures = [{"id": int(number), "error": error} for number, error in counts.failures.items()]
        return answer_partial_failure({**document, "failed_count": counts.failed}, failures)
    display = {"plan" if name == "run_id" else name: value for name, value in document.items()}
    return Answer(document=document, display=display, code=code)


def _mark_as_refused(answer: Answer, document: Mapping[str, object], refusal: PreconditionFailed) -> Answer:
    """Return the answer of a dry run, with its document, as that of an apply that would be refused."""
    print_note(f"it would be refused: {refusal}")
    error = {"type": type(refusal).__name__, "message": str(refusal)}
    return replace(answer, document={**document, "error": error}, code=ExitCode.REFUSED)


def _preview_cluster_apply(
    context: CommandContext,
    run_id: str,
    *,
    max_orphan_share: float,
    limit: int,
    include_unconfirmed: bool,
    include_irreversible: bool,
) -> Answer:
    """Answer with the exact paths and keys that an apply would remove, oldest first. The cluster is not asked."""
    from activities.pulsar import orphan_selection  # noqa: PLC0415 - start-up time
    from activities.pulsar.apply_guards import require_apply_allowed  # noqa: PLC0415
    from activities.reconciliation.finding_fates import page_fate_files  # noqa: PLC0415
    from logstore.reconciliation.services import run_checks  # noqa: PLC0415

    runs, settings = context.catalog.reconciliation, context.settings
    plan, _ = run_checks.require_appliable_cluster_plan(runs, context.catalog.identities, run_id)
    apply_run = run_checks.find_apply(runs, run_id)
    fate_files = page_fate_files(Path(apply_run.summary["folder"])) if apply_run else None
    files = run_checks.open_finding_files(plan, run_id)
    has_ended = apply_run is not None and apply_run.finished_us is not None
    scope = orphan_selection.RemovalScope(
        include_unconfirmed=include_unconfirmed,
        include_irreversible=include_irreversible,
        has_offload_bucket=bool(settings.pulsar_offload_bucket),
        is_offload_bucket_exclusive=settings.pulsar_offload_bucket_exclusive,
        has_admin_api=bool(settings.pulsar_admin_url),
    )
    remaining: list[tuple[int, Finding]] = []
    if not has_ended:
        remaining += orphan_selection.iterate_orphans_to_remove(files, fate_files, plan, scope)
    chosen = [finding for _, finding in orphan_selection.select_oldest(remaining, limit or len(remaining))]
    rows = [_make_path_row(finding) for finding in chosen]
    sizes = Counter[str]()
    for finding in chosen:
        sizes[finding.kind.value] += finding.size_bytes
    document = {
        "dry_run": True,
        "run_id": run_id,
        "applied": count_by_kind(Counter(finding.kind.value for finding in chosen), scope.kinds),
        "bytes": count_by_kind(sizes, scope.kinds),
        "paths": rows,
        "left": len(remaining) - len(rows),
    }
    table = Answer(document=rows, title="would be removed", columns_below=("path", "owner", "parts"), empty="nothing")
    display = {"plan": run_id, "orphans": len(rows), "bytes": sizes.total(), "left for later": document["left"]}
    if any(finding.kind is not FindingKind.ORPHAN_LEDGER for finding in chosen):
        print_note(_IRREVERSIBLE)
    answer = Answer(document=document, display=display, sections=[table])
    if apply_run and has_ended:
        stopped = apply_run.summary.get(STOPPED)
        reason = f"was stopped: {stopped}" if stopped else "has ended"
        print_note(f"the apply of this plan {reason}; nothing more would go: sexton orphans report {run_id}")
        return answer
    is_exclusive = settings.pulsar_bookkeeper_exclusive
    try:
        require_apply_allowed(
            plan, files, scope, max_orphan_share=max_orphan_share, is_bookkeeper_exclusive=is_exclusive
        )
    except PreconditionFailed as refusal:
        return _mark_as_refused(answer, document, refusal)
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


def _answer_cluster_apply(workflow_id: str, result: "ApplyPulsarResult") -> Answer:
    document = {
        "run_id": result.run_id,
        **_count_fates(result.done),
        **select_fields(result.done, "failed bytes=size_bytes"),
        "stopped": result.stopped or None,
        "certificate": result.certificate or None,
        "workflow_id": workflow_id,
    }
    code = ExitCode.REFUSED if result.stopped else ExitCode.DONE
    answer = _make_apply_answer(document, result.done, code=code)
    print_note(f"what the cluster says of it: sexton pulsar verify {result.run_id}")
    print_note(f"to put the ledgers back while bookies have their data: sexton orphans undo {result.run_id}")
    if result.done.applied.keys() - {FindingKind.ORPHAN_LEDGER.value}:
        print_note(_IRREVERSIBLE)
    return answer


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


@command(orphans, "undo", _CLUSTER_PLAN, f"{_CLUSTER_PLAN} --ledger 1234 --json")
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
    from activities.pulsar.journal_copies import JournalCopies  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.services.run_checks import find_apply  # noqa: PLC0415

    # Refuse an apply that neither the catalog nor the records bucket knows. Later checks are those of the job.
    is_in_catalog = find_apply(context.catalog.reconciliation, run_id) is not None
    if not is_in_catalog and not JournalCopies(context.log.record_objects).has_copies(apply_run_id(run_id)):
        raise UnknownObject("run_id", expected="a plan whose apply has deleted ledgers", found=run_id)
    return CommandLineJob(
        lambda client: client.undo_pulsar(run_id, ledger_ids=ledger or (), reason=reason, actor=context.actor),
        "undoing",
        partial(_answer_undo, context, ledger),
        answer_started=answer_started_plan,
    )


def _answer_undo(
    context: CommandContext, ledger_ids: list[int] | None, workflow_id: str, result: "UndoPulsarResult"
) -> Answer:
    from logstore.catalog.reconciliation.cluster_journal import (  # noqa: PLC0415 - start-up time
        iterate_journal,
        iterate_removals,
    )

    journal, run_id = context.catalog.cluster_journal, apply_run_id(result.run_id)
    rows: list[dict[str, object]] = []
    failures: list[dict[str, object]] = []
    for each in iterate_journal(journal, run_id, ledger_ids=ledger_ids or None):
        rows.append(select_fields(each, "ledger_id path znode=restoration data=stored_data"))
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
    if ledger.restoration == Restoration.OCCUPIED.value:
        return _OCCUPIED
    if ledger.stored_data != StoredData.GONE.value:
        return ""
    is_closed = parse_ledger_metadata(ledger.data).state is BookKeeperLedgerState.CLOSED
    return _WITHOUT_DATA if is_closed else _WITHOUT_DATA_AND_OPEN


def describe_certificate(context: CommandContext, run_id: str) -> str:
    """Return the key of the newest certificate as text for people. `run_id` is that of the plan.

    Without the records bucket, commands answer all the same what the catalog and the cluster say.
    """
    from activities.pulsar.apply_certificates import ApplyCertificates  # noqa: PLC0415 - start-up time

    try:
        certificate = ApplyCertificates(context.log.record_objects).find_newest(apply_run_id(run_id))
    except SextonError as error:
        return f"unknown: {error}"
    if certificate is None:
        return "none: nothing was deleted"
    return f"{certificate.key}\nin the records bucket, with {certificate.removals:,} removals"


def _check_certificate(context: CommandContext, run_id: str) -> dict[str, object] | None:
    """Return facts about the certificate, also whether it has its digest, or `None` if there is none."""
    from activities.pulsar.apply_certificates import ApplyCertificates  # noqa: PLC0415 - start-up time

    facts: dict[str, object] = {"key": None, "removals": None, "intact": None, "error": None}
    try:
        certificates = ApplyCertificates(context.log.record_objects)
        certificate = certificates.find_newest(apply_run_id(run_id))
        if certificate is None:
            return None
        facts |= {"key": certificate.key, "removals": certificate.removals}
        return facts | {"intact": certificates.is_intact(certificate)}
    except SextonError as error:
        return facts | {"error": str(error)}


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
    certificate = _check_certificate(context, run_id)
    document = _make_verification_document(run_id, result, certificate)
    code = ExitCode.DONE
    if result.missing.count or (certificate and certificate["intact"] is False):
        code = ExitCode.FAILED
    elif result.problems.count or (certificate and certificate["error"]):
        code = ExitCode.UNREACHABLE
    return Answer(
        document=document,
        display=_make_verification_display(document),
        sections=_make_verification_sections(document),
        code=code,
    )


def _make_verification_document(
    run_id: str, result: "ApplyVerification", certificate: dict[str, object] | None
) -> dict[str, Any]:
    from infra.pulsar.apply_verification import DeletedLedgerState, SpaceState  # noqa: PLC0415 - start-up time

    space_bytes = count_by_kind(result.space_bytes, SpaceState)
    return {
        "run_id": run_id,
        "missing_referenced": result.missing.count,
        "orphans_left": result.orphans_left,
        "reclaimed_bytes": space_bytes[SpaceState.RECLAIMED.value],
        "bytes": space_bytes,
        "ledgers": count_by_kind(result.space_ledgers, SpaceState),
        "unstated_ledgers": result.unstated_ledgers,
        "journal": count_by_kind(result.ledgers, DeletedLedgerState),
        "references": result.references,
        "dangling": {"planned": result.planned_dangling, "new": result.new_dangling.count},
        "complete": not result.problems.count,
        "certificate": certificate,
        "missing": list(map(_make_reference_row, result.missing.samples)),
        "new_dangling": list(map(_make_reference_row, result.new_dangling.samples)),
        "problem_count": result.problems.count,
        "problems": [{"path": f"/{each.path}", "reason": each.reason} for each in result.problems.samples],
    }


def _make_verification_display(document: dict[str, Any]) -> dict[str, object]:
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


def _make_verification_sections(document: dict[str, Any]) -> list[Answer]:
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


def _make_reference_row(reference: "ScannedReference") -> dict[str, Any]:
    return {"ledger_id": reference.ledger_id, "path": f"/{reference.path}", "field": reference.source}
