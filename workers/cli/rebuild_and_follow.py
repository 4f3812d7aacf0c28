"""`records rebuild` of a lost catalog, and `records follow` of a replica database, from the record log."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from logstore.log.ledger_object_keys import SHARDS
from logstore.records.adoption_rule import MAX_ABSENT_SHARE
from logstore.records.job_results import FollowedRecords, integer_fields
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.job_commands import answer_partial_failure
from workers.cli.progress_bar import append_library_stderr_to_file, show_progress_bar
from workers.cli.records import records
from workers.cli.shared_options import Master, make_fraction_parser, make_setting_type_check
from workers.human_readable_values import format_time_to_microsecond, select_fields

if TYPE_CHECKING:
    from workers.settings import Settings
    from workflows.records.job_definitions import RebuildCatalogProgress, RebuildCatalogResult


def _check_database_url(url: str | None) -> str | None:
    from logstore.catalog.engine.database_connections import parse_database_url  # noqa: PLC0415 - start-up time

    if url is None:
        return None
    try:
        parse_database_url(url)
    except InvalidInput as error:
        raise InvalidInput("into", expected=error.expected, found=_mask_passwords(url)) from None
    return url


def _mask_passwords(url: str) -> str:
    from logstore.catalog.engine.database_connections import mask_passwords  # noqa: PLC0415 - start-up time

    return mask_passwords(url)


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
    if abandon is not None:
        if into is not None:
            raise InvalidInput("into", expected="nothing beside --abandon", found=_mask_passwords(into))
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
    return _answer_rebuild(result, _mask_passwords(into))


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
        "unflushed_window": [
            format_time_to_microsecond(result.flushed_us),
            format_time_to_microsecond(result.begun_us),
        ],
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
