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
    """Show the newest manifest and its blocks, and the changes of the catalog that are in no block yet.

    `oldest_change_s` is the age of the oldest of these changes, which are lost if the database is lost now. The command
    is refused if the bucket lacks the manifest that the catalog knows, or if the database is older than its record log.
    `refused` counts records with a value that no block can store. Flushes leave these records out, and
    `refused_records` says what to repair.
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
    """Write all changes of the catalog until now into blocks of the record log.

    Workers flush by themselves, every `records_interval`. A durable delete starts a flush and waits for it.
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
    """Write the whole catalog into new blocks. Use this if a manifest or block of the record log is damaged or missing.

    Old blocks are not read, and the new manifest does not name them. A database that is older than its record log is
    refused. You may repeat the command, and workers may run meanwhile.
    """
    context.require_store()
    rewritten = context.log.records.flusher.rewrite_all_records()
    return Answer(document=select_fields(rewritten, "manifest records tombstones blocks bytes left"))


@job_command(records, "defragment", "", "--json")
def defragment_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Rewrite blocks that contain few live records, join small blocks, and delete blocks that no manifest names.

    Workers defragment by themselves, every `defragment_interval`. Blocks that a raid or a rebuild reads stay.
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
    """Call a record function for each closed ledger, and delete the ledgers for which the function returns None.

    The workers' setting `functions` names the functions. A ledger that something still needs stays. If the function
    fails, it is not called again, and no more ledgers are deleted.
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
    """Show each replica of the record log, its newest manifest, and how far it is behind.

    CURRENT: has the newest manifest. BEHIND: lacks manifests, and raids wait for it. STALE: was silent for longer than
    `eligible_age`. Raids do not wait for a STALE replica, and it must serve no reads until it is shipped to or seeded
    again. NEW: nothing was shipped to it yet.
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
    """Ship new blocks and the newest manifest to each replica bucket in the workers' settings.

    Workers ship by themselves, every `replicate_interval`.
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
