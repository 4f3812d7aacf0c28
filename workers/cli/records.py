"""Groups `records` and `tombstones`: the record log with its replicas, rebuilds, and what durable deletions leave."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from logstore.log.ledger_object_keys import SHARDS
from logstore.records.adoption_rule import MAX_ABSENT_SHARE
from logstore.records.job_results import FollowedRecords, integer_fields
from logstore.records.tombstone_rules import estimate_tombstone_sizes
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_deletion_outcomes
from workers.cli.output import (
    Answer,
    answer_partial_failure,
    answer_partial_failure_if_any,
    append_library_stderr_to_file,
    print_note,
    show_progress_bar,
    sort_counts,
)
from workers.cli.shared_options import (
    AllTopics,
    DryRun,
    DurableDelete,
    Master,
    OneTopic,
    Reason,
    check_function,
    make_fraction_parser,
    make_setting_type_check,
    number_option,
    select_topics,
)
from workers.human_readable_values import format_time_to_microsecond, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from workers.settings import Settings
    from workflows.records.job_definitions import (
        EndRecordsResult,
        FlushRecordsResult,
        RaidTombstonesResult,
        RebuildCatalogProgress,
        RebuildCatalogResult,
        ReplicateRecordsResult,
    )


records = create_command_group("records")

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
    from logstore.records.services.manifest_publication import require_known_manifest  # noqa: PLC0415

    catalog_records = context.catalog.records
    state = catalog_records.read_state()
    newest = context.log.records.log.read_newest_manifest(state.manifest)
    require_known_manifest(
        catalog_records.read_known_manifest(), newest
    )  # the known number is read after `newest`, because a flush may publish another manifest
    blocks = newest.blocks if newest else ()
    rows_by_kind: dict[str, dict[str, Any]] = {}
    for block in blocks:
        zeros = {"kind": block.kind.value, "blocks": 0, "records": 0, "tombstones": 0, "bytes": 0}
        row = rows_by_kind.setdefault(block.kind.value, zeros)
        row["blocks"] += 1
        row["records"] += block.records
        row["tombstones"] += block.tombstones
        row["bytes"] += block.size_bytes
    rows = [row for _, row in sorted(rows_by_kind.items())]
    unrecordable = find_unrecordable(catalog_records) if state.outbox_changes else []
    refused_rows = [{"record": str(record)} for record in unrecordable]
    oldest_us = state.oldest_change_us
    facts: dict[str, object] = {
        "manifest": newest.number if newest else 0,
        **select_fields(state, "epoch adopting=is_adopting"),
        "flushed": format_time_to_microsecond(newest.flushed_us) if newest else None,
        "changes": state.outbox_changes,
        "staged_blocks": len(state.staged_blocks),
        "oldest_change_s": None if oldest_us is None else max(0, state.now_us - oldest_us) / 1_000_000,
        "deletions_waiting": catalog_records.count_unflushed_deletions(),
        "refused": len(refused_rows),
        "blocks": len(blocks),
        "bytes": sum(block.size_bytes for block in blocks),
    }
    sections = [Answer(document=rows, title="kinds", empty="nothing is flushed yet")]
    if refused_rows:
        sections.append(Answer(document=refused_rows, title="records that no block can hold"))
    return Answer(document={**facts, "kinds": rows, "refused_records": refused_rows}, display=facts, sections=sections)


@command(records, "flush", "", "--no-wait --json")
def flush_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Write all changes of the catalog until now into blocks of the record log.

    Workers flush by themselves, every `records_interval`. A durable delete starts a flush and waits for it.
    """
    context.require_store()

    def answer(workflow_id: str, result: "FlushRecordsResult") -> Answer:
        error = _HELD if result.done.held else result.done.refusal if result.done.refused else None
        return _answer_counts(workflow_id, result.done, error)

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


@command(records, "defragment", "", "--json")
def defragment_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Rewrite blocks that contain few live records, join small blocks, and delete blocks that no manifest names.

    Workers defragment by themselves, every `defragment_interval`. Blocks that a raid or a rebuild reads stay.
    """
    context.require_store()

    return CommandLineJob(
        lambda client: client.defragment_records(reason, context.actor),
        "defragmenting the record log",
        lambda workflow_id, result: _answer_counts(workflow_id, result.done, _HELD if result.joined else None),
    )


@command(
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
            **select_fields(replica, "manifest newest lag_s acknowledged=at_us"),
        }
        for replica in context.log.records.replication.list_replica_statuses()
    ]
    return Answer(
        document=rows,
        columns="id what state manifest newest lag_s",
        empty="no replica: the setting replica_buckets names none, and no database follows",
    )


@command(records, "replicate", "", "--json")
def replicate_record_log(context: CommandContext, *, reason: Reason = "") -> JobOrAnswer:
    """Ship new blocks and the newest manifest to each replica bucket in the workers' settings.

    Workers ship by themselves, every `replicate_interval`.
    """
    context.require_store()
    return CommandLineJob(
        lambda client: client.replicate_records(reason, context.actor),
        "replicating the record log",
        _answer_replication,
    )


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
    return Answer(document=document, columns="workflow_id", sections=[table])


def _check_database_url(url: str | None) -> str | None:
    from logstore.catalog.engine.database_connections import (  # noqa: PLC0415 - start-up time
        mask_passwords,
        parse_database_url,
    )

    try:
        if url is not None:
            parse_database_url(url)
    except InvalidInput as error:
        raise InvalidInput("into", expected=error.expected, found=mask_passwords(str(url))) from None
    return url


def _make_into_option(database: str) -> Any:  # noqa: ANN401 - Typer's option
    text = f"{database}: sqlite:///PATH or postgresql+psycopg://…"
    return typer.Option("--into", metavar="DATABASE_URL", callback=_check_database_url, help=text, show_default=False)


Into = Annotated[str | None, _make_into_option("An empty database, which becomes the catalog")]
MaxAbsentShare = Annotated[
    float,
    typer.Option(
        "--max-absent-share",
        metavar="SHARE",
        parser=make_fraction_parser("max-absent-share"),
        help="Stop if storage holds nothing of more than this share of all ledgers; 0 to 1.",
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Go on without corrupt or missing blocks, and name them. Blocks of transactions are never skipped.",
    ),
]
_TAKE_OVER_HELP = "Begin while workers of the catalog live; their appends are adopted until they know."
TakeOver = Annotated[bool, typer.Option("--take-over", help=_TAKE_OVER_HELP)]
_ABANDON_HELP = "Only end this rebuild, with which no command goes on, so that raids need not wait for it."
Abandon = Annotated[str | None, typer.Option("--abandon", metavar="REBUILD", help=_ABANDON_HELP, show_default=False)]


def _require_service_addresses(settings: "Settings") -> None:
    settings.require_address("s3_endpoint")
    settings.require_address("temporal_address")


@command(
    records,
    "rebuild",
    "sexton records rebuild --into sqlite:////srv/sexton/catalog.db",
    "sexton records rebuild --into postgresql+psycopg://sexton@db/catalog --json",
    "sexton records rebuild --into sqlite:////srv/sexton/catalog.db --skip-unreadable",
    "sexton records rebuild --abandon 92e8c83f-1f56-4bf1-91eb-e64c80a4071a-5-ce570462",
)
def rebuild_catalog(
    context: CommandContext,
    *,
    into: Into = None,
    skip_unreadable: SkipUnreadable = False,
    max_absent_share: MaxAbsentShare = MAX_ABSENT_SHARE,
    master: Master = None,
    take_over: TakeOver = False,
    abandon: Abandon = None,
) -> Answer:
    """Rebuild a lost catalog from its record log, and adopt what storage has beyond the last flush.

    No other worker is needed. Without --take-over, no worker of the old database may live. An interrupted rebuild
    continues if you run the command again. A change after the last flush is lost if it left no trace in storage.
    `unflushed_window` is the time from the last flush to the start of the rebuild.

    Nothing is deleted. Objects that no record names stay, and `orphans plan` reports them. The rebuild is refused if a
    listing lacks an object that HEAD finds, or if too many ledgers have no objects. A later run continues this rebuild.
    If the old catalog has flushed in between, give another `--into`.
    """
    from logstore.catalog.engine.database_connections import mask_passwords  # noqa: PLC0415 - start-up time

    if abandon is not None:
        if into is not None:
            raise InvalidInput("into", expected="nothing beside --abandon", found=mask_passwords(into))
        _require_service_addresses(context.settings)
        abandoned = context.services.abandon_rebuild(context.settings, abandon)
        return Answer(document=select_fields(abandoned, "rebuild manifest terminated"))
    if into is None:
        raise InvalidInput("into", expected="the URL of an empty database, or --abandon REBUILD", found=into)
    settings = context.settings.model_copy(update={"database_url": into})
    _require_service_addresses(settings)
    log_file = context.settings.home / "logs" / "rebuild.log"
    with append_library_stderr_to_file(log_file), show_progress_bar("rebuilding the catalog") as bar:

        def show(progress: "RebuildCatalogProgress") -> None:
            versions = f"{progress.records or progress.versions:,} {'records' if progress.records else 'versions'}"
            total = SHARDS if progress.step in {"looking", "adopting"} else None
            text = f"rebuilding the catalog: {progress.step}, {versions}"
            bar.update(text, progress.shards if total else 0, total)

        result = context.services.rebuild(
            settings,
            skip_unreadable=skip_unreadable,
            max_absent_share=max_absent_share,
            master=master or "",
            take_over=take_over,
            say=print_note,
            on_progress=show,
        )
    return _answer_rebuild(result, mask_passwords(into))


def _answer_rebuild(result: "RebuildCatalogResult", database_url: str) -> Answer:
    adopted = result.adopted
    print_note(f"this database is the catalog now: start every worker with SEXTON_DATABASE_URL={database_url}")
    if adopted.missing_data:
        ids = ", ".join(str(ledger_id) for ledger_id in adopted.missing_ledgers[:10])
        print_note(
            f"data is missing: objects of {adopted.missing_data} ledgers are absent, as of {ids}; see `ledger explain`"
        )
    if unlisted_ledgers := adopted.detached + adopted.revived:
        print_note(
            f"{unlisted_ledgers} ledgers are in no list. What storage holds of them stays: `sexton orphans plan`"
            " reports it, and `sexton orphans apply` deletes it"
        )
    if adopted.schemas_left_out:
        topics = ", ".join(adopted.schemas_left_out_of[:10])
        print_note(
            f"{adopted.schemas_left_out} versions of schemas came back without their ledgers and were left out, of"
            f" {topics}: set them again with `sexton topic schema set`, or delete the topics again"
        )
    document: dict[str, object] = {
        **select_fields(result, "rebuild manifest records tombstones"),
        "database_url": database_url,
        **select_fields(adopted, "adopted_ledgers adopted_segments detached revived revived_ledgers"),
        **select_fields(adopted, "missing_data missing_ledgers schemas_left_out schemas_left_out_of"),
        "unflushed_window": [format_time_to_microsecond(moment) for moment in (result.flushed_us, result.begun_us)],
        "skipped": result.skipped_blocks,
    }
    if result.skipped_blocks:
        causes = (block.partition(": ") for block in result.skipped)
        return answer_partial_failure(document, [{"id": key, "error": error} for key, _, error in causes])
    display = {name: value for name, value in document.items() if not name.endswith(("_ledgers", "_of")) or value}
    return Answer(document=document, display=display)


IntoReplica = Annotated[str, _make_into_option("The replica's database, or an empty one")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="BUCKET",
        callback=make_setting_type_check("validate_bucket_name"),
        help="A bucket of replica_buckets; by default the record log's own.",
        show_default=False,
    ),
]
Seed = Annotated[bool, typer.Option("--seed", help="Empty the replica's database first, and apply all.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on until the command is ended.")]


@command(
    records,
    "follow",
    "--into sqlite:////srv/replica/catalog.db",
    "sexton records follow --from sexton-copy --into postgresql+psycopg://sexton@db/replica --watch",
    "--into sqlite:////srv/replica/catalog.db --seed --json",
)
def follow_record_log(
    context: CommandContext, *, into: IntoReplica, bucket: From = None, seed: Seed = False, watch: Watch = False
) -> Answer:
    """Apply the record log to a replica: a separate database, which serves reads and refuses writes.

    An empty database is seeded. A later run applies what is new, also after an interruption. If raids did not wait for
    the replica (STALE), or if the catalog was rebuilt, the replica is refused until it is seeded again.
    """
    settings = context.settings.model_copy(update={"database_url": into})
    _require_service_addresses(settings)
    with show_progress_bar("following the record log") as bar:

        def show(progress: FollowedRecords) -> None:
            bar.update(f"following the record log: manifest {progress.manifest}, {progress.records:,} records")

        totals = context.services.follow(
            settings, bucket=bucket or settings.records_bucket, seed=seed, watch=watch, say=print_note, on_progress=show
        )
    if not totals.manifest:
        print_note("there is no manifest yet: nothing was flushed, or nothing shipped")
    return Answer(document={"replica": totals.replica, **integer_fields(totals)})


tombstones = create_command_group("tombstones")

_AGE_HELP = "Tombstones younger than that stay; by default the workers' setting eligible_age."
EligibleAge = Annotated[
    str | None, typer.Option("--eligible-age", metavar="DURATION", help=_AGE_HELP, show_default=False)
]
Records = Annotated[int, number_option("--records", "So many records that ended durably.")]
KeyBytes = Annotated[int, number_option("--key-bytes", "Of Aerospike's key; ours is the id.")]


@command(tombstones, "stats", "", "--json")
def count_tombstones(context: CommandContext) -> Answer:
    """Count tombstones by kind of record, and cenotaphs: tombstones that a raid has marked for removal."""
    counts = context.catalog.tombstones.count_tombstones()
    document = {
        "tombstones": sum(counts.by_kind.values()),
        "by_kind": dict(sorted(counts.by_kind.items())),
        **select_fields(counts, "cenotaphs=candidates oldest=oldest_us"),
    }
    return Answer(document=document)


@command(tombstones, "raid", "", "--eligible-age 12h --json")
def raid_tombstones(context: CommandContext, *, eligible_age: EligibleAge = None, reason: Reason = "") -> JobOrAnswer:
    """Remove tombstones that are old enough, and whose older record versions are in no block.

    Workers raid by themselves, every `raid_interval`. A tombstone stays while its deletion is unfinished, while storage
    has objects of its ledger, and while a replica that is not STALE lacks the tombstone. `held_by` names these
    replicas.
    """
    age_s = None if eligible_age is None else parse_duration(eligible_age, "eligible-age")
    context.require_store()

    def answer(workflow_id: str, result: "RaidTombstonesResult") -> Answer:
        counts = select_fields(result.done, "candidates kept removed blocks versions")
        display = {"workflow_id": workflow_id, "run_id": result.run_id, **counts}
        display["seconds"] = round(result.done.seconds, 3)
        replicas = [select_fields(each, "id=replica manifest tombstones") for each in result.done.held_by]
        document = {**display, "held_by": replicas}
        if result.joined:
            error = "another raid was at work; its own answer is in the Web UI"
            return answer_partial_failure(document, [{"id": workflow_id, "error": error}])
        sections = [Answer(document=replicas, title="held up by replicas")] if replicas else []
        return Answer(document=document, display=display, sections=sections)

    return CommandLineJob(
        lambda client: client.raid_tombstones(age_s, reason, context.actor), "raiding tombstones", answer
    )


@command(tombstones, "sizing", "--records 1000000", "--records 1000000 --json")
def estimate_tombstone_bytes(context: CommandContext, *, records: Records, key_bytes: KeyBytes = 8) -> Answer:
    """Estimate the bytes of tombstones: in the catalog with its indexes, and in defragmented blocks.

    For comparison, Aerospike needs 64 bytes and the key of each in memory, and 128 bytes and the key on disk.
    """
    database = "sqlite" if context.settings.database_url.startswith("sqlite") else "postgresql"
    estimate = estimate_tombstone_sizes(records, key_bytes=key_bytes, database=database)
    return Answer(document={**asdict(estimate), "database": database})
