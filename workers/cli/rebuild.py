"""`records rebuild`: the database is gone, and the catalog comes back from the record log and from storage."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from logstore.log.ledgers import SHARDS
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.jobs import in_part
from workers.cli.options import Master
from workers.cli.output import Answer, note
from workers.cli.progress import ProgressBar, watching
from workers.cli.records import records
from workers.pages.texts import shown_us

if TYPE_CHECKING:
    from workflows.records.values import RebuildCatalogProgress, RebuildCatalogResult


def known_database(url: str) -> str:
    """The URL of a database that can hold a catalog."""
    from infra.catalog.engine.connections import parsed_url, shown_url  # noqa: PLC0415 - start-up time

    try:
        parsed_url(url)
    except InvalidInput as error:
        raise InvalidInput("into", expected=error.expected, found=shown_url(url)) from None
    return url


def into(what: str) -> Any:  # noqa: ANN401 - Typer's option
    """The option `--into`, for a database that is so."""
    told = f"{what}: sqlite:///PATH or postgresql+psycopg://…"
    return typer.Option("--into", metavar="DATABASE_URL", callback=known_database, help=told)


Into = Annotated[str, into("An empty database, which becomes the catalog")]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Go on without blocks that are corrupt or gone, and name them."),
]


@command(
    records,
    "rebuild",
    examples=[
        "sexton records rebuild --into sqlite:////srv/sexton/catalog.db",
        "sexton records rebuild --into postgresql+psycopg://sexton@db/catalog --json",
        "sexton records rebuild --into sqlite:////srv/sexton/catalog.db --skip-unreadable",
    ],
)
def rebuild(
    context: CommandContext, *, into: Into, skip_unreadable: SkipUnreadable = False, master: Master = None
) -> Answer:
    """Rebuild a lost catalog from its record log, and take in what storage holds beyond the last flush.

    No other worker is needed. Ended at any moment and run again, it goes on. What changed after the last flush, and
    left no trace in storage, is lost: `unflushed_window` says since when.
    """
    settings = context.settings.model_copy(update={"database_url": into})
    settings.required("s3_endpoint")
    settings.required("temporal_address")
    with watching("rebuilding the catalog") as bar:
        result = context.services.rebuild(
            settings,
            skip_unreadable=skip_unreadable,
            master=master or "",
            say=note,
            on_progress=lambda found: _show(bar, found),
        )
    return _answer(result)


def _show(bar: ProgressBar, found: "RebuildCatalogProgress") -> None:
    counts = f"{found.records or found.versions:,} {'records' if found.records else 'versions'}"
    total = SHARDS if found.step == "adopting" else None
    bar.say(f"rebuilding the catalog: {found.step}, {counts}", found.shards if total else 0, total)


def _answer(result: "RebuildCatalogResult") -> Answer:
    adopted = result.adopted
    if adopted.missing_data:
        ids = ", ".join(str(one) for one in adopted.missing_ledgers[:10])
        note(
            f"data is missing: objects of {adopted.missing_data} ledgers are absent, as of {ids}; see `ledger explain`"
        )
    document: dict[str, object] = {
        "rebuild": result.rebuild,
        "manifest": result.manifest,
        "records": result.records,
        "tombstones": result.tombstones,
        "adopted_ledgers": adopted.adopted_ledgers,
        "adopted_segments": adopted.adopted_segments,
        "detached": adopted.detached,
        "revived": adopted.revived,
        "revived_ledgers": adopted.revived_ledgers,
        "missing_data": adopted.missing_data,
        "missing_ledgers": adopted.missing_ledgers,
        "unflushed_window": [shown_us(result.flushed_us), shown_us(result.begun_us)],
        "skipped": result.skipped_blocks,
    }
    if result.skipped_blocks:
        rows = [{"id": key, "error": why} for key, _, why in (one.partition(": ") for one in result.skipped)]
        return in_part(document, rows)
    shown = {name: value for name, value in document.items() if not name.endswith("_ledgers") or value}
    return Answer(document=document, shown=shown)
