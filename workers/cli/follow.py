"""`records follow`: a database of its own follows the record log, and serves reads."""

from typing import Annotated

import typer

from logstore.records.jobs import FollowedRecords, counts
from workers.cli import rebuild
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.options import of_kind
from workers.cli.output import Answer, note
from workers.cli.progress import watching
from workers.cli.records import records

Into = Annotated[str, rebuild.into("The replica's database, or an empty one")]


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="BUCKET",
        callback=of_kind("bucket_name"),
        help="A bucket of replica_buckets; by default the record log's own.",
        show_default=False,
    ),
]
Seed = Annotated[bool, typer.Option("--seed", help="Empty the replica's database first, and apply all.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on until the command is ended.")]


@command(
    records,
    "follow",
    examples=[
        "sexton records follow --into sqlite:////srv/replica/catalog.db",
        "sexton records follow --from sexton-copy --into postgresql+psycopg://sexton@db/replica --watch",
        "sexton records follow --into sqlite:////srv/replica/catalog.db --seed --json",
    ],
)
def follow(
    context: CommandContext, *, into: Into, bucket: From = None, seed: Seed = False, watch: Watch = False
) -> Answer:
    """Apply the record log to a database of its own, which serves reads and refuses writes: a replica.

    An empty database is seeded. Later runs apply what is new; ended at any moment and run again, the command goes on. A
    replica that raids did not wait for (STALE), or whose source was rebuilt, is refused until it is seeded again.
    """
    settings = context.settings.model_copy(update={"database_url": into})
    settings.required("s3_endpoint")
    settings.required("temporal_address")
    with watching("following the record log") as bar:

        def show(done: FollowedRecords) -> None:
            bar.say(f"following the record log: manifest {done.manifest}, {done.records:,} records", 0, None)

        done = context.services.follow(
            settings,
            bucket=bucket or settings.records_bucket,
            seed=seed,
            watch=watch,
            say=note,
            on_progress=show,
        )
    if not done.manifest:
        note("there is no manifest yet: nothing was flushed, or nothing shipped")
    return Answer(document={"replica": done.replica, **counts(done)})
