"""`tombstones`: what durable deletes left, the raid that removes what covers nothing, and what they take."""

from typing import TYPE_CHECKING, Annotated

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import Asked, Job, in_part, job
from workers.cli.options import Reason, known_number
from workers.cli.output import Answer
from workers.pages.texts import format_time_us, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from workflows.records.values import RaidTombstonesResult

tombstones = group("tombstones", "Tombstones: what durable deletes leave, and when that goes.")

_RAIDING = "another raid was at work; its own answer is in the Web UI"

EligibleAge = Annotated[
    str | None,
    typer.Option(
        "--eligible-age",
        metavar="DURATION",
        help="Tombstones younger than that stay; by default the workers' setting eligible_age.",
        show_default=False,
    ),
]

Records = Annotated[
    int, typer.Option("--records", metavar="N", callback=known_number, help="So many records that ended durably.")
]
KeyBytes = Annotated[
    int, typer.Option("--key-bytes", metavar="N", callback=known_number, help="Of Aerospike's key; ours is the id.")
]


@command(tombstones, "stats", "", "--json")
def stats(context: CommandContext) -> Answer:
    """Count tombstones by what they stand for, and those that a raid at work has marked: its candidates, cenotaphs."""
    found = context.catalog.tombstones.counts()
    document: dict[str, object] = {
        "tombstones": sum(found.by_kind.values()),
        "by_kind": dict(sorted(found.by_kind.items())),
        "cenotaphs": found.candidates,
        "oldest": None if found.oldest_us is None else format_time_us(found.oldest_us),
    }
    return Answer(document=document)


@job(tombstones, "raid", "", "--eligible-age 12h --json")
def raid(context: CommandContext, *, eligible_age: EligibleAge = None, reason: Reason = "") -> Asked:
    """Remove tombstones that are old enough and cover no older version of their record in any block.

    Workers do so by themselves, every `raid_interval`. One stays while its deletion is unfinished, while storage holds
    objects of it, and while a replica that is not STALE lacks it. `held_by` names such replicas.
    """
    age_s = None if eligible_age is None else parse_duration(eligible_age, "eligible-age")
    context.require_store()
    return Job(lambda client: client.raid_tombstones(age_s, reason, context.actor), "raiding tombstones", _raided)


def _raided(workflow_id: str, result: "RaidTombstonesResult") -> Answer:
    done = result.done
    counts = select_fields(done, "candidates kept removed blocks versions") | {"seconds": round(done.seconds, 3)}
    held_by = [{"id": one.replica, "manifest": one.manifest, "tombstones": one.tombstones} for one in done.held_by]
    told: dict[str, object] = {"workflow_id": workflow_id, "run_id": result.run_id, **counts}
    document = {**told, "held_by": held_by}
    if result.joined:
        return in_part(document, [{"id": workflow_id, "error": _RAIDING}])
    more = [Answer(document=held_by, title="held up by replicas")] if held_by else []
    return Answer(document=document, shown=told, more=more)


@command(tombstones, "sizing", "--records 1000000", "--records 1000000 --json")
def sizing(context: CommandContext, *, records: Records, key_bytes: KeyBytes = 8) -> Answer:
    """Estimate the bytes of tombstones: in the catalog with its indexes, and in defragmented blocks.

    Beside it, what they take in Aerospike: 64 bytes and the key of each in memory, 128 bytes and the key on disk.
    """
    from dataclasses import asdict  # noqa: PLC0415 - start-up time

    from logstore.records.tombstones import sizing as estimated  # noqa: PLC0415

    database = "sqlite" if context.settings.database_url.startswith("sqlite") else "postgresql"
    found = asdict(estimated(records, key_bytes=key_bytes, database=database))
    return Answer(document={**found, "database": database})
