"""Group `records`: the record log, its unflushed changes, blocks and manifests, and its replicas."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.records.job_results import integer_fields
from workers.cli.answer_output import Answer, print_note, select_columns
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import (
    CommandLineJob,
    JobOrAnswer,
    answer_deletion_outcomes,
    answer_partial_failure,
    answer_partial_failure_if_any,
    job_command,
    select_topics,
    sort_counts,
)
from workers.cli.shared_options import AllTopics, DryRun, DurableDelete, OneTopic, Reason, check_function
from workers.human_readable_values import format_time_to_microsecond, select_fields

if TYPE_CHECKING:
    from workflows.records.job_definitions import (
        DefragmentRecordsResult,
        EndRecordsResult,
        FlushRecordsResult,
        ReplicateRecordsResult,
    )

records = create_command_group("records", "The record log, from which a lost catalog is rebuilt.")

Function = Annotated[
    str, typer.Option("--function", metavar="NAME", callback=check_function, help="The function that is asked.")
]

_HELD = "another job was at work on the record log, and took longer than this one waited"


@command(records, "status", "", "--json")
def show_record_log(context: CommandContext) -> Answer:
    """Show the newest manifest, what it names, and what has changed since and is in no block yet.

    `oldest_change_s` says for how long a change has waited: what is lost if the database is lost now. A bucket without
    the manifest that the catalog knows, and a database that is older than its record log, are refused. `refused` are
    records with a value that no block can hold: flushes leave them out, and `refused_records` says what to mend.
    """
    from logstore.records.services.flusher import find_unrecordable  # noqa: PLC0415 - start-up time
    from logstore.records.services.manifest_publication import require_known_manifest  # noqa: PLC0415 - start-up time

    catalog_records = context.catalog.records
    state = catalog_records.read_state()
    newest = context.log.records.log.read_newest_manifest(state.manifest)
    require_known_manifest(
        catalog_records.read_known_manifest(), newest
    )  # the known number is read after `newest`, because a flush may publish another manifest
    blocks = newest.blocks if newest else ()
    rows_by_kind: dict[str, dict[str, Any]] = {}
    for block in blocks:
        kind = block.kind.value
        row = rows_by_kind.setdefault(kind, {"kind": kind, "blocks": 0, "records": 0, "tombstones": 0, "bytes": 0})
        row["blocks"] += 1
        row["records"] += block.records
        row["tombstones"] += block.tombstones
        row["bytes"] += block.size_bytes
    rows = [row for _, row in sorted(rows_by_kind.items())]
    refused_rows = (
        [{"record": str(record)} for record in find_unrecordable(catalog_records)] if state.outbox_changes else []
    )
    facts: dict[str, object] = {
        "manifest": newest.number if newest else 0,
        "epoch": state.epoch,
        "adopting": state.is_adopting,
        "flushed": format_time_to_microsecond(newest.flushed_us) if newest else None,
        "changes": state.outbox_changes,
        "staged_blocks": len(state.staged_blocks),
        "oldest_change_s": None
        if state.oldest_change_us is None
        else max(0, state.now_us - state.oldest_change_us) / 1_000_000,
        "deletions_waiting": catalog_records.count_unflushed_deletions(),
        "refused": len(refused_rows),
        "blocks": len(blocks),
        "bytes": sum(block.size_bytes for block in blocks),
    }
    sections = [Answer(document=rows, title="kinds", empty="nothing is flushed yet")]
    if refused_rows:
        sections.append(Answer(document=refused_rows, title="records that no block can hold"))
    return Answer(document={**facts, "kinds": rows, "refused_records": refused_rows}, display=facts, sections=sections)


@job_command(records, "flush", "", "--no-wait --json")
def flush_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Write what has changed in the catalog until now into blocks of the record log.

    Workers do so by themselves, every `records_interval`. A durable delete waits for it, and asks for it itself.
    """
    context.require_store()

    def answer(workflow_id: str, result: "FlushRecordsResult") -> Answer:
        flushed = result.done
        error = _HELD if flushed.held else flushed.refusal if flushed.refused else None
        return _answer_counts(workflow_id, flushed, error)

    return CommandLineJob(lambda client: client.flush_records(reason, context.actor), "flushing records", answer)


def _answer_counts(workflow_id: str, result: object, error: str | None) -> Answer:
    failures = [{"id": workflow_id, "error": error}] if error is not None else []
    return answer_partial_failure_if_any({"workflow_id": workflow_id, **integer_fields(result)}, failures)


@command(records, "rewrite", "", "--json")
def rewrite_record_log(context: CommandContext) -> Answer:
    """Write the whole catalog into the record log anew, for a log of which a manifest or a block is damaged or gone.

    Nothing that the log holds is read, and all of it is let go. The database must be the catalog's: with one that is
    older than its record log it is refused. It may be repeated, and goes on while workers do.
    """
    context.require_store()
    rewritten = context.log.records.flusher.rewrite_all_records()
    return Answer(document=select_fields(rewritten, "manifest records tombstones blocks bytes left"))


@job_command(records, "defragment", "", "--json")
def defragment_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Rewrite blocks that contain few live records, join small blocks, and delete blocks that no manifest names.

    Workers do so by themselves, every `defragment_interval`. A block that a raid or a rebuild reads stays.
    """
    context.require_store()

    def answer(workflow_id: str, result: "DefragmentRecordsResult") -> Answer:
        return _answer_counts(workflow_id, result.done, _HELD if result.joined else None)

    activity = "defragmenting the record log"
    return CommandLineJob(lambda client: client.defragment_records(reason, context.actor), activity, answer)


@job_command(
    records, "end", "TOPIC --function expired --dry-run", '--all --function expired --reason "tenants that left" --json'
)
def end_records(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    function: Function,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> JobOrAnswer:
    """Ask a function of your own of every closed ledger, and delete those for which it answers None.

    The workers' setting `functions` names the functions. A ledger that something still needs stays. Where the function
    fails nothing more ends.
    """
    topics = select_topics(context, name, all_topics=all_topics)
    context.require_store()
    topic = topics[0] if topics else None

    def answer(workflow_id: str, result: "EndRecordsResult") -> Answer:
        document: dict[str, object] = {"workflow_id": workflow_id, "function": function, "dry_run": dry_run}
        document |= select_fields(result, "records ended kept ledger_ids because")
        if result.stopped:
            failure = {"id": workflow_id, "error": result.stopped.message}
            return answer_partial_failure({**document, "outcomes": sort_counts(result.outcomes)}, [failure])
        return answer_deletion_outcomes(context, document, result.outcomes, batch_id=workflow_id.partition("/")[2])

    return CommandLineJob(
        lambda client: client.end_records(
            function, topic, reason, context.actor, dry_run=dry_run, durable_delete=durable_delete
        ),
        f"asking {function} of records",
        answer,
    )


@command(records, "replicas", "", "--json")
def list_replicas(context: CommandContext) -> Answer:
    """Show each replica of the record log, what it has, and how far it is behind.

    CURRENT: it has the newest manifest. BEHIND: the tomb raider waits for it. STALE: silent for longer than
    `eligible_age`; nothing waits for it, and it must not serve before it was shipped to again. NEW: nothing was shipped
    to it yet.
    """
    rows = [
        {
            "id": replica.replica,
            "what": "database" if "/" in replica.replica else "bucket",
            "state": replica.state.value if replica.state else "NEW",
            **select_fields(replica, "manifest newest lag_s"),
            "acknowledged": None if replica.at_us is None else format_time_to_microsecond(replica.at_us),
        }
        for replica in context.log.records.replication.list_replica_statuses()
    ]
    return Answer(
        document=rows,
        display=select_columns(rows, "id what state manifest newest lag_s"),
        empty="no replica: the setting replica_buckets names none, and no database follows",
    )


@job_command(records, "replicate", "", "--json")
def replicate_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Copy new blocks and the newest manifest into every replica's bucket, as the workers' settings name them.

    Workers do so by themselves, every `replicate_interval`.
    """
    context.require_store()
    activity = "replicating the record log"
    return CommandLineJob(lambda client: client.replicate_records(reason, context.actor), activity, _answer_replication)


def _answer_replication(workflow_id: str, result: "ReplicateRecordsResult") -> Answer:
    rows: list[dict[str, Any]] = [{"id": replica.replica, **integer_fields(replica)} for replica in result.shipped]
    document: dict[str, object] = {"workflow_id": workflow_id, "replicas": rows}
    failures = [{"id": replica.replica, "error": replica.error} for replica in result.shipped if replica.error]
    if result.joined:
        failures.append({"id": workflow_id, "error": _HELD})
    if not rows:
        print_note("the workers' setting replica_buckets names no replica")
    if failures:
        return answer_partial_failure(document, failures)
    table = Answer(document=rows, title="replicas", empty="no replica")
    return Answer(document=document, display={"workflow_id": workflow_id}, sections=[table])
