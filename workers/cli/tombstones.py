"""Group `tombstones`: tombstones of durable deletions, the raid that removes them, and their size."""

from typing import TYPE_CHECKING, Annotated

import typer

from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_partial_failure, job_command
from workers.cli.shared_options import Reason, check_nonnegative_numbers
from workers.human_readable_values import format_time_to_microsecond, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from workflows.records.job_definitions import RaidTombstonesResult

tombstones = create_command_group("tombstones", "Tombstones: what durable deletes leave, and when that goes.")

_AGE_HELP = "Tombstones younger than that stay; by default the workers' setting eligible_age."
EligibleAge = Annotated[
    str | None, typer.Option("--eligible-age", metavar="DURATION", help=_AGE_HELP, show_default=False)
]
Records = Annotated[
    int,
    typer.Option(
        "--records", metavar="N", callback=check_nonnegative_numbers, help="So many records that ended durably."
    ),
]
KeyBytes = Annotated[
    int,
    typer.Option(
        "--key-bytes", metavar="N", callback=check_nonnegative_numbers, help="Of Aerospike's key; ours is the id."
    ),
]


@command(tombstones, "stats", "", "--json")
def count_tombstones(context: CommandContext) -> Answer:
    """Count tombstones by kind of record, and cenotaphs: tombstones that a raid has marked for removal."""
    counts = context.catalog.tombstones.count_tombstones()
    document: dict[str, object] = {
        "tombstones": sum(counts.by_kind.values()),
        "by_kind": dict(sorted(counts.by_kind.items())),
        "cenotaphs": counts.candidates,
        "oldest": None if counts.oldest_us is None else format_time_to_microsecond(counts.oldest_us),
    }
    return Answer(document=document)


@job_command(tombstones, "raid", "", "--eligible-age 12h --json")
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
        display: dict[str, object] = {"workflow_id": workflow_id, "run_id": result.run_id, **counts}
        display["seconds"] = round(result.done.seconds, 3)
        replicas = [
            {"id": replica.replica, "manifest": replica.manifest, "tombstones": replica.tombstones}
            for replica in result.done.held_by
        ]
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
    from dataclasses import asdict  # noqa: PLC0415 - start-up time

    from logstore.records import tombstone_rules as estimates  # noqa: PLC0415

    database = "sqlite" if context.settings.database_url.startswith("sqlite") else "postgresql"
    estimate = estimates.estimate_tombstone_sizes(records, key_bytes=key_bytes, database=database)
    return Answer(document={**asdict(estimate), "database": database})
