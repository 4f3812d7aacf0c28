"""`records`: the record log: what is not flushed yet, blocks and manifests, replicas."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.records.jobs import counts
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import Asked, Job, counted, ended, in_part, job, one_or_all
from workers.cli.options import AllTopics, DryRun, DurableDelete, OneTopic, Reason, known_function
from workers.cli.output import Answer, note
from workers.pages.texts import format_time_us, select_fields

if TYPE_CHECKING:
    from logstore.records.services.replicating import Replica
    from workflows.records.values import (
        DefragmentRecordsResult,
        EndRecordsResult,
        FlushRecordsResult,
        ReplicateRecordsResult,
    )

records = group("records", "The record log, from which a lost catalog is rebuilt.")

Function = Annotated[
    str, typer.Option("--function", metavar="NAME", callback=known_function, help="The function that is asked.")
]

HELD = "another job was at work on the record log, and took longer than this one waited"


@command(records, "status", "", "--json")
def status(context: CommandContext) -> Answer:
    """Show the newest manifest, what it names, and what has changed since and is in no block yet.

    `oldest_change_s` says for how long a change has waited: what is lost if the database is lost now. A bucket without
    the manifest that the catalog knows, and a database that is older than its record log, are refused. `refused` are
    records with a value that no block can hold: flushes leave them out, and `refused_records` says what to mend.
    """
    from logstore.records.services.flushing import refused  # noqa: PLC0415 - start-up time
    from logstore.records.services.publishing import require_known  # noqa: PLC0415 - start-up time

    state = context.catalog.records.state()
    newest = context.log.records.log.newest(state.manifest)
    require_known(context.catalog.records.known(), newest)  # read behind it: a flush may have gone by
    age_s = None if state.oldest_us is None else max(0, state.now_us - state.oldest_us) / 1_000_000
    facts: dict[str, object] = {
        "manifest": newest.number if newest else 0,
        "epoch": state.epoch,
        "adopting": state.adopting,
        "flushed": format_time_us(newest.flushed_us) if newest else None,
        "changes": state.outbox,
        "staged_blocks": len(state.staged),
        "oldest_change_s": age_s,
    }
    blocks = newest.blocks if newest else ()
    by_kind: dict[str, dict[str, int]] = {}
    for one in blocks:
        kind = by_kind.setdefault(one.kind.value, {"blocks": 0, "records": 0, "tombstones": 0, "bytes": 0})
        for name, count in zip(kind, (1, one.records, one.tombstones, one.size_bytes), strict=True):
            kind[name] += count
    left_out = [{"record": str(one)} for one in refused(context.catalog.records)] if state.outbox else []
    facts |= {"deletions_waiting": context.catalog.records.waiting_deletions(), "refused": len(left_out)}
    rows = [{"kind": kind, **found} for kind, found in sorted(by_kind.items())]
    totals = {"blocks": len(blocks), "bytes": sum(one.size_bytes for one in blocks)}
    return Answer(
        document={**facts, **totals, "kinds": rows, "refused_records": left_out},
        shown={**facts, **totals},
        more=[
            Answer(document=rows, title="kinds", empty="nothing is flushed yet"),
            *([Answer(document=left_out, title="records that no block can hold")] if left_out else []),
        ],
    )


@job(records, "flush", "", "--no-wait --json")
def flush(context: CommandContext, *, reason: Reason = "") -> Asked:
    """Write what has changed in the catalog until now into blocks of the record log.

    Workers do so by themselves, every `records_interval`. A durable delete waits for it, and asks for it itself.
    """
    context.require_store()
    return Job(lambda client: client.flush_records(reason, context.actor), "flushing records", _flushed)


def _flushed(workflow_id: str, result: "FlushRecordsResult") -> Answer:
    done = result.done
    if done.refused and not done.held:
        return in_part({"workflow_id": workflow_id, **counts(done)}, [{"id": workflow_id, "error": done.refusal}])
    return _told(workflow_id, done, held=done.held)


def _told(workflow_id: str, done: object, *, held: bool) -> Answer:
    document: dict[str, object] = {"workflow_id": workflow_id, **counts(done)}
    return in_part(document, [{"id": workflow_id, "error": HELD}]) if held else Answer(document=document)


@command(records, "rewrite", "", "--json")
def rewrite(context: CommandContext) -> Answer:
    """Write the whole catalog into the record log anew, for a log of which a manifest or a block is damaged or gone.

    Nothing that the log holds is read, and all of it is let go. The database must be the catalog's: with one that is
    older than its record log it is refused. It may be repeated, and goes on while workers do.
    """
    context.require_store()
    done = context.log.records.flusher.rewrite()
    return Answer(document=select_fields(done, "manifest records tombstones blocks bytes left"))


@job(records, "defragment", "", "--json")
def defragment(context: CommandContext, *, reason: Reason = "") -> Asked:
    """Rewrite blocks that are mostly dead, join small ones, and delete what no manifest names any more.

    Workers do so by themselves, every `defragment_interval`. A block that a raid or a rebuild reads stays.
    """
    context.require_store()

    def answer(workflow_id: str, result: "DefragmentRecordsResult") -> Answer:
        return _told(workflow_id, result.done, held=result.joined)

    what = "defragmenting the record log"
    return Job(lambda client: client.defragment_records(reason, context.actor), what, answer)


@job(
    records, "end", "TOPIC --function expired --dry-run", '--all --function expired --reason "tenants that left" --json'
)
def end(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    function: Function,
    durable_delete: DurableDelete = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> Asked:
    """Ask a function of your own of every closed ledger, and delete those for which it answers None.

    The workers' setting `functions` names the functions. A ledger that something still needs stays. Where the function
    fails nothing more ends.
    """
    asked = one_or_all(context, name, all_topics=all_topics)
    context.require_store()
    topic = asked[0] if asked else None

    def answer(workflow_id: str, result: "EndRecordsResult") -> Answer:
        document: dict[str, object] = {"workflow_id": workflow_id, "function": function, "dry_run": dry_run}
        document |= select_fields(result, "records ended kept ledger_ids because")
        if result.stopped:
            failed = {"id": workflow_id, "error": result.stopped.message}
            return in_part({**document, "outcomes": counted(result.outcomes)}, [failed])
        return ended(context, document, result.outcomes, batch_id=workflow_id.partition("/")[2])

    return Job(
        lambda client: client.end_records(
            function, topic, reason, context.actor, dry_run=dry_run, durable_delete=durable_delete
        ),
        f"asking {function} of records",
        answer,
    )


@command(records, "replicas", "", "--json")
def replicas(context: CommandContext) -> Answer:
    """Show each replica of the record log, what it has, and how far it is behind.

    CURRENT: it has the newest manifest. BEHIND: the tomb raider waits for it. STALE: silent for longer than
    `eligible_age`; nothing waits for it, and it must not serve before it was shipped to again. NEW: nothing was shipped
    to it yet.
    """
    rows = [_replica(one) for one in context.log.records.replication.standings()]
    shown = [{name: row[name] for name in ("id", "what", "state", "manifest", "newest", "lag_s")} for row in rows]
    return Answer(
        document=rows, shown=shown, empty="no replica: the setting replica_buckets names none, and no database follows"
    )


def _replica(one: "Replica") -> dict[str, object]:
    return {
        "id": one.replica,
        "what": "database" if "/" in one.replica else "bucket",
        "state": one.state.value if one.state else "NEW",
        "manifest": one.manifest,
        "newest": one.newest,
        "lag_s": one.lag_s,
        "acknowledged": None if one.at_us is None else format_time_us(one.at_us),
    }


@job(records, "replicate", "", "--json")
def replicate(context: CommandContext, *, reason: Reason = "") -> Asked:
    """Copy new blocks and the newest manifest into every replica's bucket, as the workers' settings name them.

    Workers do so by themselves, every `replicate_interval`.
    """
    context.require_store()
    return Job(
        lambda client: client.replicate_records(reason, context.actor), "replicating the record log", _replicated
    )


def _replicated(workflow_id: str, result: "ReplicateRecordsResult") -> Answer:
    rows: list[dict[str, Any]] = [{"id": one.replica, **counts(one)} for one in result.shipped]
    document: dict[str, object] = {"workflow_id": workflow_id, "replicas": rows}
    failed = [{"id": one.replica, "error": one.error} for one in result.shipped if one.error]
    if result.joined:
        failed.append({"id": workflow_id, "error": HELD})
    if not rows:
        note("the workers' setting replica_buckets names no replica")
    table = Answer(document=rows, title="replicas", empty="no replica")
    if failed:
        return in_part(document, failed)
    return Answer(document=document, shown={"workflow_id": workflow_id}, more=[table])
